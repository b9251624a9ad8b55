"""The short run that predictions of training steps on a CPU are made from: kernels, collectives, and small steps.

`pyperf-suite calibrate` fits prices and constants to its records (planner/calibrate.py); its models are others
than those of a study, so that a study's times stay unseen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import Shape, Sizes, every_size
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
# Hidden, layers, sequence, batch and vocabulary of small GPTs.
MODELS = ((16, 4, 8, 1, 32), (16, 8, 8, 1, 32), (96, 3, 64, 2, 256), (192, 2, 96, 1, 384), (64, 6, 128, 1, 1024))
# Each of torch's engines on the least model.
ENGINES = (
    replace(LEAST, micro_batches=2),
    *(replace(LEAST, data=2, zero_stage=stage, micro_batches=2) for stage in range(4)),
    replace(LEAST, tensor=2, micro_batches=2),
    replace(LEAST, pipeline=2, micro_batches=4),
)


@dataclass(frozen=True)
class StepCalibrationAxes:
    """What is measured of each kind: shapes of products, attentions and passes, sizes, ranks."""

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
    for ranks, (hidden, layers, seq, batch, vocab) in itertools.product((1, *axes.ranks), MODELS):
        model = DataParallelParameters(
            hidden=hidden, heads=max(2, hidden // 32), layers=layers, seq=seq, batch=batch, vocab=vocab, tied=False,
            ranks=ranks, exchange="none",
        )  # fmt: skip
        yield Case("data_parallel", model, "gloo")
    for engine in ENGINES:
        yield Case("parallel_step", engine, "gloo")


SUMMARY = (
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
    analyse=lambda rows: findings(remark(SUMMARY, count=len(rows)) if rows else None),
    group=lambda case: f"step_calibration {case.operator} {case.implementation}",
    is_timed=False,
    has_items=False,
)
