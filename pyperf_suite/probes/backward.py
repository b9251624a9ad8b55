"""Backward against forward, layer by layer: the time of each gradient, and the bytes that activations move.

Products are compared with twice their forward's FLOPs, activations with a copy of as many bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.training.layers import (
    ACTIVATIONS,
    DTYPES,
    LAYERS,
    PASSES,
    WITH_PRODUCT,
    LayerPassParameters,
    passes_of,
    work,
)
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.axes import OneOf, Within
from pyperf_suite.spec.findings import Claim, Figure, Findings, Panel, Remark, findings, remark
from pyperf_suite.spec.probe import Probe, RowClaim, RowTable
from pyperf_suite.spec.quantity import Quantity, quantity
from pyperf_suite.spec.rows import Column, Row, Rows, grouped, series
from pyperf_suite.spec.sources import TRANSFORMERS

# "About 2 x" begins a tenth below it, as the guide's sentence gives one digit; "sometimes more" has no end.
TWICE_THE_TIME = Claim("2 x the FLOPs in backward take about 2 x the time, sometimes more", TRANSFORMERS, low=1.8)
# What is limited by nothing but bandwidth is as fast as a copy; a third less leaves room for three streams beside two.
BANDWIDTH_BOUND = Claim("activations are usually bandwidth-limited: about as fast as a copy", TRANSFORMERS, low=0.67)
# The guide: forward reads once, backward twice.
READS_MORE = Claim("an activation reads more data in backward than in forward", TRANSFORMERS, low=1.01)

BOTH = ("forward", "backward")
# FLOPs of a product's backward over those of its forward.
TWICE = 2


@dataclass(frozen=True)
class BackwardAxes:
    """What the probe varies; by default a layer of a model with 7 to 8 billion parameters, on one sequence.

    Linear layers go from `hidden` to `ffn` features, activations and the copy beside them have `ffn`, norms and
    attention `hidden`; convolutions have `channels` and images of `seq` pixels. `phase` is crossed with the layers that
    have it.
    """

    layer: Annotated[tuple[str, ...], OneOf(LAYERS)] = LAYERS
    phase: Annotated[tuple[str, ...], OneOf(PASSES)] = PASSES
    batch: Annotated[tuple[int, ...], Within(1)] = (1,)
    seq: Annotated[tuple[int, ...], Within(1)] = (4096,)
    hidden: Annotated[tuple[int, ...], Within(1)] = (4096,)
    ffn: Annotated[tuple[int, ...], Within(1)] = (14336,)
    channels: Annotated[tuple[int, ...], Within(1)] = (512,)
    heads: Annotated[tuple[int, ...], Within(1)] = (32,)
    dtype: Annotated[tuple[str, ...], OneOf(DTYPES)] = ("bfloat16",)
    workers: Annotated[tuple[int, ...], Within(1)] = (1,)


# Layers that exceed a core's caches; on one core, whose passes disturb each other least.
ON_A_CORE = BackwardAxes(
    layer=("linear", "conv", "layer_norm", "relu", "gelu", "attention", "copy"),
    batch=(4,),
    seq=(256,),
    hidden=(256,),
    ffn=(1024,),
    channels=(128,),
    heads=(4,),
    dtype=("float32",),
)


def axes(profile: str, device: Device) -> BackwardAxes:
    """Two layers in the quick profile; more batches, dtypes and all cores in the full one."""
    gpu = device.kind == "cuda"
    standard = BackwardAxes() if gpu else ON_A_CORE
    if profile == "quick":
        return replace(standard, layer=("linear", "gelu"), phase=BOTH)
    if profile == "standard":
        return standard
    if gpu:
        return replace(standard, batch=(1, 2, 4), dtype=("bfloat16", "float16", "tfloat32", "float32"))
    workers = tuple(sorted({1, cpu.detect().usable_cores}))
    return replace(standard, layer=LAYERS, batch=(1, 4, 16), dtype=("float32", "bfloat16"), workers=workers)


def sweep(axes: BackwardAxes) -> Iterator[Case]:
    """Every layer in every pass that it has, at each size."""
    sizes = itertools.product(
        axes.batch, axes.seq, axes.hidden, axes.ffn, axes.channels, axes.heads, axes.dtype, axes.workers
    )
    for layer, (batch, seq, hidden, ffn, channels, heads, dtype, workers) in itertools.product(axes.layer, sizes):
        parameters = LayerPassParameters(
            layer=layer,
            batch=batch,
            seq=seq,
            hidden=channels if layer == "conv" else ffn if layer in (*ACTIVATIONS, "copy") else hidden,
            out=ffn if layer == "linear" else 0,
            heads=heads if layer == "attention" else 1,
            dtype=dtype,
            workers=workers,
        )
        for phase in axes.phase:
            if phase in passes_of(layer):
                yield Case("layer_pass", replace(parameters, phase=phase), "torch")


def analyse(rows: Rows) -> Findings:
    """Norms and attention, of which no guide claims any; how often products exceed twice the time; and figures."""
    backward = rows.where(lambda row: of_forward(row) is not None, phase="backward")
    ratios = [quantity(of_forward(row)) for row in backward if row.layer in WITH_PRODUCT]
    how_often = remark(
        "Backward takes more than {twice} times as long as forward, beyond the interval, in {longer} of {all} products",
        twice=TWICE,
        longer=sum(ratio.low > TWICE for ratio in ratios),
        all=len(ratios),
    )
    return findings(
        (beside_its_work(row) for row in backward if row.layer not in (*WITH_PRODUCT, *ACTIVATIONS)),
        how_often if len(ratios) > 1 else None,
        (over_tokens(group) for group in grouped(backward, lambda row: (row.dtype, row.workers)).values()),
    )


def beside_its_work(row: Row) -> Remark:
    """The time of backward over forward's, and how many times the bytes and FLOPs it has."""
    forward = row.like(phase="forward") or row
    template = "{layer} ({where}): backward takes {time} the time of forward, for {bytes} the bytes"
    work_of: dict[str, Any] = {"bytes": Quantity(moved(row) / moved(forward), "x")}
    if forward.flop:
        template += " and {flop} the FLOPs"
        work_of["flop"] = Quantity(row.flop / forward.flop, "x")
    return remark(template, effect="time", layer=name(row), where=where(row), time=of_forward(row), **work_of)


def over_tokens(rows: Sequence[Row]) -> Figure | None:
    """Backward's time over forward's by batch, a series a layer, where enough batches were measured."""
    curves = [series(label, group, lambda row: row.tokens, of_forward) for label, group in grouped(rows, name).items()]
    drawn = tuple(curve for curve in curves if len(set(curve.x)) > 2)
    dtype, workers = rows[0].dtype, rows[0].workers
    title = f"Backward beside forward, {dtype}, {workers} worker{'s' if workers > 1 else ''}"
    panel = Panel(title, "tokens", "time of backward / time of forward", drawn, y_unit="x")
    caption = "Points: measured, bars are 95 % intervals over processes. The guide's claim for products is 2."
    return Figure(f"backward_{dtype}_w{workers}", title, caption, ((panel,),)) if drawn else None


def name(row: Row) -> str:
    """`linear 512 -> 2048`, `attention 4 x 64`."""
    if row.layer == "attention":
        return f"attention {row.heads} x {row.hidden // row.heads}"
    return f"{row.layer} {row.hidden} -> {row.features}" if row.layer in WITH_PRODUCT else f"{row.layer} {row.hidden}"


def where(row: Row) -> str:
    """`4 x 256 tokens, float32`."""
    size = f"{row.batch} x {row.side}x{row.side} images" if row.layer == "conv" else f"{row.batch} x {row.seq} tokens"
    return f"{size}, {row.dtype}" + (f", {row.workers} workers" if row.workers > 1 else "")


def of_forward(row: Row) -> Ratio | None:
    """The time of a pass over the time of forward, None of forward itself and where it was not measured."""
    forward = row.like(phase="forward")
    return None if forward is None or forward is row else forward.faster_than(row)


def moved(row: Row) -> int:
    """Compulsory bytes of a pass."""
    return work(row.parameters).bytes


def rate(row: Row) -> float | None:
    """FLOP/s of its products, None where it has none."""
    return row.flop_per_s if row.flop else None


def of(phase: str, value: Callable[[Row], Any]) -> Callable[[Row], Any]:
    """What that pass of a row's layer has, None where it was not measured."""
    return lambda row: value(found) if (found := row.like(phase=phase)) is not None else None


def of_copy(row: Row) -> Ratio | None:
    """Bytes a second over those of a copy of as many elements."""
    copy = row.like(layer="copy", phase="forward", out=0, heads=1)
    ratio = None if copy is None or copy is row else row.faster_than(copy)
    return ratio if ratio is None or copy is None else ratio * (moved(row) / moved(copy))


def tensor(row: Row) -> int:
    """Bytes of an activation's input, which are those of its result and of its gradient."""
    return int(row.tokens * row.hidden * row.element_bytes)


WHAT: dict[str, Callable[[Row], Any]] = {"name": name, "where": where}
PROBE = Probe(
    name="backward",
    question="How long does backward take compared with forward, and what bounds each layer?",
    topic="training",
    title="Training: backward passes",
    axes=axes,
    sweep=sweep,
    order=lambda row: (
        LAYERS.index(row.layer),
        *(row.dtype, row.workers, row.hidden, row.features, row.batch, row.seq, PASSES.index(row.phase)),
    ),
    claims=(
        RowClaim(
            TWICE_THE_TIME,
            "{name} ({where}): backward takes {measured} the time of forward",
            ratio=of_forward,
            where=lambda row: row.layer in WITH_PRODUCT and row.phase == "backward",
            values=WHAT,
        ),
        RowClaim(
            BANDWIDTH_BOUND,
            "{name} ({where}), {phase}: {moved} move at {measured} the rate of a copy",
            ratio=of_copy,
            where=lambda row: row.layer in ACTIVATIONS,
            values=WHAT | {"moved": lambda row: Quantity(moved(row), "MB")},
        ),
        RowClaim(
            READS_MORE,
            "{name} ({where}) reads {tensor} in forward and {measured} as much in backward",
            ratio=lambda row: (row.seen["saved"] + tensor(row)) / tensor(row) if "saved" in row.seen else None,
            where=lambda row: row.layer in ACTIVATIONS and row.phase == "forward",
            values=WHAT | {"tensor": lambda row: Quantity(tensor(row), "MB")},
        ),
    ),
    tables=(
        RowTable(
            "Passes of single layers",
            (
                Column("layer", name, priority=2),
                Column("on", where, priority=0),
                *(Column(f"{phase} time", of(phase, lambda row: row.seconds), "us") for phase in PASSES),
                Column("backward / forward", of("backward", of_forward), "x", 2),
                Column("dgrad / forward", of("dgrad", of_forward), "x", 0),
                Column("wgrad / forward", of("wgrad", of_forward), "x", 0),
                *(Column(f"{each} rate", of(each, rate), "TFLOP/s") for each in BOTH),
                *(Column(f"{each} bandwidth", of(each, lambda row: moved(row) / row.seconds), "GB/s") for each in BOTH),
                Column("kept", of("forward", lambda row: row.seen.get("saved")), "MB", 0),
            ),
            where=lambda row: row.rows.alike(row, "phase")[0] is row,
        ),
    ),
    analyse=analyse,
    group=lambda case: f"backward {case.parameters.layer}",
)
