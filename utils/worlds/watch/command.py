"""The command line: `torchrun ... -m PACKAGE.watch train.py`, with PACKAGE as it is installed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import TracebackType

from ...text.package import NAME
from ...text.source_lines import is_students
from ..jobs import detect
from ..scripts.script import NoScript, Script
from . import start

DESCRIPTION = """\
Run one rank of a job, unmodified, and have all its ranks watched: as soon as none can move any more, rank 0 prints
which rank waits where, and why, and every rank exits with 1. Ranks that compute, load or save are never taken for
stuck; when the time-out of a group is near, the report says what they are doing.
"""
EPILOG = f"""\
examples:
  torchrun --nproc-per-node 8 -m {NAME}.watch train.py --epochs 1
  torchrun --nproc-per-node 8 -m {NAME}.watch --save dumps/ -m package.train
  srun --ntasks-per-node 8 python -m {NAME}.watch train.py
  python -m {NAME} explain dumps/                  what was saved, once more

A script that is started in some other way needs one line, on every rank: import {NAME}; {NAME}.watch()
"""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code of a wrong command line; that of the script is raised by it."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        if detect.launcher() is None:
            raise ValueError(
                f"this process is not a rank of a job. Start it with torchrun or srun; on one machine, "
                f"python -m {NAME} train.py does all of that."
            )
        detect.set_variables()
        script = Script.find(options.script, options.arguments, options.module)
        start.watch(end=not options.keep_going, save=options.save)
    except (NoScript, ValueError, OSError) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    run(script)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {NAME}.watch",
        usage=f"torchrun [its options] -m {NAME}.watch [options] train.py [the script's own arguments]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-m", "--module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("--keep-going", action="store_true", help="print the report, and don't end the job")
    parser.add_argument("--save", metavar="DIR", type=Path, help="keep the report and all ranks' last calls in DIR")
    parser.add_argument("script", help="a file, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    return parser


def run(script: Script) -> None:
    """Become the script. An exception that ends it is shown without the lines that lead to it."""
    try:
        script.run()
    except SystemExit as exit:
        if exit.code not in (None, 0) and start.watcher is not None:
            start.watcher.fail(exit)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        error.__traceback__ = from_the_script_on(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def from_the_script_on(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from its first line of the script on; as it is if there is none."""
    first = trace
    while first is not None and not is_students(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or trace
