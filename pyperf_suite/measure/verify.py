"""Check a matrix product to the last element: nothing is timed whose result has not passed here.

Small products are compared with a float64 reference in full, large ones by samples and by Freivalds' check in groups;
on a GPU, where torch's float64 product is the reference, all in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.measure.tolerance import (
    Array,
    ElementLimit,
    Keep,
    as_float32,
    as_float64,
    computed_anew,
    element_limit,
    first_not_finite,
    inner_product,
    largest,
    magnitudes,
    module_of,
    relative_norm_limit,
)

Float64 = NDArray[np.float64]

FLOP_BUDGET = 2e10  # FLOPs of a product (2·M·N·K) up to which it is checked in full: half a second on two cores

# Elements of a float64 block: near the cache of a core, and enough work for a whole GPU.
_HOST_ELEMENTS = 1 << 22
_DEVICE_ELEMENTS = 1 << 24
_SAMPLED_LINES = 16
_NARROWEST_GROUP = 16
_NOMINATIONS = 256

# Limits are kept in float32 where that can hold the least of them.
_SMALLEST_FLOAT32 = float(np.finfo(np.float32).smallest_subnormal)


Method = Literal["full", "sampled"]
ExecutionContext = Callable[[int, int], tuple[int, ...]]


@dataclass(frozen=True)
class Verification:
    """The outcome: the relative norm against its limit, and the worst element against its own.

    `worst_element_ratio` is 1.0 at the limit, `worst_at` its place, (row, column) in a product. `message` is one
    sentence for people: what was checked if passed, what is wrong and where if not. `reason` names the kind of what is
    wrong, for programs: "stale result", "precision"; empty where it is right, or no more is known than that it is not.
    """

    passed: bool
    method: Method
    relative_norm: float
    relative_norm_limit: float
    worst_element_ratio: float
    worst_at: tuple[int, ...]
    message: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify_product(
    out: Array,
    a: Array,
    b: Array,
    dtype: str,
    out_dtype: str,
    flop_budget: float = FLOP_BUDGET,
    seed: int = 0,
    keep: Keep = computed_anew,
) -> Verification:
    """Compare `out` [M, N] with the product of `a` [M, K] and `b` [K, N], any strides.

    The arrays hold the values as rounded to `dtype` and `out_dtype`, in any numpy type that can (float32 for
    bfloat16), or are torch tensors, which are compared on their device. Two limits must hold (`tolerance`):
    ‖out − ref‖/‖ref‖, and |out − ref| for each element compared. A NaN or infinity in `out` fails wherever it
    stands. Up to `flop_budget` FLOPs, and of tensors always, every element is compared. Above it:

    * the first, the last and 16 random rows and columns are compared in full;
    * Freivalds' check, in groups: columns are summed with random weights in groups of 16 or more, in `out`
      and in the reference (A·(B·x), at a sixteenth of the cost or less), and the residuals give the relative
      norm of *all* elements, and show where errors may be;
    * the 256 rows × groups with the largest residuals, relative to their limits, are compared in full.

    So the residuals nominate and the limit per element decides: a correct product cannot fail by an unlucky
    weight, and an error that stands out of its group's rounding is seen. Weights are ±[0.75, 1.25), not ±1: a
    single error is never lost, and neither are two equal and opposite ones, as of swapped columns. Freivalds,
    *Information Processing* 77, 1977.

    What depends on the operands alone goes through `keep`, which may hold it from an earlier call.

    Raises ValueError if shapes do not fit together, an operand is not finite, or a dtype has no known
    tolerance.
    """
    matching = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and out.shape == (a.shape[0], b.shape[1])
    if not matching or not all(out.shape):
        raise ValueError(f"shapes do not fit together: out {out.shape}, a {a.shape}, b {b.shape}")
    (rows, inner), columns = a.shape, b.shape[1]
    limit = element_limit(dtype, out_dtype, inner)
    norm_limit = relative_norm_limit(dtype, out_dtype, inner)

    on_host = isinstance(out, np.ndarray)
    full = not on_host or 2.0 * rows * columns * inner <= flop_budget
    at = first_not_finite(out)
    if at is not None:
        found = f"{named('out', at)} is {float(out[at])}"
        return Verification(False, "full" if full else "sampled", np.inf, norm_limit, np.inf, at, found)
    errors = ElementComparison("out")
    if full:
        most_elements = _HOST_ELEMENTS if on_host else _DEVICE_ELEMENTS
        for part in _runs(rows, max(columns, inner), most_elements):
            expected = keep(f"rows from {part.start}", partial(_expected, a[part], b, limit, most_elements))
            errors.compare(out[part], expected["reference"], expected["limits"], partial(_shifted, part.start, 0))
        return verdict(errors.faults(norm_limit), "full", errors.norm, norm_limit, errors)
    generator = np.random.default_rng(seed)
    lines, across = _sampled_lines(rows, generator), _sampled_lines(columns, generator)
    expected = keep("rows", partial(_expected, a[lines], b, limit))
    errors.compare(out[lines], expected["reference"], expected["limits"], lambda row, column: (int(lines[row]), column))
    expected = keep("columns", partial(_expected, b.T[across], a.T, limit))
    errors.compare(
        out.T[across], expected["reference"], expected["limits"], lambda column, row: (row, int(across[column]))
    )
    width = max(_NARROWEST_GROUP, int(np.ceil(2.0 * rows * columns * inner / flop_budget)))
    _check_by_groups(errors, out, a, b, limit, _Groups.of(columns, width, generator), keep)
    return verdict(errors.faults(norm_limit), "sampled", errors.norm, norm_limit, errors)


class ElementComparison:
    """Errors of one output against their limits: sums of squares for the norm, and the worst element."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.squared_error = self.squared_limit = self.squared_reference = 0.0
        self.worst_ratio = -1.0
        self.worst_at: tuple[int, ...] = ()
        self.worst = ""

    def compare(self, out: Array, reference: Array, limit: Array, place: ExecutionContext) -> Array:
        """The errors of a block; `place(row, column)` of the block is where that is in the whole."""
        error = as_float64(out) - reference
        self.squared_error += inner_product(error, error)
        self.squared_reference += inner_product(reference, reference)
        ratio = abs(error) / limit
        row, column = largest(ratio)
        if float(ratio[row, column]) > self.worst_ratio:
            self.worst_ratio, self.worst_at = float(ratio[row, column]), place(row, column)
            right = f"{float(reference[row, column]):.6g} ± {float(limit[row, column]):.1g}"
            self.worst = f"{named(self.name, self.worst_at)} is {float(out[row, column]):.6g} where {right} is right"
        return error

    @property
    def norm(self) -> float:
        """‖error‖/‖reference‖; zero for a reference of zeros, whose limit per element is all there is."""
        return math.sqrt(self.squared_error / self.squared_reference) if self.squared_reference > 0 else 0.0

    def faults(self, norm_limit: float) -> list[str]:
        of_name = "" if self.name == "out" else f" of {self.name}"
        norms = f"the relative norm of the error{of_name} is {self.norm:.2g} where {norm_limit:.2g} is allowed"
        return [self.worst] * (self.worst_ratio > 1) + [norms] * (self.norm > norm_limit)


def verdict(
    faults: Sequence[str], method: Method, norm: float, norm_limit: float, worst: ElementComparison
) -> Verification:
    """Right where there is no fault; `norm` is what of the norms comes nearest to its limit."""
    right = f"correct ({method}): relative norm {norm:.2g}, worst element at {worst.worst_ratio:.2g} of its limit"
    message = "; ".join(faults) or right
    return Verification(not faults, method, norm, norm_limit, worst.worst_ratio, worst.worst_at, message)


def _shifted(first_row: int, first_column: int, row: int, column: int) -> tuple[int, int]:
    return first_row + row, first_column + column


def named(name: str, at: tuple[int, ...]) -> str:
    """An element, as in `out[3, 4]`."""
    return f"{name}[{', '.join(map(str, at))}]" if at else name


def _expected(a: Array, b: Array, limit: ElementLimit, most_elements: int = _HOST_ELEMENTS) -> dict[str, Array]:
    """The product of some rows with `b`, and the limit of each element; `b` is widened block by block."""
    references, limits = [], []
    wide_a, sizes_a = as_float64(a), magnitudes(a)
    for part in _runs(b.shape[1], b.shape[0], most_elements):
        reference = wide_a @ as_float64(b[:, part])
        size = sizes_a @ magnitudes(b[:, part]) if limit.accumulation else 0.0
        of_elements = limit.of(size, reference)
        references.append(reference)
        limits.append(as_float32(of_elements) if limit.smallest > _SMALLEST_FLOAT32 else of_elements)
    module = module_of(references[0])
    expected = {"reference": module.concatenate(references, 1), "limits": module.concatenate(limits, 1)}
    if not bool(module.isfinite(expected["reference"]).all()):
        _refuse_not_finite(a, b)
    return expected


def _refuse_not_finite(a: Array, b: Array) -> None:
    for name, operand in (("a", a), ("b", b)):
        if first_not_finite(operand) is not None:
            raise ValueError(f"operand {name} holds a NaN or an infinity: there is nothing to compare with")


@dataclass(frozen=True)
class _Groups:
    """Columns in groups that begin at `starts`, with a random weight each."""

    starts: Array
    weights: Float64
    width: int

    @classmethod
    def of(cls, columns: int, width: int, generator: np.random.Generator) -> _Groups:
        weights = generator.uniform(0.75, 1.25, columns) * generator.choice((-1.0, 1.0), columns)
        return cls(np.arange(0, columns, width), weights, width)

    def mix(self, panel: Array) -> Float64:
        """[rows, groups]: the columns of each group summed with their weights."""
        return np.asarray(np.add.reduceat(panel * self.weights, self.starts, axis=1))


def _mixed_reference(a: Array, b: Array, groups: _Groups) -> dict[str, Array]:
    """A·(B·x) of every group, and what its limits are made of."""
    rows, inner = a.shape
    mixed_b = np.concatenate([groups.mix(b[part]) for part in _runs(inner, b.shape[1])])
    column_squares = np.add.reduceat(np.einsum("kn,kn->n", b, b, dtype=np.float64) * groups.weights**2, groups.starts)
    reference, row_squares = np.empty((rows, groups.starts.size)), np.empty(rows)
    for part in _runs(rows, inner):
        wide_a = a[part].astype(np.float64)
        reference[part] = wide_a @ mixed_b
        row_squares[part] = np.einsum("mk,mk->m", wide_a, wide_a)
    if not np.isfinite(reference).all():
        _refuse_not_finite(a, b)
    return {"reference": reference, "row_squares": row_squares, "column_squares": column_squares}


def _check_by_groups(
    errors: ElementComparison, out: Array, a: Array, b: Array, limit: ElementLimit, groups: _Groups, keep: Keep
) -> None:
    """Freivalds' check on groups of columns: all residuals give the norm, the worst are looked at."""
    rows, columns = out.shape
    starts = groups.starts
    mixed = keep("groups", partial(_mixed_reference, a, b, groups))
    suspicion = np.empty((rows, starts.size))
    squared_error = squared_reference = 0.0
    for part in _runs(rows, columns):
        weighted = out[part] * groups.weights
        reference = mixed["reference"][part]
        residual = np.add.reduceat(weighted, starts, axis=1) - reference
        squared_error += inner_product(residual, residual)
        # The limit of a group, by Cauchy and Schwarz instead of |A|·|B|, and by out instead of ref.
        weighted *= weighted
        stored_squares = np.add.reduceat(weighted, starts, axis=1)
        allowed = (
            limit.accumulation**2 * mixed["row_squares"][part, None] * mixed["column_squares"]
            + limit.rounding**2 * stored_squares
            + max(limit.smallest**2, float(np.finfo(np.float64).tiny))
        )
        suspicion[part] = residual**2 / allowed
        # The mixed reference of a thin product can cancel to almost nothing; what was stored, weighted but not summed,
        # has the size that the mixed reference has on average.
        squared_reference += max(inner_product(reference, reference), float(stored_squares.sum()))

    count = min(_NOMINATIONS, suspicion.size)
    for flat in np.argpartition(suspicion, -count, axis=None)[-count:]:
        row, group = divmod(int(flat), starts.size)
        first = int(starts[group])
        here, across = slice(row, row + 1), slice(first, min(first + groups.width, columns))
        expected = _expected(a[here], b[:, across], limit)
        place = partial(_shifted, row, first)
        errors.compare(out[here, across], expected["reference"], expected["limits"], place)
    # Every element is in some residual, so these replace the sums over what was compared.
    errors.squared_error, errors.squared_reference = squared_error, squared_reference


def _sampled_lines(count: int, generator: np.random.Generator) -> Array:
    """The first, the last and some lines between, in order."""
    return np.unique(np.concatenate((generator.integers(0, count, _SAMPLED_LINES), [0, count - 1])))


def _runs(count: int, length: int, most_elements: int = _HOST_ELEMENTS) -> Iterator[slice]:
    """`count` lines of that length in runs short enough for a float64 block."""
    step = max(1, most_elements // max(1, length))
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))
