"""The short run that laws are fitted to on this machine: products and attentions of a library, spread over all sizes.

The sizes are points of a lattice that fills the space of their logarithms: on a grid of four sizes each, sixty-four
products would only ever see four values of m. `pyperf-suite calibrate` reads the records; here they are compared with
the laws that are shipped.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import AxisTable, Dimensions, Shape, all_cores, by
from pyperf_suite.findings.data import Findings, Remark, findings, remark
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, table
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.tiled_attention import attention_flop, visible_pairs
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.planner.laws.attention import attention_time
from pyperf_suite.planner.laws.calibration import Calibration
from pyperf_suite.planner.laws.gemm import gemm_time
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.matmul import MatmulParameters

DTYPE_OF_LAW = {
    "float32": "fp32",
    "tfloat32": "tf32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "int8": "int8",
}
PRODUCT, ATTENTION = ("m", "n", "k"), ("batch", "seq_q", "keys", "heads", "key_heads", "head_dim")


def law_dtype(case: Case) -> str:
    """The laws' name of a case's element type. Raises UserError for one that no law is for."""
    dtype = case.parameters.dtype
    if dtype not in DTYPE_OF_LAW:
        raise UserError(f"No law is for {dtype} on a GPU, only for {', '.join(DTYPE_OF_LAW)}.")
    return DTYPE_OF_LAW[dtype]


def predicted_seconds(gpu: GpuSpec | Calibration | str, cases: Sequence[Case]) -> NDArray[np.float64]:
    """Seconds that the laws of a GPU give for each case, in the cases' order.

    Cases that differ in sizes alone are one call of a law. Raises UserError for an operator or a type without a law.
    """
    seconds = np.empty(len(cases))
    for (law, names, fixed), places in grouped(range(len(cases)), lambda place: _call_of(cases[place])).items():
        together = [cases[place].parameters for place in places]
        sizes = (np.array([getattr(each, name) for each in together], dtype=np.int64) for name in names)
        seconds[places] = law(gpu, *sizes, **dict(fixed)).seconds
    return seconds


def _call_of(case: Case) -> tuple[Callable[..., Any], tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """The law, the sizes that it takes arrays of, and what a call of it has one value of."""
    p = case.parameters
    if case.operator == "matmul":
        return gemm_time, PRODUCT, (("dtype", law_dtype(case)), ("layout", p.layout), ("mode", case.mode))
    if case.operator == "attention":
        fixed = (("causal", p.causal), ("dtype", law_dtype(case)), ("backward", p.backward))
        return attention_time, ATTENTION, fixed
    raise UserError(f"No law is for {case.operator}, only for matmul and attention.")


# Sizes that models have and libraries are good at; what misaligned ones cost is the alignment probe's to find.
ROUND_M, ROUND_NK = 8, 64

KV_RATIOS = (1, 4, 8)
HEAD_DIMS, TOKENS, HEADS = (64, 128), (256, 8192), (8, 64)


@dataclass(frozen=True)
class Extent:
    """Sizes from `low` to `high`, and the most that one of what they make may cost.

    `flop` bounds the time on the device, `elements` of the operands the time to make and verify them on the host.
    """

    m: tuple[int, int]
    nk: tuple[int, int]
    flop: float
    elements: float


@dataclass(frozen=True)
class AttentionSizes(Dimensions):
    """Batch, heads, key heads, head dimension and tokens of one causal self-attention."""

    form = "the shape of an attention: write BATCHxHEADSxKV_HEADSxHEAD_DIMxSEQ, as in 1x32x8x128x4096"
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    seq: int


def spread_products(count: int, extent: Extent) -> tuple[Shape, ...]:
    """Return `count` different products, evenly over the logarithms of m, n and k inside the extent."""
    products: list[Shape] = []
    places = _lattice(3)
    while len(products) < count:
        place = next(places)
        m = _between(*extent.m, place[0], ROUND_M)
        n, k = (_between(*extent.nk, each, ROUND_NK) for each in place[1:])
        if 2.0 * m * n * k <= extent.flop and m * k + k * n + m * n <= extent.elements:
            products.append(Shape(m, n, k))
    return tuple(products)


def spread_attentions(count: int, flop: float) -> tuple[AttentionSizes, ...]:
    """Return `count` different causal attentions, evenly over the logarithms of tokens, batch x heads and grouping."""
    attentions: dict[AttentionSizes, None] = {}
    places = _lattice(5)
    while len(attentions) < count:
        place = next(places)
        ratio, head_dim = (of[int(each * len(of))] for of, each in ((KV_RATIOS, place[2]), (HEAD_DIMS, place[4])))
        all_heads, seq = _between(*HEADS, place[1], ratio), _between(*TOKENS, place[0], ROUND_NK)
        shape = AttentionSizes(_between(1, 8, place[3], 1), all_heads, all_heads // ratio, head_dim, seq)
        pairs = int(visible_pairs(seq, seq, causal=True))
        if float(attention_flop(shape.batch, all_heads, head_dim, pairs)) <= flop:
            attentions[shape] = None
    return tuple(attentions)


def _between(low: int, high: int, place: float, multiple: int) -> int:
    """The size at that share of the way in the logarithm, as a multiple and at least one."""
    return max(1, round(low * (high / low) ** place / multiple)) * multiple


def _lattice(dimensions: int) -> Iterator[tuple[float, ...]]:
    """Points of the unit cube without end, each set of first ones spread evenly.

    The additive recurrence with the generalised golden ratio, the root of x^(d+1) = x + 1 (Roberts, *The unreasonable
    effectiveness of quasirandom sequences*, 2018).
    """
    ratio = 1.5
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    steps = [ratio**-power for power in range(1, dimensions + 1)]
    for index in itertools.count():
        yield tuple((0.5 + index * step) % 1 for step in steps)


# Two milliseconds of an H200 at most, and 300 MB of operands in bf16: what a case costs is mostly its verification.
GPU_EXTENT = Extent(m=(128, 16384), nk=(1024, 16384), flop=1.5e12, elements=1.5e8)

MOST_ROWS = 12


@dataclass(frozen=True)
class CalibrationAxes(AxisTable):
    """Each product by `implementation`, each attention forward by `attention_implementation`, in each dtype.

    On a GPU about a hundred cases in under two minutes; on a CPU, for which no law is shipped, one of each.
    """

    shape: tuple[Shape, ...] = by(
        (Shape(256, 256, 256),), cuda=by(spread_products(72, GPU_EXTENT), spread_products(160, GPU_EXTENT))
    )
    attention: tuple[AttentionSizes, ...] = by(
        (AttentionSizes(1, 2, 2, 64, 128),), cuda=by(spread_attentions(20, 2e11), spread_attentions(40, 4e11))
    )
    implementation: tuple[str, ...] = by(("torch",), cuda=("cublas",))
    dtype: tuple[str, ...] = by(("float32",), cuda=("bfloat16",))
    workers: tuple[int, ...] = by(all_cores, cuda=(1,))
    attention_implementation: tuple[str, ...] = ("sdpa_default",)
    layout: tuple[str, ...] = ("TN",)
    mode: tuple[str, ...] = ("burst",)


def gpu_of(identity: Mapping[str, Any]) -> GpuSpec | None:
    """The GPU that records with such an identity were taken on; None for a CPU or a GPU that the catalogue lacks."""
    try:
        return find_gpu(str(identity.get("model", ""))) if identity.get("kind") == "cuda" else None
    except UserError:
        return None


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
        kv_heads = 0 if shape.kv_heads == shape.heads else shape.kv_heads
        sizes = (shape.batch, shape.heads, shape.head_dim, shape.seq)
        p = AttentionParameters(*sizes, kv_heads=kv_heads, causal=True, dtype=dtype, workers=workers)
        yield Case("attention", p, implementation, mode=mode)


def analyse(rows: Rows) -> Findings:
    """Rates, the errors of the shipped laws, and where those miss most; rates alone where no law is for the device."""
    if not rows:
        return Findings()
    kinds = grouped(sorted(rows, key=lambda row: (row.case.operator, row.p.dtype)), kind_of)
    rates = []
    for kind, members in kinds.items():
        by_rate = [row.reading.throughput for row in sorted(members, key=lambda row: row.reading.flop_per_s)]
        median = Quantity(statistics.median(row.reading.flop_per_s for row in members), "TFLOP/s")
        template = "{count} {kind_of} of all sizes ran at {least} to {most}, half of them above {median}"
        least, most = by_rate[0], by_rate[-1]
        rates.append(remark(template, count=len(members), kind_of=kind, least=least, most=most, median=median))
    gpu = gpu_of(rows.records[0].identity)
    if gpu is None:
        none = "No law is shipped for this device: these rates are all there is to say"
        return findings(rates, remark(none, kind="caution"))
    priced: list[Row] = []
    refused: dict[str, Remark] = {}
    for members in kinds.values():
        try:
            seconds = predicted_seconds(gpu, [row.case for row in members]).tolist()
        except UserError as reason:
            refused[str(reason)] = remark("{reason}", kind="caution", reason=str(reason))
        else:
            priced += [replace(row, observed={"by law": each}) for row, each in zip(members, seconds, strict=True)]
    worst = sorted(priced, key=lambda row: -abs(math.log(ratio(row))))
    advice = "`pyperf-suite calibrate` fits the laws to these records and states the error on held-out ones"
    return findings(
        rates,
        (error_remark(gpu.name, kind, [*map(ratio, members)]) for kind, members in grouped(priced, kind_of).items()),
        refused.values(),
        remark(advice) if priced else None,
        table("Where the shipped laws miss most", COLUMNS, worst[:MOST_ROWS]),
    )


def ratio(row: Row) -> float:
    """Above 1 where the law takes this machine for slower than it is."""
    return row.observed["by law"] / row.seconds


def kind_of(row: Row) -> str:
    """Name of the cases that one call of a law prices: `bfloat16 products`."""
    return f"{row.p.dtype} {'products' if row.case.operator == 'matmul' else 'attentions'}"


def error_remark(gpu: str, kind: str, ratios: Sequence[float]) -> Remark:
    """State the error and the bias of the shipped law."""
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
    if row.case.operator == "matmul":
        return f"{row.p.m}x{row.p.n}x{row.p.k} {row.p.layout}"
    p = row.p
    return f"attention {p.batch} x {p.heads} heads ({p.key_heads} key) of {p.head_dim}, {p.seq_q} tokens"


COLUMNS = (
    Column("what", what, priority=2),
    Column("dtype", priority=0),
    Column("measured", "seconds", "us"),
    Column("predicted", lambda row: row.observed["by law"], "us", predicted=True),
    Column("predicted / measured", ratio, "x", 2),
    Column("rate", "flop_per_s", "TFLOP/s"),
)
PROBE = Probe(
    name="calibration",
    question="How far do the shipped laws fit this machine? Records for `pyperf-suite calibrate`.",
    topic="laws",
    title="Calibration of the laws",
    axes=CalibrationAxes.of,
    sweep=sweep,
    analyse=analyse,
    group=lambda case: f"calibration {case.operator} {case.implementation}",
)
