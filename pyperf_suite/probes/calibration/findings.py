"""Measured times beside those that the shipped laws predict, and where they miss most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.probes.calibration.predictions import predicted_seconds
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings, Table
from pyperf_suite.spec.rows import Reading, readings

COLUMNS = ("what", "dtype", "measured us", "predicted us", "predicted / measured", "TFLOP/s")
MOST_ROWS = 12
NAMES = {"matmul": "products", "attention": "attentions"}


@dataclass(frozen=True)
class Compared:
    """One reading and its prediction in seconds."""

    reading: Reading
    predicted_s: float

    @property
    def ratio(self) -> float:
        """Above 1 where the law takes this machine for slower than it is."""
        return self.predicted_s / self.reading.seconds


def explain(records: Sequence[Record]) -> Findings:
    """Rates, the errors of the shipped laws, and where those miss most; rates alone where no law is for the device."""
    found = readings(records)
    if not found:
        return Findings()
    spec = gpu_of(records)
    if spec is None:
        return Findings((*_rates(found), "No law is shipped for this device: these rates are all there is to say."))
    compared, refused = _compare(spec, found)
    sentences = [*_rates(found), *_errors(spec, compared), *refused]
    if compared:
        sentences.append(
            "`pyperf-suite calibrate` fits the laws to these records and states the error on held-out ones."
        )
    worst = sorted(compared, key=lambda each: -abs(np.log(each.ratio)))[:MOST_ROWS]
    table = Table("Where the shipped laws miss most", COLUMNS, tuple(_row(each) for each in worst))
    return Findings(tuple(sentences), (table,) if worst else ())


def gpu_of(records: Sequence[Record]) -> GpuSpec | None:
    """The GPU that records were taken on, by the catalogue; None for a CPU or a GPU that it lacks."""
    identity = records[0].identity
    if identity.get("kind") != "cuda":
        return None
    try:
        return find_gpu(str(identity.get("model", "")))
    except UserError:
        return None


def _compare(spec: GpuSpec, found: Sequence[Reading]) -> tuple[list[Compared], list[str]]:
    """All readings that a law is for, and for the others why not, each reason once."""
    compared: list[Compared] = []
    refused: dict[str, None] = {}
    for kind in sorted({_kind(reading) for reading in found}):
        of_kind = [reading for reading in found if _kind(reading) == kind]
        try:
            seconds = predicted_seconds(spec, [reading.case for reading in of_kind])
        except UserError as reason:
            refused[str(reason)] = None
            continue
        compared += [Compared(reading, float(each)) for reading, each in zip(of_kind, seconds, strict=True)]
    return compared, list(refused)


def _kind(reading: Reading) -> tuple[str, str]:
    return (reading.case.operator, reading.case.parameters.dtype)


def _rates(found: Sequence[Reading]) -> list[str]:
    """Between which rates the readings of an operator and dtype lie."""
    sentences = []
    for operator, dtype in sorted({_kind(reading) for reading in found}):
        rates = [reading.tflop_per_s for reading in found if _kind(reading) == (operator, dtype)]
        sentences.append(
            f"{len(rates)} {dtype} {NAMES[operator]} of all sizes ran at {min(rates):.3g} to {max(rates):.3g} TFLOP/s, "
            f"half of them above {np.median(rates):.3g}."
        )
    return sentences


def _errors(spec: GpuSpec, compared: Sequence[Compared]) -> list[str]:
    """How far the shipped law is off, operator by operator, and to which side."""
    sentences = []
    for operator, dtype in sorted({_kind(each.reading) for each in compared}):
        ratios = np.array([each.ratio for each in compared if _kind(each.reading) == (operator, dtype)])
        errors = np.abs(ratios - 1)
        sentences.append(
            f"The law shipped for {spec.name} predicts these {len(ratios)} {dtype} {NAMES[operator]} with an error of "
            f"{errors.mean():.1%} (median {np.median(errors):.1%}); predicted / measured is {np.median(ratios):.2f} at "
            "the median."
        )
    return sentences


def _row(each: Compared) -> tuple[str, ...]:
    p: Any = each.reading.case.parameters
    if each.reading.case.operator == "matmul":
        what = f"{p.m}x{p.n}x{p.k} {p.layout}"
    else:
        what = f"attention {p.batch} x {p.heads} heads ({p.key_heads} key) of {p.head_dim}, {p.seq_q} tokens"
    return (
        what,
        p.dtype,
        f"{each.reading.seconds * 1e6:.1f}",
        f"{each.predicted_s * 1e6:.1f}",
        f"{each.ratio:.2f}",
        f"{each.reading.tflop_per_s:.1f}",
    )
