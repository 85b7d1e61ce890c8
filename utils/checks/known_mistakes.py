"""What wrong answers lead to on the inputs of a notebook, with the sentence that a student reads who gives one.

An author writes a wrong answer as code and a sentence (grader/authoring/variants.py). `make build` runs it and writes
down in which case a check fails, and fingerprints of what was wrong there, in mistakes.json beside the
lesson's checks. When a student's answer fails with the same outcome, the check says that sentence.

    {exercise: {what is judged: {number of the case: {
        "inputs": their fingerprint,
        "answers": [[sentence, {rank and part: fingerprint of what was there}], ...]}}}}

A place that is not listed was right. One with "" differs from run to run, so it tells nothing. The inputs of a notebook
are the same for everyone; those of a graded run are not, so a check that fails there runs once more as it does in the
notebook (registry.py). On inputs with another fingerprint nothing is named.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from .answer import Outcome, Place
from .compare import ROUGHLY
from .equality import equal_values
from .fingerprints import agree, fingerprint, fits, is_telling

FILE, HIDDEN_FILE = "mistakes.json", "hidden_mistakes.json"  # in a lesson's room; students get only the first


@dataclass(frozen=True)
class KnownOutcome:
    """The outcome of a wrong answer as it is written down: fingerprints of the inputs and of what was wrong."""

    case: int
    inputs: str
    wrong: Mapping[Place, str]

    def agrees(self, outcome: Outcome, places: Sequence[Place]) -> bool:
        """Whether these places of an outcome are as this one's, and at least one of them tells something."""
        tells = any(self.wrong.get(place) for place in places)
        return tells and all(self.agrees_at(outcome, place) for place in places)

    def agrees_at(self, outcome: Outcome, place: Place) -> bool:
        """Whether a place is as this outcome's, or differs from run to run."""
        if place not in self.wrong or place not in outcome.wrong:
            return False
        got, right = outcome.wrong[place]
        nearly_right = equal_values(got, right, ROUGHLY)
        rounds = outcome.rtol or isinstance(got, torch.Tensor) and got.is_floating_point()  # differently on each CPU
        rtol = max(outcome.rtol, ROUGHLY) if rounds and not nearly_right else outcome.rtol
        return not self.wrong[place] or fits(self.wrong[place], got, rtol)

    def confirmed_by(self, again: Outcome | None) -> KnownOutcome:
        """This outcome without what a second run of the same answer did not repeat."""
        if again is None or again.case != self.case or not fits(self.inputs, again.inputs):
            return KnownOutcome(self.case, self.inputs, {})
        places = dict.fromkeys([*self.wrong, *again.wrong])
        kept = {place: self.wrong.get(place, "") if self.agrees_at(again, place) else "" for place in places}
        return KnownOutcome(self.case, self.inputs, kept)


Known = tuple[str, KnownOutcome]  # the sentence of a wrong answer, and its outcome


def written_down(outcome: Outcome) -> KnownOutcome:
    prints = {place: fingerprint(got) for place, (got, _) in outcome.wrong.items()}
    return KnownOutcome(outcome.case, fingerprint(outcome.inputs), prints)


def sentences(known: Sequence[Known], outcome: Outcome) -> list[str]:
    """The sentences of the wrong answers whose outcome is this one: all, since nobody can tell which of them was given.

    If none leads to the whole outcome, those that agree in the part that the message is about: on all ranks, or at
    least on this rank. A part only counts if it can't be what it is by chance.
    """
    got, right = outcome.wrong[outcome.place] if outcome.place else (None, True)
    if equal_values(got, right, outcome.rtol):
        return []  # the type is wrong, not the value
    same_inputs = functools.cache(lambda inputs: fits(inputs, outcome.inputs))
    of_case = [(words, one) for words, one in known if one.case == outcome.case and same_inputs(one.inputs)]
    everywhere = list(outcome.wrong)
    whole = [(words, one) for words, one in of_case if one.wrong.keys() == outcome.wrong.keys()]
    found = [words for words, one in whole if one.agrees(outcome, everywhere)]
    if outcome.place and is_telling(got):
        on_all_ranks = [place for place in everywhere if place[1] == outcome.place[1]]
        for places in (on_all_ranks, [outcome.place]):
            found = found or [words for words, one in of_case if one.agrees(outcome, places)]
    return list(dict.fromkeys(found))


class KnownMistakes:
    """All known mistakes of a lesson: {(exercise, what is judged): the sentences of wrong answers, with outcomes}."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], list[Known]] = defaultdict(list)

    def add(self, exercise: str, judges: str, sentence: str, outcome: KnownOutcome) -> None:
        if any(outcome.wrong.values()):
            self.known[exercise, judges].append((sentence, outcome))

    def of(self, exercise: str, judges: str) -> list[Known]:
        return self.known.get((exercise, judges), [])

    @property
    def sentences(self) -> set[tuple[str, str]]:
        """All (exercise, sentence)."""
        return {(exercise, words) for (exercise, _), known in self.known.items() for words, _ in known}

    def not_told_apart(self) -> Iterator[tuple[str, str, str]]:
        """(exercise, a sentence, another one) of wrong answers that lead to the same outcome."""
        for (exercise, _), known in self.known.items():
            for (words, one), (others, other) in combinations(known, 2):
                if words != others and same_outcome(one, other):
                    yield exercise, words, others

    # ---- the file

    @classmethod
    def read(cls, path: Path) -> KnownMistakes:
        """What is written down in a file; nothing if there is none."""
        found = cls()
        written = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for exercise, of_exercise in written.items():
            for judges, cases in of_exercise.items():
                for number, case in cases.items():
                    for sentence, wrong in case["answers"]:
                        places = {place_named(name): text for name, text in wrong.items()}
                        found.add(exercise, judges, sentence, KnownOutcome(int(number), case["inputs"], places))
        return found

    def text(self) -> str:
        """The file's text; "" if nothing is known."""
        written: dict[str, Any] = {}
        for (exercise, judges), known in self.known.items():
            for sentence, outcome in known:
                cases = written.setdefault(exercise, {}).setdefault(judges, {})
                case = cases.setdefault(str(outcome.case), {"inputs": outcome.inputs, "answers": []})
                case["answers"].append([sentence, {name_of(place): text for place, text in outcome.wrong.items()}])
        return json.dumps(written, indent=0, ensure_ascii=False) + "\n" if written else ""


def mistakes_file(room: Path, hidden: bool) -> Path:
    """Where it is written down what the checks, or the hidden tests, of a lesson know."""
    return room / (HIDDEN_FILE if hidden else FILE)


def same_outcome(one: KnownOutcome, other: KnownOutcome) -> bool:
    if (one.case, one.wrong.keys()) != (other.case, other.wrong.keys()):
        return False
    return all(
        not text or not other.wrong[place] or agree(text, other.wrong[place]) for place, text in one.wrong.items()
    )


def name_of(place: Place) -> str:
    return f"{place[0]} {place[1]}".strip()


def place_named(name: str) -> Place:
    rank, _, part = name.partition(" ")
    return int(rank), part
