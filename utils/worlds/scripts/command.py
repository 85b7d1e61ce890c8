"""The command line: `python -m PACKAGE train.py`, with PACKAGE as it is installed."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from types import FrameType
from typing import NoReturn

from ...cluster.achieved import RATES
from ...diagnosis.errors import RankError
from ...text.package import NAME
from ...text.wrapping import wrapped
from ..jobs import detect
from ..real.watchdog import run_world
from ..virtual.launch import DEVICES, simulate
from . import keepsakes, torchrun
from .script import Script, run_on_virtual_rank
from .world import ScriptWorld

COMMAND = f"python -m {NAME}"
DESCRIPTION = """\
Run a script as torchrun does, unmodified, and explain it when it hangs or fails. What the ranks print comes at once,
with the rank in front. As soon as no rank can move any more, a report says which rank waits where, and why.
"""
EPILOG = f"""\
examples:
  {COMMAND} --nproc-per-node 2 train.py --epochs 1          two ranks on this machine
  {COMMAND} --nproc-per-node 2 -m package.train             a module
  {COMMAND} --virtual 64 --cluster dgx-h100 train.py        64 virtual GPUs; tensors have sizes but no values
  {COMMAND} --virtual 4 --device cpu train.py               virtual, with values
  {COMMAND} --nproc-per-node 2 --timeline run.html --traffic train.py
  {COMMAND} explain dumps/                                  what a job that died has left behind
  torchrun --nproc-per-node 8 -m {NAME}.watch train.py         in a job: also --nnodes, or srun
  {COMMAND} plan --help                                     how to spread a model over GPUs

torchrun's options are accepted, each with either kind of dash, so that `torchrun` in a command line can be replaced
by `{COMMAND}`. There is no limit on time: the ranks are ended only when none can move, when one has failed, or by a
signal, which is passed on to them.

The exit code is that of the rank that failed first: sys.exit(3) gives 3, an exception 1, a signal 128 and its number.
A deadlock, and calls that don't fit together, give 1; a wrong command line gives 2.
"""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = make_parser()
    if not arguments:
        parser.print_help()
        return 2
    options = parser.parse_args(arguments)
    try:
        if detect.launcher():
            raise ValueError(f"this process is already a rank of a job. Start {COMMAND} by itself, not inside one.")
        keepsakes.check(options)
        script = Script.find(options.script, options.arguments, options.module)
        for remark in torchrun.remarks(options):
            print(f"{NAME}: {remark}", file=sys.stderr)
        return run_virtually(script, options) if options.virtual else run_here(script, options)
    except (ValueError, TypeError) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        usage=f"{COMMAND} [options] train.py [the script's own arguments]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    torchrun.add_options(parser)
    parser.add_argument(
        "--check-replicas",
        type=int,
        default=0,
        metavar="N",
        help="after every N optimizer steps, compare parameters and buffers; at the end, name the first that differs",
    )
    parser.add_argument(
        "--tell-after",
        type=float,
        default=60,
        metavar="SECONDS",
        help="say what each rank does, when nothing has moved for so long while some wait (default: %(default)g)",
    )
    virtual = parser.add_argument_group("on a virtual cluster")
    virtual.add_argument("--virtual", type=int, metavar="N", help="run on N virtual GPUs, in virtual time")
    virtual.add_argument("--cluster", default="dgx-h100", metavar="NAME", help="which kind (default: %(default)s)")
    virtual.add_argument(
        "--device", choices=DEVICES, default="meta", help="meta: sizes without values; cpu: values (default: meta)"
    )
    virtual.add_argument("--rates", choices=RATES, help="of the cluster (default: achieved, where they are known)")
    keepsakes.add_options(parser)
    parser.add_argument("script", help="a file, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    return parser


def run_here(script: Script, options: argparse.Namespace) -> int:
    """Run the script on ranks of this machine. Returns the exit code."""
    size = torchrun.number_of_ranks(options)
    given = {"MASTER_ADDR": options.master_addr, "MASTER_PORT": options.master_port, "ROLE_NAME": options.role}
    environment = {name: value for name, value in given.items() if value}
    worlds: list[ScriptWorld] = []
    stopped_by: list[int] = []

    def make() -> ScriptWorld:
        worlds.append(
            ScriptWorld(script, size, options.memory, environment, options.check_replicas, options.tell_after)
        )
        return worlds[-1]

    def stop(number: int, _: FrameType | None) -> NoReturn:
        stopped_by.append(number)
        if worlds:
            worlds[-1].signal_to_end = signal.Signals(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, stop)
    try:
        run = run_world(make, math.inf)
    except RankError as error:
        keepsakes.keep(options, worlds[-1].run_so_far(error), report_text(error), error.waiting)
        return worlds[-1].exit_code(error)
    except KeyboardInterrupt as error:
        stopped = f"{signal.Signals(stopped_by[0]).name}: {str(error) or 'no rank had started.'}"
        keepsakes.keep(options, None, "\n".join(wrapped(stopped)))
        return 128 + stopped_by[0]
    keepsakes.keep(options, run)
    return 0


def run_virtually(script: Script, options: argparse.Namespace) -> int:
    """Run the script on a virtual cluster. Returns the exit code."""
    try:
        run = simulate(
            run_on_virtual_rank,
            options.virtual,
            script,
            cluster=options.cluster,
            device=options.device,
            item_as_nan=options.device == "meta",
            rates=options.rates,
        )
    except RankError as error:
        keepsakes.keep(options, None, report_text(error))
        return 1
    except KeyboardInterrupt as error:
        keepsakes.keep(options, None, report_text(error))
        return 130
    print(f"{NAME}: {options.virtual:,} virtual ranks of {run.backend} took {run.elapsed:.6g} s, at {run.rates} rates.")
    keepsakes.keep(options, run)
    return 0


def report_text(error: BaseException) -> str:
    return "\n".join(wrapped(f"{type(error).__name__}: {error}"))
