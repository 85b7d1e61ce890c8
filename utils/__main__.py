"""`python -m` with the name of this package, and the console script: runs a script, or one of the subcommands."""

from __future__ import annotations

import sys
from importlib import import_module

SUBCOMMANDS = {"explain": ".worlds.dumps.command", "plan": ".kit.planner.command"}  # {name: where its `main` is}
SCRIPTS = ".worlds.scripts.command"


def main() -> int:
    """Returns the exit code."""
    first, *rest = sys.argv[1:] or [""]
    module = SUBCOMMANDS.get(first)
    code: int = import_module(module or SCRIPTS, __package__).main(rest if module else sys.argv[1:])
    return code


if __name__ == "__main__":
    raise SystemExit(main())
