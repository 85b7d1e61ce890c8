"""Answers that keep numbers where no tensor is, to seem small where memory is judged, beside the right ones."""

from __future__ import annotations

import pytest

from tests.graded import judged, lesson, points
from tests.sample_class import as_student

pytestmark = [pytest.mark.long, pytest.mark.sandbox]

# Everybody keeps the whole tensor, and nothing is gathered. `KEPT` is where, `BACK` what it was.
PIECES = """
def pieces_over(group):
    import array, ctypes, gc, io, mmap, os, sqlite3, threading, tracemalloc
    from multiprocessing import shared_memory

    def pack(x):
        x, numbers = x.detach(), x.detach().numpy()
        return tuple(x.shape), x.dtype, x.nbytes, KEPT

    def unpack(packed):
        shape, dtype, nbytes, kept = packed
        return BACK

    def saved(x):
        file = io.BytesIO()
        torch.save(x.clone(), file)
        return file

    def made_by_thread(x):
        made = []
        thread = threading.Thread(target=lambda: made.append(x.clone()))
        thread.start()
        thread.join()
        return made[0]

    def made_without_modes(x):
        from torch.utils._python_dispatch import _disable_current_modes
        with _disable_current_modes():
            return x.clone()

    def mapped(x, numbers):
        place = mmap.mmap(-1, x.nbytes)
        place[:] = numbers.tobytes()
        return place

    def allocated(x, numbers):
        system = ctypes.CDLL(None)
        system.malloc.restype = ctypes.c_void_p
        place = system.malloc(ctypes.c_size_t(x.nbytes))
        ctypes.memmove(place, numbers.tobytes(), x.nbytes)
        return place

    def shared(x, numbers):
        place = shared_memory.SharedMemory(create=True, size=x.nbytes)
        place.buf[: x.nbytes] = numbers.tobytes()
        return place

    def written(numbers):
        numbers.tofile("/tmp/kept")
        return "/tmp/kept"

    def saved_as_file(x):
        torch.save(x.clone(), "/tmp/kept.pt")
        return "/tmp/kept.pt"

    def in_a_table(numbers):
        table = sqlite3.connect(":memory:")
        table.execute("create table kept (numbers blob)")
        table.execute("insert into kept values (?)", (numbers.tobytes(),))
        return table

    return pack, unpack
"""
OF_LIST = "torch.tensor(kept, dtype=dtype).view(shape)"
OF_BYTES = "torch.frombuffer(bytearray({}), dtype=dtype).view(shape)"
PLACES = {
    "a list": ("x.tolist()", OF_LIST),
    "short lists": (
        "[x.flatten()[n : n + 16].tolist() for n in range(0, x.numel(), 16)]",
        "torch.tensor(sum(kept, []), dtype=dtype).view(shape)",
    ),
    "a tuple": ("tuple(x.flatten().tolist())", OF_LIST),
    "bytes": ("numbers.tobytes()", OF_BYTES.format("kept")),
    "a bytearray": ("bytearray(numbers.tobytes())", "torch.frombuffer(kept, dtype=dtype).view(shape)"),
    "text": ("numbers.tobytes().hex()", OF_BYTES.format("bytes.fromhex(kept)")),
    "an array": ("array.array('d', x.flatten().tolist())", "torch.tensor(list(kept), dtype=dtype).view(shape)"),
    "NumPy": ("numbers.copy()", "torch.from_numpy(kept)"),
    "ctypes": ("(ctypes.c_char * x.nbytes).from_buffer_copy(numbers.tobytes())", OF_BYTES.format("kept.raw")),
    "a file in memory": ("saved(x)", "torch.load(io.BytesIO(kept.getvalue()))"),
    "compiled code": ("compile(repr(x.tolist()), 'kept', 'eval')", "torch.tensor(eval(kept), dtype=dtype)"),
    "a sparse tensor": ("x.to_sparse()", "kept.to_dense()"),
    "a compressed sparse tensor": ("x.view(1, -1).to_sparse_csr()", "kept.to_dense().view(shape)"),
    "a tensor of another thread": ("made_by_thread(x)", "kept.clone()"),
    "a tensor that nobody saw": ("made_without_modes(x)", "kept.clone()"),
    "a file": ("written(numbers)", OF_BYTES.format("open(kept, 'rb').read()")),
    "a file of torch's": ("saved_as_file(x)", "torch.load(kept)"),
    "mapped memory": ("mapped(x, numbers)", OF_BYTES.format("kept[:]")),
    "shared memory": ("shared(x, numbers)", OF_BYTES.format("kept.buf[:nbytes]")),
    "a C library": ("allocated(x, numbers)", OF_BYTES.format("ctypes.string_at(kept, nbytes)")),
    "a data base": (
        "in_a_table(numbers)",
        OF_BYTES.format("kept.execute('select numbers from kept').fetchone()[0]"),
    ),
    "a list, and no counting": ("(tracemalloc.stop(), x.tolist())[1]", OF_LIST),
    "a list, and the count cleared": ("(x.tolist(), tracemalloc.clear_traces())[0]", OF_LIST),
}


def every_sixth(cases):
    """The others: make thorough. tests/kit/test_outside_tensors.py has them all, without the sandbox."""
    marks = [[] if number % 6 == 0 else [pytest.mark.thorough] for number in range(len(cases))]
    return [pytest.param(*case, id=name, marks=mark) for (name, case), mark in zip(cases.items(), marks, strict=True)]


@pytest.mark.parametrize(("kept", "back"), every_sixth(PLACES))
def test_numbers_that_are_kept_outside_of_tensors_earn_nothing_for_memory(kept, back):
    heads = {"pieces-over": PIECES.replace("KEPT", kept).replace("BACK", back)}
    said = judged("10_activation_checkpointing", heads, ["pieces-over-values", "pieces-over-memory"])
    assert points(said)["pieces-over-values"] > 0, said.verdicts
    assert points(said)["pieces-over-memory"] == 0


PREFETCHED = """
def prefetched_forward(x, shards, rank, world_size):
    dim, weights = x.shape[1], []
    for shard in shards:
        whole = shard.new_empty(world_size * len(shard))
        dist.all_gather_single(whole, shard)
        weights.append(KEPT)
        del whole
    for kept in weights:
        x = layer(x, torch.tensor(kept, dtype=x.dtype)[: dim * dim].view(dim, dim))
    return x
"""


@pytest.mark.parametrize("kept", ["whole.tolist()", "whole.numpy().copy()"])
def test_weights_that_are_all_kept_outside_of_tensors_earn_nothing_for_memory(kept):
    heads = {"prefetched-forward": PREFETCHED.replace("KEPT", kept)}
    said = judged("07_zero_fsdp", heads, ["prefetched-forward-values", "prefetched-forward-memory"])
    assert points(said) == {"prefetched-forward-values": 2, "prefetched-forward-memory": 0}


KEEPS = """
class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        ctx.kept = KEPT
        return h.view_as(h)

    @staticmethod
    def backward(ctx, grad):
        return grad
"""


@pytest.mark.parametrize("kept", ["h.clone()", "h.tolist()", "h.detach().numpy().copy()"])
def test_activations_that_autograd_does_not_know_of_earn_nothing_for_memory(kept):
    right = as_student(lesson("08_tensor_parallelism").exercises["sequence-parallel-mlp"].source)
    changed = right.replace("h = gather(h_local)", "h = Keeps.apply(gather(h_local))")
    assert changed != right
    heads = {"sequence-parallel-mlp": KEEPS.replace("KEPT", kept) + changed}
    checks = ["sequence-parallel-mlp-values", "sequence-parallel-mlp-memory"]
    said = points(judged("08_tensor_parallelism", heads, checks))
    assert said["sequence-parallel-mlp-values"] > 0 and said["sequence-parallel-mlp-memory"] == 0


RIGHT = {
    "04_cost_models": ["sharded-state"],
    "07_zero_fsdp": ["flat-shard", "zero-1", "zero-2", "zero-3", "prefetched-forward"],
    "08_tensor_parallelism": ["shard-of-weight", "sequence-parallel-mlp"],
    "09_pipeline_parallelism": ["one-f-one-b", "run-schedule", "interleaved"],
    "10_activation_checkpointing": ["checkpoint", "forward-in-segments", "pieces-over"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_earn_everything(name):
    said = judged(name, None, [f"{exercise}-memory" for exercise in RIGHT[name]])
    assert [verdict.said for verdict in said.verdicts if verdict.kind != "passed"] == []
