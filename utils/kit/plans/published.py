"""Models and plans that were published, by name: MODELS["llama-3-70b"], and RUNS, each with its source.

    for case in published_plans():      each of RUNS with what it takes here: bytes, seconds, the range
        print(case.run.model, case.run.plan, case.run.seconds, case.here.total, case.here.range)

What a source leaves open is said in `note`. Multi-head latent attention can't be expressed: DeepSeek's is written as
128 heads of 128 that share one head of keys and values, with 13 % more attention weights (V2). Its first layers, which
have no experts, take as long as the others. Vocabularies are padded to a multiple of 128, as Megatron-LM does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...cluster.hardware import Cluster
from ...cluster.presets import SITES, find_cluster
from .model import Model
from .plan import Plan
from .search import Candidate, confirmed, priced


def gpt(layers: int, width: int, heads: int, vocabulary: int = 51_200) -> Model:
    return Model(layers, width, heads, 2048, vocabulary, tied=True)


def llama(layers: int, width: int, heads: int, ffn: int, length: int, key_heads: int = 0) -> Model:
    vocabulary = 128_256 if length >= 8192 else 32_000
    return Model(layers, width, heads, length, vocabulary, key_heads, ffn=ffn, gated=True)


LLAMA_3_405B = llama(126, 16_384, 128, 53_248, 8192, 8)
MODELS = {
    "gpt-3-175b": gpt(96, 12_288, 96),  # arXiv 2005.14165, table 2.1
    "mt-nlg-530b": gpt(105, 20_480, 128, 50_304),  # arXiv 2201.11990, section 3
    "llama-7b": llama(32, 4096, 32, 11_008, 2048),  # arXiv 2302.13971, table 2
    "llama-13b": llama(40, 5120, 40, 13_824, 2048),
    "llama-33b": llama(60, 6656, 52, 17_920, 2048),
    "llama-65b": llama(80, 8192, 64, 22_016, 2048),
    "llama-2-7b": llama(32, 4096, 32, 11_008, 4096),  # arXiv 2307.09288, table 1
    "llama-2-13b": llama(40, 5120, 40, 13_824, 4096),
    "llama-2-70b": llama(80, 8192, 64, 28_672, 4096, 8),
    "llama-3-8b": llama(32, 4096, 32, 14_336, 8192, 8),  # arXiv 2407.21783, table 3
    "llama-3-70b": llama(80, 8192, 64, 28_672, 8192, 8),
    "llama-3-405b": LLAMA_3_405B,
    "llama-3-405b-128k": replace(LLAMA_3_405B, length=131_072),  # section 3.3.2
    "nemotron-4-15b": Model(32, 6144, 48, 4096, 256_000, 8, ffn=24_576),  # arXiv 2402.16819, table 1
    "nemotron-4-340b": Model(96, 18_432, 96, 4096, 256_000, 8, ffn=73_728),  # arXiv 2406.11704, table 1
    # arXiv 2401.04088, table 1
    "mixtral-8x7b": Model(32, 4096, 32, 4096, 32_000, 8, ffn=14_336, gated=True, experts=8, top=2),
    # github.com/xai-org/grok-1, run.py
    "grok-1": Model(64, 6144, 48, 8192, 131_072, 8, ffn=32_768, gated=True, experts=8, top=2),
    # arXiv 2405.04434, section 3.1.2
    "deepseek-v2": Model(60, 5120, 128, 4096, 102_400, 1, 128, 1536, True, experts=160, top=6, shared=2, plain=1),
    # arXiv 2412.19437, section 4.2
    "deepseek-v3": Model(61, 7168, 128, 4096, 129_280, 1, 128, 2048, True, experts=256, top=8, shared=1, plain=3),
}


@dataclass(frozen=True)
class Published:
    """A configuration that was run.

    batch     sequences per step
    seconds   of a step, as published or as follows from what is; None if nothing comparable is
    site      of SITES in cluster/presets.py: "production" if the number is from a campaign of weeks
    fitted    whether a rate was fitted to this row, or to another of the same recipe (tests/accuracy), or a plan that
              nobody published was guessed with its seconds in view: its error says nothing
    """

    model: str
    cluster: str
    batch: int
    plan: Plan
    seconds: float | None
    source: str
    note: str = ""
    site: str = "benchmark"
    fitted: bool = False

    @property
    def on(self) -> Cluster:
        """The machine, at achieved rates."""
        return replace(find_cluster(self.cluster, self.plan.gpus, rates="achieved"), site=SITES[self.site])


RECIPES = "github.com/NVIDIA/dgxc-benchmarking, recipes for H100 in bf16 with NeMo 24.09 to 24.12"
MT_NLG, LLAMA_3 = "arXiv 2201.11990, section 3.2", "arXiv 2407.21783, table 4"
LLAMA, LLAMA_2 = "arXiv 2302.13971, section 2.4", "arXiv 2307.09288, tables 2 and 5"
OLDER = "its software of 2021 had no sequence parallelism, fused attention or overlap of gradients, which are all here"
GUESS = "the plan is a guess that suits the seconds, since the paper names only model and sequence parallelism"
NVLINK = "without tp because NVLink is cut down to 400 GB/s on an H800"
RUNS = (
    *(
        Published("gpt-3-175b", "dgx-h100", 2 * gpus, Plan(gpus // 32, 4, 8, chunks=12), seconds, RECIPES, fitted=True)
        for gpus, seconds in ((1024, 8.453), (128, 8.309))
    ),
    *(
        Published("mt-nlg-530b", "dgx-a100", 1920, Plan(dp, 8, 35, recompute="full"), seconds, MT_NLG, OLDER)
        for dp, seconds in ((8, 60.1), (10, 50.2), (12, 44.4))
    ),
    *(
        Published(
            name, "dgx-a100", batch, Plan(256, 8, micro=micro), seconds, source, f"{note}; {GUESS}", "production", True
        )
        for name, batch, micro, seconds, source, note in (
            ("llama-65b", 2048, 4, 5.39, LLAMA, "seconds from 380 tokens/s per GPU, 4 million tokens per step"),
            (
                "llama-2-70b",
                1024,
                2,
                6.34,
                LLAMA_2,
                "seconds from 1,720,320 GPU hours, losses included; GPUs are a guess",
            ),
        )
    ),
    Published(
        *("llama-3-405b", "dgx-h100", 2048, Plan(128, 8, 16, chunks=8), 6.75, LLAMA_3),
        note="chunks and microbatch are not in the paper; seconds from 400 TFLOP/s per GPU",
        site="production",
        fitted=True,
    ),
    Published(
        *("llama-3-405b-128k", "dgx-h100", 128, Plan(8, 8, 16, 16, chunks=8), None, LLAMA_3),
        note="chunks not in the paper",
        site="production",
    ),
    Published("llama-3-405b", "dgx-h100", 252, Plan(4, 8, 9, 2, chunks=7), 17.2, RECIPES),
    Published("llama-3-405b", "dgx-h100", 1008, Plan(16, 8, 9, 2, chunks=7), 17.62, RECIPES),
    Published("llama-3-70b", "dgx-h100", 2048, Plan(32, 4, 4, 2, chunks=5), 14.86, RECIPES),
    Published("llama-3-70b", "dgx-h100", 128, Plan(2, 4, 4, 2, chunks=5), 14.72, RECIPES),
    Published("llama-3-8b", "dgx-h100", 128, Plan(4, cp=2), 12.91, RECIPES),
    Published("nemotron-4-340b", "dgx-h100", 64, Plan(4, 8, 8, chunks=12), 4.67, RECIPES),
    Published("nemotron-4-340b", "dgx-h100", 512, Plan(32, 8, 8, chunks=12), 4.84, RECIPES),
    Published("nemotron-4-15b", "dgx-h100", 256, Plan(16, 4, micro=4), 2.845, RECIPES),
    Published("nemotron-4-15b", "dgx-h100", 8192, Plan(512, 4, micro=4), 2.887, RECIPES),
    Published(
        *("mixtral-8x7b", "dgx-h100", 256, Plan(16, pp=4, ep=8, chunks=8), 2.90),
        source="github.com/NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md: 468 TFLOP/s per GPU",
        fitted=True,
    ),
    Published("grok-1", "dgx-h100", 1024, Plan(8, 4, 8, 2, ep=8, chunks=8), 20.83, RECIPES),
    Published("grok-1", "dgx-h100", 4096, Plan(32, 4, 8, 2, ep=8, chunks=8), 21.09, RECIPES),
    Published(
        *("deepseek-v2", "dgx-h100", 9216, Plan(64, pp=16, ep=8), 22.9, "arXiv 2405.04434, sections 3.1.3 and 3.2.3"),
        note=f"1,024 H800; seconds from 172,800 GPU hours per trillion tokens; GPUs are a guess; {NVLINK}",
        site="production",
    ),
    Published(
        *("deepseek-v3", "dgx-h100", 15_360, Plan(128, pp=16, ep=64), 19.9, "arXiv 2412.19437, sections 3.2 and 4.2"),
        note="2,048 H800, fp8, DualPipe, at most 4 nodes per token: none of these is here; seconds from GPU hours",
        site="production",
    ),
)


@dataclass(frozen=True)
class Case:
    """A published run, and its plan as it is simulated here."""

    run: Published
    here: Candidate

    @property
    def error(self) -> float | None:
        """Of the simulated step, as a part of the published one."""
        return self.here.total / self.run.seconds - 1 if self.run.seconds else None

    @property
    def inside(self) -> bool | None:
        """Whether the published step lies inside the range."""
        if self.run.seconds is None or self.here.range is None:
            return None
        shortest, longest = self.here.range
        return shortest <= self.run.seconds <= longest


def published_plans(runs: Iterable[Published] = RUNS, measure: bool = True) -> list[Case]:
    """What each run takes here. measure: composed of measured pieces, a second for each run; else by formula, at once.

    Bytes and seconds are those of layers.py: today's kernels and overlap, even for software that had neither.
    """
    cases = []
    for run in runs:
        model, cluster = MODELS[run.model], run.on
        here = priced(run.plan, model, run.batch, cluster)
        cases.append(Case(run, confirmed([here], model, run.batch, cluster)[0] if measure else here))
    return cases
