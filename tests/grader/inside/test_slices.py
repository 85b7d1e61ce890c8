"""Finding the statements of a notebook that an answer needs, and loading its function without executing the others."""

import builtins
import functools
import inspect
import json
import linecache
import subprocess
import sys
import textwrap
import time
import traceback

import pytest

from grader.inside import slices
from grader.inside.slices import LoadError, load, read
from grader.inside.statements import cell_statements
from tests.all_lessons import LESSONS, also_right, mutants_of
from tests.sample_class import NOISE, as_student, call


@pytest.fixture(autouse=True)
def no_trace():
    """What a test loads is gone before the next one."""
    lines = dict(linecache.cache)
    yield
    linecache.cache.clear()
    linecache.cache.update(lines)
    sys.modules.pop("answer", None)


def read_one(*cells, name="f", before=None):
    [answer] = read([textwrap.dedent(text).strip("\n") for text in cells], [(name, before or len(cells))])
    return json.loads(json.dumps(answer))


def loaded(*cells, name="f", before=None):
    """The function f of a notebook of these cells."""
    return load(read_one(*cells, name=name, before=before), "answer")


def problem(*cells, **where):
    with pytest.raises(LoadError) as error:
        loaded(*cells, **where)
    return str(error.value)


def sources(answer):
    return [piece["source"] for piece in answer["pieces"]]


# ---- the lessons


def notebook(lesson, **answers):
    """The cells of a lesson, with its solutions or these answers, and the functions that its checks need."""
    cells, wanted = [], []
    for one in lesson.cells:
        if one.check:
            wanted.append((lesson.exercises[one.check.exercise].function, len(cells)))
        elif one.kind == "code":
            cells.append(as_student(answers.get(one.exercise, one.source) if one.exercise else one.source))
    return cells, wanted


@pytest.mark.parametrize("lesson", LESSONS.values(), ids=lambda lesson: lesson.name)
def test_every_solution_loads_with_few_statements(lesson):
    start = time.process_time()
    answers = read(*notebook(lesson))
    assert time.process_time() - start < 3  # measured alone: 0.06 s
    for answer in answers:
        function = load(answer, "answer")
        assert answer["problem"] == "" and answer["parameters"] == list(inspect.signature(function).parameters)
        assert f"cell of {answer['name'].replace('_', '-')}" in {piece["label"] for piece in answer["pieces"]}
        pieces = [one for source in sources(answer) for one in cell_statements(source)[0]]
        assert len(pieces) <= 16, sources(answer)
        assert not any(source.startswith(("print(", "check(", "figures.", "run =")) for source in sources(answer))
        known = set(dir(builtins)).union(*(one.binds for one in pieces))
        assert set().union(*(one.reads for one in pieces)) <= known


@pytest.mark.thorough
@pytest.mark.parametrize("lesson", LESSONS.values(), ids=lambda lesson: lesson.name)
def test_every_wrong_and_right_answer_loads(lesson, monkeypatch):
    monkeypatch.setattr(slices, "cell_statements", functools.cache(slices.cell_statements))  # most cells stay the same
    for variant in [*also_right(lesson.name), *mutants_of(lesson.name)]:
        source = variant.apply(lesson.exercises[variant.exercise].source)
        name = lesson.exercises[variant.exercise].function
        answer = next(one for one in read(*notebook(lesson, **{variant.exercise: source})) if one["name"] == name)
        if answer["parameters"] is not None:
            load(answer, "answer")
        else:
            assert answer["problem"], variant


def test_a_noisy_answer_keeps_its_name_and_parameters():
    lesson = LESSONS["01_collectives"]
    exercise = lesson.exercises["scatter-by-hand"]
    cells, wanted = notebook(lesson, **{exercise.name: f"{exercise.source}\n{NOISE}\n{call('noisily', exercise.name)}"})
    answer = next(one for one in read(cells, wanted) if one["name"] == exercise.function)
    assert list(inspect.signature(load(answer, "answer")).parameters) == answer["parameters"]
    assert not any(source.startswith(("subprocess.run", "print")) for source in sources(answer))


# ---- what a function needs

WAYS = {
    "def": "def f(): return 1",
    "unpacked": "g, (f, *rest) = 0, (lambda: 1, 2, 3)",
    "annotated": "from typing import Callable\nf: Callable = lambda: 1",
    "walrus": "(f := lambda: 1)",
    "import": "import operator as o, math\nf = lambda: o.pos(1)",
    "import of a submodule": "import os\nimport os.path\nf = lambda: len(os.path.join('', 'a'))",
    "star import": "from operator import *\nf = lambda: pos(1)",
    "future import": "from __future__ import annotations\ndef f(x: NotThere = 1): return x",
    "if": "if True:\n    def f(): return 1\nelse:\n    def f(): return 2",
    "try": "try:\n    import not_there\nexcept ImportError:\n    N = 1\ndef f(): return N",
    "for": "for f in [lambda: 2, lambda: 1]:\n    pass",
    "with": "import contextlib\nwith contextlib.nullcontext(lambda: 1) as f:\n    pass",
    "match": "match {'a': 1, 'b': [0, lambda: 1]}:\n    case {'b': [0, f], **others}:\n        pass",
    "global below a local": "N = 1\ndef f():\n    N = 2\n    def g():\n        global N; return N\n    return g()",
    "augmented": "N = 0\nN += 1\ndef f(): return N",
    "changed in place": "L = []\nL.append(1)\ndef f(): return L[0]",
    "changed by subscript": "T = {}\nT['a'] = 1\ndef f(): return T['a']",
    "a method added later": "class C: pass\ndef m(self): return 1\nC.m = m\ndef f(): return C().m()",
    "deleted from": "T = {1: 2}\ndel T[1]\ndef f(): return 1 + len(T)",
    "changed in a loop": "L = []\nfor i in range(1):\n    L.append(i + 1)\ndef f(): return L[0]",
    "registered": "T = {}\ndef register(name):\n    def put(g):\n        T[name] = g\n    return put\n"
    "@register('a')\ndef one(): return 1\ndef f(): return T['a']()",
    "registered by a method": "class R(dict):\n    def add(self, g): self[g.__name__] = g\nT = R()\n@T.add\n"
    "def one(): return 1\ndef f(): return T['one']()",
    "decorated": "import functools\ndef plus(g):\n    @functools.wraps(g)\n    def h(): return g() + 1\n    return h\n"
    "@plus\ndef f(): return 0",
    "wrapped later": "def f(): return 0\ndef wrap(g): return lambda: g() + 1\nf = wrap(f)",
    "a default keeps its first value": "N = 1\ndef f(n=N): return n\nN = 5\ndef g(): return N",
    "helper below": "def f(): return g()\ndef g(): return N\nN = 1",
    "hierarchy": "class A:\n    n = 1\nclass B(A): pass\ndef f(): return B().n",
    "a class reads a global of its own name": "n = 1\nclass A:\n    n = n\ndef f(): return A.n",
    "private names": "class C:\n    __n = 1\n    def __call__(self): return self.__n\nf = C()",
    "comprehension": "L = [1]\nM = [[a * b for b in L] for a in L if a]\ndef f(): return M[0][0]",
    "a counter kept in a helper": "_calls = 0\ndef f():\n    global _calls\n    _calls += 1\n    return _calls",
    "top-level await": "import asyncio\nasync def one(): return 1\nN = await one()\ndef f(): return N",
    "semicolons and umlauts": "ä = 'ö'; b = 1; f = lambda: b; print(ä)",
    "strings over lines": "N = '''\na\n''' ; M = 1\ndef f(): return M if N.strip() == 'a' else 2",
    "lines of IPython": "%matplotlib inline\n!echo a \\\n  b\nN = 1\nlen?\n%time 1 + 1\ndef f(): return N",
    "captured and timed": "\n%%capture out\n%%time\n\ndef f(): return 1",
    "prompts": ">>> def f():\n...     return 1",
    "indented": "    def f():\n        return 1",
    "a BOM and carriage returns": "\ufeffdef f():\r\n    return 1\r\n",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_name_can_get_its_value_in_many_ways(way):
    for cells in ([WAYS[way]], ["print('a demo')\nraise ValueError", WAYS[way], "_demo = 1 / 0"]):
        [answer] = read(cells, [("f", len(cells))])
        assert load(json.loads(json.dumps(answer)), "answer")() == 1


def test_demos_are_not_executed():
    answer = read_one(
        "import time, torch, not_there\nimport matplotlib.pyplot as plt\nfrom utils import figures, spawn\nSIZE = 4",
        """
        def helper(x):
            torch.add(1, 2)
            return x * SIZE
        torch.manual_seed(1)
        plt.plot([SIZE])
        print(helper(3), SIZE), helper(SIZE)
        run = spawn(helper, SIZE)
        while helper(1):
            pass
        """,
        "x = helper(2)\nassert x == 3\nrun.timeline()\nfor x in iter(int, 1): helper(x)",
        "def f(x, *more):\n    y = [x for run in more]\n    with x as time:\n        return helper(y)\nf(3).item()",
        "%%bash\nrm -rf /",
        "class Demo:\n    x = f(2)\nimport sys\nsys.exit(1)",
    )
    assert [source.split("\n")[0] for source in sources(answer)] == [
        "import torch",
        "SIZE = 4",
        "def helper(x):",
        "def f(x, *more):",
    ]


def test_each_check_sees_the_notebook_as_it_was_there():
    cells = [
        "N = 1\ndef f(): return N, g()\ndef g(): return 1",
        "N = 2\nN = 1 / 0",
        "def f(): return -N",
        "N = g = None",
    ]
    first, second = read(cells, [("f", 1), ("f", 3)])
    assert (load(first, "answer")(), load(second, "answer")()) == ((1, 1), -2)


@pytest.mark.parametrize(
    "text, parameters",
    [
        ("def f(x, /, rank, *xs, world_size=2, **more): pass", ["x", "rank", "xs", "world_size", "more"]),
        ("async def f(x): pass", ["x"]),
        ("f = lambda x, *, y=lambda z: z: x", ["x", "y"]),
        ("def g(a, b, c): pass\nfrom functools import partial\nf = partial(g, 1)", ["b", "c"]),
        ("def g(a, b): pass\nf = g", ["a", "b"]),
        ("class f:\n    def __init__(self, x): pass", ["x"]),
        ("def noisily(g): return g\ndef f(x, rank): pass\nf = noisily(f)", ["x", "rank"]),
        ("import functools\n@functools.cache\ndef f(x, rank): pass", ["x", "rank"]),
        ("if True:\n    def f(x): pass", ["x"]),
        ("f = None\nf = f or 3", []),
    ],
)
def test_parameters_are_read_without_running_anything(text, parameters):
    assert read_one(text)["parameters"] == parameters


# ---- cells that are not Python


def test_a_broken_cell_loses_only_what_is_broken():
    broken = """
        import math
        def g():
            return math.floor(1.5)

        def broken(:
            return 2
        N = (1 +

        if N
            pass
        M = 3
        @property
        def h(self):
            return 1
        """
    assert loaded(broken, "def f(): return g() + M\n\nf(3")() == 4


def test_a_syntax_error_in_the_cell_of_the_exercise():
    said = problem("def f(x):\n    for i in range(3)\n        pass")
    assert said == "cell of f, line 2: SyntaxError: expected ':'\n    for i in range(3)\n                     ^"


@pytest.mark.parametrize("body", ["return " + "(" * 5000 + ")" * 5000, "return " + "+".join("1" * 50_000), "pass\0"])
def test_a_cell_that_no_parser_can_read(body):
    hard, easy = read([f"def f(): {body}", "def g(): return 1"], [("f", 1), ("g", 2)])
    assert load(easy, "answer")() == 1
    assert hard["parameters"] == [] or hard["problem"].startswith("cell of f")  # some versions of Python read it


# ---- messages about what can't be loaded


def test_no_such_function():
    assert problem("x = 1") == "No cell above its check defines `f`: was its cell deleted, or turned into text?"
    assert "defines `f`: was its cell deleted" in problem("%%bash\ndef f(): pass")
    said = problem("def ring_allreduce(): pass", name="ring_all_reduce")
    assert "cell 1, line 1 defines `ring_allreduce`: was it renamed?" in said
    said = problem("x = 1", "\ndef f(): pass", before=1)
    assert said == "`f` is defined only below its check, in cell 2, line 1: move it above the check."
    assert "cell of f, line 2: `f` is a value of type int here" in problem("def f(): pass\nf = 3")


def test_a_value_that_ranks_would_have_to_compute():
    cells = [
        "from functools import partial\nfrom utils import spawn\nspawn = partial(spawn, backend='gloo')",
        "def g(rank, world_size):\n    return rank\n\nx = spawn(g, 4).results[0]",
        "def f(use):\n    return x if use else 1",
    ]
    function = loaded(*cells)
    assert function(False) == 1
    with pytest.raises(NameError, match="cell 2, line 4:  x = spawn") as error:
        function(True)
    assert "spawn was called: grading loads your answer on a rank" in str(error.value)
    said = problem(*cells, "import utils\nh = utils.simulate(g, 4).results[0]", name="h")
    assert said.startswith("cell of h, line 2:  h = utils.simulate(g, 4)")


def test_worlds_are_there_again_when_the_function_runs():
    import utils

    plain, bound = loaded("import utils\nfrom utils import spawn\ndef f(): return utils.spawn, spawn")()
    assert plain is utils.spawn and plain.__module__ == "utils.worlds.real.launch"
    with pytest.raises(TypeError, match="world_size"):
        bound(print)


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "import L",
            "raised ModuleNotFoundError: No module named 'L'\n  That module is not installed where grading runs",
        ),
        ("L = len(later)\nlater = 1", "Restart the kernel and run all cells"),
        ("L = open('data.txt').read()", "Grading does not have the files next to the notebook"),
        ("L = 1 / 0", "cell 1, line 1:  L = 1 / 0\n  raised ZeroDivisionError: division by zero"),
        ("import sys\nL = sys.exit(3)", "It exits Python"),
        ("def g():\n    raise KeyError('k')\nL = g()", "cell 1, line 2:  raise KeyError('k')\n  raised KeyError: 'k'"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\ndef g(): raise E\nL = g()", "raised E"),
    ],
)
def test_a_statement_that_raises_is_reported_only_if_the_answer_needs_it(text, words):
    function = loaded(text, "def f(use): return L if use else 1")
    assert function(False) == 1
    with pytest.raises(NameError) as error:
        function(True)
    assert words in str(error.value)
    assert words in problem(text, "def decorate(h): return h", "f = decorate(L)")


# ---- what is loaded behaves as in a notebook


def test_tracebacks_and_getsource_show_the_students_lines():
    function = loaded("x = 1", "\n# why\nimport math\n\ndef f(x):\n    y = 1\n    return math.sqrt(x - y)  # here")
    assert inspect.getsource(function) == "def f(x):\n    y = 1\n    return math.sqrt(x - y)\n"
    with pytest.raises(ValueError) as error:
        function(0)
    frame = traceback.extract_tb(error.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno, frame.line) == ("cell of f", 6, "return math.sqrt(x - y)")


def test_it_is_loaded_afresh_as_the_main_module():
    program = """if True:
        import sys, typing, cloudpickle, pickle
        from grader.inside.slices import load, read
        cells = ["from dataclasses import dataclass\\n@dataclass\\nclass Pair:\\n    a: int", "L = []",
                 "def make():\\n    L.append(1)\\n    return Pair(len(L))"]
        [code] = read(cells, [("make", 3)])
        assert (load(code)().a, load(code)().a) == (1, 1)
        make = load(code)
        assert make.__module__ == "__main__" and sys.modules["__main__"].make is make
        assert pickle.loads(cloudpickle.dumps(make))().a == 1 and pickle.loads(pickle.dumps(make())).a == 1
    """
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_very_many_cells():
    cells = [f"N{number} = {number}" for number in range(20_000)]
    answer = read_one(*cells, "def f(): return N19999")
    assert len(answer["pieces"]) == 2 and load(answer, "answer")() == 19_999
