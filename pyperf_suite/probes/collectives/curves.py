"""Time of a collective over sizes as a curve with its law; rates, paths and laws compared, as tables and pictures."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.findings.axes import size_ticks
from pyperf_suite.findings.data import Claim, ClaimVerdict, Figure, Panel, Remark, Series, Table, figure, remark
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, law_over_sizes, misses, series, table
from pyperf_suite.hardware.links import LinkPeak, peak_of
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.traffic import GIGA, bus_factor, inter_node_rate, nvls_wire_rate
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import mean_speedup
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.collective import OPERATIONS, CollectiveParameters

# Our own path first: the others are compared with it.
IMPLEMENTATIONS = ("nccl", "nccl_graph", "c10d_nccl", "gloo")
VARIANTS = ("in place", "registered", "symmetric", "no peer-to-peer")
FEWEST_SIZES = 3  # with fewer sizes a law would only repeat them
SWITCH_REDUCES = ("NVLink 4", "NVLink 5")  # from this NVLink on, the switch between GPUs can reduce by itself (NVLS)


@dataclass(frozen=True)
class CurvePoint:
    """One size of a curve: the row of its case, its trials, the elements in error.

    Rates are of S, the size of nccl-tests, over the time that ranks saw on average, as there, in B/s.
    """

    row: Row[CollectiveParameters]
    trials: tuple[Record, ...]
    wrong: int = 0

    @property
    def size(self) -> Quantity:
        """S: what whole elements fill."""
        return Quantity(self.row.p.message_bytes, "size")

    @property
    def trips(self) -> int:
        """Messages that follow each other in one iteration: of a ping_pong there and back."""
        return 2 if self.row.p.op == "ping_pong" else 1

    @property
    def seconds(self) -> float:
        return self.row.reading.seconds / self.trips

    def algbw(self, seconds: float | None = None) -> float:
        """Return bytes per second as a caller sees them, at the median or at another time of one message."""
        return float(self.row.p.message_bytes / (seconds or self.seconds))

    @property
    def busbw(self) -> float:
        """Return the bytes per second that a link carries."""
        return self.algbw() * float(bus_factor(self.row.p.operation.counted_as, self.row.p.ranks))

    @property
    def rate(self) -> Quantity:
        """busbw, or algbw where a single rank has no bus, from the slowest process to the fastest."""
        rate = self.algbw() if self.row.p.ranks == 1 else self.busbw
        return self.row.reading.per_second(rate * self.row.reading.seconds, "GB/s")

    @cached_property
    def _iterations_s(self) -> NDArray[np.float64]:
        """Return the seconds of iterations of all trials: averaged over ranks, or of samples if ranks are too many."""
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
        return Quantity(self.busbw / GIGA / self.peak.gb_per_s, "%") if self.peak else None

    @property
    def counted_rate(self) -> float | None:
        """Over the busiest GPU's NVLinks, one direction, by its own counters; None without counters."""
        rates = []
        for trial in self.trials:
            counted = [(report or {}).get("nvlink_bytes") for report in trial.quality.get("rank_gpus", ())]
            busiest = max((max(each["sent"], each["received"]) for each in counted if each), default=None)
            if busiest is not None:
                rates.append(busiest / trial.sampling["iterations"] / trial.seconds)
        return statistics.median(rates) if rates else None

    @property
    def wire_rate(self) -> float | None:
        """On each GPU's links, if the switch reduces (NVLS), as it can where they are new enough."""
        reduces = self.peak is not None and self.peak.name.endswith(SWITCH_REDUCES)
        return (
            float(nvls_wire_rate(self.algbw(), self.row.p.ranks)) if reduces and self.row.p.op == "all_reduce" else None
        )


@dataclass(frozen=True)
class Curve:
    """Points by S, ascending, of parameters `p` less their bytes and of who computes; `wrong` has elements in error."""

    p: CollectiveParameters
    implementation: str
    points: dict[int, CurvePoint] = field(default_factory=dict)
    wrong: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.what}, {self.how}"

    @property
    def what(self) -> str:
        """Return the operation, as in `all_reduce float32 max, 8 ranks`."""
        operation, *more = self.varied
        return f"{' '.join([operation, self.p.dtype, *more])}, {self.p.ranks} rank{'' if self.p.ranks == 1 else 's'}"

    @property
    def varied(self) -> list[str]:
        """The operation and what of it is not usual, as in `reduce max root 3`."""
        p = self.p
        reduction, root = p.reduction if p.reduction != "sum" else "", f"root {p.root}" if p.root else ""
        return [word for word in (p.op, reduction, root, p.pattern) if word]

    @property
    def how(self) -> str:
        """Return the implementation and its variant, as in `nccl in place, registered`."""
        return f"{self.implementation} {', '.join(self.variant)}".strip()

    @property
    def variant(self) -> list[str]:
        """In what it is not plain, which is out of place, unregistered, over all links and as NCCL sets itself."""
        p = self.p
        varied = itertools.compress(VARIANTS, (p.in_place, p.registered, p.symmetric, not p.peer_to_peer))
        return [*varied, p.settings] if p.settings else list(varied)

    @property
    def order(self) -> tuple[Any, ...]:
        """By operation as they are declared, then what is plain before what is varied."""
        op, who = list(OPERATIONS).index(self.p.op), (*IMPLEMENTATIONS, self.implementation).index(self.implementation)
        variant = [name in self.variant for name in reversed(VARIANTS)]
        how = (self.p.reduction, self.p.root, self.p.pattern)
        return (op, self.p.ranks, self.p.dtype, *how, who, self.implementation, variant, self.p.settings)

    @property
    def counted_as(self) -> str:
        """The name under which laws know the operation."""
        return str(self.p.operation.counted_as)

    @property
    def largest(self) -> CurvePoint:
        return self.points[max(self.points)]

    @property
    def best(self) -> CurvePoint:
        return max(self.points.values(), key=lambda point: point.rate.value)

    @cached_property
    def law(self) -> PiecewiseAlphaBeta | None:
        """Straight lines through the medians of all trials; None where too few sizes were measured."""
        if len(self.points) < FEWEST_SIZES:
            return None
        points = self.points.values()
        medians = [
            (point.row.p.message_bytes, s / point.trips)
            for point in points
            for s in point.row.reading.by_process.values()
        ]
        return PiecewiseAlphaBeta.fit(*np.array(medians).T)


def curves_of(rows: Rows[CollectiveParameters]) -> list[Curve]:
    """A curve for each setting that was measured or found wrong, in the order in which tables show them."""
    curves: dict[Any, Curve] = {}

    def curve_of(case: Case) -> Curve:
        curve = Curve(replace(case.parameters, bytes=0), case.implementation)
        return curves.setdefault((curve.p, curve.implementation), curve)

    timed = grouped((record for record in rows.records if record.kind == "timing"), lambda record: record.case_id)
    # A resumed run may hold a second trial of the same process; the later one stands.
    trials = {case_id: list({each.process: each for each in similar}.values()) for case_id, similar in timed.items()}
    for similar in trials.values():
        elements = sum(int(trial.verification.get("wrong", 0)) for trial in similar)
        case = similar[0].parsed_case()
        if elements:
            curve_of(case).wrong[case.parameters.message_bytes] = elements
    for row in sorted(rows, key=lambda row: row.p.message_bytes):
        curve, size = curve_of(row.case), row.p.message_bytes
        well = tuple(trial for trial in trials[row.case.case_id] if trial.outcome == "ok")
        curve.points[size] = CurvePoint(row, well, curve.wrong.get(size, 0))
    return sorted(curves.values(), key=lambda curve: curve.order)


def plain(curves: Iterable[Curve]) -> list[Curve]:
    """Return the curve that speaks for each operation, ranks and dtype: plain, and on our own path if there is one."""
    usual = (curve for curve in curves if curve.points and not curve.variant)
    return [together[0] for together in grouped(usual, lambda curve: curve.what).values()]


PLAYBOOK = 'Hugging Face, Large Language Model Training Playbook, "How to Maximize Training Throughput"'
GBPS = 1e9 / 8
# Claims on all_reduce between nodes, the highest threshold first.
BETWEEN_NODES = (
    Claim("a network between nodes carries 400 Gbps or more, so that it is no bottleneck", PLAYBOOK, 400 * GBPS),
    Claim("a network between nodes carries the 50 Gbps or more that BLOOM was trained on", PLAYBOOK, 50 * GBPS),
    Claim("networks between nodes carry 5 to 1600 Gbps", PLAYBOOK, 5 * GBPS, 1600 * GBPS),
)
FEWEST_NODES = 4
SMALL_BYTES = 64 * 2**10  # up to here the time of a message is mostly its start: what a layer above adds shows

# Panels of one row are still readable side by side.
MOST_IN_A_ROW = 3
LAW_POINTS = 120
MOST_TICKS = 5


def wrong(curves: Sequence[Curve]) -> Iterator[Remark]:
    """Yield a caution for each curve with wrong results."""
    message = "{curve}: {elements} elements are wrong at {sizes} of its sizes, so its figures there mean nothing"
    for curve in curves:
        if curve.wrong:
            elements = sum(curve.wrong.values())
            yield remark(message, kind="caution", curve=curve, elements=elements, sizes=len(curve.wrong))


def highest_rates(curves: Sequence[Curve]) -> Iterator[Remark]:
    """The highest rate of each operation and its size, that at the largest size, and its share of the links' peak."""
    for curve in plain(curves):
        best, message = curve.best, "{curve}: {rate} busbw at {size}"
        last = curve.largest if curve.largest.size != best.size else None
        if last:
            message = "{curve}: at most {rate} busbw, at {size}, and {last_rate} at the largest, {last_size}"
        if curve.p.ranks == 1:
            message = "{curve}: {rate} algbw at {size}; one rank has no bus"
        elif best.peak:
            message += ", {share} of the {peak} of {link}"
        peak, link = (Quantity(best.peak.gb_per_s * GIGA, "GB/s"), best.peak.name) if best.peak else (None, None)
        share = best.share_of_peak
        values: dict[str, Any] = {
            "curve": curve,
            "rate": best.rate,
            "size": best.size,
            "share": share,
            "peak": peak,
            "link": link,
        }
        values |= {"last_rate": last.rate, "last_size": last.size} if last else {}
        yield remark(message, **values)


def between_nodes(curves: Sequence[Curve]) -> Iterator[Remark | ClaimVerdict]:
    """The guide's thresholds for all_reduce over several nodes, and its advice where there are too few."""
    several = [each for each in plain(curves) if each.counted_as == "all_reduce" and each.best.nodes > 1]
    message = "{curve}: the network between nodes carries {measured} (busbw), each accelerator's share of it {each}"
    for curve in several:
        carried = replace(curve.best.rate, unit="Gbps")
        each = Quantity(float(inter_node_rate(carried.value, curve.p.ranks, curve.best.nodes)), "Gbps")
        for claim in BETWEEN_NODES:
            verdict = claim.judge(message, carried, curve=curve, each=each)
            yield verdict
            if verdict.outcome == "holds":
                break
    fewest = min((curve.best.nodes for curve in several), default=FEWEST_NODES)
    if fewest < FEWEST_NODES:
        message = "{nodes} nodes are measured: {enough} or more are recommended, best all that the training will use"
        yield remark(message, kind="caution", nodes=fewest, enough=FEWEST_NODES)


def paths(curves: Sequence[Curve]) -> Iterator[Remark]:
    """Yield the cost of each other path or variant relative to ours or the plain one, over all operations in common."""
    pairs = [
        (first, other, size)
        for first in plain(curves)
        for other in curves
        if other.what == first.what
        # They differ in a single thing, so that a difference in time is that thing's.
        if len({*first.variant} ^ {*other.variant}) + (first.implementation != other.implementation) == 1
        for size in sorted(first.points.keys() & other.points.keys())
    ]

    def compared(pair: tuple[Curve, Curve, int]) -> tuple[str, int, str, str, str]:
        first, other, size = pair
        return first.p.dtype, first.p.ranks, first.how, other.how, "up to" if size <= SMALL_BYTES else "above"

    for (dtype, ranks, first_how, other_how, where), similar in grouped(pairs, compared).items():
        yield remark(
            "{other} takes {slower} the time of {first} {where} {size} ({operations}, {dtype}, {ranks} ranks)",
            effect="slower",
            other=other_how,
            slower=mean_speedup([(b.points[size].row.reading, a.points[size].row.reading) for a, b, size in similar]),
            first=first_how,
            where=where,
            size=Quantity(SMALL_BYTES, "size"),
            operations=", ".join(dict.fromkeys(first.p.op for first, _, _ in similar)),
            dtype=dtype,
            ranks=ranks,
        )


LAWS = (
    Column("what", str, priority=2),
    Column("start", "law.start_s", "us", 2),
    Column("last rate", lambda curve: 1 / beta if (beta := curve.law.betas_s_per_byte[-1]) else math.inf, "GB/s", 2),
    Column("from", lambda curve: (0.0, *curve.law.bends_bytes)[-1], "size"),
    Column("pieces", lambda curve: len(curve.law.betas_s_per_byte)),
    Column("off at sizes held out", lambda curve: curve.law.held_out_error, "%"),
    Column("calls a graph", lambda curve: curve.largest.row.reading.details.get("calls_per_graph"), priority=0),
)


def laws(curves: Sequence[Curve]) -> Iterator[Remark | Table]:
    """How far all laws are off at sizes they have not seen, and their constants."""
    fitted = [curve for curve in plain(curves) if curve.law is not None]
    errors = [curve.law.held_out_error for curve in fitted if curve.law and curve.law.held_out_error is not None]
    if errors:
        message = "The laws of {count} curves miss sizes held out by {median} (median; worst curve {worst})"
        yield remark(message, kind="law", **misses(errors))
    if any(curve.implementation == "nccl" for curve in fitted):
        yield remark(
            "The start time of nccl includes a host thread that NCCL starts for each call on a communicator that does "
            "not block: that of nccl_graph is the network's",
            kind="caution",
        )
    every = [curve for curve in curves if curve.law and not curve.variant]
    yield table("Laws: time = start + size / rate, in straight pieces", LAWS, every)


POINTS = (
    Column("size", lambda point: point.size.value, "B", 2),
    Column("count", lambda point: point.row.p.count, priority=0),
    Column("type", lambda point: point.row.p.dtype, priority=0),
    Column("redop", lambda point: point.row.p.reduction if point.row.p.operation.reduces else "none", priority=0),
    Column("root", lambda point: point.row.p.root if point.row.p.operation.has_root else -1, priority=0),
    Column("p50", "seconds", "us", 2),
    Column("algbw", lambda point: point.algbw(), "GB/s"),
    Column("busbw", unit="GB/s", priority=2),
    Column("#wrong", "wrong"),
    Column("p95", lambda point: point.quantile_s(0.95), "us", 0),
    Column("p99", lambda point: point.quantile_s(0.99), "us"),
    Column("p99 / p50", "tail", "x", 0),
    # After the last rank arrived, and how far apart they arrived.
    Column("transfer", lambda point: point.row.observed.get("transfer"), "us"),
    Column("skew", lambda point: point.row.observed.get("skew"), "us"),
    Column("of the link's peak", "share_of_peak", "%"),
    Column("NVLS wire", "wire_rate", "GB/s", 0),
    Column("NVLink counters", "counted_rate", "GB/s", 0),
)


def tables(curves: Sequence[Curve]) -> Iterator[Table]:
    """One for each curve: what nccl-tests shows, tails, and what else is known, as times relative to the first path."""
    for together in grouped((curve for curve in curves if curve.points), lambda curve: curve.what).values():
        first = together[0]

        def relative(point: CurvePoint, first: Curve = first) -> Ratio | None:
            other = first.points.get(point.row.p.message_bytes)
            return other.row.faster_than(point.row) if other else None

        for curve in together:
            points = curve.points.values()
            columns = [column for column in POINTS if any(column.cell(point) is not None for point in points)]
            columns += [Column(f"relative to {first.how}", relative, "x")] if curve is not first else []
            yield table(str(curve), columns, points)


def figures(curves: Sequence[Curve]) -> Iterator[Figure | None]:
    """One for each number of ranks and dtype: a panel an operation, a series a path or variant."""
    long = [curve for curve in curves if len(curve.points) >= FEWEST_SIZES]
    for (ranks, dtype), together in grouped(long, lambda curve: (curve.p.ranks, curve.p.dtype)).items():
        similar = grouped(together, lambda curve: " ".join(curve.varied))
        peak = together[0].largest.peak
        caption = "Points: measured, bars span the trials. Line: the law, α + β·size in pieces."
        yield figure(
            f"collectives_{ranks}_ranks_{dtype}",
            f"Collectives among {ranks} ranks, {dtype}",
            caption + (f" Dashed: the peak of {peak.name}." if peak else ""),
            map(_panel, similar, similar.values()),
            MOST_IN_A_ROW,
        )


def _panel(title: str, curves: Sequence[Curve]) -> Panel:
    drawn = [series(each.how, each.points.values(), "size.value", "rate") for each in curves]
    first = curves[0]
    ends, peak = (min(first.points), max(first.points)), first.largest.peak
    if first.law is not None:
        factor = 1.0 if first.p.ranks == 1 else float(bus_factor(first.counted_as, first.p.ranks))
        drawn.append(law_over_sizes(f"law of {first.how}", first.law, *ends, LAW_POINTS, factor))
    if peak is not None and first.p.ranks > 1:
        drawn.append(Series(f"peak of {peak.name}", ends, [peak.gb_per_s * GIGA] * 2, "baseline"))
    # Ticks at powers of two, MOST_TICKS at most, evenly spaced, the largest among them.
    every = [size for curve in curves for size in curve.points]
    powers = range(int(math.log2(max(every))), math.ceil(math.log2(min(every))) - 1, -1)
    ticks = size_ticks(2**power for power in reversed(powers[:: math.ceil(len(powers) / MOST_TICKS) or 1]))
    label = "algbw" if first.p.ranks == 1 else "busbw"
    return Panel(title, "size", label, tuple(drawn), x_ticks=ticks, x_unit="B", y_unit="GB/s")
