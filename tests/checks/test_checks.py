"""utils/checks: what `expect` accepts and reports, what a check tells a student, and how it runs their function."""

import math
import re
from functools import partial

import pytest
import torch
import torch.distributed as dist

from grader.hidden import hidden_tests_for
from utils.checks import CheckFailed, checks_for
from utils.checks.answer import Answer
from utils.checks.compare import expect, expect_own_memory, expect_possible, expect_unchanged
from utils.checks.known_mistakes import KnownMistakes
from utils.checks.progress import Progress
from utils.checks.registration import Check, check
from utils.checks.registry import Checks, header
from utils.checks.rooms import load_checks, room_of
from utils.checks.runner import Runner
from utils.checks.show import show
from utils.checks.traffic import (
    calls_of_ranks,
    expect_calls,
    expect_each_sent,
    expect_launched_first,
    expect_time,
    expect_traffic,
    with_bytes,
)
from utils.cluster.hardware import links
from utils.events.event import Event
from utils.report.run import Run

pytestmark = pytest.mark.long

ONE = torch.tensor([1.0, 2.0])


def failure(got, expected, recognise=None, rtol=0) -> str:
    with pytest.raises(CheckFailed) as failed:
        expect(got, expected, 2, recognise, rtol)
    return str(failed.value)


# ---- expect


@pytest.mark.parametrize(
    "value",
    [
        ONE,
        torch.tensor(3),
        torch.tensor([float("nan"), float("inf")]),
        torch.empty(0),
        torch.tensor([True, False]),
        torch.tensor([1, 2], dtype=torch.bfloat16),
        torch.ones(3, 4)[:, ::2],
        None,
        [1, 2],
        [ONE, None],
    ],
)
def test_equal_is_accepted(value):
    expect(value.clone() if isinstance(value, torch.Tensor) else value, value, rank=0)


def test_a_tuple_will_do_for_a_list():
    expect(([1, 2], (ONE,)), [(1, 2), [ONE]], 0)
    assert failure((1, 3), [1, 2]) == "  rank 2 returned [1, 3], expected [1, 2]"
    assert "(a tuple)" in failure((1, 2), ONE)


def test_a_wrong_value_says_rank_seen_and_expected():
    assert failure(torch.tensor([1.0, 3.0]), ONE) == "  rank 2 returned [1 3], expected [1 2]"


def test_a_recognised_mistake_is_named():
    text = failure(torch.tensor([2.0, 4.0]), ONE, {"the half": ONE / 2, "twice the sum": 2 * ONE})
    assert text.endswith("\n  That is twice the sum.")
    assert failure(2 * ONE, ONE, {"twice the sum. Why?": 2 * ONE}).endswith("\n  That is twice the sum. Why?")


def test_a_description_without_a_noun_gets_one():
    text = failure(2 * ONE, ONE, {"without the halving: halve it": 2 * ONE, "for one rank": 2 * ONE})
    assert "That is the result without the halving: halve it. Or it is the result for one rank." in text
    assert failure(2 * ONE, ONE, {"within 2 of it": 2 * ONE}).endswith("That is within 2 of it.")


def test_the_type_is_judged():
    class Fake(torch.Tensor):
        def __eq__(self, other):
            return torch.tensor(True)

    assert "[1.0, 2.0] (a list), expected [1 2] (a tensor)" in failure([1.0, 2.0], ONE)
    assert "returned None, expected [1 2]" in failure(None, ONE)
    assert "expected None" in failure(ONE, None)
    failure(torch.tensor([5.0, 5.0]).as_subclass(Fake), ONE)
    failure(True, 1)


def test_values_too_long_for_one_line_stand_one_above_the_other():
    assert failure(list(range(20)), [1]) == f"  rank 2 returned {list(range(20))}\n  expected        [1]"


def test_the_dtype_and_the_shape_are_judged():
    assert "[1 2] (torch.float64), expected [1 2] (torch.float32)" in failure(ONE.double(), ONE)
    assert failure(ONE.double(), ONE).endswith(
        "The numbers are right but not their dtype: create buffers with the dtype of the input, and convert back what "
        "you have converted."
    )
    assert "[[1 2]] (shape (1, 2)), expected [1 2] (shape (2,))" in failure(ONE.reshape(1, 2), ONE)


@pytest.mark.parametrize("numel", [3, 20])
def test_tensors_without_values_and_complex_numbers_are_wrong_answers(numel):
    ones = torch.ones(numel)
    seen = failure(ones.to("meta"), ones)
    assert (
        "rank 2 returned a tensor without values: its memory was freed, or it is on the device meta\n"
        "  expected        [1 1 1" in seen
    )
    seen = failure(ones + 1j, ones, {"the right sum": ones})
    assert "[(1+1j) (1+1j)" in seen and "right sum" not in seen
    assert ("first difference at [0]" in seen) == (numel > 16)
    expect(ones + 1j, ones + 1j, 0)


def test_nan_is_not_a_number_that_passes():
    failure(torch.tensor([float("nan"), 2.0]), ONE)


def test_a_long_tensor_is_abbreviated_and_says_where_it_differs():
    right = torch.arange(1000.0)
    wrong = right.clone()
    wrong[17] = -1
    text = failure(wrong, right)
    assert "[0 1 2 3 4 5 ... 998 999] (first difference at [17]: -1)\n  expected        [0 1" in text
    assert text.endswith("[0 1 2 3 4 5 ... 998 999] (17 there)")
    assert len(text) < 200


def test_a_tensor_whose_numbers_fill_more_than_a_line_is_abbreviated_too():
    right = torch.linspace(1.0, 2.0, 16, dtype=torch.float64).reshape(4, 4)
    wrong = right * (1 + 1e-12)
    wrong[2, 3] = 7
    text = failure(wrong, right, rtol=1e-9)
    assert "1.33333 ... 1.93333 2] (first difference at [2, 3]: 7)\n  expected        [1 1.06667 " in text
    assert "(1.73333 there) to 9 digits" in text


def test_numbers_that_differ_late_are_shown_with_enough_digits():
    assert failure(torch.tensor([1.0000001]), torch.tensor([1.0])).count("[1]") == 1


def test_a_tolerance_must_be_asked_for():
    near = ONE * (1 + 1e-6)
    expect(near, ONE, 0, rtol=1e-5)
    failure(near, ONE)


def test_one_rule_holds_for_numbers_lists_and_tensors():
    close = {1.0: 1 + 1e-10, 3.0: 3, math.inf: math.inf}
    for right, got in close.items():
        expect([got, (got,)], [right, (right,)], 0, rtol=1e-9)
    for right, got in ((1.0, 1 + 1e-8), (math.inf, 1e300), (2, 2.0), (0.0, 1e-12), (True, 1)):
        with pytest.raises(CheckFailed):
            expect([got], [right], 0, rtol=1e-9)
    expect(torch.tensor([1e6, 1e-5]), torch.tensor([1e6, 0.0]), 0, rtol=1e-9)  # relative to the largest entry


@pytest.mark.parametrize(
    "got, expected, advice",
    [
        (torch.tensor(2.5), 2.5, "with .item()"),
        (2.0, 2, "by dividing with //"),
        ([2.0, 4.0], [2, 4], "by dividing with //"),
        ([ONE.double()], [ONE], "the dtype of the input"),
        (ONE, ONE.to(torch.int8), "torch.int8 is wanted"),
        ("compute-bound", "compute", "return 'compute', as the docstring does"),
    ],
)
def test_the_right_value_in_the_wrong_type_is_said_to_be_that(got, expected, advice):
    assert advice in failure(got, expected)


@pytest.mark.parametrize(
    "got, expected, words",
    [
        (3 * ONE, ONE, "Every number is 3 times the right one."),
        (-ONE / 4, ONE, "Every number is the right one divided by -4."),
        (0.5, 2.0, "That is the right one divided by 4."),
        (2e9, 2.0, "That is 1e+09 times the right one."),
        (ONE.reshape(2, 1), ONE, "These are the right numbers in a different shape: (2,) is wanted."),
    ],
)
def test_a_wrong_factor_or_shape_is_said_to_be_that(got, expected, words):
    assert failure(got, expected).endswith(f"\n  {words}")
    assert failure(got, expected, {"a mistake": got}).endswith("\n  That is a mistake.")


@pytest.mark.parametrize(
    "got, expected", [(2.3, 1.1), (4e-6, 20000.0), (4, 2), (2.3 * ONE[:1], ONE[:1]), (0 * ONE, ONE), (ONE, 0 * ONE)]
)
def test_what_can_be_chance_is_not_called_a_factor(got, expected):
    assert "right one" not in failure(got, expected)


def test_the_numbers_of_a_dict_are_rounded_like_others():
    with pytest.raises(CheckFailed) as failed:
        expect({"L1": 0.1 + 0.2, "L2": 1.0}, {"L1": 0.1 + 0.3, "L2": 1.0}, 0, rtol=1e-6)
    assert "{'L1': 0.3, 'L2': 1}, expected {'L1': 0.4, 'L2': 1} to 6 digits" in str(failed.value)


def test_show_keeps_long_python_values_short():
    assert len(show(list(range(1000)))) < 140


# ---- the input, the traffic


def event(rank, op, nbytes=8, peer=None, **fields):
    fields = {"is_async": False, "start": 0.0, "end": 1.0, **fields}
    return Event(rank, 0, op, "world", (0, 1), peer, 0, nbytes, "float32", (2,), "", where="cell:1", **fields)


def answered(results, inputs_after, events=(), elapsed=0.0) -> Answer:
    ranks = len(results)
    return Answer(results, inputs_after, Run(ranks, "real", "gloo", results, [""] * ranks, list(events), elapsed))


def test_a_wait_at_the_very_beginning_of_a_run_is_a_wait():
    expect_no_waits = load_checks(room_of("05_data_parallelism")).expect_no_waits
    expect_no_waits(0, [event(0, "all_reduce", is_async=True)], end=1.0)
    with pytest.raises(CheckFailed):
        expect_no_waits(0, [event(0, "all_reduce", is_async=True, waited=0.0)], end=1.0)


def test_a_changed_input_is_seen_in_tensors_and_lists_of_them():
    expect_unchanged(answered([0], [[ONE]]), [ONE])
    expect_unchanged(answered([0], [[None]]), [None])
    for after, before in ((2 * ONE, ONE), ([ONE, 2 * ONE], [ONE, ONE]), (ONE.double(), ONE)):
        with pytest.raises(CheckFailed, match="must stay as it was"):
            expect_unchanged(answered([0], [[after]]), [before])


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (
            lambda w: (w.requires_grad_() ** 2).sum().backward() or w.requires_grad_(False),
            "called backward() on the ca",
        ),
        (lambda w: w.requires_grad_(), "called requires_grad_() on the caller's own tensor"),
    ],
)
def test_training_the_callers_own_tensor_is_named(does, says):
    def trains(w):
        does(w)
        return 1

    answer = Runner(trains)(1, [ONE.clone()])
    with pytest.raises(CheckFailed) as failed:
        expect_unchanged(answer, [ONE])
    assert says in (words := str(failed.value)) and "copy: w.detach().clone().requires_grad_()" in words
    assert words.startswith("  rank 0: w ")


def test_none_in_a_later_case_is_a_branch_without_a_return():
    for cases, says in (([0], "not written yet"), ([1, 0], "a branch without `return`")):
        run = Runner(lambda x: x or None)
        with pytest.raises(CheckFailed, match=says):
            for given in cases:
                run(1, [given])


def test_an_input_with_the_memory_of_another_tensor_has_changed():
    def replaces(w, other):
        w.data = other
        return 1

    for other in (2 * ONE, ONE.double()):
        answer = Runner(partial(replaces, other=other))(1, [ONE.clone()])
        with pytest.raises(CheckFailed, match="must stay as it was"):
            expect_unchanged(answer, [ONE])


def test_a_changed_input_has_the_name_that_the_answer_gives_it():
    def doubles(sizes, batch, rank):
        batch.mul_(2)
        return batch.sum()

    def through(function, sizes, rows, rank):
        return function(sizes, rows, rank)

    sizes, batches = [[1, 2]] * 2, [ONE, ONE]
    for options, name in ({}, "batch"), ({"driver": through}, "input 2 of 2"):
        answer = Runner(doubles)(2, sizes, [batch.clone() for batch in batches], **options)
        with pytest.raises(CheckFailed, match=f"rank 0: {name} is "):
            expect_unchanged(answer, sizes, batches)


def test_the_situation_names_no_switch_that_only_the_driver_takes():
    def through(function, x, reshard, tp, clear, rank):
        return function(x, reshard)

    run = Runner(lambda x, reshard: x)
    run(2, [ONE, ONE], reshard=True, tp=2, clear=True, driver=through)
    assert run.situation == "2 ranks, reshard True, tp 2, float32 (2,)"


def test_a_function_that_takes_no_rank_is_not_told_which_ranks_called_it():
    def alone(x):
        return x.lost

    def together(x, rank):
        return x.lost

    for function, says in (alone, "your function raised Attr"), (together, "ranks 0 and 1 raised Attr"):
        with pytest.raises(CheckFailed, match=says):
            Runner(function)(2, [1, 2])


def test_an_endless_loop_is_shown_with_the_inputs_on_which_it_does_not_end(monkeypatch):
    def halve(largest, step):
        while largest > 1:
            largest -= step
        return largest

    monkeypatch.setattr("utils.checks.runner.TIMEOUT", 1)
    with pytest.raises(CheckFailed) as caught:
        Runner(halve)(3, [4, 2, 6], [1, 0, 2])
    first, where, *_ = caught.value.saw.splitlines()
    assert first == "your function has not finished after 1 s."
    assert re.fullmatch(r"  largest 2, step 0: it is running .*line \d+: .*", where)


@pytest.mark.parametrize(
    "got, same", [("CPU", True), ("cpu.", True), ("cpu, no GPU", True), ("cpu:0", False), ("cpus", False), ("a", False)]
)
def test_a_word_is_only_misspelled_if_it_is_that_word(got, same):
    with pytest.raises(CheckFailed) as failed:
        expect(got, "cpu", 0)
    assert ("spelled differently" in failed.value.mistake) == same


def test_messages_and_bytes_are_counted():
    sends = [event(0, "send", peer=1), event(0, "send", peer=1), event(1, "recv", peer=0)]
    assert (
        expect_traffic(answered([], [], sends), 2, 16) == "rank 0 sent 2 messages; 16 bytes in all. No fewer will do."
    )
    assert expect_traffic(answered([], [], []), 0, 0).startswith("no rank sent anything")
    for messages, nbytes, says in (
        (1, 8, "2 times as many"),
        (3, 24, "Fewer messages than are needed"),
        (2, 8, "2 times the bytes"),
    ):
        with pytest.raises(CheckFailed, match=says):
            expect_traffic(answered([], [], sends), messages, nbytes)


def test_messages_and_bytes_of_each_rank_are_counted():
    sends = [event(0, "send", peer=1), event(0, "send", peer=1), event(1, "recv", peer=0), event(1, "recv", peer=0)]
    answer = answered([1, 1], [], sends)
    assert (
        expect_each_sent(answer, [2, 0], [16, 0], "Good.")
        == "the ranks sent 2 messages between them, 16 bytes in all. Good."
    )
    assert expect_each_sent(answered([1], [], []), 0, 0) == "each rank sent 0 messages, 0 bytes in all."
    for messages, nbytes, says in (
        (
            [1, 0],
            [8, 0],
            r"rank 0 sent 2 messages, 16 bytes in all, expected 1 message, 8 bytes in all\n  That is 2 times the m",
        ),
        ([2, 0], [8, 0], "2 times the bytes that are needed"),
        (2, 16, "rank 1 sent 0 messages.*\n  Fewer messages than are needed"),
        (0, 0, "None is needed"),
    ):
        with pytest.raises(CheckFailed, match=says):
            expect_each_sent(answer, messages, nbytes)


def test_virtual_time_is_compared():
    assert expect_time(answered([1], [], elapsed=0.002), 0.002) == "2 ms of virtual time."
    expect_time(answered([1], [], elapsed=0.001), 0.002)
    with pytest.raises(
        CheckFailed, match="took 6 ms of virtual time, expected 2 ms at most\n  That is 3 times as long.*the root's"
    ):
        expect_time(answered([1], [], elapsed=0.006), 0.002, recognise={"the root's way": 0.006})


def test_a_collective_is_not_a_message():
    with pytest.raises(CheckFailed, match="your function calls broadcast, expected only send, recv"):
        expect_traffic(answered([], [], [event(0, "broadcast")]), 0, 0)
    with pytest.raises(CheckFailed, match="calls barrier, expected messages alone\n.*leave the barrier out"):
        expect_traffic(answered([], [], [event(0, "barrier")]), 0, 0)


def test_calls_are_compared_rank_by_rank():
    both = [event(0, "gather"), event(1, "gather")]
    passed = expect_calls(answered([1, 1], [], both), ["gather"], [8])
    assert passed == "each rank called gather, with 8 bytes in all."
    twice = answered([1, 1], [], [event(0, "gather"), event(1, "gather"), event(1, "gather")])
    assert with_bytes(twice) == "", "ranks differ"
    with pytest.raises(CheckFailed, match="rank 1 called nothing, expected gather"):
        expect_calls(answered([1, 1], [], both[:1]), ["gather"])
    with pytest.raises(CheckFailed, match="handed 8 bytes to gather, expected 4 bytes"):
        expect_calls(answered([1, 1], [], both), ["gather"], [4])


def test_the_calls_of_each_rank_are_of_one_kind():
    events = [event(1, "all_reduce"), event(0, "all_reduce"), event(1, "all_reduce")]
    assert [(rank, len(calls)) for rank, calls in calls_of_ranks(answered([1, 1], [], events), "all_reduce")] == [
        (0, 1),
        (1, 2),
    ]
    with pytest.raises(CheckFailed, match="your function calls gather, expected all_reduce only"):
        calls_of_ranks(answered([1, 1], [], [*events, event(0, "gather")]), "all_reduce")
    with pytest.raises(CheckFailed, match="rank 0 started an asynchronous all_reduce and never waited for it"):
        calls_of_ranks(answered([1], [], [event(0, "all_reduce", is_async=True, end=None)]), "all_reduce")


def test_all_calls_are_launched_before_the_first_wait():
    first, second = ({"is_async": True, "start": start, "end": 3.0} for start in (0.0, 1.0))

    def launched(*calls):
        expect_launched_first(answered([1], [], [event(0, "all_reduce", **call) for call in calls]))

    launched({**first, "waited": 2.0}, {**second, "waited": 2.5})
    with pytest.raises(CheckFailed, match="waited for the first all-reduce before it had started the last one"):
        launched({**first, "waited": 0.5}, {**second, "waited": 2.5})
    with pytest.raises(CheckFailed, match="rank 0: 1 of 2 all-reduces blocked"):
        launched(first, {**second, "is_async": False})


def pass_on(x, rank, world_size):
    """Rank r sends to r + 1."""
    received = torch.zeros_like(x)
    if rank > 0:
        dist.recv(received, src=rank - 1)
    if rank < world_size - 1:
        dist.send(x + received, dst=rank + 1)
    return x + received


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_the_same_function_runs_on_virtual_ranks(device):
    run = Runner(pass_on)
    xs = run.draws.different_integers(4, 250)
    cluster = links(4, alpha=1e-3, bandwidth=1e6)
    answer = run.virtual(4, xs, cluster=cluster, device=device)
    assert expect_time(answer, 3 * (1e-3 + 1000 / 1e6)) == "6 ms of virtual time."
    expect_each_sent(answer, [1, 1, 1, 0], [1000, 1000, 1000, 0])
    assert run.situation == "4 ranks, float32 (250,), on the virtual cluster 'only links count'"
    if device == "cpu":
        expect(answer.results[3], sum(xs), 3)
        expect_unchanged(answer, xs)


def test_a_virtual_rank_that_fails_says_so():
    def waits(x, rank, world_size):
        dist.recv(x, src=1 - rank)

    with pytest.raises(CheckFailed, match="Everyone receives first") as failed:
        Runner(waits, if_stuck="a hint").virtual(2, [ONE, ONE], cluster=links(2, 0, 1))
    assert "a hint" not in str(failed.value), "the report has found the cause"
    with pytest.raises(CheckFailed, match="Worth checking: a hint"):
        Runner(waits, if_stuck="a hint", quiet=True).virtual(2, [ONE, ONE], cluster=links(2, 0, 1))


def test_a_deadlock_without_a_known_cause_gets_the_exercises_advice():
    def waits(x, rank, world_size):
        if rank == 0:
            dist.send(x, dst=1)
        else:
            dist.recv(x, src=3 - rank) if rank < 3 else dist.recv(x, src=0)

    with pytest.raises(CheckFailed, match="No send matches a receive(.|\n)*Worth checking: a hint"):
        Runner(waits, if_stuck="a hint").virtual(4, [ONE] * 4, cluster=links(4, 0, 1))


# ---- running the student's function


def add_one(x: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    return x + 1


def without_rank(x):
    return x * 10


def writes_into_its_input(x, rank, world_size):
    return x.mul_(2)


def not_written(x, rank, world_size):
    raise NotImplementedError()


def returns_nothing(x, rank, world_size):
    print("here")


def divides_by_zero(x, rank, world_size):
    return x if rank else 1 // 0


def rank_1_is_unhappy(x, rank, world_size):
    if rank == 1:
        raise ValueError("no")
    return x


def test_each_rank_gets_its_own_input():
    assert Runner(add_one)(2, [ONE, 3 * ONE]).results[1].tolist() == [4, 7]
    assert Runner(without_rank)(2, [ONE, 3 * ONE]).results[1].tolist() == [30, 60]


def test_the_input_after_the_call_comes_back_with_its_strides():
    view = torch.arange(6.0)[::2]
    answer = Runner(writes_into_its_input)(1, [view])
    assert answer.inputs_after[0][0].tolist() == [0, 4, 8]
    assert view.tolist() == [0, 2, 4]


def test_several_results_may_not_share_memory_either():
    run = Runner(lambda x: (x.clone(), x))
    assert run(1, [ONE.clone()]).shared == [True]
    assert Runner(lambda x: (x.clone(), None))(1, [ONE.clone()]).shared == [False]


@pytest.mark.parametrize("result", [lambda x: x, lambda x: x[1:], lambda x: x.view(1, 2)])
def test_a_result_that_shares_memory_with_its_input_is_seen(result):
    def shares(x, rank):
        return result(x) if rank else x.clone()

    answer = Runner(shares)(2, [ONE, ONE])
    assert answer.shared == [False, True]
    with pytest.raises(CheckFailed, match="rank 1 returned a tensor that shares memory with its input"):
        expect_own_memory(answer)
    expect_own_memory(Runner(lambda x: x[:0])(1, [ONE]))
    expect_own_memory(Runner(lambda x: x.tolist())(1, [ONE]))
    virtual = Runner(shares).virtual(2, [ONE, ONE], cluster=links(2, 1e-6, 1e9), device="cpu")
    assert virtual.shared == [False, True]
    assert Runner(shares).virtual(2, [ONE, ONE], cluster=links(2, 1e-6, 1e9)).shared == [False, False]  # sizes only


def test_fewer_bytes_than_any_right_answer_holds_are_flagged():
    expect_possible(1, 8, least=8)
    with pytest.raises(CheckFailed, match="rank 1 claims to hold 7 bytes in tensors, expected 8 at least") as error:
        expect_possible(1, 7, least=8)
    assert error.value.impossible


def test_an_exception_can_be_a_result():
    kept, caught = Runner(rank_1_is_unhappy)(2, [ONE, ONE], catch=ValueError).results
    assert torch.equal(kept, ONE)
    assert str(caught) == "no"


@pytest.mark.parametrize(
    "function, says",
    [
        (not_written, "Not written yet"),
        (returns_nothing, "return"),
        (divides_by_zero, "rank 0 raised ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_be_judged(function, says):
    with pytest.raises(CheckFailed, match=says):
        Runner(function)(2, [ONE, ONE])


def sends_to_itself(x, rank):
    dist.send(x, dst=rank)


def starts_a_send_to_itself(x, rank):
    dist.isend(x, dst=rank)


def is_told_of_an_odd_address(x, rank):
    """Of a peer without one, Gloo prints what lies in memory."""
    raise RuntimeError("state_ >= CONNECTED. 1 vs 4. Pair is not connected ([127.0.0.1]:35235$0 <--> [69.0.0.0])")


def sends_none(x, rank):
    dist.send(x.grad, dst=1 - rank)


@pytest.mark.parametrize(
    "function, advice",
    [
        (sends_to_itself, "A rank can't send to itself"),
        (starts_a_send_to_itself, "A rank has no connection to itself"),
        (is_told_of_an_odd_address, "A rank has no connection to itself"),
        (sends_none, "Only a leaf gets a .grad"),
    ],
)
@pytest.mark.parametrize("virtual", [False, True], ids=["real", "virtual"])
def test_errors_of_torch_and_gloo_come_with_advice(function, advice, virtual):
    """Fails when a new version words one of them differently: see ADVICE in runner.py."""
    run = Runner(function)
    with pytest.raises(CheckFailed) as failed:
        if virtual:
            run.virtual(2, [ONE, ONE], cluster=links(2, 1e-6, 1e9), device="cpu")
        else:
            run(2, [ONE, ONE])
    assert advice in failed.value.mistake


def test_a_check_shows_what_a_student_prints_and_a_hidden_test_does_not(capsys):
    for quiet, printed in ((False, "[rank 0] here"), (True, "")):
        with pytest.raises(CheckFailed):
            Runner(returns_nothing, quiet=quiet)(1, [ONE])
        assert printed in capsys.readouterr().out
    assert not printed


# ---- the checks of a lesson


def lesson_of(one: Check, hidden: bool = False) -> Checks:
    """A lesson with a single check."""
    checks = Checks.__new__(Checks)
    checks.checks, checks.hidden, checks.progress = {(one.exercise, one.judges): one}, hidden, Progress({})
    checks.looked_at, checks.known, checks.best = set(), KnownMistakes(), {}
    return checks


@check("add-one")
def adds_one(run):
    expect(run(2, [ONE, ONE]).results[1], ONE + 2, rank=1)


@check("add-one", judges="traffic")
def adds_quietly(run):
    return expect_traffic(run(2, [ONE, ONE]), 0, 0)


def test_a_failed_check_has_a_header_and_the_situation():
    with pytest.raises(CheckFailed) as failed:
        lesson_of(adds_one)(add_one)
    first, *rest = str(failed.value).splitlines()
    assert first.startswith("add-one · values · 2 ranks, float32 (2,)   ")
    assert first.endswith("  not passed")
    assert rest == ["  rank 1 returned [2 3], expected [3 4]"]
    assert failed.value._render_traceback_() == [first, *rest]


def test_a_long_situation_has_a_line_of_its_own():
    situation = "4 ranks, micro_batch_size 3, float64 (12, 4), on the virtual cluster 'one row a second'"
    first, second = header(["forward", "time"], situation).splitlines()
    assert len(first) == len(header(["forward", "time"], "4 ranks")) and second == f"  {situation}"


def test_a_hidden_test_does_not_give_away_what_it_expects():
    with pytest.raises(CheckFailed, match="hidden test") as failed:
        lesson_of(adds_one, hidden=True)(add_one)
    assert "rank 1 returned [2 3], expected something else" in str(failed.value)


def test_a_passed_check_prints_one_line_and_its_remark(capsys):
    lesson_of(adds_quietly)(add_one, judges="traffic")
    assert (
        capsys.readouterr().out
        == "add-one · traffic · passed\n  no rank sent anything; 0 bytes in all. No fewer will do.\n"
    )
    lesson_of(adds_quietly, hidden=True)(add_one, judges="traffic")
    assert capsys.readouterr().out == "add-one · traffic · hidden test · passed\n"


def test_unknown_lessons_and_functions_get_one_clear_line():
    for find in (checks_for, hidden_tests_for):
        with pytest.raises(ValueError, match="there is no lesson '99_nothing': choose one of .*01_collectives"):
            find("99_nothing")
    with pytest.raises(ValueError, match="nothing judges the values of add-one"):
        checks_for("01_collectives")(add_one)
