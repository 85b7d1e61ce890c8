"""The reports of worlds in which a rank raised an exception or its process died."""

from __future__ import annotations

import linecache
import re
import signal
from collections.abc import Sequence

from ..events.event import Event
from ..events.failure import Failure, Frame
from ..text import source_lines
from .errors import RankCrashed, RankFailed
from .returned_values import misused_value
from .words import call_text, ranks_text

# The error of a rank that is not to blame: another rank went away while the two were communicating.
INNOCENT = re.compile(
    r"[Cc]onnection (was )?(closed|reset|refused)|Broken pipe|Socket closed|closed by peer|Application timeout"
    r"|[Tt]imed out waiting|failed to pass monitoredBarrier|NCCL .*remote|remote process exited"
)

SIGNALS: dict[int, str] = {
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGBUS: "a crash in compiled code",
    signal.SIGFPE: "a crash in compiled code",
    signal.SIGABRT: "a C++ library gave up; with Gloo, most often because two ranks disagree on a size or a dtype",
    signal.SIGKILL: "from outside; most often because the machine ran out of memory",
    signal.SIGTERM: "from outside",
}

MAX_FRAMES = 5  # shown from the beginning of a traceback, and again from its end
MAX_ALIKE = 3  # exceptions of one kind from one place that differ only in what they say

# What torch's and Gloo's C++ puts in front of a failed check: rank, time, file. Without it, equal failures read alike.
STAMP = re.compile(r"\[rank\d+\]:\[[A-Z]\d{4} [\d:.]+ \S+\] |\[enforce fail at \S+\] |\[/\S+/gloo/\S+:\d+\] ")
# What a C++ library prints before it aborts. It belongs in the report, not in the program's output.
GIVES_UP = re.compile(r"terminate called after throwing an instance of ")
LAST_WORDS = re.compile(r"  what\(\):\s+(\[enforce fail at \S+\] )?(?P<said>.*)")


def is_innocent(failure: Failure) -> bool:
    """Whether the rank merely lost its connection to one that went away: torch raised, not the student's own code."""
    raised_by_library = not failure.frames or not source_lines.is_students(failure.frames[-1].file)
    return raised_by_library and INNOCENT.search(failure.message) is not None


def report_failures(
    failures: dict[int, Failure], waiting: dict[int, Event], died: dict[int, int], cause: str = ""
) -> RankFailed:
    """One report for all exceptions, the earliest first, with footnotes on ranks that waited, lost contact or died.

    failures   {rank: its exception}; not empty
    waiting    {rank: the call it was inside, or that raised}
    died       {rank: exit code of its process}
    cause      what the record says about it, which comes first; ""
    """
    to_blame = {rank: failure for rank, failure in failures.items() if not is_innocent(failure)}
    to_blame = to_blame or failures
    alike: dict[tuple[str, tuple[Frame, ...]], dict[str, list[int]]] = {}
    for rank, failure in sorted(to_blame.items(), key=lambda item: item[1].time):
        message = STAMP.sub("", failure.message).rstrip()
        alike.setdefault((failure.kind, tuple(failure.frames)), {}).setdefault(message, []).append(rank)
    parts = [cause] if cause else []
    parts += [raised(kind, frames, messages) for (kind, frames), messages in alike.items()]
    places: dict[str, list[int]] = {}
    for rank, event in waiting.items():
        if rank not in to_blame:
            places.setdefault("waiting in " + call_text(event), []).append(rank)
    for rank in sorted(set(failures) - set(to_blame) - set(waiting)):
        places.setdefault("cut off in the middle of a message", []).append(rank)
    footnotes = [
        f"({ranks_text(ranks)} {'was' if len(ranks) == 1 else 'were'} {what}.)" for what, ranks in places.items()
    ]
    footnotes += [f"(Rank {rank} {how_it_died(code)}.)" for rank, code in died.items()]
    parts += ["\n".join(footnotes)] * bool(footnotes)
    first = min(to_blame, key=lambda rank: to_blame[rank].time)
    return RankFailed("\n\n".join(parts), rank=first)


def raised(kind: str, frames: tuple[Frame, ...], messages: dict[str, list[int]]) -> str:
    """The exceptions of one kind from one place. messages: {what they say: the ranks that raised it}."""
    said = sorted(messages.items(), key=lambda item: min(item[1]))
    lines = [f"{ranks_text(sorted(ranks)).lower()} raised {kind}: {message}".rstrip(": ") for message, ranks in said]
    if left_out := sorted(rank for _, ranks in said[MAX_ALIKE:] for rank in ranks):
        lines[MAX_ALIKE:] = [f"({ranks_text(left_out)} raised {kind} on the same line, with different messages.)"]
    shown = students_frames(frames)
    lines += [line for frame in shown[:MAX_FRAMES] for line in frame_lines(frame)]
    if len(shown) > 2 * MAX_FRAMES:
        lines.append(f"  ... {len(shown) - 2 * MAX_FRAMES} more calls ...")
    lines += [line for frame in shown[MAX_FRAMES:][-MAX_FRAMES:] for line in frame_lines(frame)]
    if kind in ("TypeError", "AttributeError") and shown:
        sentence = misused_value("".join(linecache.getlines(shown[-1].file)), shown[-1].line)
        lines += [f"\n{sentence}"] * bool(sentence)
    return "\n".join(lines)


def frame_lines(frame: Frame) -> list[str]:
    inside = f", in {frame.function}" if frame.function not in ("", "<module>") else ""
    where = f"  {source_lines.name_of_file(frame.file)}, line {frame.line}{inside}"
    return [where, f"      {frame.source}"] if frame.source else [where]


def students_frames(frames: tuple[Frame, ...]) -> list[Frame]:
    """The student's lines of a traceback; if there are none, its last line."""
    return [frame for frame in frames if source_lines.is_students(frame.file)] or list(frames[-1:])


def how_it_died(exit_code: int, guess: bool = True) -> str:
    """guess: whether to say what most often leads to that."""
    if exit_code == 0:
        return "exited with code 0 before its function had returned: something called os._exit"
    if exit_code > 0:
        return f"exited with code {exit_code}: something called os._exit, or its interpreter could not continue"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-exit_code}"
    happened, _, usually = SIGNALS.get(-exit_code, "").partition("; ")
    why = f"{happened}; {usually}" if usually and guess else happened
    return f"was killed by {name}" + f" ({why})" * bool(why)


def report_crash(
    rank: int,
    exit_code: int,
    last_place: str,
    events: list[Event],
    last_words: list[str],
    hint: str,
    others: Sequence[str] = (),
) -> RankCrashed:
    """The report of a rank that died without an exception: what ended it, its last line and its last call.

    others       a line for each of the other ranks
    last_words   what its C++ library printed before it aborted
    hint         how calls of the ranks differ, or "". Where that is known, the library's words add nothing
    """
    lines = [f"rank {rank} {how_it_died(exit_code, guess=not hint)}."]
    if last_place:
        lines.append(f"  it was at {last_place}")
    if events:
        last_event = events[-1]
        state = "not completed" if last_event.end is None else "completed"
        where = source_lines.place(last_event.where)
        lines.append(f"  its last call to the network, {state}: {call_text(last_event)} at {where}")
    else:
        lines.append("  it had not called the network yet")
    lines += [f"  {line}" for line in others]
    if hint:  # it says more than the library's words, and explains why the rank died
        return RankCrashed("\n".join([hint, "", f"So {lines[0]}", *lines[1:]]), rank=rank)
    lines += [f"  the library's last words: {words}" for words in last_words]
    return RankCrashed("\n".join(lines), rank=rank)
