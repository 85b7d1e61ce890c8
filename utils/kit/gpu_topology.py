"""How a machine's GPUs are wired, as `nvidia-smi topo -m` prints it, and which links are faster.

names()                      # the recordings that come with the course
recorded("eight-nvlink")     # one of them, as the tool prints it
of_this_machine()            # the same for this machine, or None
speed("NV18") > speed("PIX") > speed("SYS")
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent / "topologies"
# Slowest first. "SYS" crosses from one CPU socket to the other; "PIX" passes through a single switch.
OVER_PCIE = ["SYS", "NODE", "PHB", "PXB", "PIX"]


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def recorded(name: str) -> str:
    """The text of a recording. It has the tool's format; the machine is a typical one, not a particular product.

    Raises ValueError for an unknown name.
    """
    if name not in names():
        raise ValueError(f"there is no recording {name!r}; choose one of {', '.join(names())}")
    return (FOLDER / f"{name}.txt").read_text()


def of_this_machine() -> str | None:
    """What `nvidia-smi topo -m` prints here; None if the tool or a GPU is missing."""
    if shutil.which("nvidia-smi") is None:
        return None
    done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 and "GPU0" in done.stdout else None


def speed(label: str) -> int:
    """A link's rank in speed; higher is faster. NV4 is four NVLinks side by side; any NVLink beats PCIe.

    Raises ValueError for anything that is not a link, including "X": a GPU has no link to itself.
    """
    if label in OVER_PCIE:
        return OVER_PCIE.index(label)
    if re.fullmatch(r"NV\d+", label):
        return len(OVER_PCIE) - 1 + int(label[2:])
    raise ValueError(f"{label!r} is not a link; the links are {', '.join(OVER_PCIE)}, NV1, NV2, ...")
