"""torchrun's command line, as far as it makes sense for ranks on one machine."""

from __future__ import annotations

import argparse
import os

from ..common.call_checks import MAX_PROCESSES

# They say how agents on several machines meet or look after their workers: here there is one, and nothing to choose.
WITHOUT_EFFECT = [
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "node-rank",
    "local-addr",
    "signals-to-handle",
    "shutdown-timeout",
]
# These would change what happens. The script runs all the same, and a line says what doesn't happen.
LEFT_OUT = {
    "max-restarts": "the ranks are started once, and the report is about the first failure",
    "log-dir": "all output comes here; --report FILE keeps the report",
    "logs-specs": "all output comes here",
    "redirects": "all output comes here",
    "tee": "all output comes here",
    "local-ranks-filter": "the output of all ranks comes here",
    "duplicate-stdout-filters": "all output comes here",
    "duplicate-stderr-filters": "all output comes here",
    "numa-binding": "the system chooses the cores",
}
SHORT = {"redirects": ["-r"], "tee": ["-t"]}
REFUSED = {
    "no-python": "the ranks run Python: start other programs with torchrun",
    "run-path": "give the script's path without it",
    "virtual-local-rank": "each rank finds its number in LOCAL_RANK and sees all GPUs",
}


class Refused(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        name = self.option_strings[0]
        parser.error(f"{name} is torchrun's, and not for this command: {REFUSED[name[2:]]}.")


def add_options(parser: argparse.ArgumentParser) -> None:
    """torchrun's own, each with either kind of dash."""
    add = parser.add_argument
    add(*spelled("nproc-per-node"), default="1", metavar="N", help="ranks to start (default: 1); or gpu, cpu, auto")
    add("-m", "--module", action="store_true", help="run a module, as python -m does")
    add(*spelled("master-addr"), metavar="HOST", help="MASTER_ADDR of the ranks (default: 127.0.0.1)")
    add(*spelled("master-port"), metavar="PORT", help="MASTER_PORT of the ranks (default: a free one)")
    add("--role", default="default", help=argparse.SUPPRESS)
    add("--nnodes", default="1", help=argparse.SUPPRESS)
    add("--standalone", action="store_true", help="accepted, like torchrun's other options; ranks start here anyway")
    for name in WITHOUT_EFFECT:
        add(*spelled(name), help=argparse.SUPPRESS)
    for name in LEFT_OUT:
        action = "append" if name.startswith("duplicate") else "store"
        add(*SHORT.get(name, []), *spelled(name), action=action, help=argparse.SUPPRESS)
    for name in REFUSED:
        add(*spelled(name), nargs=0, action=Refused, help=argparse.SUPPRESS)


def spelled(name: str) -> list[str]:
    return list(dict.fromkeys((f"--{name}", "--" + name.replace("-", "_"))))


def remarks(options: argparse.Namespace) -> list[str]:
    """A line for each option that would do something under torchrun and doesn't here."""
    given = {name: getattr(options, name.replace("-", "_")) for name in LEFT_OUT}
    return [f"--{name}: {LEFT_OUT[name]}." for name, value in given.items() if value not in (None, "0")]


def number_of_ranks(options: argparse.Namespace) -> int:
    """Raises ValueError for a number that can't be started on this machine."""
    if options.nnodes not in ("1", "1:1"):
        raise ValueError(
            f"--nnodes {options.nnodes}: all ranks of this command are on this machine. Give their number as "
            "--nproc-per-node, or as --virtual to have a virtual cluster with nodes."
        )
    asked = options.nproc_per_node
    if asked.isdecimal():
        number = int(asked)
    elif asked in ("cpu", "gpu", "auto"):
        number = number_of_devices(asked)
    else:
        raise ValueError(f"--nproc-per-node is a number, gpu, cpu or auto; got {asked!r}.")
    if not 1 <= number <= MAX_PROCESSES:
        raise ValueError(f"--nproc-per-node {asked}: this machine can be asked for 1 to {MAX_PROCESSES} ranks.")
    return number


def number_of_devices(kind: str) -> int:
    """Raises ValueError if there is none."""
    if kind != "cpu":
        from ..real.installed_gpus import find_gpus

        if gpus := find_gpus():
            return len(gpus)
        if kind == "gpu":
            raise ValueError("--nproc-per-node gpu: there is no GPU here that torch can use. Give a number, or cpu.")
    return os.cpu_count() or 1
