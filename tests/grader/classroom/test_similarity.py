"""Similar answers: found whatever their names and layout; what is given, short or common says nothing."""

from __future__ import annotations

import random

import pytest

from grader.authoring.markers import clear_solution
from grader.classroom import similarity
from grader.classroom.similarity import (
    FEWEST,
    LONGEST,
    OFFICIAL,
    OFFICIAL_FEWEST,
    Pair,
    fingerprints,
    fingerprints_of_all,
    similar_answers,
)
from grader.sandbox.bounded import TooMuch
from tests.all_lessons import LESSONS, also_right

GIVEN = 'def ring(x, rank, world_size):\n    """Return the sum over all ranks."""\n    raise NotImplementedError'
ODD = '''def ring(x, rank, world_size):
    """Return the sum over all ranks."""
    pieces = list(x.clone().flatten().chunk(world_size))
    for step in range(2 * world_size - 2):
        outgoing, incoming = (rank - step) % world_size, (rank - step - 1) % world_size
        buffer = torch.empty_like(pieces[incoming])
        work = dist.isend(pieces[outgoing], (rank + 1) % world_size)
        dist.recv(buffer, (rank - 1) % world_size)
        work.wait()
        pieces[incoming] = buffer if step >= world_size - 1 else pieces[incoming] + buffer
    return torch.cat(pieces).view_as(x)'''
DISGUISED = """def ring(x, rank, world_size):
    "My very own solution."
    parts = list(x.clone().flatten().chunk(world_size))  # cut it up
    for i in range(2 * world_size - 2):

        a, b = (rank - i) % world_size, (rank - i - 1) % world_size
        received = torch.empty_like(parts[b])
        handle = dist.isend(parts[a],
                            (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        handle.wait()
        parts[b] = received if i >= world_size - 1 else parts[b] + received
    return torch.cat(parts).view_as(x)"""
OWN = """def ring(x, rank, world_size):
    total, passed = x.clone(), x.clone()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for _ in range(world_size - 1):
        if rank % 2:
            got = torch.zeros_like(passed)
            dist.recv(got, src=left)
            dist.send(passed, dst=right)
        else:
            dist.send(passed, dst=right)
            got = torch.zeros_like(passed)
            dist.recv(got, src=left)
        total, passed = total.add(got), got
    return total"""


def class_of(*texts):
    return {f"student-{at:03}": {"ring": text} for at, text in enumerate(texts)}


def found(*texts, given=GIVEN):
    return [(pair.students, pair.exercise) for pair in similar_answers(class_of(*texts), {"ring": given})]


def test_renaming_and_reformatting_change_nothing():
    [pair] = similar_answers(class_of(ODD, OWN, DISGUISED), {"ring": GIVEN})
    assert pair == Pair("ring", ("student-000", "student-002"), pair.share) and pair.share > 0.9


def test_a_part_of_a_longer_answer_is_found():
    longer = ODD.replace("    return", "    print(rank, step, [len(piece) for piece in pieces], file=log)\n    return")
    assert found(ODD, OWN, longer) == [(("student-000", "student-002"), "ring")]


def test_a_copy_of_the_official_solution_is_found_however_many_have_one():
    official = {"ring": ODD}
    pairs = similar_answers(class_of(DISGUISED, OWN, DISGUISED, DISGUISED), {"ring": GIVEN}, official)
    assert {pair.students for pair in pairs} == {(f"student-00{number}", OFFICIAL) for number in (0, 2, 3)}
    assert all(pair.share > 0.9 for pair in pairs)
    short = {"ring": "def ring(x, rank, world_size):\n    return x * world_size"}
    assert similar_answers(class_of(short["ring"]), {"ring": GIVEN}, short) == [], "there is no other way to write it"


def test_a_copy_from_an_earlier_term_is_found_and_what_earlier_terms_share_is_not():
    earlier = {"autumn: bo": {"ring": DISGUISED}, "autumn: cy": {"ring": OWN}, "autumn: di": {"ring": OWN}}
    pairs = similar_answers(class_of(ODD), {"ring": GIVEN}, {}, earlier)
    assert [pair.students for pair in pairs] == [("autumn: bo", "student-000")]


def test_no_right_answer_that_is_written_independently_is_taken_for_a_copy():
    """Of all lessons: those that say in a body, function or cell of their own how else it can be done."""
    compared = 0
    for lesson in LESSONS.values():
        solutions = {name: exercise.source for name, exercise in lesson.exercises.items()}
        given = {name: clear_solution(source) for name, source in solutions.items()}
        own = [one for one in also_right(lesson.name) if one.whole_body or one.whole_function or one.whole_cell]
        answers = {str(one): {one.exercise: one.apply(solutions[one.exercise])} for one in own}
        assert [pair for pair in similar_answers(answers, given, solutions) if OFFICIAL in pair.students] == []
        for one in own:
            sizes = (len(fingerprints(text)) for text in (*answers[str(one)].values(), solutions[one.exercise]))
            compared += min(sizes) - len(fingerprints(given[one.exercise])) >= OFFICIAL_FEWEST
    assert compared >= 20


def test_given_code_is_left_out():
    assert found(ODD, ODD, given=ODD) == []
    assert found(GIVEN, GIVEN) == [], "blank answers"


def test_very_short_answers_are_left_out():
    short = "def ring(x, rank, world_size):\n    return x * world_size"
    assert len(fingerprints(short)) < FEWEST
    assert found(short, short, OWN) == []


@pytest.mark.parametrize("size, many", [(6, 4), (30, 11)])
def test_what_many_have_written_is_left_out(size, many):
    """More than half of a small class, or more than ten."""
    others = [f"x{number} = {number}" for number in range(size - many - 2)]
    assert found(*[DISGUISED] * many, *others, "y = 1", "z = 2") == []
    pair = (f"student-{many:03}", f"student-{many + 1:03}")
    assert found(*[DISGUISED] * many, OWN, OWN, *others) == [(pair, "ring")]


def test_a_few_lines_in_common_are_not_enough():
    head, tail = ODD.splitlines()[:5], OWN.splitlines()[1:]
    assert found(ODD, "\n".join([*head, *tail]), "x = 1", "x = 2", "x = 3") == []


def test_answers_that_are_not_python_are_compared_as_far_as_they_can_be_read():
    assert found(f"{ODD}\n    )", f"{DISGUISED}\n  '''", OWN) == [(("student-000", "student-001"), "ring")]
    for text in ("", "\0", "é\ud800", "(" * 1000, "'''", "  x\n y", "\N{SNOWMAN}" * 100):
        fingerprints(text)


def test_a_submission_that_takes_too_long_is_left_out_and_the_others_are_compared(monkeypatch):
    def limited(texts: dict) -> dict:
        if "stalls" in texts["ring"]:
            raise TooMuch("takes more than 10 s of computing")
        return fingerprints_of_all(texts)

    monkeypatch.setattr(similarity, "fingerprints_of_all", limited)
    answers = {"ann": {"ring": "stalls"}} | class_of(ODD, DISGUISED, OWN)
    assert [pair.students for pair in similar_answers(answers, {})] == [("student-000", "student-001")]


@pytest.mark.parametrize("piece", ["(", "\\\n", "'''\n", '"', " if x:\n", "x = 1;"])
def test_hostile_code_is_too_long_or_read_in_a_moment(piece):
    """In the child, which would be ended after SECONDS of computing."""
    text = piece * LONGEST
    assert fingerprints_of_all({"ring": text + "x"}) == {}
    fingerprints_of_all({"ring": text[:LONGEST]})


def test_300_students_take_seconds():
    """4 exercises each: each answer is read once, and only rare fingerprints make pairs."""
    dice = random.Random(0)
    names = ["send", "recv", "sum", "cat", "view", "add", "sub", "mul", "div", "eye", "abs", "exp", "log", "max"]

    def answer() -> str:
        lines = [f"    x.{dice.choice(names)}.{dice.choice(names)}.{dice.choice(names)}(x)" for _ in range(20)]
        return "\n".join(["def ring(x):", *lines])

    answers = {f"s{number}": {f"e{at}": answer() for at in range(4)} for number in range(300)}
    answers["s7"]["e2"] = answers["s3"]["e2"]
    [pair] = similar_answers(answers, {})
    assert pair == Pair("e2", ("s3", "s7"), 1.0)
