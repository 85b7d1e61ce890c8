"""Published times that `simulate` is held against, and the rule that says which of them its rates may be fitted to.

The rule: within each family, rows are sorted by the SHA-256 of their name. The first, the third, ... are "fit", the
others "held out". So nobody chose, and each family is in both halves. What is reported is the error on the half that is
held out.

    Megatron-LM 2021    arXiv 2104.04473, table 1: TFLOP/s per GPU, with NVIDIA's own FLOPs for a step (section 5.1).
                        What the table leaves open (microbatch, layers per chunk, recomputation) is in
                        NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh
    Korthikanti 2022    arXiv 2205.05198, table 4: forward and backward of one layer of 22B; table 5: steps
    MegaScale 2024      arXiv 2402.15627, table 2, the rows of its baseline, Megatron-LM, which section 3.2 says does
                        not overlap messages, gradients or parameters with computing. MegaScale's own rows are left out:
                        their fused and overlapped kernels can't be written as operations of torch
    Llama 3 2024        arXiv 2407.21783, table 4: TFLOP/s per GPU. The row with 131,072 tokens per sequence is left
                        out: there, attention is most of the FLOPs, and the paper doesn't say if it counts those that
                        the causal mask saves
    all-reduce          stas00/ml-engineering, network/benchmarks/results: 8 x H200, 1 MiB to 16 GiB (below, the time is
                        that of Python, which calls it); coreweave/nccl-tests, pull request 43: 72 x GB200
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True)
class Model:
    """A GPT: `ffn` is the width of its MLP, `gated` whether that has three matrices; kv_heads of grouped queries."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 51200
    sequence: int = 2048
    ffn: int = 0
    gated: bool = False
    kv_heads: int = 0

    @property
    def mlp_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def key_width(self) -> int:
        return self.hidden // self.heads * (self.kv_heads or self.heads)

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden**2 + 2 * self.hidden * self.key_width
        return attention + (3 if self.gated else 2) * self.hidden * self.mlp_width

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden * (2 if self.gated else 1)


@dataclass(frozen=True)
class Setting:
    """How a model is trained.

    batch, micro     sequences per step, and per microbatch
    chunks           stages per pipeline rank
    recompute        "full": each layer's forward once more in backward; "core": only attention without its products
                     with weights; "": nothing
    sequence         whether norms and dropout are split over the tensor-parallel ranks
    flash            whether attention is one fused kernel
    sharded          whether optimizer and gradients are split over the data-parallel ranks
    overlap          whether messages between stages, gradients and parameters travel beside computing
    buckets          whether gradients are reduced beside backward, as by torch's DDP
    adds             whether gradients of weights are added up by kernels of their own, not by the matrix product, as in
                     Megatron-LM before its option for that of 2022 (gradient accumulation fusion)
    """

    cluster: str
    gpus: int
    batch: int
    micro: int
    tensor: int
    pipeline: int = 1
    chunks: int = 1
    recompute: str = ""
    sequence: bool = False
    flash: bool = False
    sharded: bool = False
    overlap: bool = False
    buckets: bool = False
    adds: bool = False

    @property
    def data(self) -> int:
        return self.gpus // (self.tensor * self.pipeline)

    @property
    def microbatches(self) -> int:
        return self.batch // self.data // self.micro


@dataclass(frozen=True)
class Row:
    """A published time, in seconds. `what` is "step", "layer" or "all_reduce"."""

    family: str
    name: str
    seconds: float
    what: str
    model: Model | None = None
    setting: Setting | None = None
    nbytes: int = 0
    cluster: str = ""
    ranks: int = 0


def split(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """(rows to fit to, rows that are held out), by the rule at the top."""
    families: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    fit: list[Row] = []
    held_out: list[Row] = []
    for members in families.values():
        members.sort(key=lambda row: sha256(row.name.encode()).digest())
        fit += members[0::2]
        held_out += members[1::2]
    return fit, held_out


# ---- Megatron-LM 2021

FLOPS_2021 = 96  # with recomputation: 96 B s l h^2 (1 + s / 6h + V / 16lh)
FLOPS_MODEL = 72  # without it


def gpt_flops(model: Model, batch: int, factor: int) -> float:
    s, layers, h = model.sequence, model.layers, model.hidden
    return factor * batch * s * layers * h**2 * (1 + s / (6 * h) + model.vocabulary / (16 * layers * h))


def megatron() -> list[Row]:
    table = [
        # name, hidden, heads, layers, tensor, pipeline, GPUs, batch, microbatch, chunks, TFLOP/s per GPU
        ("1.7B", 2304, 24, 24, 1, 1, 32, 512, 16, 1, 137),
        ("3.6B", 3072, 32, 30, 2, 1, 64, 512, 16, 1, 138),
        ("7.5B", 4096, 32, 36, 4, 1, 128, 512, 16, 1, 142),
        ("18.4B", 6144, 48, 40, 8, 1, 256, 1024, 8, 1, 135),
        ("39.1B", 8192, 64, 48, 8, 2, 512, 1536, 4, 1, 138),
        ("76.1B", 10240, 80, 60, 8, 4, 1024, 1792, 2, 3, 140),
        ("145.6B", 12288, 96, 80, 8, 8, 1536, 2304, 2, 2, 148),
        ("310.1B", 16384, 128, 96, 8, 16, 1920, 2160, 1, 2, 155),
        ("529.6B", 20480, 128, 105, 8, 35, 2520, 2520, 1, 3, 163),
        ("1008B", 25600, 160, 128, 8, 64, 3072, 3072, 1, 1, 163),
    ]
    rows = []
    for name, hidden, heads, layers, tensor, pipeline, gpus, batch, micro, chunks, tflops in table:
        model = Model(layers, hidden, heads)
        setting = Setting(
            "dgx-a100", gpus, batch, micro, tensor, pipeline, chunks, recompute="full", buckets=pipeline == 1, adds=True
        )
        seconds = gpt_flops(model, batch, FLOPS_2021) / (gpus * tflops * 1e12)
        rows.append(Row("Megatron-LM 2021", f"{name} on {gpus} GPUs", seconds, "step", model, setting))
    return rows


# ---- Korthikanti 2022

PAPER_2022 = [
    # name, hidden, heads, layers, pipeline, microbatch, batch, chunks, seconds with full recomputation, and without
    ("22B", 6144, 64, 48, 1, 4, 4, 1, 1.42, 1.10),
    ("175B", 12288, 96, 96, 8, 1, 64, 3, 18.13, 13.75),
    ("530B", 20480, 128, 105, 35, 1, 280, 3, 49.05, 37.83),
    ("1T", 25600, 160, 128, 64, 1, 512, 1, 94.42, 71.49),
]
LAYER_2022 = [
    # name, recompute, sequence parallel, milliseconds forward and backward
    ("as it is", "", False, 19.6),
    ("sequence parallel", "", True, 19.0),
    ("full recomputation", "full", False, 27.2),
    ("selective recomputation", "core", False, 20.9),
    ("selective and sequence parallel", "core", True, 20.3),
]


def korthikanti() -> list[Row]:
    rows = []
    for name, hidden, heads, layers, pipeline, micro, batch, chunks, full, paper in PAPER_2022:
        model = Model(layers, hidden, heads)
        for how, recompute, sequence, seconds in (("full", "full", False, full), ("selective", "core", True, paper)):
            setting = Setting(
                *("dgx-a100", 8 * pipeline, batch, micro, 8, pipeline, chunks), recompute=recompute, sequence=sequence
            )
            rows.append(Row("Korthikanti 2022, steps", f"{name}, {how}", seconds, "step", model, setting))
    for name, recompute, sequence, milliseconds in LAYER_2022:
        setting = Setting("dgx-a100", 8, 4, 4, 8, recompute=recompute, sequence=sequence)
        rows.append(Row("Korthikanti 2022, layers", name, milliseconds / 1e3, "layer", Model(48, 6144, 64), setting))
    return rows


# ---- MegaScale 2024


def megascale() -> list[Row]:
    table = [(256, 768, 40.0), (512, 768, 21.2), (768, 768, 15.2), (1024, 768, 11.9)]
    table += [(3072, 6144, 29.02), (6144, 6144, 14.78), (8192, 6144, 12.24), (12288, 6144, 8.57)]
    model = Model(96, 12288, 128, vocabulary=64000)
    return [
        Row(
            "MegaScale 2024, baseline",
            f"175B on {gpus} GPUs",
            seconds,
            "step",
            model,
            Setting("dgx-a100", gpus, batch, 1, 8, 8, 6, sequence=True, flash=True, sharded=True),
        )
        for gpus, batch, seconds in table
    ]


# ---- Llama 3 2024


def llama() -> list[Row]:
    model = Model(126, 16384, 128, vocabulary=128256, sequence=8192, ffn=53248, gated=True, kv_heads=8)
    rows = []
    for gpus, tflops in ((8192, 430), (16384, 400)):
        tokens = 2048 * model.sequence  # 16 million
        flops = tokens * (6 * model.parameters + 12 * model.layers * model.hidden * model.sequence)  # as in PaLM's MFU
        seconds = flops / (gpus * tflops * 1e12)
        how = {"sequence": True, "flash": True, "sharded": True, "overlap": True}
        setting = Setting("dgx-h100", gpus, 2048, 1, 8, 16, 8, **how)  # one layer per chunk: not published
        rows.append(Row("Llama 3 2024", f"405B on {gpus} GPUs", seconds, "step", model, setting))
    return rows


# ---- all-reduce

H200 = [
    22.82,
    36.87,
    61.23,
    88.87,
    125.65,
    157.62,
    198.01,
    229.67,
    249.23,
    257.31,
    264.90,
    268.10,
    270.34,
    272.83,
    275.58,
]
GB200 = [297.16, 345.38, 384.22, 425.49, 423.16]  # GB/s, the tensor's bytes by the time, for 1, 2, 4, ... MiB; 512, ...


def all_reduces() -> list[Row]:
    rows = []
    for cluster, gpu, ranks, first, speeds in (
        ("dgx-h100", "H200", 8, 1, H200),
        ("gb200-nvl72", "GB200", 72, 512, GB200),
    ):
        for place, speed in enumerate(speeds):
            nbytes = first * 2**20 << place
            rows.append(
                Row(
                    "all-reduce",
                    f"{nbytes >> 20} MiB on {ranks} x {gpu}",
                    nbytes / (speed * 1e9),
                    "all_reduce",
                    nbytes=nbytes,
                    cluster=cluster,
                    ranks=ranks,
                )
            )
    return rows


ROWS = [*megatron(), *korthikanti(), *megascale(), *llama(), *all_reduces()]
