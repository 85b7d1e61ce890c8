"""What a rank runs where a check judges how a model is planned. Models, clusters and plans travel as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from ...cluster.hardware import Cluster
from ...cluster.presets import find_cluster
from ..plans import MODELS, Model, Plan

Sizes = Mapping[str, Any]
Site = tuple[str, int]  # a cluster's name, and how many GPUs there are


def model_of(name: str, sizes: Sizes) -> Model:
    """A published model, with some sizes of its own."""
    return replace(MODELS[name], **sizes)


def cluster_of(site: Site) -> Cluster:
    return find_cluster(*site, rates="achieved")


def plain(value: Any) -> Any:
    """Plans, alone or in a list, as dicts of their sizes; anything else unchanged."""
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return asdict(value) if isinstance(value, Plan) else value


def on_cluster(function: Callable[..., Any], name: str, sizes: Sizes, batch: int, site: Site) -> Any:
    """function(model, batch, cluster); plans that it returns become dicts."""
    return plain(function(model_of(name, sizes), batch, cluster_of(site)))
