"""`torchrun ... -m` with this module's name runs a script and watches it: see worlds/watch/command.py.

Of the package, `watch` is a function. So it is for those who import this module.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from .worlds.watch.command import main

    raise SystemExit(main())

from .worlds.watch import watch

sys.modules[__name__] = watch  # type: ignore[assignment]
