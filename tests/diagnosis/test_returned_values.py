"""What calls of `dist` return, taken for their result."""

import pytest

from utils import RankError, spawn
from utils.diagnosis.returned_values import misused_value

NOTHING, SENDER, HANDLE = "all_reduce returns: None.", "recv returns: the sender's rank.", "returns: a handle."


@pytest.mark.parametrize(
    "source, says",
    [
        ("p.grad = dist.all_reduce(p.grad)", NOTHING),
        ("rows[0] = dist.all_reduce(x)", NOTHING),
        ("mean = dist.all_reduce(x) / n", NOTHING),
        ("x = dist.all_reduce(x)\nmean = x / n", NOTHING),
        ("def f(x):\n    return dist.all_reduce(x)", NOTHING),
        ("sums = [torch.distributed.all_reduce(x) for x in xs]", NOTHING),
        ("gathered = dist.all_gather(parts, x)\nreturn torch.cat(gathered)", "all_gather returns: None."),
        ("dist.all_reduce(x).wait()", "Only with async_op=True does all_reduce return a handle"),
        ("handles.append(dist.all_reduce(x))", "Only with async_op=True does all_reduce return a handle"),
        ("return flat, dist.all_gather(parts, x)", "Only with async_op=True does all_gather return a handle"),
        ("total += dist.recv(x, src=0)", SENDER),
        ("got = dist.recv(x, 0)\nreturn got", SENDER),
        ("rows.append(dist.recv(x, 0))", SENDER),
        ("rows = [dist.recv(x, src=r) for r in ranks]", SENDER),
        ("mean = dist.all_reduce(x, async_op=True) / n", HANDLE),
        ("s = dist.irecv(x, 0)\ns.wait()\nreturn s + 1", HANDLE),
        ("p.grad = dist.all_reduce(p.grad, async_op=True)", HANDLE),
    ],
)
def test_a_value_that_is_taken_for_the_result_is_named(source, says):
    indented = "\n    ".join(["def answer(x):", *source.splitlines()])
    assert says in misused_value(indented), misused_value(indented)


@pytest.mark.parametrize(
    "source",
    [
        "dist.all_reduce(x)\nreturn x / n",
        "sender = dist.recv(x)\nrows[sender] = x",
        "handle = dist.isend(x, 1)\nhandle.wait()",
        "handles = [dist.isend(x, r) for r in ranks]\nfor one in handles:\n    one.wait()",
        "handles[0] = dist.all_reduce(x, async_op=True)",
        "return flat, dist.all_gather(parts, x, async_op=True)",
        "flat, sender = x, dist.recv(x)\nreturn sender",
        "work = dist.all_reduce(x, async_op=later)\nif work is not None:\n    work.wait()",
        "[dist.recv(x, src=r) for r in ranks]",
        "dist.send(x, 1) if rank == 0 else dist.recv(x, 0)",
        "dist.send(x, 0) if rank else [dist.recv(x, src=r) for r in ranks]",
        "x = dist.all_reduce(x) or x\nreturn x",
        "kept = dist.broadcast(x, 0)\nkept = x\nreturn kept",
        "total = all_reduce(x)\nreturn total / n",
        "%time dist.all_reduce(x)",
    ],
)
def test_nothing_is_said_of_other_uses(source):
    assert misused_value("\n    ".join(["def answer(x):", *source.splitlines()])) == ""


def takes_none(rank, world_size):
    import torch
    import torch.distributed as dist

    total = dist.all_reduce(torch.ones(2))
    return total / 2


def test_an_exception_that_comes_of_it_is_explained():
    with pytest.raises(RankError) as failed:
        spawn(takes_none, 2, backend="gloo")
    assert "`total = dist.all_reduce(torch.ones(2))` takes what all_reduce returns: None." in str(failed.value)
