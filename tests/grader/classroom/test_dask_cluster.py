"""Grading on a Dask cluster: a scheduler and two workers in separate processes, one of which is killed half-way."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from threading import Thread

import pytest
from distributed import Client

from grader.classroom.course import ClassroomError
from grader.classroom.dask_cluster import judge_all
from grader.classroom.grade_class import GradeOptions, autograde
from grader.classroom.grades import read_grades
from grader.judging.worker import JudgeSettings
from tests.stand_in_grader import released_course
from tests.stand_in_judge import earning
from tests.tiny_course import LESSON, PROJECT, hand_in

pytestmark = pytest.mark.long
STUDENTS = [f"student-{number:02}" for number in range(10)]
WRITES = """
create table writes (id);
create trigger counted after update of auto_score on grade begin insert into writes values (new.id); end;
"""


@pytest.fixture
def start(tmp_path):
    """Starts `python -m distributed.cli.NAME ...` and returns the process; all of them end with the test."""
    started = []

    def start(name: str, *args: str, **env: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.{name}", "--no-dashboard", *args]
        env = {**os.environ, "PYTHONPATH": str(PROJECT), **env}
        process = subprocess.Popen(command, cwd=tmp_path, env=env, text=True, stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def scheduler(start):
    """The address of a scheduler."""
    process = start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
    said = next(line for line in process.stderr if "Scheduler at:" in line)
    Thread(target=process.stderr.read, daemon=True).start()  # or it stops when the pipe is full
    return re.search(r"tcp://\S+", said)[0]


def start_worker(start, scheduler: str, *args: str, **env: str) -> subprocess.Popen:
    options = ("--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--preload", "tests.stand_in_worker")
    process = start("dask_worker", scheduler, *options, *args, **env)
    Thread(target=process.stderr.read, daemon=True).start()
    return process


@pytest.mark.thorough
def test_when_a_worker_is_killed_half_way_nothing_is_lost_or_graded_twice(tmp_path, start, scheduler):
    course = released_course(tmp_path / "course")
    expected = {}
    for number, student in enumerate(STUDENTS):
        expected[student] = (number % 3, number % 4 / 2, number % 2)
        hand_in(course.root, student, **earning(*expected[student]))
    with closing(sqlite3.connect(course.root / "gradebook.db")) as db:
        db.executescript(WRITES)

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    start_worker(start, scheduler)
    doomed = start_worker(start, scheduler, DOOMED=str(pipe))
    with Client(scheduler, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
    deaths = []

    def kill_half_way() -> None:
        deaths.append(pipe.read_text())
        doomed.send_signal(signal.SIGKILL)

    killer = Thread(target=kill_half_way)
    killer.start()
    course.config.Judge.sandbox = False  # nothing runs
    this = autograde(course, LESSON, STUDENTS, GradeOptions(scheduler=scheduler))
    killer.join()
    assert deaths == ["begun"] and doomed.wait() == -signal.SIGKILL
    assert (str(this), this.failed) == ("10 judged", {})
    grades = read_grades(course, LESSON)
    assert {student: tuple(points.values()) for student, points in grades.earned.items()} == expected
    with closing(sqlite3.connect(course.root / "gradebook.db")) as db:
        written = db.execute("select count(*), count(distinct id) from writes").fetchone()
    assert written == (3 * len(STUDENTS), 3 * len(STUDENTS)), "each grade was written once"
    assert str(autograde(course, LESSON, STUDENTS, GradeOptions(scheduler="tcp://127.0.0.1:1"))) == "10 unchanged"


def test_a_missing_scheduler_worker_or_grader_is_reported_in_one_line(scheduler, start, monkeypatch):
    def said(address: str) -> str:
        with pytest.raises(ClassroomError) as error:
            list(judge_all(LESSON, {"ada": ""}, JudgeSettings("solutions", False, 10), scheduler=address))
        assert "\n" not in str(error.value)
        return str(error.value)

    monkeypatch.setattr("grader.classroom.dask_cluster.CONNECT_TIMEOUT", "1s")
    monkeypatch.setattr("grader.classroom.dask_cluster.FIRST_WORKER_TIMEOUT", 1)
    assert "there is no Dask scheduler at tcp://127.0.0.1:1" in said("tcp://127.0.0.1:1")
    assert f"no worker is connected to the Dask scheduler at {scheduler}" in said(scheduler)
