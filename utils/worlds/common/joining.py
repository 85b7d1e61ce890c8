"""What `init_process_group` does inside a rank: nearly every script calls it, and here it has been called already.

the program's first call    the group of the world is there: the program gets it if it asks for the same, or leaves
                            that to the environment; otherwise a ValueError says what it should ask for
a second one                torch's own error, as everywhere
after destroy_process_group a new group; where the ranks meet for it is the world's business, unless the program says
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, NoReturn

import torch.distributed as dist

from ...recording.torch_private import set_init_process_group

FROM_ENVIRONMENT = (None, "env://")


class Joining:
    """What programs find when they join the world by themselves.

    new_store    where the ranks meet for one more group; called by each of them
    backends     those that a program may ask for
    makes        the backend that its own groups have whichever of these it asks for; None: the one it asks for
    advice       what to do instead of asking for another backend
    """

    def __init__(self, new_store: Callable[[], dist.Store], backends: set[str], makes: str | None, advice: str):
        self.new_store, self.backends, self.makes, self.advice = new_store, backends, makes, advice
        init = dist.init_process_group
        signature = inspect.signature(init)

        @functools.wraps(init)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            asked = bound.arguments
            group: Any = dist.group.WORLD
            if getattr(group, "is_given", False):
                self.check(asked, dist.get_rank(), dist.get_world_size())
                group.is_given = False
                return
            if group is None:
                self.complete(asked)
            init(*bound.args, **bound.kwargs)

        set_init_process_group(init_process_group)
        dist.rpc.init_rpc = refuse_rpc

    def check(self, asked: dict[str, Any], rank: int, size: int) -> None:
        """Raises ValueError unless the program asks for the group that is there."""
        for name, variable, own in (("rank", "RANK", rank), ("world_size", "WORLD_SIZE", size)):
            if asked[name] != -1 and asked[name] != own:
                raise ValueError(
                    f"init_process_group was called with {name}={asked[name]!r}, and this is rank {rank} of {size}. "
                    "Pass on the rank and world_size that your function gets, or leave both out."
                )
            if asked[name] == -1 and os.environ.get(variable, str(own)) != str(own):
                raise ValueError(
                    f"the program has set {variable} to {os.environ[variable]!r}, and this is rank {rank} of {size}. "
                    "Leave the variable as it is: each rank finds its own."
                )
        if not self.knows(asked["backend"]):
            raise ValueError(f'init_process_group("{asked["backend"]}"): {self.advice}')

    def knows(self, backend: str | None) -> bool:
        """Whether a program may ask for this backend, "gloo" or "cpu:gloo,cuda:nccl", say."""
        asked = {part.rpartition(":")[2] for part in (backend or "").lower().split(",")}
        return backend is None or bool(asked & self.backends)

    def complete(self, asked: dict[str, Any]) -> None:
        """Fill in what the program leaves to the environment: its rank, the number of ranks, and where they meet."""
        if self.makes and self.knows(asked["backend"]):
            asked["backend"] = self.makes
        if asked["store"] is None and asked["init_method"] in FROM_ENVIRONMENT:
            asked["init_method"], asked["store"] = None, self.new_store()
            for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
                if asked[name] == -1:
                    asked[name] = int(os.environ[variable])


def give_group() -> None:
    """Have the program's first init_process_group take over the default group that has just been made."""
    group: Any = dist.group.WORLD
    group.is_given = True


def refuse_rpc(*_: Any, **__: Any) -> NoReturn:
    """Takes the place of `torch.distributed.rpc.init_rpc`."""
    raise RuntimeError(
        "torch.distributed.rpc does not work inside a rank here, where every message is recorded. "
        "Use send, recv and collectives instead, or run the script with torchrun."
    )
