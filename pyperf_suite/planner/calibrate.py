"""A calibration from one run: what a training step costs on a CPU, or what a GPU's laws miss on this machine.

On a CPU prices come first, then constants: each is what a small step takes beyond what is known by then, kernels by
their prices, a rank's step by kernels, several ranks at once by that, an engine by all of these. On a GPU each law is
corrected by a smooth factor, if it then errs less on what the fit did not see.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.extensions import Expect, ExpectedTime
from pyperf_suite.findings.rows import Reading, readings
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.alpha_beta import FOLDS, PiecewiseAlphaBeta
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.calibration import (
    DEGREES,
    Calibration,
    CalibrationBlock,
    correction,
    correction_name,
    fit_correction,
    shipped_calibration,
)
from pyperf_suite.planner.laws.collectives import pack_curves, unpack_laws
from pyperf_suite.planner.laws.gemm import BLOCK_OF, FITTED_DTYPES
from pyperf_suite.planner.laws.training.engine_step import BLOCK as ENGINE_BLOCK
from pyperf_suite.planner.laws.training.engine_step import (
    KERNELS,
    CpuPrices,
    EngineConstants,
    attention_features,
    engine_step,
    fit_line,
    line_errors,
    pack_engine,
    pack_lines,
    product_features,
    unpack_engine,
    unpack_lines,
)
from pyperf_suite.planner.laws.training.framework import StepConstants
from pyperf_suite.planner.laws.training.layer_work import work_of
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.probes.calibration import DTYPE_OF_LAW, law_dtype, predicted_seconds
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.runner.results import RunFolder, open_run
from pyperf_suite.workloads.on_ranks import DTYPES
from pyperf_suite.workloads.training import TransformerShape

KERNEL_BLOCK, COLLECTIVE_BLOCK = "cpu_kernels", "cpu_collectives"
PROBE = "step_calibration"
FEWEST_STEPS = 3
# Of a normal distribution, half lies within 0.67 and 90 % within 1.64 standard deviations of the middle.
MEDIANS_IN_COVERED = 2.44
# Beyond this no constant of an engine is looked for: seconds of one layer, unit or action.
MOST_SECONDS = 10.0
# By how much the 90 % interval of a product (a logarithm) is wider if threads share it, not ranks.
SHARED = 0.1
ATTENTION_OF = {"sdpa_flash": "flash", "sdpa_math": "math"}
# Which constant each engine's step gives, in an order in which none needs a later one.
ORDER = ("ddp_s", "broadcast_s", "scatter_s", "gather_s", "dtensor_s_per_layer", "action_s")


@dataclass(frozen=True)
class CpuLaws:
    """Everything that a calibration says of a CPU's training steps."""

    prices: CpuPrices
    constants: EngineConstants


def laws_of(calibration: Calibration) -> CpuLaws:
    """The blocks of a CPU's calibration as laws. Raises UserError where it has none, or altered ones."""
    if ENGINE_BLOCK not in calibration.blocks:
        raise UserError(
            f"The calibration of {calibration.gpu} says nothing of training steps on a CPU: make one with "
            f"`pyperf-suite run {PROBE} && pyperf-suite calibrate`."
        )
    try:
        lines = unpack_lines(calibration.block(KERNEL_BLOCK))
        collectives = unpack_laws(calibration.block(COLLECTIVE_BLOCK)).curves
        laws = CpuLaws(CpuPrices(lines, collectives), unpack_engine(calibration.block(ENGINE_BLOCK)))
        curves = [curve for law in collectives.values() for curve in law.curves.values()]
        numbers = [*lines.values(), [float(curve.seconds(1 << 20)) for curve in curves], *vars(laws.constants).values()]
        is_whole = all(bool(np.all(np.asarray(each) >= 0) and np.all(np.isfinite(each))) for each in numbers)
    except (LookupError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise UserError(
            f"The calibration of {calibration.gpu} holds laws that price no step: make it anew with `pyperf-suite "
            "calibrate --device cpu`."
        )
    return laws


def expected_of_cpu(calibration: Calibration) -> Expect:
    """What to expect of a CPU by its own calibration; None for what that does not know, as memory's copies.

    Raises UserError where it has no laws of a CPU.
    """
    laws = laws_of(calibration)

    def expect(case: Case) -> ExpectedTime | None:
        p, block, cores = case.parameters, KERNEL_BLOCK, 1
        if case.operator == "matmul" and p.dtype == "float32":
            cores = p.schedule.workers
            alone = float(laws.prices.gemm(p.layout, p.m, p.n, p.k).seconds)
            # All cores are as fast as ranks that crowd each other, at best.
            seconds = alone / cores * laws.constants.crowded(cores, cores)
        elif case.operator == "collective" and p.op in laws.prices.collectives:
            block, seconds = COLLECTIVE_BLOCK, float(laws.prices.collective(p.op, p.message_bytes, p.ranks).seconds)
        else:
            return None
        width = MEDIANS_IN_COVERED * np.log1p(float(calibration.block(block).held_out["median"]) / 100)
        width += SHARED * (cores > 1)
        return ExpectedTime(seconds, seconds * np.exp(-width), seconds * np.exp(width), "this machine's calibration")

    return expect


def calibrated_cpu(model: str, cores: int, records: Sequence[Record], origin: str) -> Calibration:
    """Prices and constants of the CPU of that name, which has so many cores, from a run of `step_calibration`.

    Raises UserError that names what the run lacks.
    """
    found = readings(records)
    kernels, collectives = _kernel_block(found, origin), _collective_block(found, origin)
    prices = CpuPrices(unpack_lines(kernels), unpack_laws(collectives).curves)
    constants, errors = _step_constants(prices, found)
    constants = _engine_constants(prices, constants, cores, found)
    block = pack_engine(constants, errors, origin)
    calibration = Calibration(model)
    for name, each in ((KERNEL_BLOCK, kernels), (COLLECTIVE_BLOCK, collectives), (ENGINE_BLOCK, block)):
        calibration = calibration.with_block(name, each)
    return calibration


def step_plan(p: ParallelStepParameters) -> ParallelPlan:
    """A configuration of a study as the planner names it."""
    element = DTYPES[p.dtype]
    return ParallelPlan(
        global_batch=p.global_batch,
        micro_batch=p.batch,
        seq=p.seq,
        tensor=p.tensor,
        data=p.data,
        pipeline=p.pipeline,
        chunks=p.chunks,
        zero_stage=p.zero_stage,
        recompute="layers" if p.checkpointing.kind == "every" else "nothing",
        gradient_bytes=element,
        ranks_per_node=p.ranks,
        sequence_parallel=p.tensor > 1,
        element_bytes=element,
    )


def attention_kind(p: TransformerShape) -> str:
    """How a CPU computes its attention: what is written out costs what SDPA's own way without a fused kernel costs."""
    return "math" if p.attention in ("math", "explicit") else "flash"


def predicted_step(laws: CpuLaws, p: ParallelStepParameters, cores: int) -> Any:
    """`StepTime` of one configuration."""
    return engine_step(p.dimensions, step_plan(p), laws.prices.of_attention(attention_kind(p)), laws.constants, cores)


def _kernel_block(found: Iterable[Reading], origin: str) -> CalibrationBlock:
    """A line for each kind of kernel; its error is that of single measurements left out."""
    measured: dict[str, list[tuple[tuple[Any, ...], float]]] = {}
    for reading in found:
        for name, features in _features(reading):
            measured.setdefault(name, []).append((features, reading.seconds))
    lacking = [name for name in KERNELS if name not in measured]
    if lacking:
        raise UserError(f"The run holds no {', '.join(lacking)}: make one with `pyperf-suite run {PROBE}`.")
    lines, errors = {}, []
    for name, rows in measured.items():
        features, seconds = zip(*rows, strict=True)
        lines[name] = fit_line(features, seconds)
        errors.append(line_errors(features, seconds))
    held_out = _stated(100 * np.concatenate(errors), "each measurement left out, one after the other")
    return pack_lines(lines, held_out, origin)


def _stated(errors_percent: NDArray[np.float64], how: str) -> dict[str, float | int | str]:
    mape, median, count = float(np.mean(errors_percent)), float(np.median(errors_percent)), errors_percent.size
    return HeldOutError(mape, median, count, count, how).to_json()


def _features(reading: Reading) -> list[tuple[str, tuple[Any, ...]]]:
    """The kernel that was measured, and its features; nothing for collectives and steps."""
    case, p = reading.case, reading.case.parameters
    if case.operator == "matmul":
        return [(f"product_{p.layout}", product_features(p.m, p.n, p.k))]
    if case.operator == "attention" and case.implementation in ATTENTION_OF:
        way = "backward" if p.backward else "forward"
        features = attention_features(p.causal, p.backward, p.batch, p.seq_q, p.heads, p.head_dim)
        return [(f"attention_{ATTENTION_OF[case.implementation]}_{way}", features)]
    if case.operator == "layer_pass":
        from pyperf_suite.workloads.training.layers import work

        return [("copy" if p.layer == "copy" else "pass", (1.0, float(work(p).bytes)))]
    if case.operator == "optimizer_update":
        return [("update", (float(p.tensors.tensors), float(p.tensors.elements)))]
    return []


def _collective_block(found: Iterable[Reading], origin: str) -> CalibrationBlock:
    times: dict[tuple[str, int], dict[int, float]] = {}
    for reading in found:
        if reading.case.operator == "collective":
            p = reading.case.parameters
            times.setdefault((p.op, p.ranks), {})[p.message_bytes] = reading.seconds
    fewest = min((len(each) for each in times.values()), default=0)
    if fewest < FOLDS:
        raise UserError(
            f"Every collective needs {FOLDS} sizes for its error to be known, but the run holds {fewest} of one: make "
            f"one with `pyperf-suite run {PROBE}`."
        )
    curves = {key: PiecewiseAlphaBeta.fit(list(each), list(each.values())) for key, each in times.items()}
    stated = {key: 100 * (curve.held_out_error or 0.0) for key, curve in curves.items()}
    ends = {key: MEDIANS_IN_COVERED * np.log1p(error / 100) for key, error in stated.items()}
    intervals = {key: (-float(ends[key]), float(ends[key]), error) for key, error in stated.items()}
    sizes = [size for each in times.values() for size in each]
    held_out = _stated(np.array(list(stated.values())), "sizes of each curve left out")
    limits = {"nbytes": (float(min(sizes)), float(max(sizes)))}
    return CalibrationBlock(pack_curves(curves, frozenset(), intervals), held_out, limits, origin)


def _step_constants(
    prices: CpuPrices, found: Sequence[Reading]
) -> tuple[EngineConstants, dict[str, float | int | str]]:
    """Slowdown and host's times from steps of one rank, and from the same ones of several how they crowd each other.

    The stated error is that of each of one rank's steps by constants that never saw it.
    """
    by_ranks: dict[int, dict[Any, float]] = {}
    for reading in found:
        p = reading.case.parameters
        if reading.case.operator == "data_parallel" and p.exchange == "none":
            by_ranks.setdefault(p.ranks, {})[replace(p, ranks=1)] = reading.seconds
    alone = by_ranks.pop(1, {})
    if len(alone) < FEWEST_STEPS:
        raise UserError(
            f"{FEWEST_STEPS} steps of one rank are needed, but the run holds {len(alone)}: make one with `pyperf-suite "
            f"run {PROBE}`."
        )
    features = np.array([_step_features(prices, p) for p in alone])
    seconds = np.array(list(alone.values()))
    slowdown, layer_s, ends_s = fit_line(features, seconds)
    crowd = [(1, 1.0)]
    for ranks, together in sorted(by_ranks.items()):
        ratios = [together[p] / alone[p] for p in together if p in alone]
        if ratios:
            crowd.append((ranks, max(1.0, float(np.exp(np.mean(np.log(ratios)))))))
    held_out = _stated(100 * line_errors(features, seconds), "each step of one rank left out")
    return EngineConstants(slowdown, layer_s, ends_s, tuple(crowd)), held_out


def _step_features(prices: CpuPrices, p: TransformerShape) -> tuple[float, float, float]:
    """Of a micro-batch: seconds of its kernels alone, its layers, and once for its ends."""
    piece = ParallelPlan(global_batch=p.batch, micro_batch=p.batch, seq=p.seq, element_bytes=DTYPES["float32"])
    model: ModelDimensions = p.dimensions
    alone = StepConstants(1.0, 0.0)
    layer, ends = work_of(model, piece, prices, alone)
    return float(model.layers * layer.seconds + ends.seconds), float(model.layers), 1.0


def _engine_constants(
    prices: CpuPrices, constants: EngineConstants, cores: int, found: Sequence[Reading]
) -> EngineConstants:
    """Each engine's constant makes its least step come out as it was measured, and is not below nothing."""
    steps: Mapping[ParallelStepParameters, float] = {
        reading.case.parameters: reading.seconds for reading in found if reading.case.operator == "parallel_step"
    }
    by_constant: dict[str, tuple[ParallelStepParameters, float]] = {
        name: (p, seconds) for p, seconds in steps.items() if (name := _constant_of(p)) is not None
    }
    lacking = [name for name in ORDER if name not in by_constant]
    if lacking:
        raise UserError(f"The run holds no step for {', '.join(lacking)}: make one with `pyperf-suite run {PROBE}`.")
    # The steps of stages 2 and 3 together separate gathering from scattering, so both are fitted until they stay.
    for _ in range(20):
        before = vars(constants)
        for name in ORDER:
            constants = _solved(name, *by_constant[name], prices, constants, cores)
        after = vars(constants)
        if all(abs(before[name] - after[name]) <= 1e-3 * after[name] for name in ORDER):
            break
    return constants


def _constant_of(p: ParallelStepParameters) -> str | None:
    if p.tensor > 1:
        return "dtensor_s_per_layer"
    if p.pipeline > 1:
        return "action_s"
    if p.data > 1:
        return ("ddp_s", "broadcast_s", "scatter_s", "gather_s")[p.zero_stage]
    return None


def _solved(
    name: str, p: ParallelStepParameters, seconds: float, prices: CpuPrices, constants: EngineConstants, cores: int
) -> EngineConstants:
    """The constants with the one that makes this step take so many seconds."""
    from scipy.optimize import brentq

    def changed(value: float) -> EngineConstants:
        new: dict[str, Any] = {name: value}
        return replace(constants, **new)

    def beyond(value: float) -> float:
        return float(engine_step(p.dimensions, step_plan(p), prices, changed(value), cores).seconds) - seconds

    if beyond(0.0) >= 0:
        return changed(0.0)
    if beyond(MOST_SECONDS) <= 0:
        return changed(MOST_SECONDS)
    return changed(float(brentq(beyond, 0.0, MOST_SECONDS, xtol=1e-9)))


SEED = 0

# From the rows to fit, a function that gives the seconds of other rows.
Fit = Callable[[NDArray[np.intp]], Callable[[NDArray[np.intp]], NDArray[np.float64]]]


@dataclass(frozen=True)
class HeldOutError:
    """How far predictions lie from measurements: |predicted / measured − 1| in %, its mean and its median."""

    mape: float
    median: float
    rows: int
    sites: int
    how: str

    def to_json(self) -> dict[str, float | int | str]:
        return vars(self) | {"mape": round(self.mape, 3), "median": round(self.median, 3)}


def site_numbers(*sizes: ArrayLike) -> NDArray[np.intp]:
    """A number for each row, equal where all of these sizes are; numbered in the order of the sorted sizes.

    The sizes are arrays of one length, as n and k of products. Raises ValueError for none.
    """
    if not sizes:
        raise ValueError("a site is made of at least one size")
    columns = np.stack([np.asarray(size) for size in sizes], axis=1)
    numbers: NDArray[np.intp] = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
    return numbers


def folds(sites: ArrayLike, count: int = FOLDS, seed: int = SEED) -> Iterator[NDArray[np.bool_]]:
    """Masks of the rows that are held out, one a fold; each site is held out in exactly one.

    Fewer sites than `count` make as many folds as there are sites, so that each is predicted from the others.
    Raises ValueError for a single site, which leaves nothing to predict it from.
    """
    numbers = np.asarray(sites)
    there = np.unique(numbers)
    if there.size < 2:
        raise ValueError("holding out takes at least two sites")
    for held_out in np.array_split(np.random.default_rng(seed).permutation(there), min(count, there.size)):
        yield np.isin(numbers, held_out)


def error_percent(predicted: ArrayLike, measured: ArrayLike) -> NDArray[np.float64]:
    """|predicted / measured − 1| of each row in %."""
    return np.abs(np.asarray(predicted, dtype=np.float64) / np.asarray(measured, dtype=np.float64) - 1) * 100


def cross_predicted(fit: Fit, sites: ArrayLike, count: int = FOLDS) -> NDArray[np.float64]:
    """Seconds of every row by the fit to the folds that it is not in.

    `fit(rows)` is given the numbers of the rows it may see and returns `predict(rows)` in seconds. Raises ValueError
    for a single site.
    """
    predicted = np.empty(np.shape(sites))
    for held_out in folds(sites, count):
        predicted[held_out] = fit(np.flatnonzero(~held_out))(np.flatnonzero(held_out))
    return predicted


def summary(predicted: ArrayLike, measured: ArrayLike, sites: int, how: str) -> HeldOutError:
    """The errors of rows that were predicted unseen."""
    errors = error_percent(predicted, measured)
    return HeldOutError(float(errors.mean()), float(np.median(errors)), errors.size, sites, how)


def described(held_out: Mapping[str, float | int | str]) -> str:
    """A block's held-out error in words, as in `4.3 % (median 2.7 %) on 180 sites, 5-fold, whole sites held out`."""
    if "mape" not in held_out:
        return "not held out"
    median = f" (median {float(held_out['median']):.1f} %)" if "median" in held_out else ""
    sites = f" on {held_out['sites']} sites" if "sites" in held_out else ""
    how = f", {held_out['how']}" if held_out.get("how") else ""
    return f"{float(held_out['mape']):.1f} %{median}{sites}{how}"


FILE = "calibration.npz"
# The library that people really use, as timed; sizes that divide as those of the tables do, so that a penalty of
# misalignment is not taken for the machine's.
LIBRARIES = ("cublas", "sdpa_default")
DIVISIBLE_BY = 32
# Fewer sites say nothing of a slope that could be held out.
FEWEST_SITES = 8
# What each law's sizes are called in its block, and in the parameters of its operator.
SIZES_OF: Mapping[str, Mapping[str, str]] = {
    "matmul": {"m": "m", "n": "n", "k": "k"},
    "attention": {"batch": "batch", "seq_q": "seq_q", "heads": "heads", "head_dim": "head_dim"},
}


@dataclass(frozen=True)
class Corrected:
    """What a run said of one law: its error here before and after, the latter held out; `block` None where it fits."""

    law: str
    before: HeldOutError
    after: HeldOutError
    block: CalibrationBlock | None


def runs_of(results: Path, slug: str, probe: str) -> Iterator[RunFolder]:
    """The runs of a probe on a machine, the newest first; damaged ones are left out."""
    for manifest in sorted((results / slug).glob("*/run.json"), reverse=True):
        try:
            run = open_run(manifest.parent)
        except UserError:
            continue
        if probe in run.manifest.get("probes", ()):
            yield run


def newest_run(results: Path, slug: str, probe: str = "calibration") -> RunFolder:
    """The newest run of a calibrating probe on a machine. Raises UserError that says how to make one."""
    for run in runs_of(results, slug, probe):
        return run
    raise UserError(
        f"There is no run to calibrate from in {results / slug}: make one with `pyperf-suite run {probe}`, which "
        "takes under two minutes."
    )


def corrections(spec: GpuSpec, records: Sequence[Record], origin: str) -> list[Corrected]:
    """What the law of a GPU misses in these records, law by law. Raises UserError where they hold too few sites."""
    by_law: dict[str, list[Reading]] = {}
    for reading in readings(records):
        if _is_usable(reading.case):
            by_law.setdefault(_law(reading.case), []).append(reading)
    enough = {law: found for law, found in by_law.items() if np.unique(_sites(found)).size >= FEWEST_SITES}
    if not enough:
        there = ", ".join(f"{len(found)} of {law}" for law, found in sorted(by_law.items())) or "none"
        raise UserError(
            f"Records of a GPU's library in at least {FEWEST_SITES} sizes are needed to calibrate, but there are "
            f"{there}: measure them with `pyperf-suite run calibration`."
        )
    return [_correct(spec, law, found, origin) for law, found in sorted(enough.items())]


def calibrated(spec: GpuSpec, found: Sequence[Corrected]) -> Calibration:
    """The shipped calibration of a GPU, or an empty one, with the corrections of this machine."""
    calibration = shipped_calibration(spec.name) or Calibration(spec.name)
    for each in found:
        if each.block is not None:
            calibration = calibration.with_block(correction_name(each.law), each.block)
    return calibration


def origin_of(run: RunFolder) -> str:
    """A run as a block names it."""
    identity = run.manifest.get("identity", {})
    return f"own run {run.run_id} on {identity.get('model', json.dumps(identity))}"


def _is_usable(case: Case) -> bool:
    """Whether a case is of a GPU's library at sizes like those that laws are fitted to."""
    p = case.parameters
    if case.implementation not in LIBRARIES or case.mode != "burst" or DTYPE_OF_LAW.get(p.dtype) not in FITTED_DTYPES:
        return False
    if case.operator == "matmul":
        return bool(p.layout == "TN" and p.n % DIVISIBLE_BY == 0 and p.k % DIVISIBLE_BY == 0)
    return bool(p.causal and not p.backward and p.seq_q == p.keys)


def _law(case: Case) -> str:
    dtype = law_dtype(case)
    return BLOCK_OF[dtype] if case.operator == "matmul" else f"attention_{dtype}"


def _sizes(found: Sequence[Reading]) -> dict[str, NDArray[np.int64]]:
    names = SIZES_OF[found[0].case.operator]
    return {
        name: np.array([getattr(reading.case.parameters, field) for reading in found], dtype=np.int64)
        for name, field in names.items()
    }


def _sites(found: Sequence[Reading]) -> NDArray[np.intp]:
    """A site of products is their weight (n, k); of attentions, everything."""
    sizes = _sizes(found)
    return site_numbers(*(sizes[name] for name in sizes if name != "m"))


def _correct(spec: GpuSpec, law: str, found: Sequence[Reading], origin: str) -> Corrected:
    """The correction of the degree that predicts held-out sites best, none where the law as it is does."""
    measured = np.array([reading.seconds for reading in found])
    predicted = predicted_seconds(spec, [reading.case for reading in found])
    sizes, sites = _sizes(found), _sites(found)
    log_ratio = np.log(measured / predicted)

    def fitted(rows: NDArray[np.intp], degree: int) -> CalibrationBlock:
        arrays, limits = fit_correction(log_ratio[rows], {name: size[rows] for name, size in sizes.items()}, degree)
        return CalibrationBlock(arrays, {}, limits, origin)

    def held_out(degree: int) -> HeldOutError:
        def fit(rows: NDArray[np.intp]):  # type: ignore[no-untyped-def]
            block = fitted(rows, degree)
            return lambda unseen: (
                predicted[unseen] * correction(block, {name: size[unseen] for name, size in sizes.items()})
            )

        return summary(cross_predicted(fit, sites), measured, there, f"{min(FOLDS, there)}-fold, whole sites held out")

    there = np.unique(sites).size
    before = summary(predicted, measured, there, "the law as shipped")
    errors = {degree: held_out(degree) for degree in DEGREES}
    best = min(DEGREES, key=lambda degree: errors[degree].mape)
    if errors[best].mape >= before.mape:
        return Corrected(law, before, before, None)
    whole = fitted(np.arange(measured.size), best)
    block = CalibrationBlock(whole.arrays, errors[best].to_json(), whole.fitted_range, origin)
    return Corrected(law, before, errors[best], block)
