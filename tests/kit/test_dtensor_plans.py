"""DTensor's default plan as lesson 13 has it: for every pair of layouts, its bytes are the recorded ones."""

from __future__ import annotations

import ast
import logging
import math
from functools import partial
from itertools import product

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from grader.authoring.lesson import ROOT
from utils import region, simulate, spawn
from utils.kit.block_plans import share
from utils.kit.placements import local_shape, moved
from utils.report.traffic import Traffic

PLACEMENTS = {"R": Replicate(), "P": Partial(), "S0": Shard(0), "S1": Shard(1)}


def pairs_on(mesh):
    """All pairs of different layouts; nothing is converted to a partial sum."""
    layouts = (product(kinds, repeat=len(mesh)) for kinds in (PLACEMENTS, ("R", "S0", "S1")))
    return [(src, dst) for src, dst in product(*map(list, layouts)) if src != dst]


def lessons_default_steps():
    tree = ast.parse((ROOT / "solutions/13_declarative_sharding/lesson_13.py").read_text(encoding="utf-8"))
    tree.body = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == "default_steps"]
    namespace = {}
    exec(compile(tree, "the lesson", "exec"), namespace)
    return namespace["default_steps"]


def bytes_of(steps, shape, src, mesh):
    """On a mesh of CPUs, a step from one cut to another is a gather."""
    layout, total = list(src), 0
    for axis, old, new in steps:
        layout[axis] = "R"
        by_gather = "R" if old[0] == new[0] == "S" else new
        total += moved(4 * share(math.prod(shape), layout, mesh), old, by_gather, mesh[axis])
        layout[axis] = new
    return total


def convert_all(rank, world_size, shape, mesh):
    logging.disable(logging.WARNING)
    devices = init_device_mesh("cpu", mesh)
    for src, dst in pairs_on(mesh):
        here = torch.ones(local_shape(shape, src, mesh, devices.get_coordinate()))
        x = DTensor.from_local(here, devices, [PLACEMENTS[placement] for placement in src])
        with region(f"{src} to {dst}"):
            x.redistribute(placements=[PLACEMENTS[placement] for placement in dst])


MESHES = [((8, 8), (4,)), ((12, 18), (2, 3)), pytest.param((8, 12), (2, 2), marks=pytest.mark.thorough)]


@pytest.mark.parametrize("world", [spawn, partial(simulate, device="cpu")], ids=["real", "virtual"])
@pytest.mark.parametrize(("shape", "mesh"), MESHES)
def test_dtensor_sends_what_the_default_steps_do(world, shape, mesh):
    run, default_steps = world(convert_all, math.prod(mesh), shape, mesh), lessons_default_steps()
    sent = {}
    for part in run.regions:
        if part.rank == 0:
            inside = [event for event in run.events if event.rank == 0 and part.start <= event.start < part.end]
            sent[part.name] = Traffic(run.world_size, inside).implied(0)
    expected = {f"{src} to {dst}": bytes_of(default_steps(src, dst), shape, src, mesh) for src, dst in pairs_on(mesh)}
    assert sent == expected
