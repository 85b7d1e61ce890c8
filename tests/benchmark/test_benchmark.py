"""The benchmark: nccl-tests' conventions, the times of a virtual cluster, tables, the command line.

No test depends on how fast this machine is.
"""

import csv
import io
import os
import subprocess
import sys
from fractions import Fraction

import pytest
import torch

from utils import simulate, spawn
from utils.benchmark import __main__, benchmark, rank_program
from utils.benchmark.machine.limits import machine_limits
from utils.benchmark.nccl_conventions import (
    DTYPES,
    OPS,
    algbw,
    bus_factor,
    busbw,
    count_of,
    parse_size,
    parse_sizes,
    total_bytes,
)
from utils.benchmark.sweep import rows_of
from utils.benchmark.table import BenchmarkTable, Row
from utils.cluster.hardware import links
from utils.events.collectives import COLLECTIVES

ALPHA, BANDWIDTH = 1e-5, 1e10


# ---- conventions


def test_the_factors_match_nccl_tests():
    assert {op: bus_factor(op, 4) for op in OPS} == {
        "all_reduce": Fraction(3, 2),
        "broadcast": 1,
        "reduce": 1,
        **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), Fraction(3, 4)),
    }


def test_a_single_rank_moves_nothing_over_the_bus():
    assert busbw("all_reduce", 1000, 1e-6, 1) == busbw("all_gather", 1000, 1e-6, 1) == 0


def test_two_numbers_from_a_lecture():
    """4 H100s, 100 Mi float32; the lecture showed 277 and 75."""
    tensor = 100 * 2**20 * 4
    assert round(busbw("all_reduce", tensor, 2.11e-3, 4)) == 298
    assert round(busbw("reduce_scatter", total_bytes("reduce_scatter", 4 * tensor, 4), 3.92e-3, 4)) == 321
    assert total_bytes("all_gather", tensor, 4) == 4 * tensor
    assert algbw(1_000_000_000, 0.5) == 2


def test_sizes_are_read_as_in_nccl_tests():
    assert parse_sizes("1K..64M")[::16] == [1024, 64 * 1024**2]
    assert parse_sizes("8..100", step=3) == [8, 24, 72]
    assert parse_sizes("2G,1k, 5") == [5, 1024, 2 * 1024**3]
    assert parse_size("3MiB") == parse_size("3M") == parse_size("3 MB")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("64M..1K", "write the smaller size first, as in 1K..64M"),
        ("1.5K", "a whole number of bytes"),
        ("0..8", "a size of 0 bytes"),
        ("", "is not a size"),
        ("1K..", "is not a size"),
        ("-4", "is not a size"),
    ],
)
def test_invalid_sizes_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse_sizes(text)


def test_a_step_that_does_not_grow_is_refused():
    with pytest.raises(ValueError, match="step is 1"):
        parse_sizes("1K..2K", step=1)


def test_counts_are_per_chunk_if_there_are_chunks():
    assert count_of("all_reduce", 1024, 4, 3) == 256
    assert count_of("reduce_scatter", 1024, 4, 3) == 85
    with pytest.raises(ValueError, match="8 is too small for all_gather: .* 3 ranks takes 12 bytes"):
        count_of("all_gather", 8, 4, 3)


# ---- measured on real ranks


@pytest.mark.parametrize("op", OPS)
def test_every_collective_is_correct_and_has_its_rows(op):
    table = benchmark(op, "1K,64K", 3, backend="gloo", warmup=1, repeats=3)
    assert [row.wrong for row in table.rows] == [0, 0]
    assert [row.size for row in table.rows] == ([1020, 65532] if COLLECTIVES[op].in_chunks else [1024, 65536])
    for row in table.rows:
        assert row.seconds > 0
        assert row.busbw == pytest.approx(row.algbw * float(bus_factor(op, 3)))
        assert row.algbw == pytest.approx(row.size / row.seconds / 1e9)


def sweep_every_dtype(rank, world_size):
    return {
        dtype: rank_program.sweep(rank, world_size, "all_reduce", [1024], dtype, 0, 1, True, False) for dtype in DTYPES
    }


def test_every_dtype_is_correct():
    for found in spawn(sweep_every_dtype, 2, backend="gloo").results:
        assert {dtype: one.wrong for dtype, [one] in found.items()} == dict.fromkeys(DTYPES, 0)


def check_after_doing_nothing(rank, world_size):
    rank_program.Call.__call__ = lambda self: None  # a library that silently does nothing
    return [rank_program.Call(op, 1200, torch.float32, rank, world_size).count_wrong() for op in OPS]


def test_a_collective_that_does_nothing_is_counted_as_wrong():
    of_ranks = spawn(check_after_doing_nothing, 3, backend="gloo").results
    assert all(sum(wrong) > 0 for wrong in zip(*of_ranks, strict=True))


def test_the_slowest_rank_and_the_median_count():
    results = [[rank_program.Measurement(seconds, 0)] for seconds in ([1.0, 5.0, 2.0], [3.0, 1.0, 1.0])]
    [row] = rows_of("all_reduce", [1000], 4, results)
    assert (row.seconds, row.spread) == (3.0, pytest.approx(1 / 3))  # times: 3, 5, 2


def test_the_limits_of_this_machine_are_rates():
    limits = machine_limits(2, "gloo")
    assert set(limits) == {"memory copy, 2 at once", "loopback, 2 ranks"}
    assert all(rate > 0 for rate in limits.values())


# ---- a virtual cluster with known times


def test_a_virtual_ring_follows_the_formula():
    table = benchmark("all_reduce", "8M..64M", 4, cluster=links(4, ALPHA, BANDWIDTH))
    for row in table.rows:
        assert row.seconds == pytest.approx(6 * (ALPHA + row.size / 4 / BANDWIDTH))
        assert (row.spread, row.wrong) == (0, None)
    assert table.alpha == pytest.approx(6 * ALPHA)
    assert table.beta == pytest.approx(6 / 4 / BANDWIDTH)


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"])
def test_without_latency_busbw_is_the_bandwidth_of_the_link(op):
    table = benchmark(op, "1M", 4, cluster=links(4, 0, BANDWIDTH))
    assert table.rows[0].busbw == pytest.approx(BANDWIDTH / 1e9)


def test_a_named_cluster_brings_its_limits_and_one_node_of_ranks():
    table = benchmark("broadcast", "1M", cluster="dgx-a100")
    assert table.world_size == 8
    assert list(table.limits) == ["link inside a node"]
    assert len(benchmark("broadcast", "1M", 9, cluster="dgx-a100").limits) == 2


def late_and_slow_at_first(rank, world_size):
    calls = 0

    def call():
        nonlocal calls
        calls += 1
        rank_program.time.sleep(1.0 if calls <= 2 else 0.0)
        torch.distributed.all_reduce(torch.ones(100))

    times = []
    for turn in range(6):
        rank_program.time.sleep(0.5 * (turn % world_size == rank))
        times.append(rank_program.time_once(call))
    return times


def test_lateness_before_a_call_is_not_timed():
    run = simulate(late_and_slow_at_first, 2, cluster=links(2, 1e-3, 1e6), device="cpu")
    right = 2 * (1e-3 + 200 / 1e6)
    assert run.results == [pytest.approx([right + 1, right + 1, *[right] * 4])] * 2


# ---- tables


def made_up(**changes):
    rows = [Row(1000 * 8**power, 250 * 8**power, 1e-5 * 8**power, 0.05, 0.1, 0.15, 0) for power in range(3)]
    what = {"op": "all_reduce", "world_size": 4, "dtype": "float32", "where": "4 ranks over gloo", "rows": rows}
    return BenchmarkTable(**{**what, "warmup": 5, "repeats": 20, "limits": {"loopback, 2 ranks": 3e9}, **changes})


def test_a_table_has_the_columns_of_nccl_tests():
    lines = repr(made_up()).splitlines()
    assert "out-of-place" in lines[1] and "in-place" in lines[1]
    columns = lines[2].split()
    times = ["time", "algbw", "busbw", "#wrong"]
    assert columns == ["#", "size", "count", "type", "redop", "root", *times, *times, "spread"]
    first = lines[4].split()
    assert first == ["1000", "250", "float", "sum", "-1", *["N/A"] * 4, "10.00", "0.10", "0.15", "0", "5.0"]
    assert "# Out of bounds values : 0 OK" in lines
    assert "# loopback, 2 ranks    : 3 GB/s" in lines


def test_forms_and_roots_are_in_the_columns_of_nccl_tests():
    first = repr(made_up(op="gather")).splitlines()[4].split()
    assert first[3:8] == ["none", "0", "10.00", "0.10", "0.15"] and first[9:13] == ["N/A"] * 4


def test_times_without_a_fit_are_still_shown_and_drawn():
    table = made_up(rows=[Row(1000, 250, 2e-5, 0, 0.1, 0.1, 0), Row(8000, 2000, 1e-5, 0, 0.1, 0.1, 0)])
    assert table.model is None and "no fit: larger messages don't take longer" in repr(table)
    assert table.figure().png()


def test_a_single_virtual_rank_has_a_table_of_zeros_and_no_picture():
    table = benchmark("all_reduce", "1K,1M", 1, cluster="laptop")
    assert "no fit: some calls took no time at all" in repr(table)
    with pytest.raises(ValueError, match="nothing to draw"):
        table.figure()


def test_wrong_values_are_reported():
    table = made_up(rows=[Row(8, 2, 1e-5, 0, 0.1, 0.1, 2)])
    assert "Out of bounds values : 2 FAILED" in repr(table)
    assert "no fit" in repr(table)  # one size is too few


def test_a_table_has_html_and_a_picture():
    table = made_up()
    assert table._repr_html_().count("<tr>") == 1 + 1 + 3
    png = table.figure().png()
    assert png == table.figure().png()
    assert table.figure().title == "all_reduce, 4 ranks over gloo"


def test_a_table_can_be_saved(tmp_path):
    made_up().save_csv(tmp_path / "sweep.csv")
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [int(row["size"]) for row in rows] == [1000, 8000, 64000]
    assert float(rows[0]["seconds"]) == 1e-5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"op": "allreduce"}, "did you mean 'all_reduce'"),
        ({"op": "all_reduce", "dtype": "float8"}, "choose one of float32"),
        ({"op": "all_reduce", "repeats": 0}, "repeats 0"),
        ({"op": "all_gather", "sizes": "4"}, "a size of 4 is too small"),
        ({"op": "all_reduce", "cluster": "dgx-h10"}, "did you mean 'dgx-h100'"),
    ],
)
def test_an_impossible_benchmark_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        benchmark(**arguments)


# ---- the command line


def command(*arguments, capsys) -> tuple[int, str, str]:
    try:
        code = __main__.main(list(arguments))
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    return code, out, err


def rows_in(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_the_command_prints_only_a_table(root):
    words = ["all_reduce", "--sizes", "1K,4K", "-n", "2", "--repeats", "2", "--warmup", "1", "--backend", "gloo"]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-m", "utils.benchmark", *words],
        env=env,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert [row[:2] for row in rows_in(done.stdout)] == [["1024", "256"], ["4096", "1024"]]
    assert done.stderr == ""  # no progress bar without a terminal


def test_times_on_a_virtual_cluster_never_vary(capsys, tmp_path):
    words = ["all", "--cluster", "laptop", "-n", "2", "--sizes", "1M", "--csv", str(tmp_path / "sweep.csv")]
    first = command(*words, capsys=capsys)
    assert first == command(*words, capsys=capsys)
    code, out, err = first
    assert (code, err, len(rows_in(out))) == (0, "", len(OPS))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"sweep-{op}.csv" for op in OPS)


def test_a_figure_is_written_to_its_file(capsys, tmp_path):
    path = tmp_path / "sweep.png"
    code, _, _ = command("reduce", "--cluster", "laptop", "--sizes", "1K,1M", "--figure", str(path), capsys=capsys)
    assert code == 0 and path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["all_reduce", "--sizes", "big"], "'big' is not a size"),
        (["allreduce"], "invalid choice: 'allreduce'"),
        (["all_reduce", "--cluster", "cray"], "there is no cluster 'cray'"),
        (["all_reduce", "--cluster", "laptop", "--backend", "gloo"], "not allowed with"),
        (["all_reduce", "-n", "0"], "at least 1"),
        (["all_reduce", "--repeats", "0", "--sizes", "1K"], "repeats 0"),
        (
            ["all_reduce", "--csv", "/no/such/folder/x.csv", "--cluster", "laptop", "--sizes", "1K"],
            "does not exist",
        ),
        (["all_reduce", "--figure", "sweep.txt"], "is not a picture format"),
        (["all_reduce", "--csv", "/tmp"], "is a folder"),
        (["all", "--sizes", "4..1K", "-n", "4"], "a size of 4 is too small for all_gather"),
    ],
)
def test_an_invalid_command_says_why(words, said, capsys):
    code, out, err = command(*words, capsys=capsys)
    assert code == 2 and said in err and "Traceback" not in err


def test_wrong_values_give_exit_code_1(capsys, monkeypatch):
    wrong = made_up(rows=[Row(8, 2, 1e-5, 0, 0.1, 0.1, 2)])
    monkeypatch.setattr(__main__, "benchmark", lambda *_, **__: wrong)
    assert command("all_reduce", capsys=capsys)[0] == 1


def test_help_names_every_collective(capsys):
    code, out, _ = command("--help", capsys=capsys)
    assert code == 0 and all(op in out for op in OPS)


@pytest.mark.thorough
def test_a_closed_pipe_is_not_an_error(root):
    words = f"{sys.executable} -m utils.benchmark all --cluster laptop --sizes 1K | head -1; exit ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(["bash", "-c", words], env=env, cwd=root, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


def test_a_terminal_gets_a_progress_bar(capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    asked = []
    monkeypatch.setattr(__main__, "benchmark", lambda *_, progress, **__: asked.append(progress) or made_up())
    monkeypatch.setattr(sys, "stderr", Terminal())
    __main__.main(["all_reduce"])
    assert asked == [True]


@pytest.mark.thorough
def test_under_torchrun_the_ranks_of_the_job_are_used(root):
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "utils.benchmark"]
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    asked = ["all_gather", "--sizes", "1K,4K", "--repeats", "2", "--backend", "gloo"]
    done = subprocess.run(
        [sys.executable, *words, *asked], env=env, cwd=root, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert [row[:2] for row in rows_in(done.stdout)] == [["1024", "128"], ["4096", "512"]]
    assert done.stdout.count("all_gather, 2 ranks over gloo") == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nccl_is_measured():
    ranks = torch.cuda.device_count()
    for op in OPS:
        table = benchmark(op, "1K..1M", ranks, step=32, backend="nccl", warmup=1, repeats=3)
        assert table.wrong == 0 and "nccl" in table.where
    assert machine_limits(ranks, "nccl")
