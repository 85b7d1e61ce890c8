"""A notebook as a script: which parts stay, what is printed, and how the script runs."""

import os
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from utils.worlds.jobs.notebook_script import CellError, code, main

SOLUTION = {"nbgrader": {"grade": False, "solution": True, "grade_id": "add-up"}}
CHECK = {"nbgrader": {"grade": True, "solution": False, "grade_id": "add-up-values"}}
CELLS = [
    new_markdown_cell("# Title\n\nText with `code` and ü."),
    new_code_cell("%matplotlib inline\n!ls\nfrom utils import spawn\nif True:\n    %time\n    x = 5 \\\n        % 3"),
    new_code_cell("def add_up(rank, world_size):\n    print('here')\n    return rank + x", metadata=SOLUTION),
    new_code_cell("check(add_up)", metadata=CHECK),
    new_code_cell("raise ValueError('on purpose')", metadata={"tags": ["raises-exception"]}),
    new_code_cell("spawn(one_and_two, 2)", metadata={"tags": ["notebook-only"]}),
    new_code_cell("%%bash\nls | grep x"),
    new_code_cell("print('ü', end=' ')  # print shows nothing more\nx = 'é'; x, (x)  # a pair"),
    new_code_cell("run = spawn(add_up, 2)\nrun.results"),
    new_code_cell("x = 1\nx;"),
    new_code_cell("None"),
    new_code_cell(""),
]


def made_of(cells, tmp_path, *options):
    notebook = tmp_path / "lesson.ipynb"
    nbformat.write(new_notebook(cells=cells), notebook)
    main([str(notebook), "-o", str(tmp_path / "out" / "lesson.py"), *options])
    return tmp_path / "out" / "lesson.py"


def python(script, root):
    """What the script prints, run without torchrun."""
    env = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_script_shows_what_the_notebook_shows(tmp_path, root, capsys):
    cells = [cell.copy() for cell in CELLS]
    cells[2].source = cells[2].source.replace("rank + x", "rank + int(str(rank))")
    script = made_of(cells, tmp_path)
    assert python(script, root) == "ü ('é', 'é')\n[rank 0] here\n[rank 1] here\n[0, 2]\n"
    text = script.read_text()
    assert "# # Title\n#\n# Text with `code` and ü.\n" in text
    left_out = re.findall(r"^# \(Left out: (.*)\)$", text, re.MULTILINE)
    assert left_out == [
        "a cell that checks an answer.",
        "a cell that fails on purpose.",
        "a cell that only makes sense in the notebook.",
        "a cell that belongs to %%bash.",
    ]
    said = capsys.readouterr().out
    assert re.search(rf"torchrun --nnodes 2 .* {re.escape(str(script))}$", said, re.MULTILINE)
    assert "Not written" not in said


def test_an_unfinished_notebook_says_which_answers_are_missing(tmp_path, capsys):
    blank = new_code_cell("def add_up(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()", metadata=SOLUTION)
    made_of([blank], tmp_path)
    assert "It will stop at the first call to an exercise that is not written yet: add-up." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("a", "sys.displayhook(a)"),
        ("a, b", "sys.displayhook((a, b))"),
        ("(a,\n b)", "sys.displayhook(((a,\n b)))"),
        ("x = 1\n(a + b)  # both", "x = 1\n(sys.displayhook(a + b))  # both"),
        ("f('ü', [é])\n# end", "sys.displayhook(f('ü', [é]))\n# end"),
        ("'''two\nlines'''", "sys.displayhook('''two\nlines''')"),
        ("if a:\n    b", "if a:\n    b"),
        ("print(a)", "print(a)"),
        ("a ;  # quiet", "a ;  # quiet"),
        ("# nothing", "# nothing"),
        ("%time f()", "pass  # get_ipython().run_line_magic('time', 'f()')"),
        ("f?\nf", "pass  # get_ipython().run_line_magic('pinfo', 'f')\nsys.displayhook(f)"),
    ],
)
def test_the_last_value_of_a_cell_is_printed(source, shown):
    assert code(source, 1) == shown


def test_a_file_that_is_not_a_notebook_or_not_python_is_refused_in_one_line(tmp_path):
    with pytest.raises(CellError, match="cell 7, line 2, is not Python"):
        code("x = 1\nx = = 2", 7)
    for text, words in [("{", "is not a notebook"), (None, "can't be read: No such file")]:
        path = tmp_path / "bad.ipynb"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        with pytest.raises(SystemExit, match=words):
            main([str(path)])
