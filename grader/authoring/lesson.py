"""Read a lesson's source, `solutions/NN_topic/lesson_NN.py`, and report everything malformed in it.

A source is a jupytext percent script with the markers of `grader.authoring.markers`. `grader.authoring.build` makes
the notebooks from the result, and tests read exercises with it.

    read_lesson(path) -> Lesson             raises one BuildError with every problem in the file
    find_lessons(names, root) -> [Path]
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jupytext
from IPython.core.inputtransformer2 import TransformerManager

from grader.authoring.markers import (
    ALMOST_MARKER,
    FOR_EXAMPLE,
    MARKER,
    REGION,
    STUB,
    Marker,
    clear_solution,
    mentions_region,
    nearest,
    read_marker,
    region_problems,
    solution_lines,
)

ROOT = Path(__file__).resolve().parents[2]
LESSON_NAME = re.compile(r"\d\d(_[a-z0-9]+)+")
RUBRIC = re.compile(r"^- ([\d.]+) points?: ", re.MULTILINE)
NOT_AN_ESSAY = (
    "an essay's cell holds BEGIN and END SOLUTION alone, between them a model answer and a rubric whose points add up "
    "to the essay's, in lines such as '- 2 points: names the link'"
)
SCORE = "score"  # judged by the check of a challenge
NOT_A_NAME = "a lesson must be called NN_topic, such as 01_collectives (lower-case, digits, _)"
HEADER = re.compile(r"# ---\n(#.*\n)*?# ---\n")  # jupytext adds it when the file is saved from JupyterLab
NOT_HERE = re.compile(r"(BEGIN|END) (HIDDEN TESTS|MARK SCHEME)|### (HASHED )?AUTOTEST|grader\.hidden")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")


# ---- what a lesson is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One cell. `line` is the line of its `# %%` marker, `body_line` the first line of its source (both from 1)."""

    kind: str  # "markdown", "code" or "raw"
    source: str
    line: int
    body_line: int
    marker: Marker = Marker()
    check: Check | None = None

    @property
    def exercise(self) -> str | None:
        """The name of the exercise that students write in this cell."""
        return self.marker.exercise


@dataclass(frozen=True)
class Exercise:
    """A function that students write. `source` is the whole cell, solution included; `line` is its marker's.

    difficulty: from 1 to 5. minutes: what it takes most students, from 5 to 20.
    """

    name: str
    source: str
    line: int
    difficulty: int
    minutes: int

    @property
    def function(self) -> str:
        """The name of the Python function: `broadcast_by_hand` for `broadcast-by-hand`."""
        return function_of(self.name)


@dataclass(frozen=True)
class Check:
    """A graded cell: which exercise it checks, what it judges, and its points."""

    exercise: str
    judges: str
    points: float
    line: int

    @property
    def id(self) -> str:
        """The cell's id and nbgrader's grade_id."""
        return f"{self.exercise}-{self.judges}"

    @property
    def is_extra_credit(self) -> bool:
        """Whether it judges a challenge: its points are beyond those of the lesson."""
        return self.judges == SCORE

    @property
    def call(self) -> str:
        """What its cell says."""
        extra = f", extra_credit={self.points:g}" if self.is_extra_credit else ""
        return f'check({function_of(self.exercise)}, judges="{self.judges}"{extra})'


@dataclass(frozen=True)
class Essay:
    """A question to answer in words, which a person grades. text: a model answer and the rubric."""

    name: str
    text: str
    line: int
    minutes: int
    points: float


@dataclass(frozen=True)
class Lesson:
    """A lesson as written: cells, exercises by name, checks, and essays by name, all in order."""

    path: Path
    cells: tuple[Cell, ...]
    exercises: dict[str, Exercise] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    essays: dict[str, Essay] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`01_collectives`: names its room, both notebooks and the gradebook's assignment."""
        return self.path.parent.name

    @property
    def root(self) -> Path:
        """The folder of the course that the lesson belongs to."""
        return self.path.parents[2]

    @property
    def room(self) -> Path:
        """The folder with everything that is written for the lesson, and what `make build` makes of it."""
        return self.path.parent

    @property
    def file(self) -> str:
        """`solutions/01_collectives/lesson_01.py`, the name in messages."""
        return shown(self.path)

    @property
    def points(self) -> float:
        """Without extra credit."""
        checks = [check.points for check in self.checks if not check.is_extra_credit]
        return sum(checks) + sum(essay.points for essay in self.essays.values())

    @property
    def challenge(self) -> Exercise | None:
        """The exercise that a check of its score judges; None if there is none."""
        names = [check.exercise for check in self.checks if check.is_extra_credit]
        return self.exercises[names[0]] if names else None

    @property
    def required(self) -> list[Exercise]:
        """All exercises but the challenge."""
        return [exercise for exercise in self.exercises.values() if exercise != self.challenge]

    def checks_of(self, exercise: str) -> list[Check]:
        """The checks of one exercise, in order."""
        return [check for check in self.checks if check.exercise == exercise]


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to fix, and where it is."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


class BuildError(Exception):
    """A lesson can't be built until these problems are fixed. The message has one line per problem."""

    def __init__(self, problems: Iterable[Problem | str]):
        self.problems = list(problems)
        super().__init__("\n".join(map(str, self.problems)))


def checks_name(room: Path) -> str:
    return f"checks_{room.name[:2]}.py"


def function_of(exercise: str) -> str:
    return exercise.replace("-", "_")


def shown(path: Path) -> str:
    """`solutions/01_collectives/lesson_01.py`"""
    return "/".join(path.parts[-3:])


# ---- finding and reading ---------------------------------------------------------------------------------------------


def find_lessons(names: Iterable[str] = (), root: Path = ROOT) -> list[Path]:
    """The sources of the lessons called `names` (`01_collectives`, "01", or a path), or of all lessons.

    Raises BuildError if there is no such lesson, or if a folder in solutions/ is not called NN_topic.
    """
    rooms = [room for room in sorted((root / "solutions").glob("[!._]*/")) if list(room.glob("lesson_*.py"))]
    wrong = [room.name for room in rooms if not LESSON_NAME.fullmatch(room.name)]
    if wrong:
        raise BuildError(Problem(f"solutions/{name}", 1, NOT_A_NAME) for name in wrong)
    if not rooms:
        raise BuildError(["there is no lesson: solutions/ holds no NN_topic/lesson_NN.py"])
    sources = {room.name: source_file(room) for room in rooms}
    by_number = {name[:2]: name for name in sources}
    wanted = [by_number.get(stem.zfill(2), stem) for stem in map(lesson_named, names)]
    missing = [name for name in wanted if name not in sources]
    if missing:
        there_are = f"there are: {', '.join(sources)}"
        raise BuildError(f"there is no lesson called {name!r}{nearest(name, sources)}; {there_are}" for name in missing)
    return [sources[name] for name in dict.fromkeys(wanted or sources)]


def source_file(room: Path) -> Path:
    """solutions/01_collectives/lesson_01.py"""
    return room / f"lesson_{room.name[:2]}.py"


def lesson_named(name: str) -> str:
    """The lesson that `01_collectives`, a path to its room, or to a file there means; "01" stays as it is."""
    path = Path(name)
    return path.parent.name if path.suffix else path.name


def read_lesson(path: str | Path) -> Lesson:
    """Read one lesson. Raises BuildError with every problem in the file, in the order of the lines."""
    path = Path(path).resolve()
    return read_source(path, Reader(path).read_text())


@lru_cache(maxsize=64)  # jupytext takes half a second for a lesson, and most commands read them more than once
def read_source(path: Path, text: str) -> Lesson:
    reader = Reader(path)
    cells = reader.read_cells(text)
    exercises = reader.exercises(cells)
    checks = reader.checks(cells, exercises)
    essays = reader.essays(cells)
    reader.unique_ids(exercises, checks, essays)
    reader.stop_if_wrong()
    return Lesson(path, tuple(cells), exercises, tuple(checks), essays)


class Reader:
    """Reads one file and collects its problems, so that the author can fix them all at once."""

    def __init__(self, path: Path):
        self.path = path
        self.problems: list[Problem] = []

    def wrong(self, line: int, text: str) -> None:
        self.problems.append(Problem(shown(self.path), line, text))

    def stop_if_wrong(self) -> None:
        if self.problems:
            raise BuildError(sorted(set(self.problems)))

    # -- the file

    def read_text(self) -> str:
        if not LESSON_NAME.fullmatch(self.path.parent.name):
            self.wrong(1, NOT_A_NAME)
        elif self.path != source_file(self.path.parent):
            self.wrong(1, f"the file must be called {source_file(self.path.parent).name}")
        text = ""
        try:
            text = self.path.read_bytes().decode("utf-8-sig")
        except FileNotFoundError:
            self.wrong(1, "there is no such file")
        except IsADirectoryError:
            self.wrong(1, "this is a folder, not a file")
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            self.wrong(line, f"byte {error.object[error.start]:#04x} is not UTF-8: save the file as UTF-8")
        else:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
            for line, content in enumerate(text.split("\n"), 1):
                if CONTROL.search(content):
                    self.wrong(line, "there is a control character in this line: remove it")
            if not text.strip():
                self.wrong(1, "the file is empty: a lesson starts with # %% [markdown]")
        self.stop_if_wrong()
        return text

    def read_cells(self, text: str) -> list[Cell]:
        """Split the text into cells with jupytext, and find the line of each."""
        lines = text.split("\n")
        marker_lines = [number for number, line in enumerate(lines, 1) if MARKER.match(line)]
        header = HEADER.match(text)
        first_line = header[0].count("\n") if header else 0
        if any(line.strip() for line in lines[first_line : marker_lines[0] - 1 if marker_lines else None]):
            self.wrong(first_line + 1, "there is text before the first cell: start it with # %% [markdown]")
        elif not marker_lines:
            self.wrong(1, "there is no cell: a lesson starts with # %% [markdown]")
        self.stop_if_wrong()
        cells, free = [], 1
        for cell in self.cut(lines, marker_lines):
            line = next(number for number in marker_lines if number >= free)  # the ones skipped are inside strings
            free = line + 1 + cell.source.count("\n")
            source = cell.source.lstrip("\n")
            body_line = line + 1 + len(cell.source) - len(source)
            cells.append(self.cell(cell.cell_type, source.rstrip(), line, body_line, lines[line - 1]))
        return cells

    def cut(self, lines: list[str], marker_lines: list[int]) -> list[Any]:
        """jupytext's cells. If it fails, because some marker's tags are not a list, report that marker."""
        try:
            return jupytext.reads("\n".join(lines[marker_lines[0] - 1 :]), fmt="py:percent").cells
        except Exception as error:
            for line in marker_lines:
                read_marker(lines[line - 1], "code", partial(self.wrong, line))
            if not self.problems:
                self.wrong(1, f"jupytext can't read this file: {str(error).splitlines()[0]}")
            raise BuildError(self.problems) from error

    # -- one cell

    def cell(self, kind: str, source: str, line: int, body_line: int, marker_text: str) -> Cell:
        marker = read_marker(marker_text, kind, partial(self.wrong, line))
        check = None if marker.check is None else Check(marker.check, marker.judges, marker.points, line)
        cell = Cell(kind, source, line, body_line, marker, check)
        if not source:
            self.wrong(line, "this cell is empty: fill it or remove its marker")
            return cell
        self.text(cell)
        if kind == "code":
            self.code(cell)
        return cell

    # -- the text of a cell

    def text(self, cell: Cell) -> None:
        """Find marks that nbgrader would act on, and misspelled marks, in a cell of any kind."""
        comments = comment_lines(cell.source) if cell.kind == "code" else set()
        for line, content in enumerate(cell.source.split("\n"), cell.body_line):
            if found := NOT_HERE.search(content):
                where = checks_name(self.path.parent)
                self.wrong(line, f"{found[0]!r} doesn't belong here: hidden tests go in {where}")
            if line - cell.body_line in comments and MARKER.match(content):
                self.wrong(line, "jupytext takes this marker for part of a string: check the quotes above it")
            elif line - cell.body_line in comments and ALMOST_MARKER.match(content):
                self.wrong(line, "this looks like a cell marker: start it with '# %% '")
            if REGION.fullmatch(content) or not mentions_region(content):
                continue
            self.wrong(line, f"write ### BEGIN SOLUTION or ### END SOLUTION alone on its line, not {content.strip()!r}")

    def code(self, cell: Cell) -> None:
        try:
            parse(cell.source)
        except SyntaxError as error:
            self.wrong(cell.body_line + (error.lineno or 1) - 1, f"not Python: {error.msg}")
        for offset, text in region_problems(cell.source):
            self.wrong(cell.body_line + offset, text)
        marks = [i for i, line in enumerate(cell.source.split("\n")) if REGION.fullmatch(line)]
        if cell.exercise is None:
            if marks:
                self.wrong(cell.body_line + marks[0], f"a solution outside an exercise: {FOR_EXAMPLE}")
        elif not marks:
            self.wrong(cell.line, f"exercise {cell.exercise!r} has no ### BEGIN SOLUTION and ### END SOLUTION")
        if cell.check is not None:
            self.check_source(cell, cell.check)

    def check_source(self, cell: Cell, check: Check) -> None:
        try:
            right = ast.dump(parse(cell.source)) == ast.dump(ast.parse(check.call))
        except SyntaxError:
            right = not check.exercise.isidentifier()  # reported already, for the name or the code
        if not right:
            self.wrong(cell.line, f"a check cell must hold exactly one line: {check.call}")

    # -- all cells together

    def exercises(self, cells: list[Cell]) -> dict[str, Exercise]:
        exercises: dict[str, Exercise] = {}
        for cell in cells:
            if not cell.exercise:
                continue
            if cell.exercise in exercises:
                first = f"the first on line {exercises[cell.exercise].line}"
                self.wrong(cell.line, f"two exercises are called {cell.exercise!r} ({first}): rename one")
            elif cell.kind == "code":
                difficulty, minutes = cell.marker.difficulty, cell.marker.minutes
                exercises[cell.exercise] = Exercise(cell.exercise, cell.source, cell.line, difficulty, minutes)
                self.function(cell, cell.exercise)
        return exercises

    def function(self, cell: Cell, exercise: str) -> None:
        """Check that the cell defines the exercise's function, and that the student's version of it is valid Python."""
        name = function_of(exercise)
        last = cell.body_line + cell.source.count("\n")
        if any(cell.body_line <= problem.line <= last for problem in self.problems):
            return
        try:
            given = functions(clear_solution(cell.source))
        except SyntaxError as error:
            self.wrong(cell.line, f"without its solution the cell is not Python: {error.msg}")
            return
        whole = functions(cell.source)
        if name in whole and name not in given:
            self.wrong(cell.line, f"def {name} is inside the solution: move BEGIN SOLUTION below it")
        elif name not in given:
            there = ", ".join(whole) or "no function"
            self.wrong(cell.line, f"exercise {cell.exercise!r} needs def {name}(...), but this cell defines {there}")

    def checks(self, cells: list[Cell], exercises: dict[str, Exercise]) -> list[Check]:
        seen: dict[tuple[str, str], Check] = {}
        for check in (cell.check for cell in cells if cell.check):
            first = seen.setdefault((check.exercise, check.judges), check)
            exercise = exercises.get(check.exercise)
            if first is not check:
                both = f"judge the {check.judges!r} of {check.exercise!r} (the first on line {first.line})"
                self.wrong(check.line, f"two checks {both}: remove one, or change judges=")
            if exercise is None and check.exercise:
                hint = nearest(check.exercise, exercises) or "; there are no exercises" * (not exercises)
                self.wrong(check.line, f"this check names the unknown exercise {check.exercise!r}{hint}")
            elif exercise is not None and check.line < exercise.line:
                self.wrong(check.line, f"this check comes before its exercise (line {exercise.line}): move it below")
        return list(seen.values())

    def essays(self, cells: list[Cell]) -> dict[str, Essay]:
        essays: dict[str, Essay] = {}
        for cell in cells:
            name, marker = cell.marker.essay, cell.marker
            if not name:
                continue
            text = "\n".join(line for _, line in solution_lines(cell.source))
            given = clear_solution(cell.source) == STUB
            worth = sum(float(points) for points in RUBRIC.findall(text))
            if not given or worth != marker.points:
                self.wrong(cell.line, f"{NOT_AN_ESSAY}; its points are {worth:g} of {marker.points:g}")
            elif name in essays:
                self.wrong(cell.line, f"two essays are called {name!r}: rename one")
            essays[name] = Essay(name, text, cell.line, marker.minutes, marker.points)
        return essays

    def unique_ids(self, exercises: dict[str, Exercise], checks: list[Check], essays: dict[str, Essay]) -> None:
        for essay in essays.values():
            if essay.name in {*exercises, *(check.id for check in checks)}:
                self.wrong(essay.line, f"the name {essay.name!r} is taken: rename the essay")
        for check in checks:
            if check.id in exercises:
                self.wrong(check.line, f"the cell id {check.id!r} is also the name of an exercise: rename one")
            if len(check.id) > 64:
                self.wrong(
                    check.line, f"{check.id!r} is longer than a cell's id can be (64 characters): shorten the name"
                )


# ---- small readers ---------------------------------------------------------------------------------------------------


def parse(source: str) -> ast.Module:
    """A cell's syntax tree. Magics and top-level await are allowed, as in a notebook."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compile(source, "cell", "exec", flags)
    except SyntaxError:  # a magic, or a mistake; looking for magics takes ten times as long as parsing
        return compile(TransformerManager().transform_cell(source), "cell", "exec", flags)


def comment_lines(source: str) -> set[int]:
    """The lines of a cell (from 0) that are only a comment. A # inside a string doesn't count."""
    lines = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
                lines.add(token.start[0] - 1)
    except (tokenize.TokenError, SyntaxError):
        pass  # reported when the cell is parsed
    return lines


def functions(source: str) -> list[str]:
    return [node.name for node in parse(source).body if isinstance(node, ast.FunctionDef)]
