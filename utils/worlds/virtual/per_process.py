"""What torch.distributed keeps once per process, and therefore once for all virtual ranks, unless something is done.

Found by going through the modules of torch.distributed (2.13) for caches, containers, and globals that functions set.

    keyed by mesh   caches whose keys contain a DeviceMesh: plans of DTensor's redistribution, sharding strategies, the
                    metadata of results. Meshes of different ranks are equal, though a plan has the shapes of the rank
                    that made it. torch tells the meshes of threads apart by a field, which `number_meshes` sets.
    OWN             variables and containers that say what this process does: each rank has its own.
    SHARED          the same for all ranks, because it doesn't depend on the rank: dtypes, names, tables of operators,
                    warnings given once; or keyed by an object that only one rank has: a module, a class, a group.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ...recording.torch_private import set_mesh_number
from .rank import World
from .surroundings import SeparateState

# {module: names in it, or "class.attribute"}
OWN = {
    "torch.distributed._shard.api": "_CURRENT_PROCESS_GROUP",
    "torch.distributed._shard.sharded_tensor.api": "_sharded_tensor_current_id _sharded_tensor_map",
    "torch.distributed._symmetric_memory": (
        "_group_name_to_store _group_name_to_workspace_tensor _is_test_mode _mocked_group_names _use_implicit_mempool"
    ),
    "torch.distributed.checkpoint.planner": (
        "SavePlanner._cached_save_plan SavePlanner._cached_final_save_plan SavePlanner._cached_all_plans "
        "SavePlanner._cached_global_plan SavePlanner._cached_metadata"
    ),
    "torch.distributed.fsdp._fsdp_extensions": "_extensions",
    "torch.distributed.fsdp._fully_shard._fully_shard": "_enable_fsdp_module_new_init",
    "torch.distributed.fsdp.wrap": (
        "_ConfigAutoWrap.in_autowrap_context _ConfigAutoWrap.wrapper_cls _ConfigAutoWrap.kwargs"
    ),
    "torch.distributed.tensor._random": "_rng_tracker",
    "torch.distributed.tensor._redistribute": (
        "_DISABLE_REDISTRIBUTE_TRANSFORM_OPTIMIZATION _FORCE_MIN_COST_REDISTRIBUTION_PLAN"
    ),
    "torch.distributed.tensor.experimental._context_parallel._attention": "_cp_options _dispatch_mode",
}


def keep_apart(world: World, separate: SeparateState) -> None:
    """Give each rank its own of what torch keeps per process, also in modules that are imported later."""
    set_mesh_number(lambda: world.running.number)
    separate.on_library = lambda module: own_state_of(module, separate)
    for name in OWN:
        if name in sys.modules:
            own_state_of(sys.modules[name], separate)


def own_state_of(module: ModuleType, separate: SeparateState) -> None:
    for place in OWN.get(module.__name__, "").split():
        kind, _, name = place.rpartition(".")
        owner: Any = getattr(module, kind) if kind else module
        separate.own_name(owner, name)
