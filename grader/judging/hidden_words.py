"""What a student reads about a hidden test: what kind of case it was and what kind of mistake, and nothing else.

Everything else could carry the case's inputs: what the function printed, returned or raised is chosen by the student's
own code. So a message says only
    - in what the case differs from those of the visible check ("with a different number of ranks");
    - how it ended: the exception's type, one of KNOWN, and its line in a cell; a deadlock; a result that is not right;
    - the usual mistake that the check has recognised, in the check's own words, without the case's numbers.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from utils.checks.answer import CheckFailed
from utils.checks.kinds import kind_of
from utils.checks.registry import header
from utils.diagnosis.errors import RankCrashed, RankError, SilentMistake, WorldStuck
from utils.events.failure import Failure

Case = dict[str, Any]  # {in what a case differs from others, in words: what it has there}

KNOWN = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)}
KNOWN |= {"ChipFull", "OutOfMemoryError", "DistBackendError", "DistStoreError"}
NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*")  # not the one in float64
PLAIN = int | float | str
MAX_WORDS = 500  # characters of a mistake


def case_of(
    world_size: int,
    inputs: Sequence[Sequence[Any]],
    for_all: Mapping[str, Any],
    parameters: Collection[str],
    on_ranks: bool = True,
) -> Case:
    """parameters: the student's own, the only ones that a message may name; on_ranks: whether it is about ranks"""
    tensors = [item for column in inputs for item in column if isinstance(item, torch.Tensor)]
    return {
        "a different number of ranks": world_size if on_ranks else 0,
        "a different dtype": sorted({str(tensor.dtype) for tensor in tensors}),
        "a different shape": [tuple(tensor.shape) for tensor in tensors[:1]],
        "tensors of different sizes": len({tensor.shape for tensor in tensors}) > 1,
        "an empty tensor": any(not tensor.numel() for tensor in tensors),
        "a tensor that is not contiguous": any(not tensor.is_contiguous() for tensor in tensors),
        **{f"a different `{name}`": for_all[name] for name in parameters if isinstance(for_all.get(name), PLAIN)},
    }


def differences(case: Case, visible: Sequence[Case]) -> str:
    """In what a hidden case differs from all visible ones, in words."""
    found = [words for words, value in case.items() if value and value not in [one.get(words) for one in visible]]
    *first, last = found[:3] or ["different numbers"]
    return f"in a case with {', '.join(first)}{' and ' * bool(first)}{last}"


def how_it_failed(error: RankError, failures: Sequence[Failure], cells: Mapping[str, int]) -> str:
    """What became of ranks that failed. cells: the notebook's, with their numbers of lines; no other file is named."""
    for failure in failures:
        kind = failure.kind.rpartition(".")[2]
        kind = kind if kind in KNOWN else "an exception"
        own = [frame for frame in failure.frames if 0 < frame.line <= cells.get(frame.file, 0)]
        return f"it raised {kind}" + (f" in {own[-1].file}, line {own[-1].line}" if own else "")
    if isinstance(error, WorldStuck):
        return "no rank could move any more: each waited for another"
    if isinstance(error, SilentMistake):
        return "the calls of the ranks did not fit together"
    return "a rank ended without a result" if isinstance(error, RankCrashed) else "it failed"


def veiled(failed: CheckFailed, judges: str, ended: str, where: str) -> CheckFailed:
    """The message of a hidden test without what it must not say.

    ended   how the ranks failed, "" if they finished; where: see `differences`
    """
    of_values = kind_of(judges).of_values or failed.waits
    finished = "what it returned is not right" if of_values else f"its {judges} is not right"
    words = NUMBER.sub(lambda number: number[0] if number[0] in "01" else "...", failed.mistake)[:MAX_WORDS]
    other = CheckFailed(f"{ended or finished}, {where}", mistake=words, share=failed.share)
    name = failed.header.partition("hidden test")[0]
    other.header = header([f"{name}hidden test"], "")
    return other
