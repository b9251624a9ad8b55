"""The table of nccl-tests as its readers and their scripts know it, column by column, from our records.

Layout: nccl-tests 2.13 and later, src/common.cu, its heading and writeBenchmarkLineBody.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pyperf_suite.probes.collectives.curves import Curve
from pyperf_suite.probes.collectives.table import Both, both_of
from pyperf_suite.spec.findings import Document

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
    return Document("nccl_tests.txt", "\n".join(line for both in both_of(curves) for line in _block(both)))


def _block(both: Both) -> list[str]:
    reduction, root = both.reduction_and_root
    lines = [f"# {both.setting}", *_HEADING]
    for size in both.sizes:
        p = both.setting.at(size)
        case = _CASE.format(size, p.count, TYPES.get(p.dtype, p.dtype), reduction, root)
        lines.append(case + _place(both.out_of_place, size) + _place(both.in_place, size))
    wrong = sum(sum(curve.wrong.values()) for curve in both.measured)
    lines.append(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    rates = [point.busbw() for curve in both.measured for point in curve.points.values()]
    if rates:
        lines.append(f"# Avg bus bandwidth    : {statistics.fmean(rates):g}")
    return [*lines, "#", ""]


def _place(curve: Curve | None, size: int) -> str:
    if curve is None or size not in {*curve.points, *curve.wrong}:
        return _UNTOLD
    wrong, point = curve.wrong.get(size, 0), curve.points.get(size)
    if point is None:
        return _PLACE.format("N/A", "N/A", "N/A", wrong)
    us = point.seconds * 1e6
    time = f"{us:.0f}" if us >= 10_000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"
    return _PLACE.format(time, f"{point.algbw:.2f}", f"{point.busbw():.2f}", wrong)
