"""The rows that `simulate` is held against, the rule that splits them, and the programs that stand for them."""

import random
from dataclasses import replace
from math import exp, log

import pytest
import torch

from tests.accuracy import fsdp_step
from tests.accuracy.__main__ import Prediction, checked, summary
from tests.accuracy.consistency import Check
from tests.accuracy.fit import Times, fit, left_out, times_of, width
from tests.accuracy.programs import Layer, group_of, tokens
from tests.accuracy.published import MODELS, published
from tests.accuracy.ranks import place_of
from tests.accuracy.rows import ROWS, Model, Row, Setting, gpt_flops, split
from tests.accuracy.sources import TRAINING
from tests.accuracy.step import (
    FEW,
    carried_out,
    extended,
    fsdp_run,
    fsdp_seconds,
    machine,
    simulated,
    step_seconds,
)
from utils import simulate
from utils.cluster.presets import SITES
from utils.kit.plans import RUNS

SMALL = Model(layers=4, hidden=1024, heads=8, vocabulary=8192, sequence=512)
PLAIN = Setting("dgx-a100", gpus=8, batch=8, micro=2, tensor=2, pipeline=1)


def test_each_row_is_in_one_half_and_each_family_in_both():
    fit, held_out = split(ROWS)
    assert len(fit) + len(held_out) == len(ROWS) == len({row.name + row.family for row in ROWS})
    assert not set(fit) & set(held_out)
    for family in {row.family for row in ROWS}:
        sizes = [sum(row.family == family for row in half) for half in (fit, held_out)]
        assert sizes[1] >= 1 and sizes[0] - sizes[1] in (0, 1)


def test_the_split_depends_on_names_and_on_nothing_else():
    halves = [{row.name for row in half} for half in split(ROWS)]
    other = [replace(row, seconds=random.random()) for row in ROWS]
    random.shuffle(other)
    assert [{row.name for row in half} for half in split(other)] == halves


def test_rows_fit_what_else_their_sources_say():
    """All but the H200's smallest all-reduces, which were timed in Python."""
    every = [*ROWS, *published()]
    assert all(row.checks for row in every)
    doubtful = [row.name for row in every if row.contradictions]
    assert doubtful == [f"{size} MiB on 8 x H200" for size in (1, 2, 4, 8)]


@pytest.mark.parametrize("wrong", [1.06, 0.94])
def test_a_time_that_was_copied_wrongly_would_contradict_its_source(wrong):
    for row in ROWS:
        if row.family.startswith("MegaScale"):  # its checks are all about the time
            assert not any(check._replace(computed=check.computed / wrong).agrees for check in row.checks)
    assert Check("x", 44, 0.5, 44.4).agrees and not Check("x", 44, 0.5, 44.6).agrees
    assert Check("x", 44, 0.5, 44.6, uncertain=0.01).agrees


def test_the_table_says_how_rows_were_checked():
    words = checked([*TRAINING, *ROWS])
    assert "MegaScale 2024, baseline: checked by thousand tokens/s, days, MFU, %" in words
    assert "MosaicML MPT: checked by MFU, %" in words
    assert words.count("1 MiB on 8 x H200: GB/s by nccl-tests: 41.4 published, 22.82 computed; not in the summary") == 1


def test_the_summary_is_by_source_with_signs_and_says_how_many_are_inside():
    ranges = {"a": [(0.9, 1.2), (0.8, 0.95)], "b": [(1.0, 1.0)]}
    seconds = {"a": [1.1, 0.9], "b": [0.6]}
    lines = summary(
        Prediction(source, "", 1.0, each, between)
        for source in ranges
        for each, between in zip(seconds[source], ranges[source], strict=True)
    ).splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["a", "2", "10.0", "%", "+10.0", "%", "+0.0", "%", "1", "of", "2"],
        ["b", "1", "40.0", "%", "-40.0", "%", "-40.0", "%", "1", "of", "1"],
        ["all", "3", "10.0", "%", "-40.0", "%", "-13.3", "%", "2", "of", "3"],
    ]


# ---- fitting


def made_up(source, factors, cluster="dgx-a100", site="benchmark", site_factor=1.0):
    """Rows of a source that are published as if the rates were so many times the presets'."""
    parts = [(6.0, 1.0, 2.0, 0.5), (3.0, 0.2, 3.0, 0.1), (8.0, 2.0, 0.5, 0.0)]
    rows = [Times(source, f"{source} {place}", cluster, site, *part, 0.0) for place, part in enumerate(parts)]
    return [row._replace(published=row.at(factors, site_factor)) for row in rows]


def test_rates_are_found_again_from_times_that_they_explain(monkeypatch):
    monkeypatch.setattr("tests.accuracy.fit.STIFF", 0.0)
    there = exp(0.04), 1.0, 1.0
    rows = [*made_up("one", there), *made_up("two", there), *made_up("h", (exp(-0.05), 1.0, 1.0), "dgx-h100")]
    rows += made_up("production", there, site="production", site_factor=exp(0.1))
    factors, site = fit(rows)
    assert factors["dgx-a100"][0] == pytest.approx(there[0], rel=0.015)
    assert factors["dgx-h100"] == pytest.approx((exp(-0.05), 1.0, 1.0))
    assert site == pytest.approx(exp(0.1), rel=0.02)


def test_a_source_has_no_part_in_the_rates_that_it_is_predicted_with():
    plain, odd = 1.0, 0.85
    rows = [
        *made_up("one", (plain, 1.0, 1.0)),
        *made_up("two", (plain, 1.0, 1.0)),
        *made_up("h", (1, 1, 1), "dgx-h100"),
    ]
    rows += [*made_up("p", (1, 1, 1), site="production"), *made_up("q", (1, 1, 1), site="production")]
    errors = dict(left_out([*rows, *made_up("odd one", (odd, 1.0, 1.0))]))
    again = dict(left_out([*rows, *made_up("odd one", (odd / 1.1, 1.0, 1.0))]))
    before, after = ([each for row, each in found.items() if row.source == "odd one"] for found in (errors, again))
    assert all(-0.2 < each < 0 for each in before)
    assert [b - a for a, b in zip(before, after, strict=True)] == pytest.approx(
        [
            log(row.published / other.published)
            for row, other in zip(made_up("", (odd, 1.0, 1.0)), made_up("", (odd / 1.1, 1.0, 1.0)), strict=True)
        ]
    )


def test_the_width_grows_with_what_sources_differ_by_and_with_few_sources():
    narrow, wide = (
        {name: [sign * size, sign * size] for name, sign in zip("abcd", (1, -1, 1, -1), strict=True)}
        for size in (0.03, 0.09)
    )
    assert width(wide) == pytest.approx(3 * width(narrow))
    assert width({name: narrow[name] for name in "ab"}) > width(narrow)


def test_a_rows_parts_are_what_its_rates_change():
    """Products and attention, memory, and the rest: from simulations with one rate slower."""
    row = Row("a", "b", 1.0, "layer", SMALL, replace(PLAIN, flash=True))
    parts = times_of(row)
    assert min(parts.products, parts.attention, parts.memory, parts.rest) > 0
    assert parts.at((1.0, 1.0, 1.0)) == pytest.approx(simulated(row, "achieved"))
    again = simulated(replace(row, setting=replace(row.setting, site="production")), "achieved")
    assert parts.at((1.0, 1.0, 1.0), SITES["production"]) == pytest.approx(again, rel=0.01)


# ---- programs


@pytest.mark.parametrize("tensor", [1, 4])
def test_a_layers_products_are_those_of_the_paper(tensor):
    """72 B s h^2 (1 + s / 6h) FLOPs for a layer, forward and backward: arXiv 2104.04473, without the vocabulary."""
    setting = replace(PLAIN, tensor=tensor)

    def program(rank, world_size):
        x = torch.empty(tokens(SMALL, setting), SMALL.hidden, dtype=torch.bfloat16, requires_grad=True)
        Layer(SMALL, setting)(x).sum().backward()

    run = simulate(program, tensor, cluster="dgx-a100")
    one_layer = gpt_flops(replace(SMALL, layers=1, vocabulary=0), setting.micro, 72)
    assert sum(computed.flops for computed in run.computed) == pytest.approx(one_layer)


def test_a_step_adds_up_as_the_pipelines_closed_form_says():
    """The more microbatches, the smaller the part of the bubble; recomputation costs a forward for each of them."""
    setting = replace(PLAIN, tensor=2, pipeline=4, gpus=8, batch=16, micro=1, overlap=True)
    per_batch = [step_seconds(SMALL, replace(setting, batch=n), "achieved") for n in (16, 32, 48)]
    assert per_batch[2] - per_batch[1] == pytest.approx(per_batch[1] - per_batch[0])
    assert per_batch[0] > per_batch[1] - per_batch[0]
    recomputed = step_seconds(SMALL, replace(setting, recompute="full"), "achieved")
    assert 1.2 < recomputed / per_batch[0] < 1.4
    assert step_seconds(SMALL, replace(setting, chunks=1, overlap=False), "achieved") > per_batch[0]


def test_a_row_is_simulated_at_both_rates():
    [row] = [row for row in ROWS if row.name == "sequence parallel"]
    datasheet, achieved = (simulated(row, rates) for rates in ("datasheet", "achieved"))
    assert 0 < datasheet < achieved


FSDP = Setting("dgx-a100", gpus=16, batch=64, micro=1, tensor=1, flash=True, fsdp=True)


def test_a_step_of_fsdp_is_extended_from_few_layers_and_two_microbatches():
    """To what all layers take, with as many microbatches as the row has."""
    model = Model(layers=9, hidden=2048, heads=16, vocabulary=8192, sequence=2048)
    whole = simulate(fsdp_step.step, 16, model, FSDP, 4, cluster=machine(FSDP, 16), alike=lambda rank: 0)
    assert fsdp_seconds(model, FSDP, "achieved") == pytest.approx(whole.elapsed, rel=0.002)
    assert extended(2.0, 3.0, 9) == 2.0 + (9 - FEW[0]) / (FEW[1] - FEW[0])


def test_what_fsdp_exchanges_is_what_its_layers_weigh():
    """Weights in 16 bits forward and backward, gradients of 2 or 4 bytes; split in a node, gradients travel twice."""
    model = replace(SMALL, layers=4, vocabulary=8192)
    sent = {}
    for name, more in (("wide", {}), ("narrow", {"gradient_bytes": 2}), ("hybrid", {"hybrid": True})):
        run = fsdp_run(model, replace(FSDP, **more), "achieved")
        sent[name] = {op: sum(e.bytes for e in run.events if e.op == op) for op in ("reduce_scatter", "all_reduce")}
    assert sent["wide"]["reduce_scatter"] == 2 * sent["narrow"]["reduce_scatter"] > 0
    assert sent["wide"]["all_reduce"] < sent["hybrid"]["all_reduce"]


def test_recomputation_compiling_and_experts_change_what_is_computed():
    llama = replace(MODELS["Llama 3.1 8B"], layers=4, hidden=2048, heads=16, ffn=4096, sequence=2048)
    took = {
        name: fsdp_run(llama, replace(FSDP, **more), "achieved").elapsed
        for name, more in {
            "": {},
            "half": {"recompute": "half"},
            "full": {"recompute": "full"},
            "fused": {"fused": True},
        }.items()
    }
    assert took["fused"] < took[""] < took["half"] < took["full"] < 1.4 * took[""]

    def program(rank, world_size):
        group = group_of(range(rank, rank + 1))
        model = replace(SMALL, experts=4, top=2)
        layer = Layer(model, replace(PLAIN, tensor=1, experts=4), group)
        layer(
            torch.empty(tokens(model, PLAIN), model.hidden, dtype=torch.bfloat16, requires_grad=True)
        ).sum().backward()

    run = simulate(program, 4, cluster="dgx-a100")
    sizes = {event.bytes for event in run.events if event.op.startswith("all_to_all")}
    assert sizes == {2 * 2 * tokens(SMALL, PLAIN) * SMALL.hidden}  # top 2, 2 bytes
    dense = 24 * tokens(SMALL, PLAIN) * SMALL.hidden**2  # forward, of which two thirds are the MLP's
    assert sum(c.flops for c in run.computed) > 4 * 3 * dense * (1 / 3 + 2 * 2 / 3)


def test_a_collective_beside_the_product_that_follows_is_hidden():
    model = replace(SMALL, hidden=8192, heads=64, sequence=2048)
    setting = replace(PLAIN, cluster="dgx-h100", tensor=4, sequence=True, flash=True)
    plain, beside = (
        simulated(Row("", "", 1.0, "layer", model, replace(setting, beside=on)), "achieved") for on in (False, True)
    )
    assert 0.75 * plain < beside < 0.98 * plain


def test_a_whole_step_takes_what_is_derived():
    """On 2 x 4 x 2 GPUs: two chunks of a layer each, but for the first and the last, which are embedding and head."""
    parts = {"sequence": True, "flash": True, "sharded": True, "overlap": True, "dropout": False}
    setting = Setting("dgx-h100", gpus=16, batch=16, micro=1, tensor=2, pipeline=4, chunks=2, **parts)
    model = replace(SMALL, layers=6, hidden=4096, heads=32, sequence=4096, vocabulary=32768)
    whole = carried_out(Row("", "", 1.0, "step", model, setting), "achieved")
    assert whole.elapsed == pytest.approx(step_seconds(model, setting, "achieved"), rel=0.1)


@pytest.mark.thorough
def test_a_published_step_of_llama_3_on_16384_gpus_is_inside_the_range():
    [row] = [row for row in ROWS if row.name == "405B on 16384 GPUs"]
    shortest, longest = carried_out(row, "achieved").range
    assert shortest < row.seconds < longest


@pytest.mark.parametrize(("name", "rank", "behind"), [("gpt-3-175b", 5, 0.01), ("nemotron-4-340b", 1, 0.0)])
def test_a_recipe_that_was_tuned_is_among_the_first(name, rank, behind):
    """The second one needs a little more memory than there is, and would be quicker than all that fit."""
    place = place_of(next(run for run in RUNS if run.model == name))
    assert place.rank <= rank and place.behind <= behind and place.fit < place.plans
