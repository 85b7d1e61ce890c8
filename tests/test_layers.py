"""The house rules for imports. Each breach is reported with its file, its line and the rule it breaks.

    1  imports run downwards: a package may import from the floors below it, and from itself
    2  no circle, between packages or between the files of one
    3  inside `utils` imports are relative, and nothing there names the package: it may be installed under another name
    4  nothing in `utils` but the checks imports the facade, and `utils` never imports `grader`
    5  `grader` takes public names of `utils` only
    6  the ground (`events`, `text`) imports no torch, and importing `utils` does not load it

Imports under `if TYPE_CHECKING:` do not count, because they never run, except between the files of
`utils.worlds.virtual`, which form no circle even so. Imports inside functions count.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# One row per floor, the ground last. Packages on one floor do not import each other.
UTILS = """
checks __main__ watch
worlds.watch kit.planner
benchmark worlds.scripts kit.plans
worlds.virtual
worlds.real
worlds.jobs worlds.dumps
report cluster
figures
kit
recording diagnosis worlds.common
events text
"""
GRADER = """
__main__
commands
pages book
classroom authoring
judging
hidden sandbox
inside
"""
GROUND = ("events", "text")
# Breaches that are meant, each with its reason.
SHARED = "torch's private names live in one file, which needs nothing else of ours"
ALLOWED: dict[tuple[str, str], str] = {
    ("utils/worlds/common/joining.py", "utils.recording.torch_private"): SHARED,
    ("utils/worlds/common/rank_environment.py", "utils.recording.torch_private"): SHARED,
    ("utils/worlds/common/result.py", "utils.recording.torch_private"): SHARED,
}


def floors(rows: str) -> dict[str, int]:
    return {place: number for number, row in enumerate(reversed(rows.split("\n"))) for place in row.split()}


@dataclass(frozen=True)
class Import:
    """`module` as a full dotted name (a file or a package of ours, if there is one), and the names taken from it."""

    file: Path
    line: int
    module: str
    names: tuple[str, ...]
    level: int  # dots in front: 0 for an absolute import


@dataclass
class House:
    """The packages below `root` (a checkout), as modules with their imports."""

    root: Path

    def files(self, top: str) -> dict[str, Path]:
        """{dotted name: file} of a top-level package."""
        found = {}
        for path in sorted((self.root / top).rglob("*.py")):
            parts = path.relative_to(self.root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    def imports(
        self, name: str, path: Path, nodes: Callable[[ast.AST], Iterator[ast.AST]] | None = None
    ) -> Iterator[Import]:
        """Its imports among these nodes of its file; by default, all that can run."""
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        file = path.relative_to(self.root)
        for node in (nodes or running)(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(file, node.lineno, alias.name, (), 0)
            elif isinstance(node, ast.ImportFrom):
                base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    full = f"{module}.{alias.name}"
                    is_module = self.is_module(full)
                    yield Import(file, node.lineno, full if is_module else module, (alias.name,), node.level)
            elif imported := by_text(node):
                yield Import(file, node.lineno, imported, (), 0)

    def is_module(self, name: str) -> bool:
        path = self.root.joinpath(*name.split("."))
        return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that can run, in the file's order: all but the bodies of `if TYPE_CHECKING:`."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        skipped = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        left += reversed(node.orelse if skipped else list(ast.iter_child_nodes(node)))


def by_text(node: ast.AST) -> str:
    """The module that `importlib.import_module("...")` or `__import__("...")` names, if it is written out."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
        return ""
    function = getattr(node.func, "attr", getattr(node.func, "id", ""))
    text = node.args[0].value
    return text if function in ("import_module", "__import__") and isinstance(text, str) else ""


def place_of(module: str, floor: dict[str, int]) -> str:
    """The row's word that a module of ours stands under; "" for the facade."""
    parts = module.split(".")[1:]
    return next((place for n in (2, 1) if (place := ".".join(parts[:n])) in floor), parts[0] if parts else "")


def breaches(root: Path) -> list[str]:
    """All breaches of the rules in the checkout at `root`, each as "file:line: what, and which rule it breaks"."""
    house = House(root)
    found: list[tuple[Import | None, str]] = []
    graphs: dict[str, dict[str, dict[str, Import]]] = {}
    for top, rows in (("utils", UTILS), ("grader", GRADER)):
        floor = floors(rows)
        graph = graphs.setdefault(top, {})
        for name, path in house.files(top).items():
            mine = place_of(name, floor)
            if mine not in floor and name != top and not is_umbrella(name, floor):
                found.append(
                    (Import(path.relative_to(root), 1, name, (), 0), "stands on no floor: name it in this test")
                )
            for one in house.imports(name, path):
                found += [(one, what) for what in wrong_with(one, top, name, mine, floor)]
                if one.module.split(".")[0] == top and one.module != name:
                    graph.setdefault(name, {}).setdefault(one.module, one)
    for graph in graphs.values():
        found += [(one, f"is part of a circle: {' -> '.join(path)} (rule 2)") for path, one in circles(graph)]
    for name, path in house.files("utils").items():
        for line, text in texts_that_name(path, "utils"):
            found.append((Import(path.relative_to(root), line, name, (), 0), f"names the package: {text!r} (rule 3)"))
    return [f"{one.file}:{one.line}: {what}" for one, what in found if (str(one.file), one.module) not in ALLOWED]


def is_umbrella(name: str, floor: dict[str, int]) -> bool:
    """Whether it is only the folder of places that stand on floors of their own."""
    return any(place.startswith(name.partition(".")[2] + ".") for place in floor)


def wrong_with(one: Import, top: str, name: str, mine: str, floor: dict[str, int]) -> Iterator[str]:
    target = one.module.split(".")[0]
    what = f"{name} imports {one.module}"
    if target == top and one.module != name:
        its = place_of(one.module, floor)
        if its in floor and mine in floor and its != mine and floor[its] >= floor[mine]:
            direction = "sideways" if floor[its] == floor[mine] else "upwards"
            yield f"{what}, {direction}: it may only import from the floors below {mine} (rule 1)"
        if one.module == top and top == "utils" and mine != "checks":
            yield f"{what}: only the checks may import the facade (rule 4)"
    if top == "utils":
        if target == "utils" and not one.level:
            yield f"{what} by its full name: imports inside the package are relative (rule 3)"
        if target == "grader":
            yield f"{what}: it must not know the grader (rule 4)"
        if target in ("torch", "torchvision") and mine in GROUND:
            yield f"{what}: the ground imports no torch (rule 6)"
    if top == "grader" and target == "utils":
        private = [part for part in (*one.module.split("."), *one.names) if part.startswith("_")]
        if private:
            yield f"{what} ({', '.join(private)}): the grader takes public names only (rule 5)"


def circles(graph: dict[str, dict[str, Import]]) -> Iterator[tuple[list[str], Import]]:
    """(the modules of a circle, the import that closes it): one for each import that leads back to where it began."""
    done: set[str] = set()

    def search(module: str, path: list[str]) -> Iterator[tuple[list[str], Import]]:
        for target, one in graph.get(module, {}).items():
            if target in path:
                yield [*path[path.index(target) :], target], one
            elif target not in done:
                yield from search(target, [*path, target])
        done.add(module)

    for start in sorted(graph):
        if start not in done:
            yield from search(start, [start])


def texts_that_name(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each string, docstrings too, in which the package's name stands as a package or a folder."""
    pattern = re.compile(rf"(?<![\w.]){package}(?=[./]\w|$)|(from|import) {package}\b")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number, text in enumerate(node.value.split("\n")):
                if pattern.search(text):
                    yield node.lineno + number, text.strip()


# --- the house as it is


def test_the_house_keeps_its_rules():
    found = breaches(ROOT)
    assert not found, "\n" + "\n".join(found)


def circles_of_types(root: Path, package: str) -> list[list[str]]:
    """The circles between the files of a package, if its imports for types count, too."""
    house = House(root)
    files = {name: path for name, path in house.files("utils").items() if name.startswith(f"{package}.")}
    graph = {
        name: {one.module: one for one in house.imports(name, path, ast.walk) if one.module in files}
        for name, path in files.items()
    }
    return [path for path, _ in circles(graph)]


def test_the_virtual_world_has_no_circle_even_between_types():
    assert circles_of_types(ROOT, "utils.worlds.virtual") == []


@pytest.mark.parametrize(
    "imported, slow",
    [
        ("utils, utils.events, utils.text, utils.worlds.scripts.command", {"torch", "numpy"}),
        ("grader.judging.judge, utils.recording.storages", {"nbgrader", "sympy", "torch.distributed.tensor"}),
    ],
    ids=["a notebook, a script", "a judge, a program"],
)
def test_what_starts_often_does_not_import_what_takes_a_second(imported, slow):
    code = f"import sys, {imported}; print(sorted({slow} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).strip() == "[]"


def test_the_ground_runs_without_torch():
    """Every file of the ground can be imported where there is no torch."""
    names = [name for name in House(ROOT).files("utils") if name.split(".")[1:2] in (["events"], ["text"])]
    assert names
    code = f"import sys; sys.modules['torch'] = None; import importlib; [*map(importlib.import_module, {names})]"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "SPAWN_ZYGOTE": "1"})


def test_the_top_of_utils_is_a_dozen_entries_at_most():
    entries = sorted(
        path.name
        for path in (ROOT / "utils").iterdir()
        if path.name not in ("__pycache__", "__main__.py", "watch.py")  # run by -m
    )
    assert len(entries) <= 12, entries


def test_every_package_says_what_lives_in_it():
    for top in ("utils", "grader"):
        for name, path in House(ROOT).files(top).items():
            if path.name == "__init__.py":
                assert ast.get_docstring(ast.parse(path.read_text())), f"{name} does not say what lives there"


# --- breaches made on purpose

TREE = {
    "utils/__init__.py": "from .worlds.real.launch import spawn\n",
    "utils/text/__init__.py": "",
    "utils/text/tables.py": "",
    "utils/events/__init__.py": "",
    "utils/recording/__init__.py": "",
    "utils/recording/recorder.py": "from ..text import tables\nfrom . import notes\n_secret = 1\n",
    "utils/recording/notes.py": "",
    "utils/diagnosis/__init__.py": "",
    "utils/worlds/__init__.py": "",
    "utils/worlds/real/__init__.py": "",
    "utils/worlds/real/launch.py": "from ...recording.recorder import x\n",
    "utils/worlds/virtual/__init__.py": "",
    "utils/worlds/virtual/world.py": "",
    "utils/checks/__init__.py": "from .. import spawn\n",
    "grader/__init__.py": "",
    "grader/judging/__init__.py": "",
    "grader/judging/judge.py": "from utils.recording.recorder import Recorder\n",
    "grader/pages/__init__.py": "",
}
BREACHES = [
    ("utils/text/tables.py", "from ..recording import recorder", "upwards", 1),
    ("utils/worlds/real/launch.py", "def f():\n    from ..virtual.world import x", "upwards", 2),
    ("utils/recording/notes.py", "from ..diagnosis import words", "sideways", 1),
    ("utils/recording/notes.py", "from .recorder import Recorder", "circle: ", 1),
    ("utils/recording/notes.py", "from utils.text import tables", "relative", 1),
    ("utils/recording/notes.py", "from .. import spawn", "facade", 1),
    ("utils/recording/notes.py", "import grader.judging", "grader", 1),
    ("utils/recording/notes.py", "MODULE = 'utils.recording.recorder'", "names the package", 1),
    ("utils/recording/notes.py", "import importlib\nimportlib.import_module('grader.judging')", "grader", 2),
    ("utils/text/tables.py", "import torch.distributed as dist", "no torch", 1),
    ("utils/text/tables.py", "def f():\n    from torch import Tensor", "no torch", 2),
    ("utils/text/tables.py", "import importlib\ntorch = importlib.import_module('torch')", "no torch", 2),
    ("grader/judging/judge.py", "from utils.recording.recorder import _secret", "public names", 1),
    ("grader/judging/judge.py", "from utils.recording import _notes", "public names", 1),
    ("grader/judging/judge.py", "from grader.pages import report", "upwards", 1),
    ("utils/helpers.py", "x = 1", "stands on no floor", 1),
]


def tree(folder: Path, **more: str) -> Path:
    for name, text in {**TREE, **more}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_house_without_breaches_has_none(tmp_path):
    typed = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n    from ..recording import recorder\n"
    )
    assert breaches(tree(tmp_path, **{"utils/text/tables.py": typed})) == []


def test_a_circle_of_types_is_found(tmp_path):
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .world import World\n"
    files = {"utils/worlds/virtual/rank.py": typed, "utils/worlds/virtual/world.py": "from . import rank\n"}
    root = tree(tmp_path, **files)
    assert breaches(root) == []
    [circle] = circles_of_types(root, "utils.worlds.virtual")
    assert {part.rpartition(".")[2] for part in circle} == {"rank", "world"}


@pytest.mark.parametrize("file, text, says, line", BREACHES)
def test_a_breach_is_found_with_its_file_line_and_rule(tmp_path, file, text, says, line):
    found = breaches(tree(tmp_path, **{file: text + "\n"}))
    assert any(one.startswith(f"{file}:{line}: ") and says in one for one in found), found
    assert all(one.startswith(file) or "circle" in one for one in found), found
