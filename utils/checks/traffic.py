"""Judge what the ranks sent: messages, bytes, calls, and the virtual time they took."""

import math
from collections import Counter

from ..text.units import quantity
from .answer import Answer, CheckFailed
from .compare import plural


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
