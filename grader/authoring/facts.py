"""What is said about a lesson and its exercises, computed from the markers of its source, so that it's written once.

    shown_cells(lesson) -> [Cell]    the lesson's cells with these lines put in, as notebooks show them:
        under the title      *about 3 h 40 min · 13 exercises · 56 points · you need: lesson 01.*
        under a heading      difficulty ●●○○○ · about 10 minutes · 3 points: values 2, memory 1
                             with the exercise's name first, if the heading says something else
    minutes(lesson) -> int           how long the lesson takes
    students_table(lessons) -> str   the table for the README of the students' bundle
    readme_with(readme, lessons)     README.md's table with a row for each of these lessons

Of these, the author writes only the line under the title, as `*you need: lesson 01.*`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from grader.authoring.lesson import BuildError, Cell, Check, Lesson

TABLE = re.compile(r"(<!-- lessons: .*?-->\n)(.*?)(\n<!-- end of lessons -->)", re.DOTALL)
HEADER = "| lesson | question it answers | time | exercises | points |\n| --- | --- | --- | --- | --- |"
ROW = re.compile(r"^(\| \[.*\]\(notebooks/(\w+)/.*)$", re.MULTILINE)
NEEDS = "*you need: "  # starts the line under the title
NEEDED = re.compile(rf"^{re.escape(NEEDS)}(.*?)\*$", re.DOTALL | re.MULTILINE)
WORDS_A_MINUTE = 180
MINUTES_A_PREDICTION = 2
PREDICTION = re.compile(r"\*\*predict\*\*", re.IGNORECASE)


def minutes(lesson: Lesson) -> int:
    """How long the lesson takes, rounded up to ten minutes.

    It's the minutes of its exercises without the challenge, two for each "**Predict**", and the time to read its text
    at 180 words a minute. The text is that of the markdown cells. Comments in code are left out: in no lesson are they
    two minutes' reading.
    """
    text = "\n".join(cell.source for cell in lesson.cells if cell.kind == "markdown" and not cell.marker.essay)
    words = sum(any(map(str.isalnum, word)) for word in text.split())
    exercises = sum(exercise.minutes for exercise in lesson.required)
    exercises += sum(essay.minutes for essay in lesson.essays.values())
    total = exercises + MINUTES_A_PREDICTION * len(PREDICTION.findall(text)) + words / WORDS_A_MINUTE
    return 10 * -int(-total // 10)


def shown_cells(lesson: Lesson) -> list[Cell]:
    """The cells as notebooks show them. A cell with a missing title or heading stays as it is."""
    headings = {heading.line: exercise for exercise, heading in headings_of(lesson).items() if heading}
    shown = []
    for cell in lesson.cells:
        source = cell.source
        if cell is lesson.cells[0]:
            source = source.replace(f"\n{NEEDS}", f"\n*{about_lesson(lesson)} · {NEEDS.lstrip('*')}", 1)
        elif cell.line in headings:
            name = headings[cell.line]
            line = about(lesson, name)
            if re.sub(r"[^a-z0-9]+", "-", heading_text(cell).lower()).strip("-") != name:
                line = f"`{name}` · {line}"  # as checks and the gradebook call it
            heading, _, text = source.partition("\n")
            source = f"{heading}\n{line}\n\n{text.lstrip()}".rstrip()  # a paragraph of its own
        shown.append(replace(cell, source=source))
    return shown


def headings_of(lesson: Lesson) -> dict[str, Cell | None]:
    """{exercise or essay: the last cell above it that starts with `## `}, each cell for one of them at most."""
    headings: dict[str, Cell | None] = {}
    heading = None
    for cell in lesson.cells:
        if cell.kind == "markdown" and cell.source.startswith("## "):
            heading = cell
        elif name := cell.exercise or cell.marker.essay:
            headings[name], heading = heading, None
    return headings


def heading_text(heading: Cell) -> str:
    return heading.source.split("\n")[0].removeprefix("## ")


def about_lesson(lesson: Lesson) -> str:
    counts = [plural(len(lesson.required), "exercise"), plural(lesson.points, "point")]
    counts += ["a challenge"] * bool(lesson.challenge)
    return " · ".join([f"about {hours(minutes(lesson))}", *counts])


def about(lesson: Lesson, name: str) -> str:
    """What the line under the heading of an exercise or an essay says."""
    if essay := lesson.essays.get(name):
        return f"about {essay.minutes} minutes · {plural(essay.points, 'point')}, graded by a person"
    exercise, checks = lesson.exercises[name], lesson.checks_of(name)
    difficulty = "●" * exercise.difficulty + "○" * (5 - exercise.difficulty)
    points = plural(sum(check.points for check in checks), "point")
    if any(check.is_extra_credit for check in checks):
        return f"difficulty {difficulty} · about {exercise.minutes} minutes · challenge: {points} of extra credit"
    return f"difficulty {difficulty} · about {exercise.minutes} minutes · {points}: {parts(checks)}"


def parts(checks: tuple[Check, ...] | list[Check]) -> str:
    """What checks judge and their points: `values 3, virtual time 1`."""
    points: dict[str, float] = {}
    for check in checks:
        points[check.judges] = points.get(check.judges, 0) + check.points
    return ", ".join(f"{judges.replace('-', ' ')} {number:g}" for judges, number in points.items())


def hours(minutes: int) -> str:
    """`2 h 40 min`, `3 h` or `50 min`."""
    words = [f"{minutes // 60} h"] * (minutes >= 60) + [f"{minutes % 60} min"] * (minutes % 60 > 0)
    return " ".join(words)


def plural(number: float, word: str) -> str:
    return f"{number:g} {word}{'s' * (number != 1)}"


def row(lesson: Lesson) -> str:
    """The lesson's row in README.md's table. Its link leads to the students' notebook, never to the solution."""
    title = f"{lesson.name[:2]} · {lesson.cells[0].source.splitlines()[0].removeprefix('# ')}"
    link = f"[{title}](notebooks/{lesson.name}/{lesson.name}.ipynb)"
    counts = f"{len(lesson.required)} | {lesson.points:g}"
    return f"| {link} | {lesson.cells[0].marker.question} | {hours(minutes(lesson))} | {counts} |"


def students_table(lessons: Iterable[Lesson]) -> str:
    """The table of lessons for the students' README, in their order: time, exercises, what it takes to begin."""
    rows = ["| lesson | time | exercises | you need |", "| --- | --- | --- | --- |"]
    for lesson in lessons:
        title = lesson.cells[0].source.splitlines()[0]
        needs = " ".join(NEEDED.findall(lesson.cells[0].source)).replace("\n", " ")
        name = f"[{lesson.name[:2]} · {title.removeprefix('# ')}](notebooks/{lesson.name}/{lesson.name}.ipynb)"
        rows.append(f"| {name} | {hours(minutes(lesson))} | {len(lesson.required)} | {needs} |")
    return "\n".join(rows)


def readme_with(readme: str, lessons: Iterable[Lesson], others: bool = False) -> str:
    """README.md with these lessons' rows in its table.

    others      keep the rows of other lessons, whose sources need not even be readable now
    Raises BuildError if nothing says where the table goes.
    """
    found = TABLE.search(readme)
    if not found:
        raise BuildError(
            ["README.md:1: the table of lessons goes between '<!-- lessons: ... -->' and '<!-- end of lessons -->'"]
        )
    rows = {name: line for line, name in ROW.findall(found[2])} if others else {}
    rows |= {lesson.name: row(lesson) for lesson in lessons}
    table = "\n".join([HEADER, *(rows[name] for name in sorted(rows))])
    return TABLE.sub(lambda _: found[1] + table + found[3], readme)
