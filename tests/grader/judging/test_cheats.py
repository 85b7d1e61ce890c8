"""The grader against wrong answers that try to get points, to do harm, or to learn a secret (tests/cheats/).

Each of them gets no more than a plainly wrong answer would, leaves nothing behind and learns nothing. The same text
beside a right answer gets full marks.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path

import nbformat
import pytest

from grader.inside import orders, rank
from grader.judging import judge, ranks, remote_runner
from tests.cheats import CHEATS, HANGS, forge
from tests.cheats.cheat import CHECKS, Cheat
from tests.cheats.course import HONEST, notebook_of
from tests.cheats.notebooks import EDITS, lay_beside
from tests.kernel import processes_with
from tests.tiny_course import LESSON, POINTS, PROJECT, RIGHT, WRONG, grader, hand_in, make_course, nbgrader
from utils.checks import Draws

pytestmark = [pytest.mark.long(minutes=3), pytest.mark.sandbox]
BATCH = 36  # cheats in a notebook
PLANTED = f"PLANTED-{os.urandom(8).hex()}"  # stands where no submission may look
HANG_SECONDS, EXHAUST_SECONDS = 2, 6
ROOMS = "tests/cheats"


def batches(cheats: list[Cheat]) -> list:
    """Cheats of one kind, as many as a notebook holds."""
    kinds: dict[str, list[Cheat]] = {}
    for cheat in cheats:
        kinds.setdefault(cheat.name.split("/")[0], []).append(cheat)
    parts = [kind[start : start + BATCH] for kind in kinds.values() for start in range(0, len(kind), BATCH)]
    some = cheats[::48]
    return [
        pytest.param(some, id="every forty-eighth"),
        *(pytest.param(part, id=name_of(part), marks=pytest.mark.thorough) for part in parts),
    ]


def name_of(part: list[Cheat]) -> str:
    return f"{part[0].name} to {part[-1].name.split('/')[1]}"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A folder of secrets, which must not change."""
    folder = tmp_path_factory.mktemp("course")
    for name in ("planted.py", "solutions/s.ipynb", "submitted/ada/x.ipynb", "gradebook.db", "grader/hidden.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"SECRET = '{PLANTED}'\n")
        path.chmod(0o666)
    for path in [folder, *folder.rglob("*/")]:
        path.chmod(0o777)
    return folder


@pytest.fixture(autouse=True)
def nothing_outside_changes(course, monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", PLANTED)
    before = state_of(course)
    yield
    ranks.close_hosts()
    assert state_of(course) == before
    assert processes_with("cheat-stays-here") == []


def state_of(course: Path) -> dict:
    """Everything that a cheat may try to change: the course's files, marks in shared folders, this process."""
    folders = ["/tmp", "/dev/shm", "/var/tmp", "/run", os.getcwd(), os.path.expanduser("~"), str(PROJECT)]
    marks = [name for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)]
    return {
        "files": {str(path): path.read_bytes() for path in course.rglob("*") if path.is_file()},
        "marks": [name for name in marks if re.match("cheat|fill-|pwned|memory$", name)],
        "environment": dict(os.environ, PYTEST_CURRENT_TEST=""),
        "host name": os.uname().nodename,
    }


def judged(cheats: list[Cheat], right: bool, course: Path) -> list[tuple[Cheat, dict]]:
    """(cheat, {what is judged: Verdict}); asserts that honest answers got their points and no secret got out."""
    answers = [(HONEST, True), *((cheat, right) for cheat in cheats), (HONEST, True)]
    nb = notebook_of(answers, {"COURSE": str(course), "LINE": 1})
    said = judge.judge(nb, ROOMS, seconds=600)
    told = said.to_json()
    assert PLANTED not in told and "RuntimeError: ESCAPED" not in told, re.findall(r".{300}ESCAPED.{300}", told)
    assert len(told) < 1_000_000
    assert said.problems == []
    verdicts = {verdict.check: verdict for verdict in said.verdicts}
    found = []
    for number, (cheat, _) in enumerate(answers):
        exercise = f"{cheat.exercise}_{number}".replace("_", "-")
        found.append((cheat, {judges: verdicts[f"{exercise}-{judges}"] for judges in CHECKS[cheat.exercise]}))
    for honest in (found.pop(0), found.pop()):
        assert lost([honest]) == {}
    return found


def stolen(found: list[tuple[Cheat, dict]]) -> dict:
    return {
        f"{cheat.name}, {judges}": verdict.said
        for cheat, verdicts in found
        for judges, verdict in verdicts.items()
        if verdict.points and judges not in cheat.may
    }


def lost(found: list[tuple[Cheat, dict]]) -> dict:
    return {
        f"{cheat.name}, {judges}": verdict.said
        for cheat, verdicts in found
        for judges, verdict in verdicts.items()
        if verdict.points < verdict.most
    }


def be_patient_with(cheats: list[Cheat], monkeypatch) -> None:
    """Many cheats in one notebook may end many sandboxes, and those that use up their time need not get much of it."""
    monkeypatch.setattr(ranks, "MAX_HOSTS", 100)
    if any(cheat.name.startswith("exhaust/") for cheat in cheats):
        limit_runs(EXHAUST_SECONDS, monkeypatch)


def limit_runs(seconds: float, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "RUN_SECONDS", seconds)
    monkeypatch.setattr(ranks, "CPU_SECONDS", seconds)


@pytest.mark.parametrize("cheats", batches(CHEATS))
def test_a_wrong_answer_gets_nothing(cheats, course, monkeypatch):
    be_patient_with(cheats, monkeypatch)
    assert stolen(judged(cheats, False, course)) == {}


@pytest.mark.parametrize("cheats", batches([cheat for cheat in CHEATS if cheat.beside]))
def test_a_right_answer_in_the_same_setting_gets_full_marks(cheats, course, monkeypatch):
    be_patient_with(cheats, monkeypatch)
    assert lost(judged(cheats, True, course)) == {}


@pytest.mark.thorough
def test_an_answer_that_hangs_gets_nothing_and_costs_only_its_own_time(course, monkeypatch):
    nb = notebook_of([(cheat, False) for cheat in HANGS] + [(HONEST, False)], {"COURSE": str(course), "LINE": 1})
    with monkeypatch.context() as patch:
        limit_runs(HANG_SECONDS, patch)
        patch.setattr(ranks, "MAX_HOSTS", 100)
        said = judge.judge(nb, ROOMS, seconds=600)
    assert [verdict.check for verdict in said.verdicts if verdict.points] == []
    assert {verdict.kind for verdict in said.verdicts} <= {"stuck", "wrong"}
    [verdict] = judge.judge(notebook_of([(HONEST, True)], {}), ROOMS).verdicts
    assert verdict.points == verdict.most


def test_nobody_can_know_the_inputs_beforehand(monkeypatch):
    """No two runs have the same inputs, in two judgements of one notebook, with more bits than anybody can try."""
    salts = []
    monkeypatch.setattr(remote_runner, "Draws", lambda salt: salts.append(salt) or Draws(salt))
    for _ in range(2):
        judge.judge(notebook_of([(HONEST, True)], {}), ROOMS)
    assert len(set(salts)) == len(salts) > 2 and max(salts).bit_length() > 200


def test_the_names_that_cheats_look_for_exist():
    """Otherwise they would try nothing, and nobody would notice."""
    text = "".join(path.read_text() for path in Path(forge.__file__).parent.glob("*.py"))
    for kind in (rank.HubNetwork, rank.RankWorld, orders.RunOrder):
        assert f'"{kind.__name__}"' in text, kind.__name__


def test_a_forged_call_is_one_that_the_hub_understands(course):
    """Otherwise all cheats that forge calls would fail alike, before they try anything."""
    call = "prepared.call(args=[[x]], members=list(range(world_size)))"
    [(_, verdicts)] = judged([forge.forges("call", "a call like any other", call, exercise="total")], False, course)
    assert not any("malformed" in verdict.said for verdict in verdicts.values())


# ---- notebooks, through all of grading -------------------------------------------------------------------------------

ACCOMPLICE = """
import glob, os, sqlite3, subprocess
def double(x):
    for path in glob.glob({course!r} + "/**", recursive=True) + ["../../../gradebook.db"]:
        try:
            with sqlite3.connect(f"file:{{path}}?mode=rw", uri=True) as db:
                db.execute("update grade set manual_score = 100, extra_credit = 100")
        except Exception:
            pass
        try:
            open(path, "a").write("x")
        except OSError:
            pass
    subprocess.Popen(["sleep", "300.7071"], start_new_session=True)
    return x * x
"""


SOME = ("forged-verdicts", "forged-outputs", "active")
BESIDE_RIGHT = ("active", "forged-verdicts", "claims-to-be-checks", "skip-execution", "words-of-the-grader")


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.thorough)])
def graded(request, tmp_path_factory):
    """A class of cheats in their notebooks, graded by `python -m grader grade`: (course, what it printed)."""
    course = make_course(tmp_path_factory.mktemp("class"))
    nbgrader(course, "generate_assignment", LESSON)
    hand_in(course, "ada", **RIGHT)
    for name, edit in EDITS.items():
        if request.param == "all" or name in SOME:
            hand_in(course, f"wrong-{name}", edit, **WRONG)
    for name in BESIDE_RIGHT if request.param == "all" else BESIDE_RIGHT[:1]:
        hand_in(course, f"right-{name}", EDITS[name], **RIGHT)
    lay_beside(hand_in(course, "wrong-beside", **WRONG), course / "gradebook.db")
    lay_beside(hand_in(course, "right-beside", **RIGHT), course / "gradebook.db")
    hand_in(course, "wrong-accomplice", **{**WRONG, "double": ACCOMPLICE.format(course=str(course))})
    return course, grader("grade", LESSON, "--jobs", "1", "--course", course, GRADER_TOKEN=PLANTED)


def test_no_notebook_and_no_file_beside_it_earns_points(graded):
    query = """select assignment.student_id, total(grade.auto_score), total(grade.manual_score), total(extra_credit)
        from grade join submitted_notebook on submitted_notebook.id = grade.notebook_id
        join submitted_assignment assignment on assignment.id = submitted_notebook.assignment_id group by 1"""
    with sqlite3.connect(graded[0] / "gradebook.db") as db:
        found = {student: tuple(points) for student, *points in db.execute(query)}
    full = float(sum(POINTS.values()))
    assert found == {name: (full if name.startswith(("right", "ada")) else 0.0, 0.0, 0.0) for name in found}
    assert found.keys() == {folder.name for folder in (graded[0] / "submitted").iterdir()}


def test_no_secret_is_in_anything_that_grading_writes(graded):
    course, printed = graded
    assert "\x1b]" not in printed and "\x1b[2J" not in printed
    secrets = [PLANTED, "SECRET", "checks_90"]
    for path in course.rglob("*"):
        inside = path.relative_to(course).parts[0]
        if path.is_symlink() or not path.is_file() or inside in ("solutions", "submitted") or path.suffix == ".db":
            continue
        text = path.read_text(errors="replace")
        assert [word for word in secrets if word in text and inside != "nbgrader_config.py"] == [], path
    assert "SHADOWED" not in printed


def test_claims_of_a_notebook_about_itself_are_not_repeated(graded):
    course, _ = graded
    for student in ("wrong-forged-verdicts", "wrong-forged-outputs"):
        nb = nbformat.read(course / "autograded" / student / LESSON / f"{LESSON}.ipynb", as_version=4)
        assert "forged" not in json.dumps(nb.metadata) and "1000.0" not in nbformat.writes(nb)
        assert nb.metadata["judgement"]["seconds"] != 0.1


def test_no_process_is_left(graded):
    assert processes_with("300.7071") == []
