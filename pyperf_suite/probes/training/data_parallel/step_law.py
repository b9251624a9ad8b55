"""The law of a step joined to what was measured: all_reduces alone give the curve, steps its two constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyperf_suite.laws.network.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.training.data_parallel import DataParallelLaw, Exchange, fit, held_out_errors
from pyperf_suite.probes.training.data_parallel.places import Place, buckets_of
from pyperf_suite.spec.rows import Reading

# Of fewer steps each that is left out takes too much away from two constants.
FEWEST_STEPS = 4
FEWEST_SIZES = 2


@dataclass(frozen=True)
class FittedStep:
    """The law of one setting, the steps it was fitted to, and how far off it is on each when that is left out."""

    law: DataParallelLaw
    steps: tuple[Reading, ...]
    predicted_s: tuple[float, ...]
    held_out: tuple[float, ...]

    @property
    def median_error(self) -> float:
        """Over the steps, each predicted by a law that did not see it."""
        return float(np.median(self.held_out))


def fitted_step(place: Place) -> FittedStep | None:
    """None where too few steps or all_reduces were measured."""
    found = [(step, exchange) for step in place.steps if (exchange := exchange_for(place, step)) is not None]
    if len(found) < FEWEST_STEPS or len(place.all_reduces) < FEWEST_SIZES:
        return None
    sizes = list(place.all_reduces)
    curve = PiecewiseAlphaBeta.fit(sizes, [place.all_reduces[size].seconds for size in sizes])

    def all_reduce_s(size_bytes: float) -> float:
        return float(curve.seconds(size_bytes))

    steps, exchanges = zip(*found, strict=True)
    measured_s = [step.seconds for step in steps]
    law = fit(all_reduce_s, exchanges, measured_s)
    errors = held_out_errors(all_reduce_s, exchanges, measured_s, [step.case.case_id for step in steps])
    predicted = tuple(law.seconds(exchange) for exchange in exchanges)
    return FittedStep(law, steps, predicted, tuple(errors.tolist()))


def exchange_for(place: Place, step: Reading) -> Exchange | None:
    """A measured step as the law sees it, computing until the last rank has; None without exchange and for DP."""
    p, alone = step.case.parameters, place.alone(step)
    if p.exchange not in ("ddp", "after") or alone is None:
        return None
    return Exchange(
        compute_s=p.accumulate * place.last_rank_s.get(alone.case.case_id, alone.seconds),
        buckets_bytes=tuple(map(float, buckets_of(step))),
        overlapped=p.exchange == "ddp",
        micro_batches=p.accumulate,
        every_micro_batch=not p.no_sync,
    )
