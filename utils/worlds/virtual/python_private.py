"""The private names of Python and cloudpickle that give each virtual rank its own environment, imports and classes.

All of them are looked up when this module is imported, as those of torch are (recording/torch_private.py). In modules
they are set as variables, not as attributes, which would count as the rank's doing (see watched_module in
surroundings.py).
"""

from __future__ import annotations

import _frozen_importlib
import copyreg
import os
from collections.abc import MutableMapping
from types import ModuleType
from typing import Any

try:
    from cloudpickle import cloudpickle
except ModuleNotFoundError:  # on a bare GPU machine (docs/gpu.md), where no class arrives by value
    cloudpickle = None

_frozen_importlib._module_locks  # type: ignore[attr-defined]  # noqa: B018
if cloudpickle is not None:
    cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: B018
    cloudpickle._module_reduce  # noqa: B018
os.environ._data  # type: ignore[attr-defined]  # noqa: B018


def variables() -> dict[bytes, bytes]:
    """The environment variables of this process, as os.environ has them."""
    return dict(os.environ._data)  # type: ignore[attr-defined]


def set_variables(variables: dict[bytes, bytes]) -> None:
    """From now on os.environ reads and writes these."""
    os.environ._data = os.environb._data = variables  # type: ignore[attr-defined]


def set_dynamic_classes(classes: MutableMapping[str, type]) -> None:
    """From now on, a class that arrives by value is the one that `classes` has for its id, or becomes it."""
    if cloudpickle is not None:
        vars(cloudpickle)["_DYNAMIC_CLASS_TRACKER_BY_ID"] = classes


def set_import_locks(locks: dict[str, Any]) -> None:
    """From now on, a thread that imports a module waits only for those that import it with the same locks."""
    vars(_frozen_importlib)["_module_locks"] = locks


def let_modules_travel(kind: type[ModuleType]) -> None:
    """Have modules of this class pickled as all others are: cloudpickle goes by the exact class."""
    if cloudpickle is not None:
        copyreg.pickle(kind, cloudpickle._module_reduce)
