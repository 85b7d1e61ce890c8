"""A class beside students who attack the grading: does anybody else lose a point, or wait?

    python -m tests.bench.crowd [honest students]        prints a table

The class is graded twice, without the attackers and with them. What counts is when each honest submission is recorded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.tiny_course import LESSON, PROJECT, RIGHT, autograded, hand_in, hand_in_file, make_course, nbgrader

DAMAGED = b'{"nbformat": 4, "cells": [' + b"[[[]]]," * 3_000_000 + b"0]}"
BURNS = "if os.fork() == 0:\n        while True: pass"
Attack = Callable[[Path, str], object]


def answers(body: str, exercise: str = "total") -> Attack:
    head = {"total": "def total(x, rank, world_size):", "double": "def double(x):"}[exercise]
    text = f"import os, threading, time\n{head}\n    {body}"
    return lambda course, name: hand_in(course, name, **{**RIGHT, exercise: text})


def beside(file: str, content: bytes = b"", size: int = 0) -> Attack:
    """A right notebook, with such a file beside it."""

    def attack(course: Path, name: str) -> None:
        path = hand_in(course, name, **RIGHT).with_name(file)
        path.write_bytes(content)
        os.truncate(path, size or len(content))

    return attack


def copies(content: bytes) -> Attack:
    def attack(course: Path, name: str) -> None:
        path = hand_in_file(course, name, content)
        for number in range(1, 11):
            path.with_name(f"{LESSON} ({number}).ipynb").write_bytes(content)

    return attack


ATTACKS: dict[str, Attack] = {
    "stamp of 3 GiB": beside("timestamp.txt", size=3 << 30),
    "stamp of digits": beside("timestamp.txt", b"9" * 10_000_000),
    "secret of 3 GiB": beside("submission_secret.txt", size=3 << 30),
    "stamp of 9999": beside("timestamp.txt", b"9999-12-31 00:00:00 UTC"),
    "list of 900,000": answers("return [x] * 900_000", "double"),
    "result of 400 MB": answers("return torch.ones(100_000_000)"),
    "11 damaged copies": copies(DAMAGED),
    "11 of 90 MB": copies(b'{"cells": ' + b"[" * 90_000_000),
    "child that computes": answers(f"{BURNS}\n    time.sleep(10**6)"),
    "orphan that computes": answers(
        "if os.fork() == 0:\n        if os.fork(): os._exit(0)\n        while True: pass\n    time.sleep(10**6)"
    ),
    "sleeps": answers("time.sleep(10**6)"),
    "threads": answers("for _ in range(100): threading.Thread(target=sum, args=[range(10**12)], daemon=True).start()"),
}


def main(honest: int = 100) -> None:
    with TemporaryDirectory(prefix="bench-crowd-") as folder:
        course = make_course(Path(folder) / "course")
        with (course / "nbgrader_config.py").open("a") as config:
            config.write("c.Judge.seconds = 120\n")
        nbgrader(course, "generate_assignment", LESSON)
        names = [f"honest-{number:03}" for number in range(honest)]
        for name in names:
            hand_in(course, name, **RIGHT)
        alone = dict(graded(course, names))
        for number, attack in enumerate(ATTACKS.values()):
            attack(course, f"attacker-{number:02}")
        beside = dict(graded(course, names))
    print(f"\n{'':24}{'alone':>10}{'attacked':>10}   ({honest} honest students, {len(ATTACKS)} attackers)")
    for what in alone:
        print(f"{what:24}{alone[what]:>10.1f}{beside[what]:>10.1f}")


def graded(course: Path, names: list[str]) -> Iterator[tuple[str, float]]:
    """Grade everybody anew. Yields what came of it, in seconds and numbers."""
    began, clock = time.time(), time.monotonic()
    command = [sys.executable, "-m", "grader", "grade", LESSON, "--regrade", "--course", course]
    done = subprocess.run(command, cwd=PROJECT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout[-6000:])
    took = time.monotonic() - clock
    files = [course / "autograded" / name / LESSON / f"{LESSON}.ipynb" for name in names]
    when = [file.stat().st_mtime - began for file in files if file.is_file()]
    kinds = [autograded(course, name).metadata["judgement"]["verdicts"] for name in names]
    yield "recorded, first", min(when)
    yield "recorded, median", sorted(when)[len(when) // 2]
    yield "recorded, last", max(when)
    yield "whole command", took
    yield "honest who lost points", sum(any(one["points"] < one["most"] for one in verdicts) for verdicts in kinds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
