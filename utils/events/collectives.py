"""The one table of collectives, and of the methods by which torch calls them.

What depends on which collective it is, asks the table: how calls are recorded and drawn, which mistakes they can hold,
what moves, how many bytes count. A new collective is a row here. Only its time can't be derived: collective_costs.py,
nccl_costs.py and gloo_costs.py each have an algorithm for it, or say by name that they have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

TABLE = "events/collectives.py"
POINT_TO_POINT = ("send", "recv")

ALL, ROOT, OTHERS, NOBODY = "all", "root", "others", "nobody"


@dataclass(frozen=True)
class Method:
    """A method of torch's ProcessGroup.

    filled   the form of its first argument: where a rank wants its result; or, if it has no other, all its tensors
    read     the form of its second argument: what a rank hands in; "" if `filled` is read as well
    dense    which of these arguments Gloo takes to lie in memory without gaps

    Forms:   tensor         one tensor                         tensors   several, each with a collective of its own
             whole          one tensor with a part per rank    wholes    several of them
             list           a list with a tensor per rank      lists     several of them; [] where only a root has one
             rows           one tensor with some of its rows per rank, so many as two more arguments say
             lists by rank  for each rank, a list with a tensor for each of several collectives
    """

    filled: str = ""
    read: str = ""
    dense: tuple[int, ...] = ()


IN_PLACE = Method("tensors", dense=(0,))
MESSAGE = Method("tensors")


@dataclass(frozen=True)
class Collective:
    """What one collective does, and how torch calls it.

    gives      whose tensors are read: ALL, ROOT or NOBODY
    receives   who gets values: ALL, ROOT, OTHERS (all but the root) or NOBODY
    in_parts   whether a rank gives each rank a part of its own; if not, all that receive get the same from it
    reduces    whether what the ranks give is added up (or multiplied, ...) rather than put side by side
    colour     in pictures
    methods    {torch's name: Method}. Some names changed from torch 2.11 to 2.13; both are here
    """

    name: str
    gives: str
    receives: str
    in_parts: bool
    reduces: bool
    colour: str
    methods: Mapping[str, Method]

    @property
    def rooted(self) -> bool:
        return ROOT in (self.gives, self.receives)

    @cached_property
    def input_is_chunk(self) -> bool:
        """Whether what a rank hands in is one chunk of the result."""
        return self.gives == ALL and not self.in_parts and not self.reduces

    @property
    def in_chunks(self) -> bool:
        """Whether the larger side consists of a chunk for each rank; if so, torch takes (result, input)."""
        return self.in_parts or self.input_is_chunk

    @property
    def in_place(self) -> bool:
        """Whether a rank's result takes the place of its input."""
        return self.gives != NOBODY and not self.in_chunks

    @property
    def same_size(self) -> bool:
        """Whether all ranks must hand in as many elements, of the same dtype."""
        return self.gives != NOBODY and (self.reduces or not self.in_parts)

    @property
    def laps(self) -> int:
        """How often the bytes go around a ring: an all-reduce is a reduce-scatter and an all-gather."""
        return 2 if self.reduces and self.receives == ALL and not self.in_parts else 1

    def fills(self, is_root: bool) -> bool:
        """Whether a rank gets values."""
        return self.receives == ALL or (self.receives == ROOT and is_root) or (self.receives == OTHERS and not is_root)

    def ring_share(self, ranks: int) -> Fraction:
        """What each rank must send, as a multiple of the whole. nccl-tests multiplies by it to get busbw."""
        if self.gives == NOBODY:
            return Fraction(0)
        everybody = self.in_chunks or self.laps == 2
        return self.laps * Fraction(ranks - 1, ranks) if everybody else Fraction(1)


class Collectives(dict[str, Collective]):
    """{name: Collective}."""

    def __missing__(self, name: str) -> Collective:
        raise LookupError(f"there is no collective {name!r} in {TABLE}: it has to be added to the table there.")

    def names(self, has: Callable[[Collective], bool] = lambda one: True) -> tuple[str, ...]:
        """Of all for which `has` is true, in the table's order."""
        return tuple(name for name, one in self.items() if has(one))


def one_per_name(*rows: Collective) -> Collectives:
    return Collectives({row.name: row for row in rows})


def methods(*names: str, form: Method) -> dict[str, Method]:
    return dict.fromkeys(names, form)


ALL_REDUCES = methods("allreduce", "allreduce_coalesced", form=IN_PLACE)
GATHERS = {
    "allgather": Method("lists", "tensors"),
    "allgather_coalesced": Method("lists by rank", "tensors"),
    **methods("_allgather_base", "all_gather_single", form=Method("whole", "tensor")),
    **methods("allgather_into_tensor_coalesced", "all_gather_single_coalesced", form=Method("wholes", "tensors")),
}
REDUCE_SCATTERS = {
    "reduce_scatter": Method("tensors", "lists", dense=(0,)),
    **methods("_reduce_scatter_base", "reduce_scatter_single", form=Method("tensor", "whole")),
    **methods("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", form=Method("tensors", "wholes")),
}
EXCHANGES = {
    "alltoall": Method("list", "list"),
    **methods("alltoall_base", "all_to_all_single", form=Method("rows", "rows", dense=(0,))),
}
BARRIERS = methods("barrier", "monitored_barrier", form=Method())

COLLECTIVES = one_per_name(  # name, gives, receives, in_parts, reduces, colour, methods
    Collective("all_reduce", ALL, ALL, False, True, "#D55E00", ALL_REDUCES),
    Collective("broadcast", ROOT, OTHERS, False, False, "#C2A357", {"broadcast": IN_PLACE}),
    Collective("reduce", ALL, ROOT, False, True, "#9466A3", {"reduce": IN_PLACE}),
    Collective("all_gather", ALL, ALL, False, False, "#9457FF", GATHERS),
    Collective("reduce_scatter", ALL, ALL, True, True, "#C2F0C2", REDUCE_SCATTERS),
    Collective("all_to_all", ALL, ALL, True, False, "#F01A57", EXCHANGES),
    Collective("gather", ALL, ROOT, False, False, "#6675D1", {"gather": Method("lists", "tensors")}),
    Collective("scatter", ROOT, ALL, True, False, "#57FF85", {"scatter": Method("tensors", "lists", dense=(0, 1))}),
    Collective("barrier", NOBODY, NOBODY, False, False, "#C2C2C2", BARRIERS),
)


def form_of(op: str, method: str) -> Method:
    """What the arguments of a method hold. op: what the method does, which may be to send or receive."""
    if op in POINT_TO_POINT:
        return MESSAGE
    if method not in COLLECTIVES[op].methods:
        raise LookupError(f"{op} has no method {method!r} in {TABLE}: it has to be added there.")
    return COLLECTIVES[op].methods[method]


def fills(op: str, is_root: bool) -> bool:
    """Whether a call, which may be a message, gives its rank values. is_root: whether the rank is its root."""
    return op == "recv" if op in POINT_TO_POINT else COLLECTIVES[op].fills(is_root)


def not_known(op: str, where: str) -> NotImplementedError:
    """The error of a place that has a rule of its own for each collective, and none for this one."""
    return NotImplementedError(f"{where} has no rule for {op!r}. Add it there: {TABLE} has the collective.")
