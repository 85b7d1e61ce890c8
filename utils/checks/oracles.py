"""A check as an oracle: what is right, for any inputs. The engine does the rest.

    @oracle(values=[(4, 2), (2, 0)], traffic=[(4, 1)], if_stuck="one side of a message is missing.")
    def reduce_by_hand(draws: Draws, world_size: int, root: int, shape: Shape = 3) -> Case:
        xs = draws.different_integers(world_size, shape)      # one tensor per rank
        total = torch.stack(xs).sum(0)
        return Case(
            [xs],
            for_all={"root": root},                              # every rank calls reduce_by_hand(xs[rank], root=root)
            right=only_at(root, total),
            traffic=lambda answer: expect_traffic(answer, world_size - 1, (world_size - 1) * total.nbytes),
        )

That registers two checks of the exercise "reduce-by-hand": its values in two cases, its traffic in one. Each case is
drawn, run and compared; the inputs must stay as they were. A hidden test is other
cases of the same oracle: `hidden_reduce_by_hand = vary(reduce_by_hand, values=[(3, 1, (2, 3))], traffic=[(5, 4)])`.

What usual mistakes lead to is known from wrong answers, which have a sentence (known_mistakes.py). A case may add
`mistakes` of its own, which are named on any inputs: a value that a mistake leads to, or a predicate. Where two of them
lead to the same value, nobody can tell which was made; where one leads to the right value, nobody can see it. Inputs on
which that happens by accident are drawn again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ..cluster.hardware import Cluster
from ..kit.drivers.call import Catch
from ..text.units import is_or_are
from .answer import Answer, CheckFailed, Outcome, Place
from .compare import Mistakes, expect, expect_own_memory, expect_unchanged
from .equality import equal_values, which_equal
from .inputs import Draws
from .kinds import kind_of
from .known_mistakes import sentences
from .registration import Check, exercise_of
from .relations import relation
from .rooms import HIDDEN
from .runner import Runner
from .scores import Measure, Score
from .show import show
from .wording import named

DRAWS = 8  # how often inputs are drawn in the search for some that tell all mistakes apart

UNKNOWN = object()  # in place of what is right, where many answers are

T = TypeVar("T")
CaseArguments = tuple[Any, ...] | dict[str, Any]  # an oracle's: (4, 2), or {"world_size": 4, "root": 2}
Judgement = Callable[[Answer], str | None]  # raises CheckFailed, or returns what a student reads who has passed


# ---- what each rank should return


class OnlyAt(NamedTuple):
    """What one rank returns; the others return None."""

    rank: int
    value: Any
    why: str


class Every(NamedTuple):
    """What each rank returns, where that is a list or a dict."""

    value: Any


def only_at(rank: int, value: Any, why: str = "") -> OnlyAt:
    """The result of one rank, where all others return None. why: the sentence for a rank that returns something."""
    return OnlyAt(rank, value, why or f"Only the root, rank {rank} here, has the result.")


def every(value: Any) -> Every:
    """The same list or dict on every rank; a bare list would have one entry for each rank."""
    return Every(value)


def part_of_rank(value: Any, rank: int, world_size: int) -> Any:
    """A rank's part of a value: its entry of a list, or the value itself."""
    if isinstance(value, OnlyAt):
        return value.value if value.rank == rank else None
    if isinstance(value, Every):
        return value.value
    if not isinstance(value, list):
        return value
    if len(value) != world_size:
        raise TypeError(f"a list of {len(value)} for {world_size} ranks: write every([...]) if each rank has all of it")
    return value[rank]


# ---- a case


class Then(NamedTuple):
    """A second act, in new processes: each has what its rank returned from the first, and nothing else of it.

    driver  called as driver(function, returned, *inputs, **for_all)
    inputs  as those of a Case
    """

    driver: Callable[..., Any]
    inputs: Sequence[Sequence[Any]] = ()


@dataclass
class Case:
    """One run of a student's function, and what is right. Lists have one entry per rank; any other value is every
    rank's. A list that every rank returns is every([...]).

    inputs    the positional arguments: for each, a list with one entry per rank
    for_all   arguments that every rank gets, by name; a function for an exercise that builds on another one. `rank` and
              `world_size` need not be given: a function that has parameters of these names gets them
    right     what each rank must return; a dict {name: ...} if a rank returns several things, as a tuple, or in a dict
              which may hold more. None where many answers are right: `also` judges them by their properties
    mistakes  {a usual mistake, in words: what it leads to}; for several things, a dict {name: such a dict}, where the
              name "" is for what all of them are together. Instead of a value, a function of what came back, which
              says whether it is that mistake
    explain   (what a rank returned, rank) -> what is wrong with it in words, where no mistake fits; "" for nothing
    rtol      the relative error to allow (see equality.py)
    seen      what comes before a wrong value in the message; may name {rank} and {part}. A list: of each rank
    in_order  whether rank 0 is judged first; by default it is the last, since it is often right by luck
    unpack    (what a rank returned, rank) -> {name: value}, where `right` is a dict; by default, of a tuple or a dict
    cluster   virtual ranks to run on; real ones by default
    clock     the virtual cluster on which time and memory are judged; `cluster` by default
    driver, catch  as for Runner
    drivers   {what is judged: the driver for that, in place of `driver`}; None for none
    then      what follows in new processes, on real ranks; its results are the answer's
    advice    {pattern in the report of ranks that failed: what to do about it}. If the pattern has a group, what that
              matches is left out of the report: advice that is too general, for example
    unchanged whether inputs must be after the call what they were before
    own_memory  whether a result must have memory of its own, apart from that of the inputs
    looks_right  whether a usual mistake would lead to the right result on these inputs, which are then drawn again
    values_first  whether a message on `traffic` and the others waits for right values; their points always do
    before, also  further judgements of the values, before that of the ranks' results and after it
    traffic, time, memory  what judges the rest of an answer, by the functions of traffic.py or your own
    score, limit, par  of a challenge (scores.py): what is measured, the least that is possible, and what passes
    """

    inputs: Sequence[Sequence[Any]] = ()
    for_all: Mapping[str, Any] = field(default_factory=dict)
    right: Any = None
    mistakes: Mapping[str, Any] = field(default_factory=dict)
    explain: Callable[[Any, int], str] | None = None
    rtol: float = 0
    seen: str | list[str] = ""
    in_order: bool = False
    unpack: Callable[[Any, int], Mapping[str, Any]] | None = None
    world_size: int = 0
    cluster: Cluster | None = None
    clock: Cluster | None = None
    driver: Callable[..., Any] | None = None
    drivers: Mapping[str, Callable[..., Any] | None] = field(default_factory=dict)
    then: Then | None = None
    catch: Catch = ()
    advice: Mapping[str, str] = field(default_factory=dict)
    unchanged: bool = True
    own_memory: bool = False
    looks_right: bool = False
    values_first: bool = False
    before: Judgement | None = None
    also: Judgement | None = None
    traffic: Judgement | None = None
    time: Judgement | None = None
    memory: Judgement | None = None
    score: Measure | None = None
    limit: float = 0.0
    par: float = 0.0

    def __post_init__(self) -> None:
        self.world_size = self.world_size or max(map(len, self.inputs), default=1)
        unknown = self.mistakes.keys() - self.right.keys() - {""} if isinstance(self.right, dict) else ()
        if unknown:
            raise ValueError(f"mistakes are given for {', '.join(unknown)}, but `right` has {', '.join(self.right)}")

    def run(self, run: Runner, judges: str) -> Answer:
        """The student's function on this case's inputs."""
        cluster = (self.clock if kind_of(judges).on_clock else None) or self.cluster
        driver = self.drivers.get(judges, self.driver)
        options: dict[str, Any] = {"catch": self.catch, "driver": driver, **self.for_all}
        try:
            if self.then:
                return in_two_acts(run, self.world_size, self.inputs, self.then, options)
            if cluster is None:
                return run(self.world_size, *self.inputs, **options)
            return run.virtual(self.world_size, *self.inputs, cluster=cluster, device="cpu", **options)
        except CheckFailed as failed:
            for pattern, words in self.advice.items():
                if found := re.search(pattern, failed.saw):
                    start, end = found.span(found.re.groups)  # the whole match, where there is no group
                    failed.saw = failed.saw[:start] + failed.saw[end:] if found.re.groups else failed.saw
                    failed.mistake = words
                    break
            raise

    def judge(self, answer: Answer, judges: str) -> str | None:
        """Judge the values, traffic, time or memory. Returns what a student reads who has passed."""
        remark = None
        if judges == "values" or self.values_first:
            remark = self.judge_values(answer)
        if judges != "values":
            judgement: Judgement | None = getattr(self, judges, None)
            if judgement is None:
                raise TypeError(f"there are cases for its {judges}, but the Case has no {judges}=...")
            remark = judgement(answer)
            if not self.values_first:
                self.wait_for_values(answer, judges)
        return remark

    def wait_for_values(self, answer: Answer, judges: str) -> None:
        """Raise CheckFailed where all but the values is right: sending zeros, say, is no step towards a sum."""
        try:
            self.judge_values(answer)
        except CheckFailed:
            failed = CheckFailed(f"its {judges} is right, but what it returned is not")
            failed.mistake, failed.waits = "This counts once the check of the values has passed.", True
            raise failed from None

    def judge_values(self, answer: Answer) -> str | None:
        ranks = range(self.world_size) if self.right is not None else ()
        if self.before:
            self.before(answer)
        for rank in sorted(ranks if self.in_order else reversed(ranks), key=lambda rank: not self.must_be_none(rank)):
            self.judge_rank(answer.results[rank], rank, answer.results)
        if self.unchanged:
            expect_unchanged(answer, *self.inputs)
        if self.own_memory:
            expect_own_memory(answer)
        return self.also(answer) if self.also else None

    def scored(self, answer: Answer, best: float | None = None) -> Score:
        if self.score is None or not self.par:
            raise TypeError("there are cases for its score, but the Case has no score=..., or par is not known")
        return Score(self.score.of(answer), self.par, self.limit, self.score, best)

    def must_be_none(self, rank: int) -> bool:
        return isinstance(self.right, OnlyAt) and rank != self.right.rank

    def judge_rank(self, got: Any, rank: int, results: Sequence[Any] = ()) -> None:
        """results: of all ranks, where they can tell apart mistakes that look the same on this one."""
        if isinstance(self.right, OnlyAt) and self.must_be_none(rank):
            if got is not None:
                raise CheckFailed(f"rank {rank} returned {show(got)}", "None", self.right.why)
            return
        values = self.unpacked(got, rank)
        for part, right, mistakes in self.parts(rank):
            if not equal_values(values[part], right, self.rtol, strict=True):
                seen = part_of_rank(self.seen, rank, self.world_size) or (
                    "rank {rank}: {part} is" if part else "rank {rank} returned"
                )
                seen = seen.replace("{part} is", f"{{part}} {is_or_are(part)}")
                mistakes = self.told_apart(mistakes, values[part], right, results)
                mistakes = {**self.mistaken_as_a_whole(got), **mistakes, **self.explained(values[part], rank)}
                try:
                    expect(values[part], right, seen.format(rank=rank, part=part), mistakes, self.rtol)
                except CheckFailed as failed:
                    failed.place = (rank, part)
                    failed.mistake = failed.mistake or self.related(values[part], rank, part)
                    raise

    def related(self, got: Any, rank: int, part: str) -> str:
        """The sentence on how a wrong result is related to the inputs and to other ranks' results; "" if it isn't."""
        right = self.right[part] if isinstance(self.right, dict) else self.right
        rights = [part_of_rank(right, number, self.world_size) for number in range(self.world_size)]
        words = relation(got, rank, rights, self.inputs, self.rtol)
        return named([words] if words else [])

    def found_wrong(self, answer: Answer, judges: str) -> dict[Place, tuple[Any, Any]]:
        """{place: (what is there, what would be right)} of what is wrong with an answer, in what is judged of it."""
        if seen := kind_of(judges).seen(answer):
            return {place: (got, UNKNOWN) for place, got in seen.items()}
        if self.right is None:
            return {(rank, ""): (got, UNKNOWN) for rank, got in enumerate(answer.results)}
        wrong: dict[Place, tuple[Any, Any]] = {}
        for rank, got in enumerate(answer.results):
            of_rank = self.compared(got, rank)
            wrong |= {
                (rank, part): pair for part, pair in of_rank.items() if not equal_values(*pair, self.rtol, strict=True)
            }
        return wrong

    def compared(self, got: Any, rank: int) -> dict[str, tuple[Any, Any]]:
        """{part: (what a rank returned, what is right)}"""
        if self.must_be_none(rank):
            return {"": (got, None)}
        try:
            values = self.unpacked(got, rank)
        except Exception:  # it has not the form that is wanted, and the message is about that or about another rank
            return {"": (got, UNKNOWN)}
        return {part: (values[part], right) for part, right, _ in self.parts(rank)}

    def told_apart(self, mistakes: Mistakes, got: Any, right: Any, results: Sequence[Any]) -> Mistakes:
        """Where several mistakes lead to what a rank returned: without those that the other ranks' results refute."""
        values = {words: wrong for words, wrong in mistakes.items() if not callable(wrong)}
        fitting = [
            words
            for words, wrong in values.items()
            if equal_values(got, wrong, self.rtol) and not equal_values(wrong, right, self.rtol)
        ]
        if len(fitting) < 2 or not results or isinstance(self.right, dict):
            return mistakes
        ranks = [rank for rank in range(self.world_size) if not self.must_be_none(rank)]
        refuted = {
            words
            for words in fitting
            if not all(
                equal_values(results[r], part_of_rank(self.mistakes[words], r, self.world_size), self.rtol)
                for r in ranks
            )
        }
        dropped = refuted if len(refuted) < len(fitting) else set()
        return {words: wrong for words, wrong in mistakes.items() if words not in dropped}

    def mistaken_as_a_whole(self, got: Any) -> Mistakes:
        """Where a rank returns several things: the mistakes that all of them show together."""
        whole = self.mistakes.get("", {}) if isinstance(self.right, dict) else {}
        return {
            words: always
            for words, wrong in whole.items()
            if (wrong(got) if callable(wrong) else equal_values(got, wrong, self.rtol))
        }

    def explained(self, got: Any, rank: int) -> Mistakes:
        words = self.explain(got, rank) if self.explain else ""
        return {words: always} if words else {}

    def unpacked(self, got: Any, rank: int) -> Mapping[str, Any]:
        """{name: value} of what a rank returned; its name is "" if it is one value."""
        if not isinstance(self.right, dict):
            return {"": got}
        return self.unpack(got, rank) if self.unpack else taken_apart(got, list(self.right), rank)

    def parts(self, rank: int) -> Iterator[tuple[str, Any, Mistakes]]:
        """(name, the right value, usual mistakes) of each thing that a rank returns."""
        several = isinstance(self.right, dict)
        for part, right in self.right.items() if several else [("", self.right)]:
            mistakes = self.mistakes.get(part, {}) if several else self.mistakes
            of_rank = {words: part_of_rank(wrong, rank, self.world_size) for words, wrong in mistakes.items()}
            yield part, part_of_rank(right, rank, self.world_size), of_rank

    def ambiguous(self) -> frozenset[tuple[int, str, str, str]]:
        """What these inputs can't tell apart, as (rank, part, words, other words): two mistakes that lead to the same
        wrong value on a rank, and a mistake that leads to the right one on every rank.
        """
        pairs, looks_right = set(), dict[tuple[str, str], bool]()
        for rank in (rank for rank in range(self.world_size) if not self.must_be_none(rank)):
            for part, right, mistakes in self.parts(rank):
                values = {words: wrong for words, wrong in mistakes.items() if not callable(wrong)}
                are_right = dict(zip(values, which_equal(list(values.values()), right, self.rtol), strict=True))
                wrong = {words: value for words, value in values.items() if not are_right[words]}
                pairs |= {(rank, part, *two) for two in same_twice(wrong, self.rtol)}
                for words, same in are_right.items():
                    looks_right[part, words] = looks_right.get((part, words), True) and same
        found = {(-1, part, words, "") for (part, words), same in looks_right.items() if same}
        return frozenset(pairs | found | ({(-1, "", "", "")} if self.looks_right else set()))


def in_two_acts(
    run: Runner, world_size: int, inputs: Sequence[Sequence[Any]], then: Then, options: Mapping[str, Any]
) -> Answer:
    """The answer of the second act; its inputs are those of the first."""
    first = run(world_size, *inputs, in_new_processes=True, **options)
    options = {**options, "driver": then.driver, "in_new_processes": True}
    second = run(world_size, first.results, *then.inputs, **options)
    return replace(second, inputs_after=first.inputs_after, shared=first.shared, names=first.names, first=first)


def side_by_side(cases: Sequence[Case], groups: Sequence[Sequence[int]] = ()) -> Case:
    """One run instead of many: each group of ranks has one of the cases, which ask the same.

    groups  the ranks of each case; by default, rank n has case n, which is of one process
    """
    first, several = cases[0], isinstance(cases[0].right, dict)
    groups = groups or [[number] for number in range(len(cases))]
    ranks = sorted((rank, number, place) for number, those in enumerate(groups) for place, rank in enumerate(those))
    rights = [case.right if several else {"": case.right} for case in cases]
    usual = [case.mistakes if several else {"": case.mistakes} for case in cases]

    def of_ranks(values: Sequence[Any]) -> list[Any]:
        """What each rank has of the cases' values."""
        return [part_of_rank(values[number], place, len(groups[number])) for _, number, place in ranks]

    def mistakes_in(part: str) -> dict[str, list[Any]]:
        """Words that some cases lack have the right value there, which is not a mistake."""
        words = dict.fromkeys(words for mistakes in usual for words in mistakes.get(part, {}))
        pairs = [(mistakes.get(part, {}), right[part]) for mistakes, right in zip(usual, rights, strict=True)]
        return {one: of_ranks([wrong.get(one, right) for wrong, right in pairs]) for one in words}

    right = {part: of_ranks([of_case[part] for of_case in rights]) for part in rights[0]}
    mistakes = {part: mistakes_in(part) for part in right}
    return replace(
        first,
        inputs=[of_ranks(columns) for columns in zip(*(case.inputs for case in cases), strict=True)],
        right=right if several else right[""],
        mistakes=mistakes if several else mistakes[""],
        seen=of_ranks([case.seen for case in cases]),
        in_order=True,
        world_size=len(ranks),
    )


def always(_: Any) -> bool:
    return True


def taken_apart(got: Any, names: Sequence[str], rank: int) -> Mapping[str, Any]:
    """{name: value} of a dict with these names, or of a tuple. Raises CheckFailed if it does not hold them all."""
    if not isinstance(got, dict):
        return as_tuple(got, names, rank)
    for name in names:
        if name not in got:
            raise CheckFailed(f"rank {rank} says nothing about {name!r}: it returned {show(got)}")
    return got


def as_tuple(got: Any, names: Sequence[str], rank: int) -> dict[str, Any]:
    """{name: value} of a tuple or list. Raises CheckFailed if it does not hold one value for each name."""
    if not isinstance(got, tuple | list) or len(got) != len(names):
        raise CheckFailed(f"rank {rank} returned {show(got)}", f"{len(names)} values: {', '.join(names)}")
    return dict(zip(names, got, strict=True))


def same_twice(wrong: Mistakes, rtol: float) -> Iterator[tuple[str, str]]:
    """Two mistakes at a time that lead to the same value."""
    names, values = list(wrong), list(wrong.values())
    for number, value in enumerate(values):
        for place, same in enumerate(which_equal(values[:number], value, rtol)):
            if same:
                yield names[place], names[number]


# ---- the engine


Drawing = Callable[..., Case]  # (draws, *arguments)


@dataclass(frozen=True)
class Oracle:
    """The checks of an exercise, made from one function that draws a case and says what is right.

    A lesson's module holds it; `oracle` and `vary` make it.
    """

    exercise: str
    draw: Drawing
    if_stuck: str
    cases: Mapping[str, Sequence[CaseArguments]]  # {what is judged: its cases}
    par: Callable[..., float] | None = None  # a challenge's, from the arguments of a case

    def checks(self) -> list[Check]:
        return [Check(self.exercise, judges, self.if_stuck, self.judge(judges)) for judges in self.cases]

    def judge(self, judges: str) -> Callable[[Runner], str | None]:
        def judge(run: Runner) -> str | None:
            remark = None
            for number in range(len(self.cases[judges])):
                remark = self.judge_case(run, judges, number)
            return remark

        return judge

    def judge_case(self, run: Runner, judges: str, number: int) -> str | None:
        """Judge an answer in one case. If it fails as a known wrong answer does, that answer's sentence is said."""
        arguments = self.cases[judges][number]
        case = self.drawn(run.draws, arguments)
        is_score = kind_of(judges).is_score
        if is_score and self.par:
            case.par = called(self.par, arguments=arguments)
        answer = case.run(run, judges)
        try:
            if not is_score:
                return case.judge(answer, judges)
            case.judge_values(answer)
            run.scores.append(case.scored(answer, run.best[number] if number < len(run.best) else None))
            return run.scores[-1].judge()
        except CheckFailed as failed:
            wrong = case.found_wrong(answer, judges)
            place = failed.place if failed.place in wrong else None
            failed.outcome = Outcome(number, [case.inputs, dict(case.for_all)], wrong, place, case.rtol)
            known = sentences(run.known, failed.outcome)
            failed.mistake, failed.is_known = named(known) or failed.mistake, bool(known)
            raise

    def drawn(self, draws: Draws, arguments: CaseArguments) -> Case:
        """The case with these arguments, on inputs that tell its mistakes apart as far as they can be told apart."""
        best = self.case(draws, arguments)
        left = best.ambiguous()
        for attempt in range(1, DRAWS):
            if not left:
                break
            other = self.case(draws.again(attempt), arguments)
            again = other.ambiguous()
            if again == left:
                break  # no accident: with one rank, say, some mistakes always look the same
            if len(again) < len(left):
                best, left = other, again
        return best

    def case(self, draws: Draws, arguments: CaseArguments) -> Case:
        return called(self.draw, draws, arguments=arguments)


def called(function: Callable[..., T], *first: Any, arguments: CaseArguments) -> T:
    return function(*first, **arguments) if isinstance(arguments, dict) else function(*first, *arguments)


def oracle(
    exercise: str = "", *, if_stuck: str = "", par: Callable[..., float] | None = None, **cases: Sequence[CaseArguments]
) -> Callable[[Drawing], Oracle]:
    """Make the checks of an exercise from a function (draws, *arguments) -> Case.

    exercise  by default, the one named like the function
    if_stuck  what is worth checking in a deadlock whose cause the report can't name
    par       of a challenge: its par in the case with these arguments (scores.py)
    cases     values=[...], traffic=[...], ...: for each thing to judge, the function's arguments in each case
    """

    def mark(draw: Drawing) -> Oracle:
        return Oracle(exercise or exercise_of(draw.__name__.removeprefix(HIDDEN)), draw, if_stuck, cases, par)

    return mark


def vary(visible: Oracle, *, par: Callable[..., float] | None = None, **cases: Sequence[CaseArguments]) -> Oracle:
    """The same oracle with other cases, or with a par of its own: the hidden tests of the exercise."""
    return replace(visible, cases=cases or visible.cases, par=par or visible.par)
