"""What torch.distributed keeps once per process, and therefore once for all virtual ranks, unless something is done.

Found by going through the modules of torch.distributed (2.13) for caches, containers, and globals that functions set.

    keyed by mesh   caches whose keys contain a DeviceMesh: plans of DTensor's redistribution, sharding strategies, the
                    metadata of results. Meshes of different ranks are equal, though a plan has the shapes of the rank
                    that made it. torch tells the meshes of threads apart by a field, which `number_meshes` sets.
    own             variables and containers that say what this process does: each rank has its own
                    (OWN_OF_PROCESS in recording/torch_private.py).
    shared          the same for all ranks, because it doesn't depend on the rank: dtypes, names, tables of operators,
                    warnings given once; or keyed by an object that only one rank has: a module, a class, a group.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ...recording.torch_private import OWN_OF_PROCESS, set_mesh_number
from .rank import World
from .surroundings import SeparateState


def keep_apart(world: World, separate: SeparateState) -> None:
    """Give each rank its own of what torch keeps per process, also in modules that are imported later."""
    set_mesh_number(lambda: world.running.number)
    separate.on_library = lambda module: own_state_of(module, separate)
    for name in OWN_OF_PROCESS:
        if name in sys.modules:
            own_state_of(sys.modules[name], separate)


def own_state_of(module: ModuleType, separate: SeparateState) -> None:
    for place in OWN_OF_PROCESS.get(module.__name__, "").split():
        kind, _, name = place.rpartition(".")
        owner: Any = getattr(module, kind) if kind else module
        separate.own_name(owner, name)
