"""Proof by text that what students get holds no line of an answer, and nothing of the grader's.

    telling_lines(sources) -> {line without spaces: where it is}     the lines of answers that say something
    leaks(files, telling) -> [Problem]                               every line of {name: content} that holds one
    leaks_of_lesson(lesson) -> [Problem]                             its part of the proof, for `try` and `build`

`make release` and `make book` refuse to hand out what leaks. A line of an answer is **telling** if it
  - has at least 16 characters, not counting spaces and a comment at its end;
  - is more than the head of a block (`for peer in range(world_size):`) or a `return` of plain names;
  - appears nowhere in what the lessons give away: their text, their other cells, the frames of their exercises.
A telling line leaks if any line of a file contains it, ignoring spaces, as code, in a comment or in a string. The text
counts, not its meaning: an oracle may compute what an answer computes, under names of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grader.authoring.check_files import for_students, line_with
from grader.authoring.lesson import Lesson, Problem, checks_name, find_lessons, shown
from grader.authoring.markers import REGION, solution_lines

ROOMS = "utils/checks/rooms"  # in the bundle
RECORDS = ("frozen_cases.json", "best_scores.json", "timelines.json", "mistakes.json")  # read by visible checks
SOLUTION_CELL = "answer-to-"  # how the id of a cell with an answer for self-study begins
FROM_ROOT = ("LICENSE", "LICENSE-TEXT", "setup_env.py", "requirements.txt")
MIN_TELLING = 16  # characters
NOT_TELLING = re.compile(r"(for|if|elif|else|while|with|try|except|finally)\b.*:|return [\w., ]+")
NOT_FOR_STUDENTS = ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "grader.hidden")
OF_THE_GRADER = ("solutions/", "grader/", "tests/", "submitted/", "autograded/", "feedback/")
WAY_OUT = "name a variable differently here; or, if students may see this line, show it in the lesson's text"


# ---- what students get -----------------------------------------------------------------------------------------------


def shipped_files(root: Path) -> dict[str, Path]:
    """{name in the bundle: path} of everything in it but what belongs to a lesson."""
    templates = root / "grader" / "bundle"
    files = {path.relative_to(root): path for path in visible_files(root / "utils")}
    files |= {path.relative_to(templates): path for path in visible_files(templates)}
    files |= {Path(name): root / name for name in FROM_ROOT}
    return {name.as_posix(): path for name, path in files.items()}


def room_files(room: Path) -> dict[str, bytes]:
    """{name in the bundle: content} of what it holds of a lesson's room: checks without what is hidden, and records."""
    checks = room / checks_name(room)
    found = {checks.name: for_students(checks).encode()} if checks.exists() else {}
    found |= {name: (room / name).read_bytes() for name in RECORDS if (room / name).exists()}
    return {f"{ROOMS}/{room.name}/{name}": content for name, content in found.items()}


def visible_files(folder: Path) -> Iterator[Path]:
    """All files below a folder, except hidden ones and caches."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
        if path.is_file() and path.suffix != ".pyc" and not hidden:
            yield path


# ---- what they must not get ------------------------------------------------------------------------------------------


def telling_lines(sources: Iterable[Path]) -> dict[str, str]:
    """{a telling line without spaces: its place, `solutions/01_collectives/lesson_01.py:70`}"""
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    given = "\n".join(squeeze(line) for text in texts.values() for line in given_lines(text))
    telling: dict[str, str] = {}
    for path, text in texts.items():
        for number, line in solution_lines(text):
            line = re.sub(r"(?<=\S)\s+# .*$", "", line).strip()  # without a comment at its end
            if len(squeeze(line)) >= MIN_TELLING and not NOT_TELLING.fullmatch(line) and squeeze(line) not in given:
                telling.setdefault(squeeze(line), f"{shown(path)}:{number + 1}")
    return telling


def given_lines(text: str) -> Iterator[str]:
    """The lines of a lesson's source outside its answers."""
    inside = {number for number, _ in solution_lines(text)}
    for number, line in enumerate(text.split("\n")):
        if number not in inside and not REGION.fullmatch(line):
            yield line


def squeeze(line: str) -> str:
    return "".join(line.split())


# ---- the proof -------------------------------------------------------------------------------------------------------


def leaks(files: Mapping[str, bytes], telling: Mapping[str, str], solutions: bool = False) -> list[Problem]:
    """Every line of {name: content} that gives away an answer, or belongs to the grader.

    solutions: the cells that hold answers for self-study don't count
    """
    found = []
    for name, content in files.items():
        if name.startswith(OF_THE_GRADER):
            found.append(Problem(name, 1, "this file is not for students"))
        lines = list(lines_of(name, content, solutions))
        text = "\n".join(line for _, line in lines)
        squeezed = squeeze(text)
        here = {line: place for line, place in telling.items() if line in squeezed}
        if here or any(words in text for words in NOT_FOR_STUDENTS):  # otherwise done, and much faster than by line
            found += [Problem(name, number, what) for number, line in lines for what in leaks_of(line, here)]
    return found


def leaks_of(line: str, telling: Mapping[str, str]) -> Iterator[str]:
    for words in NOT_FOR_STUDENTS:
        if words in line:
            yield f"{words!r} is not for students: remove it"
    squeezed = squeeze(line)
    for answer, place in telling.items():
        if answer in squeezed:
            yield f"this holds a line of the answer at {place}, {answer}: {WAY_OUT}"


def leaks_of_lesson(lesson: Lesson) -> list[Problem]:
    """Where what ships holds a line of this lesson's answers, or its visible checks one of another lesson's."""
    sources = find_lessons(root=lesson.root)
    telling = telling_lines(sources)
    own = {line: place for line, place in telling.items() if place.startswith(f"{lesson.file}:")}
    ships = {name: path.read_bytes() for name, path in shipped_files(lesson.root).items() if path.is_file()}
    found = leaks(ships, own)
    for room in (path.parent for path in sources):
        telling_there = telling if room == lesson.room else own
        found += [at_home(problem, room) for problem in leaks(room_files(room), telling_there)]
    return found


def at_home(problem: Problem, room: Path) -> Problem:
    """The same problem where an author can fix it: in the room, where there may be hidden lines before it."""
    line = room_files(room)[problem.file].decode().split("\n")[problem.line - 1]
    path = room / Path(problem.file).name
    return Problem(shown(path), line_with(path, line), problem.text)


def lines_of(name: str, content: bytes, solutions: bool = False) -> Iterator[tuple[int, str]]:
    """The numbered lines of a file; for a notebook, the lines in its cells, with the cell's number."""
    text = content.decode("utf-8", errors="replace")
    if name.endswith(".ipynb"):
        for number, cell in enumerate(json.loads(text)["cells"], 1):
            if solutions and str(cell.get("id", "")).startswith(SOLUTION_CELL):
                continue
            yield from ((number, line) for string in strings_in(cell) for line in string.split("\n"))
    else:
        yield from enumerate(text.split("\n"), 1)


def strings_in(value: Any) -> Iterator[str]:
    """Every string in a JSON value. A list of lines gives its lines, not one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
