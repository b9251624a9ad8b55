"""Whether a result of any function is right: arrays, numbers, text, and tuples of them, compared with a reference's.

Nothing is known of the function, so a limit follows from the result's dtype alone: two must hold, one on the relative
norm and one per element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.measure.tolerance import TABLE
from pyperf_suite.measure.verify import Verification, named

Array = NDArray[Any]

WRONG_VALUES, PRECISION, WRONG_SHAPE, WRONG_DTYPE, NOT_FINITE = (
    "wrong values",
    "precision",
    "wrong shape",
    "wrong dtype",
    "not finite",
)
NOTHING = "nothing returned"

# Errors up to this look like those of a narrower type, larger ones like those of another function.
_LIKE_A_NARROWER_TYPE = 0.05

# Kernels of 16 and 8 bits sum in float32 and round once or twice; unit roundoffs allowed in norm, and in an element.
_NORM_UNITS, _ELEMENT_UNITS = 2.0, 8.0

# Sums of K terms err by a small multiple of √K unit roundoffs (tolerance.py); K is at most the longest dimension.
_SUM_UNITS = 4.0

_BLOCK = 1 << 22


@dataclass(frozen=True)
class Limits:
    """The relative norm of the error that is allowed, and |out − ref| <= element·(|ref| + rms(ref)) + smallest."""

    norm: float
    element: float
    smallest: float


def limits_of(dtype: str, longest: int, tolerance: float | None = None) -> Limits:
    """What a result of that dtype may be off by, whose inputs have dimensions of up to `longest` elements.

    A `tolerance` is the relative norm that is allowed, and ten times that of an element.
    """
    base = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    precision = TABLE.get(base, TABLE["float32"])
    if tolerance is not None:
        return Limits(tolerance, 10 * tolerance, precision.smallest if tolerance else 0.0)
    sums = 2.0**-53 if base == "float64" else 2.0**-24
    summed = _SUM_UNITS * math.sqrt(max(16, longest)) * sums
    return Limits(
        _NORM_UNITS * precision.rounding + summed,
        _ELEMENT_UNITS * precision.rounding + 4 * summed,
        precision.smallest,
    )


def compare(
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    load: Any,
    longest: int,
    tolerance: float | None = None,
    name: str = "out",
) -> Verification:
    """Compare results described as trees (kernel_process.write_result); `load(which, spec)` reads an array's values.

    `which` is "found" or "expected"; bfloat16 and float8 come as float32. A verdict, never an exception for what the
    measured function returned. `name` is what messages call the result.
    """
    if _is_nothing(found) and not _is_nothing(expected):
        return refused(NOTHING, f"it returned nothing, where the reference returns {_called(expected)}")
    ours, theirs = _items(found), _items(expected)
    if ours is None and theirs is None:
        if found["kind"] == "plain" and expected["kind"] == "plain":
            return _compare_plain(found["value"], expected["value"], longest, tolerance, name)
        arrays = _array("found", found, load), _array("expected", expected, load)
        return _compare_arrays(*arrays, longest, tolerance, name)
    if ours is None or theirs is None or found["kind"] != expected["kind"] or ours.keys() != theirs.keys():
        return refused(WRONG_SHAPE, f"{name} is {_called(found)}, where the reference returns {_called(expected)}")
    verdicts = [compare(ours[key], theirs[key], load, longest, tolerance, f"{name}[{key!r}]") for key in ours]
    wrong = next((each for each in verdicts if not each.passed), None)
    worst = max(verdicts, key=lambda each: each.relative_norm, default=None)
    return wrong or worst or _right("an empty one")


def _items(tree: Mapping[str, Any]) -> Mapping[Any, Any] | None:
    """What a tuple or a dict holds, by index or key; None for anything else."""
    return dict(enumerate(tree["items"])) if tree["kind"] == "tuple" else tree.get("items")


def _array(which: str, spec: Mapping[str, Any], load: Any) -> tuple[Array, str]:
    """Values and dtype; numbers count as arrays of the widest type."""
    if spec["kind"] == "array":
        return load(which, spec), spec["dtype"]
    values = np.asarray(spec["value"])
    return values, values.dtype.name


def _compare_plain(ours: Any, theirs: Any, longest: int, tolerance: float | None, name: str) -> Verification:
    if ours == theirs:
        return _right("equal")
    first, second = np.asarray(ours, dtype=object), np.asarray(theirs, dtype=object)
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (*first.flat, *second.flat))
    if numbers and any(isinstance(each, float) for each in second.flat):
        pair = (np.asarray(ours, dtype=np.float64), "float64"), (np.asarray(theirs, dtype=np.float64), "float64")
        return _compare_arrays(*pair, longest, tolerance, name)
    if first.shape != second.shape:
        return refused(WRONG_SHAPE, f"{name} has {first.size} items, where the reference has {second.size}")
    for at, (one, other) in enumerate(zip(first.flat, second.flat, strict=True)):
        if one != other:
            place = f"{name}[{at}]" if first.ndim else name
            return refused(WRONG_VALUES, f"{place} is {repr(one)[:60]}, where {repr(other)[:60]} is right")
    return _right("equal")


def _compare_arrays(
    found: tuple[Array, str], expected: tuple[Array, str], longest: int, tolerance: float | None, name: str
) -> Verification:
    (out, dtype), (reference, wanted) = found, expected
    if out.shape != reference.shape:
        return refused(
            WRONG_SHAPE, f"{name} has the shape {list(out.shape)}, where the reference has {list(reference.shape)}"
        )
    if _kind(dtype) != _kind(wanted) and not (_kind(wanted) == "float" and _kind(dtype) == "complex"):
        return refused(WRONG_DTYPE, f"{name} is of {dtype}, where the reference is of {wanted}")
    if out.size == 0:
        return _right("of no elements")
    if _kind(dtype) != "float" and _kind(dtype) != "complex":
        return _compare_exactly(out, reference, name)
    # The coarser of the two: a reference that is no float64 is itself off by so much.
    coarsest = max((dtype, wanted), key=lambda each: limits_of(each, longest).norm)
    return _compare_floats(out, reference, dtype, limits_of(coarsest, longest, tolerance), name)


def _compare_exactly(out: Array, reference: Array, name: str) -> Verification:
    with np.errstate(all="ignore"):
        wrong = np.asarray(out != reference).reshape(-1)
    count = int(wrong.sum())
    if not count:
        return _right(f"{out.size} values equal")
    at = tuple(int(each) for each in np.unravel_index(int(wrong.argmax()), out.shape))
    message = f"{named(name, at)} is {out[at]}, where {reference[at]} is right; {count} of {out.size} are wrong"
    return Verification(False, "full", math.inf, 0.0, math.inf, at, message, WRONG_VALUES)


def _compare_floats(out: Array, reference: Array, dtype: str, limits: Limits, name: str) -> Verification:
    flat, right = out.reshape(-1), reference.reshape(-1)
    squares = _sum_of_squares(right)
    finite = max(1, int(np.isfinite(right).sum()))
    rms = math.sqrt(squares / finite)
    squared_error, worst_ratio, worst_at = 0.0, -1.0, 0
    for begin in range(0, flat.size, _BLOCK):
        part, true = _wide(flat[begin : begin + _BLOCK]), _wide(right[begin : begin + _BLOCK])
        with np.errstate(all="ignore"):
            known = np.isfinite(true)
            same = known | (np.isnan(true) & np.isnan(part)) | (true == part)
            bad = ~(np.isfinite(part) | ~known) | ~same
            if bad.any():
                at = _index(begin + int(bad.argmax()), out.shape)
                message = f"{named(name, at)} is {_shown(out[at])}, where {_shown(reference[at])} is right"
                return Verification(False, "full", math.inf, limits.norm, math.inf, at, message, NOT_FINITE)
            error = np.where(known, np.abs(part - true), 0.0)
            allowed = limits.element * (np.where(known, np.abs(true), 0.0) + rms) + limits.smallest
            ratio = error / allowed if limits.element or limits.smallest else np.where(error > 0, np.inf, 0.0)
        squared_error += float(np.dot(error, error))
        worst = int(ratio.argmax())
        if float(ratio[worst]) > worst_ratio:
            worst_ratio, worst_at = float(ratio[worst]), begin + worst
    norm = math.sqrt(squared_error / squares) if squares else (0.0 if squared_error == 0 else math.inf)
    norm_limit = limits.norm if squares else math.inf
    at = _index(worst_at, out.shape)
    if norm <= norm_limit and worst_ratio <= 1:
        message = f"correct (full): relative norm {norm:.2g}, worst element at {worst_ratio:.2g} of its limit"
        return Verification(True, "full", norm, limits.norm, worst_ratio, at, message)
    lowered = norm <= _LIKE_A_NARROWER_TYPE and worst_ratio <= _LIKE_A_NARROWER_TYPE / max(limits.element, 1e-300)
    reason = PRECISION if lowered else WRONG_VALUES
    element = f"{named(name, at)} is {_shown(out[at])}, where {_shown(reference[at])} is right"
    norms = f"the relative norm of the error is {norm:.2g}, where {dtype} allows {limits.norm:.2g}"
    message = "; ".join([element] * (worst_ratio > 1) + [norms] * (norm > norm_limit))
    return Verification(False, "full", norm, limits.norm, worst_ratio, at, message, reason)


def refused(reason: str, message: str) -> Verification:
    """A verdict that needs no figures."""
    return Verification(False, "full", math.inf, 0.0, math.inf, (), message, reason)


def _right(words: str) -> Verification:
    return Verification(True, "full", 0.0, 0.0, 0.0, (), f"correct: {words}")


def _wide(values: Array) -> Array:
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def _sum_of_squares(values: Array) -> float:
    total = 0.0
    for begin in range(0, values.size, _BLOCK):
        part = _wide(values[begin : begin + _BLOCK])
        part = np.abs(part[np.isfinite(part)])
        total += float(np.dot(part, part))
    return total


def _kind(dtype: str) -> str:
    if dtype.startswith(("float", "bfloat")):
        return "float"
    return (
        "complex" if dtype.startswith("complex") else "bool" if dtype == "bool" else "int" if "int" in dtype else dtype
    )


def _is_nothing(tree: Mapping[str, Any]) -> bool:
    return tree["kind"] == "plain" and tree["value"] is None


def _called(tree: Mapping[str, Any]) -> str:
    """`a tuple of 2`, `an array of shape [4, 4]`, `an int`."""
    if tree["kind"] == "array":
        return f"an array of shape {tree['shape']}"
    if tree["kind"] == "plain":
        return "nothing" if tree["value"] is None else f"a {type(tree['value']).__name__}"
    return f"a {tree['kind']} of {len(tree['items'])}"


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(each) for each in np.unravel_index(flat, shape)) if shape else ()


def _shown(value: Any) -> str:
    return f"{complex(value):.6g}" if np.iscomplexobj(value) else f"{float(value):.6g}"
