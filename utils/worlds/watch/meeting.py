"""Where the watchers of a job meet: a store of their own in the process of rank 0, found through the job's store.

The job's store would not do. It belongs to the program, which closes it with its group, and its lock is held while the
program waits in it. All keys are made here, at the beginning: what the store holds doesn't grow.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch.distributed as dist

from ..jobs.network_interface import address_towards

ADDRESS = "watch/address"  # in the job's store: "host:port" of the watchers'
ORDER = "order"
PATIENCE = timedelta(seconds=30)  # for rank 0 to answer; it never takes long, unless its machine is gone


class Meeting:
    """What one watcher tells the others, and hears from them. Any method raises RuntimeError once rank 0 is gone."""

    def __init__(self, rank: int, size: int, store: dist.TCPStore) -> None:
        self.rank, self.size, self.store = rank, size, store

    @classmethod
    def find(cls, program: dist.Store, rank: int, size: int) -> Meeting:
        """program: the job's store. Returns once rank 0 is there."""
        key = f"{ADDRESS}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
        if rank == 0:
            store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
            for name in (ORDER, *(f"{what}/{one}" for what in ("beat", "record") for one in range(size))):
                store.set(name, "")
            program.set(key, f"{address_towards(os.environ.get('MASTER_ADDR', 'localhost'))} {store.port}")
        else:
            while not program.check([key]):  # waiting in the store would keep the program out of it
                time.sleep(0.2)
            host, port = program.get(key).decode().split()
            store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=PATIENCE)
        return cls(rank, size, store)

    def tell(self, beat: str) -> None:
        self.store.set(f"beat/{self.rank}", beat)

    def hand_in(self, record: bytes) -> None:
        self.store.set(f"record/{self.rank}", record)  # type: ignore[arg-type]  # bytes as well

    def order(self) -> str:
        return str(self.store.get(ORDER).decode())

    # --- rank 0

    def beats(self) -> list[str]:
        return [beat.decode() for beat in self.store.multi_get([f"beat/{rank}" for rank in range(self.size)])]

    def records(self) -> list[bytes]:
        return list(self.store.multi_get([f"record/{rank}" for rank in range(self.size)]))

    def give_order(self, order: str) -> None:
        self.store.set(ORDER, order)
