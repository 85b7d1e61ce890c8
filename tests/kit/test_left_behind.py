"""A function that holds tensors of a call when the call is over."""

import functools

import pytest
import torch
import torch.distributed as dist

from utils import simulate, spawn
from utils.kit.drivers.call import call_with
from utils.kit.drivers.left_behind import LeftBehind, leaving_no_groups

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


def of_all(x):
    dist.new_group()
    return x


def ended(x):
    dist.destroy_process_group(dist.new_group())
    return x


def of_one_rank(x):
    dist.new_group([1])
    return x


def raises(x):
    dist.new_group()
    raise ValueError("no")


@pytest.mark.parametrize("world", [spawn, functools.partial(simulate, device="cpu")])
def test_a_process_group_that_outlives_its_call_is_named(world):
    def program(rank, world_size):
        dist.new_group()  # not the function's
        x, left = torch.ones(2), {}
        for function in (of_all, ended, of_one_rank, raises, ended):
            try:
                assert leaving_no_groups(function, x) is x
            except (LeftBehind, ValueError) as error:
                left[function.__name__] = str(error).partition(" is left")[0]
        return left

    everywhere = {"of_all": "a process group of the ranks [0, 1]", "raises": "no"}
    assert world(program, 2).results == [everywhere, {**everywhere, "of_one_rank": "a process group of the ranks [1]"}]
