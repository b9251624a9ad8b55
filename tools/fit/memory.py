"""Fits how fast each GPU of the published tables moves bytes, to products of so few rows that nothing else counts.

Such a product streams its weight matrix through the GPU once, from memory or, where it was small and warm, from L2.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.calibrate import cross_predicted, site_numbers, summary
from pyperf_suite.planner.laws.calibration import Band, CalibrationBlock
from pyperf_suite.planner.laws.roofline import BLOCK, MemoryLaw, transferred_law, unpack_law
from pyperf_suite.planner.laws.transfers import MEMORY_PERCENT_OF_SAME_KERNELS
from tools.fit.fitting import USUAL_ERROR, Blocks, by_gpu, limits_of
from tools.fit.published import read_columns, tables_like

Floats = NDArray[np.float64]

TABLES = "gemm_bf16_"
ORIGIN = "ai-dynamo/aiconfigurator 095f58a5 (Apache-2.0, NVIDIA), bf16 products of at most 16 rows"
# Re-measurements with random weights (shared tables' README); A100 has another.
TRUTH = ("trtllm_1.3.0rc20", "sglang_0.5.14")
TRUTH_OF = {"A100 SXM": ("sglang_0.5.10",)}
MOST_ROWS = 16
ELEMENT_BYTES = 2
START = MemoryLaw(3e-6, 0.8, 0.8, (0.0, np.inf), 0.0, ORIGIN)


def fit_memory(tables_folder: Path) -> Blocks:
    """The block "memory" of each GPU that the folder has a table of bf16 products of; UserError where it has none."""
    found = (
        (gpu.name, BLOCK, _fit_gpu(gpu, tables_folder)) for gpu in map(find_gpu, tables_like(tables_folder, TABLES))
    )
    return by_gpu(found, tables_folder, f"table of products ({TABLES}GPU.parquet)")


def left_out_bands(tables_folder: Path, blocks: dict[str, CalibrationBlock]) -> dict[bool, Band]:
    """Where each library's times lie around laws read off other GPUs: of one architecture (True), and of others."""
    laws = {name: unpack_law(block) for name, block in blocks.items()}
    found: dict[bool, list[Floats]] = {True: [], False: []}
    for name in laws:
        gpu = find_gpu(name)
        law = transferred_law(gpu, {other: law for other, law in laws.items() if other != name})
        nbytes, runs, _ = read_runs(tables_folder, gpu)
        similar = law.error_percent == MEMORY_PERCENT_OF_SAME_KERNELS
        found[similar].append(_missed(runs, np.asarray(sum(law.parts(gpu, nbytes).values())), nbytes / gpu.l2_bytes))
    return {similar: Band.fit(*np.hstack(parts)) for similar, parts in found.items()}


def read_runs(tables_folder: Path, gpu: GpuSpec) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Bytes of each product of few rows in a GPU's table, each library's seconds, and the site (n, k)."""
    names = TRUTH_OF.get(gpu.name, TRUTH)
    columns = read_columns(tables_folder, TABLES + gpu.slug)
    m, n, k, *truths = (columns[name].astype(np.float64) for name in ("m", "n", "k", *names))
    usable = (m >= 1) & (m <= MOST_ROWS) & np.isfinite(truths).any(axis=0)
    m, n, k = m[usable], n[usable], k[usable]
    return ELEMENT_BYTES * (m * n + n * k + m * k), np.array(truths)[:, usable] * 1e-6, site_numbers(n, k)


def _missed(runs: Floats, predicted: Floats, figure: Floats) -> Floats:
    """log(measured / predicted) of every library's times, and the figure of each, in two rows."""
    there = np.isfinite(runs)
    logs, figures = np.log(runs / predicted), np.broadcast_to(figure, runs.shape)
    return np.array([logs[there], figures[there]])


def _fit_gpu(gpu: GpuSpec, tables_folder: Path) -> CalibrationBlock:
    nbytes, runs, sites = read_runs(tables_folder, gpu)
    seconds = np.nanmedian(runs, axis=0)

    def fit(rows: NDArray[np.intp]):  # type: ignore[no-untyped-def]
        law = _fit_law(gpu, nbytes[rows], seconds[rows])
        return lambda unseen: sum(law.parts(gpu, nbytes[unseen]).values())

    law = _fit_law(gpu, nbytes, seconds)
    predicted = cross_predicted(fit, sites)
    missed, figure = _missed(runs, predicted, nbytes / gpu.l2_bytes)
    band = Band.fit(missed, figure)
    low, high = band.around(1.0, figure)
    held_out = summary(predicted, seconds, np.unique(sites).size, "5-fold, whole sites held out").to_json()
    covered = float(np.mean((np.exp(missed) >= low) & (np.exp(missed) <= high)))
    return CalibrationBlock(
        {name: np.array(getattr(law, name)) for name in ("launch_s", "memory_share", "cache_share")} | band.as_arrays(),
        {**held_out, "coverage": round(100 * covered, 1)},
        limits_of({"nbytes": nbytes}),
        ORIGIN,
    )


def _fit_law(gpu: GpuSpec, nbytes: Floats, seconds: Floats) -> MemoryLaw:
    """Least squares of log seconds, robust; the L2 is never slower than memory."""
    from scipy.optimize import least_squares

    def law_of(logs: Floats) -> MemoryLaw:
        launch_s, memory_share, gain = np.exp(logs)
        return MemoryLaw(launch_s, memory_share, memory_share * gain, START.fitted_bytes, 0.0, ORIGIN)

    def misses(logs: Floats) -> Floats:
        predicted = np.asarray(sum(law_of(logs).parts(gpu, nbytes).values()))
        return np.log(predicted / seconds)

    start = np.log([START.launch_s, START.memory_share, 1.1])
    bounds = (np.array([-np.inf, -np.inf, 0.0]), np.array([np.inf, 0.0, np.inf]))
    return law_of(least_squares(misses, start, bounds=bounds, loss="soft_l1", f_scale=USUAL_ERROR).x)
