"""What ranks keep outside of tensors counts where memory is judged, on real and on virtual ranks."""

from __future__ import annotations

import array
import ctypes
import io
import mmap
import socket
import sqlite3
import threading
import tracemalloc
from functools import partial

import pytest
import torch
from torch import Tensor

from utils import RankFailed, simulate, spawn
from utils.kit.drivers.outside_tensors import ALLOWED
from utils.kit.drivers.sharded import measure

NUMBERS = 1 << 17
WORLDS = {"spawn": spawn, "simulate": partial(simulate, device="cpu")}


def saved(x: Tensor) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(x, file)
    return file


def made_by_thread(x: Tensor) -> Tensor:
    made = []
    thread = threading.Thread(target=lambda: made.append(x.clone()))
    thread.start()
    thread.join()
    return made[0]


KEEPS = {
    "a list": lambda x: x.tolist(),
    "short lists": lambda x: x.view(-1, 8).tolist(),
    "a tuple": lambda x: tuple(x.tolist()),
    "a dict": lambda x: dict(enumerate(x.tolist())),
    "bytes": lambda x: x.numpy().tobytes(),
    "a bytearray": lambda x: bytearray(x.numpy().tobytes()),
    "text": lambda x: x.numpy().tobytes().hex(),
    "an array": lambda x: array.array("f", x.tolist()),
    "NumPy": lambda x: x.numpy().copy(),
    "ctypes": lambda x: (ctypes.c_char * x.nbytes).from_buffer_copy(x.numpy().tobytes()),
    "a file in memory": saved,
    "a sparse tensor": lambda x: x.to_sparse(),
    "a compressed one": lambda x: x.view(-1, 8).to_sparse_csr(),
}

PLACES = [(world, place) for world in WORLDS for place in KEEPS]
PLACES.remove(("simulate", "a file in memory"))  # on virtual ranks libraries' objects don't count


@pytest.mark.parametrize(("world", "place"), PLACES)
def test_numbers_count_wherever_a_rank_keeps_them(world, place):
    keep = KEEPS[place]

    def program(rank, world_size):
        x = torch.arange(1.0, NUMBERS + 1)
        said = measure(
            lambda x, rank, world_size: (keep(x), torch.ones(1)), x, rank=rank, world_size=world_size, counted=True
        )
        return said["held"], said["peak"]

    for held, peak in WORLDS[world](program, 2).results:
        assert min(held, peak) > 0.8 * (4 * NUMBERS - ALLOWED), (held, peak)


def test_tensors_that_the_record_has_not_seen_count():
    def program(rank, world_size):
        x = torch.ones(NUMBERS)
        return measure(
            lambda x, rank, world_size: made_by_thread(x), x, rank=rank, world_size=world_size, counted=True
        )["held"]

    assert spawn(program, 1).results[0] >= 4 * NUMBERS - ALLOWED


@pytest.mark.parametrize("keep", ["torch.save(x, path)", "x.numpy().tofile(path)", "open(path, 'wb').write(bytes(x))"])
def test_what_is_written_into_a_file_counts(keep, tmp_path):
    path = str(tmp_path / "numbers")

    def program(rank, world_size):
        x = torch.ones(NUMBERS // 4, dtype=torch.float32).view(torch.uint8)  # bytes(x) takes a number at a time
        function = lambda x, rank, world_size: eval(keep, {"torch": torch, "x": x, "path": path}) and None  # noqa: E731
        return measure(function, x, rank=rank, world_size=world_size, counted=True)["held"]

    assert spawn(program, 1).results[0] >= NUMBERS - ALLOWED


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_small_objects_do_not_count(world):
    """Functions, hooks, texts, lists of tensors and of shapes: what an ordinary program makes besides its numbers."""

    def program(rank, world_size):
        def busy(x, rank, world_size):
            parts = [part.clone().requires_grad_() for part in x.split(64)]
            notes = [f"part {number} of rank {rank} has {tuple(part.shape)}" for number, part in enumerate(parts)]
            with torch.enable_grad():
                results = [(lambda part, by: part * by)(part, 2.0).sum() for part in parts]
                hooks = [part.register_hook(lambda grad: None) for part in parts]
                sum(results).backward()
            shapes = {number: (part.shape, part.stride()) for number, part in enumerate(parts)}
            return parts, notes, hooks, shapes, [part.grad for part in parts]

        return measure(busy, torch.ones(64 * 40), rank=rank, world_size=world_size, counted=True)["held"]

    assert max(world(program, 2).results) <= 3 * 4 * 64 * 40


REFUSED = {
    "mmap": lambda x: mmap.mmap(-1, x.nbytes),
    "a C library": lambda x: ctypes.CDLL(None).malloc(x.nbytes),
    "a C function": lambda x: ctypes.pythonapi.PyMem_RawMalloc(x.nbytes),
    "a data base": lambda x: sqlite3.connect(":memory:"),
    "a socket": lambda x: socket.socketpair(),
    "tracemalloc is stopped": lambda x: tracemalloc.stop(),
    "tracemalloc is cleared": lambda x: tracemalloc.clear_traces(),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("keep", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_counted_is_refused(keep, world):
    def program(rank, world_size):
        measure(
            lambda x, rank, world_size: keep(x), torch.ones(NUMBERS), rank=rank, world_size=world_size, counted=True
        )

    with pytest.raises(RankFailed, match=r"what is kept there can't be counted|tracemalloc, which counts it, was"):
        world(program, 1)


def test_afterwards_everything_is_allowed_again():
    def program(rank, world_size):
        measure(
            lambda x, rank, world_size: x.tolist(), torch.ones(NUMBERS), rank=rank, world_size=world_size, counted=True
        )
        mmap.mmap(-1, 4096).close()

    spawn(program, 1)
    simulate(program, 1, device="cpu")
    assert not tracemalloc.is_tracing()


def test_what_was_kept_before_does_not_count():
    """Tracing goes on in a rank's own process, from one judged block to the next."""

    def program(rank, world_size):
        kept = []

        def held(keeps):
            def function(x, rank, world_size):
                kept.extend([x.tolist()] * keeps)

            x = torch.ones(NUMBERS)
            return measure(function, x, rank=rank, world_size=world_size, counted=True)["held"]

        return held(True), held(False), held(True)

    first, between, last = spawn(program, 1).results[0]
    assert min(first, last) > 4 * NUMBERS - ALLOWED and between == 0, (first, between, last)


def test_threads_of_libraries_may_allocate_while_the_judging_ends():
    """As Gloo's do when they drop a tensor. Python itself crashed there (python/cpython#128679)."""

    def program(rank, world_size):
        library = ctypes.CDLL(None)
        take, drop = library.PyMem_RawMalloc, library.PyMem_RawFree  # without the GIL
        take.restype, drop.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        done = threading.Event()

        def allocate():
            while not done.is_set():
                drop(take(8))

        thread = threading.Thread(target=allocate)
        thread.start()
        for _ in range(20):
            measure(lambda x, rank, world_size: x + 1, torch.ones(4), rank=rank, world_size=world_size, counted=True)
        done.set()
        thread.join()

    spawn(program, 1)
