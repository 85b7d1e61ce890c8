"""What lies in a rank's process when an answer begins: a walk over its frames and over all that its collector knows.

    found = walked("03_benchmarking", "time-once", "values")     # [] if nothing of what it expects is there

The official solution is judged with a few statements more. When it is called, they print a fingerprint of each tensor,
list and number that is alive in the rank, but for those among the arguments. In the judge's process, these are compared
with the fingerprints of what each rank must return and of what the other ranks were given.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

from grader.judging.judge import Judging
from grader.judging.remote_runner import RemoteRunner
from grader.judging.verdict import PASSED
from tests.graded import judged
from utils.checks.oracles import Case

# Also what the ranks execute. Objects that were there before the rank are frozen: its collector does not list them.
WALK = '''
def prints_of(value, seen=None, depth=0):
    """{fingerprint} of the tensors, lists of numbers and uneven numbers in a value. Closures are looked into, too."""
    import types
    from contextlib import suppress
    seen = set() if seen is None else seen
    if id(value) in seen or depth > 30:
        return set()
    seen.add(id(value))
    numbers, shape = None, None
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type == "cpu" and value.untyped_storage().nbytes():
            with suppress(RuntimeError):  # a tensor in the middle of a call of autograd's
                numbers, shape = ends_of(value.detach().reshape(-1)).tolist(), list(value.shape)
    elif type(value) is float:
        numbers, shape = [value], []
    elif isinstance(value, (list, tuple)) and value and all(type(one) in (int, float) for one in value):
        numbers, shape = list(ends_of(value)), [len(value)]
    found = set()
    if numbers and tells(numbers, shape):
        found.add(repr([shape, [f"{one:.4g}" for one in numbers]]))
    if isinstance(value, (list, tuple, set)):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, types.FunctionType):
        parts = [value.__closure__ and [one.cell_contents for one in value.__closure__ if has_contents(one)],
                 value.__defaults__]
    elif isinstance(value, functools_partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, types.MethodType):
        parts = [value.__self__]
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        parts = [vars(value)]
    else:
        parts = []
    for part in parts:
        found |= prints_of(part, seen, depth + 1)
    return found

def ends_of(values):
    return values if len(values) <= 16 else values[:16]

def has_contents(cell):
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True

def tells(numbers, shape):
    """Whether nobody has these numbers by chance."""
    if any(isinstance(one, (bool, complex)) or one != one or abs(one) > 1e300 for one in numbers):
        return False
    if not shape or len(numbers) < 4:
        return any(float(f"{one:.4g}") != one for one in numbers)
    steps = {round(b - a, 9) for a, b in zip(numbers[:8], numbers[1:8])}
    return len(set(numbers)) > 2 and len(steps) > 1
'''
WATCH = """
from functools import partial as functools_partial

def watched(function):
    import functools, gc, json, sys
    calls = []
    @functools.wraps(function)
    def call(*args, **kwargs):
        if not calls:
            calls.append(1)
            tracer = sys.gettrace()
            sys.settrace(None)  # a driver may count lines
            frame, values = sys._getframe(1), []
            while frame:
                values.append(dict(frame.f_locals))
                frame = frame.f_back
            given, seen = prints_of([args, kwargs]), {id(args), id(kwargs)}
            found = set()
            for value in [*values, *gc.get_objects()]:
                found |= prints_of(value, seen)
            print("\\nWALKED" + json.dumps([sorted(given), sorted(found - given)]))
            sys.settrace(tracer)
        return function(*args, **kwargs)
    return call
"""

namespace: dict = {}
exec("import torch\nfrom functools import partial as functools_partial\n" + WALK, namespace)
prints_of = namespace["prints_of"]


def walked(lesson: str, exercise: str, judges: str, answers: dict[str, str] | None = None) -> list[str]:
    """What the ranks of a check find beside their arguments, in words. Raises AssertionError if the check fails."""
    found: list[str] = []
    slice_for, run_case, world = Judging.slice_for, Case.run, RemoteRunner.world

    def with_walk(self, cell):
        code = slice_for(self, cell)
        name = code["name"]
        added = [WALK, WATCH, f"{name} = watched({name})"]
        imports = {"label": "walk", "line": 1, "source": "import torch", "binds": []}
        pieces = [imports, *code["pieces"]]
        pieces += [{"label": "walk", "line": 1, "source": one, "binds": [name] * (one is added[-1])} for one in added]
        return {**code, "pieces": pieces}

    def noting(self, run, judges):
        run.case = self
        return run_case(self, run, judges)

    def compared(self, request):
        run = world(self, request)
        for rank in range(request.world_size):
            found.extend(f"{exercise}, {judges}: {one}" for one in looked_up(self, request, run, rank))
        return run

    with (
        patch.object(Judging, "slice_for", with_walk),
        patch.object(Case, "run", noting),
        patch.object(RemoteRunner, "world", compared),
    ):
        [verdict] = judged(lesson, answers, [f"{exercise}-{judges}"]).verdicts
    assert answers or verdict.kind == PASSED, (exercise, judges, verdict.said)
    return sorted(set(found))


def gradients_in(request, rank: int) -> list[Any]:
    """What a driver starts its backward pass from: autograd hands it to the answer's own."""
    driver = request.function.args and request.function.func if isinstance(request.function, partial) else None
    names = [*inspect.signature(driver).parameters][1:] if driver else []
    inputs = zip(names, request.inputs_of(rank), strict=False)
    return [value for name, value in inputs if name in ("grad", "gradient")]


def looked_up(runner, request, run, rank: int) -> Iterator[str]:
    """What of one rank's walk is expected of some rank, or was given to another one."""
    lines = [line for line in run.output[rank].splitlines() if line.startswith("WALKED")]
    if not lines:
        return
    given, there = map(set, json.loads(lines[0].removeprefix("WALKED")))
    own = prints_of([request.inputs_of(rank), dict(request.for_all)]) | given
    there -= prints_of(gradients_in(request, rank))
    case = getattr(runner, "case", None)
    if case is not None and case.right is not None:
        for number in range(case.world_size):
            for part, right, _ in case.parts(number):
                yield from (f"expected {part}: {one}" for one in prints_of(right) & there)
    for other in set(range(request.world_size)) - {rank}:
        yield from (f"input of another rank: {one}" for one in (prints_of(request.inputs_of(other)) - own) & there)
