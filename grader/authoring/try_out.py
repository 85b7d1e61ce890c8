"""`python -m grader try`: what each answer to an exercise gets, and the exact words that a student reads.

    command("05", "ring")                 judge everything once, and print it
    command("05", "ring", watch=True)     the same, and again at each save

What can't have changed since it was judged is not judged again.
"""

from __future__ import annotations

import hashlib
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import typer
from tqdm import tqdm

from grader.authoring.check_files import checks_file, files_of
from grader.authoring.facts import plural
from grader.authoring.lesson import ROOT, BuildError, Lesson, Problem, find_lessons
from grader.authoring.markers import nearest
from grader.authoring.messages import read_messages
from grader.authoring.mistakes import learn, not_told_apart, outcome_of
from grader.authoring.preview import open_in_lab, write_preview
from grader.authoring.rules import broken_rules
from grader.authoring.trial import Candidate, Result, candidates, judge
from grader.authoring.unproved import unproved_mistakes
from grader.authoring.variants import Mutant
from grader.authoring.workbench import Way, Workbench, cells_that_run
from utils.checks.known_mistakes import KnownOutcome

POLL = 0.2  # seconds between two looks at the files
BAR = "{n_fmt} of {total_fmt} {bar:20} {desc}"
INDENT = "      "
Results = list[tuple[Candidate, Result]]
Stamps = dict[Path, tuple[int, int] | None]  # each file's time and size; None if there is no such file


# ---- names -----------------------------------------------------------------------------------------------------------


def exercise_called(name: str, names: Iterable[str]) -> str:
    """The name itself, or the only one that begins with it. Raises BuildError if there is none, or more than one."""
    names = list(names)
    found = [name] if name in names else [one for one in names if one.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise BuildError([f"{name!r} could be {' or '.join(found)}"])
    raise BuildError(
        [f"there is no exercise called {name!r}{nearest(name, names) or ': there are ' + ', '.join(names)}"]
    )


# ---- judging ---------------------------------------------------------------------------------------------------------


class TryOut:
    """The answers to one exercise, or to all of a lesson, with what each got when it was last judged."""

    def __init__(self, lesson: str, exercise: str | None, root: Path = ROOT) -> None:
        [self.source] = find_lessons([lesson], root)
        self.exercise, self.root = exercise, root
        self.judged: dict[str, Result] = {}  # by what the result depends on
        self.outcomes: dict[str, KnownOutcome | None] = {}  # for answers with a sentence, in the same way

    def round(self, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Judge what can have changed, and print it. Returns whether all is as it should be.

        Stops between two answers when `interrupted()`; what was judged until then is kept.
        Raises BuildError if the lesson can't be read, or has no such exercise.
        """
        start, results, waiting = time.monotonic(), Results(), Counter[str]()
        bench = Workbench.load(self.source.parent.name, self.root, record=True)
        names = list(bench.lesson.exercises)
        to_judge = candidates(bench, [exercise_called(self.exercise, names)] if self.exercise else names)
        self.learn(bench, to_judge)
        with tqdm(total=len(to_judge), leave=False, disable=None, bar_format=BAR) as bar:
            for candidate in to_judge:
                if interrupted():
                    return False
                bar.update()
                if fails(candidate.exercise, results):
                    waiting[candidate.exercise] += 1
                    continue
                bar.set_description_str(f"{candidate.exercise} · {candidate}")
                key = key_of(bench, candidate)
                if key not in self.judged:
                    self.judged[key] = judge(bench, candidate)
                    bar.clear()
                    print_result(candidate, self.judged[key])
                results.append((candidate, self.judged[key]))
        said = [result.problem for _, result in results]
        others = [one for one in broken_rules(bench.lesson) if not any(one.text in problem for problem in said)]
        print_unproved(bench, results)
        for text in not_told_apart(bench.visible.known, bench.hidden.known):
            say(f"\n{text}", "yellow")
        print_end(results, others, waiting, time.monotonic() - start)
        return not others and not any(result.problem for _, result in results)

    def learn(self, bench: Workbench, to_judge: Iterable[Candidate]) -> None:
        """Let the checks know the answers that have a sentence, as `make build` does."""
        found = []
        for candidate in to_judge:
            mutant, key = candidate.variant, key_of(bench, candidate)
            if isinstance(mutant, Mutant) and mutant.sentence:
                if key not in self.outcomes:
                    self.outcomes[key] = outcome_of(bench, mutant)
                found.append((mutant, self.outcomes[key]))
        learn(bench, found)

    def watch(self) -> None:
        """A round at each save of one of the lesson's files, until Ctrl-C. Problems are printed, not raised."""
        # Python would take a module's bytecode for that of one saved a moment later, if the two are of the same length.
        sys.dont_write_bytecode = True
        while True:
            before = self.stamps()
            try:
                self.round(interrupted=partial(self.has_changed, before))
            except BuildError as error:
                print_problems(error.problems)
            if not self.has_changed(before):
                say("\nwaiting for a save (Ctrl-C ends this)")
            say(f"\nsaved: {', '.join(self.saved_after(before))}", bold=True)

    def stamps(self) -> Stamps:
        found: Stamps = {}
        for path in files_of(Lesson(self.source, ())):  # whether it can be read or not
            try:
                state = path.stat()
                found[path] = (state.st_mtime_ns, state.st_size)
            except FileNotFoundError:
                found[path] = None
        return found

    def has_changed(self, before: Stamps) -> bool:
        return self.stamps() != before

    def saved_after(self, before: Stamps) -> list[str]:
        """Wait until files have changed and are at rest again: a save can take several steps. Returns their names."""
        last = self.stamps()
        while last == before or self.has_changed(last):
            last = self.stamps()
            time.sleep(POLL)
        return [str(path.relative_to(self.root)) for path in before if before[path] != last[path]]


def fails(exercise: str, results: Results) -> bool:
    """Whether the solution does, or the check that judges it. Then no verdict on another answer says anything."""
    return any(one.exercise == exercise and one.kind == "solution" and result.problem for one, result in results)


def key_of(bench: Workbench, candidate: Candidate) -> str:
    """Changes whenever something changes that the result can depend on."""
    cells = [cell.source for cell in cells_that_run(bench.lesson)]
    checks = checks_file(bench.lesson).read_text()
    return hashlib.sha256(repr((cells, checks, candidate)).encode()).hexdigest()


# ---- printing --------------------------------------------------------------------------------------------------------

MARKS = {True: "✓", False: "✗"}


def say(text: str, colour: str | None = None, bold: bool = False) -> None:
    """Print it; in colour only on a terminal, and not where NO_COLOR is set."""
    typer.secho(text, fg=colour, bold=bold or None, color=False if os.environ.get("NO_COLOR") else None)


def print_result(candidate: Candidate, result: Result) -> None:
    """One line, and under it what a student reads. What is wrong with an answer comes later: see print_end."""
    fine = not result.problem
    got = verdict(candidate) if fine else "see below"
    line = f"{MARKS[fine]} {candidate.exercise} · {candidate}".ljust(60) + f" {got}"
    say(f"{line}  ({result.seconds:.1f} s)", "green" if fine else "red")
    if fine:
        print_words(result.words)


def verdict(candidate: Candidate) -> str:
    """What an answer got that got what it should."""
    if isinstance(candidate.variant, Mutant):
        return f"caught by {Way(candidate.variant.caught_by, candidate.variant.hidden)}"
    return "not written" if candidate.kind == "blank" else "passes"


def print_words(words: str) -> None:
    if words:
        say(textwrap.indent(words, INDENT, lambda line: True))


def print_unproved(bench: Workbench, results: Results) -> None:
    """The mistakes that a check promises to recognise, and that no wrong answer makes."""
    tried = {candidate.exercise for candidate, _ in results if not fails(candidate.exercise, results)}
    stored = [words for name, words in read_messages(bench.lesson).items() if name.partition("/")[0] not in tried]
    unproved = unproved_mistakes(bench, [*stored, *(result.words for _, result in results)])
    shown = [f"- {words}" for words, exercises in unproved.items() if not tried.isdisjoint(exercises)]
    if shown:
        say("\nNo wrong answer makes these mistakes. Add one that does, or drop the mistake from the check:", "yellow")
        say(textwrap.indent("\n".join(shown), INDENT[4:]))


def print_end(results: Results, others: list[Problem], waiting: Counter[str], seconds: float) -> None:
    """What is not as it should be, once each, with what to do; then one line about everything."""
    wrong: dict[tuple[str, str, str], list[str]] = {}  # the same fault can spoil many answers
    for candidate, result in results:
        if result.problem:
            fault = result.problem, result.advice, result.words
            wrong.setdefault(fault, []).append(f"{candidate.exercise} · {candidate}")
    for (problem, advice, words), names in wrong.items():
        more = f" and {plural(len(names) - 2, 'more answer')}" if len(names) > 2 else ""
        say(f"\n{MARKS[False]} {', '.join(names[:2])}{more}: {problem}", "red", bold=True)
        say(f"{INDENT[4:]}{advice}")
        print_words(words)
    for exercise, count in waiting.items():
        say(f"\n{exercise}: its {plural(count, 'other answer')} are judged when the solution passes", "yellow")
    if others:
        say("\n`make build` will refuse the lesson until this is corrected:", bold=True)
        print_problems(others)
    bad, seen = sum(map(len, wrong.values())), plural(len(results), "answer")
    they = "it" if bad == 1 else "they"
    end = f"{bad} not as {they} should be, of {seen}" if bad else f"{seen}, all as they should be"
    end += f"; {plural(len(others), 'other problem')}" if others else ""
    fine = not bad and not others
    say(f"\n{MARKS[fine]} {end} ({seconds:.1f} s)", "green" if fine else "red", bold=True)


def print_problems(problems: Iterable[Problem | str]) -> None:
    for problem in problems:
        say(f"{MARKS[False]} {problem}", "red")


# ---- the command line ------------------------------------------------------------------------------------------------


def command(lesson: str, exercise: str | None = None, watch: bool = False, notebook: bool = False) -> int:
    """`python -m grader try`: returns the exit code. With `notebook`, becomes a JupyterLab instead."""
    try:
        if notebook:
            [source] = find_lessons([lesson])
            path, problems = write_preview(source.parent.name)
            print_problems(problems)
            open_in_lab(path)
        attempt = TryOut(lesson, exercise)
        if watch:
            attempt.watch()
        return 0 if attempt.round() else 1
    except BuildError as error:
        print_problems(error.problems)
        return 1
    except KeyboardInterrupt:
        say("\nstopped")
        return 0 if watch else 130
