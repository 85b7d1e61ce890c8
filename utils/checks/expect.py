"""Compare what the ranks returned with what is right, and say in words what differs.

Used by the checks of every lesson (`utils/checks/NN_topic.py`) and by the hidden tests, which have the same form.
Each `expect...` returns quietly, or raises CheckFailed: what was seen, what was expected, on which rank, and which of
the usual mistakes it is.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

import torch

from utils.cluster import quantity
from utils.run import Event, Run


@dataclass
class Answer:
    """What came back from the ranks: what each returned, its inputs after the call, and the record of the run.

    shared: for each rank, whether what it returned shares memory with one of its inputs.
    """

    results: list
    inputs_after: list
    run: Run
    shared: list = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        return self.run.events


class CheckFailed(AssertionError):
    """An answer that is not right yet: what was seen, what was expected, and the usual mistake if it is known.

    share: of the check's points that it earns all the same, from 0 to 1
    """

    def __init__(self, saw: str, expected: str = "", mistake: str = "", share: float = 0.0):
        self.header, self.saw, self.expected, self.mistake, self.share = "", saw, expected, mistake, share
        super().__init__(saw)

    def __str__(self):
        seen = self.saw + (f", expected {self.expected}" if self.expected else "")
        return "\n".join([self.header] * bool(self.header) + indented(seen) + indented(self.mistake))

    def _render_traceback_(self):  # IPython asks for this: a notebook shows the message alone
        return str(self).splitlines()


def indented(text: str) -> list[str]:
    return ["  " + line for line in text.splitlines()]


def expect(got, expected, rank: int | str, recognise: dict | None = None, rtol: float = 0) -> None:
    """Raise CheckFailed unless `got` is exactly `expected`: same type, dtype, shape and values (NaN equals NaN).

    rank: who returned it; or words, such as "the input is".
    recognise: {what the mistake is: the wrong value that it leads to}.
    rtol: relative error that is allowed, for results that depend on the order of additions.
    """
    if alike(got, expected, rtol, strict=True):
        return
    seen = f"rank {rank} returned" if isinstance(rank, int) else rank
    usual = {"the right numbers in another dtype: make buffers like the input": expected, **(recognise or {})}
    mistake = next((words for words, wrong in usual.items() if alike(got, wrong, rtol)), "")
    raise CheckFailed(f"{seen} {show(got, expected)}", show(expected, got), mistake and f"That is {mistake}.")


def alike(left, right, rtol: float = 0, strict: bool = False) -> bool:
    """Whether two values are equal; `strict` wants the same type and dtype too."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(alike(a, b, rtol, strict) for a, b in zip(left, right, strict=True))
    if not isinstance(left, torch.Tensor):
        return left == right
    if left.shape != right.shape or left.is_meta or right.is_meta or strict and left.dtype != right.dtype:
        return False  # a meta tensor has no values
    return torch.allclose(*widest(left, right), rtol=rtol, atol=0, equal_nan=True)


def widest(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """In a dtype that holds the numbers of every dtype."""
    dtype = torch.complex128 if any(tensor.is_complex() for tensor in tensors) else torch.float64
    return [tensor.to(dtype) for tensor in tensors]


def show(value, other=None) -> str:
    """A value in a few characters; with its type, dtype or shape where `other` has another."""
    if isinstance(value, torch.Tensor):
        return show_tensor(value, other)
    parts = [show(item) if isinstance(item, torch.Tensor) else repr(item) for item in items(value)]
    text = f"[{', '.join(parts)}]" if parts else repr(value)
    text = text if len(text) <= 120 else text[:117] + "..."
    name = type(value).__name__
    return (
        text
        if value is None or type(value) is type(other)
        else f"{text} ({'an' if name[0] in 'aeiou' else 'a'} {name})"
    )


def items(value) -> list:
    """The items of a list or tuple; none of anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def show_tensor(value: torch.Tensor, other=None) -> str:
    if value.is_meta:
        return "a tensor on the device meta, which holds no values"
    if not isinstance(other, torch.Tensor):
        return numbers(value) + (" (a tensor)" if other is not None else "")
    remarks = [str(value.dtype)] * (value.dtype != other.dtype)
    remarks += [f"shape {tuple(value.shape)}"] * (value.shape != other.shape)
    if value.numel() > 16 and value.shape == other.shape and not other.is_meta:
        first, *_ = [*torch.ne(*widest(value, other)).nonzero().tolist(), None]
        remarks += [f"first difference at index {', '.join(map(str, first))}"] if first else []
    too_short = not other.is_meta and numbers(value) == numbers(other) and not alike(value, other)
    return numbers(value, digits=12 if too_short else 6) + (f" ({', '.join(remarks)})" if remarks else "")


def numbers(tensor: torch.Tensor, digits: int = 6) -> str:
    """`[12 15 10]`; of a long tensor the first and last few, of an empty one nothing: it may have a billion rows."""
    if not tensor.numel():
        return "[]"
    if tensor.numel() > 16:
        flat = tensor.reshape(-1)
        return f"{numbers(flat[:6], digits)[:-1]} ... {numbers(flat[-2:], digits)[1:]}"
    if tensor.dim() == 0:
        return f"{tensor.item():.{digits}g}" if tensor.is_floating_point() else str(tensor.item())
    return "[" + " ".join(numbers(row, digits) for row in tensor) + "]"


def expect_unchanged(answer: Answer, *inputs: list) -> None:
    """Raise CheckFailed if a rank's inputs are not what they were before the call."""
    for rank, after in enumerate(answer.inputs_after):
        before = [one_per_rank[rank] for one_per_rank in inputs]
        for was, has_become in zip(before, after, strict=True):
            if not alike(has_become, was):
                seen = f"rank {rank}: the input is {show(has_become, was)} after the call"
                raise CheckFailed(seen, show(was, has_become), "The input must stay as it was: work on a copy.")


def expect_own_memory(answer: Answer) -> None:
    """Raise CheckFailed if what a rank returned shares memory with its input."""
    for rank, shared in enumerate(answer.shared):
        if shared:
            raise CheckFailed(
                f"rank {rank} returned a tensor that shares memory with its input",
                "memory of its own",
                "Who changes one of the two later changes the other. Start from a copy: x.clone().",
            )


def expect_traffic(answer: Answer, messages: int, nbytes: int, enough: str = "No fewer will do.") -> str:
    """Raise CheckFailed unless the ranks sent `messages` messages of `nbytes` bytes in all, by send and recv alone.

    Returns a sentence that says what was counted.
    """
    expect_only_messages(answer)
    sends = [event for event in answer.events if event.op == "send"]
    sent = Counter(event.rank for event in sends)
    total = sum(event.bytes for event in sends)
    counted = ", ".join(f"rank {rank} sent {plural(sent[rank], 'message')}" for rank in sorted(sent)) or "nobody sent"
    if len(sends) != messages:
        times = f"{len(sends) / messages:.3g} times as many as are needed." if messages else "None is needed."
        raise CheckFailed(
            f"{counted}: {len(sends)} in all",
            f"{messages} in all",
            times
            if len(sends) > messages
            else "Fewer than are needed: does a rank skip a step, or know a value beforehand?",
        )
    if total != nbytes:
        raise CheckFailed(
            f"{counted}, {total} bytes in all",
            f"{nbytes} bytes in all",
            f"{total / nbytes:.3g} times the bytes that are needed: does each rank get only its part?",
        )
    return f"{counted}; {total} bytes in all. {enough}"


def expect_only_messages(answer: Answer) -> None:
    """Raise CheckFailed if a rank called anything but send and recv, or dropped the handle of one."""
    strangers = sorted({event.op for event in answer.events} - {"send", "recv"})
    if strangers:
        raise CheckFailed(
            f"your function calls {', '.join(strangers)}",
            "only send, recv, isend and irecv",
            "The library did the work: here you do.",
        )
    expect_all_waited(answer)


def expect_each_sent(answer: Answer, messages: int | list[int], nbytes: int | list[int], enough: str = "") -> str:
    """Raise CheckFailed unless each rank sent so many messages of so many bytes in all, by send and recv alone.

    messages, nbytes: of every rank, or a list with one entry a rank. enough: why no fewer would do, shown when it is
    right. Returns a sentence that says what was counted.
    """
    world_size = len(answer.results)
    wanted = [
        (
            messages if isinstance(messages, int) else messages[rank],
            nbytes if isinstance(nbytes, int) else nbytes[rank],
        )
        for rank in range(world_size)
    ]
    expect_only_messages(answer)
    traffic = answer.run.traffic()
    for rank in range(world_size):
        (got, got_bytes), (count, total) = traffic.sent(rank), wanted[rank]
        if (got, got_bytes) == (count, total):
            continue
        raise CheckFailed(
            f"rank {rank} sent {plural(got, 'message')}, {got_bytes:,} bytes in all",
            f"{plural(count, 'message')}, {total:,} bytes in all",
            how_many_times(got, count, "messages") if got != count else how_many_times(got_bytes, total, "bytes"),
        )
    sent = {f"{plural(count, 'message')}, {total:,} bytes" for count, total in wanted}
    counted = f"each rank sent {sent.pop()} in all" if len(sent) == 1 else "each rank sent what it must"
    return f"{counted}. {enough}".strip()


def how_many_times(got: int, wanted: int, what: str) -> str:
    if got < wanted:
        return f"Fewer {what} than are needed: does a rank skip a step, or know a value beforehand?"
    return f"{got / wanted:.3g} times the {what} that are needed." if wanted else "None is needed."


def expect_time(answer: Answer, seconds: float, rtol: float = 1e-6, recognise: dict[str, float] | None = None) -> str:
    """Raise CheckFailed unless the run took at most `seconds` of virtual time.

    recognise: {what the mistake is: the time that it leads to}. Returns a sentence that says what was measured.
    """
    took = answer.run.elapsed
    if took <= seconds * (1 + rtol):
        return f"{quantity(took, 's')} of virtual time."
    usual = (words for words, wrong in (recognise or {}).items() if math.isclose(took, wrong, rel_tol=1e-3))
    mistake = next(usual, "")
    raise CheckFailed(
        f"it took {quantity(took, 's')} of virtual time",
        f"{quantity(seconds, 's')} at most",
        f"{took / seconds:.3g} times as long as is needed." + (f" That is {mistake}." if mistake else ""),
    )


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


def expect_calls(answer: Answer, calls: list[str], nbytes: list[int] | None = None) -> str:
    """Raise CheckFailed unless every rank called exactly these collectives in this order, handing in these bytes."""
    for rank in range(len(answer.results)):
        events = [event for event in answer.events if event.rank == rank]
        if [event.op for event in events] != calls:
            seen = ", ".join(event.op for event in events) or "nothing"
            raise CheckFailed(f"rank {rank} called {seen}", ", ".join(calls), "One call of each, on every rank.")
        for event, want in zip(events, nbytes or [None] * len(calls), strict=True):
            if want is not None and event.bytes != want:
                raise CheckFailed(
                    f"rank {rank} handed {event.bytes} bytes to {event.op}",
                    f"{want} bytes",
                    f"{event.bytes / want:.3g} times what is needed.",
                )
    expect_all_waited(answer)
    return f"each rank called {', '.join(calls)}."


def expect_all_waited(answer: Answer) -> None:
    """Raise CheckFailed if a rank dropped the handle of a call that it had only started."""
    for rank, op in sorted({(event.rank, event.op) for event in answer.events if event.is_async and event.end is None}):
        raise CheckFailed(
            f"rank {rank} started an asynchronous {op} and never waited for it",
            "handle.wait() for each handle",
            "Until then its tensor may not have been read or filled.",
        )


# ---- data


salt = 0  # grading draws other numbers than anybody can know beforehand, and others again after each run


def different_integers(world_size: int, shape: int | tuple, dtype=torch.float32, seed: int = 0) -> list[torch.Tensor]:
    """One tensor a rank, whole numbers, unlike on every rank: rank 0 has 10 to 19, rank 1 has 20 to 29, and so on.

    The same for the same arguments, except in grading: there, keep what you hand to a run, and compare with that. Sums
    are exact in every dtype that holds them.
    """
    numel = math.prod(shape) if isinstance(shape, tuple) else shape

    def of(rank):
        generator = torch.Generator().manual_seed(salt + 1000 * seed + rank)
        digits = torch.randperm(max(10, numel), generator=generator)[:numel] % 10
        return (10 * (rank + 1) + digits).to(dtype).reshape(shape)

    return [of(rank) for rank in range(world_size)]
