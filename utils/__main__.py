"""`python -m` with the name of this package: see worlds/scripts/command.py."""

from .worlds.scripts.command import main

if __name__ == "__main__":
    raise SystemExit(main())
