"""What the planner says: if a model fits, which plans are the best, why others lose; in text, CSV and JSON."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from utils.cluster import find_cluster
from utils.kit.planner import find_plans
from utils.kit.planner.command import main
from utils.kit.planner.explaining import read_plan
from utils.kit.planner.losers import losers
from utils.kit.plans import Model, Plan, problem_of, search

SMALL = Model(8, 2048, 16, 2048, 32_000, key_heads=4, ffn=5632, gated=True)


@pytest.fixture(scope="module")
def found():
    return find_plans(SMALL, 16, batch=64, n=3)


@pytest.fixture(scope="module")
def too_large():
    return find_plans("llama-3-70b", 16, batch=128, recompute=["none"])


# ---- the search


def test_the_best_are_those_of_search(found):
    assert found.best == search(SMALL, 64, found.cluster, n=3)
    assert not problem_of(found.best[0].plan, SMALL, 64, found.cluster)


def test_a_part_of_a_node_is_a_cluster_of_its_own():
    few = find_plans(SMALL, 2, "ethernet-cloud", batch=8, n=1)
    assert (few.cluster.size, few.cluster.rates, few.best[0].range) == (2, "datasheet", None)
    assert few.best[0].plan.gpus == 2 and "unknown" in few.text()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"gpus": 20}, "20 GPUs are not whole nodes of 'dgx-h100', which have 8: take 16 or 24"),
        ({"cluster": "dgx-h10"}, "there is no cluster 'dgx-h10': did you mean 'dgx-h100'"),
        ({"site": "prodution"}, "did you mean 'production'"),
        ({"site": "production", "cluster": "aws-p5"}, "those of 'aws-p5' are not known"),
        ({"batch": 0}, "batch is 0"),
        ({"recompute": ["some"]}, "the kinds are none, selective, full"),
        ({"model": "llama-3-7b"}, "did you mean 'llama-3-70b'|did you mean 'llama-3-8b'|did you mean 'llama-7b'"),
    ],
)
def test_a_call_that_cannot_work_says_why(change, words):
    call = {"model": SMALL, "gpus": 16, "cluster": "dgx-h100", "batch": 64, **change}
    with pytest.raises(ValueError, match=words):
        find_plans(call.pop("model"), call.pop("gpus"), call.pop("cluster"), **call)


def test_production_takes_longer_and_less_memory_leaves_fewer_plans():
    plain = find_plans(SMALL, 8, batch=64, n=1)
    slow = find_plans(SMALL, 8, batch=64, n=1, site="production")
    tight = find_plans(SMALL, 8, batch=64, n=1, memory=4e9)
    assert 1.05 < slow.best[0].total / plain.best[0].total < 1.13
    assert len(tight.fitting) < len(plain.fitting) and tight.best[0].gigabytes <= 4 < plain.best[0].gigabytes
    assert "times as slow as in benchmarks" in slow.text()


def test_days_and_mfu_follow_from_the_seconds(found):
    seconds = found.best[0].total
    assert found.tokens == 64 * 2048
    assert found.days(seconds, 1e12) == pytest.approx(1e12 / found.tokens * seconds / 86400)
    flops = found.tokens * SMALL.flops_per_token
    assert found.mfu(seconds) == pytest.approx(flops / seconds / 16 / 989e12)
    assert "days for 1 T tokens" in found.text(1e12)


# ---- does it fit?


def test_what_is_missing_is_said_by_kind_and_what_would_do(too_large):
    assert too_large.best == [] and too_large.nearest is not None
    text = too_large.text()
    needs = too_large.too_large[too_large.nearest]
    assert f"The nearest lacks {sum(needs.values()) / 1e9 - 80:.1f} GB" in text
    assert f"{needs['optimizer'] / 1e9:.1f} optimizer" in text
    assert "24 GPUs: " in text or "32 GPUs: " in text
    assert "dgx-b200 (180 GB)" in text
    assert "tokens/s" not in text


def test_what_is_said_to_fit_does():
    found = find_plans("llama-3-8b", 2, batch=32, sequence=32_768, recompute=["none"], memory=130e9)
    assert found.best == [] and "recomputing more: " in found.text()
    again = find_plans("llama-3-8b", 2, batch=32, sequence=32_768, recompute=["full"], memory=130e9, n=1)
    assert again.best


def test_a_batch_that_no_plan_divides():
    text = find_plans(replace(SMALL, heads=9, key_heads=9, width=2304, layers=2), 64, batch=7).text()
    assert (
        "There is no plan: each breaks a rule, most of them this one: " in text
        and "sequences per step there are plans" in text
    )


def test_a_best_plan_at_the_edge_is_said_to_be_there():
    found = find_plans(SMALL, 8, batch=64, n=1, memory=8e9)
    assert "GB free. If 5 GB must stay free, the best is" in found.text()
    assert found.best[0].gigabytes > 3


# ---- why others lost


def test_losers_say_what_they_are_slower_in_or_lack(found):
    by_size = {each.what: each for each in losers(found)}
    winner = found.best[0]
    assert by_size["tp 16+"].why == "leaves the node of 8 GPUs"
    assert by_size["cp 16+"].why == "not tried between nodes: no program was held against it"
    assert by_size["pp 8"].best.plan.pp == 8
    assert by_size["pp 8"].why.startswith("+") and "s bubble" in by_size["pp 8"].why
    sizes = {each.what.split()[0] for each in by_size.values()}
    assert sizes == {"tp", "cp", "pp", "chunks", "micro", "recompute"}
    assert f"tp {winner.plan.tp}" not in by_size
    every = len(found.fitting) + len(found.too_large)
    mine = sum(each.plan.tp == winner.plan.tp for each in found.fitting)
    mine += sum(plan.tp == winner.plan.tp for plan in found.too_large)
    assert sum(each.plans for each in by_size.values() if each.what.startswith("tp")) + mine == every


def test_losers_that_do_not_fit_say_how_much_is_missing():
    found = find_plans("llama-3-70b", 32, batch=128, n=1, memory=60e9)
    one = next(each for each in losers(found) if each.plans > each.fit == 0)
    axis, size = one.what.split()
    these = [needs for plan, needs in found.too_large.items() if str(getattr(plan, axis)) == size]
    nearest = min(these, key=lambda needs: sum(needs.values()))
    most = max(nearest, key=nearest.get)
    lacks = f"lacks {sum(nearest.values()) / 1e9 - 60:.1f} GB at least; {nearest[most] / 1e9:.1f} GB are {most}"
    assert (one.plans, one.best, one.why) == (len(these), None, lacks)


def test_a_tp_that_does_not_divide_the_heads_is_named():
    found = find_plans(replace(SMALL, heads=12, key_heads=12, width=1536), 8, batch=64, n=1)
    assert {each.what: each.why for each in losers(found)}["tp 8"].startswith("tp must divide the heads")


# ---- --explain


@pytest.mark.parametrize("plan", [Plan(4, 2, 2), Plan(2, 2, 2, 2, chunks=2, micro=4, recompute="full"), Plan(16)])
def test_a_plan_is_read_as_it_is_printed(plan):
    assert read_plan(str(plan), 16) == plan


def test_a_plan_may_be_written_in_other_ways():
    assert read_plan("TP=4 pp=2", 16) == read_plan("tp4-pp2", 16) == Plan(2, 4, 2)
    assert read_plan("tp 2, recompute selective", 16) == Plan(8, 2, recompute="selective")


@pytest.mark.parametrize(
    "text, words", [("tp", "is no plan"), ("", "is no plan"), ("tb 4", "has no 'tb': did you mean 'tp'"), ("4x2", "no")]
)
def test_what_is_no_plan_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        read_plan(text, 16)


def test_a_plan_is_explained_beside_the_best(found):
    text = found.explain("tp 8, pp 2")
    assert text.startswith("tp 8, pp 2: number ") and "by formula" in text
    assert "activations" in text and "bubble" in text and "Against the best, +" in text
    first = found.explain(found.best[0].plan)
    assert "number 1 of" in first and "measured" in first and "Against" not in first


def test_a_rule_that_a_plan_breaks_is_named(found):
    assert "can't be carried out, since tp 16 is more than" in found.explain("tp 16") or "node" in found.explain(
        "tp 16"
    )
    assert "chunks must divide" in found.explain("pp 2, chunks 3")


def test_a_plan_that_does_not_fit_is_told_what_would_help(too_large):
    found = find_plans("llama-3-8b", 8, batch=64, n=1)
    text = found.explain("dp 8")
    assert "it doesn't fit. A GPU would need" in text and "With one change it would fit:" in text
    assert "tp 2: " in text and "s per step" in text
    assert "No single change would make it fit." in too_large.explain("tp 8, pp 2")


# ---- files and the command line


def test_csv_has_all_plans_that_fit_and_json_the_best(found, tmp_path):
    found.save_csv(tmp_path / "plans.csv")
    with (tmp_path / "plans.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(found.fitting)
    assert [line["measured"] for line in lines[:4]] == ["True"] * 3 + ["False"]
    assert float(lines[0]["seconds"]) == found.best[0].total and int(lines[0]["tp"]) == found.best[0].plan.tp
    found.save_json(tmp_path / "plans.json")
    content = json.loads((tmp_path / "plans.json").read_text())
    assert content["fit"] == len(found.fitting) and content["best"][0]["seconds"] == found.best[0].total
    assert content["best"][0]["bytes_activations"] == found.best[0].bytes["activations"]


def test_files_of_a_model_that_does_not_fit(too_large, tmp_path):
    too_large.save_csv(tmp_path / "plans.csv")
    too_large.save_json(tmp_path / "plans.json")
    assert (tmp_path / "plans.csv").read_text().startswith("dp,tp,pp")
    content = json.loads((tmp_path / "plans.json").read_text())
    assert content["best"] == [] and content["nearest_that_does_not_fit"]["bytes_optimizer"] > 0


def test_the_command_line(capsys, tmp_path):
    arguments = ["--model", "llama-3-8b", "--gpus", "8", "--batch", "64", "--top", "2", "--tokens", "1e12"]
    assert main([*arguments, "--csv", str(tmp_path / "a.csv"), "--json", str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr()
    assert "It fits: " in shown.out and "Why others lose" in shown.out and "days for 1 T tokens" in shown.out
    assert "by formula, in" in shown.err and "measured" in shown.err
    assert (tmp_path / "a.csv").exists() and (tmp_path / "a.json").exists()
    assert main([*arguments, "--explain", "dp 8"]) == 0
    assert "doesn't fit" in capsys.readouterr().out
    assert main([*arguments[:2], "--gpus", "1", "--batch", "64"]) == 1
    assert main(["--model", "lama-3-8b", *arguments[2:]]) == 2
    assert "did you mean 'llama-3-8b'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "option, text, words",
    [
        ("--gpus", "0", "'0' must be a number above 0"),
        ("--gpus", "-8", "'-8' must be a number above 0"),
        ("--batch", "1.5", "'1.5' must be a whole number, 1 or more, such as 64, 1,024 or 2e3"),
        ("--batch", "many", "'many' must be a number above 0"),
        ("--memory", "0", "'0' must be a number above 0"),
        ("--tokens", "15T", "'15T' must be a number above 0, such as 64, 1,024 or 15e12"),
    ],
)
def test_a_number_that_cannot_be_is_told_which_can(option, text, words, capsys):
    with pytest.raises(SystemExit):
        main(["--model", "llama-3-8b", "--gpus", "8", "--batch", "64", option, text])
    assert f"argument {option}: {words}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more, words",
    [
        (["--explain", ""], "'' is no plan"),
        (["--explain", "tp 2, zz 3"], "a plan has no 'zz'"),
        (["--csv", "no-such-folder/plans.csv"], "a file, in a folder that exists"),
        (["--json", "."], ". can't be written"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_said_before_the_search(more, words, capsys):
    assert main(["--model", "no-such-model", "--gpus", "8", "--batch", "64", *more]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_the_help_names_models_clusters_and_examples(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "llama-3-70b" in shown and "dgx-h100" in shown and "examples:" in shown


def test_a_cluster_of_your_own_is_used_as_it_is():
    mine = replace(find_cluster("dgx-h100", 32), name="mine")
    assert find_plans(SMALL, 16, mine, batch=64, n=1).cluster.nodes == 2
    with pytest.raises(ValueError, match="don't fit on 'mine'"):
        find_plans(SMALL, 64, mine, batch=64)
