"""The picture in README.md: a step of a pipeline on four virtual GPUs, drawn for light and for dark pages.

    python -m tests.pictures             says which pictures are out of date
    python -m tests.pictures --write     draws them

Virtual times are the same in every run, and so are the bytes of the pictures.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import pipelining

from utils import region, simulate

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
MICROBATCHES, ROWS, WIDTH = 6, 2048, 8192  # numbers in bfloat16, so a message has 32 MiB
TITLE = "1F1B on 4 virtual ranks"
DARK = {  # its replacements on a dark page; the letters on bars stay black
    "#222222": "#E6EDF3",
    "fill='#FFFFFF'": "fill='#0D1117'",
    "#F4F4F4": "#161B22",
    "#C0C0C0": "#484F58",
    "#D8D8D8": "#30363D",
}


class NamedStage(pipelining.PipelineStage):
    """torch's own stage, whose passes have names in the picture."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with region(f"forward {fwd_chunk_id}"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with region(f"backward {bwd_chunk_id}"):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)


def step_of_a_pipeline(rank: int, world_size: int) -> None:
    """One step of torch's 1F1B schedule, with four layers on each rank."""
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(4)))
    batch = torch.empty(MICROBATCHES * ROWS, WIDTH, dtype=torch.bfloat16)
    part = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True)  # tells shapes; has no values
    stage = NamedStage(layers, rank, world_size, torch.device("cpu"), input_args=part, output_args=part)
    schedule = pipelining.Schedule1F1B(stage, MICROBATCHES, loss_fn=lambda y, target: y.sum())
    schedule.step(*([batch] if rank == 0 else []), **({"target": batch} if rank == world_size - 1 else {}))


def drawn() -> dict[str, str]:
    """{file: its text}"""
    light = dark = simulate(step_of_a_pipeline, 4, cluster="dgx-h100").timeline(title=TITLE).svg()
    for colour, on_dark in DARK.items():
        dark = dark.replace(colour, on_dark)
    return {"pipeline-light.svg": light, "pipeline-dark.svg": dark}


def out_of_date(pictures: dict[str, str]) -> list[str]:
    """The names of the files that are missing or hold something else."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    return [name for name, text in pictures.items() if texts.get(name) != text]


def main() -> None:
    pictures = drawn()
    for name in out_of_date(pictures):
        if "--write" in sys.argv:
            (FOLDER / name).write_text(pictures[name], encoding="utf-8")
        print(f"docs/pictures/{name} {'was' if '--write' in sys.argv else 'is'} out of date")


if __name__ == "__main__":
    main()
