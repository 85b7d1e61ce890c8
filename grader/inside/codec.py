"""Values on their way between a rank and the judge: JSON for the structure, safetensors for the tensors, no code.

    send(line, {"do": "done", "value": ...})        receive(line) -> the same, made of plain values and tensors alone

What comes out is what it says it is: None, bool, int, float, str, list, tuple, dict, set, torch.Tensor and a few more,
each of exactly that type. Anything else, a subclass with an `__eq__` of its own say, comes out as Other.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy
import safetensors.torch
import torch

from utils.kit.pipeline_schedule import Step
from utils.kit.slow_memory import ChipFull
from utils.recording.torch_private import DisableTorchFunctionSubclass

HEADER = struct.Struct("!IQ")  # bytes of JSON, bytes of tensors
MOST_TEXT, MOST_TENSORS = 8 << 20, 512 << 20  # bytes of a message; "[]," makes 60 bytes of three
MOST_HEADER = 8 << 20  # of the tensors: about as many bytes as 100,000 of them need
DEEPEST, MOST_VALUES, LONGEST_SHOWN = 60, 2_000_000, 300
MOST_KEYS = 5_000  # that are no text: numbers can be chosen so that all have one hash, and a million would take hours
ERRORS = {
    kind.__name__: kind
    for kind in (ValueError, TypeError, RuntimeError, ZeroDivisionError, KeyError, IndexError, ChipFull)
}
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype not in (torch.complex128, torch.complex32)
}


class Breach(Exception):
    """What came is no message, or one that no rank of ours would send."""


class Unsendable(TypeError):
    """A value that can't leave the rank; the text says why, for the student."""


class Other:
    """A value of a type that can't be judged: only its type's name and how it shows itself are known."""

    def __init__(self, kind: str, shown: str):
        self.kind, self.shown = kind, shown

    def __repr__(self) -> str:
        return self.shown


# ---- messages --------------------------------------------------------------------------------------------------------


Known = Callable[[Any], "dict | None"]


def send(line: socket.socket, message: dict[str, Any], known: Known = lambda value: None) -> None:
    """Send one message. Raises Unsendable for a value that is too much, OSError when nobody is at the other end."""
    line.sendall(pack(message, known))


def pack(message: dict[str, Any], known: Known = lambda value: None) -> bytes:
    """A message as it travels. known: what stands for a value that the other side has, a JSON object; or None."""
    tensors: dict[str, torch.Tensor] = {}
    packed = Packer(tensors, known).pack(message, 0)
    text = json.dumps(packed).encode("utf-8", "surrogatepass")
    data = safetensors.torch.save(tensors) if tensors else b""
    if len(text) > MOST_TEXT:
        raise Unsendable(f"a value of {len(text) >> 20} MB of text is too much to be judged")
    return HEADER.pack(len(text), len(data)) + text + data


def receive(
    line: socket.socket, known: Callable[[dict], Any] | None = None, read: Callable[[int], bytes] | None = None
) -> dict[str, Any] | None:
    """The next message; None when the other end is closed. Raises Breach.

    known: makes a value of what `known` of the sender has put in its place. read: reads so many bytes, or fewer when
    the other end is closed.
    """
    read = read or (lambda count: read_all(line, count))
    header = read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    text_size, data_size = HEADER.unpack(header)
    if text_size > MOST_TEXT or data_size > MOST_TENSORS:
        raise Breach(f"a message of {text_size + data_size:,} bytes")
    body = read(text_size + data_size)
    if len(body) < text_size + data_size:
        return None
    if int.from_bytes(body[text_size : text_size + 8], "little") > MOST_HEADER:
        raise Breach("too many tensors")
    try:
        packed = json.loads(body[:text_size].decode("utf-8", "surrogatepass"))
        tensors = safetensors.torch.load(body[text_size:]) if data_size else {}
        message = Unpacker(tensors, known).unpack(packed, 0)
    except Breach:
        raise
    except Exception as error:  # whatever a forged message makes a parser say
        raise Breach(f"not a message: {type(error).__name__}") from None
    if type(message) is not dict:
        raise Breach("not a message")
    return message


def read_all(line: socket.socket, count: int) -> bytes:
    """So many bytes; fewer when the other end is closed."""
    parts = bytearray()
    while len(parts) < count:
        part = line.recv(min(count - len(parts), 1 << 20))
        if not part:
            break
        parts += part
    return bytes(parts)


# ---- in -------------------------------------------------------------------------------------------------------------


class Packer:
    """Turns values into JSON; tensors go into `tensors`."""

    def __init__(self, tensors: dict[str, torch.Tensor], known: Known):
        self.tensors, self.known, self.left, self.room = tensors, known, MOST_VALUES, MOST_TENSORS
        self.keys = MOST_KEYS

    def pack(self, value: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > DEEPEST:
            raise Unsendable("a value of so many parts can't be judged: return tensors, or fewer and smaller lists")
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if (stands := self.known(value)) is not None:
            return {"known": stands}
        if kind is list:
            return [self.pack(item, depth + 1) for item in value]
        if kind in (set, frozenset, dict):
            self.keys -= sum(type(key) is not str for key in value)
            if self.keys < 0:
                raise Unsendable(f"dicts and sets with more than {MOST_KEYS:,} keys that are no text can't be judged")
        if kind in (tuple, set, frozenset, torch.Size):
            return {kind.__name__: [self.pack(item, depth + 1) for item in value]}
        if kind is dict:
            return {"dict": [[self.pack(k, depth + 1), self.pack(v, depth + 1)] for k, v in value.items()]}
        if kind is Step:
            return {"Step": [self.pack(item, depth + 1) for item in value]}
        if kind in (torch.Tensor, torch.nn.Parameter):
            return {kind.__name__: self.pack_tensor(value)}
        if kind is torch.dtype:
            return {"dtype": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"device": str(value)}
        if kind is numpy.ndarray and value.dtype.kind in "biuf" and value.dtype.isnative:
            return {"array": self.pack_tensor(torch.from_numpy(numpy.array(value, copy=True, order="C")))}
        if isinstance(value, numpy.generic) and kind.__module__ == "numpy" and value.dtype.kind in "biuf":
            return {"number": [str(value.dtype), value.item() if value.dtype.kind != "f" else str(value.item())]}
        if isinstance(value, Exception) and kind.__name__ in ERRORS:
            return {"error": [kind.__name__, str(value)[:LONGEST_SHOWN]]}
        return {"other": [f"{kind.__name__}"[:LONGEST_SHOWN], shown(value)]}

    def pack_tensor(self, tensor: torch.Tensor) -> dict:
        name = str(tensor.dtype).removeprefix("torch.")
        with DisableTorchFunctionSubclass(), torch.no_grad():
            if tensor.is_meta:
                return {"meta": [name, list(tensor.shape), list(tensor.stride())]}
            if tensor.layout is not torch.strided or tensor.is_quantized or name not in DTYPES:
                raise Unsendable(f"a tensor of layout {tensor.layout} and dtype {tensor.dtype} can't be judged")
            self.room -= tensor.numel() * tensor.element_size()
            if self.room < 0:
                raise Unsendable(f"tensors of more than {MOST_TENSORS >> 20} MB in one message can't be judged")
            number = str(len(self.tensors))
            values = tensor.detach().cpu().resolve_conj().resolve_neg()
            self.tensors[number] = values.clone(memory_format=torch.contiguous_format)
        return {"at": number}


def shown(value: Any) -> str:
    """How a value shows itself, whatever its `__repr__` does."""
    try:
        text = repr(value)
        return str(text)[:LONGEST_SHOWN]
    except Exception:
        return f"<{type(value).__name__}>"


# ---- out -------------------------------------------------------------------------------------------------------------


class Unpacker:
    """Makes values of JSON and tensors. Nothing in them can choose what code runs here."""

    def __init__(self, tensors: dict[str, torch.Tensor], known: Callable[[dict], Any] | None):
        self.tensors, self.known, self.left, self.keys = tensors, known, MOST_VALUES, MOST_KEYS

    def unpack(self, packed: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > DEEPEST:
            raise Breach("a value of too many parts")
        if packed is None or type(packed) in (bool, int, str):
            return packed
        if type(packed) is float:
            if not math.isfinite(packed):
                raise Breach("a number that JSON has not")
            return packed
        if type(packed) is list:
            return [self.unpack(item, depth + 1) for item in packed]
        if type(packed) is not dict or len(packed) != 1:
            raise Breach("a value of no known kind")
        [(kind, content)] = packed.items()
        if kind == "known":
            if self.known is None:
                raise Breach("a value that nobody here knows")
            return self.known(content)
        make = getattr(self, f"make_{kind}", None)
        if make is None:
            raise Breach("a value of no known kind")
        return make(content, depth + 1)

    def items(self, content: Any, depth: int) -> list:
        if type(content) is not list:
            raise Breach("no list")
        return [self.unpack(item, depth) for item in content]

    def key(self, packed: Any, depth: int) -> Any:
        key = self.unpack(packed, depth)
        self.keys -= type(key) is not str
        if self.keys < 0:
            raise Breach("too many keys")
        return key

    def keys_of(self, content: Any, depth: int) -> list:
        if type(content) is not list:
            raise Breach("no list")
        return [self.key(item, depth) for item in content]

    def make_float(self, content: Any, depth: int) -> float:
        if content not in ("nan", "inf", "-inf"):
            raise Breach("no float")
        return float(content)

    def make_tuple(self, content: Any, depth: int) -> tuple:
        return tuple(self.items(content, depth))

    def make_set(self, content: Any, depth: int) -> set:
        return set(self.keys_of(content, depth))

    def make_frozenset(self, content: Any, depth: int) -> frozenset:
        return frozenset(self.keys_of(content, depth))

    def make_Size(self, content: Any, depth: int) -> torch.Size:
        return torch.Size(self.items(content, depth))

    def make_Step(self, content: Any, depth: int) -> Step:
        return Step(*self.items(content, depth))

    def make_dict(self, content: Any, depth: int) -> dict:
        return {self.key(key, depth): self.unpack(value, depth) for key, value in content}

    def make_Tensor(self, content: Any, depth: int) -> torch.Tensor:
        return self.tensor(content)

    def make_Parameter(self, content: Any, depth: int) -> torch.nn.Parameter:
        tensor = self.tensor(content)
        return torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point() or tensor.is_complex())

    def tensor(self, content: Any) -> torch.Tensor:
        if "meta" in content:
            name, shape, strides = content["meta"]
            return torch.empty_strided(shape, strides, dtype=DTYPES[name], device="meta")
        return self.tensors[content["at"]]

    def make_array(self, content: Any, depth: int) -> numpy.ndarray:
        return self.tensor(content).numpy()

    def make_number(self, content: Any, depth: int) -> numpy.generic:
        name, value = content
        dtype = numpy.dtype(name)
        if dtype.kind not in "biuf" or type(value) not in (bool, int, str):
            raise Breach("no number")
        return dtype.type(value)

    def make_dtype(self, content: Any, depth: int) -> torch.dtype:
        return DTYPES[content]

    def make_device(self, content: Any, depth: int) -> torch.device:
        return torch.device(content)

    def make_error(self, content: Any, depth: int) -> Exception:
        kind, text = content
        if type(text) is not str:
            raise Breach("no error")
        return ERRORS[kind](text)

    def make_other(self, content: Any, depth: int) -> Other:
        kind, text = content
        if type(kind) is not str or type(text) is not str:
            raise Breach("no value")
        return Other(kind, text)
