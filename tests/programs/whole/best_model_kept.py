"""Validation after each epoch, a checkpoint of the best model, a log per rank, and an end that rank 0 decides.

The kind of pytorch/examples, imagenet/main.py.
"""

import copy
import logging
import os
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORLD_SIZE = 2


@dataclass
class Config:
    rate: float = 0.5
    epochs: int = 12
    patience: int = 2
    losses: list[float] = field(default_factory=list)


class Meter:
    """Every meter made on this rank is in `all`."""

    all = []

    def __init__(self, name):
        self.name, self.sum, self.count = name, 0.0, 0
        Meter.all.append(self)

    def update(self, value, count):
        self.sum, self.count = self.sum + value * count, self.count + count

    def mean(self):
        """Over all ranks."""
        total = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(total)
        return (total[0] / total[1]).item()


config = Config()
best = float("inf")
log = logging.getLogger("imagenet of my own")


def loader_of(size, seed):
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))
    data = TensorDataset(x, x.prod(1, keepdim=True).sign())
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, seed=seed))


def train(model, optimizer, loader, epoch):
    model.train()
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    meter = Meter("loss")
    for x, y in loader:
        meter.update(torch.nn.functional.mse_loss(model(x), y).item(), len(x))
    return meter.mean()


def keep_if_best(model, loss, path):
    """Whether it is."""
    global best
    if loss >= best:
        return False
    best = loss
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
    return True


def main(rank, world_size, folder):
    dist.init_process_group("gloo", init_method="env://")
    os.makedirs(f"{folder}/{rank}", exist_ok=True)
    os.chdir(f"{folder}/{rank}")
    log.addHandler(logging.FileHandler("log.txt"))
    log.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    log.propagate = False
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    average, model = copy.deepcopy(net), DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    data, held_out, worse = loader_of(23, 1), loader_of(10, 2), 0
    for epoch in range(config.epochs):
        train(model, optimizer, data, epoch)
        schedule.step()
        with torch.no_grad():
            for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(new, 0.1)
        loss = validate(model, held_out)
        config.losses.append(loss)
        worse = 0 if keep_if_best(model, loss, f"{folder}/best.pt") else worse + 1
        log.info("epoch %d: %.6f", epoch, loss)
        stop = torch.tensor(rank == 0 and worse == config.patience)
        dist.broadcast(stop, src=0)
        if stop:
            break
    dist.barrier()
    model.module.load_state_dict(torch.load(f"{folder}/best.pt"))
    assert validate(model, held_out) == best
    with open("log.txt") as written:
        return asdict(config), len(Meter.all), written.read(), average.state_dict(), os.path.basename(os.getcwd())
