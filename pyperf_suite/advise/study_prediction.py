"""What the planner says of each configuration of a study, and how well that agrees with what was measured.

For the command that prints both, in this order::

    calibration = load_calibration(path) or find_calibration(results, slug)   # UserError says how to get one
    predictions = predict(parameters, calibration, cores)                      # one a configuration, in order
    agreement = judge(predictions, measured)                                   # measured: Measured, or None where failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyperf_suite.errors import UserError
from pyperf_suite.laws.calibration import Calibration
from pyperf_suite.laws.memory import MemoryNeed
from pyperf_suite.operators.training.parallel.parameters import ParallelStepParameters


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


@dataclass(frozen=True)
class Measured:
    """What a study measured of one configuration.

    `memory` has for each rank the bytes of "weights", "gradients", "optimizer" and "peak", as far as they are known.
    """

    samples_per_s: float
    memory: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True)
class Agreement:
    """Predicted against measured over the configurations that ran.

    `rank_correlation` is Spearman's, None below three configurations or where nothing varies; `median_error` and
    `worst_error` are |predicted − measured| / measured of samples a second. `memory_errors` has the worst such error
    over ranks and configurations for each part that was measured; 0 is exact.
    """

    configurations: int
    rank_correlation: float | None
    median_error: float | None
    worst_error: float | None
    memory_errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """For people: how far the planner can be trusted here."""
        raise NotImplementedError


def find_calibration(results: Path, slug: str) -> Calibration:
    """The laws fitted to this machine's newest calibration run, or the file that `calibrate` left beside its runs.

    `slug` is the machine's folder in `results`. Raises UserError that says how to make one.
    """
    raise UserError(
        f"There is no calibration of this machine in {results / slug}: make one with `pyperf-suite run calibration && "
        "pyperf-suite calibrate`."
    )


def predict(
    parameters: Sequence[ParallelStepParameters], calibration: Calibration, cores: int | None = None
) -> list[Prediction]:
    """Each configuration by the laws as calibrated; `cores` are those that all ranks of a CPU share.

    Raises UserError where the calibration says nothing of such a device.
    """
    raise UserError(f"The calibration of {calibration.gpu} says nothing of training steps: make it anew.")


def judge(predictions: Sequence[Prediction], measured: Sequence[Measured | None]) -> Agreement:
    """Both in the same order; a configuration that failed is None and counts for nothing."""
    raise UserError("No calibration: nothing was predicted.")
