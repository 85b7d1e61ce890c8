"""A rank program on its way to the ranks: checked, and pickled by value, before any process starts."""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from .by_value import Pickler, register_pickle_by_value
from .compiled import is_compiled, reduce_compiled
from .pickling import CannotTravel, imported_types, pack, pickled_size, pickling_error
from .unpicklable import find_culprit, parts_of_call, students_wrote, variables_of_call

LARGE = 50e6  # bytes: above this, a line says what makes the program so large

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]

MAKE_IT_INSIDE = "Each rank is a process of its own: create it inside the function."
ON_A_DEVICE = (("torch", "Tensor"), ("torch", "UntypedStorage"), ("torch", "Generator"))
# These can be pickled, but would be broken where they arrive; with what to do instead.
OF_THIS_PROCESS = {
    ("torch.distributed.device_mesh", "DeviceMesh"): MAKE_IT_INSIDE,
    ("tqdm.std", "tqdm"): MAKE_IT_INSIDE,
    ("IPython.core.interactiveshell", "InteractiveShell"): (
        "Lines with % or ! work only in the notebook. Rank programs use plain Python, and subprocess.run for commands."
    ),
}


def name_of(fn: Callable[..., object]) -> str:
    """The function's name; "" if it has none, as a lambda."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", "").replace("<lambda>", "")


def pickle_program(
    fn: Callable[..., object],
    args: Arguments,
    kwargs: Keywords,
    world_size: int,
    pickler: Callable[[Any], pickle.Pickler] | None = None,
) -> bytes:
    """The program by value, as bytes. If it is large, prints a line that says why.

    A text file that is open for reading arrives as a copy of its contents, at the same position.
    Raises TypeError that names the variable that can't travel.
    """
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    if module is not None and module.__name__ != "__main__" and students_wrote(fn):
        register_pickle_by_value(module)  # as with a cell's functions: the rank need not find its file
    program = io.BytesIO()
    try:
        (pickler or ProgramPickler)(program).dump((fn, args, kwargs))
    except Exception as error:
        raise TypeError(why_refused(fn, args, kwargs, error)) from None
    if program.tell() > LARGE:
        print(size_text(fn, args, kwargs, program.tell(), world_size))
    return program.getvalue()


class ProgramPickler(Pickler):
    """Pickles by value whatever the notebook defines. Refuses anything on a GPU or bound to this process."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.on_a_device = imported_types(*ON_A_DEVICE)
        self.of_this_process = imported_types(*OF_THIS_PROCESS)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, self.on_a_device):
            if value.device.type not in ("cpu", "meta"):
                raise CannotTravel(
                    value,
                    f"it is on {value.device}, and each rank must open the GPU itself",
                    "Make it inside the function, on get_device(), or send it from the CPU: x.cpu().",
                )
            if is_plain(value):
                return pack(value)
        elif is_compiled(value):
            return reduce_compiled(value)
        elif isinstance(value, ModuleType) and type(value) is not ModuleType and value.__name__ in sys.modules:
            return import_module, (value.__name__,)  # cloudpickle only knows plain modules; torch.backends.cudnn is not
        elif isinstance(value, self.of_this_process):
            advice = next(words for name, words in OF_THIS_PROCESS.items() if isinstance(value, imported_types(name)))
            raise CannotTravel(value, "it belongs to the notebook's own process", advice)
        return super().reducer_override(value)


def is_plain(value: Any) -> bool:
    """Whether it is a tensor with nothing more to it than values, dtype and shape."""
    import torch

    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.is_contiguous()
        and not (value.requires_grad or value.is_quantized or value.is_nested or vars(value))
    )


def why_refused(fn: Callable[..., object], args: Arguments, kwargs: Keywords, error: Exception) -> str:
    """Which variable of the program can't be pickled, why, and what to do."""
    roots = parts_of_call(fn, args, kwargs)
    culprit, error = find_culprit(roots, lambda value: pickling_error(ProgramPickler, value)) or (roots[0], error)
    why = "it is nested too deeply" if isinstance(error.__cause__, RecursionError) else error
    return f"{culprit} can't be sent to the ranks: {why}. {getattr(error, 'advice', MAKE_IT_INSIDE)}"


def size_text(fn: Callable[..., object], args: Arguments, kwargs: Keywords, size: int, world_size: int) -> str:
    """One line: how large the program is, which variables make it so, and what to do."""
    sizes = [
        (pickled_size(ProgramPickler, part.value), part) for part in variables_of_call(parts_of_call(fn, args, kwargs))
    ]
    largest = [(nbytes, part) for nbytes, part in sorted(sizes, key=lambda pair: -pair[0]) if nbytes > size / 10][:3]
    named = ", ".join(f"`{part.name}`, {part.role} ({nbytes / 1e6:,.0f} MB)" for nbytes, part in largest)
    copies = f"each of the {world_size} ranks gets its own copy" if world_size > 1 else "the rank gets its own copy"
    return (
        f"This program carries {size / 1e6:,.0f} MB with it{': ' + named if named else ''}; {copies}. "
        "Make or load it inside the function."
    )
