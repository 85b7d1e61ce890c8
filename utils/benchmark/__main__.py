"""The command line of sweep.py. Tables go to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from ..cluster.achieved import RATES
from ..cluster.hardware import Cluster
from ..cluster.presets import find_cluster
from ..diagnosis.errors import RankError
from ..worlds.jobs import detect
from .nccl_conventions import DTYPES, OPS, count_of, parse_sizes
from .sweep import benchmark, default_ranks
from .table import BenchmarkTable

PICTURES = (".png", ".pdf", ".svg")
EPILOG = """\
A size is that of the whole, as in nccl-tests: for all_gather, what a rank
holds at the end. K, M and G are powers of 1024; GB/s is 1e9 bytes per second.
algbw is size / time; compare busbw with one direction of a link.
torch has one form of each collective, in place or not; the other shows N/A.

Runs unchanged under torchrun and SLURM, on the ranks of the job.
Exit code: 0; 1 if a value came out wrong or the ranks failed; 2 if the command is invalid.
"""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        check(options)
        return run(options)
    except BrokenPipeError:  # `| head` has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # lets the interpreter flush and exit
        return 0
    except (ValueError, TypeError, OSError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    except RankError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmark: interrupted", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}",
        description="Time a collective over a range of sizes: warm-up, the slowest rank, the median of the repeats.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("op", choices=[*OPS, "all"], metavar="op", help=f"{', '.join(OPS)}; or all")
    parser.add_argument("--sizes", default="1K..64M", help="a range or a list, such as 1K,1M (default: %(default)s)")
    parser.add_argument("--step", type=int, default=2, help="factor from one size to the next (default: 2)")
    parser.add_argument(
        "-n",
        "--world-size",
        type=int,
        metavar="N",
        help="ranks (default: one per free GPU, else 4; on a cluster, one node)",
    )
    parser.add_argument("--dtype", default="float32", choices=DTYPES, metavar="D", help=", ".join(DTYPES))
    parser.add_argument("--warmup", type=int, default=5, help="untimed calls per size (default: 5)")
    parser.add_argument("--repeats", type=int, default=20, help="timed calls per size (default: 20)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl if enough GPUs are free")
    where.add_argument("--cluster", metavar="NAME", help="simulate this cluster instead: dgx-h100, laptop, ...")
    parser.add_argument(
        "--rates",
        choices=RATES,
        help="of that cluster (default: achieved, or datasheet if nothing is known of what it achieves)",
    )
    parser.add_argument(
        "--limits", action="store_true", help="also measure memory copies and the link between two ranks"
    )
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write the rows to FILE; with all, one file per op")
    parser.add_argument(
        "--figure", metavar="FILE", type=Path, help="draw times and bandwidths into FILE: .png, .pdf or .svg"
    )
    return parser


def check(options: argparse.Namespace) -> None:
    """Raises ValueError for what would otherwise fail only after the measurement."""
    sizes = parse_sizes(options.sizes, options.step)
    if options.op == "all":  # refuse before any of them is measured
        world_size = options.world_size or default_ranks(options.backend, options.cluster)
        for op in OPS:
            count_of(op, sizes[0], DTYPES[options.dtype][1], world_size)
    for path in filter(None, (options.csv, options.figure)):
        if path.is_dir():
            raise ValueError(f"{str(path)!r} is a folder: name a file in it")
        if not path.parent.is_dir():
            raise ValueError(f"the folder {str(path.parent)!r} does not exist, so {path.name} can't be written there")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"you lack the permission to write {str(path)!r}")
    if options.figure and options.figure.suffix.lower() not in PICTURES:
        raise ValueError(f"{options.figure.name!r} is not a picture format: use {', '.join(PICTURES)}")


def chosen_cluster(options: argparse.Namespace) -> Cluster | None:
    """The virtual cluster that was named, at the rates that were asked for. ValueError if it doesn't know them."""
    if options.cluster is None:
        if options.rates is not None:
            raise ValueError("--rates says how fast a virtual cluster is: name one with --cluster")
        return None
    ranks = options.world_size or find_cluster(options.cluster, 1).gpus_per_node
    return find_cluster(options.cluster, ranks).at_rates(options.rates)


def run(options: argparse.Namespace) -> int:
    """Measures one collective after another and prints each table at once. Returns the exit code."""
    first, wrong = detect.is_first_process(), 0
    cluster = chosen_cluster(options)
    if options.cluster and not first:
        return 0  # a virtual cluster lives in one process
    for op in OPS if options.op == "all" else [options.op]:
        with contextlib.redirect_stdout(sys.stderr):  # spawn's messages and the progress bar
            table = benchmark(
                op,
                options.sizes,
                options.world_size,
                dtype=options.dtype,
                warmup=options.warmup,
                repeats=options.repeats,
                step=options.step,
                backend=options.backend,
                cluster=cluster,
                progress=sys.stderr.isatty(),
                limits=options.limits or options.figure is not None,
            )
        wrong += table.wrong
        if first:
            print(f"{table}\n", flush=True)
            save(table, options)
    return 1 if wrong else 0


def save(table: BenchmarkTable, options: argparse.Namespace) -> None:
    if options.csv:
        table.save_csv(path_for(options.csv, table.op, options))
    if options.figure:
        table.figure().savefig(path_for(options.figure, table.op, options), dpi=120)


def path_for(path: Path, op: str, options: argparse.Namespace) -> Path:
    return path.with_stem(f"{path.stem}-{op}") if options.op == "all" else path


if __name__ == "__main__":
    raise SystemExit(main())
