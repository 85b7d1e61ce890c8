"""The hidden tests of the tiny lesson."""

from importlib import import_module

from utils.checks.compare import expect
from utils.checks.marking import check

visible = import_module("tests.tiny.checks.90_tiny")
SECRET = 21


@check("double")
def double_values(run):
    expect(run(1, x=SECRET).results[0], 2 * SECRET, "for a number that you did not see, it is")


@check("total")
def total_values(run):
    visible.judge_total(run, run.draws.different_integers(2, (3, 1)))
