"""The pickler of programs and results: cloudpickle's, which takes functions by value.

Without cloudpickle, as on a bare GPU machine (docs/gpu.md), functions travel by name: those of a module that ranks can
import still run, those of a notebook don't.
"""

from __future__ import annotations

import pickle
from types import ModuleType
from typing import Any

try:
    from cloudpickle import Pickler, register_pickle_by_value
except ModuleNotFoundError:

    class Pickler(pickle.Pickler):  # type: ignore[no-redef]
        def reducer_override(self, value: Any) -> Any:
            return NotImplemented  # the usual way

    def register_pickle_by_value(module: ModuleType) -> None:
        """Nothing can be pickled by value."""


__all__ = ["Pickler", "register_pickle_by_value"]
