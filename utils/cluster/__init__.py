"""Clusters as data: what GPUs and links can do, presets by name, and what each collective costs on them.

For lessons, checks and the virtual world: `from ... import Cluster, Gpu, Link, find_cluster`.
"""

from ..text.units import quantity
from .achieved import KernelRates, LinkRates, Protocol, Uncertainty
from .collective_costs import Layout, cost
from .hardware import Cluster, Gpu, Link
from .jitter import Jitter
from .kernel_times import MeasuredGpu
from .presets import find_cluster

__all__ = [
    "Cluster",
    "Gpu",
    "Jitter",
    "KernelRates",
    "Layout",
    "Link",
    "LinkRates",
    "MeasuredGpu",
    "Protocol",
    "Uncertainty",
    "cost",
    "find_cluster",
    "quantity",
]
