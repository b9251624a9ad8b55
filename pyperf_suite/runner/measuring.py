"""What a worker does with one case: prepare, verify, warm up, sample, verify again, tell.

Runs inside the worker process, which owns the device; returns plain JSON, so that the parent never touches a tensor.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported, UserError, out_of_memory
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.cuda_stopwatch import CudaStopwatch
from pyperf_suite.measure.gpu_telemetry import around_gpu
from pyperf_suite.measure.sampling import Measurement, measure
from pyperf_suite.measure.spot_checks import SpotChecks, WrongLaunch
from pyperf_suite.measure.stopwatch import CpuStopwatch, Launch, Stopwatch
from pyperf_suite.measure.telemetry import Around
from pyperf_suite.measure.verify import Verification
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.ranked import measure_ranked
from pyperf_suite.runner.record import Metric
from pyperf_suite.workloads import find_workload, scratch
from pyperf_suite.workloads.cuda import context_is_lost, cuda_device
from pyperf_suite.workloads.operator import Checked, Inspected, Inspection, Launches, Operator
from pyperf_suite.workloads.ranked import Ranked
from pyperf_suite.workloads.torch_device import leave_nothing_behind
from pyperf_suite.workloads.workload import Observed, Repeated, Workload

# Rotating through operands that together exceed the caches this many times over leaves nothing of a set when it
# comes round again (DESIGN: 2-3 x L2).
CACHE_TURNOVER = 3

# Of operands so small that more would be needed, preparing the sets takes longer than measuring with them.
MOST_SETS = 1024

# Operand sets may not crowd out the reference, which needs room of its own.
MEMORY_SHARE = 0.25

# Of what is verified on a GPU the host judges cases up to so many FLOPs too, a tenth of a second, and one in so many
# of the others.
HOST_FLOP = 2e9
HOST_JUDGES_ONE_OF = 16


def measure_case(
    case: Case, effort: Effort | None, device: Device, group: Group | None = None, deadline_s: float = 120.0
) -> dict[str, Any]:
    """Measure one case and return the measured part of its record; with `effort` None only verify it.

    `group` is where this process is a rank of one; all its ranks call this together, and each step of theirs must be
    over within `deadline_s`. Every way a case can end is an outcome, never an exception: `unsupported` and `failed`
    carry their reason, `fatal` says that this process is of no further use: its CUDA context is lost, or the group out
    of step. But RanksMissing, after which the group is of no use, is raised. A GPU is left as it was found.
    """
    started_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    together = group is not None
    try:
        result = _measure(case, effort, device, group, deadline_s)
    except RanksMissing:
        raise
    except (Unsupported, UserError) as reason:
        result, together = {"outcome": "unsupported", "reason": str(reason)}, False
    except MemoryError:
        result = {"outcome": "failed", "reason": "Out of memory while the case was prepared or verified."}
        together = False
    except Exception as error:  # a case that breaks costs that case, not the run
        result = {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"}
        # A rank that fails by itself has left the others in a step it never came to.
        result |= {"fatal": True} if group is not None else {}
        together = False
    lost = context_is_lost(device)
    if not lost:
        leave_nothing_behind(device)
    if together and group is not None and device.kind == "cuda":
        lost = any(group.gather("look after the GPUs", lost, deadline_s))
    result |= {"fatal": True} if lost else {}
    plain: dict[str, Any] = _plain({"started_at": started_at} | result)
    return plain


def _measure(
    case: Case, effort: Effort | None, device: Device, group: Group | None, deadline_s: float
) -> dict[str, Any]:
    operator = find_workload(case.operator)
    operator.validate(case.parameters)
    if isinstance(operator, Inspected):
        return _inspected(operator.inspect(case.implementation, case.parameters))
    if isinstance(operator, Ranked):
        if group is None:
            raise Unsupported("This case takes a group of processes: start it with torchrun or pyperf-suite run.")
        return measure_ranked(operator, case, effort, device, group, deadline_s)
    if isinstance(operator, Workload):
        return _stepped(operator, case, effort, device)
    assert isinstance(operator, Operator)
    return _timed(operator, case, effort, device)


def _inspected(found: Inspection) -> dict[str, Any]:
    """Exact figures: nothing is warmed up, sampled or verified."""
    return {
        "kind": "static",
        "outcome": "ok",
        "metrics": found.metrics,
        "kernel": dataclasses.asdict(found.kernel),
        "quality": {"converged": True},
    }


def _timed(operator: Operator[Any], case: Case, effort: Effort | None, device: Device) -> dict[str, Any]:
    operands = operator.operands(case.parameters, case.seed)
    sets, cache = _sets_to_rotate(operator.footprint_bytes(case.parameters), device)
    launches = operator.implementation(case.implementation).prepare(case.parameters, operands, sets, device)
    result: dict[str, Any] = {
        "kernel": dataclasses.asdict(launches.kernel),
        "work": dataclasses.asdict(operator.work(case.parameters)),
    }

    judge = _Judge(operator, case, operands, launches)
    checks = SpotChecks(launches, judge)
    verification = checks.before_timing()
    result["verification"] = dataclasses.asdict(verification) | {"references": judge.references} | checks.report()
    if not verification.passed:
        return result | _wrong(verification.message, "before timing")
    if effort is None:
        return result | {"outcome": "ok"}
    try:
        result |= _sampled(launches.launch, launches.stopwatch, case, effort, device, checks)
        result["sampling"] |= {"cache": cache, "operand_sets": sets}
        checks.after_timing()
    except WrongLaunch as wrong:
        result["verification"] = dataclasses.asdict(wrong.verification) | checks.report()
        return result | _wrong(str(wrong), "while it was timed")
    result["verification"] |= checks.report()
    return result | {"outcome": "ok"}


class _Judge:
    """The verdict on the last launch on an operand set, by the reference on its device, else by the host's.

    Of GPU cases the host judges those too whose reference is cheap there, and one in `HOST_JUDGES_ONE_OF` by the case's
    id, the first time that they are judged: the two must agree. `references` names who judged.
    """

    def __init__(self, operator: Operator[Any], case: Case, operands: Mapping[str, Any], launches: Launches) -> None:
        self._operator, self._case, self._operands, self._launches = operator, case, operands, launches
        self._keep = scratch.shared(f"{case.operator} {operator.reference_key(case.parameters)} seed {case.seed}")
        cheap = operator.work(case.parameters).flop <= HOST_FLOP
        self._host_too = cheap or int(case.case_id, 16) % HOST_JUDGES_ONE_OF == 0
        self.references: list[str] = []

    def __call__(self, index: int) -> Verification:
        tensors = self._launches.tensors(index)
        if tensors is None:
            self.references = ["host"]
            return self._by_host(index)
        try:
            by_device = self._operator.verify_tensors(self._case.parameters, tensors)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            self.references = ["host"]
            return self._by_host(index)
        if not self._host_too:
            self.references = self.references or ["device"]
            return by_device
        self._host_too = False
        self.references = ["device", "host"]
        by_host = self._by_host(index)
        if by_device.passed == by_host.passed:
            return by_device
        words = f"the references of device and host disagree: {by_device.message} / {by_host.message}"
        return dataclasses.replace(by_host, passed=False, message=words)

    def _by_host(self, index: int) -> Verification:
        output = self._launches.output(index)
        return self._operator.verify(self._case.parameters, self._operands, output, self._keep)


def _stepped(workload: Workload[Any], case: Case, effort: Effort | None, device: Device) -> dict[str, Any]:
    """A workload's steps, which check what they leave before they are timed and after; meanwhile where they repeat."""
    steps = workload.implementation(case.implementation).prepare(case.parameters, case.seed, device)
    try:
        result: dict[str, Any] = {
            "kernel": dataclasses.asdict(steps.kernel),
            "work": dataclasses.asdict(workload.work(case.parameters)),
        }
        repeated = steps if isinstance(steps, Repeated) and not steps.unchecked else None
        own = None
        if repeated is None or repeated.sees_more:
            own = result["verification"] = _verdict(steps.check())
            if not own["passed"]:
                return result | _wrong(own["message"], "before timing")
        checks = judge = None
        if repeated is None:
            result["verification"] |= {"unchecked": steps.unchecked}
        else:
            judge = _OwnJudge(repeated)
            checks = SpotChecks(repeated, judge)
            passed = checks.before_timing().passed
            result["verification"] = (own if own and passed else judge.told) | checks.report()
            if not passed:
                return result | _wrong(judge.told["message"], "before timing")
        if effort is None:
            return result | {"outcome": "ok"}
        try:
            result |= _sampled(steps.step, steps.stopwatch, case, effort, device, checks)
            if checks is not None:
                checks.after_timing()
                result["verification"] |= checks.report()
        except WrongLaunch as wrong:
            result["verification"] |= judge.told if judge else {}
            return result | _wrong(str(wrong), "while it was timed")
        observed = {name: observed_metric(each) for name, each in steps.observed().items()}
        result["metrics"] |= {name: dataclasses.asdict(metric) for name, metric in observed.items()}
        if own:
            again = _verdict(steps.check())
            if not again["passed"]:
                return result | _wrong(again["message"], "after timing")
        return result | {"outcome": "ok"}
    finally:
        steps.close()


class _OwnJudge:
    """What steps say of what the last one left in a place, as a verdict; `told` is the last as a record keeps it."""

    def __init__(self, steps: Repeated) -> None:
        self._steps = steps
        self.told: dict[str, Any] = {}

    def __call__(self, index: int) -> Verification:
        checked = self._steps.left(index)
        self.told = _verdict(checked)
        share = checked.wrong / max(1, checked.compared)
        return Verification(self.told["passed"], "full", share, 0.0, share, (), self.told["message"])


def _verdict(checked: Checked) -> dict[str, Any]:
    """A workload's own check as a record keeps it."""
    passed = checked.wrong == 0 and checked.compared > 0
    message = f"correct: {checked.compared} values compared"
    if not passed:
        message = f"{checked.wrong} of {checked.compared} values are wrong: {checked.first or 'nothing was compared'}"
    return {"passed": passed, "method": "own", **dataclasses.asdict(checked), "message": message}


def _sampled(
    launch: Launch,
    stopwatch: Stopwatch,
    case: Case,
    effort: Effort,
    device: Device,
    checks: SpotChecks | None = None,
) -> dict[str, Any]:
    """Warm up and sample: metrics, how they were taken, and what the machine did meanwhile.

    With `checks` some launches are checked after each block. Raises WrongLaunch.
    """
    if case.mode == "sustained":
        effort = effort.sustained()
    with Around() as telemetry, around_gpu(device) as gpu:

        def watch() -> str | None:
            reason = gpu.why_discard() if gpu else None
            if checks is not None:
                checks.after_block()
            return reason

        watched = stopwatch
        if checks is not None:
            # A device's stopwatch queues a block at once; the host's has nothing to lose by a pause.
            watched = checks.checking(stopwatch, can_stop=isinstance(stopwatch, CpuStopwatch))
        measurement = measure(launch, watched, effort.stop, effort.warm_up, watch)
    metrics = {"time": dataclasses.asdict(time_metric(measurement))}
    if isinstance(stopwatch, CudaStopwatch):
        clock = clock_metric(stopwatch.clocks_hz(len(measurement.seconds)))
        metrics |= {"sm_clock": dataclasses.asdict(clock)} if clock is not None else {}
    quality = {
        "converged": measurement.converged,
        "relative_half_width": measurement.relative_half_width,
        "discarded": measurement.discarded,
        **({"kept_despite": measurement.kept_despite} if measurement.kept_despite else {}),
        **telemetry.report,
        **({"gpu": gpu.report} if gpu else {}),
    }
    return {"metrics": metrics, "sampling": _how_sampled(measurement, stopwatch), "quality": quality}


def _sets_to_rotate(footprint_bytes: int, device: Device) -> tuple[int, str]:
    """How many operand sets to rotate through, so that no launch finds in cache what the last one left there.

    Also whether that is so, in the record's word: cold_l2, larger_than_l2 where one set is enough, or partly_warm where
    more would be needed than can be made.
    """
    if device.kind == "cuda":
        context = cuda_device(device.index).context
        cache_bytes, free_bytes = context.properties.l2_bytes, context.memory_bytes()[0]
    else:
        cache_bytes, free_bytes = cpu.detect().l2_total_bytes, memory.available_bytes()
    wanted = math.ceil(CACHE_TURNOVER * cache_bytes / footprint_bytes)
    affordable = int(MEMORY_SHARE * free_bytes / footprint_bytes)
    sets = max(1, min(wanted, affordable, MOST_SETS))
    return sets, "partly_warm" if sets < wanted else "cold_l2" if wanted > 1 else "larger_than_l2"


def time_metric(measurement: Measurement) -> Metric:
    """The samples of one measurement as a metric in seconds a launch."""
    return Metric(
        unit="s",
        value=measurement.median,
        low=measurement.interval[0],
        high=measurement.interval[1],
        q20=measurement.q20,
        q80=measurement.q80,
        samples=[float(f"{sample:.6g}") for sample in measurement.seconds],
    )


def observed_metric(observed: Observed) -> Metric:
    """A quantity beside time: its median, and quantiles where it was seen more than once."""
    low, q20, median, q80, high = np.quantile(list(observed.samples), (0.0, 0.2, 0.5, 0.8, 1.0)).tolist()
    return Metric(observed.unit, median, low, high, q20, q80, [float(f"{value:.9g}") for value in observed.samples])


def clock_metric(clocks_hz: list[float]) -> Metric | None:
    """The multiprocessors' clock during each sample, so that a reader has cycles as well as seconds.

    None where the device's counters could not be read.
    """
    read = [hz for hz in clocks_hz if math.isfinite(hz)]
    if not read:
        return None
    q20, median, q80 = np.quantile(read, (0.2, 0.5, 0.8)).tolist()
    return Metric("Hz", median, min(read), max(read), q20, q80, [float(f"{hz:.5g}") for hz in read])


def _how_sampled(measurement: Measurement, stopwatch: Stopwatch) -> dict[str, Any]:
    """Everything about the taking of the samples that a reader needs to judge them."""
    return {
        "stopwatch": stopwatch.name,
        "resolution_s": stopwatch.resolution_s,
        "launches_per_sample": measurement.launches_per_sample,
        "warmup_launches": measurement.warmup_launches,
        "warmup_s": measurement.warmup_s,
        "steady": measurement.steady,
        "stopped_by": measurement.stopped_by,
        "effective_samples": measurement.effective_samples,
        "confidence": measurement.interval[2],
    }


def _wrong(message: str, when: str) -> dict[str, Any]:
    return {"outcome": "failed", "reason": f"Wrong result {when}: {message}"}


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity, so null stands for them; nine digits are more than any clock here sees."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
