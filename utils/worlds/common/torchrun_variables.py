"""The environment variables by which torchrun tells a process which rank it is, as the ranks of every world find them.

So a script for torchrun runs on them as it is. But torchrun has not started them, and the job's name says so (see
jobs/detect.py).
"""

from __future__ import annotations

import os

NAME_OF_JOB = "TORCHELASTIC_RUN_ID"
OURS = "spawn"


def torchrun_variables(rank: int, world_size: int, ranks_per_node: int) -> dict[str, str]:
    """The variables of one rank. Those that say where ranks meet stay as they are, if this process has them."""
    node, local_rank = divmod(rank, ranks_per_node)
    numbers = {
        "RANK": rank,
        "ROLE_RANK": rank,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": node,
        "WORLD_SIZE": world_size,
        "ROLE_WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": min(world_size, ranks_per_node),
        "GROUP_WORLD_SIZE": -(-world_size // ranks_per_node),
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {
        **{name: str(number) for name, number in numbers.items()},
        "ROLE_NAME": "default",
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": os.environ.get("MASTER_PORT", "29500"),
        NAME_OF_JOB: OURS,
    }
