"""simulate(rates="achieved"): kernels of each kind at their rates, shared links, and products beside collectives."""

import math
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from utils import simulate
from utils.cluster import Cluster, Gpu, KernelRates, Link, LinkRates, Protocol, Uncertainty, find_cluster, quantity
from utils.cluster.presets import SITES

KERNELS = KernelRates(
    matmul=0.5,
    sustained=1.0,
    fill=0.0,
    units=1,
    memory=0.5,
    rows=0.25,
    attention=0.5,
    attention_backward=0.25,
    beside=0.25,
)
GPU = Gpu({"fp32": 2.0**40, "bf16": 2.0**40}, memory=math.inf, bandwidth=2.0**40, achieved=KERNELS)
LATENCY = 2.0**-10
EXACT = LinkRates(0.5, (Protocol("Simple", LATENCY, 0.0, 0.5),))
CLUSTER = Cluster("exact", 2, 4, GPU, *(Link(LATENCY, 2.0**30, achieved=EXACT) for _ in range(2)), rates="achieved")
BYTES = 2**28


def lasts(call):
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def seconds(kernel, rates, cluster=CLUSTER):
    return simulate(lambda rank, world_size: lasts(kernel()), 1, cluster=cluster, rates=rates).results[0]


def attention(causal, backward=False):
    shape = 1, 16, 1024, 128
    q, k, v = (torch.empty(shape, dtype=torch.bfloat16, requires_grad=backward) for _ in range(3))
    if not backward:
        return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    out, grad = functional.scaled_dot_product_attention(q, k, v, is_causal=causal), torch.empty(shape, dtype=q.dtype)
    return lambda: out.backward(grad)


def adam():
    tensors = [torch.empty(10**6) for _ in range(4)]
    steps = [torch.ones(())]
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8}
    return lambda: torch._fused_adam_(*([t] for t in tensors), [], steps, amsgrad=False, maximize=False, **numbers)


KINDS = {
    "product": lambda: lambda: torch.empty(512, 1024) @ torch.empty(1024, 768),
    "batch of products": lambda: lambda: torch.bmm(torch.empty(8, 64, 128), torch.empty(8, 128, 32)),
    "linear with bias": lambda: lambda: nn.Linear(512, 1024)(torch.empty(128, 512)),
    "convolution": lambda: lambda: nn.Conv2d(16, 32, 3)(torch.empty(8, 16, 64, 64)),
    "attention": lambda: attention(False),
    "sum": lambda: lambda: torch.empty(10**6) + 1,
    "softmax": lambda: lambda: torch.empty(1000, 1000).softmax(-1),
    "layer norm": lambda: lambda: functional.layer_norm(torch.empty(1000, 1000), (1000,)),
    "fused Adam": adam,
}


@pytest.mark.parametrize(
    "where",
    [CLUSTER, "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72"],
    ids=["exact", "a100", "h100", "h200", "b200", "gb200"],
)
def test_no_kernel_is_faster_than_the_datasheet_says(where):
    def program(rank, world_size):
        return {kind: lasts(make()) for kind, make in KINDS.items()}

    achieved, datasheet = (simulate(program, 1, cluster=where, rates=r).results[0] for r in ("achieved", "datasheet"))
    assert {kind: achieved[kind] > datasheet[kind] > 0 for kind in KINDS} == dict.fromkeys(KINDS, True)


def test_kernels_that_memory_limits_reach_the_rate_of_their_kind():
    x = 4 * 2**20
    assert seconds(lambda: lambda: torch.empty(2**20) + 1, "achieved") == 2 * x / (0.5 * 2.0**40)
    assert seconds(lambda: lambda: torch.empty(2**10, 2**10).softmax(-1), "achieved") == 2 * x / (0.25 * 2.0**40)


def test_products_in_8_bits_and_of_groups_are_charged_as_products():
    def program(rank, world_size):
        kind = functional.ScalingType.TensorWise
        x, w = (torch.empty(2048, 2048).to(torch.float8_e4m3fn) for _ in range(2))
        one, wide = torch.ones(()), torch.empty(2048, 2048, dtype=torch.bfloat16)
        experts, ends = wide.view(4, 512, 2048), torch.tensor([512, 1024, 1536, 2048], dtype=torch.int32)
        return [
            lasts(lambda: functional.scaled_mm(x, w.t(), one, kind, one, kind, output_dtype=torch.bfloat16)),
            lasts(lambda: wide @ wide),
            lasts(lambda: functional.grouped_mm(wide[:, :512].contiguous(), experts, offs=ends)),
        ]

    datasheet = Gpu({"fp8": 2.0**40, "bf16": 2.0**39}, memory=math.inf, bandwidth=2.0**50)
    cluster = replace(CLUSTER, gpu=datasheet, rates="datasheet")
    low, wide, grouped = simulate(program, 1, cluster=cluster).results[0]
    assert (low, wide) == (2 * 2048**3 / 2.0**40, 2 * 2048**3 / 2.0**39)
    assert grouped == pytest.approx(wide / 4, rel=0.01)


def test_a_fused_optimizer_is_charged_for_what_it_writes():
    assert seconds(adam, "achieved") == pytest.approx((4 + 3) * 4e6 / (0.5 * 2.0**40), rel=1e-3)


@pytest.mark.parametrize("backward", [False, True])
def test_causal_attention_needs_half_the_work(backward):
    full, causal = (seconds(lambda c=c: attention(c, backward), "achieved") for c in (False, True))
    assert causal == pytest.approx(full / 2)
    forward = 4 * 16 * 1024**2 * 128 / (0.5 * 2.0**40)
    assert full == pytest.approx(forward * (2.5 * 2 if backward else 1))  # 5 products, at half of forward's rate
    assert seconds(lambda: attention(True), "datasheet") == seconds(lambda: attention(False), "datasheet")


def test_the_run_says_which_rates_it_used():
    for cluster, by_default in (("dgx-h100", "achieved"), ("laptop", "datasheet"), (CLUSTER, "achieved")):
        assert simulate(lambda *_: None, 1, cluster=cluster).rates == by_default
    for cluster in ("dgx-h100", CLUSTER, replace(CLUSTER, rates="datasheet")):
        for rates in RATES:
            run = simulate(lambda *_: None, 1, cluster=cluster, rates=rates)
            assert run.rates == rates and f", {rates} rates)" in repr(run)
    assert simulate(lambda *_: None, 1, cluster=replace(CLUSTER, rates="datasheet")).rates == "datasheet"
    with pytest.raises(ValueError, match="'mine' does not say what its gpu"):
        mine = replace(CLUSTER, name="mine", gpu=replace(GPU, achieved=None), rates="datasheet")
        simulate(lambda *_: None, 1, cluster=mine, rates="achieved")


def test_utilisation_is_of_the_datasheets_peak():
    def product(rank, world_size):
        torch.empty(256, 128) @ torch.empty(128, 128)

    assert simulate(product, 1, cluster=CLUSTER).breakdown().hfu == pytest.approx(0.5)


# ---- shared links


def flow(nbytes, ranks=4):
    """Seconds that the bytes of an all-reduce take on an idle link."""
    return 2 * (ranks - 1) / ranks * nbytes / 2.0**29


def together(rank, world_size, sizes):
    groups = [dist.new_group(list(range(world_size))) for _ in sizes]
    start = time.perf_counter()
    works = [dist.all_reduce(torch.empty(n // 4), group=g, async_op=True) for n, g in zip(sizes, groups, strict=True)]
    took = []
    for work in works:
        work.wait()
        took.append(time.perf_counter() - start)
    return took


def test_two_collectives_on_the_same_links_share_them_fairly():
    one, two = simulate(together, 4, [BYTES, BYTES], cluster=CLUSTER).results[0]
    assert one == two == LATENCY + 2 * flow(BYTES)


def test_what_a_short_one_leaves_the_long_one_takes():
    short, long = simulate(together, 4, [BYTES, 3 * BYTES], cluster=CLUSTER).results[3]
    assert short == LATENCY + 2 * flow(BYTES)
    assert long - (2 * LATENCY + 4 * flow(BYTES)) <= LATENCY  # all bytes, one after the other, and latencies overlap
    assert long == LATENCY + 4 * flow(BYTES)


def test_collectives_of_one_group_run_one_after_another():
    def program(rank, world_size):
        works = [dist.all_reduce(torch.empty(BYTES // 4), async_op=True) for _ in range(2)]
        took = []
        for work in works:
            work.wait()
            took.append(time.perf_counter())
        return took

    assert simulate(program, 4, cluster=CLUSTER).results[0] == [
        LATENCY + flow(BYTES),
        2 * (LATENCY + flow(BYTES)),
    ]


def test_groups_on_different_links_do_not_slow_each_other():
    def program(rank, world_size):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        dist.all_reduce(torch.empty(BYTES // 4), group=pairs[rank // 2])
        return time.perf_counter()

    assert simulate(program, 4, cluster=CLUSTER).results == [LATENCY + flow(BYTES, 2)] * 4


def test_messages_to_one_rank_arrive_in_order_and_messages_from_one_rank_share_its_way_out():
    def program(rank, world_size):
        x = torch.empty(BYTES // 4)
        if rank == 0:
            for work in [dist.isend(x, 1), dist.isend(x, 1), dist.isend(x, 2)]:
                work.wait()
        elif rank < 3:
            took = []
            for _ in range(3 - rank):
                dist.recv(x, 0)
                took.append(time.perf_counter())
            return took

    first, second = (results := simulate(program, 4, cluster=CLUSTER).results)[1]
    message = BYTES / 2.0**29
    assert first == results[2][0] == LATENCY + 2 * message
    assert second == 2 * LATENCY + 3 * message


def test_shared_network_cards_are_shared():
    def program(rank, world_size):
        group = [dist.new_group([gpu, gpu + 4]) for gpu in range(4)][rank % 4]
        dist.all_reduce(torch.empty(BYTES // 4), group=group)
        return time.perf_counter()

    own = simulate(program, 8, cluster=CLUSTER).results
    shared = simulate(program, 8, cluster=replace(CLUSTER, nics=2)).results
    assert own == [LATENCY + flow(BYTES, 2)] * 8
    assert shared == [LATENCY + 2 * flow(BYTES, 2)] * 8


def test_a_matrix_product_beside_a_collective_takes_longer_by_the_stated_part_on_every_rank():
    def program(rank, world_size, talks):
        a = torch.empty(2048, 2048)
        work = dist.all_reduce(torch.empty(BYTES // 4), async_op=True) if talks else None
        took = [lasts(lambda: a @ a) for _ in range(100)]
        if work:
            work.wait()
        return took

    [alone] = {*map(tuple, simulate(program, 4, False, cluster=CLUSTER).results)}
    [beside] = {*map(tuple, simulate(program, 4, True, cluster=CLUSTER).results)}
    slower = [pair[1] / pair[0] for pair in zip(alone, beside, strict=True)]
    assert slower[0] == pytest.approx(1.25) and slower[-1] == 1.0
    assert slower == sorted(slower, reverse=True)
    overlapped = sum(took for took, part in zip(beside, slower, strict=True) if part > 1.1)
    assert overlapped == pytest.approx(LATENCY + flow(BYTES), abs=max(beside))


# ---- the same program, the same values


def train(rank, world_size):
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)))
    for _ in range(2):
        model(torch.randn(4, 8)).square().mean().backward()
    got = torch.empty(1)
    if rank == 0:
        senders = sorted(dist.recv(got) for _ in range(world_size - 1))
    else:
        dist.send(torch.full((1,), float(rank)), 0)
        senders = []
    return senders, [p.grad.sum().item() for p in model.parameters()]


def test_rates_change_times_and_nothing_else():
    achieved, datasheet = (
        simulate(train, 4, cluster=CLUSTER, rates=r, device="cpu") for r in ("achieved", "datasheet")
    )
    assert achieved.results == datasheet.results
    assert [(e.rank, e.op, e.bytes) for e in achieved.events] == [(e.rank, e.op, e.bytes) for e in datasheet.events]
    again = simulate(train, 4, cluster=CLUSTER, device="cpu")
    assert [(e.start, e.end) for e in again.events] == [(e.start, e.end) for e in achieved.events]


def test_polling_sees_a_collective_end():
    def program(rank, world_size):
        work = dist.all_reduce(torch.empty(BYTES // 4), async_op=True)
        while not work.is_completed():
            pass
        return time.perf_counter()

    assert simulate(program, 4, cluster=CLUSTER).results == [LATENCY + flow(BYTES)] * 4


def test_a_preset_runs_over_nodes():
    def program(rank, world_size):
        x = torch.empty(10**6)
        dist.all_reduce(x)
        dist.all_to_all_single(torch.empty(16 * 10), torch.empty(16 * 10))
        dist.barrier()

    achieved, datasheet = (simulate(program, 16, cluster=find_cluster("dgx-h100", 16), rates=r).elapsed for r in RATES)
    assert achieved != datasheet


RATES = ("achieved", "datasheet")


# ---- the host, the site, the range

HOST = 2.0**-14
ISSUED = replace(CLUSTER, gpu=replace(GPU, launch=2.0**-20, achieved=replace(KERNELS, host=HOST)))


def test_small_operations_take_as_long_as_the_host_needs_to_issue_them():
    def program(rank, world_size):
        x = torch.empty(8)
        return [lasts(lambda n=n: [x + 1 for _ in range(n)]) for n in (1, 8)]

    run = simulate(program, 1, cluster=ISSUED)
    assert run.results[0] == pytest.approx([HOST, 8 * HOST], rel=0.02)
    assert run.breakdown().mean["launch"] == pytest.approx(run.elapsed, rel=1e-3)


def test_the_host_runs_ahead_of_a_long_kernel_but_not_while_it_sleeps():
    def program(rank, world_size, sleeps):
        x, long = torch.empty(8), torch.empty(2**28)
        if sleeps:
            time.sleep(4 * 2**30 / 2.0**39)
        else:
            long.add_(1)
        return lasts(lambda: [x + 1 for _ in range(8)])

    ahead, slept = (simulate(program, 1, sleeps, cluster=ISSUED).results[0] for sleeps in (False, True))
    assert ahead < HOST / 4
    assert slept == pytest.approx(8 * HOST, rel=0.02)


def test_a_site_stretches_products_and_attention_and_nothing_else():
    def program(rank, world_size):
        a, x = torch.empty(1024, 1024), torch.empty(2**20)
        return lasts(lambda: a @ a), lasts(attention(False)), lasts(lambda: x + 1)

    plain, slow = (simulate(program, 1, cluster=CLUSTER, site=site).results[0] for site in (None, 1.5))
    assert [b / a for a, b in zip(plain, slow, strict=True)] == pytest.approx([1.5, 1.5, 1.0])
    assert simulate(program, 1, cluster=CLUSTER, site="production").results[0][0] == pytest.approx(
        plain[0] * SITES["production"]
    )
    assert simulate(program, 1, cluster=CLUSTER, site="benchmark").results[0] == plain
    with pytest.raises(ValueError, match="no site 'produktion': did you mean 'production'"):
        simulate(program, 1, cluster=CLUSTER, site="produktion")
    with pytest.raises(ValueError, match="changes achieved rates"):
        simulate(program, 1, cluster=CLUSTER, rates="datasheet", site="production")


def test_a_run_says_between_which_times_it_would_really_be():
    """A quarter of the time in each part but launches, which nothing waits for; sleeping is certain."""
    parts = Uncertainty(computing=(0.5, 2.0), memory=(0.5, 3.0), communication=(1.0, 1.0), launch=(0.5, 1.5))
    where = replace(CLUSTER, gpu=replace(GPU, achieved=replace(KERNELS, uncertainty=parts)))

    def program(rank, world_size):
        x = torch.empty(2**26)
        (x + 1, x + 1)
        a = torch.empty(2048, 2048)
        for _ in range(4):
            a @ a
        time.sleep(0.25)

    run = simulate(program, 2, cluster=where)
    took = run.breakdown().mean
    matmul, memory = took["matmul"], took["memory-bound"]
    assert run.elapsed == pytest.approx(matmul + memory + 0.25)
    below, above = math.hypot(0.5 * matmul, 0.5 * memory), math.hypot(matmul, 2 * memory)
    assert run.range == pytest.approx((run.elapsed - below, run.elapsed + above))
    assert f", between {quantity(run.range[0], 's')} and " in run.breakdown().summary()


def test_waiting_is_as_uncertain_as_what_is_waited_for():
    parts = Uncertainty(computing=(0.8, 1.5), memory=(1, 1), communication=(1, 1), launch=(1, 1))
    where = replace(CLUSTER, gpu=replace(GPU, achieved=replace(KERNELS, uncertainty=parts)))

    def program(rank, world_size):
        if rank == 0:
            a = torch.empty(2048, 2048)
            a @ a
        dist.all_reduce(torch.empty(1))

    run = simulate(program, 2, cluster=where)
    took = run.breakdown().mean
    assert took["waits for slower ranks"] == pytest.approx(took["matmul"])  # half of the mean each: one rank of two
    exposed = took["all ranks"] / (took["all ranks"] + took["matmul"])
    assert run.range[1] - run.elapsed == pytest.approx(0.5 * (1 - exposed) * run.elapsed)


@pytest.mark.parametrize("options", [{"rates": "datasheet"}, {"cluster": CLUSTER}])
def test_there_is_no_range_where_nobody_knows_it(options):
    run = simulate(lambda *_: None, 1, **options)
    with pytest.raises(ValueError, match="only known at achieved rates"):
        _ = run.range
    assert "between" not in run.breakdown().summary()
