"""Backward against forward, layer by layer: the time of each gradient, and the bytes that activations move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Within
from pyperf_suite.findings.axes import AxisTable, by, crossed, one_and_all_cores
from pyperf_suite.findings.data import TRANSFORMERS, Claim, Figure, Findings, Panel, Remark, figure, findings, remark
from pyperf_suite.findings.probe import Probe, RowClaim, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, series_by
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.workloads.training.layers import (
    ACTIVATIONS,
    DTYPES,
    LAYERS,
    PASSES,
    WITH_PRODUCT,
    LayerPassParameters,
    passes_of,
)

# "About 2 x" begins a tenth below it, as the guide's sentence gives one digit; "sometimes more" has no end.
TWICE_THE_TIME = Claim("2 x the FLOPs in backward take about 2 x the time, sometimes more", TRANSFORMERS, low=1.8)
# Memory-bound operations are as fast as a copy; a third less allows three streams instead of two.
BANDWIDTH_BOUND = Claim("activations are usually bandwidth-limited: about as fast as a copy", TRANSFORMERS, low=0.67)
# The guide: forward reads once, backward twice.
READS_MORE = Claim("an activation reads more data in backward than in forward", TRANSFORMERS, low=1.01)

BOTH = ("forward", "backward")
TWICE = 2  # FLOPs of a product's backward over those of its forward


CPU_LAYERS = ("linear", "conv", "layer_norm", "relu", "gelu", "attention", "copy")
Sizes = Annotated[tuple[int, ...], Within(1)]


@dataclass(frozen=True)
class BackwardAxes(AxisTable):
    """Layers that exceed the caches of one CPU core; on a GPU those of a model of 7 to 8 billion parameters.

    Linear layers go from `hidden` to `ffn` features, activations and the copy have `ffn`, norms and
    attention `hidden`; convolutions have `channels` and images of `seq` pixels. `phase` is crossed with the layers that
    have it. Passes on one core disturb each other least.
    """

    layer: Annotated[tuple[str, ...], OneOf(LAYERS)] = by(
        ("linear", "gelu"), CPU_LAYERS, LAYERS, cuda=by(("linear", "gelu"), standard=LAYERS)
    )
    phase: Annotated[tuple[str, ...], OneOf(PASSES)] = by(BOTH, standard=PASSES)
    batch: Sizes = by((4,), full=(1, 4, 16), cuda=by((1,), full=(1, 2, 4)))
    seq: Sizes = by((256,), cuda=(4096,))
    hidden: Sizes = by((256,), cuda=(4096,))
    ffn: Sizes = by((1024,), cuda=(14336,))
    channels: Sizes = by((128,), cuda=(512,))
    heads: Sizes = by((4,), cuda=(32,))
    dtype: Annotated[tuple[str, ...], OneOf(DTYPES)] = by(
        ("float32",),
        full=("float32", "bfloat16"),
        cuda=by(("bfloat16",), full=("bfloat16", "float16", "tfloat32", "float32")),
    )
    workers: Sizes = by((1,), full=one_and_all_cores, cuda=(1,))


def sweep(axes: BackwardAxes) -> Iterator[Case]:
    """Every layer in every pass that it has, at each size."""
    sizes = ("batch", "seq", "hidden", "ffn", "channels", "heads", "dtype", "workers")
    for chosen in crossed(axes, "layer", *sizes, "phase"):
        layer, ffn, channels = chosen["layer"], chosen.pop("ffn"), chosen.pop("channels")
        if layer == "conv":
            chosen["hidden"] = channels
        elif layer in (*ACTIVATIONS, "copy"):
            chosen["hidden"] = ffn
        chosen |= {"out": ffn if layer == "linear" else 0, "heads": chosen["heads"] if layer == "attention" else 1}
        if chosen["phase"] in passes_of(layer):
            yield Case("layer_pass", LayerPassParameters(**chosen), "torch")


def analyse(rows: Rows[LayerPassParameters]) -> Findings:
    """Norms and attention, of which no guide claims any; how often products exceed twice the time; and figures."""
    backward = rows.where(lambda row: of_forward(row) is not None, phase="backward")
    ratios = [ratio for row in backward if row.p.layer in WITH_PRODUCT and (ratio := of_forward(row))]
    how_often = remark(
        "Backward takes more than {twice} times as long as forward, beyond the interval, in {longer} of {all} products",
        twice=TWICE,
        longer=sum(ratio.low > TWICE for ratio in ratios),
        all=len(ratios),
    )
    return findings(
        (relative_to_its_work(row) for row in backward if row.p.layer not in (*WITH_PRODUCT, *ACTIVATIONS)),
        how_often if len(ratios) > 1 else None,
        (over_tokens(group) for group in grouped(backward, lambda row: (row.p.dtype, row.p.workers)).values()),
    )


def relative_to_its_work(row: Row[LayerPassParameters]) -> Remark:
    """The time of backward over forward's, and how many times the bytes and FLOPs it has."""
    forward = row.like(phase="forward") or row
    return row.remark(
        "{name} ({where}): backward takes {of_forward} the time of forward, for {bytes:x} the bytes"
        + (" and {flop:x} the FLOPs" if forward.reading.flop else ""),
        effect="of_forward",
        bytes=row.p.work.bytes / forward.p.work.bytes,
        flop=row.reading.flop / (forward.reading.flop or 1),
    )


def over_tokens(rows: Sequence[Row[LayerPassParameters]]) -> Figure | None:
    """Backward's time over forward's by batch, a series a layer, where enough batches were measured."""
    drawn = series_by("name", rows, "tokens", "of_forward", fewest=3)
    dtype, workers = rows[0].p.dtype, rows[0].p.workers
    title = f"Backward compared with forward, {dtype}, {workers} worker{'s' if workers > 1 else ''}"
    panel = Panel(title, "tokens", "time of backward / time of forward", drawn, y_unit="x")
    caption = "Points: measured, bars are 95 % intervals over processes. The guide's claim for products is 2."
    return figure(f"backward_{dtype}_w{workers}", title, caption, [panel] if drawn else ())


def name(row: Row[LayerPassParameters]) -> str:
    """`linear 512 -> 2048`, `attention 4 x 64`."""
    p = row.p
    if p.layer == "attention":
        return f"attention {p.heads} x {p.hidden // p.heads}"
    return f"{p.layer} {p.hidden} -> {p.features}" if p.layer in WITH_PRODUCT else f"{p.layer} {p.hidden}"


def where(row: Row[LayerPassParameters]) -> str:
    """`4 x 256 tokens, float32`."""
    p = row.p
    size = f"{p.batch} x {p.side}x{p.side} images" if p.layer == "conv" else f"{p.batch} x {p.seq} tokens"
    return f"{size}, {p.dtype}" + (f", {p.workers} workers" if p.workers > 1 else "")


def of_forward(row: Row[LayerPassParameters]) -> Ratio | None:
    """The time of a pass over the time of forward, None of forward itself and where it was not measured."""
    forward = row.like(phase="forward")
    return None if forward is None or forward is row else forward.faster_than(row)


def of(phase: str, name: str) -> Callable[[Row[LayerPassParameters]], Any]:
    """Return a column of another pass of the same layer, None where it was not measured."""
    return lambda row: other.by_name(name) if (other := row.like(phase=phase)) else None


def tensor(row: Row[LayerPassParameters]) -> int:
    """Bytes of an activation's input, of its result and of its gradient."""
    return int(row.p.tokens * row.p.hidden * row.p.element_bytes)


def of_copy(row: Row[LayerPassParameters]) -> Ratio | None:
    """Bytes a second over those of a copy of as many elements."""
    copy = row.like(layer="copy", phase="forward", out=0, heads=1)
    ratio = None if copy is None or copy is row else row.faster_than(copy)
    return ratio if ratio is None or copy is None else ratio * (row.p.work.bytes / copy.p.work.bytes)


PROBE = Probe(
    name="backward",
    question="How long does backward take compared with forward, and what bounds each layer?",
    topic="training",
    title="Training: backward passes",
    axes=BackwardAxes.of,
    sweep=sweep,
    computed={
        "name": name,
        "where": where,
        "of_forward": of_forward,
        "moved": lambda row: row.p.work.bytes,
        "tensor": tensor,
        "bandwidth": lambda row: row.p.work.bytes / row.seconds,
        "rate": lambda row: row.reading.flop_per_s if row.reading.flop else None,
    },
    order=lambda row: (
        LAYERS.index(row.p.layer),
        *(row.p.dtype, row.p.workers, row.p.hidden, row.p.features, row.p.batch, row.p.seq, PASSES.index(row.p.phase)),
    ),
    claims=(
        RowClaim(
            TWICE_THE_TIME,
            "{name} ({where}): backward takes {measured} the time of forward",
            ratio=of_forward,
            where=lambda row: row.p.layer in WITH_PRODUCT and row.p.phase == "backward",
        ),
        RowClaim(
            BANDWIDTH_BOUND,
            "{name} ({where}), {phase}: {moved:MB} move at {measured} the rate of a copy",
            ratio=of_copy,
            where=lambda row: row.p.layer in ACTIVATIONS,
        ),
        RowClaim(
            READS_MORE,
            "{name} ({where}) reads {tensor:MB} in forward and {measured} as much in backward",
            ratio=lambda row: (row.observed["saved"] + tensor(row)) / tensor(row) if "saved" in row.observed else None,
            where=lambda row: row.p.layer in ACTIVATIONS and row.p.phase == "forward",
        ),
    ),
    tables=(
        RowTable(
            "Passes of single layers",
            (
                Column("layer", "name", priority=2),
                Column("on", "where", priority=0),
                *(Column(f"{phase} time", of(phase, "seconds"), "us") for phase in PASSES),
                Column("backward / forward", of("backward", "of_forward"), "x", 2),
                Column("dgrad / forward", of("dgrad", "of_forward"), "x", 0),
                Column("wgrad / forward", of("wgrad", "of_forward"), "x", 0),
                *(Column(f"{each} rate", of(each, "rate"), "TFLOP/s") for each in BOTH),
                *(Column(f"{each} bandwidth", of(each, "bandwidth"), "GB/s") for each in BOTH),
                Column("kept", of("forward", "saved"), "MB", 0),
            ),
            where=lambda row: row.rows.same_except(row, "phase")[0] is row,
        ),
    ),
    analyse=analyse,
    group=lambda case: f"backward {case.parameters.layer}",
)
