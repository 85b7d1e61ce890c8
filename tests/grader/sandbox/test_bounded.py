"""grader/sandbox/bounded.py: our own code on untrusted bytes ends in time or raises TooMuch; the next call works."""

from __future__ import annotations

import os
import time

import pytest

from grader.sandbox import bounded as module
from grader.sandbox import load
from grader.sandbox.bounded import TooMuch, bounded

SECONDS = 0.5


@bounded(60)
def doubled(x):
    return 2 * x


@bounded(SECONDS)
def endless():
    while True:
        pass


@bounded(60)
def fills_memory():
    return len(bytearray(4 << 30))


@bounded(60)
def large():
    return b"x" * (module.OUTPUT + 1)


@bounded(60)
def raises():
    raise ValueError("no")


@bounded(60)
def ends():
    os._exit(0)


@bounded(60)
def pid():
    return os.getpid()


@bounded(SECONDS)
def sleeps():
    time.sleep(3600)


@pytest.mark.parametrize(
    "call, why",
    [
        (endless, "takes more than 0.5 s"),
        (sleeps, "takes more than 0.5 s"),
        (fills_memory, "needs too much memory"),
        (large, "becomes too large"),
        (ends, "needs too much memory"),
    ],
)
def test_what_takes_too_much_is_ended_and_the_next_call_works(call, why, monkeypatch):
    monkeypatch.setattr(module, "patience", lambda: 1.0)
    before = pid()
    with pytest.raises(TooMuch, match=why):
        call()
    assert doubled(4) == 8 and pid() != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_an_error_comes_back_and_the_child_stays():
    before = pid()
    with pytest.raises(ValueError, match="no"):
        raises()
    assert pid() == before != os.getpid()


def test_a_function_that_came_later_is_found():
    before = pid()

    @bounded(60)
    def later():
        return os.getpid()

    assert before != later() == pid()


@pytest.mark.parametrize("waiting, cores, times", [(0.1, 2, 1.0), (6.0, 2, 3.0), (1000.0, 2, load.MAX_FACTOR)])
def test_limits_grow_with_the_load(waiting, cores, times, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (waiting, 0, 0))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert load.patience() == times
