"""Fits what a training step costs on a CPU to one run of `step_calibration` there: prices first, then constants.

Each constant is what a small step takes beyond what is known by then: kernels by their prices, a rank's step by
kernels, several ranks at once by that, an engine by all of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.extensions import Expect, ExpectedTime
from pyperf_suite.findings.rows import Reading, readings
from pyperf_suite.laws.alpha_beta import FOLDS, PiecewiseAlphaBeta
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.calibrate_laws import HeldOutError
from pyperf_suite.planner.laws.calibration import Calibration, CalibrationBlock
from pyperf_suite.planner.laws.collectives import pack_curves, unpack_laws
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
from pyperf_suite.planner.laws.training.layer_work import work_of_ends, work_of_layer
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.runner.record import Case, Record
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
    layer = work_of_layer(model, piece, prices, alone)
    ends = work_of_ends(model, piece, prices, alone)
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
