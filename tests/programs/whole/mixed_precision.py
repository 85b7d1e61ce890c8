"""Automatic mixed precision with DDP: autocast to bfloat16, master weights in float32, gradients compressed on the way.

The kind of the documentation of torch.amp, https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD_SIZE = 2


def main(rank, world_size, folder):
    dist.init_process_group("gloo", "env://")
    model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2)))
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    torch.manual_seed(rank)
    x, losses, scales = torch.rand(6, 8), [], []
    for _ in range(4):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
            assert output.dtype == torch.bfloat16
            loss = output.float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    assert scales == [8.0, 16.0, 16.0, 32.0] and losses[-1] < losses[0]
    return losses, model.module.state_dict()
