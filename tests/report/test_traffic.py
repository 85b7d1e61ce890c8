"""run.traffic(): the program's own messages are counted; what its collectives imply is computed."""

import pytest
import torch
import torch.distributed as dist

from utils import spawn
from utils.events.event import Event
from utils.report.run import Run
from utils.report.traffic import Collective


def ring_by_hand(rank, world_size):
    """An all-reduce in a ring, and then the library's own."""
    x = torch.ones(world_size * 6)
    chunks = list(x.clone().chunk(world_size))
    for step in range(2 * (world_size - 1)):
        out, into = (rank - step) % world_size, (rank - step - 1) % world_size
        received = torch.empty(6)
        work = dist.isend(chunks[out].clone(), (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        work.wait()
        chunks[into] = chunks[into] + received if step < world_size - 1 else received
    dist.all_reduce(x)
    return torch.equal(torch.cat(chunks), x)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_a_ring_by_hand_sends_what_the_librarys_all_reduce_implies(world_size):
    run = spawn(ring_by_hand, world_size)
    assert all(run.results)
    traffic = run.traffic()
    for rank in range(world_size):
        assert traffic.sent(rank) == (2 * (world_size - 1), traffic.implied(rank))
        assert traffic.collectives[rank] == {"all_reduce": Collective(1, world_size * 24, traffic.implied(rank))}


def test_each_collective_implies_what_its_algorithm_sends():
    def program(rank, world_size):
        full, part = torch.ones(40), torch.ones(10)
        dist.broadcast(full, src=2)
        dist.reduce(full, dst=2)
        dist.gather(part, [torch.empty(10) for _ in range(4)] if rank == 2 else None, dst=2)
        dist.scatter(torch.empty(10), list(full.chunk(4)) if rank == 2 else None, src=2)
        dist.all_gather([torch.empty(10) for _ in range(4)], part)
        dist.reduce_scatter(torch.empty(10), list(full.chunk(4)))
        dist.all_to_all_single(torch.empty(40), full)
        dist.barrier()
        pair = dist.new_group([1, 3])
        if rank in (1, 3):
            dist.all_reduce(full, group=pair)
            dist.broadcast(part, src=3, group=pair)

    traffic = spawn(program, 4).traffic()
    seen = [{op: tuple(c) for op, c in collectives.items()} for collectives in traffic.collectives]
    full, part = 160, 40
    for rank in (0, 2):
        root = rank == 2
        assert {op: numbers for op, numbers in seen[rank].items() if op != "barrier"} == {
            "broadcast": (1, full, full),  # the chain is 2, 3, 0, 1
            "reduce": (1, full, 0 if root else full),
            "gather": (1, part, 0 if root else part),
            "scatter": (1, full, 3 * part) if root else (1, 0, 0),
            "all_gather": (1, part, 3 * part),
            "reduce_scatter": (1, full, 3 * part),
            "all_to_all": (1, full, 3 * part),
        }
    assert seen[1]["broadcast"] == (2, full + part, 0)  # the last of both chains
    assert seen[3]["broadcast"] == (2, full + part, full + part)
    assert seen[1]["all_reduce"] == (1, full, full)  # 2 (n-1)/n of it, n = 2
    assert seen[0]["barrier"][1:] == (0, 0)
    assert [traffic.sent(rank) for rank in range(4)] == [(0, 0)] * 4


def test_the_tables_are_the_same_in_every_run_and_keep_messages_and_collectives_apart():
    first, second = (spawn(ring_by_hand, 3).traffic() for _ in range(2))
    assert repr(first) == repr(second)
    own, collectives = repr(first).split("\n\n")
    assert [line.split() for line in own.splitlines()[1:]] == [[str(rank), "4", "96", "4", "96"] for rank in range(3)]
    assert [line.split() for line in collectives.splitlines()[1:]] == [["0-2", "all_reduce", "1", "72", "96"]]
    html = first._repr_html_()
    assert html.count("<table>") == 2 and "<td>0-2</td><td>all_reduce</td>" in html and "#" not in html
    silent = spawn(lambda rank, world_size: dist.barrier(), 2).traffic()
    assert repr(silent).startswith("The program sent no messages itself.")
    assert "The program sent no messages itself." in silent._repr_html_()


def test_in_a_large_world_ranks_with_equal_numbers_share_a_row():
    world = tuple(range(1024))

    def event(rank, index, op, peer, nbytes, members=world):
        shape = (nbytes // 4,)
        return Event(rank, index, op, "any", members, peer, 0, nbytes, "float32", shape, "", False, 0.0, 1.0, "cell:1")

    events = []
    for rank in world:
        half = tuple(range(512)) if rank < 512 else tuple(range(512, 1024))  # not the same object on every rank
        events += [event(rank, 0, "all_reduce", None, 512, half), event(rank, 1, "all_reduce", None, 512, half)]
        events += [event(rank, 2, "all_reduce", None, 512), event(rank, 3, "broadcast", 1000, 8)]
        if rank % 8 == 0:
            events += [event(rank, 4, "send", (rank + 8) % 1024, 40)]
    traffic = Run(1024, "virtual", "nccl", [], [], events, 1.0).traffic()
    assert traffic.collectives[600] == {
        "all_reduce": Collective(3, 3 * 512, 2 * (2 * 511) + 2 * 1023 // 2),  # twice in a half, once in the whole
        "broadcast": Collective(1, 8, 8),
    }
    assert traffic.collectives[999]["broadcast"] == Collective(1, 8, 0)  # the last of the chain from 1000
    assert traffic.own_rows() == [
        ("0, 8, ... 1016 (128 alike)", 1, 40, 1, 40),
        ("1-7, 9-15, ... 1017-1023 (896 alike)", 0, 0, 0, 0),
    ]
    assert traffic.collective_rows() == [
        ("0-1023", "all_reduce", 3, 1536, 3067),
        ("0-998, 1000-1023", "broadcast", 1, 8, 8),
        ("999", "broadcast", 1, 8, 0),
    ]
    assert len(repr(traffic).splitlines()) == 3 + 1 + 4
