"""Gradients averaged over replicas as soon as they are there, over the ranks that share a sequence, too."""

import torch
import torch.distributed as dist

from . import manager as pgm


class DataParallel(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.require_sync, self.pending = module, True, []
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self.reduce)

    def forward(self, *inputs):
        return self.module(*inputs)

    def reduce(self, parameter):
        if self.require_sync:
            parameter.grad /= pgm.process_group_manager.dp_size * pgm.process_group_manager.cp_size
            for group in (pgm.process_group_manager.cp_group, pgm.process_group_manager.dp_group):
                self.pending.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
                self.pending[-1].wait()
