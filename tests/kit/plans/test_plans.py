"""Which plans there are, what is wrong with others, and what follows from the formulas without a run."""

from dataclasses import replace
from itertools import product

import pytest

from utils.cluster import find_cluster
from utils.kit.plans import MODELS, RUNS, Model, Plan, bytes_of, plans, problem_of, rule_broken, seconds_of
from utils.kit.plans.memory import parameters_of
from utils.kit.plans.plan import RECOMPUTE

SMALL = Model(6, 1024, 8, 512, 32_000, key_heads=2)
EXPERTS = Model(6, 1024, 8, 512, 32_000, experts=6, top=2)
CLUSTER = find_cluster("dgx-h100", 8)


@pytest.mark.parametrize("model, batch, gpus", [(SMALL, 24, 8), (EXPERTS, 12, 24), (replace(SMALL, layers=7), 20, 40)])
def test_the_plans_are_all_that_break_no_rule(model, batch, gpus):
    cluster = find_cluster("dgx-h100", gpus)
    sizes = [n for n in range(1, gpus + 1) if gpus % n == 0]
    each = range(1, 9)
    found = list(plans(model, batch, cluster))
    every = (
        Plan(gpus // (tp * pp * cp), *axes)
        for axes in product(sizes, sizes, sizes, range(1, 7), each, each, RECOMPUTE)
        if gpus % ((tp := axes[0]) * (pp := axes[1]) * (cp := axes[2])) == 0
    )
    assert set(found) == {plan for plan in every if not rule_broken(plan, model, batch, cluster)}
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    "plan, words",
    [
        (Plan(dp=4), "but there are 8 GPUs"),
        (Plan(dp=8, micro=0), "micro must be a whole number"),
        (Plan(dp=8, recompute=True), "recompute is True"),
        (Plan(tp=16, dp=1), "there are 8 GPUs"),
        (Plan(dp=8, micro=16), "must divide the batch"),
        (Plan(pp=8), ""),  # embeddings and output on stages of their own
        (Plan(dp=2, pp=4, chunks=2, micro=2), ""),
        (Plan(pp=4, dp=2, chunks=3), "chunks must divide the 2 layers"),
        (Plan(dp=8, chunks=2), "chunks need a pipeline"),
        (Plan(dp=8, ep=2), "ep must divide the experts"),
        (Plan(dp=4, pp=2, chunks=3, micro=16), "pp must divide the microbatches"),
    ],
)
def test_a_rule_that_is_broken_is_named(plan, words):
    found = rule_broken(plan, SMALL, 64, CLUSTER)
    assert words in found if words else not found


def test_layers_that_do_not_reach_for_all_stages():
    assert "4 layers can't be spread over 8 stages" in rule_broken(Plan(pp=8), replace(SMALL, layers=4), 64, CLUSTER)


def test_a_plan_that_does_not_fit_is_told_what_takes_how_much():
    large = MODELS["llama-3-8b"]
    assert not rule_broken(Plan(dp=8), large, 64, CLUSTER)
    assert "GB, and has 80 GB: 16.1 parameters, 32.1 gradients, 12.0 optimizer" in problem_of(
        Plan(dp=8), large, 64, CLUSTER
    )
    assert not problem_of(Plan(dp=4, tp=2, recompute="full"), large, 64, CLUSTER)


def test_layers_that_are_missing_are_missing_at_both_ends():
    plan, model = Plan(tp=8, pp=16, chunks=8), MODELS["llama-3-405b"]
    sizes = [plan.chunk_layers(model, stage) for stage in range(16)]
    assert sum(map(sum, sizes)) == 126
    assert sizes[0] == [0] + [1] * 7 and sizes[1] == [1] * 8 and sizes[-1] == [1] * 7 + [0]


def test_the_bubble_is_that_of_1f1b_and_chunks_divide_it():
    model, cluster = replace(SMALL, layers=8, vocabulary=0), find_cluster("dgx-h100", 4, rates="datasheet")
    costs = [seconds_of(Plan(pp=4, chunks=chunks), model, 8, cluster) for chunks in (1, 2)]
    working = sum(costs[0][part] for part in ("compute", "memory", "tp", "cp", "ep"))
    assert costs[0]["bubble"] == pytest.approx(working * 3 / 8)
    assert costs[1]["bubble"] == pytest.approx(working * 3 / 16)


def test_recomputing_trades_bytes_for_seconds():
    model = MODELS["llama-3-8b"]
    bytes_, seconds = [], []
    for recompute in RECOMPUTE:
        plan = Plan(dp=8, recompute=recompute)
        bytes_.append(sum(bytes_of(plan, model, 64).values()))
        seconds.append(sum(seconds_of(plan, model, 64, CLUSTER).values()))
    assert bytes_ == sorted(bytes_, reverse=True) and seconds == sorted(seconds) and len({*bytes_, *seconds}) == 6


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.model} on {run.plan.gpus}")
def test_published_plans_are_plans(run):
    cluster = find_cluster(run.cluster, run.plan.gpus)
    assert not rule_broken(run.plan, MODELS[run.model], run.batch, cluster)


@pytest.mark.parametrize("name", [name for name in MODELS if name[-1] == "b"])
def test_published_models_have_as_many_parameters_as_their_name_says(name):
    size = name.rpartition("-")[2]
    billions = 46.7 if size == "8x7b" else float(size.removesuffix("b"))
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.05)


def test_what_a_token_of_a_mixture_is_multiplied_with():
    """12.9 billion of Mixtral's 46.7 are active, 2.4.1 of arXiv 2401.04088; 37 of DeepSeek-V3's 671 (2412.19437)."""
    assert MODELS["mixtral-8x7b"].active_parameters / 1e9 == pytest.approx(12.9, rel=0.02)
    assert MODELS["deepseek-v3"].active_parameters / 1e9 == pytest.approx(37, rel=0.1)
    assert MODELS["deepseek-v3"].parameters / 1e9 == pytest.approx(671, rel=0.01)


def test_layers_without_experts_are_the_first_ones_of_a_pipeline():
    model = replace(SMALL, experts=4, top=1, layers=8, plain=3)
    without = replace(model, plain=0)
    for plan in (Plan(dp=2, ep=2), Plan(pp=4, ep=1), Plan(pp=2, chunks=2, tp=2)):
        stages = range(plan.pp)
        fewer = [sum(parameters_of(plan, each, s)[1] for s in stages) for each in (model, without)]
        assert fewer[0] * 8 == fewer[1] * 5
        assert sum(plan.plain_layers(model, s) for s in stages) == 3
        needs = [sum(bytes_of(plan, model, 8, s).values()) for s in stages]
        assert sum(bytes_of(plan, model, 8).values()) == max(needs)
    assert sum(sum(parameters_of(Plan(pp=8), model, s)) for s in range(8)) == model.parameters


@pytest.mark.parametrize(
    "sizes", [{"key_heads": 3}, {"experts": 4}, {"experts": 2, "top": 3}, {"shared": 1}, {"plain": 1}]
)
def test_a_model_that_contradicts_itself_is_refused(sizes):
    with pytest.raises(ValueError, match=r"heads|experts"):
        replace(SMALL, **sizes)
