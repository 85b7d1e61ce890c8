"""Pipeline schedules (pipeline_schedule.py, play_schedule.py, figures): what can run, who waits, how long it takes."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from utils import WorldStuck, figures
from utils.cluster import Cluster, Gpu, Link
from utils.kit.pipeline_schedule import Slot, Step, problem, timed
from utils.worlds.virtual.play_schedule import play, tag


def steps(text: str) -> list[tuple]:
    """ "F0 F1 B0", or with chunks "F0.1 B0.1"."""
    return [(word[0], *map(int, word[1:].split("."))) for word in text.split()]


RUNS = [steps("F0 F1 B0 B1"), steps("F0 B0 F1 B1")]
STUCK = [steps("F0 B0 F1 B1"), steps("F0 F1 B0 B1")]
CHUNKS = [steps("F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"), steps("F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0")]
SPLIT = [steps("F0 F1 B0 W0 B1 W1"), steps("F0 B0 F1 B1 W0 W1")]


@pytest.mark.parametrize("schedules", [RUNS, CHUNKS, SPLIT, [steps("F0 B0")], [[], []], []])
def test_a_schedule_that_can_run_has_no_problem(schedules):
    assert problem(schedules) == ""


@pytest.mark.parametrize(
    "schedules, words",
    [
        ([None], "rank 0 has None; a schedule is a list of steps"),
        ([["F0"]], "step 0 of rank 0 is 'F0'"),
        ([[("F", -1)]], "step 0 of rank 0 is ('F', -1)"),
        ([[("F", True)]], "step 0 of rank 0 is ('F', True)"),
        ([[("G", 0)]], "step 0 of rank 0 is ('G', 0)"),
        ([steps("F0 B0"), steps("F0")], "rank 1 never does B0."),
        ([steps("F0 B0"), []], "rank 1 never does F0, B0."),
        ([steps("F0 F0 B0")], "rank 0 does F0 more than once."),
        ([steps("B0 F0")], "rank 0 does B0 (its step 0) before F0 (its step 1)"),
        ([steps("F0 W0 B0")], "rank 0 does W0 (its step 1) before B0 (its step 2)"),
        ([steps("F0 B0 F1 B1 W1")], "rank 0 never does W0."),
        (STUCK, "rank 0 can't do B0: it waits for B0 of rank 1"),
        (STUCK, "rank 1 can't do F1: it waits for F1 of rank 0"),
    ],
)
def test_a_problem_is_named(schedules, words):
    assert words in problem(schedules)


def test_the_numbers_of_microbatches_and_chunks_can_be_given():
    assert problem(RUNS, microbatches=3) == "rank 0 never does F2, B2."
    assert problem(RUNS, microbatches=1) == "rank 0 does F1, but there are only microbatches 0 to 0."
    assert problem(RUNS, microbatches=0) == "rank 0 does F0, but there are no microbatches."
    assert problem([steps("F0 B0")] * 2, chunks=2) == "rank 0 never does F0 of chunk 1, B0 of chunk 1."
    assert problem([[], []], microbatches=1) == "rank 0 never does F0, B0."


def test_a_step_starts_when_its_inputs_are_ready():
    slots = timed(RUNS)
    assert Slot(1, Step("B", 0), 2.0, 4.0) in slots
    assert Slot(0, Step("B", 0), 4.0, 6.0) in slots
    assert max(slot.end for slot in slots) == 9.0
    assert max(slot.end for slot in timed(RUNS, {"F": 2.0, "B": 2.0})) == 12.0
    assert {slot.step for slot in timed(STUCK)} == {Step("F", 0)}


@pytest.mark.parametrize("schedules", [RUNS, CHUNKS, SPLIT, [steps("F0 F1 B1 B0")]])
def test_playing_takes_as_long_as_computed(schedules):
    run = play(schedules)
    assert run.elapsed == max(slot.end for slot in timed(schedules))
    computed = sorted((slot.rank, f"{slot.step.kind}{slot.step.microbatch}", slot.start) for slot in timed(schedules))
    assert sorted((region.rank, region.name, region.start) for region in run.regions) == computed


def test_messages_take_the_time_of_the_cluster():
    idle = Gpu(flops={"fp32": float("inf")}, memory=float("inf"), bandwidth=float("inf"))
    slow = Link(alpha=1.0, bandwidth=float("inf"))
    run = play([steps("F0 B0")] * 3, cluster=Cluster("slow", 1, 3, idle, slow, slow))
    assert run.elapsed == 3 * 3 + 4
    assert run.traffic().messages == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


def test_playing_a_deadlock_gives_a_report():
    with pytest.raises(WorldStuck, match="waits in recv"):
        play(STUCK)


def test_every_message_has_its_own_tag():
    tags = {tag(kind, m, stage) for kind in "FB" for m in range(50) for stage in range(20)}
    assert len(tags) == 2 * 50 * 20
    assert all(0 <= number < 2**31 for number in tags)
    assert tag("F", 3, 2) == 200030
    with pytest.raises(ValueError, match="microbatch 10000"):
        tag("F", 10_000, 0)


def boxes(picture) -> list[Rectangle]:
    return [patch for patch in picture.axes[0].patches if isinstance(patch, Rectangle)]


def test_each_step_is_a_box_as_long_as_it_takes():
    picture = figures.schedule(RUNS, "two ranks")
    assert [box.get_width() for box in boxes(picture)].count(2.0) == 4
    assert len(boxes(picture)) == 8
    assert [text.get_text() for text in picture.axes[0].texts].count("1") == 4
    assert picture.png() == figures.schedule(RUNS, "two ranks").png()


def test_steps_that_never_start_are_red():
    red = [box for box in boxes(figures.schedule(STUCK)) if to_hex(box.get_edgecolor()) == "#cc2222"]
    assert sorted((box.get_x(), round(box.get_y())) for box in red) == [(1.0, 0), (2.0, 1)]


def test_each_chunk_has_its_own_colour():
    assert len({to_hex(box.get_facecolor()) for box in boxes(figures.schedule(CHUNKS))}) == 4


def test_a_pipeline_has_two_arrows_at_each_boundary():
    [panel] = figures.pipeline(["layers 0-3", "layers 4-7", "layers 8-11"]).axes
    words = [text.get_text() for text in panel.texts]
    assert words.count("y") == words.count("gradient of y") == 2
    assert "rank 1\nlayers 4-7" in words
