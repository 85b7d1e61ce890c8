"""The rules that a lesson's three files keep, beyond being readable. `make build` reports each breach, with its line.

    broken_rules(lesson) -> [Problem]

Each rule is one function in RULES.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from grader.authoring.check_files import (
    answers,
    answers_file,
    checks_file,
    for_students,
    line_with,
    lines_of_checks,
    lines_of_names,
)
from grader.authoring.facts import NEEDS, heading_text, headings_of, plural
from grader.authoring.leaks import leaks_of_lesson
from grader.authoring.lesson import SCORE, BuildError, Cell, Lesson, Problem, parse, shown
from grader.authoring.markers import clear_solution, nearest
from grader.authoring.predictions import PREDICT, only_reveals, prediction_calls

FEWEST_WRONG = 2  # answers to an exercise
HARD = 3  # the difficulty from which an exercise has three hints
COLUMNS = 88  # the widest line that a notebook shows whole on a laptop's screen
FENCED_COLUMNS = 99  # the same for code in a text, which has no frame
HIDDEN_MARK = re.compile(r"^### (BEGIN|END) HIDDEN TESTS$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HINT = re.compile(r"<details><summary>Hint (\d): .+</summary>")
SIGNATURE = 'board_name = ""  # your name on the class\'s board; empty for none'
Breaches = Iterator[Problem]


def broken_rules(lesson: Lesson) -> list[Problem]:
    """Every breach of a rule, in the order of the files and lines."""
    found: list[Problem] = []
    for rule in RULES:
        try:
            found += rule(lesson)
        except BuildError as error:  # a file that can't be loaded
            found += [problem for problem in error.problems if isinstance(problem, Problem)]
    return sorted(set(found))


# ---- solutions/NN_topic.py


def title_and_needs(lesson: Lesson) -> Breaches:
    """The first cell has a title, below it a line that says what students need, and on its marker a question."""
    first = lesson.cells[0]
    lines = [*first.source.split("\n"), ""]
    if first.kind != "markdown" or not lines[0].startswith("# "):
        yield Problem(lesson.file, first.line, "a lesson starts with a markdown cell whose first line is '# Its title'")
    elif not lines[1].startswith(NEEDS):
        what = f"below the title, say what students need: '{NEEDS}lesson 01.*'; `make build` puts the time before it"
        yield Problem(lesson.file, first.body_line + 1, what)
    if not first.marker.question:
        what = 'say which question the lesson answers: # %% [markdown] question="How do processes meet?"'
        yield Problem(lesson.file, first.line, what)
    for cell in lesson.cells[1:]:
        if cell.marker.question:
            yield Problem(lesson.file, cell.line, "question= goes on the first cell: a lesson answers one question")


def headings(lesson: Lesson) -> Breaches:
    """Above each exercise or essay is a heading of its own, in any words: what a textbook would print."""
    said = dict[str, int]()
    for name, heading in headings_of(lesson).items():
        if heading is None:
            kind = "essay" if name in lesson.essays else "exercise"
            line = (lesson.essays.get(name) or lesson.exercises[name]).line
            what = f"{kind} {name!r} has no heading: above it, start a markdown cell with '## ' and a noun phrase"
            yield Problem(lesson.file, line, what)
            continue
        words = heading_text(heading)
        if words in said:
            what = f"the heading {words!r} is on line {said[words]} already: give each exercise its own"
            yield Problem(lesson.file, heading.body_line, what)
        said.setdefault(words, heading.body_line)


def imports_come_first(lesson: Lesson) -> Breaches:
    """All imports are in the first code cell, so that every answer finds them; functions may have their own."""
    code = [cell for cell in lesson.cells if cell.kind == "code"]
    for cell in code[1:]:
        for node in outside_functions(parse(cell.source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                what = f"move this import to the first code cell, on line {code[0].line}: {ast.unparse(node)}"
                yield Problem(lesson.file, cell.body_line + node.lineno - 1, what)


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


def code_is_narrow(lesson: Lesson) -> Breaches:
    """A cell shows its lines whole, except what students don't see of it: solutions, and cells that are folded away."""
    for cell in lesson.cells:
        if cell.kind == "markdown":
            yield from fenced_code_is_narrow(lesson, cell)
        if cell.kind != "code" or only_reveals(cell.source):
            continue
        seen = clear_solution(cell.source).split("\n")
        for number, line in enumerate(cell.source.split("\n")):
            width = len(line.removesuffix('"""'))
            if width > COLUMNS and line in seen:
                words = f"this line is {width} columns wide: break it at {COLUMNS}, so that laptops show all of it"
                yield Problem(lesson.file, cell.body_line + number, words)


def fenced_code_is_narrow(lesson: Lesson, cell: Cell) -> Breaches:
    for block in FENCED.finditer(cell.source):
        first = cell.body_line + cell.source.count("\n", 0, block.start())
        for number, line in enumerate(block[0].split("\n"), first):
            if len(line) > FENCED_COLUMNS:
                words = f"this line of code is {len(line)} columns wide: break it at {FENCED_COLUMNS}"
                yield Problem(lesson.file, number, words)


def predictions_are_answered(lesson: Lesson) -> Breaches:
    """Each `predict` has a `reveal` below it, in a cell that notebooks fold away."""
    open_questions: dict[str, int] = {}
    for call in prediction_calls(lesson):
        if call.question is None:
            yield Problem(lesson.file, call.line, f'{call.name}() starts with its question: {call.name}("bytes", ...)')
        elif call.name == PREDICT:
            if open_questions.setdefault(call.question, call.line) != call.line:
                yield Problem(lesson.file, call.line, f"{call.question!r} is predicted twice: give each its own words")
        elif not only_reveals(call.cell.source):
            what = "give reveal() a cell of its own: notebooks hide its code, because that holds the answer"
            yield Problem(lesson.file, call.line, what)
        elif open_questions.pop(call.question, None) is None:
            close = nearest(call.question, open_questions)
            yield Problem(lesson.file, call.line, f"nobody predicts {call.question!r} above this reveal(){close}")
    for question, line in open_questions.items():
        what = f'nothing below reveals {question!r}: add a cell reveal("{question}", ..., why="...")'
        yield Problem(lesson.file, line, what)


def every_exercise_is_checked(lesson: Lesson) -> Breaches:
    for exercise in lesson.exercises.values():
        if not lesson.checks_of(exercise.name):
            what = f'exercise {exercise.name!r} has no check: add # %% check="{exercise.name}" judges="values" points=2'
            yield Problem(lesson.file, exercise.line, what)


def hard_exercises_have_hints(lesson: Lesson) -> Breaches:
    """Beside each exercise above ●● are three folded hints, from where to look to almost the code."""
    for at, cell in enumerate(lesson.cells):
        exercise = lesson.exercises.get(cell.exercise or "")
        if exercise is None or exercise.difficulty < HARD:
            continue
        beside = [one.source for one in lesson.cells[max(at - 1, 0) : at + 2] if one.kind == "markdown"]
        found = HINT.findall("\n".join(beside))
        if found != ["1", "2", "3"]:
            what = (
                f"{exercise.name!r} needs three hints, in the markdown right above it: <details><summary>Hint 1: where "
                "to look</summary>, Hint 2: the idea, Hint 3: almost the code"
            )
            yield Problem(lesson.file, exercise.line, what)


def a_challenge_ends_the_lesson(lesson: Lesson) -> Breaches:
    """There is one challenge at most. It's the last exercise, only its score is judged, and students can sign it."""
    scored = [check for check in lesson.checks if check.is_extra_credit]
    for check in scored[1:]:
        yield Problem(
            lesson.file, check.line, f"one challenge ends a lesson, and {scored[0].exercise!r} is one already"
        )
    challenge = lesson.challenge
    if challenge is None:
        return
    last = list(lesson.exercises.values())[-1]
    if last != challenge:
        what = f"a challenge ends the lesson: move {challenge.name!r} below {last.name!r}"
        yield Problem(lesson.file, challenge.line, what)
    for check in lesson.checks_of(challenge.name):
        if not check.is_extra_credit:
            what = f"the score of a challenge proves its {check.judges} too: remove this check"
            yield Problem(lesson.file, check.line, what)
    if SIGNATURE not in clear_solution(challenge.source).split("\n"):
        what = f"students sign on the class's board: start the cell of {challenge.name!r} with the line {SIGNATURE}"
        yield Problem(lesson.file, challenge.line, what)
    if (challenge.name, SCORE) not in lines_of_checks(lesson, hidden=True):
        what = f"no hidden test scores {challenge.name!r}: add one, which also computes par (utils/checks/scores.py)"
        yield Problem(lesson.file, challenge.line, what)


# ---- checks_NN.py


def every_check_cell_is_judged(lesson: Lesson) -> Breaches:
    """A visible check for each check cell."""
    file, visible = checks_file(lesson).name, lines_of_checks(lesson)
    for check in lesson.checks:
        if (check.exercise, check.judges) not in visible:
            wanted = f'@check("{check.exercise}", judges="{check.judges}")'
            what = f"no visible check judges the {check.judges!r} of {check.exercise!r}: add {wanted} to {file}"
            yield Problem(lesson.file, check.line, what)


def every_check_runs(lesson: Lesson) -> Breaches:
    """A cell for each visible check, and for each hidden test."""
    asked = {(check.exercise, check.judges) for check in lesson.checks}
    for kind, hidden in (("visible check", False), ("hidden test", True)):
        for (exercise, judges), line in lines_of_checks(lesson, hidden).items():
            if (exercise, judges) not in asked:
                cell = f'# %% check="{exercise}" judges="{judges}"'
                what = f"the {kind} of {exercise!r} for {judges!r} never runs: {lesson.file} has no cell {cell}"
                yield Problem(shown(checks_file(lesson)), line, what)


def what_is_hidden_is_marked(lesson: Lesson) -> Breaches:
    """Students' checks are complete without what is hidden, and hold no hidden test."""
    lines_of_checks(lesson, hidden=True)  # they can be read
    path = checks_file(lesson)
    file, text, students = shown(path), path.read_text(encoding="utf-8"), for_students(path)
    if left := HIDDEN_MARK.search(students):
        there, lacks = left[1], "END" if left[1] == "BEGIN" else "BEGIN"
        line = text.split("\n").index(left[0]) + 1
        yield Problem(file, line, f"{there} HIDDEN TESTS without {lacks} HIDDEN TESTS")
        return
    for_all, hidden = globals_of(students), globals_of(text) - globals_of(students)
    for name in for_all:
        if name.startswith("hidden_"):
            what = f"{name!r} is not between BEGIN and END HIDDEN TESTS, so students would get it"
            yield Problem(file, lines_of_names(checks_file(lesson)).get(name, 1), what)
    for node in ast.walk(ast.parse(students)):
        if isinstance(node, ast.Name) and node.id in hidden and isinstance(node.ctx, ast.Load):
            source = students.split("\n")[node.lineno - 1]
            what = f"{node.id!r} is hidden, but this line is for students too: move one of them"
            yield Problem(file, line_with(checks_file(lesson), source), what)


def globals_of(source: str) -> set[str]:
    """The names that a module binds at its top level."""
    table = symtable.symtable(source, "checks", "exec")
    return {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}


# ---- answers_NN.py


def answers_fit(lesson: Lesson) -> Breaches:
    """Each answer applies to its exercise's solution, and no two are the same."""
    for text in answers(lesson).problems(lesson):
        exercise, name = text.partition(": ")[0].split("/")
        line = line_with(answers_file(lesson), f'to("{exercise}")', f'"{name}"')
        yield Problem(shown(answers_file(lesson)), line, text)


def every_exercise_has_wrong_answers(lesson: Lesson) -> Breaches:
    """At least two, because a check that only the solution has passed proves little."""
    counts = Counter(mutant.exercise for mutant in answers(lesson).wrong)
    for name in lesson.exercises:
        if counts[name] < FEWEST_WRONG:
            line = line_with(answers_file(lesson), f'to("{name}")')
            what = f"{plural(counts[name], 'wrong answer')} to {name!r}: give at least {FEWEST_WRONG}, usual ones"
            yield Problem(shown(answers_file(lesson)), line, what)


RULES: tuple[Callable[[Lesson], Iterable[Problem]], ...] = (
    title_and_needs,
    headings,
    imports_come_first,
    code_is_narrow,
    predictions_are_answered,
    every_exercise_is_checked,
    hard_exercises_have_hints,
    a_challenge_ends_the_lesson,
    leaks_of_lesson,  # what ships holds no line of an answer
    every_check_cell_is_judged,
    every_check_runs,
    what_is_hidden_is_marked,
    answers_fit,
    every_exercise_has_wrong_answers,
)
