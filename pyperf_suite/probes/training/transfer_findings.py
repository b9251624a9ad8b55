"""What records of transfers say: latency and bandwidth of each way, and how the ways compare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.laws.network.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.training.host_memory import ANY_NODE
from pyperf_suite.operators.training.transfer_parameters import TransferParameters
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.probes.training.claims import TRANSFORMERS, Claim
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Figure, Findings, Panel, Series, Table
from pyperf_suite.spec.rows import WORTH, Reading, readings, speedup

TRADES_BANDWIDTH = Claim("offloading to NVMe trades bandwidth for memory", TRANSFORMERS, low=WORTH)
# "Much faster" has no number there; from one and a half times on nobody would call it less.
PINNED_IS_FASTER = Claim("pinned memory typically leads to much faster transfers", TRANSFORMERS, low=1.5)

# Float32 weights and both moments: what AdamW keeps of each parameter and what is offloaded first.
ADAMW_BYTES = 12

# Two sizes fit any line; from three on there is something to draw.
FEWEST_OF_A_LAW = 3
FEWEST_OF_A_FIGURE = 3
# Where caches carry a smaller size so many times as fast as the largest, both are told.
FAR_FASTER = 1.5
LAW_POINTS = 200
MOST_TICKS = 8

NAMES = {
    "memcpy": "memcpy",
    "torch": "torch's copy_",
    "disk_cached": "a read from the page cache",
    "disk_direct": "a read from disk by O_DIRECT",
    "host_to_device": "host to GPU",
    "device_to_host": "GPU to host",
}
COLUMNS = ("way", "size", "time us", "GB/s", "from", "to", "law us", "law / measured")


@dataclass(frozen=True)
class Curve:
    """One way over sizes, growing, with the law fitted to its processes' medians where there are sizes enough."""

    way: str
    setting: TransferParameters
    points: Mapping[int, Reading]

    @property
    def name(self) -> str:
        """`torch's copy_ on 2 cores`."""
        words = NAMES[self.way]
        if self.way in ("memcpy", "torch"):
            words += f" on {self.setting.workers} core{'s' if self.setting.workers > 1 else ''}"
        elif self.way in ("host_to_device", "device_to_host"):
            words += " from " if self.way == "host_to_device" else " into "
            words += "pinned memory" if self.setting.pinned else "pageable memory"
        if self.setting.numa_node != ANY_NODE:
            words += f" (NUMA node {self.setting.numa_node})"
        return words + (f" ({self.setting.folder})" if self.setting.folder else "")

    @property
    def largest(self) -> Reading:
        """The reading at the largest size."""
        return self.points[max(self.points)]

    def law(self) -> PiecewiseAlphaBeta | None:
        """Fitted to every process at every size."""
        if len(self.points) < FEWEST_OF_A_LAW:
            return None
        seen = [(size, time) for size, point in self.points.items() for time in point.by_process.values()]
        return PiecewiseAlphaBeta.fit([size for size, _ in seen], [time for _, time in seen])


def explain(records: Sequence[Record]) -> Findings:
    """Sentences, the table of all sizes, and a figure of rates."""
    curves = curves_of(readings(records))
    laws = {curve.name: curve.law() for curve in curves}
    sentences = [_rate_sentence(curve, laws[curve.name]) for curve in curves]
    sentences += [*_cores(curves), *_pinned(curves), *_nodes(curves), *_disk(curves), *_offload(curves)]
    rows = tuple(row for curve in curves for row in _rows(curve, laws[curve.name]))
    tables = (Table("Transfers by size", COLUMNS, rows),) if rows else ()
    return Findings(tuple(sentences), tables, _figures(curves, laws))


def curves_of(found: Sequence[Reading]) -> list[Curve]:
    """Readings by way and setting, in the order of NAMES."""
    members: dict[tuple[Any, ...], dict[int, Reading]] = {}
    for reading in found:
        p = reading.case.parameters
        key = (list(NAMES).index(reading.case.implementation), not p.pinned, p.workers, p.numa_node, p.folder)
        members.setdefault(key, {})[p.size_bytes] = reading
    return [
        Curve(
            list(NAMES)[key[0]],
            TransferParameters(0, key[2], not key[1], key[3], key[4]),
            dict(sorted(points.items())),
        )
        for key, points in sorted(members.items())
    ]


def faster_a_byte(slow: Reading, fast: Reading) -> Ratio | None:
    """How many times the bytes a second of `slow` those of `fast` are, whatever the sizes; None without a process."""
    ratio = speedup(slow, fast)
    return ratio and ratio * (fast.case.parameters.size_bytes / slow.case.parameters.size_bytes)


def _rate_sentence(curve: Curve, law: PiecewiseAlphaBeta | None) -> str:
    largest = curve.largest
    size = largest.case.parameters.size_bytes
    low, high = _gb_per_s(size, largest.high), _gb_per_s(size, largest.low)
    told = (
        f"{curve.name[0].upper()}{curve.name[1:]} moves {readable(size)} at {_gb_per_s(size, largest.seconds):.3g} "
        f"[{low:.3g}, {high:.3g}] GB/s"
    )
    if law is None:
        return f"{told}{_caveat(curve)}."
    rates = {each: _gb_per_s(each, point.seconds) for each, point in curve.points.items()}
    best = max(rates, key=lambda each: rates[each])
    half = next(each for each in rates if rates[each] >= rates[best] / 2)
    if rates[best] >= FAR_FASTER * rates[size]:
        told += f", and {readable(best)} at {rates[best]:.3g} GB/s"
    smallest = min(curve.points)
    told += (
        f"; {readable(smallest)} take {_microseconds(curve.points[smallest].seconds)}, of which "
        f"{_microseconds(law.start_s)} are latency by its law, and half its best rate is reached by {readable(half)}"
    )
    if law.held_out_error is not None:
        off = {each: abs(float(law.seconds(each)) / point.seconds - 1) for each, point in curve.points.items()}
        worst = max(off, key=lambda each: off[each])
        told += (
            f" (the law misses sizes that it has not seen by {law.held_out_error:.0%} in the median, and of those that "
            f"it has at worst {readable(worst)}, by {off[worst]:.0%})"
        )
    return f"{told}{_caveat(curve)}."


def _caveat(curve: Curve) -> str:
    """What stands between a direct read and the disk."""
    if curve.way == "disk_direct" and curve.largest.kernel["details"].get("virtualised"):
        return "; this is a virtual machine, whose host may have answered out of its own memory"
    return ""


def _cores(curves: Sequence[Curve]) -> Iterator[str]:
    """What more cores give, at the largest size and, where it is another verdict, at the smallest."""
    by_workers = {curve.setting.workers: curve for curve in curves if curve.way == "torch"}
    if len(by_workers) < 2:
        return
    one, most = by_workers[min(by_workers)], by_workers[max(by_workers)]
    common = sorted(one.points.keys() & most.points.keys())
    for size in sorted({*common[:1], *common[-1:]}):
        ratio = speedup(one.points[size], most.points[size])
        if ratio is not None:
            yield (
                f"{most.setting.workers} cores copy {readable(size)} {ratio} x as fast as {one.setting.workers}: "
                f"{_worth(ratio)}."
            )


def _worth(ratio: Ratio) -> str:
    if ratio.low > 1:
        return "more cores help"
    return "more cores are in the way" if ratio.high < 1 else "the interval leaves open whether more cores help"


def _pinned(curves: Sequence[Curve]) -> Iterator[str]:
    """Pinned beside pageable memory, in each direction and on each node."""
    for pinned in curves:
        if not pinned.setting.pinned:
            continue
        for other in curves:
            same = other.way == pinned.way and other.setting.numa_node == pinned.setting.numa_node
            if same and not other.setting.pinned:
                size = max(pinned.points.keys() & other.points.keys(), default=0)
                ratio = speedup(other.points[size], pinned.points[size]) if size else None
                if ratio is not None:
                    subject = f"{pinned.name}: {readable(size)} are there {{}} x as fast as with pageable memory"
                    yield PINNED_IS_FASTER.sentence(subject, ratio)


def _nodes(curves: Sequence[Curve]) -> Iterator[str]:
    """The nearest NUMA node beside the farthest, for each way that was measured on several."""
    ways: dict[tuple[str, bool], list[Curve]] = {}
    for curve in curves:
        if curve.setting.numa_node != ANY_NODE:
            ways.setdefault((curve.way, curve.setting.pinned), []).append(curve)
    for members in ways.values():
        size = max(set.intersection(*(set(curve.points) for curve in members)), default=0)
        if len(members) < 2 or not size:
            continue
        ordered = sorted(members, key=lambda curve: curve.points[size].seconds)
        ratio = speedup(ordered[-1].points[size], ordered[0].points[size])
        if ratio is not None:
            yield (
                f"{ordered[0].name} moves {readable(size)} {ratio} x as fast as from node "
                f"{ordered[-1].setting.numa_node}: keep the process near the memory that it copies."
            )


def _disk(curves: Sequence[Curve]) -> Iterator[str]:
    """The disk beside copies in memory, and the page cache beside the disk."""
    found = {curve.way: curve for curve in curves if not curve.setting.folder and curve.setting.workers == 1}
    direct, cached, copied = (found.get(way) for way in ("disk_direct", "disk_cached", "memcpy"))
    if direct is not None and copied is not None:
        ratio = faster_a_byte(direct.largest, copied.largest)
        if ratio is not None:
            yield TRADES_BANDWIDTH.sentence("A copy in memory moves {} x the bytes a second of a read from disk", ratio)
    if direct is not None and cached is not None:
        ratio = faster_a_byte(direct.largest, cached.largest)
        if ratio is not None:
            yield f"The page cache gives {ratio} x the bytes a second that the disk gives to O_DIRECT."


def _offload(curves: Sequence[Curve]) -> Iterator[str]:
    """What the rates mean for offloading: a prediction, and said to be one."""
    wanted = ("memcpy", "disk_direct", "host_to_device")
    told = []
    for curve in curves:
        if curve.way in wanted and curve.setting.numa_node in (ANY_NODE, 0):
            size = curve.largest.case.parameters.size_bytes
            told.append(f"{curve.largest.seconds / size * ADAMW_BYTES * 1e9:.2g} s by {curve.name}")
    if told:
        yield (
            f"Predicted: AdamW's {ADAMW_BYTES} bytes a parameter of a model of 1e9, read once, take "
            f"{', '.join(told)}; each step reads them and writes them back."
        )


def _rows(curve: Curve, law: PiecewiseAlphaBeta | None) -> Iterator[tuple[str, ...]]:
    for size, point in curve.points.items():
        predicted = None if law is None else float(law.seconds(size))
        yield (
            curve.name,
            readable(size),
            f"{point.seconds * 1e6:.4g}",
            *(f"{_gb_per_s(size, seconds):.3g}" for seconds in (point.seconds, point.high, point.low)),
            "-" if predicted is None else f"{predicted * 1e6:.4g}",
            "-" if predicted is None else f"{predicted / point.seconds:.2f}",
        )


def _figures(curves: Sequence[Curve], laws: Mapping[str, PiecewiseAlphaBeta | None]) -> tuple[Figure, ...]:
    drawn = [curve for curve in curves if len(curve.points) >= FEWEST_OF_A_FIGURE]
    if not drawn:
        return ()
    series = [each for curve in drawn for each in _series(curve, laws[curve.name])]
    powers = [math.log2(size) for curve in drawn for size in curve.points]
    step = max(1, math.ceil((max(powers) - min(powers)) / MOST_TICKS))
    ticks = tuple((2.0**power, readable(2**power)) for power in range(int(min(powers)), int(max(powers)) + 1, step))
    panel = Panel("Transfers", "size", "GB/s", tuple(series), x_ticks=ticks)
    caption = "Points: measured, bars span the processes; line: latency + bytes / bandwidth. The payload counts once."
    return (Figure("transfer", "Rate of transfers by size", caption, ((panel,),)),)


def _series(curve: Curve, law: PiecewiseAlphaBeta | None) -> Iterator[Series]:
    taken = curve.points.items()
    yield Series(
        curve.name,
        list(curve.points),
        [_gb_per_s(size, point.seconds) for size, point in taken],
        "points",
        [_gb_per_s(size, point.high) for size, point in taken],
        [_gb_per_s(size, point.low) for size, point in taken],
    )
    if law is not None:
        sizes = np.geomspace(min(curve.points), max(curve.points), LAW_POINTS)
        yield Series(f"law of {curve.name}", sizes.tolist(), (sizes / law.seconds(sizes) / 1e9).tolist(), "line")


def _gb_per_s(size_bytes: float, seconds: float) -> float:
    return size_bytes / seconds / 1e9


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2g} us"
