"""grader/sandbox/bounded.py: our own code on untrusted bytes ends in time or raises TooMuch; the next call works."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import time

import pytest

from grader.inside import usage
from grader.sandbox import bounded as module
from grader.sandbox.bounded import TooMuch, bounded, in_steps

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
def test_what_takes_too_much_is_ended_and_the_next_call_works(call, why):
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


def test_garbage_of_the_parent_is_left_alone():
    """A process group's, for example, which would wait for its threads: a fork has none."""

    class WaitsForItsThread:
        def __init__(self):
            self.process, self.itself = os.getpid(), self

        def __del__(self):
            if os.getpid() != self.process:
                os._exit(1)

    with pytest.raises(TooMuch):
        ends()
    gc.collect()
    gc.disable()
    try:
        WaitsForItsThread()
        assert pid() != os.getpid()
    finally:
        gc.enable()


def test_what_a_busy_machine_delays_is_not_counted(monkeypatch):
    """The child sleeps for longer than it may, all of which it would have computed, had there been a core."""
    began = time.monotonic()
    monkeypatch.setattr(module, "delay", lambda process: max(0.0, time.monotonic() - began))
    assert naps() is None


@bounded(0.05)
def naps():
    time.sleep(1.0)


def counts(to, then):
    yield from range(to)
    then()


def loops():
    while True:
        pass


def test_a_generator_yields_from_the_child_and_each_step_has_the_limit():
    assert list(in_steps(counts, 60, 3, 3, os.getpid)) == [0, 1, 2]
    found = []
    with pytest.raises(TooMuch, match="takes more than 0.5 s"):
        for step in in_steps(counts, 0.5, 3, 3, loops):
            found.append(step)
    assert found == [0, 1, 2] and doubled(4) == 8


def test_a_generator_that_nobody_reads_to_its_end_leaves_no_answers_to_the_next_call():
    steps = in_steps(counts, 60, 3, 3, os.getpid)
    assert next(steps) == 0
    steps.close()
    assert doubled(4) == 8


def test_the_child_ends_with_its_parent_whatever_it_does():
    program = """
        import os, sys, time
        from grader.sandbox.bounded import bounded, child_of_this_process

        @bounded(600)
        def hangs():
            time.sleep(600)

        print(child_of_this_process().pid, flush=True)
        hangs()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert module.select.select([child], [], [], 60)[0]


def test_the_kernel_measures_how_long_a_process_waits_for_a_core():
    assert 0 <= usage.delay(os.getpid()) <= usage.delay(os.getpid()) < 10**6
    assert usage.delay(2**22 + 1) == usage.cpu_seconds(2**22 + 1) == 0
