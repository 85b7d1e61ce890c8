"""The formulas of utils/kit/plans against the program that carries a plan out."""

from dataclasses import replace

import pytest
import torch

from utils import RankFailed, simulate
from utils.cluster import find_cluster
from utils.kit.pipeline_schedule import problem
from utils.kit.plans import Key, Model, Plan, alike, bytes_of, compose, measure_pieces, range_of, seconds_of, step
from utils.kit.plans.schedule import schedule

DENSE = Model(4, 4096, 32, 4096, 32_000, key_heads=8, ffn=11_264, gated=True)
GPT = Model(4, 4096, 32, 2048, 51_200, tied=True)
MIXTURE = Model(4, 4096, 32, 4096, 32_000, key_heads=8, ffn=4096, gated=True, experts=8, top=2)
FINE = Model(2, 4096, 32, 4096, 32_000, key_heads=8, ffn=1536, gated=True, experts=16, top=4, shared=1)
CASES = {
    "two sequences at once": (DENSE, Plan(micro=2), 4),
    "data": (DENSE, Plan(dp=4), 8),
    "tensor": (DENSE, Plan(tp=4), 2),
    "more ranks than heads of keys": (replace(DENSE, key_heads=2), Plan(tp=4), 2),
    "pipeline": (DENSE, Plan(pp=4), 8),
    "a smaller last stage": (replace(DENSE, layers=7), Plan(tp=4, pp=4), 8),
    "chunks": (replace(DENSE, layers=8), Plan(tp=2, pp=2, chunks=2), 4),
    "chunks without layers at both ends": (replace(DENSE, layers=6), Plan(tp=2, pp=4, chunks=2), 16),
    "context": (DENSE, Plan(cp=4), 2),
    "a ring between nodes": (replace(DENSE, layers=2), Plan(tp=8, cp=2), 2),
    "all layers again": (DENSE, Plan(tp=2, pp=2, recompute="full"), 4),
    "activation functions again": (DENSE, Plan(tp=2, pp=2, recompute="selective"), 4),
    "a table on two stages": (GPT, Plan(dp=2, tp=4, pp=2), 8),
    "a large table": (replace(GPT, layers=2, vocabulary=256_000), Plan(tp=8, pp=2), 4),
    "experts": (MIXTURE, Plan(dp=8, ep=8), 8),
    "many small experts": (FINE, Plan(dp=4, tp=2, ep=4), 8),
    "everything": (MIXTURE, Plan(dp=2, tp=2, pp=2, cp=2, ep=4, chunks=2), 8),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_and_seconds_are_those_of_the_program(name):
    model, plan, batch = CASES[name]
    run = simulate(step, plan.gpus, model, plan, batch, cluster="dgx-h100", alike=alike(plan))
    peak = run.memory().peak
    for stage in {0, plan.pp - 1}:
        of_stage = bytes_of(plan, model, batch, stage)
        assert sum(of_stage.values()) == pytest.approx(peak[stage * plan.tp * plan.replicas], rel=0.005)
    assert sum(bytes_of(plan, model, batch).values()) == pytest.approx(max(peak), rel=0.005)
    cluster = find_cluster("dgx-h100", plan.gpus)
    pieces = measure_pieces(model, [Key.of(plan)], cluster)
    for parts in (seconds_of(plan, model, batch, cluster), compose(plan, pieces, model, batch, cluster)):
        assert sum(parts.values()) == pytest.approx(run.elapsed, rel=0.05)
        assert range_of(parts, cluster) == pytest.approx(
            run.range, rel=0.08
        )  # exposed communication is the widest part


@pytest.mark.parametrize("name", ["chunks", "tensor"])
def test_seconds_are_those_of_the_program_at_the_datasheets_rates_too(name):
    model, plan, batch = CASES[name]
    cluster = find_cluster("dgx-h100", plan.gpus, rates="datasheet")
    run = simulate(step, plan.gpus, model, plan, batch, cluster=cluster, alike=alike(plan))
    assert run.rates == "datasheet"
    assert sum(seconds_of(plan, model, batch, cluster).values()) == pytest.approx(run.elapsed, rel=0.05)
    achieved = sum(seconds_of(plan, model, batch, replace(cluster, rates="achieved")).values())
    assert achieved == sum(seconds_of(plan, model, batch, replace(cluster, rates=None)).values()) > run.elapsed


def test_a_plan_that_breaks_a_rule_does_not_run():
    with pytest.raises(RankFailed, match=r"chunks must divide the 3 layers of a stage"):
        simulate(step, 2, replace(DENSE, layers=6), Plan(pp=2, chunks=2), 4, cluster="dgx-h100")


def test_ranks_that_are_said_to_be_alike_are():
    model, plan = replace(MIXTURE, layers=2, width=512, heads=4, key_heads=4, ffn=512), Plan(2, 2, 2, 2, 4)
    every = simulate(step, 16, model, plan, 4, cluster="dgx-h100")
    some = simulate(step, 16, model, plan, 4, cluster="dgx-h100", alike=alike(plan))
    assert every.elapsed == some.elapsed and every.memory().peak == some.memory().peak


@pytest.mark.parametrize(
    "stages, microbatches, chunks", [(1, 3, 1), (4, 2, 1), (4, 8, 1), (2, 4, 3), (4, 8, 2), (4, 4, 4)]
)
def test_the_schedule_does_every_step_and_gets_stuck_nowhere(stages, microbatches, chunks):
    tasks = [schedule(stage, stages, microbatches, chunks) for stage in range(stages)]
    steps = [[("FB"[back], microbatch, chunk) for back, chunk, microbatch in of_stage] for of_stage in tasks]
    assert problem(steps, microbatches, chunks) == ""


def test_a_16_bit_product_that_is_added_to_32_bits_is_a_16_bit_product():
    def seconds(rank, world_size, adds):
        x, dy = (torch.empty(8192, 4096, dtype=torch.bfloat16) for _ in range(2))
        if adds:
            grad = torch.empty(4096, 4096)
            torch.addmm(grad, dy.t(), x, out_dtype=torch.float32, out=grad)
        else:
            dy.t() @ x

    alone, added = (simulate(seconds, 1, adds, cluster="dgx-h100").elapsed for adds in (False, True))
    assert added == alone
