"""The markers of a lesson's source: the line that starts a cell, and the region that holds an answer.

    # %% [markdown] question="How do processes meet?"               on the first cell: what the lesson answers
    # %% exercise="broadcast-by-hand" difficulty=2 minutes=10       a function with BEGIN SOLUTION ... END SOLUTION
    # %% check="broadcast-by-hand" judges="values" points=2         one call of check(); judges is "values" by default
    # %% [markdown] essay="why-a-ring" points=3 minutes=10          a model answer and a rubric: a person grades it

`grader.authoring.lesson` uses it to read a whole source, and reports the line of each problem.
"""

from __future__ import annotations

import ast
import difflib
import keyword
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

KEYS = ("exercise", "difficulty", "minutes", "check", "judges", "points", "essay", "question", "tags")
DIFFICULTY, MINUTES = range(1, 6), range(5, 21)
GIVE_POINTS_AWAY = {"skip-execution", "raises-exception"}  # a cell that never runs, a check that may fail
STUB = "# YOUR CODE HERE\nraise NotImplementedError()"  # the same as nbgrader's, so that both give the same release
FOR_EXAMPLE = (
    'write # %% exercise="broadcast-by-hand" difficulty=2 minutes=10, '
    'or # %% check="broadcast-by-hand" judges="values" points=2'
)

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MARKER = re.compile(r"\s*#\s*(%%%*(?=\s|$)|<codecell>\s*$|In\[[0-9 ]*\]:?\s*$)")  # wherever jupytext starts a new cell
OPTION = re.compile(r"""([A-Za-z_]\w*)\s*=\s*("[^"]*"|'[^']*'|\[[^\]]*\]|[^\s"'\[]*)""")
ALMOST_MARKER = re.compile(r"""\s*#[#\s%]*(exercise|check)\s*=\s*["']""")
REGION = re.compile(r"\s*### (BEGIN|END) SOLUTION\s*")
ALMOST_REGION = re.compile(r"\s*#+\s*(begin|end)[\s_-]*sol\w*", re.IGNORECASE)

Wrong = Callable[[str], None]  # called with each problem


# ---- the line that starts a cell -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Marker:
    """What a cell's marker says: an exercise's name, difficulty (1-5) and minutes; what a check judges and its points;
    an essay's name, minutes and points; the question that the lesson answers; and tags."""

    exercise: str | None = None
    difficulty: int = 0
    minutes: int = 0
    check: str | None = None
    judges: str = "values"
    points: float = 0
    essay: str | None = None
    question: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unreadable:
    """The text of a value that isn't a Python literal."""

    text: str

    def __str__(self) -> str:
        return self.text


def read_marker(line: str, kind: str, wrong: Wrong) -> Marker:
    """Read the marker of a cell of this kind ("code", "markdown", "raw"). Parts with a problem are left out."""
    options = read_options(line, wrong)
    check_placement(options, kind, wrong)
    is_check, is_exercise, is_essay = (key in options for key in ("check", "exercise", "essay"))
    return Marker(
        exercise=read_name(options, "exercise", wrong),
        difficulty=read_whole(options, "difficulty", DIFFICULTY, wrong) if is_exercise else 0,
        minutes=read_whole(options, "minutes", MINUTES, wrong) if is_exercise or is_essay else 0,
        check=(read_name(options, "check", wrong) or "") if is_check else None,
        judges=(is_check and read_name(options, "judges", wrong)) or "values",
        points=read_points(options.get("points"), wrong) if is_check or is_essay else 0,
        essay=read_name(options, "essay", wrong),
        question=read_question(options, wrong),
        tags=read_tags(options, wrong),
    )


def read_options(line: str, wrong: Wrong) -> dict[str, Any]:
    """The key=value pairs of a marker. After a misspelled key is reported, it counts as the right one."""
    if not re.match(r"# ?%%(\s|$)", line):
        wrong(f"write a cell marker as '# %%' at the start of the line, not {line.strip()!r}")
    marker = MARKER.match(line)
    text = re.sub(r"^\s*\[(markdown|md|raw)\]", "", line[marker.end() :] if marker else line)
    options: dict[str, Any] = {}
    for key, value in OPTION.findall(text):
        if key not in KEYS:
            wrong(f"unknown key {key}={nearest(key, KEYS)}; the keys are {', '.join(KEYS)}")
            key = next(iter(difflib.get_close_matches(key, KEYS, 1)), key)
        if key in options:
            wrong(f"{key}= is given twice: keep one")
        options[key] = value_of(value)
    for word in OPTION.sub("", text).replace(",", " ").split():
        problem = f"{word} has no value" if word in KEYS else f"can't read {word!r} in this marker"
        wrong(f"{problem}: {FOR_EXAMPLE}")
    return options


def value_of(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return Unreadable(text)


def check_placement(options: dict[str, Any], kind: str, wrong: Wrong) -> None:
    ours = [key for key in ("exercise", "difficulty", "minutes", "check", "judges", "points") if key in options]
    if "essay" in options and (kind != "markdown" or {"exercise", "check"} & options.keys()):
        wrong('an essay is a markdown cell of its own: # %% [markdown] essay="why-a-ring" points=3 minutes=10')
    elif ours and kind != "code" and "essay" not in options:
        wrong(f"{ours[0]}= doesn't go on a {kind} cell: write the marker without [{kind}]")
    if "exercise" in options and "check" in options:
        wrong("a cell is either an exercise or a check: split it in two")
    for owner, keys in (("check", ("judges", "points")), ("exercise", ("difficulty", "minutes"))):
        for key in keys:
            of_essay = "essay" in options and key in ("points", "minutes")
            if key in options and owner not in options and not of_essay:
                wrong(f"{key}= belongs to {'an' if owner == 'exercise' else 'a'} {owner}: {FOR_EXAMPLE}")


def read_name(options: dict[str, Any], key: str, wrong: Wrong) -> str | None:
    """A name as written, valid or not; None if there is nothing that could be one."""
    value = options.get(key)
    if isinstance(value, Unreadable) and value.text:
        wrong(f'{key}={value} needs quotes: write {key}="{value}"')
        return value.text
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        wrong(f"{key}={'' if isinstance(value, Unreadable) else repr(value)} is not a name: {FOR_EXAMPLE}")
        return None
    if not NAME.fullmatch(value):
        small = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-0123456789") or "broadcast-by-hand"
        wrong(f"{key}={value!r}: a name consists of lower-case letters, digits and -, such as {small!r}")
    elif keyword.iskeyword(value):
        wrong(f"{key}={value!r} is a Python keyword: choose another name")
    return value


def read_points(value: Any, wrong: Wrong) -> float:
    if value is None:
        wrong("points are missing: write points=2")
    elif isinstance(value, str):
        wrong(f"points={value!r} is a string: write points=2, without quotes")
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        wrong(f"points={value} is not a number: write points=2")
    elif value <= 0:
        wrong(f"points={value}: a check must be worth more than 0, for example points=2")
    else:
        return int(value) if value == int(value) else value
    return 0


def read_whole(options: dict[str, Any], key: str, allowed: range, wrong: Wrong) -> int:
    """A whole number in a range."""
    value, example = options.get(key), f"{key}={allowed[len(allowed) // 3]}"
    if value is None:
        wrong(f"{key}= is missing: write {example}")
    elif isinstance(value, bool) or not isinstance(value, int):
        wrong(f"{key}={value} is not a whole number: write {example}")
    elif value not in allowed:
        wrong(f"{key}={value} is not between {allowed[0]} and {allowed[-1]}")
    else:
        return value
    return 0


def read_question(options: dict[str, Any], wrong: Wrong) -> str:
    value = options.get("question", "")
    if not isinstance(value, str) or ("question" in options and not value.endswith("?")):
        wrong(f'question={value} is not a question: write question="How do processes meet?"')
        return ""
    return value


def read_tags(options: dict[str, Any], wrong: Wrong) -> tuple[str, ...]:
    tags = options.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag for tag in tags):
        wrong(f'tags={tags} is not a list of strings: write tags=["nbval-ignore-output"]')
        return ()
    if "exercise" in options or "check" in options:
        for tag in GIVE_POINTS_AWAY.intersection(tags):
            wrong(f"the tag {tag!r} would give points for nothing: remove it from exercises and checks")
    return tuple(tags)


def nearest(name: str, names: Iterable[str]) -> str:
    """`: did you mean 'x'?`, or "" if no name is close."""
    near = difflib.get_close_matches(name, list(names), 1)
    return f": did you mean {near[0]!r}?" if near else ""


# ---- the region that holds an answer ---------------------------------------------------------------------------------


def solution_lines(source: str) -> list[tuple[int, str]]:
    """The lines between BEGIN and END SOLUTION, without the two marks, each with its number in `source` (from 0)."""
    lines, inside = [], False
    for number, line in enumerate(source.split("\n")):
        mark = REGION.fullmatch(line)
        if mark:
            inside = mark[1] == "BEGIN"
        elif inside:
            lines.append((number, line))
    return lines


def replace_solution(source: str, body: str) -> str:
    """`source` with every solution region, marks included, replaced by `body`, indented like its BEGIN line."""
    lines, inside = [], False
    for line in source.split("\n"):
        mark = REGION.fullmatch(line)
        if mark and mark[1] == "BEGIN":
            lines += textwrap.indent(textwrap.dedent(body).strip("\n"), indent(line)).split("\n")
        if mark:
            inside = mark[1] == "BEGIN"
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def clear_solution(source: str) -> str:
    """An exercise cell as students get it, with the same text as in nbgrader's release."""
    return replace_solution(source, STUB)


def mentions_region(line: str) -> bool:
    """Whether a person, or nbgrader, which searches the whole line, would take it for the mark of a region."""
    return bool(ALMOST_REGION.match(line)) or "BEGIN SOLUTION" in line or "END SOLUTION" in line


def region_problems(source: str) -> Iterator[tuple[int, str]]:
    """What is wrong with the solution regions of a cell: (line from 0, text)."""
    lines = source.split("\n")
    begin = None
    for number, line in enumerate(lines):
        mark = REGION.fullmatch(line)
        if mark is None:
            continue
        if mark[1] == "BEGIN":
            if begin is not None:
                yield number, "BEGIN SOLUTION inside a solution: end the first one with ### END SOLUTION"
            begin = number
        elif begin is None:
            yield number, "END SOLUTION without a BEGIN: put ### BEGIN SOLUTION before the answer"
        else:
            yield from answer_problems(lines, begin, number)
            begin = None
    if begin is not None:
        yield begin, "BEGIN SOLUTION without an END: put ### END SOLUTION after the answer"


def answer_problems(lines: list[str], begin: int, end: int) -> Iterator[tuple[int, str]]:
    answer = [line for line in lines[begin + 1 : end] if line.strip()]
    if not answer:
        yield begin, "the solution is empty: write the answer between BEGIN and END SOLUTION"
    elif indent(answer[0]) != indent(lines[begin]):
        yield begin, "indent BEGIN SOLUTION exactly like the first line of the answer: the student's stub goes there"


def indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
