"""Who this rank is in each dimension."""

import torch
import torch.distributed as dist

process_group_manager = None


class ProcessGroupManager:
    def __init__(self, dp, pp, cp, tp):
        self.rank = dist.get_rank()
        grid = torch.arange(dp * pp * cp * tp).view(dp, pp, cp, tp)
        self.dp_rank, self.pp_rank, self.cp_rank, self.tp_rank = (grid == self.rank).nonzero().flatten().tolist()
        self.dp_size, self.pp_size, self.cp_size, self.tp_size = grid.shape
        self.dp_group, _ = self.along(grid, 0)
        self.pp_group, self.pp_ranks = self.along(grid, 1)
        self.cp_group, self.cp_ranks = self.along(grid, 2)
        self.tp_group, _ = self.along(grid, 3)
        self.is_first_stage, self.is_last_stage = self.pp_rank == 0, self.pp_rank == self.pp_size - 1

    def along(self, grid, dim):
        mine = None
        for ranks in grid.movedim(dim, -1).reshape(-1, grid.shape[dim]).tolist():
            group = dist.new_group(ranks)
            if self.rank in ranks:
                mine = group, ranks
        return mine


def setup_process_group_manager(dp, pp, cp, tp):
    global process_group_manager
    process_group_manager = ProcessGroupManager(dp, pp, cp, tp)
