"""Which tensor storages of this process are alive, how large they are, and what they are for: what `track_memory` runs.

torch calls `StorageTracker` for each operation, after autograd has done its part; every storage that comes out of one
is counted from then until it is freed.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from utils.memory import KINDS, OTHER

PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS = (kind for kind in KINDS if kind != OTHER)


class StorageTracker(TorchDispatchMode):
    """Counts the bytes of storages, and notes each change.

    held      modules, optimizers and tensors that exist already: counted from the start
    live      bytes that are alive now
    changes   (seconds, which storage, bytes more or less); which kind it is may become known later, as a gradient's
    kinds     {which storage: kind}; the first in KINDS that it has ever been
    """

    def __init__(self, held: tuple, now: Callable[[], float] = time.monotonic):
        super().__init__()
        self.held, self.now = held, now
        self.changes: list[tuple[float, int, int]] = []
        self.kinds: dict[int, str] = {}
        self.sizes: dict[int, int] = {}  # 0 of those that are gone
        self.known = weakref.WeakKeyDictionary()  # storage -> its number here
        self.undo: list[Callable] = []

    def __enter__(self):
        self.began = self.now()
        for thing in self.held:
            self.hold(thing)
        saved = saved_tensors_hooks(self.saved_for_backward, lambda tensor: tensor)
        saved.__enter__()
        self.undo.append(lambda: saved.__exit__(None, None, None))
        resize = torch.UntypedStorage.resize_  # how FSDP frees what it has gathered
        torch.UntypedStorage.resize_ = lambda storage, size: self.after(resize(storage, size))
        self.undo.append(lambda: setattr(torch.UntypedStorage, "resize_", resize))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        while self.undo:
            self.undo.pop()()
        self.ended, self.now = self.now(), None  # what is freed from now on is not our business

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # the operations on what it consists of come here
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self.count(tensor)
        return result

    @property
    def live(self) -> int:
        return sum(list(self.sizes.values()))

    # --- storages

    def count(self, tensor, kind: str = OTHER) -> None:
        """See the storage of `tensor`, if it has one, as it is now."""
        for part in parts(tensor):
            self.after(part.untyped_storage(), kind)

    def after(self, storage: torch.UntypedStorage, kind: str = OTHER) -> torch.UntypedStorage:
        if self.now is None or storage.device.type != "cpu":  # a GPU's allocator counts by itself, "meta" takes none
            return storage
        number = self.known.get(storage)
        if number is None:
            number = self.known[storage] = len(self.kinds)
            self.kinds[number] = OTHER
            weakref.finalize(storage, self.change, number, 0).atexit = False
        self.kinds[number] = min(kind, self.kinds[number], key=KINDS.index)
        self.change(number, storage.nbytes())
        return storage

    def change(self, number: int, size: int) -> None:
        difference = size - self.sizes.get(number, 0)
        if difference and self.now is not None:
            self.sizes[number] = size
            self.changes.append((self.now(), number, difference))

    # --- what they are for

    def hold(self, thing) -> None:
        if isinstance(thing, torch.nn.Module):
            for tensor in [*thing.parameters(), *thing.buffers()]:
                self.hold(tensor)
        elif isinstance(thing, torch.optim.Optimizer):
            self.count_state(thing)
            self.undo.append(thing.register_step_post_hook(lambda optimizer, *_: self.count_state(optimizer)).remove)
        elif isinstance(thing, torch.nn.Parameter):
            self.count(thing, PARAMETERS)
            self.count(thing.grad, GRADIENTS)
            if thing.requires_grad:
                hook = thing.register_post_accumulate_grad_hook(lambda p: self.count(p.grad, GRADIENTS))
                self.undo.append(hook.remove)
        elif isinstance(thing, torch.Tensor):
            self.count(thing)
        else:
            raise TypeError(
                f"track_memory takes modules, optimizers and tensors, which it counts from the start; got {thing!r}."
            )

    def count_state(self, optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            for tensor in tree_leaves(state):
                self.count(tensor, OPTIMIZER_STATE)

    def saved_for_backward(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor if tensor._base is None else tensor._base
        kind = PARAMETERS if isinstance(whole, torch.nn.Parameter) else ACTIVATIONS  # FSDP's, while gathered
        for part in parts(tensor):
            if part.untyped_storage() in self.known:  # else it was there before, and nobody asked to count it
                self.count(part, kind)
        return tensor

    def samples(self) -> list[tuple[float, str, int]]:
        """(seconds, kind, live bytes of that kind from then on)."""
        live = dict.fromkeys(KINDS, 0)
        samples = [(self.began, kind, 0) for kind in KINDS]
        for seconds, number, difference in self.changes:
            kind = self.kinds[number]
            live[kind] += difference
            samples.append((seconds, kind, live[kind]))
        return [*samples, (self.ended, OTHER, live[OTHER])]


def parts(value) -> list[torch.Tensor]:
    """The plain tensors that a tensor consists of: a DTensor has one; a sparse one, and what is no tensor, has none."""
    if not isinstance(value, torch.Tensor):
        return []
    if hasattr(value, "__tensor_flatten__"):
        names, _ = value.__tensor_flatten__()
        return [part for name in names for part in parts(getattr(value, name))]
    return [value] if value.layout is torch.strided else []
