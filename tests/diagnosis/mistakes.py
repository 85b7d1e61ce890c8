"""Mistakes in distributed programs, each with what must be reported about it: the one table of the tests.

    @mistake(*words)                     a program as people write it and ask about in public, written afresh; its
                                         docstring names the source. The report must contain these words
    @word_for_word(ranks, says, error)   the smallest program that makes a mistake; the report must end with `says`

Columns: `worlds`, in which it must be reported; `error`, of what class (`virtually`, in simulate); `documented`, the
section of docs/debugging.md that shows such a program.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import tempfile
import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from utils import RankCrashed, RankError, RankFailed, RankTimeout, SilentMistake, WorldStuck

BOTH, REAL = ("spawn", "simulate"), ("spawn",)


@dataclass(frozen=True)
class Mistake:
    program: object
    words: tuple[str, ...]
    says: str
    world_size: int
    worlds: tuple[str, ...]
    errors: dict[str, type[RankError]]  # {world: class}
    documented: str

    def __str__(self) -> str:
        return self.program.__name__


MISTAKES: list[Mistake] = []


def mistake(*words, says="", world_size=2, worlds=BOTH, error=WorldStuck, virtually=None, documented=""):
    def put(program):
        errors = {"spawn": error, "simulate": virtually or error}
        MISTAKES.append(Mistake(program, words, says, world_size, worlds, errors, documented))
        return program

    return put


def word_for_word(world_size, says, error=WorldStuck, worlds=REAL, **columns):
    return mistake(says=says, world_size=world_size, worlds=worlds, error=error, **columns)


def silent(world_size, says, **columns):
    return word_for_word(world_size, says, SilentMistake, **columns)


MORE_BATCHES = "after fewer of them: give all ranks the same number of batches."
BACKWARD = (
    "The backward pass of a DDP model all-reduces the gradients, so every rank must run it the same number of times."
)
BUFFERS = "To evaluate on one rank, call model.module(x), which communicates nothing."


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def x() -> torch.Tensor:
    return torch.ones(3, 4)


# --- DDP: not equally many backward passes


@mistake(
    "rank 1  waits in all_reduce",
    "loss.backward()",
    BACKWARD,
    "Rank 0 has finished",
    MORE_BATCHES,
    documented="1. One rank has more batches",
)
def one_batch_more(rank, world_size):
    """The data do not divide evenly. https://github.com/pytorch/pytorch/issues/33148"""
    net = DDP(model())
    for _ in range(2 + rank):
        loss = net(x()).sum()
        loss.backward()


@mistake("ranks 0 and 1 can't move any more", BACKWARD, "Rank 2 has finished", MORE_BATCHES, world_size=3)
def shards_rounded_up(rank, world_size):
    """Each rank takes ceil(n / world_size) samples, so the last gets fewer. https://github.com/k2-fsa/snowfall/issues/152"""
    net, samples = DDP(model()), list(range(10))
    per_rank = -(-len(samples) // world_size)
    for _ in samples[rank * per_rank : (rank + 1) * per_rank]:
        net(x()).sum().backward()


@mistake(
    "rank 0  waits in all_reduce",
    "loss.backward()",
    BACKWARD,
    "Rank 1 has finished",
    "No rank may skip a batch",
    documented="2. One rank skips a batch",
)
def a_batch_with_nan_is_skipped(rank, world_size):
    """`continue` on the rank whose loss is NaN. https://github.com/NVIDIA-NeMo/Automodel/pull/2468"""
    net = DDP(model())
    for step in range(3):
        loss = net(x()).sum()
        if step == 1 and rank == 1:  # loss.isnan()
            continue
        loss.backward()


@mistake(
    "rank 1  waits in all_reduce",
    BACKWARD,
    "No rank may skip a batch or stop early on its own: all_reduce the decision first",
)
def early_stopping_on_one_rank(rank, world_size):
    """Each rank looks at its own validation loss. https://github.com/Lightning-AI/pytorch-lightning/issues/379"""
    net, patience = DDP(model()), 2 + rank
    for epoch in range(5):
        net(x()).sum().backward()
        if epoch == patience:
            break


@mistake("rank 0 called barrier, rank 1 called all_reduce", "loss.backward()", BACKWARD)
def one_batch_more_before_a_barrier(rank, world_size):
    """Ranks meet at the end of each epoch. https://github.com/Lightning-AI/pytorch-lightning/issues/9851"""
    net = DDP(model())
    for _ in range(2 + rank):
        loss = net(x()).sum()
        loss.backward()
    dist.barrier()


@mistake("rank 1  waits in all_reduce", "loss.backward()", BACKWARD, "Rank 0 has finished")
def a_loss_without_the_model(rank, world_size):
    """A batch without targets: the loss does not depend on the model. https://github.com/lyuwenyu/RT-DETR/pull/684"""
    net = DDP(model())
    for step in range(2):
        outputs = net(x())
        loss = torch.zeros((), requires_grad=True) if rank == 0 and step == 1 else outputs.sum()
        loss.backward()


@mistake("rank 0  waits in all_reduce", BACKWARD, "Rank 1 has finished without it")
def gradients_kept_back_on_one_rank(rank, world_size):
    """Accumulation with no_sync, whose last step differs. https://github.com/pytorch/pytorch/issues/90171"""
    net = DDP(model())
    if rank == 0:
        net(x()).sum().backward()
    else:
        with net.no_sync():
            net(x()).sum().backward()


@mistake(
    "rank 1  waits in broadcast",
    "net(x()).sum()",
    "In its second step, a DDP model agrees with all ranks",
)
def a_single_batch_on_one_rank(rank, world_size):
    """A data set smaller than the batches of all ranks. https://github.com/GMISWE/tinker-cloud/pull/30"""
    net = DDP(model())
    for _ in range(1 + rank):
        net(x()).sum().backward()


@mistake("rank 1  waits in all_reduce", BACKWARD, MORE_BATCHES, worlds=REAL)
def one_batch_more_with_a_communication_hook(rank, world_size):
    """Gradients are compressed by a hook. https://github.com/pytorch/pytorch/issues/33148"""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    net = DDP(model())
    net.register_comm_hook(None, fp16_compress_hook)
    for _ in range(2 + rank):
        net(x()).sum().backward()


@mistake("rank 1  waits in all_reduce", BACKWARD, MORE_BATCHES)
def one_batch_more_with_a_static_graph(rank, world_size):
    """The first reduction of a static graph comes last of all. https://github.com/pytorch/pytorch/issues/33148"""
    net = DDP(model(), static_graph=True)
    for _ in range(1 + rank):
        net(x()).sum().backward()


@mistake("rank 0  waits in all_reduce", BACKWARD, "Rank 1 has finished", MORE_BATCHES)
def layers_dropped_at_random(rank, world_size):
    """Unused parameters are looked for, but one rank has no step left. https://github.com/catalyst-team/catalyst/issues/1110"""
    net = DDP(model(), find_unused_parameters=True)
    for _ in range(3 - rank):
        net(x()).sum().backward()


@mistake(
    "Expected to have finished reduction in the prior iteration",
    "(Rank 0 was waiting in all_reduce.)",
    error=RankFailed,
    worlds=REAL,
)
def a_layer_dropped_on_one_rank(rank, world_size):
    """Stochastic depth, each rank with its own dice. https://github.com/facebookresearch/fairseq/issues/3599"""

    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, inputs):
            return self.first(inputs) if rank else self.second(self.first(inputs))

    net = DDP(Dropping())
    for _ in range(2):
        net(x()).sum().backward()


# --- DDP: a forward pass, or the wrapping, on one rank


@mistake(
    "rank 0 called broadcast, rank 1 called barrier",
    "The broadcast is inside `if rank == 0`",
    BUFFERS,
    documented="3. Validation on rank 0",
)
def validation_on_rank_0(rank, world_size):
    """Validation through the DDP model, then a barrier. https://github.com/pytorch/pytorch/issues/54059"""
    net = DDP(with_batch_norm())
    net(x()).sum().backward()
    if rank == 0:
        with torch.no_grad():
            net(x())
    dist.barrier()


@mistake(
    "rank 0  waits in broadcast", "net(x())", BUFFERS, "Rank 1 has finished without it: take it out of the `if rank"
)
def validation_on_rank_0_at_the_end(rank, world_size):
    """The same as the last thing that happens. https://github.com/pytorch/pytorch/issues/53979"""
    net = DDP(with_batch_norm())
    if rank == 0:
        net(x())


@mistake("rank 1  waits in broadcast", BUFFERS, "Rank 0 has finished", MORE_BATCHES)
def validation_sets_of_different_length(rank, world_size):
    """Batch norm, and one validation batch more on one rank. https://github.com/pytorch/pytorch/issues/20611"""
    net = DDP(with_batch_norm())
    for _ in range(2 + rank):
        net(x()).sum().backward()


@mistake("rank 0 called all_gather, rank 1 called barrier", "so every rank must wrap its model", worlds=REAL)
def wrapped_on_one_rank(rank, world_size):
    """`DDP(model)` inside an `if`. https://github.com/pytorch/pytorch/issues/54232"""
    net = model()
    if rank == 0:
        net = DDP(net)
    dist.barrier()


# --- FSDP, DTensor, sharded optimizers, checkpoints


@mistake("rank 1  waits in all_gather", "An FSDP model all-gathers its parameters when it is called", MORE_BATCHES)
def validation_to_exhaustion_with_fsdp(rank, world_size):
    """Packed samples make uneven batches. https://github.com/PrimeIntellect-ai/prime-rl/issues/2515"""
    from torch.distributed.fsdp import fully_shard

    net = model()
    for layer in (net[0], net[2], net):
        fully_shard(layer)
    for _ in range(1 + rank):
        net(x())


@mistake(
    "rank 0  waits in all_gather",
    "all ranks must call it",
    "take it out of the `if rank == 0`",
    worlds=REAL,
    documented="4. Saving a sharded model on rank 0",
)
def full_state_dict_on_rank_0(rank, world_size):
    """Only rank 0 saves, but gathering takes all. https://github.com/pytorch/pytorch/issues/122903"""
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    net(x()).sum().backward()
    if rank == 0:
        net.state_dict()


@mistake("rank 0  waits in reduce_scatter", "reduce-scatters gradients", "Rank 1 has finished")
def a_step_skipped_with_fsdp(rank, world_size):
    """A spike of the loss is skipped on one rank. https://github.com/ecmwf/WeatherGenerator/pull/2718"""
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(nn.Linear(4, 4))
    loss = net(x()).sum()
    if rank == 0:
        loss.backward()


@mistake("full_tensor() always does: all ranks of its mesh must call it", "take it out of the `if rank == 0`")
def gradient_norm_logged_on_rank_0(rank, world_size):
    """Sharded gradients are DTensors. https://github.com/meta-pytorch/torchtune/pull/2248"""
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(nn.Linear(4, 4))
    net(x()).sum().backward()
    if rank == 0:
        net.weight.grad.full_tensor().norm()


@mistake("rank 0  waits in broadcast", "consolidate_state_dict its state: all ranks must call them", worlds=REAL)
def optimizer_state_consolidated_on_rank_0(rank, world_size):
    """https://github.com/pytorch/ignite/issues/2623"""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = DDP(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    net(x()).sum().backward()
    optimizer.step()
    if rank == 0:
        optimizer.consolidate_state_dict()


@mistake("torch.distributed.checkpoint saves and loads with all ranks together", "`if rank == 0`", worlds=REAL)
def sharded_checkpoint_saved_on_rank_0(rank, world_size):
    """https://github.com/deepspeedai/DeepSpeed/pull/801"""
    import torch.distributed.checkpoint as checkpoint

    if rank == 0:
        checkpoint.save(model().state_dict(), checkpoint_id=tempfile.mkdtemp())


# --- collectives of one's own


@mistake(
    "rank 0  waits in barrier",
    "Rank 1 has finished after 1 call of this barrier; rank 0 is in its 2nd",
    "more rounds on rank 0",
)
def a_barrier_on_each_round(rank, world_size):
    """Download first on rank 0, with one barrier too many there. https://github.com/JIA-Lab-research/LongLoRA/issues/45"""
    for _ in range(2 - rank):
        dist.barrier()


@mistake(
    "rank 0 called all_gather, rank 1 called all_reduce",
    "dist.all_gather([torch.zeros(2)]",
    documented="6. Ranks that decide differently",
)
def saved_where_the_loss_is_best(rank, world_size):
    """`reduce` gives the sum to one rank, so ranks disagree on what is best. https://github.com/pytorch/pytorch/issues/77562"""

    def saved():
        dist.all_gather([torch.zeros(2)] * world_size, torch.ones(2))

    loss = torch.ones(2)
    dist.reduce(loss, dst=0)
    if rank == 0:  # loss < best
        saved()
    dist.all_reduce(loss)


@mistake(
    "rank 0  waits in all_gather",
    "take it out of the `if dist.get_rank() == 0`",
    documented="5. A collective inside `if rank == 0`",
)
def metric_computed_on_rank_0(rank, world_size):
    """A metric synchronises itself. https://github.com/Lightning-AI/torchmetrics/issues/938"""

    class Metric:
        def compute(self):
            if dist.get_rank() == 0:
                dist.all_gather([torch.zeros(1)] * world_size, torch.ones(1))

    Metric().compute()


@mistake("Rank 1 never called this all_gather_object and has finished")
def early_return_of_a_rank_without_metrics(rank, world_size):
    """A stage with nothing to report skips the gathering. https://github.com/bo-ke/llm-internal-medicine/pull/45"""
    metrics = {} if rank == 1 else {"loss": 1.0}
    if not metrics:
        return
    dist.all_gather_object([None] * world_size, metrics)


@mistake(
    "Rank 1 never called this broadcast_object_list and has finished", "take it out of the `if exists`", worlds=REAL
)
def a_file_that_one_rank_does_not_see(rank, world_size):
    """`exists()` differs on a network disk. https://github.com/KempnerInstitute/KempnerForge/issues/49"""
    exists = rank == 0
    if exists:
        dist.broadcast_object_list([{"step": 1}], src=0)


@mistake(
    "brought float32 [4], rank 1 brought float32 [3]", "all_gather needs the same shape", error=RankError, worlds=REAL
)
def gathered_tensors_of_different_length(rank, world_size):
    """Sequences of different lengths. https://github.com/pytorch/pytorch/issues/56112"""
    mine = torch.ones(4 - rank)
    dist.all_gather([torch.zeros(4 - rank) for _ in range(world_size)], mine)


@mistake("rank 1  waits in all_reduce", "Rank 0 has finished after 2 calls of this all_reduce; rank 1 is in its 3rd")
def generation_until_end_of_text(rank, world_size):
    """Each rank decodes until its own text ends. https://github.com/deepspeedai/DeepSpeed/issues/8262"""
    for token in itertools.count():
        dist.all_reduce(torch.ones(2))
        if token == 1 + rank:
            return


@mistake(
    "Rank 3 uses the whole world first, rank 2 uses the group of ranks 2 and 3 first: each waits for the other.",
    world_size=4,
)
def a_group_that_one_rank_forgets(rank, world_size):
    """The call without `group=` goes to all ranks. https://github.com/vllm-project/vllm/issues/3401"""
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    partial = torch.ones(2)
    dist.all_reduce(partial, group=None if rank == 3 else pair)
    dist.all_reduce(partial)


@mistake("Ranks 1 and 2 skipped the group of ranks 0 and 3, which they are not in", world_size=4, error=RankError)
def each_pair_makes_its_own_group(rank, world_size):
    """`new_group(mine)` instead of all groups on all ranks. https://github.com/pytorch/pytorch/issues/25390"""
    mine = [0, 3] if rank in (0, 3) else [1, 2]
    dist.barrier(group=dist.new_group(mine))


@mistake("Ranks 2 and 3 skipped the group of ranks 0 and 1", world_size=4, error=SilentMistake)
def a_group_made_by_its_members(rank, world_size):
    """It works with Gloo until the next group is made. https://github.com/pytorch/pytorch/pull/124268"""
    if rank < 2:
        dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1]))


# --- gradients reduced by hand


@mistake(
    "when rank 1 reduced that of 0.weight",
    "Go through the parameters in the same order on every rank",
    worlds=REAL,
    documented="10. Gradients in different order",
)
def only_gradients_that_are_there(rank, world_size):
    """`if p.grad is not None`, and a layer without gradient on one rank. https://github.com/deepspeedai/DeepSpeed/pull/291"""
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    (net if rank else net[1:])(x()).sum().backward()
    for p in net.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)


@mistake("Rank 0 reduced the gradient of", "a set has no order", worlds=REAL, error=SilentMistake)
def parameters_of_a_set(rank, world_size):
    """Parameters in an order of the rank's own. https://github.com/OpenTSLM/OpenTSLM/pull/49"""
    net = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])
    net(x() * (rank + 1)).sum().backward()
    for p in sorted(net.parameters(), key=lambda p: p.sum().item() * (-1) ** rank):  # set(net.parameters())
        dist.all_reduce(p.grad)


@mistake(
    "Rank 0 reduced the gradient of 0.weight when rank 1 reduced that of 2.bias",
    "Both ranks put several gradients into one tensor, so they must put them there in the same order",
    worlds=REAL,
    error=SilentMistake,
)
def gradients_joined_in_another_order(rank, world_size):
    """Gradients in the order in which they were ready, in one tensor. https://github.com/deepspeedai/DeepSpeed/issues/2343"""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    net(torch.rand(3, 4) * (rank + 1)).sum().backward()
    dist.all_reduce(torch.cat([p.grad.view(-1) for p in list(net.parameters())[:: -1 if rank else 1]]))


@mistake("rank 0  waits in all_reduce", "get_future().wait()", "Rank 1 never called this all_reduce", worlds=REAL)
def the_future_of_a_call(rank, world_size):
    """A wait that goes through a future. https://github.com/pytorch/pytorch/issues/33148"""
    if rank == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        work.get_future().wait()


@mistake(
    "rank 0  is idle",
    "thread.join()",
    "Rank 1 never called this all_reduce",
    worlds=REAL,
    error=RankTimeout,
)
def a_collective_in_a_thread(rank, world_size):
    """Metrics are reduced in the background. https://github.com/Lightning-AI/pytorch-lightning/issues/19604"""
    if rank == 0:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(2),))
        thread.start()
        thread.join()


# --- messages


@mistake(
    "Rank 1 waits for a message from rank 0, which has finished without sending it", documented="8. One message too few"
)
def one_microbatch_more(rank, world_size):
    """A stage expects more microbatches than it is sent. https://github.com/pytorch/pytorch/issues/75795"""
    for _ in range(2 + rank):
        if rank == 0:
            dist.send(torch.ones(2), dst=1)
        else:
            dist.recv(torch.zeros(2), src=0)


@mistake(
    "rank 1 is in send to 2",
    "its message to be received by rank 2, which is in barrier and could receive it only afterwards, if at all",
    world_size=3,
)
def a_receive_missing_from_a_batch(rank, world_size):
    """Each stage makes its own list of messages. https://github.com/pytorch/PiPPy/issues/969"""
    messages = [dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % world_size)]
    if rank != 2:
        messages.append(dist.P2POp(dist.irecv, torch.zeros(2), (rank - 1) % world_size))
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    dist.barrier()


@mistake("rank 1 is in recv from 0", "A broadcast is not received with recv: every rank calls broadcast itself.")
def a_broadcast_received_with_recv(rank, world_size):
    """As if a broadcast were many sends. http://www.nsm.buffalo.edu/courses/mth667/cor501f03/lecture7_files/slide0015.htm"""
    done = torch.zeros(1)
    if rank == 0:
        dist.broadcast(done, src=0)
    else:
        dist.recv(done, src=0)


# --- errors, ends, and parts that have nothing to do


@mistake("rank 0 called all_reduce, rank 1 called barrier")
def an_error_caught_on_one_rank(rank, world_size):
    """The rank that ran out of memory goes on with the next batch. https://github.com/tier4/Diffusion-Planner/pull/336"""
    for step in range(3):
        try:
            if rank == 1 and step == 1:
                raise RuntimeError("out of memory")
            dist.all_reduce(torch.ones(2))
        except RuntimeError:
            continue
    dist.barrier()


@mistake("Rank 1 never called this barrier and has finished")
def the_group_destroyed_on_one_rank(rank, world_size):
    """Rank 0 still has something to do after training. https://github.com/alan-turing-institute/autocast/issues/381"""
    net = DDP(model())
    net(x()).sum().backward()
    if rank != 0:
        dist.destroy_process_group()
        return
    dist.barrier()


@mistake("rank 0 called barrier, rank 1 called all_to_all")
def experts_without_tokens(rank, world_size):
    """A rank whose experts get no token skips the exchange. https://github.com/NVIDIA-NeMo/Automodel/pull/935"""
    tokens = torch.ones(2 if rank else 0, 4)
    if len(tokens):
        dist.all_to_all_single(torch.zeros(2, 4), tokens)
    dist.barrier()


@mistake("rank 0  waits in send to 1", "has 4 microbatches on rank 0 and 2 microbatches on rank 1")
def stages_with_different_microbatches(rank, world_size):
    """https://github.com/pytorch/pytorch/issues/172668"""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(nn.Linear(4, 4), rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2 if rank else 4)
    schedule.step(*[torch.ones(8, 4)] * (rank == 0))


@mistake("brought float32 [9], rank 1 brought float32 [29]", "all_gather needs the same shape", error=RankError)
def layers_sharded_differently(rank, world_size):
    """A wrapping policy that depends on the rank. https://github.com/pytorch/pytorch/pull/75902"""
    from torch.distributed.fsdp import fully_shard

    net = model()
    if rank == 0:
        fully_shard(net[0])
    fully_shard(net)(x())


@mistake("full_tensor() always does", "An FSDP model all-gathers its parameters when it is called", error=RankError)
def a_weight_logged_on_rank_0(rank, world_size):
    """Its gather meets that of the next forward pass. https://github.com/pytorch/pytorch/issues/73383"""
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(model())
    if rank == 0:
        print(net[0].weight.full_tensor().norm())
    net(x())


@mistake("Rank 1 never called this barrier and has finished", "take it out of the `if rank == 0`")
def a_monitored_barrier_on_rank_0(rank, world_size):
    """https://github.com/pytorch/pytorch/issues/54879"""
    if rank == 0:
        dist.monitored_barrier()


@mistake(
    "rank 0 called barrier, rank 1 called all_gather",
    "The all_gather is inside `if rank == 1`",
    "saves and loads with",
    worlds=REAL,
)
def a_checkpoint_loaded_on_one_rank(rank, world_size):
    """The rank that was restarted loads alone. https://github.com/deepspeedai/DeepSpeed/pull/801"""
    import torch.distributed.checkpoint as checkpoint

    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    state = model().state_dict()
    checkpoint.save(state, checkpoint_id=folder[0])
    if rank == 1:
        checkpoint.load(state, checkpoint_id=folder[0])
    dist.barrier()


@mistake(
    "rank 0  is idle",
    "store.wait",
    "What is rank 0 waiting for?",
    worlds=REAL,
    error=RankTimeout,
    documented="What is not a deadlock",
)
def a_key_that_nobody_sets(rank, world_size):
    """A rank waits for the others' sign through the store. https://github.com/pytorch/pytorch/pull/53773"""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["ready"])
    dist.barrier()


# --- word for word: collectives

FLOAT32 = " A new tensor, such as torch.zeros(3), is float32 unless you say otherwise."


@word_for_word(
    3,
    "rank 0 called all_reduce, rank 1 called broadcast, rank 2 called broadcast. "
    "Every rank of a group must call the same collectives in the same order. The all_reduce is inside `if rank == 0`.",
)
def another_order(rank, world_size):
    x, y = torch.ones(2), torch.ones(2)
    if rank == 0:
        dist.all_reduce(x)
        dist.broadcast(y, src=1)
    else:
        dist.broadcast(y, src=1)
        dist.all_reduce(x)


@word_for_word(
    2,
    "rank 0 called all_reduce, rank 1 called barrier. Every rank of a group must call the same collectives in the "
    "same order. The all_reduce is inside `if rank == 0`.",
)
def one_rank_makes_a_call_of_its_own(rank, world_size):
    x = torch.ones(2)
    if rank == 0:
        x += 1
        dist.all_reduce(x)
    dist.barrier()


@word_for_word(2, "rank 0 named root 0, rank 1 named root 1. All ranks must name the same root.", worlds=BOTH)
def another_root(rank, world_size):
    """https://github.com/BAAI-Humanoid/MOSAIC/issues/5"""
    dist.broadcast(torch.ones(2), src=rank)


@word_for_word(
    3,
    "rank 0 brought float32 [5], rank 1 brought float32 [5], rank 2 brought float32 [2]. "
    "all_reduce needs the same shape and dtype on every rank.",
)
def another_shape(rank, world_size):
    dist.all_reduce(torch.ones(2 if rank == 2 else 5))


@word_for_word(
    2,
    "rank 0 brought float64 [1000], rank 1 brought float32 [1000]. "
    f"all_reduce needs the same shape and dtype on every rank.{FLOAT32}",
    RankCrashed,
)
def another_dtype(rank, world_size):
    dist.all_reduce(torch.ones(1000, dtype=torch.float32 if rank else torch.float64))


@word_for_word(
    3,
    "Ranks 1 and 2 never called this all_reduce and have finished. A collective returns only when every rank of its "
    "group has called it: take it out of the `if rank == 0`.",
    worlds=BOTH,
)
def only_rank_0(rank, world_size):
    """https://runebook.dev/en/docs/pytorch/distributed/torch.distributed.barrier"""
    x = torch.ones(2)
    if rank == 0:
        dist.all_reduce(x)


@word_for_word(
    3,
    "Rank 2 never called this barrier and has finished. A collective returns only when every rank of its "
    "group has called it: look at `if rank == 2`, which leaves before it.",
)
def left_early(rank, world_size):
    if rank == 2:
        return
    dist.barrier()


@word_for_word(
    3,
    "Ranks 0, 1 and 2 must all call all_reduce, but rank 2 is in recv from 0. "
    "Rank 2 waits for a message from rank 0, which is in all_reduce and could send it only afterwards, if at all: is a "
    "call missing, or are two in the wrong order?",
)
def skipped_one(rank, world_size):
    x = torch.ones(2)
    if rank != 2:
        pass
    else:
        dist.recv(x, src=0)
    dist.all_reduce(x)
    if rank == 0:
        dist.send(x, dst=2)


@word_for_word(3, "(Ranks 0 and 2 were waiting in barrier.)", RankFailed, documented="What is not a deadlock")
def raised(rank, world_size):
    if rank == 1:
        raise ValueError("no luck")
    dist.barrier()


@word_for_word(3, "(Ranks 0 and 2 were waiting in barrier.)", RankFailed)
def raised_and_hung_up(rank, world_size):
    """The others lose their connections before anybody has ended them."""
    if rank == 1:
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as line:
                if line.family != socket.AF_UNIX and line.getpeername():
                    line.shutdown(socket.SHUT_RDWR)
        raise ValueError("no luck")
    dist.barrier()


# --- messages


@word_for_word(
    2,
    "Rank 1 waits for a message from rank 0, which has finished without sending it. "
    "Count the sends and receives of each pair: they must match one to one, including their tags.",
    worlds=BOTH,
)
def receive_without_send(rank, world_size):
    """One half of a pipeline leaves its loop. https://github.com/exo-explore/exo/issues/1793"""
    if rank == 1:
        dist.recv(torch.ones(1), src=0)


@word_for_word(
    2,
    "Rank 0 sends a message to rank 1, which has finished without receiving it. "
    "Count the sends and receives of each pair: they must match one to one, including their tags.",
)
def send_without_receive(rank, world_size):
    if rank == 0:
        dist.send(torch.ones(1), dst=1)


@word_for_word(
    3,
    "Everyone sends first, and waits for the next: 0 → 1 → 2 → 0. "
    "Let one rank of each pair receive first, or use isend and wait after the receive.",
    worlds=BOTH,
    documented="7. Everyone sends first",
)
def everyone_sends_first(rank, world_size):
    """https://github.com/NVIDIA/nccl/issues/479"""
    x = torch.ones(1)
    dist.send(x, dst=(rank + 1) % world_size)
    dist.recv(x, src=(rank - 1) % world_size)


@word_for_word(
    2,
    "Everyone receives first, and waits for the next: 0 → 1 → 0. "
    "A message must be sent before it can arrive: let one rank send first.",
)
def everyone_receives_first(rank, world_size):
    x = torch.ones(1)
    dist.recv(x, src=1 - rank)
    dist.send(x, dst=1 - rank)


@word_for_word(
    2,
    "Rank 1 waits for a message with tag 1 from rank 0, which sends with tag 0. "
    "A send and its recv must use the same tag.",
)
def wrong_tag(rank, world_size):
    x = torch.ones(1)
    dist.send(x, dst=1, tag=rank) if rank == 0 else dist.recv(x, src=0, tag=rank)


@word_for_word(
    3,
    "Rank 2 waits for a message from rank 0, which has finished without sending it. Count the sends and receives "
    "of each pair: they must match one to one, including their tags. Rank 2 waits for rank 0, but it is rank 1 "
    "that sends to rank 2: is a src or a dst wrong?",
)
def wrong_source(rank, world_size):
    x = torch.ones(1)
    if rank == 1:
        dist.send(x, dst=2)
    if rank == 2:
        dist.recv(x, src=0)


@word_for_word(
    3,
    "No send matches a receive: nobody has sent what these ranks wait for. "
    "Rank 0 waits for rank 1, but it is rank 2 that sends to rank 0: is a src or a dst wrong?",
)
def wrong_neighbour(rank, world_size):
    x, y = torch.ones(1), torch.ones(1)
    sending = dist.isend(x, dst=(rank + 1) % world_size)
    dist.recv(y, src=(rank + 1) % world_size)
    sending.wait()


@word_for_word(
    2,
    "Rank 1 waits for a message from rank 0 on the whole world, which sends on the group of ranks 0 and 1. "
    "A send and its recv must use the same group.",
)
def wrong_group(rank, world_size):
    group = dist.new_group([0, 1])
    x = torch.ones(1)
    dist.send(x, dst=1, group=group) if rank == 0 else dist.recv(x, src=0)


@word_for_word(
    2,
    "Rank 0 sent float32 [6] to rank 1, whose recv only has room for float32 [4]. "
    "A send and its recv need the same shape and dtype.",
    RankCrashed,
)
def too_long_a_message(rank, world_size):
    dist.send(torch.ones(6), dst=1) if rank == 0 else dist.recv(torch.ones(4), src=0)


LOST = (
    "Rank {} has thrown away the handle of its {}. The message may never arrive, "
    "and everything after it gets stuck too: keep each handle, and call its wait()."
)


@word_for_word(2, LOST.format(1, "isend to 0"))
def never_waited_for_a_send(rank, world_size):
    x = torch.ones(1)
    if rank == 1:
        dist.isend(x, dst=0)
    dist.barrier()
    if rank == 0:
        dist.recv(x, src=1)
    dist.barrier()


@word_for_word(2, LOST.format(1, "irecv from 0"))
def never_waited_for_a_message(rank, world_size):
    x = torch.ones(2)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        dist.irecv(x, src=0)
        store.set("thrown away", "")  # the message is sent only now: one that is already there would be received
    else:
        store.wait(["thrown away"])
        dist.send(x, dst=1)
    dist.barrier()


@word_for_word(2, LOST.format(0, "irecv from 1"))
def messages_behind_one_that_was_never_waited_for(rank, world_size):
    x = torch.ones(2)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.irecv(torch.empty(2), src=1)
        store.set("thrown away", "")
        dist.send(x, dst=1)
    else:
        store.wait(["thrown away"])
        dist.send(x, dst=0)
        dist.recv(x, src=0)  # the two agree, but what comes from rank 0 is held up behind what it never took


# --- groups


@word_for_word(
    3,
    "Rank 1 never made the group of ranks 0 and 1. "
    "Every rank must call new_group for every group in the same order, even for groups that it is not in.",
)
def a_group_that_one_member_never_makes(rank, world_size):
    if rank != 1:
        dist.new_group([0, 1])


@word_for_word(
    3,
    "Rank 2 skipped the group of ranks 0 and 1, which it is not in. "
    "Every rank must call new_group for every group in the same order, even for groups that it is not in.",
)
def a_group_that_an_outsider_skips(rank, world_size):
    if rank < 2:
        dist.new_group([0, 1])
    pair = dist.new_group([1, 2])
    if rank > 0:
        dist.all_reduce(torch.ones(1), group=pair)


@word_for_word(
    3,
    "The 1st group that rank 0 makes is that of ranks 0, 1 and 2; on rank 1 it is that of ranks 0 and 1. "
    "Every rank must make all groups in the same order.",
)
def groups_in_another_order(rank, world_size):
    for members in [[0, 1, 2], [0, 1]] if rank == 0 else [[0, 1], [0, 1, 2]]:
        dist.new_group(members)


@word_for_word(
    2,
    "Rank 0 uses the 1st group of ranks 0 and 1 first, rank 1 uses the 2nd group of ranks 0 and 1 first: each waits "
    "for the other. Ranks that share several groups must use them in the same order.",
    worlds=BOTH,
    documented="9. Two groups in different order",
)
def groups_used_in_another_order(rank, world_size):
    """Tensor and data parallel groups. https://github.com/pytorch/pytorch/issues/130102"""
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (one, two) if rank == 0 else (two, one):
        dist.all_reduce(torch.ones(1), group=group)


@word_for_word(
    4,
    "Rank 0 uses the group of ranks 0 and 1 first, rank 1 uses the whole world first: each waits for the other. "
    "Ranks that share several groups must use them in the same order.",
)
def a_mesh_and_the_world_in_another_order(rank, world_size):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for group in (mesh.get_group("tp"), None) if rank == 0 else (None, mesh.get_group("tp")):
        dist.all_reduce(torch.ones(1), group=group)


# --- silent


@silent(
    2,
    "Rank 0's `dist.all_reduce(a)` met rank 1's `dist.all_reduce(b)`: both ranks make both calls, but in "
    "different orders. Every rank of a group must call the same collectives in the same order.",
)
def same_sizes_in_another_order(rank, world_size):
    a, b = torch.ones(2), torch.ones(2)
    if rank == 0:
        dist.all_reduce(a)
        dist.all_reduce(b)
    else:
        dist.all_reduce(b)
        dist.all_reduce(a)


@silent(
    2,
    "Rank 0's all_reduce (sum) of float32 [2, 3] met rank 1's all_reduce (sum) of float32 [6]: both ranks make both "
    "calls, but in different orders. Every rank of a group must call the same collectives in the same order.",
)
def as_many_numbers_in_another_order(rank, world_size):
    a, b = torch.ones(2, 3), torch.ones(6)
    for x in (a, b) if rank == 0 else (b, a):
        dist.all_reduce(x)


@silent(
    2,
    "rank 0 asked for sum, rank 1 asked for max. all_reduce needs the same reduce op on every rank.",
    worlds=BOTH,
    virtually=WorldStuck,
)
def another_reduce_op(rank, world_size):
    """https://github.com/horovod/horovod/issues/2640"""
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)


@silent(
    2,
    "rank 0 brought float32 [2], rank 1 brought int32 [2]. all_reduce needs the same shape and dtype on every rank."
    + FLOAT32,
)
def another_dtype_of_the_same_size(rank, world_size):
    dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank else torch.float32))


@silent(
    2,
    "rank 0 brought float32 [2], rank 1 brought float32 [3]. broadcast needs the same shape and dtype on every rank.",
)
def a_short_broadcast(rank, world_size):
    dist.broadcast(torch.ones(3 if rank else 2), src=0)


@silent(
    2,
    "Rank 0 sent float32 [2] to rank 1, which received it into float32 [4]: the rest of that tensor stays as it was. "
    "A send and its recv need the same shape and dtype.",
)
def too_short_a_message(rank, world_size):
    dist.send(torch.ones(2), dst=1) if rank == 0 else dist.recv(torch.ones(4), src=0)


@silent(
    2,
    "Rank 0 sent float64 [2] to rank 1, which received it into float32 [4], where the same bytes mean different "
    f"numbers. A send and its recv need the same shape and dtype.{FLOAT32}",
)
def a_message_of_another_dtype(rank, world_size):
    dist.send(torch.ones(2, dtype=torch.float64), dst=1) if rank == 0 else dist.recv(torch.ones(4), src=0)


GAPS = (
    "Rank 0 handed {} a view with gaps (shape [2], strides [2]), but Gloo works on consecutive memory, so it used "
    "the wrong numbers. Hand in x.contiguous(), and copy the result back into the view."
)


@silent(2, GAPS.format("all_reduce"))
def a_view_with_gaps(rank, world_size):
    dist.all_reduce(torch.ones(4)[::2])


@silent(2, GAPS.format("scatter"))
def a_view_with_gaps_to_scatter_into(rank, world_size):
    dist.scatter(torch.ones(4)[::2], [torch.ones(2)] * 2 if rank == 0 else None, src=0)


@silent(
    2,
    "Rank 1's tensor is laid out differently in memory from rank 0's (is one a transpose?), and broadcast goes by the "
    "order in memory. Hand in x.contiguous() on every rank.",
)
def a_transpose(rank, world_size):
    x = torch.ones(2, 3) if rank == 0 else torch.ones(3, 2).T
    dist.broadcast(x, src=0)


NEVER_WAITED = (
    "Rank {} started an asynchronous {} and never waited for it: its result may not be there yet when you use it. "
    "Keep the handle, and call its wait() before you use the tensor."
)


@silent(2, NEVER_WAITED.format(0, "all_reduce"))
def never_waited_for_a_sum(rank, world_size):
    x = torch.ones(2)
    dist.all_reduce(x, async_op=True)
    return x


@silent(2, NEVER_WAITED.format(1, "recv"))
def never_waited_for_a_message_that_came(rank, world_size):
    x = torch.ones(2)
    handle = dist.irecv(x, src=0) if rank else dist.isend(x, dst=1)
    dist.barrier()
    return x, str(handle)
