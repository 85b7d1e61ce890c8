"""torch.compile on a virtual cluster: a request for fusion. Nothing is compiled, and values are those of eager torch.

Inside a compiled module or function, and in the backward pass of what ran there, element-wise operations, norms,
reductions and copies that follow each other form a chain, which costs what one kernel would: one launch, each input
read once, each output written once. Matrix products, attention, collectives and everything else end a chain, and cost
what they cost in eager torch.

    y = x * scale      reads x, writes y                      a new chain: a launch, two passes
    z = y.relu()       reads y, writes z                      y need not be written after all: nothing
    w = z @ matrix     reads z                                ends the chain. z was written

When a tensor that was not written is needed after its chain has ended, the compiler has two ways, and the cheaper one
counts: write and read it after all, or compute it again in the chain that needs it, from what its own chain had read.
The latter is what saves traffic in the backward pass. (The compiler then doesn't hold such tensors for backward; here
they count in memory as in eager torch.)

Which nodes of autograd's graph belong to compiled code is known by their sequence numbers, which grow in each thread.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...recording.storages import Storages
from ...recording.torch_private import (
    ROWS,
    OpOverload,
    address_of,
    copy_as,
    current_autograd_node,
    next_sequence_number,
    sequence_number_of,
)
from .fused_attention import nbytes
from .rank import VirtualRank, World

aten = torch.ops.aten
NOT_FUSED = {"eager", "aot_eager", "aot_eager_decomp_partition", "cudagraphs"}  # backends that generate no kernels
# What the compiler fuses besides the operations that torch marks as element-wise or as reductions.
FUSED = ROWS | {
    *(copy_as, aten.copy_, aten.cat, aten.stack, aten.fill_, aten.zero_, aten.zeros, aten.ones, aten.full),
    *(aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full, aten.arange),
    *(aten.masked_fill_, aten.where, aten.native_dropout, aten.mse_loss, aten.mse_loss_backward),
    *(aten.nll_loss_forward, aten.nll_loss_backward, aten.glu, aten.glu_backward, aten.hardtanh_backward),
    *(aten.tril, aten.triu, aten.constant_pad_nd, aten.slice_backward, aten.select_backward, aten.repeat, aten.roll),
}
MARKS = {torch.Tag.pointwise, torch.Tag.reduction}
Place = tuple[int, int]  # a storage, and where in it a tensor begins
Moment = tuple[float, int, bool, int]  # the clock, the calls so far, whether this is forward, and the compiled call
MOST_HIDDEN = 1000


@functools.cache
def can_fuse(function: OpOverload[..., Any]) -> bool:
    packet = function.overloadpacket
    return packet in FUSED or not MARKS.isdisjoint(function.tags) or packet.__name__.startswith("_foreach_")


class Fusion:
    """What one rank runs compiled, and the chain that its last operations form.

    depth    how many compiled calls it is in
    spans    sequence numbers of the nodes that compiled calls have made: where each begins, and where it ends
    reads    {place: bytes} that the chain has read
    made     {storage: bytes} that it writes: 0 if another operation of the chain has used it since
    hidden   {storage: (its bytes, what it was computed from)} of tensors that no kernel has written
    saved    bytes that turned out not to be moved after they were charged, and that later ones will not be charged for
    """

    def __init__(self, rank: VirtualRank) -> None:
        self.rank, self.storages = rank, rank.storages
        self.depth = 0
        self.spans: tuple[list[int], list[int]] = [], []
        self.reads: dict[Place, int] = {}
        self.made: dict[int, int] = {}
        self.sources: dict[int, dict[Place, int]] = {}
        self.hidden: dict[int, tuple[int, dict[Place, int]]] = {}
        self.saved = 0
        self.call = -1  # the number of the compiled call that the running operation belongs to
        self.moment: Moment | None = None  # when the chain's last operation had run; None without a chain

    @contextmanager
    def compiled_call(self) -> Iterator[None]:
        begin = next_sequence_number()
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if not self.depth:
                self.spans[0].append(begin)
                self.spans[1].append(next_sequence_number())

    def takes(self, function: OpOverload[..., Any]) -> bool:
        """Whether an operation that is about to run is part of a chain."""
        if not can_fuse(function):
            return False
        self.call = len(self.spans[0]) if self.depth else self.call_of_node()
        return self.call >= 0

    def call_of_node(self) -> int:
        """The compiled call whose backward pass is running; -1 for none."""
        node = current_autograd_node() if self.spans[0] else None
        if node is None:
            return -1
        number = sequence_number_of(node)
        place = bisect_right(self.spans[0], number) - 1
        return place if place >= 0 and number < self.spans[1][place] else -1

    def now(self) -> Moment:
        return self.rank.clock, len(self.rank.calls), self.depth > 0, self.call

    def extend(self, given: Iterable[Tensor], made: Iterable[Tensor]) -> tuple[int, bool]:
        """One more operation: the bytes that it adds to what its chain moves, and whether it begins one."""
        begins = self.moment != self.now()
        if begins:
            self.reads, self.made, self.sources = {}, {}, {}
        moved, sources = 0, {}
        for tensor in given:
            more, of_tensor = self.read(tensor)
            moved += more
            sources.update(of_tensor)
        for tensor in made:
            storage, size = self.storage_of(tensor), nbytes(tensor)
            self.made[storage] = self.made.get(storage, 0) + size
            self.sources[storage] = {**self.sources.get(storage, {}), **sources}
            self.hidden.pop(storage, None)
            moved += size
        moved, self.saved = max(0, moved - self.saved), max(0, self.saved - moved)
        return moved, begins

    def read(self, tensor: Tensor) -> tuple[int, dict[Place, int]]:
        """The bytes that reading it adds to the chain's, and what it was computed from."""
        storage, size = self.storage_of(tensor), nbytes(tensor)
        if storage in self.made:
            written, self.made[storage] = self.made[storage], 0
            if written:
                self.hidden[storage] = written, self.sources[storage]
            return -written, self.sources[storage]
        if storage in self.hidden:
            written, sources = self.hidden[storage]
            missing = {place: n for place, n in sources.items() if place not in self.reads}
            if sum(missing.values()) < written + size:
                self.reads.update(missing)
                return sum(missing.values()), sources
            del self.hidden[storage]
            return written + self.read(tensor)[0], {(storage, int(tensor.storage_offset())): size}
        place = storage, int(tensor.storage_offset())
        known = self.reads.get(place, 0)
        self.reads[place] = max(size, known)
        return max(0, size - known), {place: size}

    def end(self, given: Iterable[Tensor]) -> int:
        """An operation that is not part of a chain: the bytes that must be written for it after all."""
        self.moment = None
        if not self.hidden:
            return 0
        if len(self.hidden) > MOST_HIDDEN:
            self.hidden = {storage: kept for storage, kept in self.hidden.items() if is_alive(self.storages, storage)}
        return sum(self.hidden.pop(self.storage_of(tensor), (0, {}))[0] for tensor in given)

    def storage_of(self, tensor: Tensor) -> int:
        """A number that stays with the storage: its number, or its address, negative, if it was never counted."""
        numbers = self.storages.numbers_of(tensor)
        return numbers[0] if numbers else -address_of(tensor.untyped_storage())


def is_alive(storages: Storages, number: int) -> bool:
    return number >= 0 and storages.sizes[number] > 0


class CompiledModule(nn.Module):
    """What torch.compile makes of a module: its parameters have names that begin with `_orig_mod.`, and its attributes
    are the module's own.
    """

    def __init__(self, module: nn.Module, call: Callable[..., Any]):
        super().__init__()
        self.__dict__["compiled"] = call
        self._modules["_orig_mod"] = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["compiled"](*args, **kwargs)

    def __len__(self) -> int:
        return len(self._orig_mod)

    @property
    def training(self) -> bool:
        return bool(self._orig_mod.training)

    @training.setter
    def training(self, value: bool) -> None:
        if "_orig_mod" in self.__dict__.get("_modules", {}):
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_modules"]["_orig_mod"]
        return module if name == "_orig_mod" else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)


FUSIONS: dict[VirtualRank, Fusion] = {}  # ranks that have called something compiled


def patch_compile(world: World) -> None:
    """Make torch.compile a request for fusion, in this process only. `Module.compile` calls it, too."""

    def compile(model: Any = None, *, backend: Any = "inductor", disable: bool = False, **_: Any) -> Any:
        if model is None:
            return functools.partial(compile, backend=backend, disable=disable)
        if disable or backend in NOT_FUSED:
            return model
        call = fused(world, model.__call__ if isinstance(model, nn.Module) else model)
        return CompiledModule(model, call) if isinstance(model, nn.Module) else call

    torch.compile = compile


def fused(world: World, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        rank = world.running
        fusion = FUSIONS[rank] = FUSIONS.get(rank) or Fusion(rank)
        with fusion.compiled_call():
            return function(*args, **kwargs)

    return call
