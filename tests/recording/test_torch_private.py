"""torch's private names: they stand in one module, whose import fails with advice if one of them is missing."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal.distributed import fake_pg

from utils.recording import torch_private
from utils.recording.torch_calls import OPERATIONS
from utils.recording.torch_private import check_calls

ROOT = Path(__file__).resolve().parent.parent.parent
HOME = "utils/recording/torch_private.py"


def imported_again() -> None:
    """Run the module as an import would, in a torch that may have lost something since."""
    runpy.run_path(str(ROOT / HOME))


# --- names that exist, and names that are missing


def test_all_names_are_there():
    imported_again()
    assert [name for name, value in vars(torch_private).items() if value is None] == []


def test_every_import_is_used_here_or_elsewhere():
    """The linter can't tell, since most are for others."""
    files = [file for folder in ("utils", "grader", "solutions") for file in (ROOT / folder).rglob("*.py")]
    texts = [text for file in files if "torch_private" in (text := file.read_text(encoding="utf-8"))]
    others = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    here = list(ast.walk(ast.parse((ROOT / HOME).read_text(encoding="utf-8"))))
    imported = {one.asname or one.name for node in here if isinstance(node, ast.ImportFrom) for one in node.names}
    used = {node.id for node in here if isinstance(node, ast.Name)} | {"annotations"}
    used |= {one.name for node in others if node.module and node.module.endswith("torch_private") for one in node.names}
    assert imported - used == set()


LATE = """
import sys
from utils.recording import torch_private as private
slow = ["distributed._functional_collectives", "distributed.tensor._api", "distributed.fsdp", "_dynamo"]
assert not [name for name in slow if "torch." + name in sys.modules]
assert private.async_collective_tensor().__name__ == "AsyncCollectiveTensor"
private.let_fsdp_take_meta_parameters()
private.set_mesh_functions(max, min)
private.wrap_loss_parallel(lambda enable, disable: (print, print))
from torch.distributed.tensor import _api, placement_types
from torch.distributed.tensor.parallel import loss
assert (_api.mesh_broadcast, placement_types.mesh_scatter, loss._enable_custom_loss_ops) == (max, min, print)
"""


def test_what_is_slow_to_import_is_looked_up_only_when_it_is_needed():
    subprocess.run([sys.executable, "-c", LATE], check=True, cwd=ROOT)


def test_a_thread_that_torch_has_renamed_is_missed(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "thread_name_prefix='something else'")
    with pytest.raises(ImportError, match=torch_private.CHECKPOINT_THREADS):
        imported_again()


@pytest.mark.parametrize(
    "owner, name",
    [
        (torch._C, "_current_autograd_node"),
        (torch._C._distributed_c10d, "FakeProcessGroup"),
        (torch._ops, "OpOverload"),
        (c10d, "_pickler"),
        (c10d, "_World"),
        (c10d._World, "pg_group_ranks"),
        (dist.ProcessGroup, "_register_backend"),
        (torch._C._distributed_c10d.Work, "_source_rank"),  # a method that our class defines for torch to call
    ],
)
def test_the_error_about_a_missing_name_has_the_versions_and_what_to_do(monkeypatch, owner, name):
    monkeypatch.delattr(owner, name)
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    with pytest.raises(ImportError) as caught:
        imported_again()
    said = str(caught.value)
    assert said.startswith("torch 2.99.0+cpu lacks a private name that this package needs: ")
    assert f"'{name}'" in said and owner.__name__.rpartition(".")[2] in said
    assert said.endswith("The package was tested with torch 2.13.0: pip install torch==2.13.0")


def test_a_missing_module_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils._pytree", None)
    with pytest.raises(ImportError, match=r"private name that this package needs: .*torch\.utils\._pytree.*2\.13\.0"):
        imported_again()


def test_a_missing_name_that_is_looked_up_later_is_reported_too(monkeypatch):
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    monkeypatch.delattr(FSDPParamGroup, "_validate_no_meta_params")
    with pytest.raises(ImportError, match="'FSDPParamGroup' has no attribute '_validate_no_meta_params'.*2.13.0"):
        torch_private.let_fsdp_take_meta_parameters()


def test_importing_a_file_that_needs_the_name_shows_the_error(monkeypatch):
    for name in ("utils.recording.torch_private", "utils.recording.recorded_group"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(torch._C._distributed_c10d, "Work")
    with pytest.raises(ImportError, match=r"^torch 2\S+ lacks .* 'Work' .*torch==2.13.0$"):
        importlib.import_module("utils.recording.recorded_group")


def test_the_version_in_the_error_is_the_one_that_the_course_installs():
    assert f"torch=={torch_private.TESTED_WITH}\n" in (ROOT / "requirements.txt").read_text()


# --- the function that makes a group


def test_arguments_are_bound_to_the_names_of_their_parameters():
    def make(group_name, store, *, timeout=None, backend="gloo", global_ranks_in_group, group_rank, group_size):
        return group_name, group_rank

    seen = []

    def around(asked, call):
        seen.append(asked)
        return "made", call()

    made = torch_private.wrapped_maker(make, around)
    store = dist.HashStore()
    assert made("7", store, group_size=2, global_ranks_in_group=[3, 5], group_rank=1) == ("made", ("7", 1))
    assert seen == [torch_private.NewGroup(size=2, rank=1, members=[3, 5], backend="gloo", store=store, name="7")]
    assert torch_private.wrapped_maker(made, lambda asked, call: asked.name)(
        group_size=1, global_ranks_in_group=[0], group_rank=0, group_name="wrapped twice", store=store
    ) == "wrapped twice"  # fmt: skip


def test_a_missing_parameter_is_reported_when_the_function_is_wrapped_and_at_import(monkeypatch):
    def make(group_size, group_rank, ranks, backend, store, group_name):
        raise AssertionError

    says = r"needs: the parameter 'global_ranks_in_group' of .*make\(group_size, group_rank, ranks, .*2\.13\.0"
    with pytest.raises(ImportError, match=says):
        torch_private.wrapped_maker(make, lambda asked, call: call())
    monkeypatch.setattr(c10d, "_new_process_group_helper", make)
    with pytest.raises(ImportError, match=says):
        imported_again()


def test_groups_of_this_process_are_made_through_the_wrapper(monkeypatch):
    asked = []

    def around(new, make):
        asked.append(new)
        return make()

    monkeypatch.setattr(c10d, "_new_process_group_helper", c10d._new_process_group_helper)  # put back in the end
    torch_private.wrap_making_of_groups(around)
    assert fake_pg  # its import has registered the backend "fake"
    dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=3)
    try:
        dist.new_group([1, 2], backend="fake", group_desc="two of three")
    finally:
        dist.destroy_process_group()
    assert [(new.size, new.rank, new.members) for new in asked] == [(3, 1, []), (2, 0, [1, 2])]


# --- no other file touches them

OTHERS = {  # private names of other packages -> the package
    "_exit": "os",
    "_getframe": "sys",
    "_current_frames": "sys",
    "_current_exceptions": "sys",
    "_shutdown": "threading",
    "_replace": "named tuples",
    "_run_exitfuncs": "atexit",
    "_Unpickler": "pickle",
    "_repr_html_": "IPython",
    "_repr_mimebundle_": "IPython",
    "_legacy_seeding": "numpy",
    "_data": "os",
    "_module_locks": "importlib",
    "_DYNAMIC_CLASS_TRACKER_BY_ID": "cloudpickle",
    "_module_reduce": "cloudpickle",
    "_filename_map": "IPython",
    "_allow_stdin": "ipykernel",
}
BY_TEXT = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller"}
PRIVATE_MODULE = re.compile(r"torch(\.\w+)*\._\w+(\.\w+)*")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def touches(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of each private name in a file that may be torch's.

    The class of an object is unknown, so every private name counts unless it is another package's, or is defined in
    that file and used through `self`.
    """
    tree = ast.parse(source)
    own = {name for node in ast.walk(tree) for name in defined_by(node)}
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    imports_torch = any("torch" in module.split(".")[:1] for node in ast.walk(tree) for module in imported_by(node))
    for node in ast.walk(tree):
        if any(
            is_private(part) for name in imported_by(node) if name.split(".")[0] == "torch" for part in name.split(".")
        ):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in OTHERS:
            holder = ast.unparse(node.value)
            is_own = node.attr in own or not imports_torch  # else from a class of torch's that it inherits from
            if not (holder in classes or (holder in ("self", "cls", "super()") and is_own)):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in BY_TEXT:
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if any(is_private(text) and text not in OTHERS for text in texts):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PRIVATE_MODULE.fullmatch(node.value):
            yield node.lineno, repr(node.value)


def defined_by(node: ast.AST) -> Iterator[str]:
    """Names of methods, class variables and attributes assigned to `self`."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        for one in ast.walk(target) if isinstance(target, ast.AST) else ():
            if isinstance(one, ast.Name):
                yield one.id
            elif isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self":
                yield one.attr


def imported_by(node: ast.AST) -> list[str]:
    """Full dotted names. Relative imports are left out, since those are ours."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_no_other_file_touches_a_private_name_of_torch():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for top in ("utils", "grader")
        for path in sorted((ROOT / top).rglob("*.py"))
        if path != ROOT / HOME
        for line, what in touches(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(
        [*found, f"{HOME} is the place for torch's private names; names of other packages go into OTHERS here"]
    )


IMPORT = "import torch.distributed as dist\n"


@pytest.mark.parametrize(
    "source",
    [
        "from torch._ops import OpOverload",
        "from torch.utils import _pytree",
        "import torch.utils._pytree as pytree",
        "def f():\n    from torch.distributed.tensor import _api",
        "dist.distributed_c10d._world = None",
        "x = torch._C.Future",
        "def f(work):\n    return work._source_rank()",
        "class Work:\n    def _source_rank(self):\n        return self.work._source_rank()",
        "class Group(dist.ProcessGroup):\n    def __init__(self):\n        self._set_default_backend(1)",
        "getattr(dist, '_world')",
        "f = operator.attrgetter('_base')",
        "importlib.import_module('torch._dynamo')",
    ],
)
def test_a_private_name_is_found_with_its_line(source):
    assert [line for line, _ in touches(IMPORT + source)] == [source.count("\n") + 2]


@pytest.mark.parametrize(
    "source",
    [
        "from .call_table import _SIZE",
        "class Group:\n    def f(self):\n        self._a = self.__dict__\n        self._g()\n    def _g(self): ...",
        "os._exit(1)",
        "'a word about torch._dynamo'",
        "_own = dist.group.WORLD",
    ],
)
def test_names_that_are_not_torchs_are_left_alone(source):
    assert list(touches(IMPORT + source)) == []


def test_a_call_of_torch_that_nobody_would_record_is_named():
    check_calls(OPERATIONS)
    with pytest.raises(ImportError, match="has calls that this package does not know: alltoall, send."):
        check_calls(set(OPERATIONS) - {"send", "alltoall"})
