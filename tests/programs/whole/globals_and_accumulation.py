"""A script whose settings, rank and losses are globals; a GPT's kind of step with accumulated gradients.

The kind of karpathy/nanoGPT, train.py.
"""

import math
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD_SIZE = 2

batch_size, block_size, accumulation, vocabulary, width = 2, 8, 4, 11, 16
learning_rate, warmup, steps, grad_clip = 0.01, 2, 5, 1.0
ddp = master_process = seed_offset = None
log = []


def get_batch(data):
    starts = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    return x, torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = (
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 3 * width),
            torch.nn.Linear(width, width),
        )

    def forward(self, x):
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.squeeze(1))


def get_lr(step):
    if step < warmup:
        return learning_rate * (step + 1) / warmup
    return learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


@torch.no_grad()
def estimate_loss(model, data):
    model.eval()
    losses = [model(get_batch(data)[0]).logsumexp(-1).mean().item() for _ in range(2)]
    model.train()
    return sum(losses) / len(losses)


def main(rank, world_size, folder):
    global ddp, master_process, seed_offset, accumulation
    ddp = int(os.environ.get("RANK", -1)) != -1
    if ddp:
        dist.init_process_group(backend="gloo")
        master_process = int(os.environ["RANK"]) == 0
        seed_offset = int(os.environ["RANK"])
        assert accumulation % int(os.environ["WORLD_SIZE"]) == 0
        accumulation //= int(os.environ["WORLD_SIZE"])
    data = torch.arange(200) ** 2 % vocabulary
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Embedding(vocabulary, width), Block(), Block(), torch.nn.Linear(width, vocabulary, bias=False)
        )
    )
    torch.manual_seed(1337 + seed_offset)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        if step % 2 == 0 and master_process:
            log.append(("evaluated", step, estimate_loss(model.module, data)))
        for micro in range(accumulation):
            model.require_backward_grad_sync = micro == accumulation - 1
            x, y = get_batch(data)
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) / accumulation
            loss.backward()
            log.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    dist.destroy_process_group()
    assert len(log) == steps * accumulation + (3 if master_process else 0)  # of this rank alone
    return log
