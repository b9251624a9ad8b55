"""Carry a kernel's arguments and results: arrays and plain data, written to files and read from them.

Both processes in which a user's code runs, and the judge, speak of them by these descriptions. Nothing but the standard
library is imported, and nothing newer than Python 3.9 is used; numpy and torch are used where the user's code does.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import importlib
import json
import random
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

NUMPY_KINDS = "biufcmMSU"
PLAIN = (bool, int, float, complex, str, bytes, type(None))
PACKED = (bytearray, array, range, set, frozenset)
ALIGNMENT = 64
# How arrays may lie in memory besides as their maker laid them: with gaps, or where no vector is aligned.
STRIDED, UNALIGNED = LAYOUTS = ("strided", "unaligned")
# The bits of a NaN that no arithmetic makes, by the size of its type; bfloat16 takes the float16's, which is one too.
POISON = {2: 0x7FE5, 4: 0x7FC5EEDF, 8: 0x7FF85EED0C0FFEE0}
# The same of types of one byte that numpy has not got and torch does not fill.
POISON_BYTES = {"float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80, "float8_e8m0fnu": 0xFF}
# Types of elements that are compared through float32 and complex64; others of fewer bits count as the coarsest of them.
WIDENED = ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "complex32")
COARSEST = "float8_e8m0fnu"
# Longer whole numbers are compared by their digits.
LONGEST_WHOLE_BITS = 1000
# Bytes of a result that are copied when the clock stops, and bytes of a block.
KEPT_BYTES, KEPT_BLOCK_BYTES = 16 << 20, 1 << 20
# Name in records of a result that may not have been computed yet, and methods by which other objects compute it.
LAZY = "lazy result"
LAZY_METHODS = ("__array__", "__array_interface__", "__cuda_array_interface__", "__dlpack__", "__torch_function__")
# Taken before any code of a user's runs.
_DRAW = random.SystemRandom().randrange


class UserCodeError(Exception):
    """A fault in words that need no traceback, of the function or file `where`, and `reason` for a record."""

    def __init__(self, message: str, where: tuple[str, int] = ("", 0), reason: str = "") -> None:
        super().__init__(message)
        self.where, self.reason = where, reason


class Leaf:
    """One array among the arguments, or one piece of plain data: what it is, and how its values come and go."""

    def __init__(self, kind: str, value: Any, role: str, key: Any) -> None:
        self.kind, self.value, self.role = kind, value, role
        self.spec: dict[str, Any] = {"kind": kind, "role": role, "argument": key}
        if kind == "array":
            self.spec.update(_array_spec(value))

    def room(self, layout: str = "") -> Any:
        """Memory of the same layout, or of one of LAYOUTS, on the same device, elsewhere; plain data is in its slot."""
        if self.kind == "plain":
            return None
        value, spec = self.value, self.spec
        shape, skipped = spec["shape"], int(layout == UNALIGNED)
        strides = [stride * (2 if layout == STRIDED else 1) for stride in spec["strides"]]
        reach = [(size - 1) * stride for size, stride in zip(shape, strides)]
        before = -sum(each for each in reach if each < 0)
        count = before + sum(each for each in reach if each > 0) + 1 + skipped
        if spec["library"] == "torch":
            torch = sys.modules["torch"]
            base = torch.zeros(count, dtype=value.dtype, device=value.device)
            view = base.as_strided(shape, strides, skipped)
            if type(value) is torch.nn.Parameter:
                return torch.nn.Parameter(view, requires_grad=spec["grad"])
            return view.requires_grad_(spec["grad"]) if spec["grad"] else view
        numpy = sys.modules["numpy"]
        if value.flags.c_contiguous and not layout:
            return numpy.zeros(value.shape, value.dtype)
        base = numpy.zeros(count, value.dtype)
        steps = [stride * value.itemsize for stride in strides]
        return numpy.lib.stride_tricks.as_strided(base[before + skipped :], shape, steps, writeable=True)

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
                    distinct(into.detach()).copy_(distinct(host, into.stride()))
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
    elif type(value) in (list, tuple, dict):
        for each in value.values() if type(value) is dict else value:
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
    """True for a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@contextlib.contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Compute as torch does unasked, whatever a module left switched on: float32, no autocast, full precision."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    restore, dtype = _full_precision(torch), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        torch.set_default_dtype(dtype)
        restore()


def _full_precision(torch: Any) -> Callable[[], None]:
    """Have products of float32 computed as such; the function returned takes it back."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by a backend's fp32_precision, which torch 2.9 and later do not mix with this
        backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
        kept = [each.fp32_precision for each in backends]

        def restore() -> None:
            for each, was in zip(backends, kept):
                each.fp32_precision = was

        for each in backends:
            each.fp32_precision = "ieee"
        return restore
    torch.set_float32_matmul_precision("highest")
    return lambda: torch.set_float32_matmul_precision(precision)


def is_array(value: Any) -> bool:
    """True for an array whose values can be carried: dense, of numbers, and of no class of its own."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return (value.dtype.kind in NUMPY_KINDS and type(value) is numpy.ndarray) or is_of_ml_dtypes(value)
    if not is_torch(value):
        return False
    torch = sys.modules["torch"]
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_meta


def _array_spec(value: Any) -> dict[str, Any]:
    is_of_torch = is_torch(value)
    if is_of_torch:
        dtype, strides = str(value.dtype)[6:], list(value.stride())
    else:
        has_name = value.dtype.kind in "biufc" or is_of_ml_dtypes(value)
        dtype = value.dtype.name if has_name else value.dtype.str
        strides = [stride // max(1, value.itemsize) for stride in value.strides]
    return {
        "library": "torch" if is_of_torch else "numpy",
        "dtype": dtype,
        "shape": list(value.shape),
        "strides": strides,
        "bytes": value.numel() * value.element_size() if is_of_torch else value.nbytes,
        "device": str(value.device) if is_of_torch else "cpu",
        "grad": is_of_torch and bool(value.requires_grad),
    }


def comparable(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have to be equal each time that inputs are made."""
    return {name: value for name, value in spec.items() if name != "offset"}


def lay_out(specs: Sequence[dict[str, Any]]) -> int:
    """Give each array its offset in a slot; returns the bytes of all."""
    end = 0
    for spec in specs:
        if spec["kind"] == "array":
            spec["offset"] = end
            end += -(-spec["bytes"] // ALIGNMENT) * ALIGNMENT
    return end


def _contiguous(value: Any) -> Any:
    """The values in order, in the host's memory."""
    if is_torch(value):
        return value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return sys.modules["numpy"].ascontiguousarray(value)


def distinct(value: Any, strides: Sequence[int] | None = None) -> Any:
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
        return memoryview(bytearray())
    buffer = (ctypes.c_ubyte * size).from_address(address)
    buffer.owner = value
    return memoryview(buffer).cast("B")


def assign(into: Any, values: Any) -> None:
    """Give an array the values of another, where it lies."""
    if is_torch(into):
        with sys.modules["torch"].no_grad():
            into.copy_(values)
    else:
        into[...] = values


def extent(value: Any) -> tuple[int, int]:
    """Return the addresses where an array's memory begins and ends."""
    if is_torch(value):
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    import numpy

    # numpy 2 moved it.
    of_array: Any = getattr(numpy, "byte_bounds", None) or numpy.lib.array_utils.byte_bounds
    return of_array(value)


def repeats(arrays: Sequence[Any]) -> bool:
    """True if two arrays of a result are the same memory."""
    places = [value.data_ptr() if is_torch(value) else value.ctypes.data for value in arrays if 0 not in value.shape]
    return len(set(places)) < len(places)


def overlaps(value: Any, extents: Sequence[tuple[int, int]]) -> bool:
    """True if an array shares memory with one of these address ranges."""
    begin, end = extent(value)
    return any(begin < high and low < end for low, high in extents)


def keep(value: Any, kept: Sequence[tuple[int, bytes]] = ()) -> list[tuple[int, bytes]]:
    """Blocks of an array's memory and where they begin: all of it or, of a large one, some at random, or as `kept`."""
    if not (value.is_contiguous() and not value.is_cuda if is_torch(value) else value.flags.c_contiguous):
        value = _contiguous(value)
    memory = _raw(value)
    if len(memory) <= KEPT_BYTES:
        return [(0, bytes(memory))]
    size = KEPT_BLOCK_BYTES
    starts = [begin for begin, _ in kept] or [_DRAW(len(memory) - size) for _ in range(KEPT_BYTES // size)]
    return [(begin, bytes(memory[begin : begin + size])) for begin in starts]


def content_hash(value: Any) -> bytes:
    """A hash of all values of an array."""
    return hashlib.sha256(_raw(_contiguous(value))).digest()


def poison(value: Any, every: int = 1) -> None:
    """Fill an array, or one of `every` elements of a row, with a NaN of the suite's own, or the least integer."""
    if is_torch(value):
        torch = sys.modules["torch"]
        if value.dtype is torch.bool or not value.numel():
            return
        with torch.no_grad():
            plain = distinct(value.detach())
            # As it lies in memory.
            plain = plain.conj() if plain.is_conj() else plain
            plain = plain._neg_view() if plain.is_neg() else plain
            plain = plain[..., ::every] if plain.ndim else plain
            plain = torch.view_as_real(plain) if plain.is_complex() else plain
            bits = POISON.get(plain.element_size()) if plain.is_floating_point() else None
            if str(plain.dtype)[6:] in POISON_BYTES:
                plain.view(torch.uint8).fill_(POISON_BYTES[str(plain.dtype)[6:]])
            elif bits is None:
                plain.fill_(float("nan") if plain.is_floating_point() else torch.iinfo(plain.dtype).min)
            else:
                plain.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]).fill_(bits)
    elif value.flags.writeable and value.dtype.kind in "iufc":
        kind, value = value.dtype.kind, value[..., ::every] if value.ndim else value
        for part in [value.real, value.imag] if kind == "c" else [value]:
            if kind in "fc" and part.itemsize in POISON:
                part.view(f"i{part.itemsize}")[...] = POISON[part.itemsize]
            else:
                part[...] = float("nan") if kind in "fc" else sys.modules["numpy"].iinfo(part.dtype).min


def draw_over(value: Any) -> None:
    """Fill an array with one number that nobody can know, so that code that looks for poison leaves it."""
    number = random.SystemRandom().uniform(2, 100)
    if is_torch(value):
        with sys.modules["torch"].no_grad():
            distinct(value.detach()).fill_(number)
    elif value.flags.writeable and value.dtype.kind in "iufc":
        value[...] = number


def plain_values(value: Any) -> tuple[Any, str]:
    """An array of a result in a type that can be compared, and the type whose precision it has, if that is another."""
    name = str(value.dtype)[6:] if is_torch(value) else value.dtype.name
    if is_torch(value):
        torch = sys.modules["torch"]
        if name not in WIDENED:
            return value, ""
        return value.detach().to(torch.complex64 if name == "complex32" else torch.float32), name
    if not is_of_ml_dtypes(value):
        return value, ""
    is_known = name in WIDENED or name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    return value.astype("f4"), name if is_known else COARSEST


def is_of_ml_dtypes(value: Any) -> bool:
    """True for an array of a type of ml_dtypes (jax, tensorflow): to numpy these are bytes."""
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and type(value) is numpy.ndarray
        and value.dtype.type.__module__.partition(".")[0] == "ml_dtypes"
    )


def other_kind(value: Any) -> str:
    """Name a result that cannot be compared, and say what to return instead; empty where that is not known."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        if isinstance(value, numpy.ma.MaskedArray):
            return "a masked array: return its data and its mask"
        if value.dtype.names:
            return "a structured array: return its fields, each an array"
        kinds = {"O": "an array of objects: return numbers, as astype(float) gives", "T": "strings: return astype('U')"}
        return kinds.get(value.dtype.kind, "")
    if type(value).__module__.startswith("scipy.sparse"):
        return "a sparse array: return toarray(), or its data and indices"
    if is_torch(value) and value.layout is not sys.modules["torch"].strided:
        return "a sparse tensor: return to_dense(), or its values and indices"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "a dataclass: return its fields, as in a tuple"
    return ""


def _is_lazy(value: Any) -> bool:
    """True for a result whose class, or methods put on it, may compute when it is looked at."""
    if is_array(value):
        return any(map(callable, getattr(value, "__dict__", {}).values()))
    for base in (list, tuple, dict):
        if isinstance(value, base):
            kind: Any = type(value)
            return bool(kind.__iter__ is not base.__iter__ or kind.__getitem__ is not base.__getitem__)
    numpy = sys.modules.get("numpy")
    if isinstance(value, PLAIN) or (numpy is not None and isinstance(value, numpy.generic)):
        return False
    return any(hasattr(type(value), name) for name in LAZY_METHODS)


def _kind_of(value: Any) -> str:
    if is_array(value):
        return "a tensor with methods of its own"
    return f"a {type(value).__module__}.{type(value).__name__}"


def arrays_in(result: Any) -> Iterator[Any]:
    """Every array in a result."""
    if is_array(result):
        yield result
    elif isinstance(result, (list, tuple, dict)):
        for each in result.values() if isinstance(result, dict) else result:
            if type(each) not in PLAIN:
                yield from arrays_in(each)


def write_result(
    out: Any, path: str, exact_types: bool, where: tuple[str, int], limit_bytes: int = 0, named: str = "the function"
) -> dict[str, Any]:
    """Write a result: the arrays to `path`, what they are, and whatever else it is, as JSON to `path`.json.

    Raises UserCodeError for what cannot be compared: other objects, and with `exact_types` arrays of a class of their
    own, which may compute only when they are looked at.
    """
    arrays: list[Any] = []
    end = 0

    def encoded(value: Any) -> Any:
        nonlocal end
        numpy = sys.modules.get("numpy")
        if not exact_types and is_torch(value):
            value = value.detach().as_subclass(sys.modules["torch"].Tensor)
        number = type(value) is complex and numpy is not None
        if numpy is not None and (number or isinstance(value, numpy.generic)):
            value = numpy.asarray(value)
        if isinstance(value, OrderedDict):  # as models of transformers return: what it holds, whatever it computes
            value = dict(dict.items(value))
        if words := other_kind(value):
            raise UserCodeError(f"{named} returned {words}", where)
        if exact_types and _is_lazy(value):
            raise UserCodeError(
                f"{named} returned {_kind_of(value)}, which may compute only when it is looked at", where, LAZY
            )
        if is_array(value):
            value, precision = plain_values(value)
            spec = {"kind": "array", **_array_spec(value), "offset": end, "number": number}
            if precision:
                spec["precision"] = precision
            end += -(-spec["bytes"] // ALIGNMENT) * ALIGNMENT
            arrays.append((spec["offset"], value))
            return spec
        if isinstance(value, PLAIN) and not isinstance(value, (bytes, complex)):
            return {"kind": "plain", "value": _as_json(value)}
        if type(value) in (bytes, bytearray):
            return {"kind": "plain", "value": value.hex()}
        if isinstance(value, (list, tuple)):
            if value and all(type(each) in (int, float, str, bool) for each in value):
                return {"kind": "plain", "value": list(map(_as_json, value))}
            return {"kind": "tuple", "items": [encoded(each) for each in value]}
        if isinstance(value, (set, frozenset)) and is_plain(value):
            return {"kind": "plain", "value": sorted(value, key=repr)}
        if type(value) is dict and all(type(key) in (str, int) for key in value):
            whole = [str(key) for key in value if type(key) is int]
            if len(set(map(str, value))) < len(value):
                raise UserCodeError(f"{named} returned a dict with a key that is a number and text: rename one", where)
            return {"kind": "dict", "items": {str(key): encoded(each) for key, each in value.items()}, "whole": whole}
        raise UserCodeError(
            f"{named} returned {_kind_of(value)}: return arrays, numbers, text, or tuples of them", where
        )

    tree = encoded(out)
    if limit_bytes and end > limit_bytes:
        raise UserCodeError(
            f"{named} returned {end:,} bytes where the reference has {limit_bytes // 4:,} at most", where
        )
    with open(path, "wb") as file:
        for offset, value in arrays:
            file.seek(offset)
            file.write(_raw(_contiguous(value)))
        file.truncate(end)
    with open(f"{path}.json", "w") as text:
        json.dump(tree, text)
    return {"bytes": end}


def _as_json(value: Any) -> Any:
    return hex(value) if type(value) is int and value.bit_length() > LONGEST_WHOLE_BITS else value


def read_result(tree: Mapping[str, Any], path: str, library: str) -> Any:
    """The inverse of `write_result`, for a user's check."""
    if tree["kind"] == "plain":
        return tree["value"]
    if tree["kind"] == "tuple":
        return tuple(read_result(each, path, library) for each in tree["items"])
    if tree["kind"] == "dict":
        keys = {key: int(key) if key in tree["whole"] else key for key in tree["items"]}
        return {keys[key]: read_result(each, path, library) for key, each in tree["items"].items()}
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
