"""Backward beside forward, layer by layer: the time of each gradient, and the bytes that activations move.

Products are set beside twice their forward's FLOPs, activations beside a copy of as many bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyperf_suite.errors import UserError
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
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.claims import TRANSFORMERS, Claim
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Figure, Findings, Panel, Series, Table
from pyperf_suite.spec.rows import Reading, observed, readings, speedup

# "About 2 x" begins a tenth below it, as the guide's sentence gives one digit; "sometimes more" has no end.
TWICE_THE_TIME = Claim("2 x the FLOPs in backward take about 2 x the time, sometimes more", TRANSFORMERS, low=1.8)
# What is limited by nothing but bandwidth is as fast as a copy; a third less leaves room for three streams beside two.
BANDWIDTH_BOUND = Claim("activations are usually bandwidth-limited: about as fast as a copy", TRANSFORMERS, low=0.67)
# The guide: forward reads once, backward twice.
READS_MORE = Claim("an activation reads more data in backward than in forward", TRANSFORMERS, low=1.01)

# FLOPs of a product's backward over those of its forward.
TWICE = 2

# Two points are a table's row, not a picture.
FEWEST_SIZES = 3

COLUMNS = (
    "layer",
    "on",
    *(f"{phase} us" for phase in PASSES),
    "backward / forward",
    "TFLOP/s forward",
    "backward",
    "GB/s forward",
    "backward",
    "kept MB",
)


@dataclass(frozen=True)
class BackwardAxes:
    """What the probe varies.

    Linear layers go from `hidden` to `ffn` features, activations and the copy beside them have `ffn`, norms and
    attention `hidden`; convolutions have `channels` and images of `seq` pixels. `phase` is crossed with the layers that
    have it.
    """

    layer: tuple[str, ...]
    phase: tuple[str, ...]
    batch: tuple[int, ...]
    seq: tuple[int, ...]
    hidden: tuple[int, ...]
    ffn: tuple[int, ...]
    channels: tuple[int, ...]
    heads: tuple[int, ...]
    dtype: tuple[str, ...]
    workers: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise UserError for a word there is not, or a size below 1."""
        for name, words in (("layer", LAYERS), ("phase", PASSES), ("dtype", DTYPES)):
            for value in getattr(self, name):
                if value not in words:
                    raise UserError(f"{name}={value} was asked for: choose from {', '.join(words)}.")
        for name in ("batch", "seq", "hidden", "ffn", "channels", "heads", "workers"):
            for number in getattr(self, name):
                if number < 1:
                    raise UserError(f"{name}={number} was asked for, but {name} is at least 1.")


@dataclass(frozen=True)
class LayerReadings:
    """All that was measured of one layer: a reading a pass, bytes that forward keeps, and the copy beside it."""

    parameters: LayerPassParameters
    passes: Mapping[str, Reading]
    kept_bytes: float | None
    copy: Reading | None = field(default=None)

    @property
    def name(self) -> str:
        """`linear 512 -> 2048`."""
        p = self.parameters
        if p.layer == "attention":
            return f"attention {p.heads} x {p.hidden // p.heads}"
        return f"{p.layer} {p.hidden}" + (f" -> {p.features}" if p.layer in WITH_PRODUCT else "")

    @property
    def where(self) -> str:
        """`4 x 256 tokens, float32`."""
        p = self.parameters
        size = f"{p.batch} x {p.side}x{p.side} images" if p.layer == "conv" else f"{p.batch} x {p.seq} tokens"
        return f"{size}, {p.dtype}" + (f", {p.workers} workers" if p.workers > 1 else "")

    def beside_forward(self, phase: str) -> Ratio | None:
        """Time of a pass over time of forward."""
        if not {"forward", phase} <= self.passes.keys():
            return None
        return speedup(self.passes[phase], self.passes["forward"])

    def bytes_of(self, phase: str) -> int:
        """Compulsory bytes of a pass."""
        return work(replace(self.parameters, phase=phase)).bytes

    def gb_per_s(self, phase: str) -> float:
        """Compulsory bytes a second, in units of 1e9."""
        return self.bytes_of(phase) / self.passes[phase].seconds / 1e9

    def beside_copy(self, phase: str) -> Ratio | None:
        """Bytes a second of a pass over those of a copy of as many elements."""
        if self.copy is None or phase not in self.passes:
            return None
        ratio = speedup(self.copy, self.passes[phase])
        return ratio and ratio * (self.bytes_of(phase) / work(self.copy.case.parameters).bytes)


class Backward(Probe):
    """Forward, the input's gradient, the weights' gradient, and both, of the layers that transformers are made of."""

    name = "backward"
    question = "How long does backward take beside forward, and what bounds each layer?"

    def axes(self, profile: str, device: Device) -> BackwardAxes:
        """Layers that exceed a core's caches; on a GPU those of a model with hidden 4096."""
        return _cuda_axes(profile) if device.kind == "cuda" else _cpu_axes(profile)

    def sweep(self, axes: BackwardAxes) -> list[Case]:
        """Every layer in every pass that it has, at each size."""
        return list({case.case_id: case for case in _cases(axes)}.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """Backward's time beside forward's, the rate of activations beside a copy's, and what they read."""
        found = _layers(records)
        sentences = [said for each in found for said in _sentences(each)] + _how_often(found)
        table = Table("Passes of single layers", COLUMNS, tuple(_row(each) for each in found))
        return Findings(tuple(sentences), (table,) if found else (), _figures(found))

    def group(self, case: Case) -> str:
        """One table a layer."""
        return f"backward {case.parameters.layer}"


def _cpu_axes(profile: str) -> BackwardAxes:
    """One core, whose passes disturb each other least; all of them in the full profile."""
    quick = BackwardAxes(
        layer=("linear", "gelu"),
        phase=("forward", "backward"),
        batch=(4,),
        seq=(256,),
        hidden=(256,),
        ffn=(1024,),
        channels=(128,),
        heads=(4,),
        dtype=("float32",),
        workers=(1,),
    )
    if profile == "quick":
        return quick
    standard = replace(quick, layer=("linear", "conv", "layer_norm", "relu", "gelu", "attention", "copy"), phase=PASSES)
    if profile == "standard":
        return standard
    return replace(
        standard,
        layer=LAYERS,
        batch=(1, 4, 16),
        dtype=("float32", "bfloat16"),
        workers=tuple(sorted({1, cpu.detect().usable_cores})),
    )


def _cuda_axes(profile: str) -> BackwardAxes:
    """A layer of a model with 7 to 8 billion parameters, on one sequence."""
    standard = BackwardAxes(
        layer=LAYERS,
        phase=PASSES,
        batch=(1,),
        seq=(4096,),
        hidden=(4096,),
        ffn=(14336,),
        channels=(512,),
        heads=(32,),
        dtype=("bfloat16",),
        workers=(1,),
    )
    if profile == "quick":
        return replace(standard, layer=("linear", "gelu"), phase=("forward", "backward"))
    if profile == "standard":
        return standard
    return replace(standard, batch=(1, 2, 4), dtype=("bfloat16", "float16", "tfloat32", "float32"))


def _cases(axes: BackwardAxes) -> Iterator[Case]:
    sizes = (axes.batch, axes.seq, axes.hidden, axes.ffn, axes.channels, axes.heads, axes.dtype, axes.workers)
    for layer, (batch, seq, hidden, ffn, channels, heads, dtype, workers) in itertools.product(
        axes.layer, itertools.product(*sizes)
    ):
        width = channels if layer == "conv" else ffn if layer in (*ACTIVATIONS, "copy") else hidden
        parameters = LayerPassParameters(
            layer=layer,
            batch=batch,
            seq=seq,
            hidden=width,
            out=ffn if layer == "linear" else 0,
            heads=heads if layer == "attention" else 1,
            dtype=dtype,
            workers=workers,
        )
        for phase in axes.phase:
            if phase in passes_of(layer):
                yield Case("layer_pass", replace(parameters, phase=phase), "torch")


def _layers(records: Sequence[Record]) -> list[LayerReadings]:
    """Readings by layer, in the order of LAYERS and of size."""
    kept = observed(records, "saved")
    members: dict[LayerPassParameters, dict[str, Reading]] = {}
    for reading in readings(records):
        p = reading.case.parameters
        members.setdefault(replace(p, phase="forward"), {})[p.phase] = reading
    ordered = sorted(
        members.items(),
        key=lambda item: (
            LAYERS.index(item[0].layer),
            *(getattr(item[0], name) for name in ("dtype", "workers", "hidden", "features", "batch", "seq")),
        ),
    )
    found = []
    for parameters, passes in ordered:
        forward = passes.get("forward")
        beside = members.get(replace(parameters, layer="copy", out=0, heads=1), {})
        found.append(
            LayerReadings(
                parameters,
                passes,
                kept.get(forward.case.case_id) if forward is not None else None,
                beside.get("forward"),
            )
        )
    return found


def _sentences(layer: LayerReadings) -> Iterator[str]:
    """What is to be said of one layer: the claim that is made of its kind, or how backward compares."""
    kind, ratio = layer.parameters.layer, layer.beside_forward("backward")
    if kind in WITH_PRODUCT and ratio is not None:
        yield TWICE_THE_TIME.sentence(
            f"{layer.name} ({layer.where}): backward takes {{}} x the time of forward{_apart(layer)}", ratio
        )
    elif kind in ACTIVATIONS:
        yield from _bandwidth(layer)
        yield from _reading(layer)
    elif ratio is not None:
        of_bytes = layer.bytes_of("backward") / layer.bytes_of("forward")
        forward, backward = layer.passes["forward"], layer.passes["backward"]
        flop = f", {backward.flop / forward.flop:.2g} x the FLOPs" if forward.flop else ""
        yield (
            f"{layer.name} ({layer.where}): backward takes {ratio} x the time of forward, for {of_bytes:.2g} x the "
            f"bytes{flop}{_apart(layer)}."
        )


def _how_often(found: Sequence[LayerReadings]) -> list[str]:
    """In how many products backward takes longer than its FLOPs ask for."""
    products = [each for each in found if each.parameters.layer in WITH_PRODUCT]
    ratios = [ratio for each in products if (ratio := each.beside_forward("backward")) is not None]
    if len(ratios) < 2:
        return []
    more = sum(ratio.low > TWICE for ratio in ratios)
    told = f"in {more} of {len(ratios)} products"
    return [f"Backward takes more than {TWICE} x the time of forward, beyond the interval, {told}."]


def _apart(layer: LayerReadings) -> str:
    """`, the input's gradient 1.02 [1.00, 1.04] x and the weights' 1.01 [0.99, 1.03] x`."""
    told = [
        f"the {whose} gradient {ratio} x"
        for phase, whose in (("dgrad", "input's"), ("wgrad", "weights'"))
        if (ratio := layer.beside_forward(phase)) is not None
    ]
    return f" ({', '.join(told)})" if told else ""


def _bandwidth(layer: LayerReadings) -> Iterator[str]:
    """Each pass of an activation beside a copy."""
    for phase in ("forward", "backward"):
        ratio = layer.beside_copy(phase)
        if ratio is not None:
            yield BANDWIDTH_BOUND.sentence(
                f"{layer.name} ({layer.where}), {phase}: moves {_mb(layer.bytes_of(phase))} MB at "
                f"{layer.gb_per_s(phase):.1f} GB/s, {{}} x the rate of a copy",
                ratio,
            )


def _reading(layer: LayerReadings) -> Iterator[str]:
    """Bytes read in backward, counted by what autograd kept, beside those read in forward."""
    if layer.kept_bytes is None:
        return
    tensor = layer.parameters.tokens * layer.parameters.hidden * layer.parameters.element_bytes
    read = (layer.kept_bytes + tensor) / tensor
    ratio = layer.beside_forward("backward")
    time = "" if ratio is None else f" (and takes {ratio} x the time)"
    yield READS_MORE.counted(
        f"{layer.name} ({layer.where}) reads {_mb(tensor)} MB in forward and in backward {_mb(layer.kept_bytes)} MB "
        f"that forward kept and {_mb(tensor)} MB of gradient, {read:.2f} x as much{time}",
        read,
    )


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.3g}"


def _row(layer: LayerReadings) -> tuple[str, ...]:
    ratio = layer.beside_forward("backward")
    both = ("forward", "backward")
    return (
        layer.name,
        layer.where,
        *(f"{layer.passes[phase].seconds * 1e6:.1f}" if phase in layer.passes else "-" for phase in PASSES),
        str(ratio) if ratio is not None else "-",
        *(
            f"{layer.passes[phase].tflop_per_s:.3g}" if phase in layer.passes and layer.passes[phase].flop else "-"
            for phase in both
        ),
        *(f"{layer.gb_per_s(phase):.1f}" if phase in layer.passes else "-" for phase in both),
        _mb(layer.kept_bytes) if layer.kept_bytes is not None else "-",
    )


def _figures(found: Sequence[LayerReadings]) -> tuple[Figure, ...]:
    """Backward's time over forward's by batch, a series a layer, where enough batches were measured."""
    curves: dict[tuple[str, int], dict[str, list[tuple[int, Ratio]]]] = {}
    for layer in found:
        ratio = layer.beside_forward("backward")
        if ratio is not None:
            p = layer.parameters
            curves.setdefault((p.dtype, p.workers), {}).setdefault(layer.name, []).append((p.tokens, ratio))
    figures = []
    for (dtype, workers), by_layer in curves.items():
        series = tuple(
            Series(
                name,
                [tokens for tokens, _ in points],
                [ratio.value for _, ratio in points],
                "points",
                [ratio.low for _, ratio in points],
                [ratio.high for _, ratio in points],
            )
            for name, points in by_layer.items()
            if len({tokens for tokens, _ in points}) >= FEWEST_SIZES
        )
        if series:
            title = f"Backward beside forward, {dtype}, {workers} worker{'s' if workers > 1 else ''}"
            panel = Panel(title, "tokens", "time of backward / time of forward", series)
            caption = "Points: measured, bars are 95 % intervals over processes. The guide's claim for products is 2."
            figures.append(Figure(f"backward_{dtype}_w{workers}", title, caption, ((panel,),)))
    return tuple(figures)
