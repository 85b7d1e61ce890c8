"""Grading a class with a stand-in judge: what is judged, what is taken from the cache, what is reported."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import nbformat
import pytest
from nbformat.notebooknode import NotebookNode

from grader import commands
from grader.classroom import grade_class, grades
from grader.classroom.course import ClassroomError, Course
from grader.classroom.dask_cluster import judge_all
from grader.classroom.extensions import extension_of
from grader.classroom.grade_class import GradeOptions
from grader.classroom.grades import Grades, by_exercise
from grader.classroom.judgement_cache import digest_of
from grader.classroom.new_course import new_course
from grader.classroom.one_submission import OneSubmission
from grader.classroom.submission import grade_id
from grader.judging.check_cells import is_check, worth
from grader.judging.verdict import NOT_RUN, PASSED, WRONG, Flag, Judgement, Verdict
from grader.judging.worker import JudgeSettings
from grader.sandbox import bubblewrap
from tests import stand_in_judge
from tests.stand_in_grader import released_course
from tests.stand_in_judge import Odd, earning
from tests.tiny_course import LESSON, POINTS, PROJECT, RIGHT, hand_in, hand_in_file, lesson, make_course, released

EARNED = {"ada": (2, 3, 1), "bo": (0, 0, 0), "cy": (1.5, 3, 0), "di": (2, 0, 0.5)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return released_course(tmp_path_factory.mktemp("course"))


@pytest.fixture
def judged(made, monkeypatch):
    """The students that the judge was given, in order. Their results arrive in a different order each time."""
    names = []

    def judge_all(lesson: str, work: dict, *how: object) -> object:
        names.append(sorted(work))
        done = list(stand_in_judge.judge_all(lesson, work))
        random.Random(len(names)).shuffle(done)
        yield from done

    monkeypatch.setattr(grade_class, "judge_all", judge_all)
    return names


@pytest.fixture
def grade(made, judged, monkeypatch, capsys):
    """`python -m grader ...` in this process: returns what it prints."""
    monkeypatch.setattr(bubblewrap, "why_not", lambda: None)

    def grade(*args: object) -> str:
        monkeypatch.setattr(sys, "argv", ["grader", *map(str, args), "--course", str(made.root)])
        with pytest.raises(SystemExit) as stopped:
            commands.main()
        said = capsys.readouterr()
        assert said.err == "", "no bar where there is no terminal"
        return said.out if stopped.value.code == 0 else f"exit: {stopped.value.code}"

    return grade


def passed(nb: NotebookNode, put_off: set[str] = frozenset()) -> Judgement:
    """Full points for each check, except for those that are put off."""
    judgement = Judgement(LESSON)
    for one in filter(is_check, nb.cells):
        name, most = grade_id(one), worth(one)
        late = name in put_off
        judgement.verdicts.append(Verdict(name, 0 if late else most, most, NOT_RUN if late else PASSED, "said"))
    return judgement


# ---- judging ---------------------------------------------------------------------------------------------------------


def test_new_and_changed_submissions_are_judged_and_nothing_twice(made, grade, judged):
    for student, points in EARNED.items():
        hand_in(made.root, student, **earning(*points))
    said = grade("grade")
    assert f"{LESSON}: 4 judged" in said
    assert said.count("bo: earns nothing") == 1
    assert judged == [list(EARNED)]
    first = (made.root / "grades.csv").read_bytes()
    assert first.decode().splitlines() == [
        "student,last name,first name,"
        + "".join(f"{LESSON}/{name}," for name in (*POINTS, "days late", "late penalty", "total"))
        + "total",
        "ada,,,2,3,1,0,0,6,6",
        "bo,,,0,0,0,0,0,0,0",
        "cy,,,1.5,3,0,0,0,4.5,4.5",
        "di,,,2,0,0.5,0,0,2.5,2.5",
    ]
    assert f"{LESSON}: 4 unchanged" in grade("grade", LESSON)
    hand_in(made.root, "cy", **earning(2, 3, 0))
    assert f"{LESSON}: 1 judged, 3 unchanged" in grade("grade")
    (made.root / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb").unlink()
    assert f"{LESSON}: 1 judged before and taken over, 3 unchanged" in grade("grade")
    assert judged[1:] == [[], ["cy"], []]

    hand_in(made.root, "cy", **earning(*EARNED["cy"]))
    assert f"{LESSON}: nothing to do" in grade("grade", "--new"), "who has a grade is not new"
    assert f"{LESSON}: 2 judged" in grade("grade", "--regrade", "--student", "ada", "--student", "cy")
    assert judged[-1] == ["ada", "cy"]
    assert (made.root / "grades.csv").read_bytes() == first, "all of the class is in there, whoever was graded"
    for _ in range(2):
        grade("grade", "--regrade")
        assert (made.root / "grades.csv").read_bytes() == first, "in whatever order it was judged"
    with made.gradebook() as gradebook:
        gradebook.remove_submission(LESSON, "di")
    assert "1 judged before and taken over, 3 unchanged" in grade("grade"), "the gradebook has lost one"
    assert (made.root / "grades.csv").read_bytes() == first


def test_a_folder_that_may_take_long_to_read_comes_after_the_others(made, grade, judged):
    for student in ("ada", "bo", "cy"):
        path = hand_in(made.root, student, **earning(2, 3, 1))
    film = path.parents[2] / "bo" / LESSON / "film.ipynb"
    film.touch()
    os.truncate(film, 6 << 20)
    grade("grade", "--regrade", "--student", "ada", "--student", "bo", "--student", "cy")
    assert judged == [["ada", "cy"], ["bo"]]
    film.unlink()


def test_a_judgement_depends_on_the_text_the_checks_and_the_limits(made, tmp_path):
    nb = lesson()
    settings = made.judge_settings
    assert digest_of(nb, LESSON, settings) == digest_of(lesson(), LESSON, settings)
    other = lesson()
    other.cells[2].source += " "
    moved = lesson()
    moved.cells[1:3] = reversed(moved.cells[1:3])
    worth = lesson()
    worth.cells[3].metadata.nbgrader.points = 3
    others = [digest_of(nb, LESSON, settings) for nb in (other, moved, worth)]
    others.append(digest_of(nb, LESSON, replace(settings, seconds=settings.seconds + 1)))
    mine = replace(settings, lessons=str(tmp_path))
    for name in (f"{LESSON}/checks_90.py", f"{LESSON}/frozen_cases.json", "01_other/checks_01.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    others.append(before := digest_of(nb, LESSON, mine))
    (tmp_path / "01_other/checks_01.py").write_text("# another lesson's")
    assert digest_of(nb, LESSON, mine) == before
    for name in ("checks_90.py", "frozen_cases.json"):
        (tmp_path / LESSON / name).write_text("# changed")
        others.append(digest_of(nb, LESSON, mine))
    assert len({digest_of(nb, LESSON, settings), *others}) == 1 + len(others)


def test_to_find_the_checks_nothing_is_imported():
    """Importing utils would start a zygote, which takes as long as judging a small submission."""
    code = "import sys; from grader.classroom.judgement_cache import digests_of_checks; "
    code += "from grader.judging.worker import JudgeSettings; "
    code += f"print(len(digests_of_checks({LESSON!r}, JudgeSettings('tests/tiny', True, 600)))); "
    code += "assert not {'utils', 'torch'} & set(sys.modules)"
    assert int(subprocess.check_output([sys.executable, "-c", code], text=True, cwd=PROJECT)) > 10


def test_a_cached_judgement_that_can_not_be_read_is_made_again(made, judged):
    hand_in(made.root, "ada", **earning(*EARNED["ada"]))
    grade_class.autograde(made, LESSON, ["ada"])
    file = made.root / "judgements" / LESSON / "ada.json"
    for text in ("", "{", "[]", '{"digest": 1}', '{"digest": "x", "judgement": {"points": 7}}'):
        file.write_text(text)
        assert str(grade_class.autograde(made, LESSON, ["ada"])) == "1 judged"
        assert str(grade_class.autograde(made, LESSON, ["ada"])) == "1 unchanged"


# ---- one exercise ----------------------------------------------------------------------------------------------------


def test_one_exercise_is_judged_again_and_the_rest_stays(made, grade, judged, monkeypatch):
    for student, points in EARNED.items():
        hand_in(made.root, student, **earning(*points))
    grade("grade", "--regrade")
    hand_in(made.root, "ed", **earning(1, 1, 1))  # never judged: all of it
    seen = {}

    def judge_all(lesson: str, work: dict, *how: object) -> object:
        for student, judgement, _ in stand_in_judge.judge_all(lesson, work):
            seen[student] = [verdict.check for verdict in judgement.verdicts]
            for verdict in judgement.verdicts:
                verdict.points = 0.25
            judgement.flags.append(Flag("took too long", f"{seen[student][0]}: a loop"))
            yield student, judgement, student != "di"

    monkeypatch.setattr(grade_class, "judge_all", judge_all)
    # As if the checks had changed since: the cached judgements are those of other checks.
    monkeypatch.setattr("grader.classroom.judgement_cache.digests_of_checks", lambda *how: ["new"])
    said = grade("grade", "--exercise", "total")
    total = ["total-values", "total-traffic"]
    assert seen == {**dict.fromkeys(EARNED, total), "ed": ["double-values", *total]}
    assert "di: total could not be judged again: its points are as before" in said
    found = grades.read_grades(made, LESSON).earned
    assert {student: tuple(row.values()) for student, row in found.items() if student != "forgetful"} == {
        "ada": (2, 0.25, 0.25),
        "bo": (0, 0.25, 0.25),
        "cy": (1.5, 0.25, 0.25),
        "di": EARNED["di"],
        "ed": (0.25, 0.25, 0.25),
    }
    before = dict(seen)
    seen.clear()
    hand_in(made.root, "ada", **earning(1, 1, 0))
    grade("grade", "--exercise", "double", "--student", "ada", "--student", "bo")
    assert seen == {"ada": before["ed"], "bo": ["double-values"]}, "the answers of ada are new"
    shutil.rmtree(made.root / "submitted" / "ed")


def test_an_exercise_whose_checks_do_not_name_the_lesson_is_judged_with_all_others(made):
    """Hidden tests name it, and an exercise may have none."""
    this = grade_class.Round(made, LESSON, GradeOptions(exercise="total"))
    nb = lesson()
    this.to_judge["ada"], this.kept["ada"] = (nb, ""), (Judgement(LESSON), grade_class.exercises_in(nb)["total"])
    assert len(this.part_to_judge("ada").cells) == len(nb.cells) - 1
    nb.cells[5].source = nb.cells[5].source.partition("\n")[0]
    assert this.part_to_judge("ada") is nb


def test_what_is_said_of_an_exercise_judged_again_is_new():
    def judgement(word: str, *checks: str) -> Judgement:
        flags = [Flag("took too long", f"{check}: {word}") for check in checks]
        verdicts = [Verdict(check, 0, 1, WRONG, word) for check in checks]
        return Judgement(LESSON, verdicts, ["put back 1 cell", f"{checks[-1]} {word}"], flags, 2.0)

    both = judgement("old", "a-values", "b-values").with_new(judgement("new", "b-values"), ["b-values"])
    whole = judgement("old", "a-values", "b-values").with_new(judgement("new", "a-values", "b-values"), ["b-values"])
    assert whole.verdicts == both.verdicts
    assert [verdict.said for verdict in both.verdicts] == ["old", "new"]
    assert [flag.evidence for flag in both.flags] == ["a-values: old", "b-values: new"]
    assert both.problems == ["put back 1 cell", "b-values new"]


# ---- extensions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def late(tmp_path, judged, monkeypatch):
    """A course with a deadline that one student has missed by a day and a half, which costs all points."""
    course = released_course(tmp_path, config="c.LateSubmissionPlugin.penalty_method = 'zero'\n")
    hand_in(course.root, "ada", **earning(2, 3, 1)).with_name("timestamp.txt").write_text("2026-01-03 00:00:00 UTC")
    monkeypatch.setattr(bubblewrap, "why_not", lambda: None)
    return course


def test_an_extension_changes_the_penalty_of_what_is_graded_already(late, judged):
    def total(**time: timedelta) -> float:
        return grade_class.grade_class(late, LESSON, GradeOptions(extensions=time)).total("ada")

    with pytest.raises(ClassroomError, match="has no deadline to extend: set c.SaveGrades.deadlines"):
        total(ada=timedelta(days=2))
    with late.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate="2026-01-01 12:00:00 UTC")
    assert total() == 0
    assert total(ada=timedelta(days=2)) == 6 and total() == 6, "it stays"
    assert total(ada=timedelta(days=1)) == 0, "it replaces the one before"
    assert total(ada=timedelta(hours=36)) == 6
    assert total(ada=timedelta()) == 0
    with late.gradebook() as gradebook:
        grade = gradebook.find_grade("double-values", LESSON, LESSON, "ada")
        grade.extra_credit = 5
        gradebook.db.commit()
    assert total() == 0, "points that a person gives later are late, too"
    assert judged == [["ada"], *[[]] * 6], "nothing is judged again"


@pytest.mark.parametrize("text, hours", [("ada=2d", 48), ("ada=36h", 36), ("ada=1w", 168), ("ada=0d", 0)])
def test_an_extension_in_words(text, hours):
    assert extension_of(text) == ("ada", timedelta(hours=hours))
    assert extension_of(f"a={text}") == ("a=ada", timedelta(hours=hours))


@pytest.mark.parametrize("text", ["ada", "ada=", "=2d", "ada=2", "ada=-2d", "ada=2m", "ada=999w", "ada=1.5d"])
def test_an_extension_that_is_none(text):
    with pytest.raises(ClassroomError, match=f"^--extension {re.escape(text)}: "):
        extension_of(text)


# ---- a course of one's own -------------------------------------------------------------------------------------------


def test_a_new_course_can_be_graded_in(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grader", "new-course", str(tmp_path / "My course, 2026")])
    with pytest.raises(SystemExit) as stopped:
        commands.main()
    said = capsys.readouterr().out
    assert not stopped.value.code and "make COURSE='" in said
    course = Course.at(tmp_path / "My course, 2026")
    assert course.directories.course_id == "My-course-2026"
    assert "01_collectives" in course.lessons() and course.config.Judge.lessons == "solutions"
    with pytest.raises(ClassroomError, match="nobody has handed in anything: .* expected as .*/submitted/"):
        grade_class.handed_in(course)
    assert grade_class.exercises_in(course.source("01_collectives"))


def test_a_new_course_leaves_what_is_there_alone(tmp_path):
    root = new_course(tmp_path)
    for name in ("nbgrader_config.py", "solutions", "submitted"):
        with pytest.raises(ClassroomError, match="has a .* already: name a new or an empty folder"):
            new_course(root)
        taken = root / name
        shutil.rmtree(taken) if taken.is_dir() and not taken.is_symlink() else taken.unlink()
    assert new_course(root) == root
    (tmp_path / "file").write_text("")
    with pytest.raises(ClassroomError, match="can't be made"):
        new_course(tmp_path / "file" / "course")


def test_a_course_says_what_it_lacks(tmp_path):
    with pytest.raises(ClassroomError, match=r"there is no folder .*gone; `python -m grader new-course .*gone` makes"):
        Course.at(tmp_path / "gone")
    root = new_course(tmp_path / "mine")
    link = root / "solutions"
    lacks = {
        "leads to /nowhere, which isn't there": lambda: link.symlink_to("/nowhere"),
        "the course has no folder .*solutions": lambda: None,
        "holds no built lesson, such as .*01_topic.ipynb": link.mkdir,
    }
    for words, make in lacks.items():
        link.unlink()
        make()
        with pytest.raises(ClassroomError, match=words):
            grade_class.handed_in(Course.at(root))
        link.symlink_to(".") if not link.exists() and not link.is_symlink() else None
    (root / "nbgrader_config.py").write_text("c = get_config(\n")
    with pytest.raises(ClassroomError, match="nbgrader_config.py can't be read: SyntaxError: "):
        Course.at(root)


# ---- failures -------------------------------------------------------------------------------------------------------


def test_a_submission_that_can_not_be_graded_does_not_affect_the_others(made, judged, capsys, monkeypatch):
    hand_in(made.root, "ada", **earning(*EARNED["ada"]))
    hand_in(made.root, "bo", **RIGHT)
    hand_in_file(made.root, "pdf", b"%PDF-1.7")
    record = OneSubmission.record

    def not_of_bo(submission, *args):
        if submission.student == "bo":
            raise OSError("no space left")
        record(submission, *args)

    monkeypatch.setattr(OneSubmission, "record", not_of_bo)
    this = grade_class.autograde(made, LESSON, ["ada", "bo", "pdf"])
    assert list(this.failed) == ["bo"]
    said = capsys.readouterr().out.splitlines()
    assert "bo: could not be graded (OSError): see " in said[1]
    assert "no space left" in made.log_file(LESSON, "bo").read_text()
    assert said[0].startswith("pdf: the file is not a notebook: a PDF")
    assert len(said) == 2


@pytest.mark.long
def test_breaking_the_judge_or_killing_its_process_is_reported_and_the_others_are_judged():
    how = Odd("tests/tiny", False, 10)
    work = {}
    for student, answer in {"ada": "2 * x", "bo": "kill", "cy": "raise", "di": "3 * x", "ed": "4 * x"}.items():
        nb = lesson()
        nb.cells[2].source = f"# earns 2 3 1\n{answer}"
        work[student] = nbformat.writes(nb)
    done = {student: (judgement, sound) for student, judgement, sound in judge_all(LESSON, work, how, jobs=2)}
    assert {student for student, (_, sound) in done.items() if sound} == {"ada", "di", "ed"}
    assert all(done[student][0].verdicts[0].points == 2 for student in ("ada", "di", "ed"))
    assert done["bo"][0].problems == ["could not be judged: the judging process died 3 times in a row"]
    assert done["cy"][0].problems == ["could not be judged, because of an error in the grader"]
    [flag] = done["cy"][0].flags
    assert flag.what == "could not be judged" and "the judge is at its wit's end" in flag.evidence


def test_a_submission_that_could_not_be_judged_gets_no_points_and_is_judged_again(made, monkeypatch):
    hand_in(made.root, "ada", **earning(2, 2, 1))
    sound = [False, False, True]  # a submission that could not be judged is tried again, alone

    def judge_all(lesson: str, work: dict, *how: object) -> object:
        for student, judgement, _ in stand_in_judge.judge_all(lesson, work):
            good = sound.pop(0)
            yield student, judgement if good else Judgement(LESSON, problems=["could not be judged"]), good

    monkeypatch.setattr(grade_class, "judge_all", judge_all)
    for total, problems in ((0, ["could not be judged"]), (5, [])):
        assert str(grade_class.autograde(made, LESSON, ["ada"])) == "1 judged"
        found = grades.read_grades(made, LESSON)
        assert (found.total("ada"), found.problems["ada"]) == (total, problems)


# ---- the command line ------------------------------------------------------------------------------------------------


def test_bad_input_is_one_line(made, grade, tmp_path, monkeypatch):
    hand_in(made.root, "ada", **earning(*EARNED["ada"]))

    def refused(*args: object) -> str:
        said = grade(*args)
        assert said.startswith("exit: ") and "\n" not in said
        return said

    assert "contradict each other" in refused("grade", "--new", "--regrade")
    assert "--regrade and --exercise contradict" in refused("grade", "--regrade", "--exercise", "total")
    assert refused("grade", "--exercise", "tota") == "exit: no exercise is called 'tota'; there are: double, total"
    assert "zoe has not handed in" in refused("grade", "--extension", "zoe=2d")
    assert "as in ada=2d" in refused("grade", "--extension", "ada=soon")
    assert f"zoe has not handed in {LESSON}" in refused("grade", "--student", "zoe")
    for command in ("grade", "table"):
        assert refused(command, "91_nothing") == f"exit: there is no lesson called '91_nothing'; there are: {LESSON}"
    assert "there is no file" in refused("validate", tmp_path / "gone.ipynb")
    (tmp_path / "report.ipynb").write_bytes(b"%PDF-1.7\xff")
    assert "the file is not a notebook: a PDF" in refused("validate", tmp_path / "report.ipynb")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "empty.ipynb")
    assert "holds no check of a lesson" in refused("validate", tmp_path / "empty.ipynb")
    (made.root / "solutions" / "92_written.py").write_text("# %% [markdown]\n# # Not built\n")
    assert "92_written is written but not built" in refused("grade", "92_written")
    monkeypatch.setattr(bubblewrap, "why_not", lambda: "There is no bwrap.")
    assert "There is no bwrap. To run submissions with all your rights instead, add --without-sandbox." in refused(
        "grade"
    )


def test_a_folder_that_is_not_a_course_and_a_course_without_submissions(made, tmp_path, monkeypatch):
    with pytest.raises(ClassroomError, match="is not a course: it has no nbgrader_config.py"):
        Course.at(tmp_path)
    course = Course.at(make_course(tmp_path))
    monkeypatch.setattr(bubblewrap, "why_not", lambda: None)
    for act in (lambda: grade_class.grade_class(course, LESSON), lambda: grade_class.handed_in(course)):
        with pytest.raises(ClassroomError, match="nobody has handed in .*: submissions are expected as .*/STUDENT/"):
            act()


@pytest.mark.parametrize("points, code", [((2, 3, 1), 0), ((2, 2.5, 1), 1), ((0, 0, 0), 1)])
def test_validate_prints_each_verdict_and_sets_the_exit_code(made, grade, tmp_path, monkeypatch, points, code):
    seen = []
    monkeypatch.setattr(
        "grader.judging.worker.JudgeSettings.judge", lambda how, nb: seen.append(nb) or stand_in_judge.judge(nb)
    )
    nb = released(made.root)
    nb.cells[2].source = f"# earns {' '.join(map(str, points))}"
    nb.cells[3].metadata.tags = ["skip-execution"]
    nb.cells[3].source = "pass"
    nb.cells[3].metadata.nbgrader.points = 100
    nbformat.write(nb, tmp_path / "mine.ipynb")
    said = grade("validate", tmp_path / "mine.ipynb")
    assert said == "exit: 1" if code else "double-values: passed, 2 of 2 points" in said
    [judged] = seen
    assert "hidden_tests_for" in judged.cells[3].source and judged.cells[3].source != "pass"


def test_a_student_without_a_notebook_is_reported_and_gets_0(made, grade):
    folder = made.root / "submitted" / "forgetful" / LESSON
    folder.mkdir(parents=True)
    (folder / "thoughts.docx").write_text("I did my best")
    said = grade("grade", "--student", "forgetful")
    assert f"forgetful: no {LESSON}.ipynb was handed in, only: thoughts.docx" in said
    assert "forgetful,,,0,0,0,0,0,0,0" in (made.root / "grades.csv").read_text().splitlines()


# ---- the table -------------------------------------------------------------------------------------------------------


def test_a_wide_table_is_split_into_parts_that_fit():
    checks = {f"exercise-{number}-values": 10.0 for number in range(40)}
    exercises = by_exercise([f"exercise-{number}" for number in range(40)], checks)
    earned = {f"student-{number}": dict(checks) for number in range(3)}
    lines = grades.table(Grades("01_wide", exercises, checks, earned)).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[-1] for line in lines if line.startswith("student-1")][-1] == "400"


def test_checks_belong_to_the_exercise_with_the_longest_name():
    assert by_exercise(["ring", "ring-all"], ["ring-values", "ring-all-values", "ring-all-traffic", "alone"]) == {
        "ring": ["ring-values"],
        "ring-all": ["ring-all-values", "ring-all-traffic"],
        "alone": ["alone"],
    }


# ---- what takes long -------------------------------------------------------------------------------------------------

LATE = {"total-values", "total-traffic"}


def test_what_took_long_is_judged_again_alone_before_a_loss_is_written(made, grade, monkeypatch):
    rounds = []

    def judge_all(lesson: str, work: dict, settings: JudgeSettings, jobs: int, scheduler: object) -> object:
        rounds.append((settings.hasty, jobs, {student: text.count('"grade": true') for student, text in work.items()}))
        for student, text in work.items():
            late = LATE if settings.hasty and student == "slow" else set()
            yield student, passed(nbformat.reads(text, as_version=4), late), True

    monkeypatch.setattr(grade_class, "judge_all", judge_all)
    for student in ("quick", "slow"):
        hand_in(made.root, student, **RIGHT)
    said = grade("grade", "--student", "quick", "--student", "slow", "--jobs", "4")
    assert rounds == [(True, 4, {"quick": 3, "slow": 3}), (False, 1, {"slow": 2})]
    assert f"{LESSON}: slow: something took long, and is judged again, alone" in said
    rows = (made.root / "grades.csv").read_text().splitlines()
    assert {row for row in rows if row[:5] in ("quick", "slow,")} == {
        "quick,,,2,3,1,0,0,6,6", "slow,,,2,3,1,0,0,6,6",
    }  # fmt: skip
    grade("grade", "--student", "slow")
    assert rounds[2] == (True, None, {}), "the whole judgement is in the cache"


@pytest.mark.parametrize("recovers", [True, False])
def test_a_process_that_died_among_others_gets_another_chance_alone(made, grade, monkeypatch, recovers):
    def judge_all(lesson: str, work: dict, settings: JudgeSettings, jobs: int, scheduler: object) -> object:
        for student, text in work.items():
            died = Judgement(LESSON, problems=["could not be judged"])
            sound = recovers and not settings.hasty
            yield student, passed(nbformat.reads(text, as_version=4)) if sound else died, sound

    monkeypatch.setattr(grade_class, "judge_all", judge_all)
    hand_in(made.root, "victim", **RIGHT)
    said = grade("grade", "--regrade", "--student", "victim")
    row = next(row for row in (made.root / "grades.csv").read_text().splitlines() if row.startswith("victim"))
    assert row.endswith(",6,6" if recovers else ",0,0")
    assert ("victim: could not be judged" in said) is not recovers


def test_if_it_dies_again_what_was_judged_first_is_kept(made, grade, monkeypatch):
    def judge_all(lesson: str, work: dict, settings: JudgeSettings, jobs: int, scheduler: object) -> object:
        for student, text in work.items():
            if settings.hasty:
                yield student, passed(nbformat.reads(text, as_version=4), LATE), True
            else:
                yield student, Judgement(LESSON, problems=["could not be judged"]), False

    monkeypatch.setattr(grade_class, "judge_all", judge_all)
    hand_in(made.root, "unlucky", **RIGHT)
    said = grade("grade", "--regrade", "--student", "unlucky")
    row = next(row for row in (made.root / "grades.csv").read_text().splitlines() if row.startswith("unlucky"))
    assert row == "unlucky,,,2,0,0,0,0,2,2" and "unlucky: could not be judged" in said
