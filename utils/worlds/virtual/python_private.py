"""The private names of Python and cloudpickle that give each virtual rank its own environment, imports and classes.

All of them are looked up when this module is imported, as those of torch are (recording/torch_private.py).
"""

from __future__ import annotations

import _frozen_importlib
import os
from collections.abc import MutableMapping
from typing import Any

from cloudpickle import cloudpickle

_frozen_importlib._module_locks  # noqa: B018
cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: B018
os.environ._data  # type: ignore[attr-defined]  # noqa: B018


def variables() -> dict[bytes, bytes]:
    """The environment variables of this process, as os.environ has them."""
    return dict(os.environ._data)  # type: ignore[attr-defined]


def set_variables(variables: dict[bytes, bytes]) -> None:
    """From now on os.environ reads and writes these."""
    os.environ._data = os.environb._data = variables  # type: ignore[attr-defined]


def set_dynamic_classes(classes: MutableMapping[str, type]) -> None:
    """From now on, a class that arrives by value is the one that `classes` has for its id, or becomes it."""
    cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID = classes


def set_import_locks(locks: dict[str, Any]) -> None:
    """From now on, whoever imports a module waits only for those who import it with the same locks."""
    _frozen_importlib._module_locks = locks  # type: ignore[attr-defined]
