"""Ctrl-C, once or twice, ends a run in one sentence, after what it has started; without a terminal there are lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grader.classroom import long_runs
from grader.classroom.long_runs import STOPPED, Pace, a_line_every, ends_in_a_sentence

PROGRAM = """
import signal, sys
from grader.classroom import long_runs

with long_runs.ends_in_a_sentence():
    try:
        print("working", flush=True)
        while True:
            signal.pause()
    finally:
        print("cleaning up", flush=True)
        sys.stdin.readline()  # until the second Ctrl-C has come
        print("clean", flush=True)
"""


def test_ctrl_c_twice_ends_in_one_sentence_after_cleaning_up():
    root = Path(__file__).resolve().parents[3]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=root, text=True, **pipes) as process:
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "cleaning up\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate("\n")
    assert (out, err, process.returncode) == ("clean\n", f"{STOPPED}\n", 1)


def test_two_at_once_and_later_ones(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit, match="^enough$"), ends_in_a_sentence("enough"):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # at once: ignored
        monkeypatch.setattr(long_runs, "CLEANING_UP", 0)
        os.kill(os.getpid(), signal.SIGINT)  # much later: somebody means it
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ordinary_end_and_other_errors_pass_through():
    with ends_in_a_sentence():
        pass
    with pytest.raises(ZeroDivisionError), ends_in_a_sentence():
        raise ZeroDivisionError


def test_a_line_again_and_again(capsys):
    said = threading.Event()
    lines = iter(range(1000))

    def line() -> str:
        number = next(lines)
        if number == 2:
            said.set()
        return f"line {number}"

    with a_line_every(0.001, line):
        assert said.wait(60)
    out = capsys.readouterr().out
    assert out.startswith("line 0\nline 1\nline 2\n")
    with a_line_every(0.001, line, wanted=False):
        pass
    assert threading.active_count() == len(threading.enumerate()) and capsys.readouterr().out == ""


def test_a_pace_in_words(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(long_runs, "monotonic", lambda: now[0])
    pace = Pace("01_one: judging", 40)
    now[0] += 60
    assert str(pace) == "01_one: judging: 0 of 40 after 1 min"
    pace.done = 10
    now[0] += 60
    assert str(pace) == "01_one: judging: 10 of 40 after 2 min, about 6 min left"
