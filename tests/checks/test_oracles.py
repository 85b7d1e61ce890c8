"""utils/checks/oracles.py: cases, and what the engine makes of them."""

import pytest
import torch.distributed as dist

from utils.checks import CheckFailed
from utils.checks.oracles import Case
from utils.checks.runner import Runner, links

# ---- answers


def fetches(rank, world_size, key):
    return {"a": 1}[key]


def says_hello(rank, world_size):
    dist.barrier()
    return f"hello {rank}"


# ---- the tests


def test_an_error_comes_with_the_advice_of_the_case():
    advice = {"KeyError": "Look under another name.", "IndexError": "Count."}
    with pytest.raises(CheckFailed, match="KeyError: 'b'") as failed:
        Case(world_size=1, same={"key": "b"}, advice=advice).run(Runner(fetches), "values")
    assert failed.value.mistake == "Look under another name."


def test_where_many_answers_are_right_they_are_judged_by_their_properties():
    def expect_hello(answer):
        assert answer.results == ["hello 0", "hello 1"]
        return "polite"

    case = Case(world_size=2, also=expect_hello)
    assert case.judge(case.run(Runner(says_hello), "values"), "values") == "polite"


@pytest.mark.parametrize("judges", ["values", "time", "memory"])
def test_time_and_memory_are_judged_on_the_clock(judges):
    clock = links(2, alpha=1.0, bandwidth=1.0)
    run = Case(world_size=2, clock=clock).run(Runner(says_hello), judges).run
    assert run.world == ("spawn" if judges == "values" else "virtual")
