"""What a kernel is given and what it gives back: arrays and plain data, written to files and read from them.

Both processes in which a user's code runs, and the judge, speak of them by these descriptions. Nothing but the standard
library is imported, and nothing newer than Python 3.9 is used; numpy and torch are used where the user's code does.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NUMPY_KINDS = "biufcmMSU"
PLAIN = (bool, int, float, complex, str, bytes, type(None))
PACKED = (bytearray, array, range, set, frozenset)
ALIGNMENT = 64


class Told(Exception):
    """What is wrong, in words that need no traceback; `where` is the function or file that it is about."""

    def __init__(self, message: str, where: tuple[str, int] = ("", 0)) -> None:
        super().__init__(message)
        self.where = where


class Leaf:
    """One array among the arguments, or one piece of plain data: what it is, and how its values come and go."""

    def __init__(self, kind: str, value: Any, role: str, key: Any) -> None:
        self.kind, self.value, self.role = kind, value, role
        self.spec: dict[str, Any] = {"kind": kind, "role": role, "argument": key}
        if kind == "array":
            self.spec.update(_array_spec(value))

    def room(self) -> Any:
        """Memory of the same layout, on the same device, elsewhere; plain data is had from its slot."""
        return None if self.kind == "plain" else _like(self.value, self.spec)

    def write(self, file: Any, value: Any = None) -> None:
        """The values, contiguous, at the file's place for them."""
        if self.kind == "array":
            file.seek(self.spec["offset"])
            file.write(_raw(_contiguous(self.value if value is None else value)))

    def read(self, file: Any, into: Any) -> None:
        """The values from the file's place for them, in place."""
        file.seek(self.spec["offset"])
        if is_torch(into):
            torch = sys.modules["torch"]
            with torch.no_grad():
                if into.is_contiguous() and not into.is_cuda:
                    file.readinto(_raw(into.detach()))
                else:
                    host = torch.empty(into.shape, dtype=into.dtype)
                    file.readinto(_raw(host))
                    _distinct(into.detach()).copy_(_distinct(host, into.stride()))
                into.grad = None
        elif into.flags.c_contiguous:
            file.readinto(_raw(into))
        else:
            host = sys.modules["numpy"].empty(into.shape, into.dtype)
            file.readinto(_raw(host))
            into[...] = host


def digest(leaves: Sequence[Leaf], values: Sequence[Any]) -> str:
    """A fingerprint of the plain data that a function has no leave to change."""
    kept = [value for leaf, value in zip(leaves, values) if leaf.kind == "plain" and leaf.role == "input"]
    unordered = any(type(each) in (set, frozenset) for each in kept)
    return "" if unordered else hashlib.sha256(repr(kept).encode()).hexdigest()


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    """("array" | "plain", leaf) of an argument; what is neither belongs to each process itself."""
    if is_array(value):
        yield "array", value
    elif is_plain(value):
        yield "plain", value
    elif type(value) in (list, tuple):
        for each in value:
            yield from walk(each)
    elif type(value) is dict:
        for each in value.values():
            yield from walk(each)


def replaced(value: Any, leaves: Iterator[Any]) -> Any:
    """The value with other leaves, in the order of `_walk`."""
    if is_array(value) or is_plain(value):
        return next(leaves)
    if type(value) in (list, tuple):
        return type(value)([replaced(each, leaves) for each in value])
    if type(value) is dict:
        return {key: replaced(each, leaves) for key, each in value.items()}
    return value


def is_plain(value: Any) -> bool:
    """Numbers, text, bytes and containers of them: what pickle carries without running anybody's code."""
    if isinstance(value, PLAIN):
        return type(value) in PLAIN
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return type(value) in PACKED


def is_torch(value: Any) -> bool:
    """Whether it is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Whether it is an array whose values can be carried: dense, of numbers, and of no class of its own."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value.dtype.kind in NUMPY_KINDS and type(value) is numpy.ndarray
    if not is_torch(value):
        return False
    torch = sys.modules["torch"]
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_meta


def _array_spec(value: Any) -> dict[str, Any]:
    if is_torch(value):
        return {
            "library": "torch",
            "dtype": str(value.dtype)[6:],
            "shape": list(value.shape),
            "strides": list(value.stride()),
            "bytes": value.numel() * value.element_size(),
            "device": str(value.device),
            "grad": bool(value.requires_grad),
        }
    return {
        "library": "numpy",
        "dtype": value.dtype.name if value.dtype.kind in "biufc" else value.dtype.str,
        "shape": list(value.shape),
        "strides": [stride // max(1, value.itemsize) for stride in value.strides],
        "bytes": value.nbytes,
        "device": "cpu",
        "grad": False,
    }


def comparable(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be equal each time that inputs are made."""
    return {name: value for name, value in spec.items() if name != "offset"}


def lay_out(specs: Sequence[dict[str, Any]]) -> int:
    """Give each array its offset in a slot; returns the bytes of all."""
    end = 0
    for spec in specs:
        if spec["kind"] == "array":
            spec["offset"] = end
            end += -(-spec["bytes"] // ALIGNMENT) * ALIGNMENT
    return end


def _like(value: Any, spec: Mapping[str, Any]) -> Any:
    """An array of that layout: strides kept, so that a transposed input stays one."""
    if spec["library"] == "torch":
        torch = sys.modules["torch"]
        made = torch.empty_strided(spec["shape"], spec["strides"], dtype=value.dtype, device=value.device)
        made.zero_() if 0 not in spec["strides"] else None
        if type(value) is torch.nn.Parameter:
            return torch.nn.Parameter(made, requires_grad=spec["grad"])
        return made.requires_grad_(spec["grad"]) if spec["grad"] else made
    numpy = sys.modules["numpy"]
    if value.flags.c_contiguous:
        return numpy.zeros(value.shape, value.dtype)
    strides, shape = spec["strides"], spec["shape"]
    reach = [(size - 1) * stride for size, stride in zip(shape, strides)]
    before = -sum(each for each in reach if each < 0)
    base = numpy.zeros(before + sum(each for each in reach if each > 0) + 1, value.dtype)
    steps = [stride * value.itemsize for stride in strides]
    return numpy.lib.stride_tricks.as_strided(base[before:], shape, steps, writeable=True)


def _contiguous(value: Any) -> Any:
    """The values in order, in the host's memory."""
    if is_torch(value):
        return value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return sys.modules["numpy"].ascontiguousarray(value)


def _distinct(value: Any, strides: Sequence[int] | None = None) -> Any:
    """A tensor's elements, each once: of a dimension that is expanded only the first."""
    for dim, stride in enumerate(strides or value.stride()):
        if stride == 0 and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def _raw(value: Any) -> memoryview:
    """The bytes of a contiguous array in the host's memory."""
    if is_torch(value):
        address, size = value.data_ptr(), value.numel() * value.element_size()
    else:
        address, size = value.ctypes.data, value.nbytes
    if not size:
        return memoryview(b"")
    buffer = (ctypes.c_ubyte * size).from_address(address)
    buffer.owner = value
    return memoryview(buffer).cast("B")


def extent(value: Any) -> tuple[int, int]:
    """Where an array's memory begins and ends."""
    if is_torch(value):
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    import numpy

    # numpy 2 moved it.
    of_array: Any = getattr(numpy, "byte_bounds", None) or numpy.lib.array_utils.byte_bounds
    return of_array(value)


def poison(value: Any) -> None:
    """Fill an array with NaN, of integers with the least one, so that what nobody writes is seen."""
    if is_torch(value):
        torch = sys.modules["torch"]
        if value.dtype is torch.bool:
            return
        with torch.no_grad():
            if value.is_floating_point() or value.is_complex():
                _distinct(value.detach()).fill_(float("nan"))
            else:
                _distinct(value.detach()).fill_(torch.iinfo(value.dtype).min)
    elif value.flags.writeable and value.dtype.kind in "iufc":
        value.fill(float("nan") if value.dtype.kind in "fc" else sys.modules["numpy"].iinfo(value.dtype).min)


def arrays_in(result: Any) -> Iterator[Any]:
    """Every array in a result."""
    if is_array(result):
        yield result
    elif isinstance(result, (list, tuple)):
        for each in result:
            yield from arrays_in(each)
    elif isinstance(result, dict):
        for each in result.values():
            yield from arrays_in(each)


def write_result(
    out: Any, path: str, exact_types: bool, where: tuple[str, int], limit_bytes: int = 0, named: str = "the function"
) -> dict[str, Any]:
    """Write a result: the arrays to `path`, what they are, and whatever else it is, as JSON to `path`.json.

    Raises Told for what cannot be compared: other objects, and with `exact_types` arrays of a class of their own, which
    may compute only when they are looked at.
    """
    arrays: list[Any] = []
    end = 0

    def encoded(value: Any) -> Any:
        nonlocal end
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in NUMPY_KINDS:
            value = numpy.asarray(value)
        if not exact_types and is_torch(value):
            value = value.detach().as_subclass(sys.modules["torch"].Tensor)
        if is_array(value):
            spec = {"kind": "array", **_array_spec(value), "offset": end}
            end += -(-spec["bytes"] // ALIGNMENT) * ALIGNMENT
            arrays.append((spec["offset"], value))
            return spec
        if isinstance(value, PLAIN) and not isinstance(value, (bytes, complex)):
            return {"kind": "plain", "value": value}
        if type(value) in (bytes, bytearray):
            return {"kind": "plain", "value": value.hex()}
        if isinstance(value, (list, tuple)):
            if value and all(type(each) in (int, float, str, bool) for each in value):
                return {"kind": "plain", "value": list(value)}
            return {"kind": "tuple", "items": [encoded(each) for each in value]}
        if isinstance(value, (set, frozenset)) and is_plain(value):
            return {"kind": "plain", "value": sorted(value, key=repr)}
        if type(value) is dict and all(type(key) is str for key in value):
            return {"kind": "dict", "items": {key: encoded(each) for key, each in value.items()}}
        name = f"{type(value).__module__}.{type(value).__name__}"
        lazy = ", which may compute only when it is looked at" if is_torch(value) else ""
        raise Told(f"{named} returned a {name}{lazy}: return arrays, numbers, text, or tuples of them", where)

    tree = encoded(out)
    if limit_bytes and end > limit_bytes:
        raise Told(f"{named} returned {end:,} bytes where the reference has {limit_bytes // 4:,} at most", where)
    with open(path, "wb") as file:
        for offset, value in arrays:
            file.seek(offset)
            file.write(_raw(_contiguous(value)))
        file.truncate(end)
    with open(f"{path}.json", "w") as text:
        json.dump(tree, text)
    return {"bytes": end}


def read_result(tree: Mapping[str, Any], path: str, library: str) -> Any:
    """The inverse of `write_result`, for a user's check."""
    if tree["kind"] == "plain":
        return tree["value"]
    if tree["kind"] == "tuple":
        return tuple(read_result(each, path, library) for each in tree["items"])
    if tree["kind"] == "dict":
        return {key: read_result(each, path, library) for key, each in tree["items"].items()}
    with open(path, "rb") as file:
        file.seek(tree["offset"])
        content = bytearray(file.read(tree["bytes"]))
    if tree["library"] == "torch":
        torch = importlib.import_module("torch")
        if not content:
            return torch.empty(tree["shape"], dtype=getattr(torch, tree["dtype"]))
        return torch.frombuffer(content, dtype=getattr(torch, tree["dtype"])).reshape(tree["shape"])
    numpy = importlib.import_module("numpy")
    return numpy.frombuffer(content, numpy.dtype(tree["dtype"])).reshape(tree["shape"])
