"""What the planner says of each configuration of a study: its time by part, and every rank's memory.

For whoever asks, in this order::

    calibration = load_calibration(path) or find_calibration(results, slug)   # UserError says how to get one
    predictions = predict(parameters, calibration, cores)                      # one a configuration, in order

`predictor(calibration, device_kind)` is the same as a `Predictor` of the study's probe, which compares it with what
was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pyperf_suite.advise.calibrate.cpu import PROBE, CpuLaws, calibrated_cpu, laws_of, plan_of, predicted_step
from pyperf_suite.advise.calibrate.results import FILE, origin_of
from pyperf_suite.advise.study.memory import memory_by_rank
from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.laws.calibration import Calibration, load_calibration
from pyperf_suite.laws.kernel_prices import LawPrices
from pyperf_suite.laws.training.memory import LAST_STAGE, MemoryNeed
from pyperf_suite.laws.training.step_time import step_time
from pyperf_suite.probes.study import results as study
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.runner.results import open_run
from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters

# The laws' names of the types that a study computes in.
LAW_DTYPE = {"float32": "tf32", "bfloat16": "bf16"}
# What of a rank's memory the engine counts too, by the names of laws and of a study's results alike.
COUNTED = ("weights", "gradients", "optimizer", "activations")
# A small model, and one cut of each kind, so that every law and constant is asked for.
SMALL = ParallelStepParameters(hidden=64, heads=4, layers=4, seq=32, vocab=64, tied=False, micro_batches=4)
TRIED = (
    SMALL,
    *(replace(SMALL, data=2, zero_stage=stage) for stage in range(LAST_STAGE + 1)),
    replace(SMALL, tensor=2),
    replace(SMALL, pipeline=2),
)


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
    def rank_memory(self) -> tuple[Mapping[str, float], ...]:
        """Of each rank the bytes that an engine counts as well."""
        return tuple({name: float(getattr(need, name)) for name in COUNTED} for need in self.memory)


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
    if calibration.device_kind != "cpu":
        return [_on_gpu(p, calibration) for p in parameters]
    laws = laws_of(calibration)
    shared = cores or cpu.detect().usable_cores
    return [_on_cpu(p, laws, shared) for p in parameters]


def predictor(calibration: Calibration, device_kind: str, cores: int | None = None) -> study.Predictor:
    """The same for the study's probe on such a device: those configurations that the laws can price, by case id.

    Raises UserError for laws of the other kind of device, and for a calibration that has only some of a CPU's.
    """
    if calibration.device_kind != device_kind:
        of, on, probe = ("CPU", "GPUs", "calibration") if device_kind == "cuda" else ("GPU", "a CPU", PROBE)
        raise UserError(
            f"The calibration was fitted on a {of} ({calibration.gpu}), but this study is on {on}: name one fitted "
            f"there, by `pyperf-suite run {probe}` and `pyperf-suite calibrate`."
        )
    if device_kind == "cpu":
        _require_times(calibration, cores)

    def price(cases: Sequence[Case], records: Sequence[Record]) -> Mapping[str, study.Prediction]:
        del records
        found = {}
        for case in cases:
            try:
                (told,) = predict([case.parameters], calibration, cores)
            except UserError:
                continue  # one that the laws do not know leaves its place empty
            found[case.case_id] = study.Prediction(told.seconds, told.rank_memory)
        return found

    return price


def _require_times(calibration: Calibration, cores: int | None) -> None:
    """Raise UserError where some cut gets no time: of the right form, an altered block may still be of nothing."""
    why = ""
    try:
        laws_of(calibration)
        for parameters in TRIED:
            try:
                (told,) = predict([parameters], calibration, cores)
            except UserError:
                continue  # what was not measured is left out of a study's predictions, case by case
            # A bubble is what is left over, and may be less than nothing where ranks share cores.
            parts = {name: part for name, part in told.parts.items() if name != "bubble"}
            if not 0 < told.seconds < math.inf or min(parts.values()) < 0:
                why = f"a step takes {told.seconds:.3g} s by them, {min(parts.values()):.3g} s of it for a part"
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        why = f"they end in {type(error).__name__}"
    if why:
        raise UserError(
            f"The calibration of {calibration.gpu} holds laws that price no step ({why}): make it anew with "
            "`pyperf-suite calibrate --device cpu`."
        )


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
