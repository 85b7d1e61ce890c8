"""`torch.cuda` of a virtual rank, so that a program written for GPUs runs unchanged on a virtual cluster.

Tensors that the program puts on "cuda" are where all its tensors are: on the virtual GPU, with the device "meta" or
"cpu". A rank has one clock, so what is launched on a stream of its own runs in its turn, not meanwhile; an event
notes the clock. `torch.cuda.is_available()` stays False where torch has no CUDA: a program that asks takes its other
way, which runs as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ...recording.torch_private import let_fused_optimizers_take, take_for
from .rank import World
from .virtual_accelerator import patch_accelerator

MAKE_TENSORS = """
    tensor as_tensor empty zeros ones full eye arange linspace rand randn randint randperm
    empty_like zeros_like ones_like full_like rand_like randn_like randint_like
"""


@dataclass(frozen=True)
class Properties:
    """What `torch.cuda.get_device_properties` says of a virtual GPU. total_memory: bytes."""

    name: str
    total_memory: int
    major: int = 0
    minor: int = 0


class VirtualStream(AbstractContextManager["VirtualStream"]):
    """A stream: everything on it is done as soon as it was launched."""

    device_type, cuda_stream = "cuda", 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def nothing(self, *_: Any) -> None:
        """Nothing to wait for."""

    synchronize = wait_event = wait_stream = nothing

    def record_event(self, event: Any = None) -> Any:
        event = torch.cuda.Event() if event is None else event
        event.record()
        return event

    def __exit__(self, *error: object) -> None:
        """Nothing to go back to."""


def event_class(world: World) -> type:
    class VirtualEvent:
        """A moment of its rank's clock."""

        def __init__(self, enable_timing: bool = False, **_: Any) -> None:
            self.enable_timing, self.moment = enable_timing, -1.0

        def record(self, _: object = None) -> None:
            self.moment = world.running.clock

        def query(self) -> bool:
            return True

        def nothing(self, *_: Any) -> None:
            """Nothing to wait for."""

        wait = synchronize = nothing

        def elapsed_time(self, other: VirtualEvent) -> float:
            """Milliseconds, as in torch. Raises RuntimeError unless both have been recorded, with their times."""
            if not (self.enable_timing and other.enable_timing) or min(self.moment, other.moment) < 0:
                raise RuntimeError(
                    "elapsed_time() needs two events that were made with enable_timing=True and recorded."
                )
            return 1e3 * (other.moment - self.moment)

    return VirtualEvent


def patch_cuda(world: World) -> None:
    """Make `torch.cuda` that of the running rank's GPU, in this process only."""
    cuda, gpu, per_node = torch.cuda, world.cluster.gpu, world.cluster.gpus_per_node
    properties = Properties(f"virtual GPU of {world.cluster.name}", int(min(gpu.memory, 2**62)))

    def local() -> int:
        return world.running.number % per_node

    def live(*_: Any) -> int:
        return world.running.storages.live

    def most(*_: Any) -> int:
        return world.running.storages.most

    def forget_most(*_: Any) -> None:
        world.running.storages.most = world.running.storages.live

    answers: dict[str, Callable[..., Any]] = {
        "is_initialized": lambda: True,  # so torch doesn't try to start CUDA
        "current_device": local,
        "device_count": lambda: per_node,
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "mem_get_info": lambda *_: (properties.total_memory - live(), properties.total_memory),
        "is_bf16_supported": lambda *_, **__: True,
        "current_stream": VirtualStream,
        "default_stream": VirtualStream,
        "stream": lambda stream: stream or VirtualStream(),
        "memory_allocated": live,
        "memory_reserved": live,
        "max_memory_allocated": most,
        "max_memory_reserved": most,
        "reset_peak_memory_stats": forget_most,
        "reset_max_memory_allocated": forget_most,
        "get_rng_state": lambda *_: torch.get_rng_state(),  # a virtual GPU draws from the CPU's generator
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    }
    for name in ("set_device", "synchronize", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all"):
        answers[name] = lambda *_, **__: None
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    cuda.Stream, cuda.Event = VirtualStream, event_class(world)  # type: ignore[misc,assignment]
    vars(torch)["meta"] = cuda  # where FSDP looks for streams, by the name of the device
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    let_fused_optimizers_take("meta")
    stay_where_they_are()
    leave_out_device_ids()
    patch_accelerator()
    if not world.only_sizes:
        autocast_on_cpu()


def stay_where_they_are() -> None:
    """Tensors are on the GPU from the beginning: to move one there is to do nothing, and to make one there is to make
    one. A number is a GPU too, as in `model.to(rank)`.
    """
    to, module_to = torch.Tensor.to, torch.nn.Module.to
    with torch.device("meta"):
        torch.empty(0)  # `with torch.device` looks up once which functions it is for, by their identity: not ours

    def stay(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and (args[0] is None or is_gpu(args[0])):
            names = ("device", "dtype", "non_blocking", "copy")
            args, kwargs = (), {**dict(zip(names, args, strict=False)), **kwargs}
        if args or not is_gpu(kwargs.get("device")):
            return to(tensor, *args, **kwargs)
        asked = {name: kwargs[name] for name in ("dtype", "copy", "memory_format") if kwargs.get(name)}
        return to(tensor, **asked) if asked else tensor

    def stay_all(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        args = tuple(f"cuda:{value}" if type(value) is int else value for value in args)
        return module_to(module, *args, **kwargs)

    torch.Tensor.to, torch.nn.Module.to = stay, stay_all  # type: ignore[method-assign,assignment]
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
    for name in MAKE_TENSORS.split():
        made = without_gpu(getattr(torch, name))
        take_for(made, getattr(torch, name))
        setattr(torch, name, made)


def without_gpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "device" in kwargs and is_gpu(kwargs["device"]):
            kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return made


def is_gpu(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return type(value) is int or (isinstance(value, str) and value.split(":")[0] == "cuda")


def leave_out_device_ids() -> None:
    """DDP's `device_ids=[rank]` would have torch look for tensors on a real GPU."""
    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def make_without(
        ddp: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        make(ddp, module, None, None, *args, **kwargs)

    DistributedDataParallel.__init__ = make_without  # type: ignore[method-assign,assignment]


def autocast_on_cpu() -> None:
    """Where tensors have values they are on the CPU, whatever device the program names, and so is autocast."""
    make = torch.autocast.__init__

    @functools.wraps(make)
    def make_for_cpu(context: torch.autocast, device_type: str, dtype: Any = None, *args: Any, **kw: Any) -> None:
        asked = torch.get_autocast_dtype(device_type) if dtype is None else dtype
        make(context, "cpu", asked, *args, **kw)

    torch.autocast.__init__ = make_for_cpu  # type: ignore[method-assign,assignment]
