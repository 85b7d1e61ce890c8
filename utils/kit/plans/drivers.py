"""What a rank runs where a check judges how a model is planned. Models, clusters and plans travel as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

from ...cluster.hardware import Cluster
from ...cluster.presets import find_cluster
from .memory import bytes_of, live_layers, working_bytes
from .model import Model
from .plan import Plan
from .plan import plans as every_plan
from .published import MODELS

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


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("this function of the kit does what the exercise asks you to write, so it can't be called here")


@contextmanager
def without(*functions: Any) -> Iterator[None]:
    """Meanwhile these functions of the kit raise RuntimeError, whoever has imported them: an answer is one's own."""
    codes = [function.__code__ for function in functions]
    for function in functions:
        function.__code__ = refuse.__code__
    try:
        yield
    finally:
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code


def on_cluster(function: Callable[..., Any], name: str, sizes: Sizes, batch: int, site: Site) -> Any:
    """function(model, batch, cluster); plans that it returns become dicts."""
    with without(every_plan):
        return plain(function(model_of(name, sizes), batch, cluster_of(site)))


def on_stages(function: Callable[..., Any], plan: Sizes, name: str, sizes: Sizes, batch: int, stages: list[int]) -> Any:
    """[function(plan, model, batch, stage) for each of the stages]"""
    model = model_of(name, sizes)
    with without(bytes_of, live_layers, working_bytes):
        found = [function(Plan(**plan), model, batch, stage) for stage in stages]
    return None if all(each is None for each in found) else found


def on_measurements(function: Callable[..., Any], plans: list[Sizes], piece_of: Callable[[str], str]) -> Any:
    """function(plans, measure): the pieces that it returns. piece_of: measures a plan, given as text."""
    return function([Plan(**sizes) for sizes in plans], lambda plan: piece_of(str(plan)))


class Piece(NamedTuple):
    """Seconds of a microbatch: of a layer, and there and back of what the two ends of a model have besides."""

    forward: float
    backward: float
    embeddings: float
    output: float


def on_pieces(
    function: Callable[..., Any], plan: Sizes, name: str, sizes: Sizes, batch: int, piece: tuple[float, ...], *more: Any
) -> Any:
    """function(plan, piece, model, batch, *more)"""
    return function(Plan(**plan), Piece(*piece), model_of(name, sizes), batch, *more)


def on_prices(
    function: Callable[..., Any],
    plans: list[Sizes],
    price_of: Callable[[int, int], float],
    memory: float,
    within: float,
    n: int,
) -> Any:
    """function(plans, memory, need, guess, measured, within, n): the plans that it returns, as text.

    price_of  (which price, the plan's place in the list) -> its bytes, seconds by formula, or seconds composed of
              measured pieces
    """
    places = {Plan(**sizes): place for place, sizes in enumerate(plans)}

    def price(number: int, plan: Plan) -> float:
        return price_of(number, places[plan])

    found = function(list(places), memory, *(partial(price, number) for number in range(3)), within, n)
    return [str(plan) for plan in found] if isinstance(found, list) else found


def plan_as_sizes(function: Callable[..., Any], *given: Any) -> Any:
    """What `function` returns, a plan in it as a dict of its sizes."""
    found = function(*given)
    return {name: plain(value) for name, value in found.items()} if isinstance(found, dict) else found
