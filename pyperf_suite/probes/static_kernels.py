"""What our GPU kernels cost in registers, memory and instructions, read from machine code on any machine.

The figures are exact: one that changes is a change of the source or of the compiler, and both are in the record.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.compiled_kernel import (
    CUDA_TARGETS,
    TRITON_TARGETS,
    CompiledKernelParameters,
    cuda_kernels,
    triton_kernels,
)
from pyperf_suite.probes.probe import Probe
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings, Table

# Metrics shown, and the heading of each; tensor-core instructions have a name of their own on each architecture.
SHOWN = {
    "registers": "registers",
    "local_memory": "local bytes",
    "dynamic_shared_memory": "shared bytes",
    "resident_blocks": "blocks/SM",
    "code": "code bytes",
}
TENSOR_CORE = ("HMMA", "HGMMA", "QGMMA", "UTCMMA")
COPIES = ("LDGSTS", "UTMALDG")


@dataclass(frozen=True)
class StaticKernelsAxes:
    """What the probe varies; kernels are a target's default set."""

    compiler: tuple[str, ...]
    target: tuple[str, ...]


class StaticKernels(Probe):
    """The default sets of our CUDA and Triton kernels, compiled for each architecture."""

    name = "static_kernels"
    question = "What do our GPU kernels cost in registers, shared memory and instructions, and does any of them spill?"
    is_timed = False
    has_items = False

    def axes(self, profile: str, device: Device) -> StaticKernelsAxes:
        """Every compiler and target in every profile: nothing is sampled, so there is nothing to do more thoroughly."""
        return StaticKernelsAxes(("nvrtc", "triton"), tuple(dict.fromkeys((*CUDA_TARGETS, *TRITON_TARGETS))))

    def sweep(self, axes: StaticKernelsAxes) -> list[Case]:
        """Each kernel that a compiler has for a target."""
        kernels = {"nvrtc": cuda_kernels, "triton": triton_kernels}
        return [
            Case("compiled_kernel", CompiledKernelParameters(kernel, target), compiler)
            for compiler, target in itertools.product(axes.compiler, axes.target)
            if compiler in kernels
            for kernel in kernels[compiler](target)
        ]

    def findings(self, records: Sequence[Record]) -> Findings:
        """Which kernels touch local memory, and a table of all."""
        found = {record.case_id: record for record in records if record.kind == "static" and record.outcome == "ok"}
        if not found:
            return Findings()
        ordered = sorted(found.values(), key=lambda record: (record.kernel["path"], record.kernel["name"]))
        spilling = [r for r in ordered if r.metrics["instructions_LDL"].value + r.metrics["instructions_STL"].value]
        names = ", ".join(f"{record.kernel['name']} for {record.kernel['path']}" for record in spilling)
        most = max(ordered, key=lambda record: record.metrics["registers"].value)
        sentences = (
            f"{len(spilling)} of {len(ordered)} kernels use local memory{': ' + names if spilling else ''}.",
            f"Most registers: {most.metrics['registers'].value:.0f} a thread in {most.kernel['name']} for "
            f"{most.kernel['path']}.",
        )
        columns = ("kernel", "target", *SHOWN.values(), "tensor core", "copies", "instructions")
        rows = tuple(_row(record) for record in ordered)
        return Findings(sentences, (Table("Our GPU kernels as machine code", columns, rows),))


def _row(record: Record) -> tuple[str, ...]:
    return (
        record.kernel["name"],
        record.kernel["path"],
        *(f"{record.metrics[name].value:.0f}" for name in SHOWN),
        _counts(record, TENSOR_CORE),
        _counts(record, COPIES),
        f"{record.metrics['instructions_all'].value:.0f}",
    )


def _counts(record: Record, classes: Sequence[str]) -> str:
    counts = {name: record.metrics[f"instructions_{name}"].value for name in classes}
    return " ".join(f"{count:.0f} {name}" for name, count in counts.items() if count) or "-"
