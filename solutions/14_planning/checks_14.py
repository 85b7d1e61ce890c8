"""The checks of lesson 14. Form: see oracles.py; what a rank runs: kit/plans/drivers.py.

The truth about a plan is what utils/kit/plans says: its rules, bytes and seconds are held against runs by tests.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from utils.checks.answer import Answer, CheckFailed
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, vary
from utils.checks.scores import Measure
from utils.checks.show import show
from utils.cluster.hardware import Cluster
from utils.cluster.presets import find_cluster
from utils.kit.drivers.planned import beside_exchange, of_own_tokens, with_noted_rows
from utils.kit.plans import MODELS, RUNS, Model, Plan, bytes_of, plans, problem_of, rule_broken, seconds_of
from utils.kit.plans.drivers import (
    Site,
    Sizes,
    cluster_of,
    model_of,
    on_cluster,
    on_measurements,
    on_pieces,
    on_prices,
    on_stages,
    plan_as_sizes,
)
from utils.kit.plans.seconds import replica_seconds
from utils.kit.plans.work import collective_seconds, embedding_seconds, layer_seconds, output_seconds
from utils.kit.two_tier_dispatch import draw_routing
from utils.kit.witness import Witness

ROOM = Path(__file__).parent
NO_MESSAGES = ("tokens-per-tier",)  # a right answer needs none: grading flags those that send nothing
MOST_CP = MOST_MICRO = 4
KINDS = ("none", "full")


# ---- rules


def as_plan(sizes: Any) -> Plan:
    """A plan from its sizes. Raises CheckFailed for anything else."""
    if not isinstance(sizes, dict) or sizes.keys() != Plan.__dataclass_fields__.keys():
        raise CheckFailed(f"there is {show(sizes)}", "a Plan")
    return Plan(**sizes)


def total(plan: Plan, model: Model, batch: int, cluster: Cluster) -> float:
    return sum(seconds_of(plan, model, batch, cluster).values())


@cache
def best_of(model: Model, batch: int, cluster: Cluster) -> tuple[float, Plan]:
    """(seconds, the plan) of the fastest that fits."""
    fitting = [
        plan
        for plan in plans(model, batch, cluster, MOST_MICRO, MOST_CP, KINDS)
        if sum(bytes_of(plan, model, batch).values()) <= cluster.gpu.memory
    ]
    best = min(fitting, key=lambda plan: total(plan, model, batch, cluster))
    return total(best, model, batch, cluster), best


@oracle(values=[("llama-3-70b", {}, 480, ("dgx-h100", 96)), ("llama-3-8b", {}, 256, ("dgx-h100", 64))])
def first_guess(_: Draws, name: str, sizes: Sizes, batch: int, site: Site) -> Case:
    model, cluster = model_of(name, sizes), cluster_of(site)
    where = f"{name}, batch {batch}, on {site[1]} GPUs of {site[0]}"

    def judge(answer: Answer) -> str:
        plan = as_plan(answer.results[0])
        expect_no_problem(plan, model, batch, cluster, where)
        seconds, (least, best) = total(plan, model, batch, cluster), best_of(model, batch, cluster)
        expect_no_needless_recomputing(plan, seconds, model, batch, cluster, where)
        if seconds > SLOWEST * least:
            raise CheckFailed(
                f"{where}: {plan}, {seconds:.2f} s",
                f"{SLOWEST * least:.2f} s at most, {SLOWEST} times those of the best plan",
                slow_because(plan, best, model, batch, cluster),
            )
        return f"{where}: {plan}, {seconds / least - 1:.0%} slower than the best plan."

    return Case([[name], [sizes], [batch], [site]], also=judge, driver=on_cluster)


SLOWEST = 1.5


def expect_no_needless_recomputing(
    plan: Plan, seconds: float, model: Model, batch: int, cluster: Cluster, where: str
) -> None:
    """Raise CheckFailed if a plan recomputes, and one of dp, tp, pp and ep fits without and is faster."""
    if plan.recompute == "none":
        return
    of_tree = [each for each in plans(model, batch, cluster, 1, 1, ("none",)) if each.chunks == 1]
    fitting = [each for each in of_tree if not problem_of(each, model, batch, cluster)]
    fastest = min(fitting, key=lambda each: total(each, model, batch, cluster), default=plan)
    if (without := total(fastest, model, batch, cluster)) < seconds:
        raise CheckFailed(
            f"{where}: {plan}, {seconds:.2f} s",
            f"no recomputing: {fastest} fits without it, and takes {without:.2f} s",
            "Recomputing all layers costs a third of their time. It comes last, after more pipeline stages.",
        )


def expect_no_problem(plan: Plan, model: Model, batch: int, cluster: Cluster, where: str) -> None:
    problem = problem_of(plan, model, batch, cluster)
    if not problem:
        return
    why, kinds = "", bytes_of(plan, model, batch) if "GPU would need" in problem else {}
    if kinds:
        state, room = sum(kinds[kind] for kind in ("parameters", "gradients", "optimizer")), cluster.gpu.memory
        if state <= room:
            why = "Parameters, gradients and Adam's state alone would fit. Activations need room, too."
        elif kinds["parameters"] <= room:
            why = "The 2 bytes of each weight would fit. Gradients, Adam's state and activations need room, too."
    if cluster.gpus_per_node < plan.tp <= cluster.size:
        near, far = (collective_seconds("all_gather", 1e8, tp, 1, cluster) for tp in (cluster.gpus_per_node, plan.tp))
        why = (
            f"Its ranks talk in the middle of every layer. 100 MB are gathered in {near * 1e3:.2f} ms within a node, "
            f"and in {far * 1e3:.2f} ms across nodes."
        )
    raise CheckFailed(f"{where}: {plan}, {problem}", "a plan that works and fits", why)


def slow_because(plan: Plan, best: Plan, model: Model, batch: int, cluster: Cluster) -> str:
    """The part of a step that costs most more than in the best plan."""
    mine, least = (seconds_of(each, model, batch, cluster) for each in (plan, best))
    part = max(mine, key=lambda name: mine[name] - least[name])
    words = f"Most of it is in {part}: {mine[part]:.2f} s, against {least[part]:.2f} s in the best plan."
    return words + BUSIEST * (part == "compute" and plan.pp > 1)


BUSIEST = " One stage has more to do than the others, such as the last, which computes the logits."


### BEGIN HIDDEN TESTS
hidden_first_guess = vary(
    first_guess,
    values=[
        ("llama-2-13b", {}, 384, ("dgx-a100", 96)),
        ("mt-nlg-530b", {}, 1920, ("dgx-a100", 2240)),
        ("mixtral-8x7b", {}, 256, ("dgx-h100", 64)),
        ("nemotron-4-340b", {}, 768, ("dgx-h100", 768)),
    ],
)
### END HIDDEN TESTS


# ---- what there is


@oracle(
    values=[
        ("llama-3-8b", {"layers": 30}, 96, ("dgx-h100", 48)),
        ("mixtral-8x7b", {"layers": 10, "key_heads": 2}, 48, ("dgx-h100", 16)),
    ]
)
def all_plans(_: Draws, name: str, sizes: Sizes, batch: int, site: Site) -> Case:
    model, cluster = model_of(name, sizes), cluster_of(site)
    where = f"{name}, batch {batch}, on {site[1]} GPUs"

    def judge(answer: Answer) -> str:
        if not isinstance(answer.results[0], list):
            raise CheckFailed(f"{where}: you returned {show(answer.results[0])}", "a list of plans")
        listed = [as_plan(sizes) for sizes in answer.results[0]]
        all_there_are = set(plans(model, batch, cluster, MOST_MICRO, MOST_CP, KINDS))
        expect_possible_plans(listed, all_there_are, model, batch, cluster, where)
        missing = sorted(all_there_are - set(listed), key=str)
        if missing:
            raise CheckFailed(
                f"{where}: {len(listed):,} plans, and {missing[0]} isn't one of them",
                f"{len(all_there_are):,} plans",
                missing_because(missing, set(listed), model, batch),
            )
        return f"{where}: all {len(all_there_are):,} plans."

    return Case([[name], [sizes], [batch], [site]], also=judge, driver=on_cluster)


def expect_possible_plans(
    listed: list[Plan], possible: set[Plan], model: Model, batch: int, cluster: Cluster, where: str
) -> None:
    """Raise CheckFailed if a plan can't be carried out, or is listed twice."""
    for plan in listed:
        if plan in possible:
            continue
        broken = rule_broken(plan, model, batch, cluster)
        if broken.startswith("dp x tp x pp x cp") and plan.gpus * plan.ep == cluster.size:
            broken += ". Experts are spread over ranks of dp x cp: ep takes no GPUs of its own"
        limits = f"cp and micro are at most {MOST_CP} here, recompute is one of {', '.join(KINDS)}"
        raise CheckFailed(f"{where}: your list has {plan}", "", f"{broken or limits}.")
    if len(listed) > len(set(listed)):
        twice = next(plan for number, plan in enumerate(listed) if plan in listed[:number])
        raise CheckFailed(f"{where}: your list has ({twice}) twice", "each plan once")


def missing_because(missing: list[Plan], listed: set[Plan], model: Model, batch: int) -> str:
    """What all missing plans have in common, and no plan of the list has."""
    traits = {
        f"All that is missing has more tensor ranks than heads of keys ({model.key_heads}). Keys can be repeated.": (
            lambda plan: plan.tp > model.key_heads
        ),
        "All that is missing has an ep that doesn't divide dp. It need only divide dp x cp.": (
            lambda plan: plan.dp % plan.ep > 0
        ),
        "All that is missing has fewer microbatches than stages. Such a pipeline is slow, but it works.": (
            lambda plan: plan.microbatches(batch) < plan.pp
        ),
        "All that is missing has several ranks for the experts. ep divides dp x cp, and takes no GPUs of its own.": (
            lambda plan: plan.ep > 1
        ),
        "All that is missing has stages with different numbers of layers. What is missing to the same number for all "
        "is left out on the last and the first stage.": lambda plan: model.layers % plan.pp > 0,
        "All that is missing has several chunks. They divide the layers of a stage.": lambda plan: plan.chunks > 1,
        "All that is missing recomputes.": lambda plan: plan.recompute != "none",
        "All that is missing has cp above 1.": lambda plan: plan.cp > 1,
        "All that is missing has several sequences in a microbatch.": lambda plan: plan.micro > 1,
        "All that is missing has 3 sequences in a microbatch: micro only has to divide the batch of a replica.": (
            lambda plan: plan.micro == 3
        ),
        "All that is missing has a size that is no power of two. 35 stages are fine: MT-NLG had them.": lambda plan: (
            any(size & (size - 1) for size in (plan.tp, plan.pp, plan.cp, plan.ep, plan.chunks, plan.micro))
        ),
    }
    for words, has in traits.items():
        if all(map(has, missing)) and not any(map(has, listed)):
            return words
    return ""


### BEGIN HIDDEN TESTS
hidden_all_plans = vary(
    all_plans,
    values=[
        ("mt-nlg-530b", {}, 1920, ("dgx-a100", 2240)),
        ("deepseek-v3", {"experts": 48}, 96, ("dgx-h100", 32)),
        ("llama-3-70b", {"key_heads": 4}, 60, ("dgx-h100", 120)),
    ],
)
### END HIDDEN TESTS


# ---- what fits


@oracle(
    values=[
        ("nemotron-4-15b", {}, 256, {"dp": 16, "pp": 4, "micro": 2}),
        ("nemotron-4-15b", {}, 128, {"dp": 16, "pp": 4, "micro": 2, "chunks": 4}),
        ("mixtral-8x7b", {}, 256, {"dp": 8, "tp": 2, "cp": 2, "pp": 2, "ep": 4, "chunks": 4}),
        ("gpt-3-175b", {}, 24, {"dp": 12, "tp": 8, "pp": 8, "recompute": "full"}),
    ]
)
def plan_bytes(_: Draws, name: str, sizes: Sizes, batch: int, plan: Sizes) -> Case:
    model, its = model_of(name, sizes), Plan(**plan)
    stages = sorted({0, its.pp // 2, its.pp - 1})
    kinds = {stage: bytes_of(its, model, batch, stage) for stage in stages}

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        if not isinstance(got, list) or not all(isinstance(each, dict) for each in got):
            raise CheckFailed(f"you returned {show(got)}", "a dict {kind: bytes}")
        for each in got:
            if absent := kinds[0].keys() - each.keys():
                raise CheckFailed(f"your dict has {', '.join(each)}", f"{', '.join(sorted(absent))} too")
        return named(dict(zip(stages, got, strict=True)))

    return Case(
        [[plan], [name], [sizes], [batch], [stages]],
        right=named(kinds),
        seen=f"{name}, batch {batch}, {its}: {{part}} is",
        rtol=1e-3,
        unpack=unpack,
        driver=on_stages,
    )


def named(kinds: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """{the kind and the stage: gigabytes} of {stage: {kind: bytes}}"""
    return {
        f"GB of {kind} on stage {stage}": of_stage[kind] / 1e9
        if type(of_stage[kind]) in (int, float)
        else of_stage[kind]
        for stage, of_stage in kinds.items()
        for kind in ("parameters", "gradients", "optimizer", "activations", "working")
    }


### BEGIN HIDDEN TESTS
hidden_plan_bytes = vary(
    plan_bytes,
    values=[
        ("deepseek-v3", {}, 60, {"dp": 12, "pp": 16, "ep": 4}),
        ("llama-3-405b", {}, 252, {"dp": 4, "tp": 8, "pp": 9, "cp": 2, "chunks": 7}),
        ("mt-nlg-530b", {}, 36, {"dp": 12, "tp": 8, "pp": 5, "chunks": 3, "recompute": "full"}),
        ("llama-3-8b", {}, 6, {"dp": 3, "micro": 2}),
    ],
)
### END HIDDEN TESTS


# ---- how long it takes


def keys_of(plan: Plan) -> tuple[int, int, int, int]:
    return plan.tp, plan.cp, plan.ep, plan.micro


def smallest(plan: Plan) -> Plan:
    return Plan(math.lcm(plan.cp, plan.ep) // plan.cp, plan.tp, 1, plan.cp, plan.ep, 1, plan.micro)


class Measurements(Witness):
    """Measures pieces. pieces: {a name that only the witness can know: the plan that it was measured on}"""

    def __init__(self) -> None:
        self.pieces: dict[str, str] = {}

    def __call__(self, plan: str) -> str:
        name = secrets.token_hex(8)
        self.pieces[name] = plan
        return name


@oracle(
    values=[
        ([{"dp": 32, "tp": 4, "pp": 8}, {"dp": 8, "tp": 4, "pp": 8, "chunks": 3, "recompute": "full"}, {"cp": 2}],),
        (
            [
                {"dp": 16, "ep": 8},
                {"dp": 8, "cp": 2, "ep": 8, "micro": 2},
                {"dp": 3, "cp": 4, "ep": 4},
                {"dp": 64, "ep": 8},
                {"dp": 32, "ep": 8, "micro": 3},
            ],
        ),
    ]
)
def measure_pieces(_: Draws, sizes: list[Sizes]) -> Case:
    wanted = {keys_of(plan): str(smallest(plan)) for plan in (Plan(**each) for each in sizes)}
    pieces: dict[str, str] = {}

    def note(answer: Answer) -> None:
        pieces.clear()
        pieces.update(answer.inputs_after[0][1].pieces)

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        if isinstance(got, dict):
            got = {key: pieces.get(str(name), "not measured") for key, name in got.items()}
        return {"the pieces": got, "calls of measure": len(pieces)}

    return Case(
        [[sizes], [Measurements()]],
        right={"the pieces": every(wanted), "calls of measure": len(wanted)},
        seen="{part} is",
        before=note,
        unpack=unpack,
        driver=on_measurements,
    )


### BEGIN HIDDEN TESTS
hidden_measure_pieces = vary(
    measure_pieces,
    values=[
        (
            [
                {"dp": 6, "cp": 4, "ep": 6, "tp": 2},
                {"dp": 5, "pp": 7, "micro": 3},
                {"dp": 10, "pp": 7, "micro": 3},
                {"dp": 10, "pp": 7},
            ],
        ),
        ([{"dp": 12, "cp": 3, "ep": 2}, {"dp": 4, "cp": 3, "ep": 2, "pp": 2, "chunks": 5}, {"dp": 12, "ep": 2}],),
    ],
)
### END HIDDEN TESTS


compose = frozen_cases(ROOM, "compose", driver=on_pieces)

### BEGIN HIDDEN TESTS


@oracle(
    values=[
        ("mt-nlg-530b", {}, 1920, {"dp": 8, "tp": 8, "pp": 35, "recompute": "full"}, ("dgx-a100", 2240)),
        ("llama-3-405b", {}, 504, {"dp": 2, "tp": 8, "pp": 9, "cp": 2, "chunks": 7}, ("dgx-h100", 288)),
        ("deepseek-v3", {}, 240, {"dp": 12, "pp": 16, "ep": 4}, ("dgx-h100", 192)),
        ("llama-3-8b", {}, 30, {"dp": 10}, ("dgx-h100", 10)),
    ]
)
def hidden_compose(_: Draws, name: str, sizes: Sizes, batch: int, plan: Sizes, site: Site) -> Case:
    """Composed of the formula's pieces."""
    model, cluster, its = model_of(name, sizes), cluster_of(site), Plan(**plan)
    alone = replace(its, dp=1, pp=1, chunks=1, recompute="none")
    go, back = (sum(each) for each in layer_seconds(model, alone, cluster))
    ends = [sum(piece(model, alone, cluster).whole) for piece in (embedding_seconds, output_seconds)]
    nbytes = 2 * its.tokens(model) // its.tp * model.width
    message = cluster.link(0, its.tp * its.replicas).seconds(nbytes) if its.pp > 1 else 0.0
    exchange = [each for each, _ in replica_seconds(model, its.tp, its.ep, its.replicas, cluster)]
    return Case(
        [[plan], [name], [sizes], [batch], [(go, back, *ends)], [message], *([each] for each in exchange)],
        right=composed(its, model, batch, go, back, ends, message, exchange),
        seen=f"{name}, batch {batch}, {its}: {{part}} is",
        rtol=1e-6,
        driver=on_pieces,
    )


def composed(
    plan: Plan,
    model: Model,
    batch: int,
    go: float,
    back: float,
    ends: list[float],
    message: float,
    exchange: list[float],
) -> dict[str, float]:
    again = go if plan.recompute == "full" else 0.0
    of_stage = [
        plan.stage_layers(model, s) * (go + back + again) + ends[0] * (s == 0) + ends[1] * (s == plan.pp - 1)
        for s in range(plan.pp)
    ]
    hops = 2 * (plan.pp * plan.chunks - 1) + 2 * plan.microbatches(batch) * (plan.chunks == 1)
    of_chunk = plan.layers(model) // plan.chunks
    seen = [
        max(each, of_chunk * each - (of_chunk - 1) * hidden)
        for each, hidden in zip(exchange, (go, back + again), strict=True)
    ]
    return {
        "stages": plan.microbatches(batch) * max(of_stage),
        "bubble": plan.layers(model) / plan.chunks * (plan.pp - 1) * (go + back + again),
        "messages": hops * message * (plan.pp > 1),
        "exchange": sum(seen),
    }


### END HIDDEN TESTS


class Prices(Witness):
    """What plans cost, by their places in a list. asked: which plans were priced, for each of the prices

    prices  of each plan: bytes, seconds by formula, and seconds composed of measured pieces
    memory, most  the bytes and the seconds by formula that a plan may take
    """

    def __init__(self, prices: list[tuple[float, float, float]], memory: float, most: float) -> None:
        self.prices, self.memory, self.most = prices, memory, most
        self.asked: tuple[list[int], ...] = [], [], []

    def __call__(self, price: int, place: int) -> float:
        if type(place) is not int or not 0 <= place < len(self.prices) or price not in (0, 1, 2):
            raise ValueError(f"there is no price {price!r} of a plan {place!r}")  # one plan has one place
        said = self.prices[place][price]
        self.asked[price].append(place)
        return said

    def counts(self) -> dict[str, int]:
        _, formula, measured = self.asked
        return {
            "the number of plans priced that don't fit": sum(
                self.prices[place][0] > self.memory for place in {*formula, *measured}
            ),
            "the number of plans measured that the formula rules out": sum(
                self.prices[place][1] > self.most for place in {*measured}
            ),
            "the number of plans measured again": len(measured) - len({*measured}),
        }


@oracle(values=[("llama-2-13b", 96, 48, 0.05, 5), ("llama-3-8b", 96, 24, 0.2, 12)])
def search(_: Draws, name: str, batch: int, gpus: int, within: float, n: int) -> Case:
    """Composed seconds are the formula's, off by a part that depends on the key, in steps of 2 %: so some are equal."""
    site: Site = ("dgx-h100", gpus)
    model, cluster = model_of(name, {}), cluster_of(site)
    memory = cluster.gpu.memory
    table: dict[Plan, tuple[float, float, float]] = {}
    for plan in plans(model, batch, cluster, MOST_MICRO, MOST_CP, KINDS):
        guess = round(total(plan, model, batch, cluster), 4)
        off = 1 + 0.04 * (sum(keys_of(plan)) * 7 % 5 - 2) / 2
        table[plan] = sum(bytes_of(plan, model, batch).values()), guess, round(guess * off, 1)
    fitting = [plan for plan in table if table[plan][0] <= memory]
    most = (1 + within) * min(table[plan][1] for plan in fitting)
    left = sorted(
        (plan for plan in fitting if table[plan][1] <= most), key=lambda plan: (table[plan][2], table[plan][0])
    )
    prices, counts = Prices(list(table.values()), memory, most), dict[str, int]()
    return Case(
        [[[asdict(plan) for plan in table]], [prices], [memory], [within], [n]],
        right={"the best plans": every([str(plan) for plan in left[:n]]), **prices.counts()},
        before=lambda answer: counts.update(answer.inputs_after[0][1].counts()),
        unpack=lambda got, _: {"the best plans": got, **counts},
        seen=f"{name}, batch {batch}, on {gpus} GPUs, n {n}: {{part}} is",
        driver=on_prices,
    )


### BEGIN HIDDEN TESTS
hidden_search = vary(search, values=[("mixtral-8x7b", 48, 48, 0.03, 7), ("llama-33b", 60, 40, 0.1, 1000)])
### END HIDDEN TESTS


# ---- distrust

still_in_the_race = frozen_cases(ROOM, "still-in-the-race")
margin = frozen_cases(ROOM, "margin")

### BEGIN HIDDEN TESTS


@oracle(
    values=[
        ({"deep": 12.0, "plain": 9.0, "wide": 11.1, "odd": 10.8, "long": 9.4}, 0.1),
        ({"a": 0.50, "b": 0.44, "c": 0.54}, 0.1),
        ({"a": 3.0, "b": 2.0, "c": 1.0}, 0.5),
        ({"only": 7.0}, 0.02),
        ({f"plan {n:02}": 10.0 + n / 25 for n in range(20, -1, -1)}, 0.03),
    ]
)
def hidden_still_in_the_race(_: Draws, predicted: dict[str, float], error: float) -> Case:
    least = min(predicted.values()) * (1 + error)
    right = sorted((s, name) for name, s in predicted.items() if not s * (1 - error) > least)
    shown = ", ".join(f"{name} {s:g}" for name, s in list(predicted.items())[:5]) + ", ..." * (len(predicted) > 5)
    return Case(
        [[predicted], [error]],
        right=every([name for _, name in right]),
        seen=f"predictions {shown} s, each {error:.0%} off at most: you returned",
    )


EVERY_KIND = [9.7, 8.15, 10.5, 8.0, 9.2, 12.6, 8.5, 8.85, 10.3, 9.55, 11.2, 10.8, 9.9, 8.6]
RATIOS = [1.3, 0.9, 1.1, 1.6, 1.0, 1.2, 0.8, 1.45, 1.05, 1.15]


@oracle(
    values=[
        (RATIOS, [30, 10, 60, 20, 50, 12, 72, 9, 41, 33], 0.75),
        (RATIOS[::-1], [30, 10, 60, 20, 50, 12, 72, 9, 41, 33], 0.9),
        ([0.5, 0.8, 0.7], [8, 70, 40], 0.5),
        ([1.2], [5], 0.3),
        ([1.25, 1.0, 1.125, 1.5], [80, 16, 32, 64], 1.0),
    ]
)
def hidden_margin(_: Draws, ratios: list[float], predicted: list[float], coverage: float) -> Case:
    right = next(r for r in sorted(ratios) if sum(ratio <= r for ratio in ratios) >= coverage * len(ratios))
    nbytes = [1e9 * p for p in predicted]
    measured = [r * p for r, p in zip(ratios, nbytes, strict=True)]
    shown = ", ".join(f"{m / 1e9:g} of {p}" for m, p in zip(measured[:4], predicted, strict=False))
    return Case(
        [[nbytes], [measured], [coverage]],
        right=right,
        rtol=1e-9,
        seen=f"{len(ratios)} runs, which needed {shown} GB predicted{', ...' * (len(ratios) > 4)}, coverage "
        f"{coverage:g}: you returned",
    )


### END HIDDEN TESTS


# ---- experts between nodes

NODES = find_cluster("dgx-h100", 16)
TIERS = ("inside nodes", "between nodes")


def expect_bytes_of_run(answer: Answer) -> str:
    """Raise CheckFailed unless the answers of all ranks add up to what the messages had, on both tiers."""
    sent = dict.fromkeys(TIERS, 0)
    for event in answer.events:
        if event.op == "send" and event.peer is not None:
            sent[TIERS[event.rank // 8 != event.peer // 8]] += event.bytes
    for number, tier in enumerate(TIERS):
        found = sum(result[number] for result in answer.results if isinstance(result, tuple))
        if found != sent[tier]:
            raise CheckFailed(
                f"{tier}, your function finds {found:,} bytes for the tokens of all ranks",
                f"{sent[tier]:,}, which 16 ranks sent in a run",
                f"That is {found / sent[tier]:.3g} times as many.",
            )
    return f"{sent[TIERS[0]]:,} bytes inside nodes and {sent[TIERS[1]]:,} between them, as in a run of 16 ranks."


tokens_per_tier = frozen_cases(
    ROOM,
    "tokens-per-tier",
    driver=of_own_tokens,
    drivers={"traffic": beside_exchange},
    cluster=NODES,
    traffic=expect_bytes_of_run,
)

### BEGIN HIDDEN TESTS


@oracle(values=[(6, 4, 1, 10), (3, 8, 4, 2)], traffic=[(16, 4, 2, 4096)])
def hidden_tokens_per_tier(draws: Draws, tokens: int, top: int, each: int, row: int) -> Case:
    """What is sent, token by token: to each node's door, and from there to each owner."""
    everyone = [draw_routing(tokens, 16 * each, top, seed=draws.salted(rank)) for rank in range(16)]
    everyone[9][0] = [9 * each, *range(top - 1)] if each > 1 else [9, *range(top - 1)]
    right = []
    for rank, routing in enumerate(everyone):
        sent = {tier: set[tuple[int, int, int]]() for tier in TIERS}
        for number, expert in ((number, expert) for number, token in enumerate(routing) for expert in token):
            owner = expert // each
            door = owner // 8 * 8 + rank % 8
            for source, to in ((rank, door), (door, owner)):
                if source != to:
                    sent[TIERS[source // 8 != to // 8]].add((number, source, to))
        right.append(tuple(4 * row * len(sent[tier]) for tier in TIERS))
    return Case(
        for_all={"everyone": everyone, "experts_per_rank": each, "gpus_per_node": 8, "row_bytes": row},
        world_size=16,
        right=right,
        seen=f"{tokens} tokens per rank, {top} of {16 * each} experts each, rows of {row} B: rank {{rank}} returned",
        cluster=NODES,
        driver=of_own_tokens,
        drivers={"traffic": beside_exchange},
        traffic=expect_bytes_of_run,
    )


### END HIDDEN TESTS


# ---- the long run

checkpoint_every = frozen_cases(ROOM, "checkpoint-every")
newest_checkpoint = frozen_cases(ROOM, "newest-checkpoint")
campaign = frozen_cases(ROOM, "campaign")

### BEGIN HIDDEN TESTS


def cost_of_work(interval: float, write: float, between: float, restart: float) -> float:
    """Seconds for each second of work (Daly 2006)."""
    return between * math.exp(restart / between) * math.expm1((interval + write) / between) / interval


@oracle(
    values=[
        (60.0, 50_000.0, 16_384, 600.0),
        (300.0, 50_000.0, 131_072, 120.0),
        (5.0, 20_000.0, 2048, 1800.0),
        (20.0, 8760.0, 8, 60.0),
    ]
)
def hidden_checkpoint_every(_: Draws, write: float, mtbf_hours: float, gpus: int, restart: float) -> Case:
    """The optimum is where the derivative changes its sign: x = interval / M with exp(-(x + write / M)) = 1 - x."""
    between = 3600 * mtbf_hours / gpus
    low, high = 0.0, 1.0
    for _halving in range(80):
        x = (low + high) / 2
        low, high = (x, high) if math.exp(-(x + write / between)) < 1 - x else (low, x)
    interval = low * between
    return Case(
        [[write], [mtbf_hours], [gpus], [restart]],
        right={"the interval": interval, "the goodput": 1 / cost_of_work(interval, write, between, restart)},
        rtol=0.005,
        seen=f"write {write:g} s; a GPU lasts {mtbf_hours:,.0f} h, {gpus:,} GPUs, restart {restart:g} s: {{part}} is",
    )


def files_of(steps: dict[int, list[int]], unfinished: Sequence[tuple[int, int]] = ()) -> list[str]:
    names = [f"step-{step}-rank-{rank}.pt" for step, ranks in steps.items() for rank in ranks]
    return [*names, *(f"step-{step}-rank-{rank}.pt.part" for step, rank in unfinished), "notes.txt"]


@oracle(
    values=[
        ({4: [0, 1], 8: [1, 0], 12: [1]}, [(12, 0)], 2),
        ({12: [0, 1, 2, 3], 8: [0, 1, 2, 3], 4: [3, 2, 1, 0]}, [], 4),
        ({5: [0, 1, 2], 10: [0, 1, 3], 15: [0]}, [(15, 1), (15, 2)], 3),
        ({8: [0, 1, 2, 3]}, [], 2),
        ({4: [0]}, [(4, 1)], 2),
        ({90: [0, 1], 100: [0, 11]}, [], 2),
        ({5: list(range(12)), 10: list(range(11))}, [(10, 11)], 12),
    ]
)
def hidden_newest_checkpoint(
    _: Draws, steps: dict[int, list[int]], unfinished: list[tuple[int, int]], world_size: int
) -> Case:
    complete = [step for step, ranks in steps.items() if all(rank in ranks for rank in range(world_size))]
    files = files_of(steps, unfinished)
    return Case(
        [[files], [world_size]],
        right=max([0, *complete]),
        seen=f"{world_size} ranks and the files {', '.join(files)}: you returned",
    )


@oracle(
    values=[
        (1e12, 4e6, 16e6, 5.0, 1024, 0.9, 2.0, 700.0, 1.5),
        (15e12, 16e6, 40e6, 6.75, 16_384, 0.8, 2.5, 650.0, 1.25),
        (3e11, 3.2e6, 1.6e6, 0.5, 64, 0.97, 1.5, 400.0, 2.0),
    ]
)
def hidden_campaign(
    _: Draws,
    tokens: float,
    batch: float,
    critical: float,
    step_seconds: float,
    gpus: int,
    goodput: float,
    price: float,
    watts: float,
    overhead: float,
) -> Case:
    needed = tokens + tokens * batch / critical
    days = needed * step_seconds / (batch * goodput * 86_400)
    given = (tokens, batch, critical, step_seconds, gpus, goodput, price, watts, overhead)
    return Case(
        [[value] for value in given],
        right={
            "tokens": needed,
            "days": days,
            "dollars": 24 * days * gpus * price,
            "megawatt_hours": 24 * days * gpus * watts * overhead / 1e6,
        },
        rtol=1e-9,
        seen=f"{tokens:g} tokens, batch {batch:g}, critical {critical:g}, {step_seconds:g} s a step on {gpus:,} GPUs, "
        f"goodput {goodput:g}, ${price:g}, {watts:g} W x {overhead:g}: {{part}} is",
    )


### END HIDDEN TESTS


# ---- an error that was fixed before looking

held_out_error = frozen_cases(ROOM, "held-out-error", driver=with_noted_rows)

### BEGIN HIDDEN TESTS

TABLE = [  # workload, GPUs, measured, predicted
    ("gpt-3", 512, 8.0, 9.0),
    ("llama-70b", 1024, 15.0, 16.5),
    ("gpt-3", 1024, 8.5, 9.3),
    ("mixtral", 64, 3.0, 2.4),
    ("530b", 2240, 60.0, 44.0),
    ("llama-8b", 8, 13.0, 13.4),
    ("mixtral", 128, 3.2, 2.7),
    ("nemotron", 256, 4.6, 5.6),
    ("llama-70b", 512, 14.6, 16.4),
]


@oracle(
    values=[
        (("llama-70b", "mixtral", "nemotron"), len(TABLE)),
        (("gpt-3", "530b"), len(TABLE)),
        (("530b", "mixtral", "llama-8b"), 7),
    ]
)
def hidden_held_out_error(_: Draws, held_out: tuple[str, ...], count: int) -> Case:
    rows = [
        {"name": f"{workload} on {gpus}", "workload": workload, "seconds": seconds, "predicted": predicted}
        for workload, gpus, seconds, predicted in TABLE[:count]
    ]
    ratios = [measured / predicted for workload, _, measured, predicted in TABLE[:count] if workload not in held_out]
    factor = sum(ratios) / len(ratios)
    errors = [(factor * p - m) / m for workload, _, m, p in TABLE[:count] if workload in held_out]
    middle = sorted(map(abs, errors))
    half = len(middle) // 2
    return Case(
        for_all={"rows": rows, "held_out": list(held_out)},
        world_size=1,
        right={
            "the list of held-out rows that were read before the factor was fixed": "empty",
            "the number of factors that were fitted": 1,
            "the median error": middle[half] if len(middle) % 2 else (middle[half - 1] + middle[half]) / 2,
            "the worst error": max(errors, key=abs),
            "the bias": sum(errors) / len(errors),
        },
        rtol=1e-9,
        seen=f"{count} rows, held out {', '.join(held_out)}: {{part}} is",
        driver=with_noted_rows,
    )


### END HIDDEN TESTS


# ---- the challenge

FAILURES = {"write": 60.0, "mtbf_hours": 50_000.0, "restart": 600.0}


def dollars_of(sizes: Any, name: str, tokens: float, critical: float, most: int, days: float, price: float) -> float:
    """What a campaign costs. Raises CheckFailed for one that doesn't work, fit or end in time."""
    if not isinstance(sizes, dict) or sizes.keys() != {"plan", "batch", "interval"}:
        raise CheckFailed(f"it returned {show(sizes)}"[:200], 'a dict with "plan", "batch" and "interval"')
    plan, batch, interval = as_plan(sizes["plan"]), sizes["batch"], sizes["interval"]
    if type(batch) is not int or batch < 1 or not isinstance(interval, int | float) or not interval > 0:
        raise CheckFailed(f"batch is {show(batch)}, interval {show(interval)}", "a whole number, and seconds above 0")
    if plan.gpus > most:
        raise CheckFailed(f"{plan} takes {plan.gpus:,} GPUs", f"{most:,} at most")
    model, cluster = MODELS[name], find_cluster("dgx-h100", plan.gpus, rates="achieved")
    problem = problem_of(plan, model, batch, cluster)
    if problem:
        raise CheckFailed(f"the plan doesn't work: {problem}", "one that does")
    lasts = campaign_days(plan, model, batch, interval, tokens, critical)
    if lasts > days:
        raise CheckFailed(f"it takes {lasts:.1f} days", f"{days:g} at most", "The deadline is part of the task.")
    return lasts * 24 * plan.gpus * price


def campaign_days(plan: Plan, model: Model, batch: int, interval: float, tokens: float, critical: float) -> float:
    between = 3600 * FAILURES["mtbf_hours"] / plan.gpus
    size = batch * model.length
    steps = tokens * (1 / size + 1 / critical)
    seconds = steps * total(plan, model, batch, find_cluster("dgx-h100", plan.gpus, rates="achieved"))
    return seconds * slowed(interval, between) / 86_400


def slowed(interval: float, between: float) -> float:
    """By failures and checkpoints: how many seconds a second of work takes; infinite if it never ends."""
    if interval > 100 * between:
        return math.inf
    whole = math.expm1((interval + FAILURES["write"]) / between)
    return between / interval * whole * math.exp(FAILURES["restart"] / between)


@oracle(
    score=[("llama-3-70b", 1e12, 16e6, 1024, 30.0, 2.0)],
    par=frozen_par(ROOM, "cheapest-campaign"),
)
def cheapest_campaign(
    _: Draws, name: str, tokens: float, critical: float, most: int, days: float, price: float
) -> Case:
    model, cluster = MODELS[name], find_cluster("dgx-h100", most, rates="achieved")
    rates = cluster.kernel_rates
    assert rates is not None
    rate = cluster.gpu.peak("bfloat16") * rates.matmul * rates.sustained
    return Case(
        [[name], [tokens], [critical], [most], [days], [price], [dict(FAILURES)]],
        driver=plan_as_sizes,
        score=Measure(
            lambda answer: dollars_of(answer.results[0], name, tokens, critical, most, days, price), "$", "in all"
        ),
        limit=6 * model.active_parameters * tokens / rate / 3600 * price,
    )


### BEGIN HIDDEN TESTS


def par_of_campaign(name: str, tokens: float, critical: float, most: int, days: float, price: float) -> float:
    """What is published, with Daly's interval."""
    run = next(run for run in RUNS if run.model == name and run.cluster == "dgx-h100")
    between, write = 3600 * FAILURES["mtbf_hours"] / run.plan.gpus, FAILURES["write"]
    half = write / (2 * between)
    interval = 2 * between * math.sqrt(half) * (1 + math.sqrt(half) / 3 + half / 9) - write
    sizes = {"plan": asdict(run.plan), "batch": run.batch, "interval": interval}
    return dollars_of(sizes, name, tokens, critical, most, days, price)


hidden_cheapest_campaign = vary(
    cheapest_campaign,
    par=par_of_campaign,
    score=[("mixtral-8x7b", 2e11, 2e6, 256, 60.0, 1.5)],
)

FROZEN = (
    vary(
        hidden_compose,
        values=[
            ("gpt-3-175b", {}, 2048, {"dp": 32, "tp": 4, "pp": 8, "chunks": 12}, ("dgx-h100", 1024)),
            ("llama-3-70b", {}, 96, {"dp": 3, "tp": 4, "pp": 6, "cp": 2, "recompute": "full"}, ("dgx-h100", 144)),
            ("mt-nlg-530b", {}, 240, {"dp": 8, "tp": 8, "pp": 15}, ("dgx-a100", 960)),
            ("llama-2-13b", {}, 24, {"dp": 4, "tp": 2}, ("dgx-h100", 8)),
        ],
    ),
    vary(cheapest_campaign, par=par_of_campaign),
    vary(
        hidden_still_in_the_race,
        values=[
            (dict(zip("QWERTYUIOPASDF", EVERY_KIND, strict=True)), 0.1),
            ({"a": 0.40, "b": 0.43, "c": 0.60, "d": 0.45}, 0.05),
        ],
    ),
    vary(
        hidden_margin,
        values=[
            ([1.6, 0.95, 1.2, 1.45, 1.02, 0.9, 1.05, 0.8], [25, 50, 60, 10, 16, 5, 30, 40], 0.7),
            ([1.1, 0.95, 1.3, 1.02, 1.2], [60, 70, 8, 24, 40], 0.9),
        ],
    ),
    vary(hidden_tokens_per_tier, values=[(5, 4, 2, 8)], traffic=[(12, 6, 4, 1024)]),
    vary(hidden_checkpoint_every, values=[(200.0, 50_000.0, 65_536, 600.0), (60.0, 40_000.0, 8192, 300.0)]),
    vary(
        hidden_newest_checkpoint,
        values=[
            (
                {2: [1], 8: [2, 0, 3, 1], 4: [0, 1, 2, 3], 15: [0], 14: [3], 12: [2], 16: [1], 18: [1]},
                [(16, 2), (16, 0), (16, 3), (2, 0)],
                4,
            ),
            ({100: [0, 1], 96: [0, 1]}, [], 2),
            ({6: [0, 1], 12: [0, 2, 3]}, [], 3),
        ],
    ),
    vary(
        hidden_campaign,
        values=[(2e12, 8e6, 20e6, 4.0, 512, 0.85, 2.0, 700.0, 1.6), (5e11, 1e6, 1e7, 1.25, 128, 0.95, 3.0, 500.0, 1.4)],
    ),
    vary(hidden_held_out_error, values=[(("gpt-3", "mixtral"), len(TABLE)), (("llama-70b", "530b", "nemotron"), 9)]),
)
### END HIDDEN TESTS
