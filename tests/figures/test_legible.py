"""What a student can read: the figures that lessons draw, at the width of a notebook on a screen of 1366 x 768."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from matplotlib.backend_bases import RendererBase
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from utils import figures, region, simulate
from utils.cluster import find_cluster
from utils.events.memory_samples import MemoryNote
from utils.figures.picture import DPI, NOTEBOOK, Picture
from utils.report.memory import Memory

LEAST = 9  # points; JupyterLab's own text has 10.5, its code 9.75
SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"


def drawn_in_lessons() -> dict[str, ast.Call]:
    """{source: call} of each call of `figures` in a lesson."""
    calls: dict[str, ast.Call] = {}
    for path in sorted(SOLUTIONS.glob("*/lesson_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("figures."):
                calls.setdefault(ast.unparse(node), node)
    return calls


def is_literal(call: ast.Call) -> bool:
    return not any(isinstance(node, ast.Name) and node.id != "figures" for node in ast.walk(call))


SIZES = [1 << power for power in range(10, 29, 2)]
TIMES = [1e-5 + size / 1e10 for size in SIZES]
RATES = [size / time for size, time in zip(SIZES, TIMES, strict=True)]
LIMITS = {"copying in memory": 1.2e10, "TCP on this machine": 6e9, "what gloo reaches at best": 4e9}
CURVES = {
    name: [(size, alpha + size * beta) for size in SIZES]
    for name, alpha, beta in (("ring", 3e-4, 2e-10), ("tree", 8e-5, 8e-10), ("halving-doubling", 7e-5, 3e-10))
}
ROWS = [[("F", m) for m in range(8)] + [("B", m) for m in range(8)] for _ in range(4)]
CHUNKS = [[(kind, m, c) for kind in "FB" for c in range(2) for m in range(8)] for _ in range(4)]
TWISTED = [["NV2" if (i + j) % 2 else "NV1" if i // 4 == j // 4 else "SYS" for j in range(8)] for i in range(8)]
RECOMPUTED = {
    "a checkpoint at each of the first n layers": [(str(n), 393e3 - 7.8e3 * n, 1 + n / 70) for n in range(0, 25, 4)],
    "a checkpoint every k layers": [
        ("k=1", 205e3, 1.34),
        ("k=2", 123e3, 1.34),
        ("k=4", 107e3, 1.34),
        ("k=8", 147e3, 1.34),
    ],
}
LEVELS = {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20, "memory": 1 << 34}
PEAK, NETWORKS = 989e12, {"NVLink": 450e9, "InfiniBand": 50e9, "Ethernet": 12.5e9}
LOSSES = {
    name: [1.0 / (step + 1 + number) for step in range(40)]
    for number, name in enumerate(("whole gradients", "top 1 %", "top 1 %, feedback", "signs", "signs, feedback"))
}
STAGE = {"parameters": 9e9, "gradients": 18e9, "optimizer": 13e9, "activations": 36e9, "logits": 12e9}
PLANS = {"one bucket": ([10.0], [6.0]), "twenty-four": ([k * 10 / 24 for k in range(1, 25)], [0.4] * 24)}


def step(rank: int, world_size: int) -> None:
    """Regions in a region, calls in flight together, one that waits."""
    weight = torch.empty(4096, 4096, dtype=torch.bfloat16)
    with region("step"):
        works = []
        for layer in range(3):
            with region(f"backward {layer}"):
                weight @ weight
                works.append(dist.all_reduce(torch.empty(1 << 24, dtype=torch.bfloat16), async_op=True))
        for work in works:
            work.wait()
        with region("update"):
            weight @ weight
    dist.barrier()


def memory(ranks: int) -> Picture:
    samples = [(0.0, "parameters", 4000), (0.5, "gradients", 4000), (1.0, "optimizer state", 8000)]
    samples += [(1.0 + k / 8, "activations", 1000 * (4 - abs(4 - k))) for k in range(9)]
    return Memory([[MemoryNote("cpu", samples, 20_000 + rank)] for rank in range(ranks)]).figure()


# What lessons draw with values that their cells compute; titles and names are the longest that occur.
STAND_INS = {
    "bandwidths": lambda: figures.bandwidths(SIZES, TIMES, LEVELS, 9e-6),
    "compressed": lambda: figures.compressed(
        [0.9, -0.1] * 12, {name: [1, 0] * 12 for name in ("int4", "1 bit and the mean")}
    ),
    "intervals": lambda: figures.intervals(
        {f"llama-3-405b-128k, {gpus:,}": (0.87, 1 + gpus / 99_999, 1.2) for gpus in (64, 1024, 16_384, 65_536)},
        "rows that no rate was fitted to: the promised range, and the published time",
        "times the predicted seconds",
    ),
    "intervals, long names": lambda: figures.intervals(
        {f"dp 32, pp 2, ep 8, chunks {n}, recompute selective": (2.6, 2.7, 2.8) for n in (8, 16)},
        "the first of the race for Mixtral on 64 H100s: formula, within 1 %, and run",
        "seconds per step",
    ),
    "memory_and_time": lambda: figures.memory_and_time(RECOMPUTED, "memory and time of a step of 24 layers"),
    "over_steps": lambda: figures.over_steps(LOSSES, "what hasn't arrived yet", "length of the accumulated error"),
    "overlap": lambda: figures.overlap(PLANS, backward=10.0),
    "plan_cloud": lambda: figures.plan_cloud(
        {f"dp {n}": (4e9 * n, 18 - 0.1 * n) for n in range(1, 24)}, {"dp 4": "your best", "dp 7": "published"}, 80e9
    ),
    "ring_blocks": lambda: figures.ring_blocks(
        {"neighbouring chunks": [[0, 1], [2, 3], [4, 5], [6, 7]], "zigzag": [[0, 7], [1, 6], [2, 5], [3, 4]]}
    ),
    "roofline": lambda: figures.roofline(
        PEAK, NETWORKS, {f"b = {b:,}": 1.5 * b for b in (256, 4096, 65536)}, "three networks"
    ),
    "roofline, one": lambda: figures.roofline(
        PEAK, 3.35e12, {"x + y": 1 / 6, "matmul 128": 43, "matmul 4096": 1365}, "on an H100"
    ),
    "schedule": lambda: figures.schedule(CHUNKS, "interleaved 1F1B, 4 ranks, 8 microbatches, 2 chunks"),
    "schedule, one chunk": lambda: figures.schedule(ROWS, "GPipe, 4 ranks, 8 microbatches"),
    "stage_bytes": lambda: figures.stage_bytes({f"stage {n}": STAGE for n in range(8)}, memory=80e9),
    "sweep": lambda: figures.sweep(SIZES, TIMES, RATES, "all_reduce, 8 ranks of dgx-h100", (1e-5, 1e-10), LIMITS),
    "time_curves": lambda: figures.time_curves({**CURVES, "chosen": CURVES["ring"]}, "on 16 ranks", dots="chosen"),
    "topology": lambda: figures.topology(TWISTED, "a ring in rank order", ring=list(range(8))),
    "traffic": lambda: figures.traffic(simulate(step, 4), "broadcast by hand"),
}
RUNS = {  # a Run's own drawings; timelines are in test_living.py
    "breakdown": lambda: figures.breakdown(simulate(step, 4, cluster="dgx-h100").breakdown()),
    "heatmap of 64": lambda: simulate(step, 64, cluster="dgx-h100").traffic().heatmap(implied=True),
    "live bytes of 2": lambda: memory(2),
    "live bytes of 8": lambda: memory(8),
    "cluster": lambda: figures.cluster(find_cluster("dgx-h100", 64)),
}
LITERAL = [source for source, call in drawn_in_lessons().items() if is_literal(call)]
DRAWN = {
    **{source: lambda source=source: eval(source, {"figures": figures}) for source in LITERAL},
    **STAND_INS,
    **RUNS,
}


def test_each_figure_of_the_lessons_is_looked_at_here() -> None:
    others = {call.func.attr for call in drawn_in_lessons().values() if not is_literal(call)}
    assert others - {"explore"} <= {name.partition(",")[0] for name in STAND_INS}  # the one that shows the others


@pytest.fixture
def texts_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Picture], dict[Text, Bbox]]:
    """Returns a function that draws a picture and returns {text: its box in pixels} of what was written."""
    written: dict[Text, Bbox] = {}
    draw = Text.draw

    def draw_and_note(text: Text, renderer: RendererBase) -> None:
        draw(text, renderer)
        if text.get_visible() and text.get_text().strip():
            written[text] = text.get_window_extent(renderer)

    def texts_of(picture: Picture) -> dict[Text, Bbox]:
        written.clear()
        picture.png()
        return dict(written)

    monkeypatch.setattr(Text, "draw", draw_and_note)
    return texts_of


@pytest.mark.parametrize("name", DRAWN)
def test_text_is_legible_at_the_width_of_a_notebook(name: str, texts_of: Callable[[Picture], dict[Text, Bbox]]) -> None:
    picture = DRAWN[name]()
    texts = texts_of(picture)
    wide, tall = picture.get_size_inches() * DPI  # pixels
    shrunk = min(1.0, NOTEBOOK / wide) * DPI / 96  # on a page, an inch has 96 pixels and 72 points
    assert {text.get_text(): size for text in texts if (size := text.get_fontsize() * shrunk) < LEAST - 0.01} == {}
    for (one, a), (two, b) in itertools.combinations(texts.items(), 2):
        over = min(min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0))
        assert over < 2, f"{one.get_text()!r} and {two.get_text()!r} overlap by {over:.0f} pixels"
    for text, box in texts.items():
        room = min(box.x0, box.y0, wide - box.x1, tall - box.y1)
        assert room > -1, f"{text.get_text()!r} is cut off by {-room:.0f} pixels"
