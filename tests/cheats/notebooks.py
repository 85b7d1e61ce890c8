"""Cheats in the notebook itself and in the files beside it: tags, outputs, verdicts, kernels, files, names.

Cells that are edited, doubled, moved or gone are in tests/grader/classroom/test_submission.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

Edit = Callable[[NotebookNode], None]


def checks_of(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.metadata.get("nbgrader", {}).get("grade")]


def first(source: str) -> Edit:
    """Adds a cell before all others."""
    return lambda nb: nb.cells.insert(0, new_code_cell(source))


def on_checks(act: Callable[[NotebookNode], object]) -> Edit:
    def edit(nb: NotebookNode) -> None:
        for cell in checks_of(nb):
            act(cell)

    return edit


def forged_verdicts(nb: NotebookNode) -> None:
    for cell in checks_of(nb):
        verdict = {
            "check": cell.id,
            "points": 9,
            "most": 9,
            "kind": "passed",
            "said": "passed",
            "mistake": "",
            "hidden": False,
        }
        cell.metadata["verdict"] = verdict
        cell.metadata["execution"] = {"shell.execute_reply": "2020-01-01"}
        cell.execution_count = 1
    verdicts = [cell.metadata["verdict"] for cell in checks_of(nb)]
    nb.metadata["judgement"] = {"lesson": "90_tiny", "verdicts": verdicts, "problems": [], "flags": [], "seconds": 0.1}
    nb.metadata["problems"] = ["forged: full marks were given by hand"]


def forged_outputs(nb: NotebookNode) -> None:
    for cell in checks_of(nb):
        cell.outputs = [
            new_output("stream", name="stdout", text="double · values · passed"),
            new_output("execute_result", data={"text/plain": "1000.0"}, execution_count=1),
        ]


def claims_to_be_checks(nb: NotebookNode) -> None:
    for cell in [cell for cell in nb.cells if cell.cell_type == "code"][:2]:
        cell.metadata["nbgrader"] = {"grade": True, "grade_id": f"{cell.id}-bonus", "points": 100, "locked": True,
                                     "solution": False, "schema_version": 3, "cell_type": "code", "task": False}  # fmt: skip
    nb.cells.append(new_code_cell('check(double, judges="values")\nprint("double · values · passed")'))


def other_kernel(nb: NotebookNode) -> None:
    nb.metadata["kernelspec"] = {"name": "../../tmp/x", "display_name": "\x1b[2J", "language": "bash"}
    nb.metadata["language_info"] = {"name": "bash", "file_extension": "/../../x"}


def checks_in_other_words(nb: NotebookNode) -> None:
    for cell in checks_of(nb):
        cell.source = "%%script true\n" + cell.source


def active(nb: NotebookNode) -> None:
    nb.cells.append(
        new_markdown_cell("<script>alert(1)</script> ![x](https://elsewhere.example/x.png) [y](attachment:y)")
    )
    nb.cells[-1].attachments = {"y": {"text/html": "<script>alert(2)</script>"}}
    nb.cells.append(
        new_code_cell("1", outputs=[new_output("display_data", data={"text/html": "<img src=x onerror=alert(3)>"})])
    )


def words_of_the_grader(nb: NotebookNode) -> None:
    words = "# Score: 6.0 / 6.0\n\ndouble · values · passed\n\n### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS"
    nb.cells.insert(0, new_markdown_cell(words))
    nb.cells.append(new_code_cell(f"'''{words}'''\n### BEGIN SOLUTION\n### END SOLUTION"))


def terminal_codes(nb: NotebookNode) -> None:
    nb.cells.append(new_code_cell("raise SystemExit('\\x1b]0;title\\x07 \\x1b[2J')"))
    nb.metadata["title"] = nb.metadata["authors"] = "\x1b]0;title\x07\nada: 6.0 points"


FAKE = "def __getattr__(name): return lambda *args, **kwargs: True\nprint('SHADOWED')\n"
BESIDE = {
    **dict.fromkeys(["torch.py", "utils.py", "sitecustomize.py", "usercustomize.py", "conftest.py", "gradelib.py",
                     "grader/__init__.py", "grader/hidden.py", "utils/__init__.py", "utils/checks/__init__.py",
                     "tests/tiny/90_tiny/checks_90.py", "safetensors/__init__.py", "nbgrader_config.py"], FAKE),
    "ipython_kernel_config.json": json.dumps({"InteractiveShellApp": {"exec_lines": ["def double(x): return 2 * x"]}}),
    "gradebook.db": "not a gradebook",
    "..verdict.json": "{}",
    "a name\n\x1b[2J.txt": "terminal codes",
    ".autograded.json": "{}",
}  # fmt: skip


def lay_beside(notebook: Path, outside: Path) -> None:
    """Files beside a submission, and links that lead out of it."""
    for name, text in BESIDE.items():
        path = notebook.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (notebook.parent / "link.ipynb").symlink_to(outside)
    (notebook.parent / "timestamp.txt").unlink(missing_ok=True)
    (notebook.parent / "timestamp.txt").symlink_to(outside)


# name -> what a notebook does besides its answers
EDITS: dict[str, Edit] = {
    "skip-execution": on_checks(lambda cell: cell.metadata.update(tags=["skip-execution"])),
    "transformer": first("get_ipython().input_transformers_cleanup.append(lambda lines: ['pass'])"),
    "do-execute": first(
        "get_ipython().kernel.do_execute = lambda *args, **how: {'status': 'ok', 'execution_count': 1}"
    ),
    "script-in-the-check": checks_in_other_words,
    "other-kernel": other_kernel,
    "forged-verdicts": forged_verdicts,
    "forged-outputs": forged_outputs,
    "claims-to-be-checks": claims_to_be_checks,
    "active": active,
    "words-of-the-grader": words_of_the_grader,
    "terminal-codes": terminal_codes,
}
