"""The judge's orders to a rank process. The judge makes them itself, so they may be pickles."""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grader.inside import codec

if TYPE_CHECKING:
    from grader.inside.slices import Slice
    from utils.cluster import Cluster

LENGTH = struct.Struct("!Q")


@dataclass(frozen=True)
class ReadOrder:
    """Read the notebook's cells and find what each wanted function needs; the arguments of slices.read."""

    cells: list[str]
    wanted: list[tuple[str, int]]


@dataclass(frozen=True)
class RunOrder:
    """Be one rank of one run.

    code       the student's function
    program    what the check calls it with: see program_packing.pack_program
    more_runs  another RunOrder follows
    """

    rank: int
    world_size: int
    virtual: bool
    cluster: Cluster
    device: str
    code: Slice
    program: bytes
    more_runs: bool = False


def packed_order(order: ReadOrder | RunOrder) -> bytes:
    data = pickle.dumps(order)
    return LENGTH.pack(len(data)) + data


def receive_order(connection: socket.socket) -> ReadOrder | RunOrder:
    [length] = LENGTH.unpack(codec.read_all(connection, LENGTH.size))
    order: ReadOrder | RunOrder = pickle.loads(codec.read_all(connection, length))
    return order
