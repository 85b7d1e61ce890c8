"""A lesson's notebook as a script, for machines without Jupyter: torchrun and SLURM can run it.

    python -m notebook_script notebooks/01_collectives/01_collectives.ipynb [-o FILE]

Text becomes comments. Magics are left out, and so are checks and cells that fail on purpose, because these need a fixed
number of ranks. The value of a cell's last line, which a notebook would show, is printed.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
import textwrap
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat.notebooknode import NotebookNode

from ...text.package import IMPORT_ROOT, NAME

LEFT_OUT = {"raises-exception": "fails on purpose", "notebook-only": "only makes sense in the notebook"}  # reasons
MAGIC = re.compile(r"^(\s*)(.*\bget_ipython\(\)\..*)$", re.MULTILINE)  # IPython's translation of a magic
HEAD = '''"""{name}. Made from {notebook} by `make script`: edit that, not this.

    python {script}                         each spawn starts its ranks on this machine
    torchrun --nproc-per-node 4 {script}    each spawn runs on these four
"""

import sys
{path}
from {in_place} import only_first_process_prints

only_first_process_prints()  # outside of rank programs'''
PATH_TO_UTILS = """from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[{depth}]))  # the folder of {package}/
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}.notebook_script", description="Make a script of a notebook."
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="the script (default: build/scripts/NAME.py of the course)")
    given = parser.parse_args(arguments)
    output = given.output or Path(IMPORT_ROOT, "build", "scripts") / f"{given.notebook.stem}.py"
    try:
        notebook = nbformat.read(given.notebook, as_version=4)
        text = script_text(notebook, given.notebook, output)
    except OSError as error:
        sys.exit(f"{given.notebook} can't be read: {error.strerror}.")
    except nbformat.reader.NotJSONError:
        sys.exit(f"{given.notebook} is not a notebook.")
    except CellError as error:
        sys.exit(f"{given.notebook}: {error}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    print(how_to_run(output, missing_answers(notebook)))


def script_text(notebook: NotebookNode, path: Path, output: Path) -> str:
    """The notebook at `path` as the text of a script that will be written to `output`. Raises CellError."""
    depth = (
        len(output.resolve().relative_to(os.path.realpath(IMPORT_ROOT)).parts) - 1
        if output.resolve().is_relative_to(os.path.realpath(IMPORT_ROOT))
        else None
    )
    head = HEAD.format(
        name=path.stem,
        notebook=path_text(path),
        script=path_text(output),
        path="" if depth is None else PATH_TO_UTILS.format(depth=depth, package=NAME),
        in_place=f"{__package__}.in_place",
    )
    cells = [part for number, cell in enumerate(notebook.cells, 1) if (part := part_of(cell, number))]
    return "\n\n".join([head, *cells]) + "\n"


def part_of(cell: NotebookNode, number: int) -> str:
    if cell.cell_type != "code":
        return comment(cell.source)
    if reason := why_left_out(cell):
        return f"# (Left out: a cell that {reason}.)"
    return code(cell.source, number)


def why_left_out(cell: NotebookNode) -> str | None:
    if cell.metadata.get("nbgrader", {}).get("grade"):
        return "checks an answer"
    if cell.source.startswith("%%"):
        return f"belongs to {cell.source.split()[0]}"
    return next((LEFT_OUT[tag] for tag in cell.metadata.get("tags", []) if tag in LEFT_OUT), None)


def comment(text: str) -> str:
    return textwrap.indent(text, "# ", lambda line: True).replace("# \n", "#\n")


# --- code


class CellError(Exception):
    """A cell is not Python."""


def code(source: str, number: int) -> str:
    """The source without its magics. A value in its last line is printed, unless a semicolon follows it."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        source = without_magics(source)
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            raise CellError(f"cell {number}, line {error.lineno}, is not Python: {error.msg}.") from None
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr) and not is_print(last.value) and not ends_in_semicolon(source, last):
        source = show(source, last.value)
    return source.rstrip()


def without_magics(source: str) -> str:
    lines = TransformerManager().do_token_transforms(f"{source}\n".splitlines(keepends=True))
    return MAGIC.sub(r"\1pass  # \2", "".join(lines))


def is_print(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"


def ends_in_semicolon(source: str, last: ast.Expr) -> bool:
    return rest_of(source, last).lstrip().startswith(";")


def rest_of(source: str, node: ast.stmt | ast.expr) -> str:
    """The source after a node. Positions in a tree count bytes of UTF-8."""
    assert node.end_lineno is not None
    lines = source.encode().split(b"\n")[node.end_lineno - 1 :]
    return b"\n".join([lines[0][node.end_col_offset :], *lines[1:]]).decode()


def show(source: str, value: ast.expr) -> str:
    """The source with its last value passed to sys.displayhook, which prints it as Python's own prompt does."""
    after = rest_of(source, value)
    middle = ast.get_source_segment(source, value) or ""
    before = source[: len(source) - len(after) - len(middle)]
    brackets = ("((", "))") if isinstance(value, ast.Tuple) else ("(", ")")
    return f"{before}sys.displayhook{brackets[0]}{middle}{brackets[1]}{after}"


# --- the message


def missing_answers(notebook: NotebookNode) -> list[str]:
    """The exercises of a student's notebook that still raise NotImplementedError."""
    graded = [(cell.metadata.get("nbgrader", {}), cell.source) for cell in notebook.cells]
    return [about["grade_id"] for about, source in graded if about.get("solution") and "NotImplementedError" in source]


def how_to_run(output: Path, missing: list[str]) -> str:
    torchrun, script = path_text(Path(sys.executable).parent / "torchrun"), path_text(output)
    lines = [
        f"Wrote {script}. To run it with four ranks on this machine:",
        f"  {torchrun} --nproc-per-node 4 {script}",
        "On two machines, the first at 10.0.0.1 (on the second, use --node-rank 1):",
        f"  {torchrun} --nnodes 2 --node-rank 0 --nproc-per-node 4 --master-addr 10.0.0.1 --master-port 29500 {script}",
    ]
    if missing:
        lines.append(f"It will stop at the first call to an exercise that is not written yet: {', '.join(missing)}.")
    return "\n".join(lines)


def path_text(path: Path) -> str:
    """The path as you would type it here."""
    path = Path(os.path.abspath(path))  # not resolved, because an environment's Python is a link
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    main()
