"""How an optimizer should walk over its tensors: a loop, multi-tensor operations, one fused kernel; and its memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

from pyperf_suite.findings.axes import AxisTable, all_cores, by
from pyperf_suite.findings.data import BEKMAN, TRANSFORMERS, Claim, Findings, findings
from pyperf_suite.findings.probe import Probe, RowClaim, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows
from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.training.optimizer import OPTIMIZERS, OptimizerUpdateParameters, TensorSet
from pyperf_suite.workloads.training.shapes import NAMES, SHAPES, published, published_columns, with_shape

WAYS = ("loop", "foreach", "fused", "bitsandbytes_8bit", "torchao_8bit")
LOW_MEMORY = WAYS[3:]

# "Significantly" is the guide's word; a quarter is what this probe takes it for.
MANY_SMALL = Claim(
    "multi-tensor significantly speeds up many small tensors, taken as 1.25 x or more", TRANSFORMERS, 1.25
)
# Two moments of 4 bytes; the guide's 8 of 18 bytes a parameter.
ADAMW_STATE = Claim("AdamW's moments take 8 bytes a parameter", BEKMAN, 7.99, 8.01)
SMALL_ELEMENTS = 1 << 16  # elements below which a tensor is small: a matrix of 256 x 256

# The same total in few large tensors, in some between, in many small ones and in the most.
CPU_SETS = (TensorSet(4, 1024, 512), TensorSet(32, 256, 256), TensorSet(512, 64, 64), TensorSet(8192, 16, 16))
GPU_SETS = (TensorSet(4, 4096, 4096), TensorSet(64, 1024, 1024), TensorSet(1024, 256, 256), TensorSet(16384, 64, 64))


@dataclass(frozen=True)
class OptimizerAxes(AxisTable):
    """Two million elements on a CPU, 64 million on a GPU.

    AdamW alone is tried in 8 bits, and Adafactor has no fused way. A `shape` is a model of the guides by its name: its
    parameters are then the `tensors`.
    """

    optimizer: tuple[str, ...] = by(OPTIMIZERS[:1], standard=OPTIMIZERS)
    implementation: tuple[str, ...] = by(WAYS[:3], standard=WAYS)
    tensors: tuple[TensorSet, ...] = by(
        CPU_SETS[2:3], CPU_SETS[:3:2], CPU_SETS, cuda=by(GPU_SETS[2:3], GPU_SETS[:3:2], GPU_SETS)
    )
    dtype: tuple[str, ...] = by(("float32",), full=("float32", "bfloat16"))
    workers: tuple[int, ...] = by(all_cores, cuda=(1,))
    shape: Annotated[tuple[str, ...], NAMES] = ()


def shaped(axes: OptimizerAxes, name: str, _: Device) -> OptimizerAxes:
    """The parameters of one of the guides' models, by AdamW and Adafactor, of which a guide tells."""
    optimizers = ("AdamW", "Adafactor")
    return with_shape(axes, name, tensors=(TensorSet.parse(name),), optimizer=optimizers)


def sweep(axes: OptimizerAxes) -> Iterator[Case]:
    """Every optimizer in every way that it has."""
    everything = itertools.product(axes.dtype, axes.workers, axes.optimizer, axes.tensors, axes.implementation)
    for dtype, workers, optimizer, tensors, way in everything:
        exists = optimizer == "AdamW" if way in LOW_MEMORY else (optimizer, way) != ("Adafactor", "fused")
        if exists:
            yield Case("optimizer_update", OptimizerUpdateParameters(tensors, optimizer, dtype, workers), way)


def analyse(rows: Rows[OptimizerUpdateParameters]) -> Findings:
    """Return the speed of each way on large tensors relative to the loop, where no guide claims any."""
    large = rows.where(lambda row: row.p.tensors.elements_each > SMALL_ELEMENTS and not row.p.tensors.shape)
    return findings(
        group[0].remark(
            "On large tensors of {dtype} {implementation} is {faster} as fast as the loop (mean of {updates} updates)",
            effect="faster",
            faster=faster,
            updates=len(group),
        )
        for group in large.groups("optimizer", "tensors")
        if (faster := group.against(implementation="loop"))
    )


def is_plain(row: Row[OptimizerUpdateParameters]) -> bool:
    """True if states are kept in full."""
    return row.implementation not in LOW_MEMORY


def per_element(metric: str) -> Callable[[Row[OptimizerUpdateParameters]], float | None]:
    """Bytes of what was observed by that name, by parameter of the model."""
    return lambda row: row.observed[metric] / row.p.tensors.elements if metric in row.observed else None


def in_words(row: Row[OptimizerUpdateParameters]) -> str:
    """`512 tensors of 64 x 64`, `296 tensors of bert-large`."""
    tensors = row.p.tensors
    return f"{tensors.tensors} tensors of {tensors.shape or f'{tensors.rows} x {tensors.columns}'}"


def kind(row: Row[OptimizerUpdateParameters]) -> str:
    """As the guides call it."""
    return "8-bit Adam" if row.implementation in LOW_MEMORY else str(row.p.optimizer)


PROBE = Probe(
    name="optimizer",
    question="Which way of updating is fastest for many small and few large tensors, and what memory does it take?",
    topic="training",
    title="Training: optimizers",
    axes=OptimizerAxes.of,
    sweep=sweep,
    shaped=shaped,
    fixed_by_shape=("tensors",),
    computed={
        "gain": lambda row: row.against(implementation="loop"),
        "in_words": in_words,
        "guide": lambda row: published(row.p.tensors.shape, SHAPES[row.p.tensors.shape].batch, optimizer=kind(row)),
        "state_each": per_element("state"),
        "passing_each": per_element("passing"),
    },
    order=lambda row: (row.p.dtype, row.p.optimizer, row.p.tensors.elements_each, WAYS.index(row.implementation)),
    claims=(
        RowClaim(
            MANY_SMALL,
            "{implementation} {optimizer} is {measured} as fast as the loop on {in_words} in {dtype}",
            ratio="gain",
            where=lambda row: (
                is_plain(row) and row.p.tensors.tensors > 1 and row.p.tensors.elements_each <= SMALL_ELEMENTS
            ),
        ),
        RowClaim(
            ADAMW_STATE,
            "AdamW keeps {measured} of state a parameter, on {in_words} by {implementation}",
            ratio="state_each",
            where=lambda row: is_plain(row) and (row.p.optimizer, row.p.dtype) == ("AdamW", "float32"),
            unit="B",
        ),
    ),
    tables=(
        RowTable(
            "Updates by optimizer and way",
            (
                Column("optimizer"),
                Column("way", "implementation"),
                Column("tensors"),
                Column("dtype", priority=0),
                Column("time", "seconds", "ms"),
                # Bytes that have to be moved once; of 8-bit states less is moved, so nothing is said.
                Column("rate", lambda row: row.p.moved_bytes / row.seconds if is_plain(row) else None, "GB/s"),
                Column("relative to the loop", "gain", "x"),
                Column("state a parameter", "state_each", "B"),
                Column("passing a parameter", "passing_each", "B", priority=0),
            ),
        ),
        RowTable(
            "Optimizers' state for the guides' models; by the guide: all that nvidia-smi showed, in float32",
            (
                Column("model", "tensors", priority=2),
                Column("optimizer", kind, priority=2),
                Column("way", "implementation", priority=2),
                Column("time", "seconds", "ms"),
                Column("state", unit="MB", priority=2),
                *published_columns("memory", "MB"),
            ),
            where=lambda row: bool(row.p.tensors.shape),
        ),
    ),
    analyse=analyse,
    group=lambda case: f"optimizer {case.parameters.optimizer} {case.parameters.dtype}",
)
