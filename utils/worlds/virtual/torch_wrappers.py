"""Torch's own wrappers in a virtual cluster: what must be patched in torch, in the process of the cluster only."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from ...recording.torch_private import (
    FakeTensorMode,
    Future,
    Switch,
    is_on,
    let_fsdp_take_meta_parameters,
    set_mesh_functions,
    wrap_loss_parallel,
)

FIRST_PAUSE, LONGEST_PAUSE = 1e-6, 1e6  # seconds between two looks for a key in the store


def take_over(world) -> None:
    """Make them run on the ranks of `world`: threads, which share what each process would have of its own."""
    enter_fake_mode_once()
    wait_for_futures(world)
    wait_for_keys(world)
    count_resized(world)
    keep_loss_parallel()


def take_over_without_values() -> None:
    """Where tensors have sizes only."""
    torch.autocast.__enter__ = refuse_autocast(torch.autocast.__enter__)
    let_fsdp_take_meta_parameters()
    set_mesh_functions(mesh_broadcast, mesh_scatter)


@functools.cache
def enter_fake_mode_once() -> None:
    """DTensor's first one, in the middle of a backward, crashes a build for CUDA where no GPU is."""
    with FakeTensorMode():
        pass


def wait_for_futures(world) -> None:
    """A future that C++ has made of ours (`collect_all`, DDP's hooks under join) is waited for in C++, and nobody else
    would get a turn meanwhile: so the rank waits for the works behind its futures first, in the order of the calls.
    """
    wait = Future.wait

    def wait_in_turn(future):
        promised = world.turns.running.promised
        while promised and not future.done():
            next(iter(promised)).wait()
        return wait(future)

    Future.wait = wait_in_turn


def wait_for_keys(world) -> None:
    """The store waits in C++ for keys that nobody can set meanwhile: so the rank looks again and again, ever later."""
    get, wait = dist.Store.get, dist.Store.wait

    def look(store, keys: list[str]) -> None:
        rank, pause = world.turns.running, FIRST_PAUSE
        while not store.check(keys):
            if pause > LONGEST_PAUSE:
                raise RuntimeError(f"rank {rank.number} waits for {keys} in the store, and no rank sets them.")
            rank.clock += pause
            pause *= 1.1
            world.turns.look_around(rank)

    def get_in_turn(store, key):
        look(store, [key])
        return get(store, key)

    def wait_in_turn(store, keys, timeout=None):
        look(store, keys)
        return wait(store, keys)

    dist.Store.get, dist.Store.wait = get_in_turn, wait_in_turn


def count_resized(world) -> None:
    """FSDP frees what it has gathered by resizing its storage, which is no operation that the GPU is shown."""
    resize = torch.UntypedStorage.resize_
    torch.UntypedStorage.resize_ = lambda storage, size: world.turns.running.storages.see(resize(storage, size))


def keep_loss_parallel() -> None:
    """`loss_parallel` changes DTensor while it is entered: it stays changed until the last rank has left it."""
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


def refuse_autocast(enter):
    """torch has no autocast for tensors without values: it would do nothing, and all would take the time of float32."""

    def enter_or_refuse(context):
        if is_on(context):
            raise RuntimeError(
                "torch.autocast does nothing to tensors that have sizes only. On device='meta' ask for the dtype: "
                "model.to(torch.bfloat16), or FSDP's MixedPrecisionPolicy. Or simulate(..., device='cpu')."
            )
        return enter(context)

    return enter_or_refuse


def mesh_scatter(output, scatter_list, mesh, mesh_dim=0, async_op=False, *, group_src=0):
    """torch's own sends nothing if `output` has no values."""
    group = mesh.get_group(mesh_dim)
    given = scatter_list if dist.get_rank(group) == group_src else None
    return dist.scatter(output, given, group=group, async_op=async_op, group_src=group_src)


def mesh_broadcast(tensor, mesh, mesh_dim=0, async_op=False, *, group_src=0):
    return dist.broadcast(tensor, group=mesh.get_group(mesh_dim), async_op=async_op, group_src=group_src)
