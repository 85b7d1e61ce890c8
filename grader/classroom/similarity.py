"""Which answers of a class are unusually alike: a reason for a person to look at them, and proof of nothing.

Each answer becomes a set of fingerprints, hashes of WINDOW tokens in a row of its syntax tree, in which names, numbers
and strings are all the same, and comments, docstrings and annotations are left out: renaming and reformatting change
nothing. What the exercise gives is left out, and so is what many have written, since a short exercise has few good
solutions. What remains is compared: within the class, and with the answers of earlier terms.

The official solution is compared as a whole, since what copies of it have in common may be common in the class. None of
the lessons' own right answers that are written independently comes near it (see its test).

    Schleimer, Wilkerson, Aiken: Winnowing, local algorithms for document fingerprinting (SIGMOD 2003)
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from types import MappingProxyType

from grader.sandbox.bounded import TooMuch, bounded

WINDOW = 8  # tokens in a fingerprint, about a line
FEWEST = 20  # fingerprints that an answer must have for itself; very short ones say nothing
MAX_OWNERS = 10  # students per fingerprint, or half of a small class; anything more widespread is common
SHARE = 0.8  # part of the smaller answer's fingerprints that two answers must share
OFFICIAL = "the official solution"
OFFICIAL_FEWEST, OFFICIAL_SHARE = 60, 0.8  # the same for the official solution, as a part of all that either has
LONGEST = 20_000  # characters of an answer; a lesson's have 2,000
SECONDS = 10  # processor time for the answers of one submission
SPACE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
Fingerprints = frozenset[int]


@dataclass(frozen=True)
class Pair:
    """Two answers to an exercise: of a student, and of another student, an earlier term or the official solution.

    share: the part that is in both, of the smaller one's unusual fingerprints, or of all with the official solution
    """

    exercise: str
    students: tuple[str, str]
    share: float


Answers = Mapping[str, Mapping[str, str]]  # who -> exercise -> code


def similar_answers(
    answers: Answers,
    given: Mapping[str, str],
    official: Mapping[str, str] = MappingProxyType({}),
    earlier: Answers = MappingProxyType({}),
) -> list[Pair]:
    """The pairs of answers that are unusually alike, the most similar ones first.

    answers   of this class
    given     exercise -> the code that students start from
    official  exercise -> the solution
    earlier   answers of earlier terms; they are compared with this class only
    """
    of_given = {name: fingerprints(text) for name, text in given.items()}
    own: dict[str, dict[str, Fingerprints]] = defaultdict(dict)
    for student, texts in {**earlier, **answers}.items():
        with suppress(TooMuch):
            for name, found in fingerprints_of_all(dict(texts)).items():
                own[name][student] = found - of_given.get(name, frozenset())
    pairs = [pair for name, found in own.items() for pair in pairs_in(name, found)]
    pairs = [pair for pair in pairs if not earlier.keys() >= set(pair.students)]
    for name, text in official.items():
        solution = fingerprints(text) - of_given.get(name, frozenset())
        pairs += like_official(name, solution, {who: found for who, found in own[name].items() if who in answers})
    return sorted(pairs, key=lambda pair: (-pair.share, pair.students, pair.exercise))


def like_official(exercise: str, solution: Fingerprints, own: Mapping[str, Fingerprints]) -> Iterator[Pair]:
    """The answers that are nearly the solution, if both are long enough to differ."""
    for student, found in own.items():
        if min(len(found), len(solution)) >= OFFICIAL_FEWEST:
            share = len(found & solution) / len(found | solution)
            if share >= OFFICIAL_SHARE:
                yield Pair(exercise, (student, OFFICIAL), share)


def pairs_in(exercise: str, own: dict[str, Fingerprints]) -> Iterator[Pair]:
    """The pairs in one exercise: linear in the size of the class, because rare fingerprints have few owners."""
    most = max(2, min(MAX_OWNERS, len(own) // 2))
    owners: dict[int, list[str]] = defaultdict(list)
    for student in sorted(own):
        for fingerprint in own[student]:
            owners[fingerprint].append(student)
    rare = {fingerprint: students for fingerprint, students in owners.items() if len(students) <= most}
    size = Counter(student for students in rare.values() for student in students)
    both = Counter(pair for students in rare.values() for pair in combinations(students, 2))
    for pair, count in both.items():
        smaller = min(size[student] for student in pair)
        if smaller >= FEWEST and count >= SHARE * smaller:
            yield Pair(exercise, pair, count / smaller)


@bounded(SECONDS)
def fingerprints_of_all(texts: dict[str, str]) -> dict[str, Fingerprints]:
    """The fingerprints of a submission's answers, made in the child: a submission can make tokenizing slow."""
    return {name: fingerprints(text) for name, text in texts.items() if len(text) <= LONGEST}


def fingerprints(text: str) -> Fingerprints:
    words = list(normalised(code_alone(text)))
    rows = ("\n".join(words[at : at + WINDOW]) for at in range(len(words) - WINDOW + 1))
    return frozenset(int.from_bytes(blake2b(row.encode(), digest_size=8).digest()) for row in rows)


def code_alone(text: str) -> str:
    """An answer without comments, docstrings and annotations, in one layout; as it is if it isn't Python."""
    try:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
                node.body[0] = ast.Pass()
            if isinstance(node, ast.FunctionDef):
                node.returns = None
            elif isinstance(node, ast.arg):
                node.annotation = None
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


def normalised(text: str) -> Iterator[str]:
    """The tokens of an answer, as far as it can be read; what follows a point keeps its name (`dist.send`)."""
    before = ""
    with suppress(tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in SPACE:
                continue
            word = token.string
            if token.type == tokenize.NAME and before != "." and not keyword.iskeyword(word):
                word = "name"
            elif token.type in (tokenize.NUMBER, tokenize.STRING):
                word = tokenize.tok_name[token.type]
            before = token.string
            yield word
