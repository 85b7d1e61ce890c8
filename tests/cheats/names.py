"""Cheats that let the library do the work under another name, or move values where nothing is counted or timed."""

from __future__ import annotations

from tests.cheats.cheat import Cheat

BROADCAST = "broadcast_by_hand"


def by(name: str, tries: str, act: str, setup: str = "", **how) -> Cheat:
    """A broadcast with the right values but without the messages: it earns the points for values, not for traffic."""
    how = {"gives": "kept", "exercise": BROADCAST, "may": "values", "beside": False, "plain": True, **how}
    return Cheat(f"names/{name}", tries, setup, act, **how)


def hides(name: str, tries: str, act: str, setup: str = "", **how) -> Cheat:
    """An all_reduce too few or too many, under a different name."""
    return by(name, tries, act, setup, exercise="total", **how)


CHEATS = [
    by("the-collective", "the forbidden collective itself", "dist.broadcast(kept, root)"),
    by("alias", "under another name", "prepared(kept, root)", "give = dist.broadcast\nreturn give"),
    by("getattr", "by a name put together at run time", "getattr(dist, 'broad' + 'cast')(kept, root)"),
    by(
        "partial",
        "in a partial of a lambda",
        "prepared(kept)",
        "import functools\nreturn functools.partial(lambda x, **k: dist.broadcast(x, 2), src=0)",
        may="",
    ),
    by("module", "from torch's own module", "dist.distributed_c10d.broadcast(kept, root)"),
    by("unwrapped", "without torch's decorators", "inspect.unwrap(dist.broadcast)(kept, root)"),
    by(
        "group-object",
        "through the process group's method",
        """
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        dist.group.WORLD.broadcast([kept], options).wait()
    """,
    ),
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
        "functional",
        "as a functional collective",
        "import torch.distributed._functional_collectives as f\nkept = f.wait_tensor(f.broadcast(kept, root, dist.group.WORLD))",
    ),
    by(
        "operator",
        "as an operator of torch.ops",
        "kept = torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.broadcast(kept, root, "
        "dist.group.WORLD.group_name))",
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
        "objects",
        "as an object",
        """
        box = [kept.tolist()]
        dist.broadcast_object_list(box, root)
        kept = torch.tensor(box[0], dtype=kept.dtype)
    """,
    ),
    by("scatter", "as a scatter of copies", "dist.scatter(kept, [x] * world_size if rank == root else None, root)"),
    by(
        "all-gather",
        "as an all_gather",
        """
        all = [torch.empty_like(x) for _ in range(world_size)]
        dist.all_gather(all, x)
        kept = all[root]
    """,
    ),
    by(
        "all-gather-base",
        "as torch's private _all_gather_base",
        """
        all = x.new_empty(world_size * x.numel())
        dist.all_gather_into_tensor(all, x)
        kept = all.view(world_size, -1)[root].clone()
    """,
    ),
    by(
        "reduce",
        "as a sum of zeros and one tensor",
        "kept = x if rank == root else 0 * x\nkept = kept.clone()\ndist.all_reduce(kept)",
    ),
    by(
        "coalesced",
        "in a coalescing manager",
        """
        with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu")):
            dist.all_reduce(kept.mul_(rank == root))
    """,
    ),
    by(
        "batch",
        "as a batch of messages to all, each of which counts",
        """
        if rank == root:
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, r) for r in range(world_size) if r != root])
        else:
            works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, kept, root)])
        [work.wait() for work in works]
    """,
        may="values traffic",
    ),
    by(
        "second-group",
        "in a group of its own",
        "group = dist.new_group(list(range(world_size)))\ndist.broadcast(kept, root, group=group)",
    ),
    by(
        "ddp",
        "through what DDP does when it is constructed",
        """
        module = torch.nn.Linear(kept.numel(), 1, bias=False)
        module.weight.data[:] = kept
        dist.broadcast_object_list([None], root)
        dist._broadcast_coalesced(dist.group.WORLD, [module.weight.data], 1 << 20, root)
        kept = module.weight.data[0].to(x.dtype)
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
        "dtensor",
        "as a DTensor",
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard
        mesh = init_device_mesh("cpu", (world_size,))
        full = DTensor.from_local(x[None], mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local()
        kept = full[root].clone()
    """,
    ),
    by(
        "store",
        "through the rendezvous store",
        """
        store = dist.distributed_c10d._get_default_store()
        store.set(f"cheat {rank}", bytes([int(v) for v in x.tolist()]))
        kept = torch.tensor(list(store.get(f"cheat {root}")), dtype=x.dtype)
    """,
    ),
    by(
        "file-store",
        "through a FileStore of its own",
        """
        store = dist.FileStore("/tmp/cheat-store", world_size)
        store.set(f"cheat {rank}", bytes([int(v) for v in x.tolist()]))
        kept = torch.tensor(list(store.get(f"cheat {root}")), dtype=x.dtype)
    """,
    ),
    by(
        "tcp-store",
        "through a TCPStore of its own",
        """
        store = dist.TCPStore("127.0.0.1", 47321, world_size, rank == 0)
        store.set(f"cheat {rank}", bytes([int(v) for v in x.tolist()]))
        kept = torch.tensor(list(store.get(f"cheat {root}")), dtype=x.dtype)
        dist.barrier()
    """,
    ),
    by(
        "monitored-barrier",
        "values in the time between two barriers",
        """
        values = []
        for i in range(x.numel()):
            dist.barrier()
            began = time.monotonic()
            if rank == root:
                time.sleep(float(x[i]) * 0.003)
            dist.barrier()
            values.append(round((time.monotonic() - began) / 0.003))
        kept = torch.tensor(values, dtype=x.dtype)
    """,
        plain=False,
    ),
    # messages that carry values in everything but their tensors
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
        plain=False,
    ),
    by(
        "sizes",
        "values in the number of empty messages",
        """
        one = torch.zeros(1, dtype=torch.uint8)
        if rank == root:
            for other in range(world_size):
                for value in [int(v) for v in x.tolist()] if other != root else []:
                    for _ in range(value):
                        dist.send(one.fill_(0), other)
                    dist.send(one.fill_(1), other)
        else:
            values = []
            for i in range(x.numel()):
                count = -1
                while not count >= 0 or not one.item():
                    dist.recv(one, root)
                    count += 1
                values.append(count)
            kept = torch.tensor(values, dtype=x.dtype)
    """,
    ),
    by(
        "order-of-senders",
        "values in the order of the senders",
        """
        nothing = torch.zeros(1)
        if rank == root:
            for other in range(world_size):
                if other != root:
                    dist.send(x.to(torch.int8), other)
        else:
            small = torch.zeros(x.numel(), dtype=torch.int8)
            dist.recv(small, root)
            kept = small.to(x.dtype)
    """,
    ),
    by(
        "through-groups",
        "values in the names of groups",
        """
        for i in range(x.numel()):
            for value in range(60):
                dist.new_group(list(range(world_size)), group_desc=str(int(x[i]) if rank == root else value))
    """,
        may="",
    ),
    by(
        "through-errors",
        "values in error messages",
        """
        if rank == root:
            raise ValueError(str(x.tolist()))
        try:
            dist.recv(kept, root)
        except Exception as error:
            kept = torch.tensor(json.loads(re.search(r"\\[.*\\]", str(error))[0]), dtype=x.dtype)
    """,
        may="",
    ),
    by(
        "through-prints",
        "values in what is printed",
        """
        print(rank, x.tolist(), flush=True)
        sys.stdin = open(0)
        kept = torch.tensor(json.loads(sys.stdin.readline() or "[0]"), dtype=x.dtype)
    """,
        may="",
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
    # something other than an all_reduce, or one too many
    hides("twice", "two all_reduces, one of an empty tensor", "dist.all_reduce(torch.empty(0))\ndist.all_reduce(kept)"),
    hides(
        "gathers",
        "an all_gather and a sum",
        """
        all = [torch.empty_like(x) for _ in range(world_size)]
        dist.all_gather(all, x)
        kept = torch.stack(all).sum(0)
    """,
    ),
    hides(
        "by-hand",
        "messages to rank 0 and back",
        """
        if rank == 0:
            for other in range(1, world_size):
                theirs = torch.empty_like(x)
                dist.recv(theirs, other)
                kept += theirs
            for other in range(1, world_size):
                dist.send(kept, other)
        else:
            dist.send(x, 0)
            dist.recv(kept, 0)
    """,
    ),
    hides("shrunk", "the right call on a different tensor", "dist.all_reduce(torch.zeros(1))\nkept = x", may="traffic"),
    hides(
        "dropped",
        "an asynchronous call that nobody waits for",
        "dist.all_reduce(kept, async_op=True)\nkept = x",
        may="",
    ),
]

TIME = "tree_all_reduce"


def in_no_time(name: str, tries: str, act: str, setup: str = "", **how) -> Cheat:
    """A sum that is right, takes no virtual time, and is not a tree."""
    how = {"gives": "kept", "exercise": TIME, "may": "values", "beside": False, "plain": True, **how}
    return Cheat(f"time/{name}", tries, setup, act, **how)


CHEATS += [
    in_no_time("the-collective", "the library's own all_reduce, which is fastest", "dist.all_reduce(kept)"),
    in_no_time(
        "shared-memory",
        "memory that threads of one process share",
        """
        dist.barrier()
        board = builtins.__dict__.setdefault("board", {})
        board[rank, x.numel()] = x
        dist.barrier()
        kept = sum(board[r, x.numel()] for r in team)
        dist.barrier()
    """,
        may="",
    ),
    in_no_time(
        "file-store",
        "a store of its own, which takes no time",
        """
        store = dist.FileStore("/tmp/cheat-store", len(team))
        key = f"{sorted(team)}-{x.numel()}-{x.dtype}-"
        store.set(key + str(rank), json.dumps(x.tolist()))
        kept = torch.stack([torch.tensor(json.loads(store.get(key + str(r))), dtype=x.dtype) for r in team]).sum(0)
    """,
    ),
    in_no_time(
        "shared-file",
        "a file that ranks share, which takes no time",
        """
        from utils import shared_file
        file = shared_file.SharedFile("/tmp/cheat-file")
        file.append(json.dumps([rank, x.numel(), x.tolist()]))
        theirs = {}
        while len(theirs) < len(team):
            lines = [json.loads(line) for line in file.lines()]
            theirs = {r: values for r, numel, values in lines if numel == x.numel() and r in team}
        kept = torch.stack([torch.tensor(theirs[r], dtype=x.dtype) for r in team]).sum(0)
    """,
    ),
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
