"""Whose gradient a rank reduces: of two parameters of equal shape, nothing in the call itself tells which it is.

Replicas of a parameter have the same values on all ranks, so a parameter goes by a fingerprint of its values. It is
found by its gradient: among all tensors of the process there is one whose `grad` is the tensor at hand. Several that
were put into one tensor, as torch.cat does, are found by the gradients' values.
"""

from __future__ import annotations

import gc
import zlib
from weakref import ref

import torch

from .notes import GradientOf, Note, ParameterIn, ParametersAre
from .torch_private import is_leaf, version_of

MAX_CALLS = 2_000  # a wrong order shows early; later calls are not looked at
MAX_SEARCHES = 20  # one per optimizer step; each goes through all objects of the process, in a few milliseconds
SAMPLE = 256  # elements of a parameter in its fingerprint


class Gradients:
    """The parameters of one rank, found again by the addresses of their gradients."""

    def __init__(self) -> None:
        self.calls_left, self.searches_left = MAX_CALLS, MAX_SEARCHES
        self.parameters: dict[int, tuple[ref[torch.Tensor], ParameterIn]] = {}  # by their own addresses, as first seen
        self.by_address: dict[int, tuple[ref[torch.Tensor], GradientOf, int]] = {}  # with the version of the values

    def notes_about(self, call: int, tensor: torch.Tensor) -> list[Note]:
        """What to note about a call that reduces or broadcasts `tensor`; nothing unless it is a parameter, or has
        the gradients of some.
        """
        if not self.calls_left or not tensor.is_floating_point():
            return []
        self.calls_left -= 1
        notes: list[Note] = []
        found = self.look_up(tensor)
        if found is None and self.itself(tensor) is None and self.searches_left:
            self.searches_left -= 1
            notes.append(ParametersAre(self.search()))
            found = self.look_up(tensor)
            if found is None and self.itself(tensor) is None:
                notes += [part._replace(call=call) for part in self.parts_of(tensor)]
        if found is not None:
            notes.append(found._replace(call=call))
        elif (itself := self.itself(tensor)) is not None:
            notes.append(itself._replace(call=call))
        return notes

    def itself(self, tensor: torch.Tensor) -> ParameterIn | None:
        """The parameter that this tensor is, or whose memory it has; None if there is none."""
        reference, found = self.parameters.get(tensor.data_ptr(), (None, None))
        parameter = None if reference is None else reference()
        return found if parameter is not None and parameter.shape == tensor.shape else None

    def look_up(self, gradient: torch.Tensor) -> GradientOf | None:
        reference, found, version = self.by_address.get(gradient.data_ptr(), (None, None, 0))
        parameter = None if reference is None else reference()
        if found is None or parameter is None or version_of(parameter) != version or parameter.grad is None:
            return None
        if parameter.grad.data_ptr() != gradient.data_ptr() or parameter.shape != gradient.shape:
            return None
        # `p.data -= ...` leaves the version as it was, so only the values tell that they are old.
        return found if has_values(parameter) and fingerprint(parameter) == found.fingerprint else None

    def parts_of(self, flat: torch.Tensor) -> list[GradientOf]:
        """Whose gradients follow one another in this tensor; [] unless that is certain and all of it.

        A count or a flag equals some gradient by accident, and so do zeros. So one of them must have different numbers.
        """
        if flat.dim() != 1:
            return []
        left: list[tuple[GradientOf, torch.Tensor]] = []
        for reference, found, _ in self.by_address.values():
            parameter = reference()
            gradient = None if parameter is None else parameter.grad
            if (
                gradient is not None
                and gradient.numel()
                and (gradient.device, gradient.dtype) == (flat.device, flat.dtype)
            ):
                left.append((found, gradient.detach().reshape(-1)))
        begins = [gradient[0].item() for _, gradient in left]
        parts: list[GradientOf] = []
        at, certain = 0, False
        while at < len(flat):
            begin = flat[at].item()
            fits = [
                number
                for number, (_, gradient) in enumerate(left)
                if begins[number] == begin and torch.equal(gradient, flat[at : at + len(gradient)])
            ]
            if len({left[number][0].fingerprint for number in fits}) != 1:
                return []
            found, gradient = left.pop(fits[0])
            begins.pop(fits[0])
            parts.append(found)
            at += len(gradient)
            certain = certain or bool((gradient != begin).any())
        return parts if certain else []

    def search(self) -> list[int]:
        """Find all parameters of this process. Returns their fingerprints."""
        objects = gc.get_objects()
        names: dict[int, str] = {}
        for module in objects:
            if issubclass(type(module), torch.nn.Module):
                for name, parameter in module.named_parameters():
                    names[id(parameter)] = max(names.get(id(parameter), ""), name, key=len)
        self.by_address.clear()
        fingerprints = []
        for tensor in objects:
            if type(tensor) in (torch.Tensor, torch.nn.Parameter) and is_leaf(tensor) and has_values(tensor):
                fingerprints.append(fingerprint(tensor))
                self.keep(tensor, fingerprints[-1], names.get(id(tensor), ""))
                if tensor.grad is not None:
                    found = GradientOf(0, fingerprints[-1], names.get(id(tensor), ""))
                    self.by_address[tensor.grad.data_ptr()] = ref(tensor), found, version_of(tensor)
        return fingerprints

    def keep(self, parameter: torch.Tensor, number: int, name: str) -> None:
        known = self.parameters.get(parameter.data_ptr(), (None, None))[0]
        if parameter.numel() and (known is None or known() is not parameter):
            self.parameters[parameter.data_ptr()] = ref(parameter), ParameterIn(0, number, name)


def has_values(tensor: torch.Tensor) -> bool:
    """Whether it is trained and has memory: FSDP takes a weight's away while nobody computes with it."""
    return tensor.requires_grad and not tensor.is_meta and tensor.untyped_storage().nbytes() > 0


def fingerprint(parameter: torch.Tensor) -> int:
    """The same number for equal values of the same shape and dtype."""
    values = parameter.detach().reshape(-1)
    sample = values[:: max(1, len(values) // SAMPLE)].clone().cpu().view(torch.uint8)  # numpy() would pin its storage
    return zlib.crc32(f"{parameter.shape} {parameter.dtype}".encode() + sample.numpy().tobytes())
