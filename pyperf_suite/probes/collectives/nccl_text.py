"""The table of nccl-tests as its readers and their scripts know it, column by column, from our records.

Layout: nccl-tests 2.13 and later, src/common.cu, its heading and writeBenchmarkLineBody.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyperf_suite.laws.traffic import GIGA
from pyperf_suite.probes.collectives.curves import Curve
from pyperf_suite.spec.findings import Document
from pyperf_suite.spec.rows import grouped

TYPES = {"float32": "float", "float16": "half", "float8_e4m3fn": "f8e4m3"}

_CASE = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_PLACE = "  {:>7}  {:>6}  {:>6}  {:>5}"
_PLACE_NAMES = "  {:>7}  {:>6}  {:>6} {:>6}".format("time", "algbw", "busbw", "#wrong")
_UNTOLD = _PLACE.format("N/A", "N/A", "N/A", "N/A")
_HEADING = tuple(
    f"#{line[1:].rstrip()}"
    for line in (
        " " * len(_CASE.format(*[""] * 5)) + f"{'out-of-place':^32}{'in-place':^32}",
        _CASE.format("size", "count", "type", "redop", "root") + _PLACE_NAMES * 2,
        _CASE.format("(B)", "(elements)", "", "", "") + _PLACE.format("(us)", "(GB/s)", "(GB/s)", "") * 2,
    )
)


def nccl_tests_text(curves: Sequence[Curve]) -> Document:
    """A block for each setting; times in us, rates in GB/s (1e9), `N/A` for what was not measured."""
    lines: list[str] = []
    of_both = grouped(curves, lambda each: (replace(each.parameters, in_place=False), each.implementation))
    for setting, alike in of_both.items():
        by_place = {curve.in_place: curve for curve in alike}
        lines += _block(*(by_place.get(in_place, Curve(*setting)) for in_place in (False, True)))
    return Document("nccl_tests.txt", "\n".join(lines))


def _block(out_of_place: Curve, in_place: Curve) -> Iterator[str]:
    yield f"# {out_of_place}"
    yield from _HEADING
    both = (out_of_place, in_place)
    for size in sorted({size for curve in both for size in (*curve.points, *curve.wrong)}):
        p = replace(out_of_place.parameters, bytes=size)
        reduction = p.reduction if p.operation.reduces else "none"
        root = p.root if p.operation.has_root else -1
        case = _CASE.format(size, p.count, TYPES.get(p.dtype, p.dtype), reduction, root)
        yield case + _place(out_of_place, size) + _place(in_place, size)
    wrong = sum(sum(curve.wrong.values()) for curve in both)
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    rates = [point.busbw / GIGA for curve in both for point in curve.points.values()]
    if rates:
        yield f"# Avg bus bandwidth    : {statistics.fmean(rates):g}"
    yield from ("#", "")


def _place(curve: Curve, size: int) -> str:
    wrong, point = curve.wrong.get(size, 0), curve.points.get(size)
    if point is None:
        return _PLACE.format("N/A", "N/A", "N/A", wrong) if wrong else _UNTOLD
    us = point.seconds * 1e6
    time = f"{us:.0f}" if us >= 10_000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"
    return _PLACE.format(time, f"{point.algbw() / GIGA:.2f}", f"{point.busbw / GIGA:.2f}", wrong)
