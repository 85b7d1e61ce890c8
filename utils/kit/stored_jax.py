"""JAX in lesson 13: it runs if it is installed. Otherwise a file says what it gave when the lesson was built.

Writing that file: STORE_JAX=1 in the environment of a kernel that has JAX, and run the lesson.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
DEVICES = 8  # virtual devices on the CPU


def from_jax(compute: Callable[[Any], Any]) -> Any:
    """compute(jax), with 8 devices on the CPU. Without JAX: what that returned when the lesson was built.

    compute: its name is that of the stored value, which is plain data
    """
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if find_spec("jax") is None:
        print(f"JAX is not installed: this is what version {stored['version']} gave. To run it, install it: make jax")
        return stored[compute.__name__]
    import jax  # type: ignore[import-not-found, unused-ignore]

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    value = compute(jax)
    if os.environ.get("STORE_JAX"):
        stored |= {compute.__name__: value, "version": jax.__version__}
        FILE.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return value
