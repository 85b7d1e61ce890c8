"""Results on their way to the notebook: values arrive on the CPU, or an error names the rank, type and place."""

import pickle
import resource
import signal
import tempfile
import threading
import warnings

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from utils import RankFailed, simulate, spawn
from utils.worlds.common.result import CannotReturn, pickle_result


def there_and_back(value):
    return pickle.loads(pickle_result(value)).value


class Tagged(torch.Tensor):
    """A tensor class of the student's own."""


def quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop these
        return torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.quint8)


base = torch.arange(12.0).reshape(3, 4)
TENSORS = {
    "scalar": torch.tensor(3),
    "empty": torch.empty(2, 0, 3),
    "transposed": base.t(),
    "every second": base[:, ::2],
    "one of a column": torch.arange(6.0)[::3][:1],  # contiguous, with a stride of 3
    "expanded": torch.ones(3, 1).expand(3, 1000),
    "conjugate": torch.complex(base, -base).conj(),
    "negative": torch.complex(base, -base).conj().imag,
    "graph": (base.clone().requires_grad_() * 2).sum(),
    **{str(dtype): base.to(dtype) for dtype in (torch.bool, torch.int8, torch.bfloat16, torch.float16, torch.float64)},
    "float8": base.to(torch.float8_e4m3fn),
    "uint32": base.to(torch.uint32),
    "sparse": torch.eye(3).to_sparse(),
    "compressed": torch.eye(3).to_sparse_csr(),
    "quantised": quantised(),
}


@pytest.mark.parametrize(
    "of", [torch.clone, lambda x: x.clone()[1:], torch.nn.Parameter], ids=["all", "view", "weight"]
)
def test_a_tensor_whose_memory_was_freed_arrives_without_values(of):
    freed = of(base.clone())
    freed.untyped_storage().resize_(4)
    arrived = there_and_back([freed])[0]
    assert (arrived.is_meta, arrived.dtype, arrived.shape) == (True, freed.dtype, freed.shape)
    assert type(arrived) is type(freed)


@pytest.mark.parametrize("name", TENSORS)
def test_every_kind_of_tensor_arrives_by_its_values(name):
    sent = TENSORS[name]
    arrived = there_and_back({"at": [sent]})["at"][0]
    assert type(arrived) is torch.Tensor and not arrived.requires_grad
    assert (arrived.dtype, arrived.shape, arrived.layout) == (sent.dtype, sent.shape, sent.layout)
    as_list = [x.dequantize() if x.is_quantized else x.to_dense() for x in (arrived, sent)]
    assert as_list[0].to(torch.complex128).tolist() == as_list[1].detach().to(torch.complex128).tolist()


def test_nested_tensors_arrive():
    for layout in (torch.strided, torch.jagged):
        sent = torch.nested.nested_tensor([torch.ones(2), torch.arange(3.0)], layout=layout)
        assert [x.tolist() for x in there_and_back(sent).unbind()] == [[1, 1], [0, 1, 2]]


def test_views_are_cut_out_of_their_storage():
    storage = torch.zeros(100_000)
    weight = torch.nn.Parameter(storage[:4])
    assert len(pickle_result([storage[:2], storage[5:7], weight])) < 2000
    first, second, _ = there_and_back([storage[:2], storage[:2], weight])
    first += 1
    assert second.tolist() == [0, 0]  # they shared memory on the rank; here each has its own


def test_a_tensor_that_is_returned_twice_stays_one_tensor():
    weight = torch.nn.Parameter(torch.ones(2))
    first, second = there_and_back([weight, weight])
    assert first is second and isinstance(first, torch.nn.Parameter) and first.requires_grad


def test_a_tensor_subclass_keeps_its_class_and_attributes():
    tagged = torch.arange(6.0).as_subclass(Tagged)[1:3]
    tagged.note = "labels"
    arrived = there_and_back(tagged)
    assert type(arrived) is Tagged and arrived.note == "labels" and arrived.tolist() == [1, 2]
    assert arrived.untyped_storage().nbytes() == 8


def test_a_module_arrives_with_its_values():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    model(torch.ones(4, 2)).sum().backward()
    arrived = there_and_back(model)
    for (name, sent), (same_name, value) in zip(model.state_dict().items(), arrived.state_dict().items(), strict=True):
        assert name == same_name and torch.equal(sent, value)


def test_other_values_arrive(capsys):
    class Point:
        x = 1

        def double(self):
            return 2 * self.x

    def program(rank, world_size):
        point = Point()
        point.x = rank + 5
        return None, ValueError("kept", 3), lambda y: y + point.double(), point, numpy.float32(2), float("inf")

    for rank, (nothing, error, function, point, number, infinity) in enumerate(spawn(program, 2).results):
        assert nothing is None and number == 2 and infinity == float("inf")
        assert type(error) is ValueError and error.args == ("kept", 3)
        assert function(1) == 1 + 2 * (rank + 5)
        assert isinstance(point, Point) and point.x == rank + 5  # the notebook's own class


# --- DTensors: no rank waits for another while results are sent


def sharded(rank, world_size, placements, how=lambda x: x):
    mesh = dist.init_device_mesh("cpu", (world_size,))
    x = dist.tensor.distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    return {"step": 1, "weights": [how(x.redistribute(placements=placements))]}


def test_a_shard_is_not_mistaken_for_the_whole():
    with pytest.raises(RankFailed) as caught:
        spawn(sharded, 2, [Shard(0)])
    assert str(caught.value) == (
        "ranks 0 and 1 raised CannotReturn: it returned a dict, whose ['weights'][0] is a DTensor, which can't be sent "
        "to the notebook (this rank holds only its part: S(0) over 2 ranks). Return x.full_tensor(), which every rank "
        "must call, or only this rank's part, x.to_local()."
    )
    for how in (DTensor.full_tensor, DTensor.to_local):
        results = spawn(sharded, 2, [Shard(0)], how).results
        assert results[1]["weights"][0].tolist() == list(range(8) if how is DTensor.full_tensor else range(4, 8))


@pytest.mark.parametrize("world_size, placements", [(2, [Replicate()]), (1, [Shard(0)])])
def test_a_dtensor_that_is_whole_on_its_rank_arrives(world_size, placements):
    for result in spawn(sharded, world_size, placements).results:
        assert type(result["weights"][0]) is torch.Tensor and result["weights"][0].tolist() == list(range(8))


def test_a_partial_sum_is_not_mistaken_for_the_sum():
    def program(rank, world_size):
        mesh = dist.init_device_mesh("cpu", (world_size,))
        return DTensor.from_local(torch.ones(2), mesh, [Partial()])

    with pytest.raises(RankFailed, match=r"it returned a DTensor, which can't be sent .*only its part: P"):
        spawn(program, 2)


def test_a_rank_outside_the_mesh_has_no_replica():
    def program(rank, world_size):
        mesh = dist.device_mesh.DeviceMesh("cpu", [0])
        return dist.tensor.distribute_tensor(torch.ones(2), mesh, [Replicate()]) if rank == 1 else None

    with pytest.raises(RankFailed, match="rank 1 raised CannotReturn: it returned a DTensor"):
        spawn(program, 2)


def test_the_state_of_fsdp2_is_named():
    def program(rank, world_size):
        model = dist.fsdp.fully_shard(torch.nn.Linear(2, 2))
        return model.state_dict()

    with pytest.raises(RankFailed, match=r"an OrderedDict, whose \['weight'\] is a DTensor.*full_tensor\(\)"):
        spawn(program, 2)


def test_a_functional_collective_need_not_be_waited_for():
    def program(rank, world_size):
        from torch.distributed._functional_collectives import all_reduce

        return all_reduce(torch.ones(2), "sum", dist.group.WORLD)

    for result in spawn(program, 2).results:
        assert type(result) is torch.Tensor and result.tolist() == [2, 2]


def test_a_model_in_ddp_is_not_returned_with_its_group():
    def program(rank, world_size):
        return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))

    with pytest.raises(RankFailed, match=r"Return the model inside: model\.module"):
        spawn(program, 2)


# --- what can't travel


@pytest.mark.parametrize(
    "value, words",
    [
        (threading.Lock(), "it returned a lock, which can't be sent to the notebook (cannot pickle '_thread.lock'"),
        ((x for x in [1]), "it returned a generator, which can't be sent"),
        ({"a": [0, threading.Lock()]}, "it returned a dict, whose ['a'][1] is a lock, which can't be sent"),
    ],
)
def test_a_part_that_cannot_travel_is_named(value, words):
    with pytest.raises(CannotReturn) as caught:
        pickle_result(value)
    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith("Return tensors, numbers, strings, or lists and dicts of them.")


def test_an_error_of_a_gpu_is_not_mistaken_for_one_of_pickling():
    class Broken(torch.Tensor):
        def __reduce_ex__(self, protocol):
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    with pytest.raises(torch.AcceleratorError):
        pickle_result(torch.ones(1).as_subclass(Broken))


def test_a_result_that_cannot_be_unpickled_is_one_clear_error():
    class Fussy(Exception):
        def __init__(self, code, text):
            super().__init__(text)

    with pytest.raises(RankFailed, match="rank 0 raised CannotReturn: what it returned can't be read here: TypeError"):
        spawn(lambda rank, n: Fussy(3, "no") if rank == 0 else None, 2)


def test_an_error_of_simulate_brings_along_what_the_other_ranks_returned():
    def program(rank, world_size):
        if rank == 1:
            raise ValueError("no luck")
        return rank

    with pytest.raises(RankFailed) as caught:
        simulate(program, 3)
    assert caught.value.results == [0, None, 2]


def test_no_room_for_a_result_is_one_clear_error(tmp_path, monkeypatch):
    """A limit on the size of files stands in for a full disk: writing fails half-way, with the same kind of error."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def program(rank, world_size):
        if rank == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        return torch.ones(1_000_000)

    with pytest.raises(RankFailed) as caught:
        spawn(program, 2)
    report = str(caught.value)
    assert report.startswith(f"rank 1 raised CannotReturn: it returned 4 MB, which could not be written to {tmp_path}")
    assert "set TMPDIR to a folder with room and restart the kernel" in report
    assert not list(tmp_path.iterdir())


def test_a_large_result_is_copied_once():
    """There is room for one more tensor of this size, but not for the four that torch's own way takes."""
    value = torch.zeros(25_000_000)
    limit = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as memory:
        used = int(memory.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(1.5 * value.nbytes), limit[1]))
    try:
        outcome = pickle_result(value)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert len(outcome) < value.nbytes + 1000
