"""Fits laws read off tables of attention, with and without windows and latent, and states their errors.

The error is that of whole sites left out: of prefill the head shapes (heads, kv_heads, head_dim) with all their batches
and lengths, of windows (heads, kv_heads, length), of latent attention (heads, length).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.calibrate import cross_predicted, folds, site_numbers, summary
from pyperf_suite.planner.laws.attention import (
    LATENT,
    LATENT_WIDTH,
    PLAIN,
    WINDOWED,
    AttentionShape,
    Kind,
    TableLaw,
    latent_shape,
    pack_tables,
)
from pyperf_suite.planner.laws.calibration import COVERED, Band, CalibrationBlock, ResidualGrid
from tools.fit import fitting
from tools.fit.fitting import Blocks
from tools.fit.published import Columns, read_columns, tables_like, versions

Floats = NDArray[np.float64]

TABLE, WINDOW_TABLE, LATENT_TABLE = "attention_prefill_bf16_", "attention_window_bf16_", "mla_prefill_"
ORIGIN = "{} {}, {} as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0)"
UNINITIALISED = ", of uninitialised inputs"
# Whose times are held for true: trtllm's and sglang's were measured with random inputs.
VERSIONS = {"trtllm": "1.3.0rc20", "sglang": "0.5.14", "vllm": "0.24.0"}
VERSIONS_OF_TABLE = {"a100_sxm": {"trtllm": "1.0.0", "sglang": "0.5.10", "vllm": "0.14.0"}}
# Rows with a cache in fp8 are left out: only inference has one.
CACHE = "bfloat16"
SIZES = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
# Powers of two: batch·heads up to 2^15, sequences up to 2^15, up to 2^7 heads a key head.
GRID = (16, 16, 8)
# A squared step of the grid to a neighbour over a row's squared residual: chosen on sites left out, flat near here.
SMOOTHNESS = 0.03
# A cost is at least this part of one that would take all of the median row's time.
LEAST_COST = 1e-5
# Rows that nothing near agrees with are held to less and less (Huber's weights), in so many rounds.
ROUNDS, STEPS, ENOUGH = 3, 400, 1e-4
# A kernel of fewer rows than this is none: nothing could be held out.
FEWEST_ROWS = 50


@dataclass(frozen=True)
class Rows:
    """Rows of one library on one GPU: `sizes` are batch, seq, heads, kv_heads, head_dim and window (0: none)."""

    sizes: NDArray[np.int64]
    seconds: Floats
    is_latent: bool = False

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Rows:
        return Rows(self.sizes[rows], self.seconds[rows], self.is_latent)

    @property
    def sites(self) -> NDArray[np.intp]:
        _, seq, heads, kv_heads, head_dim, window = self.sizes.T
        return site_numbers(heads, kv_heads, np.where((window > 0) | self.is_latent, -seq, head_dim))

    def shape(self) -> AttentionShape:
        """The rows as causal attention with as many queries as keys."""
        batch, seq, heads, kv_heads, width, window = self.sizes.T.astype(np.float64)
        if self.is_latent:
            return latent_shape(batch, seq, seq, heads)
        return AttentionShape(batch, seq, seq, heads, kv_heads, width, width, np.where(window > 0, window, np.inf))


def fit_attention(folder: Path) -> Blocks:
    """The blocks of every GPU that the folder has a table of, by GPU and name. Raises UserError without tables."""
    tables = {*tables_like(folder, TABLE), *tables_like(folder, LATENT_TABLE)}
    found = (
        (gpu.name, name, fit_block(rows, gpu, origin))
        for gpu in map(find_gpu, sorted(tables))
        for name, (rows, origin) in read_tables(folder, gpu.slug).items()
    )
    return fitting.by_gpu(found, folder, f"table of attention ({TABLE}GPU.parquet)")


def read_tables(folder: Path, slug: str) -> dict[str, tuple[Rows, str]]:
    """A GPU's rows and their origin by the block that is fitted to them, repeats joined by their median."""
    found = {}
    plain, window, latent = (
        read_columns(folder, table + slug) if slug in tables_like(folder, table) else {}
        for table in (TABLE, WINDOW_TABLE, LATENT_TABLE)
    )
    for library, version in VERSIONS_OF_TABLE.get(slug, VERSIONS).items():
        note = UNINITIALISED if library == "vllm" else ""
        origin = ORIGIN.format(library, version, "causal prefill attention") + note
        if plain:
            rows = (plain["kv_cache_dtype"] == CACHE) & (plain["backend_lib"] == library)
            rows &= plain["backend_version"] == version
            rows &= _main_kernels(plain, rows)
            found[f"{PLAIN}.{library}"] = _joined(plain, rows, "latency_us"), origin
        if (column := f"{library}_{version}") in window:
            rows = (window["kv_cache_dtype"] == CACHE) & np.isfinite(window[column].astype(np.float64))
            found[f"{WINDOWED}.{library}"] = _joined(window, rows, column), origin
        for column in versions(latent, library):
            rows = (latent["kv_cache_dtype"] == CACHE) & (latent["scope"] == "kernel") & np.isfinite(latent[column])
            if rows.any():
                origin = ORIGIN.format(*column.split("_"), "latent prefill attention")
                found[f"{LATENT}.{library}"] = _joined(latent, rows, column), origin
                break
    return {name: (rows, origin) for name, (rows, origin) in found.items() if rows.seconds.size >= FEWEST_ROWS}


def _main_kernels(columns: Columns, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows of the kernel used most at their head dimension, or of lengths that this one has no row of there.

    On B200 others take up to eight times as long for heads of 256.
    """
    kept = np.zeros(rows.size, dtype=bool)
    for head_dim in np.unique(columns["head_dim"][rows]):
        there = rows & (columns["head_dim"] == head_dim)
        kernels, counts = np.unique(columns["kernel_source"][there].astype(str), return_counts=True)
        main = there & (columns["kernel_source"] == kernels[counts.argmax()])
        kept |= main | (there & ~np.isin(columns["isl"], columns["isl"][main]))
    return kept


def _joined(columns: Columns, rows: NDArray[np.bool_], times: str) -> Rows:
    count, is_latent = int(rows.sum()), "head_dim" not in columns
    absent = {"num_key_value_heads": 1, "head_dim": LATENT_WIDTH, "window_size": 0}
    sizes = [
        columns[name][rows].astype(np.int64) if name in columns else np.full(count, absent[name])
        for name in (*SIZES, "window_size")
    ]
    keys, number = np.unique(np.stack(sizes, axis=1), axis=0, return_inverse=True)
    order = np.argsort(number.reshape(-1), kind="stable")
    groups = np.split(columns[times][rows].astype(np.float64)[order], np.cumsum(np.bincount(number.reshape(-1)))[:-1])
    return Rows(keys, np.array([float(np.median(group)) for group in groups]) * 1e-6, is_latent)


def fit_block(table: Rows, spec: GpuSpec, origin: str) -> CalibrationBlock:
    """A law for each head dimension and window with enough rows, with its error, band and range."""
    kernels: dict[Kind, TableLaw] = {}
    kept, unseen = np.zeros(table.seconds.size, dtype=bool), np.ones(table.seconds.size)
    inside = kept.copy()
    for head_dim, window in np.unique(table.sizes[:, 4:], axis=0).tolist():
        there = np.flatnonzero((table.sizes[:, 4:] == (head_dim, window)).all(axis=1))
        if there.size < FEWEST_ROWS:
            continue
        rows = table.take(there)

        def fit(seen: NDArray[np.intp], rows: Rows = rows) -> Callable[[NDArray[np.intp]], Floats]:
            law = fit_table(rows.take(seen), spec)
            return lambda out: seconds_of(law, rows.take(out), spec)

        kept[there], unseen[there] = True, cross_predicted(fit, rows.sites)
        law = fit_table(rows, spec)
        band, inside[there] = held_band(np.log(rows.seconds / unseen[there]), unseen[there], rows.sites)
        kernels[head_dim, window] = TableLaw(law.costs, law.grid, band)
    table, unseen, inside = table.take(kept), unseen[kept], inside[kept]
    held_out = summary(unseen, table.seconds, np.unique(table.sites).size, "5-fold, whole sites held out")
    limits = fitting.limits_of(dict(zip(("batch", "seq", "heads", "kv_heads"), table.sizes.T, strict=False)))
    coverage = {"coverage": round(100 * float(inside.mean()), 1)}
    return CalibrationBlock(pack_tables(kernels), held_out.to_json() | coverage, limits, origin)


def seconds_of(law: TableLaw, rows: Rows, spec: GpuSpec) -> Floats:
    """Seconds of each row by the law."""
    shape = rows.shape()
    return law.seconds(_work(shape, spec), shape.sizes)


def _work(shape: AttentionShape, spec: GpuSpec) -> Floats:
    return shape.work(spec.sms, spec.peak("bf16"), spec.memory_bytes_per_s)


def fit_table(rows: Rows, spec: GpuSpec) -> TableLaw:
    """Costs, and the grid of what they miss, of the rows of one kernel; its band is left to held-out errors."""
    shape = rows.shape()
    work = _work(shape, spec)
    least = LEAST_COST * np.median(rows.seconds[:, None] / work, axis=0)
    costs = fitting.fit_costs(work, rows.seconds, 3e3 * least, (least, np.inf), usual_error=0.05)
    values = fit_grid(np.log(rows.seconds / (work @ costs)), shape.sizes, GRID, SMOOTHNESS)
    return TableLaw(costs, ResidualGrid.octaves(values), Band(*np.zeros((3, 1))))


def fit_grid(values: Floats, sizes: tuple[Floats, ...], shape: tuple[int, ...], smoothness: float) -> Floats:
    """The grid of that shape over powers of two that reads `values` at `sizes`, smooth between neighbours.

    `smoothness` is what a squared step costs over a row's squared residual; conjugate gradients, preconditioned by the
    diagonal. Raises ValueError for no rows.
    """
    from scipy import sparse

    if values.size == 0:
        raise ValueError("a grid cannot be fitted to no rows")
    read = fitting.reading(ResidualGrid.octaves(np.empty(shape)).axes, sizes)
    form = fitting.roughness(shape, [smoothness] * len(shape))
    weights, nodes = np.ones(values.size), np.zeros(read.shape[1])
    for _ in range(ROUNDS):
        system = (read.T @ sparse.diags(weights) @ read + form).tocsr()
        diagonal, wanted = system.diagonal(), read.T @ (weights * values)
        nodes = fitting.conjugate_gradients(
            system.dot, lambda left, by=diagonal: left / by, wanted, nodes, ENOUGH, STEPS
        )
        weights = fitting.huber_weights(read @ nodes - values)
    return np.asarray(nodes.reshape(shape))


def held_band(missed: Floats, predicted: Floats, sites: NDArray[np.intp]) -> tuple[Band, NDArray[np.bool_]]:
    """The band of errors, log(measured / predicted), of sites left out, and which lie in that of the other sites.

    Few sites make a band of the others too narrow: it is widened until it covers as many of the rest as it should.
    """
    off = np.empty(missed.size)
    for out in folds(sites):
        low, high = np.log(Band.fit(missed[~out], predicted[~out]).around(1.0, predicted[out]))
        off[out] = np.abs(2 * missed[out] - low - high) / (high - low)
    inside = np.zeros(missed.size, dtype=bool)
    for out in folds(sites):
        inside[out] = off[out] <= _widening(off[~out])
    band, wider = Band.fit(missed, predicted), _widening(off)
    middle, half = (band.low + band.high) / 2, wider * (band.high - band.low) / 2
    return Band(band.at, middle - half, middle + half), inside


def _widening(off: Floats) -> float:
    """Number of half widths by which a band covers as many rows as they should; not less than one."""
    return max(1.0, float(np.quantile(off, COVERED)))
