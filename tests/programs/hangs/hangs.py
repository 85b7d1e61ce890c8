"""Programs that hang, as people write them and ask about in public. Each names its source, and is written afresh.

`hangs(words)` puts a rank program into the table: in both worlds, unless it names one, it must end in an error whose
report contains these words.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from utils import RankError, RankFailed, RankTimeout, SilentMistake, WorldStuck


@dataclass(frozen=True)
class Hang:
    program: object
    words: tuple[str, ...]
    world_size: int
    worlds: tuple[str, ...]
    error: type[RankError]

    def __str__(self) -> str:
        return self.program.__name__


HANGS: list[Hang] = []
BOTH, REAL = ("spawn", "simulate"), ("spawn",)
MORE_BATCHES = "after fewer of them: give all ranks the same number of batches."
BACKWARD = (
    "The backward pass of a DDP model all-reduces the gradients, so every rank must run it the same number of times."
)
BUFFERS = "To evaluate on one rank, call model.module(x), which communicates nothing."


def hangs(*words, world_size=2, worlds=BOTH, error=WorldStuck):
    def put(program):
        HANGS.append(Hang(program, words, world_size, worlds, error))
        return program

    return put


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def x() -> torch.Tensor:
    return torch.ones(3, 4)


# --- DDP: not equally many backward passes


@hangs("rank 1  waits in all_reduce", "loss.backward()", BACKWARD, "Rank 0 has finished", MORE_BATCHES)
def one_batch_more(rank, world_size):
    """The data do not divide evenly. https://github.com/pytorch/pytorch/issues/33148"""
    net = DDP(model())
    for _ in range(2 + rank):
        loss = net(x()).sum()
        loss.backward()


@hangs("ranks 0 and 1 can't move any more", BACKWARD, "Rank 2 has finished", MORE_BATCHES, world_size=3)
def shards_rounded_up(rank, world_size):
    """Each rank takes ceil(n / world_size) samples, so the last gets fewer. https://github.com/k2-fsa/snowfall/issues/152"""
    net, samples = DDP(model()), list(range(10))
    per_rank = -(-len(samples) // world_size)
    for _ in samples[rank * per_rank : (rank + 1) * per_rank]:
        net(x()).sum().backward()


@hangs("rank 0  waits in all_reduce", "loss.backward()", BACKWARD, "Rank 1 has finished", "No rank may skip a batch")
def a_batch_with_nan_is_skipped(rank, world_size):
    """`continue` on the rank whose loss is NaN. https://github.com/NVIDIA-NeMo/Automodel/pull/2468"""
    net = DDP(model())
    for step in range(3):
        loss = net(x()).sum()
        if step == 1 and rank == 1:  # loss.isnan()
            continue
        loss.backward()


@hangs(
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


@hangs("rank 0 called barrier, rank 1 called all_reduce", "loss.backward()", BACKWARD)
def one_batch_more_before_a_barrier(rank, world_size):
    """Ranks meet at the end of each epoch. https://github.com/Lightning-AI/pytorch-lightning/issues/9851"""
    net = DDP(model())
    for _ in range(2 + rank):
        loss = net(x()).sum()
        loss.backward()
    dist.barrier()


@hangs("rank 1  waits in all_reduce", "loss.backward()", BACKWARD, "Rank 0 has finished")
def a_loss_without_the_model(rank, world_size):
    """A batch without targets: the loss does not depend on the model. https://github.com/lyuwenyu/RT-DETR/pull/684"""
    net = DDP(model())
    for step in range(2):
        outputs = net(x())
        loss = torch.zeros((), requires_grad=True) if rank == 0 and step == 1 else outputs.sum()
        loss.backward()


@hangs("rank 0  waits in all_reduce", BACKWARD, "Rank 1 has finished without it", worlds=BOTH)
def gradients_kept_back_on_one_rank(rank, world_size):
    """Accumulation with no_sync, whose last step differs. https://github.com/pytorch/pytorch/issues/90171"""
    net = DDP(model())
    if rank == 0:
        net(x()).sum().backward()
    else:
        with net.no_sync():
            net(x()).sum().backward()


@hangs(
    "rank 1  waits in broadcast",
    "net(x()).sum()",
    "In its second step, a DDP model agrees with all ranks",
    worlds=BOTH,
)
def a_single_batch_on_one_rank(rank, world_size):
    """A data set smaller than the batches of all ranks. https://github.com/GMISWE/tinker-cloud/pull/30"""
    net = DDP(model())
    for _ in range(1 + rank):
        net(x()).sum().backward()


@hangs("rank 1  waits in all_reduce", BACKWARD, MORE_BATCHES, worlds=REAL)
def one_batch_more_with_a_communication_hook(rank, world_size):
    """Gradients are compressed by a hook. https://github.com/pytorch/pytorch/issues/33148"""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    net = DDP(model())
    net.register_comm_hook(None, fp16_compress_hook)
    for _ in range(2 + rank):
        net(x()).sum().backward()


@hangs("rank 1  waits in all_reduce", BACKWARD, MORE_BATCHES)
def one_batch_more_with_a_static_graph(rank, world_size):
    """The first reduction of a static graph comes last of all. https://github.com/pytorch/pytorch/issues/33148"""
    net = DDP(model(), static_graph=True)
    for _ in range(1 + rank):
        net(x()).sum().backward()


@hangs("rank 0  waits in all_reduce", BACKWARD, "Rank 1 has finished", MORE_BATCHES)
def layers_dropped_at_random(rank, world_size):
    """Unused parameters are looked for, but one rank has no step left. https://github.com/catalyst-team/catalyst/issues/1110"""
    net = DDP(model(), find_unused_parameters=True)
    for _ in range(3 - rank):
        net(x()).sum().backward()


@hangs(
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


@hangs("rank 0 called broadcast, rank 1 called barrier", "The broadcast is inside `if rank == 0`", BUFFERS)
def validation_on_rank_0(rank, world_size):
    """Validation through the DDP model, then a barrier. https://github.com/pytorch/pytorch/issues/54059"""
    net = DDP(with_batch_norm())
    net(x()).sum().backward()
    if rank == 0:
        with torch.no_grad():
            net(x())
    dist.barrier()


@hangs("rank 0  waits in broadcast", "net(x())", BUFFERS, "Rank 1 has finished without it: take it out of the `if rank")
def validation_on_rank_0_at_the_end(rank, world_size):
    """The same as the last thing that happens. https://github.com/pytorch/pytorch/issues/53979"""
    net = DDP(with_batch_norm())
    if rank == 0:
        net(x())


@hangs("rank 1  waits in broadcast", BUFFERS, "Rank 0 has finished", MORE_BATCHES)
def validation_sets_of_different_length(rank, world_size):
    """Batch norm, and one validation batch more on one rank. https://github.com/pytorch/pytorch/issues/20611"""
    net = DDP(with_batch_norm())
    for _ in range(2 + rank):
        net(x()).sum().backward()


@hangs("rank 0 called all_gather, rank 1 called barrier", "so every rank must wrap its model", worlds=REAL)
def wrapped_on_one_rank(rank, world_size):
    """`DDP(model)` inside an `if`. https://github.com/pytorch/pytorch/issues/54232"""
    net = model()
    if rank == 0:
        net = DDP(net)
    dist.barrier()


# --- FSDP, DTensor, sharded optimizers, checkpoints


@hangs("rank 1  waits in all_gather", "An FSDP model all-gathers its parameters when it is called", MORE_BATCHES)
def validation_to_exhaustion_with_fsdp(rank, world_size):
    """Packed samples make uneven batches. https://github.com/PrimeIntellect-ai/prime-rl/issues/2515"""
    from torch.distributed.fsdp import fully_shard

    net = model()
    for layer in (net[0], net[2], net):
        fully_shard(layer)
    for _ in range(1 + rank):
        net(x())


@hangs("rank 0  waits in all_gather", "all ranks must call it", "take it out of the `if rank == 0`", worlds=REAL)
def full_state_dict_on_rank_0(rank, world_size):
    """Only rank 0 saves, but gathering takes all. https://github.com/pytorch/pytorch/issues/122903"""
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    net(x()).sum().backward()
    if rank == 0:
        net.state_dict()


@hangs("rank 0  waits in reduce_scatter", "reduce-scatters gradients", "Rank 1 has finished")
def a_step_skipped_with_fsdp(rank, world_size):
    """A spike of the loss is skipped on one rank. https://github.com/ecmwf/WeatherGenerator/pull/2718"""
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(nn.Linear(4, 4))
    loss = net(x()).sum()
    if rank == 0:
        loss.backward()


@hangs("full_tensor() always does: all ranks of its mesh must call it", "take it out of the `if rank == 0`")
def gradient_norm_logged_on_rank_0(rank, world_size):
    """Sharded gradients are DTensors. https://github.com/meta-pytorch/torchtune/pull/2248"""
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(nn.Linear(4, 4))
    net(x()).sum().backward()
    if rank == 0:
        net.weight.grad.full_tensor().norm()


@hangs("rank 0  waits in broadcast", "consolidate_state_dict its state: all ranks must call them", worlds=REAL)
def optimizer_state_consolidated_on_rank_0(rank, world_size):
    """https://github.com/pytorch/ignite/issues/2623"""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = DDP(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    net(x()).sum().backward()
    optimizer.step()
    if rank == 0:
        optimizer.consolidate_state_dict()


@hangs("torch.distributed.checkpoint saves and loads with all ranks together", "`if rank == 0`", worlds=REAL)
def sharded_checkpoint_saved_on_rank_0(rank, world_size):
    """https://github.com/deepspeedai/DeepSpeed/pull/801"""
    import torch.distributed.checkpoint as checkpoint

    if rank == 0:
        checkpoint.save(model().state_dict(), checkpoint_id=tempfile.mkdtemp())


# --- collectives of one's own


@hangs("Rank 1 never called this barrier and has finished", "take it out of the `if rank == 0`")
def barrier_inside_an_if(rank, world_size):
    """https://runebook.dev/en/docs/pytorch/distributed/torch.distributed.barrier"""
    if rank == 0:
        dist.barrier()


@hangs(
    "rank 0  waits in barrier",
    "Rank 1 has finished after 1 call of this barrier; rank 0 is in its 2nd",
    "more rounds on rank 0",
)
def a_barrier_on_each_round(rank, world_size):
    """Download first on rank 0, with one barrier too many there. https://github.com/JIA-Lab-research/LongLoRA/issues/45"""
    for _ in range(2 - rank):
        dist.barrier()


@hangs("rank 0 called all_gather, rank 1 called all_reduce", "dist.all_gather([torch.zeros(2)]")
def saved_where_the_loss_is_best(rank, world_size):
    """`reduce` gives the sum to one rank, so ranks disagree on what is best. https://github.com/pytorch/pytorch/issues/77562"""

    def saved():
        dist.all_gather([torch.zeros(2)] * world_size, torch.ones(2))

    loss = torch.ones(2)
    dist.reduce(loss, dst=0)
    if rank == 0:  # loss < best
        saved()
    dist.all_reduce(loss)


@hangs("rank 0  waits in all_gather", "take it out of the `if dist.get_rank() == 0`")
def metric_computed_on_rank_0(rank, world_size):
    """A metric synchronises itself. https://github.com/Lightning-AI/torchmetrics/issues/938"""

    class Metric:
        def compute(self):
            if dist.get_rank() == 0:
                dist.all_gather([torch.zeros(1)] * world_size, torch.ones(1))

    Metric().compute()


@hangs("Rank 1 never called this all_gather and has finished")
def early_return_of_a_rank_without_metrics(rank, world_size):
    """A stage with nothing to report skips the gathering. https://github.com/bo-ke/llm-internal-medicine/pull/45"""
    metrics = {} if rank == 1 else {"loss": 1.0}
    if not metrics:
        return
    dist.all_gather_object([None] * world_size, metrics)


@hangs("Rank 1 never called this broadcast and has finished", worlds=REAL)
def a_file_that_one_rank_does_not_see(rank, world_size):
    """`exists()` differs on a network disk. https://github.com/KempnerInstitute/KempnerForge/issues/49"""
    exists = rank == 0
    if exists:
        dist.broadcast_object_list([{"step": 1}], src=0)


@hangs(
    "brought float32 [4], rank 1 brought float32 [3]", "all_gather needs the same shape", error=RankError, worlds=REAL
)
def gathered_tensors_of_different_length(rank, world_size):
    """Sequences of different lengths. https://github.com/pytorch/pytorch/issues/56112"""
    mine = torch.ones(4 - rank)
    dist.all_gather([torch.zeros(4 - rank) for _ in range(world_size)], mine)


@hangs("rank 1  waits in all_reduce", "Rank 0 has finished after 2 calls of this all_reduce; rank 1 is in its 3rd")
def generation_until_end_of_text(rank, world_size):
    """Each rank decodes until its own text ends. https://github.com/deepspeedai/DeepSpeed/issues/8262"""
    for token in itertools.count():
        dist.all_reduce(torch.ones(2))
        if token == 1 + rank:
            return


@hangs(
    "Rank 0 uses the 1st group of ranks 0 and 1 first, rank 1 uses the 2nd group of ranks 0 and 1 first",
    worlds=BOTH,
    error=RankError,
)
def two_groups_in_different_order(rank, world_size):
    """Tensor and data parallel groups. https://github.com/pytorch/pytorch/issues/130102"""
    tensor, data = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (tensor, data)[:: -1 if rank else 1]:
        dist.all_reduce(torch.ones(2), group=group)


@hangs(
    "Rank 3 uses the whole world first, rank 2 uses the group of ranks 2 and 3 first: each waits for the other.",
    world_size=4,
)
def a_group_that_one_rank_forgets(rank, world_size):
    """The call without `group=` goes to all ranks. https://github.com/vllm-project/vllm/issues/3401"""
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    partial = torch.ones(2)
    dist.all_reduce(partial, group=None if rank == 3 else pair)
    dist.all_reduce(partial)


@hangs("Ranks 1 and 2 skipped the group of ranks 0 and 3, which they are not in", world_size=4, error=RankError)
def each_pair_makes_its_own_group(rank, world_size):
    """`new_group(mine)` instead of all groups on all ranks. https://github.com/pytorch/pytorch/issues/25390"""
    mine = [0, 3] if rank in (0, 3) else [1, 2]
    dist.barrier(group=dist.new_group(mine))


@hangs("Ranks 2 and 3 skipped the group of ranks 0 and 1", world_size=4, error=SilentMistake)
def a_group_made_by_its_members(rank, world_size):
    """It works with Gloo until the next group is made. https://github.com/pytorch/pytorch/pull/124268"""
    if rank < 2:
        dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1]))


@hangs("rank 0 asked for sum, rank 1 asked for max", error=RankError)
def another_operation_on_one_rank(rank, world_size):
    """https://github.com/horovod/horovod/issues/2640"""
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)


@hangs("rank 0 named root 0, rank 1 named root 1", error=RankError)
def everyone_broadcasts_its_own(rank, world_size):
    """https://github.com/BAAI-Humanoid/MOSAIC/issues/5"""
    dist.broadcast(torch.ones(2), src=rank)


# --- gradients reduced by hand


@hangs(
    "when rank 1 reduced that of 0.weight",
    "Go through the parameters in the same order on every rank",
    worlds=REAL,
    error=RankError,
)
def only_gradients_that_are_there(rank, world_size):
    """`if p.grad is not None`, and a layer without gradient on one rank. https://github.com/deepspeedai/DeepSpeed/pull/291"""
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    (net if rank else net[1:])(x()).sum().backward()
    for p in net.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)


@hangs("Rank 0 reduced the gradient of", "a set has no order", worlds=REAL, error=SilentMistake)
def parameters_of_a_set(rank, world_size):
    """Parameters in an order of the rank's own. https://github.com/OpenTSLM/OpenTSLM/pull/49"""
    net = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])
    net(x() * (rank + 1)).sum().backward()
    for p in sorted(net.parameters(), key=lambda p: p.sum().item() * (-1) ** rank):  # set(net.parameters())
        dist.all_reduce(p.grad)


@hangs(
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


@hangs("rank 0  waits in all_reduce", "get_future().wait()", "Rank 1 never called this all_reduce", worlds=REAL)
def the_future_of_a_call(rank, world_size):
    """A wait that goes through a future. https://github.com/pytorch/pytorch/issues/33148"""
    if rank == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        work.get_future().wait()


@hangs(
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


@hangs("Everyone sends first, and waits for the next: 0 → 1 → 0")
def both_send_first(rank, world_size):
    """https://github.com/NVIDIA/nccl/issues/479"""
    mine, other = torch.ones(2), torch.zeros(2)
    dist.send(mine, dst=1 - rank)
    dist.recv(other, src=1 - rank)


@hangs("Rank 1 waits for a message from rank 0, which has finished without sending it")
def one_microbatch_more(rank, world_size):
    """A stage expects more microbatches than it is sent. https://github.com/pytorch/pytorch/issues/75795"""
    for _ in range(2 + rank):
        if rank == 0:
            dist.send(torch.ones(2), dst=1)
        else:
            dist.recv(torch.zeros(2), src=0)


@hangs("Rank 0 waits for a message from rank 1, which has finished")
def a_rank_that_stopped_generating(rank, world_size):
    """One half of a pipeline leaves its loop. https://github.com/exo-explore/exo/issues/1793"""
    if rank == 1:
        return
    dist.recv(torch.zeros(2), src=1)


@hangs(
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


@hangs("rank 1 is in recv from 0", "A broadcast is not received with recv: every rank calls broadcast itself.")
def a_broadcast_received_with_recv(rank, world_size):
    """As if a broadcast were many sends. http://www.nsm.buffalo.edu/courses/mth667/cor501f03/lecture7_files/slide0015.htm"""
    done = torch.zeros(1)
    if rank == 0:
        dist.broadcast(done, src=0)
    else:
        dist.recv(done, src=0)


# --- errors, ends, and parts that have nothing to do


@hangs("rank 0 called all_reduce, rank 1 called barrier")
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


@hangs("Rank 1 never called this barrier and has finished")
def the_group_destroyed_on_one_rank(rank, world_size):
    """Rank 0 still has something to do after training. https://github.com/alan-turing-institute/autocast/issues/381"""
    net = DDP(model())
    net(x()).sum().backward()
    if rank != 0:
        dist.destroy_process_group()
        return
    dist.barrier()


@hangs("rank 0 called barrier, rank 1 called all_to_all")
def experts_without_tokens(rank, world_size):
    """A rank whose experts get no token skips the exchange. https://github.com/NVIDIA-NeMo/Automodel/pull/935"""
    tokens = torch.ones(2 if rank else 0, 4)
    if len(tokens):
        dist.all_to_all_single(torch.zeros(2, 4), tokens)
    dist.barrier()


@hangs("rank 0  waits in send to 1", "with the same number of microbatches")
def stages_with_different_microbatches(rank, world_size):
    """https://github.com/pytorch/pytorch/issues/172668"""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(nn.Linear(4, 4), rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2 if rank else 4)
    schedule.step(*[torch.ones(8, 4)] * (rank == 0))


@hangs("brought float32 [9], rank 1 brought float32 [29]", "all_gather needs the same shape", error=RankError)
def layers_sharded_differently(rank, world_size):
    """A wrapping policy that depends on the rank. https://github.com/pytorch/pytorch/pull/75902"""
    from torch.distributed.fsdp import fully_shard

    net = model()
    if rank == 0:
        fully_shard(net[0])
    fully_shard(net)(x())


@hangs("full_tensor() always does", "An FSDP model all-gathers its parameters when it is called", error=RankError)
def a_weight_logged_on_rank_0(rank, world_size):
    """Its gather meets that of the next forward pass. https://github.com/pytorch/pytorch/issues/73383"""
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(model())
    if rank == 0:
        print(net[0].weight.full_tensor().norm())
    net(x())


@hangs("Rank 1 never called this barrier and has finished", "take it out of the `if rank == 0`")
def a_monitored_barrier_on_rank_0(rank, world_size):
    """https://github.com/pytorch/pytorch/issues/54879"""
    if rank == 0:
        dist.monitored_barrier()


@hangs(
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


@hangs("rank 0  is idle", "store.wait", "What is rank 0 waiting for?", worlds=REAL, error=RankTimeout)
def a_key_that_nobody_sets(rank, world_size):
    """A rank waits for the others' sign through the store. https://github.com/pytorch/pytorch/pull/53773"""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["ready"])
    dist.barrier()
