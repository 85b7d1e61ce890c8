"""utils/checks/gradients.py: one process on whole tensors says what is right on ranks that have shards."""

from functools import partial

import pytest
import torch

from utils import RankFailed, simulate
from utils.checks import CheckFailed, Draws
from utils.checks.gradients import Sharded, expect_passes, in_groups, output_first, serial, shards
from utils.checks.oracles import oracle
from utils.checks.runner import Runner
from utils.kit.drivers.backward import drive, my_group

ALL_REDUCE = ("all_reduce", 16)  # the all-reduce of y


def product(x, w):
    return x @ w


def case(draws, size=2, by_hand=False, forward=(ALL_REDUCE,), backward=()):
    x, w, grad = (draws.integers(shape, seed=seed) for seed, shape in enumerate([(2, 4), (4, 2), (2, 2)], start=1))
    truth = Sharded(product, size, {"x": x, "w": w}, grad, cut={"x": 1, "w": 0})
    if by_hand:
        return truth.case_by_hand({"grad_x_local": truth.too_large("x", "it is not a partial sum")})
    partial_sums, _ = truth.alone()
    mistakes = {"output": {"a partial sum": partial_sums}, "w_local": truth.too_large("w", "g hands on its gradient")}
    return output_first(truth.case(mistakes, traffic=partial(expect_passes, forward=forward, backward=backward)))


def judged(function, judges="values", **arguments):
    one = oracle("product", **{judges: [arguments]})(in_groups(case))
    return one.checks()[0](Runner(function))


def failure(function, judges="values", **arguments) -> str:
    with pytest.raises(CheckFailed) as failed:
        judged(function, judges, **arguments)
    return str(failed.value).strip()


def rows(x_local, w_local, g):
    return g(x_local @ w_local)


def by_hand(x_local, w_local, grad):
    return x_local @ w_local, grad @ w_local.T, x_local.T @ grad


def by_hand_twice(x_local, w_local, grad, g):
    return g(x_local @ w_local), 2 * grad @ w_local.T, x_local.T @ grad


def test_the_serial_function_says_what_is_right():
    x, w, grad = torch.arange(8.0).view(2, 4), torch.ones(4, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    y, gradients = serial(product, grad, x=x, w=w)
    assert y.equal(x @ w) and gradients["x"].equal(grad @ w.T) and gradients["w"].equal(x.T @ grad)
    truth = Sharded(product, 2, {"x": x, "w": w}, grad, cut={"x": 1, "w": 0})
    partial_sums, of_shards = truth.alone()
    assert sum(partial_sums).equal(y)
    assert torch.stack(of_shards["x"]).equal(shards(gradients["x"], 2, 1))
    [given, _] = truth.case({}).inputs
    assert [mine["x_local"].untyped_storage().nbytes() for mine in given] == [16, 16]  # no view of the whole


def test_values_gradients_and_calls_of_a_right_function():
    judged(rows)
    assert judged(rows, "traffic") == "forward: all_reduce of 16 bytes; backward: nothing."


def test_groups_side_by_side_have_inputs_of_their_own():
    judged(rows, groups=[[0, 2], [1, 3]])
    assert "rank 0 returned" in failure(lambda x_local, w_local: torch.zeros(2, 2), groups=[[0, 2], [1, 3]])


def test_gradients_by_hand():
    judged(by_hand, size=1, by_hand=True)
    assert failure(by_hand, by_hand=True).startswith("rank 1: y is")
    assert failure(by_hand_twice, by_hand=True).endswith("That is 2 times too large: it is not a partial sum.")
    assert "expected 3 values: y, grad_x_local, grad_w_local" in failure(lambda **given: None, by_hand=True)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x_local, w_local, g: x_local @ w_local, "That is a partial sum."),
        (lambda x_local, w_local, g: None, "That is what a function without a `return` gives"),
        (lambda x_local, w_local, g: g(x_local @ w_local).detach(), "It sees through neither detach()"),
        (lambda x_local, w_local, g: g(x_local.detach() @ w_local), "the gradient of x_local is None"),
        (lambda x_local, w_local, g: g(x_local @ w_local)[:1], "shape (1, 2)"),
        (lambda x_local, w_local, g: g(x_local @ w_local) / 0, "That is not a number, or infinite"),
        (lambda x_local, w_local, g: g(x_local.data.mul_(2) / 2 @ w_local), "x_local is not what it was"),
        (lambda x_local, w_local, f, g: g(x_local @ f(w_local)), "the gradient of w_local is"),
        (
            lambda x_local, w_local, g: g(x_local @ (2 * w_local - w_local.detach())),
            "That is 2 times too large: g hands on its gradient.",
        ),
    ],
)
def test_the_mistake_in_a_wrong_function_is_named(function, says):
    assert says in failure(function)


def test_calls_in_the_wrong_pass_are_named():
    said = failure(rows, "traffic", forward=(), backward=(ALL_REDUCE,))
    assert "rank 0 called all_reduce of 16 bytes in the forward pass, expected nothing" in said


def test_calls_count_only_where_the_output_is_right_and_has_gradients():
    assert "That is a partial sum." in failure(lambda x_local, w_local, g: x_local @ w_local, "traffic")
    assert "no gradient" in failure(lambda x_local, w_local, g: g(x_local @ w_local).detach(), "traffic")


def halves(x_local, w_local, g):
    y = x_local @ w_local
    return torch.cat([g(y[:1]), g(y[1:])])


def test_all_reduces_may_be_counted_together():
    def calls(nbytes):
        return partial(
            expect_passes, forward=[("all_reduce", nbytes)], backward=[], why=("One y.", "Nothing."), in_all=True
        )

    answer = Runner(halves)(2, *case(Draws()).inputs, driver=drive)
    assert calls(16)(answer) == "forward: all_reduces of 16 bytes in all; backward: nothing."
    for nbytes, says in ((8, "2 times the bytes that are needed. One y."), (32, "Fewer bytes than are needed. One y.")):
        with pytest.raises(CheckFailed, match=says):
            calls(nbytes)(answer)


def test_a_function_that_keeps_something_from_its_first_call_is_found():
    def keeps(x_local, w_local, g, kept=[]):  # noqa: B006
        kept.append(1)
        return len(kept) * g(x_local @ w_local)

    said = failure(keeps)
    assert "a second call with the same inputs gives a different result" in said


def test_a_rank_that_is_in_no_group_of_a_driver_does_not_get_the_world():
    with pytest.raises(RankFailed, match="rank 2 raised ValueError"):
        simulate(lambda rank, world_size: my_group(rank, [[0, 1]]), 3)
    assert simulate(lambda rank, n: my_group(rank, None).size(), 3).results == [3] * 3
    assert simulate(lambda rank, n: my_group(rank, [[0, 1], [2]]).size(), 3).results == [2, 2, 1]
