"""Races in graded runs: they fail every time, and the message says why."""

from __future__ import annotations

import textwrap

import pytest

from tests.graded import judged

pytestmark = [pytest.mark.long, pytest.mark.sandbox]

BEGIN = """
def naive_all_reduce(x, team, rank):
    root, others, total = team[0], team[1:], x.clone()
"""
# What the root and the others do, and words of what they are told; "" if it is right.
ANSWERS = {
    "reads what it has not waited for": (
        """
        if rank == root:
            arrived = [torch.empty_like(x) for _ in others]
            works = [dist.irecv(one, src=other) for one, other in zip(arrived, others)]
            total = sum(arrived, total)
            for work in works:
                work.wait()
            for other in others:
                dist.send(total, dst=other)
        else:
            dist.send(x, dst=root)
            dist.recv(total, src=root)
        """,
        "still in flight",
    ),
    "waits for the first of several": (
        """
        if rank == root:
            arrived = [torch.empty_like(x) for _ in others]
            works = [dist.irecv(one, src=other) for one, other in zip(arrived, others)]
            works.pop().wait()
            total = sum(arrived, total)
            for work in works:
                work.wait()
            for other in others:
                dist.send(total, dst=other)
        else:
            dist.send(x, dst=root)
            dist.recv(total, src=root)
        """,
        "still in flight",
    ),
    "changes what it sends": (
        """
        if rank == root:
            arrived = torch.empty_like(x)
            for other in others:
                dist.recv(arrived, src=other)
                total += arrived
            for other in others:
                dist.send(total, dst=other)
        else:
            sending = dist.isend(total, dst=root)
            dist.recv(total, src=root)
            sending.wait()
        """,
        "written to while it was in flight",
    ),
    "throws a handle away": (
        """
        if rank == root:
            for other in others:
                arrived = torch.empty_like(x)
                dist.recv(arrived, src=other)
                total += arrived
            for other in others:
                dist.send(total, dst=other)
        else:
            dist.isend(x, dst=root)
            dist.recv(total, src=root)
        """,
        "handle",
    ),
    "never waits": (
        """
        if rank == root:
            for other in others:
                arrived = torch.empty_like(x)
                dist.recv(arrived, src=other)
                total += arrived
            for other in others:
                dist.send(total, dst=other)
        else:
            sending = dist.isend(x, dst=root)
            dist.recv(total, src=root)
        """,
        "never waited for it",
    ),
    "waits in order": (
        """
        if rank == root:
            arrived = [torch.empty_like(x) for _ in others]
            works = [dist.irecv(one, src=other) for one, other in zip(arrived, others)]
            for one, work in zip(arrived, works):
                work.wait()
                total += one
            works = [dist.isend(total, dst=other) for other in others]
        else:
            sending = dist.isend(x, dst=root)
            sending.wait()
            works = [dist.irecv(total, src=root)]
        for work in works:
            work.wait()
        """,
        "",
    ),
}


def source(body: str) -> dict[str, str]:
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return {"naive-all-reduce": f"{BEGIN}{lines}\n    return total\n"}


@pytest.mark.parametrize("case", ANSWERS)
def test_races_fail_and_are_named(case):
    body, words = ANSWERS[case]
    [verdict] = judged("02_all_reduce", source(body), ["naive-all-reduce-values"]).verdicts
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
