"""Kernel times in a CSV file: read, refused, and used by `simulate` instead of its model."""

from dataclasses import replace

import pytest
import torch

from utils import simulate
from utils.cluster import Gpu, MeasuredGpu, find_cluster
from utils.cluster.kernel_times import read_kernel_times, write_kernel_times
from utils.worlds.virtual.kernel_names import kernel_name

aten = torch.ops.aten
GPU = Gpu({"fp32": 1e12}, memory=1e9, bandwidth=1e12, launch=1e-3)


def times_of(path, text):
    path.write_text(text)
    return read_kernel_times(path)


def test_what_is_written_is_read(tmp_path):
    times = {"aten.mm.default float32[2,3] float32[3,4]": 1 / 3, "aten.sum.dim_IntList float32[2] (0) 1": 2e-6}
    write_kernel_times(tmp_path / "kernels.csv", times)
    assert read_kernel_times(tmp_path / "kernels.csv") == times


def test_columns_for_readers_are_ignored(tmp_path):
    text = "what it is,kernel,seconds\nproduct,aten.mm.default float32[1],0.5\n"
    assert times_of(tmp_path / "kernels.csv", text) == {"aten.mm.default float32[1]": 0.5}


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "no column 'kernel' and no column 'seconds'"),
        ("kernel,time\nx,1\n", "no column 'seconds'"),
        ("kernel,seconds\nx,1\ny,fast\n", "line 3: the seconds are 'fast'"),
        ("kernel,seconds\nx\n", "line 2: the seconds are None"),
        ("kernel,seconds\nx,-1\n", "line 2: the seconds are '-1'"),
        ("kernel,seconds\nx,nan\n", "line 2: the seconds are 'nan'"),
        ("kernel,seconds\nx,1\nx,2\n", "line 3: a second time for x"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        times_of(tmp_path / "kernels.csv", text)


def test_a_kernel_is_named_by_its_operation_shapes_and_integers():
    x, half = torch.empty(4, 8), torch.empty(8, 2, dtype=torch.bfloat16)
    assert kernel_name(aten.mm.default, (x, half)) == "aten.mm.default float32[4,8] bfloat16[8,2]"
    assert kernel_name(aten.sum.dim_IntList, (x, [0, 1], True)) == "aten.sum.dim_IntList float32[4,8] (0 1) 1"
    assert kernel_name(aten.mul.Tensor, (x, 0.5)) == kernel_name(aten.mul.Tensor, (x, 0.25))
    assert (
        kernel_name(aten._foreach_add_.Scalar, ([x, x], 1)) == "aten._foreach_add_.Scalar (float32[4,8] float32[4,8]) 1"
    )


def program(rank, world_size):
    x = torch.ones(1000, 1000)
    y = x @ x  # measured
    return (y + 1).shape  # not measured


def test_simulate_takes_measured_times_where_there_are_some(tmp_path):
    cluster = replace(find_cluster("dgx-h100", 2), gpu=GPU)
    model = simulate(program, 2, cluster=cluster).elapsed
    by_model = GPU.launch + 2 * 1000**3 / 1e12
    write_kernel_times(tmp_path / "kernels.csv", {"aten.mm.default float32[1000,1000] float32[1000,1000]": 0.75})
    measured = replace(cluster, gpu=MeasuredGpu.of(GPU, tmp_path / "kernels.csv"))
    assert simulate(program, 2, cluster=measured).elapsed == pytest.approx(model - by_model + 0.75)
    assert simulate(program, 2, cluster=measured, device="cpu").elapsed == pytest.approx(model - by_model + 0.75)


def test_a_measured_gpu_without_times_is_the_gpu_itself():
    cluster = replace(find_cluster("dgx-h100", 1), gpu=MeasuredGpu(GPU.flops, GPU.memory, GPU.bandwidth, GPU.launch))
    assert (
        simulate(program, 1, cluster=cluster).elapsed == simulate(program, 1, cluster=replace(cluster, gpu=GPU)).elapsed
    )
