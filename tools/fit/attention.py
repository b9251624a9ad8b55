"""Fits the law of attention to the published tables of causal prefill, kernel by kernel, and states its error.

The error is that of whole head shapes (heads, kv_heads, head_dim) left out: all batches and lengths of one together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.calibrate_laws import HeldOutError, cross_validate, site_numbers, summary
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.alpha_beta import HUBER, LEAST_SCATTER
from pyperf_suite.laws.attention import (
    AttentionCosts,
    AttentionKernels,
    AttentionShape,
    KernelLaw,
    grid_sizes,
    pack_kernels,
    transferred_attention,
    unpack_attention,
)
from pyperf_suite.laws.calibration import CalibrationBlock, ResidualGrid
from pyperf_suite.laws.tiling import nonnegative_fit
from tools.fit.published import read_columns, tables_like

if TYPE_CHECKING:
    from scipy import sparse

TABLE = "attention_prefill_bf16_"
ORIGIN = "causal prefill attention as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0)"
# Measured with random inputs; other versions in the tables used uninitialised ones or ran into the power limit.
LIBRARIES = (("trtllm", "1.3.0rc20"), ("sglang", "0.5.14"))
LIBRARIES_OF_TABLE = {"a100_sxm": (("sglang", "0.5.10"),)}
SIZES = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
# Tiles that kernels were seen to have, and how many of them fit on a multiprocessor.
BLOCKS = (64, 128, 192, 256)
RESIDENT = (1, 2, 3)
# Powers of two: batch·heads up to 2^15, sequences up to 2^14, up to 2^7 heads a key head.
GRID = (16, 15, 8)
# A step of the grid to a neighbour, over a row's residual: chosen on head shapes left out, flat from 0.01 to 0.1.
SMOOTHNESS = 0.03
REWEIGHTINGS = 3
# Held against the level, so that what no row says anything of is determined: it follows its neighbours.
LEVEL = 1e-4
# A library that knows fewer than this share of the head shapes of a head dimension has no law there: it would make
# some heads look faster than others for having been measured.
BROAD = 0.5


@dataclass(frozen=True)
class PrefillTable:
    """Rows of one GPU's table: `sizes` has the columns of `SIZES`, `library` the position among `libraries`."""

    libraries: Sequence[str]
    library: NDArray[np.intp]
    sizes: NDArray[np.int64]
    seconds: NDArray[np.float64]

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> PrefillTable:
        """The same table with those rows alone."""
        return PrefillTable(self.libraries, self.library[rows], self.sizes[rows], self.seconds[rows])

    @property
    def head_dim(self) -> NDArray[np.int64]:
        """Head dimension of each row."""
        return self.sizes[:, 4]

    @property
    def head_shapes(self) -> NDArray[np.intp]:
        """A number for each row, equal where heads, kv_heads and head_dim are."""
        return site_numbers(*self.sizes[:, 2:].T)

    def shape(self) -> AttentionShape:
        """The rows as causal attention with as many queries as keys."""
        batch, seq, heads, kv_heads, _ = self.sizes.T.astype(np.float64)
        return AttentionShape(batch, seq, seq, heads, kv_heads, causal=True)


def fit_attention(tables_folder: Path) -> dict[str, CalibrationBlock]:
    """The block of every GPU that the folder has a table of, by its name in the catalogue.

    Raises UserError where the folder has no such table.
    """
    names = tables_like(tables_folder, TABLE)
    if not names:
        raise UserError(f"{tables_folder} has no table of attention ({TABLE}GPU.parquet): name the folder that has.")
    gpus = map(find_gpu, names)
    return {gpu.name: fit_block(read_prefill(tables_folder, gpu.slug), gpu) for gpu in gpus}


def read_prefill(tables_folder: Path, name: str) -> PrefillTable:
    """The rows of a GPU's table that the law is fitted to, repeats of one joined by their median.

    Of each library its truth column and, at each head dimension, the kernel that it used for most shapes: the others
    (on B200 of heads of 256, three times slower) stand in for it where it has no shape.
    """
    versions = LIBRARIES_OF_TABLE.get(name, LIBRARIES)
    column = read_columns(tables_folder, TABLE + name)
    wanted = np.zeros(column["isl"].size, dtype=bool)
    library = np.zeros(column["isl"].size, dtype=np.intp)
    for position, (lib, version) in enumerate(versions):
        own = (column["backend_lib"] == lib) & (column["backend_version"] == version)
        own &= column["kv_cache_dtype"] == "bfloat16"
        library[own] = position
        for head_dim in np.unique(column["head_dim"][own]):
            there = own & (column["head_dim"] == head_dim)
            kernels, rows = np.unique(column["kernel_source"][there].astype(str), return_counts=True)
            wanted |= there & (column["kernel_source"] == kernels[rows.argmax()])
    sizes = np.stack([column[field][wanted].astype(np.int64) for field in SIZES], axis=1)
    keys, number = np.unique(np.column_stack([library[wanted], sizes]), axis=0, return_inverse=True)
    seconds = _medians(number.reshape(-1), column["latency_us"][wanted] * 1e-6)
    return PrefillTable([lib for lib, _ in versions], keys[:, 0].astype(np.intp), keys[:, 1:], seconds)


def truth(table: PrefillTable) -> PrefillTable:
    """One row a shape: the median over the libraries that have it."""
    keys, number = np.unique(table.sizes, axis=0, return_inverse=True)
    seconds = _medians(number.reshape(-1), table.seconds)
    return PrefillTable(("median",), np.zeros(len(keys), dtype=np.intp), keys, seconds)


def fit_kernels(table: PrefillTable, sms: int) -> list[KernelLaw]:
    """A law for each library and head dimension that the table has broadly."""
    kernels = []
    for head_dim in np.unique(table.head_dim):
        there = [table.take((table.head_dim == head_dim) & (table.library == i)) for i in range(len(table.libraries))]
        broad = BROAD * max(np.unique(rows.head_shapes).size for rows in there)
        for library, rows in zip(table.libraries, there, strict=True):
            if rows.seconds.size and np.unique(rows.head_shapes).size >= broad:
                kernels.append(fit_kernel(rows, library, int(head_dim), sms))
    return kernels


def fit_kernel(rows: PrefillTable, library: str, head_dim: int, sms: int) -> KernelLaw:
    """The tile whose counted seconds come nearest, its costs, and the grid of what these miss."""
    shape = rows.shape()
    tiles = [
        KernelLaw(library, head_dim, block, resident, sms, AttentionCosts(0, 0, 0, 0, 0), np.zeros(GRID))
        for block in BLOCKS
        for resident in RESIDENT
    ]
    features = [tile.features(shape) for tile in tiles]
    costs = [np.array(nonnegative_fit(counted, rows.seconds)) for counted in features]
    apart = [
        np.abs(np.log(counted @ cost / rows.seconds)).mean() for counted, cost in zip(features, costs, strict=True)
    ]
    best = int(np.argmin(apart))
    fitted = _log_fit(features[best], costs[best], rows.seconds)
    kernel = replace(tiles[best], costs=AttentionCosts(*fitted.tolist()))
    missed = np.log(rows.seconds / kernel.counted_seconds(shape))
    return replace(kernel, grid=fit_grid(missed, grid_sizes(shape), GRID, SMOOTHNESS))


def _log_fit(
    features: NDArray[np.float64], start: NDArray[np.float64], seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Costs that make log(counted / measured) small, far rows counting by their distance, not its square.

    Least squares of relative residuals, where it starts, forgive a time ten times too short: it is only 90 % less.
    """
    from scipy.optimize import least_squares

    typical = np.median(seconds[:, None] / np.maximum(features, np.finfo(np.float64).tiny), axis=0)
    floor = 1e-3 * typical

    def missed(log_costs: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(features @ np.exp(log_costs) / seconds))

    def slope(log_costs: NDArray[np.float64]) -> NDArray[np.float64]:
        shares = features * np.exp(log_costs)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    first = np.log(np.maximum(start, floor))
    found = least_squares(missed, first, slope, loss="soft_l1", f_scale=0.05, bounds=(np.log(floor) - 5, np.inf))
    return np.asarray(np.exp(found.x))


def fit_block(table: PrefillTable, spec: GpuSpec) -> CalibrationBlock:
    """The block of one GPU, with its error on head shapes left out."""
    batch, seq, heads, kv_heads, _ = ((float(size.min()), float(size.max())) for size in table.sizes.T)
    return CalibrationBlock(
        pack_kernels(fit_kernels(table, spec.sms)),
        held_out_error(table, spec.sms, by_head_shape=True).to_json(),
        {"batch": batch, "seq": seq, "heads": heads, "kv_heads": kv_heads},
        ORIGIN,
    )


def held_out_error(table: PrefillTable, sms: int, by_head_shape: bool) -> HeldOutError:
    """The error of the median of libraries in five folds: on whole head shapes left out, or on single rows.

    Single rows have neighbours in batch and length that were seen, so their error is the smaller one.
    """
    wanted = truth(table)
    rows_of = {tuple(size): number for number, size in enumerate(wanted.sizes.tolist())}
    row_of = np.array([rows_of[tuple(size)] for size in table.sizes.tolist()])

    def fit(seen: NDArray[np.intp]):  # type: ignore[no-untyped-def]
        kernels = fit_kernels(table.take(np.isin(row_of, seen)), sms)
        return lambda unseen: predicted(kernels, wanted.take(unseen))

    sites = wanted.head_shapes if by_head_shape else np.arange(wanted.seconds.size)
    return cross_validate(fit, wanted.seconds, sites)


def left_out_error(blocks: dict[str, CalibrationBlock], table: PrefillTable, gpu: str) -> HeldOutError:
    """The error on a GPU's whole table of laws read off the other GPUs' blocks and its data sheet."""
    spec = find_gpu(gpu)
    others = {name: unpack_attention(block, find_gpu(name)) for name, block in blocks.items() if name != gpu}
    moved, wanted = transferred_attention(spec, others), truth(table)
    return summary(predicted_by(moved, wanted), wanted.seconds, 1, "this GPU's own table left out")


def predicted(kernels: Sequence[KernelLaw], rows: PrefillTable) -> NDArray[np.float64]:
    """Seconds of each row, the median of the kernels of its head dimension."""
    by_head_dim: dict[int, list[KernelLaw]] = {}
    for kernel in kernels:
        by_head_dim.setdefault(kernel.head_dim, []).append(kernel)
    return predicted_by(AttentionKernels(by_head_dim, {}, 0.0, ""), rows)


def predicted_by(kernels: AttentionKernels, rows: PrefillTable) -> NDArray[np.float64]:
    """Seconds of each row by a GPU's kernels, one of another width where they have none of the row's."""
    seconds = np.zeros(rows.seconds.size)
    for head_dim in np.unique(rows.head_dim):
        here = rows.head_dim == head_dim
        shape = rows.take(here).shape()
        for weight, libraries in kernels.at_width(int(head_dim)):
            seconds[here] += weight * np.median([kernel.seconds(shape) for kernel in libraries], axis=0)
    return seconds


def _medians(number: NDArray[np.intp], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of the values that share each number, 0 and up."""
    order = np.argsort(number, kind="stable")
    groups = np.split(values[order], np.cumsum(np.bincount(number))[:-1])
    return np.array([float(np.median(group)) for group in groups])


def fit_grid(
    values: NDArray[np.float64], sizes: Sequence[NDArray[np.float64]], shape: tuple[int, ...], smoothness: float
) -> NDArray[np.float64]:
    """The grid of that shape that reads `values` at `sizes`, with least squared steps between neighbours.

    `smoothness` is what a squared step costs over a row's squared residual. Rows that nothing near agrees with are
    held to less and less (Huber's weights). Raises ValueError for no rows.
    """
    from scipy import sparse
    from scipy.sparse.linalg import spsolve

    if values.size == 0:
        raise ValueError("a grid cannot be fitted to no rows")
    rows = np.arange(values.size)
    reading = sum(
        sparse.csr_matrix((weight, (rows, corner)), shape=(values.size, int(np.prod(shape))))
        for corner, weight in ResidualGrid.octaves(np.empty(shape)).corners(sizes)
    )
    penalty = smoothness * _roughness(shape) + LEVEL * sparse.identity(int(np.prod(shape)))
    weights = np.ones(values.size)
    for _ in range(REWEIGHTINGS):
        weighted = reading.T @ sparse.diags_array(weights)
        grid = spsolve((weighted @ reading + penalty).tocsc(), weighted @ values)
        residuals = np.abs(reading @ grid - values)
        scatter = HUBER * max(1.4826 * float(np.median(residuals)), LEAST_SCATTER)
        weights = np.minimum(1.0, scatter / np.maximum(residuals, scatter))
    return np.asarray(grid.reshape(shape))


def _roughness(shape: tuple[int, ...]) -> sparse.csr_matrix:
    """The quadratic form of squared steps along every axis."""
    from scipy import sparse

    form = sparse.csr_matrix((int(np.prod(shape)),) * 2)
    for axis, count in enumerate(shape):
        step = np.diff(np.eye(count), axis=0)
        outer, inner = (sparse.identity(int(np.prod(part))) for part in (shape[:axis], shape[axis + 1 :]))
        form += sparse.kron(sparse.kron(outer, step.T @ step), inner)
    return form
