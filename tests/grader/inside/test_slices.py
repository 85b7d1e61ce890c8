"""Finding the statements of a notebook that an answer needs, and loading its function without executing the others."""

import functools
import inspect
import json
import linecache
import pickle
import subprocess
import sys
import textwrap
import time
import traceback
import typing

import cloudpickle
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grader.inside import slices
from grader.inside.slices import LoadError, load, read
from tests.all_lessons import LESSONS, also_right, mutants_of
from tests.sample_class import NOISE, as_student, call


@pytest.fixture(autouse=True)
def no_trace():
    """What a test loads is gone before the next one."""
    modules, lines = dict(sys.modules), dict(linecache.cache)
    yield
    linecache.cache.clear()
    linecache.cache.update(lines)
    for name in set(sys.modules) - set(modules):
        if name == "answer":
            del sys.modules[name]


def cell(text):
    return textwrap.dedent(text).strip("\n")


def read_one(*cells, name="f", before=None):
    cells = [cell(text) for text in cells]
    [answer] = read(cells, [(name, len(cells) if before is None else before)])
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
    answers = read(*notebook(lesson))
    for answer in answers:
        function = load(answer, "answer")
        assert answer["problem"] == "" and not answer["missing"]
        assert answer["parameters"] == list(inspect.signature(function).parameters), answer["name"]
        assert len(answer["pieces"]) <= 16, sources(answer)
        assert f"cell of {answer['name'].replace('_', '-')}" in {piece["label"] for piece in answer["pieces"]}
        for piece in answer["pieces"]:
            assert not {"spawn(", "simulate(", "check("} & {piece["source"][:6], piece["source"][:9]}


@pytest.mark.thorough
@pytest.mark.parametrize("lesson", LESSONS.values(), ids=lambda lesson: lesson.name)
def test_every_wrong_and_right_answer_loads(lesson, monkeypatch):
    monkeypatch.setattr(slices, "cell_statements", functools.cache(slices.cell_statements))  # most cells stay the same
    for variant in [*also_right(lesson.name), *mutants_of(lesson.name)]:
        source = variant.apply(lesson.exercises[variant.exercise].source)
        answers = read(*notebook(lesson, **{variant.exercise: source}))
        name = lesson.exercises[variant.exercise].function
        answer = next(one for one in answers if one["name"] == name)
        if answer["parameters"] is not None:
            load(answer, "answer")
        else:
            assert answer["problem"], variant


def test_a_noisy_answer_keeps_its_name_and_parameters():
    lesson = LESSONS["01_collectives"]
    exercise = lesson.exercises["scatter-by-hand"]
    cells, wanted = notebook(lesson, **{exercise.name: f"{exercise.source}\n{NOISE}\n{call('noisily', exercise.name)}"})
    answer = next(one for one in read(cells, wanted) if one["name"] == exercise.function)
    function = load(answer, "answer")
    assert list(inspect.signature(function).parameters) == answer["parameters"]
    assert not any(source.startswith(("subprocess.run", "print")) for source in sources(answer))


def test_reading_and_loading_take_milliseconds():
    """Measured alone: 40 ms to read a lesson, 0.3 ms to load an answer. This only tests the order of magnitude."""
    cells, wanted = notebook(LESSONS["01_collectives"])
    start = time.process_time()
    answers = read(cells, wanted)
    between = time.process_time()
    for answer in answers:
        load(answer, "answer")
    assert between - start < 1
    assert (time.process_time() - between) / len(answers) < 0.1


# ---- ways to bind a name

WAYS = {
    "def": "def f(): return 1",
    "async def": "async def later(): return 1\ndef f():\n    import asyncio\n    return asyncio.run(later())",
    "lambda": "f = lambda: 1",
    "partial": "from functools import partial\ndef g(a): return a\nf = partial(g, 1)",
    "an object that can be called": "class F:\n    def __call__(self): return 1\nf = F()",
    "a class": "class f(int):\n    def __new__(cls): return 1",
    "two targets": "f = g = lambda: 1",
    "unpacked": "g, (f, *rest) = 0, (lambda: 1, 2, 3)",
    "annotated": "from typing import Callable\nf: Callable = lambda: 1",
    "walrus": "(f := lambda: 1)",
    "walrus in a comprehension": "[f := (lambda: x) for x in (0, 1)]",
    "import": "from operator import pos\nf = lambda: pos(1)",
    "import as": "import operator as o, math\nf = lambda: o.pos(1)",
    "import of a submodule": "import os\nimport os.path\nf = lambda: len(os.path.join('', 'a'))",
    "star import": "from operator import *\nf = lambda: pos(1)",
    "relative to nothing": "from __future__ import annotations\ndef f(x: NotThere = 1): return x",
    "if": "if True:\n    def f(): return 1\nelse:\n    def f(): return 2",
    "if main": "if __name__ == 'answer':\n    def f(): return 1",
    "try": cell(
        """
        try:
            import not_there
        except ImportError:
            not_there = None
        def f(): return 1 if not_there is None else 2
        """
    ),
    "for": "for f in [lambda: 2, lambda: 1]:\n    pass",
    "while": "while True:\n    f = lambda: 1\n    break",
    "with": "import contextlib\nwith contextlib.nullcontext(lambda: 1) as f:\n    pass",
    "except as": "def f():\n    try:\n        1 / 0\n    except ZeroDivisionError as e:\n        return 1",
    "match": "match [lambda: 1, 2]:\n    case [f, *others]:\n        pass",
    "match a mapping": cell(
        """
        match {'a': 1, 'b': 2}:
            case {'b': _, **others}:
                pass
        f = lambda: others['a']
        """
    ),
    "global in a function that is called": "def make():\n    global f\n    f = lambda: 1\nmake()",
    "global in a function that one calls": cell(
        """
        def make():
            global N
            N = 1
        def go(): make()
        N = 2
        go()
        def f(): return N
        """
    ),
    "global below a local of the same name": cell(
        """
        N = 1
        def f():
            N = 2
            def inner():
                global N
                return N
            return inner()
        """
    ),
    "augmented": "N = 0\nN += 1\ndef f(): return N",
    "changed in place": "L = []\nL.append(1)\ndef f(): return L[0]",
    "changed by subscript": "T = {}\nT['a'] = 1\ndef f(): return T['a']",
    "changed by attribute": "class C: pass\nC.a = 1\ndef f(): return C.a",
    "a method added later": "class C: pass\ndef m(self): return 1\nC.m = m\ndef f(): return C().m()",
    "setattr": "class C: pass\nsetattr(C, 'a', 1)\ndef f(): return C.a",
    "deleted from": "T = {1: 2}\ndel T[1]\ndef f(): return 1 + len(T)",
    "deleted, then bound again": "N = 2\ndel N\nN = 1\ndef f(): return N",
    "changed in a loop": "L = []\nfor i in range(1):\n    L.append(i + 1)\ndef f(): return L[0]",
    "changed under another name": "L = {'a': []}\nM = L['a']\nM += [1]\ndef f(): return L['a'][0]",
    "changed part by part": cell(
        """
        class P:
            n = 2
        PS = [P(), P()]
        for p in PS:
            p.n = 1
        def f(): return PS[1].n
        """
    ),
    "changed by torch": "import torch\nx = torch.zeros(1)\nx.add_(1)\ndef f(): return x.item()",
    "changed by torch.nn.init": cell(
        """
        import torch
        from torch import nn
        x = torch.zeros(1)
        nn.init.ones_(x)
        def f(): return x.item()
        """
    ),
    "changed by a helper": "def fill(t): t['a'] = 1\nT = {}\nfill(T)\ndef f(): return T['a']",
    "changed by a helper, part by part": cell(
        """
        def fill(ts):
            for t in ts: t['a'] = 1
        T = {}
        fill([T, T])
        fill(TS := [T])
        def f(): return TS[0]['a']
        """
    ),
    "changed by the library": cell(
        """
        import random
        L = [1]
        random.shuffle(L)
        L.insert(0, 2)
        L.sort()
        def f(): return L[0]
        """
    ),
    "registered": cell(
        """
        T = {}
        def register(g):
            T[g.__name__] = g
            return g
        @register
        def one(): return 1
        def f(): return T['one']()
        """
    ),
    "registered by name": cell(
        """
        T = {}
        def register(name):
            def put(g):
                T[name] = g
            return put
        @register('a')
        def one(): return 1
        def f(): return T['a']()
        """
    ),
    "registered by a method": cell(
        """
        class R(dict):
            def add(self, g): self[g.__name__] = g
        T = R()
        @T.add
        def one(): return 1
        def f(): return T['one']()
        """
    ),
    "registered by inheriting": cell(
        """
        T = {}
        class B:
            def __init_subclass__(cls): T[cls.__name__] = 1
        class D(B): pass
        def f(): return T['D']
        """
    ),
    "decorated": cell(
        """
        import functools
        def plus(n):
            def wrap(g):
                @functools.wraps(g)
                def h(*a): return g(*a) + n
                return h
            return wrap
        @plus(1)
        def f(): return 0
        """
    ),
    "cached": "import functools\n@functools.cache\ndef f(): return 1",
    "without gradients": "import torch\n@torch.no_grad()\ndef f(): return 1 - torch.is_grad_enabled()",
    "wrapped later": "def f(): return 0\ndef wrap(g): return lambda: g() + 1\nf = wrap(f)",
    "default argument": "N = 1\ndef f(n=N): return n\nN = 2",
    "a default keeps its first value": "N = 1\ndef f(n=N): return n\nN = 5\ndef g(): return N",
    "closure": "def make(n):\n    def f(): return n\n    return f\nf = make(1)",
    "recursion": "def f(n=3): return 1 if n == 0 else f(n - 1)",
    "mutual": "def f(n=3): return 1 if n == 0 else g(n)\ndef g(n): return f(n - 1)",
    "helper below": "def f(): return g()\ndef g(): return N\nN = 1",
    "hierarchy": cell(
        """
        class A:
            n = 1
        class B(A): pass
        class C(B):
            def get(self): return super().n if False else self.n
        def f(): return C().get()
        """
    ),
    "metaclass": "class M(type):\n    n = 1\nclass A(metaclass=M): pass\ndef f(): return A.n",
    "dataclass": cell(
        """
        from dataclasses import dataclass, field
        @dataclass
        class D:
            n: int = 1
            l: 'list[E]' = field(default_factory=list)
        def f(): return D().n
        """
    ),
    "named tuple": "from typing import NamedTuple\nclass T(NamedTuple):\n    n: int = 1\ndef f(): return T().n",
    "enum": "from enum import Enum\nclass E(Enum):\n    A = 1\ndef f(): return E.A.value",
    "type alias": "import torch\nTs = list[torch.Tensor]\ndef f(x: Ts = None) -> Ts: return 1",
    "class reads a global of its own name": "n = 1\nclass A:\n    n = n\ndef f(): return A.n",
    "comprehension": "L = [1]\nM = [[a * b for b in L] for a in L if a]\ndef f(): return M[0][0]",
    "generator": "def ones():\n    yield from [1]\nit = ones()\ndef f(): return next(it)",
    "exec": "exec('def g(): return 1')\ndef f(): return g()",
    "globals": "globals()['N'] = 1\ndef f(): return N",
    "globals under computed names": "for n in 'ab':\n    globals()['N_' + n] = 1\ndef f(): return N_b",
    "a mangled name": "class A:\n    __n = 1\n    def get(self): return self.__n\ndef f(): return A().get()",
    "top-level await": "import asyncio\nasync def one(): return 1\nN = await one()\ndef f(): return N",
    "semicolons": "a = 1; b = 2; f = lambda: a; print(b)",
    "strings over lines": "N = '''\na\n''' ; M = 1\ndef f(): return M if N.strip() == 'a' else 2",
    "umlauts before it": "ä = 'ö'; N = 1\ndef f(): return N",
    "an index made in a cell": cell(
        """
        from itertools import count
        c = count(1)
        N = next(c)
        M = next(c)
        def f(): return M - N
        """
    ),
    "a counter kept in a helper": cell(
        """
        _calls = 0
        def g():
            global _calls
            _calls += 1
            return _calls
        def f(): return g()
        """
    ),
    "lines of IPython": cell(
        """
        %matplotlib inline
        !echo hi
        N = 1
        len?
        ?len
        %time 1 + 1
        def f():
            %matplotlib inline
            return N
        """
    ),
    "a long line of IPython": "!echo a \\\n  b\nN = 1\ndef f(): return N",
    "timed": "%%time\ndef f(): return 1",
    "timed, after an empty line": "\n\n%%time\n\ndef f(): return 1",
    "captured and timed": "%%capture out\n%%time\ndef f(): return 1",
    "prompts": ">>> def f():\n...     return 1",
    "indented": "    def f():\n        return 1",
    "carriage returns": "def f():\r\n    return 1\r\n",
    "a BOM": "\ufeffdef f(): return 1",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_name_can_be_bound_in_many_ways(way):
    for cells in ([WAYS[way]], ["print('a demo')\nraise ValueError", WAYS[way], "_demo = 1 / 0"]):
        [answer] = read(cells, [("f", len(cells))])
        assert load(json.loads(json.dumps(answer)), "answer")() == 1


@pytest.mark.parametrize(
    "text, parameters",
    [
        ("def f(x, /, rank, *xs, world_size=2, **more): pass", ["x", "rank", "xs", "world_size", "more"]),
        ("async def f(x): pass", ["x"]),
        ("f = lambda x, *, y: x", ["x", "y"]),
        ("def g(a, b, c): pass\nfrom functools import partial\nf = partial(g, 1)", ["b", "c"]),
        ("def g(a, b): pass\nf = g", ["a", "b"]),
        ("class F:\n    def __call__(self, x, rank): pass\nf = F()", ["x", "rank"]),
        ("class f:\n    def __init__(self, x): pass", ["x"]),
        ("def noisily(g): return g\ndef f(x, rank): pass\nf = noisily(f)", ["x", "rank"]),
        ("import functools\n@functools.cache\ndef f(x, rank): pass", ["x", "rank"]),
        ("if True:\n    def f(x): pass", ["x"]),
        ("f = None\nf = f or 3", []),
    ],
)
def test_parameters_are_read_without_running_anything(text, parameters):
    assert read_one(text)["parameters"] == parameters


# ---- what is not executed


def test_demos_cost_nothing():
    answer = read_one(
        """
        import time, torch
        import matplotlib.pyplot as plt
        from utils import figures, simulate, spawn
        SIZE = 4
        """,
        """
        def helper(x):
            return x * SIZE
        time.sleep(1000)
        plt.plot([1, 2])
        figures.collective("gather", world_size=SIZE)
        print(helper(3)), torch.manual_seed(1)
        run = spawn(helper, SIZE)
        1 / 0
        """,
        "x = helper(2)\nhelper(x)\nassert x == 3\nrun.timeline()",
        "def f(x):\n    y = helper(x)\n    return y\nf(3)",
        "%%bash\nrm -rf /",
        "class Demo:\n    x = f(2)\nimport sys\nsys.exit(1)",
    )
    assert sources(answer) == [
        "SIZE = 4",
        "def helper(x):\n    return x * SIZE",
        "def f(x):\n    y = helper(x)\n    return y",
    ]
    assert load(answer, "answer")(3) == 12


def test_local_names_need_nothing_of_the_notebook():
    answer = read_one(
        "a = b = c = d = e = g = h = i = j = k = m = n = o = p = q = r = s = slow()",
        """
        def f(a, *b, c=1, **d):
            e = [g for g in b if (h := g)]
            for i in b:
                with open(i) as j:
                    pass
            try:
                import k
            except OSError as m:
                del m
            def n(o):
                nonlocal e
                return o, e, a
            match a:
                case [p, *q]:
                    r: int = 1
                case {"x": 1, **s}:
                    pass
            return lambda t: (t, a), n, {k: v for k, v in d.items()}, h, r
        """,
    )
    assert len(answer["pieces"]) == 1 and not answer["missing"]


def test_only_the_last_full_value_of_a_name_is_needed():
    answer = read_one("N = slow()", "N = 2\nL = [N]", "N = 3", "def f(): return N, L", "N = slow()", before=4)
    assert sources(answer) == ["N = 2", "L = [N]", "N = 3", "def f(): return N, L"]
    assert load(answer, "answer")() == (3, [2])


def test_cells_below_the_check_do_not_count():
    assert loaded("def g(): return 1", "def f(): return g()", "def g(): return 2\nf = None", before=2)() == 1


def test_a_statement_that_raises_leaves_the_earlier_value():
    answer = read_one("N = 1", "N = 1 / 0", "def g(): return N", "def f(): return g()")
    assert [len(answer["pieces"]), len(answer["rest"])] == [3, 4]
    assert load(answer, "answer")() == 1


def test_two_checks_see_the_notebook_as_it_was_at_each():
    cells = ["N = 1\ndef f(): return N", "N = 2", "def f(): return -N"]
    first, second = read(cells, [("f", 1), ("f", 3)])
    assert (load(first, "answer")(), load(second, "answer")()) == (1, -2)


def test_only_the_needed_names_of_an_import_are_imported():
    answer = read_one("from utils import figures, region\nimport math, not_there\ndef f(): return region, math.pi")
    assert sources(answer)[:2] == ["from utils import region", "import math"]


NAMES = ["a", "b", "c"]
LINES = st.one_of(
    st.builds("{} = [{}]".format, st.sampled_from(NAMES), st.integers(0, 9)),
    st.builds("{} = list({})".format, st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.builds("{} = {} + {}".format, *[st.sampled_from(NAMES)] * 3),
    st.builds("{} = {}".format, *[st.sampled_from(NAMES)] * 2),
    st.builds("{} += {}".format, *[st.sampled_from(NAMES)] * 2),
    st.builds("{}.append({}[0])".format, *[st.sampled_from(NAMES)] * 2),
    st.builds("{}[0] = {}".format, st.sampled_from(NAMES), st.integers(0, 9)),
    st.builds("{}, {} = {}, {}".format, *[st.sampled_from(NAMES)] * 4),
    st.builds("def h(): return {} + {}".format, *[st.sampled_from(NAMES)] * 2),
    st.builds("def h():\n    {}.append(7)\n    return {}[:]".format, *[st.sampled_from(NAMES)] * 2),
    st.builds("def h():\n    global {0}\n    {0} = {1} + [5]\n    return {0}".format, *[st.sampled_from(NAMES)] * 2),
    st.builds("def put(x):\n    x.append({}[0])".format, st.sampled_from(NAMES)),
    st.builds("put({})".format, st.sampled_from(NAMES)),
    st.builds("{} = h()".format, st.sampled_from(NAMES)),
    st.just("h()"),
    st.builds("for x in [{}, {}]:\n    x.append(8)".format, *[st.sampled_from(NAMES)] * 2),
    st.builds("if {0}[0] > 4:\n    {1} = [3]".format, *[st.sampled_from(NAMES)] * 2),
)
START = "a = [1]\nb = [2]\nc = [3]\ndef h(): return [4]\ndef put(x): x.append(6)"


@settings(max_examples=400, deadline=None)
@example(["b = a", "b.append(c[0])"], "a")
@example(["a = b", "b = [0]", "b += a"], "a")
@example(
    ["def h():\n    global a\n    a = b + [5]\n    return a", "def put(x):\n    x.append(a[0])", "h()", "put(b)"], "b"
)
@given(st.lists(LINES, max_size=8), st.sampled_from(NAMES))
def test_an_answer_computes_what_the_whole_notebook_would(lines, name):
    cells = [START, *lines, f"def f():\n    return {name}, h()"]
    whole = {}
    for source in cells:
        exec(source, whole)
    [answer] = read(cells, [("f", len(cells))])
    assert load(answer, "answer")() == whole["f"]()


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
    assert loaded(broken, "def f(): return g() + M")() == 4


def test_a_syntax_error_in_the_cell_of_the_exercise():
    said = problem("def f(x):\n    for i in range(3)\n        pass")
    assert said == "cell of f, line 2: SyntaxError: expected ':'\n    for i in range(3)\n                     ^"


def test_a_broken_demo_below_a_function_does_no_harm():
    assert loaded("def f(x):\n    return x\n\nf(3")(2) == 2


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return " + "(" * 5000 + ")" * 5000,
        "def f(): return " + "+".join("1" * 50_000),
        "def f(): return " + "-" * 100_000 + "1",
        "def f(): pass\0",
        "def f(): return '\ud800'",
        "def f(): pass\n" + "#" * 2_000_000,
        "x" + ".x" * 20_000 + "\ndef f(: pass",
    ],
    ids=["brackets", "a long sum", "minuses", "a zero byte", "half a character", "2 MB", "dots"],
)
def test_a_cell_that_no_parser_can_read(text):
    hard, easy = read([text, "def g(): return 1"], [("f", 1), ("g", 2)])
    assert load(easy, "answer")() == 1
    if hard["parameters"] is None:
        assert hard["problem"].startswith("cell of f")
    else:  # other versions of Python can
        load(hard, "answer")


def test_a_function_in_a_different_language():
    assert "No cell above its check defines `f`" in problem("%%bash\ndef f(): pass")
    assert "was it renamed" not in problem("%%writefile f.py\ndef f(): pass")


# ---- messages about what can't be loaded


def test_no_such_function():
    assert problem("x = 1") == "No cell above its check defines `f`: was its cell deleted, or turned into text?"
    said = problem("def ring_allreduce(): pass", name="ring_all_reduce")
    assert "cell 1, line 1 defines `ring_allreduce`: was it renamed?" in said
    said = problem("x = 1", "\ndef f(): pass", before=1)
    assert said == "`f` is defined only below its check, in cell 2, line 1: move it above the check."


def test_a_name_that_is_not_a_function():
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
    assert "cell of f, line 2" in "".join(traceback.format_exception(error.value)).replace('", line', ", line")
    said = problem(*cells, "import utils\nh = utils.simulate(g, 4).results[0]", name="h")
    assert said.startswith("cell of h, line 2:  h = utils.simulate(g, 4)")


def test_worlds_are_there_again_when_the_function_runs():
    import utils

    function = loaded("import utils\nfrom utils import spawn\ndef f(): return utils.spawn, spawn")
    plain, bound = function()
    assert plain is utils.spawn and plain.__module__ == "utils.worlds.real.launch"
    with pytest.raises(TypeError, match="world_size"):
        bound(print)


@pytest.mark.parametrize(
    "text, words",
    [
        ("import not_there", "raised ModuleNotFoundError: No module named 'not_there'"),
        ("import not_there", "That module is not installed where grading runs"),
        ("L = len(later)\nlater = 1", "Restart the kernel and run all cells"),
        ("L = open('data.txt').read()", "Grading does not have the files next to the notebook"),
        ("L = 1 / 0", "cell 1, line 1:  L = 1 / 0\n  raised ZeroDivisionError: division by zero"),
        ("import sys\nL = sys.exit(3)", "It exits Python"),
        ("def g():\n    raise KeyError('k')\nL = g()", "cell 1, line 2:  raise KeyError('k')\n  raised KeyError: 'k'"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\ndef g(): raise E\nL = g()", "raised E"),
    ],
)
def test_a_statement_that_raises_is_reported_only_if_the_answer_needs_it(text, words):
    name = "not_there" if "not_there" in text else "L"
    cells = [text, "def g(): return 1", f"def f(use):\n    if use:\n        return {name}\n    return g()"]
    function = loaded(*cells)
    assert function(False) == 1
    with pytest.raises(NameError) as error:
        function(True)
    assert words in str(error.value)
    assert words in problem(text, "def decorate(h): return h", f"f = decorate({name})")


def test_a_name_that_is_never_bound_raises_pythons_own_error():
    with pytest.raises(NameError, match=r"^name 'typo' is not defined$"):
        loaded("def f(): return typo")()


def test_definitions_are_tried_where_names_are_missing():
    answer = read_one(
        "exec('maker = lambda: 1')",
        "from utils import spawn\nslow = spawn(1 / 0)",
        "exec('hel' + 'per = maker()')",
        "def f(): return helper",
    )
    assert answer["rest"] and not any("slow" in piece["source"] for piece in answer["rest"])
    assert load(answer, "answer")() == 1


# ---- what is loaded behaves as in a notebook


def test_tracebacks_and_getsource_show_the_students_lines():
    function = loaded("x = 1", "\n# why\nimport math\n\ndef f(x):\n    y = 1\n    return math.sqrt(x - y)  # here")
    assert inspect.getsource(function) == "def f(x):\n    y = 1\n    return math.sqrt(x - y)\n"
    with pytest.raises(ValueError) as error:
        function(0)
    frame = traceback.extract_tb(error.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno, frame.line) == ("cell of f", 6, "return math.sqrt(x - y)")


def test_the_lines_of_a_timed_cell_are_counted_in_it():
    function = loaded("%%time\n!echo a \\\n  b\ndef f():\n    return 1 / 0")
    with pytest.raises(ZeroDivisionError) as error:
        function()
    assert traceback.extract_tb(error.value.__traceback__)[-1].lineno == 5


def test_it_is_loaded_as_the_main_module():
    cells = [
        "from dataclasses import dataclass\nimport torch",
        "@dataclass\nclass Pair:\n    a: 'torch.Tensor'\n    b: 'Pair | None' = None",
        "def f(x: 'Pair') -> 'torch.Tensor':\n    return x.a",
        "def make():\n    return Pair(1)",
    ]
    program = f"""if True:
        import sys, typing, cloudpickle, pickle
        from grader.inside.slices import load, read
        f, make = (load(one) for one in read({cells!r}, [("f", 3), ("make", 4)]))
        assert make.__module__ == "__main__" and sys.modules["__main__"].make is make
        assert pickle.loads(cloudpickle.dumps(make))().a == 1
        import torch
        assert pickle.loads(pickle.dumps(make())).a == 1
        assert typing.get_type_hints(f)["return"] is torch.Tensor
    """
    # In a process of its own: here, the module of an f that was loaded earlier keeps its class Pair.
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_type_hints_are_found():
    function = loaded("import torch\nclass Pair: pass", "def f(x: 'Pair') -> 'torch.Tensor': pass")
    assert typing.get_type_hints(function)["return"] is torch.Tensor
    assert pickle.loads(cloudpickle.dumps(function)) is not None


def test_every_load_starts_afresh():
    answer = read_one("L = []\ndef f():\n    L.append(1)\n    return len(L)")
    assert (load(answer, "answer")(), load(answer, "answer")()) == (1, 1)


def test_one_label_names_one_cell():
    cells = ["def f(): pass", "def f(): return 1 / 0\ndef g(): pass", "def f(: pass"]
    answers = read(cells, [("f", 2), ("g", 2)])
    assert {(piece["label"], piece["cell"]) for one in answers for piece in one["pieces"]} == {("cell of f", 1)}
    assert slices.read(cells, [("f", 2)], labels=["a", "b", "c"])[0]["pieces"][0]["label"] == "b"


def test_very_many_cells():
    cells = [f"N{number} = {number}" for number in range(20_000)]
    [answer] = read([*cells, "def f(): return N19999"], [("f", 20_001)])
    assert len(answer["pieces"]) == 2 and load(answer, "answer")() == 19_999


def test_very_many_changes():
    answer = read_one("L = []\nN = 0\n" + "L.append(1)\nN += 1\n" * 5000 + "def f(): return len(L) + N")
    assert load(answer, "answer")() == 10_000
