"""The rule for when two values are equal, and its form for many values at a time."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from utils.checks.equality import equal_values, which_equal

VALUES = [
    torch.tensor([1.0, 2.0, 4.0]),
    torch.tensor([1.0, 2.0, 4.0 + 1e-5]),
    torch.tensor([1.0 + 1e-5, 2.0, -4.0]),
    torch.tensor([1.0, math.nan, 4.0]),
    torch.tensor([1.0, math.inf, 4.0]),
    torch.tensor([1.0, -math.inf, 4.0]),
    torch.tensor([0.0, 0.0, 0.0]),
    torch.tensor([1, 2, 4]),
    torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64),
    torch.tensor([1.0, 2.0, 4.0], dtype=torch.complex64),
    torch.tensor([[1.0, 2.0, 4.0]]),
    torch.tensor([]),
    torch.tensor(2.0),
    torch.tensor([True, False, True]),
    torch.nn.Parameter(torch.tensor([1.0, 2.0, 4.0])),
    torch.tensor([1.0, 2.0, 4.0], device="meta"),
    [torch.tensor([1.0, 2.0, 4.0])],
    2.0,
    "2",
    None,
]


@pytest.mark.parametrize("rtol", [0, 1e-6, 1e-4])
def test_many_values_are_compared_as_each_would_be_by_itself(rtol):
    for several, right in product([VALUES, *([one, other] for one, other in product(VALUES, VALUES))], VALUES):
        assert which_equal(several, right, rtol) == [equal_values(one, right, rtol) for one in several], (
            several,
            right,
        )


def test_the_tolerance_is_that_of_the_right_value_and_no_other():
    right, near = torch.tensor([1.0, 100.0]), torch.tensor([1.5, 100.0])
    assert which_equal([near, right], right, 0.01) == [True, True]
    assert which_equal([near], right, 0.001) == [False]
    assert which_equal([right], near / 100, 0.01) == [False]
    assert which_equal([], right) == []
