"""What the curves say: rates relative to the links' peak, tables, the law, and what each path costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from pyperf_suite.laws.network.communication import GIGA, algbw, busbw, inter_node_rate
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.probes.collectives.curves import FEWEST_SIZES, Curve, Point, plain
from pyperf_suite.spec.axes import size_name
from pyperf_suite.spec.findings import Claim, Figure, Panel, Remark, Series, Table, Verdict, remark
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, Reading, grouped, mean_speedup, series, table

PLAYBOOK = 'Hugging Face, Large Language Model Training Playbook, "How to Maximize Training Throughput"'
GBPS = 1e9 / 8
# Of all_reduce between nodes, the highest threshold first.
BETWEEN_NODES = (
    Claim("a network between nodes carries 400 Gbps or more, so that it is no bottleneck", PLAYBOOK, 400 * GBPS),
    Claim("a network between nodes carries the 50 Gbps or more that BLOOM was trained on", PLAYBOOK, 50 * GBPS),
    Claim("networks between nodes carry 5 to 1600 Gbps", PLAYBOOK, 5 * GBPS, 1600 * GBPS),
)
FEWEST_NODES = 4

# Up to here the time of a message is mostly its start: what a layer above adds shows.
SMALL_BYTES = 64 * 2**10

# Panels of one row are still readable side by side.
MOST_IN_A_ROW = 3
LAW_POINTS = 120
MOST_TICKS = 5


def wrong(curves: Sequence[Curve]) -> Iterator[Remark]:
    """What was computed wrongly."""
    for curve in curves:
        if curve.wrong:
            yield remark(
                "{curve}: {elements} elements are wrong at {sizes} of its sizes, so its figures there mean nothing",
                kind="caution",
                curve=curve,
                elements=sum(curve.wrong.values()),
                sizes=len(curve.wrong),
            )


def highest_rates(curves: Sequence[Curve]) -> Iterator[Remark]:
    """The highest rate of each operation, and its share of the links' peak."""
    for curve in plain(curves):
        best = curve.best
        told = "{curve}: {rate} busbw at {size}"
        if curve.ranks == 1:
            told = "{curve}: {rate} algbw at {size}; one rank has no bus"
        elif best.peak:
            told += ", {share} of the {peak} of {link}"
        yield remark(
            told,
            curve=curve,
            rate=best.rate,
            size=best.size,
            share=best.share_of_peak,
            peak=best.peak and Quantity(best.peak.gb_per_s * GIGA, "GB/s"),
            link=best.peak and best.peak.name,
        )


def between_nodes(curves: Sequence[Curve]) -> Iterator[Remark | Verdict]:
    """The guide's thresholds for all_reduce over several nodes, and its advice where there are too few."""
    several = [each for each in plain(curves) if each.operation == "all_reduce" and each.best.nodes > 1]
    for curve in several:
        best = curve.best
        share = float(inter_node_rate(best.busbw, curve.ranks, best.nodes))
        for claim in BETWEEN_NODES:
            verdict = claim.judge(
                "{curve}: the network between nodes carries {measured} (busbw), each accelerator's share of it {each}",
                replace(best.rate, unit="Gbps"),
                curve=curve,
                each=Quantity(share, "Gbps"),
            )
            yield verdict
            if verdict.outcome == "holds":
                break
    fewest = min((curve.best.nodes for curve in several), default=FEWEST_NODES)
    if fewest < FEWEST_NODES:
        told = "{nodes} nodes are measured: {enough} or more are recommended, best all that the training will use"
        yield remark(told, kind="caution", nodes=fewest, enough=FEWEST_NODES)


def paths(curves: Sequence[Curve]) -> Iterator[Remark]:
    """What each other path or variant costs relative to ours or the plain one, over all operations measured by both."""
    compared: dict[tuple[str, int, str, str, str], list[tuple[Reading, Reading]]] = {}
    for first in plain(curves):
        for other in curves:
            if other.what == first.what and _one_apart(first, other):
                for size in sorted(first.points.keys() & other.points.keys()):
                    where = "up to" if size <= SMALL_BYTES else "above"
                    key = (first.parameters.dtype, first.ranks, first.how, other.how, where)
                    pair = (other.points[size].row.reading, first.points[size].row.reading)
                    compared.setdefault(key, []).append(pair)
    for (dtype, ranks, how, other_how, where), pairs in compared.items():
        slower = mean_speedup(pairs)
        if slower is not None:
            yield remark(
                "{other} takes {slower} the time of {first} {where} {size} ({operations}, {dtype}, {ranks} ranks)",
                effect="slower",
                other=other_how,
                slower=slower,
                first=how,
                where=where,
                size=Quantity(SMALL_BYTES, "size"),
                operations=", ".join(dict.fromkeys(reading.case.parameters.op for reading, _ in pairs)),
                dtype=dtype,
                ranks=ranks,
            )


def _one_apart(one: Curve, other: Curve) -> bool:
    """Whether they differ in a single thing, so that a difference in time is that thing's."""
    return len({*one.variant} ^ {*other.variant}) + (one.implementation != other.implementation) == 1


LAWS = (
    Column("what", lambda curve: str(curve), priority=2),
    Column("start", lambda curve: curve.law.segments()[0].alpha_s, "us", 2),
    Column("last rate", lambda curve: _rate_of(curve.law.segments()[-1].beta_s_per_byte), "GB/s", 2),
    Column("from", lambda curve: curve.law.segments()[-1].from_bytes, "size"),
    Column("pieces", lambda curve: len(curve.law.segments())),
    Column("off at sizes held out", lambda curve: curve.law.held_out_error, "%"),
    Column("calls a graph", lambda curve: curve.largest.details.get("calls_per_graph"), priority=0),
)


def laws(curves: Sequence[Curve]) -> Iterator[Remark | Table]:
    """How far all laws are off at sizes they have not seen, and their constants."""
    fitted = [curve for curve in plain(curves) if curve.law is not None]
    errors = [curve.law.held_out_error for curve in fitted if curve.law and curve.law.held_out_error is not None]
    if errors:
        yield remark(
            "The laws of {curves} curves miss sizes held out by {error} (median; worst curve {worst})",
            kind="law",
            curves=len(errors),
            error=Quantity(statistics.median(errors), "%"),
            worst=Quantity(max(errors), "%"),
        )
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
    Column("count", lambda point: point.row.count, priority=0),
    Column("type", lambda point: point.row.dtype, priority=0),
    Column("redop", lambda point: point.row.reduction if point.row.operation.reduces else "none", priority=0),
    Column("root", lambda point: point.row.root if point.row.operation.has_root else -1, priority=0),
    Column("p50", "seconds", "us", 2),
    Column("algbw", lambda point: point.algbw(), "GB/s"),
    Column("busbw", unit="GB/s", priority=2),
    Column("#wrong", "wrong"),
    Column("p95", lambda point: point.quantile_s(0.95), "us", 0),
    Column("p99", lambda point: point.quantile_s(0.99), "us"),
    Column("p99 / p50", "tail", "x", 0),
    # After the last rank arrived, and how far apart they arrived.
    Column("transfer", lambda point: point.row.seen.get("transfer"), "us"),
    Column("skew", lambda point: point.row.seen.get("skew"), "us"),
    Column("of the link's peak", "share_of_peak", "%"),
    Column("NVLS wire", "wire_rate", "GB/s", 0),
    Column("NVLink counters", "counted_rate", "GB/s", 0),
    Column("algorithm", lambda point: point.details.get("algorithm")),
)


def tables(curves: Sequence[Curve]) -> Iterator[Table]:
    """One for each curve: what nccl-tests shows, tails, and what else is known, as times relative to the first path."""
    for together in grouped((curve for curve in curves if curve.points), lambda curve: curve.what).values():
        for curve in together:
            points = curve.points.values()
            columns = [column for column in POINTS if any(column.cell(point) is not None for point in points)]
            relative = [_relative_to(together[0])] if curve is not together[0] else []
            yield table(str(curve), [*columns, *relative], points)


def _relative_to(first: Curve) -> Column:
    """The time over that of another curve at the same size."""

    def time_ratio(point: Point) -> Ratio | None:
        other = first.points.get(point.row.message_bytes)
        return None if other is None else other.row.faster_than(point.row)

    return Column(f"relative to {first.how}", time_ratio, "x")


def figures(curves: Sequence[Curve]) -> Iterator[Figure]:
    """One for each number of ranks and dtype: a panel an operation, a series a path or variant."""
    long = [curve for curve in curves if len(curve.points) >= FEWEST_SIZES]
    for (ranks, dtype), together in grouped(long, lambda curve: (curve.ranks, curve.parameters.dtype)).items():
        panels = [
            _panel(title, alike) for title, alike in grouped(together, lambda curve: " ".join(curve.varied)).items()
        ]
        peak = together[0].largest.peak
        yield Figure(
            f"collectives_{ranks}_ranks_{dtype}",
            f"Collectives among {ranks} ranks, {dtype}",
            "Points: measured, bars span the trials. Line: the law, α + β·size in pieces."
            + (f" Dashed: the peak of {peak.name}." if peak else ""),
            tuple(tuple(panels[start : start + MOST_IN_A_ROW]) for start in range(0, len(panels), MOST_IN_A_ROW)),
        )


def _panel(title: str, curves: Sequence[Curve]) -> Panel:
    drawn = [series(each.how, each.points.values(), attrgetter("size.value"), attrgetter("rate")) for each in curves]
    first = curves[0]
    ends = (min(first.points), max(first.points))
    if first.law is not None:
        sizes = np.geomspace(*ends, LAW_POINTS)
        seconds = first.law.seconds(sizes)
        rate = algbw(sizes, seconds) if first.ranks == 1 else busbw(first.operation, sizes, seconds, first.ranks)
        drawn.append(Series(f"law of {first.how}", sizes.tolist(), (rate * GIGA).tolist(), "line"))
    peak = first.largest.peak
    if peak is not None and first.ranks > 1:
        drawn.append(Series(f"peak of {peak.name}", ends, [peak.gb_per_s * GIGA] * 2, "beside"))
    label = "algbw" if first.ranks == 1 else "busbw"
    return Panel(title, "size", label, tuple(drawn), x_ticks=_ticks(curves), x_unit="B", y_unit="GB/s")


def _ticks(curves: Sequence[Curve]) -> tuple[tuple[float, str], ...]:
    """About so many powers of two as have room, evenly spaced, the largest among them."""
    sizes = [size for curve in curves for size in curve.points]
    smallest, largest = math.ceil(math.log2(min(sizes))), int(math.log2(max(sizes)))
    step = max(1, math.ceil((largest - smallest) / MOST_TICKS))
    return tuple((2.0**power, size_name(2**power)) for power in range(largest, smallest - 1, -step)[::-1])


def _rate_of(beta_s_per_byte: float) -> float:
    return 1 / beta_s_per_byte if beta_s_per_byte else math.inf
