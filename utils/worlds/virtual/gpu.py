"""The GPU of a virtual rank: the time an operation takes, the memory its tensors take, and without values its result.

torch calls `VirtualGpu` for each operation of a rank, after autograd has done its part. By the roofline model it takes

    max(FLOPs / peak of the dtype, bytes read and written / memory bandwidth) + launch

FLOPs are torch's own count (torch.utils.flop_counter: matrix products, convolutions) and, for attention and for grouped
and scaled products, that of kernels.py; every other operation is bound by its bytes. A view costs nothing. What runs
compiled is fused (compiled.py). At rates="achieved", peak and bandwidth are what kernels of this kind and
shape reach (kernels.py, cluster/achieved.py). An operation that was timed on a real GPU takes what was measured, if the
cluster has such times (cluster/kernel_times.py).

With device="meta" tensors have sizes but no values, and nothing is computed (meta_tensors.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.flop_counter import flop_registry

from ...cluster.achieved import KernelRates
from ...cluster.hardware import Cluster, Gpu
from ...cluster.jitter import Unevenness
from ...cluster.kernel_times import MeasuredGpu
from ...events.computed import Computed
from ...recording.storages import Storages
from ...recording.torch_calls import tensors_in
from ...recording.torch_private import (
    ATTENTION,
    ATTENTION_BACKWARD,
    FAKE,
    GROUPED_PRODUCTS,
    SCALED_PRODUCTS,
    DispatchKey,
    OpOverload,
    TorchDispatchMode,
    address_of,
    call_kernel,
    get_dispatch_mode,
    gradient_hooks_of,
    is_leaf,
    local_scalar_dense,
    reinstall_gradient_hooks,
    schema_of,
    sdpa,
    unsafe_view,
)
from . import meta_tensors
from .collective_operators import copied, is_collective, made_of_others
from .compiled import FUSIONS, Fusion
from .fused_attention import attention, nbytes
from .kernel_names import kernel_name
from .kernels import Kernel, Work, attention_flops, kernel_of, product_flops
from .rank import VirtualRank

aten = torch.ops.aten
NO_KERNEL = {
    aten.empty,
    aten.empty_strided,
    aten.empty_like,
    aten.new_empty,
    aten.new_empty_strided,
    unsafe_view,
    local_scalar_dense,
    aten.scalar_tensor,
    aten.lift_fresh,
    aten.resize_,
    aten.set_,
}
# These read only as much of their first tensor as they write.
PICK = {aten.embedding, aten.index_select, aten.gather, aten.index, aten.take}
# These write their first tensor without reading it.
OVERWRITE = {aten.copy_, aten.fill_, aten.zero_, aten.normal_, aten.uniform_, aten.random_, aten.bernoulli_}
BY_MASK = {id(getattr(packet, name)) for packet in meta_tensors.BY_MASK for name in packet.overloads()}
NUMBERS = {int, float, bool}

Output = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


FREE = Work()


class Plan:
    """What an operation on tensors of given shapes costs and, if known, its result without carrying it out.

    outputs   (size, strides, dtype) of each output, None for one that is not a tensor
    kind      what holds the outputs: Tensor, tuple, list; "in place" if the result is the first argument; None if
              the operation has to be carried out, and "directly" if its arguments can stay as they are
    """

    __slots__ = ("function", "is_view", "kind", "outputs", "seconds", "work")

    def __init__(
        self,
        function: OpOverload[..., Any],
        work: Work,
        outputs: Iterable[Output | None] = (),
        kind: Any = None,
    ):
        self.function, self.work, self.outputs, self.kind = function, work, outputs, kind
        self.is_view, self.seconds = function.is_view, work.seconds

    def note_placing(self, as_they_are: bool) -> None:
        """as_they_are: whether the arguments already are where this world's tensors are."""
        packet = self.function.overloadpacket
        if self.kind is None and as_they_are and self.is_view and packet not in meta_tensors.READS_A_VALUE:
            self.kind = "directly"
        elif self.kind == "in place" and not as_they_are:
            self.kind = None

    def result(self, args: tuple[Any, ...]) -> Any:
        if self.kind == "in place":
            return args[0]
        made = [
            None if output is None else torch.empty_strided(output[0], output[1], dtype=output[2], device="meta")
            for output in self.outputs
        ]
        return made[0] if self.kind is Tensor else self.kind(made)


class CountsGradient:
    """What a parameter calls with its new gradient.

    address   of what was behind the parameter when it was last counted
    """

    __slots__ = ("address", "storages")

    def __init__(self, storages: Storages, address: int):
        self.storages, self.address = storages, address

    def __call__(self, parameter: Tensor) -> None:
        self.storages.count_gradient(parameter)


class VirtualGpu(TorchDispatchMode):
    """Carries out the operations of one rank: each moves the rank's clock and counts in its memory.

    plans   {operation and shapes: Plan}, shared by the ranks of a world
    """

    def __init__(self, rank: VirtualRank, cluster: Cluster, only_sizes: bool, plans: dict[tuple[Any, ...], Plan]):
        super().__init__()  # type: ignore[no-untyped-call]
        self.rank, self.gpu, self.only_sizes, self.plans = rank, cluster.gpu, only_sizes, plans
        self.rates = cluster.kernel_rates
        self.host = self.rates.host if self.rates is not None else 0.0
        rank.run_kernel = self.run_kernel
        self.scheduler, self.storages, self.times = rank.scheduler, rank.storages, rank.times
        if cluster.jitter is not None:
            rank.uneven = Unevenness(cluster.jitter, rank.number, cluster.node_of(rank.number))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch puts a wrapper around each call, though nothing is compiled here

    def __torch_dispatch__(
        self,
        function: OpOverload[..., Any],
        types: Iterable[type[Tensor]],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.scheduler.in_bookkeeping or get_dispatch_mode(FAKE) is not None:  # DTensor's fake tensors cost nothing
            return function(*args, **kwargs)
        if types and any(kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ for kind in types):
            self.watch(args)
            return NotImplemented  # a DTensor, say: the operations on its parts come here in turn
        if torch.is_inference_mode_enabled() and (made := self.compose(function, args, kwargs)) is not NotImplemented:
            return made
        if is_collective(function):
            return self.collective(function, args, kwargs)
        result, args, is_view = self.carry_out(function, args, kwargs)
        self.watch(args)
        if not is_view:
            self.count(result)
        return result

    def compose(self, function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In inference mode autograd, which makes compound operations of others, is left out: do so here.

        Returns NotImplemented for an operation that isn't compound.
        """
        with self:
            if function is sdpa:
                return attention(self.rank.world, *args, **kwargs)
            return function.decompose(*args, **kwargs)

    def carry_out(
        self, function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], bool]:
        """Do an operation, and move the clock by what it costs: (its result, the arguments it got, is it a view?)."""
        plan, result, args = self.planned(function, args, kwargs)
        if plan.seconds:
            fusion = FUSIONS.get(self.rank)
            if fusion is not None and fusion.takes(function):
                self.fuse(fusion, function, (*args, *kwargs.values()), result)
            else:
                if fusion is not None:
                    self.move(fusion.end(tensors_in((*args, *kwargs.values()))))
                self.launch(plan.work)
        return result, args, plan.is_view

    def fuse(self, fusion: Fusion, function: OpOverload[..., Any], values: tuple[Any, ...], result: Any) -> None:
        """Charge an operation of compiled code as part of the kernel that its chain becomes."""
        self.count(result)  # gives its storages numbers
        given = tensors_in(values)[1 if function.overloadpacket in OVERWRITE else 0 :]
        made = tensors_in(result) or [*written(function, values)]
        moved, begins = fusion.extend(given, made)
        self.move(moved, self.gpu.launch if begins else 0.0)
        fusion.moment = fusion.now()

    def move(self, nbytes: int, launch: float = 0.0) -> None:
        """Charge bytes that a kernel moves."""
        work = bound_by(Kernel(0, nbytes), self.gpu, self.rates)
        if nbytes or launch:
            self.charge(work._replace(launch=launch, seconds=work.moving + launch), launches=launch > 0)

    def run_kernel(self, kernel: Kernel) -> None:
        """Charge a kernel that no operation of torch stands for."""
        self.launch(bound_by(kernel, self.gpu, self.rates))

    def launch(self, work: Work) -> None:
        if self.rates is not None and work.computing and self.rank.works_for_collective():
            work = slowed(work, self.rates.beside)
        self.charge(work)

    def planned(
        self, function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Plan, Any, tuple[Any, ...]]:
        """The plan of an operation, its result, and the arguments that it was given."""
        if id(function) in BY_MASK:
            args, kwargs = self.place(function, args, kwargs)  # how much a mask selects depends on its values
        key = key_of(function, args, kwargs)
        plan = None if key is None else self.plans.get(key)
        if plan is not None and plan.kind == "directly":
            return plan, function(*args, **kwargs), args
        if plan is not None and plan.kind is not None:
            return plan, plan.result(args), args
        placed, kwargs = self.place(function, args, kwargs)
        result = self.do(function, placed, kwargs)
        if plan is None:
            plan = make_plan(function, placed, kwargs, result, self.gpu, self.rates)
            plan.note_placing(self.only_sizes and all(map(operator.is_, args, placed)))
            if key is not None:
                self.plans[key] = plan
        return plan, result, placed

    def place(
        self, function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with which `function` puts its result where this world's tensors are."""
        if self.only_sizes:
            return meta_tensors.arguments(function, args, kwargs)
        device = kwargs.get("device")
        on_gpu = device is not None and torch.device(device).type == "cuda"  # and not "meta"
        return args, {**kwargs, "device": "cpu"} if on_gpu else kwargs

    def do(self, function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.only_sizes:
            if function.overloadpacket in meta_tensors.ONE_VALUE and args[0].is_meta:
                known = self.rank.world.unknown_value(args[0])
                if known is not None:
                    return known
            return meta_tensors.do(function, args, kwargs)
        return function(*args, **kwargs)

    def collective(self, function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A collective that is an operator (DTensor uses them): it calls the process group, and its only kernels are
        copies. For tensors without values torch itself would not call the group.
        """
        if (others := made_of_others(function)) is not None:
            with self:
                return others(*args, **kwargs)
        for tensor in copied(function, args):
            self.charge(bound_by(Kernel(0, 2 * nbytes(tensor)), self.gpu, self.rates))
        if self.only_sizes:
            result = call_kernel(function, DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
        else:
            result = function(*args, **kwargs)
        self.count(result)
        return result

    def charge(self, work: Work, launches: bool = True) -> None:
        """Let the rank be busy for as long as an operation takes. launches: whether it begins a kernel."""
        late = 0.0
        if (uneven := self.rank.uneven) is not None:
            work, late = stretched(work, uneven.slowness), uneven.delay() if launches else 0.0
        host = self.host if launches else 0.0
        if not work.launch:
            host = min(host, work.seconds)  # a measured time has the host's in it
        self.rank.compute(self.rank.waits_for_host(host) + work.seconds + late)
        self.times[work] = self.times.get(work, 0) + 1

    def watch(self, args: tuple[Any, ...]) -> None:
        """Count what may be a parameter, and its gradient as soon as that exists.

        Nothing refers to a parameter from here, not even weakly: `Module.to_empty` exchanges what is behind a
        parameter, which torch refuses if anything does.
        """
        for tensor in args:
            if (type(tensor) is not Tensor or tensor.requires_grad) and self.may_be_parameter(tensor):
                ours = (hook for hook in (gradient_hooks_of(tensor) or {}).values() if type(hook) is CountsGradient)
                counts = next(ours, None)
                if counts is not None and counts.address == address_of(tensor):
                    continue
                self.storages.count_leaf(tensor)
                if counts is not None:
                    counts.address = address_of(tensor)
                    reinstall_gradient_hooks(tensor)
                elif tensor.requires_grad and tensor.is_leaf:
                    tensor.register_post_accumulate_grad_hook(CountsGradient(self.storages, address_of(tensor)))

    def may_be_parameter(self, value: Any) -> bool:
        """Also true of a plain tensor that requires a gradient and is neither a result nor received; in backward it is
        hard to tell. `Storages` decides what such tensors are.
        """
        if not isinstance(value, Tensor):
            return False
        if isinstance(value, Parameter):
            return True
        if not (torch.is_grad_enabled() and value.requires_grad and is_leaf(value)):
            return False
        return self.rank.received.isdisjoint(self.storages.numbers_of(value))

    def count(self, result: Any) -> None:
        if type(result) is Tensor and result.layout is torch.strided:
            self.storages.see(result.untyped_storage())
        else:
            for tensor in tensors_in(result):
                self.storages.count(tensor)
        if self.storages.live > self.gpu.memory:
            self.rank.out_of_memory(self.gpu.memory)


def key_of(function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """What a plan depends on; None if that can't be used as a key.

    The operation itself would be hashed by Python code; it lives as long as its plans do.
    """
    try:
        key = id(function), torch.get_default_dtype(), *map(signature, args)
        if kwargs:
            key += tuple((name, signature(value)) for name, value in kwargs.items())
        hash(key)
    except (TypeError, RuntimeError):  # a list of unhashable things; a tensor without strides
        return None
    return key


def signature(value: Any) -> Any:
    kind = type(value)
    if kind is Tensor or isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.is_meta
    if kind in NUMBERS:
        return kind, value  # 1, 1.0 and True are equal, and make tensors of different dtypes
    if kind is torch.device:
        return value.type  # ranks name GPUs by their own numbers, and share plans
    if isinstance(value, (list, tuple)):
        return tuple(map(signature, value))
    if isinstance(value, (int, float)):
        return kind, value
    return value


def make_plan(
    function: OpOverload[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    gpu: Gpu,
    rates: KernelRates | None,
) -> Plan:
    work = work_of(function, args, kwargs, result, gpu, rates)
    outputs = list(result) if isinstance(result, (list, tuple)) else [result]
    tensors = [output for output in outputs if output is not None]
    if function.is_view or not tensors or not all(isinstance(t, Tensor) and t.is_meta for t in tensors):
        return Plan(function, work)
    schema = schema_of(function)
    if not schema.is_mutable and not any(a.alias_info for a in schema.returns):
        made = [None if output is None else (tuple(output.shape), output.stride(), output.dtype) for output in outputs]
        return Plan(function, work, made, Tensor if isinstance(result, Tensor) else type(result))
    changes_its_shape = torch.Tag.inplace_view in function.tags or function.overloadpacket in (aten.resize_, aten.set_)
    if args and result is args[0] and not changes_its_shape:
        return Plan(function, work, kind="in place")
    return Plan(function, work)


def work_of(
    function: OpOverload[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    gpu: Gpu,
    rates: KernelRates | None,
) -> Work:
    """As measured, or at the given rates, or by the roofline model; FREE if the operation runs no kernel on a GPU."""
    packet = function.overloadpacket
    if function.is_view or packet in NO_KERNEL:
        return FREE
    given, made = tensors_in((*args, *kwargs.values())), tensors_in(result)
    moved = sum(map(nbytes, made))
    if packet in PICK:
        moved += sum(map(nbytes, made)) + sum(map(nbytes, given[1:]))
    else:
        moved += sum(map(nbytes, given[1:] if packet in OVERWRITE else given))
    flops = 0
    if packet in ATTENTION or packet in ATTENTION_BACKWARD:
        first = int(packet in ATTENTION_BACKWARD)
        query, key, value = args[first : first + 3]
        flops = attention_flops(query, key, value, backward=bool(first))
    elif packet in SCALED_PRODUCTS or packet in GROUPED_PRODUCTS:
        flops = product_flops(*args[:2])
    elif packet in flop_registry:
        sizes = (value for value in args if not isinstance(value, torch.dtype))  # an out_dtype in between confuses it
        flops = flop_registry[packet](*sizes, **kwargs, out_val=result)
    if rates is not None and not made:  # a fused optimizer, a foreach operation: the model at datasheet's rates, which
        moved += sum(map(nbytes, written(function, args)))  # closed forms are compared with, counts only what is read
    work = bound_by(kernel_of(function, args, kwargs, flops, moved), gpu, rates)
    if isinstance(gpu, MeasuredGpu) and (measured := gpu.kernels.get(kernel_name(function, args))) is not None:
        work = work._replace(launch=0.0, seconds=measured)  # a measured time has the launch in it
    return work


def written(function: OpOverload[..., Any], args: tuple[Any, ...]) -> Iterator[Tensor]:
    """The tensors that an operation without a result writes to. Optimizers write gradients only to unscale them."""
    for value, argument in zip(args, schema_of(function).arguments, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name != "grads":
            yield from tensors_in(value)


def bound_by(kernel: Kernel, gpu: Gpu, rates: KernelRates | None) -> Work:
    """By the roofline model, at the datasheet's rates or at those that are achieved."""
    peak = gpu.peak(kernel.dtype) if kernel.flops else math.inf
    flops, computing, moving = kernel.flops, kernel.flops / peak, kernel.moved / gpu.bandwidth
    at_peak = computing
    if rates is not None:
        flops, at_peak = kernel.needed_flops, kernel.needed_flops / peak
        computing, moving = kernel.computing(peak, rates), moving / kernel.part_of_bandwidth(rates)
    return Work(computing, moving, gpu.launch, max(computing, moving) + gpu.launch, flops, at_peak)


def slowed(work: Work, part: float) -> Work:
    """What an operation costs whose FLOPs take longer by this part, because a collective runs at the same time."""
    computing = work.computing * (1 + part)
    return work._replace(computing=computing, seconds=max(computing, work.moving) + work.launch)


def stretched(work: Work, slowness: float) -> Work:
    """What an operation costs on a GPU that takes so many times as long for its kernels."""
    kernel = work.seconds - work.launch
    return work._replace(
        computing=work.computing * slowness, moving=work.moving * slowness, seconds=kernel * slowness + work.launch
    )


def total(times: dict[Work, int], finished: float, late: float = 0.0) -> Computed:
    """What one rank computed, from how often it carried out what, and by how much its launches were late."""
    matmul = memory_bound = at_peak = 0.0
    launch = late
    flops = 0
    for work, number in times.items():
        kernel = number * (work.seconds - work.launch)
        if work.computing >= work.moving:
            matmul += kernel
        else:
            memory_bound += kernel
        launch += number * work.launch
        flops += number * work.flops
        at_peak += number * work.at_peak
    return Computed(matmul, memory_bound, launch, flops, at_peak, finished)
