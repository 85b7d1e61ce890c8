"""torch's own wrappers (DDP, FSDP, DTensor) on a virtual cluster: what is patched in torch, in that process only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent import futures
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...recording.torch_private import (
    CHECKPOINT_THREADS,
    FakeTensorMode,
    Future,
    Switch,
    let_fsdp_compute_on,
    let_fsdp_take_meta_parameters,
    set_mesh_functions,
    set_profiler,
    wrap_loss_parallel,
)
from .autocast import patch_autocast
from .rank import World
from .stores import poll

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def patch_wrappers(world: World) -> None:
    """Make them run on the ranks of `world`: threads, which share what processes would each have for themselves."""
    enter_fake_mode_once()
    wait_for_futures(world)
    wait_for_keys(world)
    count_resized(world)
    keep_loss_parallel()
    leave_out_profiling(world)
    load_without_values(world)
    futures.ThreadPoolExecutor = CheckpointAtOnce  # type: ignore[misc]  # torch imports it with its checkpoints
    if not world.only_sizes:
        let_fsdp_compute_on(torch.device("cpu"))


def patch_for_meta_tensors() -> None:
    """What is patched besides where tensors have sizes only."""
    patch_autocast()
    let_fsdp_take_meta_parameters()
    set_mesh_functions(mesh_broadcast, mesh_scatter)


@functools.cache
def enter_fake_mode_once() -> None:
    """DTensor's first one, in the middle of a backward, crashes a CUDA build on a machine without a GPU."""
    with FakeTensorMode():
        pass


def wait_for_futures(world: World) -> None:
    """C++ waits for futures that it has made from ours (`collect_all`, DDP's hooks under join), and meanwhile no other
    rank gets a turn. So the rank first waits for the calls behind its own futures, in their order.
    """
    wait = Future.wait

    def wait_in_turn(future: Future[Any]) -> Any:
        pending = world.running.pending_futures
        while pending and not future.done():
            next(iter(pending.values()))[0].wait()
        return wait(future)

    Future.wait = wait_in_turn  # type: ignore[method-assign,assignment]


def wait_for_keys(world: World) -> None:
    """The store waits for keys in C++, and meanwhile no rank can set them. So the rank polls, less and less often."""
    get, wait = dist.Store.get, dist.Store.wait

    def get_in_turn(store: dist.Store, key: str) -> bytes:
        poll(world, store, [key])
        return get(store, key)

    def wait_in_turn(store: dist.Store, keys: list[str], timeout: timedelta | None = None) -> None:
        poll(world, store, keys)
        wait(store, keys)

    dist.Store.get, dist.Store.wait = get_in_turn, wait_in_turn  # type: ignore[method-assign,assignment]


def count_resized(world: World) -> None:
    """FSDP frees what it has gathered by resizing its storage, and the GPU does not see that as an operation."""
    resize = torch.UntypedStorage.resize_

    def counted(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        return world.running.storages.see(resize(storage, size))

    torch.UntypedStorage.resize_ = counted  # type: ignore[method-assign,assignment]


def keep_loss_parallel() -> None:
    """`loss_parallel` changes DTensor for as long as it is entered: it stays changed until the last rank has left."""
    inside = 0

    def counted(enable: Switch, disable: Switch) -> tuple[Switch, Switch]:
        def enter() -> None:
            nonlocal inside
            inside += 1
            enable()

        def leave() -> None:
            nonlocal inside
            inside -= 1
            if not inside:
                disable()

        return enter, leave

    wrap_loss_parallel(counted)


def load_without_values(world: World) -> None:
    """Where tensors have sizes only, those of a checkpoint do, too, whatever device the program names."""
    load = torch.load

    @functools.wraps(load)
    def load_sizes(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, "meta" if world.only_sizes else map_location, *args, **kwargs)

    torch.load = load_sizes


class NothingMeasured:
    """What torch's profilers are given at their end: no events."""

    def events(self) -> list[Any]:
        return []

    def trace_start_ns(self) -> int:
        return 0

    def save(self, path: str) -> None:
        Path(path).write_text('{"traceEvents": []}')


def leave_out_profiling(world: World) -> None:
    """torch's profilers measure the process, which all ranks share, and crash when a second rank starts one."""

    def enable(*_: Any, **__: Any) -> None:
        world.say_once(
            "profiler",
            "torch.profiler measures nothing on a virtual cluster: see run.timeline() and run.save_trace(path).",
        )

    set_profiler(enable, NothingMeasured)


def read_unknown_values() -> None:
    """Let f"{loss:.2f}" and tolist() ask for values one by one, as `.item()` does: torch's own refuse at once."""
    format_: Any = torch.Tensor.__format__
    tolist: Any = torch.Tensor.tolist

    def format_item(tensor: torch.Tensor, spec: str) -> str:
        return format(tensor.item(), spec) if tensor.is_meta and not tensor.dim() else format_(tensor, spec)

    def list_items(tensor: torch.Tensor) -> Any:
        if not tensor.is_meta:
            return tolist(tensor)
        return [list_items(part) for part in tensor.unbind()] if tensor.dim() else tensor.item()

    torch.Tensor.__format__, torch.Tensor.tolist = format_item, list_items  # type: ignore[method-assign,assignment]


class CheckpointAtOnce(futures.ThreadPoolExecutor):
    """`async_save` hands its work, with its collectives, to an executor of this name. Here no thread but the rank's own
    can use the network, so the rank does it at once, and gets a future that is done.
    """

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "", *args: Any, **kwargs: Any):
        super().__init__(max_workers, thread_name_prefix, *args, **kwargs)
        self.at_once = thread_name_prefix == CHECKPOINT_THREADS

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        if not self.at_once:
            return super().submit(fn, *args, **kwargs)
        future: futures.Future[Any] = futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # raised where the program asks for the result
            future.set_exception(error)
        return future


def mesh_scatter(
    output: torch.Tensor,
    scatter_list: list[torch.Tensor],
    mesh: DeviceMesh,
    mesh_dim: int = 0,
    async_op: bool = False,
    *,
    group_src: int = 0,
) -> dist.Work | None:
    """torch's own sends nothing if `output` has no values."""
    group = mesh.get_group(mesh_dim)
    given = scatter_list if dist.get_rank(group) == group_src else None
    return dist.scatter(  # type: ignore[no-any-return]
        output, given, group=group, async_op=async_op, group_src=group_src
    )


def mesh_broadcast(
    tensor: torch.Tensor, mesh: DeviceMesh, mesh_dim: int = 0, async_op: bool = False, *, group_src: int = 0
) -> dist.Work | None:
    return dist.broadcast(  # type: ignore[no-any-return]
        tensor, group=mesh.get_group(mesh_dim), async_op=async_op, group_src=group_src
    )
