"""Judge a student's function: run it on ranks, compare what comes back, explain the difference.

Used by the checks of every lesson (`utils/checks/NN_topic.py`) and by the hidden tests, which have the same form.
A check never touches the student's function: it gets `run`, which calls the function on real ranks, and it judges
what `run` returns.

    @check("reduce-by-hand")
    def reduce_by_hand_values(run):
        xs = different_integers(4, 3)                    # one tensor a rank
        answer = run(4, xs, root=1)                      # rank r gets xs[r]; every rank gets root=1
        expect(answer.results[1], torch.stack(xs).sum(0), rank=1)
"""
import contextlib
import importlib.util
import inspect
import io
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from utils import RankError, spawn

WIDTH = 78                                               # columns of a message's first line


class CheckFailed(AssertionError):
    """An answer that is not right yet: what was seen, what was expected, and the usual mistake if it is known."""

    def __init__(self, saw: str, expected: str = "", mistake: str = ""):
        self.header, self.saw, self.expected, self.mistake = "", saw, expected, mistake
        super().__init__(saw)

    def __str__(self):
        seen = self.saw + (f", expected {self.expected}" if self.expected else "")
        return "\n".join([self.header] * bool(self.header) + indented(seen) + indented(self.mistake))

    def _render_traceback_(self):                        # IPython asks for this: a notebook shows the message alone
        return str(self).splitlines()


def indented(text: str) -> list[str]:
    return ["  " + line for line in text.splitlines()]


# ---- registering and finding checks

def check(exercise: str, judges: str = "values", if_stuck: str = ""):
    """Mark a function `f(run)` as the check of `exercise`. `if_stuck` says what a deadlock usually means here.

    What `f` returns, if anything, is shown to the student when the check passes.
    """
    def mark(function):
        function.judged, function.if_stuck = (exercise, judges), if_stuck
        return function
    return mark


class Checks:
    """All checks of one lesson. Calling it judges a function: `check(broadcast_by_hand, judges="values")`."""

    def __init__(self, path: Path, hidden: bool = False):
        if not path.is_file():
            lessons = sorted(other.stem for other in path.parent.glob("[0-9]*.py"))
            raise ValueError(f"there is no lesson {path.stem!r}: choose one of {', '.join(lessons)}")
        spec = importlib.util.spec_from_file_location(f"checks_of_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        marked = [item for item in vars(module).values() if hasattr(item, "judged")]
        self.functions, self.hidden = {item.judged: item for item in marked}, hidden

    @property
    def registered(self) -> set[tuple[str, str]]:
        """The (exercise, judges) pairs there is a check for."""
        return set(self.functions)

    def __call__(self, answer, judges: str = "values") -> None:
        """Judge the function `answer`, print one line if it is right. Raises CheckFailed if it is not."""
        exercise = getattr(answer, "__name__", repr(answer)).replace("_", "-")
        if (exercise, judges) not in self.functions:
            raise ValueError(f"nothing judges the {judges} of {exercise}: is the function's name as it was given?")
        function = self.functions[exercise, judges]
        run = Runner(answer, function.if_stuck, quiet=self.hidden)
        try:
            remark = function(run)
        except CheckFailed as failed:
            where = f"{exercise} · {judges} · {'hidden test · ' * self.hidden}{run.situation}"
            failed.header = where.ljust(WIDTH - len("not passed")) + "  not passed"
            failed.expected = "something else" if failed.expected and self.hidden else failed.expected
            raise failed from None
        print(f"{exercise} · {judges} · {'hidden test · ' * self.hidden}passed" + (f"\n  {remark}" if remark else ""))


# ---- running the student's function

@dataclass
class Answer:
    """What came back from the ranks: what each returned, its inputs after the call, and the recorded events."""
    results: list
    inputs_after: list
    events: list


class Runner:
    """`run(world_size, *inputs, **same)`: the student's function on real ranks.

    Each of `inputs` is a list with one entry a rank; `same` goes to every rank by name. The function gets `rank`
    and `world_size` too if it names them. With `catch=ValueError` a rank's ValueError is its result.
    """

    def __init__(self, function, if_stuck: str = "", quiet: bool = False):
        self.function, self.if_stuck, self.quiet, self.situation = function, if_stuck, quiet, ""

    def __call__(self, world_size: int, *inputs: list, catch: type = (), **same) -> Answer:
        self.situation = describe(world_size, inputs, same)
        try:
            with contextlib.redirect_stdout(io.StringIO()) if self.quiet else contextlib.nullcontext():
                run = spawn(call_on_rank, world_size, self.function, inputs, same, catch)
        except RankError as error:
            raise explained(error, self.if_stuck) from None
        results, inputs_after = (list(column) for column in zip(*run.results))
        if all(result is None for result in results):
            raise CheckFailed("Every rank returned None.", mistake="Not written yet? Or is the `return` missing?")
        return Answer(results, inputs_after, run.events)


def call_on_rank(rank: int, world_size: int, function, inputs: tuple, same: dict, catch: type):
    """What each rank runs: its own entry of every input. Returns the result and the inputs as they are afterwards."""
    mine = [one_per_rank[rank] for one_per_rank in inputs]
    names = inspect.signature(function).parameters
    known = {name: value for name, value in [("rank", rank), ("world_size", world_size)] if name in names}
    try:
        return function(*mine, **same, **known), mine
    except catch as error:
        return error, mine


def describe(world_size: int, inputs: tuple, same: dict) -> str:
    """The situation in words: `5 ranks, root 3, int64`."""
    words = ["1 rank" if world_size == 1 else f"{world_size} ranks"]
    words += [f"{name} {value}" for name, value in same.items() if isinstance(value, int | str)]
    first = next((item for column in inputs for item in column if isinstance(item, torch.Tensor)), None)
    if first is not None:
        words.append(f"{str(first.dtype).removeprefix('torch.')} {tuple(first.shape)}")
    return ", ".join(words)


def explained(error: RankError, if_stuck: str) -> CheckFailed:
    """The report of the ranks, with the exercise's own explanation where one fits."""
    report = str(error)
    if "NotImplementedError" in report:
        return CheckFailed("Not written yet.", mistake="Write the lines that are missing in the cell above, run that "
                           "cell, then this one.")
    if "Pair is not connected" in report or "send to self" in report.lower():
        return CheckFailed(report, mistake="A rank can't send to itself: copy what it keeps, send the rest.")
    stuck = type(error).__name__ in ("WorldStuck", "RankTimeout")
    return CheckFailed(report, mistake=f"What usually causes this here: {if_stuck}" if stuck and if_stuck else "")


# ---- comparing

def expect(got, expected, rank: int | str, recognise: dict | None = None) -> None:
    """Raise CheckFailed unless `got` is exactly `expected`: same type, dtype, shape and values (NaN equals NaN).

    rank: who returned it, a rank or words. recognise: {what the mistake is: the wrong value it leads to}.
    """
    if alike(got, expected, strict=True):
        return
    who = f"rank {rank}" if isinstance(rank, int) else rank
    mistake = next((words for words, wrong in (recognise or {}).items() if alike(got, wrong)), "")
    raise CheckFailed(f"{who} returned {show(got, expected)}", show(expected, got), mistake and f"That is {mistake}.")


def alike(left, right, strict: bool = False) -> bool:
    """Whether two values are equal; `strict` wants the same type and dtype too."""
    if type(left) is not type(right):
        return False
    if not isinstance(left, torch.Tensor):
        return left == right
    if left.shape != right.shape or strict and left.dtype != right.dtype:
        return False
    return torch.allclose(left.double(), right.double(), rtol=0, atol=0, equal_nan=True)


def show(value, other=None) -> str:
    """A value in a few characters; with its type, dtype or shape where `other` has another."""
    if not isinstance(value, torch.Tensor):
        text = repr(value) if len(repr(value)) <= 120 else repr(value)[:117] + "..."
        return text if value is None or type(value) is type(other) else f"{text} (a {type(value).__name__})"
    remarks = []
    if not isinstance(other, torch.Tensor) and other is not None:
        remarks.append("a tensor")
    if isinstance(other, torch.Tensor) and other.dtype != value.dtype:
        remarks.append(str(value.dtype))
    if isinstance(other, torch.Tensor) and other.shape != value.shape:
        remarks.append(f"shape {tuple(value.shape)}")
    if value.numel() > 16 and isinstance(other, torch.Tensor) and other.shape == value.shape:
        different = (value.double() != other.double()).nonzero()
        remarks += [f"first difference at index {', '.join(map(str, different[0].tolist()))}"] if len(different) else []
    return numbers(value) + (f" ({', '.join(remarks)})" if remarks else "")


def numbers(tensor: torch.Tensor) -> str:
    """`[12 15 10]`; of a long tensor the first and last few."""
    if tensor.numel() > 16:
        flat = tensor.reshape(-1)
        return f"{numbers(flat[:6])[:-1]} ... {numbers(flat[-2:])[1:]}"
    if tensor.dim() == 0:
        return f"{tensor.item():g}" if tensor.is_floating_point() else str(tensor.item())
    return "[" + " ".join(numbers(row) for row in tensor) + "]"


def expect_unchanged(answer: Answer, *inputs: list) -> None:
    """Raise CheckFailed if a rank's inputs are not what they were before the call."""
    for rank, after in enumerate(answer.inputs_after):
        for before, now in zip([one_per_rank[rank] for one_per_rank in inputs], after):
            for was, has_become in zip(*([x] if isinstance(x, torch.Tensor) else x or [] for x in (before, now))):
                if not alike(has_become, was):
                    raise CheckFailed(f"rank {rank}: the input is {show(has_become)} after the call", show(was),
                                      "The input must stay as it was: work on a copy, `x.clone()`.")


def expect_traffic(answer: Answer, messages: int, nbytes: int, enough: str = "No fewer will do.") -> str:
    """Raise CheckFailed unless the ranks sent `messages` messages of `nbytes` bytes in all, by send and recv alone.

    Returns a sentence that says what was counted.
    """
    strangers = sorted({event.op for event in answer.events} - {"send", "recv"})
    if strangers:
        raise CheckFailed(f"your function calls {', '.join(strangers)}", "only send, recv, isend and irecv",
                          "The library did the work: here you do.")
    sends = [event for event in answer.events if event.op == "send"]
    sent = Counter(event.rank for event in sends)
    total = sum(event.bytes for event in sends)
    counted = ", ".join(f"rank {rank} sent {plural(sent[rank], 'message')}" for rank in sorted(sent)) or "nobody sent"
    if len(sends) != messages:
        times = f"{len(sends) / messages:.3g} times as many as are needed." if messages else "None is needed."
        raise CheckFailed(f"{counted}: {len(sends)} in all", f"{messages} in all",
                          times if len(sends) > messages else "Fewer than are needed: somebody guessed a value.")
    if total != nbytes:
        raise CheckFailed(f"{counted}, {total} bytes in all", f"{nbytes} bytes in all",
                          f"{total / nbytes:.3g} times the bytes that are needed: does each rank get only its part?")
    return f"{counted}: {plural(len(sends), 'message')}, {total} bytes. {enough}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


def expect_calls(answer: Answer, calls: list[str], nbytes: list[int] | None = None) -> str:
    """Raise CheckFailed unless every rank called exactly these collectives in this order, handing in these bytes."""
    for rank in range(len(answer.results)):
        events = [event for event in answer.events if event.rank == rank]
        if [event.op for event in events] != calls:
            seen = ", ".join(event.op for event in events) or "nothing"
            raise CheckFailed(f"rank {rank} called {seen}", ", ".join(calls), "One call of each, on every rank.")
        for event, want in zip(events, nbytes or []):
            if event.bytes != want:
                raise CheckFailed(f"rank {rank} handed {event.bytes} bytes to {event.op}", f"{want} bytes",
                                  f"{event.bytes / want:.3g} times what is needed.")
    return f"each rank called {', '.join(calls)}."


# ---- data

def different_integers(world_size: int, shape: int | tuple, dtype=torch.float32, seed: int = 0) -> list[torch.Tensor]:
    """One tensor a rank, whole numbers, unlike on every rank: rank 0 has 10 to 19, rank 1 has 20 to 29, and so on.

    Always the same for the same arguments; sums are exact in every dtype that holds them.
    """
    numel = math.prod(shape) if isinstance(shape, tuple) else shape
    def of(rank):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        digits = torch.randperm(max(10, numel), generator=generator)[:numel] % 10
        return (10 * (rank + 1) + digits).to(dtype).reshape(shape)
    return [of(rank) for rank in range(world_size)]
