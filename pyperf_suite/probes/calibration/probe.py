"""The short run that laws are fitted to on this machine: products and attentions of a library, spread over all sizes.

`pyperf-suite calibrate` reads its records; here they are held against the laws that are shipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.operators.attention import AttentionParameters
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.probes.calibration.design import AttentionShape, Extent, spread_attentions, spread_products
from pyperf_suite.probes.calibration.findings import explain
from pyperf_suite.probes.probe import Probe
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import Shape
from pyperf_suite.spec.findings import Findings

# Two milliseconds of an H200 at most, and 300 MB of operands in bf16: what a case costs is mostly its verification.
GPU_EXTENT = Extent(m=(128, 16384), nk=(1024, 16384), flop=1.5e12, elements=1.5e8)
CPU_EXTENT = Extent(m=(16, 1024), nk=(64, 2048), flop=1e9, elements=4e6)


@dataclass(frozen=True)
class CalibrationAxes:
    """Each product by `implementation`, each attention forward by `attention_implementation`, in each dtype."""

    implementation: tuple[str, ...]
    attention_implementation: tuple[str, ...]
    shape: tuple[Shape, ...]
    attention: tuple[AttentionShape, ...]
    layout: tuple[str, ...]
    dtype: tuple[str, ...]
    workers: tuple[int, ...]
    mode: tuple[str, ...] = ("burst",)


class Calibration(Probe):
    """A library's products and attentions, few but of all sizes, for the sizing laws to be fitted to."""

    name = "calibration"
    question = "How far do the shipped laws fit this machine? Records for `pyperf-suite calibrate`."

    def axes(self, profile: str, device: Device) -> CalibrationAxes:
        """On a GPU about a hundred cases in under two minutes; on a CPU a few, for there the law is a rate."""
        if device.kind == "cpu":
            few = _cpu_axes()
            return few if profile == "quick" else replace(few, shape=spread_products(24, CPU_EXTENT))
        quick = _cuda_axes()
        if profile == "quick":
            return quick
        return replace(
            quick,
            shape=spread_products(160, GPU_EXTENT),
            attention=spread_attentions(40, (256, 8192), (8, 64), 4e11),
        )

    def sweep(self, axes: CalibrationAxes) -> list[Case]:
        """Products and attentions crossed with dtype, layout and mode."""
        cases = [
            Case(
                "matmul",
                MatmulParameters(shape.m, shape.n, shape.k, Schedule("library", workers), dtype=dtype, layout=layout),
                implementation,
                mode=mode,
            )
            for shape, implementation, layout, dtype, workers, mode in itertools.product(
                axes.shape, axes.implementation, axes.layout, axes.dtype, axes.workers, axes.mode
            )
        ]
        cases += [
            Case(
                "attention",
                AttentionParameters(
                    batch=shape.batch,
                    heads=shape.heads,
                    head_dim=shape.head_dim,
                    seq_q=shape.seq,
                    kv_heads=0 if shape.kv_heads == shape.heads else shape.kv_heads,
                    causal=True,
                    dtype=dtype,
                    workers=workers,
                ),
                implementation,
                mode=mode,
            )
            for shape, implementation, dtype, workers, mode in itertools.product(
                axes.attention, axes.attention_implementation, axes.dtype, axes.workers, axes.mode
            )
        ]
        return list({case.case_id: case for case in cases}.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """What was measured beside what the shipped laws predict for this GPU, and what to do with it."""
        return explain(records)


def _cuda_axes() -> CalibrationAxes:
    return CalibrationAxes(
        implementation=("cublas",),
        attention_implementation=("sdpa_default",),
        shape=spread_products(72, GPU_EXTENT),
        attention=spread_attentions(20, (256, 8192), (8, 64), 2e11),
        layout=("TN",),
        dtype=("bfloat16",),
        workers=(1,),
    )


def _cpu_axes() -> CalibrationAxes:
    return CalibrationAxes(
        implementation=("torch",),
        attention_implementation=("sdpa_default",),
        shape=spread_products(6, CPU_EXTENT),
        attention=spread_attentions(2, (128, 512), (2, 8), 1e9),
        layout=("TN",),
        dtype=("float32",),
        workers=(cpu.detect().usable_cores,),
    )
