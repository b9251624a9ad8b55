"""Records of collectives in order: what stays fixed, and time over size as a curve with its law."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.links import LinkPeak, peak_of
from pyperf_suite.laws.network.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.network.communication import GIGA, bus_factor, nvls_wire_rate
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Row, Rows, grouped
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.collective.parameters import OPERATIONS

# Our own path first: the others are compared with it.
IMPLEMENTATIONS = ("nccl", "nccl_graph", "c10d_nccl", "gloo")
VARIANTS = ("in place", "registered", "no peer-to-peer")
# With fewer sizes a law would only repeat them.
FEWEST_SIZES = 3
# What NCCL's log says; only cases of their own are logged, as it costs time in every call.
LOGGED = ("algorithm", "protocol", "channels")
# From this NVLink on, the switch between GPUs can reduce by itself (NVLS).
SWITCH_REDUCES = ("NVLink 4", "NVLink 5")


@dataclass(frozen=True)
class Point:
    """One size of a curve: the row of its case, its trials, what the kernel told of itself, the elements in error.

    Rates are of S, the size of nccl-tests, over the time that ranks saw on average, as there, in B/s.
    """

    row: Row
    trials: tuple[Record, ...]
    details: Mapping[str, Any]
    wrong: int = 0

    @property
    def size(self) -> Quantity:
        """S: what whole elements fill."""
        return Quantity(self.row.message_bytes, "size")

    @property
    def trips(self) -> int:
        """Messages that follow each other in one iteration: of a ping_pong there and back."""
        return 2 if self.row.op == "ping_pong" else 1

    @property
    def seconds(self) -> float:
        """Of one message."""
        return self.row.reading.seconds / self.trips

    def algbw(self, seconds: float | None = None) -> float:
        """What a caller sees, at the median or at another time of one message."""
        return float(self.row.message_bytes / (seconds or self.seconds))

    @property
    def busbw(self) -> float:
        """What a link carries."""
        return self.algbw() * float(bus_factor(self.row.operation.counted_as, self.row.ranks))

    @property
    def rate(self) -> Quantity:
        """busbw, or algbw where a single rank has no bus, from the slowest process to the fastest."""
        rate = self.algbw() if self.row.ranks == 1 else self.busbw
        return self.row.reading.per_second(rate * self.row.reading.seconds, "GB/s")

    @cached_property
    def _iterations_s(self) -> NDArray[np.float64]:
        """Of all trials, averaged over ranks; of each sample where ranks are too many to be kept one by one."""
        seconds: list[Any] = []
        for trial in self.trials:
            busy = [samples for samples in trial.sampling.get("rank_samples_s", ()) if samples]
            seconds.append(np.mean(busy, axis=0) if busy else trial.metrics["time"].samples)
        return np.concatenate(seconds)

    def quantile_s(self, share: float) -> float:
        """A quantile over all iterations of all trials, each averaged over ranks."""
        return float(np.quantile(self._iterations_s, share)) / self.trips

    @property
    def tail(self) -> float:
        """p99 over p50."""
        return self.quantile_s(0.99) / self.quantile_s(0.5)

    @property
    def nodes(self) -> int:
        """How many nodes the ranks lived on; 1 if the record does not say."""
        return int(self.trials[0].sampling.get("nodes", 1))

    @property
    def peak(self) -> LinkPeak | None:
        """The peak of the links; None where its ranks are joined by a network between nodes."""
        return peak_of(self.trials[0].identity) if self.nodes == 1 else None

    @property
    def share_of_peak(self) -> Quantity | None:
        """What a link carries of that."""
        return Quantity(self.busbw / GIGA / self.peak.gb_per_s, "%") if self.peak else None

    @property
    def counted_rate(self) -> float | None:
        """Over the busiest GPU's NVLinks, one direction, by its own counters; None where none counted."""
        rates = []
        for trial in self.trials:
            counted = [(report or {}).get("nvlink_bytes") for report in trial.quality.get("rank_gpus", ())]
            busiest = max((max(each["sent"], each["received"]) for each in counted if each), default=None)
            if busiest is not None:
                rates.append(busiest / trial.sampling["iterations"] / trial.seconds)
        return statistics.median(rates) if rates else None

    @property
    def wire_rate(self) -> float | None:
        """On each GPU's links where the switch reduces (NVLS), by the algorithm if that is known, else by the links."""
        reduces = self.peak is not None and self.peak.name.endswith(SWITCH_REDUCES)
        if "algorithm" in self.details:
            reduces = str(self.details["algorithm"]).startswith("NVLS")
        return float(nvls_wire_rate(self.algbw(), self.row.ranks)) if reduces and self.row.op == "all_reduce" else None


@dataclass(frozen=True)
class Curve:
    """Points by S, ascending, of parameters without their bytes and of who computes; `wrong` has elements in error."""

    parameters: CollectiveParameters
    implementation: str
    points: dict[int, Point] = field(default_factory=dict)
    wrong: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.what}, {self.how}"

    def __getattr__(self, name: str) -> Any:
        """One of its parameters."""
        if name.startswith("_") or name == "parameters":
            raise AttributeError(name)
        return getattr(self.parameters, name)

    @property
    def what(self) -> str:
        """What is moved, as in `all_reduce float32 max, 8 ranks`."""
        operation, *more = self.varied
        return f"{' '.join([operation, self.dtype, *more])}, {self.ranks} rank{'' if self.ranks == 1 else 's'}"

    @property
    def varied(self) -> list[str]:
        """The operation and what of it is not usual, as in `reduce max root 3`."""
        reduction, root = self.reduction if self.reduction != "sum" else "", f"root {self.root}" if self.root else ""
        return [word for word in (self.op, reduction, root, self.pattern) if word]

    @property
    def how(self) -> str:
        """Who moves it and in which variant, as in `nccl in place, registered`."""
        return f"{self.implementation} {', '.join(self.variant)}".strip()

    @property
    def variant(self) -> list[str]:
        """In what it is not plain, which is out of place, unregistered and over whatever links there are."""
        return list(itertools.compress(VARIANTS, (self.in_place, self.registered, not self.peer_to_peer)))

    @property
    def order(self) -> tuple[Any, ...]:
        """By operation as they are declared, then what is plain before what is varied."""
        op, who = list(OPERATIONS).index(self.op), (*IMPLEMENTATIONS, self.implementation).index(self.implementation)
        variant = [name in self.variant for name in reversed(VARIANTS)]
        how = (self.reduction, self.root, self.pattern)
        return (op, self.ranks, self.dtype, *how, who, self.implementation, variant)

    @property
    def counted_as(self) -> str:
        """The name under which laws know the operation."""
        return str(self.operation.counted_as)

    @property
    def largest(self) -> Point:
        """The point of most bytes. Raises ValueError where there is none."""
        return self.points[max(self.points)]

    @property
    def best(self) -> Point:
        """The point of the highest rate. Raises ValueError where there is none."""
        return max(self.points.values(), key=lambda point: point.rate.value)

    @cached_property
    def law(self) -> PiecewiseAlphaBeta | None:
        """Straight lines through the medians of all trials; None where too few sizes were measured."""
        if len(self.points) < FEWEST_SIZES:
            return None
        points = self.points.values()
        medians = [
            (point.row.message_bytes, s / point.trips) for point in points for s in point.row.by_process.values()
        ]
        return PiecewiseAlphaBeta.fit(*np.array(medians).T)


def curves_of(rows: Rows) -> list[Curve]:
    """A curve for each setting that was measured or found wrong, in the order in which tables show them.

    What NCCL chose in a logged case is among the details of the same case without a log; its time counts for nothing.
    """
    curves: dict[Any, Curve] = {}

    def curve_of(case: Case) -> Curve:
        curve = Curve(replace(case.parameters, bytes=0), case.implementation)
        return curves.setdefault((curve.parameters, curve.implementation), curve)

    timed = grouped((record for record in rows.records if record.kind == "timing"), lambda record: record.case_id)
    # A resumed run may hold a second trial of the same process; the later one stands.
    trials = {case_id: list({each.process: each for each in alike}.values()) for case_id, alike in timed.items()}
    for alike in trials.values():
        elements = sum(int(trial.verification.get("wrong", 0)) for trial in alike)
        case = alike[0].parsed_case()
        if elements and not case.parameters.logged:
            curve_of(case).wrong[case.parameters.message_bytes] = elements
    for row in sorted(rows.where(logged=False), key=lambda row: row.message_bytes):
        # In place or out of place, by a call or by a graph, NCCL's choice is made from the size.
        logged = row.like(implementation="nccl", in_place=False, registered=False, logged=True)
        told = logged.details if logged and "nccl" in row.implementation else {}
        details = row.details | {name: told[name] for name in LOGGED if name in told}
        curve, size = curve_of(row.case), row.message_bytes
        well = tuple(trial for trial in trials[row.case.case_id] if trial.outcome == "ok")
        curve.points[size] = Point(row, well, details, curve.wrong.get(size, 0))
    return sorted(curves.values(), key=lambda curve: curve.order)


def plain(curves: Iterable[Curve]) -> list[Curve]:
    """Of each operation, ranks and dtype the curve that speaks for it: plain, and our own path where there is one."""
    usual = (curve for curve in curves if curve.points and not curve.variant)
    return [together[0] for together in grouped(usual, lambda curve: curve.what).values()]
