"""What our GPU kernels cost in registers, memory and instructions, read from machine code on any machine.

The figures are exact: one that changes is a change of the source or of the compiler, and both are in the record.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyperf_suite.operators.compiled_kernel import (
    CUDA_TARGETS,
    TRITON_TARGETS,
    CompiledKernelParameters,
    cuda_kernels,
    triton_kernels,
)
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings, findings, remark
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.rows import Column, Rows, table

KERNELS = {"nvrtc": cuda_kernels, "triton": triton_kernels}


@dataclass(frozen=True)
class StaticKernelsAxes:
    """What the probe varies in every profile, as nothing is sampled; kernels are a target's default set."""

    compiler: tuple[str, ...] = tuple(KERNELS)
    target: tuple[str, ...] = tuple(dict.fromkeys((*CUDA_TARGETS, *TRITON_TARGETS)))


def sweep(axes: StaticKernelsAxes) -> Iterator[Case]:
    """Each kernel that a compiler has for a target."""
    for compiler, target in itertools.product(axes.compiler, axes.target):
        for kernel in KERNELS[compiler](target) if compiler in KERNELS else ():
            yield Case("compiled_kernel", CompiledKernelParameters(kernel, target), compiler)


def analyse(rows: Rows) -> Findings:
    """Which kernels touch local memory, which has the most registers, and a table of all."""
    latest = {each.case_id: each for each in rows.records if each.kind == "static" and each.outcome == "ok"}
    kernels = sorted(latest.values(), key=lambda record: (record.kernel["path"], record.kernel["name"]))
    if not kernels:
        return Findings()
    spilling = [each for each in kernels if count("instructions_LDL")(each) + count("instructions_STL")(each)]
    registers = count("registers")
    most = max(kernels, key=registers)
    return findings(
        remark("{spilling} of {all} kernels use local memory", spilling=len(spilling), all=len(kernels)),
        (remark("{kernel} for {target} uses local memory", **named(each)) for each in spilling),
        remark("Most registers: {most} a thread in {kernel} for {target}", most=registers(most), **named(most)),
        table("Our GPU kernels as machine code", COLUMNS, kernels),
    )


def named(record: Record) -> dict[str, Any]:
    """A kernel, and what it was compiled for."""
    return {"kernel": record.kernel["name"], "target": record.kernel["path"]}


def count(metric: str) -> Callable[[Record], int]:
    """That metric of a record, all of which are whole numbers."""
    return lambda record: round(record.metrics[metric].value)


def instructions(*names: str) -> Callable[[Record], str | None]:
    """`7 LDGSTS 10 UTMALDG`, None without any; each architecture has names of its own."""
    counts = {name: count(f"instructions_{name}") for name in names}
    return lambda record: " ".join(f"{found} {name}" for name in names if (found := counts[name](record))) or None


COLUMNS = (
    Column("kernel", lambda record: record.kernel["name"], priority=2),
    Column("target", lambda record: record.kernel["path"], priority=2),
    Column("registers", count("registers"), priority=2),
    Column("local memory", count("local_memory"), "B", 2),
    Column("shared memory", count("dynamic_shared_memory"), "B"),
    Column("blocks/SM", count("resident_blocks")),
    Column("code", count("code"), "B", 0),
    Column("tensor core", instructions("HMMA", "HGMMA", "QGMMA", "UTCMMA")),
    Column("copies", instructions("LDGSTS", "UTMALDG"), priority=0),
    Column("instructions", count("instructions_all"), priority=0),
)
PROBE = Probe(
    name="static_kernels",
    question="What do our GPU kernels cost in registers, shared memory and instructions, and does any of them spill?",
    topic="the machine",
    title="Kernels as machine code",
    axes=lambda *_: StaticKernelsAxes(),
    sweep=sweep,
    analyse=analyse,
    is_timed=False,
    has_items=False,
)
