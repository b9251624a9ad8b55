"""Candidates measured beside the present shape on the GPU in this machine: what a prediction is worth there.

Every product and attention of the settings runs in one shuffled plan of the runner, shapes that they share once. What
is not measured, as collectives, keeps its predicted time on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyperf_suite.advise.sizing.candidates import shapes_of
from pyperf_suite.advise.sizing.prices import Part, Priced, Prices, price
from pyperf_suite.advise.sizing.setting import Setting
from pyperf_suite.advise.sizing.step import parts_of
from pyperf_suite.errors import Interrupted, UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.identity import identity
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.measure.estimates import Ratio, ratio_over_processes
from pyperf_suite.probes.calibration.predictions import DTYPE_OF_OPERATOR
from pyperf_suite.runner.plan import Plan, PlannedCase, in_random_order
from pyperf_suite.runner.profiles import Profile
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.runner.results import RunFolder, create_run
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.workers import DEADLINE_S
from pyperf_suite.spec.rows import Reading, readings
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.matmul import MatmulParameters

# The name that records of a validation carry in place of a probe's.
PROBE = "sizing"
LIBRARY = {"cuda": ("cublas", "sdpa_default"), "cpu": ("torch", "sdpa_default")}


@dataclass(frozen=True)
class Product:
    """One shape that some of the settings launch: what the law says of it, and its reading, None where it has none."""

    case: Case
    predicted_s: float
    reading: Reading | None


@dataclass(frozen=True)
class Measured:
    """What a token of a setting costs in GPU-seconds: predicted, and measured with its interval over processes.

    `speedup` is how many times the first setting's rate it does its work at, measured, taken within each process;
    `measured_share` is the share of the predicted time that the measured products stand for.
    """

    setting: Setting
    predicted_s: float
    predicted_speedup: float
    cost_s: Ratio
    speedup: Ratio
    measured_share: float


@dataclass(frozen=True)
class Validation:
    """The settings in their order, the present one first, and every product once."""

    settings: tuple[Measured, ...]
    products: tuple[Product, ...]

    @property
    def error_percent(self) -> tuple[float, float]:
        """Mean and median of |predicted / measured − 1| over the products measured, in %; NaN where none was."""
        errors = [
            abs(product.predicted_s / product.reading.seconds - 1) * 100
            for product in self.products
            if product.reading is not None
        ]
        return (float(np.mean(errors)), float(np.median(errors))) if errors else (math.nan, math.nan)


def require_gpu(asked: GpuSpec, device: Device) -> None:
    """Raise UserError where the device is not the GPU that sizes were asked for, which cannot be measured then."""
    here = identity(device).fields
    if device.kind == "cuda":
        try:
            if find_gpu(str(here["model"])) == asked:
                return
        except UserError:
            pass  # not in the catalogue, so it is another one
    what = "name that GPU" if device.kind == "cuda" else "run it where that GPU is"
    raise UserError(
        f"Measuring on {asked.name} was asked for, but here is {device}, {here['model']}: leave --measure out, or "
        f"{what}."
    )


def plan_of(settings: Sequence[Setting], device: Device, profile: Profile, seed: int = 0) -> Plan:
    """Every product and attention of the settings, each shape once, in an order that mixes the settings.

    Raises UserError for a shape that can never be measured there.
    """
    launched = {case.case_id: case for part in parts_of(shapes_of(settings)) for case in _cases(part, settings, device)}
    planned = [PlannedCase(PROBE, case) for case in launched.values()]
    plan = Plan(in_random_order(planned, seed), profile, device, seed)
    plan.validate()
    return plan


def measure(
    plan: Plan, results: Path, told: Callable[[Record], None], deadline_s: float = DEADLINE_S
) -> tuple[RunFolder, list[Record]]:
    """Run the plan into a run's folder of its own; `told` is called with the last record of each case.

    Raises UserError where the results folder cannot be written.
    """
    session = Session(plan, create_run(results, identity(plan.device), plan), deadline_s)
    try:
        session.open()
        for planned, process in session.visits():
            record = session.visit(planned, process)
            if process == plan.profile.processes - 1:
                told(record)
        session.finish()
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted; {len(session.records)} records are kept in {session.folder.records_path}."
        ) from None
    finally:
        session.close()
    return session.folder, list(session.records)


def validate(
    settings: Sequence[Setting],
    prices: Prices,
    records: Sequence[Record],
    device: Device,
    work: Sequence[float] | None = None,
) -> Validation:
    """The records of `plan_of(settings)` beside what the laws predict; other settings are held to the first.

    `work` is what a token of each setting is worth, in any unit: a model of more parameters does more of its own. By
    default a token is a token. A product that some process did not measure keeps its predicted time.

    Raises UserError where no product was measured by every process.
    """
    parts = parts_of(shapes_of(settings))
    launches = _launches(settings, parts, price(parts, prices), device)
    found = _measured_in_all_processes(records)
    processes = sorted(next(iter(found.values())).by_process)
    steps = [_Step.of([each for each in launches if each.place == place], found, processes)
             for place in range(len(settings))]  # fmt: skip
    first = steps[0]
    worth = [1.0] * len(settings) if work is None else [each / work[0] for each in work]
    products = {each.case.case_id: each for each in launches if each.case is not None}
    return Validation(
        tuple(
            Measured(
                setting,
                step.predicted_s,
                worth_of * first.predicted_s / step.predicted_s,
                ratio_over_processes(step.seconds, step.half_width),
                ratio_over_processes(
                    [worth_of * one / other for one, other in zip(first.seconds, step.seconds, strict=True)],
                    math.hypot(first.half_width, step.half_width),
                ),
                step.measured_share,
            )
            for setting, step, worth_of in zip(settings, steps, worth, strict=True)
        ),
        tuple(Product(each.case, each.seconds, found.get(name)) for name, each in products.items() if each.case),
    )


@dataclass(frozen=True)
class _Launch:
    """One kind of work of the setting at `place`: its case, None where none measures it; its price of one, predicted.

    `calls` are GPU-launches a token, so that settings of other micro-batches and groups compare.
    """

    place: int
    case: Case | None
    calls: float
    seconds: float


@dataclass(frozen=True)
class _Step:
    """A token of one setting: predicted, and by process with what was measured in place of its prediction.

    `half_width` is that of the readings' own intervals, relative to the whole.
    """

    predicted_s: float
    seconds: tuple[float, ...]
    half_width: float
    measured_share: float

    @classmethod
    def of(cls, launches: Sequence[_Launch], found: Mapping[str, Reading], processes: Sequence[int]) -> _Step:
        """From all launches of one setting, and the readings of all."""
        predicted_s = math.fsum(each.calls * each.seconds for each in launches)
        read = [
            (each, found[each.case.case_id])
            for each in launches
            if each.case is not None and each.case.case_id in found
        ]
        seconds = tuple(
            predicted_s + math.fsum(each.calls * (reading.by_process[process] - each.seconds) for each, reading in read)
            for process in processes
        )
        squares = math.fsum((each.calls * (reading.high - reading.low) / 2) ** 2 for each, reading in read)
        share = math.fsum(each.calls * each.seconds for each, _ in read) / predicted_s
        return cls(predicted_s, seconds, math.sqrt(squares) / seconds[0], share)


def _measured_in_all_processes(records: Sequence[Record]) -> dict[str, Reading]:
    """Readings by case; one that lacks a process that others have would compare processes with each other."""
    found = readings([record for record in records if record.probe == PROBE])
    processes = {process for reading in found for process in reading.by_process}
    whole = {reading.case.case_id: reading for reading in found if set(reading.by_process) == processes}
    if not whole:
        reasons = [record.reason for record in records if record.probe == PROBE and record.reason]
        raise UserError(
            f"None of the products could be measured{f', the first because: {reasons[0]}' if reasons else ''}: leave "
            "--measure out to see what is predicted."
        )
    return whole


def _launches(
    settings: Sequence[Setting], parts: Sequence[Part], priced: Sequence[Priced], device: Device
) -> list[_Launch]:
    """All work of all settings, each with its price; what is not done at all is left out."""
    launches = []
    for part, prices in zip(parts, priced, strict=True):
        calls = np.broadcast_to(part.calls, (len(settings),))
        seconds = np.broadcast_to(prices.seconds, (len(settings),))
        cases: Sequence[Case | None] = _cases(part, settings, device) or [None] * len(settings)
        launches += [
            _Launch(place, case, float(calls[place]) * setting.tp / setting.tokens, float(seconds[place]))
            for place, (case, setting) in enumerate(zip(cases, settings, strict=True))
            if calls[place] > 0
        ]
    return launches


def _cases(part: Part, settings: Sequence[Setting], device: Device) -> list[Case]:
    """What measures a part, one case a setting; none for a kind of work that takes more than one device or kernel."""
    if part.law not in ("gemm", "attention"):
        return []
    sizes = [np.broadcast_to(size, (len(settings),)).tolist() for size in part.sizes]
    return [
        _case(part, row, setting.dtype, device) for setting, row in zip(settings, zip(*sizes, strict=True), strict=True)
    ]


def _case(part: Part, sizes: Sequence[int], dtype: str, device: Device) -> Case:
    """A part's work at given sizes as the library does it; attention is in 16 bits also where products are in 8."""
    workers = cpu.detect().usable_cores if device.kind == "cpu" else 1
    product, attention = LIBRARY[device.kind]
    if part.law == "gemm":
        m, n, k = sizes
        (layout,) = part.fixed
        library = Schedule("library", workers)
        return Case(
            "matmul", MatmulParameters(m, n, k, library, dtype=DTYPE_OF_OPERATOR[dtype], layout=layout), product
        )
    causal, backward = part.fixed
    batch, seq, heads, kv_heads, head_dim = sizes
    parameters = AttentionParameters(
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        seq_q=seq,
        kv_heads=0 if kv_heads == heads else kv_heads,
        causal=causal,
        backward=backward,
        dtype=DTYPE_OF_OPERATOR[dtype if dtype in ("fp16", "bf16") else "bf16"],
        workers=workers,
    )
    return Case("attention", parameters, attention)
