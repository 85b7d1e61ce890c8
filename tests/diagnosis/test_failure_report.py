"""utils/diagnosis/failure_report.py: ranks that fail alike don't fill the screen."""

from utils.diagnosis.failure_report import report_failures
from utils.events.failure import Failure, Frame


def test_of_many_exceptions_from_one_line_three_are_shown():
    frames = (Frame("lesson.py", 3, "fn", "team.index(rank)"),)
    failures = {
        rank: Failure(kind="ValueError", message=f"{rank} is not in list", frames=frames, time=float(rank))
        for rank in range(32)
    }
    report = str(report_failures(failures, waiting={}, died={}))
    assert report.count("is not in list") == report.count("team.index(rank)") == 3
    assert report.endswith("\n\n(Ranks 3-31 raised ValueError on the same line, with different messages.)")


def test_equal_failures_of_torchs_c_plus_plus_are_one():
    stamps = {0: "[rank0]:[F1125 18:59:45.98 Gloo.cpp:2216] ", 1: "[rank1]:[F1125 18:59:46.02 Gloo.cpp:2216] "}
    failures = {
        rank: Failure(kind="RuntimeError", message=stamp + "Check failed: (3 vs. 1). ", frames=[], time=float(rank))
        for rank, stamp in stamps.items()
    }
    report = str(report_failures(failures, waiting={}, died={}))
    assert report == "ranks 0 and 1 raised RuntimeError: Check failed: (3 vs. 1)."
