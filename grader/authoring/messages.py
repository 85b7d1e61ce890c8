"""What students read whose answers are wrong, messages.txt in the lesson's room. Reviewers read its diff.

    update_messages(lessons)       judge the wrong answers of lessons that have changed, on all cores; write the files
    read_messages(lesson)          {"broadcast-by-hand/forgets-to-receive": what a student reads}
    message_of(bench, mutant)      what one answer gets, with the message as it is stored
    message_drift(lesson)          how the file differs from the lesson's answers, without judging anything

A file names the hash of everything that a message can depend on: the lesson's code, its checks, hidden tests and wrong
answers, and `utils`. `make build` judges a lesson's answers if that hash has changed, and never otherwise: the wrong
ones, and, so that `make test` needn't, blanks and right ones in other forms.

Two runs must give the same file. Who failed first is a race, so stored reports say RANKS for rank numbers, sort
failures, and drop duplicates and waiting ranks. Ports, addresses and paths of temporary files are written as PORT,
ADDRESS and FOLDER. If a rank was killed, or an answer is marked `varies=True`, only the first line is stored.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from grader.authoring.check_files import answers, answers_file, checks_file, line_with
from grader.authoring.lesson import BuildError, Lesson, Problem, shown
from grader.authoring.mistakes import mistakes_drift, outcome_of, read_mistakes, write_mistakes
from grader.authoring.variants import Mutant

if TYPE_CHECKING:  # they import torch
    from grader.authoring.trial import Candidate, Result
    from grader.authoring.workbench import Workbench
    from utils.checks.known_mistakes import KnownOutcome

TITLE = "What students read whose answers to {name} are wrong. Written by `make build`."
MADE = re.compile(r"made from (\w+) with Python (\d+\.\d+)")
ANSWER = "---- "  # starts the line that names an answer
# The modules that judge them.
ENGINE = ("check_files", "lesson", "markers", "messages", "mistakes", "records", "trial", "variants", "workbench")
TRIES = 3  # ranks may race in an answer in which nobody has noticed it
FEW = 40  # answers that this process has judged before workers have imported torch, each with a zygote of its own
UNSTABLE = {
    re.compile(r"(?m)^  (ranks? \d[\d, and]*|your function) (?=raised )"): "  RANKS ",
    re.compile(r"\n\n  \(Ranks? [^\n]*\)$", re.MULTILINE): "",
    re.compile(r"(?<=\]):\d+"): ":PORT",
    re.compile(r"(?<=<--> \[)[\d.]+(?=\]\))"): "none",  # Gloo prints what lies in memory where there is no address
    re.compile(r"\b0x[0-9a-f]{6,}"): "ADDRESS",
    re.compile(rf"{re.escape(tempfile.gettempdir())}/[^'\",\s]+|/\S*/site-packages(?=/)"): "FOLDER",
}
RAISED = re.compile(r"^  RANKS raised .*(?:\n    .*)*", re.MULTILINE)  # a failure and its frames
EQUAL = re.compile(r"^(  RANKS raised .*?)\n\n(?=\1)", re.MULTILINE | re.DOTALL)
Words = dict[str, str]
Map = Callable[..., Iterator[Any]]  # as the built-in


class Work(NamedTuple):
    """A wrong answer to judge, with its message as it is stored, and its outcome if it is to be confirmed."""

    lesson: Lesson
    mutant: Mutant
    stored: str
    first: KnownOutcome | None = None


# ---- one message -----------------------------------------------------------------------------------------------------


def message_of(bench: Workbench, mutant: Mutant, stored: str = "") -> Result:
    """What a wrong answer gets, with the words as they are stored: without what differs from run to run.

    An answer that doesn't lead to the `stored` message is judged again.
    """
    from grader.authoring.trial import Candidate, judge

    for attempt in range(1, TRIES + 1):
        result = judge(bench, Candidate(mutant.exercise, "wrong", mutant))
        result = replace(result, words=stable(result.words, mutant.varies))
        if result.problem or result.words == stored or not stored or attempt == TRIES:
            break
    return result


def stable(words: str, varies: bool) -> str:
    """The part of a message that is the same in every run. Lines don't end in spaces."""
    text = "\n".join(line.rstrip() for line in words.splitlines())
    if varies or "was killed by" in text:
        return text.partition("\n")[0] + "\n  ..."
    for pattern, instead in UNSTABLE.items():
        text = pattern.sub(instead, text)
    failures = iter(sorted(RAISED.findall(text)))
    return EQUAL.sub("", RAISED.sub(lambda _: next(failures), text))


# ---- the file --------------------------------------------------------------------------------------------------------


def file_of(lesson: Lesson) -> Path:
    return lesson.room / "messages.txt"


def read_file(lesson: Lesson) -> tuple[str, Words]:
    """(the text above the first answer, {answer: its message}); empty if there is no file."""
    path = file_of(lesson)
    top, *sections = path.read_text(encoding="utf-8").split(f"\n\n{ANSWER}") if path.exists() else [""]
    found = (section.partition("\n") for section in sections)
    return top, {name: message.rstrip("\n") for name, _, message in found}


def read_messages(lesson: Lesson) -> Words:
    """{"broadcast-by-hand/forgets-to-receive": message}; empty if there is no file."""
    return read_file(lesson)[1]


def write(lesson: Lesson, messages: Words) -> None:
    made = f"made from {key_of(lesson)} with Python {python_version()}"
    parts = [f"{TITLE.format(name=lesson.name)}\n{made}"]
    parts += [f"{ANSWER}{name}\n{message}" for name, message in messages.items()]
    file_of(lesson).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def has_changed(lesson: Lesson) -> bool:
    """Whether the file comes from something else than what is there now."""
    made = MADE.search(read_file(lesson)[0])
    return made is None or made[1] != key_of(lesson)


def made_here(lesson: Lesson) -> bool:
    """Whether the file comes from the same version of Python, whose own messages may differ from those of others."""
    made = MADE.search(read_file(lesson)[0])
    return made is not None and made[2] == python_version()


def python_version() -> str:
    return "{}.{}".format(*sys.version_info)


def key_of(lesson: Lesson) -> str:
    """Changes whenever something changes that a message can depend on."""
    from grader.authoring.workbench import cells_that_run

    torch = importlib.metadata.version("torch").split("+")[0]
    parts = ["\n".join(cell.source for cell in cells_that_run(lesson)), torch]
    files = [checks_file(lesson), answers_file(lesson), *shared_files(lesson.root)]
    parts += [path.read_text(encoding="utf-8") for path in files if path.exists()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@functools.cache
def shared_files(root: Path) -> list[Path]:
    """The code that judges every lesson."""
    ours = [path for path in sorted((root / "utils").rglob("*.*")) if path.suffix in (".py", ".txt")]
    return [*ours, *(Path(__file__).with_name(f"{name}.py") for name in ENGINE)]


def message_drift(lesson: Lesson) -> Iterator[str]:
    """A line if the file does not have exactly the lesson's wrong answers, or a check does not know one of them."""
    name = shown(file_of(lesson))
    have, want = list(read_messages(lesson)), [str(mutant) for mutant in answers(lesson).wrong]
    lacks = [f"it lacks {answer}" for answer in want if answer not in have]
    gone = [f"there is no {answer} any more" for answer in have if answer not in want]
    if not file_of(lesson).exists():
        yield f"{name} is missing: run `make build`"
    elif have != want:
        what = [*lacks, *gone, "the answers are in another order"][0]
        yield f"{name} is out of date, {what}: run `make build`"
    yield from mistakes_drift(lesson)


# ---- judging ---------------------------------------------------------------------------------------------------------


def update_messages(lessons: Iterable[Lesson], force: bool = False) -> list[str]:
    """Write the files of the lessons that have changed. Returns the names of those in which other messages stand now.

    Raises BuildError if an answer does not get what it should; the file of its lesson then stays as it was.
    """
    to_do = [(lesson, answers(lesson).wrong, others(lesson)) for lesson in lessons if force or has_changed(lesson)]
    total = sum(len(wrong) + len(rest) for _, wrong, rest in to_do)
    changed: list[str] = []
    problems: list[Problem] = []
    with workers(total) as each, tqdm(total=total, unit="answer", disable=None, leave=False) as bar:
        for lesson, wrong, rest in to_do:
            bar.set_description(f"messages of {lesson.name}")
            stored, results = read_messages(lesson), judge_all(lesson, wrong, each, bar)
            said = [(one, results[str(one)].problem) for one in wrong]
            found = [problem_with(lesson, one.exercise, one.name, what) for one, what in said if what]
            found += [one for one in each(problem_with_other, repeat(lesson), rest) if one]
            bar.update(len(rest))
            messages = {name: result.words for name, result in results.items()}
            problems += found
            if not found:
                write(lesson, messages)
            if messages != stored:
                changed.append(shown(file_of(lesson)))
    if problems:
        raise BuildError(problems)
    return changed


def judge_all(lesson: Lesson, wrong: Sequence[Mutant], each: Map, bar: tqdm[Any]) -> dict[str, Result]:
    """What each answer gets. First writes down what those with a sentence lead to, so that the checks know them.

    What the second run does not confirm is dropped, and those answers are judged again.
    """
    stored = read_messages(lesson)
    work = {str(one): Work(lesson, one, stored.get(str(one), "")) for one in wrong}
    named = [one for one in wrong if one.sentence]
    first = dict(zip(map(str, named), each(first_outcome, [work[str(one)] for one in named]), strict=True))
    write_mistakes(lesson, ((one, first[str(one)]) for one in named))
    work |= {name: work[name]._replace(first=outcome) for name, outcome in first.items()}
    results = {}
    for name, result in zip(work, each(judged, work.values()), strict=True):
        results[name] = result
        bar.update()
    unsure = [name for name in first if results[name].confirmed != first[name]]
    if unsure:
        write_mistakes(lesson, ((one, results[str(one)].confirmed) for one in named))
        results |= zip(unsure, each(judged, [work[name] for name in unsure]), strict=True)
    return results


def problem_with(lesson: Lesson, exercise: str, name: str, what: str) -> Problem:
    file = answers_file(lesson)
    line = line_with(file, f'to("{exercise}")', f'"{name}"')
    return Problem(shown(file), line, f"{exercise}/{name}: {what}; see python -m grader try {lesson.name} {exercise}")


def others(lesson: Lesson) -> list[Candidate]:
    """The blank of each exercise, and the right answers in other forms."""
    from grader.authoring.trial import Candidate

    blanks = [Candidate(name, "blank") for name in lesson.exercises]
    return [*blanks, *(Candidate(one.exercise, "right", one) for one in answers(lesson).right)]


def problem_with_other(lesson: Lesson, candidate: Candidate) -> Problem | None:
    """In a worker. Right answers are judged by visible checks alone: hidden tests are slower, and judge the same."""
    from grader.authoring.trial import judge

    bench = bench_of(lesson.name, lesson.root)
    ways = [way for way in bench.ways(candidate.exercise) if candidate.kind == "blank" or not way.hidden]
    what = judge(bench, candidate, ways).problem
    return problem_with(lesson, candidate.exercise, candidate.name, what) if what else None


@contextmanager
def workers(answers: int) -> Iterator[Map]:
    """A `map` that judges this many answers on all cores, in order."""
    if answers <= FEW:
        bench_of.cache_clear()
        yield map
        return
    # Fresh interpreters, since this one has threads by now. On Ctrl-C each finishes the answer that it is judging.
    context, no_interrupts = get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(os.cpu_count(), context, initializer=signal.signal, initargs=no_interrupts)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def first_outcome(work: Work) -> KnownOutcome | None:
    """In a worker: what the check that catches an answer finds wrong."""
    return outcome_of(bench_of(work.lesson.name, work.lesson.root), work.mutant)


def judged(work: Work) -> Result:
    """In a worker: message_of one answer, by checks that know what is written down."""
    bench = bench_of(work.lesson.name, work.lesson.root)
    read_mistakes(bench)
    result = message_of(bench, work.mutant, work.stored)
    confirmed = work.first.confirmed_by(result.outcome) if work.first else None
    return replace(result, outcome=None, confirmed=confirmed)


@functools.cache
def bench_of(name: str, root: Path) -> Workbench:
    from grader.authoring.workbench import Workbench

    return Workbench.load(name, root)
