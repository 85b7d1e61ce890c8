"""Which tensor storages are alive, how large they are, and what they are for.

`Storages` counts the storages it is shown. `StorageTracker`, which `track_memory` runs, shows it every storage that an
operation of this process returns: torch calls it after each operation, once autograd has done its part.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter

from ..events.memory_samples import KINDS, OTHER, Sample
from .torch_private import (
    OpOverload,
    TorchDispatchMode,
    address_of,
    alias_of,
    base_of,
    parts_of_sparse,
    top_saved_hooks,
    tree_leaves,
    version_of,
)

PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, COMMUNICATION = (kind for kind in KINDS if kind != OTHER)
PRIORITY = {kind: place for place, kind in enumerate(KINDS)}


class Storages:
    """Counts the bytes of storages from when it first sees them until they are freed, and notes each change.

    now      the time, in seconds
    devices  whose tensors are counted
    live     bytes alive now; most: at any time so far, or since somebody set it
    changes  (seconds, number of the storage, bytes more or less); its kind may become known later, as a gradient's does
    kinds    what each storage is for: the first in KINDS of all that it has ever been
    leaves   {number: kind} of plain tensors that require a gradient, and of their gradients. In a program without
             any nn.Parameter they are its parameters. In one that has some, or an optimizer, they are inputs
    """

    def __init__(self, now: Callable[[], float], devices: tuple[str, ...] = ("cpu",)) -> None:
        self.now, self.devices = now, devices
        self.live = self.most = 0
        self.changes: list[tuple[float, int, int]] = []
        self.kinds: list[str] = []
        self.leaves: dict[int, str] = {}
        self.names_parameters = False  # whether the program says which tensors its parameters are
        self.sizes: list[int] = []  # 0 once a storage is freed
        self.known: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}  # address while alive -> number
        self.began = now()
        self.ended: float | None = None

    def count(self, tensor: object, kind: str = OTHER) -> None:
        """See the storage of `tensor` as it is now, if it is a tensor and has one."""
        for part in parts(tensor):
            self.see(part.untyped_storage(), kind)

    def count_leaf(self, leaf: Tensor) -> None:
        """See what may be a parameter: a leaf that requires a gradient."""
        self.count_as(leaf, leaf, PARAMETERS)

    def count_gradient(self, leaf: Tensor) -> None:
        """See the gradient of what may be a parameter."""
        self.count_as(leaf, leaf.grad, GRADIENTS)

    def count_as(self, leaf: Tensor, tensor: Tensor | None, kind: str) -> None:
        self.names_parameters |= isinstance(leaf, Parameter)
        self.count(tensor, kind if isinstance(leaf, Parameter) else OTHER)
        if tensor is not None and not isinstance(leaf, Parameter):
            self.leaves.update(dict.fromkeys(self.numbers_of(tensor), kind))

    def recognise(self, tensor: object, kind: str) -> None:
        """Say what the storage of `tensor` is for, if it has been seen before."""
        for part in parts(tensor):
            if address_of(part.untyped_storage()) in self.known:
                self.see(part.untyped_storage(), kind)

    def has_seen(self, tensor: Tensor) -> bool:
        return address_of(tensor.untyped_storage()) in self.known

    def see(self, storage: torch.UntypedStorage, kind: str = OTHER) -> torch.UntypedStorage:
        if self.ended is not None or storage.device.type not in self.devices:
            return storage
        place = address_of(storage)
        if place in self.known:
            number = self.known[place][0]
            if PRIORITY[kind] < PRIORITY[self.kinds[number]]:
                self.kinds[number] = kind
            if storage.nbytes() != self.sizes[number]:
                self.change(number, storage.nbytes())
        else:
            number = self.add(kind)
            self.known[place] = number, weakref.ref(storage, lambda _: self.gone(place))
            self.change(number, storage.nbytes())
        return storage

    def add(self, kind: str) -> int:
        """The number of a storage that is new, and has no bytes yet."""
        self.kinds.append(kind)
        self.sizes.append(0)
        return len(self.kinds) - 1

    def gone(self, place: int) -> None:
        self.change(self.known.pop(place)[0], 0)

    def change(self, number: int, size: int) -> None:
        difference = size - self.sizes[number]
        if difference and self.ended is None:
            self.sizes[number] = size
            self.live += difference
            self.most = max(self.most, self.live)
            self.changes.append((self.now(), number, difference))

    def numbers_of(self, tensor: Tensor) -> list[int]:
        """The numbers of the storages of `tensor` that have been seen."""
        places = [address_of(part.untyped_storage()) for part in parts(tensor)]
        return [self.known[place][0] for place in places if place in self.known]

    def save(self, tensor: Tensor) -> tuple[Tensor, int]:
        """See a tensor that autograd saves for backward. Returns what it should keep: the tensor without its graph, and
        its version.

        An operation that saves its own result (softmax, say) would otherwise be kept alive by it, and with it all that
        led there.
        """
        base = base_of(tensor)
        whole = tensor if base is None else base
        self.names_parameters |= isinstance(whole, Parameter)
        kind = PARAMETERS if isinstance(whole, Parameter) else ACTIVATIONS  # FSDP's, while gathered
        self.recognise(tensor, kind)  # an unknown one was there before, so it isn't counted
        return tensor if tensor.grad_fn is None else alias_of(tensor), version_of(tensor)

    def count_state(self, optimizer: torch.optim.Optimizer) -> None:
        """See an optimizer's state. What it updates are parameters, whatever their class."""
        self.names_parameters = True
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            self.recognise(parameter, PARAMETERS)
            self.recognise(parameter.grad, GRADIENTS)
        for state in optimizer.state.values():
            for tensor in tree_leaves(state):
                self.count(tensor, OPTIMIZER_STATE)

    def end(self) -> None:
        """Count no more changes."""
        self.ended = self.now()

    def by_kind(self) -> dict[str, int]:
        """Live bytes of each kind, as far as the kinds are known now."""
        live: dict[str, int] = {}
        for number, size in enumerate(self.sizes):
            if size:
                kind = self.kind_of(number)
                live[kind] = live.get(kind, 0) + size
        return live

    def kind_of(self, number: int) -> str:
        """What a storage is for, as far as it is known now."""
        kind = self.kinds[number]
        return kind if self.names_parameters else min(kind, self.leaves.get(number, OTHER), key=PRIORITY.__getitem__)

    def samples(self) -> list[Sample]:
        kinds = list(map(self.kind_of, range(len(self.kinds))))
        live = {kind: 0 for kind in KINDS if kind in {*kinds, OTHER}}
        samples = [(self.began, kind, 0) for kind in live]
        for seconds, number, difference in self.changes:
            kind = kinds[number]
            live[kind] += difference
            samples.append((seconds, kind, live[kind]))
        return samples if self.ended is None else [*samples, (self.ended, OTHER, live[OTHER])]


class StorageTracker(TorchDispatchMode):
    """Shows a Storages what this process computes, and the modules, optimizers and tensors that it `held` before."""

    def __init__(self, held: tuple[object, ...], now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held, self.storages = held, Storages(now)
        self.undo: list[Callable[[], object]] = []

    def __enter__(self) -> Any:
        for thing in self.held:
            self.undo += hold(thing, self.storages)
        saved = saved_tensors_hooks(self.storages.save, restore)
        saved.__enter__()
        self.undo += [lambda: saved.__exit__(None, None, None), let_torch_func_run()]
        resize = torch.UntypedStorage.resize_  # how FSDP frees what it has gathered

        def resize_and_see(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            return self.storages.see(resize(storage, size))

        torch.UntypedStorage.resize_ = resize_and_see  # type: ignore[method-assign, assignment]
        self.undo.append(lambda: setattr(torch.UntypedStorage, "resize_", resize))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        while self.undo:
            self.undo.pop()()
        self.storages.end()

    def __torch_dispatch__(
        self, function: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        of_tensors = sys.modules.get("torch.distributed.tensor")  # importing it takes a second
        if of_tensors and of_tensors.DTensor in types:
            return NotImplemented  # the operations on its local tensors come here too
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self.storages.count(tensor)
        return result


def restore(saved: tuple[Tensor, int]) -> Tensor:
    """What `save` kept. Raises RuntimeError if it has been modified since: torch itself does not look where tensors are
    saved by hooks.
    """
    tensor, version = saved
    if version_of(tensor) != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"a {str(tensor.dtype).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)} is at version "
            f"{version_of(tensor)}; expected version {version} instead."
        )
    return tensor


def let_torch_func_run() -> Callable[[], None]:
    """torch.func's gradients refuse to run where tensors are saved by hooks: take ours away meanwhile. Returns a
    function that undoes this.
    """
    graph = torch.autograd.graph
    disable = graph.disable_saved_tensors_hooks

    @contextmanager
    def without_ours(error_message: str) -> Iterator[None]:
        top = top_saved_hooks(True)
        ours = saved_tensors_hooks(*top) if top and top[1] is restore else None
        if ours:
            ours.__exit__()
        try:
            with disable(error_message):
                yield
        finally:
            if ours:
                ours.__enter__()

    graph.disable_saved_tensors_hooks = without_ours
    return lambda: setattr(graph, "disable_saved_tensors_hooks", disable)


def hold(thing: object, storages: Storages) -> list[Callable[[], object]]:
    """Count `thing` from now on, with the gradients and state it will get. Returns functions that undo it.

    Raises TypeError if it is not a module, an optimizer or a tensor.
    """
    undo: list[Callable[[], object]] = []
    if isinstance(thing, torch.nn.Module):
        for tensor in [*thing.parameters(), *thing.buffers()]:
            undo += hold(tensor, storages)
    elif isinstance(thing, torch.optim.Optimizer):
        storages.count_state(thing)
        undo.append(thing.register_step_post_hook(lambda optimizer, *_: storages.count_state(optimizer)).remove)
    elif isinstance(thing, Parameter) or (isinstance(thing, Tensor) and thing.requires_grad and thing.is_leaf):
        storages.count_leaf(thing)
        storages.count_gradient(thing)
        if thing.requires_grad:
            undo.append(thing.register_post_accumulate_grad_hook(storages.count_gradient).remove)
    elif isinstance(thing, Tensor):
        storages.count(thing)
    else:
        raise TypeError(
            f"track_memory takes modules, optimizers and tensors, to count them from the start; it got {thing!r}."
        )
    return undo


def parts(value: object) -> list[Tensor]:
    """The plain tensors inside a tensor: one in a DTensor, the indices and values of a sparse one."""
    if not isinstance(value, Tensor):
        return []
    if hasattr(value, "__tensor_flatten__"):
        names, _ = value.__tensor_flatten__()
        return [part for name in names for part in parts(getattr(value, name))]
    return [value] if value.layout is torch.strided else parts_of_sparse(value)
