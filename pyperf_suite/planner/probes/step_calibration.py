"""The short run that predictions of training steps on a CPU are made from: kernels, collectives, and small steps.

`pyperf-suite calibrate` fits prices and constants to its records (planner/calibrate.py); its models are others
than those of a study, so that a study's times stay unseen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import Dimensions, Shape, Sizes, every_size
from pyperf_suite.findings.data import findings, remark
from pyperf_suite.findings.probe import Probe
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.planner.probes.calibration import AttentionSizes, Extent, spread_products
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.training.data_parallel import DataParallelParameters
from pyperf_suite.workloads.training.layers import LayerPassParameters
from pyperf_suite.workloads.training.optimizer import OptimizerUpdateParameters, TensorSet

# Products of a small GPT's micro-batches: a few hundred tokens, a few hundred columns.
EXTENT = Extent(m=(64, 1024), nk=(64, 1024), flop=4e8, elements=2e6)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_receive")
# The least there is: what it takes is the host's and the engine's, not the kernels'.
LEAST = ParallelStepParameters(hidden=16, heads=2, layers=4, seq=8, vocab=32, tied=False)
ATTENTIONS = ("1x4x4x32x64", "4x4x4x32x64", "2x4x4x64x128", "1x8x8x32x256")
MODELS = ("16x4x8x1x32", "16x8x8x1x32", "96x3x64x2x256", "192x2x96x1x384", "64x6x128x1x1024")
ENGINES = (
    "micro_batches=2",
    "data=2;micro_batches=2",
    "data=2;zero_stage=1;micro_batches=2",
    "data=2;zero_stage=2;micro_batches=2",
    "data=2;zero_stage=3;micro_batches=2",
    "tensor=2;micro_batches=2",
    "pipeline=2;micro_batches=4",
)
CUTS = ("data", "tensor", "pipeline", "zero_stage", "micro_batches")


@dataclass(frozen=True)
class Engine:
    """One way to cut the least model over ranks; `parse` reads what `str` writes, as in `data=2;zero_stage=3`."""

    parameters: ParallelStepParameters

    def __str__(self) -> str:
        reported = ((name, getattr(self.parameters, name)) for name in CUTS)
        return ";".join(f"{name}={value}" for name, value in reported if value != getattr(LEAST, name)) or "data=1"

    @classmethod
    def parse(cls, text: str) -> Engine:
        values: dict[str, Any] = {}
        for part in text.split(";"):
            name, _, value = part.strip().partition("=")
            if name not in CUTS or not value.isdigit():
                raise UserError(f"{part!r} is no part of an engine's cut: write data=2;zero_stage=3 or the like.")
            values[name] = int(value)
        return cls(replace(LEAST, **values))


@dataclass(frozen=True)
class CalibrationModel(Dimensions):
    """A small GPT and its batch."""

    form = "a model: write HIDDENxLAYERSxSEQxBATCHxVOCAB, as in 64x2x64x1x256"
    hidden: int
    layers: int
    seq: int
    batch: int
    vocab: int


@dataclass(frozen=True)
class StepCalibrationAxes:
    """What is measured of each kind: shapes of products, attentions and passes, sizes, ranks, models, engines."""

    shape: tuple[Shape, ...] = spread_products(6, EXTENT)
    layout: tuple[str, ...] = ("TN", "NN", "NT")
    attention: tuple[AttentionSizes, ...] = tuple(map(AttentionSizes.parse, ATTENTIONS))
    attention_implementation: tuple[str, ...] = ("sdpa_flash", "sdpa_math")
    layer: tuple[str, ...] = ("layer_norm", "gelu", "copy")
    tokens: tuple[int, ...] = (64, 256, 1024)
    tensors: tuple[TensorSet, ...] = tuple(map(TensorSet.parse, ("64x16x16", "8x256x256", "4x512x512")))
    op: tuple[str, ...] = OPERATIONS
    size: tuple[Sizes, ...] = (Sizes.parse("1KiB..4MiB:8"),)
    ranks: tuple[int, ...] = (2, 4)
    model: tuple[CalibrationModel, ...] = tuple(map(CalibrationModel.parse, MODELS))
    engine: tuple[Engine, ...] = tuple(map(Engine.parse, ENGINES))


def axes(profile: str, device: Device) -> StepCalibrationAxes:
    """On a CPU under 90 s; a thorough profile repeats the same in fresh processes. Raises UserError for a GPU."""
    del profile
    if device.kind != "cpu":
        raise UserError("step_calibration measures CPUs: GPUs are calibrated by `pyperf-suite run calibration`.")
    return StepCalibrationAxes()


def sweep(axes: StepCalibrationAxes) -> Iterator[Case]:
    """Everything, each thread by itself first."""
    one = Schedule("library", 1)
    for shape, layout in itertools.product(axes.shape, axes.layout):
        yield Case("matmul", MatmulParameters(shape.m, shape.n, shape.k, one, dtype="float32", layout=layout), "torch")
    passes = itertools.product(axes.attention, axes.attention_implementation, (False, True))
    for each, implementation, backward in passes:
        yield Case("attention", each.parameters(backward=backward, dtype="float32"), implementation)
    for layer, tokens, phase in itertools.product(axes.layer, axes.tokens, ("forward", "backward")):
        if (layer, phase) != ("copy", "backward"):
            yield Case("layer_pass", LayerPassParameters(layer, phase, seq=tokens, hidden=256), "torch")
    for tensors in axes.tensors:
        yield Case("optimizer_update", OptimizerUpdateParameters(tensors), "fused")
    for ranks, op, size in itertools.product(axes.ranks, axes.op, every_size(axes.size)):
        yield Case("collective", CollectiveParameters(op, size, ranks, in_place=op == "all_reduce"), "gloo")
    # Each model on one rank and, without exchange, on all of them at once.
    for ranks, model in itertools.product((1, *axes.ranks), axes.model):
        own = {"heads": max(2, model.hidden // 32), "tied": False, **vars(model)}
        yield Case("data_parallel", DataParallelParameters(**own, ranks=ranks, exchange="none"), "gloo")
    for engine in axes.engine:
        yield Case("parallel_step", engine.parameters, "gloo")


TOLD = (
    "{count} kernels, collectives and small steps were timed: `pyperf-suite calibrate` makes of them what "
    "`pyperf-suite study` predicts by"
)

# Run for its records, by name: it takes over a minute and says little by itself.
PROBE = Probe(
    name="step_calibration",
    question="What do a training step's kernels, collectives and engines cost on this CPU? For `study`'s predictions.",
    topic="laws",
    axes=axes,
    sweep=sweep,
    analyse=lambda rows: findings(remark(TOLD, count=len(rows)) if rows else None),
    group=lambda case: f"step_calibration {case.operator} {case.implementation}",
    is_timed=False,
    has_items=False,
)
