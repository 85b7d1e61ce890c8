"""Part 0: GPUs, driver, torch, NCCL, and which packages are missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess

from tests.gpu.probe import NotHere, Numbers, Setting

# What the project uses besides torch, numpy and pytest: {name to import: what is left out where it is missing}.
PACKAGES = {
    "cloudpickle": "programs defined inside a function or a notebook; those of modules run, pickled by name",
    "pynvml": "which GPUs other people use: all are taken to be free (nvidia-ml-py)",
    "matplotlib": "figures, and every lesson, since lessons draw",
    "tqdm": "lesson 03",
    "psutil": "which ranks compute when the time is up; tests under torchrun",
    "hypothesis": "tests with random programs",
    "jupyter_client": "tests in a notebook's kernel",
    "ipykernel": "tests in a notebook's kernel",
    "nbformat": "tests of scripts made from notebooks, and of grading",
    "IPython": "how lessons show predictions (they print), tests of scripts made from notebooks, and of grading",
    "nbgrader": "tests of grading on GPUs",
}
TOO_OLD = (2, 11)  # torch must be no older


def software(setting: Setting) -> Numbers:
    """Python, torch and NCCL"""
    import torch
    import torch.distributed as dist

    version = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
    assert version >= TOO_OLD, f"torch is {torch.__version__}; the project needs 2.11 or newer"
    return {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA that torch was built for": torch.version.cuda,
        "NCCL of torch": nccl_text() if dist.is_nccl_available() else None,
        "installed NCCL packages": nccl_packages(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory, GB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
    }


def nccl_text() -> str:
    import torch

    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError) as error:
        return f"not known ({error})"


def nccl_packages() -> str:
    """The installed library may be newer than the one torch was built with."""
    found = [
        f"{distribution.name} {distribution.version}"
        for distribution in importlib.metadata.distributions()
        if (distribution.name or "").startswith("nvidia-nccl")
    ]
    return ", ".join(found) or "none"


def gpus(setting: Setting) -> tuple[Numbers, str]:
    """GPUs and driver"""
    import torch

    count = torch.cuda.device_count()
    numbers: Numbers = {"GPUs": count}
    for index in range(count):
        about = torch.cuda.get_device_properties(index)
        numbers[f"GPU {index}"] = (
            f"{about.name}, {about.total_memory / 1e9:.0f} GB, compute capability {about.major}.{about.minor}, "
            f"{about.multi_processor_count} multiprocessors"
        )
    return numbers, nvidia_smi()


def nvidia_smi() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version,name,memory.used,mig.mode.current", "--format=csv"]
    if not shutil.which(command[0]):
        return "no nvidia-smi on the PATH"
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20)
    return f"{done.stdout.strip() or done.stderr.strip()}\n\n{topology.stdout.partition('Legend')[0].strip()}"


def packages(setting: Setting) -> tuple[Numbers, str]:
    """Packages, and what is left out without those that are missing"""
    present: Numbers = {}
    missing = []
    distributions = importlib.metadata.packages_distributions()
    for name, left_out in PACKAGES.items():
        if importlib.util.find_spec(name):
            present[name] = importlib.metadata.version(distributions[name][0]) if name in distributions else "present"
        else:
            missing.append(f"{name} is missing. Left out: {left_out}.")
    tools = [name for name in ("nvidia-smi", "all_reduce_perf", "bwrap", "torchrun") if shutil.which(name)]
    return {**present, "tools": ", ".join(tools) or "none"}, "\n".join(missing) or "nothing is missing"


def first_kernel(setting: Setting) -> Numbers:
    """torch opens the first GPU"""
    import time

    import torch

    if setting.dry or not torch.cuda.device_count():
        raise NotHere("a dry run opens no GPU" if setting.dry else "torch finds no GPU here")
    began = time.perf_counter()
    torch.ones(1, device="cuda").sum().item()
    return {"seconds until the first kernel was done": time.perf_counter() - began}


CHECKS = [software, packages, gpus, first_kernel]
