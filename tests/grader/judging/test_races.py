"""Races in graded runs: they fail every time, and the message says why."""

from __future__ import annotations

import textwrap

import pytest

from tests.graded import judged

pytestmark = [pytest.mark.long, pytest.mark.sandbox]

ANSWER = """
def naive_all_reduce(x, team, rank):
    root, others, total = team[0], team[1:], x.clone()
    if rank == root:
        {collect}
        for other in others:
            dist.send(total, dst=other)
    else:
        {give}
    return total
"""
ONE_BY_ONE = """
for other in others:
    arrived = torch.empty_like(x)
    dist.recv(arrived, src=other)
    total += arrived
"""
ALL_AT_ONCE = """
arrived = [torch.empty_like(x) for _ in others]
works = [dist.irecv(one, src=other) for one, other in zip(arrived, others)]
"""
ADD_EARLY = """
total = sum(arrived, total)
for work in works:
    work.wait()
"""
ADD_IN_ORDER = """
for one, work in zip(arrived, works):
    work.wait()
    total += one
"""
GIVE = """
dist.send(x, dst=root)
dist.recv(total, src=root)
"""
# What the root does to collect, what the others do, and words of what they are told; "" if it is right.
ANSWERS = {
    "reads what it has not waited for": (ALL_AT_ONCE + ADD_EARLY, GIVE, "still in flight"),
    "waits for the first of several": (ALL_AT_ONCE + "works.pop().wait()" + ADD_EARLY, GIVE, "still in flight"),
    "changes what it sends": (
        ONE_BY_ONE,
        "sending = dist.isend(total, dst=root)\ndist.recv(total, src=root)\nsending.wait()",
        "written to while it was in flight",
    ),
    "throws a handle away": (ONE_BY_ONE, GIVE.replace("send", "isend"), "handle"),
    "never waits": (ONE_BY_ONE, GIVE.replace("dist.send", "sending = dist.isend"), "never waited for it"),
    "waits in order": (
        ALL_AT_ONCE + ADD_IN_ORDER,
        "dist.isend(x, dst=root).wait()\ndist.irecv(total, src=root).wait()",
        "",
    ),
}


def source(collect: str, give: str) -> dict[str, str]:
    collect, give = (textwrap.indent(lines.strip("\n"), " " * 8).strip() for lines in (collect, give))
    return {"naive-all-reduce": ANSWER.format(collect=collect, give=give)}


@pytest.mark.parametrize("case", ANSWERS)
def test_races_fail_and_are_named(case):
    collect, give, words = ANSWERS[case]
    [verdict] = judged("02_all_reduce", source(collect, give), ["naive-all-reduce-values"]).verdicts
    assert verdict.kind == ("wrong" if words else "passed"), verdict.said
    assert words in verdict.said


GATHER = """
def gather_by_hand(x, root, rank, world_size):
    if rank != root:
        dist.send(x, dst=root)
        return None
    rows = torch.zeros(world_size, *x.shape, dtype=x.dtype)
    rows[root] = x
    for other in range(world_size):
        if other != root:
            dist.recv(rows[other])
    return rows
"""


@pytest.mark.parametrize("order", ["range(world_size)", "reversed(range(world_size))"])
def test_whoever_comes_is_not_who_was_expected(order):
    """Whichever fixed order a program counts on."""
    text = GATHER.replace("range(world_size)", order)
    [verdict] = judged("01_collectives", {"gather-by-hand": text}, ["gather-by-hand-values"]).verdicts
    assert verdict.kind == "wrong", verdict.said
    named = text.replace("dist.recv(rows[other])", "dist.recv(rows[other], src=other)")
    [verdict] = judged("01_collectives", {"gather-by-hand": named}, ["gather-by-hand-values"]).verdicts
    assert verdict.kind == "passed", verdict.said
