"""What a rank runs where a check judges how much of a masked block is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..attention_blocks import flash_block


def count_scores(function: Callable[..., Any], *given: Any) -> dict[str, Any]:
    """Call `function(*given, attend)`: its "result", and how many "scores" per head `attend` has computed for it."""
    scores = 0

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
        nonlocal scores
        queries, keys = q.shape[2], k.shape[2]
        scores += sum(min(n + 1, keys) for n in range(queries)) if causal else queries * keys
        return flash_block(q, k, v, causal)

    return {"result": function(*given, attend), "scores": scores}
