"""The short run that laws are fitted to on this machine: products and attentions of a library, spread over all sizes.

`pyperf-suite calibrate` reads its records; here they are held against the laws that are shipped.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.catalogue import gpu_of
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.probes.calibration.design import AttentionShape, Extent, spread_attentions, spread_products
from pyperf_suite.probes.calibration.predictions import predicted_seconds
from pyperf_suite.runner.record import Case
from pyperf_suite.spec.axes import Shape
from pyperf_suite.spec.findings import Findings, Remark, findings, remark
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, Row, Rows, grouped, table
from pyperf_suite.workloads.matmul import MatmulParameters

# Two milliseconds of an H200 at most, and 300 MB of operands in bf16: what a case costs is mostly its verification.
GPU_EXTENT = Extent(m=(128, 16384), nk=(1024, 16384), flop=1.5e12, elements=1.5e8)
CPU_EXTENT = Extent(m=(16, 1024), nk=(64, 2048), flop=1e9, elements=4e6)

MOST_ROWS = 12


@dataclass(frozen=True)
class CalibrationAxes:
    """Each product by `implementation`, each attention forward by `attention_implementation`, in each dtype."""

    shape: tuple[Shape, ...]
    attention: tuple[AttentionShape, ...]
    implementation: tuple[str, ...] = ("cublas",)
    dtype: tuple[str, ...] = ("bfloat16",)
    workers: tuple[int, ...] = (1,)
    attention_implementation: tuple[str, ...] = ("sdpa_default",)
    layout: tuple[str, ...] = ("TN",)
    mode: tuple[str, ...] = ("burst",)


def axes(profile: str, device: Device) -> CalibrationAxes:
    """On a GPU about a hundred cases in under two minutes; on a CPU a few, for there the law is a rate."""
    quick = profile == "quick"
    if device.kind == "cpu":
        attentions = spread_attentions(2, (128, 512), (2, 8), 1e9)
        workers = (cpu.detect().usable_cores,)
        return CalibrationAxes(
            spread_products(6 if quick else 24, CPU_EXTENT), attentions, ("torch",), ("float32",), workers
        )
    attentions = spread_attentions(20 if quick else 40, (256, 8192), (8, 64), 2e11 if quick else 4e11)
    return CalibrationAxes(spread_products(72 if quick else 160, GPU_EXTENT), attentions)


def sweep(axes: CalibrationAxes) -> Iterator[Case]:
    """Products and attentions crossed with dtype, layout and mode."""
    everything = itertools.product(axes.shape, axes.implementation, axes.layout, axes.dtype, axes.workers, axes.mode)
    for size, implementation, layout, dtype, workers, mode in everything:
        schedule = Schedule("library", workers)
        product = MatmulParameters(size.m, size.n, size.k, schedule, dtype=dtype, layout=layout)
        yield Case("matmul", product, implementation, mode=mode)
    for shape, implementation, dtype, workers, mode in itertools.product(
        axes.attention, axes.attention_implementation, axes.dtype, axes.workers, axes.mode
    ):
        yield Case("attention", shape.parameters(dtype=dtype, workers=workers), implementation, mode=mode)


def analyse(rows: Rows) -> Findings:
    """Rates, the errors of the shipped laws, and where those miss most; rates alone where no law is for the device."""
    if not rows:
        return Findings()
    kinds = grouped(sorted(rows, key=lambda row: (row.operator, row.dtype)), kind_of)
    rates = [told_rates(kind, members) for kind, members in kinds.items()]
    gpu = gpu_of(rows.records[0].identity)
    if gpu is None:
        none = "No law is shipped for this device: these rates are all there is to say"
        return findings(rates, remark(none, kind="caution"))
    known: list[Row] = []
    refused: dict[str, Remark] = {}
    for members in kinds.values():
        try:
            seconds = predicted_seconds(gpu, [row.case for row in members]).tolist()
        except UserError as reason:
            refused[str(reason)] = remark("{reason}", kind="caution", reason=str(reason))
        else:
            known += [replace(row, seen={"by law": each}) for row, each in zip(members, seconds, strict=True)]
    worst = sorted(known, key=lambda row: -abs(math.log(ratio(row))))
    advice = "`pyperf-suite calibrate` fits the laws to these records and states the error on held-out ones"
    return findings(
        rates,
        (told_error(gpu.name, kind, [*map(ratio, members)]) for kind, members in grouped(known, kind_of).items()),
        refused.values(),
        remark(advice) if known else None,
        table("Where the shipped laws miss most", COLUMNS, worst[:MOST_ROWS]),
    )


def ratio(row: Row) -> float:
    """Above 1 where the law takes this machine for slower than it is."""
    return row.seen["by law"] / row.seconds


def kind_of(row: Row) -> str:
    """What a law is asked for together: `bfloat16 products`."""
    return f"{row.dtype} {'products' if row.operator == 'matmul' else 'attentions'}"


def told_rates(kind: str, rows: Sequence[Row]) -> Remark:
    """Between which rates the rows of a kind lie."""
    rates = [row.flop_per_s for row in rows]
    told = {"least": min(rates), "most": max(rates), "median": statistics.median(rates)}
    template = "{count} {kind_of} of all sizes ran at {least} to {most}, half of them above {median}"
    quantities: dict[str, Any] = {name: Quantity(rate, "TFLOP/s") for name, rate in told.items()}
    return remark(template, count=len(rows), kind_of=kind, **quantities)


def told_error(gpu: str, kind: str, ratios: Sequence[float]) -> Remark:
    """How far the shipped law is off, and to which side."""
    errors = [abs(ratio - 1) for ratio in ratios]
    return remark(
        "The law shipped for {gpu} predicts these {count} {kind_of} with an error of {mean} (median {median}); "
        "predicted / measured is {ratio} at the median",
        kind="law",
        gpu=gpu,
        count=len(ratios),
        kind_of=kind,
        mean=Quantity(statistics.mean(errors), "%"),
        median=Quantity(statistics.median(errors), "%"),
        ratio=Quantity(statistics.median(ratios), "x"),
    )


def what(row: Row) -> str:
    """The sizes of a product or an attention."""
    if row.operator == "matmul":
        return f"{row.m}x{row.n}x{row.k} {row.layout}"
    return f"attention {row.batch} x {row.heads} heads ({row.key_heads} key) of {row.head_dim}, {row.seq_q} tokens"


COLUMNS = (
    Column("what", what, priority=2),
    Column("dtype", priority=0),
    Column("measured", "seconds", "us"),
    Column("predicted", lambda row: row.seen["by law"], "us", predicted=True),
    Column("predicted / measured", ratio, "x", 2),
    Column("rate", "flop_per_s", "TFLOP/s"),
)
PROBE = Probe(
    name="calibration",
    question="How far do the shipped laws fit this machine? Records for `pyperf-suite calibrate`.",
    topic="laws",
    title="Calibration of the laws",
    axes=axes,
    sweep=sweep,
    analyse=analyse,
    group=lambda case: f"calibration {case.operator} {case.implementation}",
)
