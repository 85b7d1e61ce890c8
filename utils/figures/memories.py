"""How many bytes each rank held when: a lane for each rank, one scale for all."""

from itertools import groupby

from matplotlib.patches import Patch

from utils.figures.picture import COLOURS, GREY, INK, KINDS, SECONDS, Picture, fitting

WIDTH = 9  # inches
LAYERS = ("parameters", "gradients", "optimizer state", "activations", "other", "allocated")  # from below
COLOUR = dict(zip(LAYERS, [*KINDS[:4], COLOURS[-1], KINDS[1]], strict=True))
BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


def live_bytes(memory) -> Picture:
    """Of a Memory: what each rank's tensors took over time, by kind, with the peak of each rank at the right."""
    ranks = [rank for rank, samples in enumerate(memory.samples) if samples]
    start = min(memory.samples[rank][0][0] for rank in ranks)
    end = max(memory.samples[rank][-1][0] for rank in ranks)
    most = max(memory.peak[rank] for rank in ranks) or 1
    (unit, seconds), (size, nbytes) = fitting(SECONDS, end - start), fitting(BYTES, most)
    inches = 0.95 if len(ranks) <= 4 else 0.46  # of a lane
    height = inches * len(ranks) + 1.45
    picture = Picture(WIDTH, height, "live bytes, by what they are for")
    picture.subplots_adjust(left=0.12, right=0.88, bottom=0.95 / height, top=1 - 0.5 / height, hspace=0.15)
    panels = picture.subplots(len(ranks), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    seen = set()
    for rank, panel in zip(ranks, panels, strict=True):
        times, kinds = steps(memory.samples[rank])
        used = [kind for kind in LAYERS if any(kinds.get(kind, ()))]
        seen |= set(used)
        heights = [[value / nbytes for value in kinds[kind]] for kind in used]
        x = [(time - start) / seconds for time in times]
        panel.stackplot(x, heights, colors=[COLOUR[kind] for kind in used], step="post", linewidth=0)
        panel.step(x, [sum(parts) for parts in zip(*heights, strict=True)], where="post", color=INK, linewidth=0.5)
        panel.set(ylim=(0, 1.08 * most / nbytes), xlim=(0, max(end - start, 1e-9) / seconds))
        peak = memory.peak[rank] / nbytes
        panel.axhline(peak, color=INK, linewidth=0.8, linestyle=":")
        text = f"peak\n{peak:,.4g} {size}" if len(ranks) <= 4 else f"{peak:,.4g} {size}"
        panel.text(
            1.01, peak / (1.08 * most / nbytes), text, transform=panel.transAxes, fontsize=9, color=INK, va="center"
        )
        panel.set_ylabel(f"rank {rank}", rotation=0, ha="right", va="center", color=INK, fontsize=9, labelpad=24)
        panel.tick_params(colors=INK, labelsize=8 if len(ranks) <= 4 else 7, length=2)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(GREY)
        panel.locator_params(axis="y", nbins=3 if len(ranks) <= 4 else 2)
    panels[-1].set_xlabel(f"{unit} since tracking began; heights in {size}", color=INK, fontsize=9)
    legend = [Patch(facecolor=COLOUR[kind], label=kind) for kind in LAYERS if kind in seen]
    look = {"frameon": False, "fontsize": 9, "labelcolor": INK, "ncols": 6, "borderaxespad": 0}
    picture.legend(handles=legend, loc="lower center", bbox_to_anchor=(0.5, 0.12 / height), **look)
    return picture


def steps(samples: list[tuple]) -> tuple[list[float], dict[str, list[int]]]:
    """(times, {kind: live bytes from that time on}): one entry for each moment at which something changed."""
    live = {kind: 0 for _, kind, _ in samples}
    times, kinds = [], {kind: [] for kind in live}
    for time, changes in groupby(samples, key=lambda sample: sample[0]):
        live |= {kind: nbytes for _, kind, nbytes in changes}
        times.append(time)
        for kind, nbytes in live.items():
            kinds[kind].append(nbytes)
    return times, kinds
