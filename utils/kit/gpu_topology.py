"""Which GPUs of a machine are wired how: texts in the form of `nvidia-smi topo -m`, and which wire is faster.

names()                      # the recordings that come with the course
recorded("eight-nvlink")     # one of them, as the tool prints it
of_this_machine()            # this machine's own, or None
speed("NV18") > speed("PIX") > speed("SYS")
"""

import re
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent / "topologies"
# Through PCIe, from slow to fast. "SYS" goes from one CPU socket to the other, "PIX" through one switch only.
OVER_PCIE = ["SYS", "NODE", "PHB", "PXB", "PIX"]


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def recorded(name: str) -> str:
    """A recording's text. They have the tool's form; the machines are typical ones, no particular product."""
    if name not in names():
        raise ValueError(f"there is no recording {name!r}: choose one of {', '.join(names())}")
    return (FOLDER / f"{name}.txt").read_text()


def of_this_machine() -> str | None:
    """What `nvidia-smi topo -m` prints here; None where there is no such tool, or no GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 and "GPU0" in done.stdout else None


def speed(label: str) -> int:
    """A link's place from slow to fast: more is better. NV4 is four NVLinks side by side, faster than all of PCIe.

    Raises ValueError for a label that is none, "X" too: a GPU has no link to itself.
    """
    if label in OVER_PCIE:
        return OVER_PCIE.index(label)
    if re.fullmatch(r"NV\d+", label):
        return len(OVER_PCIE) - 1 + int(label[2:])
    raise ValueError(f"{label!r} is no link: there are {', '.join(OVER_PCIE)}, and NV1, NV2, ...")
