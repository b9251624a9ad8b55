"""Read our GPU kernels' registers, memory and instructions from machine code, on any machine.

The figures are exact: one that changes is a change of the source or of the compiler, and both are in the record.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyperf_suite.findings.axes import AxisTable
from pyperf_suite.findings.data import Findings, findings, remark
from pyperf_suite.findings.probe import Probe, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows
from pyperf_suite.kernels.static import cuda_kernels, cuda_targets, triton_kernels, triton_targets
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.exact import CompiledKernelParameters

KERNELS = {"nvrtc": cuda_kernels, "triton": triton_kernels}


@dataclass(frozen=True)
class StaticKernelsAxes(AxisTable):
    """Axes of the probe in every profile, as nothing is sampled; kernels are a target's default set."""

    compiler: tuple[str, ...] = tuple(KERNELS)
    target: tuple[str, ...] = tuple(dict.fromkeys((*cuda_targets(), *triton_targets())))


def sweep(axes: StaticKernelsAxes) -> Iterator[Case]:
    """Each kernel that a compiler has for a target."""
    for compiler, target in itertools.product(axes.compiler, axes.target):
        for kernel in KERNELS[compiler](target) if compiler in KERNELS else ():
            yield Case("compiled_kernel", CompiledKernelParameters(kernel, target), compiler)


def analyse(rows: Rows[CompiledKernelParameters]) -> Findings:
    """Return the kernels that touch local memory, and the one with the most registers."""
    spilling = rows.where(lambda row: row.observed["instructions_LDL"] + row.observed["instructions_STL"] > 0)
    most = max(rows, key=lambda row: row.observed["registers"], default=None)
    return findings(
        remark("{spilling} of {all} kernels use local memory", spilling=len(spilling), all=len(rows)) if rows else None,
        (row.remark("{kernel} for {target} uses local memory") for row in spilling),
        most.remark("Most registers: {most} a thread in {kernel} for {target}", most=round(most.observed["registers"]))
        if most
        else None,
    )


def count(metric: str) -> Callable[[Row[CompiledKernelParameters]], int]:
    """Return a column of an observed whole number."""
    return lambda row: round(row.observed[metric])


def instructions(*names: str) -> Callable[[Row[CompiledKernelParameters]], str | None]:
    """`7 LDGSTS 10 UTMALDG`, None without any; each architecture has names of its own."""
    counts = {name: count(f"instructions_{name}") for name in names}
    return lambda row: " ".join(f"{found} {name}" for name in names if (found := counts[name](row))) or None


PROBE = Probe(
    name="static_kernels",
    question="What do our GPU kernels cost in registers, shared memory and instructions, and does any of them spill?",
    topic="the machine",
    title="Kernels as machine code",
    axes=StaticKernelsAxes.of,
    sweep=sweep,
    order=lambda row: (row.p.target, row.p.kernel),
    tables=(
        RowTable(
            "Our GPU kernels as machine code",
            (
                Column("kernel", priority=2),
                Column("target", priority=2),
                Column("registers", count("registers"), priority=2),
                Column("local memory", "local_memory", "B", 2),
                Column("shared memory", "dynamic_shared_memory", "B"),
                Column("blocks/SM", count("resident_blocks")),
                Column("code", unit="B", priority=0),
                Column("tensor core", instructions("HMMA", "HGMMA", "QGMMA", "UTCMMA")),
                Column("copies", instructions("LDGSTS", "UTMALDG"), priority=0),
                Column("instructions", count("instructions_all"), priority=0),
            ),
        ),
    ),
    analyse=analyse,
    is_timed=False,
    has_items=False,
)
