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

Each row is checked against other numbers of its source (consistency.py):

    Megatron-LM 2021    parameters by the paper's equation 2, part of the peak, PFLOP/s of all GPUs
    Korthikanti 2022    throughput gained, MFU and HFU by the FLOPs of its appendix; forward + backward, overhead
    MegaScale 2024      tokens/s, days for 300 billion tokens, MFU by the FLOPs of a GPT
    Llama 3 2024        MFU, GPUs = 8 x 16 x data-parallel groups, tokens of a step, parameters of the model
    all-reduce          H200: nccl-tests' own sweep on the same machine, within 10 %. GB200: bytes by the time

A row that contradicts its source is printed, but counts in no summary. These are the all-reduces of 1 to 8 MiB on H200:
the sweep they are from was timed in Python, which adds some 15 to 20 µs to each. The split is that of all rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from tests.accuracy.consistency import Check


@dataclass(frozen=True)
class Model:
    """A GPT: `ffn` is the width of its MLP, `gated` whether that has three matrices; kv_heads of grouped queries.

    llama    whether it has RMSNorm and rotates queries and keys, and ties no weights
    experts  MLPs per layer, of which `top` compute each token; 0: one MLP, without a router
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 51200
    sequence: int = 2048
    ffn: int = 0
    gated: bool = False
    kv_heads: int = 0
    llama: bool = False
    experts: int = 0
    top: int = 2

    @property
    def mlp_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def key_width(self) -> int:
        return self.hidden // self.heads * (self.kv_heads or self.heads)

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden**2 + 2 * self.hidden * self.key_width
        return attention + max(1, self.experts) * (3 if self.gated else 2) * self.hidden * self.mlp_width

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden * (2 if self.gated else 1)

    @property
    def used_parameters(self) -> int:
        """Those that each token is multiplied with: all but a table of embeddings, and the experts of other tokens."""
        idle = (self.experts - self.top) * 3 * self.hidden * self.mlp_width if self.experts else 0
        return self.parameters - self.layers * idle - self.vocabulary * self.hidden * self.gated


@dataclass(frozen=True)
class Setting:
    """How a model is trained.

    batch, micro     sequences per step, and per microbatch
    chunks           stages per pipeline rank
    recompute        "full": each layer's forward once more in backward; "half": every second layer's; "core": only
                     attention without its products with weights; "": nothing
    sequence         whether norms and dropout are split over the tensor-parallel ranks
    flash            whether attention is one fused kernel, of FlashAttention's `generation`
    sharded          whether optimizer and gradients are split over the data-parallel ranks
    overlap          whether messages between stages, gradients and parameters travel beside computing
    buckets          whether gradients are reduced beside backward, as by torch's DDP
    fsdp             whether weights are split, too, layer by layer, and gathered before use, as by torch's FSDP
    experts          ranks that share the experts of a layer
    fused            whether what memory limits is fused, by torch.compile or by hand as in Transformer Engine
    dropout          whether dropout is applied to what is added to the residual
    beside           whether collectives of the tensor-parallel group run beside the product that follows
    gradient_bytes   of each number that is exchanged between data-parallel ranks
    hybrid           whether weights are split inside a node only, and gradients added up between nodes besides
    bandwidth        bytes/s of the GPU's memory, if it isn't the cluster's
    network          bytes/s one way and per GPU between nodes, if it isn't the cluster's
    site             see SITES in utils/cluster/presets.py
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
    generation: int = 2
    sharded: bool = False
    overlap: bool = False
    buckets: bool = False
    adds: bool = False
    fsdp: bool = False
    experts: int = 1
    fused: bool = False
    dropout: bool = True
    beside: bool = False
    gradient_bytes: int = 4
    hybrid: bool = False
    bandwidth: float = 0.0
    network: float = 0.0
    site: str = "benchmark"

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
    checks: tuple[Check, ...] = ()

    @property
    def contradictions(self) -> list[Check]:
        return [check for check in self.checks if not check.agrees]


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

A100_PEAK, H100_PEAK = 312, 989  # TFLOP/s in bf16
PEAKS = {"dgx-a100": A100_PEAK, "dgx-h100": H100_PEAK}
FLOPS_2021 = 96  # with recomputation: 96 B s l h^2 (1 + s / 6h + V / 16lh)
FLOPS_MODEL = 72  # without it


def gpt_flops(model: Model, batch: int, factor: int) -> float:
    s, layers, h = model.sequence, model.layers, model.hidden
    return factor * batch * s * layers * h**2 * (1 + s / (6 * h) + model.vocabulary / (16 * layers * h))


def model_flops(model: Model, batch: int, attention: int = 1) -> float:
    """Of a step without recomputation, or with that of attention's core (2): arXiv 2205.05198, appendix A."""
    s, layers, h = model.sequence, model.layers, model.hidden
    products = 1 + attention * s / (6 * h) + model.vocabulary / (12 * layers * h)
    return FLOPS_MODEL * batch * s * layers * h**2 * products


def megatron() -> list[Row]:
    table = [
        # name, hidden, heads, layers, tensor, pipeline, GPUs, batch, microbatch, chunks, TFLOP/s per GPU; % of the peak
        # and PFLOP/s of all
        ("1.7B", 2304, 24, 24, 1, 1, 32, 512, 16, 1, 137, 44, 4.4),
        ("3.6B", 3072, 32, 30, 2, 1, 64, 512, 16, 1, 138, 44, 8.8),
        ("7.5B", 4096, 32, 36, 4, 1, 128, 512, 16, 1, 142, 46, 18.2),
        ("18.4B", 6144, 48, 40, 8, 1, 256, 1024, 8, 1, 135, 43, 34.6),
        ("39.1B", 8192, 64, 48, 8, 2, 512, 1536, 4, 1, 138, 44, 70.8),
        ("76.1B", 10240, 80, 60, 8, 4, 1024, 1792, 2, 3, 140, 45, 143.8),
        ("145.6B", 12288, 96, 80, 8, 8, 1536, 2304, 2, 2, 148, 47, 227.1),
        ("310.1B", 16384, 128, 96, 8, 16, 1920, 2160, 1, 2, 155, 50, 297.4),
        ("529.6B", 20480, 128, 105, 8, 35, 2520, 2520, 1, 3, 163, 52, 410.2),
        ("1008B", 25600, 160, 128, 8, 64, 3072, 3072, 1, 1, 163, 52, 502.0),
    ]
    rows = []
    for name, hidden, heads, layers, tensor, pipeline, gpus, batch, micro, chunks, tflops, percent, pflops in table:
        model = Model(layers, hidden, heads)
        setting = Setting(
            "dgx-a100", gpus, batch, micro, tensor, pipeline, chunks, recompute="full", buckets=pipeline == 1, adds=True
        )
        seconds = gpt_flops(model, batch, FLOPS_2021) / (gpus * tflops * 1e12)
        parameters = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden)) + (model.vocabulary + model.sequence) * hidden
        checks = (
            Check("billions of parameters", float(name[:-1]), 0.05, parameters / 1e9),
            Check("% of the peak", percent, 0.5, 100 * tflops / A100_PEAK, 0.5 / tflops),
            Check("PFLOP/s of all", pflops, 0.05, gpus * tflops / 1e3, 0.5 / tflops),
        )
        rows.append(Row("Megatron-LM 2021", f"{name} on {gpus} GPUs", seconds, "step", model, setting, checks=checks))
    return rows


# ---- Korthikanti 2022

PAPER_2022 = [
    # name, hidden, heads, layers, pipeline, microbatch, batch, chunks, seconds with full recomputation, and without;
    # % throughput gained, MFU, HFU
    ("22B", 6144, 64, 48, 1, 4, 4, 1, 1.42, 1.10, 29.0, 41.5, 43.7),
    ("175B", 12288, 96, 96, 8, 1, 64, 3, 18.13, 13.75, 31.8, 51.4, 52.8),
    ("530B", 20480, 128, 105, 35, 1, 280, 3, 49.05, 37.83, 29.7, 56.0, 57.0),
    ("1T", 25600, 160, 128, 64, 1, 512, 1, 94.42, 71.49, 32.1, 56.3, 57.0),
]
LAYER_2022 = [
    # name, recompute, sequence parallel, milliseconds forward and backward together; forward, backward, % more than the
    # first
    ("as it is", "", False, 19.6, 7.7, 11.9, 0),
    ("sequence parallel", "", True, 19.0, 7.2, 11.8, -3),
    ("full recomputation", "full", False, 27.2, 7.7, 19.5, 39),
    ("selective recomputation", "core", False, 20.9, 7.7, 13.2, 7),
    ("selective and sequence parallel", "core", True, 20.3, 7.2, 13.1, 4),
]


def korthikanti() -> list[Row]:
    rows = []
    for name, hidden, heads, layers, pipeline, micro, batch, chunks, full, paper, gained, mfu, hfu in PAPER_2022:
        model = Model(layers, hidden, heads)
        done, digit = paper * 8 * pipeline * A100_PEAK * 1e12 / 100, 0.005 / paper  # FLOPs that would be one per cent
        checks = (
            Check("% throughput gained", gained, 0.05, 100 * (full / paper - 1), 10 * digit),
            Check("MFU, %", mfu, 0.05, model_flops(model, batch) / done, digit),
            Check("HFU, %", hfu, 0.05, model_flops(model, batch, attention=2) / done, digit),
        )
        for how, recompute, sequence, seconds in (("full", "full", False, full), ("selective", "core", True, paper)):
            setting = Setting(
                *("dgx-a100", 8 * pipeline, batch, micro, 8, pipeline, chunks), recompute=recompute, sequence=sequence
            )
            title = f"{name}, {how}"
            rows.append(Row("Korthikanti 2022, steps", title, seconds, "step", model, setting, checks=checks))
    for name, recompute, sequence, milliseconds, forward, backward, more in LAYER_2022:
        setting = Setting("dgx-a100", 8, 4, 4, 8, recompute=recompute, sequence=sequence)
        checks = (
            Check("forward + backward, ms", milliseconds, 0.05, forward + backward, 0.1 / milliseconds),
            Check("% more than the first", more, 0.5, 100 * (milliseconds / LAYER_2022[0][3] - 1)),
        )
        seconds, family = milliseconds / 1e3, "Korthikanti 2022, layers"
        rows.append(Row(family, name, seconds, "layer", Model(48, 6144, 64), setting, checks=checks))
    return rows


# ---- MegaScale 2024


def megascale() -> list[Row]:
    table = [
        # GPUs, batch, seconds and their last digit; thousand tokens/s, days for 300 billion tokens, MFU
        (256, 768, 40.0, 0.1, 39.3, 88.35, 53.0),
        (512, 768, 21.2, 0.1, 74.1, 46.86, 49.9),
        (768, 768, 15.2, 0.1, 103.8, 33.45, 46.7),
        (1024, 768, 11.9, 0.1, 132.7, 26.17, 44.7),
        (3072, 6144, 29.02, 0.01, 433.6, 8.01, 48.7),
        (6144, 6144, 14.78, 0.01, 851.6, 4.08, 47.8),
        (8192, 6144, 12.24, 0.01, 1027.9, 3.38, 43.3),
        (12288, 6144, 8.57, 0.01, 1466.8, 2.37, 41.2),
    ]
    model = Model(96, 12288, 128, vocabulary=64000)
    return [
        Row(
            "MegaScale 2024, baseline",
            f"175B on {gpus} GPUs",
            seconds,
            "step",
            model,
            Setting(
                *("dgx-a100", gpus, batch, 1, 8, 8, 6),
                **{"sequence": True, "flash": True, "sharded": True, "site": "production"},
            ),
            checks=(
                Check("thousand tokens/s", tokens, 0.05, batch * model.sequence / seconds / 1e3, digit / seconds),
                Check("days", days, 0.005, 300e9 / (batch * model.sequence / seconds) / 86400, digit / seconds),
                Check(
                    "MFU, %",
                    mfu,
                    0.05,
                    100 * model_flops(model, batch) / (seconds * gpus * A100_PEAK * 1e12),
                    digit / seconds,
                ),
            ),
        )
        for gpus, batch, seconds, digit, tokens, days, mfu in table
    ]


# ---- Llama 3 2024


def llama() -> list[Row]:
    model = Model(126, 16384, 128, vocabulary=128256, sequence=8192, ffn=53248, gated=True, kv_heads=8)
    rows = []
    for gpus, tflops, mfu, groups, batch in ((8192, 430, 43, 64, 32), (16384, 400, 41, 128, 16)):
        tokens = 2048 * model.sequence  # 16 million
        flops = tokens * (6 * model.parameters + 12 * model.layers * model.hidden * model.sequence)  # as in PaLM's MFU
        seconds = flops / (gpus * tflops * 1e12)
        how = {"sequence": True, "flash": True, "sharded": True, "overlap": True, "site": "production"}
        setting = Setting("dgx-h100", gpus, 2048, 1, 8, 16, 8, **how)  # one layer per chunk: not published
        checks = (
            Check("MFU, %", mfu, 0.5, 100 * tflops / H100_PEAK, 5 / tflops),  # TFLOP/s are in tens
            Check("GPUs", gpus, 0, 8 * 16 * groups),
            Check("million tokens", 16, 1, groups * batch * model.sequence / 1e6),
            Check("billions of parameters", 405, 1, model.parameters / 1e9),
        )
        rows.append(Row("Llama 3 2024", f"405B on {gpus} GPUs", seconds, "step", model, setting, checks=checks))
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
# Bus bandwidths of the same sizes on the same machine, by nccl-tests, in GB/s
H200_NCCL_TESTS = [
    *(72.45, 91.48, 139.97, 182.03, 242.45, 298.44, 369.82, 411.21),
    *(442.27, 455.82, 464.00, 468.31, 473.10, 475.16, 480.70),
]
GB200 = [297.16, 345.38, 384.22, 425.49, 423.16]  # GB/s, the tensor's bytes by the time, for 1, 2, 4, ... MiB; 512, ...
GB200_TIMES = [1806.7, 3108.8, 5589.1, 10094, 20299]  # µs


def all_reduces() -> list[Row]:
    rows = []
    for cluster, gpu, ranks, first, speeds in (
        ("dgx-h100", "H200", 8, 1, H200),
        ("gb200-nvl72", "GB200", 72, 512, GB200),
    ):
        for place, speed in enumerate(speeds):
            nbytes = first * 2**20 << place
            if gpu == "H200":
                other = H200_NCCL_TESTS[place] * ranks / (2 * (ranks - 1))
                check = Check("GB/s by nccl-tests", other, 0.1 * other, speed)
            else:
                check = Check("µs", GB200_TIMES[place], 0.5, nbytes / speed / 1e3, 0.005 / speed)
            rows.append(
                Row(
                    "all-reduce",
                    f"{nbytes >> 20} MiB on {ranks} x {gpu}",
                    nbytes / (speed * 1e9),
                    "all_reduce",
                    nbytes=nbytes,
                    cluster=cluster,
                    ranks=ranks,
                    checks=(check,),
                )
            )
    return rows


def nccl_tests() -> list[Row]:
    """nccl-tests' own sweep on the same H200s. No rate was fitted to it."""
    sizes = [2**20 << place for place in range(len(H200_NCCL_TESTS))]
    return [
        Row(
            "all-reduce",
            f"{nbytes >> 20} MiB on 8 x H200",
            nbytes * 2 * 7 / 8 / (speed * 1e9),
            "all_reduce",
            nbytes=nbytes,
            cluster="dgx-h100",
            ranks=8,
        )
        for nbytes, speed in zip(sizes, H200_NCCL_TESTS, strict=True)
    ]


ROWS = [*megatron(), *korthikanti(), *megascale(), *llama(), *all_reduces()]
