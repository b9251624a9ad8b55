"""What the planner says of each configuration of a study, and how well that agrees with what was measured.

For whoever prints both, in this order::

    calibration = load_calibration(path) or find_calibration(results, slug)   # UserError says how to get one
    predictions = predict(parameters, calibration, cores)                      # one a configuration, in order
    agreement = judge(predictions, measured)                                   # Measured, or None where it failed

`predictor(calibration, cores)` is the same as a `Predictor` of the study's probe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyperf_suite.advise.calibrate.cpu import PROBE, CpuLaws, calibrated_cpu, laws_of, plan_of, predicted_step
from pyperf_suite.advise.calibrate.results import FILE, origin_of
from pyperf_suite.advise.study.memory import memory_by_rank
from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.laws.calibration import Calibration, load_calibration
from pyperf_suite.laws.kernel_prices import LawPrices
from pyperf_suite.laws.training.engine_step import BLOCK as CPU_BLOCK
from pyperf_suite.laws.training.memory import MemoryNeed
from pyperf_suite.laws.training.step_time import step_time
from pyperf_suite.operators.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.probes.study import results as study
from pyperf_suite.probes.study.statistics import agreement
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import open_run

# The laws' names of the types that a study computes in.
LAW_DTYPE = {"float32": "tf32", "bfloat16": "bf16"}
# What of a rank's memory the engine counts (operators/training/parallel/allocations.py), by the laws' names of it.
COUNTED = {
    "weights": "parameter_bytes",
    "gradients": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    "activations": "saved_activation_bytes",
}


@dataclass(frozen=True)
class Prediction:
    """One configuration by the laws: `seconds` of an iteration, `parts` of it that add up to them, `memory` by rank."""

    parameters: ParallelStepParameters
    seconds: float
    parts: Mapping[str, float]
    memory: tuple[MemoryNeed, ...]

    @property
    def samples_per_s(self) -> float:
        """Sequences a second over all ranks."""
        return self.parameters.global_batch / self.seconds

    @property
    def fullest(self) -> MemoryNeed:
        """The need of the rank that holds most."""
        return max(self.memory, key=lambda need: float(need.total))


@dataclass(frozen=True)
class Measured:
    """What a study measured of one configuration.

    `memory` has for each rank the bytes that its engine counted, by their names in COUNTED and "counter_bytes", as far
    as they are known.
    """

    samples_per_s: float
    memory: tuple[Mapping[str, float], ...] = ()

    @classmethod
    def of(cls, samples_per_s: float, kernel: Mapping[str, object]) -> Measured:
        """With the memory that a record's kernel tells of each rank."""
        details = kernel.get("details")
        told = details.get("rank_bytes") if isinstance(details, dict) else None
        if not isinstance(told, dict) or not told:
            return cls(samples_per_s)
        columns = zip(*told.values(), strict=True)
        return cls(samples_per_s, tuple(dict(zip(told, map(float, column), strict=True)) for column in columns))


@dataclass(frozen=True)
class Agreement:
    """Predicted against measured over the configurations that ran.

    `rank_correlation` is Spearman's, None below two configurations or where nothing varies; `median_error` and
    `worst_error` are |predicted − measured| / measured of samples a second, None where none ran. `memory_errors` has
    the worst such error over ranks and configurations for each part that was measured, and for their "total"; 0 is
    exact.
    """

    configurations: int
    rank_correlation: float | None
    median_error: float | None
    worst_error: float | None
    memory_errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """For people: how far the planner can be trusted here."""
        if self.median_error is None or self.worst_error is None:
            return "No configuration gave a time to hold the planner's against."
        order = "" if self.rank_correlation is None else f"rank correlation {self.rank_correlation:.2f} (Spearman), "
        exact = [name for name, error in self.memory_errors.items() if error == 0]
        off = [f"{name} {100 * error:.1f} %" for name, error in self.memory_errors.items() if error]
        memory = f"; bytes of {', '.join(exact)} exact on every rank" if exact else ""
        memory += f"; memory off at most by {', '.join(off)}" if off else ""
        return (
            f"Predicted against measured, {self.configurations} configurations: {order}samples/s off by "
            f"{100 * self.median_error:.0f} % at the median (worst {100 * self.worst_error:.0f} %){memory}."
        )


def find_calibration(results: Path, slug: str) -> Calibration:
    """The laws fitted to this machine's newest run that can be calibrated from, or the file that `calibrate` left.

    `slug` is the machine's folder in `results`; the newer one of the two stands. Raises UserError that says how to make
    one.
    """
    saved = results / slug / FILE
    for manifest in sorted((results / slug).glob("*/run.json"), reverse=True):
        try:
            run = open_run(manifest.parent)
            if PROBE not in run.manifest.get("probes", ()):
                continue
            if saved.is_file() and saved.stat().st_mtime >= manifest.stat().st_mtime:
                break
            identity = run.manifest.get("identity", {})
            cores = int(identity.get("cores") or cpu.detect().usable_cores)
            return calibrated_cpu(str(identity.get("model", slug)), cores, run.records(), origin_of(run))
        except UserError:
            continue  # one that is damaged, or was ended early, is no reason not to take the one before
    if saved.is_file():
        return load_calibration(saved)
    probe = PROBE if slug.startswith("cpu") else "calibration"
    raise UserError(
        f"Nothing in {results / slug} says what kernels cost here: `pyperf-suite run {probe}` measures it in "
        "under two minutes."
    )


def predict(
    parameters: Sequence[ParallelStepParameters], calibration: Calibration, cores: int | None = None
) -> list[Prediction]:
    """Each configuration by the laws as calibrated; `cores` are those that all ranks of a CPU share, by default all.

    Raises UserError where the calibration says nothing of such a step.
    """
    if CPU_BLOCK not in calibration.blocks:
        return [_on_gpu(p, calibration) for p in parameters]
    laws = laws_of(calibration)
    shared = cores or cpu.detect().usable_cores
    return [_on_cpu(p, laws, shared) for p in parameters]


def judge(predictions: Sequence[Prediction], measured: Sequence[Measured | None]) -> Agreement:
    """Both in the same order; a configuration that failed is None and counts for nothing."""
    known = [(law, real) for law, real in zip(predictions, measured, strict=True) if real is not None]
    found = agreement([law.samples_per_s for law, _ in known], [real.samples_per_s for _, real in known])
    errors = [abs(law.samples_per_s / real.samples_per_s - 1) for law, real in known]
    spearman = None if found is None or math.isnan(found.spearman) else found.spearman
    return Agreement(
        len(known),
        spearman,
        float(np.median(errors)) if errors else None,
        max(errors, default=None),
        _memory_errors(known),
    )


def predictor(calibration: Calibration, cores: int | None = None) -> study.Predictor:
    """The same for the study's probe: those configurations that the laws can price, by case id."""

    def price(cases: Sequence[Case], records: Sequence[Record]) -> Mapping[str, study.Prediction]:
        del records
        found = {}
        for case in cases:
            try:
                (told,) = predict([case.parameters], calibration, cores)
            except UserError:
                continue  # one that the laws do not know leaves its place empty
            memory = {COUNTED[name]: float(getattr(told.fullest, name)) for name in COUNTED}
            found[case.case_id] = study.Prediction(told.seconds, memory)
        return found

    return price


def _on_cpu(p: ParallelStepParameters, laws: CpuLaws, cores: int) -> Prediction:
    p.validate()
    step = predicted_step(laws, p, cores)
    return Prediction(p, float(step.seconds), _floats(step.parts), memory_by_rank(p))


def _on_gpu(p: ParallelStepParameters, calibration: Calibration) -> Prediction:
    p.validate()
    prices = LawPrices(calibration, dtype=LAW_DTYPE[p.dtype])
    step = step_time(calibration, p.dimensions, plan_of(p), prices=prices)
    return Prediction(p, float(step.seconds), _floats(step.parts), memory_by_rank(p, "cuda"))


def _floats(parts: Mapping[str, object]) -> dict[str, float]:
    return {name: float(np.asarray(seconds)) for name, seconds in parts.items()}


def _memory_errors(known: Sequence[tuple[Prediction, Measured]]) -> dict[str, float]:
    """The worst relative error of each part that was measured on any rank."""
    worst: dict[str, float] = {}
    for law, real in known:
        for need, told in zip(law.memory, real.memory, strict=False):
            foretold = {name: float(getattr(need, name)) for name in COUNTED}
            counted = {name: told[key] for name, key in COUNTED.items() if key in told}
            if "optimizer" in counted:
                counted["optimizer"] += told.get("counter_bytes", 0.0)
            if len(counted) == len(COUNTED):
                foretold["total"], counted["total"] = sum(foretold.values()), sum(counted.values())
            for name, value in counted.items():
                error = abs(foretold[name] - value) / value if value else abs(foretold[name])
                worst[name] = max(worst.get(name, 0.0), error)
    return worst
