"""What lies in a rank's process when an answer begins: a walk over its frames and over all that its collector knows.

    found = walked("03_benchmarking", ["time-once-values"])     # [] if nothing of what it expects is there

The official solution is judged with a few statements more. When it is called, they print a fingerprint of each tensor,
list and number that is alive in the rank, but for those among the arguments or in the notebook. In the judge's process,
these are compared with the fingerprints of what each rank must return and of what the other ranks were given.

    nice python -m tests.walk [01 02 ...]       walks lessons, all by default: what it found, and how long it took
"""

from __future__ import annotations

import inspect
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

from grader.authoring.lesson import find_lessons
from grader.judging.judge import Judging
from grader.judging.remote_runner import RemoteRunner
from grader.judging.verdict import PASSED
from tests.graded import judged, lesson
from utils.checks import compare
from utils.checks.equality import equal_values
from utils.checks.oracles import Case
from utils.checks.runner import RunRequest
from utils.report.run import Run

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
    import functools, gc, itertools, json, sys
    calls, of_notebook = [], prints_of(dict(function.__globals__))
    is_real = not sys.modules["grader.inside.rank"].current_world.virtual  # in virtual time, a look takes some
    @functools.wraps(function)
    def call(*args, **kwargs):
        tracer = sys.gettrace()
        sys.settrace(None)  # a driver may count lines
        given = prints_of([args, kwargs]) if not calls or is_real and len(calls) < 50 else set()
        if not calls:
            frame, values = sys._getframe(1), []
            while frame:
                values.append(dict(frame.f_locals))
                frame = frame.f_back
            found, seen = set(), {id(args), id(kwargs)}
            for value in itertools.chain(values, gc.get_objects()):  # a list of them all would hold itself, for good
                found |= prints_of(value, seen)
            del value, values
            print("\\nWALKED" + json.dumps([sorted(given), sorted(found - given - of_notebook)]))
        calls.append(1)
        sys.settrace(tracer)
        result = function(*args, **kwargs)
        sys.settrace(None)
        passed_on = given & prints_of(result) if given and is_real else set()
        if passed_on:
            print("\\nPASSED" + json.dumps(sorted(passed_on)))
        sys.settrace(tracer)
        return result
    return call
"""

namespace: dict = {}
exec("import torch\nfrom functools import partial as functools_partial\n" + WALK, namespace)
prints_of = namespace["prints_of"]


def walked(name: str, checks: Iterable[str] | None = None) -> list[str]:
    """What ranks find beside their arguments, in words, in some of a lesson's checks or in all. All must pass."""
    found: dict[str, None] = {}
    expected: list[Any] = []  # by the judgements of a check besides its Case
    walks: list[tuple[Case | None, RunRequest, Run]] = []
    slice_for, run_case, world, judge = Judging.slice_for, Case.run, RemoteRunner.world, RemoteRunner.judge

    def with_walk(self, cell):
        code = slice_for(self, cell)
        function = code["name"]

        def piece(source, *binds):
            return {"label": "walk", "line": 1, "source": source, "binds": [*binds]}

        watch = piece(f"{function} = watched({function})", function)
        return {**code, "pieces": [piece("import torch"), *code["pieces"], piece(WALK), piece(WATCH), watch]}

    def noting_case(self, run, judges):
        run.case = self
        return run_case(self, run, judges)

    def noting_expected(got, right, rtol=0, strict=False):
        expected.extend([right] if strict else [])  # so `expect` asks
        return equal_values(got, right, rtol, strict)

    def noting_walk(self, request):
        run = world(self, request)
        walks.append((getattr(self, "case", None), request, run))
        return run

    def compared(self, part, judges):
        walks.clear()
        expected.clear()
        said = judge(self, part, judges)
        for case, request, run in walks:
            for rank in range(request.world_size):
                for one in looked_up(case, expected, request, run, rank):
                    found[f"{self.function.__name__}, {judges}: {one}"] = None
        return said

    with (
        patch.object(Judging, "slice_for", with_walk),
        patch.object(Case, "run", noting_case),
        patch.object(compare, "equal_values", noting_expected),
        patch.object(RemoteRunner, "world", noting_walk),
        patch.object(RemoteRunner, "judge", compared),
    ):
        verdicts = judged(name, checks=checks, seconds=math.inf).verdicts
    assert all(one.kind == PASSED for one in verdicts), [one for one in verdicts if one.kind != PASSED]
    return list(found)


def gradients_in(request, rank: int) -> list[Any]:
    """What a driver starts its backward pass from: autograd hands it to the answer's own."""
    driver = request.function.args and request.function.func if isinstance(request.function, partial) else None
    names = [*inspect.signature(driver).parameters][1:] if driver else []
    inputs = zip(names, request.inputs_of(rank), strict=False)
    return [value for name, value in inputs if name in ("grad", "gradient")]


def looked_up(case: Case | None, expected: list[Any], request: RunRequest, run: Run, rank: int) -> Iterator[str]:
    """What of one rank's walk is expected of some rank, or was given to another one.

    Neither is what the notebook itself defines, what the solution passes on from the arguments of the same call, nor
    what a later call is handed under the same name.
    """
    lines = run.output[rank].splitlines()
    walks = [json.loads(line.removeprefix("WALKED")) for line in lines if line.startswith("WALKED")]
    if not walks:
        return
    given, there = map(set, walks[0])
    passed_on = {one for line in lines if line.startswith("PASSED") for one in json.loads(line.removeprefix("PASSED"))}
    own = prints_of([request.inputs_of(rank), dict(request.for_all)]) | given
    there -= prints_of(gradients_in(request, rank)) | passed_on
    rights = [("", expected)]
    if case is not None and case.right is not None:
        rights += [(part, right) for number in range(case.world_size) for part, right, _ in case.parts(number)]
    for part, right in rights:
        handed = [one[part] for one in request.inputs_of(rank) if isinstance(one, dict) and part in one]
        yield from (f"expected {part}: {one}" for one in (prints_of(right) & there) - prints_of(handed))
    for other in set(range(request.world_size)) - {rank}:
        yield from (f"input of another rank: {one}" for one in (prints_of(request.inputs_of(other)) - own) & there)


def main(numbers: list[str]) -> None:
    for path in find_lessons(numbers):
        began, name = time.monotonic(), path.parent.name
        found = walked(name)
        count = len({cell.check.exercise for cell in lesson(name).cells if cell.check})
        print(f"{name}: {count} exercises, {len(found)} found, {time.monotonic() - began:.0f} s", *found, sep="\n    ")


if __name__ == "__main__":
    main(sys.argv[1:])
