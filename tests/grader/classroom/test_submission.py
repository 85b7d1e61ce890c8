"""Any submission is read, repaired where that is safe, and reported; none is fatal, none does harm."""

import json
import os
import re
import resource
import time
from collections import Counter

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from grader.classroom import submission
from grader.classroom.notebook_file import MAX_FILE, NotANotebook, read_bytes, without_outputs
from grader.classroom.one_submission import OneSubmission
from grader.classroom.submission import plain, problems
from grader.judging.worker import JudgeSettings
from tests.stand_in_grader import released_course
from tests.tiny_course import LESSON, POINTS, RIGHT, WRONG, cell, hand_in_file, nbgrader, released, with_answers

HOW = JudgeSettings("tests/tiny", sandboxed=True, seconds=120)
IN_ORDER = ["imports", "double", "double-values", "total", "total-values", "total-traffic"]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = released_course(tmp_path_factory.mktemp("course"))
    with course.gradebook() as gradebook:  # the lesson before, which somebody may hand in by mistake
        gradebook.add_assignment("89_other")
        gradebook.add_notebook("89_other", "89_other")
        gradebook.add_solution_cell("halve", "89_other", "89_other")
        gradebook.add_source_cell("halve", "89_other", "89_other", cell_type="code", source="")
    return course


@pytest.fixture
def student(course, tmp_path):
    """A student who has not handed in anything yet."""
    one = OneSubmission(course, LESSON, f"student-{tmp_path.name}")
    one.handed_in.parent.mkdir(parents=True)
    return one


def answered(course, **answers):
    """The release as plain data, with these answers or correct ones."""
    return json.loads(nbformat.writes(with_answers(released(course.root), {**RIGHT, **answers})))


def by_name(content):
    return {one["metadata"].get("nbgrader", {}).get("grade_id"): one for one in content["cells"]}


def read(student, content, name=LESSON):
    """The notebook that is judged when this is handed in: data, text or bytes."""
    content = json.dumps(content) if isinstance(content, dict | list) else content
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    (student.handed_in.parent / f"{name}.ipynb").write_bytes(content)
    return student.read()


def names(nb):
    """The names of the official cells in order, and "-" for any other cell."""
    found = [one.metadata.get("nbgrader", {}).get("grade_id", "-") for one in nb.cells if one.cell_type != "markdown"]
    return [name for name in found if name != "-"]


def text_of(nb, name):
    return next(one.source for one in nb.cells if one.metadata.get("nbgrader", {}).get("grade_id") == name)


def is_whole(nb):
    """Whether all cells are there, in order: official text in the locked ones, correct answers in the others."""
    official = {"double-values": "SECRET_OF_DOUBLE", "total-values": "total, judges"}
    assert names(nb) == IN_ORDER
    assert {name: text_of(nb, name) for name in RIGHT} == RIGHT
    assert all('hidden_tests_for("90_tiny")' in text_of(nb, name) for name in official)
    for one in nb.cells:
        grading = one.metadata.get("nbgrader", {})
        assert set(one.metadata) <= {"nbgrader"} and grading.get("points") == POINTS.get(grading.get("grade_id"))
        assert not one.get("outputs") and not one.get("attachments")
    assert not nb.metadata.get("not_run")
    return True


# ---- files that are not notebooks


NO_NOTEBOOKS = {
    "empty": (b"", "the file is empty"),
    "blank": (b" \n\t ", "the file is empty"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3 rubbish", "it starts with|a PDF: hand in the .ipynb"),
    "web page": (b"<!DOCTYPE html><html>", "a web page: in JupyterLab use File > Download"),
    "zip": (b"PK\3\4" + bytes(100), "zip archive|UTF-16|starts with"),
    "text": (b"my answers", "not a notebook: it starts with 'my answe'"),
    "list": (b"[1, 2, 3]", "it starts with '\\[1, 2, 3'"),
    "no cells": (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "it has no cells"),
    "cells of another kind": (b'{"nbformat": 4, "cells": {"a": 1}}', "it has no cells"),
    "cut off at once": (b'{"cells": [{"cell_type": "co', "it is cut off"),
    "nested": (b'{"cells": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    "nested open": (b'{"a":' * 200_000, "damaged"),
    "a long number": (b'{"cells": [], "a": ' + b"1" * 10_000 + b"}", "damaged"),
    "random bytes": (bytes(range(256)) * 10, "not a notebook"),
}


@pytest.mark.parametrize("name", NO_NOTEBOOKS)
def test_a_file_that_is_not_a_notebook_is_reported(student, name):
    content, words = NO_NOTEBOOKS[name]
    nb = read(student, content)
    assert nb.metadata["not_run"] is True and names(nb) == [one for one in IN_ORDER if one not in RIGHT]
    [line] = problems(nb)[-1:]
    assert re.search(words, line) and "\n" not in line and len(line) < 300


def test_the_notebook_of_another_lesson(student):
    other = new_notebook(cells=[cell("def halve(x): return x / 2", "halve", solution=True)])
    nb = read(student, nbformat.writes(other))
    assert (
        problems(nb) == ["none of its cells belongs to 90_tiny: it is the notebook of 89_other"] and nb.metadata.not_run
    )
    nb = read(student, nbformat.writes(new_notebook(cells=[new_code_cell("x = 1")])))
    assert problems(nb) == ["none of its cells belongs to 90_tiny: is it the notebook of another lesson?"]
    assert problems(read(student, nbformat.writes(new_notebook()))) == problems(nb)


def test_a_notebook_that_is_not_a_regular_file(student, tmp_path):
    path = student.handed_in
    os.mkfifo(path)
    assert problems(student.read()) == ["what has the notebook's name is not a regular file"]
    path.unlink()
    path.mkdir()
    assert problems(student.read()) == ["what has the notebook's name is a folder"]
    path.rmdir()
    (tmp_path / "secret").write_text("{}")
    path.symlink_to(tmp_path / "secret")
    assert problems(student.read()) == ["the file is a link, and links are not followed"]
    path.unlink()
    path.symlink_to("nowhere")
    assert problems(student.read()) == ["the file is a link, and links are not followed"]
    path.unlink()
    [line] = problems(student.read())
    assert line == "there is no 90_tiny.ipynb"
    path.symlink_to("/dev/zero")
    assert problems(student.read()) == ["the file is a link, and links are not followed"]


# ---- damage that is repaired


def strip_metadata(content):
    for one in content["cells"]:
        one["metadata"] = {}


def strip_ids(content):
    content["nbformat_minor"] = 0
    for one in content["cells"]:
        del one["id"]


def strip_both(content):
    strip_metadata(content)
    strip_ids(content)


def same_ids(content):
    answer = by_name(content)["double"]
    strip_metadata(content)
    content["cells"].append({**answer, "source": WRONG["double"]})
    content["cells"].append(dict(answer))


def edit_metadata(content):
    content["metadata"].update(problems=["forged"], not_run=True, judgement={"points": 100}, digest="forged")
    for one in content["cells"]:
        grading = one["metadata"].get("nbgrader", {})
        grading.update(points=100, grade=not grading.get("grade"), solution=True, locked=False, schema_version="x")
        one["metadata"].update(tags=["skip-execution"], verdict={"points": 100, "kind": "passed"}, deletable=False)


def odd_metadata(content):
    content["metadata"] = {"kernelspec": {"language": ["python"]}, "language_info": 7, "widgets": {"state": {"a": [1]}}}
    by_name(content)["total"]["metadata"]["y"] = float("-inf")
    by_name(content)["double"]["metadata"] = {"nbgrader": {"grade_id": ["double"]}, "x": float("nan")}


def another_kernel(content):
    content["metadata"]["kernelspec"] = {"name": "ir", "display_name": "R", "language": "R"}


def delete_checks(content):
    content["cells"] = [one for one in content["cells"] if not one["metadata"].get("nbgrader", {}).get("grade")]


def duplicate_all(content):
    copies = [{**one, "id": f"copy-{at}"} for at, one in enumerate(content["cells"])]
    content["cells"] = [one for pair in zip(content["cells"], copies, strict=True) for one in pair]


def stub_copied_below(content):
    blank = "def double(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()"
    content["cells"].append({**by_name(content)["double"], "id": "copy", "source": blank})


def checks_first(content):
    content["cells"].sort(key=lambda one: not one["metadata"].get("nbgrader", {}).get("grade"))


def backwards(content):
    content["cells"].reverse()


def check_above_its_answer(content):
    cells = content["cells"]
    at = cells.index(by_name(content)["total"])
    cells[at], cells[at + 1] = cells[at + 1], cells[at]


def checks_edited(content):
    for name in ("double-values", "total-traffic"):
        by_name(content)[name]["source"] = "pass  # all is well"


def imports_edited(content):
    by_name(content)["imports"]["source"] += "\nimport math\nTWO = 2"


def to_markdown(content):
    for one in content["cells"]:
        one["cell_type"] = "markdown"
        one.pop("outputs", None), one.pop("execution_count", None)


def to_raw(content):
    for name in ("double", "double-values"):
        by_name(content)[name].update(cell_type="raw")


def lines(content):
    for one in content["cells"]:
        one["source"] = one["source"].splitlines(keepends=True) if isinstance(one["source"], str) else one["source"]


def other_sources(content):
    content["cells"] += [
        {"cell_type": "code", "source": 7, "metadata": {}},
        {"cell_type": "code", "source": None, "metadata": {}, "id": 5},
        {"cell_type": "code", "source": ["x = 1\n", None, "y = 2"], "metadata": None},
        {"cell_type": 7},
        "no cell",
        None,
        {"cell_type": "code"},
        {"cell_type": "new kind", "source": "text", "id": "a id !"},
    ]


def old_format(content):
    cells = [{**one, "input": one["source"], "language": "python", "prompt_number": 1} for one in content["cells"]]
    for one in cells:
        if one["cell_type"] == "code":
            del one["source"]
    cells.append({"cell_type": "heading", "level": 2, "source": ["A", " title"], "metadata": {}})
    content.update(nbformat=3, nbformat_minor=0, worksheets=[{"cells": cells, "metadata": {}}])
    del content["cells"]


def newer_format(content):
    content.update(nbformat=5, nbformat_minor=3, novelty=True)


def half_characters(content):
    content["cells"].append({"cell_type": "code", "source": "x = '\ud800'", "metadata": {}})
    content["cells"].append({"cell_type": "code", "source": "y = '\U0001f600'", "metadata": {}})


def deep_output(content):
    deep = "[" * 50_000 + "]" * 50_000
    by_name(content)["double"]["outputs"] = "DEEP"
    return json.dumps(content).replace('"DEEP"', deep)


def conflict(content):
    text = json.dumps(content, indent=1)
    return text[: text.rindex("]")] + "<<<<<<< HEAD\n]}"


def many_cells(content):
    content["cells"] += [{"cell_type": "code", "source": f"x{at} = 1", "metadata": {}} for at in range(100_000)]


def long_cell(content):
    content["cells"].append({"cell_type": "code", "source": "x" * 50_000_000, "metadata": {}})


def answers_at_the_end(content):
    for name in ("double", "total"):
        content["cells"].append(content["cells"].pop(content["cells"].index(by_name(content)[name])))


def answers_in_other_cells(content):
    """The given cells stay where they are, and the answers are in new cells above them."""
    blanks = {"double": "def double(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()"}
    blanks["total"] = "def total(x, rank, world_size):\n    # YOUR CODE HERE\n    raise NotImplementedError()"
    for name, blank in blanks.items():
        at = content["cells"].index(by_name(content)[name])
        content["cells"].insert(
            at + 1, {"cell_type": "code", "source": RIGHT[name], "metadata": {}, "id": f"mine-{at}"}
        )
        content["cells"][at]["source"] = blank


def two_answers(content):
    """The first is wrong."""
    at = content["cells"].index(by_name(content)["double"])
    content["cells"].insert(at, {**content["cells"][at], "source": WRONG["double"], "id": "older"})


def answer_in_the_check(content):
    by_name(content)["double"]["source"] = "# see below"
    by_name(content)["double-values"]["source"] = RIGHT["double"] + '\ncheck(double, judges="values")'


def with_widgets(content):
    content["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {"a": "b" * 1_000_000}}}
    content["cells"][0]["attachments"] = {"a.png": {"image/png": "A" * 1_000_000}}
    by_name(content)["double"]["outputs"] = [json.loads(json.dumps(new_output("stream", text="x" * 1_000_000)))]


DAMAGES = {
    strip_metadata: [],
    strip_ids: [],
    strip_both: [
        "the answer to double was found in cell 3, not in the exercise's own cell",
        "the answer to total .* cell 5",
    ],
    edit_metadata: [],
    odd_metadata: [],
    another_kernel: ["its language was set to 'R', but it is graded as Python"],
    delete_checks: ["put back 3 missing cells: double-values, total-values, total-traffic"],
    duplicate_all: ["double has 2 cells: cell 6 counts", "total has 2 cells: cell 10 counts"],
    stub_copied_below: ["double has 2 cells: cell 3 counts"],
    checks_first: ["moved 3 cells back into place: double-values, total-values, total-traffic"],
    check_above_its_answer: ["moved 1 cell back into place: total-values"],
    checks_edited: ["the text of 2 locked cells had been changed: double-values, total-traffic"],
    imports_edited: ["the text of 1 locked cell had been changed: imports"],
    to_markdown: ["6 cells had been turned into markdown: imports, double, double-values, total"],
    to_raw: ["2 cells had been turned into raw: double, double-values"],
    lines: [],
    other_sources: ["5 damaged cells left out"],
    old_format: ["the notebook is in format 3"],
    newer_format: ["the notebook is in format 5"],
    half_characters: ["1 cell with half a UTF-16 pair, which was replaced"],
    deep_output: [],
    conflict: ["the file is damaged: only its first 7 cells could be read"],
    many_cells: ["it holds 100,007 cells: only the first 1,000 that are not empty were read"],
    long_cell: ["1 cell of more than 100,000 characters left out"],
    answers_in_other_cells: ["the answer to double was found in cell 4", "the answer to total was found in cell 7"],
    two_answers: ["double has 2 cells: cell 4 counts"],
    with_widgets: [],
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_repaired_and_reported(course, student, damage):
    content = answered(course)
    nb = read(student, damage(content) or content)
    assert is_whole(nb)
    said, words = problems(nb), DAMAGES[damage]
    assert len(said) == len(words), said
    for line, expected in zip(said, words, strict=True):
        assert re.search(expected, line) and "\n" not in line
    assert len(nbformat.writes(nb)) < 2_000_000


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_other_encodings(course, student, encoding):
    nb = read(student, json.dumps(answered(course)).encode(encoding))
    assert is_whole(nb)
    assert [line[:23] for line in problems(nb)] == ([] if "8" in encoding else ["the file was saved as U"])


def test_bytes_that_are_not_utf_8(course, student):
    content = answered(course)
    content["cells"].append({"cell_type": "code", "source": "# für", "metadata": {}})
    nb = read(student, json.dumps(content, ensure_ascii=False).encode("latin-1"))
    assert is_whole(nb) and problems(nb) == ["bytes that are not valid UTF-8 were replaced"]
    assert nb.cells[-1].source == "# f\ufffdr"


def test_a_truncated_file_keeps_its_complete_cells(course, student):
    text = json.dumps(answered(course))
    nb = read(student, text[: text.index("def total")])
    assert text_of(nb, "double") == RIGHT["double"]
    assert names(nb) == ["imports", "double", "double-values", "total-values", "total-traffic"]
    assert problems(nb) == [
        "the file is damaged: only its first 4 cells could be read",
        "put back 2 missing cells: total-values, total-traffic",
        "there is no answer to total: no cell defines the function",
    ]


def test_an_answer_counts_wherever_it_is_and_its_check_moves_with_it(course, student):
    content = answered(course)
    answers_at_the_end(content)
    content["cells"].append({"cell_type": "code", "source": "mine = 1", "metadata": {}})
    nb = read(student, content)
    assert [one.source for one in nb.cells if one.source in (*RIGHT.values(), "mine = 1")] == [
        *RIGHT.values(),
        "mine = 1",
    ]
    assert names(nb) == IN_ORDER
    assert problems(nb) == ["moved 3 cells back into place: double-values, total-values, total-traffic"]


def test_many_lines_are_compared_with_the_lesson_in_one_form(course, student, monkeypatch):
    """Made anew for each cell of a lesson, it would take the main process a time that nothing limits."""
    made, content = [], answered(course)
    content["cells"] += [{"cell_type": "code", "source": f"x = {at}\n" * 9, "metadata": {}} for at in range(20)]
    monkeypatch.setattr(submission, "plain", lambda text: made.append(text) or plain(text))
    assert is_whole(read(student, content))
    assert max(Counter(text for text in made if text.startswith("x = ")).values()) == 1


def test_in_a_reversed_notebook_every_check_is_below_its_answer(course, student):
    content = answered(course)
    backwards(content)
    order = names(read(student, content))
    assert sorted(order) == sorted(IN_ORDER)
    assert all(order.index(check) > order.index(check.split("-")[0]) for check in POINTS)


def test_the_students_cells_keep_their_order(course, student):
    content = answered(course)
    cells = [one for one in content["cells"] if not one["metadata"].get("nbgrader", {}).get("grade")]
    content["cells"] = []
    for at, one in enumerate(cells):
        content["cells"] += [one, {"cell_type": "code", "source": f"step = {at}", "metadata": {}}]
    nb = read(student, content)
    steps = [one.source for one in nb.cells if one.source.startswith("step")]
    assert steps == [f"step = {at}" for at in range(4)]
    sources = [one.source for one in nb.cells]
    # cells between an answer and the next cell of the release count for its check
    assert sources.index("step = 2") < sources.index(text_of(nb, "double-values")) < sources.index(RIGHT["total"])


def test_text_written_into_a_check_is_kept_as_a_cell(course, student):
    content = answered(course)
    answer_in_the_check(content)
    nb = read(student, content)
    at = [one.source for one in nb.cells].index(text_of(nb, "double-values"))
    assert RIGHT["double"] in nb.cells[at - 1].source and nb.cells[at - 1].cell_type == "code"
    assert problems(nb) == ["the text of 1 locked cell had been changed: double-values"]


def test_of_several_answers_the_last_that_defines_the_function_counts(course, student):
    content = answered(course)
    at = content["cells"].index(by_name(content)["double"])
    content["cells"].append({**content["cells"][at], "source": "# an afterthought", "id": "later"})
    nb = read(student, content)
    assert text_of(nb, "double") == RIGHT["double"] and nb.cells[-1].source == "# an afterthought"


def test_cells_with_the_same_id_claim_the_same_name(course, student):
    content = answered(course)
    same_ids(content)
    nb = read(student, content)
    assert text_of(nb, "double") == RIGHT["double"] and nb.cells[-2].source == RIGHT["double"]
    assert names(nb)[-2:] == ["double", "double-values"]
    assert problems(nb)[0] == "double has 3 cells: cell 9 counts"


def test_blank_work_stays_blank(course, student):
    nb = read(student, nbformat.writes(released(course.root)))
    assert names(nb) == IN_ORDER and problems(nb) == [] and "NotImplementedError" in text_of(nb, "double")


# ---- the files in a folder


def test_another_notebook_in_the_folder_is_reported(course, student):
    read(student, answered(course, double=WRONG["double"]), name="another")
    nb = read(student, answered(course))
    assert is_whole(nb) and problems(nb) == ["not read: another.ipynb"]


@pytest.mark.parametrize("name", [f"{LESSON} (1)", f"{LESSON}-Copy1", "Untitled", ".hidden", "\u202eodd\nname"])
def test_a_notebook_under_another_name(course, student, name):
    nb = read(student, answered(course), name=name)
    if name == ".hidden":
        assert problems(nb) == ["there is no 90_tiny.ipynb"]
    else:
        [line] = problems(nb)
        assert (
            is_whole(nb) and line.isprintable() and line.endswith("was read instead, because there is no 90_tiny.ipynb")
        )


def test_a_notebook_of_another_lesson_beside_the_right_one(course, student):
    read(student, answered(course), name="mine")
    nb = read(student, nbformat.writes(new_notebook(cells=[new_markdown_cell("# other")])))
    assert is_whole(nb)
    assert problems(nb)[0].startswith(
        "mine.ipynb was read instead, because 90_tiny.ipynb: none of its cells belongs to 90_tiny"
    )
    nb = read(student, b"%PDF")
    assert (
        is_whole(nb)
        and "mine.ipynb was read instead, because 90_tiny.ipynb: the file is not a notebook" in problems(nb)[0]
    )


def test_several_notebooks_that_could_be_the_right_one(course, student):
    for name in ("one", "two"):
        read(student, answered(course), name=name)
    nb = student.read()
    assert problems(nb) == ["there is no 90_tiny.ipynb, and 2 other notebooks could be the right one: rename one"]
    assert nb.metadata.not_run


@pytest.mark.parametrize("copy", [" (1)", "-1", "-Copy2", " - Copy", " copy", "_2"])
@pytest.mark.parametrize("newest", ["official", "copy", "neither"])
def test_of_two_files_for_one_notebook_the_newest_counts(course, student, copy, newest):
    read(student, answered(course, double=WRONG["double"]), name=LESSON + copy)
    read(student, answered(course))
    times = {"official": (2, 1), "copy": (1, 2), "neither": (1, 1)}[newest]
    for name, time_ in zip((LESSON, LESSON + copy), times, strict=True):
        os.utime(student.handed_in.with_name(f"{name}.ipynb"), (time_, time_))
    nb = student.read()
    if newest == "copy":
        assert text_of(nb, "double") == WRONG["double"]
        assert problems(nb) == [
            f"{LESSON}{copy}.ipynb was read, because it is newer than {LESSON}.ipynb", f"not read: {LESSON}.ipynb"
        ]  # fmt: skip
    else:
        assert is_whole(nb) and problems(nb) == [f"not read: {LESSON}{copy}.ipynb"]


def test_of_several_copies_the_newest_of_this_lesson_counts(course, student):
    for number, double in enumerate((RIGHT["double"], WRONG["double"])):
        read(student, answered(course, double=double), name=f"{LESSON} ({number})")
    read(student, nbformat.writes(new_notebook(cells=[new_markdown_cell("# other")])), name=f"{LESSON} (2)")
    read(student, b"%PDF", name=f"{LESSON} (3)")
    for number in range(4):
        os.utime(student.handed_in.with_name(f"{LESSON} ({number}).ipynb"), (number, number))
    nb = student.read()
    assert text_of(nb, "double") == WRONG["double"]
    first, second = problems(nb)
    assert first == f"{LESSON} (1).ipynb was read instead, because there is no {LESSON}.ipynb"
    assert second == "not read: " + ", ".join(f"{LESSON} ({number}).ipynb" for number in (0, 2, 3))


@pytest.mark.parametrize("name", ["mine", f"{LESSON}-solutions", f"my {LESSON}", f"{LESSON}5", f"{LESSON}-2026"])
def test_other_names_are_not_those_of_a_copy(course, student, name):
    read(student, answered(course))
    os.utime(student.handed_in, (1, 1))
    nb = read(student, answered(course, double=WRONG["double"]), name=name)
    assert is_whole(nb) and problems(nb) == [f"not read: {name}.ipynb"]


def test_links_beside_it_are_not_read(course, student, tmp_path):
    (tmp_path / "secret.ipynb").write_text(json.dumps(answered(course)))
    (student.handed_in.parent / "mine.ipynb").symlink_to(tmp_path / "secret.ipynb")
    os.mkfifo(student.handed_in.parent / "pipe.ipynb")
    assert problems(student.read()) == ["there is no 90_tiny.ipynb"]


# ---- size


def test_90_mb_of_output_cost_little(course, student):
    content = answered(course)
    line = '\\"[{' + "x" * 95 + "\n"
    by_name(content)["double"]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": line * 470_000},
        {"output_type": "stream", "name": "stdout", "text": [line] * 430_000},
    ]
    data = json.dumps(content).encode()
    assert 90_000_000 < len(data) < MAX_FILE
    del content
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    small = without_outputs(data)
    assert len(small) < 10_000 and time.process_time() - start < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB
    nb = read(student, data)
    assert is_whole(nb) and problems(nb) == [] and len(nbformat.writes(nb)) < 10_000


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\[]{}:,é\n\ud83d'), max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "outputs", "widgets", 'x"outputs', "outputs\\"]), inner, max_size=3)
        ),
        max_leaves=20,
    ),
    st.sampled_from([None, 1, "\t"]),
)
def test_without_outputs_changes_only_the_outputs(value, indent):
    def emptied(one):
        if isinstance(one, dict):
            return {
                key: type(inner)()
                if key in ("outputs", "widgets") and isinstance(inner, dict | list)
                else emptied(inner)
                for key, inner in one.items()
            }
        return [emptied(inner) for inner in one] if isinstance(one, list) else one

    assert json.loads(without_outputs(json.dumps(value, indent=indent).encode())) == emptied(value)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_is_fatal(course, data):
    """Whichever bytes are removed, doubled or inserted, the result is a notebook or one line that says why it isn't."""
    content = bytearray(json.dumps(answered(course)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 40))
        content[at : at + length] = data.draw(st.sampled_from([b"", b'"', b"\\", b"]", b"{", b"\x00", b"\xff", b"\n"]))
    try:
        nb, repairs = read_bytes(bytes(content))
    except NotANotebook as reason:
        assert "\n" not in str(reason)
    else:
        nbformat.validate(nb) if all("id" in one for one in nb.cells) else nbformat.writes(nb)
        assert all("\n" not in line for line in repairs)


# ---- the points


# Those after which the notebook is not the lesson's own with right answers in it: see `is_whole`.
UNUSUAL = [backwards, answers_at_the_end, answer_in_the_check, duplicate_all, answers_in_other_cells]


@pytest.mark.long
@pytest.mark.sandbox
@pytest.mark.parametrize("damage", UNUSUAL, ids=lambda damage: damage.__name__)
def test_repaired_work_gets_its_points(course, student, damage):
    content = answered(course)
    damage(content)
    judgement = HOW.judge(read(student, content))
    assert {verdict.check: verdict.points for verdict in judgement.verdicts} == POINTS, judgement


@pytest.mark.long
@pytest.mark.sandbox
def test_edits_earn_nothing(course, student):
    content = answered(course, double=WRONG["double"], total=WRONG["total"])
    edit_metadata(content)
    checks_edited(content)
    judgement = HOW.judge(read(student, content))
    assert sum(verdict.points for verdict in judgement.verdicts) == 0
    assert sorted(verdict.check for verdict in judgement.verdicts) == sorted(POINTS)


@pytest.mark.long
@pytest.mark.thorough
def test_nbgraders_own_command_takes_the_same_steps(course, student):
    """Its exporter is our reader, which also reads its own output again half-way."""
    content = answered(course)
    checks_first(content)
    hand_in_file(course.root, "by-command", json.dumps(content).encode())
    log = nbgrader(course.root, "autograde", LESSON, "--student=by-command", "--create")
    graded = nbformat.read(course.folder("autograded", "by-command", LESSON) / f"{LESSON}.ipynb", as_version=4)
    assert names(graded) == IN_ORDER and problems(graded)[0].startswith("moved 3 cells"), log
