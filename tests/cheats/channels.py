"""Cheats that use what the hub itself serves: values go where no message is counted, and messages of zeros look right."""

from __future__ import annotations

from tests.cheats.cheat import RIGHT, Cheat, clean

SUMS = """
sums = [sum(column) for column in zip(*heard)]
x = torch.tensor(sums, dtype=x.dtype).reshape(x.shape)
"""


def channel(name: str, tries: str, exchange: str, **how) -> list[Cheat]:
    """`exchange` puts the lists of all ranks, `mine` among them, into `heard`. Then what is counted goes by, all zeros."""
    mine = "mine, heard = [int(v) for v in x.flatten().tolist()], []\n"
    alone = "where = ''\n" + mine + clean(exchange) + SUMS + "dist.all_reduce(torch.zeros_like(x))"
    tree = clean(RIGHT["tree_all_reduce"]).replace("return kept", "")
    renumbered = "where, rank, world_size, me = str(team), team.index(rank), len(team), rank\n"
    in_tree = f"{renumbered}{mine}{clean(exchange)}{SUMS}rank, kept = me, torch.zeros_like(x)\n{tree}"
    return [
        Cheat(f"channels/{name}", tries, "", alone, exercise="total", may="values", beside=False, **how),
        Cheat(
            f"channels/{name}-tree", tries, "", in_tree, exercise="tree_all_reduce", may="values", beside=False, **how
        ),
    ]


STORE = 'store = dist.TCPStore("127.0.0.1" + where, 4711, world_size, is_master=rank == 0)\n'
CHEATS = [
    *channel("store-set", "the store that ranks meet at, set and get", STORE + """
store.set(f"of {rank}", repr(mine))
heard = [eval(store.get(f"of {other}")) for other in range(world_size)]
"""),
    *channel("prefix-store", "a store in a store", """
store = dist.PrefixStore("a", dist.PrefixStore("b", dist.FileStore("/tmp/there" + where, world_size)))
store.set(f"of {rank}", repr(mine))
heard = [eval(store.get(f"of {other}")) for other in range(world_size)]
"""),
    *channel("shared-file", "the file of another exercise", """
from utils.kit.shared_file import SharedFile
file = SharedFile("/tmp/there" + where)
file.append(repr([rank, *mine]))
dist.barrier()
heard = [line[1:] for line in map(eval, file.lines())]
"""),
    *channel("objects", "objects instead of tensors", """
heard = [None] * world_size
dist.all_gather_object(heard, mine)
"""),
]  # fmt: skip
