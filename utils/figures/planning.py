"""What plans of a training step need: bytes on each stage, and bytes against time."""

from __future__ import annotations

from collections.abc import Mapping

from .picture import GREY, INK, KINDS, Picture


def stage_bytes(stages: Mapping[str, Mapping[str, float]], memory: float) -> Picture:
    """A bar for each of {stage: {kind: bytes}}, and a line at the memory of a GPU, in bytes."""
    picture = Picture(7.2, 0.45 * len(stages) + 1.5, "bytes of a GPU on each stage")
    panel = picture.add_axes((0.12, 0.36, 0.84, 0.5))
    left = dict.fromkeys(stages, 0.0)
    for number, kind in enumerate(dict.fromkeys(kind for kinds in stages.values() for kind in kinds)):
        widths = [kinds.get(kind, 0.0) / 1e9 for kinds in stages.values()]
        panel.barh(list(stages), widths, left=list(left.values()), height=0.7, color=KINDS[number], label=kind)
        left = {stage: start + width for (stage, start), width in zip(left.items(), widths, strict=True)}
    panel.axvline(memory / 1e9, color=INK, linewidth=1.4, linestyle="--")
    panel.invert_yaxis()
    panel.set_xlabel(f"GB; dashed: the {memory / 1e9:g} GB that there are", fontsize=9, color=INK)
    panel.tick_params(labelsize=9)
    picture.legend(frameon=False, fontsize=9, ncols=5, loc="lower center", columnspacing=1.2, handlelength=1.2)
    return picture


def plan_cloud(plans: Mapping[str, tuple[float, float]], marked: Mapping[str, str], memory: float) -> Picture:
    """A point for each of {plan: (bytes, seconds)}; marked: {plan: a word beside it}; memory: bytes of a GPU."""
    picture = Picture(7.2, 3.8, "seconds and bytes of plans")
    panel = picture.add_axes((0.11, 0.15, 0.86, 0.74))
    nbytes, seconds = zip(*plans.values(), strict=True)
    panel.scatter([each / 1e9 for each in nbytes], seconds, s=14, color=GREY)
    for number, (plan, word) in enumerate(marked.items()):
        place = plans[plan][0] / 1e9, plans[plan][1]
        panel.scatter(*place, s=60, color=KINDS[number], edgecolor=INK, zorder=3, label=word)
    panel.axvline(memory / 1e9, color=INK, linewidth=1.4, linestyle="--")
    panel.set_xlabel("GB on the fullest GPU; dashed: all there are", fontsize=9, color=INK)
    panel.set_ylabel("seconds per step", fontsize=9, color=INK)
    panel.tick_params(labelsize=9)
    panel.grid(color="#DDDDDD", linewidth=0.6)
    panel.legend(frameon=False, fontsize=9)
    return picture
