"""What `saved_tensors` lists of a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.kit.saved_tensors import saved_tensors


def test_factors_of_a_product_are_kept_and_terms_of_a_sum_are_not() -> None:
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 3, requires_grad=True)
    entries = saved_tensors((x @ w) + 1)
    assert {(entry.node, entry.shape, entry.nbytes) for entry in entries} == {
        ("MmBackward0", (4, 8), 128),
        ("MmBackward0", (8, 3), 96),
    }


def test_memory_with_two_names_is_first_only_once() -> None:
    entries = saved_tensors(torch.randn(5, requires_grad=True).exp().sin())
    assert [(entry.node, entry.first) for entry in entries] == [("SinBackward0", True), ("ExpBackward0", False)]


def test_a_slice_counts_with_all_of_the_memory_behind_it() -> None:
    x = torch.randn(100, requires_grad=True)
    (entry,) = saved_tensors(x[:3].sin())
    assert (entry.shape, entry.nbytes) == ((3,), 400)


def test_functions_of_ones_own_are_listed() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 2 * gradient

    output: Tensor = Doubled.apply(torch.randn(7, requires_grad=True))  # type: ignore[no-untyped-call]
    assert [(entry.node, entry.nbytes) for entry in saved_tensors(output)] == [("DoubledBackward", 28)]


def test_without_a_graph_nothing_is_kept() -> None:
    assert saved_tensors(torch.ones(3)) == []
