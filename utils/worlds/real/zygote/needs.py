"""What the ranks of a program will import, as far as its pickle shows. The zygote can do it once, before it makes them.

It is only about speed: whatever the zygote has not imported, each rank imports for itself.
"""

from __future__ import annotations

import re
import sys

from ....text import package

AT_ONCE, WHEN_LOADED = b"+", b"*"  # whether the ranks may be made before the zygote has imported all that lessons use

LOOK_AT = 1 << 20  # bytes: the function comes first, the values of its arguments later
# Names in programs that use what takes a second to import. Their ranks would all do so at the same time.
SLOW_TO_IMPORT = re.compile(
    rb"optim|[Pp]arallel|checkpoint|compile|fsdp|fully_shard|pipelining|DTensor|distribute_|Shard|Replicate"
    rb"|torch\.distributed\.(tensor|nn)|functional_collectives|track_memory"
)
OURS = re.compile(rb"%s(?:\.\w+)+" % re.escape(package.NAME).encode())


def when_to_make(program: bytes) -> bytes:
    return WHEN_LOADED if SLOW_TO_IMPORT.search(program, 0, LOOK_AT) else AT_ONCE


def modules_of_ours(program: bytes) -> list[str]:
    """The modules of this package that the program refers to: those with a lesson's checks, say."""
    names = {name.decode() for name in OURS.findall(program, 0, LOOK_AT)}
    return sorted(names & sys.modules.keys())
