"""The command line of find_plans."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from ...cluster.presets import PRESETS, SITES
from ...text.package import NAME
from ...text.wrapping import wrapped
from ..plans import MODELS
from ..plans.plan import RECOMPUTE
from ..plans.search import MOST_CP
from .explaining import read_plan
from .planning import find_plans

COMMAND = f"python -m {NAME} plan"
DESCRIPTION = """\
Find the best ways to spread a model's training over GPUs: data, tensor, pipeline, context and expert parallelism,
chunks, microbatch, recomputation. First it says if the model fits, then how long a step takes, in which part, how sure
that is, and why other plans lose.
"""
EPILOG = f"""\
examples:
  {COMMAND} --model llama-3-70b --gpus 1024 --batch 2048 --tokens 15e12
  {COMMAND} --model llama-3-70b --gpus 1024 --batch 2048 --explain "tp 4, pp 4, cp 2, chunks 5"
  {COMMAND} --model mymodel/config.json --gpus 24 --cluster dgx-a100 --batch 480 --sequence 4096
  {COMMAND} --model mixtral-8x7b --gpus 64 --batch 256 --site production --csv plans.csv --json plans.json

models:    {", ".join(MODELS)};
           or the path of a config.json of transformers, or of its folder
clusters:  {", ".join(PRESETS)}
sites:     {", ".join(SITES)}, or how many times as long computing takes there

The exit code is 0 if a plan fits, 1 if none does, 2 for a wrong command line.
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    options = make_parser().parse_args(arguments)
    try:
        asked = None if options.explain is None else read_plan(options.explain, options.gpus)
        for path in (options.csv, options.json):
            if path is not None and (path.is_dir() or not path.parent.is_dir()):
                raise ValueError(f"{path} can't be written: it must be a file, in a folder that exists")
        found = find_plans(
            options.model,
            options.gpus,
            options.cluster,
            batch=options.batch,
            sequence=options.sequence,
            site=site_of(options.site),
            n=options.top,
            recompute=options.recompute or RECOMPUTE,
            most_cp=options.most_cp,
            memory=options.memory * 1e9 if options.memory else None,
            progress=lambda line: print(f"{NAME}: {line}", file=sys.stderr),
        )
        print(found.explain(asked) if asked else found.text(options.tokens))
        for path, save in ((options.csv, found.save_csv), (options.json, found.save_json)):
            if path is not None:
                save(path)
    except (ValueError, OSError) as error:
        print("\n".join(wrapped(f"{NAME}: {error}")), file=sys.stderr)
        return 2
    return 0 if found.best else 1


def site_of(text: str) -> str | float:
    """A site's name, or a factor."""
    try:
        return float(text)
    except ValueError:
        return text


def count(text: str) -> int:
    """A whole number, 1 or more, also written as 1,024 or 2e3."""
    number = positive(text)
    if number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more, such as 64, 1,024 or 2e3")
    return int(number)


def positive(text: str) -> float:
    """A number above 0, in the same ways."""
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0, such as 64, 1,024 or 15e12")
    return number


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, help="a name (see below), or the path of a config.json")
    add("--gpus", required=True, type=count, metavar="N", help="whole nodes, or fewer than one node has")
    add("--cluster", default="dgx-h100", metavar="NAME", help="which kind (default: %(default)s)")
    add("--batch", required=True, type=count, metavar="N", help="sequences per step, over all GPUs")
    add("--sequence", type=count, metavar="N", help="tokens per sequence (default: as published, 8,192 at most)")
    add("--site", default="benchmark", help="what the place adds to what the chips need (default: %(default)s)")
    add("--tokens", type=positive, metavar="N", help="of the whole training: gives days")
    add("--top", type=count, default=10, metavar="N", help="how many plans to print (default: %(default)s)")
    add("--explain", metavar="PLAN", help='one plan beside the best: "tp 4, pp 8, chunks 12"')
    add("--recompute", action="append", choices=RECOMPUTE, help="only this kind (may be repeated; default: all)")
    add("--most-cp", type=count, default=MOST_CP, metavar="N", help="largest cp between nodes (default: %(default)s)")
    add("--memory", type=positive, metavar="GB", help="that tensors may take on a GPU (default: the GPU's)")
    add("--csv", type=Path, metavar="FILE", help="all plans that fit, a line each")
    add("--json", type=Path, metavar="FILE", help="the best plans with everything")
    return parser
