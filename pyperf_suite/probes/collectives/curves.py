"""Records of collectives in order: what stays fixed, and time over size as a curve with its law."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.laws.network.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.network.communication import GIGA, algbw, busbw
from pyperf_suite.operators.collective import CollectiveParameters
from pyperf_suite.operators.collective.parameters import OPERATIONS
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.rows import Reading, readings

# Our own path first: the others stand beside it.
IMPLEMENTATIONS = ("nccl", "nccl_graph", "c10d_nccl", "gloo")

# With fewer sizes a law would only repeat them.
FEWEST_SIZES = 3


@dataclass(frozen=True)
class Setting:
    """What all sizes of a curve share: the parameters without their bytes, and who computes."""

    parameters: CollectiveParameters
    implementation: str

    @classmethod
    def of(cls, parameters: CollectiveParameters, implementation: str) -> Setting:
        """The setting of a case."""
        return cls(replace(parameters, bytes=0), implementation)

    @property
    def place(self) -> tuple[Any, ...]:
        """Where it stands among others: by operation as they are declared, then what is plain before what is varied."""
        p = self.parameters
        known = self.implementation in IMPLEMENTATIONS
        who = IMPLEMENTATIONS.index(self.implementation) if known else len(IMPLEMENTATIONS)
        order = list(OPERATIONS).index(p.op)
        plain = (not p.peer_to_peer, p.registered, p.in_place)
        return (order, p.ranks, p.dtype, p.reduction, p.root, p.pattern, who, self.implementation, *plain)

    def at(self, size_bytes: int) -> CollectiveParameters:
        """The parameters of one size of the curve."""
        return replace(self.parameters, bytes=size_bytes)

    @property
    def what(self) -> str:
        """What is moved, as in `all_reduce float32 max, 8 ranks`."""
        p = self.parameters
        words = [p.op, p.dtype]
        words += [p.reduction] if p.reduction != "sum" else []
        words += [f"root {p.root}"] if p.root else []
        words += [p.pattern] if p.pattern else []
        return f"{' '.join(words)}, {p.ranks} rank{'' if p.ranks == 1 else 's'}"

    @property
    def how(self) -> str:
        """Who moves it and in which variant, as in `nccl in place, registered`."""
        p = self.parameters
        variants = [
            name
            for name, holds in (
                ("in place", p.in_place),
                ("registered", p.registered),
                ("no peer-to-peer", not p.peer_to_peer),
            )
            if holds
        ]
        return " ".join([self.implementation, ", ".join(variants)]).strip()

    @property
    def is_plain(self) -> bool:
        """Whether it is out of place, unregistered and over whatever links there are."""
        p = self.parameters
        return not p.in_place and not p.registered and p.peer_to_peer

    def __str__(self) -> str:
        return f"{self.what}, {self.how}"


@dataclass(frozen=True)
class Point:
    """One size of a curve over all its visits.

    Rates are of S, the size of nccl-tests, over the time that ranks saw on average, as there. `low` and `high` of
    `reading` span the visits.
    """

    reading: Reading
    visits: tuple[Record, ...]

    @property
    def parameters(self) -> CollectiveParameters:
        """Of the case."""
        parameters: CollectiveParameters = self.reading.case.parameters
        return parameters

    @property
    def size_bytes(self) -> int:
        """S: what whole elements fill."""
        return self.parameters.message_bytes

    @property
    def seconds(self) -> float:
        """Of one message: of a ping_pong there and back, half of its time."""
        return self.reading.seconds / self.trips

    @property
    def trips(self) -> int:
        """Messages that follow each other in one iteration."""
        return 2 if self.parameters.op == "ping_pong" else 1

    @property
    def algbw(self) -> float:
        """GB/s (1e9) as a caller sees it."""
        return float(algbw(self.size_bytes, self.seconds))

    def busbw(self, seconds: float | None = None) -> float:
        """GB/s (1e9) that a link carries, at the median or at another time of one message."""
        p = self.parameters
        return float(busbw(p.operation.counted_as, self.size_bytes, seconds or self.seconds, p.ranks))

    def quantile_s(self, share: float) -> float:
        """A quantile over all iterations of all visits, each averaged over ranks."""
        return float(np.quantile(self._iterations_s, share)) / self.trips

    def median_of(self, metric: str) -> float | None:
        """The median over visits of one of their metrics; None where no visit has it."""
        values = [visit.metrics[metric].value for visit in self.visits if metric in visit.metrics]
        return statistics.median(values) if values else None

    def rank_seconds(self) -> NDArray[np.float64]:
        """Each rank's own median time of an iteration, median over visits; NaN for one that took no part."""
        told = [visit.sampling["rank_median_s"] for visit in self.visits]
        return np.asarray(np.median(np.array(told, dtype=np.float64), axis=0))

    @property
    def counted_rate(self) -> float | None:
        """GB/s (1e9) over the busiest GPU's NVLinks, one direction, by its own counters; None where none counted."""
        rates = []
        for visit in self.visits:
            counted = [(report or {}).get("nvlink_bytes") for report in visit.quality.get("rank_gpus", ())]
            busiest = max((max(each["sent"], each["received"]) for each in counted if each), default=None)
            if busiest is not None:
                rates.append(busiest / visit.sampling["iterations"] / visit.seconds / GIGA)
        return statistics.median(rates) if rates else None

    @property
    def details(self) -> Mapping[str, Any]:
        """What the kernel told of itself."""
        told: Mapping[str, Any] = self.reading.kernel.get("details", {})
        return told

    @cached_property
    def _iterations_s(self) -> NDArray[np.float64]:
        return np.concatenate([_iterations_s(visit) for visit in self.visits])


@dataclass(frozen=True)
class Curve:
    """Points of one setting by S, ascending; `wrong` has the elements in error of sizes that failed for them."""

    setting: Setting
    points: Mapping[int, Point]
    wrong: Mapping[int, int]

    @property
    def operation(self) -> str:
        """The name under which laws count it."""
        return self.setting.parameters.operation.counted_as

    @property
    def largest(self) -> Point:
        """The point of most bytes. Raises ValueError where there is none."""
        return self.points[max(self.points)]

    @property
    def best(self) -> Point:
        """The point of the highest busbw, or algbw where a single rank has none. Raises ValueError without a point."""
        return max(self.points.values(), key=lambda point: (point.busbw(), point.algbw))

    @cached_property
    def law(self) -> PiecewiseAlphaBeta | None:
        """Straight lines through the medians of all visits; None where too few sizes were measured."""
        if len(self.points) < FEWEST_SIZES:
            return None
        sizes, seconds = [], []
        for size, point in self.points.items():
            for median_s in point.reading.by_process.values():
                sizes.append(size)
                seconds.append(median_s / point.trips)
        return PiecewiseAlphaBeta.fit(sizes, seconds)


def curves_of(records: Sequence[Record]) -> list[Curve]:
    """A curve for each setting that was measured or found wrong, in the order in which tables show them."""
    visits: dict[str, dict[int, Record]] = {}
    for record in records:
        if record.kind == "timing":
            # A resumed run may hold a second visit of the same process; the later one stands.
            visits.setdefault(record.case_id, {})[record.process] = record
    found: dict[Setting, tuple[dict[int, Point], dict[int, int]]] = {}
    for reading in readings(records):
        points, _ = found.setdefault(Setting.of(reading.case.parameters, reading.case.implementation), ({}, {}))
        well = tuple(visit for visit in visits[reading.case.case_id].values() if visit.outcome == "ok")
        point = Point(reading, well)
        points[point.size_bytes] = point
    for by_process in visits.values():
        wrong = sum(int(visit.verification.get("wrong", 0)) for visit in by_process.values())
        if wrong:
            case = next(iter(by_process.values())).parsed_case()
            _, failures = found.setdefault(Setting.of(case.parameters, case.implementation), ({}, {}))
            failures[case.parameters.message_bytes] = wrong
    curves = [Curve(s, dict(sorted(points.items())), wrong) for s, (points, wrong) in found.items()]
    return sorted(curves, key=lambda curve: curve.setting.place)


def plain(curves: Iterable[Curve]) -> list[Curve]:
    """Of each operation, ranks and dtype the curve that speaks for it: plain, and our own path where there is one."""
    chosen: dict[str, Curve] = {}
    for curve in curves:
        if curve.points and curve.setting.is_plain:
            chosen.setdefault(curve.setting.what, curve)
    return list(chosen.values())


def _iterations_s(visit: Record) -> NDArray[np.float64]:
    """Seconds of each iteration averaged over ranks; of each sample where ranks are too many to be kept one by one."""
    busy = [samples for samples in visit.sampling.get("rank_samples_s", ()) if samples]
    return np.mean(busy, axis=0) if busy else np.array(visit.metrics["time"].samples, dtype=np.float64)
