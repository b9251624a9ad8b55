"""What it costs to divide by no more than a power of two: sizes pooled by divisor, and those that defy the folklore."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.probes.alignment.sweeps import Setting, Sweep, rung_of
from pyperf_suite.spec.rows import Reading, mean_speedup

# What divides by more and yet runs at less than this of its neighbour's rate defies the folklore.
DEFIANT = 0.95

# Sizes so near each other differ in their divisors and in little else.
NEAR = 16


@dataclass(frozen=True)
class Rung:
    """All sizes of one setting and dimension that divide alike, each beside the next aligned size.

    `gain` is the time of these over that of those, so net of the larger products' own work; `relative_rate` the
    throughput of these beside that of those.
    """

    setting: Setting
    along: str
    divisor: int
    sizes: tuple[int, ...]
    gain: Ratio
    relative_rate: Ratio
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Defiance:
    """A size that divides by more than a neighbour and runs at less than its rate, of which `rate` is the part."""

    sweep: Sweep
    size: int
    neighbour: int
    rate: Ratio


def rungs_of(sweeps: Sequence[Sweep]) -> list[Rung]:
    """By setting, dimension and divisor, in the order of the sweeps."""
    pairs: dict[tuple[Setting, str, int], list[tuple[Reading, Reading, int, int]]] = {}
    for sweep in sweeps:
        for size in sweep.sizes:
            aligned = sweep.next_aligned(size)
            if aligned is not None:
                pair = (sweep.readings[size], sweep.readings[aligned], size, aligned)
                pairs.setdefault((sweep.setting, sweep.along, rung_of(size)), []).append(pair)
    found = []
    for (setting, along, divisor), members in pairs.items():
        gain = mean_speedup([(reading, aligned) for reading, aligned, _, _ in members])
        if gain is not None:
            smaller = math.exp(math.fsum(math.log(size / aligned) for _, _, size, aligned in members) / len(members))
            paths = tuple(sorted({str(reading.kernel.get("path", "")) for reading, _, _, _ in members}))
            sizes = tuple(sorted({size for _, _, size, _ in members}))
            found.append(Rung(setting, along, divisor, sizes, gain, gain.inverse * smaller, paths))
    order = list(dict.fromkeys((sweep.setting, sweep.along) for sweep in sweeps))
    return sorted(found, key=lambda rung: (order.index((rung.setting, rung.along)), rung.divisor))


def defiances_of(sweeps: Sequence[Sweep]) -> list[Defiance]:
    """The worst for each sweep and pair of divisors, the slowest first."""
    worst: dict[tuple[int, int, int], Defiance] = {}
    for number, sweep in enumerate(sweeps):
        for size in sweep.sizes:
            for neighbour in sweep.sizes:
                if abs(size - neighbour) > NEAR or rung_of(size) <= rung_of(neighbour):
                    continue
                rate = sweep.faster(size, neighbour)
                key = (number, rung_of(size), rung_of(neighbour))
                if rate is None or rate.high >= DEFIANT or (key in worst and worst[key].rate.value <= rate.value):
                    continue
                worst[key] = Defiance(sweep, size, neighbour, rate)
    return sorted(worst.values(), key=lambda found: found.rate.value)
