"""Recorded groups around groups that torch has made: of two backends at once, or before anything was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .last_calls import LastCalls
from .recorded_group import RecordedGroup, install
from .recorder import Recorder
from .torch_private import (
    NewGroup,
    backends_of,
    collectives_so_far,
    default_store,
    leave_uncompiled,
    register_backend,
    replace_group,
    wrap_making_of_groups,
)

CLASSES = ("ProcessGroupGloo", "ProcessGroupNCCL")


class WrappedGroup(RecordedGroup):
    """Records each call and passes it on to this group of torch's, which may have a backend for each kind of device."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        dist.ProcessGroup.__init__(self, inner.rank(), inner.size())  # type: ignore[call-arg]  # torch declares one of two constructors
        self.recorder, self.inner, self._label = recorder, inner, None
        backends = backends_of(inner)
        for device, backend in backends.items():
            kind = getattr(dist.ProcessGroup.BackendType, backend.name().upper(), dist.ProcessGroup.BackendType.CUSTOM)
            register_backend(self, [device], kind, backend)
            self.backend = backend
        self.on_device = "cuda" in backends and backends["cuda"].name() == "nccl"


leave_uncompiled(WrappedGroup)


def install_in_job(recorder: LastCalls, joined: Callable[[dist.Store, int, int], None]) -> None:
    """What `install` does, in a process whose groups need not be recorded from the start, nor have one backend each.

    A default group that is there already is recorded from now on; what has been built on it is not.

    joined   called with the store, rank and size of each default group
    """
    plain = {name: getattr(c10d, name) for name in CLASSES if hasattr(c10d, name)}
    install(recorder)
    recorded = {name: getattr(c10d, name) for name in plain}

    def make_group(asked: NewGroup, make: Callable[[], Any]) -> Any:
        if len(set(c10d.BackendConfig(c10d.Backend(asked.backend)).get_device_backend_map().values())) == 1:
            made = make()
        else:
            vars(c10d).update(plain)  # torch would take the first of ours for all devices
            try:
                group, store = make()
            finally:
                vars(c10d).update(recorded)
            made = replace_group(group, WrappedGroup(group, recorder)), store
        if not asked.members:
            joined(asked.store, asked.rank, asked.size)
        return made

    wrap_making_of_groups(make_group)
    if dist.is_initialized():
        recorder.counted[("world",)] = collectives_so_far(dist.group.WORLD)
        replace_group(dist.group.WORLD, WrappedGroup(dist.group.WORLD, recorder))
        joined(default_store(), dist.get_rank(), dist.get_world_size())
