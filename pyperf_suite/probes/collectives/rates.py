"""What the curves say: rates relative to the links' peak, tables, the law, and what each path costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from pyperf_suite.laws.network.communication import GIGA, bus_factor, inter_node_rate
from pyperf_suite.measure.estimates import Ratio
from pyperf_suite.probes.collectives.curves import FEWEST_SIZES, Curve, Point, plain
from pyperf_suite.spec.axes import size_ticks
from pyperf_suite.spec.findings import Claim, Figure, Panel, Remark, Series, Table, Verdict, remark
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, grouped, mean_speedup, series, table

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
    told = "{curve}: {elements} elements are wrong at {sizes} of its sizes, so its figures there mean nothing"
    for curve in curves:
        if curve.wrong:
            elements = sum(curve.wrong.values())
            yield remark(told, kind="caution", curve=curve, elements=elements, sizes=len(curve.wrong))


def highest_rates(curves: Sequence[Curve]) -> Iterator[Remark]:
    """The highest rate of each operation, and its share of the links' peak."""
    for curve in plain(curves):
        best, told = curve.best, "{curve}: {rate} busbw at {size}"
        if curve.ranks == 1:
            told = "{curve}: {rate} algbw at {size}; one rank has no bus"
        elif best.peak:
            told += ", {share} of the {peak} of {link}"
        peak, link = (Quantity(best.peak.gb_per_s * GIGA, "GB/s"), best.peak.name) if best.peak else (None, None)
        share = best.share_of_peak
        yield remark(told, curve=curve, rate=best.rate, size=best.size, share=share, peak=peak, link=link)


def between_nodes(curves: Sequence[Curve]) -> Iterator[Remark | Verdict]:
    """The guide's thresholds for all_reduce over several nodes, and its advice where there are too few."""
    several = [each for each in plain(curves) if each.counted_as == "all_reduce" and each.best.nodes > 1]
    told = "{curve}: the network between nodes carries {measured} (busbw), each accelerator's share of it {each}"
    for curve in several:
        carried = replace(curve.best.rate, unit="Gbps")
        each = Quantity(float(inter_node_rate(carried.value, curve.ranks, curve.best.nodes)), "Gbps")
        for claim in BETWEEN_NODES:
            verdict = claim.judge(told, carried, curve=curve, each=each)
            yield verdict
            if verdict.outcome == "holds":
                break
    fewest = min((curve.best.nodes for curve in several), default=FEWEST_NODES)
    if fewest < FEWEST_NODES:
        told = "{nodes} nodes are measured: {enough} or more are recommended, best all that the training will use"
        yield remark(told, kind="caution", nodes=fewest, enough=FEWEST_NODES)


def paths(curves: Sequence[Curve]) -> Iterator[Remark]:
    """What each other path or variant costs relative to ours or the plain one, over all operations measured by both."""
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
        return first.dtype, first.ranks, first.how, other.how, "up to" if size <= SMALL_BYTES else "above"

    for (dtype, ranks, first_how, other_how, where), alike in grouped(pairs, compared).items():
        yield remark(
            "{other} takes {slower} the time of {first} {where} {size} ({operations}, {dtype}, {ranks} ranks)",
            effect="slower",
            other=other_how,
            slower=mean_speedup([(b.points[size].row.reading, a.points[size].row.reading) for a, b, size in alike]),
            first=first_how,
            where=where,
            size=Quantity(SMALL_BYTES, "size"),
            operations=", ".join(dict.fromkeys(first.op for first, _, _ in alike)),
            dtype=dtype,
            ranks=ranks,
        )


LAWS = (
    Column("what", str, priority=2),
    Column("start", lambda curve: curve.law.segments()[0].alpha_s, "us", 2),
    Column("last rate", lambda curve: 1 / beta if (beta := curve.law.betas_s_per_byte[-1]) else math.inf, "GB/s", 2),
    Column("from", lambda curve: curve.law.segments()[-1].from_bytes, "size"),
    Column("pieces", lambda curve: len(curve.law.betas_s_per_byte)),
    Column("off at sizes held out", lambda curve: curve.law.held_out_error, "%"),
    Column("calls a graph", lambda curve: curve.largest.details.get("calls_per_graph"), priority=0),
)


def laws(curves: Sequence[Curve]) -> Iterator[Remark | Table]:
    """How far all laws are off at sizes they have not seen, and their constants."""
    fitted = [curve for curve in plain(curves) if curve.law is not None]
    errors = [curve.law.held_out_error for curve in fitted if curve.law and curve.law.held_out_error is not None]
    if errors:
        told = "The laws of {curves} curves miss sizes held out by {error} (median; worst curve {worst})"
        error, worst = Quantity(statistics.median(errors), "%"), Quantity(max(errors), "%")
        yield remark(told, kind="law", curves=len(errors), error=error, worst=worst)
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
        first = together[0]

        def relative(point: Point, first: Curve = first) -> Ratio | None:
            other = first.points.get(point.row.message_bytes)
            return other.row.faster_than(point.row) if other else None

        for curve in together:
            points = curve.points.values()
            columns = [column for column in POINTS if any(column.cell(point) is not None for point in points)]
            columns += [Column(f"relative to {first.how}", relative, "x")] if curve is not first else []
            yield table(str(curve), columns, points)


def figures(curves: Sequence[Curve]) -> Iterator[Figure]:
    """One for each number of ranks and dtype: a panel an operation, a series a path or variant."""
    long = [curve for curve in curves if len(curve.points) >= FEWEST_SIZES]
    for (ranks, dtype), together in grouped(long, attrgetter("ranks", "dtype")).items():
        alike = grouped(together, lambda curve: " ".join(curve.varied))
        panels = tuple(_panel(title, each) for title, each in alike.items())
        peak = together[0].largest.peak
        yield Figure(
            f"collectives_{ranks}_ranks_{dtype}",
            f"Collectives among {ranks} ranks, {dtype}",
            "Points: measured, bars span the trials. Line: the law, α + β·size in pieces."
            + (f" Dashed: the peak of {peak.name}." if peak else ""),
            tuple(panels[start : start + MOST_IN_A_ROW] for start in range(0, len(panels), MOST_IN_A_ROW)),
        )


def _panel(title: str, curves: Sequence[Curve]) -> Panel:
    drawn = [series(each.how, each.points.values(), attrgetter("size.value"), attrgetter("rate")) for each in curves]
    first = curves[0]
    ends, peak = (min(first.points), max(first.points)), first.largest.peak
    if first.law is not None:
        sizes = np.geomspace(*ends, LAW_POINTS)
        factor = 1.0 if first.ranks == 1 else bus_factor(first.counted_as, first.ranks)
        drawn.append(
            Series(f"law of {first.how}", sizes.tolist(), (sizes / first.law.seconds(sizes) * factor).tolist(), "line")
        )
    if peak is not None and first.ranks > 1:
        drawn.append(Series(f"peak of {peak.name}", ends, [peak.gb_per_s * GIGA] * 2, "beside"))
    # About so many powers of two as have room, evenly spaced, the largest among them.
    every = [size for curve in curves for size in curve.points]
    powers = range(int(math.log2(max(every))), math.ceil(math.log2(min(every))) - 1, -1)
    ticks = size_ticks(2**power for power in reversed(powers[:: math.ceil(len(powers) / MOST_TICKS) or 1]))
    label = "algbw" if first.ranks == 1 else "busbw"
    return Panel(title, "size", label, tuple(drawn), x_ticks=ticks, x_unit="B", y_unit="GB/s")
