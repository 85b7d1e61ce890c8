"""utils/checks/oracles.py: one function says what is right and what mistakes lead to, and the engine judges with it."""

import json
import math
from dataclasses import replace

import pytest
import torch

from utils.checks import CheckFailed, Draws, expect_time, frozen_cases, oracles
from utils.checks.answer import Answer
from utils.checks.oracles import Case, every, only_at, oracle, side_by_side, vary
from utils.checks.registry import checks_in
from utils.checks.runner import Runner
from utils.cluster import Gpu
from utils.cluster.hardware import links
from utils.report.run import Run

THREE = [1.0, 2.0, 3.0]


def answered(*results, inputs_after=None, shared=()) -> Answer:
    ranks = len(results)
    run = Run(ranks, "real", "gloo", list(results), [""] * ranks, [], 0.0)
    return Answer(list(results), inputs_after or [[] for _ in results], run, list(shared))


def failure(case: Case, answer: Answer, judges: str = "values") -> str:
    with pytest.raises(CheckFailed) as failed:
        case.judge(answer, judges)
    return str(failed.value).strip()


def judged(one, function, judges: str = "values"):
    [check] = [check for check in one.checks() if check.judges == judges]
    return check(Runner(function))


def test_a_case_may_have_a_driver_for_each_thing_that_is_judged():
    def driven(number):
        return lambda function, x: function(x) + number

    def remark(answer):
        return f"returned {answer.results}"

    @oracle("add-up", values=[()], traffic=[()], memory=[()])
    def add_up(_: Draws) -> Case:
        drivers = {"values": driven(10), "memory": None}
        judges = dict.fromkeys(("also", "traffic", "memory"), remark)
        return Case([[1]], driver=driven(20), drivers=drivers, clock=links(1, 1e-6, 1e9), **judges)

    said = [judged(add_up, lambda x: x, judges) for judges in ("values", "traffic", "memory")]
    assert said == ["returned [11]", "returned [21]", "returned [1]"]


def test_what_has_a_driver_of_its_own_counts_only_with_right_values():
    case = Case(right=2, drivers={"traffic": None}, traffic=lambda answer: "no message")
    assert case.judge(answered(2), "traffic") == "no message"
    with pytest.raises(CheckFailed, match="its traffic is right, but what it returned is not"):
        case.judge(answered(3), "traffic")


# ---- what each rank should return


def test_one_value_is_every_ranks_and_a_list_has_one_for_each():
    Case(right=7, world_size=3).judge(answered(7, 7, 7), "values")
    Case(right=THREE, world_size=3).judge(answered(*THREE), "values")
    assert failure(Case(right=THREE, world_size=3), answered(1.0, 2.0, 4.0)) == "rank 2 returned 4.0, expected 3.0"


def test_a_list_that_every_rank_returns_is_marked():
    Case(right=every(THREE), world_size=2).judge(answered(THREE, THREE), "values")
    with pytest.raises(TypeError, match=r"a list of 3 for 2 ranks: write every\(\[...\]\)"):
        Case(right=THREE, world_size=2).judge(answered(THREE, THREE), "values")


def test_only_one_rank_may_have_the_result():
    case = Case(right=only_at(1, 5), world_size=3)
    case.judge(answered(None, 5, None), "values")
    assert failure(case, answered(5, 5, None)).endswith("Only the root, rank 1 here, has the result.")
    assert failure(case, answered(None, 6, 6)).startswith("rank 2 returned 6, expected None")  # before the wrong value
    assert failure(case, answered(None, None, None)).startswith("rank 1 returned None, expected 5")


def test_a_mistake_is_named_by_its_value_on_that_rank():
    case = Case(right=6, mistakes={"your own": [1, 2, 3], "the mean": 2}, world_size=3)
    assert failure(case, answered(6, 6, 3)).endswith("That is your own.")
    assert failure(case, answered(2, 6, 6)).endswith("That is the mean.")
    assert failure(case, answered(6, 2, 6)).endswith("That is your own. Or it is the mean. Both give these numbers.")
    assert failure(replace(case, in_order=True), answered(1, 2, 3)).endswith("That is your own.")
    in_order = Case(right=6, mistakes={"your own": [2, 1, 3], "the mean": 2}, world_size=3, in_order=True)
    assert failure(in_order, answered(2, 1, 3)).endswith("That is your own.")  # rank 1 has no mean
    assert failure(in_order, answered(2, 2, 2)).endswith("That is the mean.")


def test_a_mistake_may_be_a_question_and_an_explanation_comes_last():
    shuffled = {"the right numbers in another order": lambda got: sorted(got) == [1, 2]}
    case = Case(right=every([1, 2]), mistakes=shuffled, explain=lambda got, rank: f"{len(got)} numbers", world_size=1)
    assert failure(case, answered([2, 1])).endswith("Those are the right numbers in another order.")
    assert failure(case, answered([1])).endswith("That is 1 numbers.")


def test_several_things_are_judged_by_name():
    case = Case(
        right={"the sum": 6, "the mean": 2.0},
        mistakes={
            "the mean": {"the sum again": 6.0},
            "": {"the two the wrong way round": (2.0, 6), "both negative": lambda got: max(got) < 0},
        },
        world_size=1,
    )
    case.judge(answered((6, 2.0)), "values")
    assert failure(case, answered((6, 6.0))) == "rank 0: the mean is 6.0, expected 2.0\n  That is the sum again."
    assert failure(case, answered((2.0, 6))).endswith("That is the two the wrong way round.")
    assert failure(case, answered((-1, -2.0))).endswith("That is both negative.")
    assert failure(case, answered(6)).endswith("expected 2 values: the sum, the mean")


def test_the_words_before_a_wrong_value_may_differ_from_rank_to_rank():
    case = Case(right=[1, 2], seen=["for 0.5 you returned", "for 1.5 you returned"], world_size=2)
    assert failure(case, answered(1, 3)) == "for 1.5 you returned 3, expected 2"


def test_a_part_that_is_misspelt_is_an_error():
    with pytest.raises(ValueError, match="mistakes are given for the means, but `right` has the sum, the mean"):
        Case(right={"the sum": 6, "the mean": 2.0}, mistakes={"the means": {}})


@pytest.mark.parametrize(
    ("part", "verb"), [("weights", "are"), ("loss", "is"), ("bias", "is"), ("sums of rank 1", "are")]
)
def test_the_verb_agrees_with_the_part(part, verb):
    case = Case([[1]], right={part: 1, "rest": 2})
    assert f"rank 0: {part} {verb} 3, expected 1" in failure(case, answered((3, 2)))


def test_a_case_must_say_what_it_is_judged_by():
    with pytest.raises(TypeError, match="there are cases for its traffic, but the Case has no traffic="):
        Case(right=1, world_size=1).judge(answered(1), "traffic")


def test_a_world_size_may_be_handed_out_as_data():
    one = oracle("bytes", values=[()])(lambda draws: Case(for_all={"world_size": 5}, right=10))
    assert judged(one, lambda world_size: 2 * world_size) is None


def test_inputs_must_stay_and_memory_may_have_to_be_its_own():
    x = torch.ones(2)
    case = Case([[x]], right=x, own_memory=True)
    assert "must stay as it was" in failure(case, answered(x, inputs_after=[[2 * x]], shared=[False]))
    assert "shares memory" in failure(case, answered(x, inputs_after=[[x]], shared=[True]))
    case.judge(answered(x, inputs_after=[[x]], shared=[False]), "values")


def test_what_a_case_adds_is_judged_before_and_after_the_results():
    said = []
    case = Case(right=1, world_size=1, before=lambda answer: said.append("before"), also=lambda answer: "all of it")
    assert case.judge(answered(1), "values") == "all of it"
    failure(case, answered(2))
    assert said == ["before", "before"]


def test_traffic_earns_nothing_beside_wrong_values():
    case = Case(right=1, world_size=1, traffic=lambda answer: "two messages.")
    assert case.judge(answered(1), "traffic") == "two messages."
    assert failure(case, answered(2), "traffic").startswith("its traffic is right, but what it returned is not")
    case.values_first = True
    assert failure(case, answered(2), "traffic").startswith("rank 0 returned 2")


def test_several_results_may_come_in_a_dict():
    case = Case(right={"rank": [0, 1], "name": "a"}, world_size=2)
    case.judge(answered({"rank": 0, "name": "a"}, {"name": "a", "rank": 1, "more": 2}), "values")
    assert failure(case, answered({"rank": 0}, (1, "a"))).startswith("rank 0 says nothing about 'name': it returned")
    assert failure(case, answered((0, "a"), {"rank": 2, "name": "a"})) == "rank 1: rank is 2, expected 1"


def test_where_many_answers_are_right_they_are_judged_by_their_properties():
    def expect_odd(answer: Answer) -> str:
        if not all(number % 2 for number in answer.results):
            raise CheckFailed("an even number")
        return "all odd"

    case = Case(world_size=2, also=expect_odd)
    assert case.judge(answered(1, 7), "values") == "all odd"
    assert failure(case, answered(1, 6)) == "an even number"


@pytest.mark.parametrize("judges, world", [("values", "spawn"), ("time", "virtual"), ("memory", "virtual")])
def test_time_and_memory_are_judged_on_the_clock(judges, world):
    case = Case([[0]], clock=links(1, 1e-6, 1e9))
    assert case.run(Runner(lambda x: x + 1), judges).run.world == world


# ---- tolerance


def test_the_tolerance_is_that_of_the_case_and_is_said():
    case = Case(right=153.6, rtol=1e-12, mistakes={"in bits": 8 * 153.6}, world_size=1)
    case.judge(answered(153.6 * (1 + 1e-13)), "values")
    assert failure(case, answered(150.0)) == "rank 0 returned 150, expected 153.6 to 12 digits"
    assert failure(case, answered(8 * 153.6000001)).endswith("That is in bits.")
    assert "153.6000001" in failure(case, answered(153.6000001))


# ---- drawing


def summed(draws: Draws, world_size: int) -> Case:
    xs = draws.different_integers(world_size, 2)
    return Case([xs], right=torch.stack(xs).sum(0), mistakes={"your own tensor": xs, "rank 0's tensor": xs[0]})


def test_an_oracle_registers_a_check_for_each_thing_that_it_judges():
    one = oracle("sum-up", values=[(2,)], traffic=[(2,)], if_stuck="?")(summed)
    assert [(check.exercise, check.judges, check.if_stuck) for check in checks_in(one)] == [
        ("sum-up", "values", "?"),
        ("sum-up", "traffic", "?"),
    ]
    assert oracle(values=[])(summed).exercise == "summed"
    hidden = vary(one, values=[{"world_size": 3}])
    assert (hidden.exercise, hidden.if_stuck) == ("sum-up", "?")
    assert [check.judges for check in checks_in(hidden)] == ["values"]


def test_each_case_is_run_and_what_the_last_one_says_is_shown():
    sizes = []

    def draw(_: Draws, world_size: int) -> Case:
        sizes.append(world_size)
        return Case([[1] * world_size], right=2, clock=links(world_size, 1e-6, 1e9), time=lambda a: expect_time(a, 0.0))

    one = oracle("twice", values=[(1,), {"world_size": 2}], time=[(2,)])(draw)
    assert judged(one, lambda x: 2 * x) is None
    assert set(sizes) == {1, 2}
    assert judged(one, lambda x: 2 * x, "time") == "0 s of virtual time."
    with pytest.raises(CheckFailed, match="rank 0 returned 1, expected 2"):
        judged(one, lambda x: x)


def test_inputs_on_which_two_mistakes_look_the_same_by_accident_are_drawn_again():
    drawn = []

    def draw(draws: Draws) -> Case:
        one, other = torch.randint(2, (2,), generator=draws.generator()).tolist()
        drawn.append((one, other))
        return Case([[0]], right=9, mistakes={"the one": one, "the other": other})

    one = oracle("pick", values=[()])(draw)
    accidents = 0
    for salt in range(40):
        drawn.clear()
        case = one.drawn(Draws(salt), ())
        accidents += len(drawn) > 1
        if len(drawn) < 3:  # unless they looked the same twice, which is taken for no accident
            assert case.mistakes["the one"] != case.mistakes["the other"] or drawn[0][0] == drawn[0][1]
    assert 10 < accidents < 30


def test_inputs_on_which_a_mistake_looks_right_by_accident_are_drawn_again():
    def draw(draws: Draws) -> Case:
        number = torch.randint(2, (1,), generator=draws.generator()).item()
        return Case([[0]], right=0, mistakes={"the number": number})

    for salt in range(20):
        first = draw(Draws(salt)).mistakes["the number"]
        second = draw(Draws(salt).again(1)).mistakes["the number"]
        drawn = oracle("pick", values=[()])(draw).drawn(Draws(salt), ()).mistakes["the number"]
        assert drawn == (first or second)


def test_mistakes_that_always_look_the_same_are_not_drawn_again_and_again():
    count = []

    def draw(draws: Draws, world_size: int) -> Case:
        count.append(world_size)
        return summed(draws, world_size)

    case = oracle("sum-up", values=[])(draw).drawn(Draws(), (2,))
    assert {(rank, bool(other)) for rank, _, _, other in case.ambiguous()} == {(0, True)}  # its own is rank 0's
    assert len(count) == 2 < oracles.DRAWS


def test_the_inputs_of_other_attempts_differ_and_come_from_the_salt():
    first, again = Draws(5).again(0), Draws(5).again(1)
    assert first == Draws(5)
    assert again == Draws(5).again(1) != first


def test_advice_on_an_error_goes_by_the_report():
    case = Case([[0]], right=1, advice={"ZeroDivisionError": "Test for 0 before you divide."})
    with pytest.raises(CheckFailed, match="ZeroDivisionError") as failed:
        case.run(Runner(lambda x: 1 / x), "values")
    assert failed.value.mistake == "Test for 0 before you divide."
    with pytest.raises(CheckFailed, match="KeyError") as failed:
        case.run(Runner(lambda x: {}[x]), "values")
    assert failed.value.mistake == ""


def test_cases_of_one_process_are_judged_in_one_run():
    def case(number: int) -> Case:
        right = {"twice": 2 * number, "it in a list": every([number])}
        mistakes = {"twice": {"the square": number**2} if number else {}}
        return Case([[number]], right=right, mistakes=mistakes, seen=f"for {number} you returned {{part}}")

    both = side_by_side([case(0), case(3)])
    assert both.world_size == 2
    assert judged(oracle("twice", values=[()])(lambda draws: both), lambda number: (2 * number, [number])) is None
    assert failure(both, answered((0, [0]), (9, [3]))) == (
        "for 3 you returned twice 9, expected 6\n  That is the square."
    )
    assert failure(both, answered((1, [0]), (9, [3]))) == "for 0 you returned twice 1, expected 0"
    assert failure(both, answered((0, [0]), (6, 3))).startswith("for 3 you returned it in a list 3 (an int)")


def test_groups_of_ranks_each_have_a_case():
    def case(number: int) -> Case:
        return Case([[number, number + 1]], right=[-number, number], mistakes={"the other's": [number, -number]})

    both = side_by_side([case(1), case(5)], groups=[[0, 2], [3, 1]])
    assert both.inputs == [[1, 6, 2, 5]] and both.right == [-1, 5, 1, -5]
    assert failure(both, answered(-1, 5, 1, 5)) == "rank 3 returned 5, expected -5\n  That is the other's."


# ---- frozen cases


def shares(_: Draws, ranks: int, most: float) -> Case:
    return Case(
        [[ranks]],
        for_all={"most": most},
        right={"the share": (ranks - 1) / ranks, "who": every([ranks, None, (1, "a")])},
        mistakes={"the share": {"the rest": 1 / ranks}},
        rtol=1e-9,
    )


def test_recorded_cases_judge_as_the_oracle_does(tmp_path):
    hidden = oracle("shares", values=[(4, 0.5)], if_stuck="never")(shares)
    (tmp_path / "frozen_cases.json").write_text(frozen_cases.written_down([hidden]))
    [check] = checks_in(frozen_cases.frozen_cases(tmp_path, "shares"))
    visible = frozen_cases.frozen_cases(tmp_path, "shares").oracle()
    assert (check.exercise, check.judges, check.if_stuck) == ("shares", "values", "never")
    again = visible.drawn(Draws(7), visible.cases["values"][0])
    assert again == hidden.drawn(Draws(), (4, 0.5))
    assert judged(visible, lambda ranks, most: (0.75, [4, None, (1, "a")])) is None
    with pytest.raises(CheckFailed, match=r"0\.25, expected 0\.75 to 9 digits\n  That is the rest\."):
        judged(visible, lambda ranks, most: (0.25, [4, None, (1, "a")]))


def test_what_is_no_plain_data_is_added_to_the_recorded_cases(tmp_path):
    def doubled(function, *inputs):
        return 2 * function(*inputs)

    hidden = oracle("sum-up", values=[()])(lambda draws: Case([[4]], right=8))
    (tmp_path / "frozen_cases.json").write_text(frozen_cases.written_down([hidden]))
    assert judged(frozen_cases.frozen_cases(tmp_path, "sum-up", driver=doubled).oracle(), lambda x: x) is None


def test_a_gpu_can_be_recorded():
    gpu = Gpu(flops={"bf16": 4e14, "fp32": math.inf}, memory=8e10, bandwidth=2e12, launch=3e-6)
    assert frozen_cases.plain(json.loads(json.dumps(frozen_cases.tagged({"gpu": gpu})))) == {"gpu": gpu}


def test_what_is_no_plain_data_is_not_recorded():
    with pytest.raises(TypeError, match="sum-up can't be recorded: it holds a Tensor"):
        frozen_cases.written_down([oracle("sum-up", values=[(2,)])(summed)])


def test_a_case_that_was_never_recorded_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"frozen_cases\.json has no 'x'\. .* FROZEN in the checks of 99_none"):
        checks_in(frozen_cases.frozen_cases(tmp_path / "99_none", "x"))
