"""Values on their way between a rank and the judge: JSON for the structure, safetensors for the tensors, no code.

    send(connection, {"do": "done", "value": ...})        receive(connection) -> the same, from plain values and tensors

Every value that comes out is of exactly the type it claims: None, bool, int, float, str, list, tuple, dict, set,
torch.Tensor and a few more. Anything else, such as a subclass with its own `__eq__`, comes out as Other.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import safetensors.torch
import torch

from utils.kit.pipeline_schedule import Step
from utils.kit.slow_memory import ChipFull
from utils.recording.torch_private import DisableTorchFunctionSubclass
from utils.worlds.common.pickling import has_memory

HEADER = struct.Struct("!IQ")  # bytes of JSON, bytes of tensors
MAX_TEXT, MAX_TENSORS = 8 << 20, 512 << 20  # bytes of a message; "[]," becomes 60 bytes in memory
MAX_TENSOR_HEADER = 8 << 20  # bytes: about what 100,000 tensors need
MAX_DEPTH, MAX_VALUES, MAX_SHOWN = 60, 2_000_000, 300
MAX_KEYS = 5_000  # keys that are not text: numbers can be chosen to share one hash, and a million of those take hours
ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (ValueError, TypeError, RuntimeError, ZeroDivisionError, KeyError, IndexError, ChipFull)
}
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype not in (torch.complex128, torch.complex32)
}


class Breach(Exception):
    """A rank sent something that is not a message, or that our code would never send. The text completes "it sent"."""


class Unsendable(TypeError):
    """A value that can't leave the rank; the text tells the student why."""


class Other:
    """A value of a type that can't be judged: only the type's name and the value's repr are known."""

    def __init__(self, kind: str, shown: str):
        self.kind, self.shown = kind, shown

    def __repr__(self) -> str:
        return self.shown


# ---- messages --------------------------------------------------------------------------------------------------------


# The placeholder, a JSON object, that travels in place of a value which the other side has; None for any other value.
PlaceholderFor = Callable[[Any], "dict[str, Any] | None"]
Resolve = Callable[[Any], Any]  # from such a placeholder to the value
Read = Callable[[int], bytes]  # reads so many bytes from a connection, or fewer if the other end is closed


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message. Raises Unsendable for a value that is too large, OSError if the other end is closed."""
    connection.sendall(pack(message))


def pack(message: dict[str, Any], placeholder_for: PlaceholderFor | None = None) -> bytes:
    """A message as it travels. Raises Unsendable for a value that is too large."""
    tensors: dict[str, torch.Tensor] = {}
    packed = Packer(tensors, placeholder_for).pack(message, 0)
    text = json.dumps(packed).encode("utf-8", "surrogatepass")
    data = safetensors.torch.save(tensors) if tensors else b""
    if len(text) > MAX_TEXT:
        raise Unsendable(f"a value of {len(text) >> 20} MB of text is too large to be judged")
    return HEADER.pack(len(text), len(data)) + text + data


def receive(connection: socket.socket, resolve: Resolve | None = None) -> dict[str, Any] | None:
    """The next message; None if the other end is closed. Raises Breach.

    resolve   makes the value that a placeholder stands for; without it, placeholders are refused
    """
    parts = receive_unread(lambda count: read_all(connection, count))
    return None if parts is None else unpack(*parts, resolve)


def receive_unread(read: Read) -> tuple[bytes, bytes] | None:
    """The next message as bytes, its text and its tensors; None if the other end is closed. Raises Breach."""
    header = read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    text_size, data_size = HEADER.unpack(header)
    if text_size > MAX_TEXT or data_size > MAX_TENSORS:
        raise Breach(f"a message of {text_size + data_size:,} bytes")
    body = read(text_size + data_size)
    if len(body) < text_size + data_size:
        return None
    return body[:text_size], body[text_size:]


def unpack(text: bytes, data: bytes, resolve: Resolve | None = None) -> dict[str, Any]:
    """A message from its bytes. Raises Breach."""
    if int.from_bytes(data[:8], "little") > MAX_TENSOR_HEADER:
        raise Breach("too many tensors")
    try:
        packed = json.loads(text.decode("utf-8", "surrogatepass"))
        tensors = safetensors.torch.load(data) if data else {}
        message = Unpacker(tensors, resolve).unpack(packed, 0)
    except Breach:
        raise
    except Exception as error:  # whatever a forged message makes a parser raise
        raise Breach(f"bytes that are not a message ({type(error).__name__})") from None
    if type(message) is not dict:
        raise Breach("a value that is not a message")
    return message


def read_all(connection: socket.socket, count: int) -> bytes:
    """Read so many bytes, or fewer if the other end is closed."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            break
        parts += part
    return bytes(parts)


# ---- packing ---------------------------------------------------------------------------------------------------------


class Packer:
    """Turns values into JSON; tensors go into `tensors`.

    left, keys_left, bytes_left   what the message may still hold: parts, keys that are not text, bytes of tensors
    """

    def __init__(self, tensors: dict[str, torch.Tensor], placeholder_for: PlaceholderFor | None):
        self.tensors, self.placeholder_for = tensors, placeholder_for
        self.left, self.keys_left, self.bytes_left = MAX_VALUES, MAX_KEYS, MAX_TENSORS

    def pack(self, value: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > MAX_DEPTH:
            raise Unsendable("a value of so many parts can't be judged: return tensors, or fewer and smaller lists")
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if self.placeholder_for is not None and (placeholder := self.placeholder_for(value)) is not None:
            return {"placeholder": placeholder}
        pack = PACK.get(kind)
        return pack(self, value, depth + 1) if pack is not None else self.pack_other(value, depth + 1)

    def pack_sequence(self, value: Any, depth: int) -> dict[str, Any]:
        return {type(value).__name__: [self.pack(item, depth) for item in value]}

    def pack_set(self, value: set[Any] | frozenset[Any], depth: int) -> dict[str, Any]:
        self.count_keys(value)
        return self.pack_sequence(value, depth)

    def pack_dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        self.count_keys(value)
        return {"dict": [[self.pack(key, depth), self.pack(item, depth)] for key, item in value.items()]}

    def count_keys(self, keys: Iterable[Any]) -> None:
        self.keys_left -= sum(type(key) is not str for key in keys)
        if self.keys_left < 0:
            raise Unsendable(f"dicts and sets with more than {MAX_KEYS:,} keys that are not text can't be judged")

    def pack_tensor(self, value: torch.Tensor, depth: int) -> dict[str, Any]:
        return {type(value).__name__: self.tensor(value)}

    def pack_array(self, value: numpy.ndarray, depth: int) -> dict[str, Any]:
        if value.dtype.kind not in "biuf" or not value.dtype.isnative:
            return self.pack_other(value, depth)
        return {"array": self.tensor(torch.from_numpy(numpy.array(value, copy=True, order="C")))}

    def pack_other(self, value: Any, depth: int) -> dict[str, Any]:
        """A number of numpy's, an exception, or a value of a type that can't be judged."""
        kind = type(value)
        if isinstance(value, numpy.generic) and kind.__module__ == "numpy" and value.dtype.kind in "biuf":
            return {"number": [str(value.dtype), value.item() if value.dtype.kind != "f" else str(value.item())]}
        if isinstance(value, Exception) and kind.__name__ in ERRORS:
            return {"error": [kind.__name__, str(value)[:MAX_SHOWN]]}
        return {"other": [f"{kind.__name__}"[:MAX_SHOWN], shown(value)]}

    def tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Where a tensor's values are in the message, or the form of one without values."""
        name = str(tensor.dtype).removeprefix("torch.")
        with DisableTorchFunctionSubclass(), torch.no_grad():
            plain = tensor.layout is torch.strided and not tensor.is_quantized and name in DTYPES
            if not (plain or tensor.is_meta):
                raise Unsendable(f"a tensor of layout {tensor.layout} and dtype {tensor.dtype} can't be judged")
            if tensor.is_meta or not has_memory(tensor):
                return {"meta": [name, list(tensor.shape), list(tensor.stride())]}
            self.bytes_left -= tensor.numel() * tensor.element_size()
            if self.bytes_left < 0:
                raise Unsendable(f"tensors of more than {MAX_TENSORS >> 20} MB in one message can't be judged")
            number = str(len(self.tensors))
            values = tensor.detach().cpu().resolve_conj().resolve_neg()
            self.tensors[number] = values.clone(memory_format=torch.contiguous_format)
        return {"at": number}


PACK: dict[type, Callable[[Packer, Any, int], Any]] = {  # by exact type: a subclass may behave differently
    list: lambda packer, value, depth: [packer.pack(item, depth) for item in value],
    tuple: Packer.pack_sequence,
    torch.Size: Packer.pack_sequence,
    Step: Packer.pack_sequence,
    set: Packer.pack_set,
    frozenset: Packer.pack_set,
    dict: Packer.pack_dict,
    torch.Tensor: Packer.pack_tensor,
    torch.nn.Parameter: Packer.pack_tensor,
    torch.dtype: lambda packer, value, depth: {"dtype": str(value).removeprefix("torch.")},
    torch.device: lambda packer, value, depth: {"device": str(value)},
    numpy.ndarray: Packer.pack_array,
}


def shown(value: Any) -> str:
    """The start of a value's repr, whatever its `__repr__` does."""
    try:
        text = repr(value)
        return str(text)[:MAX_SHOWN]
    except Exception:
        return f"<{type(value).__name__}>"


# ---- unpacking -------------------------------------------------------------------------------------------------------


class Unpacker:
    """Makes values from JSON and tensors. Nothing in them can choose what code runs here: see UNPACK."""

    def __init__(self, tensors: dict[str, torch.Tensor], resolve: Resolve | None):
        self.tensors, self.resolve, self.left, self.keys_left = tensors, resolve, MAX_VALUES, MAX_KEYS

    def unpack(self, packed: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > MAX_DEPTH:
            raise Breach("a value with too many parts")
        if packed is None or type(packed) in (bool, int, str):
            return packed
        if type(packed) is float:
            if not math.isfinite(packed):
                raise Breach("a number that JSON does not have")
            return packed
        if type(packed) is list:
            return [self.unpack(item, depth + 1) for item in packed]
        if type(packed) is not dict or len(packed) != 1:
            raise Breach("a value of an unknown kind")
        [(kind, content)] = packed.items()
        if kind == "placeholder":
            if self.resolve is None:
                raise Breach("a placeholder where none is allowed")
            return self.resolve(content)
        unpack = UNPACK.get(kind)
        if unpack is None:
            raise Breach("a value of an unknown kind")
        return unpack(self, content, depth + 1)

    def items(self, content: Any, depth: int) -> list[Any]:
        return [self.unpack(item, depth) for item in listed(content)]

    def key(self, packed: Any, depth: int) -> Any:
        key = self.unpack(packed, depth)
        self.keys_left -= type(key) is not str
        if self.keys_left < 0:
            raise Breach("too many keys")
        return key

    def keys(self, content: Any, depth: int) -> list[Any]:
        return [self.key(item, depth) for item in listed(content)]

    def unpack_float(self, content: Any, depth: int) -> float:
        if content not in ("nan", "inf", "-inf"):
            raise Breach("something that is not a float")
        return float(content)

    def unpack_dict(self, content: Any, depth: int) -> dict[Any, Any]:
        return {self.key(key, depth): self.unpack(value, depth) for key, value in content}

    def unpack_tensor(self, content: Any, depth: int) -> torch.Tensor:
        if "meta" in content:
            name, shape, strides = content["meta"]
            return torch.empty_strided(shape, strides, dtype=DTYPES[name], device="meta")
        return self.tensors[content["at"]]

    def unpack_parameter(self, content: Any, depth: int) -> torch.nn.Parameter:
        tensor = self.unpack_tensor(content, depth)
        return torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point() or tensor.is_complex())

    def unpack_array(self, content: Any, depth: int) -> numpy.ndarray:
        array: numpy.ndarray = self.unpack_tensor(content, depth).numpy()
        return array

    def unpack_number(self, content: Any, depth: int) -> Any:
        name, value = content
        dtype = numpy.dtype(name)
        if dtype.kind not in "biuf" or type(value) not in (bool, int, str):
            raise Breach("something that is not a number")
        return dtype.type(value)

    def unpack_error(self, content: Any, depth: int) -> Exception:
        kind, text = content
        if type(text) is not str:
            raise Breach("something that is not an error")
        return ERRORS[kind](text)

    def unpack_other(self, content: Any, depth: int) -> Other:
        kind, text = content
        if type(kind) is not str or type(text) is not str:
            raise Breach("something that is not a value")
        return Other(kind, text)


def listed(content: Any) -> list[Any]:
    if type(content) is not list:
        raise Breach("something that is not a list")
    return content


UNPACK: dict[str, Callable[[Unpacker, Any, int], Any]] = {
    "float": Unpacker.unpack_float,
    "tuple": lambda unpacker, content, depth: tuple(unpacker.items(content, depth)),
    "set": lambda unpacker, content, depth: set(unpacker.keys(content, depth)),
    "frozenset": lambda unpacker, content, depth: frozenset(unpacker.keys(content, depth)),
    "Size": lambda unpacker, content, depth: torch.Size(unpacker.items(content, depth)),
    "Step": lambda unpacker, content, depth: Step(*unpacker.items(content, depth)),
    "dict": Unpacker.unpack_dict,
    "Tensor": Unpacker.unpack_tensor,
    "Parameter": Unpacker.unpack_parameter,
    "array": Unpacker.unpack_array,
    "number": Unpacker.unpack_number,
    "dtype": lambda unpacker, content, depth: DTYPES[content],
    "device": lambda unpacker, content, depth: torch.device(content),
    "error": Unpacker.unpack_error,
    "other": Unpacker.unpack_other,
}
