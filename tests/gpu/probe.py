"""What the modules in probes/ have in common: checks, run one after the other. probes/__main__.py starts them.

A check is a function that takes a Setting and returns its numbers, or a pair of numbers and words. It raises NotHere if
this machine lacks what it needs, and anything else if it fails; the next check runs all the same. Checks and rank
programs are functions of a module, not of `__main__`, so that ranks find them even without cloudpickle.
"""

from __future__ import annotations

import importlib.util
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.lines import FAILED, NOT_TRIED, PASSED, Check, Lines

Numbers = dict[str, Any]
Probe = Callable[["Setting"], Numbers | tuple[Numbers, str] | None]


class NotHere(Exception):
    """This machine lacks what the check needs."""


@dataclass(frozen=True)
class Setting:
    """Where the checks run. dry: on the CPU, over Gloo, with small sizes, to see that everything is in place."""

    dry: bool
    folder: Path

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def backend(self) -> str:
        return "gloo" if self.dry else "nccl"

    @property
    def world_sizes(self) -> list[int]:
        """One rank a GPU: 1, 2, 4 and 8, as far as there are GPUs."""
        import torch

        gpus = 2 if self.dry else torch.cuda.device_count()
        return [size for size in (1, 2, 4, 8) if size <= gpus]

    def file(self, kind: str, name: str) -> Path:
        """A path in the result's folder: kind is "traces" or "figures"."""
        (self.folder / kind).mkdir(parents=True, exist_ok=True)
        return self.folder / kind / name

    def draw(self, name: str, figure: Callable[[], Any]) -> None:
        """Save a figure, if matplotlib is there."""
        if importlib.util.find_spec("matplotlib"):
            figure().savefig(self.file("figures", f"{name}.png"), dpi=100)


def measured_cluster(setting: Setting, world_size: int) -> Any:
    """This machine as a Cluster. Raises NotHere if something else kept it busy, which says nothing about a GPU."""
    from utils import measure_this_machine

    try:
        return measure_this_machine(world_size, setting.backend, seconds=0.2 if setting.dry else 2)
    except ValueError as error:
        raise NotHere(str(error)) from None


def run(probes: list[Probe], setting: Setting, lines: Lines) -> None:
    lines.planned([title(probe) for probe in probes])
    for probe in probes:
        lines.began(title(probe))
        began = time.perf_counter()
        check = attempt(probe, setting)
        check.seconds = time.perf_counter() - began
        lines.ended(check)


def title(probe: Probe) -> str:
    """The first line of its docstring."""
    return (probe.__doc__ or probe.__name__).strip().splitlines()[0].rstrip(".")


def attempt(probe: Probe, setting: Setting) -> Check:
    try:
        found = probe(setting)
    except NotHere as error:
        return Check(title(probe), NOT_TRIED, str(error))
    except ModuleNotFoundError as error:
        return Check(title(probe), NOT_TRIED, f"needs {error.name}, which this Python doesn't have")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}\n({Path(where.filename).name}, line {where.lineno}: {where.line})"
        return Check(title(probe), FAILED, text)
    numbers, words = found if isinstance(found, tuple) else (found or {}, "")
    return Check(title(probe), PASSED, words, numbers=numbers)
