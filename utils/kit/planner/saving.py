"""What was found, as CSV or JSON for other programs."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plans import Candidate

if TYPE_CHECKING:
    from .planning import Planning


def line(found: Planning, candidate: Candidate) -> dict[str, Any]:
    """A plan with everything that is known of it, flat: sizes, gigabytes, bytes by kind, seconds, seconds by part."""
    shortest, longest = candidate.range or (None, None)
    return {
        **asdict(candidate.plan),
        "measured": candidate.measured,
        "seconds": candidate.total,
        "shortest": shortest,
        "longest": longest,
        "mfu": found.mfu(candidate.total),
        "tokens_per_second": found.tokens / candidate.total,
        "bytes": sum(candidate.bytes.values()),
        **{f"bytes_{kind}": nbytes for kind, nbytes in candidate.bytes.items()},
        **{f"seconds_{part}": seconds for part, seconds in candidate.seconds.items()},
    }


def save_csv(found: Planning, path: Path) -> None:
    """See Planning.save_csv. A file with a header alone if no plan fits."""
    best = {each.plan: each for each in found.best}
    rest = [each for each in found.fitting if each.plan not in best]
    lines = [line(found, each) for each in [*found.best, *rest]]
    header = list(lines[0]) if lines else [*asdict(next(iter(found.too_large))), "seconds"] if found.too_large else []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(lines)


def save_json(found: Planning, path: Path) -> None:
    """See Planning.save_json."""
    cluster = found.cluster
    nearest = found.nearest
    content = {
        "model": {"name": found.name, "parameters": found.model.parameters, **asdict(found.model)},
        "cluster": {"name": cluster.name, "gpus": cluster.size, "rates": cluster.rates, "site": cluster.site},
        "batch": found.batch,
        "tokens_per_step": found.tokens,
        "memory": cluster.gpu.memory,
        "plans": len(found.fitting) + len(found.too_large),
        "fit": len(found.fitting),
        "best": [line(found, each) for each in found.best],
        "nearest_that_does_not_fit": None
        if nearest is None
        else {**asdict(nearest), **{f"bytes_{kind}": n for kind, n in found.too_large[nearest].items()}},
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
