"""Check the result of any function against its reference's: arrays, numbers, text and containers of them.

Nothing is known of the function, so what rounding may do to an element follows from the result's dtype and from how
the reference itself answers to moves of its inputs (user_kernels/sensitivity.py). An element of value r that sums K
terms of size S (√Σ of their squares, whatever cancels) is off by about

    σ = (n·u + √2K·u₃₂)·max(|r|, S),   n = 2 for types of 16 and 8 bits, 16 for wider ones,

u being the unit roundoff of the result's dtype and u₃₂ that of float32, in which kernels sum (of float64 for float64).
A sum of K terms of either sign that is taken one after the other errs by 0.41·√K·u·S in root mean square, one of equal
signs by 0.33·√K·u·|r|; 16 units are what fast exponentials and divisions take, and kernels of 16 and 8 bits round once
or twice. K is a mean over elements: of running sums, and wherever a triangle of inputs is summed, the longest sum has
2K terms. Two limits must hold: the norm of all errors is at most that of all σ, and no element errs by more than
4·(σ + n·u·rms(r)), the latter for what cancels inside of a function, as in the tail of a GELU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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

# Errors up to this share look like those of a narrower type, larger ones like those of another function.
_LIKE_A_NARROWER_TYPE = 0.05

# Unit roundoffs that an element may be off by besides its sums.
_NARROW_UNITS, _WIDE_UNITS = 2.0, 16.0

_UNUSUAL_SLACK = 4.0  # how much more an element may be off by on unusual inputs
_WORST_OF_MANY = 4.0  # least likely of many elements, as a multiple of the usual error
_FEWEST_WHOLE = 16  # fewest whole numbers of which some may be off by one

# Elements that are compared at a time, so that temporary arrays stay in the cache: 3 to 5 times as fast as 1 << 22.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Pool:
    """Sizes of an array's elements in one number: S is at most spread·size·(1 + |r|/rms), rms being that of r."""

    size: float
    rms: float
    spread: float


@dataclass(frozen=True)
class Tolerance:
    """Errors that a result may have.

    `relative`, where given, is the relative norm that the file's author allows, and ten times that of an element.
    Else `terms` is K, the number of inputs that an element depends on, and S is in `sizes`, by the array's name, or
    known by its `pools` alone. On inputs that are `unusual` what is beyond the result's type is not compared, and σ is
    four times as large: more cancels there, and a narrower type is still far beyond it.

    `number` is the dtype that a Python number was computed in: the coarsest of the inputs. `edges` has for each array
    of whole numbers the share of them that becomes another by one where all inputs move, over that move's share.
    """

    relative: float | None = None
    terms: float = 1.0
    sizes: Mapping[str, Array] = field(default_factory=dict)
    pools: Mapping[str, Pool] = field(default_factory=dict)
    unusual: bool = False
    number: str = "float64"
    edges: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.number not in TABLE:
            object.__setattr__(self, "number", "float64")

    def near_an_edge(self, name: str) -> float:
        """The share of whole numbers of an array that rounding may make another by one."""
        return self.edges.get(name, 0.0) * _units(TABLE[self.number].rounding)


def number_type(dtypes: Iterable[str]) -> str:
    """The coarsest floating-point type among these; float64 where there is none."""
    known = [_real(each) for each in dtypes if _kind(each) in ("float", "complex") and _real(each) in TABLE]
    return max(known, key=lambda each: TABLE[each].rounding, default="float64")


def _units(unit: float) -> float:
    """n·u of a type with this unit roundoff."""
    return (_WIDE_UNITS if unit <= TABLE["float32"].rounding else _NARROW_UNITS) * unit


@dataclass(frozen=True)
class _Rule:
    """A tolerance for one array."""

    relative: float | None
    units: float
    sums: float
    smallest: float
    largest: float
    size: Array | Pool

    def usual(self, true: Array, part: slice) -> Array:
        """σ of elements whose references have these magnitudes."""
        if self.relative is not None:
            return self.relative * true
        if isinstance(self.size, Pool):
            pool = self.size
            size = pool.spread * pool.size * (1 + true / max(pool.rms, 1e-300))
        else:
            size = self.size[part]
        return np.asarray((self.units + self.sums) * np.maximum(true, size))

    def limit(self, usual: Array, rms: float) -> Array:
        """Return the largest error that an element may have."""
        if self.relative is not None:
            return 10 * (usual + self.relative * rms) + self.smallest
        return _WORST_OF_MANY * (usual + self.units * rms) + self.smallest


def _rule(dtypes: tuple[str, str], tolerance: Tolerance, name: str) -> _Rule:
    """Return the rule of the coarser of two dtypes: a reference that is no float64 is itself off by that."""
    precision = max((TABLE.get(_real(each), TABLE["float32"]) for each in dtypes), key=lambda each: each.rounding)
    unit = precision.rounding
    slack = _UNUSUAL_SLACK if tolerance.unusual else 1.0
    sums = slack * math.sqrt(2 * max(1.0, tolerance.terms)) * min(unit, TABLE["float32"].rounding)
    size: Array | Pool = Pool(0.0, 1.0, 1.0)
    if name in tolerance.sizes:
        size = tolerance.sizes[name].reshape(-1)
    elif name in tolerance.pools:
        size = tolerance.pools[name]
    largest = _LARGEST.get(_real(dtypes[0]), math.inf) if tolerance.unusual else math.inf
    units = slack * _units(unit)
    smallest = 0.0 if tolerance.relative == 0 else precision.smallest
    return _Rule(tolerance.relative, units, sums, smallest, largest, size)


_MEANT = "if that is meant, tolerance= allows it, check= decides instead, and inputs= leaves out kinds of inputs"

# Largest value of each dtype; bfloat16 has the range of float32.
_LARGEST = {
    "float16": 65504.0,
    "float32": float(np.finfo(np.float32).max),
    "bfloat16": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}


_COMPLEX = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}
_REAL = {whole: part for part, whole in _COMPLEX.items()}


def _real(dtype: str) -> str:
    return _REAL.get(dtype, dtype)


def compare(
    result: Mapping[str, Any], expected: Mapping[str, Any], load: Any, tolerance: Tolerance, name: str = "out"
) -> Verification:
    """Compare results described as trees (arrays.write_result); `load(which, spec)` reads an array's values.

    `which` is "found" or "expected"; bfloat16 and float8 come as float32. A verdict, never an exception for what the
    measured function returned. `name` is what messages call the result.
    """
    if _is_nothing(result) and not _is_nothing(expected):
        return refused(NOTHING, f"it returned nothing, where the reference returns {_called(expected)}")
    ours, theirs = _items(result), _items(expected)
    if ours is None and theirs is None:
        if result["kind"] == "plain" and expected["kind"] == "plain":
            return _compare_plain(result["value"], expected["value"], tolerance, name)
        arrays = _array("found", result, load, tolerance), _array("expected", expected, load, tolerance)
        return _compare_arrays(*arrays, tolerance, name)
    if ours is None or theirs is None or result["kind"] != expected["kind"] or ours.keys() != theirs.keys():
        return refused(WRONG_SHAPE, f"{name} is {_called(result)}, where the reference returns {_called(expected)}")
    verdicts = [compare(ours[key], theirs[key], load, tolerance, f"{name}[{key!r}]") for key in ours]
    wrong = next((each for each in verdicts if not each.passed), None)
    worst = max(verdicts, key=lambda each: each.relative_norm, default=None)
    return wrong or worst or _right("an empty one")


def _items(tree: Mapping[str, Any]) -> Mapping[Any, Any] | None:
    """Return the items of a tuple or a dict by index or key; None for anything else."""
    return dict(enumerate(tree["items"])) if tree["kind"] == "tuple" else tree.get("items")


def _array(which: str, spec: Mapping[str, Any], load: Any, tolerance: Tolerance) -> tuple[Array, str]:
    """Values and the dtype whose precision they have; floating-point numbers of Python have that of the inputs."""
    if spec["kind"] == "array":
        dtype = _COMPLEX.get(tolerance.number, "complex64") if spec.get("number") else spec["dtype"]
        return load(which, spec), spec.get("precision", dtype)
    values = np.asarray(spec["value"])
    return values, tolerance.number if values.dtype.kind == "f" else values.dtype.name


def _compare_plain(ours: Any, theirs: Any, tolerance: Tolerance, name: str) -> Verification:
    if ours == theirs:
        return _right("equal")
    first, second = np.asarray(ours, dtype=object), np.asarray(theirs, dtype=object)
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (*first.flat, *second.flat))
    exactly = not numbers or not (tolerance.relative or any(isinstance(each, float) for each in second.flat))
    if exactly and first.shape != second.shape:
        return refused(WRONG_SHAPE, f"{name} has {first.size} items, where the reference has {second.size}")
    for at, (one, other) in enumerate(zip(first.flat, second.flat, strict=False)):
        # Among floats whole numbers are counts, and as large as their neighbours only by chance.
        if one != other and (exactly or not (tolerance.relative or type(one) is float or type(other) is float)):
            place = f"{name}[{at}]" if first.ndim else name
            return refused(WRONG_VALUES, f"{place} is {repr(one)[:60]}, where {repr(other)[:60]} is right")
    if exactly:
        return _right("equal")
    values = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    return _compare_arrays((values[0], tolerance.number), (values[1], tolerance.number), tolerance, name)


def _compare_arrays(
    result: tuple[Array, str], expected: tuple[Array, str], tolerance: Tolerance, name: str
) -> Verification:
    (out, dtype), (reference, wanted) = result, expected
    if out.shape != reference.shape:
        return refused(
            WRONG_SHAPE, f"{name} has the shape {list(out.shape)}, where the reference has {list(reference.shape)}"
        )
    if _kind(dtype) != _kind(wanted) and not (_kind(wanted) == "float" and _kind(dtype) == "complex"):
        return refused(WRONG_DTYPE, f"{name} is of {dtype}, where the reference is of {wanted}")
    if out.size == 0:
        return _right("of no elements")
    if _kind(dtype) == "int" and tolerance.relative:
        return _compare_floats(out, reference, dtype, _rule(("float64", "float64"), tolerance, name), name)
    if _kind(dtype) != "float" and _kind(dtype) != "complex":
        return _compare_exactly(out, reference, name, tolerance.near_an_edge(name))
    return _compare_floats(out, reference, dtype, _rule((dtype, wanted), tolerance, name), name)


def _compare_exactly(out: Array, reference: Array, name: str, near_an_edge: float) -> Verification:
    with np.errstate(all="ignore"):
        wrong = np.asarray(out != reference).reshape(-1)
        count = int(wrong.sum())
        if not count:
            return _right(f"{out.size} values equal")
        if out.size >= _FEWEST_WHOLE and count <= math.ceil(_WORST_OF_MANY * near_an_edge * out.size):
            ours, theirs = out.reshape(-1)[wrong], reference.reshape(-1)[wrong]
            # The larger less the smaller: what wraps around, as 127 and -128 of eight bits, is not off by one.
            if bool((np.where(ours > theirs, ours - theirs, theirs - ours) == 1).all()):
                return _right(f"{out.size} values equal, but {count} that rounding moves over an edge")
    at = tuple(int(each) for each in np.unravel_index(int(wrong.argmax()), out.shape))
    message = f"{named(name, at)} is {out[at]}, where {reference[at]} is right; {count} of {out.size} are wrong"
    return Verification(False, "full", math.inf, 0.0, math.inf, at, message, WRONG_VALUES)


def _compare_floats(out: Array, reference: Array, dtype: str, rule: _Rule, name: str) -> Verification:
    flat, right = out.reshape(-1), reference.reshape(-1)
    scale, squares, finite = _magnitude(right, rule.largest)
    rms = scale * math.sqrt(squares / finite)
    squared_error, squared_usual, worst_ratio, worst_share, worst_at = 0.0, 0.0, -1.0, 0.0, 0
    for begin in range(0, flat.size, _BLOCK):
        block = slice(begin, begin + _BLOCK)
        part, true = _wide(flat[block]), _wide(right[block])
        with np.errstate(all="ignore"):
            is_finite = np.isfinite(true) & (np.abs(true) <= rule.largest)
            same = is_finite | (np.isnan(true) & np.isnan(part)) | (true == part) | math.isfinite(rule.largest)
            bad = ~(np.isfinite(part) | ~is_finite) | ~same
            if bad.any():
                at = _index(begin + int(bad.argmax()), out.shape)
                message = f"{named(name, at)} is {_shown(out[at])}, where {_shown(reference[at])} is right"
                return Verification(False, "full", math.inf, 0.0, math.inf, at, message, NOT_FINITE)
            error = np.where(is_finite, np.abs(part - true), 0.0)
            usual = rule.usual(np.where(is_finite, np.abs(true), 0.0), block)
            allowed = rule.limit(usual, rms)
            ratio = np.where(error > 0, error / allowed, 0.0)
            usual = np.where(is_finite, np.minimum(usual / scale, 1e100), 0.0)
            error /= scale
        squared_usual += _sum_of_squares(usual)
        squared_error += _sum_of_squares(error)
        worst = int(ratio.argmax())
        if float(ratio[worst]) > worst_ratio:
            worst_ratio, worst_at = float(ratio[worst]), begin + worst
            worst_share = scale * float(error[worst] / max(abs(true[worst]) + rms, 1e-300))
    norm = math.sqrt(squared_error / squares) if squares else 0.0
    norm_limit = math.sqrt(squared_usual / squares) if squares else math.inf
    at = _index(worst_at, out.shape)
    # Error in the norm by values below the smallest that the type holds well.
    too_far = math.sqrt(squared_error) > math.sqrt(squared_usual) + rule.smallest / scale * math.sqrt(finite)
    if worst_ratio <= 1 and not too_far:
        message = f"correct (full): relative norm {norm:.2g}, worst element at {worst_ratio:.2g} of its limit"
        return Verification(True, "full", norm, norm_limit, worst_ratio, at, message)
    lowered = norm <= _LIKE_A_NARROWER_TYPE and worst_share <= _LIKE_A_NARROWER_TYPE
    reason = PRECISION if lowered else WRONG_VALUES
    element = f"{named(name, at)} is {_shown(out[at])}, where {_shown(reference[at])} is right"
    norms = f"the relative norm of the error is {norm:.2g}, where {dtype} allows {norm_limit:.2g}"
    message = "; ".join([element] * (worst_ratio > 1) + [norms] * too_far + [_MEANT] * lowered)
    return Verification(False, "full", norm, norm_limit, worst_ratio, at, message, reason)


def refused(reason: str, message: str) -> Verification:
    """A verdict that needs no figures."""
    return Verification(False, "full", math.inf, 0.0, math.inf, (), message, reason)


def _right(words: str) -> Verification:
    return Verification(True, "full", 0.0, 0.0, 0.0, (), f"correct: {words}")


def _wide(values: Array) -> Array:
    with np.errstate(invalid="ignore"):  # the suite's own NaN
        return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def _magnitude(values: Array, largest: float) -> tuple[float, float, int]:
    """The largest of the finite values that are no larger, the sum of squares in units of that, and their number."""
    scale, total, count = 0.0, 0.0, 0
    for begin in range(0, values.size, _BLOCK):
        part = np.abs(_wide(values[begin : begin + _BLOCK]))
        part = part[np.isfinite(part) & (part <= largest)]
        highest = float(part.max(initial=0.0))
        if highest > scale:
            total, scale = total * (scale / highest) ** 2, highest
        total += _sum_of_squares(part / scale) if scale else 0.0
        count += part.size
    return scale or 1.0, total, max(1, count)


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


def _sum_of_squares(values: Array) -> float:
    """Sum by one thread: threads that BLAS wakes spin on, next to what is timed."""
    return float(np.square(values).sum())
