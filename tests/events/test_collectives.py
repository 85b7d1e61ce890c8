"""The table of collectives: every part of the library works for an invented one, or refuses it by name."""

import re
from dataclasses import replace
from importlib.util import find_spec, module_from_spec

import pytest
import torch
import torch.distributed as dist

from tests.cluster.test_gloo_costs import machine
from utils import figures
from utils.benchmark import nccl_conventions, rank_program
from utils.cluster import collective_costs
from utils.cluster.collective_costs import Layout, cost, hierarchical
from utils.cluster.presets import PRESETS
from utils.diagnosis.mismatch import difference
from utils.diagnosis.silent_mistakes import contents, explain_silence, is_for_all
from utils.events.collectives import ALL, COLLECTIVES, ROOT, Collective, Method, fills, form_of
from utils.events.rank_state import RankState
from utils.recording.in_flight import flight_of
from utils.recording.torch_calls import OPERATIONS, CallOptions, handed_in, new_event
from utils.report.traffic import Traffic
from utils.worlds.virtual.argument_checks import argument_error
from utils.worlds.virtual.calls import VirtualCall
from utils.worlds.virtual.data_movement import deliver
from utils.worlds.virtual.network import payload

# Each rank hands in a part for each other rank, and only the root gets a sum: of the parts that are for it.
INVENTED = Collective("sum_parts", ALL, ROOT, True, True, "#123456", {"_sum_parts": Method("tensor", "whole")})
RANKS = 4
REFUSES = "has no rule for 'sum_parts'. Add it there: events/collectives.py has the collective."


@pytest.fixture
def invented(monkeypatch):
    monkeypatch.setitem(COLLECTIVES, INVENTED.name, INVENTED)


@pytest.fixture(autouse=True)
def torch_has_its_method(monkeypatch):
    monkeypatch.setitem(OPERATIONS, "_sum_parts", INVENTED.name)


def calls(**of_rank_2):
    """One call per rank, to root 1; rank r hands in [10r, 10r + 1, ...]."""
    made = []
    for rank in range(RANKS):
        whole = torch.arange(10 * rank, 10 * rank + RANKS)
        event = new_event(
            "_sum_parts",
            [whole],
            CallOptions(1, 0, "sum"),
            rank=rank,
            index=0,
            group="world",
            members=tuple(range(RANKS)),
            is_async=False,
            start=0.0,
            where="train.py:3",
            wrapper="",
        )
        event = replace(event, end=1.0, **of_rank_2 if rank == 2 else {})
        made.append(VirtualCall(event, "_sum_parts", (torch.zeros(1, dtype=torch.int64), whole)))
    return made


def events(**of_rank_2):
    return [call.event for call in calls(**of_rank_2)]


def freshly_imported(name):
    """A module that derives something from the table when it is imported, as it would be in a new process."""
    spec = find_spec(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_values_are_moved(invented):
    made = calls()
    deliver(made)
    assert [int(call.args[0]) for call in made] == [0, 1 + 11 + 21 + 31, 0, 0]


def test_it_is_recorded(invented):
    assert freshly_imported("utils.recording.torch_calls").OPERATIONS["_sum_parts"] == "sum_parts"
    share, whole = calls()[2].args
    assert handed_in("sum_parts", (share, whole)) == [whole]
    event = events()[2]
    assert (event.op, event.bytes, event.shape, event.dtype) == ("sum_parts", 8 * RANKS, (RANKS,), "int64")
    watched = [flight_of("sum_parts", (share, whole), is_root, "") for is_root in (True, False)]
    assert [len(flight.receives) for flight in watched] == [1, 0]


def test_its_arguments_are_checked(invented):
    share, whole = torch.zeros(2), torch.zeros(RANKS)
    said = argument_error("_sum_parts", "sum_parts", (share, whole), RANKS, "sum")
    assert said.startswith("sum_parts on 4 ranks got tensors of shapes [4] and [2]")
    assert form_of("sum_parts", "_sum_parts") == Method("tensor", "whole")


def test_its_mistakes_are_found(invented):
    of_rank = dict(enumerate(events(reduce_op="max")))
    assert "sum_parts needs the same reduce op on every rank" in difference(of_rank)
    of_rank = dict(enumerate(events(shape=(2,))))
    assert "sum_parts needs the same shape and dtype on every rank" in difference(of_rank)
    assert contents(of_rank[2]) != contents(of_rank[1]) and not is_for_all("sum_parts")
    never_waited = [
        RankState(rank, [event], finished=True, unused_handles={0: "train.py:3"}) for rank, event in enumerate(events())
    ]
    assert "Rank 1 started an asynchronous sum_parts and never waited for it" in explain_silence(never_waited)
    assert fills("sum_parts", True) and not fills("sum_parts", False)


def test_its_bytes_are_counted(invented):
    made = calls()
    traffic = Traffic(RANKS, events())
    assert [counted["sum_parts"].handed_in for counted in traffic.collectives] == [32] * RANKS
    assert payload({call.event.rank: call for call in made}, dict.fromkeys(range(RANKS), 1)) == 32
    conventions = freshly_imported("utils.benchmark.nccl_conventions")
    assert conventions.total_bytes("sum_parts", 32, 4) == 32 and conventions.bus_factor("sum_parts", 4) == 3 / 4
    assert conventions.count_of("sum_parts", 64, 4, 4) == 4


def test_it_has_a_colour(invented):
    assert figures.WORK["all_reduce"] == COLLECTIVES["all_reduce"].colour
    assert freshly_imported("utils.figures.work").colours_of_work(["sum_parts"]) == {"sum_parts": "#123456"}


@pytest.mark.parametrize("place", ["collective_costs", "nccl_costs", "gloo_costs"])
def test_its_time_is_refused_by_name(place, invented):
    """It isn't charged as something else."""
    cluster = machine(8) if place == "gloo_costs" else PRESETS["dgx-h100"]
    cluster = replace(cluster, rates="datasheet") if place == "collective_costs" else cluster
    with pytest.raises(NotImplementedError, match=re.escape(f"cluster/{place}.py {REFUSES}")):
        cost("sum_parts", 1e6, cluster, Layout.of(cluster, range(8)))


def test_its_time_is_asked_for_where_the_rest_is_known(invented, monkeypatch):
    monkeypatch.setattr(collective_costs, "algorithms", lambda op, n, group: {"ring": group.ring(n)})
    cluster = replace(PRESETS["dgx-h100"], nodes=2)
    with pytest.raises(NotImplementedError, match="hierarchical in cluster/collective_costs.py has no rule"):
        hierarchical("sum_parts", 1e6, Layout.of(cluster, range(16)), cluster)


def test_a_benchmark_refuses_it_by_name(invented, monkeypatch):
    monkeypatch.setattr(nccl_conventions, "OPS", (*nccl_conventions.OPS, "sum_parts"))
    call = rank_program.Call("sum_parts", 64, torch.float32, 0, RANKS)
    with pytest.raises(NotImplementedError, match=re.escape(f"rank_program.py {REFUSES}")):
        call()


def test_a_name_that_is_not_in_the_table_is_an_error_that_says_where_to_add_it():
    with pytest.raises(LookupError, match="no collective 'sum_parts' in events/collectives.py: it has to be"):
        deliver(calls())
    with pytest.raises(LookupError, match="events/collectives.py"):
        Traffic(RANKS, events())
    with pytest.raises(LookupError, match="all_gather has no method '_new_name' in events/collectives.py"):
        form_of("all_gather", "_new_name")


@pytest.mark.parametrize("one", COLLECTIVES.values(), ids=COLLECTIVES)
def test_torchs_arguments_have_the_form_that_the_collective_asks_for(one):
    for name, method in one.methods.items():
        assert bool(method.read) == one.in_chunks, name
        assert bool(method.filled) == (one.gives != "nobody"), name
        assert hasattr(dist.ProcessGroup, name) or name.endswith(("_single", "_coalesced")) or name.startswith("_")
