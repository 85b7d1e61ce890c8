"""functional_collectives.py: correct for any strides and groups; new tensors, inputs untouched, no autograd."""

import pytest
import torch
import torch.distributed as dist

from utils import spawn
from utils.kit.functional_collectives import all_gather, all_reduce, all_to_all, reduce_scatter


def verbs_on_a_view(rank, world_size, pairs):
    group = [dist.new_group(pair) for pair in pairs][rank % 2]
    wide = torch.arange(16.0).view(2, 8) + 100 * rank
    x = wide[:, ::2].clone().requires_grad_()[:, :]
    view = wide[:, ::2]
    before = wide.clone()
    got = {
        "sum": all_reduce(view, group),
        "most": all_reduce(view, group, op=dist.ReduceOp.MAX),
        "columns": all_gather(view, group, dim=1),
        "rows": all_gather(view, group, dim=0),
        "chunk": reduce_scatter(view, group, dim=1),
        "seen by autograd": all_reduce(x, group).requires_grad,
        "unchanged": torch.equal(wide, before),
    }
    got["own memory"] = all(
        value.data_ptr() != wide.data_ptr() for value in got.values() if isinstance(value, torch.Tensor)
    )
    return got


def test_collectives_take_views_and_groups_and_leave_their_input_unchanged():
    pairs = [[0, 2], [1, 3]]
    results = spawn(verbs_on_a_view, 4, pairs, backend="gloo").results
    xs = [(torch.arange(16.0).view(2, 8) + 100 * rank)[:, ::2] for rank in range(4)]
    for rank, got in enumerate(results):
        first, second = (xs[peer] for peer in pairs[rank % 2])
        assert torch.equal(got["sum"], first + second)
        assert torch.equal(got["most"], second)
        assert torch.equal(got["columns"], torch.cat([first, second], 1))
        assert torch.equal(got["rows"], torch.cat([first, second], 0))
        assert torch.equal(got["chunk"], (first + second).chunk(2, 1)[rank // 2])
        assert got["unchanged"] and got["own memory"] and not got["seen by autograd"]


def test_an_uneven_reduce_scatter_is_refused():
    def uneven(rank, world_size):
        try:
            reduce_scatter(torch.ones(3, 2))
        except ValueError as error:
            return str(error)

    said = spawn(uneven, 2, backend="gloo").results
    assert said == ["2 ranks can't split dimension 0 of shape (3, 2) into equal parts"] * 2


@pytest.mark.parametrize("verb", [all_reduce, all_gather, reduce_scatter])
def test_one_rank_gets_a_copy_of_its_own(verb):
    def alone(rank, world_size):
        x = torch.ones(2, 2)
        return verb(x).add_(1), x

    changed, kept = spawn(alone, 1, backend="gloo").results[0]
    assert torch.equal(changed, kept + 1)


def rows_to_a_partner(rank, world_size, pairs):
    group = [dist.new_group(pair) for pair in pairs][rank % 2]
    place = dist.get_rank(group)
    wide = torch.arange(6.0).view(3, 2) + 100 * rank
    x = wide[:, ::2].requires_grad_()
    send, receive = ([1, 2], [1, 0]) if place == 0 else ([0, 3], [2, 3])
    arrived = all_to_all(x, send, receive, group)
    return arrived, arrived.requires_grad


def test_all_to_all_sends_uneven_numbers_of_rows_inside_its_group():
    results = spawn(rows_to_a_partner, 4, [[0, 2], [1, 3]], backend="gloo").results
    first_column = torch.tensor([[0.0], [2.0], [4.0]])
    for rank, (arrived, seen_by_autograd) in enumerate(results):
        low = first_column + 100 * (rank % 2)
        high = first_column + 100 * (rank % 2 + 2)
        assert torch.equal(arrived, low[:1] if rank < 2 else torch.cat([low[1:], high]))
        assert not seen_by_autograd
