"""How fast bytes reach where they are needed: copies in host memory, over the bus of a GPU, and out of files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from pyperf_suite.errors import OneOf
from pyperf_suite.findings.axes import AxisTable, Sizes, by, every_size, one_and_all_cores, size_ticks, sizes
from pyperf_suite.findings.data import (
    TRANSFORMERS,
    Claim,
    ClaimVerdict,
    Figure,
    Findings,
    Panel,
    Remark,
    Series,
    Table,
    figure,
    findings,
    remark,
)
from pyperf_suite.findings.probe import Probe, RowClaim
from pyperf_suite.findings.rows import Column, Row, Rows, law_over_sizes, series, table
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import WORTH
from pyperf_suite.workloads.training.transfer import TransferParameters

IN_HOST, ON_DISK, OVER_BUS = ("memcpy", "torch"), ("disk_cached", "disk_direct"), ("host_to_device", "device_to_host")
WAYS = (*IN_HOST, *ON_DISK, *OVER_BUS)
NAMES = dict(zip(WAYS, ("memcpy", "torch copy_", "page cache", "O_DIRECT", "host to GPU", "GPU to host"), strict=True))
MEMORY = ("pinned", "pageable")
RESULTS = "results"  # the folder that results go to
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


def powers_of_cores(_device: Device) -> tuple[int, ...]:
    """Powers of two below the cores, and all of them."""
    cores = cpu.detect().usable_cores
    return (*(2**power for power in range(10) if 2**power < cores), cores)


@dataclass(frozen=True)
class TransferAxes(AxisTable):
    """From below the level-1 cache to beyond all caches; on a GPU both directions over its bus, and first.

    memcpy and the ways over a GPU's bus take each `size`, torch each `torch_size` on each number of `workers`, reads of
    a file each `disk_size`. `memory` is the host's end of a copy to or from a GPU. `folder` names the disk, "results"
    for that of the results. Figures of host memory do not change with the GPU.
    """

    way: Annotated[tuple[str, ...], OneOf(WAYS)] = by(
        ("memcpy", *ON_DISK), (*IN_HOST, *ON_DISK), cuda=by(OVER_BUS, (*OVER_BUS, *IN_HOST, *ON_DISK))
    )
    size: tuple[Sizes, ...] = by(
        sizes("64KiB", "16MiB"),
        sizes("2KiB..64MiB:8"),
        sizes("1KiB..256MiB:4"),
        cuda=by(sizes("64MiB"), sizes("2KiB..64MiB:8"), sizes("1KiB..256MiB:4")),
    )
    torch_size: tuple[Sizes, ...] = by((), standard=sizes("16MiB"), full=sizes("1KiB..256MiB:4"))
    disk_size: tuple[Sizes, ...] = by(sizes("1MiB"), sizes("4KiB..16MiB:64"), sizes("4KiB..64MiB:4"))
    workers: tuple[int, ...] = by((), standard=one_and_all_cores, full=powers_of_cores)
    memory: Annotated[tuple[str, ...], OneOf(MEMORY)] = by((), cuda=MEMORY)
    folder: tuple[str, ...] = (RESULTS,)


def sweep(axes: TransferAxes) -> Iterator[Case]:
    """Every way at its sizes, in each kind of memory that it has."""
    for way in axes.way:
        if way == "torch":
            settings = itertools.product(every_size(axes.torch_size), axes.workers)
            requested = [TransferParameters(size_bytes, workers) for size_bytes, workers in settings]
        elif way in ON_DISK:
            folders = ["" if folder == RESULTS else folder for folder in axes.folder]
            places = itertools.product(every_size(axes.disk_size), folders)
            requested = [TransferParameters(size_bytes, folder=folder) for size_bytes, folder in places]
        else:
            ends = itertools.product(every_size(axes.size), axes.memory if way in OVER_BUS else ("pageable",))
            requested = [TransferParameters(size, pinned=kind == "pinned") for size, kind in ends]
        yield from (Case("transfer", parameters, way) for parameters in requested)


@dataclass(frozen=True)
class TransferCurve:
    """One way over sizes, growing, with the law fitted to every process at every size where there are sizes enough."""

    rows: Rows[TransferParameters]
    law: PiecewiseAlphaBeta | None

    @classmethod
    def of(cls, rows: Rows[TransferParameters]) -> TransferCurve:
        seen = [(row.p.size_bytes, seconds) for row in rows for seconds in row.reading.by_process.values()]
        return cls(rows, PiecewiseAlphaBeta.fit(*np.array(seen).T) if len(rows) >= FEWEST_OF_A_LAW else None)

    @property
    def largest(self) -> Row[TransferParameters]:
        return self.rows[-1]

    @property
    def name(self) -> str:
        return name_of(self.largest)

    @property
    def fastest(self) -> Row[TransferParameters]:
        return max(self.rows, key=lambda row: rate(row).value)

    @property
    def half_from(self) -> int:
        """The smallest size that moves at half of the best rate or more."""
        return next(row.p.size_bytes for row in self.rows if rate(row).value >= rate(self.fastest).value / 2)

    @property
    def law_s(self) -> dict[str, float]:
        return {row.case.case_id: float(self.law.seconds(row.p.size_bytes)) for row in self.rows if self.law}

    @property
    def worst_error(self) -> float | None:
        """By how much the law misses the size that it fits least."""
        pairs = zip(self.rows, self.law_s.values(), strict=False)
        return max((abs(law_s / row.seconds - 1) for row, law_s in pairs), default=None)


def name_of(row: Row[TransferParameters]) -> str:
    """`torch copy_, 2 cores`, `host to GPU, pinned`."""
    words = [NAMES[row.implementation]]
    if row.implementation == "torch":
        words.append(f"{row.p.workers} core{'s' if row.p.workers > 1 else ''}")
    if row.implementation in OVER_BUS:
        words.append("pinned" if row.p.pinned else "pageable")
    return ", ".join([*words, row.p.folder] if row.p.folder else words)


def rate(row: Row[TransferParameters]) -> Quantity:
    """Bytes a second."""
    return row.reading.per_second(row.p.size_bytes, "GB/s")


def is_largest_of_both(row: Row[TransferParameters]) -> bool:
    """True for the largest size that is measured in pinned and in pageable memory."""
    both = [each for each in row.rows.same_except(row, "size_bytes") if each.p.pinned and each.against(pinned=False)]
    return row in both[-1:]


def analyse(rows: Rows[TransferParameters]) -> Findings:
    """Latency and bandwidth of each way, what cores and a disk make of them, and what offloading takes."""
    curves = [TransferCurve.of(group) for group in rows.groups("size_bytes")]
    return findings(_cores(rows), _disk(rows), _offload(curves), _tables(rows, curves), _figure(curves))


def _cores(rows: Rows[TransferParameters]) -> Iterator[Remark]:
    copies = rows.where(implementation="torch")
    fewest, most = (choose((row.p.workers for row in copies), default=0) for choose in (min, max))
    pairs = [(row, faster) for row in copies.where(workers=most) if (faster := row.against(workers=fewest))]
    for row, faster in pairs[:1] + pairs[1:][-1:]:
        sentence = "{workers} cores copy {size} {faster} as fast as {fewest}"
        yield row.remark(sentence, effect="faster", faster=faster, fewest=fewest)


def _disk(rows: Rows[TransferParameters]) -> Iterator[Remark | ClaimVerdict]:
    """Copies in memory and reads from the page cache compared with reads from the disk, each at its largest size."""
    largest = {row.implementation: row for row in rows if not row.p.folder}
    direct, cached, copied = (largest.get(way) for way in ("disk_direct", "disk_cached", "memcpy"))
    if direct and copied and (faster := faster_a_byte(copied, direct)):
        yield TRADES_BANDWIDTH.judge("A copy in memory moves {measured} the bytes a second of a read from disk", faster)
    if direct and cached:
        sentence = "The page cache gives {faster} the bytes a second that the disk gives to O_DIRECT"
        yield remark(sentence, effect="faster", faster=faster_a_byte(cached, direct))
    if any(row.reading.details.get("virtualised") for row in rows.where(implementation="disk_direct")):
        yield remark("The disk is a virtual machine's: its host may have answered out of its memory", kind="caution")


def faster_a_byte(fast: Row[TransferParameters], slow: Row[TransferParameters]) -> Ratio | None:
    """How many times the bytes a second of `slow` those of `fast` are, whatever the sizes; None without a process."""
    ratio = fast.faster_than(slow)
    return ratio and ratio * (fast.p.size_bytes / slow.p.size_bytes)


def _offload(curves: Sequence[TransferCurve]) -> Iterator[Remark]:
    sentence = "{way}: what AdamW keeps of 1e9 parameters, {each:B} each, takes {time} to read; each step writes it too"
    for row in (curve.largest for curve in curves):
        if row.implementation in ("memcpy", "disk_direct", "host_to_device"):
            kept, known = ADAMW_BYTES * OFFLOADED_PARAMETERS, rate(row)
            value, low, high = (kept / each for each in (known.value, known.high, known.low))
            time = Quantity(value, "duration", low, high, known.processes, predicted=True)
            yield row.remark(sentence, kind="predicted", each=ADAMW_BYTES, time=time)


def _tables(rows: Rows[TransferParameters], curves: Sequence[TransferCurve]) -> Iterator[Table]:
    columns = (
        Column("way", "name", priority=2),
        Column("largest", "largest.size", "size"),
        Column("rate", lambda curve: rate(curve.largest), "GB/s", priority=2),
        Column("best rate", lambda curve: rate(curve.fastest).value, "GB/s"),
        Column("at", "fastest.size", "size"),
        Column("half of it from", "half_from", "size", priority=0),
        Column("latency by the law", lambda curve: curve.law and curve.law.start_s, "us"),
        Column("law off where left out", lambda curve: curve.law and curve.law.held_out_error, "%", priority=0),
        Column("law off at worst", "worst_error", "%", priority=0),
    )
    yield table("Ways", columns, curves)
    law_s = {case_id: seconds for curve in curves for case_id, seconds in curve.law_s.items()}
    by_size = (
        Column("way", name_of, priority=2),
        Column("size", "size_bytes", "size", priority=2),
        Column("time", "seconds", "us"),
        Column("rate", rate, "GB/s"),
        Column("law", lambda row: law_s.get(row.case.case_id), "us", 0, predicted=True),
        Column("law / measured", lambda row: (law := law_s.get(row.case.case_id)) and law / row.seconds, "x", 0),
    )
    yield table("Transfers by size", by_size, rows)


def _figure(curves: Sequence[TransferCurve]) -> Figure | None:
    fitted = [curve for curve in curves if curve.law]
    sizes = sorted({row.p.size_bytes for curve in fitted for row in curve.rows})
    ticks = size_ticks(sizes[:: math.ceil(len(sizes) / MOST_TICKS) or 1])
    drawn: list[Series] = []
    for curve in fitted:
        ends = curve.rows[0].p.size_bytes, curve.largest.p.size_bytes
        drawn.append(series(curve.name, curve.rows, "size_bytes", rate))
        drawn.append(law_over_sizes(f"law of {curve.name}", curve.law, *ends, LAW_POINTS))
    panel = Panel("Transfers", "size", "rate", tuple(drawn), x_ticks=ticks, x_unit="size", y_unit="GB/s")
    caption = "Points: measured, bars span the processes; line: latency + bytes / bandwidth. The payload counts once."
    return figure("transfer", "Rate of transfers by size", caption, [panel] if drawn else ())


PROBE = Probe(
    name="transfer",
    question="How fast do bytes get to where they are computed with, from memory, from a disk and over the bus?",
    topic="the machine",
    title="Transfers",
    axes=TransferAxes.of,
    sweep=sweep,
    order=lambda row: (WAYS.index(row.implementation), not row.p.pinned, row.key("size_bytes"), row.p.size_bytes),
    computed={"way": name_of, "size": lambda row: Quantity(row.p.size_bytes, "size")},
    claims=(
        RowClaim(
            PINNED_IS_FASTER,
            "{way}: {size} move {measured} as fast as with pageable memory",
            ratio=lambda row: row.against(pinned=False),
            where=is_largest_of_both,
        ),
    ),
    analyse=analyse,
    group=lambda case: f"transfer {case.implementation}",
)
