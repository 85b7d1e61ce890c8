"""A cluster as data: what a GPU can do, how fast its links are, and on which node each rank sits.

    mine = Cluster("mine", nodes=4, gpus_per_node=8,
                   gpu=Gpu(flops={"bf16": 989e12, "fp32": 67e12}, memory=80e9, bandwidth=3.35e12, launch=4e-6),
                   intra=Link(alpha=2e-6, bandwidth=450e9), inter=Link(alpha=5e-6, bandwidth=50e9))
    mine.describe()                                # a table and a picture
    find_cluster("dgx-h100", 1024).describe()      # a machine that one can buy: see presets.py

Three things that are often mistaken, each by a factor of two:

    flops       DENSE peaks; the large print of a datasheet is often "with sparsity", twice as much
    bandwidth   of a link: bytes/s ONE WAY; "900 GB/s NVLink" is both ways together, 450e9 here
    units       FLOP/s, bytes, bytes/s, seconds: no giga, no bits; a NIC of 400 Gb/s has 50e9

float("inf") is a legal peak, memory and bandwidth: that cost is then zero. alpha and launch may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

from ..text.units import nearest
from .description import cluster_text

# From narrow to wide: a GPU without units for a dtype computes in the next wider one that it has.
LADDER = ("fp4", "fp8", "fp16", "bf16", "tf32", "fp32", "fp64")
TWINS = {"fp16": "bf16", "bf16": "fp16"}  # the same units, the same speed
SHORT = {
    **{name: name for name in (*LADDER, "int8")},
    **{"float64": "fp64", "complex128": "fp64", "float32": "fp32", "complex64": "fp32", "float16": "fp16"},
    **{"complex32": "fp16", "bfloat16": "bf16", "uint8": "int8", "bool": "int8"},
    **{f"{sign}int{bits}": "fp32" for sign in ("", "u") for bits in (16, 32, 64)},  # ordinary units, no tensor cores
}


def dtype_name(dtype: str) -> str:
    """The name of a dtype in a datasheet's table: "bf16" for "bfloat16", "torch.bfloat16" and "bf16"."""
    name = str(dtype).removeprefix("torch.").lower()
    name = "fp8" if name.startswith("float8") else "fp4" if name.startswith("float4") else name
    if name not in SHORT:
        names = ", ".join((*LADDER, "int8"))
        raise ValueError(
            f"there is no dtype {str(dtype)!r}{nearest(name, SHORT)} There are {names}, and torch's names."
        )
    return SHORT[name]


@dataclass(frozen=True)
class Gpu:
    """What one rank computes with (a CPU's core in the preset "laptop").

    flops       {dtype: FLOP/s}, dense; keys as in a datasheet ("bf16") or as in torch ("bfloat16")
    memory      bytes
    bandwidth   bytes/s between memory and chip
    launch      seconds that every operation takes at least, however small
    """

    flops: dict[str, float]
    memory: float
    bandwidth: float
    launch: float = 0.0

    def __post_init__(self):
        if not isinstance(self.flops, Mapping):
            raise TypeError(f'Gpu.flops is {self.flops!r}: it takes FLOP/s for each dtype, such as {{"bf16": 989e12}}')
        if not self.flops:
            raise ValueError('Gpu.flops is empty: it takes FLOP/s for one dtype or more, such as {"bf16": 989e12}')
        table = {}
        for dtype, peak in self.flops.items():
            if dtype_name(dtype) in table:
                raise ValueError(f"Gpu.flops has two peaks for {dtype_name(dtype)}: {', '.join(map(str, self.flops))}")
            table[dtype_name(dtype)] = number(f"Gpu.flops[{dtype!r}]", peak, "FLOP/s, dense", "989e12")
        object.__setattr__(self, "flops", table)
        number("Gpu.memory", self.memory, "bytes", "80e9")
        number("Gpu.bandwidth", self.bandwidth, "bytes/s", "3.35e12")
        number("Gpu.launch", self.launch, "seconds", "4e-6", cost=True)

    def __hash__(self):  # a dict has none; equal GPUs have equal memory
        return hash((self.memory, self.bandwidth, self.launch))

    def peak(self, dtype: str) -> float:
        """FLOP/s for a dtype of torch, such as "float32" or "bfloat16".

        float32 means fp32: torch uses tf32 only if it is told to. What the table lacks is computed in the other 16-bit
        format, else in the next wider one that the table has (fp8 on an A100: as bf16). If it has no wider one, the
        widest it has counts, and half of that for float64. Integers of more than 8 bits go like fp32.

        Raises ValueError for a name that is no dtype.
        """
        name = dtype_name(dtype)
        if name in self.flops:
            return self.flops[name]
        if TWINS.get(name) in self.flops:
            return self.flops[TWINS[name]]
        step = LADDER.index("fp8") - 1 if name == "int8" else LADDER.index(name)
        wider = [other for other in LADDER[step + 1 :] if other in self.flops]
        if wider:
            return self.flops[wider[0]]
        widest = next(other for other in (*reversed(LADDER), "int8") if other in self.flops)
        return self.flops[widest] / 2 if name == "fp64" else self.flops[widest]


@dataclass(frozen=True)
class Link:
    """The way from one rank to another: a message of n bytes takes alpha + n / bandwidth.

    alpha       seconds until the first byte arrives
    bandwidth   bytes/s ONE WAY; each rank can send and receive at once (full duplex)
    reduces     whether the switch adds up what passes through it (NVLink SHARP, InfiniBand SHARP)
    """

    alpha: float
    bandwidth: float
    reduces: bool = False

    def __post_init__(self):
        number("Link.alpha", self.alpha, "seconds", "2e-6", cost=True)
        number("Link.bandwidth", self.bandwidth, "bytes/s one way", "450e9")
        if not isinstance(self.reduces, bool):
            raise TypeError(f"Link.reduces is {self.reduces!r}: it takes True (the switch adds up) or False")

    def seconds(self, nbytes: float) -> float:
        """How long one message of `nbytes` takes, alone on the link."""
        return self.alpha + nbytes / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal GPUs. Ranks fill node 0 first, then node 1, ...

    intra     the link between two GPUs of a node
    inter     the link between GPUs of different nodes: one NIC
    nics      how many NICs a node has; neighbours share one (ranks 0 and 1 of 8 share NIC 0 of 4). None: one each
    sources   where the numbers come from, a sentence each
    """

    name: str
    nodes: int
    gpus_per_node: int
    gpu: Gpu
    intra: Link
    inter: Link
    nics: int | None = None
    sources: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"Cluster.name is {self.name!r}: it takes a text, such as 'mine'")
        count("Cluster.nodes", self.nodes, "nodes")
        count("Cluster.gpus_per_node", self.gpus_per_node, "GPUs in each node")
        for name, value, kind in (("gpu", self.gpu, Gpu), ("intra", self.intra, Link), ("inter", self.inter, Link)):
            if not isinstance(value, kind):
                raise TypeError(f"Cluster.{name} is {value!r}: it takes a {kind.__name__}(...)")
        if self.nics is not None:
            count("Cluster.nics", self.nics, "NICs in each node")
            if self.gpus_per_node % self.nics:
                raise ValueError(
                    f"Cluster.nics is {self.nics}, for {self.gpus_per_node} GPUs in each node: every NIC serves the "
                    "same number of GPUs here, so it takes a divisor of that. More NICs than GPUs? Add their bandwidths"
                )
        sources = (self.sources,) if isinstance(self.sources, str) else tuple(self.sources)
        object.__setattr__(self, "sources", sources)

    def __hash__(self):  # short, since every look-up of a cost needs it
        return hash((self.name, self.nodes, self.gpus_per_node))

    @property
    def size(self) -> int:
        """How many ranks there is room for."""
        return self.nodes * self.gpus_per_node

    @property
    def gpus_per_nic(self) -> int:
        return self.gpus_per_node // (self.nics or self.gpus_per_node)

    def node_of(self, rank: int) -> int:
        """Raises ValueError if the cluster has no such rank."""
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in {self.name!r}: it has ranks 0 to {self.size - 1}")
        return rank // self.gpus_per_node

    def nic_of(self, rank: int) -> tuple[int, int]:
        """(node, NIC of that node) by which a rank reaches other nodes."""
        return self.node_of(rank), rank % self.gpus_per_node // self.gpus_per_nic

    def link(self, a: int, b: int) -> Link:
        """What connects two ranks: `intra` if they share a node, else `inter`."""
        return self.intra if self.node_of(a) == self.node_of(b) else self.inter

    def describe(self):
        """Print all numbers, and return a picture of nodes, GPUs and links."""
        from .. import figures

        print(cluster_text(self))
        return figures.cluster(self)


# ---- refusals


def number(where: str, value, unit: str, example: str, cost: bool = False):
    """`value`, if it is a number above 0 (a `cost`: 0 or above, and finite). Else TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{where} is {value!r}: it takes a number, in {unit}, such as {example}")
    if math.isnan(value) or value < 0 or (not cost and value == 0):
        raise ValueError(
            f"{where} is {value!r}: it takes {unit}, {'0 or more' if cost else 'above 0'}, such as {example}"
        )
    if cost and math.isinf(value):
        raise ValueError(f"{where} is {value!r}: nothing would ever end. It takes {unit}, such as {example}")
    return value


def count(where: str, value, things: str) -> None:
    """TypeError or ValueError unless `value` is a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{where} is {value!r}: it takes a whole number of {things}")
    if value < 1:
        raise ValueError(f"{where} is {value}: it takes a number of {things}, 1 or more")
