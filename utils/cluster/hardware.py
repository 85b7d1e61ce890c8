"""A cluster as data: what a GPU can do, how fast its links are, and on which node each rank sits.

    mine = Cluster("mine", nodes=4, gpus_per_node=8,
                   gpu=Gpu(flops={"bf16": 989e12, "fp32": 67e12}, memory=80e9, bandwidth=3.35e12, launch=4e-6),
                   intra=Link(alpha=2e-6, bandwidth=450e9), inter=Link(alpha=5e-6, bandwidth=50e9))
    mine.describe()                                # a table and a picture
    find_cluster("dgx-h100", 1024).describe()      # a machine that one can buy: see presets.py

Three numbers that are easy to get wrong, the first two by a factor of two:

    flops       DENSE peaks; the headline figure in a datasheet is often "with sparsity", twice as much
    bandwidth   of a link: bytes/s ONE WAY; "900 GB/s NVLink" counts both directions, so it is 450e9 here
    units       FLOP/s, bytes, bytes/s, seconds: no giga, no bits; a NIC of 400 Gb/s has 50e9

A peak, a memory or a bandwidth may be float("inf"): that cost is then zero. alpha and launch may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from numbers import Integral, Real
from typing import TYPE_CHECKING

from ..text.units import nearest
from .achieved import RATES, GlooRates, KernelRates, LinkRates, Uncertainty
from .description import cluster_text
from .jitter import Jitter

if TYPE_CHECKING:
    from ..figures.picture import Picture

# From narrow to wide: a GPU that has no units for a dtype computes in the next wider one it has.
LADDER = ("fp4", "fp8", "fp16", "bf16", "tf32", "fp32", "fp64")
TWINS = {"fp16": "bf16", "bf16": "fp16"}  # the same units at the same speed
DATASHEET_NAMES = {
    **{name: name for name in (*LADDER, "int8")},
    **{"float64": "fp64", "complex128": "fp64", "float32": "fp32", "complex64": "fp32", "float16": "fp16"},
    **{"complex32": "fp16", "bfloat16": "bf16", "uint8": "int8", "bool": "int8"},
    **{f"{sign}int{bits}": "fp32" for sign in ("", "u") for bits in (16, 32, 64)},  # ordinary units, no tensor cores
}


def dtype_name(dtype: str) -> str:
    """What datasheets call a dtype: "bf16" for "bfloat16", "torch.bfloat16" and "bf16".

    Raises ValueError for an unknown name.
    """
    name = str(dtype).removeprefix("torch.").lower()
    name = "fp8" if name.startswith("float8") else "fp4" if name.startswith("float4") else name
    if name not in DATASHEET_NAMES:
        names = ", ".join((*LADDER, "int8"))
        raise ValueError(
            f"there is no dtype {str(dtype)!r}{nearest(name, DATASHEET_NAMES)} There are {names}, and torch's names."
        )
    return DATASHEET_NAMES[name]


@dataclass(frozen=True)
class Gpu:
    """The processor of one rank (in the preset "laptop", a CPU core).

    flops       {dtype: FLOP/s}, dense; keys as in a datasheet ("bf16") or as in torch ("bfloat16")
    memory      bytes
    bandwidth   bytes/s between memory and chip
    launch      seconds that even the smallest operation takes
    achieved    what kernels reach of that, if it is known
    """

    flops: dict[str, float]
    memory: float
    bandwidth: float
    launch: float = 0.0
    achieved: KernelRates | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.flops, Mapping):
            raise TypeError(f'Gpu.flops is {self.flops!r}; it must give the FLOP/s of each dtype: {{"bf16": 989e12}}')
        if not self.flops:
            raise ValueError('Gpu.flops is empty; it must give the FLOP/s of at least one dtype: {"bf16": 989e12}')
        table: dict[str, float] = {}
        for dtype, peak in self.flops.items():
            if dtype_name(dtype) in table:
                raise ValueError(f"Gpu.flops has two peaks for {dtype_name(dtype)}: {', '.join(map(str, self.flops))}")
            table[dtype_name(dtype)] = peak
            check_number(f"Gpu.flops[{dtype!r}]", peak, "FLOP/s, dense", "989e12")
        object.__setattr__(self, "flops", table)
        check_number("Gpu.memory", self.memory, "bytes", "80e9")
        check_number("Gpu.bandwidth", self.bandwidth, "bytes/s", "3.35e12")
        check_number("Gpu.launch", self.launch, "seconds", "4e-6", may_be_zero=True)

    def __hash__(self) -> int:  # a dict has none, and equal GPUs are equal in these too
        return hash((self.memory, self.bandwidth, self.launch))

    def peak(self, dtype: str) -> float:
        """FLOP/s for a dtype of torch, such as "float32" or "bfloat16".

        float32 means fp32, because torch uses tf32 only on request. A dtype that the table lacks is computed in the
        other 16-bit format, or else in the next wider one that the table has (fp8 on an A100: as bf16). If there is no
        wider one, the widest counts, at half speed for float64. Integers of more than 8 bits are as fast as fp32.

        Raises ValueError for an unknown name.
        """
        name = dtype_name(dtype)
        for same_speed in (name, TWINS.get(name, name)):
            if same_speed in self.flops:
                return self.flops[same_speed]
        step = LADDER.index("fp8") - 1 if name == "int8" else LADDER.index(name)
        wider = [other for other in LADDER[step + 1 :] if other in self.flops]
        if wider:
            return self.flops[wider[0]]
        widest = next(other for other in (*reversed(LADDER), "int8") if other in self.flops)
        return self.flops[widest] / 2 if name == "fp64" else self.flops[widest]


@dataclass(frozen=True)
class Link:
    """The connection from one rank to another: a message of n bytes takes alpha + n / bandwidth seconds.

    alpha       seconds until the first byte arrives
    bandwidth   bytes/s ONE WAY; a rank can send and receive at the same time (full duplex)
    reduces     whether the switch adds up what passes through it (NVLink SHARP, InfiniBand SHARP)
    achieved    what messages and collectives reach of that, if it is known
    """

    alpha: float
    bandwidth: float
    reduces: bool = False
    achieved: LinkRates | GlooRates | None = None

    def __post_init__(self) -> None:
        check_number("Link.alpha", self.alpha, "seconds", "2e-6", may_be_zero=True)
        check_number("Link.bandwidth", self.bandwidth, "bytes/s one way", "450e9")
        if not isinstance(self.reduces, bool):
            raise TypeError(f"Link.reduces is {self.reduces!r}; it must be True (the switch adds up) or False")

    def seconds(self, nbytes: float) -> float:
        """How long one message of `nbytes` takes when nothing else uses the link."""
        return self.alpha + nbytes / self.bandwidth


@lru_cache
def at_achieved(link: Link) -> Link:
    """The link as a message finds it, at its achieved bandwidth."""
    assert link.achieved is not None
    return replace(link, bandwidth=link.bandwidth * link.achieved.bandwidth)


@dataclass(frozen=True)
class Cluster:
    """Nodes with identical GPUs, one rank per GPU. Ranks fill node 0 first, then node 1, ...

    intra     the link between two GPUs of the same node
    inter     the link between GPUs of different nodes: one NIC
    nics      NICs per node; neighbours share one (with 4 NICs, ranks 0 and 1 of 8 share NIC 0). None: one per GPU
    sources   where the numbers come from, one sentence each
    rates     "datasheet": what the datasheet promises; "achieved": what hardware delivers, if its parts say so; None:
              not decided. Then what is achieved counts if it is known, else the datasheet
    jitter    what makes its GPUs unequal; None: nothing
    site      how many times as long matrix products and attention take there, at achieved rates, as in a benchmark:
              SITES in presets.py
    """

    name: str
    nodes: int
    gpus_per_node: int
    gpu: Gpu
    intra: Link
    inter: Link
    nics: int | None = None
    sources: tuple[str, ...] = field(default=(), compare=False, repr=False)
    rates: str | None = None
    jitter: Jitter | None = None
    site: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"Cluster.name is {self.name!r}; it must be a text, such as 'mine'")
        check_count("Cluster.nodes", self.nodes, "nodes")
        check_count("Cluster.gpus_per_node", self.gpus_per_node, "GPUs per node")
        for name, value, kind in (("gpu", self.gpu, Gpu), ("intra", self.intra, Link), ("inter", self.inter, Link)):
            if not isinstance(value, kind):
                raise TypeError(f"Cluster.{name} is {value!r}; it must be a {kind.__name__}(...)")
        if self.nics is not None:
            check_count("Cluster.nics", self.nics, "NICs per node")
            if self.gpus_per_node % self.nics:
                raise ValueError(
                    f"Cluster.nics is {self.nics}, with {self.gpus_per_node} GPUs per node. Each NIC must serve the "
                    "same number of GPUs, so nics must divide gpus_per_node. If there are more NICs than GPUs, give "
                    "one per GPU and add up their bandwidths."
                )
        self.check_rates()
        check_number("Cluster.site", self.site, "times as long", "1.25")
        sources: object = self.sources
        object.__setattr__(self, "sources", (sources,) if isinstance(sources, str) else tuple(self.sources))

    def check_rates(self) -> None:
        if self.rates is not None and self.rates not in RATES:
            raise ValueError(f'rates are "datasheet" or "achieved"; got {self.rates!r}')
        if self.rates == "achieved" and not self.knows_achieved:
            parts: dict[str, Gpu | Link] = {"gpu": self.gpu, "intra": self.intra, "inter": self.inter}
            unknown = [name for name, part in parts.items() if part.achieved is None]
            raise ValueError(
                f"{self.name!r} does not say what its {' and its '.join(unknown)} achieve. Give them achieved=..., or "
                'use rates="datasheet". The presets dgx-a100, dgx-h100, dgx-h200, dgx-b200 and gb200-nvl72 have them.'
            )

    def __hash__(self) -> int:  # short, since every look-up of a cost needs it
        return hash((self.name, self.nodes, self.gpus_per_node, self.rates))

    @property
    def knows_achieved(self) -> bool:
        """Whether its GPU and both of its links say what they achieve."""
        return None not in (self.gpu.achieved, self.intra.achieved, self.inter.achieved)

    @property
    def kernel_rates(self) -> KernelRates | None:
        """What kernels reach on its GPUs at this site, if it is at achieved rates; else None."""
        achieved = self.gpu.achieved if self.rates == "achieved" else None
        return None if achieved is None else achieved.at_site(self.site)

    @property
    def uncertainty(self) -> Uncertainty | None:
        """How far times on it may be off, if it is at achieved rates and they say so."""
        return None if self.kernel_rates is None else self.kernel_rates.uncertainty

    @property
    def size(self) -> int:
        """How many ranks fit."""
        return self.nodes * self.gpus_per_node

    @property
    def gpus_per_nic(self) -> int:
        return self.gpus_per_node // (self.nics or self.gpus_per_node)

    def node_of(self, rank: int) -> int:
        """The node a rank is on. Raises ValueError if the cluster has no such rank."""
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in {self.name!r}: it has ranks 0 to {self.size - 1}")
        return rank // self.gpus_per_node

    def nic_of(self, rank: int) -> tuple[int, int]:
        """(node, NIC of that node) through which a rank reaches other nodes."""
        return self.node_of(rank), rank % self.gpus_per_node // self.gpus_per_nic

    def link(self, a: int, b: int) -> Link:
        """What connects two ranks, at the cluster's rates: `intra` if they share a node, else `inter`."""
        link = self.intra if self.node_of(a) == self.node_of(b) else self.inter
        return at_achieved(link) if self.rates == "achieved" else link

    def at_rates(self, rates: str | None = None) -> Cluster:
        """This cluster at the given rates. By default at those that it names, else at what is achieved if it is known.

        Raises ValueError if there are no such rates, or the cluster doesn't know what it achieves.
        """
        return replace(self, rates=rates or self.rates or ("achieved" if self.knows_achieved else "datasheet"))

    def describe(self) -> Picture:
        """Print all numbers, and return a picture of nodes, GPUs and links."""
        from .. import figures

        print(cluster_text(self))
        return figures.cluster(self)


# ---- checks of arguments


def check_number(name: str, value: object, unit: str, example: str, may_be_zero: bool = False) -> None:
    """TypeError or ValueError unless `value` is a number above 0; one that may be 0 must be finite."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}; it must be a number, in {unit}, such as {example}")
    if math.isnan(value) or value < 0 or (value == 0 and not may_be_zero):
        least = "0 or more" if may_be_zero else "above 0"
        raise ValueError(f"{name} is {value!r}; it must be {least}, in {unit}, such as {example}")
    if may_be_zero and math.isinf(value):
        raise ValueError(f"{name} is {value!r}, so nothing would ever finish; it takes {unit}, such as {example}")


def check_count(name: str, value: object, things: str) -> None:
    """TypeError or ValueError unless `value` is a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r}; it must be a whole number of {things}")
    if value < 1:
        raise ValueError(f"{name} is {value}; there must be 1 or more {things}")


def links(gpus: int, alpha: float, bandwidth: float, nodes: int = 1, inter: Link | None = None) -> Cluster:
    """A virtual cluster with free computing and endless memory, so that only messages take time.

    gpus       in each node
    alpha      latency in seconds, and
    bandwidth  bytes/s one way, of the link between two GPUs of a node
    inter      the link between nodes; by default the same as inside one
    """
    inside = Link(alpha, bandwidth)
    free = Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=math.inf, launch=0)
    return Cluster("only links count", nodes, gpus, gpu=free, intra=inside, inter=inter or inside)
