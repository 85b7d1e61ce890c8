"""Achieved rates: parts of a datasheet's, matrix products by tiles and waves, collectives by NCCL's model."""

from dataclasses import replace
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.cluster import (
    Cluster,
    Gpu,
    KernelRates,
    Layout,
    Link,
    LinkRates,
    Protocol,
    Uncertainty,
    cost,
    find_cluster,
)
from utils.cluster.achieved import RATES, TILES
from utils.cluster.presets import PRESETS
from utils.events.collectives import COLLECTIVES

PEAK = 1e12
KERNELS = KernelRates(
    matmul=0.5,
    sustained=1.0,
    fill=0.0,
    units=100,
    memory=0.5,
    rows=0.25,
    attention=0.5,
    attention_backward=0.5,
    beside=0.1,
)
ONE_WAVE = 100 * 256 * 128  # elements of a result that the largest tiles cover in one wave
SIZES = st.integers(1, 20_000)
ACHIEVED = [name for name, preset in PRESETS.items() if preset.inter.achieved is not None]


def matmul(m, n, k, batch=1, itemsize=2, **more):
    return replace(KERNELS, **more).matmul_seconds(batch, m, n, k, itemsize, PEAK)


def layouts(cluster):
    """One node, several, one rank on each, and nodes that are not full."""
    size = cluster.gpus_per_node
    every = [range(2), range(size), range(3 * size), range(0, 3 * size, size), range(size + 1)]
    return [Layout.of(cluster, ranks) for ranks in every]


def three_nodes(name, **more):
    return replace(PRESETS[name], nodes=3, **more)


# ---- attention


def test_attention_of_each_generation_has_its_rate():
    both = replace(KERNELS, attention_backward=0.4, attention_3=0.75, attention_3_backward=0.6, flash=3)
    parts = {(g, back): both.attention_part(back, g) for g in (2, 3) for back in (False, True)}
    assert parts == {(2, False): 0.5, (2, True): 0.4, (3, False): 0.75, (3, True): 0.6}
    assert KERNELS.attention_part(False, 3) == 0.5, "a GPU without generation 3 takes 2"


@pytest.mark.parametrize(
    "wrong",
    [{"flash": 3}, {"flash": 4}, {"attention_3": 0.5}, {"attention_3": 1.5, "attention_3_backward": 0.5}],
)
def test_rates_of_a_generation_that_does_not_fit_are_refused(wrong):
    with pytest.raises(ValueError, match=r"attention_3"):
        replace(KERNELS, **wrong)


# ---- matrix products


def test_a_product_that_fills_whole_waves_reaches_the_achieved_rate():
    assert matmul(100 * 256, 128, 1000) == pytest.approx(2 * ONE_WAVE * 1000 / (PEAK * 0.5))
    assert matmul(700 * 256, 128, 1000) == pytest.approx(7 * 2 * ONE_WAVE * 1000 / (PEAK * 0.5))


def test_a_wave_that_is_not_full_takes_as_long_as_one_that_is():
    at_rate = 2 * 101 * 256 * 128 * 1000 / (PEAK * 0.5)
    assert matmul(101 * 256, 128, 1000) > 1.05 * at_rate
    assert matmul(99 * 256, 128, 1000) == matmul(100 * 256, 128, 1000)


def test_a_single_tile_uses_one_multiprocessor():
    rows, columns = min(TILES)
    assert matmul(rows, columns, 1000) >= 2 * rows * columns * 1000 / (PEAK * 0.5 / 100)


def test_a_short_k_pays_for_filling_and_a_narrow_dtype_pays_more():
    rate = [2 * ONE_WAVE * k / matmul(100 * 256, 128, k, fill=256.0) for k in (64, 128, 1024, 8192)]
    assert rate == sorted(rate) and rate[0] == pytest.approx(PEAK * 0.5 * 64 / (64 + 128))
    wide, narrow = (matmul(100 * 256, 128, 64, itemsize=size, fill=256.0) for size in (4, 1))
    assert narrow > wide


@given(SIZES, SIZES, SIZES, st.integers(1, 64), st.integers(1, 4))
def test_a_product_is_never_faster_than_the_achieved_rate_and_never_cheaper_for_being_larger(m, n, k, batch, more):
    seconds = matmul(m, n, k, batch, fill=256.0)
    assert seconds >= 2 * batch * m * n * k / (PEAK * 0.5) * (1 - 1e-12)
    for larger in ((m * more, n, k, batch), (m, n + more, k, batch), (m, n, k + more, batch), (m, n, k, batch + more)):
        assert matmul(*larger, fill=256.0) >= seconds


# ---- collectives


def simple(bandwidth=0.5, start=0.0, step=0.0):
    return LinkRates(bandwidth, (Protocol("Simple", start, step, bandwidth),))


def exact(intra, inter, nics=None):
    kernels = Gpu({"fp32": 1e12}, memory=inf, bandwidth=1e12, achieved=KERNELS)
    links = Link(1.0, 100.0, achieved=intra), Link(1.0, 10.0, achieved=inter)
    return Cluster("exact", 4, 8, kernels, *links, nics=nics, rates="achieved")


@pytest.mark.parametrize("op, rounds", [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_costs_its_start_its_steps_and_its_bytes(op, rounds):
    where = exact(simple(start=3.0, step=2.0), simple(start=5.0, step=7.0))
    ring = cost(op, 800.0, where, Layout.of(where, range(8))).candidates["ring, Simple"]
    assert ring == pytest.approx(3 + rounds * (7 * 2 + 7 / 8 * 800 / 50))
    ring = cost(op, 800.0, where, Layout.of(where, range(0, 32, 8))).candidates["ring, Simple"]
    assert ring == pytest.approx(5 + rounds * (3 * 7 + 3 / 4 * 800 / 5))


def test_between_nodes_all_network_cards_of_a_node_carry_a_ring_and_the_slower_tier_counts():
    where = exact(simple(), simple())
    whole = cost("all_reduce", 800.0, where, Layout.of(where, range(16))).candidates["ring, Simple"]
    assert whole == pytest.approx(2 * 15 / 16 * 800 / min(50, 8 * 5))
    shared = replace(where, nics=2)
    slower = cost("all_reduce", 800.0, shared, Layout.of(shared, range(16))).candidates["ring, Simple"]
    assert slower == pytest.approx(2 * 15 / 16 * 800 / (2 * 5))


def test_small_collectives_take_the_quick_protocol_and_large_ones_the_wide_one():
    where = find_cluster("dgx-a100", 8)
    where = replace(where, rates="achieved")
    names = [cost("all_reduce", n, where, Layout.of(where, range(8))).algorithm for n in (8, 2**20, 2**30)]
    assert names[0].endswith(", LL") and names[-1] == "ring, Simple"


def test_a_switch_adds_up_only_for_enough_ranks_of_one_node_and_only_in_an_all_reduce():
    where = three_nodes("dgx-h100", rates="achieved")

    def algorithm(op, ranks):
        return cost(op, 2**30, where, Layout.of(where, ranks)).algorithm

    assert algorithm("all_reduce", range(8)) == "in-switch"
    assert algorithm("all_reduce", range(4)) == algorithm("all_reduce", range(16)) == "ring, Simple"
    assert algorithm("reduce_scatter", range(8)) == "ring, Simple"
    a100 = three_nodes("dgx-a100", rates="achieved")
    assert "in-switch" not in cost("all_reduce", 2**30, a100, Layout.of(a100, range(8))).candidates


@pytest.mark.parametrize("name", ACHIEVED)
@pytest.mark.parametrize("op", COLLECTIVES)
def test_a_collective_of_more_bytes_never_takes_less_time(name, op):
    where = three_nodes(name, rates="achieved")
    for layout in layouts(where):
        seconds = [cost(op, 2.0**power, where, layout).seconds for power in range(0, 36)]
        assert seconds == sorted(seconds)


@pytest.mark.parametrize("name", ACHIEVED)
@pytest.mark.parametrize("op", sorted(set(COLLECTIVES) - {"barrier"}))
def test_inside_a_node_bytes_never_move_faster_than_the_datasheet_says(name, op):
    """Latencies are estimates at both rates, so they are left out; a switch is compared with a perfect one, and what
    NCCL sends in pieces down a chain, where textbooks wait for each message, with the bytes that each rank gets.
    """
    preset = PRESETS[name]
    perfect = replace(preset, intra=Link(0.0, preset.intra.bandwidth, preset.intra.achieved.in_switch is not None))
    achieved = replace(preset, rates="achieved")
    for size in (2, 5, 8):
        for nbytes in (1e3, 1e6, 1e9):
            layout = Layout.of(preset, range(size))
            least = cost(op, nbytes, perfect, layout).seconds
            if op in ("broadcast", "reduce"):
                least = nbytes / preset.intra.bandwidth
            assert cost(op, nbytes, achieved, layout).seconds >= least


@pytest.mark.parametrize("name", ACHIEVED)
def test_between_nodes_bytes_never_move_faster_than_all_network_cards_together(name):
    where = three_nodes(name, rates="achieved")
    size = where.gpus_per_node
    for layout in (Layout.of(where, range(3 * size)), Layout.of(where, range(0, 3 * size, size))):
        cards = ceil(layout.least / layout.sharing) * where.inter.bandwidth
        assert (
            cost("all_gather", 1e9, where, layout).seconds >= 1e9 * (layout.size - layout.least) / layout.size / cards
        )


# ---- data


def test_a_link_at_achieved_rates_carries_messages_at_its_achieved_bandwidth():
    where = exact(simple(0.5), simple(0.25))
    assert where.link(0, 1).seconds(100) == 1 + 100 / 50
    assert where.link(0, 8).seconds(100) == 1 + 100 / 2.5
    assert replace(where, rates="datasheet").link(0, 1).seconds(100) == 2


def test_cost_takes_the_rates_that_simulate_would_take():
    preset = replace(PRESETS["dgx-h100"], nodes=2)
    layout = Layout.of(preset, range(16))
    by_default, datasheet, achieved = (
        cost("all_reduce", 1e6, replace(preset, rates=rates), layout).seconds for rates in (None, *RATES)
    )
    assert by_default == achieved != datasheet
    no_achieved = replace(preset, inter=replace(preset.inter, achieved=None))
    assert cost("all_reduce", 1e6, no_achieved, layout).seconds == datasheet
    assert find_cluster("dgx-h100", 16, rates="datasheet") == replace(preset, rates="datasheet")
    assert find_cluster("dgx-h100", 16) == preset
    assert [preset.at_rates(rates).rates for rates in (None, "datasheet")] == ["achieved", "datasheet"]
    assert replace(preset, rates="datasheet").at_rates().rates == "datasheet"
    assert replace(PRESETS["dgx-h100"], rates="achieved") != PRESETS["dgx-h100"]


@pytest.mark.parametrize(
    "make, words",
    [
        (
            lambda: replace(PRESETS["laptop"], rates="achieved"),
            "'laptop' does not say what its gpu and its intra and its",
        ),
        (lambda: three_nodes("ethernet-cloud", rates="achieved"), 'what its inter achieve.*rates="datasheet"'),
        (lambda: three_nodes("dgx-h100", rates="real"), '"datasheet" or "achieved"; got \'real\''),
        (lambda: replace(KERNELS, matmul=1.5), "KernelRates.matmul is 1.5; it must be a part"),
        (lambda: replace(KERNELS, rows=0), "KernelRates.rows is 0"),
        (lambda: replace(KERNELS, units=0), "units 0"),
        (lambda: simple(bandwidth=2.0), "LinkRates.bandwidth is 2.0"),
        (lambda: LinkRates(1.0, ()), "LinkRates.protocols is empty"),
        (lambda: LinkRates(1.0, (Protocol("LL", 0, 0, 0.0),)), "protocol 'LL' is 0.0"),
    ],
)
def test_rates_that_make_no_sense_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# ---- how sure they are


def test_errors_of_parts_add_up_as_roots_of_squares_and_the_rest_is_certain():
    sure = Uncertainty((0.7, 1.3), (0.6, 1.4), (1.0, 1.0), (0.5, 2.0))
    assert sure.between({"computing": 10.0, "memory": 10.0, "certain": 5.0}) == pytest.approx((20.0, 30.0))
    assert sure.between({"launch": 1.0}) == (0.5, 2.0)
    with pytest.raises(ValueError, match=r"Uncertainty.memory is \(1.1, 1.4\)"):
        Uncertainty((0.7, 1.3), (1.1, 1.4), (1.0, 1.0), (0.5, 2.0))


def test_every_preset_with_achieved_rates_says_how_sure_they_are():
    for name in ACHIEVED:
        assert PRESETS[name].at_rates().uncertainty is not None
    assert PRESETS["dgx-h100"].at_rates("datasheet").uncertainty is None


def test_a_chip_under_full_load_is_the_same_wherever_it_is():
    """`sustained` belongs to the chip; what a site takes away is an option of its own."""
    for name in ACHIEVED:
        here, there = PRESETS[name].at_rates(), replace(PRESETS[name].at_rates(), site=1.25)
        assert here.kernel_rates == here.gpu.achieved == there.gpu.achieved
        assert there.kernel_rates.sustained == pytest.approx(here.kernel_rates.sustained / 1.25)
        assert there.kernel_rates.memory == here.kernel_rates.memory
