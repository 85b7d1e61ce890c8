"""Checkpoints that are written by a thread while training goes on; the last one is loaded again.

The kind of the recipe "Asynchronous Saving with Distributed Checkpoint",
https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

WORLD_SIZE = 2


class AppState(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])


def training():
    model = fully_shard(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def step(model, optimizer, x):
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main(rank, world_size, folder):
    dist.init_process_group("cpu:gloo,cuda:nccl")
    savers = dist.new_group(backend="gloo")  # its own group, so that its messages don't mix with training's
    model, optimizer = training()
    torch.manual_seed(rank)
    x, losses, saving = torch.rand(4, 6), [], None
    for number in range(3):
        losses.append(step(model, optimizer, x))
        if saving is not None:
            saving.result()
        state = {"app": AppState(model, optimizer)}
        saving = dcp.async_save(state, checkpoint_id=f"{folder}/{number}", process_group=savers)
    following = step(model, optimizer, x)
    saving.result()
    state = AppState(*training())
    dcp.load({"app": state}, checkpoint_id=f"{folder}/2")
    assert step(state.model, state.optimizer, x) == following
    return [*losses, following]
