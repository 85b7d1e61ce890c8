"""The markers of a lesson's source: the line that starts a cell, and the region that holds an answer.

    # %% exercise="broadcast-by-hand"                           a function with ### BEGIN SOLUTION ... ### END SOLUTION
    # %% check="broadcast-by-hand" judges="values" points=2     one call of check(); judges is "values" unless told

`grader.authoring.lesson` reads a whole source with it and says where each problem stands.
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

KEYS = ("exercise", "check", "judges", "points", "tags")
GIVE_POINTS_AWAY = {"skip-execution", "raises-exception"}  # a cell that never runs, a check that may fail
STUB = "# YOUR CODE HERE\nraise NotImplementedError()"  # nbgrader's own, so that both make the same release
FOR_EXAMPLE = 'write # %% exercise="broadcast-by-hand", or # %% check="broadcast-by-hand" judges="values" points=2'

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MARKER = re.compile(r"\s*#\s*(%%%*(?=\s|$)|<codecell>\s*$|In\[[0-9 ]*\]:?\s*$)")  # every line that jupytext cuts at
OPTION = re.compile(r"""([A-Za-z_]\w*)\s*=\s*("[^"]*"|'[^']*'|\[[^\]]*\]|[^\s"'\[]*)""")
ALMOST_MARKER = re.compile(r"""\s*#[#\s%]*(exercise|check)\s*=\s*["']""")
REGION = re.compile(r"\s*### (BEGIN|END) SOLUTION\s*")
ALMOST_REGION = re.compile(r"\s*#+\s*(begin|end)[\s_-]*sol\w*", re.IGNORECASE)

Wrong = Callable[[str], None]  # is told each problem


# ---- the line that starts a cell -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Marker:
    """What a cell's first line says: an exercise's name, or what its check judges for how many points; its tags."""

    exercise: str | None = None
    check: str | None = None
    judges: str = "values"
    points: float = 0
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unreadable:
    """A value that is no Python literal, as it was written."""

    text: str

    def __str__(self) -> str:
        return self.text


def read_marker(line: str, kind: str, wrong: Wrong) -> Marker:
    """Read the line that starts a cell of this kind ("code", "markdown", "raw"). A problem leaves its part out."""
    options = read_options(line, wrong)
    in_its_place(options, kind, wrong)
    is_check = "check" in options
    return Marker(
        exercise=read_name(options, "exercise", wrong),
        check=(read_name(options, "check", wrong) or "") if is_check else None,
        judges=(is_check and read_name(options, "judges", wrong)) or "values",
        points=read_points(options.get("points"), wrong) if is_check else 0,
        tags=read_tags(options, wrong),
    )


def read_options(line: str, wrong: Wrong) -> dict[str, Any]:
    """The key=value pairs of a marker. A key that is nearly right counts as the right one from there on."""
    if not re.match(r"# ?%%(\s|$)", line):
        wrong(f"write a cell marker as '# %%' at the start of the line, not {line.strip()!r}")
    marker = MARKER.match(line)
    text = re.sub(r"^\s*\[(markdown|md|raw)\]", "", line[marker.end() :] if marker else line)
    options: dict[str, Any] = {}
    for key, value in OPTION.findall(text):
        if key not in KEYS:
            wrong(f"unknown key {key}={nearest(key, KEYS)}; a marker knows {', '.join(KEYS)}")
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


def in_its_place(options: dict[str, Any], kind: str, wrong: Wrong) -> None:
    ours = [key for key in ("exercise", "check", "judges", "points") if key in options]
    if ours and kind != "code":
        wrong(f"{ours[0]}= stands on a {kind} cell: write the marker without [{kind}]")
    if "exercise" in options and "check" in options:
        wrong("a cell is an exercise or a check: make two cells of it")
    for key in ("judges", "points"):
        if key in options and "check" not in options:
            wrong(f"{key}= belongs to a check: {FOR_EXAMPLE}")


def read_name(options: dict[str, Any], key: str, wrong: Wrong) -> str | None:
    """A name as it was written, right or wrong; None where there is nothing that could be one."""
    value = options.get(key)
    if isinstance(value, Unreadable) and value.text:
        wrong(f'{key}={value} needs quotes: write {key}="{value}"')
        return value.text
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        wrong(f"{key}={'' if isinstance(value, Unreadable) else repr(value)} is no name: {FOR_EXAMPLE}")
        return None
    if not NAME.fullmatch(value):
        small = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-0123456789") or "broadcast-by-hand"
        wrong(f"{key}={value!r}: a name is small letters, digits and -, as {small!r}")
    elif keyword.iskeyword(value):
        wrong(f"{key}={value!r} is a word of Python's own: choose another name")
    return value


def read_points(value: Any, wrong: Wrong) -> float:
    if value is None:
        wrong("points are missing: write points=2")
    elif isinstance(value, str):
        wrong(f"points={value!r} is a text: write points=2, without quotes")
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        wrong(f"points={value} is not a number: write points=2")
    elif value <= 0:
        wrong(f"points={value}: a check is worth more than 0, write points=2")
    else:
        return int(value) if value == int(value) else value
    return 0


def read_tags(options: dict[str, Any], wrong: Wrong) -> tuple[str, ...]:
    tags = options.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag for tag in tags):
        wrong(f'tags={tags} is no list of texts: write tags=["nbval-ignore-output"]')
        return ()
    if "exercise" in options or "check" in options:
        for tag in GIVE_POINTS_AWAY.intersection(tags):
            wrong(f"the tag {tag!r} would give points for nothing: remove it from exercises and checks")
    return tuple(tags)


def nearest(name: str, names: Iterable[str]) -> str:
    """`: did you mean 'x'?`, or nothing when no name is near."""
    near = difflib.get_close_matches(name, list(names), 1)
    return f": did you mean {near[0]!r}?" if near else ""


# ---- the region that holds an answer ---------------------------------------------------------------------------------


def solution_lines(source: str) -> list[tuple[int, str]]:
    """The lines between BEGIN and END SOLUTION with their number in `source`, from 0; the two marks are left out."""
    lines, inside = [], False
    for number, line in enumerate(source.split("\n")):
        mark = REGION.fullmatch(line)
        if mark:
            inside = mark[1] == "BEGIN"
        elif inside:
            lines.append((number, line))
    return lines


def replace_solution(source: str, body: str) -> str:
    """`source` with every solution region, marks included, replaced by `body`, indented as its BEGIN line is."""
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
    """An exercise cell as a student gets it: the same text that nbgrader puts into the release."""
    return replace_solution(source, STUB)


def mentions_region(line: str) -> bool:
    """Whether nbgrader, which looks for the words anywhere in a line, or a person would take it for a region's mark."""
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
                yield number, "BEGIN SOLUTION inside a solution: close the first one with ### END SOLUTION"
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
        yield begin, "indent BEGIN SOLUTION exactly as the first line of the answer: the student's stub stands there"


def indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
