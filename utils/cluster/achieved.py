"""What real hardware achieves, as parts of a datasheet's rates, and what kernels and collectives cost at these rates.

    Gpu(..., achieved=KernelRates(...))      Link(..., achieved=LinkRates(...))      presets.py has both, with sources
    simulate(fn, 64, rates="achieved")       charges them; rates="datasheet" charges what the datasheet promises

A matrix product (m, k) @ (k, n) is cut into tiles of the result. Each of the GPU's multiprocessors computes one tile at
a time, so the tiles come in waves, and the last wave takes as long as the others even if it is not full. A tile costs
what its own size needs, plus a constant for loading the first operands and storing the result: a short k is slow.
Small tiles fill the last wave better, but read more bytes for each FLOP. The best tile counts.

A kernel that memory limits reaches a part of the bandwidth: most for element-wise ones, less for those that need a row
before they can write it (softmax, normalization).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

RATES = ("datasheet", "achieved")
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))  # rows and columns of the result
REUSE = 6.0  # a tile of (r, c) reaches i / (i + REUSE) of the rate, with i = r c / (r + c) multiply-adds per element


@dataclass(frozen=True)
class Uncertainty:
    """How long the parts of a run may really take, as (shortest, longest) times what they take here, in 8 cases of 10.

    computing      operations that FLOPs limit
    memory         operations that memory limits
    communication  exposed communication
    launch         starting operations, and waiting for the host to issue them
    """

    computing: tuple[float, float]
    memory: tuple[float, float]
    communication: tuple[float, float]
    launch: tuple[float, float]

    def __post_init__(self) -> None:
        for part in fields(self):
            shortest, longest = getattr(self, part.name)
            if not 0 <= shortest <= 1 <= longest:
                raise ValueError(
                    f"Uncertainty.{part.name} is {(shortest, longest)}; the first must be from 0 to 1, the second 1 "
                    "or more"
                )

    def between(self, seconds: Mapping[str, float]) -> tuple[float, float]:
        """(shortest, longest) for a run whose parts take these seconds. The parts' errors don't depend on each other,
        so they add up as the roots of squares; a part with another name is certain.
        """
        least = most = 0.0
        for part in fields(self):
            shortest, longest = getattr(self, part.name)
            least += (seconds.get(part.name, 0.0) * (1 - shortest)) ** 2
            most += (seconds.get(part.name, 0.0) * (longest - 1)) ** 2
        elapsed = sum(seconds.values())
        return elapsed - math.sqrt(least), elapsed + math.sqrt(most)


@dataclass(frozen=True)
class KernelRates:
    """What kernels reach of a GPU's datasheet, each a part from 0 to 1 unless it says otherwise.

    matmul               of the peak: the best matrix product that was measured, on its own
    sustained            the fraction of matmul and attention that the chip keeps up after minutes of full load, as in
                         training; what a site takes away on top of that is in Cluster.site
    fill                 start-up cost of one tile, as extra bytes of k: loading operands and storing results
    units                how many tiles are computed at once: streaming multiprocessors
    memory               of the memory bandwidth: element-wise kernels and optimizers
    rows                 of the memory bandwidth: softmax and normalization
    attention            of the peak: fused attention by FlashAttention 2, or by flex_attention, forward
    attention_backward   the same, backward
    beside               how much longer a matrix product takes while a collective of its rank is under way: 0.1 is 10 %
    attention_3          of the peak: FlashAttention 3 or cuDNN's kernel of the same generation, forward; None on a GPU
                         that has neither
    attention_3_backward the same, backward
    flash                the generation, 2 or 3, that scaled_dot_product_attention takes unless the program asks for one
    uncertainty          how far times at these rates, and at those of its cluster's links, may be off; None: not known
    host                 seconds that the host needs to issue an operation of torch. It runs ahead of the GPU, which
                         waits only where kernels are shorter than that
    """

    matmul: float
    sustained: float
    fill: float
    units: int
    memory: float
    rows: float
    attention: float
    attention_backward: float
    beside: float
    attention_3: float | None = None
    attention_3_backward: float | None = None
    flash: int = 2
    host: float = 0.0
    uncertainty: Uncertainty | None = None

    def __post_init__(self) -> None:
        for name in ("matmul", "sustained", "memory", "rows", "attention", "attention_backward"):
            check_part(f"KernelRates.{name}", getattr(self, name))
        third = self.attention_3, self.attention_3_backward
        for name, value in zip(("attention_3", "attention_3_backward"), third, strict=True):
            if value is not None:
                check_part(f"KernelRates.{name}", value)
        if self.flash not in (2, 3) or (third[0] is None) != (third[1] is None) or (self.flash == 3 and None in third):
            raise ValueError(
                f"KernelRates has flash {self.flash}, attention_3 {third[0]} and attention_3_backward {third[1]}; "
                "flash must be 2 or 3, and 3 needs both of these rates, which are given together or not at all"
            )
        if min(self.fill, self.beside, self.host) < 0 or self.units < 1:
            raise ValueError(
                f"KernelRates has fill {self.fill}, units {self.units}, beside {self.beside} and host {self.host}; "
                "fill, beside and host must be 0 or more, and units 1 or more"
            )

    def at_site(self, site: float) -> Self:
        """The rates where matrix products and attention take `site` times as long."""
        return self if site == 1 else replace(self, sustained=self.sustained / site)

    def attention_part(self, backward: bool, generation: int) -> float:
        """What fused attention of this generation reaches of the peak; 2 where the GPU doesn't have 3."""
        third = self.attention_3_backward if backward else self.attention_3
        if generation == 3 and third is not None:
            return third
        return self.attention_backward if backward else self.attention

    def matmul_seconds(self, batch: int, m: int, n: int, k: int, itemsize: int, peak: float) -> float:
        """How long `batch` products of (m, k) and (k, n) take on a GPU with this peak, in FLOP/s of their dtype."""
        rate = peak * self.matmul * self.sustained / self.units  # per multiprocessor
        return min(self.tile_seconds(tile, batch, m, n, k + self.fill / itemsize, rate) for tile in TILES)

    def tile_seconds(self, tile: tuple[int, int], batch: int, m: int, n: int, depth: float, rate: float) -> float:
        rows, columns = tile
        waves = math.ceil(batch * math.ceil(m / rows) * math.ceil(n / columns) / self.units)
        return waves * 2 * rows * columns * depth / (rate * efficiency(tile))


@dataclass(frozen=True)
class AsMeasured(KernelRates):
    """Rates for a machine whose peaks were themselves measured, so kernels reach 100 % of them."""

    matmul: float = 1.0
    sustained: float = 1.0
    fill: float = 0.0
    units: int = 1
    memory: float = 1.0
    rows: float = 1.0
    attention: float = 1.0
    attention_backward: float = 1.0
    beside: float = 0.0

    def matmul_seconds(self, batch: int, m: int, n: int, k: int, itemsize: int, peak: float) -> float:
        return 2 * batch * m * n * k / peak


def efficiency(tile: tuple[int, int]) -> float:
    """The fraction of the best tile's rate that a tile reaches: a smaller one reads more operands per FLOP."""
    best = max(map(intensity, TILES))
    return intensity(tile) / (intensity(tile) + REUSE) * (best + REUSE) / best


def intensity(tile: tuple[int, int]) -> float:
    rows, columns = tile
    return rows * columns / (rows + columns)


@dataclass(frozen=True)
class Protocol:
    """One way in which NCCL sends over a link: a quick start or a high bandwidth.

    start       seconds once per collective
    step        seconds from one rank to the next
    bandwidth   part of the link's bandwidth that data gets
    """

    name: str
    start: float
    step: float
    bandwidth: float


@dataclass(frozen=True)
class LinkRates:
    """What messages and collectives reach on a link.

    bandwidth   part of the link's bandwidth that messages reach
    protocols   what a collective can choose from
    in_switch   what an all-reduce reaches that the switch adds up: each rank's bytes cross its link once each way.
                None if NCCL doesn't use it there
    at_least    how many ranks NCCL wants for in_switch
    """

    bandwidth: float
    protocols: tuple[Protocol, ...]
    in_switch: Protocol | None = None
    at_least: int = 2

    def __post_init__(self) -> None:
        check_part("LinkRates.bandwidth", self.bandwidth)
        if not self.protocols:
            raise ValueError("LinkRates.protocols is empty; it must have at least one Protocol(...)")
        for protocol in (*self.protocols, *filter(None, [self.in_switch])):
            check_part(f"the bandwidth of protocol {protocol.name!r}", protocol.bandwidth)


@dataclass(frozen=True)
class GlooRates:
    """What messages and collectives of Gloo reach between processes that share one machine: see gloo_costs.py.

    start       seconds once per collective
    step        seconds from one rank to the next
    together    bytes/s of all ranks together, when all send at once
    added       bytes/s that each rank adds up, when all do
    copied      bytes/s that each rank copies into new memory, when all do
    moved       bytes/s that each rank copies into memory that is in use, when all do
    bandwidth   part of the link's bandwidth that a message reaches which travels alone
    """

    start: float
    step: float
    together: float
    added: float
    copied: float
    moved: float
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        check_part("GlooRates.bandwidth", self.bandwidth)
        if min(self.start, self.step) < 0 or min(self.together, self.added, self.copied, self.moved) <= 0:
            raise ValueError(f"{self}: start and step must be 0 or more, and the others above 0")


def check_part(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value!r}; it must be a part of the datasheet's rate, above 0 and at most 1")
