"""Programs that start the process group themselves, as nearly every script does, in every world."""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from utils import RankFailed, WorldStuck, simulate, spawn
from utils.worlds.jobs import detect

virtual = partial(simulate, device="cpu")
both = pytest.mark.parametrize("world", [spawn, virtual], ids=["spawn", "simulate"])


def sum_of_ranks():
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    return x.item()


ACCEPTED = {
    "nothing": lambda rank, size: dist.init_process_group(),
    "backend": lambda rank, size: dist.init_process_group("gloo"),
    "both backends": lambda rank, size: dist.init_process_group("cpu:gloo,cuda:nccl"),
    "environment": lambda rank, size: dist.init_process_group("gloo", init_method="env://"),
    "numbers": lambda rank, size: dist.init_process_group("gloo", rank=rank, world_size=size),
    "an address": lambda rank, size: dist.init_process_group("gloo", "tcp://127.0.0.1:1", None, size, rank),
    "from the environment": lambda rank, size: dist.init_process_group(
        "gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    ),
    "a mesh": lambda rank, size: init_device_mesh("cpu", (size,)),
}


def starts_by_itself(rank, world_size, init):
    init(rank, world_size)
    total = sum_of_ranks()
    dist.destroy_process_group()
    return total, dist.is_initialized()


@both
def test_a_program_may_start_the_group_that_is_there(world):
    for init in ACCEPTED.values():
        assert world(starts_by_itself, 3, init).results == [(3.0, False)] * 3


def wants(rank, world_size, change, asked):
    os.environ.update(change)
    dist.init_process_group(**asked)


@both
@pytest.mark.parametrize(
    "change, asked, words",
    [
        ({}, {"rank": 0}, r"rank 1 raised ValueError.*with rank=0, and this is rank 1 of 2\. Pass on the rank and"),
        ({}, {"world_size": 8}, r"with world_size=8, and this is rank 0 of 2"),
        ({"WORLD_SIZE": "1"}, {}, r"the program has set WORLD_SIZE to '1', and this is rank 0 of 2\. Leave"),
        ({}, {"backend": "mpi"}, r'init_process_group\("mpi"\)'),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(world, change, asked, words):
    with pytest.raises(RankFailed, match=words):
        world(wants, 2, change, asked)


def test_nccl_without_gpus_is_explained_and_a_virtual_network_takes_it():
    with pytest.raises(
        RankFailed, match=r"run on the CPU, with Gloo\. Leave the backend out, and take the device from"
    ):
        spawn(wants, 2, {}, {"backend": "nccl"}, backend="gloo")
    simulate(wants, 2, {}, {"backend": "nccl"})


def starts_twice(rank, world_size):
    dist.init_process_group("gloo")
    dist.init_process_group("gloo")


@both
def test_a_second_call_is_torchs_own_error(world):
    with pytest.raises(RankFailed, match="trying to initialize the default process group twice"):
        world(starts_twice, 2)


def starts_again(rank, world_size, folder):
    """The world's group; two by the environment; the ranks the other way round; halves; one by a mesh."""
    sums = [sum_of_ranks()]
    x = torch.tensor([float(rank)])
    for _ in range(2):
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        sums.append(sum_of_ranks())
    dist.destroy_process_group()
    dist.init_process_group("gloo", f"file://{folder}/all", rank=world_size - 1 - rank, world_size=world_size)
    dist.broadcast(x, src=0)
    pair = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.all_reduce(x, group=pair)
    sums += [x.item(), dist.get_rank()]
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/half-{rank % 2}", world_size // 2)
    dist.init_process_group("gloo", store=store, rank=rank // 2, world_size=world_size // 2)
    y = torch.tensor([float(rank)])
    dist.all_reduce(y)
    sums += [y.item(), dist.get_world_size()]
    dist.destroy_process_group()
    init_device_mesh("cpu", (world_size,))
    return [*sums, sum_of_ranks()]


@both
def test_a_group_can_be_destroyed_and_made_anew(world, tmp_path):
    results = world(starts_again, 4, str(tmp_path)).results
    assert results == [
        [6.0, 6.0, 6.0, *first, number, *half, 2, 6.0]
        for first, number, half in [((3.0,), 3, (2.0,)), ((3.0,), 2, (4.0,)), ((6.0,), 1, (2.0,)), ((6.0,), 0, (4.0,))]
    ]


def meets_at_a_port(rank, world_size):
    """What programs do that make their store themselves."""
    dist.destroy_process_group()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size, is_master=rank == 0)
    store.set(f"from {rank}", str(rank))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    total = sum_of_ranks()
    return total, [store.get(f"from {other}") for other in range(world_size)], store.add("counted", 1) > 0


@both
def test_a_program_may_make_its_store_itself(world):
    assert world(meets_at_a_port, 3).results == [(3.0, [b"0", b"1", b"2"], True)] * 3


def reads_variables(rank, world_size, names):
    return {name: os.environ[name] for name in names}


@both
def test_ranks_find_torchruns_variables(world, monkeypatch):
    names = [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
    ]
    for rank, found in enumerate(world(reads_variables, 3, names).results):
        assert [found[name] for name in names[:4]] == [str(rank), str(rank), "3", "3"]
        assert found["GROUP_RANK"] == "0" and found["ROLE_NAME"] == "default"
        assert 0 < int(found["MASTER_PORT"]) < 65536
    monkeypatch.setenv("MASTER_PORT", "1234")  # a program that says where it wants to meet
    assert world(reads_variables, 1, ["MASTER_PORT"]).results == [{"MASTER_PORT": "1234"}]


def asks_who_it_is(rank, world_size):
    command = "import sys; sys.path[:0] = sys.argv[1:]; from utils.worlds.jobs import detect; print(detect.launcher())"
    child = subprocess.run([sys.executable, "-c", command, *sys.path], capture_output=True, text=True, check=True)
    return detect.launcher(), child.stdout.strip()


@both
def test_a_rank_is_not_a_job_of_torchruns_nor_is_what_it_starts(world):
    assert world(asks_who_it_is, 1).results == [(None, "None")]


def waits_for_one_who_does_not_come(rank, world_size):
    dist.destroy_process_group()
    if rank:
        dist.init_process_group("gloo")


def test_a_virtual_world_says_who_does_not_come():
    with pytest.raises(WorldStuck, match=r"(?s)rank 1  waits .*init_process_group.*Rank 0 never made the group"):
        simulate(waits_for_one_who_does_not_come, 2)


def meets_alone(rank, world_size):
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=rank, world_size=world_size)


def test_a_store_that_others_can_not_see_is_refused():
    with pytest.raises(RankFailed, match=r"the others can't find its HashStore\. Ranks meet at a FileStore"):
        simulate(meets_alone, 2)


def calls_rpc(rank, world_size):
    import torch.distributed.rpc as rpc

    rpc.init_rpc(f"worker {rank}", rank=rank, world_size=world_size)


@both
def test_rpc_is_refused_with_a_sentence(world):
    with pytest.raises(RankFailed, match=r"torch\.distributed\.rpc does not work inside a rank .*send, recv"):
        world(calls_rpc, 2)


NEED_CUDA = {
    "to": lambda: torch.ones(1).to("cuda"),
    "cuda": lambda: torch.nn.Linear(1, 1).cuda(),
    "device": lambda: torch.ones(1, device="cuda:0"),
    "set_device": lambda: torch.cuda.set_device(0),
    "stream": lambda: torch.cuda.Stream(),
}


def uses_cuda(rank, world_size, need):
    need()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("need", NEED_CUDA.values(), ids=NEED_CUDA)
def test_cuda_where_there_is_none_gets_a_sentence(need):
    with pytest.raises(RankFailed, match=r"(?s)This rank has no GPU.*get_device\(\)"):
        spawn(uses_cuda, 1, need)


@pytest.mark.parametrize("need", NEED_CUDA.values(), ids=NEED_CUDA)
def test_a_virtual_rank_has_one(need):
    simulate(uses_cuda, 1, need)


def members_only(rank, world_size):
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))
    dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1, 2]))


@both
def test_a_group_made_by_its_members_only_is_explained(world):
    with pytest.raises(WorldStuck, match=r"Rank 2 skipped the group of ranks 0 and 1.*Every rank must call new_group"):
        world(members_only, 3)
