"""The rows that `simulate` is held against, the rule that splits them, and the programs that stand for them."""

import random
from dataclasses import replace

import pytest
import torch

from tests.accuracy.__main__ import checked, fits, summary
from tests.accuracy.consistency import Check
from tests.accuracy.programs import Layer, tokens
from tests.accuracy.rows import ROWS, Model, Setting, gpt_flops, split
from tests.accuracy.step import simulated, step_seconds
from utils import simulate

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
    assert all(row.checks for row in ROWS)
    doubtful = [row.name for row in ROWS if row.contradictions]
    assert doubtful == [f"{size} MiB on 8 x H200" for size in (1, 2, 4, 8)]


@pytest.mark.parametrize("wrong", [1.06, 0.94])
def test_a_time_that_was_copied_wrongly_would_contradict_its_source(wrong):
    for row in ROWS:
        if row.family.startswith("MegaScale"):  # its checks are all about the time
            assert not any(check._replace(computed=check.computed / wrong).agrees for check in row.checks)
    assert Check("x", 44, 0.5, 44.4).agrees and not Check("x", 44, 0.5, 44.6).agrees
    assert Check("x", 44, 0.5, 44.6, uncertain=0.01).agrees


def test_the_table_says_how_rows_were_checked():
    words = checked(ROWS)
    assert "MegaScale 2024, baseline: checked by thousand tokens/s, days, MFU, %" in words
    assert "1 MiB on 8 x H200: GB/s by nccl-tests: 41.4 published, 22.82 computed; not in the summary" in words
    assert [fits(row) for row in ROWS if row.name == "405B on 8192 GPUs"] == ["4 of 4"]


def test_the_summary_tells_the_halves_apart():
    errors = {("a", half, rates): [0.1, -0.3] for half in ("fit", "held out") for rates in ("datasheet", "achieved")}
    errors["a", "held out", "achieved"] = [-0.02]
    lines = [line.split() for line in summary(errors).splitlines()]
    assert lines[-1][-4:] == ["2.0", "%", "2.0", "%"] and lines[-2][-4:] == ["20.0", "%", "30.0", "%"]


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
