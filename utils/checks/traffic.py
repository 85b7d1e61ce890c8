"""Compare what the ranks sent with what is needed: messages, bytes, calls, and the virtual time they took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from ..events.event import Event
from ..text.units import plural, quantity
from .answer import Answer, CheckFailed

SHARED_FILE = "SharedFile"  # the op of an access to a file that ranks share; a graded run has such events


def expect_traffic(answer: Answer, messages: int, nbytes: int, enough: str = "No fewer will do.") -> str:
    """Raise CheckFailed unless the ranks sent `messages` messages of `nbytes` bytes in all, with send and recv alone.

    Returns a sentence with the counts.
    """
    expect_only_messages(answer)
    sends = [event for event in answer.events if event.op == "send"]
    sent = Counter(event.rank for event in sends)
    total = sum(event.bytes for event in sends)
    counted = ", ".join(f"rank {rank} sent {plural(sent[rank], 'message')}" for rank in sorted(sent))
    counted = counted or "no rank sent anything"
    if len(sends) != messages:
        times = f"That is {len(sends) / messages:.3g} times as many as are needed." if messages else "None is needed."
        raise CheckFailed(
            f"{counted}: {len(sends)} in all",
            f"{messages} in all",
            times if len(sends) > messages else too_few("messages"),
        )
    if total != nbytes:
        raise CheckFailed(
            f"{counted}, {total} bytes in all",
            f"{nbytes} bytes in all",
            f"That is {total / nbytes:.3g} times the bytes that are needed: does each rank get only its part?",
        )
    return f"{counted}; {total} bytes in all. {enough}"


def expect_only_messages(answer: Answer) -> None:
    """Raise CheckFailed if a rank called anything but send and recv, or never waited for one of them."""
    expect_no_barrier(answer)
    strangers = sorted({event.op for event in answer.events} - {"send", "recv"})
    if strangers:
        raise CheckFailed(
            f"your function calls {', '.join(strangers)}",
            "only send, recv, isend and irecv",
            "There the library does the work that this exercise is about.",
        )
    expect_all_waited(answer)


def expect_no_barrier(answer: Answer) -> None:
    """Raise CheckFailed if a rank called barrier where messages do."""
    if any(event.op == "barrier" for event in answer.events):
        why = "It makes every rank wait for all others. A recv waits for its message anyway: leave the barrier out."
        raise CheckFailed("your function calls barrier", "messages alone", why)


def expect_each_sent(
    answer: Answer, messages: int | Sequence[int], nbytes: int | Sequence[int], enough: str = ""
) -> str:
    """Raise CheckFailed unless each rank sent this many messages and bytes, with send and recv alone.

    messages, nbytes  the same for every rank, or a list with one entry per rank
    enough            why no fewer would do, shown when the counts are right

    Returns a sentence with the counts.
    """
    world_size = len(answer.results)
    of_ranks = [[one] * world_size if isinstance(one, int) else one for one in (messages, nbytes)]
    wanted = list(zip(*of_ranks, strict=True))
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
    if len(sent) == 1:
        return f"each rank sent {sent.pop()} in all. {enough}".strip()
    count, total = (sum(column) for column in zip(*wanted, strict=True))
    return f"the ranks sent {plural(count, 'message')} between them, {total:,} bytes in all. {enough}".strip()


def how_many_times(got: int, wanted: int, noun: str) -> str:
    if got < wanted:
        return too_few(noun)
    return f"That is {got / wanted:.3g} times the {noun} that are needed." if wanted else "None is needed."


def too_few(noun: str) -> str:
    return f"Fewer {noun} than are needed: does a rank skip a step, or know a value beforehand?"


def expect_time(
    answer: Answer,
    seconds: float,
    rtol: float = 1e-6,
    recognise: Mapping[str, float] | None = None,
    least: float = 0.0,
) -> str:
    """Raise CheckFailed unless the run took at most `seconds` of virtual time. Returns a sentence with its time.

    recognise   {a common mistake, in words: the time that it leads to}
    least       the time that what must be computed and sent takes in any case. A rank knows its own computing, so this
                is what keeps it from claiming less
    """
    took = answer.run.elapsed
    if took < least * (1 - rtol):
        raise CheckFailed(
            f"it took {quantity(took, 's')} of virtual time",
            f"{quantity(least, 's')} at least",
            "Nothing that computes all this can be that fast: compute with torch, and don't touch the clock.",
            impossible=True,
        )
    if took <= seconds * (1 + rtol):
        return f"{quantity(took, 's')} of virtual time."
    usual = (words for words, wrong in (recognise or {}).items() if math.isclose(took, wrong, rel_tol=1e-3))
    mistake = next(usual, "")
    raise CheckFailed(
        f"it took {quantity(took, 's')} of virtual time",
        f"{quantity(seconds, 's')} at most",
        f"That is {took / seconds:.3g} times as long as is needed" + (f": {mistake}." if mistake else "."),
    )


def expect_calls(answer: Answer, calls: Sequence[str], nbytes: Sequence[int] | None = None, advice: str = "") -> str:
    """Raise CheckFailed unless every rank called exactly these collectives, in this order, with this many bytes.

    advice  what to do about others; by default, what holds for any exercise
    """
    for rank in range(len(answer.results)):
        events = [event for event in answer.events if event.rank == rank]
        if [event.op for event in events] != list(calls):
            seen, words = in_turn([event.op for event in events]), "One call of each is enough, on every rank."
            raise CheckFailed(f"rank {rank} called {seen}", in_turn(calls), advice or words)
        for event, want in zip(events, nbytes or [event.bytes for event in events], strict=True):
            if event.bytes != want:
                raise CheckFailed(
                    f"rank {rank} handed {event.bytes} bytes to {event.op}",
                    f"{want} bytes",
                    f"That is {event.bytes / want:.3g} times what is needed. {advice}".strip(),
                )
    expect_all_waited(answer)
    return f"each rank called {in_turn(calls)}{with_bytes(answer)}."


def with_bytes(answer: Answer) -> str:
    """`, with 16 bytes in all`: what a rank has handed to its calls; nothing where ranks differ, or handed nothing."""
    ranks = range(len(answer.results))
    totals = {sum(event.bytes for event in answer.events if event.rank == rank) for rank in ranks}
    return f", with {totals.pop():,} bytes in all" if len(totals) == 1 and totals != {0} else ""


def in_turn(calls: Sequence[str]) -> str:
    """`barrier, then all_reduce twice`"""
    times = [(op, len(list(same))) for op, same in groupby(calls)]
    words = [op + ("" if n == 1 else " twice" if n == 2 else f" {n} times") for op, n in times]
    return ", then ".join(words) or "nothing"


def calls_of_ranks(answer: Answer, op: str, besides: str = "") -> list[tuple[int, list[Event]]]:
    """(rank, its calls of `op`) of each rank. Raises CheckFailed if a call is not an `op`, or was never waited for.

    besides: another op that is allowed
    """
    strangers = sorted({event.op for event in answer.events} - {op, besides})
    if strangers:
        raise CheckFailed(f"your function calls {', '.join(strangers)}", f"{op} only")
    expect_all_waited(answer)
    ranks = range(len(answer.results))
    return [(rank, [event for event in answer.events if (event.rank, event.op) == (rank, op)]) for rank in ranks]


def expect_launched_first(answer: Answer, noun: str = "all-reduce") -> None:
    """Raise CheckFailed unless every rank started all its calls without blocking, and only then waited for them."""
    for rank in range(len(answer.results)):
        events = [event for event in answer.events if event.rank == rank]
        blocking = sum(not event.is_async for event in events)
        if blocking:
            raise CheckFailed(
                f"rank {rank}: {blocking} of {plural(len(events), noun)} blocked",
                "none",
                "Pass async_op=True and keep the handle.",
            )
        waits = [event.waited for event in events if event.waited is not None]
        if waits and max(event.start for event in events) > min(waits):
            raise CheckFailed(
                f"rank {rank} waited for the first {noun} before it had started the last one",
                "all started, then the first wait",
                "Use two loops: one that starts them all, and one that waits for them.",
            )


def expect_all_waited(answer: Answer) -> None:
    """Raise CheckFailed if a rank started an asynchronous call and never waited for it."""
    for rank, op in sorted({(event.rank, event.op) for event in answer.events if event.is_async and event.end is None}):
        raise CheckFailed(
            f"rank {rank} started an asynchronous {op} and never waited for it",
            "handle.wait() for each handle",
            "Until it has waited, the tensor may not have been read or filled.",
        )
