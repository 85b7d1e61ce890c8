"""The tables of the virtual cluster: predicted over measured, and why a row is off; the time that `simulate` takes.

A ratio of 0.5: the program took twice as long as predicted. The error of a row is |ratio - 1|.
"""

from __future__ import annotations

from statistics import median

from tests.bench.virtual import OPERATIONS
from utils.text.units import plural, quantity

# Where the real thing does something else than the model: Gloo's algorithms are in gloo/*.cc, torch's use of them in
# ProcessGroupGloo.cpp.
WHY = {
    "ping-pong": "latency and bandwidth were fitted to such messages: one line for all sizes",
    "all_reduce": "Gloo goes round the ring at every size, in twice as many messages, and adding takes time",
    "broadcast": "the model's own tree; but Gloo's collectives run on a thread of their own, which must wake up",
    "all_gather": "Gloo's ring has twice as many messages, and torch copies all of the result into the list",
    "reduce_scatter": "Gloo has none that torch would use: it makes an all-reduce of each rank's part instead",
    "all_to_all": "the model's own messages; but that thread must wake up, and the same cores both send and receive",
}
OF_THE_COLLECTIVES = """\
(all of them: the ranks share the cores that carry the messages, so no link is anybody's own; with more ranks than
cores each message also waits until its receiver has a core)"""
OF_THE_STEPS = """\
(in backward Gloo's messages need the cores that compute, so little overlaps; a small model stays in the caches, where
the optimizer is faster than the memory it is charged for; what autograd and DDP do themselves is not in the model)"""
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
    """What calibration has found."""
    units = {"fp32": "FLOP/s", "memory": "B/s", "launch": "s", "alpha": "s", "bandwidth": "B/s"}
    lines = [["", "fp32", "memory", "launch", "link: latency", "one way"]]
    for ranks, found in by_ranks.items():
        failed = [f"failed: {found['failed']}"] if "failed" in found else None
        lines.append(
            [plural(ranks, "rank"), *(failed or (quantity(found[name], unit) for name, unit in units.items()))]
        )
    return "this machine as measure_this_machine finds it: what each rank has while all are at work", lines


def collectives(by_ranks: dict) -> tuple[str, list[list[str]]]:
    """A block for each collective, a row for each size, three columns for each number of ranks."""
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
        lines.append([name, WHY[name]])
        lines += [[f"  {size(nbytes)}", *cells] for nbytes, cells in sizes.items()]
    title = f"collectives over Gloo, and as predicted for this machine, calls in a row\n{OF_THE_COLLECTIVES}"
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
    title = f"a step of torch's DDP with AdamW, an MLP of so many layers x width\n{OF_THE_STEPS}"
    return title, [*lines, ["median error", "", "", error(errors), *[""] * len(PARTS)]]


def speed(measured: dict) -> tuple[str, list[list[str]]]:
    lines = [["", "median", "least", "most", "rank-operations/s"]]
    for name, taken in measured["seconds"].items():
        failed = next((seconds["failed"] for seconds in taken if isinstance(seconds, dict)), None)
        if failed:
            lines.append([name, f"failed: {failed}"])
            continue
        rate = f"{OPERATIONS[name] / median(taken):,.0f}" if name in OPERATIONS else ""
        lines.append([name, *(f"{value:.2f}" for value in (median(taken), min(taken), max(taken))), rate])
    return "simulate, sizes only, from the call to the Run, in seconds", lines


def compared(measured: float, predicted: float) -> list[str]:
    return [quantity(measured, "s"), quantity(predicted, "s"), f"{predicted / measured:.2f}"]


def error(rows: list[tuple]) -> str:
    """The median of |predicted / measured - 1|; these are the last two of each row."""
    return f"{median(abs(predicted / measured - 1) for *_, measured, predicted in rows):.0%}" if rows else ""


def size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
