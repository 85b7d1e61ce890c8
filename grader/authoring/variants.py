"""Answers other than the solution: wrong ones that people really give, and right ones written differently.

    ANSWERS = Answers()

    wrong, right = ANSWERS.to("broadcast-by-hand")
    wrong("forgets-to-receive", "finished without receiving it").replace("dist.recv(received, src=root)", "pass")
    wrong("overwrites", sentence="the last tensor that arrived: add, don't replace your own").replace("+=", "=")
    wrong("uses-the-library", "your function calls", caught_by="traffic").body("dist.broadcast(received, src=root)")
    right("receives-from-anybody").replace("recv(received, src=root)", "recv(received)")

A wrong answer with a sentence is all that it takes to name a mistake: `make build` writes down what the answer leads
to, and whoever gets the same reads "That is the last tensor that arrived: ...". Where the check finds the words by
itself, give some of them instead, as in the first and the last. CONTRIBUTING.md says how to write a sentence.

`replace` works on the cell's code without docstrings and comments, and replaces every occurrence. In text of several
lines, indent the later ones relative to the line on which the first one begins. `body` replaces what the solution has
between its marks, `function` all that the exercise's function does, and `cell` everything. An answer that is almost
another one starts there instead of at the solution: `wrong(...).like(other).replace(...)`.
"""

from __future__ import annotations

import ast
import difflib
import functools
import io
import runpy
import textwrap
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Self

from grader.authoring.lesson import Lesson, function_of
from grader.authoring.markers import indent, nearest, replace_solution


@dataclass
class Variant:
    """An answer to one exercise: the solution, or the answer `base`, changed in one of the ways above."""

    exercise: str
    name: str
    _: KW_ONLY
    pairs: list[tuple[str, str]] = field(default_factory=list)
    base: Variant | None = None
    whole_body: str = ""
    whole_function: str = ""
    whole_cell: str = ""

    def like(self, other: Variant) -> Self:
        """Start from this answer to the same exercise instead of from the solution."""
        self.base = other
        return self

    def replace(self, old: str, new: str) -> Self:
        """Replace `old` with `new` in the solution, as earlier replacements have left it."""
        self.pairs.append((old, new))
        return self

    def body(self, text: str) -> None:
        """Make `text` the contents of each of the solution's regions."""
        self.whole_body = text

    def function(self, text: str) -> None:
        """Make `text` all that the exercise's function does."""
        self.whole_function = text

    def cell(self, text: str) -> None:
        """Make `text` the exercise's whole cell."""
        self.whole_cell = text

    def apply(self, source: str) -> str:
        """The exercise's cell, `source`, with this answer in it.

        Raises ValueError if the cell lacks the text to replace, or if the outcome is the solution or isn't Python.
        """
        try:
            answer = self.write_into(source)
            same = meaning(answer) == meaning(source)
        except SyntaxError as error:
            raise ValueError(f"{self}: this isn't Python: {error}") from None
        if same:
            raise ValueError(f"{self}: this is the solution")
        return answer

    def write_into(self, source: str) -> str:
        ways = (self.pairs, self.whole_body, self.whole_function, self.whole_cell)
        if sum(map(bool, ways)) != 1 or (self.base and not self.pairs):
            how = "by replace(...), body(...), function(...) or cell(...), and after like(...) by replace(...)"
            raise ValueError(f"{self}: say how it differs, {how}")
        if self.whole_cell:
            return textwrap.dedent(self.whole_cell).strip("\n")
        if self.whole_function:
            return replace_function(source, function_of(self.exercise), self.whole_function)
        if self.whole_body:
            return replace_solution(source, self.whole_body)
        code = code_of(self.base.write_into(source) if self.base else source)
        for old, new in self.pairs:
            changed = replace_text(code, old, new)
            if changed == code:
                raise ValueError(f"{self}: the solution has changed: {not_found(old, code)}")
            code = changed
        return code

    def __str__(self) -> str:
        return f"{self.exercise}/{self.name}"


@dataclass
class Mutant(Variant):
    """A wrong answer.

    says: words in the message of the check that catches it.
    sentence: what it is, in words that follow "That is", for whoever gets the same result; "" if the check knows.
    caught_by: what that check judges.
    hidden: it passes the visible check, and only the hidden test catches it.
    varies: its message differs from run to run or from one CPU to another: ranks race, memory is uninitialised, or
            sums of drawn numbers are rounded.
    """

    says: str
    caught_by: str
    hidden: bool
    varies: bool = False
    sentence: str = ""


@dataclass
class Answers:
    """The wrong and the right answers to a lesson's exercises."""

    wrong: list[Mutant] = field(default_factory=list)
    right: list[Variant] = field(default_factory=list)

    def to(self, exercise: str) -> tuple[Callable[..., Mutant], Callable[..., Variant]]:
        """Two functions, `wrong` and `right`. Each adds an answer to this exercise."""

        def wrong(
            name: str,
            says: str | None = None,
            *,
            sentence: str = "",
            same_as: str = "",
            caught_by: str = "values",
            hidden: bool = False,
            varies: bool = False,
        ) -> Mutant:
            """Give words of the message, or a sentence; same_as: an earlier answer to the exercise that has it."""
            earlier = {one.name: one.sentence for one in self.wrong if one.exercise == exercise}
            sentence = earlier.get(same_as, "") if same_as else sentence
            if says is None and not sentence:
                what = (
                    f"{same_as} has no sentence" if same_as else "give it a sentence, or words of the check's message"
                )
                raise ValueError(f"{exercise}/{name}: {what}")
            self.wrong.append(Mutant(exercise, name, says or sentence, caught_by, hidden, varies, sentence))
            return self.wrong[-1]

        def right(name: str) -> Variant:
            self.right.append(Variant(exercise, name))
            return self.right[-1]

        return wrong, right

    def problems(self, lesson: Lesson) -> Iterator[str]:
        """Whatever keeps these from being answers to this lesson, one line for each problem."""
        answers: list[Variant] = [*self.wrong, *self.right]
        for name, count in Counter(map(str, answers)).items():
            if count > 1:
                yield f"{name}: {count} answers have this name"
        earlier: dict[tuple[str, str], list[Variant]] = {}  # by exercise and meaning
        for one in answers:
            if one.exercise not in lesson.exercises:
                yield f"{one}: {lesson.name} has no such exercise{nearest(one.exercise, lesson.exercises)}"
                continue
            try:
                does = meaning(one.apply(lesson.exercises[one.exercise].source))
            except ValueError as error:
                yield str(error)
                continue
            alike = earlier.setdefault((one.exercise, does), [])
            yield from (f"{one}: this is the same code as {other}" for other in alike if not_both(one, other))
            alike.append(one)


def not_both(one: Variant, other: Variant) -> bool:
    """Whether one piece of code can't be both answers. It can be two wrong ones, caught by two checks."""
    if isinstance(one, Mutant) and isinstance(other, Mutant):
        return one.caught_by == other.caught_by
    return True


def read_answers(path: Path) -> Answers:
    """The answers in one lesson's file, such as `solutions/01_collectives/answers_01.py`. Raises FileNotFoundError."""
    answers: Answers = runpy.run_path(str(path))["ANSWERS"]
    return answers


# ---- text ------------------------------------------------------------------------------------------------------------


@functools.cache
def code_of(source: str) -> str:
    """A cell without its comments and docstrings. Raises SyntaxError."""
    tree = ast.parse(source)
    lines: list[str | None] = [*source.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = token.line[:column].rstrip() or None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            for number in range(text.lineno - 1, text.end_lineno or text.lineno):
                lines[number] = None
    return "\n".join(line for line in lines if line is not None)


def replace_function(source: str, name: str, text: str) -> str:
    """`source` with `text` for all that its function of this name does, docstring included. Raises SyntaxError."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            lines, body = source.split("\n"), textwrap.dedent(text).strip("\n")
            new = textwrap.indent(body, " " * node.body[0].col_offset).split("\n")
            lines[node.body[0].lineno - 1 : node.end_lineno] = new
            return "\n".join(lines)
    raise ValueError(f"the solution has no function {name}")


@functools.cache  # called three times per answer, and once per answer for its solution
def meaning(source: str) -> str:
    """What a cell does, as text: its syntax tree without docstrings and annotations. Raises SyntaxError."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.dump(tree)


def replace_text(text: str, old: str, new: str) -> str:
    """`text` with `new` for every `old`. Their later lines are indented relative to the line where `old` begins."""
    first = old.split("\n")[0]
    start = 0
    while (at := text.find(first, start)) >= 0:
        line_break = "\n" + indent(text[text.rfind("\n", 0, at) + 1 :])
        whole, instead = old.replace("\n", line_break), new.replace("\n", line_break)
        if not text.startswith(whole, at):
            start = at + 1
            continue
        text = text[:at] + instead + text[at + len(whole) :]
        start = at + len(instead)
    return text


def not_found(old: str, code: str) -> str:
    """That the code lacks the text `old`, and which of its lines comes nearest."""
    lines = [line.strip() for line in code.split("\n")]
    first = next((line for line in old.split("\n") if line.strip() not in lines), old)
    close = difflib.get_close_matches(first.strip(), lines, 1, cutoff=0)
    return f"{old!r} is not in it" + (f"; the nearest line is {close[0]!r}" if close else "")
