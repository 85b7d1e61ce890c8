"""grid_costs.py: what follows from its formulas in cases that can be worked out by hand."""

import math
from dataclasses import replace

import pytest

from utils.cluster import find_cluster
from utils.cluster.grid_costs import Model, problem_of, step_costs

SMALL = Model(layers=8, width=1024, heads=8, length=512)
ONE_BY_ONE = {"dp": 1, "pp": 1, "tp": 1, "microbatches": 1, "recompute": False}


def test_one_gpu_only_computes():
    cluster = find_cluster("dgx-h100", 1)
    cluster = replace(cluster, nodes=1, gpus_per_node=1, gpu=replace(cluster.gpu, launch=0.0, bandwidth=math.inf))
    costs = step_costs(ONE_BY_ONE, SMALL, 4, cluster)
    assert costs["seconds"] == pytest.approx(SMALL.flops_per_token * 4 * 512 / cluster.gpu.peak("bfloat16"))
    assert costs["tp"] == costs["pp"] == costs["bubble"] == costs["dp"] == 0


def test_the_bubble_is_that_of_1f1b():
    costs = step_costs(ONE_BY_ONE | {"pp": 8, "microbatches": 4}, SMALL, 4, find_cluster("dgx-h100", 8))
    assert costs["bubble"] / costs["seconds"] == pytest.approx(7 / 11)


def test_recomputing_takes_a_third_longer_and_less_memory():
    cluster, plan = find_cluster("dgx-h100", 8), ONE_BY_ONE | {"dp": 8}
    kept, again = (step_costs(plan | {"recompute": how}, SMALL, 64, cluster) for how in (False, True))
    assert again["compute"] == pytest.approx(kept["compute"] * 4 / 3) and again["bytes"] < kept["bytes"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dp": 4}, "but there are 8 GPUs"),
        ({"dp": 8, "microbatches": 3}, "must divide the batch"),
        ({"pp": 8, "microbatches": 0}, "whole numbers"),
        ({"tp": 8, "layers": 400}, "a GPU would need"),
    ],
)
def test_an_impossible_plan_is_named(change, words):
    model = replace(SMALL, layers=change.pop("layers", 8), width=8192 if "tp" in change else 1024)
    cluster = find_cluster("dgx-h100", 8)
    cluster = replace(cluster, gpu=replace(cluster.gpu, memory=1e10 if "tp" in change else 80e9))
    assert words in problem_of(ONE_BY_ONE | change, model, 64, cluster)
