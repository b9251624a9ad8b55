"""How what the laws foretell of a study agrees with what was measured: the order, the times, every rank's memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyperf_suite.probes.study.results import Result
from pyperf_suite.probes.study.statistics import rank_correlation

# Of fewer an order says nothing.
FEWEST_IN_ORDER = 3
ALL = "in all"


@dataclass(frozen=True)
class Agreement:
    """Predicted against measured over the `configurations` that gave a time and were foretold.

    `rank_correlation` is Spearman's of step times, None of fewer than three or where all are alike; `median_error` and
    `worst_error` are |predicted - measured| / measured of them. `memory_errors` has the worst such error over all ranks
    of the `weighed` configurations for each part that was foretold and counted, and for ALL of these together; 0 is
    exact.
    """

    configurations: int
    rank_correlation: float | None
    median_error: float
    worst_error: float
    weighed: int = 0
    memory_errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def sentences(self) -> Iterator[str]:
        """For people: how far the laws can be trusted here, of times and of memory."""
        order = "no order to compare"
        if self.rank_correlation is not None:
            order = f"rank correlation {self.rank_correlation:.2f} (Spearman)"
        yield (
            f"Predicted against measured, {_counted(self.configurations)}: {order}, step times off by "
            f"{100 * self.median_error:.0f} % (median; worst {100 * self.worst_error:.0f} %)."
        )
        parts = {name: error for name, error in self.memory_errors.items() if name != ALL}
        exact = [name for name, error in parts.items() if error == 0]
        told = [f"{_listed(exact)} exact to the byte"] if exact else []
        told += [f"{name} within {_percent(error)}" for name, error in parts.items() if error]
        told += [f"all of it within {_percent(self.memory_errors[ALL])}"] if len(exact) < len(parts) else []
        if told:
            yield f"Predicted memory of every rank, {_counted(self.weighed)}: {', '.join(told)}."


def agreement_of(found: Sequence[Result]) -> Agreement | None:
    """Of those results that have both a prediction and a time; None where no result has."""
    known = [(each, each.prediction, each.reading) for each in found if each.prediction and each.reading]
    if not known:
        return None
    predicted, measured = [law.seconds for _, law, _ in known], [real.seconds for _, _, real in known]
    errors = [abs(law / real - 1) for law, real in zip(predicted, measured, strict=True)]
    spearman = rank_correlation(predicted, measured) if len(known) >= FEWEST_IN_ORDER else math.nan
    both = [(law.rank_memory, each.rank_memory) for each, law, _ in known if law.rank_memory]
    weighed = [(foretold, counted) for foretold, counted in both if len(foretold) == len(counted)]
    return Agreement(
        len(known),
        None if math.isnan(spearman) else spearman,
        statistics.median(errors),
        max(errors),
        len(weighed),
        _memory_errors(weighed),
    )


Ranks = Sequence[Mapping[str, float]]


def _memory_errors(weighed: Sequence[tuple[Ranks, Ranks]]) -> dict[str, float]:
    """The worst relative error of each part on any rank."""
    worst: dict[str, float] = {}
    for foretold, counted in weighed:
        for law, real in zip(foretold, counted, strict=True):
            both = {name: (law[name], real[name]) for name in law if name in real}
            both[ALL] = (sum(bytes_ for bytes_, _ in both.values()), sum(bytes_ for _, bytes_ in both.values()))
            for name, (law_bytes, real_bytes) in both.items():
                error = abs(law_bytes - real_bytes) / real_bytes if real_bytes else math.inf if law_bytes else 0.0
                worst[name] = max(worst.get(name, 0.0), error)
    if ALL in worst:
        worst[ALL] = worst.pop(ALL)
    return worst


def _counted(configurations: int) -> str:
    return "1 configuration" if configurations == 1 else f"{configurations} configurations"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _percent(share: float) -> str:
    """Rounded up, for it is a bound."""
    if not math.isfinite(share):
        return "no bound"
    return f"{math.ceil(1000 * share - 1e-9) / 10:.1f} %"
