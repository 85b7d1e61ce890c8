"""What a rank runs where a check judges how tensors are spread over a mesh of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..placements import USES, Layout, both_passes, converter, cut_dim, moved
from .backward import DriveResult, drive, my_group

Step = tuple[int, str, str]  # (axis, old placement, new placement)


def places(mesh: Sequence[int]) -> list[tuple[int, ...]]:
    """The coordinates of each rank; the last axis is innermost."""
    return list(product(*map(range, mesh)))


def groups_along(mesh: Sequence[int], axis: int) -> list[list[int]]:
    """The ranks of each group along an axis."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places(mesh)):
        found.setdefault(place[:axis] + place[axis + 1 :], []).append(rank)
    return list(found.values())


def cut_out(function: Callable[..., Any], x: Tensor, layout: Layout, mesh: Sequence[int], place: Sequence[int]) -> Any:
    """What the slices that `function` returns take of x."""
    slices = function(tuple(x.shape), layout, tuple(mesh), tuple(place))
    return x[slices].clone() if isinstance(slices, tuple) else slices


def each_conversion(
    function: Callable[..., Any],
    xs: Mapping[str, Tensor],
    pairs: Mapping[str, tuple[str, str]],
    members: Sequence[Sequence[int]] = (),
    **for_all: Any,
) -> dict[str, Any] | None:
    """{name: what `function` makes of that tensor, from one placement to the other}, along the only axis.

    members: the ranks of each group that has a tensor of its own; by default, all ranks are one
    """
    group = my_group(dist.get_rank(), [list(ranks) for ranks in members]) if members else None
    made = {name: function(xs[name], *pair, group=group, **for_all) for name, pair in pairs.items()}
    return made if any(value is not None for value in made.values()) else None


def on_mesh(
    function: Callable[..., Any], *given: Any, rank: int, world_size: int, mesh: Sequence[int], **for_all: Any
) -> Any:
    """Call `function` with the mesh, this rank's coordinates on it, and its groups, one along each axis."""
    groups = [my_group(rank, groups_along(mesh, axis)) for axis in range(len(mesh))]
    return function(*given, **for_all, mesh=tuple(mesh), coordinates=places(mesh)[rank], groups=groups)


def each_on_mesh(
    function: Callable[..., Any],
    xs: Mapping[str, Tensor],
    ways: Mapping[str, tuple[Layout, list[Step]]],
    rank: int,
    world_size: int,
    **for_all: Any,
) -> Any:
    """{name: what `function` makes of that tensor}, as `on_mesh`; for each name the layout at first, and the steps."""

    def each(**given: Any) -> dict[str, Any] | None:
        made = {name: function(xs[name], src=src, steps=steps, **given) for name, (src, steps) in ways.items()}
        return made if any(value is not None for value in made.values()) else None

    return on_mesh(each, rank=rank, world_size=world_size, **for_all)


def walk(
    function: Callable[..., Any], shape: tuple[int, ...], src: Layout, dst: Layout, mesh: tuple[int, ...]
) -> dict[str, Any]:
    """Take the steps that `function` returns, and count what each rank sends. The parts are even."""
    steps, layout, sent = function(shape, src, dst, mesh), list(src), 0
    if steps is None:
        return failed("there are no steps: your function returned None")
    for axis, old, new in steps:
        if layout[axis] != old:
            return failed(f"step {(axis, old, new)} starts from {old}, but axis {axis} is at {layout[axis]}")
        inner = {cut_dim(placement) for placement in layout[axis + 1 :]} - {None}
        if inner & {cut_dim(old), cut_dim(new)}:
            return failed(f"step {(axis, old, new)} is taken while the layout is {tuple(layout)}")
        layout[axis] = "R"
        together = torch.Size(shape).numel()
        for placement, n in zip(layout, mesh, strict=True):
            together //= 1 if cut_dim(placement) is None else n
        sent += moved(together, old, new, mesh[axis])
        layout[axis] = new
    return {
        "the first impossible step": "none",
        "the layout at the end": tuple(layout),
        "the count of numbers that a rank sends": sent,
    }


def failed(step: str) -> dict[str, Any]:
    return {"the first impossible step": step, "the layout at the end": (), "the count of numbers that a rank sends": 0}


def through_conversions(
    function: Callable[..., Any],
    given: dict[str, Any],
    grad: Tensor,
    rank: int,
    world_size: int,
    strategy: str,
    **for_all: Any,
) -> DriveResult:
    """As `drive`, with a `to` for the function that converts tensors along the only axis.

    strategy: what the other arguments are called together, for messages alone
    """
    return drive(partial(function, to=converter()), given, grad, rank, world_size, **for_all)


def on_device_mesh(
    function: Callable[..., Any],
    given: dict[str, Any],
    grad: Tensor,
    rank: int,
    world_size: int,
    strategy: str,
    **for_all: Any,
) -> DriveResult:
    """As `through_conversions`, with torch's DeviceMesh of all ranks as `mesh` in place of `to`."""
    from torch.distributed.device_mesh import init_device_mesh

    return drive(
        partial(function, mesh=init_device_mesh("cpu", (world_size,))), given, grad, rank, world_size, **for_all
    )


def count_model(function: Callable[..., Any], widths: list[int], tokens: int, n: int, budget: int) -> dict[str, Any]:
    """What the layers that `function` has chosen, [(label, storage)], hold on each rank and send in both passes."""
    chosen = list(function(widths, tokens, n, budget))
    stored_here, total, lies = 0, 0, "S0"
    for (rows, columns), (label, storage) in zip(pairwise(widths), chosen, strict=True):
        x, w, y = USES[label]
        stored_here += rows * columns // (1 if cut_dim(storage) is None else n)
        total += both_passes(tokens * rows, lies, x, n) + both_passes(rows * columns, storage, w, n)
        lies = y
    total += both_passes(tokens * widths[-1], lies, "S0", n)
    within = stored_here <= budget
    return {"the answer to whether the weights fit the budget": within, "the count of numbers that a rank sends": total}
