"""The rows that `simulate` is held against, the rule that splits them, and the programs that stand for them."""

import random
from dataclasses import replace

import pytest
import torch

from tests.accuracy.__main__ import checked, fits, summary
from tests.accuracy.consistency import Check
from tests.accuracy.programs import Head, Layer, tokens
from tests.accuracy.rows import ROWS, Model, Row, Setting, gpt_flops, split
from tests.accuracy.step import carried_out, endless, simulated, step_seconds
from tests.accuracy.whole_step import schedule, stage_of, step
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


@pytest.mark.parametrize("stages, microbatches, chunks", [(4, 8, 1), (4, 8, 2), (2, 4, 3), (4, 4, 4)])
def test_every_task_of_the_schedule_comes_after_those_that_it_needs(stages, microbatches, chunks):
    """Played without a network: the first task that no stage can begin would leave some undone."""
    lists, done = [schedule(stage, stages, microbatches, chunks) for stage in range(stages)], set()
    depth = stages * chunks
    for tasks in lists:
        assert len(set(tasks)) == len(tasks) == 2 * microbatches * chunks
    moved = True
    while moved:
        moved = False
        for stage, tasks in enumerate(lists):
            while tasks:
                back, chunk, microbatch = tasks[0]
                place = chunk * stages + stage
                before = (True, place + 1) if back and place < depth - 1 else (False, place if back else place - 1)
                if before[1] >= 0 and (*before, microbatch) not in done:
                    break
                done.add((back, place, microbatch))
                del tasks[0]
                moved = True
    assert not any(lists)


def flops_of(part: type[Layer] | type[Head], model: Model, setting: Setting) -> int:
    """Of one microbatch, forward and backward, on all ranks of a tensor-parallel group."""

    def program(rank, world_size):
        x = torch.empty(tokens(model, setting), model.hidden, dtype=torch.bfloat16, requires_grad=True)
        part(model, setting)(x).sum().backward()

    return sum(computed.flops for computed in simulate(program, setting.tensor, cluster=setting.cluster).computed)


def test_a_whole_step_is_that_of_all_ranks_and_takes_what_is_derived():
    """On 2 x 4 x 2 GPUs: two chunks of a layer each, but for the first and the last, which are embedding and head."""
    parts = {"sequence": True, "flash": True, "sharded": True, "overlap": True}
    setting = Setting("dgx-h100", gpus=16, batch=16, micro=1, tensor=2, pipeline=4, chunks=2, **parts)
    model = replace(SMALL, layers=6, hidden=4096, heads=32, sequence=4096, vocabulary=32768)
    whole = carried_out(Row("", "", 1.0, "step", model, setting), "achieved")
    every = simulate(step, 16, model, setting, cluster=endless("dgx-h100", 16), rates="achieved")
    assert (whole.elapsed, whole.breakdown().parts) == (every.elapsed, every.breakdown().parts)
    assert set(whole.runs_as) == {0, 2, 4, 6} and stage_of(setting)(15) == 3
    flops = 6 * flops_of(Layer, model, setting) + flops_of(Head, model, setting)
    assert sum(computed.flops for computed in whole.computed) == setting.batch * flops
    assert whole.elapsed == pytest.approx(step_seconds(model, setting, "achieved"), rel=0.1)


@pytest.mark.thorough
def test_a_step_of_llama_3_on_16384_gpus_takes_about_what_was_published():
    [row] = [row for row in ROWS if row.name == "405B on 16384 GPUs"]
    assert carried_out(row, "achieved").elapsed == pytest.approx(row.seconds, rel=0.05)
