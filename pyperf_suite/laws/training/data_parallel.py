"""Steps in which something runs next to computation: the exchange of gradients, and the loading of batches.

`DataParallelLaw` is that of DDP bucket by bucket, with two constants that are fitted to measured steps: gradients are
exchanged while backward goes on (Li et al. 2020, PyTorch Distributed, VLDB 13, section 3.2), and a bucket starts when
it is full and the one before it is through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BACKWARD_SHARE = 2 / 3  # backward's share of a step without exchange: 2 of 3 passes' worth of FLOPs
# Relative errors beyond this count by their size and not their square, so that one disturbed setting bends nothing.
TRUSTED_ERROR = 0.05
# How much longer than alone an all_reduce may take during compute; more is a bound that a fit runs into by mistake.
MOST_SLOWDOWN = 20.0
# Starting points of fits: least squares finds the nearest minimum, and the best of them stands.
STARTS = ((1.0, 0.9), (1.0, 0.1), (2.0, 0.5), (0.5, 0.5))

AllReduceSeconds = Callable[[float], float]


@dataclass(frozen=True)
class GradientExchange:
    """A step and what it exchanges: `compute_s` of all micro-batches without exchange, and the buckets in their order.

    `buckets_bytes` are of one exchange; the last of `micro_batches` has one, or each where `every_micro_batch`.
    `overlapped` says that buckets go while backward computes; else they begin when it is over.
    """

    compute_s: float
    buckets_bytes: tuple[float, ...]
    overlapped: bool = True
    micro_batches: int = 1
    every_micro_batch: bool = False

    @property
    def exchanges(self) -> int:
        return self.micro_batches if self.every_micro_batch else 1


@dataclass(frozen=True)
class DataParallelLaw:
    """seconds = compute + exchange − hidden · (what of the exchange runs during backward).

    Attributes: all_reduce_s: seconds of an all_reduce alone by its bytes, as an α–β law gives them. slowdown: how many
    times longer it takes in a step, with what copies gradients into buckets and out of them. hidden: of the time that
    it runs during backward, the share that the step does not get longer by: 1 where it needs nothing that computing
    needs, 0 where they take turns.
    """

    all_reduce_s: AllReduceSeconds
    slowdown: float
    hidden: float

    def seconds(self, exchange: GradientExchange) -> float:
        return exchange.compute_s + self.exposed_s(exchange)

    def exposed_s(self, exchange: GradientExchange) -> float:
        costs = [self.slowdown * self.all_reduce_s(size) for size in exchange.buckets_bytes]
        overlapped_s = 0.0
        if exchange.overlapped:
            backward_s = BACKWARD_SHARE * exchange.compute_s / exchange.micro_batches
            overlapped_s = sum(costs) - tail_s(exchange.buckets_bytes, costs, backward_s)
        return exchange.exchanges * (sum(costs) - self.hidden * overlapped_s)


def tail_s(buckets_bytes: Sequence[float], costs_s: Sequence[float], backward_s: float) -> float:
    """Seconds of exchange left after backward: buckets fill by bytes as it goes on, and go one after another.

    By bytes, for a matrix's FLOPs go with its size.
    """
    ready_s = np.cumsum(np.asarray(buckets_bytes, dtype=np.float64))
    ready_s *= backward_s / max(ready_s[-1], 1.0) if ready_s.size else 0.0
    end_s = 0.0
    for ready, cost in zip(ready_s, costs_s, strict=True):
        end_s = max(end_s, float(ready)) + cost
    return max(0.0, end_s - backward_s)


def fit_data_parallel(
    all_reduce_s: AllReduceSeconds, exchanges: Sequence[GradientExchange], measured_s: Sequence[float]
) -> DataParallelLaw:
    """The slowdown and hidden share nearest to measured steps by relative error.

    Raises ValueError for fewer than two steps, which leave two constants open.
    """
    from scipy.optimize import least_squares

    if len(exchanges) < 2 or len(exchanges) != len(measured_s):
        raise ValueError("The law of a data-parallel step has two constants: give two measured steps or more.")

    def errors(constants: NDArray[np.float64]) -> NDArray[np.float64]:
        law = DataParallelLaw(all_reduce_s, *map(float, constants))
        pairs = zip(exchanges, measured_s, strict=True)
        return np.array([law.seconds(exchange) / seconds - 1 for exchange, seconds in pairs])

    bounds = ((0.0, 0.0), (MOST_SLOWDOWN, 1.0))
    how = {"bounds": bounds, "loss": "soft_l1", "f_scale": TRUSTED_ERROR, "diff_step": 1e-4}
    found = (least_squares(errors, start, **how) for start in STARTS)
    slowdown, hidden = min(found, key=lambda result: float(result.cost)).x
    return DataParallelLaw(all_reduce_s, float(slowdown), float(hidden))


def held_out_step_errors(
    all_reduce_s: AllReduceSeconds,
    exchanges: Sequence[GradientExchange],
    measured_s: Sequence[float],
    groups: Sequence[object],
) -> NDArray[np.float64]:
    """|predicted − measured| / measured of every step, by a law that saw no step of its group.

    Empty where leaving a group out leaves fewer than two steps to fit.
    """
    labels = list(groups)
    errors = []
    for group in dict.fromkeys(labels):
        seen = [place for place, label in enumerate(labels) if label != group]
        if len(seen) < 2:
            return np.empty(0)
        law = fit_data_parallel(all_reduce_s, [exchanges[each] for each in seen], [measured_s[each] for each in seen])
        unseen = (place for place, label in enumerate(labels) if label == group)
        errors += [abs(law.seconds(exchanges[place]) / measured_s[place] - 1) for place in unseen]
    return np.array(errors)


@dataclass(frozen=True)
class InputPipelineLaw:
    """A batch takes `load_s` seconds of one core, the model's step `step_s`, on its own device or a core of the host.

    Loaders work while the model does, each on a core of its own as long as there are `cores`; queues between them never
    run empty or full by chance. It is the bound of a pipeline, its slowest stage, and so no iteration is shorter.
    """

    load_s: float
    step_s: float
    cores: int
    on_host: bool = False

    def stages(self, loaders: int) -> dict[str, float]:
        """Seconds that each bottleneck asks of an iteration; 0 loaders overlap nothing. Raises ValueError below 0."""
        if loaders < 0:
            raise ValueError(f"there cannot be {loaders} loaders")
        if loaders == 0:
            return {"loading in the training process": self.load_s + self.step_s}
        stages = {"the model": self.step_s, "the loaders": self.load_s / loaders}
        return stages | {"the cores": (self.load_s + (self.step_s if self.on_host else 0.0)) / self.cores}

    def seconds(self, loaders: int) -> float:
        return max(self.stages(loaders).values())

    def binds(self, loaders: int) -> str:
        stages = self.stages(loaders)
        return max(stages, key=lambda name: stages[name])

    def starved(self, loaders: int) -> float:
        seconds = self.seconds(loaders)
        return (seconds - self.step_s) / seconds if seconds else 0.0

    def enough(self, max_loaders: int) -> int | None:
        """The fewest loaders, up to `max_loaders`, with which the model binds; None where it never does."""
        return next((count for count in range(1, max_loaders + 1) if self.binds(count) == "the model"), None)
