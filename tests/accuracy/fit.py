"""`python -m tests.accuracy.fit`: how the fitted rates in presets.py were found, from the rows to fit to.

One rate after another is moved up and down by smaller and smaller steps, as long as that lowers the mean error of the
training rows. Prints the rates that it ends with.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

from tests.accuracy.rows import ROWS, Row, split
from tests.accuracy.step import pieces_of, simulated
from utils.cluster import KernelRates, presets

# What is fitted, with its first step and the highest value that makes sense.
FITTED = {
    "dgx-a100": {"sustained": (0.02, 1.0), "fill": (64.0, 1024.0), "memory": (0.05, 0.9), "rows": (0.05, 0.9)},
    "dgx-h100": {"sustained": (0.02, 1.0)},
}
HALVINGS = 2


def main() -> None:
    fit, _ = split(ROWS)
    for name, fitted in FITTED.items():
        rows = [row for row in fit if row.setting is not None and row.setting.cluster == name]
        rates = presets.PRESETS[name].gpu.achieved
        assert rates is not None
        best = error(rows, name, rates)
        for halving in range(HALVINGS):
            moved = True
            while moved:
                moved = False
                for part, (first, most) in fitted.items():
                    for step in (first / 2**halving, -first / 2**halving):
                        value = round(getattr(rates, part) + step, 6)
                        tried = replace(rates, **{part: value}) if 0 < value <= most else rates
                        if (now := error(rows, name, tried)) < best:
                            best, rates, moved = now, tried, True
            print(f"{name}: {100 * best:.2f} % with {rates}", flush=True)


def error(rows: list[Row], name: str, rates: KernelRates) -> float:
    """The mean of the rows' errors, without their signs, with these rates of the cluster's GPU."""
    pieces_of.cache_clear()
    cluster = presets.PRESETS[name]
    presets.PRESETS[name] = replace(cluster, gpu=replace(cluster.gpu, achieved=rates))
    return mean(abs(simulated(row, "achieved") / row.seconds - 1) for row in rows)


if __name__ == "__main__":
    main()
