"""Whether a matrix product is right, to the last element: nothing is timed whose result has not passed here.

Small products are compared with a float64 reference in full, large ones by samples and by Freivalds' check in
groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .tolerance import ElementLimit, element_limit, relative_norm_limit

Array = NDArray[Any]
Float64 = NDArray[np.float64]

FLOP_BUDGET = 2e10
"""FLOPs of a product (2·M·N·K) up to which it is checked in full: half a second on two cores."""

_PANEL_ELEMENTS = 1 << 21
_SAMPLED_LINES = 16
_NARROWEST_GROUP = 16
_NOMINATIONS = 256


@dataclass(frozen=True)
class Verification:
    """The outcome: the relative norm against its limit, and the worst element against its own.

    `worst_element_ratio` is 1.0 at the limit, `worst_at` its place, (row, column) in a product. `message` is one
    sentence for people: what was checked if passed, what is wrong and where if not.
    """

    passed: bool
    method: Literal["full", "sampled"]
    relative_norm: float
    relative_norm_limit: float
    worst_element_ratio: float
    worst_at: tuple[int, ...]
    message: str


def verify_product(
    out: Array,
    a: Array,
    b: Array,
    dtype: str,
    out_dtype: str,
    flop_budget: float = FLOP_BUDGET,
    seed: int = 0,
) -> Verification:
    """Compare `out` [M, N] with the product of `a` [M, K] and `b` [K, N], any strides.

    The arrays hold the values as rounded to `dtype` and `out_dtype`, in any numpy type that can (float32 for
    bfloat16). Two limits must hold (`tolerance`): ‖out − ref‖/‖ref‖, and |out − ref| for each element
    compared. A NaN or infinity in `out` fails wherever it stands. Up to `flop_budget` FLOPs every element is
    compared. Above it:

    * the first, the last and 16 random rows and columns are compared in full;
    * Freivalds' check, in groups: columns are summed with random weights in groups of 16 or more, in `out`
      and in the reference (A·(B·x), at a sixteenth of the cost or less), and the residuals give the relative
      norm of *all* elements, and show where errors may be;
    * the 256 rows × groups with the largest residuals, relative to their limits, are compared in full.

    So the residuals nominate and the limit per element decides: a correct product cannot fail by an unlucky
    weight, and an error that stands out of its group's rounding is seen. Weights are ±[0.75, 1.25), not ±1: a
    single error is never lost, and neither are two equal and opposite ones, as of swapped columns. Freivalds,
    *Information Processing* 77, 1977.

    Raises ValueError if shapes do not fit together, an operand is not finite, or a dtype has no known
    tolerance.
    """
    matching = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and out.shape == (a.shape[0], b.shape[1])
    if not matching or not out.size:
        raise ValueError(f"shapes do not fit together: out {out.shape}, a {a.shape}, b {b.shape}")
    (rows, inner), columns = a.shape, b.shape[1]
    limit = element_limit(dtype, out_dtype, inner)
    norm_limit = relative_norm_limit(dtype, out_dtype, inner)
    for name, operand in (("a", a), ("b", b)):
        if _first_not_finite(operand) is not None:
            raise ValueError(f"operand {name} holds a NaN or an infinity: there is nothing to compare with")

    full = 2.0 * rows * columns * inner <= flop_budget
    at = _first_not_finite(out)
    if at is not None:
        found = f"out[{at[0]}, {at[1]}] is {float(out[at])}"
        return Verification(False, "full" if full else "sampled", np.inf, norm_limit, np.inf, at, found)
    errors = _Errors(limit)
    if full:
        _compare_rows(errors, out, a, b, np.arange(rows))
        return errors.verdict("full", norm_limit)
    generator = np.random.default_rng(seed)
    _compare_rows(errors, out, a, b, _sampled_lines(rows, generator))
    transposed = _Errors(limit)
    _compare_rows(transposed, out.T, b.T, a.T, _sampled_lines(columns, generator))
    column, row = transposed.worst_at
    errors.take_worst(transposed.worst_ratio, (row, column), transposed.worst_values)
    width = max(_NARROWEST_GROUP, int(np.ceil(2.0 * rows * columns * inner / flop_budget)))
    _check_by_groups(errors, out, a, b, width, generator)
    return errors.verdict("sampled", norm_limit)


class _Errors:
    """Gathers errors from blocks of elements: sums of squares for the norm, and the worst element."""

    def __init__(self, limit: ElementLimit) -> None:
        self.limit = limit
        self.squared_error = 0.0
        self.squared_reference = 0.0
        self.worst_ratio = -1.0
        self.worst_at = (0, 0)
        self.worst_values = (0.0, 0.0, 0.0)

    def compare(self, out: Float64, a: Float64, b: Float64, rows: Array, columns: Array) -> tuple[Float64, Float64]:
        """Error and reference of a block, the lines `rows` and `columns` of the whole; keep the worst."""
        reference = a @ b
        error = np.abs(out - reference)
        limits = self.limit.of(np.abs(a) @ np.abs(b), reference)
        ratio = error / limits
        worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        values = float(out[worst]), float(reference[worst]), float(limits[worst])
        self.take_worst(float(ratio[worst]), (int(rows[worst[0]]), int(columns[worst[1]])), values)
        return error, reference

    def take_worst(self, ratio: float, at: tuple[int, int], values: tuple[float, float, float]) -> None:
        if ratio > self.worst_ratio:
            self.worst_ratio, self.worst_at, self.worst_values = ratio, at, values

    def verdict(self, method: Literal["full", "sampled"], norm_limit: float) -> Verification:
        """Judge what was gathered; for a reference of zeros the limit per element is all there is."""
        error, reference = np.sqrt(self.squared_error), np.sqrt(self.squared_reference)
        norm = float(error / reference) if reference > 0 else 0.0
        element_passed, norm_passed = self.worst_ratio <= 1.0, norm <= norm_limit
        value, right, limit = self.worst_values
        row, column = self.worst_at
        where = f"out[{row}, {column}] is {value:.6g} where {right:.6g} ± {limit:.1g} is right"
        norms = f"the relative norm of the error is {norm:.2g} where {norm_limit:.2g} is allowed"
        if element_passed and norm_passed:
            worst = f"worst element at {self.worst_ratio:.2g} of its limit"
            message = f"correct ({method}): relative norm {norm:.2g}, {worst}"
        else:
            message = "; ".join([where] * (not element_passed) + [norms] * (not norm_passed))
        return Verification(
            element_passed and norm_passed, method, norm, norm_limit, self.worst_ratio, self.worst_at, message
        )


def _compare_rows(errors: _Errors, out: Array, a: Array, b: Array, rows: Array) -> None:
    """Compare whole rows, block by block, so that float64 copies stay small beside the operands."""
    for columns in _panels(np.arange(out.shape[1]), a.shape[1]):
        across = slice(columns[0], columns[-1] + 1)
        wide_b = b[:, across].astype(np.float64)
        for panel in _panels(rows, max(columns.size, a.shape[1])):
            wide_out, wide_a = out[panel, across].astype(np.float64), a[panel].astype(np.float64)
            error, reference = errors.compare(wide_out, wide_a, wide_b, panel, columns)
            errors.squared_error += float(np.vdot(error, error))
            errors.squared_reference += float(np.vdot(reference, reference))


def _check_by_groups(
    errors: _Errors, out: Array, a: Array, b: Array, width: int, generator: np.random.Generator
) -> None:
    """Freivalds' check on groups of `width` columns: all residuals give the norm, the worst are looked at."""
    rows, columns = out.shape
    starts = np.arange(0, columns, width)
    weights = generator.uniform(0.75, 1.25, columns) * generator.choice((-1.0, 1.0), columns)
    inner = _panels(np.arange(b.shape[0]), columns)
    mixed_b = np.concatenate([_mix(b[panel], weights, starts) for panel in inner])
    column_squares = np.add.reduceat(np.einsum("kn,kn->n", b, b, dtype=np.float64) * weights**2, starts)
    suspicion = np.empty((rows, starts.size))
    squared_error = squared_reference = 0.0
    for panel in _panels(np.arange(rows), max(columns, a.shape[1])):
        wide_a, wide_out = a[panel].astype(np.float64), out[panel].astype(np.float64)
        reference = wide_a @ mixed_b
        residual = _mix(wide_out, weights, starts) - reference
        squared_error += float(np.vdot(residual, residual))
        # The limit of a group, by Cauchy and Schwarz instead of |A|·|B|, and by out instead of ref.
        row_squares = np.einsum("mk,mk->m", wide_a, wide_a)[:, None]
        stored_squares = np.add.reduceat((wide_out * weights) ** 2, starts, axis=1)
        allowed = (
            errors.limit.accumulation**2 * row_squares * column_squares
            + errors.limit.rounding**2 * stored_squares
            + max(errors.limit.smallest**2, float(np.finfo(np.float64).tiny))
        )
        suspicion[panel] = residual**2 / allowed
        # The mixed reference of a thin product can cancel to almost nothing; what was stored, weighted but not summed,
        # has the size that the mixed reference has on average.
        squared_reference += max(float(np.vdot(reference, reference)), float(stored_squares.sum()))
    # Every element is in some residual, so these replace the sums over the sampled rows.
    errors.squared_error, errors.squared_reference = squared_error, squared_reference

    count = min(_NOMINATIONS, suspicion.size)
    for flat in np.argpartition(suspicion, -count, axis=None)[-count:]:
        row, group = divmod(int(flat), starts.size)
        span = np.arange(starts[group], min(starts[group] + width, columns))
        here, across = slice(row, row + 1), slice(span[0], span[-1] + 1)
        block = (out[here, across], a[here], b[:, across])
        wide_out, wide_a, wide_b = (part.astype(np.float64) for part in block)
        errors.compare(wide_out, wide_a, wide_b, np.array([row]), span)


def _mix(panel: Array, weights: Float64, starts: Array) -> Float64:
    """[rows, groups]: the columns of each group summed with their weights."""
    return np.asarray(np.add.reduceat(panel * weights, starts, axis=1))


def _sampled_lines(count: int, generator: np.random.Generator) -> Array:
    """The first, the last and some lines between, in order."""
    drawn = generator.integers(0, count, _SAMPLED_LINES)
    return np.unique(np.concatenate((drawn, [0, count - 1])))


def _panels(lines: Array, length: int) -> list[Array]:
    """`lines` in runs short enough for a float64 copy to stay near the cache."""
    step = max(1, _PANEL_ELEMENTS // max(1, length))
    return [lines[begin : begin + step] for begin in range(0, len(lines), step)]


def _first_not_finite(values: Array) -> tuple[int, int] | None:
    for panel in _panels(np.arange(values.shape[0]), values.shape[1]):
        finite = np.isfinite(values[panel[0] : panel[-1] + 1])
        if not finite.all():
            row, column = np.unravel_index(int(np.argmin(finite)), finite.shape)
            return int(panel[0] + row), int(column)
    return None
