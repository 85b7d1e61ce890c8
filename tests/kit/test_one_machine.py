"""One machine: slow_memory.py, shared_file.py, memory_hierarchy.py, gpu_topology.py and figures/machines.py."""

import math
import pickle
import re

import pytest
import torch
import torch.distributed as dist

from utils import figures, spawn
from utils.benchmark.machine import memory_hierarchy
from utils.kit import gpu_topology
from utils.kit.shared_file import SharedFile
from utils.kit.slow_memory import ChipFull, SlowMemory, unwritten


def memory(room=8):
    return SlowMemory({"x": torch.arange(6.0), "m": torch.arange(12).reshape(3, 4), "y": unwritten(6)}, room)


def test_loads_and_stores_are_counted_in_bytes():
    slow = memory()
    part = slow.load("x", slice(4, 9))  # clipped at the end
    assert part.tolist() == [4, 5]
    slow.store("y", part * 2, slice(0, 2))
    slow.load("m", slice(0, 2), slice(1, 2))
    assert (slow.loaded, slow.stored, slow.moved) == (2 * 4 + 2 * 8, 2 * 4, 32)
    assert slow.arrays["y"][:2].tolist() == [8, 10] and slow.arrays["y"][2:].isnan().all()


def test_a_tile_is_a_copy():
    x = torch.arange(6.0)
    slow = SlowMemory({"x": x}, room=8)
    slow.load("x", slice(0, 6)).zero_()
    assert slow.arrays["x"].tolist() == x.tolist() == [0, 1, 2, 3, 4, 5]


def test_the_chip_stays_full_while_a_variable_holds_a_tile():
    slow = memory(room=6)
    first = slow.load("x", slice(0, 4))
    view = first[1:]
    with pytest.raises(ChipFull, match="room for 6 loaded numbers and holds 4; you load 3 more"):
        slow.load("x", slice(0, 3))
    del first
    assert slow.on_chip == 4  # the view still holds it
    del view
    assert slow.on_chip == 0
    assert len(slow.load("x", slice(0, 6))) == 6


def test_values_of_the_wrong_shape_are_not_stored():
    with pytest.raises(ValueError, match=r"shape \(2,\), but you store shape \(1,\)"):
        memory().store("y", torch.ones(1), slice(0, 2))


def test_a_memory_can_be_pickled():
    slow = memory()
    slow.load("x", slice(0, 2))
    back = pickle.loads(pickle.dumps(slow))
    assert back.loaded == 8 and torch.equal(back.arrays["m"], slow.arrays["m"])


def append_and_read(rank, world_size, path):
    file = SharedFile(path)
    assert file.lines() == []
    dist.barrier()
    file.append(f"rank {rank}")
    dist.barrier()
    return file.lines()


def test_all_ranks_share_a_file_and_the_run_records_each_access(tmp_path):
    run = spawn(append_and_read, 3, str(tmp_path / "file"), backend="gloo")
    assert all(sorted(lines) == ["rank 0", "rank 1", "rank 2"] for lines in run.results)
    assert sorted((region.rank, region.name) for region in run.regions) == sorted(
        (rank, name) for rank in range(3) for name in ("append", "read", "read")
    )


def test_caches_are_read_from_linux(tmp_path):
    for number, (level, kind, size) in enumerate([(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2M")]):
        cache = tmp_path / f"index{number}"
        cache.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (cache / name).write_text(f"{text}\n")
    assert memory_hierarchy.levels(tmp_path) == {"L1": 49152.0, "L2": 2097152.0, "memory": math.inf}
    assert memory_hierarchy.levels(tmp_path / "nothing") == {"memory": math.inf}


def test_copies_are_timed():
    nbytes, seconds = memory_hierarchy.time_copies([4096, 65536])
    assert nbytes == [4096, 65536]
    assert all(0 < t < 1 for t in seconds)


def test_one_core_and_the_loopback_have_rates():
    assert all(rate > 0 for rate in memory_hierarchy.one_core(window=0.01))
    assert memory_hierarchy.link_bandwidth("gloo", rounds=3) > 0


def test_only_slices_choose_a_part():
    with pytest.raises(TypeError, match=r"slice\(a, b\)"):
        memory().load("x", 0, 4)
    with pytest.raises(TypeError, match=r"slice\(a, b\)"):
        memory().store("y", torch.ones(4), 0, 4)


@pytest.mark.parametrize("name", gpu_topology.names())
def test_a_recording_has_the_format_of_the_tool(name):
    text = gpu_topology.recorded(name)
    head, *rest = text.splitlines()
    assert head.startswith("\t") and "CPU Affinity\tNUMA Affinity" in head
    columns = re.findall(r"(?:GPU|NIC)\d+", head)
    rows = [line for line in rest if re.match(r"(GPU|NIC)\d", line)]
    assert [row.split("\t")[0] for row in rows] == columns
    links = [[cell.strip() for cell in row.split("\t")[1 : len(columns) + 1]] for row in rows]
    for i, row in enumerate(links):
        assert row[i] == "X"
        assert all(link == links[j][i] and gpu_topology.speed(link) >= 0 for j, link in enumerate(row) if j != i)
    assert "Legend:" in text


def test_links_are_ordered_by_speed():
    labels = ["NV18", "NV4", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert sorted(labels, key=gpu_topology.speed) == labels[::-1]
    with pytest.raises(ValueError, match="'X' is not a link"):
        gpu_topology.speed("X")
    with pytest.raises(ValueError, match="choose one of eight-cube-mesh"):
        gpu_topology.recorded("mine")


def test_without_the_tool_there_is_no_topology(monkeypatch):
    monkeypatch.setattr(gpu_topology.shutil, "which", lambda name: None)
    assert gpu_topology.of_this_machine() is None


MATRIX = [["X", "NV4", "SYS"], ["NV4", "X", "PIX"], ["SYS", "PIX", "X"]]


def test_the_topology_has_a_line_per_pair_and_a_legend():
    panel = figures.topology(MATRIX, "three").axes[0]
    assert [text.get_text() for text in panel.texts] == ["0", "1", "2", "NV4  x 1", "PIX  x 1", "SYS  x 1"]
    assert len(panel.lines) == 3 + 3
    faint = [line.get_alpha() for line in figures.topology(MATRIX, "ring", ring=[0, 1, 2]).axes[0].lines[:3]]
    assert faint == [1.0] * 3


def test_a_roofline_has_its_points_and_its_ridge():
    panel = figures.roofline(400e12, 2e12, {"sum": 0.1, "product": 800.0}, "one GPU").axes[0]
    assert "ridge point: 200" in [text.get_text() for text in panel.texts]
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in panel.lines if line.get_marker() == "o"]
    assert points == [(0.1, pytest.approx(0.2)), (800.0, pytest.approx(400.0))]


def test_with_several_links_a_point_stands_on_each_of_their_roofs():
    panel = figures.roofline(400e12, {"fast": 1e12, "slow": 1e11}, {"here": 40.0}, "links").axes[0]
    assert [text.get_text() for text in panel.texts] == ["fast: 400", "slow: 4,000", "here"]
    [points] = [line for line in panel.lines if line.get_marker() == "o"]
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([40.0] * 2, pytest.approx([4.0, 40.0]))


def test_bandwidths_name_their_levels():
    levels = {"L1": 32768.0, "L2": 2.0**20, "memory": math.inf}
    panel = figures.bandwidths([4096, 2**17, 2**24], [1e-6, 2e-6, 1e-3], levels).axes[0]
    assert [text.get_text() for text in panel.texts] == ["L1", "L2", "memory"]
    assert list(panel.lines[0].get_ydata()) == pytest.approx([8.192, 131.072, 33.554432])


def test_bandwidths_are_shown_with_and_without_the_fixed_cost():
    panel = figures.bandwidths([4096, 2**17, 2**24], [1e-6, 2e-6, 1e-3], {"memory": math.inf}, fixed=1e-6).axes[0]
    measured, net = panel.lines[:2]
    assert list(measured.get_ydata()) == pytest.approx([8.192, 131.072, 33.554432])
    assert list(net.get_ydata()) == pytest.approx([262.144, 33.587987])  # the first copy took no longer than that


def test_a_rendezvous_connects_every_pair():
    strangers, joined = figures.rendezvous(5).axes
    assert (len(strangers.lines), len(joined.lines)) == (5, 5 * 4 / 2)
    assert "store" in [text.get_text() for text in strangers.texts]


@pytest.mark.parametrize("step", [0, 3])
def test_tiles_show_three_matrices(step):
    panel = figures.tiles(4, row=1, column=2, step=step).axes[0]
    assert len(panel.patches) == 3 * 16


def test_pictures_are_the_same_bytes_each_time():
    assert figures.topology(MATRIX, "three").png() == figures.topology(MATRIX, "three").png()
