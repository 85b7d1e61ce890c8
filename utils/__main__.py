"""`python -m` with the name of this package, and the console script: runs a script, or one of the subcommands."""

from __future__ import annotations

import sys
from importlib import import_module

SUBCOMMANDS = {  # {name: where its `main` is}
    "explain": ".worlds.dumps.command",
    "plan": ".kit.planner.command",
    "watch": ".worlds.watch.command",
}
SCRIPTS = ".worlds.scripts.command"


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    module = SUBCOMMANDS.get(arguments[0]) if arguments else None
    code: int = import_module(module or SCRIPTS, __package__).main(arguments[1:] if module else arguments)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
