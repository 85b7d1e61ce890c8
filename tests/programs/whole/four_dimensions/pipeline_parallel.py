"""The stages of a pipeline, and two orders of their work."""

import torch
import torch.distributed as dist

from . import manager as pgm

SHAPE = None  # of what goes from stage to stage
SENT = []  # requests of this step that are on their way


def exchange(x, step):
    """Send `x` to the stage `step` further on, or receive what it sends."""
    manager = pgm.process_group_manager
    other = manager.pp_ranks[manager.pp_rank + step]
    if x is not None:
        SENT.append((dist.isend(x.contiguous(), other), x))
        return None
    got = torch.empty(SHAPE)
    dist.recv(got, other)
    return got


def forward(model, batch, kept, losses):
    x, target = batch
    if not pgm.process_group_manager.is_first_stage:
        x = exchange(None, -1).requires_grad_()
    y = model(x)
    if pgm.process_group_manager.is_last_stage:
        y = torch.nn.functional.mse_loss(y, target)
        losses.append(y.item())
    else:
        exchange(y.detach(), 1)
    kept.append((x, y))


def backward(model, kept, is_last):
    model.require_sync = is_last
    x, y = kept.pop(0)
    if pgm.process_group_manager.is_last_stage:
        y.backward()
    else:
        y.backward(exchange(None, 1))
    if not pgm.process_group_manager.is_first_stage:
        exchange(x.grad, -1)


def all_forward_all_backward(model, batches):
    kept, losses = [], []
    for batch in batches:
        forward(model, batch, kept, losses)
    for number in range(len(batches)):
        backward(model, kept, number == len(batches) - 1)
    finish()
    return losses


def one_forward_one_backward(model, batches):
    kept, losses = [], []
    ahead = min(len(batches), pgm.process_group_manager.pp_size - pgm.process_group_manager.pp_rank - 1)
    for batch in batches[:ahead]:
        forward(model, batch, kept, losses)
    for batch in batches[ahead:]:
        forward(model, batch, kept, losses)
        backward(model, kept, not ahead and batch is batches[-1])
    for number in range(ahead):
        backward(model, kept, number == ahead - 1)
    finish()
    return losses


def finish():
    while SENT:
        SENT.pop()[0].wait()
