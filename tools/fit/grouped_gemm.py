"""Fits the law of a MoE layer's experts to published tables, library by library, and states its error.

The error is that of whole model shapes (hidden, inter, topk, experts) left out, one after another; the interval is
stretched until it covers nine of ten rows of shapes that neither the law nor the interval saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.calibrate import cross_predicted, site_numbers, summary
from pyperf_suite.planner.laws.calibration import COVERED, LIBRARIES, Band, CalibrationBlock
from pyperf_suite.planner.laws.gemm import Rates
from pyperf_suite.planner.laws.grouped_gemm import (
    BLOCK_OF,
    FEATURES,
    NODE_STEPS,
    UNITS_OF,
    ExpertCosts,
    ExpertWork,
    LibraryFactor,
    band_figure,
    counted_seconds,
    expert_work,
)
from tools.fit.fitting import SEED, Blocks, by_gpu, fit_constants, limits_of
from tools.fit.published import read_columns, tables_like, versions

Floats = NDArray[np.float64]

ORIGIN = "experts of MoE layers as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0)"
SITES = ("hidden_size", "inter_size", "topk", "num_experts")
SIZES = ("tokens", "hidden", "width", "top_k", "experts", "ep")
FEWEST_ROWS = 1000
# Drawn at random these rows fix the few costs, and the factor over a few hundred nodes, as well as all of them.
ROWS_OF_COSTS, ROWS, NODES = 2500, 8000, 220
HOLD, EVALUATIONS = 0.15, 40
# The factor has the least mean error in % of what was measured: absolute errors count, those of long times less. A
# curve whose kernel was not tuned, four times too slow, then hardly moves it (iteratively reweighted least squares).
ROUNDS, LEAST_ERROR = 6, 0.03
JITTER = 1e-6


def _likeness(noise: float, *processes: Mapping[str, float]) -> tuple[float, Floats, Floats]:
    """Noise, variances, and decays by feature, of processes given as lengths in doublings by feature."""
    decays = [[1 / process[name] if name in process else 0.0 for name in FEATURES] for process in processes]
    return noise, np.array([process["variance"] for process in processes]), np.array(decays)


# Chosen for the least error on model shapes left out, over GPUs and dtypes at once. A process over an expert's width
# and the experts on the rank, with short lengths, is what Triton kernels are tuned by.
LIKENESS = _likeness(
    1.2,
    {"variance": 2.7, "rows": 3, "active": 4, "local": 4, "tokens": 5, "width": 12, "hidden": 3, "ep": 2.5, "top_k": 8,
     "imbalance": 2, "gate": 3, "alignment": 3},
    {"variance": 0.3, "rows": 2.1, "local": 0.5, "tokens": 3, "width": 0.4},
    {"variance": 0.3, "weights": 1.5, "pairs": 17},
    {"variance": 0.3, "rows": 1.5, "width": 2, "imbalance": 2},
    {"variance": 0.3, "local": 2, "tokens": 8, "copies": 1},
    {"variance": 0.8, "rows": 2, "seconds": 0.7},
)  # fmt: skip
SGLANG = _likeness(
    3.0,
    {"variance": 1.0, "rows": 3, "active": 4, "local": 4, "tokens": 5, "width": 3, "hidden": 3, "ep": 2.5, "top_k": 4,
     "imbalance": 2, "gate": 3, "alignment": 3},
    {"variance": 0.3, "local": 0.5, "tokens": 3, "width": 0.4, "gate": 2},
    {"variance": 0.3, "weights": 1.5, "pairs": 3},
    {"variance": 0.9, "width": 1.5},
    {"variance": 0.1, "local": 1, "tokens": 8},
    {"variance": 0.9, "top_k": 1.4, "seconds": 2},
)  # fmt: skip


def start_of(library: str) -> ExpertCosts:
    """Where the fit of a library's costs starts."""
    return ExpertCosts(
        tile_rates=np.array([0.1, 0.27] if library == "sglang" else [0.1, 0.2, 0.35, 0.5, 0.6]),
        memory_shares=np.array([0.8, 0.5, 0.5] if library == "sglang" else [0.8]),
        copy_costs=np.array([0.5, 0.5, 0.1, 0.1] if library == "sglang" else [0.5, 0.5, 0.02, 0.02]),
        launch_s=2e-5,
        prologue_clocks=1500.0,
        wave_smoothing=0.5,
        overlap=3.0,
        activation_share=1.5,
        token_s=1e-10,
        copy_s=3e-10,
        expert_s=1e-8,
        l2_share=0.4,
        resident_share=0.5,
    )


@dataclass(frozen=True)
class ExpertTable:
    """The rows of one library on one GPU in one dtype; `sites` numbers the model shapes."""

    gpu: GpuSpec
    dtype: str
    library: str
    origin: str
    work: ExpertWork
    sites: NDArray[np.intp]
    seconds: Floats

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> ExpertTable:
        named = self.gpu, self.dtype, self.library, self.origin
        return ExpertTable(*named, self.work.take(chosen), self.sites[chosen], self.seconds[chosen])

    def counted(self, costs: ExpertCosts) -> Floats:
        return counted_seconds(costs, Rates.of(self.gpu, UNITS_OF[self.dtype]), self.work, self.library)[0]


def expert_tables(folder: Path, fewest: int = FEWEST_ROWS) -> Iterator[ExpertTable]:
    """Every library's rows of every table; those of a library with too few are left out."""
    for prefix in ("moe_bf16_", "moe_fp8_"):
        for gpu, name in tables_like(folder, prefix).items():
            columns = read_columns(folder, name)
            dtypes = columns.get("moe_dtype", np.full(len(columns["gated"]), "bf16")).astype(str)
            for dtype in np.unique(dtypes):
                for library in LIBRARIES:
                    for column in versions(columns, library)[:1]:
                        known = np.isfinite(columns[column].astype(np.float64)) & (dtypes == dtype)
                        if known.sum() >= fewest:
                            rows = {name: values[known] for name, values in columns.items()}
                            yield _table(find_gpu(gpu), str(dtype), library, column, rows)


def _table(gpu: GpuSpec, dtype: str, library: str, column: str, rows: Mapping[str, NDArray[np.generic]]) -> ExpertTable:
    hidden, inter, top_k, experts = (rows[name].astype(np.int64) for name in SITES)
    gated = np.array([str(each) == "True" for each in rows["gated"]])
    work = expert_work(
        *(rows["num_tokens"].astype(np.int64), hidden, inter, experts, top_k),
        *(rows["moe_ep_size"].astype(np.int64), rows["moe_tp_size"].astype(np.int64)),
        *(rows["distribution"].astype(str), gated),
    )
    weights = ", weights never set" if library == "vllm" and dtype == "bf16" else ""
    origin = f"{ORIGIN}, {dtype} on {gpu.name}, {column}{weights}"
    sites = site_numbers(hidden, inter, top_k, experts, gated)
    return ExpertTable(gpu, dtype, library, origin, work, sites, rows[column].astype(np.float64) * 1e-6)


def fit_grouped_gemm(tables_folder: Path) -> Blocks:
    """A block for each dtype and library of each GPU with a table. Raises UserError where the folder has none."""
    found = (
        (table.gpu.name, f"{BLOCK_OF[table.dtype]}.{table.library}", fit_block(table))
        for table in expert_tables(tables_folder)
    )
    return by_gpu(found, tables_folder, "moe_*.parquet")


def fit_block(table: ExpertTable) -> CalibrationBlock:
    """The law of one library, its interval, and its error on model shapes left out."""
    there = np.unique(table.sites).size

    def fit(seen: NDArray[np.intp]):  # type: ignore[no-untyped-def]
        law = fit_law(table.rows(seen))
        return lambda unseen: predict(table.rows(unseen), *law)

    unseen_s = cross_predicted(fit, table.sites, there)
    figure = band_figure(table.library, unseen_s, table.work)
    band, covered = band_of(np.log(table.seconds / unseen_s), figure, table.sites)
    costs, factor = fit_law(table)
    held_out = summary(unseen_s, table.seconds, there, "each model shape left out").to_json()
    return CalibrationBlock(
        {**costs.as_arrays(), **factor.as_arrays(), **band.as_arrays()},
        {**held_out, "coverage": round(100 * covered, 1)},
        limits_of({name: getattr(table.work, name) for name in SIZES}),
        table.origin,
    )


def band_of(missed: Floats, figure: Floats, sites: NDArray[np.intp]) -> tuple[Band, float]:
    """The band of errors, stretched as far as shapes left out of it need, and the share of these that it covers."""
    stretches = np.linspace(0.8, 3.0, 111)
    inside = np.zeros(stretches.size)
    for site in np.unique(sites):
        here = sites == site
        seen = Band.fit(missed[~here], figure[~here])
        low, high = (np.log(end) for end in seen.around(1.0, figure[here]))
        for place, stretch in enumerate(stretches):
            inside[place] += np.sum((missed[here] >= stretch * low) & (missed[here] <= stretch * high))
    covered = inside / missed.size
    chosen = int(np.argmax(covered >= COVERED)) if covered.max() >= COVERED else stretches.size - 1
    band = Band.fit(missed, figure)
    return Band(band.at, stretches[chosen] * band.low, stretches[chosen] * band.high), float(covered[chosen])


def fit_law(table: ExpertTable) -> tuple[ExpertCosts, LibraryFactor]:
    """Costs of one library, and its factor."""
    costs = fit_costs(table)
    counted = table.counted(costs)
    likeness = SGLANG if table.library == "sglang" else LIKENESS
    return costs, fit_factor(table.work.features(counted), np.log(table.seconds / counted), likeness)


def predict(table: ExpertTable, costs: ExpertCosts, factor: LibraryFactor) -> Floats:
    """Seconds of every row."""
    counted = table.counted(costs)
    return counted * np.exp(factor(table.work.features(counted)))


def fit_costs(table: ExpertTable) -> ExpertCosts:
    """The costs with the least error in log seconds, far rows counting less."""
    drawn = table.rows(np.random.default_rng(SEED).permutation(table.seconds.size)[:ROWS_OF_COSTS])
    measured = np.log(drawn.seconds)

    def missed(costs: ExpertCosts) -> Floats:
        return np.asarray(np.log(drawn.counted(costs)) - measured)

    # SGLang's kernels are three: what few rows say of each would run away beyond the data sheet's rates.
    shares = ("tile_rates", "memory_shares") if table.library == "sglang" else ()
    return fit_constants(start_of(table.library), missed, HOLD, EVALUATIONS, shares)


def fit_factor(features: Floats, missed: Floats, likeness: tuple[float, Floats, Floats]) -> LibraryFactor:
    """The factor whose logarithm follows `missed` with the least mean error in % of what was measured."""
    noise, variances, decays = likeness
    draw = np.random.default_rng(SEED)
    drawn = draw.permutation(missed.size)[:ROWS]
    features, missed = features[drawn], missed[drawn]
    nodes = np.round(features[draw.permutation(drawn.size)[:NODES]] * NODE_STEPS) / NODE_STEPS
    factor = LibraryFactor(nodes, np.zeros(len(nodes)), variances, decays)
    rows, between = factor.likeness(features), factor.likeness(nodes)
    penalty = noise * (between + JITTER * np.eye(len(nodes)))
    off, longer = missed - np.median(missed), np.exp(np.clip(missed, -2, 2))
    weights = factor.weights
    for _ in range(ROUNDS):
        weighted = rows.T * (0.1 / (longer * np.maximum(np.abs(off), LEAST_ERROR)))
        weights = np.linalg.solve(weighted @ rows + penalty, weighted @ missed)
        off = missed - rows @ weights
    return LibraryFactor(nodes, weights, variances, decays)
