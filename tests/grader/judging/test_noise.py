"""Right answers in untidy notebooks get their points: each of these is a notebook of the tiny lesson, really judged."""

import json
import textwrap

import nbformat
import pytest

from grader.classroom.one_submission import OneSubmission
from grader.judging.judge import judge
from tests.stand_in_grader import released_course
from tests.tiny_course import LESSON, POINTS, RIGHT, released, with_answers

pytestmark = [pytest.mark.long, pytest.mark.sandbox]

DOUBLE, TOTAL = RIGHT["double"], RIGHT["total"]
AT_ONCE = "    x = x.clone()\n    dist.all_reduce(x)\n    return x"


def text(source):
    return textwrap.dedent(source).strip("\n")


# What the cells hold: "double" and "total" are the answers', "first" is a cell above all others, "last" one below them,
# and "helper" one just above the answers.
NOISE = {
    "warnings and logging": {
        "first": "import logging, warnings\nlogging.basicConfig(level=0)\nwarnings.simplefilter('always')",
        "double": text(
            """
            import logging
            import warnings
            warnings.warn("while defining")
            def double(x):
                warnings.warn("while running")
                logging.error("an error, it says")
                logging.getLogger(__name__).debug("and a detail")
                return 2 * x
            """
        ),
    },
    "prints, and megabytes of them": {
        "first": "print('x' * 5_000_000)",
        "total": "import sys\n" + TOTAL.replace("    x = x", "    print('y' * 5_000_000, file=sys.stderr)\n    x = x"),
        "double": "print('defining')\n" + DOUBLE.replace("return", "print(*range(200_000), sep='\\n'); return"),
    },
    "a child process that writes": {
        "double": text(
            """
            import os, subprocess, sys
            def double(x):
                os.write(2, b"straight to stderr")
                os.system("echo from a shell >&2")
                return 2 * x
            """
        ),
    },
    "progress bars": {
        "helper": "from tqdm.auto import tqdm\nfrom tqdm import trange\nfor _ in trange(3): pass",
        "double": "def double(x):\n    return sum(x for _ in tqdm(range(2)))",
    },
    "plots, inside and outside": {
        "first": "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
        "double": text(
            """
            import matplotlib.pyplot as plt
            fig, ax = plt.subplots()
            ax.plot([1, 2])
            plt.show()
            def double(x):
                plt.plot([x, x])
                plt.show()
                return 2 * x
            double(2)
            """
        ),
    },
    "signal handlers and alarms": {
        "total": text(
            """
            import signal
            def total(x, rank, world_size):
                signal.signal(signal.SIGALRM, lambda number, frame: None)
                signal.alarm(600)
                x = x.clone()
                dist.all_reduce(x)
                return x
            """
        ),
    },
    "helpers in cells of their own": {
        "helper": text(
            """
            from dataclasses import dataclass, field
            FACTORS = {"double": 1}
            FACTORS["double"] += 1
            Number = int | float
            @dataclass
            class Scale:
                factor: Number = field(default_factory=lambda: FACTORS["double"])
                def __call__(self, x: "Number") -> "Number":
                    return self.factor * x
            scale = Scale()
            def add_up(x):
                dist.all_reduce(x)
                return x
            """
        ),
        "double": "def double(x: Number) -> Number:\n    return scale(x)",
        "total": "def total(x, rank, world_size):\n    return add_up(x.clone())",
    },
    "a slow cell first": {"first": "import time\ntime.sleep(10_000)"},
    "cells that raise": {
        "first": "1 / 0",
        "helper": "raise SystemExit\nimport not_there",
        "last": "import sys\nsys.exit(1)\nquit()\nexit()",
        "double": DOUBLE + "\nassert double(2) == 5, 'not what I thought'",
        "total": TOTAL + "\nraise KeyboardInterrupt",
    },
    "syntax errors elsewhere": {"first": "for for for", "last": "def broken(:", "double": DOUBLE + "\n\nprint('oops'"},
    "markdown edits": {"markdown": "# My own title\n<b>notes</b>"},
    "only when run as a script": {
        "double": 'if __name__ == "__main__":\n' + textwrap.indent(DOUBLE, "    ") + "\n    print(double(3))",
    },
    "calls of input": {"first": "name = input('Who are you? ')", "double": "input('ready?')\n" + DOUBLE},
    "random seeds": {
        "helper": "import random\nrandom.seed(7)\ntorch.manual_seed(7)\ntorch.use_deterministic_algorithms(True)",
        "double": "def double(x):\n    random.seed(x); torch.manual_seed(x)\n    return 2 * x",
    },
    "threads that end": {
        "double": text(
            """
            from concurrent.futures import ThreadPoolExecutor
            def double(x):
                with ThreadPoolExecutor(2) as pool:
                    return sum(pool.map(int, [x, x]))
            """
        ),
    },
    "magics": {
        "first": "%load_ext autoreload\n%autoreload 2\n!pip install torch\ntorch?",
        "double": "%%time\n" + DOUBLE,
        "total": "%%capture out\n" + TOTAL,
        "last": "%%bash\nrm -rf /",
    },
    "leftover calls of spawn and simulate": {
        "helper": "from utils import simulate, spawn\ndef hello(rank, world_size): return rank",
        "double": DOUBLE + "\nrun = spawn(hello, 4)\nrun.results",
        "total": TOTAL + "\nspawn(total, 2, torch.ones(2)).results\nsimulate(total, 1024, torch.ones(2))",
    },
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return released_course(tmp_path_factory.mktemp("course"))


def judged(course, student, cells):
    """The verdicts on a notebook with these cells: check -> Verdict."""
    nb = with_answers(released(course.root), {**RIGHT, **cells})
    for one in nb.cells:
        if one.cell_type == "markdown":
            one.source = cells.get("markdown", one.source)
    content = json.loads(nbformat.writes(nb))
    for name, at in [("helper", 2), ("first", 0), ("last", len(content["cells"]) + 2)]:
        if name in cells:
            content["cells"].insert(at, {"cell_type": "code", "source": cells[name], "metadata": {}})
    one = OneSubmission(course, LESSON, student)
    one.handed_in.parent.mkdir(parents=True)
    one.handed_in.write_text(json.dumps(content))
    judgement = judge(one.read(), "tests/tiny", seconds=240)
    return {verdict.check: verdict for verdict in judgement.verdicts}


SOME = [
    what if number % 4 == 0 else pytest.param(what, marks=pytest.mark.thorough) for number, what in enumerate(NOISE)
]


@pytest.mark.parametrize("what", SOME)
def test_noise_costs_no_points(course, what):
    verdicts = judged(course, f"student-{list(NOISE).index(what)}", NOISE[what])
    assert {name: one.points for name, one in verdicts.items()} == POINTS, verdicts


def test_a_module_that_is_not_installed_is_named(course):
    missing = "import scipie as sp\ndef double(x):\n    return sp.double(x)"
    said = judged(course, "without-a-module", {"double": missing})
    assert said["double-values"].points == 0 and said["total-values"].points == 3
    words = said["double-values"].said
    assert "cell of double, line 1:  import scipie as sp" in words and "No module named 'scipie'" in words
    assert "That module is not installed where grading runs" in words


def test_a_parameter_that_is_passed_by_name_must_keep_its_name(course):
    said = judged(course, "renames", {"double": "def double(number):\n    return 2 * number"})
    assert said["double-values"].points == 0 and "unexpected keyword argument 'x'" in said["double-values"].said
    renamed = "def total(mine, rank, world_size):\n    x = mine\n" + AT_ONCE
    assert judged(course, "may-rename", {"total": renamed})["total-values"].points == 3


def test_a_broken_answer_is_shown_with_its_line(course):
    said = judged(course, "broken", {"double": "def double(x):\n    return 2 * * x"})
    assert said["double-values"].said.startswith("cell of double, line 2: SyntaxError: invalid syntax\n")
    assert "    return 2 * * x\n               ^" in said["double-values"].said
    assert said["total-values"].points == 3


def test_a_message_explains_why_spawn_gives_no_value_while_an_answer_is_loaded(course):
    cells = {
        "helper": "from utils import spawn\ndef two(rank, world_size): return 2\nfactor = spawn(two, 2).results[0]",
        "double": "def double(x):\n    return factor * x",
    }
    words = judged(course, "computes-on-ranks", cells)["double-values"].said
    assert "spawn was called: grading loads your answer on a rank" in words
    assert "factor = spawn(two, 2).results[0]" in words
