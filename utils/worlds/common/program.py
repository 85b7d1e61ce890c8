"""A rank program on its way to the ranks: checked, and pickled by value, before any process starts."""

from __future__ import annotations

import io
import pickle
import sys

import cloudpickle

from .pickling import CannotTravel, imported_types, pack, pickled_size, why_not
from .unpicklable import find_culprit, is_students, parts_of_call, variables_of_call

LARGE = 50e6  # bytes of program from which on it is said what makes it large

MAKE_IT_INSIDE = "Each rank is a process of its own: make such things inside the function."
ON_A_DEVICE = (("torch", "Tensor"), ("torch", "UntypedStorage"), ("torch", "Generator"))
# These pickle, and would be broken where they arrive; with what to do instead.
OF_THIS_PROCESS = {
    ("torch.distributed.device_mesh", "DeviceMesh"): MAKE_IT_INSIDE,
    ("tqdm.std", "tqdm"): MAKE_IT_INSIDE,
    ("IPython.core.interactiveshell", "InteractiveShell"): (
        "Lines with % or ! work in the notebook only; a rank program uses plain Python, subprocess.run for a command."
    ),
}


def pickle_program(fn, args: tuple, kwargs: dict, world_size: int, pickler: type | None = None) -> bytes:
    """The program by value, as bytes. Raises TypeError that names what can't travel; says in a line what is large.

    A text file that is open for reading arrives as a copy of what it holds, at the same place in it.
    """
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    if module is not None and module.__name__ != "__main__" and is_students(fn):
        cloudpickle.register_pickle_by_value(module)  # as a cell's functions: the rank need not find or import its file
    program = io.BytesIO()
    try:
        (pickler or ProgramPickler)(program).dump((fn, args, kwargs))
    except Exception as error:
        raise TypeError(why_refused(fn, args, kwargs, error)) from None
    if program.tell() > LARGE:
        print(what_is_large(fn, args, kwargs, program.tell(), world_size))
    return program.getvalue()


class ProgramPickler(cloudpickle.Pickler):
    """Pickles by value what the notebook defines; refuses what is on a GPU or bound to this process."""

    def __init__(self, file):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.on_a_device = imported_types(*ON_A_DEVICE)
        self.of_this_process = imported_types(*OF_THIS_PROCESS)

    def reducer_override(self, value):
        if isinstance(value, self.on_a_device):
            if value.device.type not in ("cpu", "meta"):
                raise CannotTravel(
                    value,
                    f"it is on {value.device}, and each rank opens the GPU for itself",
                    "Make it inside the function, on get_device(), or send it from the CPU: x.cpu().",
                )
            if is_plain(value):
                return pack(value)
        elif isinstance(value, self.of_this_process):
            advice = next(words for name, words in OF_THIS_PROCESS.items() if isinstance(value, imported_types(name)))
            raise CannotTravel(value, "it belongs to the notebook's own process", advice)
        return super().reducer_override(value)


def is_plain(value) -> bool:
    """Whether it is a tensor, and values, dtype and shape are all there is to it."""
    import torch

    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.is_contiguous()
        and not (value.requires_grad or value.is_quantized or value.is_nested or vars(value))
    )


def why_refused(fn, args: tuple, kwargs: dict, error: Exception) -> str:
    """Which variable of the program can't be pickled, why, and what to do."""
    roots = parts_of_call(fn, args, kwargs)
    culprit, error = find_culprit(roots, lambda value: why_not(ProgramPickler, value)) or (roots[0], error)
    if isinstance(error.__cause__, RecursionError):
        error = "it is nested too deeply"
    return f"{culprit} can't be sent to the ranks: {error}. {getattr(error, 'advice', MAKE_IT_INSIDE)}"


def what_is_large(fn, args: tuple, kwargs: dict, size: int, world_size: int) -> str:
    """One line: how large the program is, which variables make it so, and what to do."""
    sizes = [
        (pickled_size(ProgramPickler, part.value), part) for part in variables_of_call(parts_of_call(fn, args, kwargs))
    ]
    largest = [(bytes, part) for bytes, part in sorted(sizes, key=lambda pair: -pair[0]) if bytes > size / 10][:3]
    named = ", ".join(f"`{part.name}`, {part.role} ({bytes / 1e6:,.0f} MB)" for bytes, part in largest)
    copies = f"each of the {world_size} ranks gets its own copy" if world_size > 1 else "the rank gets its own copy"
    return (
        f"This program takes {size / 1e6:,.0f} MB along{': ' + named if named else ''}; {copies}. "
        "Make or load it inside the function."
    )
