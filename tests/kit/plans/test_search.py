"""Pieces measured by simulate, plans composed of them, and the search among them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from utils.cluster import find_cluster
from utils.kit.plans import (
    RUNS,
    Key,
    Model,
    Plan,
    bytes_of,
    compose,
    measure_pieces,
    pieces,
    plans,
    published_plans,
    range_of,
    search,
    seconds_of,
)
from utils.kit.plans.search import WITHIN, checked_plans, contenders, priced
from utils.kit.plans.work import embedding_seconds, layer_seconds, output_seconds

DENSE = Model(8, 2048, 16, 2048, 32_000, key_heads=4, ffn=5632, gated=True)
MIXTURE = replace(DENSE, layers=4, ffn=2048, experts=8, top=2)
CLUSTER = find_cluster("dgx-h100", 16)
KEYS = [Key(1), Key(2, micro=4), Key(8), Key(2, cp=2), Key(8, cp=2), Key(1, cp=4, micro=2)]
EXPERTS = [Key(1, ep=8), Key(2, ep=4, micro=2), Key(2, cp=2, ep=4), Key(2, cp=4, ep=2)]


@pytest.fixture
def runs(monkeypatch):
    """How many ranks each simulation had."""
    sizes = []
    simulate = pieces.simulate

    def counted(fn, size, *args, **kwargs):
        sizes.append(size)
        return simulate(fn, size, *args, **kwargs)

    monkeypatch.setattr(pieces, "simulate", counted)
    return sizes


@pytest.mark.parametrize("model, keys", [(DENSE, KEYS), (MIXTURE, EXPERTS), (replace(DENSE, vocabulary=0), KEYS[:2])])
def test_measured_pieces_are_those_of_the_formula(model, keys):
    """Within a hundredth; where a short ring sends more than it computes, within what `search` allows."""
    found = measure_pieces(model, keys, CLUSTER)
    assert list(found) == keys
    for key, piece in found.items():
        formulas = {"layer": layer_seconds}
        if model.vocabulary:
            formulas |= {"embedding": embedding_seconds, "output": output_seconds}
        for name, formula in formulas.items():
            for recompute in ("none", "selective", "full") if name == "layer" else ("none",):
                plan = key.plan(recompute)
                passes = piece.layer_of(plan) if name == "layer" else getattr(piece, name)
                for measured, price in zip(passes, formula(model, plan, CLUSTER.at_rates()), strict=True):
                    assert sum(measured) == pytest.approx(sum(price), rel=0.01 if key.cp == 1 else WITHIN, abs=2e-5), (
                        key,
                        name,
                    )


def test_pieces_without_a_ring_share_one_run(runs):
    measure_pieces(DENSE, [Key(1), Key(2), Key(4, micro=2), Key(2), Key(8), Key(2, cp=2)], CLUSTER)
    assert runs == [8, 4]


def test_progress_is_told_after_each_run():
    told = []
    measure_pieces(DENSE, [Key(1), Key(2, cp=2)], CLUSTER, lambda done, every: told.append((done, every)))
    assert told == [(1, 2), (2, 2)]


def test_a_piece_that_was_not_measured_is_missing():
    with pytest.raises(KeyError):
        compose(Plan(dp=8, tp=2), {}, DENSE, 16, CLUSTER)


@pytest.mark.parametrize("model, gpus", [pytest.param(DENSE, 8, marks=pytest.mark.thorough), (MIXTURE, 4)])
def test_the_search_finds_what_brute_force_does_and_measures_less(model, gpus, runs):
    tight = replace(CLUSTER, nodes=1, gpus_per_node=gpus, gpu=replace(CLUSTER.gpu, memory=4e9))
    found = search(model, 64, tight, n=5)
    measured = sum(runs)
    every = [plan for plan in plans(model, 64, tight, most_cp=8) if plan.cp <= 4 or plan.tp * plan.cp <= 8]
    fitting = [plan for plan in every if sum(bytes_of(plan, model, 64).values()) <= 4e9]
    assert 0 < len(fitting) < len(every)
    every_piece = measure_pieces(model, {Key.of(plan) for plan in fitting}, tight)
    totals = {plan: sum(compose(plan, every_piece, model, 64, tight).values()) for plan in fitting}
    assert [each.total for each in found] == pytest.approx(sorted(totals.values())[:5], rel=1e-4)
    assert all(each.measured and each.total == pytest.approx(totals[each.plan], rel=1e-4) for each in found)
    assert measured < sum(runs) / 2


def test_of_two_equally_quick_plans_the_one_that_needs_less_comes_first():
    found = search(DENSE, 64, CLUSTER, n=60)
    pairs = [(each.total, each.gigabytes) for each in found]
    assert pairs == sorted(pairs)


def test_nothing_that_fits_is_an_empty_list():
    assert search(DENSE, 64, replace(CLUSTER, gpu=replace(CLUSTER.gpu, memory=1e8))) == []


def test_context_parallelism_ends_at_four_between_nodes():
    sizes = {(plan.tp, plan.cp) for plan in checked_plans(DENSE, 64, CLUSTER)}
    assert (1, 8) in sizes and (8, 2) in sizes and (4, 4) in sizes
    assert (2, 8) not in sizes and (1, 16) not in sizes
    assert (2, 8) in {(plan.tp, plan.cp) for plan in checked_plans(DENSE, 64, CLUSTER, most_cp=8)}


def test_contenders_are_the_first_and_all_that_are_close():
    by_formula = [priced(Plan(dp=16), DENSE, 64, CLUSTER)]
    by_formula += [replace(by_formula[0], seconds={"compute": by_formula[0].total * times}) for times in (1.01, 1.5)]
    assert contenders(by_formula, 1, 0.02) == by_formula[:2]
    assert contenders(by_formula, 3, 0.02) == by_formula
    assert contenders([], 3) == []


def test_a_bubble_is_as_uncertain_as_what_fills_it():
    seconds = seconds_of(Plan(pp=4, dp=4), DENSE, 64, CLUSTER)
    without = {**seconds, "bubble": 0.0}
    stretched = sum(seconds.values()) / sum(without.values())
    assert range_of(seconds, CLUSTER) == pytest.approx([stretched * end for end in range_of(without, CLUSTER)])
    assert range_of(seconds, find_cluster("dgx-h100", 16, rates="datasheet")) is None


def test_most_published_steps_to_which_no_rate_was_fitted_are_inside_the_range():
    """On today's software, that is: MT-NLG's of 2021, and plans that nobody published, are left out."""
    recipes = [run for run in RUNS if not run.fitted and run.site == "benchmark" and run.cluster == "dgx-h100"]
    cases = published_plans(recipes, measure=False)
    assert len(cases) == 11
    assert sum(case.inside for case in cases) >= 9
    assert max(abs(case.error) for case in cases) < 0.16


def test_a_site_makes_a_published_step_longer():
    [run] = [run for run in RUNS if run.model == "llama-3-405b" and run.site == "production"]
    [slow], [quick] = (published_plans([each], measure=False) for each in (run, replace(run, site="benchmark")))
    assert 1.08 < slow.here.total / quick.here.total < 1.13
    assert slow.inside
