"""`spawn` as students use it: in a real kernel, where each cell shows its own output."""

import json
import os
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from tests.kernel import Notebook, processes_of_session, zygote_of


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook()
    notebook.run("import os, time, torch, torch.distributed as dist\nfrom utils import spawn")
    yield notebook
    notebook.close()


def test_a_function_defined_in_a_cell_runs_on_ranks(notebook):
    shown = notebook.run(
        "def work(rank, world_size):\n"
        "    x = torch.tensor([float(rank)])\n"
        "    dist.all_reduce(x)\n"
        "    print('sum', x.item())\n"
        "    return x.item()\n"
        "print(spawn(work, 3).results)"
    )
    assert shown == {
        "stdout": "[rank 0] sum 3.0\n[rank 1] sum 3.0\n[rank 2] sum 3.0\n[3.0, 3.0, 3.0]\n",
        "stderr": "",
        "error": None,
    }


def test_the_report_shows_lines_of_the_cell_and_none_of_ours(notebook):
    shown = notebook.run(
        "def broken(rank, world_size):\n    if rank == 1:\n        raise ValueError('no luck')\nspawn(broken, 2)"
    )
    count = int(notebook.run("print(len(In) - 2)")["stdout"])
    assert shown["error"] == (
        "RankFailed: rank 1 raised ValueError: no luck\n"
        f"  In[{count}], line 3, in broken\n"
        "      raise ValueError('no luck')"
    )
    assert shown["stderr"] == ""


def test_a_stuck_world_shows_the_lines_of_the_cell(notebook):
    shown = notebook.run("def early(rank, world_size):\n    if rank == 0:\n        dist.barrier()\nspawn(early, 2)")
    assert "line 3:  dist.barrier()" in shown["error"]
    assert "Rank 1 never called this barrier and has finished" in shown["error"]


def test_stderr_of_ranks_is_not_stderr_of_the_cell(notebook):
    shown = notebook.run(
        "def noisy(rank, world_size):\n"
        "    import warnings, sys\n"
        "    warnings.warn('careful')\n"
        "    print('oh', file=sys.stderr)\n"
        "    os.system('echo child >&2')\n"
        "run = spawn(noisy, 2)"
    )
    assert shown["stderr"] == ""
    assert "[rank 1] oh" in shown["stdout"] and "[rank 1] child" in shown["stdout"] and "careful" in shown["stdout"]


def test_after_the_kernel_itself_has_computed(notebook):
    """A fork of the kernel would hang here; the zygote has not computed anything."""
    shown = notebook.run(
        "w = torch.randn(600, 600, requires_grad=True); (w @ w).sum().backward()\n"
        "print(spawn(lambda rank, n: (torch.ones(600, 600) @ torch.ones(600, 600))[0, 0].item(), 2).results)"
    )
    assert shown["stdout"] == "[600.0, 600.0]\n"


def test_setting_RANK_by_hand_does_not_make_the_notebook_a_rank(notebook):
    notebook.run("os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='localhost', MASTER_PORT='29500')")
    try:
        assert notebook.run("print(spawn(lambda rank, n: rank, 3).results)")["stdout"] == "[0, 1, 2]\n"
    finally:
        notebook.run("for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'): del os.environ[name]")


# --- wherever it is called from

PROGRAM = """
import torch, torch.distributed as dist
from utils import spawn
def program(rank, world_size):
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    return x.item()
print(spawn(program, 3).results)
"""


def test_from_a_script_without_a_main_guard(tmp_path, root):
    (tmp_path / "script.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-W",
        "error",
        "-X",
        "dev",
        "script.py",
    ]  # this also reports files that are left open at the end
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[3.0, 3.0, 3.0]\n", "")


def test_from_run(notebook, tmp_path):
    (tmp_path / "script.py").write_text(PROGRAM)
    shown = notebook.run(f"%run {tmp_path}/script.py")
    assert shown == {"stdout": "[3.0, 3.0, 3.0]\n", "stderr": "", "error": None}


@pytest.mark.thorough
def test_from_nbclient():
    cells = [nbformat.v4.new_code_cell(PROGRAM), nbformat.v4.new_code_cell("spawn(program, 2)")]
    document = NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name="python3").execute()
    first, second = (cell.outputs for cell in document.cells)
    assert [output.text for output in first] == ["[3.0, 3.0, 3.0]\n"]
    assert [output.data["text/plain"] for output in second] == ["Run(2 ranks, spawn, gloo)"]


@pytest.mark.thorough
def test_from_two_notebooks_at_once(notebook):
    other = Notebook()
    try:
        source = f"{PROGRAM}\nprint([spawn(program, 2).results[0] for _ in range(10)])"
        cells = [(each, each.send(source)) for each in (notebook, other)]
        for each, cell in cells:
            assert each.outputs_of(cell)["stdout"] == f"[3.0, 3.0, 3.0]\n{[1.0] * 10}\n"
    finally:
        other.close()


def test_a_module_that_is_edited_and_reloaded(notebook, tmp_path):
    module = tmp_path / "students_module.py"
    module.write_text("def program(rank, n): return 'old'")
    notebook.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    assert "old" in notebook.run("import students_module as m; print(spawn(m.program, 1).results)")["stdout"]
    module.write_text("def program(rank, n): return 'edited'")
    shown = notebook.run("import importlib; importlib.reload(m); print(spawn(m.program, 1).results)")
    assert "edited" in shown["stdout"]


def test_an_environment_and_a_folder_that_change(notebook, tmp_path):
    notebook.run(f"os.environ['COLOUR'] = 'red'; os.chdir({str(tmp_path)!r})")
    shown = notebook.run("print(spawn(lambda rank, n: (os.environ['COLOUR'], os.getcwd()), 1).results)")
    assert shown["stdout"] == f"[('red', {str(tmp_path)!r})]\n"
    notebook.run("del os.environ['COLOUR']")
    assert notebook.run("print(spawn(lambda rank, n: 'COLOUR' in os.environ, 1).results)")["stdout"] == "[False]\n"


@pytest.mark.parametrize("world_size", [16, 64])
def test_many_ranks(notebook, world_size):
    notebook.run(PROGRAM)
    shown = notebook.run(f"print(set(spawn(program, {world_size}).results))")
    assert shown["stdout"] == f"{{{float(sum(range(world_size)))}}}\n"


@pytest.mark.thorough
def test_three_hundred_calls_leave_nothing_behind(notebook, tmp_path):
    """Every tenth call fails. Descriptors, temporary files and processes are the same as before."""
    zygote = zygote_of(notebook)
    notebook.run(f"{PROGRAM}\nimport json, tempfile; tempfile.tempdir = {str(tmp_path)!r}")
    count = f"print(json.dumps([len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/{zygote}/fd'))]))"
    before = json.loads(notebook.run(count)["stdout"])
    notebook.run(
        "right = []\n"
        "for number in range(300):\n"
        "    try:\n"
        "        right += spawn((lambda rank, n: 1 / 0) if number % 10 == 9 else program, 2).results\n"
        "    except RuntimeError:\n"
        "        pass\n"
    )
    assert notebook.run("print(len(right), set(right))")["stdout"] == "540 {1.0}\n"
    assert json.loads(notebook.run(count)["stdout"]) == before
    assert processes_of_session(zygote) == [zygote]
    assert os.listdir(tmp_path) == []
