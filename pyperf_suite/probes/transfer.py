"""How fast bytes reach where they are needed: copies in host memory, over the bus of a GPU, and out of files.

Each way is latency plus bytes over bandwidth, in straight lines joined end to end (laws/network/alpha_beta.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.network.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.training import host_memory
from pyperf_suite.operators.training.host_memory import ANY_NODE
from pyperf_suite.operators.training.transfer_parameters import TransferParameters
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.axes import OneOf, Sizes, every_size, size_name
from pyperf_suite.spec.findings import Claim, Figure, Findings, Panel, Remark, Series, Table, Verdict, findings, remark
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import WORTH, Column, Row, Rows, series, table
from pyperf_suite.spec.sources import TRANSFORMERS

IN_HOST, ON_DISK, OVER_BUS = ("memcpy", "torch"), ("disk_cached", "disk_direct"), ("host_to_device", "device_to_host")
WAYS = (*IN_HOST, *ON_DISK, *OVER_BUS)
NAMES = dict(zip(WAYS, ("memcpy", "torch copy_", "page cache", "O_DIRECT", "host to GPU", "GPU to host"), strict=True))
MEMORY = ("pinned", "pageable")

# The folder that results go to.
RESULTS = "results"

KIB, MIB = 2**10, 2**20

TRADES_BANDWIDTH = Claim("offloading to NVMe trades bandwidth for memory", TRANSFORMERS, low=WORTH)
# "Much faster" has no number there; from one and a half times on nobody would call it less.
PINNED_IS_FASTER = Claim("pinned memory typically leads to much faster transfers", TRANSFORMERS, low=1.5)

# Float32 weights and both moments: what AdamW keeps of each parameter and what is offloaded first.
ADAMW_BYTES = 12
OFFLOADED_PARAMETERS = 1e9

# Two sizes fit any line; from three on there is something to draw.
FEWEST_OF_A_LAW = 3
LAW_POINTS = 200
MOST_TICKS = 8


@dataclass(frozen=True)
class TransferAxes:
    """What the probe varies.

    memcpy and the ways over a GPU's bus take each `size`, torch each `torch_size` on each number of `workers`, reads of
    a file each `disk_size`. `memory` is the host's end of a copy to or from a GPU. `numa_node` is where the host's
    source lies, -1 for wherever the kernel puts it; `folder` names the disk, "results" for that of the results.
    """

    way: Annotated[tuple[str, ...], OneOf(WAYS)]
    size: tuple[Sizes, ...]
    torch_size: tuple[Sizes, ...]
    disk_size: tuple[Sizes, ...]
    workers: tuple[int, ...]
    memory: Annotated[tuple[str, ...], OneOf(MEMORY)]
    numa_node: tuple[int, ...] = (ANY_NODE,)
    folder: tuple[str, ...] = (RESULTS,)


def axes(profile: str, device: Device) -> TransferAxes:
    """From below the level-1 cache to beyond all caches; on a GPU both directions over its bus, and first."""
    bus = OVER_BUS if device.kind == "cuda" else ()
    memory = MEMORY if bus else ()
    if profile == "quick":
        # What is measured in host memory does not change with the GPU.
        return TransferAxes(
            way=bus or ("memcpy", *ON_DISK),
            size=tuple(map(Sizes.parse, ("64MiB",) if bus else ("64KiB", "16MiB"))),
            torch_size=(),
            disk_size=(Sizes.parse("1MiB"),),
            workers=(),
            memory=memory,
        )
    cores = cpu.detect().usable_cores
    several = tuple(node for node in host_memory.nodes() if len(host_memory.nodes()) > 1)
    standard = TransferAxes(
        way=(*bus, *IN_HOST, *ON_DISK),
        size=(Sizes(2 * KIB, 64 * MIB, 8),),
        torch_size=(Sizes(16 * MIB, 16 * MIB),),
        disk_size=(Sizes(4 * KIB, 16 * MIB, 64),),
        workers=tuple(sorted({1, cores})),
        memory=memory,
        numa_node=several or (ANY_NODE,),
    )
    if profile == "standard":
        return standard
    return replace(
        standard,
        size=(Sizes(1 * KIB, 256 * MIB, 4),),
        torch_size=(Sizes(1 * KIB, 256 * MIB, 4),),
        disk_size=(Sizes(4 * KIB, 64 * MIB, 4),),
        workers=tuple(sorted({1, *(2**power for power in range(1, 10) if 2**power < cores), cores})),
    )


def sweep(axes: TransferAxes) -> Iterator[Case]:
    """Every way at its sizes, in each kind of memory that it has."""
    for way in axes.way:
        for parameters in _parameters(way, axes):
            yield Case("transfer", parameters, way)


def _parameters(way: str, axes: TransferAxes) -> Iterator[TransferParameters]:
    if way == "torch":
        for size_bytes, workers in itertools.product(every_size(axes.torch_size), axes.workers):
            yield TransferParameters(size_bytes, workers)
    elif way in ON_DISK:
        for size_bytes, folder in itertools.product(every_size(axes.disk_size), axes.folder):
            yield TransferParameters(size_bytes, folder="" if folder == RESULTS else folder)
    else:
        memory = axes.memory if way in OVER_BUS else ("pageable",)
        for size_bytes, kind, node in itertools.product(every_size(axes.size), memory, axes.numa_node):
            yield TransferParameters(size_bytes, pinned=kind == "pinned", numa_node=node)


@dataclass(frozen=True)
class Curve:
    """One way over sizes, growing, with the law fitted to every process at every size where there are sizes enough."""

    rows: Rows
    law: PiecewiseAlphaBeta | None

    @property
    def largest(self) -> Row:
        """The row of the largest size."""
        return self.rows[-1]

    @property
    def fastest(self) -> Row:
        """The row of the best rate."""
        return max(self.rows, key=lambda row: rate(row).value)

    @property
    def half_from(self) -> int:
        """The smallest size that moves at half of the best rate or more."""
        return next(row.size_bytes for row in self.rows if rate(row).value >= rate(self.fastest).value / 2)

    def law_s(self, row: Row) -> float | None:
        """What the law predicts for a row."""
        return float(self.law.seconds(row.size_bytes)) if self.law else None

    def law_over_measured(self, row: Row) -> float:
        """The law's time over the measured one."""
        return (self.law_s(row) or math.nan) / row.seconds


def curve_of(rows: Rows) -> Curve:
    """One way with its law."""
    if len(rows) < FEWEST_OF_A_LAW:
        return Curve(rows, None)
    seen = [(row.size_bytes, seconds) for row in rows for seconds in row.by_process.values()]
    return Curve(rows, PiecewiseAlphaBeta.fit([size for size, _ in seen], [seconds for _, seconds in seen]))


def name_of(row: Row) -> str:
    """`torch copy_, 2 cores`, `host to GPU, pinned, node 1`."""
    words = [NAMES[row.implementation]]
    if row.implementation == "torch":
        words.append(f"{row.workers} core{'s' if row.workers > 1 else ''}")
    if row.implementation in OVER_BUS:
        words.append("pinned" if row.pinned else "pageable")
    words += [f"node {row.numa_node}"] if row.numa_node != ANY_NODE else []
    words += [row.folder] if row.folder else []
    return ", ".join(words)


def rate(row: Row) -> Quantity:
    """Bytes a second."""
    return row.reading.per_second(row.size_bytes, "GB/s")


def analyse(rows: Rows) -> Findings:
    """Latency and bandwidth of each way, what cores, nearness and a disk make of them, and what offloading takes."""
    curves = [curve_of(group) for group in rows.groups("size_bytes")]
    parts = (_cores(rows), _nodes(rows), _disk(rows), _offload(curves), _tables(curves), _figure(curves))
    return findings(_pinned(curves), *parts)


def _pinned(curves: Sequence[Curve]) -> Iterator[Verdict]:
    """Pinned beside pageable memory in each direction, at the largest size of both."""
    for curve in curves:
        pairs = [(row, faster) for row in curve.rows.where(pinned=True) if (faster := row.against(pinned=False))]
        for row, faster in pairs[-1:]:
            told = "{way}: {size} move {measured} as fast as with pageable memory"
            yield PINNED_IS_FASTER.judge(told, faster, way=name_of(row), size=Quantity(row.size_bytes, "size"))


def _cores(rows: Rows) -> Iterator[Remark]:
    """What more cores give, at the smallest and at the largest size."""
    copies = rows.where(implementation="torch")
    fewest, most = (choose((row.workers for row in copies), default=0) for choose in (min, max))
    pairs = [(row, faster) for row in copies.where(workers=most) if (faster := row.against(workers=fewest))]
    for row, faster in pairs[:1] + pairs[1:][-1:]:
        yield remark(
            "{most} cores copy {size} {faster} as fast as {fewest}",
            effect="faster",
            most=most,
            size=Quantity(row.size_bytes, "size"),
            faster=faster,
            fewest=fewest,
        )


def _nodes(rows: Rows) -> Iterator[Remark]:
    """The nearest NUMA node beside the farthest, for each way that was measured on several."""
    placed = rows.where(lambda row: row.numa_node != ANY_NODE)
    largest = {(group[0].implementation, group[0].pinned): group for group in placed.groups("numa_node") if group[1:]}
    for group in largest.values():
        near, *_, far = sorted(group, key=lambda row: float(row.seconds))
        if (faster := near.faster_than(far)) is not None:
            yield remark(
                "{way} moves {size} {faster} as fast as from node {far}: keep the process near the memory it copies",
                effect="faster",
                way=name_of(near),
                size=Quantity(near.size_bytes, "size"),
                faster=faster,
                far=far.numa_node,
            )


def _disk(rows: Rows) -> Iterator[Remark | Verdict]:
    """Copies in memory and reads from the page cache beside reads from the disk, each at its largest size."""
    largest = {row.implementation: row for row in rows if not row.folder}
    direct, cached, copied = (largest.get(way) for way in ("disk_direct", "disk_cached", "memcpy"))
    if direct and copied and (faster := faster_a_byte(copied, direct)):
        yield TRADES_BANDWIDTH.judge("A copy in memory moves {measured} the bytes a second of a read from disk", faster)
    if direct and cached and (faster := faster_a_byte(cached, direct)):
        told = "The page cache gives {faster} the bytes a second that the disk gives to O_DIRECT"
        yield remark(told, effect="faster", faster=faster)
    if any(row.kernel["details"].get("virtualised") for row in rows.where(implementation="disk_direct")):
        yield remark("The disk is a virtual machine's: its host may have answered out of its memory", kind="caution")


def faster_a_byte(fast: Row, slow: Row) -> Ratio | None:
    """How many times the bytes a second of `slow` those of `fast` are, whatever the sizes; None without a process."""
    ratio = fast.faster_than(slow)
    return ratio and ratio * (fast.size_bytes / slow.size_bytes)


def _offload(curves: Sequence[Curve]) -> Iterator[Remark]:
    """What the rates mean for offloading."""
    for row in (curve.largest for curve in curves):
        if row.implementation in ("memcpy", "disk_direct", "host_to_device") and row.numa_node in (ANY_NODE, 0):
            seconds = row.seconds / row.size_bytes * ADAMW_BYTES * OFFLOADED_PARAMETERS
            yield remark(
                "{way}: what AdamW keeps of 1e9 parameters, {each} each, takes {time} to read; each step writes it too",
                kind="predicted",
                way=name_of(row),
                each=Quantity(ADAMW_BYTES, "B"),
                time=Quantity(seconds, "duration", predicted=True),
            )


def _tables(curves: Sequence[Curve]) -> Iterator[Table]:
    columns = (
        Column("way", lambda curve: name_of(curve.largest), priority=2),
        Column("largest", lambda curve: curve.largest.size_bytes, "size"),
        Column("rate", lambda curve: rate(curve.largest), "GB/s", priority=2),
        Column("best rate", lambda curve: rate(curve.fastest).value, "GB/s"),
        Column("at", lambda curve: curve.fastest.size_bytes, "size"),
        Column("half of it from", "half_from", "size", priority=0),
        Column("latency by the law", lambda curve: curve.law and curve.law.start_s, "us"),
        Column("law off where left out", lambda curve: curve.law and curve.law.held_out_error, "%", priority=0),
        Column("law off at worst", _worst_error, "%", priority=0),
    )
    yield table("Ways", columns, curves)
    by_size = (
        Column("way", lambda point: name_of(point[1]), priority=2),
        Column("size", lambda point: point[1].size_bytes, "size", priority=2),
        Column("time", lambda point: point[1].seconds, "us"),
        Column("rate", lambda point: rate(point[1]), "GB/s"),
        Column("law", lambda point: point[0].law_s(point[1]), "us", 0, predicted=True),
        Column("law / measured", lambda point: point[0].law and point[0].law_over_measured(point[1]), "x", 0),
    )
    yield table("Transfers by size", by_size, [(curve, row) for curve in curves for row in curve.rows])


def _worst_error(curve: Curve) -> float | None:
    """By how much the law misses the size that it fits least."""
    return max(abs(curve.law_over_measured(row) - 1) for row in curve.rows) if curve.law else None


def _figure(curves: Sequence[Curve]) -> Figure | None:
    drawn = [each for curve in curves for each in _series(curve) if curve.law]
    sizes = sorted({row.size_bytes for curve in curves if curve.law for row in curve.rows})
    if not sizes:
        return None
    ticks = tuple((float(size), size_name(size)) for size in sizes[:: math.ceil(len(sizes) / MOST_TICKS)])
    panel = Panel("Transfers", "size", "rate", tuple(drawn), x_ticks=ticks, x_unit="size", y_unit="GB/s")
    caption = "Points: measured, bars span the processes; line: latency + bytes / bandwidth. The payload counts once."
    return Figure("transfer", "Rate of transfers by size", caption, ((panel,),))


def _series(curve: Curve) -> Iterator[Series]:
    name = name_of(curve.largest)
    yield series(name, curve.rows, x=lambda row: row.size_bytes, y=rate)
    if curve.law:
        sizes = np.geomspace(curve.rows[0].size_bytes, curve.largest.size_bytes, LAW_POINTS)
        yield Series(f"law of {name}", sizes.tolist(), (sizes / curve.law.seconds(sizes)).tolist(), "line")


PROBE = Probe(
    name="transfer",
    question="How fast do bytes get to where they are computed with, from memory, from a disk and over the bus?",
    topic="the machine",
    title="Transfers",
    axes=axes,
    sweep=sweep,
    order=lambda row: (WAYS.index(row.implementation), not row.pinned, row.key("size_bytes"), row.size_bytes),
    analyse=analyse,
    group=lambda case: f"transfer {case.implementation}",
)
