"""Published steps of nine sources, from published.csv: each trains with FSDP, or with Megatron-LM's parallelism.

Its columns are those of Setting, and

    source, name   where a row is from, and what it is called here
    model          one of MODELS, with the tokens of a sequence
    kernels        "eager": each operation of torch is a kernel; "compiled" by torch.compile, or "fused" by hand, which
                   is simulated alike; "stand-ins": an operation stands for each of Megatron-LM's first fused kernels
    value, unit    what was published: tokens/s/GPU, or s/step
    mfu            %, published or computed by whoever copied the row
    at             the file or paper
    note           "from memory": not looked up when it was copied
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.accuracy.consistency import Check
from tests.accuracy.rows import PEAKS, Model, Row, Setting

FILE = Path(__file__).with_name("published.csv")
MEGATRON = {"sequence": True, "flash": True, "sharded": True, "overlap": True, "beside": True, "generation": 3}
HOW: dict[str, dict[str, Any]] = {
    "MosaicML MPT": {"fsdp": True, "flash": True, "gradient_bytes": 2},
    "torchtitan A100": {"fsdp": True, "flash": True},
    "torchtitan H100": {"fsdp": True, "flash": True, "sequence": True, "bandwidth": 2.4e12, "site": "500 W"},
    "IBM fms-fsdp": {"fsdp": True, "flash": True, "gradient_bytes": 2, "network": 400e9 / 8 / 8},
    "NVIDIA DGX Cloud": MEGATRON,
    "NVIDIA Megatron-Core": MEGATRON,
    "Megatron-LM 2021, table 2": {"adds": True, "dropout": True},
}
LLAMA = {"gated": True, "llama": True}
MODELS = {
    "MPT-125m": Model(12, 768, 12, 50368),
    "MPT-350m": Model(24, 1024, 16, 50368),
    "MPT-760m": Model(24, 1536, 12, 50368),
    "MPT-1b": Model(24, 2048, 16, 50368),
    "MPT-3b": Model(32, 2560, 20, 50368),
    "MPT-7b": Model(32, 4096, 32, 50368),
    "MPT-13b": Model(40, 5120, 40, 50368),
    "MPT-30b": Model(48, 7168, 56, 50368),
    "MPT-70b": Model(80, 8192, 64, 50368),
    "Llama 2 7B": Model(32, 4096, 32, 32000, ffn=11008, **LLAMA),
    "Llama 2 13B": Model(40, 5120, 40, 32000, ffn=13824, **LLAMA),
    "Llama 34B": Model(48, 8192, 64, 32000, ffn=22016, kv_heads=8, **LLAMA),
    "Llama 2 70B": Model(80, 8192, 64, 32000, ffn=28672, kv_heads=8, **LLAMA),
    "Llama 3.1 8B": Model(32, 4096, 32, 128256, ffn=14336, kv_heads=8, **LLAMA),
    "Llama 3.1 70B": Model(80, 8192, 64, 128256, ffn=28672, kv_heads=8, **LLAMA),
    "Mixtral 8x7B": Model(32, 4096, 32, 32000, ffn=14336, kv_heads=8, experts=8, top=2, **LLAMA),
    "GPT-3 175B": Model(96, 12288, 96),
    "GPT-3 174.6B": Model(96, 12288, 96),
    "GPT 529.6B": Model(105, 20480, 128),
}
NUMBERS = ("gpus", "batch", "micro", "tensor", "pipeline", "chunks", "experts")


def published() -> list[Row]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return [row_of(line) for line in csv.DictReader(file)]


def row_of(line: dict[str, str]) -> Row:
    model = replace(MODELS[line["model"]], sequence=int(line["sequence"]))
    how = {"dropout": False, "hybrid": line["note"] == "split inside a node", **HOW[line["source"]]}
    how |= {"recompute": line["recompute"], "fused": line["kernels"] in ("compiled", "fused")}
    numbers = {name: int(line[name]) for name in NUMBERS}
    setting = Setting(line["cluster"], **numbers, **how)
    value = float(line["value"])
    tokens = setting.batch * model.sequence
    seconds = value if line["unit"] == "s/step" else tokens / setting.gpus / value
    done = seconds * setting.gpus * PEAKS[line["cluster"]] * 1e12
    flops = tokens * (6 * model.used_parameters + 12 * model.layers * model.hidden * model.sequence)
    check = Check("MFU, %", float(line["mfu"]), 0.5, 100 * flops / done)
    return Row(line["source"], line["name"], seconds, "step", model, setting, checks=(check,))
