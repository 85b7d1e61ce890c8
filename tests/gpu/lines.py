"""What a part finds, as lines of JSON: one for the plan, one when a check begins, one when it has ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, NOT_TRIED = "passed", "failed", "not tried"
LONGEST = 4000  # characters of a text


@dataclass
class Check:
    """One thing that was tried. text: why it failed or was not tried, or what it says; numbers: what it measured."""

    name: str
    outcome: str
    text: str = ""
    seconds: float = 0.0
    numbers: dict[str, Any] = field(default_factory=dict)


def lines_of(folder: Path, part: str) -> Path:
    """The file of a part's lines, in the result's folder."""
    return folder / "output" / f"{part}.jsonl"


class Lines:
    """Writes them. Every line is on disk before the next step, which may crash the process."""

    def __init__(self, path: str | Path) -> None:
        self.file = open(path, "a", buffering=1, encoding="utf-8")

    def planned(self, names: list[str]) -> None:
        self.write(planned=names)

    def began(self, name: str) -> None:
        self.write(began=name)

    def ended(self, check: Check) -> None:
        self.write(ended=vars(check) | {"text": shortened(check.text)})

    def write(self, **line: Any) -> None:
        self.file.write(json.dumps(line) + "\n")


def shortened(text: str) -> str:
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}\n... {len(text) - LONGEST} characters ...\n{text[-half:]}"


def read(path: Path, cut_short: str = "") -> list[Check]:
    """The checks of a part, in order. cut_short: what ended the part too early, if anything did.

    The check that was under way then has failed; those that had not begun were not tried.
    """
    ended: dict[str, Check] = {}
    planned: list[str] = []
    under_way = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found = json.loads(line)
        except ValueError:  # the process was killed while it wrote this
            continue
        planned += found.get("planned", [])
        under_way = found.get("began", under_way)
        if "ended" in found:
            check = Check(**found["ended"])
            ended[check.name], under_way = check, ""
    if under_way:
        ended[under_way] = Check(under_way, FAILED, cut_short or "the process ended in the middle of it")
    missing = [Check(name, NOT_TRIED, cut_short or "the part ended before") for name in planned if name not in ended]
    return [*ended.values(), *missing]
