"""Every private name of torch that this package uses, bound here to a public one.

torch promises nothing about names that begin with an underscore: some changed between 2.11 and 2.13 alone (see
events/collectives.py). They are all looked up when this module is imported. So if a name is gone, an error says at once
which one and what to do, instead of in the middle of a student's program. Only what is slow to import is looked up
later, by functions, when it is first needed.

Two kinds of private names stand elsewhere: methods that torch calls on our classes, such as `_source_rank`, are defined
in those classes (whether torch still has them is checked below); and the table in events/collectives.py lists the
methods of several versions and takes whichever exist.
"""

from __future__ import annotations

import functools
import inspect
import math
import pickle
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter, methodcaller
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import distributed as ddp

if TYPE_CHECKING:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

TESTED_WITH = "2.13.0"


def missing(what: str) -> ImportError:
    return ImportError(
        f"torch {torch.__version__} lacks a private name that this package needs: {what}. Any version of torch may "
        f"change such names. The package was tested with torch {TESTED_WITH}: pip install torch=={TESTED_WITH}"
    )


@contextmanager
def needed() -> Iterator[None]:
    """Turns a failing import or lookup inside into the ImportError of `missing`."""
    try:
        yield
    except (ImportError, AttributeError, OSError) as error:
        raise missing(str(error)) from error


with needed():
    from torch._C import DisableTorchFunctionSubclass, DispatchKey, Future, _DisableTorchDispatch, _TorchDispatchModeKey
    from torch._C import _are_functorch_transforms_active as in_function_transform
    from torch._C import _current_autograd_node as current_autograd_node
    from torch._C import _current_graph_task_id as current_graph_task_id
    from torch._C import _get_dispatch_mode as get_dispatch_mode
    from torch._C._autograd import _get_sequence_nr as next_sequence_number
    from torch._C._autograd import _top_saved_tensors_default_hooks as top_saved_hooks
    from torch._C._distributed_c10d import Backend, FakeProcessGroup, ProcessGroupGloo, Work
    from torch._C._distributed_c10d import _register_process_group as register_process_group
    from torch._C._distributed_c10d import _resolve_process_group as resolve_process_group
    from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
        _set_thread_isolation_mode as set_thread_isolation_mode,
    )
    from torch._C._distributed_c10d import _unregister_process_group as unregister_process_group
    from torch._C._dynamo.eval_frame import (
        _FrameAction as FrameAction,
    )
    from torch._C._dynamo.eval_frame import (
        _FrameExecStrategy as FrameExecStrategy,
    )
    from torch._C._dynamo.eval_frame import (
        set_code_exec_strategy,
    )
    from torch._higher_order_ops.flex_attention import math_attention as dense_flex_attention
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._tensor import _rebuild_from_type_v2 as rebuild_from_type
    from torch._tensor_str import PRINT_OPTS as PRINT_OPTIONS
    from torch._utils import _get_obj_state as state_of_object
    from torch.distributed.distributed_c10d import _get_default_store as default_store
    from torch.distributed.distributed_c10d import _World as GroupsOfProcess
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    FAKE = _TorchDispatchModeKey.FAKE
    optimizer = import_module("torch.optim.optimizer")  # torch.optim has no attribute of this name

    # Operators, and the namespace of those that DTensor calls the network with.
    functional_collectives = torch.ops._c10d_functional
    functional_collectives.all_reduce  # noqa: B018, the line above succeeds for any name
    local_scalar_dense = torch.ops.aten._local_scalar_dense
    unsafe_view = torch.ops.aten._unsafe_view
    scaled_product = torch._scaled_mm
    sdpa = torch.ops.aten.scaled_dot_product_attention.default
    flash_attention = torch.ops.aten._scaled_dot_product_flash_attention
    # They change their arguments, and have no kernel for tensors without values.
    kernels_of_optimizers = {
        torch.ops.aten._fused_adam_,
        torch.ops.aten._fused_adamw_,
        torch.ops.aten._fused_adagrad_,
        torch.ops.aten._fused_sgd_,
        torch.ops.aten._amp_foreach_non_finite_check_and_unscale_,
    }

# What torch names the thread that `async_save` works in, in a module that takes long to import: its text will do.
CHECKPOINT_THREADS = "AsyncCheckpointExecutor"
CHECKPOINT_MODULE = Path(dist.__file__).parent / "checkpoint" / "_async_thread_executor.py"

# Only their names: importing them takes a second.
COMPILER = "torch._dynamo"
FUNCTIONAL_COLLECTIVES = "torch.distributed._functional_collectives"


def check_attributes() -> None:
    """Look up the attributes we use, and the methods that our classes define for torch to call."""
    for owner, names in (
        (c10d, "_world _pickler _new_process_group_helper _check_p2p_op_list ProcessGroupGloo"),
        (GroupsOfProcess, "pg_map pg_names pg_group_ranks pg_backend_config tags_to_pg pg_to_tag group_count"),
        (device_mesh, "init_process_group"),
        (dist.ProcessGroup, "_set_default_backend _register_backend _set_sequence_number_for_group"),
        (Backend, "_set_sequence_number_for_group"),
        (ProcessGroupGloo, "_set_default_timeout"),
        (FakeProcessGroup, "_create_internal Options"),
        (Work, "_source_rank"),
        (Future, "wait then"),
        (TorchDispatchMode, "_should_skip_dynamo"),
        (torch.ops.aten.add.Tensor, "_schema _op_dk"),
        ((torch.ones(1, requires_grad=True) * 1).grad_fn, "_sequence_nr"),
        (torch.Tensor, "_backward_hooks _base _cdata _post_accumulate_grad_hooks _version"),
        (torch.UntypedStorage, "_cdata"),
        (
            torch.nn.Module(),
            "_parameters _buffers _modules",
        ),  # worlds/common/unpicklable.py, which does not import torch
        (torch.autograd.Variable, "_execution_engine"),
        (torch.autocast("cpu", enabled=False), "_enabled"),
        (ddp, "_verify_param_shape_across_processes"),
        (torch.autograd.profiler, "_prepare_profiler _enable_profiler _disable_profiler"),
        (torch.jit._builtins, "_find_builtin _register_builtin"),
        (optimizer, "_get_fused_kernels_supported_devices"),
    ):
        for name in names.split():
            getattr(owner, name)
    for module in (COMPILER, FUNCTIONAL_COLLECTIVES):
        if find_spec(module) is None:
            raise ImportError(f"no module named {module!r}")
    if f'thread_name_prefix="{CHECKPOINT_THREADS}"' not in CHECKPOINT_MODULE.read_text(encoding="utf-8"):
        raise ImportError(f"no thread named {CHECKPOINT_THREADS!r} in {CHECKPOINT_MODULE}")


# Methods of a process group that return the handle of something, and yet exchange nothing.
NOT_CALLS = {"_end_coalescing"}


def check_calls(operations: Collection[str]) -> None:
    """Raises ImportError if a process group has a call that `operations` lacks: it would not be recorded.

    Calls are the methods that return a handle, as torch's own docstrings say.
    """
    methods = ((name, getattr(dist.ProcessGroup, name).__doc__ or "") for name in dir(dist.ProcessGroup))
    unknown = {name for name, doc in methods if "-> c10d::Work" in doc} - NOT_CALLS - set(operations)
    if unknown:
        raise ImportError(
            f"torch {torch.__version__} has calls that this package does not know: {', '.join(sorted(unknown))}. They "
            f"would not be recorded. It was tested with torch {TESTED_WITH}: pip install torch=={TESTED_WITH}"
        )


with needed():
    check_attributes()


# --- kernels that work row by row, and attention's, for which a GPU has rates of their own

with needed():
    aten = torch.ops.aten
    ROWS = {aten._softmax, aten._softmax_backward_data, aten._log_softmax, aten._log_softmax_backward_data}
    ROWS |= {aten.native_layer_norm, aten.native_layer_norm_backward}
    ROWS |= {aten._fused_rms_norm, aten._fused_rms_norm_backward, aten._safe_softmax}
    copy_as = aten._to_copy  # called by x.to(dtype)
    # Matrix products that torch's counter of FLOPs leaves out, except for the first.
    SCALED_PRODUCTS = {aten._scaled_mm, aten._scaled_mm_v2}
    GROUPED_PRODUCTS = {aten._grouped_mm, aten._scaled_grouped_mm, aten._scaled_grouped_mm_v2}
    ATTENTION = {
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_efficient_attention,
        aten._scaled_dot_product_cudnn_attention,
    }
    ATTENTION_BACKWARD = {
        aten._scaled_dot_product_flash_attention_backward,
        aten._scaled_dot_product_efficient_attention_backward,
        aten._scaled_dot_product_cudnn_attention_backward,
    }


# --- kernels that training frameworks call by themselves, which torch has under private names only

with needed():
    flash_forward: Any = aten._scaled_dot_product_flash_attention
    flash_backward: Any = aten._scaled_dot_product_flash_attention_backward
    softmax_to_32_bits: Any = partial(aten._softmax, half_to_float=True)  # (x, dim)
    fused_adam: Any = torch._fused_adam_
    foreach_add, foreach_copy, foreach_norm = torch._foreach_add_, torch._foreach_copy_, torch._foreach_norm


# --- attributes, read at every operation and therefore in C

schema_of: Callable[[OpOverload], Any] = attrgetter("_schema")
address_of: Callable[[torch.UntypedStorage | torch.Tensor], int] = attrgetter("_cdata")
base_of: Callable[[torch.Tensor], torch.Tensor | None] = attrgetter("_base")  # the tensor it is a view of
sequence_number_of: Callable[[torch.autograd.graph.Node], int] = methodcaller("_sequence_nr")
version_of: Callable[[torch.Tensor], int] = attrgetter("_version")  # changes with its values
is_on: Callable[[torch.autocast], bool] = attrgetter("_enabled")
# The functions that a tensor calls with its new gradient, by the numbers of their handles; None if it has none.
gradient_hooks_of: Callable[[torch.Tensor], dict[int, Any] | None] = attrgetter("_post_accumulate_grad_hooks")
# The same for those of `register_hook`.
backward_hooks_of: Callable[[torch.Tensor], dict[int, Any] | None] = attrgetter("_backward_hooks")


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether no operation made it.

    A view of a parameter that was made under no_grad, and changed since, is none; torch raises when asked.
    """
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def reinstall_gradient_hooks(tensor: torch.Tensor) -> None:
    """Have its hooks called again after torch has exchanged what is behind `tensor`, and left them without effect."""
    tensor._post_accumulate_grad_hooks = gradient_hooks_of(tensor)  # type: ignore[assignment]


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same values and version, without the graph. Unless the tensor is of a class that defines its operations, no
    dispatch mode sees this, which makes it five times as quick.
    """
    if type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        modes_off = _DisableTorchDispatch()  # noqa: F841, until it is deleted
    return tensor.detach()


@contextmanager
def before_batches(act: Callable[[], None]) -> Iterator[None]:
    """Inside, each call of batch_isend_irecv begins with act(), while its caller's line is on the stack."""
    check = c10d._check_p2p_op_list

    def act_and_check(operations: list[dist.P2POp]) -> None:
        act()
        check(operations)

    c10d._check_p2p_op_list = act_and_check  # type: ignore[assignment]
    try:
        yield
    finally:
        c10d._check_p2p_op_list = check


def parts_of_sparse(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The indices and values of a sparse tensor. Those of one that is not coalesced are private."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def call_kernel(function: OpOverload, key: DispatchKey, *args: Any, **kwargs: Any) -> Any:
    """Call the kernel that `function` has for `key`, whatever its arguments are."""
    return function._op_dk(key, *args, **kwargs)


def when_backward_ends(callback: Callable[[], None]) -> None:
    """Call `callback` when the backward pass that is running now ends."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def leave_uncompiled(kind: type) -> None:
    """Have torch.compile run the methods of a class, and what they call, as they are."""
    for method in vars(kind).values():
        if (code := getattr(method, "__code__", None)) is not None:
            set_code_exec_strategy(code, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))


# --- process groups


def fake_backend(rank: int, size: int) -> Backend:
    """A backend that communicates nothing, but has a name and a timeout."""
    return FakeProcessGroup._create_internal(rank, size, FakeProcessGroup.Options())  # type: ignore[call-arg]


def register_backend(
    group: dist.ProcessGroup, devices: Iterable[str], kind: dist.ProcessGroup.BackendType, backend: Backend
) -> None:
    """Let `group` use `backend` for tensors on `devices`, and by default."""
    group._set_default_backend(kind)
    for device in devices:
        group._register_backend(torch.device(device), kind, backend)


def backends_of(group: dist.ProcessGroup) -> dict[str, Backend]:
    """{"cpu" or "cuda": the backend that the group uses for tensors there}."""
    return {device.type: group._get_backend(device) for device in group._device_types}


def collectives_so_far(group: Any) -> int:
    """How many collectives this rank has called on the group."""
    return int(group._get_sequence_number_for_group())


def replace_group(old: Any, new: Any) -> Any:
    """Put `new` in the place of `old` wherever torch looks up groups. Returns `new`."""
    world: Any = c10d._world
    for known in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag):
        if old in known:
            known[new] = known.pop(old)
    for groups in world.tags_to_pg.values():
        groups[:] = [new if group is old else group for group in groups]
    new._set_group_name(old.group_name)
    new._set_group_desc(old.group_desc)
    new.bound_device_id = old.bound_device_id
    unregister_process_group(old.group_name)
    register_process_group(old.group_name, new)
    if c10d.GroupMember.WORLD is old:
        c10d._update_default_pg(new)
    return new


def set_sequence_number(backend: Backend) -> None:
    backend._set_sequence_number_for_group()


def set_timeout(backend: ProcessGroupGloo, timeout: timedelta) -> None:
    backend._set_default_timeout(timeout)


def time_out_of(group: str) -> float:
    """The time-out in seconds of a recorded group, by its name in events; infinite if it isn't known."""
    try:
        recorded: Any = dist.group.WORLD if group.startswith("world") else group_named(group)
        return float(recorded.backend.options._timeout.total_seconds())
    except (AttributeError, RuntimeError, TypeError):  # destroyed, or of a backend without options
        return math.inf


def source_rank_of(work: Work) -> int:
    """The sender, as a rank in the group, of what a receive from any source has received."""
    return work._source_rank()


def group_in_words(group: dist.ProcessGroup) -> str:
    """Its repr, which torch's own errors show: "<the process group of ranks [2, 3]>"."""
    ranks = vars(c10d)["_world"].pg_group_ranks.get(group)
    return f"<the process group of ranks {list(ranks)}>" if ranks else "<a process group>"


def when_call_is_skipped(note: Callable[[str], object]) -> None:
    """From now on, call `note` with the function's name when torch skips a call for a group that the rank is not in."""

    def noted(function: str) -> None:
        note(function)
        text = f"Running {function} on global rank {dist.get_rank()} which does not belong to the given group."
        warnings.warn(text, stacklevel=2)  # as torch does

    vars(c10d)["_warn_not_in_group"] = noted


def when_world_is_left(note: Callable[[], object]) -> None:
    """From now on, call `note` when the program destroys the default group."""
    destroy = c10d.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        if group in (None, dist.group.WORLD):
            note()
        destroy(group)

    for module in (dist, c10d):
        vars(module)["destroy_process_group"] = destroy_process_group


def module_of_fsdp(frame: FrameType) -> str:
    """The name of the module whose parameters FSDP moves, if this frame is where it does; else ""."""
    if not frame.f_code.co_filename.endswith("_fsdp_param_group.py"):
        return ""
    group = frame.f_locals.get("self")
    return getattr(group, "_module_fqn", None) or "the outermost module" if group is not None else ""


def microbatches_of(frame: FrameType) -> str:
    """ "4 microbatches", if this frame is a pipeline schedule's; else ""."""
    number = getattr(frame.f_locals.get("self"), "_n_microbatches", 0)
    return f"{number} microbatch{'es' * (number > 1)}" if number else ""


def groups_of_process() -> list[dist.ProcessGroup]:
    """The process groups that this process is in, in the order in which they were made."""
    groups: GroupsOfProcess = vars(c10d)["_world"]
    return list(groups.pg_map)


def group_named(name: str) -> dist.ProcessGroup:
    """The group of this process that torch's operators know by this name."""
    return resolve_process_group(name)  # type: ignore[arg-type]


def set_groups_of_process(groups: GroupsOfProcess) -> None:
    """From now on, the groups of this process are those in `groups`."""
    vars(c10d)["_world"] = groups  # an attribute would count as the rank's own: see worlds/virtual/surroundings.py


def let_fused_optimizers_take(device: str) -> None:
    """Let optimizers with fused=True have parameters on this device."""
    devices = optimizer._get_fused_kernels_supported_devices()
    vars(optimizer)["_get_fused_kernels_supported_devices"] = lambda: [*devices, device]


def take_for(function: Callable[..., Any], builtin: Callable[..., Any]) -> None:
    """Let torch.jit, which knows torch's own functions by their identity, take `function` for this one of them."""
    name = torch.jit._builtins._find_builtin(builtin)
    if name is not None:
        torch.jit._builtins._register_builtin(function, name)


def set_pickler_of_objects(pickler: type[pickle.Pickler]) -> None:
    """From now on, object collectives pickle with `pickler`."""
    c10d._pickler = pickler


def set_init_process_group(init: Callable[..., None]) -> None:
    """From now on, `init` is torch's init_process_group, wherever torch itself has imported it."""
    for module in (dist, c10d, device_mesh):
        module.init_process_group = init  # type: ignore[attr-defined]


class NewGroup(NamedTuple):
    """The arguments of torch's function that makes a group, under our names; PARAMETERS has torch's own."""

    size: int
    rank: int  # this process's, in the group
    members: list[int]  # global ranks, in group order; empty for the default group
    backend: str
    store: dist.Store
    name: str
    description: str = ""  # "mesh_dp" of a device mesh's, as its dimension is called; "undefined" unless the maker says


PARAMETERS = {
    "size": "group_size",
    "rank": "group_rank",
    "members": "global_ranks_in_group",
    "backend": "backend",
    "store": "store",
    "name": "group_name",
}
Maker = Callable[..., Any]
Around = Callable[[NewGroup, Callable[[], Any]], Any]


def signature_of_maker(make: Maker) -> inspect.Signature:
    """The signature of `make`. Raises ImportError if it lacks one of the PARAMETERS."""
    signature = inspect.signature(make)
    for name in PARAMETERS.values():
        if name not in signature.parameters:
            raise missing(f"the parameter {name!r} of {make.__module__}.{make.__qualname__}{signature}")
    return signature


def wrapped_maker(make: Maker, around: Around) -> Maker:
    """torch's function `make`, which makes a group, wrapped: a call of it becomes `around(arguments, call make)`.

    Arguments are bound to the names of their parameters, since torch passes some by position and some by name.
    """
    signature = signature_of_maker(make)

    @functools.wraps(make)
    def make_group(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        asked = {ours: bound.arguments[theirs] for ours, theirs in PARAMETERS.items()}
        description = str(bound.arguments.get("group_desc") or "")
        return around(NewGroup(**asked, description=description), lambda: make(*args, **kwargs))

    return make_group


signature_of_maker(c10d._new_process_group_helper)


def wrap_making_of_groups(around: Around) -> None:
    """From now on, every group of this process is made through `around` (see wrapped_maker)."""
    c10d._new_process_group_helper = wrapped_maker(c10d._new_process_group_helper, around)


# What torch.distributed keeps for its process alone: {module: names in it, or "class.attribute"}. Most of the modules
# are imported only when they are used. worlds/virtual/per_process.py says what the rest is.
OWN_OF_PROCESS = {
    "torch._subclasses.fake_tensor": "FakeTensorMode.cache",  # results name the device with its number
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


# --- torch's wrappers: most are only imported when they are used


Switch = Callable[[], None]


def set_ddp_verification(verify: Callable[..., None]) -> None:
    """From now on, DDP calls `verify` to find out whether all ranks have the same parameters."""
    ddp._verify_param_shape_across_processes = verify


@functools.cache
def async_collective_tensor() -> type[AsyncCollectiveTensor]:
    """The class of tensors that functional collectives return: the first use of one waits for it."""
    with needed():
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        return AsyncCollectiveTensor


def let_fsdp_compute_on(device: torch.device) -> None:
    """From now on, FSDP takes the GPUs of every mesh for this device."""
    with needed():
        from torch.distributed.fsdp._fully_shard import _fsdp_init, _fully_shard

        for module in (_fsdp_init, _fully_shard):
            module._get_device_from_mesh  # noqa: B018, it must exist to be replaced
            module._get_device_from_mesh = lambda mesh: device  # type: ignore[attr-defined]


def let_fsdp_take_meta_parameters() -> None:
    """From now on, FSDP accepts parameters on the meta device, which have no values, and follows when they change."""
    with needed():
        from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

        FSDPParamGroup._validate_no_meta_params  # noqa: B018, it must exist to be replaced
        from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    FSDPParamGroup._validate_no_meta_params = lambda group: None  # type: ignore[method-assign]
    reset: Callable[[Any], None] = FSDPParam.reset_sharded_param

    def reset_without_values(param: Any) -> None:
        """torch's own keeps the old shard if the new one has no values: it waits for `to_empty`."""
        reset(param)
        shard, kept = param.sharded_param._local_tensor, param._sharded_param_data
        if shard.is_meta and address_of(shard.untyped_storage()) != address_of(kept.untyped_storage()):
            padded = shard.new_empty(param.padded_sharded_param_size)
            param._sharded_param_data = padded.view(-1)
            dim = param.fsdp_placement.dim
            param.sharded_param._local_tensor = padded.narrow(dim, 0, shard.size(dim))

    FSDPParam.reset_sharded_param = reset_without_values  # type: ignore[method-assign]


def set_mesh_functions(broadcast: Callable[..., Any], scatter: Callable[..., Any]) -> None:
    """From now on, DTensor distributes values with these. It has imported them into several modules."""
    with needed():
        from torch.distributed.tensor import _api, _collective_utils, placement_types

        for name, function, modules in (
            ("mesh_broadcast", broadcast, (_api, _collective_utils, placement_types)),
            ("mesh_scatter", scatter, (_collective_utils, placement_types)),
        ):
            for module in modules:
                getattr(module, name)  # it must exist to be replaced
                setattr(module, name, function)


def set_mesh_number(number: Callable[[], int]) -> None:
    """From now on, a DeviceMesh is equal only to those that were made while `number()` was the same.

    torch has the field for process groups whose ranks are threads.
    """
    make = device_mesh.DeviceMesh.__init__

    @functools.wraps(make)
    def make_numbered(mesh: Any, *args: Any, **kwargs: Any) -> None:
        make(mesh, *args, **kwargs)
        mesh._thread_id  # noqa: B018, it must exist to be replaced
        mesh._thread_id, mesh._hash = number(), None

    device_mesh.DeviceMesh.__init__ = make_numbered  # type: ignore[method-assign,assignment]


def wrap_loss_parallel(around: Callable[[Switch, Switch], tuple[Switch, Switch]]) -> None:
    """Replace what `loss_parallel` does to DTensor on entering and on leaving by `around(enter, leave)`."""
    with needed():
        from torch.distributed.tensor.parallel import loss

        enable, disable = loss._enable_custom_loss_ops, loss._disable_custom_loss_ops
    loss._enable_custom_loss_ops, loss._disable_custom_loss_ops = around(enable, disable)


def set_profiler(enable: Callable[..., object], disable: Callable[[], object]) -> None:
    """From now on torch's profilers call these to begin and to end; `disable` returns what was measured."""
    vars(torch.autograd.profiler).update(
        _prepare_profiler=lambda *_, **__: None, _enable_profiler=enable, _disable_profiler=disable
    )
