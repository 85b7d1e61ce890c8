"""`python -m` with the name of this package: see scripts/command.py."""

from .scripts.command import main

if __name__ == "__main__":
    raise SystemExit(main())
