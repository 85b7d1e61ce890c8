"""A function that holds tensors of a call when the call is over."""

import functools

import pytest
import torch

from utils.kit.drivers.call import call_with
from utils.kit.drivers.left_behind import LeftBehind

kept: list[object] = []
masks: dict[int, torch.Tensor] = {}


@pytest.fixture(autouse=True)
def empty():
    kept.clear()
    masks.clear()


def in_a_list(x):
    y = 2 * x
    kept.append({"y": (y,)})
    return y


def graph_alone(x):
    w = torch.ones(5, 3, requires_grad=True)
    kept.append((x * w).sum())
    return 2 * x


def in_a_default(x, seen=None):
    seen.append(x.clone())
    return 2 * x


in_a_default.__defaults__ = ([],)  # as `seen=[]` in the line above would


def as_an_attribute(x):
    as_an_attribute.last = x[:2]
    return 2 * x


def caches_a_mask(x):
    if 7 not in masks:
        masks[7] = torch.ones(7, 7).tril()
    return 2 * x


def counts(x):
    kept.append(len(x))
    return 2 * x


def through(function, x):
    return function(x)


def call(function, catch=()):
    return call_with(0, 1, function, [torch.arange(3.0)], {}, catch)


@pytest.mark.parametrize("function", [in_a_list, graph_alone, in_a_default, as_an_attribute])
def test_a_tensor_that_outlives_its_call_is_named(function):
    with pytest.raises(LeftBehind, match="kept|in_a_default|as_an_attribute"):
        call(function)
    with pytest.raises(LeftBehind):
        call(functools.partial(through, function), catch=RuntimeError)


@pytest.mark.parametrize("function", [caches_a_mask, counts])
def test_what_is_small_and_made_once_may_stay(function):
    assert call(function).result.tolist() == [0, 2, 4]


def test_what_was_there_before_may_stay():
    kept.append(torch.arange(3.0))
    assert call(counts).result.tolist() == [0, 2, 4]
