"""Fits the law of attention to the published tables of causal prefill, kernel by kernel, and states its error.

One law a library, another for layers with a window. The error is that of whole sites left out: of prefill the
head shapes (heads, kv_heads, head_dim) with all their batches and lengths, of windows (heads, kv_heads, length).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.tiling import nonnegative_fit
from pyperf_suite.planner.calibrate import cross_predicted, site_numbers, summary
from pyperf_suite.planner.laws.attention import PLAIN, WINDOWED
from pyperf_suite.planner.laws.attention_kernels import (
    AttentionCosts,
    AttentionKernels,
    AttentionShape,
    KernelChoice,
    KernelLaw,
    grid_sizes,
    pack_kernels,
    transferred,
    unpack_attention,
    windowed,
)
from pyperf_suite.planner.laws.calibration import Band, CalibrationBlock, ResidualGrid, all_shipped
from pyperf_suite.planner.laws.transfers import have_same_kernels
from tools.fit import fitting
from tools.fit.fitting import Blocks
from tools.fit.published import Columns, read_columns, tables_like

Floats = NDArray[np.float64]

TABLE, WINDOW_TABLE = "attention_prefill_bf16_", "attention_window_bf16_"
ORIGIN = "{} {}, causal prefill attention as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0)"
UNINITIALISED = ", of uninitialised inputs"
# Whose times are held for true: trtllm's and sglang's were measured with random inputs.
VERSIONS = {"trtllm": "1.3.0rc20", "sglang": "0.5.14", "vllm": "0.24.0"}
VERSIONS_OF_TABLE = {"a100_sxm": {"trtllm": "1.0.0", "sglang": "0.5.10", "vllm": "0.14.0"}}
# Rows with a cache in fp8 are left out: only inference has one.
CACHE = "bfloat16"
SIZES = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
# Tiles that kernels were seen to have, and how many of them fit on a multiprocessor.
BLOCKS = (64, 128, 192, 256)
RESIDENT = (1, 2, 3)
# Powers of two: batch·heads up to 2^15, sequences up to 2^14, up to 2^7 heads a key head.
GRID = (16, 15, 8)
# A step of the grid to a neighbour, over a row's residual: chosen on head shapes left out, flat from 0.01 to 0.1.
SMOOTHNESS = 0.03
REWEIGHTINGS = 3
# A cost is at least about this part of one that would take all of the median row's time.
LEAST_COST = 1e-3
# A kernel of fewer rows than this is none: nothing could be held out.
FEWEST_ROWS = 50
# Slower than what supports it by less than this is no outlier: libraries differ by as much.
OUTLIER = 2.0
# Where kernels are compared: long enough that the products count, small enough that it was measured at every width.
REFERENCE = AttentionShape(*(np.array([float(size)]) for size in (4, 4096, 4096, 16, 4)), causal=True)


@dataclass(frozen=True)
class PrefillTable:
    """Rows of one library and cache on one GPU: `sizes` has the columns of `SIZES` and the window, 0 for none."""

    sizes: NDArray[np.int64]
    seconds: Floats

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> PrefillTable:
        return PrefillTable(self.sizes[rows], self.seconds[rows])

    @property
    def head_dim(self) -> NDArray[np.int64]:
        return self.sizes[:, 4]

    @property
    def window(self) -> NDArray[np.int64]:
        return self.sizes[:, 5]

    @property
    def sites(self) -> NDArray[np.intp]:
        _, seq, heads, kv_heads, head_dim, window = self.sizes.T
        return site_numbers(heads, kv_heads, np.where(window > 0, -seq, head_dim))

    def shape(self) -> AttentionShape:
        """The rows, all of one window, as causal attention with as many queries as keys."""
        batch, seq, heads, kv_heads, _, window = self.sizes.T.astype(np.float64)
        return AttentionShape(batch, seq, seq, heads, kv_heads, True, float(window[0]) or np.inf)


def fit_attention(tables_folder: Path) -> Blocks:
    """The blocks of every GPU that the folder has a table of, by its name in the catalogue and theirs.

    Raises UserError where the folder has no such table.
    """
    laws = {
        (gpu.name, name): fit_law(table, gpu)
        for gpu in map(find_gpu, tables_like(tables_folder, TABLE))
        for name, table in read_tables(tables_folder, gpu.slug).items()
    }
    penalised = {key: replace(law, kernels=with_doubts(*key, laws)) for key, law in laws.items()}
    found = ((gpu, name, block_of(law, find_gpu(gpu).slug, name)) for (gpu, name), law in penalised.items())
    return fitting.by_gpu(found, tables_folder, f"table of attention ({TABLE}GPU.parquet)")


def read_tables(tables_folder: Path, slug: str) -> dict[str, PrefillTable]:
    """A GPU's rows by the block that is fitted to them, repeats joined by their median.

    At each head dimension those of the kernel that the library used for most shapes: the others (on B200 of heads of
    256, up to eight times slower) only at lengths that it has no row of.
    """
    found = {}
    versions = VERSIONS_OF_TABLE.get(slug, VERSIONS)
    plain = read_columns(tables_folder, TABLE + slug)
    has_windows = slug in tables_like(tables_folder, WINDOW_TABLE)
    window = read_columns(tables_folder, WINDOW_TABLE + slug) if has_windows else {}
    for library, version in versions.items():
        rows = plain["kv_cache_dtype"] == CACHE
        rows &= (plain["backend_lib"] == library) & (plain["backend_version"] == version)
        rows &= _main_kernels(plain, rows)
        if rows.sum() >= FEWEST_ROWS:
            found[f"{PLAIN}.{library}"] = _joined(plain, rows, "latency_us")
        column = f"{library}_{version}"
        if column in window:
            rows = (window["kv_cache_dtype"] == CACHE) & np.isfinite(window[column].astype(np.float64))
            if rows.sum() >= FEWEST_ROWS:
                found[f"{WINDOWED}.{library}"] = _joined(window, rows, column)
    return found


def _main_kernels(columns: Columns, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows of the kernel used most at their head dimension, or of lengths that this one has no row of there."""
    kept = np.zeros(rows.size, dtype=bool)
    for head_dim in np.unique(columns["head_dim"][rows]):
        there = rows & (columns["head_dim"] == head_dim)
        kernels, counts = np.unique(columns["kernel_source"][there].astype(str), return_counts=True)
        main = there & (columns["kernel_source"] == kernels[counts.argmax()])
        kept |= main | (there & ~np.isin(columns["isl"], columns["isl"][main]))
    return kept


def _joined(columns: Columns, rows: NDArray[np.bool_], times: str) -> PrefillTable:
    sizes = [columns[field][rows].astype(np.int64) for field in SIZES]
    window = columns["window_size"][rows].astype(np.int64) if "window_size" in columns else 0 * sizes[0]
    keys, number = np.unique(np.stack([*sizes, window], axis=1), axis=0, return_inverse=True)
    order = np.argsort(number.reshape(-1), kind="stable")
    groups = np.split(columns[times][rows].astype(np.float64)[order], np.cumsum(np.bincount(number.reshape(-1)))[:-1])
    return PrefillTable(keys, np.array([float(np.median(group)) for group in groups]) * 1e-6)


@dataclass(frozen=True)
class FittedLaw:
    """Kernels fitted to a table, and what each of its rows was predicted to take by a fit that did not see its site."""

    table: PrefillTable
    kernels: Sequence[KernelLaw]
    unseen: Floats

    @property
    def log_residual(self) -> Floats:
        return np.asarray(np.log(self.table.seconds / self.unseen))


def fit_law(table: PrefillTable, spec: GpuSpec) -> FittedLaw:
    """A kernel for each head dimension and window of the table that has enough rows."""
    kernels, kept, unseen = [], np.zeros(table.seconds.size, dtype=bool), np.ones(table.seconds.size)
    for head_dim, window in np.unique(table.sizes[:, 4:], axis=0):
        there = np.flatnonzero((table.head_dim == head_dim) & (table.window == window))
        if there.size < FEWEST_ROWS:
            continue
        rows = table.take(there)

        def fit(seen: NDArray[np.intp], rows: PrefillTable = rows):  # type: ignore[no-untyped-def]
            kernel = fit_kernel(rows.take(seen), spec.sms)
            return lambda left_out: kernel.seconds(rows.take(left_out).shape())

        kernels.append(fit_kernel(rows, spec.sms))
        unseen[there], kept[there] = cross_predicted(fit, rows.sites), True
    law = FittedLaw(table.take(kept), kernels, unseen[kept])
    return replace(law, kernels=[replace(each, error_scale=_error_scale(law, each)) for each in kernels])


def _error_scale(law: FittedLaw, kernel: KernelLaw) -> float:
    """How widely the errors of a kernel scatter, relative to all of them: by where nine of ten lie."""
    here = (law.table.head_dim == kernel.head_dim) & (law.table.window == kernel.window)
    wide, every = (float(np.quantile(np.abs(missed), 0.9)) for missed in (law.log_residual[here], law.log_residual))
    return wide / every


def steadied(law: FittedLaw) -> Floats:
    """Errors of all rows as those of one kernel."""
    scatter = np.ones(law.unseen.size)
    for kernel in law.kernels:
        scatter[(law.table.head_dim == kernel.head_dim) & (law.table.window == kernel.window)] = kernel.error_scale
    return np.asarray(law.log_residual / scatter)


def block_of(law: FittedLaw, slug: str, name: str) -> CalibrationBlock:
    """The block of a law with its error, band and range."""
    errors = steadied(law)
    inside = fitting.in_band_of_others(errors, law.unseen, law.table.sites)
    held_out = summary(law.unseen, law.table.seconds, np.unique(law.table.sites).size, "5-fold, whole sites held out")
    library = name.rpartition(".")[2]
    version = VERSIONS_OF_TABLE.get(slug, VERSIONS)[library]
    return CalibrationBlock(
        pack_kernels(law.kernels, Band.fit(errors, law.unseen)),
        held_out.to_json() | {"coverage": round(100 * float(inside.mean()), 1)},
        fitting.limits_of(dict(zip(("batch", "seq", "heads", "kv_heads"), law.table.sizes.T, strict=False))),
        ORIGIN.format(library, version) + (UNINITIALISED if library == "vllm" else ""),
    )


def with_doubts(gpu: str, name: str, laws: Mapping[tuple[str, str], FittedLaw]) -> list[KernelLaw]:
    """The kernels of a law with what each is slower than what anything else measured supports.

    That is another library at the same head dimension, the same kernel on another GPU relative to its heads of 128, or
    the next head dimension of the same library.
    """
    law = name.rpartition(".")[0]
    own = _shares(laws[gpu, name], gpu)
    penalised = []
    for kernel in laws[gpu, name].kernels:
        width = kernel.head_dim
        support = [own[other] for other in own if _next(own, other, width)]
        for (other_gpu, other), fitted in laws.items():
            theirs = _shares(fitted, other_gpu)
            if other.rpartition(".")[0] != law or width not in theirs or (other_gpu, other) == (gpu, name):
                continue
            if other_gpu == gpu:
                support.append(theirs[width])
            elif other == name and 128 in own and 128 in theirs:
                support.append(theirs[width] / theirs[128] * own[128])
        is_outlier = kernel.window == 0 and min(support, default=0.0) > OUTLIER * own[width]
        slower = float(np.median(support)) / own[width] if is_outlier else 1.0
        penalised.append(replace(kernel, plausibility_penalty=float(np.log(slower))))
    return penalised


def _next(widths: Mapping[int, float], width: int, to: int) -> bool:
    between = [each for each in widths if min(width, to) < each < max(width, to)]
    return width != to and not between


def _shares(law: FittedLaw, gpu: str) -> dict[int, float]:
    """The share of the peak that each kernel without a window reaches at the reference shape, by its width."""
    flop_per_s = find_gpu(gpu).peak("bf16") / (4 * REFERENCE.visible_pairs[0])
    return {
        each.head_dim: each.head_dim / float(each.seconds(REFERENCE)[0]) / flop_per_s
        for each in law.kernels
        if each.window == 0
    }


def fit_kernel(rows: PrefillTable, sms: int) -> KernelLaw:
    """The tile whose counted seconds come nearest, its costs, and the grid of what these miss."""
    shape, (head_dim, window) = rows.shape(), rows.sizes[0, 4:].tolist()
    tiles = [
        KernelLaw(head_dim, window, block, resident, sms, AttentionCosts(0, 0, 0, 0, 0), np.zeros(GRID))
        for block in BLOCKS
        for resident in RESIDENT
    ]
    features = [tile.features(shape) for tile in tiles]
    costs = [np.array(nonnegative_fit(counted, rows.seconds)) for counted in features]
    apart = [
        np.abs(np.log(counted @ cost / rows.seconds)).mean() for counted, cost in zip(features, costs, strict=True)
    ]
    best = int(np.argmin(apart))
    # Least squares of relative residuals, where it starts, forgive a time ten times too short: it is only 90 % less.
    typical = np.median(rows.seconds[:, None] / np.maximum(features[best], np.finfo(np.float64).tiny), axis=0)
    least = LEAST_COST * typical
    start = np.maximum(costs[best], least)
    fitted = fitting.fit_costs(features[best], rows.seconds, start, (least * np.exp(-5), np.inf), usual_error=0.05)
    kernel = replace(tiles[best], costs=AttentionCosts(*fitted.tolist()))
    missed = np.log(rows.seconds / kernel.counted_seconds(shape))
    return replace(kernel, grid=fit_grid(missed, grid_sizes(shape), GRID, SMOOTHNESS))


def fit_grid(values: Floats, sizes: Sequence[Floats], shape: tuple[int, ...], smoothness: float) -> Floats:
    """The grid of that shape over powers of two that reads `values` at `sizes`, smooth between neighbours.

    `smoothness` is what a squared step costs over a row's squared residual. Raises ValueError for no rows.
    """
    from scipy import sparse
    from scipy.sparse.linalg import spsolve

    if values.size == 0:
        raise ValueError("a grid cannot be fitted to no rows")
    read = fitting.reading(ResidualGrid.octaves(np.empty(shape)).axes, sizes)
    penalty = fitting.roughness(shape, [smoothness] * len(shape))
    weights = np.ones(values.size)
    for _ in range(REWEIGHTINGS):
        weighted = read.T @ sparse.diags_array(weights)
        grid = spsolve((weighted @ read + penalty).tocsc(), weighted @ values)
        weights = fitting.huber_weights(read @ grid - values)
    return np.asarray(grid.reshape(shape))


# What was left out, of which GPU, by which block, and log(measured / predicted) of its rows.
Missed = tuple[str, str, str, Floats]


def left_out(tables_folder: Path) -> Iterator[Missed]:
    """The errors of everything that can be left out of what is shipped."""
    gpus = {each.gpu: find_gpu(each.gpu) for each in all_shipped()}
    laws = {
        (each.gpu, name): unpack_attention(block, name.rpartition(".")[2], gpus[each.gpu])
        for each in all_shipped()
        for name, block in each.blocks.items()
        if name.rpartition(".")[0] in (PLAIN, WINDOWED)
    }
    for gpu, spec in gpus.items():
        for name, table in read_tables(tables_folder, spec.slug).items():
            law, _, library = name.rpartition(".")
            others = {each: kernels for (each, other), kernels in laws.items() if other == name and each != gpu}
            for like in (True, False):
                similar = {at: kernels for at, kernels in others.items() if have_same_kernels(gpus[at], spec) == like}
                yield from _gpu_left_out(spec, similar, name, table)
            if law == PLAIN:
                yield from _widths_left_out(gpu, name, laws[gpu, name], table)
            else:
                plain = laws[gpu, f"{PLAIN}.{library}"]
                yield from _windows_left_out(gpu, name, plain, laws[gpu, name], table)


def _gpu_left_out(
    spec: GpuSpec, others: dict[str, AttentionKernels], name: str, table: PrefillTable
) -> Iterator[Missed]:
    if others:
        moved = transferred(spec, others, "bf16")
        errors = [
            _missed([KernelChoice(1.0, kernel)], table.take(rows))
            for kernel in moved.kernels
            if (rows := (table.head_dim == kernel.head_dim) & (table.window == kernel.window)).any()
        ]
        if errors:
            yield f"GPU, {moved.origin.split(',')[0]}", spec.name, name, np.concatenate(errors)


def _widths_left_out(gpu: str, name: str, law: AttentionKernels, table: PrefillTable) -> Iterator[Missed]:
    for width, rows in _by_width(table):
        other = replace(law, kernels=[each for each in law.kernels if each.head_dim != width])
        # What answers with a kernel that nothing else measured supports is no fair guess of the width.
        is_doubtful = any(choice.kernel.plausibility_penalty > 0 for choice in law.at_width(width))
        if other.kernels and not is_doubtful:
            is_between = min(other.widths) < width < max(other.widths)
            yield (
                f"width {'between' if is_between else 'beyond'}",
                gpu,
                f"{name} {width}",
                _missed(other.at_width(width), rows),
            )


def _windows_left_out(
    gpu: str, name: str, plain: AttentionKernels, law: AttentionKernels, table: PrefillTable
) -> Iterator[Missed]:
    for width, of_width in _by_width(table):
        for window in np.unique(of_width.window):
            rows = of_width.take((of_width.window == window) & (of_width.sizes[:, 1] > window))
            if rows.seconds.size and width in plain.widths:
                rest = [each for each in law.kernels if (each.head_dim, each.window) != (width, window)]
                choices = windowed(plain, replace(law, kernels=rest), width, int(window), rows.shape().seq_k)
                how = "window, another known" if any(each.head_dim == width for each in rest) else "window"
                yield how, gpu, f"{name} {width} {window}", _missed(choices, rows)


def _by_width(table: PrefillTable) -> Iterator[tuple[int, PrefillTable]]:
    for width in np.unique(table.head_dim):
        yield int(width), table.take(table.head_dim == width)


def _missed(choices: Sequence[KernelChoice], rows: PrefillTable) -> Floats:
    predicted = sum(each.weight * each.kernel.seconds(rows.shape()) for each in choices)
    return np.asarray(np.log(rows.seconds / predicted))
