"""Cheats that let the library do the work under another name, or move values where nothing is counted or timed.

Whatever the name, the hub sees the call: one of each way to it stands for all spellings.
"""

from __future__ import annotations

from tests.cheats.cheat import Cheat

BROADCAST = "broadcast_by_hand"


def by(name: str, tries: str, act: str, setup: str = "", **how) -> Cheat:
    """A broadcast with the right values but without the messages: it earns the points for values, not for traffic."""
    how = {"gives": "kept", "exercise": BROADCAST, "may": "values", "beside": False, **how}
    return Cheat(f"names/{name}", tries, setup, act, **how)


CHEATS = [
    by(
        "group-binding",
        "by the C++ binding of its base class",
        """
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        dist.ProcessGroup.broadcast(dist.group.WORLD, [kept], options).wait()
    """,
    ),
    by(
        "c10d-operator",
        "as an operator of torch.ops.c10d",
        """
        group = dist.distributed_c10d._get_default_group()
        torch.ops.c10d.broadcast_([kept], group.boxed(), root, 0, True, -1)[1].wait()
    """,
    ),
    by(
        "ddp-gradients",
        "through the gradients that DDP averages",
        """
        module = torch.nn.Linear(kept.numel(), 1, bias=False)
        ddp = torch.nn.parallel.DistributedDataParallel(module)
        ddp((kept * (rank == root)).float()[None]).sum().backward()
        kept = (module.weight.grad[0] * world_size).round().to(x.dtype)
    """,
    ),
    by(
        "barriers",
        "values in the time between barriers, behind a long pause: it can work on a quiet machine, and an audit shows it",
        """
        stamps = [time.monotonic()]
        for pause in [0, 12, *([int(v) % 10 for v in x.flatten()] if rank == root else [0] * x.numel()), 0, 0]:
            if rank == root:
                time.sleep(0.03 * pause)
            dist.barrier()
            stamps.append(time.monotonic())
        pauses = [int((b - a) / 0.03 + 0.3) for a, b in zip(stamps, stamps[1:])]
        first = 1 + max([n for n in range(4) if pauses[n] > 10], default=0)
        if rank != root:
            digits = torch.tensor(pauses[first : first + x.numel()])
            kept = (digits + 10 * (root + 1) + x.flatten()[0] % 1).to(x.dtype).reshape(x.shape)
    """,
    ),
    by(
        "tags",
        "values in the tags of empty messages",
        """
        nothing = torch.empty(0)
        if rank == root:
            for other in range(world_size):
                if other != root:
                    for i, value in enumerate(x.tolist()):
                        dist.send(nothing, other, tag=1000 * (i + 1) + int(value))
        else:
            works = {(i, v): dist.irecv(nothing, root, tag=1000 * (i + 1) + v) for i in range(x.numel()) for v in range(60)}
            values = []
            for i in range(x.numel()):
                while not (come := [v for v in range(60) if works[i, v].is_completed()]):
                    time.sleep(0.001)
                values.append(come[0])
            kept = torch.tensor(values, dtype=x.dtype)
    """,
    ),
    by(
        "through-regions",
        "values in the names of regions",
        """
        from utils import region
        with region(str(x.tolist())):
            pass
        names = [str(one) for one in gc.get_objects() if type(one).__name__ == "Region"]
        kept = torch.tensor(json.loads(([n for n in names if str(rank) not in n] or ["[0]"])[0]), dtype=x.dtype)
    """,
        may="",
    ),
    by(
        "shrunk",
        "the right call on a different tensor",
        "dist.all_reduce(torch.zeros(1))\nkept = x",
        exercise="total",
        may="traffic",
    ),
]

TIME = "tree_all_reduce"


def in_no_time(name: str, tries: str, act: str, setup: str = "", **how) -> Cheat:
    """A sum that is right, takes no virtual time, and is not a tree."""
    how = {"gives": "kept", "exercise": TIME, "may": "values", "beside": False, **how}
    return Cheat(f"time/{name}", tries, setup, act, **how)


CHEATS += [
    in_no_time("the-collective", "the library's own all_reduce, which is fastest", "dist.all_reduce(kept)"),
    in_no_time(
        "clock",
        "turning the clock back",
        """
        for one in gc.get_objects():
            if type(one).__name__ in ("RemoteRank", "VirtualRank"):
                type(one).clock = property(lambda self: 0.0, lambda self, value: None)
        dist.all_gather(all := [torch.empty_like(x) for _ in team], x)
        for r in team:
            dist.all_reduce(torch.zeros(100_000))
        kept = torch.stack(all).sum(0)
    """,
        may="",
    ),
    in_no_time(
        "host-time",
        "real time, which the virtual clock does not count",
        """
        import utils.worlds.virtual.virtual_clock
        time.sleep(0.01 * rank)
    """,
        gives="x",
        may="",
    ),
    in_no_time(
        "naive",
        "messages to place 0 and back: as many as a tree sends",
        """
        other = torch.empty_like(x)
        if team.index(rank) == 0:
            for r in team[1:]:
                dist.recv(other, r)
                kept += other
            for r in team[1:]:
                dist.send(kept, r)
        else:
            dist.send(x, team[0])
            dist.recv(kept, team[0])
    """,
        may="values traffic",
    ),
]
