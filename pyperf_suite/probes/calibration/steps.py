"""The short run that predictions of training steps on a CPU are made from: kernels, collectives, and small steps.

`pyperf-suite calibrate` fits prices and constants to its records (`advise/calibrate/cpu.py`); its models are other ones
than those of a study, so that a study's times stay unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.operators.attention import AttentionParameters
from pyperf_suite.operators.collective import CollectiveParameters
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.operators.training.data_parallel import DataParallelParameters
from pyperf_suite.operators.training.layers import LayerPassParameters
from pyperf_suite.operators.training.optimizer_update import OptimizerUpdateParameters, TensorSet
from pyperf_suite.operators.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.probes.calibration.design import AttentionShape, Extent, spread_products
from pyperf_suite.probes.probe import Probe
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import Shape, Sizes
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import readings

# Products of a small GPT's micro-batches: a few hundred tokens, a few hundred columns.
EXTENT = Extent(m=(64, 1024), nk=(64, 1024), flop=4e8, elements=2e6)
LAYOUTS = ("TN", "NN", "NT")
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_receive")
# The least there is: what it takes is the host's and the engine's, not the kernels'.
LEAST = ParallelStepParameters(hidden=16, heads=2, layers=4, seq=8, vocab=32, tied=False)


@dataclass(frozen=True)
class Engine:
    """One way to cut the least model over ranks; `parse` reads what `str` writes, as in `data=2;zero_stage=3`."""

    parameters: ParallelStepParameters

    def __str__(self) -> str:
        names = ("data", "tensor", "pipeline", "zero_stage", "micro_batches")
        told = ((name, getattr(self.parameters, name)) for name in names)
        return ";".join(f"{name}={value}" for name, value in told if value != getattr(LEAST, name)) or "data=1"

    @classmethod
    def parse(cls, text: str) -> Engine:
        """Raise UserError for anything else."""
        values: dict[str, Any] = {}
        for part in text.split(";"):
            name, _, value = part.strip().partition("=")
            if name not in ("data", "tensor", "pipeline", "zero_stage", "micro_batches") or not value.isdigit():
                raise UserError(f"{part!r} is no part of an engine's cut: write data=2;zero_stage=3 or the like.")
            values[name] = int(value)
        return cls(replace(LEAST, **values))

    @classmethod
    def of(cls, **cuts: Any) -> Engine:
        """The least model, cut so."""
        return cls(replace(LEAST, **cuts))


ENGINES = (
    Engine.of(micro_batches=2),
    Engine.of(data=2, micro_batches=2),
    Engine.of(data=2, zero_stage=1, micro_batches=2),
    Engine.of(data=2, zero_stage=2, micro_batches=2),
    Engine.of(data=2, zero_stage=3, micro_batches=2),
    Engine.of(tensor=2, micro_batches=2),
    Engine.of(pipeline=2, micro_batches=4),
)


@dataclass(frozen=True)
class Model:
    """A small GPT and its batch: HIDDENxLAYERSxSEQxBATCHxVOCAB."""

    hidden: int
    layers: int
    seq: int
    batch: int
    vocab: int

    def __str__(self) -> str:
        return f"{self.hidden}x{self.layers}x{self.seq}x{self.batch}x{self.vocab}"

    @classmethod
    def parse(cls, text: str) -> Model:
        """The inverse of `str`. Raises UserError for anything else."""
        parts = text.split("x")
        if len(parts) != 5 or not all(part.strip().isdigit() for part in parts):
            raise UserError(f"{text!r} is no model: write HIDDENxLAYERSxSEQxBATCHxVOCAB, as in 64x2x64x1x256.")
        return cls(*map(int, parts))


@dataclass(frozen=True)
class StepCalibrationAxes:
    """What is measured of each kind: shapes of products, attentions and passes, sizes, ranks, models, engines."""

    shape: tuple[Shape, ...]
    layout: tuple[str, ...]
    attention: tuple[AttentionShape, ...]
    attention_implementation: tuple[str, ...]
    layer: tuple[str, ...]
    tokens: tuple[int, ...]
    tensors: tuple[TensorSet, ...]
    op: tuple[str, ...]
    size: tuple[Sizes, ...]
    ranks: tuple[int, ...]
    model: tuple[Model, ...]
    engine: tuple[Engine, ...]


class StepCalibration(Probe):
    """Kernels of one thread, gloo's collectives, steps of all ranks at once, and each engine on the least model."""

    name = "step_calibration"
    question = "What do a training step's kernels, collectives and engines cost on this CPU? For `study`'s predictions."
    # Run for its records, by name: it takes over a minute and says little by itself.
    is_timed = False
    has_items = False

    def axes(self, profile: str, device: Device) -> StepCalibrationAxes:
        """On a CPU under 90 s; a thorough profile repeats the same in fresh processes. Raises UserError for a GPU."""
        del profile
        if device.kind != "cpu":
            raise UserError("step_calibration measures CPUs: GPUs are calibrated by `pyperf-suite run calibration`.")
        return StepCalibrationAxes(
            shape=spread_products(6, EXTENT),
            layout=LAYOUTS,
            attention=tuple(map(AttentionShape.parse, ("1x4x4x32x64", "4x4x4x32x64", "2x4x4x64x128", "1x8x8x32x256"))),
            attention_implementation=("sdpa_flash", "sdpa_math"),
            layer=("layer_norm", "gelu", "copy"),
            tokens=(64, 256, 1024),
            tensors=tuple(map(TensorSet.parse, ("64x16x16", "8x256x256", "4x512x512"))),
            op=OPERATIONS,
            size=(Sizes.parse("1KiB..4MiB:8"),),
            ranks=(2, 4),
            model=tuple(map(Model.parse, ("16x4x8x1x32", "16x8x8x1x32", "96x3x64x2x256", "192x2x96x1x384",
                                          "64x6x128x1x1024"))),
            engine=ENGINES,
        )  # fmt: skip

    def sweep(self, axes: StepCalibrationAxes) -> list[Case]:
        """Everything, each thread by itself first."""
        cases = [*_kernels(axes), *_collectives(axes), *_steps(axes)]
        cases += [Case("parallel_step", engine.parameters, "gloo") for engine in axes.engine]
        return list({case.case_id: case for case in cases}.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """How many there are, and what to do with them."""
        found = readings(records)
        if not found:
            return Findings()
        return Findings(
            (
                f"{len(found)} kernels, collectives and small steps were timed: `pyperf-suite calibrate` makes of them "
                "what `pyperf-suite study` predicts by.",
            )
        )


def _kernels(axes: StepCalibrationAxes) -> Iterator[Case]:
    for shape in axes.shape:
        for layout in axes.layout:
            parameters = MatmulParameters(
                shape.m, shape.n, shape.k, Schedule("library", 1), dtype="float32", layout=layout
            )
            yield Case("matmul", parameters, "torch")
    for each in axes.attention:
        for implementation in axes.attention_implementation:
            for backward in (False, True):
                attention = AttentionParameters(
                    each.batch, each.heads, each.head_dim, each.seq, causal=True, backward=backward, dtype="float32"
                )
                yield Case("attention", attention, implementation)
    for layer in axes.layer:
        for tokens in axes.tokens:
            for phase in ("forward",) if layer == "copy" else ("forward", "backward"):
                yield Case("layer_pass", LayerPassParameters(layer, phase, seq=tokens, hidden=256), "torch")
    for tensors in axes.tensors:
        yield Case("optimizer_update", OptimizerUpdateParameters(tensors), "fused")


def _collectives(axes: StepCalibrationAxes) -> Iterator[Case]:
    sizes = sorted({size for ladder in axes.size for size in ladder.ladder()})
    for ranks in axes.ranks:
        for op in axes.op:
            for size in sizes:
                yield Case("collective", CollectiveParameters(op, size, ranks, in_place=op == "all_reduce"), "gloo")


def _steps(axes: StepCalibrationAxes) -> Iterator[Case]:
    """Each model on one rank and, without exchange, on all of them at once."""
    for ranks in (1, *axes.ranks):
        for model in axes.model:
            heads = max(2, model.hidden // 32)
            parameters = DataParallelParameters(
                hidden=model.hidden, heads=heads, layers=model.layers, seq=model.seq, batch=model.batch,
                vocab=model.vocab, tied=False, ranks=ranks, exchange="none",
            )  # fmt: skip
            yield Case("data_parallel", parameters, "gloo")
