"""The visible checks of the tiny lesson."""

import torch

from utils.checks.compare import expect
from utils.checks.marking import check
from utils.checks.traffic import expect_calls


@check("double")
def double_values(run):
    for x in (2, 5):
        expect(run(1, x=x).results[0], 2 * x, f"double({x}) is", {"the number itself": x, "its square": x * x})


@check("total")
def total_values(run):
    judge_total(run, run.draws.different_integers(3, 4))


def judge_total(run, xs):
    for rank, got in enumerate(run(len(xs), xs).results):
        expect(got, torch.stack(xs).sum(0), rank, {"your own tensor: nothing was received": xs[rank]})


@check("total", judges="traffic")
def total_traffic(run):
    return expect_calls(run(4, run.draws.different_integers(4, 4)), ["all_reduce"])
