"""Who has run this cell: someone in front of a page, or a program."""

from __future__ import annotations

import sys


def someone_is_there() -> bool:
    """Whether whoever runs this cell could click: they could also answer `input()`. nbclient and nbval can't."""
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython(), "kernel", None) if ipython else None
    return bool(kernel and kernel.get_parent().get("content", {}).get("allow_stdin"))
