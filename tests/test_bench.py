"""`make bench`: its reports, and that a failing launcher does not stop the others. No test depends on a time."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.bench import environment, figure, predictions, schedules, show, side_by_side, virtual_speed, virtual_tables
from tests.bench.cpu_time import Counter
from tests.bench.goals import GOALS
from tests.bench.kernel import CellFailed, Kernel, marked
from tests.bench.side_by_side import OURS, Launcher
from tests.bench.virtual import ALIKE, DDP, PIPELINE, SUMS, PeakMemory
from utils import Region, Run, simulate
from utils.cluster import Cluster, Gpu, Layout, Link, cost

RIGHT = '"""right: adds up by itself"""\ndef call(n):\n    return [n * (n - 1) / 2] * n\n'
LATE = {"later": [0.05, 0.06, 0.08], "with_pauses": [0.05], "failed": None, "about": ""}
MEASURED = {
    "machine": {"torch": "2.13.0", "python": "3.11.7", "cores": 2, "load": 1.5},
    "launchers": {
        OURS: {**LATE, "first": 0.1, "first_at_once": 1.0, "later_twice_the_ranks": [0.09]},
        "torch.multiprocessing.spawn": {**LATE, "first": 3.0, "later": [3.0], "with_pauses": []},
        "ipyparallel": {**LATE, "start": 7.0, "first": 0.07, "later": [0.04]},
        "torchrunx": {"about": "", "failed": "not installed: No matching distribution found"},
    },
    "programs": {
        "all_reduce": {"first": 0.1, "later": [0.6], "failed": None},
        "ddp": {"first": 0.1, "later": [0.1, 0.2, 0.4], "failed": None},
        **{
            name: {"first": 0.1, "later": [0.3 if name == "fsdp2" else 0.1], "failed": None}
            for name in ("fsdp2", "tensor_parallel", "pipelining")
        },
    },
    "memory": {
        "programs": {
            "all_reduce": {"ranks": [{"private": 8_000_000, "pss": 50_000_000}], "failed": None},
            "ddp": {"ranks": [{"private": p, "pss": 60_000_000} for p in (46_000_000, 44_000_000)], "failed": None},
        },
        "kept": [200_000_000],
    },
    "import": {
        "import torch": [1.0, 2.0, 3.0],
        "import torch, utils: the part of utils": [0.01, 0.02, 0.09],
        "import utils, spawn on 2 ranks": [2.0, 2.5, 4.0],
    },
    "recorder": {"4 bytes": {"off": 100e-6, "on": 115e-6}, "4 MB": {"off": 4e-3, "on": 4.2e-3}},
    "virtual": {
        "machines": {2: {"fp32": 100e9, "memory": 12e9, "launch": 1e-6, "alpha": 40e-6, "bandwidth": 3e9}},
        "collectives": {
            2: [
                ("ping-pong", 1 << 10, 50e-6, 40e-6),
                ("all_reduce", 1 << 22, 4e-3, 1e-3),
                ("all_reduce", 1 << 14, 1, 1),
            ],
            4: {"failed": "RankTimeout: why"},
        },
        "steps": {1: [(8, 256, {"step": (4e-3, 2e-3), "forward": (1, 1), "backward": (1, 0.5), "optimizer": (1, 2)})]},
        "seconds": {
            **{name: [8.0 * ranks / 1024, 9.0 * ranks / 1024, 90.0] for ranks, name in DDP.items()},
            **{name: [seconds] for name, seconds in zip(ALIKE, (7.0, 9.0, 16.0, 4.0, 50.0), strict=True)},
            PIPELINE: [6.0, 5.5, 5.0],
            SUMS: [0.5],
        },
        "loop": [0.25, 0.25, 0.5],
        "peak": 600_000_000,
    },
    "grading": {
        "kinds": {"solution": 10, "hang": 2},
        "sample": {"solution": 1, "hang": 1},
        "seconds": 60,
        "cpu": 90,
        "plain_start": 3.0,
        "plain_by_kind": {"solution": 20.0, "hang": 80.0},
        "plain_cpu_by_kind": {"solution": 20.0, "hang": 80.0},
        "by_kind": {"solution": 8.0, "hang": 30.0},
        "verdicts": {"both": 26, "differ": [("hang-00", "ring-values", 0, 2.0)]},
    },
    "class": {
        "lesson": "07_zero_fsdp",
        "students": 10,
        "counts_all": True,
        "workers": {
            1: {"seconds": 300.0, "cpu": 160.0, "points": 560.0},
            4: {"seconds": 100.0, "cpu": 200.0, "points": 560.0},
        },
    },
}


OPEN_WITHOUT = {
    "launchers": 4,
    "programs": 1,
    "memory": 1,
    "import": 2,
    "recorder": 2,
    "virtual": 9,
    "grading": 1,
    "class": 2,
}


def verdicts(measured: dict) -> list[tuple[str, str]]:
    return [goal.judge(measured)[2:] for goal in GOALS]


def test_goals_are_judged_by_medians_and_worst_cases():
    assert verdicts(MEASURED) == [
        ("50 x", "met"),
        ("1.5 x", "not met"),
        ("30 x", "met"),
        ("1.5 x", "met"),
        ("46 MB", "not met"),
        ("0.3 s", "not met"),
        ("20 ms", "met"),
        ("1.25 x", "met"),
        ("15 µs", "met"),
        ("5 %", "not met"),
        ("9 s", "not met"),
        ("7 s", "met"),
        ("9 s", "not met"),
        ("16 s", "not met"),
        ("4 s", "met"),
        ("50 s", "met"),
        ("1 x", "met"),
        ("5.5 s", "not met"),
        ("0.6 GB", "met"),
        ("6 x", "met"),
        ("20 s", "not met"),
        ("1.25 x", "not met"),
    ]
    assert {"ipyparallel", "ddp", "fsdp2"} <= set(" ".join(goal.judge(MEASURED)[0] for goal in GOALS).split())


@pytest.mark.parametrize("part", list(OPEN_WITHOUT))
def test_goals_without_measurements_are_neither_met_nor_missed(part):
    less = {name: value for name, value in MEASURED.items() if name != part}
    open_goals = [verdict for _, verdict in verdicts(less)].count("not measured")
    assert open_goals == OPEN_WITHOUT[part]


def test_a_goal_whose_launcher_failed_is_not_measured():
    failed = {"about": "", "failed": "CellFailed: why"}
    without_ours = {**MEASURED, "launchers": {**MEASURED["launchers"], OURS: failed}}
    assert [verdict for _, verdict in verdicts(without_ours)][:4] == ["not measured"] * 4
    assert f"{OURS:<27}  failed: CellFailed: why" in show.report(without_ours)


def test_the_report_is_complete_and_a_figure_is_drawn(tmp_path):
    table = [line.split() for line in show.launchers(MEASURED["launchers"]).splitlines()[3:]]
    assert table == [
        ["ipyparallel", "7.00", "0.070", "0.040", "0.040", "0.040", "1", "0.050"],
        ["utils.spawn", "0.100", "0.060", "0.050", "0.080", "3", "0.050"],
        ["in", "the", "cell", "that", "imports", "utils.spawn", "1.00"],
        ["8", "ranks", "0.090", "0.090", "0.090", "1"],
        ["torch.multiprocessing.spawn", "3.00", "3.00", "3.00", "3.00", "1"],
        ["torchrunx", "failed:", "not", "installed:", "No", "matching", "distribution", "found"],
    ]
    report = show.report(MEASURED)
    assert report.startswith("torch 2.13.0, Python 3.11.7, 2 cores, load 1.5 at the start (busy")
    assert "kept between calls, processes: 1" in report and "import torch, utils" in report and "fsdp2" in report
    assert "submissions per minute                        2.00     12.00" in report
    assert "verdicts of both: 26, of which 1 differ\n  hang-00 ring-values: plain 0, this 2" in report
    assert "10 solved submissions of 07_zero_fsdp" in report
    assert ["4", "100", "6.00", "200", "20.0", "560"] in [line.split() for line in report.splitlines()]
    figure.draw(MEASURED, tmp_path / "launchers.png")
    assert (tmp_path / "launchers.png").read_bytes().startswith(b"\x89PNG")


def test_the_computing_of_processes_that_nobody_waits_for_is_counted():
    burns = "import time\nwhile time.process_time() < 0.5: pass"
    ignores = (
        f"import signal, subprocess, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, '-c', {burns!r}]).wait()"
    )
    with Counter() as counter:
        subprocess.run([sys.executable, "-c", ignores], preexec_fn=counter.join, check=True)
    if not counter.counts_all:
        pytest.skip("there can be no control group of our own here")
    assert counter.seconds > 0.5


def test_a_failing_launcher_says_why_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(side_by_side, "AFTER_THE_IMPORT", 0)
    launchers = [
        Launcher(RIGHT),
        Launcher(RIGHT.replace("right:", "wrong:").replace("* n\n", "* (n - 1)\n")),
        Launcher(RIGHT.replace("right:", "absent:") + "import accelerate_that_nobody_has\n"),
        Launcher(RIGHT.replace("right:", "refused:") + "import torchrunx\n"),
    ]
    rows = side_by_side.measure(launchers, sys.executable, {"torchrunx": "not installed: no network"}, rounds=1)
    assert rows["right"]["failed"] is None and len(rows["right"]["later"]) == side_by_side.CALLS_A_ROUND
    assert rows["wrong"] == {
        "about": "adds up by itself",
        "failed": "wrong results: [6.0, 6.0, 6.0], expected [6.0, 6.0, 6.0, 6.0]",
    }
    assert rows["absent"]["failed"] == "ModuleNotFoundError: No module named 'accelerate_that_nobody_has'"
    assert rows["refused"]["failed"] == "not installed: no network"


def test_a_kernel_leaves_no_process_not_even_outside_its_group():
    start = "import subprocess; daemon = subprocess.Popen(command, stdout=-1, start_new_session=True)"
    command = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"]
    with Kernel(sys.executable) as kernel:
        kernel.run(f"command = {command}; {start}; daemon.stdout.readline()")
        assert len(kernel.helpers()) == 1
        with pytest.raises(CellFailed, match="^ZeroDivisionError: division by zero$"):
            kernel.evaluate("1 / 0")
    assert marked(kernel.mark) == []


def test_every_competitor_is_pinned_and_every_launcher_has_its_own_name():
    lines = environment.COMPETITORS.read_text().splitlines()
    pinned = {line.split("==")[0] for line in lines if environment.PINNED.fullmatch(line)}
    assert pinned and len(pinned) == sum(not line.startswith("#") for line in lines)
    launchers = side_by_side.all_launchers()
    assert len({launcher.name for launcher in launchers}) == len(launchers) and OURS in {one.name for one in launchers}
    assert pinned == {name for name in pinned for one in launchers if environment.refusal(one.source, {name: "no"})}


# --- the virtual cluster


def test_predictions_are_shown_with_measurements_ratios_and_median_errors():
    titles, tables = zip(*virtual_tables.tables(MEASURED["virtual"]), strict=True)
    machines, collectives, steps, speed = tables
    assert machines[1] == ["2 ranks", "100 GFLOP/s", "12 GB/s", "1 µs", "40 µs", "3 GB/s"]
    assert collectives == [
        ["", "2 ranks: measured", "predicted", "ratio"],
        ["4 ranks", "failed: RankTimeout: why"],
        ["ping-pong"],
        ["  1 KiB", "50 µs", "40 µs", "0.80"],
        ["all_reduce"],
        ["  4 MiB", "4 ms", "1 ms", "0.25"],
        ["  16 KiB", "1 s", "1 s", "1.00"],
        ["median error", "", "", "20%"],
    ]
    assert steps[1] == ["1 rank, 8 x 256", "4 ms", "2 ms", "0.50", "1.00", "0.50", "2.00"]
    assert steps[2][:4] == ["median error", "", "", "50%"]
    assert ["64 ranks x 1,000 small sums", "0.50", "0.50", "0.50", "2.00", "128,000"] in speed
    assert all(title in show.report(MEASURED) for title in titles)


def test_a_failed_program_on_the_virtual_cluster_is_not_measured():
    times = {**MEASURED["virtual"]["seconds"], PIPELINE: [5.0, {"failed": "RankCrashed: why"}]}
    failed = {**MEASURED, "virtual": {**MEASURED["virtual"], "seconds": times, "peak": None}}
    changed = [after for before, after in zip(verdicts(MEASURED), verdicts(failed), strict=True) if before != after]
    assert changed == [("", "not measured")] * 2
    assert "RankCrashed: why" in show.report(failed)


def test_a_region_lasts_from_its_last_start_to_its_last_end_without_the_first_time():
    spans = [(0, 0, 1), (0, 100, 103), (0, 200, 202), (0, 300, 309)]
    spans += [(1, 0, 1), (1, 101, 105), (1, 199, 201), (1, 300, 302)]  # 4, 2 and 9 seconds
    regions = [Region(rank, "step", start, end) for rank, start, end in spans]
    run = Run(2, "spawn", "gloo", [None] * 2, [""] * 2, [], 0.0, regions=regions)
    assert predictions.seconds_of(run) == {"step": 2}


MACHINE = Cluster("m", 1, 8, Gpu({"fp32": 1e11}, 8e9, 1e10, 1e-6), Link(4e-5, 3e9), Link(4e-5, 3e9))


def test_the_predicted_sweep_takes_the_cost_of_its_collectives(monkeypatch):
    monkeypatch.setattr(predictions, "SIZES", [1 << 10, 1 << 22])
    run = simulate(predictions.sweep, 4, 2, cluster=MACHINE)
    for key, seconds in predictions.seconds_of(run).items():
        name, nbytes = key.rsplit(" ", 1)
        nbytes = int(nbytes)
        if name == "ping-pong":
            expected = 2 * MACHINE.intra.seconds(nbytes)
        else:
            expected = cost(name, nbytes, MACHINE, Layout.of(MACHINE, range(4))).seconds
        assert seconds == pytest.approx(predictions.calls_in_a_row(nbytes) * expected, rel=1e-9)


def test_the_pipeline_of_the_bench_has_the_bubble_of_1f1b():
    """Forward is one product, backward two. The first rank's input needs no gradient, so the last microbatch ends one
    product earlier: (M + P - 1) microbatches of three products, minus one. Only products take time here.
    """
    free = Link(0.0, float("inf"))
    gpu = Gpu({"fp32": 1e12}, memory=float("inf"), bandwidth=float("inf"))
    cluster = replace(MACHINE, gpu=gpu, intra=free, inter=free)
    product = 2 * virtual_speed.BATCH * virtual_speed.WIDTH**2 / 1e12
    run = simulate(virtual_speed.one_f_one_b, 4, 6, cluster=cluster)
    assert run.elapsed == pytest.approx((3 * (6 + 4 - 1) - 1) * product)


def test_the_peak_memory_of_a_kernels_process_is_sampled():
    hold = "import time; held = bytearray(b'1') * 300_000_000; print('held', flush=True); time.sleep(600)"
    with Kernel(sys.executable) as kernel:
        kernel.run("import subprocess")
        with PeakMemory(kernel) as memory:
            started = f"subprocess.Popen({[sys.executable, '-c', hold]}, stdout=-1)"
            kernel.run(f"holder = {started}; holder.stdout.readline()")
            give_up = time.monotonic() + 30
            while memory.peak < 300e6 and time.monotonic() < give_up:
                pass  # the other thread keeps sampling
        assert 300e6 < memory.peak < 400e6


def test_the_schedules_are_drawn_and_have_the_textbook_bubble(tmp_path, capsys):
    assert [path.name for path in schedules.draw(tmp_path) if path.stat().st_size] == ["gpipe.png", "1f1b.png"]
    assert capsys.readouterr().out.count("69 ms, of which 30.4% bubble") == 2  # 7 / 23
