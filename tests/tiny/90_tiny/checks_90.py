"""The checks of the tiny lesson of tests/tiny_course.py."""

import torch

from utils.checks.compare import expect
from utils.checks.registration import check
from utils.checks.traffic import expect_calls


@check("double")
def double_values(run):
    for x in (2, 5):
        expect(run(1, x=x).results[0], 2 * x, f"double({x}) is", {"the number itself": x, "its square": x * x})


@check("total")
def total_values(run):
    judge_total(run, run.draws.different_integers(3, 4))


### BEGIN HIDDEN TESTS
SECRET = 21


@check("double")
def hidden_double_values(run):
    expect(run(1, x=SECRET).results[0], 2 * SECRET, "for a number that you did not see, it is")


@check("total")
def hidden_total_values(run):
    judge_total(run, run.draws.different_integers(2, (3, 1)))


### END HIDDEN TESTS


def judge_total(run, xs):
    for rank, got in enumerate(run(len(xs), xs).results):
        expect(got, torch.stack(xs).sum(0), rank, {"your own tensor: nothing was received": xs[rank]})


@check("total", judges="traffic")
def total_traffic(run):
    return expect_calls(run(4, run.draws.different_integers(4, 4)), ["all_reduce"])
