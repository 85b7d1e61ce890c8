"""The reports of worlds in which a rank raised an exception or its process died."""

from __future__ import annotations

import re
import signal
from collections import Counter

from ..events.event import Event
from ..events.failure import Failure, Frame
from ..text import source_lines
from .errors import RankCrashed, RankFailed
from .words import call_text, ranks_text

# The error of a rank that is not to blame: another rank went away while the two were communicating.
INNOCENT = re.compile(
    r"[Cc]onnection (was )?(closed|reset|refused)|Broken pipe|Socket closed|closed by peer|Application timeout"
    r"|failed to pass monitoredBarrier|NCCL .*remote|remote process exited"
)

SIGNALS: dict[int, str] = {
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGBUS: "a crash in compiled code",
    signal.SIGFPE: "a crash in compiled code",
    signal.SIGABRT: "a C++ library gave up; with Gloo, most often because two ranks disagree on a size or a dtype",
    signal.SIGKILL: "from outside; most often because the machine ran out of memory",
    signal.SIGTERM: "from outside",
}

MOST_FRAMES = 5  # of a traceback, shown from its beginning and again from its end
MOST_ALIKE = 3  # exceptions of one kind from one place that differ only in what they say

# What torch's and Gloo's C++ puts in front of a failed check: rank, time, file. Without it, equal failures read alike.
STAMP = re.compile(r"\[rank\d+\]:\[[A-Z]\d{4} [\d:.]+ \S+\] |\[enforce fail at \S+\] ")
# What a C++ library prints before it aborts. It belongs in the report, not in the program's output.
GIVES_UP = re.compile(r"terminate called after throwing an instance of ")
LAST_WORDS = re.compile(r"  what\(\):\s+(\[enforce fail at \S+\] )?(?P<said>.*)")


def is_innocent(failure: Failure) -> bool:
    """Whether the rank merely lost its connection to one that went away: torch raised, not the student's own code."""
    raised_by_library = not failure.frames or not source_lines.is_students(failure.frames[-1].file)
    return raised_by_library and INNOCENT.search(failure.message) is not None


def report_failures(failures: dict[int, Failure], waiting: dict[int, Event], died: dict[int, int]) -> RankFailed:
    """One report for all exceptions, the earliest first, with footnotes on ranks that waited, lost contact or died.

    failures   {rank: its exception}; not empty
    waiting    {rank: the call it was inside, or that raised}
    died       {rank: exit code of its process}
    """
    to_blame = {rank: failure for rank, failure in failures.items() if not is_innocent(failure)}
    to_blame = to_blame or failures
    same: dict[tuple[str, str, tuple[Frame, ...]], list[int]] = {}
    for rank, failure in sorted(to_blame.items(), key=lambda item: item[1].time):
        message = STAMP.sub("", failure.message).rstrip()
        same.setdefault((failure.kind, message, tuple(failure.frames)), []).append(rank)
    parts = []
    alike: Counter[tuple[str, tuple[Frame, ...]]] = Counter()
    left_out: dict[str, list[int]] = {}
    for (kind, message, frames), ranks in same.items():
        alike[kind, frames] += 1
        if alike[kind, frames] > MOST_ALIKE:
            left_out.setdefault(kind, []).extend(ranks)
            continue
        lines = [f"{ranks_text(sorted(ranks)).lower()} raised {kind}: {message}".rstrip(": ")]
        shown = students_frames(frames)
        lines += [line for frame in shown[:MOST_FRAMES] for line in frame_lines(frame)]
        if len(shown) > 2 * MOST_FRAMES:
            lines.append(f"  ... {len(shown) - 2 * MOST_FRAMES} more calls ...")
        lines += [line for frame in shown[MOST_FRAMES:][-MOST_FRAMES:] for line in frame_lines(frame)]
        parts.append("\n".join(lines))
    for kind, ranks in left_out.items():
        parts.append(f"({ranks_text(sorted(ranks))} raised {kind} on the same line, with different messages.)")
    places: dict[str, list[int]] = {}
    for rank, event in waiting.items():
        if rank not in to_blame:
            places.setdefault("waiting in " + call_text(event), []).append(rank)
    for rank in sorted(set(failures) - set(to_blame) - set(waiting)):
        places.setdefault("cut off in the middle of a message", []).append(rank)
    for what, ranks in places.items():
        parts.append(f"({ranks_text(ranks)} {'was' if len(ranks) == 1 else 'were'} {what}.)")
    parts += [f"(Rank {rank} {how_it_died(code)}.)" for rank, code in died.items()]
    first = min(to_blame, key=lambda rank: to_blame[rank].time)
    return RankFailed("\n\n".join(parts), rank=first)


def frame_lines(frame: Frame) -> list[str]:
    inside = f", in {frame.function}" if frame.function not in ("", "<module>") else ""
    where = f"  {source_lines.name_of_file(frame.file)}, line {frame.line}{inside}"
    return [where, f"      {frame.source}"] if frame.source else [where]


def students_frames(frames: tuple[Frame, ...]) -> list[Frame]:
    """The student's lines of a traceback; if there are none, its last line."""
    return [frame for frame in frames if source_lines.is_students(frame.file)] or list(frames[-1:])


def how_it_died(exit_code: int) -> str:
    if exit_code == 0:
        return "exited with code 0 before its function had returned: something called os._exit"
    if exit_code > 0:
        return f"exited with code {exit_code}: something called os._exit, or its interpreter could not continue"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-exit_code}"
    return f"was killed by {name}" + (f" ({SIGNALS[-exit_code]})" if -exit_code in SIGNALS else "")


def report_crash(
    rank: int, exit_code: int, last_place: str, events: list[Event], last_words: list[str], hint: str
) -> RankCrashed:
    """The report of a rank that died without an exception: what ended it, its last line and its last call.

    last_words   what its C++ library printed before it aborted
    hint         how its last call differs from those of other ranks, or ""
    """
    lines = [f"rank {rank} {how_it_died(exit_code)}."]
    if last_place:
        lines.append(f"  it was at {last_place}")
    if events:
        last_event = events[-1]
        state = "not completed" if last_event.end is None else "completed"
        where = source_lines.place(last_event.where)
        lines.append(f"  its last call to the network, {state}: {call_text(last_event)} at {where}")
    else:
        lines.append("  it had not called the network yet")
    lines += [f"  the library's last words: {words}" for words in last_words]
    if hint:
        lines += ["", hint]
    return RankCrashed("\n".join(lines), rank=rank)
