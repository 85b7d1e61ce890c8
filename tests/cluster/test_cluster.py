"""utils/cluster: clusters as data, and what a collective costs on one."""

import pickle
from dataclasses import replace
from fractions import Fraction
from math import ceil, inf, log2, nan

import pytest

from utils import figures
from utils.cluster import Cluster, Gpu, Link
from utils.cluster.collective_costs import Layout, cost
from utils.cluster.presets import PRESETS, find_cluster
from utils.events.collectives import COLLECTIVES
from utils.figures.picture import DPI, NOTEBOOK
from utils.text.units import quantity

GPU = Gpu(flops={"bf16": 989e12, "fp32": 67e12}, memory=80e9, bandwidth=3.35e12, launch=4e-6)
# Rational numbers are added exactly, whatever the order: formulas are compared with ==.
A, B = Fraction(3, 7), Fraction(1, 11)  # alpha and beta inside a node, in s and s/byte
SLOW_A, SLOW_B = Fraction(19, 3), Fraction(5, 13)  # between nodes
N = Fraction(10**9, 17)  # bytes
EXACT = Cluster("exact", 16, 8, GPU, Link(A, 1 / B), Link(SLOW_A, 1 / SLOW_B))


def levels(ranks):
    return ceil(log2(ranks))


def of(op, ranks, cluster=EXACT, nbytes=N):
    return cost(op, nbytes, cluster, Layout.of(cluster, ranks))


RING = "ring", lambda p, a, b: (p - 1) * a + (p - 1) * N / p * b
BY_ROOT = "tree", lambda p, a, b: 2 * levels(p) * a + ((p - 1) * N / p + levels(p) * N) * b
TREE = "tree", lambda p, a, b: levels(p) * (a + N * b)
FAN = "tree", lambda p, a, b: levels(p) * a + (p - 1) * N / p * b
STRAIGHT = "straight", lambda p, a, b: (p - 1) * (a + N / p * b)
LONG = "scatter + all-gather", lambda p, a, b: (levels(p) + p - 1) * a + 2 * (p - 1) * N / p * b
FORMULAS = [
    ("all_reduce", "ring", lambda p, a, b: 2 * (p - 1) * a + 2 * (p - 1) * N / p * b),
    ("all_reduce", "tree", lambda p, a, b: 2 * levels(p) * (a + N * b)),
    *(("all_gather", *form) for form in (RING, BY_ROOT)),
    *(("reduce_scatter", *form) for form in (RING, BY_ROOT)),
    *(("broadcast", *form) for form in (TREE, LONG)),
    *(("reduce", *form) for form in (TREE, ("reduce-scatter + gather", LONG[1]))),
    *((op, *form) for op in ("gather", "scatter") for form in (FAN, STRAIGHT)),
    ("all_to_all", "pairwise", STRAIGHT[1]),
    ("barrier", "ring", lambda p, a, b: 2 * (p - 1) * a),
    ("barrier", "tree", lambda p, a, b: 2 * levels(p) * a),
]


@pytest.mark.parametrize("op, algorithm, formula", FORMULAS)
def test_closed_forms_hold_exactly_inside_a_node_and_with_one_rank_on_each(op, algorithm, formula):
    for ranks in (2, 3, 5, 8):
        assert of(op, range(ranks)).candidates[algorithm] == formula(ranks, A, B)
        assert of(op, range(0, 8 * ranks, 8)).candidates[algorithm] == formula(ranks, SLOW_A, SLOW_B)
        assert len(of(op, range(ranks)).candidates) == sum(entry[0] == op for entry in FORMULAS)


def test_floats_agree_with_the_formula_too():
    machine = find_cluster("dgx-h100", 8, rates="datasheet")
    for nbytes in (1, 1e6, 2**30 + 1):
        ring = 2 * 7 * 3e-6 + 2 * 7 / 8 * nbytes / 450e9
        assert of("all_reduce", range(8), machine, nbytes).candidates["ring"] == pytest.approx(ring, rel=1e-12)


def test_across_nodes_a_ring_pays_the_slow_link_in_every_step_and_a_tree_in_every_level_that_crosses():
    found = of("all_reduce", range(32)).candidates
    assert found["ring"] == 2 * 31 * (SLOW_A + N / 32 * SLOW_B)
    assert found["tree"] == 2 * 3 * (A + N * B) + 2 * 2 * (SLOW_A + N * SLOW_B)
    fast_network = replace(EXACT, inter=Link(0, inf))
    assert of("all_reduce", range(32), fast_network).candidates["ring"] == 2 * 31 * (A + N / 32 * B)
    # Only the nodes that a group uses count, not how its ranks are ordered or which nodes they are.
    assert of("all_reduce", [0, 8, 1, 9]).candidates == of("all_reduce", [96, 97, 40, 41]).candidates


def test_a_tree_over_nodes_costs_what_its_messages_take():
    """Broadcast and scatter over 4 nodes x 8 ranks, message by message: each half sends to the other, and so on."""

    def arrival(ranks, start, pieces):  # at the last of `ranks`, if the first has everything at `start`
        if len(ranks) == 1:
            return start
        half = len(ranks) // 2
        end = start + EXACT.link(ranks[0], ranks[half]).seconds(N if pieces is None else pieces * half)
        return max(arrival(ranks[:half], end, pieces), arrival(ranks[half:], end, pieces))

    assert of("broadcast", range(32)).candidates["tree"] == arrival(range(32), 0, None)
    assert of("scatter", range(32)).candidates["tree"] == arrival(range(32), 0, N / 32)


def inside_and_between(op, sharing):
    """`hierarchical` on 4 nodes x 8 ranks, by rings and pairs."""
    inside, between = 7 * A + 7 * N / 8 * B, 3 * SLOW_A + sharing * 3 * N / 32 * SLOW_B
    return {
        "all_reduce": 2 * inside + 2 * between,
        "all_gather": inside + between,
        "reduce_scatter": inside + between,
        "all_to_all": inside + 3 * SLOW_A + sharing * 3 * N / 4 * SLOW_B,
        "gather": 3 * A + 7 * N / 8 * B + 2 * SLOW_A + sharing * 3 * N / 32 * SLOW_B,
        "scatter": 3 * A + 7 * N / 8 * B + 2 * SLOW_A + sharing * 3 * N / 32 * SLOW_B,
        "broadcast": 3 * A + 7 * N / 8 * B + inside + 2 * SLOW_A + between + sharing * 3 * N / 32 * SLOW_B,
        "reduce": 3 * A + 7 * N / 8 * B + inside + 2 * SLOW_A + between + sharing * 3 * N / 32 * SLOW_B,
    }[op]


@pytest.mark.parametrize("op", [op for op in COLLECTIVES if op != "barrier"])
def test_ranks_that_share_a_nic_wait_for_each_others_bytes_but_not_for_their_latency(op):
    for nics, sharing in ((None, 1), (4, 2), (1, 8)):
        machine = replace(EXACT, nics=nics)
        assert of(op, range(32), machine).candidates["hierarchical"] == inside_and_between(op, sharing)
    spread = [8 * node + gpu for node in range(4) for gpu in (0, 2, 4, 6)]  # no two share one of 4 NICs
    assert of(op, spread, replace(EXACT, nics=4)).candidates == of(op, spread).candidates


def test_pairs_of_an_all_to_all_inside_nodes_and_between_them_are_counted_separately():
    expected = 7 * (A + N / 32 * B) + 24 * SLOW_A + 2 * 24 * N / 32 * SLOW_B
    assert of("all_to_all", range(32), replace(EXACT, nics=4)).candidates["pairwise"] == expected


def test_a_hierarchy_is_worth_it_across_nodes_but_not_for_a_few_bytes():
    machine = find_cluster("dgx-h100", 64, rates="datasheet")
    large, small = (of("all_reduce", range(64), machine, nbytes) for nbytes in (25e6, 8))
    assert (large.algorithm, small.algorithm) == ("hierarchical", "tree")
    assert large.candidates["ring"] > 5 * large.seconds
    assert "hierarchical" not in of("all_reduce", range(8), machine).candidates  # one node
    assert "hierarchical" not in of("all_reduce", range(0, 64, 8), machine).candidates  # one rank on each
    uneven = Layout.of(machine, range(12))
    assert (uneven.per_node, uneven.most, uneven.least) == (None, 8, 4)
    assert list(cost("all_reduce", 25e6, machine, uneven).candidates) == ["ring", "tree"]


@pytest.mark.parametrize("ranks, units", [(4, 0.8), (8, 1.9), (64, 11.4)])
def test_tree_and_ring_cross_where_the_formulas_say(ranks, units):
    machine = replace(EXACT, gpus_per_node=64)
    depth = levels(ranks)
    crossing = (ranks - 1 - depth) / (depth - Fraction(ranks - 1, ranks)) * A / B
    assert float(crossing * B / A) == pytest.approx(units, abs=0.05)
    below, at, above = (of("all_reduce", range(ranks), machine, crossing + step) for step in (-1, 0, 1))
    assert (below.algorithm, at.algorithm, above.algorithm) == ("tree", "ring", "ring")  # at a tie, the first listed
    assert at.candidates["tree"] == at.candidates["ring"]


def test_a_switch_that_adds_up():
    nvlink_sharp = replace(EXACT, intra=replace(EXACT.intra, reduces=True))
    inside = {op: of(op, range(8), nvlink_sharp).candidates.get("in-switch") for op in COLLECTIVES}
    assert inside["all_reduce"] == 2 * A + N * B
    assert inside["reduce"] == A + N * B
    assert inside["reduce_scatter"] == A + 7 * N / 8 * B
    assert inside["barrier"] == 2 * A
    assert {op for op, seconds in inside.items() if seconds is None} == {*COLLECTIVES} - {
        *("all_reduce", "reduce", "reduce_scatter", "barrier")
    }
    across = of("all_reduce", range(32), nvlink_sharp).candidates
    assert "in-switch" not in across  # no single switch connects them all, but part of the hierarchy has one
    assert across["hierarchical"] == inside_and_between("all_reduce", 1) - 6 * A
    infiniband_sharp = replace(EXACT, inter=replace(EXACT.inter, reduces=True), nics=4)
    assert of("all_reduce", range(0, 32, 8), infiniband_sharp).candidates["in-switch"] == 2 * SLOW_A + N * SLOW_B
    added = 2 * (7 * A + 7 * N / 8 * B) + 2 * SLOW_A + 2 * N / 8 * SLOW_B
    assert of("all_reduce", range(32), infiniband_sharp).candidates["hierarchical"] == added


def test_one_rank_and_a_cluster_without_costs():
    alone = of("all_reduce", [5])
    assert (alone.algorithm, alone.seconds) == ("nothing to do", 0)
    free = Cluster("free", 4, 8, Gpu({"fp32": inf}, inf, inf), Link(0, inf), Link(0, inf))
    for op in COLLECTIVES:
        assert of(op, range(32), free).seconds == 0
        assert of(op, range(32), free).algorithm == next(iter(of(op, range(32)).candidates))


def test_a_cost_says_what_it_consists_of_and_why():
    machine = find_cluster("ethernet-cloud", 32)
    shown = repr(of("all_reduce", range(32), machine, 1e8))
    assert shown.startswith("all_reduce of 100 MB, 32 ranks, 4 nodes of ethernet-cloud\n")
    assert "* hierarchical" in shown and "6 x 50 µs   2 x 18.75 MB / 25 GB/s" in shown
    why = of("all_reduce", range(8), machine, 8).why
    assert why == "tree: 18 µs; ring 42 µs: latency decides, 18 µs in tree, 42 µs in ring"
    why = of("all_reduce", range(8), machine, 1e9).why
    assert why == "ring: 3.931 ms; tree 13.35 ms: the bytes decide, 3.889 ms in ring, 13.33 ms in tree"
    assert all(of(op, ranks, machine, 1e6).why for op in COLLECTIVES for ranks in (range(8), range(32), [3]))


def test_groups_placed_alike_share_a_layout_whose_cost_is_computed_once():
    columns = {Layout.of(EXACT, range(gpu, 128, 8)) for gpu in range(8)}
    assert columns == {Layout(size=16, nodes=16, per_node=1, most=1, least=1, sharing=1)}
    assert Layout.of(replace(EXACT, nics=2), [0, 1, 2, 4, 9]).sharing == 3
    machine = find_cluster("dgx-a100", 16)
    first, second = (of("all_reduce", ranks, machine, 123) for ranks in (range(4), range(8, 12)))
    assert first is second


# ---- clusters


def test_where_a_rank_sits():
    machine = replace(EXACT, nodes=2, nics=4)
    assert machine.size == 16 and machine.gpus_per_nic == 2
    assert [machine.node_of(rank) for rank in (0, 7, 8, 15)] == [0, 0, 1, 1]
    assert [machine.nic_of(rank) for rank in (0, 1, 2, 7, 8, 15)] == [(0, 0), (0, 0), (0, 1), (0, 3), (1, 0), (1, 3)]
    assert machine.link(3, 7) is machine.intra and machine.link(7, 8) is machine.inter
    assert EXACT.nic_of(9) == (1, 1)
    assert Link(2e-6, 450e9).seconds(450e9) == 2e-6 + 1
    with pytest.raises(ValueError, match="no rank 16 in 'exact': it has ranks 0 to 15"):
        machine.node_of(16)


def test_a_cluster_is_a_value():
    assert replace(EXACT) == EXACT and hash(replace(EXACT)) == hash(EXACT)
    assert pickle.loads(pickle.dumps(EXACT)) == EXACT
    assert replace(EXACT, intra=EXACT.inter) != EXACT
    assert replace(EXACT, gpu=replace(GPU, flops={"bf16": 1.0})) != EXACT


@pytest.mark.parametrize(
    "flops, dtype, peak",
    [
        ({"bf16": 8, "fp32": 2, "tf32": 4}, "float32", 2),  # torch uses tf32 only on request
        ({"bf16": 8, "fp32": 2, "tf32": 4}, "tf32", 4),
        ({"bfloat16": 8, "float32": 2}, "bfloat16", 8),
        ({"bf16": 8, "fp32": 2}, "torch.float16", 8),
        ({"fp16": 8, "fp32": 2}, "bfloat16", 8),
        ({"fp32": 2}, "bfloat16", 2),
        ({"bf16": 8, "int8": 16, "fp32": 2}, "float8_e4m3fn", 8),  # an A100: no fp8, and int8 doesn't help
        ({"bf16": 8, "int8": 16, "fp32": 2}, "int8", 16),
        ({"bf16": 8, "fp8": 16, "fp32": 2}, "int8", 16),
        ({"bf16": 8, "fp32": 2}, "float64", 1),
        ({"bf16": 8, "fp32": 2, "fp64": 0.5}, "float64", 0.5),
        ({"bf16": 8, "fp8": 16}, "float32", 8),
        ({"int8": 16}, "bfloat16", 16),
        ({"bf16": 8, "fp32": 2}, "int64", 2),
        ({"bf16": inf}, "float64", inf),
    ],
)
def test_peaks_by_dtype_and_the_dtype_that_stands_in(flops, dtype, peak):
    assert Gpu(flops, 1, 1).peak(dtype) == peak


@pytest.mark.parametrize(
    "make, error, words",
    [
        (
            lambda: Link(2e-6, 0),
            ValueError,
            "Link.bandwidth is 0; it must be above 0, in bytes/s one way, such as 450e9",
        ),
        (lambda: Link(2e-6, -1.5), ValueError, "Link.bandwidth is -1.5"),
        (lambda: Link(2e-6, nan), ValueError, "Link.bandwidth is nan"),
        (
            lambda: Link(2e-6, "450 GB/s"),
            TypeError,
            "Link.bandwidth is '450 GB/s'; it must be a number, in bytes/s",
        ),
        (lambda: Link(-1e-6, 1), ValueError, "Link.alpha is -1e-06; it must be 0 or more, in seconds, such as 2e-6"),
        (lambda: Link(inf, 1), ValueError, "Link.alpha is inf, so nothing would ever finish"),
        (lambda: Link(True, 1), TypeError, "Link.alpha is True; it must be a number"),
        (lambda: Link(1, 1, reduces="yes"), TypeError, "Link.reduces is 'yes'"),
        (lambda: Gpu({}, 1, 1), ValueError, "Gpu.flops is empty; it must give the FLOP/s"),
        (lambda: Gpu(989e12, 1, 1), TypeError, "Gpu.flops is 989000000000000.0; it must give the FLOP/s of each dtype"),
        (lambda: Gpu({"bf61": 1}, 1, 1), ValueError, "no dtype 'bf61': did you mean 'bf16'"),
        (lambda: Gpu({"bf16": 1, "bfloat16": 2}, 1, 1), ValueError, "two peaks for bf16: bf16, bfloat16"),
        (lambda: Gpu({"bf16": 0}, 1, 1), ValueError, r"Gpu.flops\['bf16'\] is 0; it must be above 0, in FLOP/s, dense"),
        (lambda: Gpu({"bf16": 1}, None, 1), TypeError, "Gpu.memory is None; it must be a number, in bytes"),
        (lambda: Gpu({"bf16": 1}, 1, 0), ValueError, "Gpu.bandwidth is 0; it must be above 0, in bytes/s"),
        (lambda: Gpu({"bf16": 1}, 1, 1, launch=-1), ValueError, "Gpu.launch is -1; it must be 0 or more, in seconds"),
        (lambda: GPU.peak("floaty32"), ValueError, "no dtype 'floaty32': did you mean 'float32'"),
        (lambda: replace(EXACT, nodes=0), ValueError, "Cluster.nodes is 0"),
        (
            lambda: replace(EXACT, gpus_per_node=8.0),
            TypeError,
            "gpus_per_node is 8.0; it must be a whole number",
        ),
        (lambda: replace(EXACT, nics=3), ValueError, "Cluster.nics is 3, with 8 GPUs per node"),
        (lambda: replace(EXACT, nics=16), ValueError, "Cluster.nics is 16, with 8 GPUs.*add up their bandwidths"),
        (lambda: replace(EXACT, inter=50e9), TypeError, r"Cluster.inter is 50000000000.0; it must be a Link\(...\)"),
        (lambda: replace(EXACT, gpu="h100"), TypeError, r"Cluster.gpu is 'h100'; it must be a Gpu\(...\)"),
        (lambda: replace(EXACT, name=""), TypeError, "Cluster.name is ''"),
        (lambda: find_cluster("dgx-h10", 8), ValueError, "no cluster 'dgx-h10': did you mean 'dgx-h100'.*gb200-nvl72"),
        (
            lambda: find_cluster(None, 8),
            TypeError,
            "cluster is None; it must be a Cluster or one of the names dgx",
        ),
        (lambda: find_cluster("laptop", 0), ValueError, "world_size is 0"),
        (
            lambda: find_cluster(EXACT, 129),
            ValueError,
            r"129 ranks don't fit on 'exact': .* room for 128.*nodes=17\)",
        ),
        (lambda: Layout.of(EXACT, []), ValueError, "at least one rank"),
        (lambda: Layout.of(EXACT, [1, 1]), ValueError, "each rank only once"),
        (lambda: Layout.of(EXACT, [0, 128]), ValueError, "no rank 128"),
        (lambda: of("allreduce", range(8)), ValueError, "no collective 'allreduce': did you mean 'all_reduce'"),
        (lambda: of("all_reduce", range(8), nbytes=-1), ValueError, "nbytes is -1"),
        (lambda: of("all_reduce", range(8), nbytes=nan), ValueError, "nbytes is nan"),
        (lambda: of("all_reduce", range(8), nbytes="1 MB"), TypeError, "nbytes is '1 MB'"),
    ],
)
def test_nonsense_is_refused_with_a_message(make, error, words):
    with pytest.raises(error, match=words):
        make()


# ---- presets


def test_presets_are_dense_and_one_way():
    """The figures that are often quoted doubled: peaks with sparsity, links with both directions together."""
    a100, h100, b200, rack = (PRESETS[name] for name in ("dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72"))
    assert [a100.gpu.peak(name) for name in ("bfloat16", "tf32", "float32", "int8")] == [
        312e12,
        156e12,
        19.5e12,
        624e12,
    ]
    assert [h100.gpu.peak(name) for name in ("bf16", "tf32", "fp32", "fp8")] == [989e12, 494.5e12, 67e12, 1979e12]
    assert (b200.gpu.peak("bf16"), rack.gpu.peak("bf16")) == (2250e12, 2500e12)
    assert [machine.intra.bandwidth for machine in (a100, h100, b200, rack)] == [300e9, 450e9, 900e9, 900e9]
    assert [machine.inter.bandwidth for machine in (a100, h100, b200, rack)] == [25e9, 50e9, 50e9, 50e9]
    assert (a100.gpu.bandwidth, h100.gpu.bandwidth) == (2.039e12, 3.35e12)
    assert rack.gpus_per_node == 18 * 4
    assert PRESETS["ethernet-cloud"].nics < PRESETS["ethernet-cloud"].gpus_per_node
    h200, ethernet = PRESETS["dgx-h200"], [PRESETS[name] for name in ("ethernet-cloud", "gcp-a3-mega", "aws-p5")]
    assert h200.gpu.flops == h100.gpu.flops and (h200.gpu.memory, h200.gpu.bandwidth) == (141e9, 4.8e12)
    assert [cloud.inter.bandwidth * (cloud.nics or 8) * 8 / 1e9 for cloud in ethernet] == [800, 1600, 3200]  # Gb/s
    for machine in PRESETS.values():
        assert machine.sources and any("stimate" in source for source in machine.sources)
        assert machine.gpu.peak("float32") < machine.gpu.peak("bfloat16") or machine.name == "laptop"


@pytest.mark.parametrize(
    "name, ranks, nbytes, published",
    [
        ("dgx-h100", range(8), 2**15, 17.9e-6),  # 8 x H200
        ("dgx-a100", (0, 8), 8, 19.0e-6),
        ("dgx-h100", range(16), 8, 46.3e-6),  # 16 x H20
        ("ethernet-cloud", range(16), 8, 123e-6),
        ("dgx-h100", range(8), 16 * 2**30, 16 * 2**30 / 275.6e9),
        ("dgx-b200", range(8), 16 * 2**30, 16 * 2**30 / 479.4e9),
        ("gb200-nvl72", range(72), 8 * 2**30, 8 * 2**30 / 423e9),
    ],
)
def test_presets_come_close_to_published_measurements(name, ranks, nbytes, published):
    machine = find_cluster(name, max(ranks) + 1, rates="datasheet")
    assert of("all_reduce", ranks, machine, nbytes).seconds == pytest.approx(
        published, rel=0.08 if nbytes > 1e9 else 0.2
    )


def test_a_preset_gets_as_many_nodes_as_the_ranks_need():
    assert [find_cluster("dgx-h100", ranks).nodes for ranks in (1, 8, 9, 1024)] == [1, 1, 2, 128]
    assert find_cluster("gb200-nvl72", 73).nodes == 2
    assert find_cluster(EXACT, 128) is EXACT


@pytest.mark.parametrize(
    "amount, unit, shown",
    [
        (450e9, "B/s", "450 GB/s"),
        (1979e12, "FLOP/s", "1,979 TFLOP/s"),
        (1e16, "FLOP/s", "10,000 TFLOP/s"),
        (2.5e-6, "s", "2.5 µs"),
        (999_999, "B", "1 MB"),
        (0.5, "B", "0.5 B"),
        (0, "s", "0 s"),
        (inf, "B/s", "infinite B/s"),
    ],
)
def test_quantities_are_shown_with_the_prefix_that_fits(amount, unit, shown):
    assert quantity(amount, unit) == shown


# ---- describe


def boxes(picture, gid) -> int:
    return sum(patch.get_gid() == gid for patch in picture.axes[0].patches)


def texts(picture) -> list[str]:
    return [text.get_text() for text in picture.axes[0].texts]


def test_describe_prints_every_number_and_draws_the_nodes(capsys):
    picture = find_cluster("ethernet-cloud", 1024).describe()
    printed = capsys.readouterr().out
    assert printed.startswith("ethernet-cloud: 128 nodes x 8 GPUs = 1,024 ranks; 4 NICs per node, one for 2 GPUs\n")
    [bf16] = [line.split() for line in printed.splitlines() if line.split()[:1] == ["bf16"]]
    assert bf16 == ["bf16", "989", "TFLOP/s", "295", "2,200", "79,100"]  # 989e12 / 3.35e12, / 450e9, / 12.5e9
    assert "25 GB/s     50 µs" in printed and "80 GB of it" in printed
    assert "- latencies and launch: estimates" in printed
    assert max(map(len, printed.splitlines())) <= 120
    assert boxes(picture, "node") == 2 and boxes(picture, "GPU") == 16 and boxes(picture, "NIC") == 8
    assert texts(picture).count("inside: 450 GB/s one way, 3 µs") == 2
    assert {"15", "x 126\nmore", "between nodes, each NIC: 25 GB/s one way, 50 µs"} <= set(texts(picture))
    assert picture.title == "ethernet-cloud: 128 nodes x 8 GPUs"


def test_one_node_is_drawn_without_a_network_and_large_clusters_fit_on_a_screen():
    one = figures.cluster(find_cluster("dgx-h100", 8))
    assert boxes(one, "GPU") == 8 and boxes(one, "NIC") == 0 and not any("between" in text for text in texts(one))
    rack = figures.cluster(find_cluster("gb200-nvl72", 720))
    assert boxes(rack, "GPU") == 144 and texts(rack).count("72 NICs") == 2 and "x 8\nmore" in texts(rack)
    huge = figures.cluster(replace(EXACT, gpus_per_node=1000))
    assert texts(huge).count("x 928 more") == 2
    for picture in (one, rack, huge):
        assert picture.get_figwidth() * DPI <= NOTEBOOK and picture.get_figheight() * DPI < 720
    assert len(rack.png()) < 100_000


def test_a_cluster_without_costs_can_be_described(capsys):
    free = Cluster("free", 2, 1, Gpu({"fp32": inf}, inf, inf), Link(0, inf), Link(0, inf, reduces=True))
    assert "between nodes, each NIC: infinite B/s one way, 0 s, adds up" in texts(free.describe())
    assert "infinite FLOP/s" in capsys.readouterr().out
