"""Who has run this cell: a page on which a person can click, or a program."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def has_widgets() -> bool:
    """Whether a notebook on a page has asked for this cell: JupyterLab, Notebook and VS Code name it in their request.

    nbclient, nbval, graders and consoles do not, and a script has no kernel. They get the text alone.
    """
    ipython = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(ipython, "kernel", None)
    return kernel is not None and "cellId" in kernel.get_parent().get("metadata", {}) and bool(find_spec("ipywidgets"))
