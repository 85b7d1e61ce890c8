"""The tables of the virtual cluster: predicted over measured times, and why they differ; the time `simulate` takes.

A ratio of 0.5 means that the program took twice as long as predicted. The error of a row is |ratio - 1|.
"""

from __future__ import annotations

from statistics import median

from tests.bench.virtual import OPERATIONS
from utils.text.units import plural, quantity

OF_THE_COLLECTIVES = """\
(predicted: what Gloo's algorithms take with these numbers, see utils/cluster/gloo_costs.py. The ranks share the cores
that carry the messages and wake up Gloo's threads, and no two ranks have a link to themselves)"""
OF_THE_STEPS = """\
(in backward, Gloo's messages need the cores that compute, so little overlaps; a small model stays in the caches, where
the optimizer is faster than the model's memory bandwidth; the overhead of autograd and DDP is not modelled)"""
PARTS = ["forward", "backward", "optimizer"]


def tables(measured: dict) -> list[tuple[str, list[list[str]]]]:
    """[(title, lines)]"""
    return [
        machines(measured["machines"]),
        collectives(measured["collectives"]),
        steps(measured["steps"]),
        speed(measured),
    ]


def machines(by_ranks: dict) -> tuple[str, list[list[str]]]:
    """The results of the calibration."""
    units = {"fp32": "FLOP/s", "memory": "B/s", "launch": "s", "alpha": "s", "bandwidth": "B/s"}
    lines = [["", "fp32", "memory", "launch", "link: latency", "one way"]]
    for ranks, found in by_ranks.items():
        failed = [f"failed: {found['failed']}"] if "failed" in found else None
        lines.append(
            [plural(ranks, "rank"), *(failed or (quantity(found[name], unit) for name, unit in units.items()))]
        )
    return "this machine as measured by measure_this_machine: per rank, with all ranks at work", lines


def collectives(by_ranks: dict) -> tuple[str, list[list[str]]]:
    """A block per collective, a row per size, and three columns per number of ranks."""
    header, lines, errors = [""], [], []
    blocks: dict[str, dict[int, list[str]]] = {}
    for ranks, rows in by_ranks.items():
        if isinstance(rows, dict):
            lines.append([plural(ranks, "rank"), f"failed: {rows['failed']}"])
            continue
        header += [f"{plural(ranks, 'rank')}: measured", "predicted", "ratio"]
        errors += ["", "", error(rows)]
        for name, nbytes, *times in rows:
            blocks.setdefault(name, {}).setdefault(nbytes, []).extend(compared(*times))
    for name, sizes in blocks.items():
        lines.append([name])
        lines += [[f"  {size(nbytes)}", *cells] for nbytes, cells in sizes.items()]
    title = f"collectives over Gloo, measured and predicted for this machine, calls in a row\n{OF_THE_COLLECTIVES}"
    return title, [header, *lines, ["median error", *errors]]


def steps(by_ranks: dict) -> tuple[str, list[list[str]]]:
    lines, errors = [["", "measured", "predicted", "ratio", *(f"{part}: ratio" for part in PARTS)]], []
    for ranks, models in by_ranks.items():
        if isinstance(models, dict):
            lines.append([plural(ranks, "rank"), f"failed: {models['failed']}"])
            continue
        for layers, width, times in models:
            parts = [compared(*times[part])[-1] for part in PARTS]
            lines.append([f"{plural(ranks, 'rank')}, {layers} x {width}", *compared(*times["step"]), *parts])
            errors.append(times["step"])
    title = f"a step of torch's DDP with AdamW on an MLP, layers x width\n{OF_THE_STEPS}"
    return title, [*lines, ["median error", "", "", error(errors), *[""] * len(PARTS)]]


def speed(measured: dict) -> tuple[str, list[list[str]]]:
    lines = [["", "median", "least", "most", "over a fixed loop", "rank-operations/s"]]
    for name, taken in measured["seconds"].items():
        failed = next((seconds["failed"] for seconds in taken if isinstance(seconds, dict)), None)
        if failed:
            lines.append([name, f"failed: {failed}"])
            continue
        rate = f"{OPERATIONS[name] / median(taken):,.0f}" if name in OPERATIONS else ""
        ratio = median(taken) / median(measured["loop"])
        lines.append([name, *(f"{value:.2f}" for value in (median(taken), min(taken), max(taken), ratio)), rate])
    return "simulate, without values, from the call to the Run, in seconds", lines


def compared(measured: float, predicted: float) -> list[str]:
    return [quantity(measured, "s"), quantity(predicted, "s"), f"{predicted / measured:.2f}"]


def error(rows: list[tuple]) -> str:
    """The median of |predicted / measured - 1|; the two are the last of each row."""
    return f"{median(abs(predicted / measured - 1) for *_, measured, predicted in rows):.0%}" if rows else ""


def size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
