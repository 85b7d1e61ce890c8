"""What `import utils` and the first spawn add to `import torch`. Imports nothing that is timed."""

from __future__ import annotations

import time

from tests.bench import Row

TORCH = "import torch"
STATEMENTS = {
    TORCH: [TORCH],
    "import utils, after torch": [TORCH, "import utils"],
    "import utils and spawn on 2 ranks": ["import utils; utils.spawn(lambda rank, world_size: None, 2)"],
}
CASES = list(STATEMENTS)


def measure(name: str, quick: bool = False) -> list[Row]:
    for statement in STATEMENTS[name]:
        began = time.perf_counter()
        exec(statement, {})
        taken = time.perf_counter() - began  # the last one's
    return [{"name": name, "values": [taken], "beside": TORCH}]
