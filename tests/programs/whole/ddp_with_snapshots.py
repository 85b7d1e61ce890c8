"""DDP with a DistributedSampler, a Trainer class, and snapshots from which a second run resumes.

The kind of pytorch/examples, distributed/ddp-tutorial-series/multigpu_torchrun.py.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORLD_SIZE = 2


class Trainer:
    def __init__(self, loader, snapshot):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.loader, self.snapshot, self.first_epoch, self.losses = loader, snapshot, 0, []
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if snapshot.exists():
            state = torch.load(snapshot)
            model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.first_epoch = state["epochs"]
        self.model = DDP(model)

    def train(self, epochs):
        for epoch in range(self.first_epoch, epochs):
            self.loader.sampler.set_epoch(epoch)
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = mse_loss(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                self.losses.append(loss.item())
            if self.rank == 0:
                self.save(epoch + 1)
            dist.barrier()

    def save(self, epochs):
        state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "epochs": epochs}
        torch.save(state, self.snapshot)


def main(rank, world_size, folder):
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    x = torch.randn(23, 4)  # an odd number: the sampler pads
    data = TensorDataset(x, x.sum(1, keepdim=True))
    losses = []
    for epochs in (2, 4):  # the second trainer goes on where the first stopped
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, seed=3))
        trainer = Trainer(loader, Path(folder, "snapshot.pt"))
        trainer.train(epochs)
        losses += trainer.losses
    assert trainer.first_epoch == 2
    dist.destroy_process_group()
    return losses, trainer.model.module.state_dict()
