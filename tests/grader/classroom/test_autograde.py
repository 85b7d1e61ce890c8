"""nbgrader's side of grading, with a stand-in judge: points come from verdicts, and nbgrader does the rest."""

from __future__ import annotations

import math

import nbformat
import pytest
from nbformat.v4 import new_notebook, new_output
from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.coursedir import CourseDirectory

from grader.classroom import grade_class
from grader.classroom.course import Course
from grader.classroom.grade_class import autograde
from grader.classroom.nbgrader_plugins import Judge, points_of
from grader.judging import worker
from grader.judging.verdict import NOT_RUN, PASSED, WRONG, Judgement, Verdict
from tests.stand_in_grader import released_course
from tests.stand_in_judge import earning, judge, judge_all
from tests.tiny_course import LESSON, PROJECT, autograded, cell, check_cell, essay, hand_in, make_course

ESSAY = essay("why", "### BEGIN SOLUTION\nBecause.\n### END SOLUTION", points=5)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return released_course(tmp_path_factory.mktemp("course"), ESSAY)


@pytest.fixture
def course(made, monkeypatch):
    monkeypatch.setattr(worker.JudgeSettings, "judge", lambda how, nb: judge(nb))
    monkeypatch.setattr(grade_class, "judge_all", judge_all)
    return made


def plain_autograde(course: Course, student: str) -> None:
    """The same as `nbgrader autograde --force` and formgrader's button."""
    directories = CourseDirectory(config=course.config, root=str(course.root), assignment_id=LESSON, student_id=student)
    Autograde(coursedir=directories, config=course.config, force=True).start()


def in_formgrader(course: Course, student: str) -> dict:
    """The page that formgrader shows for a submission."""
    with course.gradebook() as gradebook:
        [shown] = [one for one in gradebook.submission_dicts(LESSON) if one["student"] == student]
        return shown


def grade(course: Course, student: str, check: str) -> tuple:
    with course.gradebook() as gradebook:
        grade = gradebook.find_grade(check, LESSON, LESSON, student)
        return grade.auto_score, grade.score, grade.needs_manual_grade


def checked(points: object) -> nbformat.NotebookNode:
    """A notebook with a check cell worth 3 points, and a verdict that says how many were earned."""
    nb = new_notebook(cells=[check_cell("total", "values")])
    nb.cells[0].metadata["verdict"] = {"points": points}
    return nb


# ---- points ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [0, 0.0, 1, 1.5, 3, 3.0])
def test_points_of_a_verdict(points):
    nb = checked(points)
    assert points_of(nb, judged=True) == {"total-values": points}
    assert nb.metadata == {}


@pytest.mark.parametrize("points", [math.nan, math.inf, -math.inf, -1, -0.001, 3.001, 100, True, "3", None, [3], {}])
def test_an_invalid_number_of_points_earns_none_and_is_reported(points):
    nb = checked(points)
    assert points_of(nb, judged=True) == {"total-values": 0}
    assert nb.metadata["problems"] == ["check total-values has no valid verdict (0 to 3 points), so it earns 0 points"]


def test_a_verdict_that_did_not_come_from_the_judge_earns_nothing():
    assert points_of(checked(3), judged=False) == {"total-values": 0}
    nb = checked(3)
    del nb.cells[0].metadata["verdict"]
    assert points_of(nb, judged=True) == {"total-values": 0}


def test_outputs_and_metadata_of_the_submission_are_removed():
    nb = checked(3)
    forged = {"verdict": {"points": 3}, "judgement": {}, "problems": ["mine"], "kernelspec": {"name": "python3"}}
    nb.metadata.update(forged | {"digest": "mine", "widgets": {}})
    nb.cells.insert(0, cell("print('right')", "mine"))
    nb.cells[0].outputs = [new_output("stream", text="full marks")]
    nb.cells[1].outputs = [new_output("execute_result", data={"text/plain": "3"})]
    nb.cells[1].metadata.update(tags=["skip-execution"], execution={"shell.execute_reply": "now"})
    words = {PASSED: "right", WRONG: "[3] is not [6]", NOT_RUN: ""}
    for kind, said in words.items():
        judgement = Judgement(LESSON, [Verdict("total-values", 1.5, 3, kind, said)], problems=["one line"], seconds=2)
        made, _ = Judge().preprocess(nbformat.from_dict(nb), {"nbgrader": {}, "judgement": judgement})
        free, check = made.cells
        assert free.outputs == [] and set(free.metadata) == {"nbgrader"}
        assert set(check.metadata) == {"nbgrader", "verdict"} and check.metadata.verdict.points == 1.5
        [output] = check.outputs
        assert output.output_type == ("stream" if kind == PASSED else "error")
        assert (output.get("text") or output.evalue) == (said or kind)
        assert set(made.metadata) == {"kernelspec", "judgement", "problems", "digest"}
        assert made.metadata.judgement.problems == ["one line"] and made.metadata.judgement.seconds == 2
        assert made.metadata.digest == ""


def test_a_check_without_a_verdict_counts_as_not_run():
    judgement = Judgement(LESSON, [Verdict("another", 3, 3, PASSED)])
    nb, _ = Judge().preprocess(checked(3), {"nbgrader": {}, "judgement": judgement})
    assert nb.cells[0].metadata.verdict.kind == NOT_RUN
    assert points_of(nb, judged=True) == {"total-values": 0}


def test_a_very_long_message_is_cut():
    judgement = Judgement(LESSON, [Verdict("total-values", 0, 3, WRONG, "y" * 3_000_000)])
    nb, _ = Judge().preprocess(checked(3), {"nbgrader": {}, "judgement": judgement})
    assert len(nb.cells[0].outputs[0].evalue) < 30_000
    assert nb.cells[0].outputs[0].evalue.endswith("the rest was cut off ...")


# ---- nbgrader's own --------------------------------------------------------------------------------------------------


def test_nbgraders_own_command_and_grading_a_class_give_the_same(course):
    hand_in(course.root, "ada", **earning(2, 1.5, 0))
    plain_autograde(course, "ada")
    plain, shown = autograded(course.root, "ada"), in_formgrader(course, "ada")
    assert [grade(course, "ada", name)[0] for name in ("double-values", "total-values", "total-traffic")] == [2, 1.5, 0]
    assert (shown["code_score"], shown["max_code_score"]) == (3.5, 6)
    assert not shown["needs_manual_grade"], "the essay is as it was released: 0 points"
    assert autograde(course, LESSON, ["ada"]).failed == {}
    ours = autograded(course.root, "ada")
    assert ours.metadata.pop("digest") and not plain.metadata.pop("digest")
    assert ours == plain and in_formgrader(course, "ada") == shown


def test_a_persons_corrections_survive_regrading(course):
    hand_in(course.root, "bo", lambda nb: nb.cells[-1].update(source="Because of the ring."), **earning(0, 3, 1))
    plain_autograde(course, "bo")
    assert grade(course, "bo", "why") == (None, 0, True)
    with course.gradebook() as gradebook:
        gradebook.find_grade("double-values", LESSON, LESSON, "bo").manual_score = 1.25
        gradebook.find_grade("total-values", LESSON, LESSON, "bo").extra_credit = 2
        essay = gradebook.find_grade("why", LESSON, LESSON, "bo")
        essay.manual_score, essay.needs_manual_grade = 4, False
        gradebook.find_comment("double", LESSON, LESSON, "bo").manual_comment = "half of it is right"
        gradebook.db.commit()
    hand_in(course.root, "bo", lambda nb: nb.cells[-1].update(source="Because of the ring."), **earning(2, 3, 1))
    for again in (lambda: plain_autograde(course, "bo"), lambda: autograde(course, LESSON, ["bo"])):
        again()
        assert grade(course, "bo", "double-values") == (2, 1.25, True), "may the person look at it again"
        assert grade(course, "bo", "total-values") == (3, 5, False)
        assert grade(course, "bo", "why") == (None, 4, True)
        with course.gradebook() as gradebook:
            assert gradebook.find_comment("double", LESSON, LESSON, "bo").comment == "half of it is right"
    assert in_formgrader(course, "bo")["score"] == 1.25 + 5 + 1 + 4


def test_an_empty_answer_in_a_cell_graded_by_hand_gets_0(course):
    hand_in(course.root, "cy", **earning(2, 3, 1))
    autograde(course, LESSON, ["cy"])
    assert grade(course, "cy", "why") == (0, 0, False)
    with course.gradebook() as gradebook:
        assert gradebook.find_comment("why", LESSON, LESSON, "cy").comment == "No response."


@pytest.mark.parametrize("road", ["nbgrader", "class"])
def test_the_configured_late_penalty_is_applied(course, road, monkeypatch):
    student = f"late-{road}"
    monkeypatch.setitem(course.config.LateSubmissionPlugin, "penalty_method", "zero")
    path = hand_in(course.root, student, **earning(2, 3, 1))
    path.with_name("timestamp.txt").write_text("2026-01-02 12:00:00 UTC")
    act = {"nbgrader": lambda: plain_autograde(course, student), "class": lambda: autograde(course, LESSON, [student])}
    for duedate, penalty in (("2026-01-03 12:00:00 UTC", None), ("2026-01-01 12:00:00 UTC", 6)):
        with course.gradebook() as gradebook:
            gradebook.update_or_create_assignment(LESSON, duedate=duedate)
        path.with_name("timestamp.txt").write_text(f"2026-01-02 12:00:0{penalty or 0} UTC")
        act[road]()
        with course.gradebook() as gradebook:
            submission = gradebook.find_submission_notebook(LESSON, LESSON, student)
            assert (submission.score, submission.late_submission_penalty) == (6, penalty)
    assert (course.root / "autograded" / student / LESSON / "timestamp.txt").read_text().startswith("2026-01-02")


def test_a_stale_release_is_replaced_and_holds_only_the_notebook(tmp_path):
    course = Course.at(make_course(tmp_path))
    source = course.root / "solutions" / LESSON
    of_a_room = [path.name for path in (PROJECT / "solutions" / "11_expert_parallelism").iterdir() if path.is_file()]
    assert {"checks_11.py", "answers_11.py", "mistakes.json", "messages.txt"} <= set(of_a_room)
    for name in (*of_a_room, "notes.md", "answers.txt", ".secret"):
        if not name.endswith(".ipynb"):
            (source / name).write_text("answers")
    course.must(GenerateAssignment, LESSON)
    release = course.root / "notebooks" / LESSON
    assert [path.name for path in release.iterdir()] == [f"{LESSON}.ipynb"]
    text = (source / f"{LESSON}.ipynb").read_text()
    (source / f"{LESSON}.ipynb").write_text(text.replace("A tiny lesson", "A changed lesson"))
    course.must(GenerateAssignment, LESSON)
    released = (release / f"{LESSON}.ipynb").read_text()
    assert "A changed lesson" in released
    assert "hidden_tests_for" not in released and "2 * x" not in released
