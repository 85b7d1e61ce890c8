"""Lesson 12's own program at sizes that its notebook has no time for: hundreds of steps, and 1,024 virtual GPUs."""

import re
from pathlib import Path

import pytest
import torch

from grader.authoring.lesson import read_lesson

pytestmark = [pytest.mark.thorough, pytest.mark.long(minutes=5)]
SOURCE = Path(__file__).resolve().parents[2] / "solutions" / "12_3d_parallelism" / "lesson_12.py"


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """The names of the lesson, with its solutions; its checks, predictions and own runs are left out."""
    cells = [
        cell.source
        for cell in read_lesson(SOURCE).cells
        if cell.kind == "code" and not cell.marker.check and "notebook-only" not in cell.marker.tags
        if not re.match(r"(?s).*\b(predict|reveal|how_predictions_went)\(", cell.source)
    ]
    file = tmp_path_factory.mktemp("lesson") / "program.py"
    file.write_text("\n\n".join(cells), encoding="utf-8")
    names = {"__name__": "program"}
    exec(compile(file.read_text(encoding="utf-8"), file, "exec"), names)
    return names


@pytest.mark.parametrize("axis", ["dp", "cp"])
def test_200_steps_on_8_ranks_have_the_losses_of_one_process(lesson, axis):
    sizes = {"dp": 1, "pp": 2, "cp": 1, "tp": 2} | {axis: 2}
    losses = torch.tensor(lesson["spawn"](lesson["train"], 8, [(sizes, 200)]).results[0][0])
    torch.testing.assert_close(losses, torch.tensor(lesson["serial_losses"](200)), rtol=1e-6, atol=0)
    assert losses[-20:].mean() < losses[:20].mean() / 1.2


def test_1024_ranks_take_the_time_of_one_of_each_stage_and_the_closed_form_is_near(lesson):
    sizes = {"dp": 32, "pp": 4, "tp": 8}
    run = lesson["simulate"](lesson["big_step"], 1024, sizes)
    stages = lesson["simulate"](
        lesson["big_step"], 1024, sizes, alike=lambda rank: lesson["place_of"](rank, sizes)["pp"]
    )
    assert stages.elapsed == run.elapsed
    costs, _ = lesson["closed_form"](lesson["narrow_gpt"], lesson["Plan"](**sizes), 4 * sizes["dp"])
    assert sum(costs.values()) == pytest.approx(run.elapsed, rel=0.1)
