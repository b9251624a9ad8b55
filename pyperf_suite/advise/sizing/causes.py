"""Where the time of a setting goes, and what another setting saves: seconds by part of the work and by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyperf_suite.advise.sizing.candidates import shapes_of
from pyperf_suite.advise.sizing.prices import Prices, price
from pyperf_suite.advise.sizing.search import Candidate
from pyperf_suite.advise.sizing.setting import Setting
from pyperf_suite.advise.sizing.step import parts_of
from pyperf_suite.laws.explained import IDEAL

# Savings of less than this share of the step are no cause worth naming.
LEAST_TOLD = 0.002
MOST_TOLD = 3


@dataclass(frozen=True)
class Spent:
    """What one part of a micro-batch takes: `calls` of `sizes` on one GPU, and seconds of all of them by cause.

    `flop` is 2·M·N·K of a product, 0 for what is none.
    """

    part: str
    law: str
    sizes: tuple[int, ...]
    calls: int
    causes: dict[str, float]
    extrapolated: bool

    @property
    def seconds(self) -> float:
        """Of all calls."""
        return sum(self.causes.values())

    @property
    def flop(self) -> float:
        """Of all calls; a product's alone."""
        return 2.0 * float(np.prod(self.sizes, dtype=np.float64)) * self.calls if self.law == "gemm" else 0.0

    @property
    def lost(self) -> list[tuple[str, float]]:
        """Causes other than the ideal time with their seconds, the largest first; what saves time is left out."""
        found = [(cause, seconds) for cause, seconds in self.causes.items() if cause != IDEAL and seconds > 0]
        return sorted(found, key=lambda each: -each[1])


def spent_by(settings: Sequence[Setting], prices: Prices) -> list[list[Spent]]:
    """Every part of each setting's micro-batch, in the order of the work."""
    parts = parts_of(shapes_of(settings))
    priced = price(parts, prices)
    count = len(settings)
    found: list[list[Spent]] = [[] for _ in settings]
    for part, its in zip(parts, priced, strict=True):
        calls = np.broadcast_to(part.calls, count)
        sizes = [np.broadcast_to(size, count) for size in part.sizes]
        causes = {cause: np.broadcast_to(seconds, count) for cause, seconds in its.causes.items()}
        extrapolated = np.broadcast_to(its.extrapolated, count)
        for n in range(count):
            if calls[n]:
                found[n].append(
                    Spent(
                        part.name,
                        part.law,
                        tuple(int(size[n]) for size in sizes),
                        int(calls[n]),
                        {cause: float(seconds[n] * calls[n]) for cause, seconds in causes.items()},
                        bool(extrapolated[n]),
                    )
                )
    return found


def saved(
    present: Sequence[Spent], other: Sequence[Spent], candidate: Candidate, here: Setting
) -> list[tuple[str, float]]:
    """What makes a candidate faster for the same work: causes with the share of the present time that each saves.

    The passes of a product are taken together; only savings worth telling, the largest first.
    """
    total = sum(part.seconds for part in present)
    setting = candidate.setting
    # To a token's GPU-time, and to the work of the present model: FLOP of the candidate over its FLOP.
    scale = (setting.tp / setting.tokens) / (here.tp / here.tokens) / (candidate.speed * candidate.time_ratio)
    balance: dict[str, float] = {}
    for sign, parts in ((1.0, present), (-scale, other)):
        for part in parts:
            for cause, seconds in part.causes.items():
                if cause != IDEAL:
                    name = f"{part.part.partition(',')[0]}: {cause}"
                    balance[name] = balance.get(name, 0.0) + sign * seconds / total
    found = [(name, share) for name, share in balance.items() if share > LEAST_TOLD]
    return sorted(found, key=lambda each: -each[1])[:MOST_TOLD]
