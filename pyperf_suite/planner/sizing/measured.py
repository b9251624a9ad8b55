"""`size --measure`: the best candidates and the present model measured on the GPU in this machine.

Every product and attention of the settings runs in one shuffled plan of the runner; shapes that settings share run
once. What is not measured, as collectives, keeps its predicted time. A product runs alone here, so it is compared with
the price of a burst.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings, Quantity, Remark, findings, remark
from pyperf_suite.findings.rows import Column, Reading, readings, table, wins
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.machine import identity
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.measure.estimates import Ratio, ratio_over_processes
from pyperf_suite.planner.laws.explained import KernelPrices
from pyperf_suite.planner.laws.prices import WIDE
from pyperf_suite.planner.laws.training.layer_work import KernelCall
from pyperf_suite.planner.probes.calibration import DTYPE_OF_OPERATOR
from pyperf_suite.planner.sizing.search import Candidate, Search
from pyperf_suite.planner.sizing.step import Setting, parts_of, price, shapes_of
from pyperf_suite.runner.plan import Plan, PlannedCase, in_random_order
from pyperf_suite.runner.profiles import Profile
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.matmul import MatmulParameters

# The name that these records carry in place of a probe's.
PROBE = "sizing"
PRESENT = "present"
LIBRARY = {"cuda": ("cublas", "sdpa_default"), "cpu": ("torch", "sdpa_default")}
# Each brings about ten products of its own; more candidates than this differ by less than can be measured.
MOST_MEASURED = 4
# The others are in the records.
MOST_PRODUCTS = 20


@dataclass(frozen=True)
class MeasuredProduct:
    """One shape that some of the settings launch: the law's price, and its reading, None if there is none."""

    case: Case
    predicted_s: float
    reading: Reading | None

    @property
    def ratio(self) -> float | None:
        """Predicted over measured."""
        return None if self.reading is None else self.predicted_s / self.reading.seconds


@dataclass(frozen=True)
class MeasuredSetting:
    """GPU-seconds of a setting's token: predicted, and measured with its interval over processes.

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

    settings: tuple[MeasuredSetting, ...]
    products: tuple[MeasuredProduct, ...]

    @property
    def error_percent(self) -> tuple[float, float]:
        """Mean and median of |predicted / measured − 1| over the products measured, in %; NaN if there are none."""
        errors = [abs(product.ratio - 1) * 100 for product in self.products if product.ratio is not None]
        return (float(np.mean(errors)), float(np.median(errors))) if errors else (math.nan, math.nan)


@dataclass(frozen=True)
class SizingRun:
    """The candidates to measure, the present model first, and the plan that measures them all."""

    candidates: tuple[Candidate, ...]
    plan: Plan

    @classmethod
    def of(cls, gpu: GpuSpec, search: Search, device: Device, profile: Profile) -> SizingRun:
        """Raises UserError if the device is another GPU, or has no room for a shape."""
        require_gpu(gpu, device)
        candidates = (search.present, *chosen(search))
        return cls(candidates, measuring_plan([candidate.setting for candidate in candidates], device, profile))

    @property
    def names(self) -> list[str]:
        return [name_of(candidate) for candidate in self.candidates]

    def judged(self, prices: KernelPrices, records: Sequence[Record]) -> Validation:
        """The records compared with the predictions; a token is worth the model's own FLOP, so padding is no work."""
        settings = [candidate.setting for candidate in self.candidates]
        work = [candidate.speed * candidate.time_ratio for candidate in self.candidates]
        return validate(settings, prices, records, self.plan.device, work)


def chosen(search: Search) -> list[Candidate]:
    """The candidates that are predicted to do their work fastest, each once; none if none beats the laws' error."""
    faster = [candidate for candidate in (*search.pareto, *search.alone.values()) if candidate.is_faster]
    by_name = {name_of(candidate): candidate for candidate in faster}
    return sorted(by_name.values(), key=lambda candidate: -candidate.speed)[:MOST_MEASURED]


def name_of(candidate: Candidate) -> str:
    """What a candidate changes, as in `heads 40 -> 32, vocab 50257 -> 50304`."""
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in candidate.changes) or PRESENT


def require_gpu(requested: GpuSpec, device: Device) -> None:
    """Raise UserError if the device is not the GPU that sizes were requested."""
    here = identity(device).fields
    if device.kind == "cuda":
        try:
            if find_gpu(str(here["model"])) == requested:
                return
        except UserError:
            pass  # not in the catalogue, so it is another one
    what = "name that GPU" if device.kind == "cuda" else "run it where that GPU is"
    raise UserError(
        f"Measuring on {requested.name} was requested, but here is {device}, {here['model']}: leave --measure out, or "
        f"{what}."
    )


def measuring_plan(settings: Sequence[Setting], device: Device, profile: Profile, seed: int = 0) -> Plan:
    """Every product and attention of the settings, each shape once, in an order that mixes the settings.

    Raises UserError for a shape that can never be measured there.
    """
    cases = [case for part in parts_of(shapes_of(settings)) for case in _cases(part, settings, device) if case]
    planned = [PlannedCase(PROBE, case) for case in {case.case_id: case for case in cases}.values()]
    plan = Plan(in_random_order(planned, seed), profile, device, seed)
    plan.validate()
    return plan


def validate(
    settings: Sequence[Setting],
    prices: KernelPrices,
    records: Sequence[Record],
    device: Device,
    work: Sequence[float] | None = None,
) -> Validation:
    """The records of `measuring_plan(settings)` compared with the laws; other settings are compared with the first.

    `work` is what a token of each setting is worth, in any unit: a model of more parameters does more of its own. By
    default a token is a token. A product that some process did not measure keeps its predicted time.

    Raises UserError if no product was measured by every process.
    """
    launches = list(_launches(settings, prices, device))
    found = _measured_in_all_processes(records)
    processes = sorted(next(iter(found.values())).by_process)
    steps = [
        _Step.of([each for each in launches if each.place == place], found, processes) for place in range(len(settings))
    ]
    first = steps[0]
    worth = [1.0] * len(settings) if work is None else [each / work[0] for each in work]
    measured = [
        MeasuredSetting(
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
    ]
    products = {each.case.case_id: (each.case, each.seconds) for each in launches if each.case is not None}
    return Validation(
        tuple(measured), tuple(MeasuredProduct(*each, found.get(case_id)) for case_id, each in products.items())
    )


@dataclass(frozen=True)
class _Launch:
    """One kind of work of the setting at `place`: its case, None if none measures it, and its predicted price.

    `calls` are GPU-launches a token, so that settings of other micro-batches and groups compare.
    """

    place: int
    case: Case | None
    calls: float
    seconds: float


@dataclass(frozen=True)
class _Step:
    """A token of one setting: predicted, and by process with readings in place of predictions.

    `half_width` is that of the readings' own intervals, relative to the whole.
    """

    predicted_s: float
    seconds: tuple[float, ...]
    half_width: float
    measured_share: float

    @classmethod
    def of(cls, launches: Sequence[_Launch], found: dict[str, Reading], processes: Sequence[int]) -> _Step:
        predicted_s = math.fsum(each.calls * each.seconds for each in launches)
        read = [(each, found[each.case.case_id]) for each in launches if each.case and each.case.case_id in found]
        seconds = tuple(
            predicted_s + math.fsum(each.calls * (reading.by_process[process] - each.seconds) for each, reading in read)
            for process in processes
        )
        squares = math.fsum((each.calls * reading.within * reading.seconds) ** 2 for each, reading in read)
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


def _launches(settings: Sequence[Setting], prices: KernelPrices, device: Device) -> Iterator[_Launch]:
    """All work of all settings with its price; what is not done at all is left out."""
    parts = parts_of(shapes_of(settings))
    for part, priced in zip(parts, price(parts, prices), strict=True):
        calls = np.broadcast_to(part.calls, (len(settings),))
        seconds = np.broadcast_to(priced.seconds, (len(settings),))
        for place, (case, setting) in enumerate(zip(_cases(part, settings, device), settings, strict=True)):
            if calls[place] > 0:
                yield _Launch(place, case, float(calls[place]) * setting.tp / setting.tokens, float(seconds[place]))


def _cases(part: KernelCall, settings: Sequence[Setting], device: Device) -> list[Case | None]:
    """What measures a part, one case a setting; None for work of several devices or kernels, or with a window."""
    if part.law not in ("gemm", "attention") or (part.law == "attention" and np.any(part.sizes[-1])):
        return [None] * len(settings)
    rows = zip(*(np.broadcast_to(size, (len(settings),)).tolist() for size in part.sizes), strict=True)
    return [_case(part, row, setting.dtype, device) for setting, row in zip(settings, rows, strict=True)]


def _case(part: KernelCall, sizes: Sequence[int], dtype: str, device: Device) -> Case:
    """A part's work at given sizes as the library does it; attention is in 16 bits also where products are in 8."""
    workers = cpu.detect().usable_cores if device.kind == "cpu" else 1
    product, attention = LIBRARY[device.kind]
    if part.wide and dtype not in WIDE:
        dtype = "bf16"
    if part.law == "gemm":
        m, n, k = sizes
        schedule, (layout,) = Schedule("library", workers), part.fixed
        parameters = MatmulParameters(m, n, k, schedule, dtype=DTYPE_OF_OPERATOR[dtype], layout=layout)
        return Case("matmul", parameters, product)
    causal, backward = part.fixed
    batch, seq, heads, kv_heads, head_dim, _ = sizes
    attended = AttentionParameters(
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
    return Case("attention", attended, attention)


def validation_findings(names: Sequence[str], validation: Validation) -> Findings:
    """Predicted and measured: first the candidates, by `names` in their order, then the products."""
    measured, products = validation.settings, validation.products
    mean, median = validation.error_percent
    unmeasured = sum(product.reading is None for product in products)
    shown = sorted(products, key=lambda product: -abs(math.log(product.ratio or 1.0)))[:MOST_PRODUCTS]
    some = "" if len(shown) == len(products) else f", the {len(shown)} with the largest error of {len(products)}"
    return findings(
        _best(names, measured) if len(measured) > 1 else None,
        remark(
            "The laws' mean error on the {count} measured shapes is {mean}, the median {median}.",
            kind="law",
            count=len(products) - unmeasured,
            mean=Quantity(mean / 100, "%"),
            median=Quantity(median / 100, "%"),
        ),
        remark(
            "{count} shapes keep their predicted time, for not every process could measure them.",
            kind="caution",
            count=unmeasured,
        )
        if unmeasured
        else None,
        table("Candidates, predicted and measured", SETTINGS, list(zip(names, measured, strict=True))),
        table(f"Products, predicted and measured{some}", PRODUCTS, shown),
    )


def _best(names: Sequence[str], measured: Sequence[MeasuredSetting]) -> Remark:
    """The candidate that was measured fastest, and whether that is beyond its interval."""
    place = max(range(1, len(measured)), key=lambda each: measured[each].speedup.value)
    best = measured[place]
    values: dict[str, Any] = {
        "name": names[place],
        "first": names[0],
        "count": len(measured) - 1,
        "faster": best.speedup,
        "predicted": Quantity(best.predicted_speedup, "x", predicted=True),
    }
    if wins(best.speedup):
        return remark("{name} is {faster} as fast as {first}; {predicted} was predicted.", **values)
    return remark(
        "None of the {count} candidates is faster than {first} beyond the interval; the best, {name}, is {faster} as "
        "fast; {predicted} was predicted.",
        **values,
    )


def _shape(product: MeasuredProduct) -> str:
    p: Any = product.case.parameters
    if product.case.operator == "matmul":
        return f"{p.m}x{p.n}x{p.k} {p.layout} {p.dtype}"
    phase = "backward" if p.backward else "forward"
    return f"attention {phase} {p.batch} x {p.heads} heads ({p.key_heads} key) of {p.head_dim}, {p.seq_q} tokens"


def _measured(product: MeasuredProduct) -> Quantity | None:
    if (reading := product.reading) is None:
        return None
    return Quantity(reading.seconds, "us", reading.low, reading.high, len(reading.by_process))


SETTINGS = (
    Column("candidate", lambda row: row[0], priority=2),
    Column("predicted a token", lambda row: row[1].predicted_s, "us"),
    Column("measured a token", lambda row: row[1].cost_s, "us"),
    Column("predicted speed", lambda row: row[1].predicted_speedup, "x"),
    Column("measured speed", lambda row: row[1].speedup, "x", priority=2),
    Column("share that was measured", lambda row: row[1].measured_share, "%", priority=0),
)
PRODUCTS = (
    Column("what", _shape, priority=2),
    Column("predicted", lambda product: product.predicted_s, "us"),
    Column("measured", _measured, "us", priority=2),
    Column("predicted / measured", lambda product: product.ratio, "x"),
)
