"""Whether this process is a rank of a job, which rank, and over which network it reaches the others.

torchrun   has set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
srun       has set variables of SLURM's own; the five are made from those, except any that you have set by hand
"""

from __future__ import annotations

import os
import re
import sys
from typing import Literal

from ..common.torchrun_variables import NAME_OF_JOB, OURS
from .network_interface import interface_towards

PORTS = range(20000, 30000)  # MASTER_PORT under SLURM: below the ports that Linux gives to outgoing connections


def launcher() -> Literal["torchrun", "slurm"] | None:
    """What started this process as one rank of many: "torchrun", "slurm", or None if it is not a rank.

    A notebook's kernel is not a rank, although a tutorial's cell may have set the variables by hand, or the kernel may
    run inside a job. Nor is a batch script: SLURM counts the tasks of the step only for processes that srun starts. Nor
    is a rank of spawn or simulate, which finds torchrun's variables too, nor what such a rank starts.
    """
    if in_notebook() or os.environ.get(NAME_OF_JOB) == OURS:
        return None
    if all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
        return "torchrun"
    is_task = "SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1
    return "slurm" if is_task else None


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def is_first_process() -> bool:
    """Whether this process is rank 0 of its job, or not in a job."""
    return launcher() is None or int(os.environ.get("RANK") or os.environ["SLURM_PROCID"]) == 0


def set_variables() -> None:
    """Set the environment variables that `torch.distributed` needs to join the world of this job."""
    if launcher() == "slurm":
        for name, value in slurm_variables().items():
            os.environ.setdefault(name, value)
    if "GLOO_SOCKET_IFNAME" not in os.environ and (interface := interface_towards(os.environ["MASTER_ADDR"])):
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def slurm_variables() -> dict[str, str]:
    """torchrun's variables, made from those of the SLURM step that this task belongs to."""
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ["SLURM_NODELIST"]
    return {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": os.environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "MASTER_ADDR": first_host(nodes),
        "MASTER_PORT": str(PORTS[int(os.environ["SLURM_JOB_ID"]) % len(PORTS)]),
    }


def first_host(nodes: str) -> str:
    """The first host of a list in SLURM's notation: gpu03 for "gpu[03-05,9],login1"."""
    first = re.match(r"(\[[^\]]*\]|[^,\[])*", nodes.strip())
    return re.sub(r"\[(\w*)[^\]]*\]", r"\1", first[0] if first else "")
