"""utils/checks/gradients.py: what a rank's function is given, what comes back, and what is said about a wrong one."""

import pytest
import torch

from utils.checks import CheckFailed
from utils.checks.gradients import drive, expect_passes, judge_rank, parts, per_rank, serial
from utils.checks.inputs import Draws
from utils.checks.runner import Runner

X, W, GRAD = (Draws().integers(shape, seed=seed) for seed, shape in enumerate([(2, 4), (4, 2), (2, 2)], start=1))
GIVEN = per_rank(2, x_local=parts(X, 2, 1), w_local=parts(W, 2, 0))


def rows(x_local, w_local, g):
    return g(x_local @ w_local)


def judged(function, given=GIVEN, groups=None):
    ranks = len(given)
    answer = Runner(function)(ranks, given, [GRAD] * ranks, through=drive, groups=groups)
    y, right = serial(torch.matmul, GRAD, input=X, other=W)
    for rank, result in enumerate(answer.results):
        place = rank if groups is None else rank // 2
        cut = {"x_local": parts(right["input"], 2, 1)[place], "w_local": parts(right["other"], 2, 0)[place]}
        judge_rank(result, rank, y, cut)
    return answer


def test_values_gradients_and_calls_of_a_right_function():
    answer = judged(rows)
    said = expect_passes(answer, [("all_reduce", GRAD.nbytes)], [])
    assert said == "forward: all_reduce of 16 bytes; backward: nothing."


def test_groups_side_by_side():
    judged(rows, [GIVEN[0], GIVEN[0], GIVEN[1], GIVEN[1]], groups=[[0, 2], [1, 3]])


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x_local, w_local, g: x_local @ w_local, "rank 0 returned"),
        (lambda x_local, w_local, g: g(x_local @ w_local).detach(), "autograd does not see through it"),
        (lambda x_local, w_local, g: g(x_local.detach() @ w_local), "the gradient of x_local is None"),
        (lambda x_local, w_local, g: g(x_local @ w_local)[:1], "shape (1, 2)"),
        (lambda x_local, w_local, g: g(x_local.data.mul_(2) / 2 @ w_local), "x_local is not what it was"),
    ],
)
def test_the_mistake_in_a_wrong_function_is_named(function, says):
    with pytest.raises(CheckFailed) as failed:
        judged(function)
    assert says in str(failed.value)


def test_calls_in_the_wrong_pass_are_named():
    answer = judged(rows)
    with pytest.raises(CheckFailed) as failed:
        expect_passes(answer, [], [("all_reduce", GRAD.nbytes)])
    assert "rank 0 called all_reduce of 16 bytes in the forward pass, expected nothing" in str(failed.value)
