"""How an optimizer should walk over its tensors: a loop, multi-tensor operations, one fused kernel; and its memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.optimizer_update import (
    OPTIMIZERS,
    OptimizerUpdate,
    OptimizerUpdateParameters,
    TensorSet,
)
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.axes import OneOf, Within
from pyperf_suite.spec.findings import Claim, Findings, findings
from pyperf_suite.spec.probe import Probe, RowClaim, RowTable
from pyperf_suite.spec.rows import Column, Row, Rows
from pyperf_suite.spec.sources import BEKMAN, TRANSFORMERS

WAYS = ("loop", "foreach", "fused")
LOW_MEMORY = ("bitsandbytes_8bit", "torchao_8bit")

# "Significantly" is the guide's word; a quarter is what this probe takes it for.
MANY_SMALL = Claim(
    "multi-tensor significantly speeds up many small tensors, taken as 1.25 x or more", TRANSFORMERS, 1.25
)
# Two moments of 4 bytes; the guide's 8 of 18 bytes a parameter.
ADAMW_STATE = Claim("AdamW's moments take 8 bytes a parameter", BEKMAN, 7.99, 8.01)
# Below so many elements a tensor is small: a matrix of 256 x 256.
SMALL_ELEMENTS = 1 << 16

# The same total in few large tensors and in many small ones.
CPU_SETS = (TensorSet(4, 1024, 512), TensorSet(512, 64, 64))
GPU_SETS = (TensorSet(4, 4096, 4096), TensorSet(1024, 256, 256))


@dataclass(frozen=True)
class OptimizerAxes:
    """What the probe varies; AdamW alone is tried in 8 bits, and Adafactor has no fused way."""

    optimizer: Annotated[tuple[str, ...], OneOf(OPTIMIZERS)]
    implementation: Annotated[tuple[str, ...], OneOf((*WAYS, *LOW_MEMORY))]
    tensors: tuple[TensorSet, ...]
    dtype: tuple[str, ...]
    workers: Annotated[tuple[int, ...], Within(1)]


def axes(profile: str, device: Device) -> OptimizerAxes:
    """Two million elements on a CPU, 64 million on a GPU."""
    gpu = device.kind == "cuda"
    sets = GPU_SETS if gpu else CPU_SETS
    quick = OptimizerAxes(
        optimizer=("AdamW",),
        implementation=WAYS,
        tensors=sets[1:],
        dtype=("float32",),
        workers=(1 if gpu else cpu.detect().usable_cores,),
    )
    if profile == "quick":
        return quick
    standard = replace(quick, optimizer=OPTIMIZERS, implementation=(*WAYS, *LOW_MEMORY), tensors=sets)
    if profile == "standard":
        return standard
    smallest = TensorSet(16384, 64, 64) if gpu else TensorSet(8192, 16, 16)
    between = TensorSet(64, 1024, 1024) if gpu else TensorSet(32, 256, 256)
    return replace(standard, tensors=(sets[0], between, sets[1], smallest), dtype=("float32", "bfloat16"))


def sweep(axes: OptimizerAxes) -> Iterator[Case]:
    """Every optimizer in every way that it has."""
    everything = itertools.product(axes.dtype, axes.workers, axes.optimizer, axes.tensors, axes.implementation)
    for dtype, workers, optimizer, tensors, way in everything:
        exists = optimizer == "AdamW" if way in LOW_MEMORY else (optimizer, way) != ("Adafactor", "fused")
        if exists:
            yield Case("optimizer_update", OptimizerUpdateParameters(tensors, optimizer, dtype, workers), way)


def analyse(rows: Rows) -> Findings:
    """What is left of the ways' speed on few large tensors, where no guide claims any."""
    return findings(
        row.remark(
            "{implementation} {optimizer} is {faster} as fast as the loop on {tensors} in {dtype}",
            effect="faster",
            faster=faster,
            tensors=in_words(row),
        )
        for row in rows
        if not is_many_small(row) and (faster := row.against(implementation="loop")) is not None
    )


def is_many_small(row: Row) -> bool:
    """Whether the guide speaks of it."""
    return row.implementation in WAYS and row.tensors.elements_each <= SMALL_ELEMENTS and row.tensors.tensors > 1


def in_words(row: Row) -> str:
    """`512 tensors of 64 x 64`."""
    return f"{row.tensors.tensors} tensors of {row.tensors.rows} x {row.tensors.columns}"


def rate(row: Row) -> float | None:
    """Bytes that have to be moved once, a second; of 8-bit states less is moved, so nothing is said."""
    if row.implementation in LOW_MEMORY:
        return None
    return OptimizerUpdate().work(row.parameters).bytes / row.seconds


def per_element(metric: str) -> Callable[[Row], float | None]:
    """Bytes of what was observed by that name, by parameter of the model."""
    return lambda row: row.seen[metric] / row.tensors.elements if metric in row.seen else None


PROBE = Probe(
    name="optimizer",
    question="Which way of updating is fastest for many small and few large tensors, and what memory does it take?",
    topic="training",
    title="Training: optimizers",
    axes=axes,
    sweep=sweep,
    order=lambda row: (
        row.dtype,
        OPTIMIZERS.index(row.optimizer),
        row.tensors.elements_each,
        (*WAYS, *LOW_MEMORY).index(row.implementation),
    ),
    claims=(
        RowClaim(
            MANY_SMALL,
            "{implementation} {optimizer} is {measured} as fast as the loop on {in_words} in {dtype}",
            ratio=lambda row: row.against(implementation="loop"),
            where=is_many_small,
            values={"in_words": in_words},
        ),
        RowClaim(
            ADAMW_STATE,
            "AdamW keeps {measured} of state a parameter, on {in_words} by {implementation}",
            ratio=per_element("state"),
            where=lambda row: (row.optimizer, row.dtype) == ("AdamW", "float32") and row.implementation in WAYS,
            values={"in_words": in_words},
            unit="B",
        ),
    ),
    tables=(
        RowTable(
            "Updates by optimizer and way",
            (
                Column("optimizer"),
                Column("way", "implementation"),
                Column("tensors", lambda row: str(row.tensors)),
                Column("dtype", priority=0),
                Column("time", "seconds", "ms"),
                Column("rate", rate, "GB/s"),
                Column("beside the loop", lambda row: row.against(implementation="loop"), "x"),
                Column("state a parameter", per_element("state"), "B"),
                Column("passing a parameter", per_element("passing"), "B", priority=0),
            ),
        ),
    ),
    analyse=analyse,
    group=lambda case: f"optimizer {case.parameters.optimizer} {case.parameters.dtype}",
)
