"""`make bench`: its table, and that a part that fails does not stop the others. No test depends on a time."""

from dataclasses import replace

import pytest

from tests.bench import launchers, predictions, startup, virtual_speed
from utils import Region, Run, simulate
from utils.cluster import Cluster, Gpu, Layout, Link, cost

MACHINE = Cluster("m", 1, 8, Gpu({"fp32": 1e11}, 8e9, 1e10, 1e-6), Link(4e-5, 3e9), Link(4e-5, 3e9))


def test_one_table_shows_medians_ratios_and_what_failed_and_pyperf_reads_what_is_saved(monkeypatch, tmp_path, capsys):
    pyperf = pytest.importorskip("pyperf", reason="make GROUP=bench env")
    from tests.bench import __main__ as bench

    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "FOLDER", tmp_path / "build")
    seconds = iter([0.06, 3.0, 0.08, 3.5])

    def measured(part, case, quick):
        if case == "broken":
            raise RuntimeError("ValueError: why")
        return [{"name": case, "values": [next(seconds)], "beside": "ours"}]

    monkeypatch.setattr(bench, "in_fresh_process", measured)
    monkeypatch.setattr(launchers, "CASES", ["ours", "theirs", "broken"])
    bench.main(["launchers"], quick=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ours", "70.0", "ms", "60.0", "ms", "80.0", "ms", "2", "1", "x", "ours"] in lines
    assert ["theirs", "3.25", "sec", "3.00", "sec", "3.50", "sec", "2", "46.4", "x", "ours"] in lines
    assert ["launchers", "broken", "failed:", "ValueError:", "why"] in lines
    suite = pyperf.BenchmarkSuite.load(str(tmp_path / "build" / "measured.json"))
    assert suite.get_benchmark("theirs").get_values() == (3.0, 3.5)


def test_a_case_runs_in_a_fresh_process_and_says_why_it_failed():
    pytest.importorskip("pyperf", reason="make GROUP=bench env")
    from tests.bench.__main__ import in_fresh_process

    (row,) = in_fresh_process("startup", startup.TORCH, True)
    assert row["name"] == startup.TORCH and row["values"][0] > 0
    with pytest.raises(RuntimeError, match="^KeyError: 'import nothing'$"):
        in_fresh_process("startup", "import nothing", True)


@pytest.mark.parametrize("name", [launchers.OURS, "torch.multiprocessing.spawn"])
def test_a_launcher_returns_the_sum_on_every_rank(name):
    with launchers.LAUNCHERS[name]() as call:
        assert call(2) == [1.0, 1.0]
        with pytest.raises(RuntimeError, match="wrong results"):
            launchers.seconds_of(lambda world_size: call(world_size)[1:], 2)


def test_a_region_lasts_from_its_last_start_to_its_last_end_without_the_first_time():
    spans = [(0, 0, 1), (0, 100, 103), (0, 200, 202), (0, 300, 309)]
    spans += [(1, 0, 1), (1, 101, 105), (1, 199, 201), (1, 300, 302)]  # 4, 2 and 9 seconds
    regions = [Region(rank, "step", start, end) for rank, start, end in spans]
    run = Run(2, "spawn", "gloo", [None] * 2, [""] * 2, [], 0.0, regions=regions)
    assert predictions.seconds_of(run) == {"step": 2}


def test_the_predicted_sweep_takes_the_cost_of_its_collectives():
    run = simulate(predictions.sweep, 4, 2, cluster=MACHINE)
    sizes = {text: nbytes for nbytes, text in predictions.SIZES.items()}
    for key, seconds in predictions.seconds_of(run).items():
        (calls, name), nbytes = key.partition(" of ")[0].split(" x "), sizes[key.partition(" of ")[2]]
        ping_pong = 2 * MACHINE.intra.seconds(nbytes)
        expected = (
            ping_pong if name == "ping-pong" else cost(name, nbytes, MACHINE, Layout.of(MACHINE, range(4))).seconds
        )
        assert seconds == pytest.approx(int(calls) * expected, rel=1e-9)


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
