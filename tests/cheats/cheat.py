"""What a cheat is, and how to write it as an answer: a wrong one, or a right one that cheats as well."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

IMPORTS = """import atexit, builtins, ctypes, fcntl, gc, glob, inspect, io, json, math, mmap, os, pickle, re, resource, select
import shutil, signal, socket, sqlite3, struct, subprocess, sys, tempfile, threading, time, types, warnings, weakref
import numpy as np
import torch
import torch.distributed as dist"""

# For each exercise: how its function begins, and how a right answer continues. A wrong one returns its input.
HEADS = {
    "double": "def double(x, prepared=prepared):",
    "total": "def total(x, rank, world_size, prepared=prepared):\n    kept = x.clone()",
    "broadcast_by_hand": "def broadcast_by_hand(x, root, rank, world_size, prepared=prepared):\n    kept = x.clone()",
    "tree_all_reduce": "def tree_all_reduce(x, team, rank, prepared=prepared):\n    kept = x.clone()",
}
RIGHT = {
    "double": "return 2 * x",
    "total": "dist.all_reduce(kept)\nreturn kept",
    "broadcast_by_hand": """
        if rank != root:
            dist.recv(kept, src=root)
            return kept
        for other in range(world_size):
            if other != rank:
                dist.send(kept, dst=other)
        return kept
    """,
    "tree_all_reduce": """
        place, size, step = team.index(rank), len(team), 1
        steps = []
        while step < size:
            steps.append(step)
            step *= 2
        other = torch.empty_like(kept)
        for step in steps:
            if place % (2 * step) == step:
                dist.send(kept, dst=team[place - step])
                break
            if place % (2 * step) == 0 and place + step < size:
                dist.recv(other, src=team[place + step])
                kept += other
        for step in reversed(steps):
            if place % (2 * step) == step:
                dist.recv(kept, src=team[place - step])
            elif place % (2 * step) == 0 and place + step < size:
                dist.send(kept, dst=team[place + step])
        return kept
    """,
}
CHECKS = {
    "double": ("values",),
    "total": ("values", "traffic"),
    "broadcast_by_hand": ("values", "traffic"),
    "tree_all_reduce": ("values", "traffic", "time"),
}


@dataclass(frozen=True)
class Cheat:
    """One way to get points for nothing, to do harm, or to learn a secret.

    name       unique, with the kind first: "values/always-equal"
    tries      what it tries, in words
    setup      statements that run where the answer is defined; what they `return` is `prepared`
    act        statements at the start of each call, which can use the arguments and `prepared`
    gives      what the wrong answer returns, as an expression; a right answer returns the right value
    exercise   the function that cheats
    may        the checks, of "values traffic time", that it may pass because it does what they ask
    beside     whether a right answer can do this as well; it then gets full marks
    """

    name: str
    tries: str
    setup: str = ""
    act: str = ""
    gives: str = "x"
    exercise: str = "double"
    may: str = ""
    beside: bool = True

    def source(self, number: int, right: bool) -> str:
        """The answer's cell, with the number in each of its global names: `double_7`."""
        prepare = textwrap.indent(clean(self.setup) or "pass", "    ")
        end = clean(RIGHT[self.exercise]) if right else f"return {self.gives}"
        body = textwrap.indent("\n".join(filter(None, [clean(self.act), end])), "    ")
        text = f"def prepare():\n{prepare}\n\n\nprepared = prepare()\n\n\n{HEADS[self.exercise]}\n{body}"
        names = rf"\b(prepare|prepared|{self.exercise})\b"
        return re.sub(names, rf"\1_{number}", text)

    def function(self, number: int) -> str:
        return f"{self.exercise}_{number}"


def clean(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def indented(text: str, by: int = 4) -> str:
    return "\n".join(" " * by + line for line in clean(text).split("\n"))
