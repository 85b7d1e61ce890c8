"""The pages to read after grading: a student's feedback, the instructor's report, formgrader.

What a submission may hold to harm its reader is tried in each: as units, and in a real browser.
"""

import os
import re
import shlex
from dataclasses import asdict

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output, new_raw_cell
from nbgrader.converters import GenerateFeedback

from grader.classroom.course import Course
from grader.classroom.grades import Grades
from grader.judging.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG, Flag, Judgement, Verdict
from grader.pages.feedback import feedback
from grader.pages.marks import judgement_of
from grader.pages.report import Class, report, write_report
from grader.pages.sanitize import PassiveCells, fenced, from_markdown, harmless
from tests.browser import open_browser, visit
from tests.formgrader import Formgrader, jupyter
from tests.grader.classroom.test_similarity import DISGUISED, ODD, OWN
from tests.stand_in_grader import released_course
from tests.tiny_course import LESSON, POINTS, RIGHT, essay, hand_in, lesson

pytestmark = pytest.mark.long

# Each would set window.hacked or send a request.
AWAY = "http://outside.invalid"
RUN = "window.hacked=1"
HOSTILE = [
    f"<script>{RUN}</script>",
    f"<img src=x onerror='{RUN}'>",
    f"<svg onload='{RUN}'><script>{RUN}</script><a xlink:href='javascript:{RUN}'>x</a></svg>",
    f"<svg><style><img src=x onerror='{RUN}'></style></svg>",
    f"<math><mtext><table><mglyph><style><img src=x onerror='{RUN}'>",
    f"[click](javascript:{RUN}) ![p](javascript:{RUN})",
    f"[click](java&#115;cript&colon;{RUN})",
    f"[click][1]\n\n[1]: javascript:{RUN}",
    f"<a href=' jAvAsCrIpT:{RUN}'>click</a>",
    f"<a href='data:text/html,<script>{RUN}</script>'>click</a>",
    f"<iframe src='{AWAY}'></iframe><iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    f"<object data='{AWAY}'></object><embed src='{AWAY}'>",
    f"<meta http-equiv='refresh' content='0;url={AWAY}'><base href='{AWAY}/'><link rel=stylesheet href='{AWAY}'>",
    f"<style>@import url({AWAY}/a.css); body {{ background: url({AWAY}/b.png) }}</style>",
    f"<p style='background: url({AWAY}/c.png); position: fixed'>x</p>",
    f"![p]({AWAY}/d.png) <img srcset='{AWAY}/e.png 1x'> <video src='{AWAY}/f' autoplay></video>",
    f"<form action='{AWAY}'><input name=a autofocus onfocus='{RUN}'><button>send</button></form>",
    f"<details open ontoggle='{RUN}'><summary>x</summary></details>",
    f"$\\href{{javascript:{RUN}}}{{click}}$ $\\require{{html}}\\class{{x}}{{y}}$",
    f"```mermaid\ngraph TD; A[<img src=x onerror='{RUN}'>]\n```",
    f"<noscript><p title=\"</noscript><img src=x onerror='{RUN}'>\"></noscript>",
    f"<!--><img src=x onerror='{RUN}'>-->",
    f"<template><script>{RUN}</script></template><div is=x onclick='{RUN}'>x</div>",
]
POSES = [
    "# double-values",  # formgrader would find this heading where it looks for the points of the check
    "<div class='navbar-fixed-top'>all points</div>",
    "</div></div></div>out of its place",
    "<details><summary>swallows the rest of the page</summary>",
    "![p](attachment:plot.png)",  # nbconvert raises for a picture that is not there
]
IDS = frozenset({"double-values", "double-comment"})


def assert_passive(html):
    """Nothing in a page is active or loads anything, and its policy forbids both."""
    soup = BeautifulSoup(html, "html.parser")
    policy = soup.find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert len(soup.find_all("style")) == 1 and "@import" not in soup.style.text and "url(" not in soup.style.text
    names = {element.name for element in soup.find_all(True)}
    active = {"script", "iframe", "object", "embed", "form", "button", "base", "link", "video", "math", "template"}
    assert names & active == set()
    for element in soup.find_all(True):
        for name, value in element.attrs.items():
            assert not name.startswith("on") and name not in ("style", "srcset", "srcdoc", "action"), element
            assert name != "src" or value.startswith("data:image/png"), element
            assert name != "href" or re.match(r"#|https?://|mailto:|(feedback|autograded)/", value), element


# ---- what students write ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_active_is_left_in_markdown(text):
    html = from_markdown(text)
    assert not re.search(r"<(script|iframe|style|svg|math|object|form|meta|link|base|video|template)", html)
    assert not re.search(r"<[^>]*\s(on\w+|style|srcset)=", html)
    assert not re.search(r"<[^>]*(href|src)=.?\s*(javascript|data:text|http://outside)", html, re.IGNORECASE)


@pytest.mark.parametrize("text", HOSTILE + POSES)
def test_formgrader_shows_harmful_text_as_typed(text):
    nb = lesson(new_markdown_cell(text))
    assert not harmless(text, IDS)
    nb, _ = PassiveCells().preprocess(nb, {})
    assert nb.cells[-1].source == fenced(text)
    shown = BeautifulSoup(from_markdown(nb.cells[-1].source), "html.parser")
    assert shown.text.strip() == text.strip()
    assert PassiveCells().preprocess(nb, {})[0].cells[-1].source == fenced(text), "once is enough"


def test_the_lessons_own_text_is_unchanged(root):
    for path in root.glob("notebooks/*/*.ipynb"):
        nb = nbformat.read(path, as_version=4)
        before = [cell.source for cell in nb.cells]
        assert [cell.source for cell in PassiveCells().preprocess(nb, {})[0].cells] == before


@pytest.mark.parametrize(
    "text",
    [
        "**bold** `code <b>` [a link](https://pytorch.org) <https://pytorch.org> a < b & c",
        "- [ ] one\n- [x] two\n\n| a | b |\n|:-:|--:|\n| 1 | 2 |\n\n> said\n\n```python\nif a < b: pass\n```",
        "<details><summary>Hint</summary>\n\nLook *up*.\n\n</details>",
        "$\\alpha + n\\beta$ <br> <sub>2</sub> ![dot](data:image/png;base64,iVBORw0KGgo=)",
    ],
)
def test_ordinary_markdown_is_harmless(text):
    assert harmless(text, IDS)


def test_a_heading_is_checked_again_in_a_notebook_with_different_names():
    """A cached result doesn't apply if the heading would take the id of one of formgrader's fields."""
    assert harmless("# double-values")
    assert not harmless("# double-values", IDS)
    assert harmless("# double-values", frozenset({"total-values"}))


def test_text_that_is_not_prose_is_not_rendered():
    long = "[a](" * 100_000
    assert not harmless(long)
    assert from_markdown(long).startswith("<pre>")
    assert from_markdown("> " * 300 + "<script>") != ""


def test_raw_cells_attachments_and_widgets_let_nothing_in():
    nb = lesson(new_raw_cell(HOSTILE[0]), new_markdown_cell("![a](attachment:a.svg)"))
    nb.cells[-1].attachments = {"a.svg": {"image/svg+xml": HOSTILE[2]}}
    nb.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {}}
    nb, _ = PassiveCells().preprocess(nb, {})
    raw, pictured = nb.cells[-2:]
    assert (raw.cell_type, raw.source) == ("markdown", fenced(HOSTILE[0]))
    assert "attachments" not in pictured and pictured.source == fenced("![a](attachment:a.svg)")
    assert "widgets" not in nb.metadata


def test_formgrader_escapes_names_and_loads_nothing_external(root):
    config = Course.at(root).config
    name = f"\"'>{HOSTILE[1]}"
    known = {"student": name, "first_name": name, "last_name": name, "notebook_path": name}
    html, _ = HTMLExporter(config=config).from_notebook_node(
        lesson(), resources={**known, "index": 0, "total": 1, "base_url": "", "submission_id": "1"}
    )
    soup = BeautifulSoup(html, "html.parser")
    assert soup.find_all("img") == [] and name in soup.text
    for one in soup.find_all(["script", "link"]):
        assert (one.get("src") or one.get("href") or "/").startswith("/")


# ---- a student's page ------------------------------------------------------------------------------------------------

SAID = {
    "double-values": Verdict(
        "double-values", 0, 2, WRONG, "double · values\n  double(5) is 25, expected 10", "Square."
    ),
    "total-values": Verdict("total-values", 1.5, 3, PART, "total · values · hidden test\n  half", "", True),
    "total-traffic": Verdict("total-traffic", 1, 1, PASSED, "total · traffic · passed"),
}
FULL = {name: Verdict(name, points, points, PASSED) for name, points in POINTS.items()}


def graded(*more, said=SAID, scores=(), problems=(), flags=(), comment="", answers=RIGHT):
    """A notebook after grading, with the scores and comments that nbgrader's GetGrades adds."""
    nb = lesson(*more)
    for cell in nb.cells:
        about = cell.metadata.get("nbgrader")
        name = about and about["grade_id"]
        if name in answers:
            cell.source = answers[name]
            about["comment"] = comment
        if name in POINTS:
            verdict = said.get(name)
            cell.metadata["verdict"] = asdict(verdict) if isinstance(verdict, Verdict) else verdict
            points = verdict.points if isinstance(verdict, Verdict) else 0
            about["score"] = dict(scores).get(name, points)
    judgement = Judgement(LESSON, list(said.values()), list(problems), list(flags), 1.0)
    nb.metadata["judgement"] = nbformat.from_dict(
        {**asdict(Judgement(LESSON, [], judgement.problems, judgement.flags, 1.0)), "verdicts": []}
    )
    return nb


def page_of(nb, student="ada", penalty=0.0):
    score = sum(cell.metadata.nbgrader.get("score", 0) for cell in nb.cells if "nbgrader" in cell.metadata)
    about = {"student": student, "notebook": LESSON, "score": score - penalty, "max_score": 6, "late_penalty": penalty}
    return feedback(nb, about)


def text_of(html):
    return re.sub(r"\s+", " ", BeautifulSoup(html, "html.parser").body.get_text(" "))


def test_a_page_shows_points_and_reasons():
    html = page_of(graded())
    soup, text = BeautifulSoup(html, "html.parser"), text_of(html)
    assert "2.5 of 6 points" in text
    rows = [re.sub(r"\s+", " ", row.get_text(" ")).strip() for row in soup.find("table").find_all("tr")[1:]]
    assert rows == ["double 0 / 2 values not passed", "total 2.5 / 4 values part traffic"]
    assert "double(5) is 25, expected 10" in text
    hidden = soup.find(id="check-total-values")
    assert "hidden test" in hidden.header.text and "hidden test" not in soup.find(id="check-double-values").text
    for link in soup.select("table a"):
        assert soup.find(id=link["href"].removeprefix("#")), link
    assert_passive(html)


def test_a_page_begins_with_what_was_lost_and_the_first_message():
    said = {
        **SAID,
        "total-traffic": Verdict("total-traffic", 0, 1, WRONG, "total · traffic\n  twice the bytes"),
    }
    soup = BeautifulSoup(page_of(graded(new_markdown_cell("my notes"), said=said)), "html.parser")
    assert [heading.text for heading in soup.find_all("h2")] == [
        "Where you lost points",
        "All exercises",
        "Your notebook",
    ]
    lost = [re.sub(r"\s+", " ", one.text).strip() for one in soup.select("h3[id^=lost-]")]
    assert lost == ["double 2 of 2 points lost", "total 2.5 of 4 points lost"]
    assert [soup.find(id=f"check-{name}").name for name in POINTS] == ["section", "section", "details"]
    assert "twice the bytes" in soup.find(id="check-total-traffic").pre.text
    assert all("open" not in fold.attrs for fold in soup.find_all("details"))
    [notebook] = soup.select("details.notebook")
    assert "my notes" in notebook.text and "twice the bytes" not in notebook.text, "a message is there once"
    names = [element["id"] for element in soup.find_all(id=True)]
    assert len(names) == len(set(names))


def test_exercises_without_a_word_are_one_line():
    said = {"double-values": Verdict("double-values", 0, 2, BLANK), "total-values": SAID["total-values"]}
    html = page_of(graded(said={**SAID, **said}))
    assert "Nothing is written in double: 2 points." in text_of(html)
    assert [one["id"] for one in BeautifulSoup(html, "html.parser").select("h3[id^=lost-]")] == ["lost-total"]


def test_an_answer_for_a_person_that_was_not_written_is_blank_and_nobodys_judgement():
    blank = essay("essay", "Why?", score=0, comment="No response.")
    text = text_of(page_of(graded(blank, said=FULL, comment="No response.")))
    assert "Nothing is written in essay: 4 points." in text
    assert "by a person" not in text and "No response" not in text


def test_a_page_without_losses_says_nothing_of_any():
    assert "lost" not in text_of(page_of(graded(said=FULL)))


def test_a_page_shows_answers_but_no_source_of_a_check():
    html = page_of(graded(new_markdown_cell("my notes")))
    assert "my notes" in html and "x.clone()" in BeautifulSoup(html, "html.parser").text
    assert not re.search("HIDDEN TESTS|hidden_tests_for|judges", html)


def test_a_page_shows_problems_penalties_comments_and_corrections():
    html = page_of(
        graded(
            scores={"double-values": 2},
            problems=["put back 1 missing cell: double-values", "ranks.py in /home/teacher/course/x.py broke"],
            flags=[Flag("tried to escape", "open('/etc/passwd')")],
            comment="*Nicely* put.",
        ),
        penalty=1.25,
    )
    text = text_of(html)
    assert "put back 1 missing cell: double-values" in text
    assert "You earned 4.5 points. Handing in late costs 1.25 of them." in text and "3.25 of 6 points" in text
    assert "A person changed the points from 0 to 2." in text
    assert "<em>Nicely</em> put." in html
    assert "x.py broke" in text and "/home/teacher" not in text
    assert "escape" not in text, "what a person should look at is not for the student"


def test_an_answer_graded_by_hand_has_its_place():
    html = page_of(graded(essay("essay", "Rings are *fair*.", score=3, comment="Why?")))
    text = text_of(html)
    assert "essay 3 / 4 by hand 3 of 4" in text and "graded by a person 3 of 4 points" in text
    assert "Rings are <em>fair</em>." in html and "Comment Why?" in text


def test_what_nobody_has_graded_yet_is_not_lost():
    html = page_of(graded(essay("essay", "Rings", score=0, waits=True, comment=None), said=FULL))
    text, soup = text_of(html), BeautifulSoup(html, "html.parser")
    assert "They can still give you up to 4 points." in text and "lost" not in text
    assert "essay – / 4 by hand not graded yet" in text and "0 of 4 points" not in text
    assert soup.find(id="check-essay")["class"] == ["check", "waits"]


@pytest.mark.parametrize("kind", [PASSED, PART, WRONG, BLANK, STUCK, NOT_RUN])
def test_every_kind_of_verdict_has_words(kind):
    said = {name: Verdict(name, 0, points, kind) for name, points in POINTS.items()}
    text = text_of(page_of(graded(said=said)))
    words = {
        PASSED: "passed", PART: "part of the points", WRONG: "not passed", BLANK: "You have not written anything",
        STUCK: "Is there a loop that never ends?", NOT_RUN: "This check was not run.",
    }  # fmt: skip
    assert words[kind] in text


@pytest.mark.parametrize(
    "odd",
    [None, 7, "passed", [], {}, {"kind": "splendid"}, {"points": "many", "said": 3}, {"points": float("nan")},
     {"points": [1], "kind": ["passed"], "said": None, "hidden": "yes", "unknown": 1}],
)  # fmt: skip
def test_an_odd_verdict_gives_neither_a_crash_nor_points(odd):
    nb = graded(said=dict.fromkeys(POINTS, None))
    for cell in nb.cells:
        if "verdict" in cell.metadata:
            cell.metadata["verdict"] = odd
    nb.metadata["judgement"] = odd
    assert "0 of 6 points" in text_of(page_of(nb))
    assert {verdict.points for verdict in judgement_of(nb).verdicts} <= {0.0}


def hostile_notebook():
    """All hostile content, in every place of a submission, or of a verdict that quotes one, that can hold it."""
    many = "\n".join(HOSTILE)
    cells = [new_markdown_cell(text) for text in HOSTILE + POSES]
    code = new_code_cell(f'"""</code></pre>{many}"""', outputs=[new_output("display_data", {"text/html": many})])
    said = {name: Verdict(name, 0, points, WRONG, f"{name}\n{many}", many) for name, points in POINTS.items()}
    answers = {"double": f"# </pre>{many}", "total": many}
    flags = [Flag(f"tried {HOSTILE[0]}", many)]
    return graded(
        *cells, code, new_raw_cell(many), said=said, problems=HOSTILE, comment=many, answers=answers, flags=flags
    )


def test_nothing_is_active_in_a_page_no_matter_who_wrote_it():
    html = page_of(hostile_notebook(), student=f"ada{HOSTILE[1]}")
    assert_passive(html)
    assert "<script>" in text_of(html), "what was written is shown, as text"


def test_a_page_shows_only_paths_that_the_student_wrote():
    said = {
        "double-values": Verdict("double-values", 0, 2, WRONG, "x\n open('/my/own.txt') /opt/venv/lib/torch/x.py:3")
    }
    text = text_of(page_of(graded(said=said, answers={"double": "open('/my/own.txt')"})))
    assert "open('/my/own.txt') x.py:3" in text and "venv" not in text


def test_characters_that_hide_or_reorder_text_are_made_visible():
    said = {"double-values": Verdict("double-values", 0, 2, WRONG, "a\u202egnp.exe \x1b[31m\x00 \ud800 \ufeff")}
    html = page_of(graded(said=said, problems=["\u2066x"]))
    assert not re.search("[\u202e\u2066\x1b\x00\ufeff]", html)
    html.encode()


def test_a_huge_submission_makes_no_huge_page():
    said = {"double-values": Verdict("double-values", 0, 2, WRONG, "z" * 30_000_000)}
    html = page_of(graded(new_markdown_cell("y" * 10_000_000), said=said, answers={"double": "x = 1\n" * 1_000_000}))
    assert len(html) < 1_000_000
    assert "more characters" in html


# ---- the instructor's page -------------------------------------------------------------------------------------------


def class_of(number):
    """The grades and judgements of this many students: correct, wrong, blank and stuck in turn."""
    exercises = {"double": ["double-values"], "total": ["total-values", "total-traffic"]}
    grades = Grades(LESSON, exercises, POINTS, earned={})
    one = Class(grades)
    kinds = [(PASSED, 1, ""), (WRONG, 0, "That is its square."), (BLANK, 0, ""), (STUCK, 0, "")]
    for index in range(number):
        student, (kind, share, mistake) = f"student-{index:02}", kinds[index % 4]
        verdicts = [
            Verdict(name, share * points, points, kind, f"{name} said", mistake) for name, points in POINTS.items()
        ]
        grades.earned[student] = {verdict.check: verdict.points for verdict in verdicts}
        one.judgements[student] = Judgement(LESSON, verdicts)
        one.links[student] = {"feedback": f"feedback/{student}/{LESSON}/{LESSON}.html"}
    return one


def test_the_report_counts():
    html = report([class_of(8)])
    text = text_of(html)
    assert_passive(html)
    assert "8 handed in" in text and "2 need attention" in text
    assert "2 passed, 2 not passed, 2 nothing written, 2 stopped" in text
    assert "2 all points, 6 none" in text
    assert re.search("2 × double: That is its square.", text)
    assert "double-values. Students: student-01 , student-05" in text
    bars = BeautifulSoup(html, "html.parser").select("svg.bar")
    assert len(bars) == 2 + 3
    for bar in bars:
        assert sum(float(part["width"]) for part in bar.find_all("rect")) == pytest.approx(1000)
    squares = [square.title.text for square in BeautifulSoup(html, "html.parser").select("svg rect.f-passed[y]")]
    assert sorted(squares)[0] == "student-00: 6" and len(squares) == 8


def test_an_answer_graded_by_hand_is_not_called_not_run():
    one = class_of(8)
    one.grades.points = {**POINTS, "essay": 4}
    one.grades.exercises["essay"] = ["essay"]
    for number, earned in enumerate(one.grades.earned.values()):
        earned["essay"] = [4, 1, 0, 0][number % 4]
    assert text_of(report([one])).count("2 all points, 2 some, 4 none") == 4, "exercise and check, picture and words"


def test_answers_that_wait_for_a_person_lead_the_report_and_are_not_red():
    one = class_of(8)
    one.grades.points, one.grades.exercises["essay"] = {**POINTS, "essay": 4}, ["essay"]
    for earned in one.grades.earned.values():
        earned["essay"] = 0.0
    one.rubrics = {"essay": "2 points: <b>why</b>", "other": "nobody waits for this"}
    one.grades.waiting = {"student-00": {"essay"}, "student-01": set(), "student-02": {"essay"}}
    html = report([one])
    soup, text = BeautifulSoup(html, "html.parser"), text_of(html)
    assert re.search("How the class did 2 answers are not graded yet , of 2 students", text)
    assert "student-00 · 90_tiny: essay" in text and "6 none, 2 not graded yet" in text
    colours = {row.td.text: row.find_all("td")[-3]["class"] for row in soup.select("table.grid tbody tr")}
    assert colours["student-00"] == ["waits"] and colours["student-01"] == ["none"]
    assert "not graded yet" not in text_of(report([class_of(8)]))
    assert "essay: what to look for" in text_of(report([one])) and "2 points: <b>why</b>" in text_of(report([one]))
    assert "nobody waits" not in report([one])


def test_an_answer_that_is_not_there_is_counted_once():
    """Neither as a mistake of each of its checks in the report, nor with the same words again in feedback."""
    words = "No cell above its check defines `total`: was its cell deleted, or turned into text?"
    one = class_of(2)
    judgement = one.judgements["student-00"]
    judgement.problems = ["there is no answer to total, half: no cell defines the function"]
    for verdict in judgement.verdicts:
        if verdict.check.startswith("total"):
            verdict.kind, verdict.said = WRONG, words
    html = report([one])
    assert words not in html and "no cell defines the function" in html
    judgement.problems = []
    assert words in report([one])
    said = {
        **SAID,
        **{name: Verdict(name, 0, POINTS[name], WRONG, words) for name in ("total-values", "total-traffic")},
    }
    soup = BeautifulSoup(page_of(graded(said=said)), "html.parser")
    assert soup.text.count(words) == 1 and "the same" in soup.find(id="check-total-traffic").text


def test_similar_mistakes_are_grouped():
    one = class_of(8)
    for student, words in zip(("student-01", "student-05"), ("[1 2.5]", "[3 -4e-6]"), strict=True):
        for verdict in one.judgements[student].verdicts:
            verdict.said, verdict.mistake = f"asked\n  rank 0 returned {words}, expected 7", ""
    assert "2 × double: rank … returned …, expected …" in text_of(report([one]))


@pytest.mark.parametrize("number", [0, 1, 3, 400])
def test_the_report_works_for_any_class_size(number):
    html = report([class_of(number)])
    assert_passive(html)
    assert f"{number} handed in" in text_of(html)


def test_a_report_of_hostile_submissions_is_passive():
    one = class_of(4)
    many = "\n".join(HOSTILE)
    for judgement in one.judgements.values():
        judgement.problems += HOSTILE
        judgement.flags += [Flag(f"tried {HOSTILE[0]}", many)]
        for verdict in judgement.verdicts:
            verdict.kind, verdict.said, verdict.mistake = WRONG, many, many
    name = f"{HOSTILE[1]}"
    one.grades.earned[name] = dict.fromkeys(POINTS, 0.0)
    one.grades.problems[name] = HOSTILE
    one.links[name] = {}
    html = report([one])
    assert_passive(html)
    assert "<script>" in text_of(html)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A course with a released lesson."""
    return released_course(tmp_path_factory.mktemp("course")).root


def in_gradebook(course, student, nb):
    """Write what grading `nb` would leave in the course's folder."""
    hand_in(course, student)
    folder = course / "autograded" / student / LESSON
    folder.mkdir(parents=True)
    nbformat.write(nb, folder / f"{LESSON}.ipynb")
    with Course.at(course).gradebook() as gradebook:
        gradebook.update_or_create_student(student)
        gradebook.update_or_create_submission(LESSON, student)
        for verdict in judgement_of(nb).verdicts:
            gradebook.find_grade(verdict.check, LESSON, LESSON, student).auto_score = verdict.points
        gradebook.db.commit()


def test_the_report_of_a_course_survives_odd_notebooks(tiny):
    in_gradebook(tiny, "ada", graded())
    in_gradebook(tiny, "bob", graded(flags=[Flag("tried to escape", "open('/etc/passwd')")]))
    in_gradebook(tiny, "cut", graded())
    (tiny / "autograded" / "cut" / LESSON / f"{LESSON}.ipynb").write_text('{"cells": [')
    (tiny / "submitted" / "nothing" / LESSON).mkdir(parents=True)
    Course.at(tiny).must(GenerateFeedback, LESSON, exclude="bob,cut")
    path = write_report(Course.at(tiny), [LESSON])
    html = path.read_text()
    assert_passive(html)
    text = text_of(html)
    assert "4 handed in" in text
    assert "open('/etc/passwd')" in text and "can't be read" in text and "handed in, only: nothing" in text
    links = {link["href"] for link in BeautifulSoup(html, "html.parser").find_all("a")}
    assert f"feedback/ada/{LESSON}/{LESSON}.html" in links
    assert all((path.parent / link).is_file() for link in links if not link.startswith("#"))


def test_similar_answers_are_shown_side_by_side_and_accuse_nobody(tiny):
    loop = "\n    ".join(f"total = total + x[{number}] * rank - world_size // {number + 2}" for number in range(9))
    answer = f"def total(x, rank, world_size):\n    total = 0\n    {loop}\n    return total  # <script>"
    for student, text in (("pia", answer), ("quin", answer.replace("total", "sums")), ("rex", RIGHT["total"])):
        in_gradebook(tiny, student, graded(answers={**RIGHT, "total": text}))
    soup = BeautifulSoup(write_report(Course.at(tiny), [LESSON]).read_text(), "html.parser")
    assert_passive(str(soup))
    [pair] = soup.select("details.similar")
    assert re.sub(r"\s+", " ", pair.summary.text).strip() == "pia, quin · similar answers to total"
    assert [text.text for text in pair.select("div.pair pre")] == [answer, answer.replace("total", "sums")]
    assert "not a proof of anything" in soup.text
    assert not re.search("plagiari|cheat|copied", soup.text, re.IGNORECASE)


def test_copies_of_the_solution_and_of_an_earlier_term_are_shown_side_by_side(tiny, tmp_path):
    answer, copy, own = (text.replace("def ring(", "def total(") for text in (ODD, DISGUISED, OWN))
    source = tiny / "solutions" / LESSON / f"{LESSON}.ipynb"
    as_it_was = source.read_bytes()
    nb = nbformat.read(source, as_version=4)
    next(cell for cell in nb.cells if cell.id == "total").source = answer
    nbformat.write(nb, source)
    in_gradebook(tiny, "sue", graded(answers={**RIGHT, "total": copy}))
    in_gradebook(tiny, "tom", graded(answers={**RIGHT, "total": own}))
    before = tmp_path / "autumn" / "autograded" / "uma" / LESSON / f"{LESSON}.ipynb"
    before.parent.mkdir(parents=True)
    (tmp_path / "autumn" / "nbgrader_config.py").write_text("c = get_config()\n")
    nbformat.write(graded(answers={**RIGHT, "total": own}), before)
    course = Course.at(tiny)
    course.config.Similarity.earlier = [str(tmp_path / "autumn")]
    soup = BeautifulSoup(write_report(course, [LESSON]).read_text(), "html.parser")
    source.write_bytes(as_it_was)
    assert_passive(str(soup))
    pairs = {re.sub(r"\s+", " ", pair.summary.text).strip(): pair for pair in soup.select("details.similar")}
    [official] = (pair for words, pair in pairs.items() if words.startswith("sue, the official solution"))
    assert [text.text for text in official.select("div.pair pre")] == [copy, answer]
    assert "of both answers together is in both" in official.text
    assert any(words.startswith("autumn: uma, tom") for words in pairs)


def test_several_notebooks_are_shown_with_what_to_type(tiny):
    in_gradebook(tiny, "two", graded())
    folder = tiny / "submitted" / "two" / LESSON
    for name in (f"{LESSON} (1).ipynb", "it's mine.ipynb"):
        (folder / name).write_text("{}")
        os.utime(folder / name, (86400, 86400))
    soup = BeautifulSoup(write_report(Course.at(tiny), [LESSON]).read_text(), "html.parser")
    [look] = [one for one in soup.select("details.look") if one.b.text == "two"]
    commands = [shlex.split(line) for line in look.text.splitlines() if line.startswith("    ")]
    place = f"submitted/two/{LESSON}"
    assert sorted(commands) == [
        ["cp", f"{place}/it's mine.ipynb", f"{place}/{LESSON}-1.ipynb"],
        ["touch", f"{place}/{LESSON} (1).ipynb"],
        ["touch", f"{place}/{LESSON}.ipynb"],
    ]
    assert "1970-01-02 00:00 UTC  90_tiny (1).ipynb" in look.text


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


def test_a_hostile_page_does_nothing_in_a_browser(browser, tmp_path):
    (tmp_path / "page.html").write_text(page_of(hostile_notebook(), student=HOSTILE[1]))
    with visit(browser, f"{tmp_path.as_uri()}/", viewport={"width": 390, "height": 800}) as seen:
        seen.page.goto(f"{tmp_path.as_uri()}/page.html")
        for fold in seen.page.locator("summary").all():
            fold.click()
        seen.page.locator("text=click").first.click()
        assert seen.page.locator("body > h1").inner_text() == "90 tiny"
        for element in seen.page.locator("img").all():
            assert element.get_attribute("src") is None
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits a phone"
        assert (seen.what_ran(), seen.console) == ([], [])


def test_the_browser_notices_active_content(browser, tmp_path):
    """The same content without the sanitizer does act; otherwise these tests would prove nothing."""
    (tmp_path / "page.html").write_text("<h1>x</h1>" + HOSTILE[1] + HOSTILE[15])
    with visit(browser, f"{tmp_path.as_uri()}/") as seen:
        seen.page.goto(f"{tmp_path.as_uri()}/page.html")
        seen.page.wait_for_function("window.hacked")
        assert "1" in seen.what_ran() and any(AWAY in address for address in seen.left_the_machine)


def test_the_policy_alone_stops_active_content(browser, tmp_path):
    html = page_of(graded()).replace("<h1>", "".join(HOSTILE) + "<h1>", 1)
    (tmp_path / "page.html").write_text(html)
    with visit(browser, f"{tmp_path.as_uri()}/") as seen:
        seen.page.goto(f"{tmp_path.as_uri()}/page.html")
        assert [one for one in seen.what_ran() if not one.startswith(AWAY)] == []


def test_a_student_can_navigate_the_page(browser, tmp_path):
    (tmp_path / "page.html").write_text(page_of(graded(new_markdown_cell("# My notes\nkept"))))
    with visit(browser, f"{tmp_path.as_uri()}/") as seen:
        seen.page.goto(f"{tmp_path.as_uri()}/page.html")
        seen.page.get_by_role("row", name="double").get_by_role("link", name="values").click()
        assert seen.page.url.endswith("#check-double-values")
        assert seen.page.locator("#check-double-values").get_by_text("expected 10").is_visible()
        assert not seen.page.get_by_text("kept").is_visible()
        seen.page.locator("summary", has_text="All your cells").click()
        assert not seen.page.get_by_text("kept").is_visible()
        seen.page.locator("summary", has_text="My notes").click()
        assert seen.page.get_by_text("kept").is_visible()
        seen.page.emulate_media(media="print")
        assert seen.page.locator("#check-double-values").is_visible()
        assert (seen.what_ran(), seen.console) == ([], [])


def test_an_instructor_can_navigate_the_report(browser, tmp_path):
    page = tmp_path / "feedback" / "student-01" / LESSON / f"{LESSON}.html"
    page.parent.mkdir(parents=True)
    page.write_text(page_of(graded(), student="student-01"))
    (tmp_path / "report.html").write_text(report([class_of(40)]))
    with visit(browser, f"{tmp_path.as_uri()}/") as seen:
        seen.page.goto(f"{tmp_path.as_uri()}/report.html")
        for width in (390, 1200):
            seen.page.set_viewport_size({"width": width, "height": 900})
            assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits a phone too"
        mistake = seen.page.locator("details.mistake", has_text="double: That is its square.")
        assert "10 ×" in mistake.locator("summary").inner_text()
        assert not mistake.get_by_text("double-values said").is_visible()
        mistake.locator("summary").click()
        assert mistake.get_by_text("double-values said").is_visible()
        mistake.get_by_role("link", name="student-01").click()
        assert seen.page.get_by_text("Handed in by student-01").is_visible()
        assert (seen.what_ran(), seen.console) == ([], [])


# ---- formgrader ------------------------------------------------------------------------------------------------------


@pytest.mark.sandbox
@pytest.mark.thorough
def test_a_person_grades_a_hostile_submission_in_formgrader(browser, tiny):
    answers = {**RIGHT, "double": f"def double(x):\n    # </pre>{HOSTILE[0]}\n    raise ValueError({HOSTILE[1]!r})"}

    def edit(nb):
        many = "\n".join(HOSTILE)
        outputs = [new_output("display_data", {"text/html": many, "application/javascript": RUN})]
        nb.cells += [new_markdown_cell(text) for text in HOSTILE + POSES]
        nb.cells += [new_code_cell("shown = 1", outputs=outputs), new_raw_cell(many)]

    hand_in(tiny, "eve", edit, **answers)
    with jupyter(tiny) as (address, token), visit(browser, address) as seen:
        formgrader = Formgrader(seen, address, token)
        page = formgrader.page
        assert formgrader.press("flash", "eve").startswith("Success")

        formgrader.open_submission("eve")
        points = {name: page.locator(f"#{name}").get_attribute("placeholder") for name in POINTS}
        assert points == {"double-values": "0", "total-values": "3", "total-traffic": "1"}
        assert HOSTILE[1] in page.locator(".output_error").inner_text(), "what the answer raised, as text"
        assert page.get_by_text("total · traffic").first.is_visible()
        for element in page.get_by_text("click").all():
            element.click()
        assert (seen.what_ran(), [text for text in seen.console if "autocomplete" not in text]) == ([], [])

        formgrader.write("#double-comment", f"Nearly. {HOSTILE[0]}", "comment")
        formgrader.write("#double-values", "1.5", "grade")
        formgrader.open_submission("eve")
        assert page.locator("#double-values").input_value() == "1.5"
        assert page.locator("#double-comment").input_value().startswith("Nearly.")

        assert formgrader.press("comment", "eve").startswith("Success")
        assert seen.what_ran() == []
        html = (tiny / "feedback" / "eve" / LESSON / f"{LESSON}.html").read_text()
    assert_passive(html)
    text = text_of(html)
    assert "5.5 of 6 points" in text and "Nearly." in text and "from 0 to 1.5" in text
