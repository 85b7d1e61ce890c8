"""utils/diagnosis/failure_report.py: ranks that fail alike don't fill the screen."""

import signal

from utils.diagnosis.failure_report import report_crash, report_failures
from utils.events.failure import Failure, Frame


def test_of_many_exceptions_from_one_line_three_are_shown():
    frames = (Frame("lesson.py", 3, "fn", "team.index(rank)"),)
    failures = {
        rank: Failure(kind="ValueError", message=f"{rank} is not in list", frames=frames, time=float(rank))
        for rank in range(32)
    }
    report = str(report_failures(failures, waiting={}, died={}))
    assert report.splitlines() == [
        *(f"rank {rank} raised ValueError: {rank} is not in list" for rank in range(3)),
        "(Ranks 3-31 raised ValueError on the same line, with different messages.)",
        "  lesson.py, line 3, in fn",
        "      team.index(rank)",
    ]


def test_equal_failures_of_torchs_c_plus_plus_are_one():
    stamps = {0: "[rank0]:[F1125 18:59:45.98 Gloo.cpp:2216] ", 1: "[rank1]:[F1125 18:59:46.02 Gloo.cpp:2216] "}
    failures = {
        rank: Failure(kind="RuntimeError", message=stamp + "Check failed: (3 vs. 1). ", frames=[], time=float(rank))
        for rank, stamp in stamps.items()
    }
    report = str(report_failures(failures, waiting={}, died={}))
    assert report == "ranks 0 and 1 raised RuntimeError: Check failed: (3 vs. 1)."


def test_what_a_library_says_last_is_only_shown_where_nothing_better_is_known():
    words = ["op.preamble.length <= op.nbytes. 32 vs 24"]
    known = str(report_crash(2, -signal.SIGABRT, "", [], words, hint="Rank 3 sent more than rank 0 has room for."))
    unknown = str(report_crash(2, -signal.SIGABRT, "", [], words, hint=""))
    assert known.startswith("Rank 3 sent more than rank 0 has room for.\n\nSo rank 2 was killed by SIGABRT (a C++ ")
    assert words[0] not in known
    assert "two ranks disagree on a size or a dtype" in unknown and words[0] in unknown
