"""What torch's own code must be told in a virtual cluster: patches of torch, made in the process of the cluster only."""

from __future__ import annotations

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def patch(world) -> None:
    """Make torch's wrappers run on the ranks of `world`."""
    wait_for_futures(world)
    if world.only_sizes:  # FSDP takes a parameter without values for one that the program forgot to fill
        FSDPParamGroup._validate_no_meta_params = lambda group: None


def wait_for_futures(world) -> None:
    """A future that C++ has made of ours (`collect_all`, DDP's hooks under join) is waited for in C++, and nobody else
    would get a turn meanwhile: so the rank waits for the works behind its futures first, in the order of the calls.
    """
    wait = torch._C.Future.wait

    def wait_in_turn(future):
        while not future.done() and world.turns.running.promised:
            next(iter(world.turns.running.promised)).wait()
        return wait(future)

    torch._C.Future.wait = wait_in_turn
