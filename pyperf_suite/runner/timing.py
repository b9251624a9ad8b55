"""The one way in which launches are measured: check, warm up, sample, check again, and report how it went."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.checks import Checks, SetChecks, WrongLaunch
from pyperf_suite.measure.levels import with_levels
from pyperf_suite.measure.power import Settled, settle
from pyperf_suite.measure.sampling import Measurement, Turns, WarmUp, sampling
from pyperf_suite.measure.stopwatch import CpuStopwatch, CudaStopwatch, Launch, Stopwatch
from pyperf_suite.measure.telemetry import Around, Disturbances, around_gpu
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import USUAL, MedianInterval, another_runs
from pyperf_suite.record.record import Metric
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.backends import core_loop, workers_of
from pyperf_suite.workloads.workload import Observed, Prepared, Work


def timed(
    prepared: Prepared,
    work: Work,
    case: Case,
    effort: Effort | None,
    device: Device,
    checks: Checks | None = None,
    finish: Finish | None = None,
    clock: Clock = time.monotonic,
) -> Turns[dict[str, Any]]:
    """Check what is ready, warm it up, sample and check it again; return the measured part of its record.

    Others may have a turn after each slice of samples; `clock` then counts this one's turns alone. `checks` is who
    looks at what launches leave, `finish` what adds to the result once they were timed; by default what the launches
    themselves offer.
    """
    if prepared.exact is not None:
        return _read(prepared)
    checks = checks or prepared.checks or SetChecks(prepared)
    checks.clock = clock
    result: dict[str, Any] = {}
    when = "before timing"
    try:
        verdict = checks.before_timing()
        result = {
            "kernel": dataclasses.asdict(prepared.kernel),
            "work": dataclasses.asdict(prepared.work or work),
            "verification": verdict.to_json() | prepared.references() | checks.report(),
            **({"state": dict(prepared.state)} if prepared.state else {}),
        }
        if effort is None:
            return result | {"outcome": "ok"}
        when = "while it was timed"
        measurement, details = yield from sampled(
            prepared.launch,
            prepared.stopwatch,
            case.mode,
            effort,
            device,
            checks,
            clock,
            # Cores of its ranks or workers, 1 if its parameters do not say.
            find_workload(case.operator).ranks(case.parameters) or workers_of(case.parameters) or 1,
            is_compute=bool((prepared.work or work).flop),
        )
        result |= details
        if measurement.quantile != USUAL:
            result["state"] = result.get("state", {}) | {
                "reported_time": f"{measurement.quantile:.0%} quantile of samples"
            }
        (finish or functools.partial(_observe, prepared))(measurement, result)
        checks.after_timing()
    except WrongLaunch as wrong:
        result |= {"kernel": dataclasses.asdict(prepared.kernel), "work": dataclasses.asdict(prepared.work or work)}
        details = wrong.verdict.to_json() | prepared.references() | checks.report()
        result["verification"] = details | {"message": str(wrong)}
        return result | {"outcome": "failed", "reason": f"Wrong result {when}: {wrong}"}
    result["verification"] |= checks.report()
    return result | {"outcome": "ok"}


# The fields of a measurement that say how its samples were taken.
SAMPLING_FIELDS = (
    "quantile",
    "slices",
    "left_out",
    "slow_by",
    "launches_per_sample",
    "warmup_launches",
    "warmup_s",
    "steady",
    "stopped_by",
    "effective_samples",
)

Clock = Callable[[], float]

Finish = Callable[[Measurement, dict[str, Any]], None]


def _read(prepared: Prepared) -> dict[str, Any]:
    """Exact figures: nothing is warmed up, sampled or verified."""
    return {
        "kind": "static",
        "outcome": "ok",
        "metrics": prepared.exact,
        "kernel": dataclasses.asdict(prepared.kernel),
        "quality": {"converged": True},
    }


def _observe(prepared: Prepared, _measurement: Measurement, result: dict[str, Any]) -> None:
    observed = {name: dataclasses.asdict(observed_metric(each)) for name, each in prepared.observed().items()}
    result["metrics"] |= observed
    result["sampling"] |= prepared.sampling
    if "process_cpu_s" in result["quality"]:
        result["quality"]["process_cpu_s"] += prepared.cpu_elsewhere_s()


def sampled(
    launch: Launch,
    stopwatch: Stopwatch,
    mode: str,
    effort: Effort,
    device: Device,
    checks: Checks,
    clock: Clock,
    cores: int = 1,
    is_compute: bool = True,
) -> Turns[tuple[Measurement, dict[str, Any]]]:
    """Warm up and sample on `cores` cores: metrics, how they were taken, the machine's part. Raises WrongLaunch."""
    on_gpu = device.kind == "cuda" and not isinstance(stopwatch, CpuStopwatch)
    settles = on_gpu and mode == "sustained"
    if mode == "sustained":
        effort = effort.sustained(settles)
    elif device.kind == "cuda":
        effort = effort.for_median()
    # A device's stopwatch queues a block at once; the host's has nothing to lose by a pause.
    watched = checks.checking(stopwatch, can_stop=isinstance(stopwatch, CpuStopwatch))
    # Checks would let the chip cool: of a load they come when it is over.
    timer = stopwatch if settles and isinstance(stopwatch, CudaStopwatch) else watched
    telemetry = Around()
    with around_gpu(device) as gpu:
        slices = gpu.slices() if gpu else None
        may_pause = slices if on_gpu and not settles and not math.isinf(effort.stop.relative_half_width) else None
        loads: list[Settled] = []

        def watch() -> str | None:
            reason = gpu.why_discard() if gpu else None
            if may_pause:
                may_pause.pause(*getattr(stopwatch, "clocks_hz", lambda _: ())(1))
            return reason

        load_clock = slices.clock if slices else time.monotonic
        joules = slices.joules if slices else lambda: None

        def load(warm: WarmUp) -> int:
            batch, launch_s = warm.launches_per_sample, warm.launch_s
            loads.append(settle(launch, stopwatch, warm.launches, batch, launch_s, joules, clock=load_clock))
            return loads[0].launches

        disturbances = None if slices or on_gpu else Disturbances(*core_loop(cores))

        # A sustained load has the clock that it makes itself: there the times are what is asked.
        clocks_hz = getattr(stopwatch, "clocks_hz", None) if mode != "sustained" else None
        steps = sampling(
            launch,
            timer,
            effort.stop,
            effort.warm_up,
            watch,
            # Without what lies between samples and is no share of their time.
            lambda: clock() - getattr(watched, "unsampled_s", 0.0) - (slices.paused_s if slices else 0.0),
            slices or disturbances,
            clocks_hz,
            load if settles else None,
        )
        others_ran: bool | None = None
        while True:
            with telemetry:
                try:
                    steps.send(others_ran)
                except StopIteration as end:
                    measurement: Measurement = end.value
                    break
            others_ran = yield
        watts = loads[0].watts(joules(), load_clock()) if loads else None
    disturbed = disturbances.report() if disturbances else {}
    if disturbances:
        measurement = with_levels(measurement, disturbances.reasons, disturbances.loops_s, effort.stop)
    metrics = {"time": dataclasses.asdict(time_metric(measurement, disturbed.get("drift", 0.0), is_compute))}
    if isinstance(stopwatch, CudaStopwatch):
        # Cycles as well as seconds for a reader; none where the device's counters could not be read.
        read = [hz for hz in stopwatch.clocks_hz(len(measurement.seconds)) if math.isfinite(hz)]
        metrics |= {"sm_clock": dataclasses.asdict(observed_metric(Observed("Hz", read), digits=5))} if read else {}
    if watts is not None:
        metrics["power"] = dataclasses.asdict(observed_metric(Observed("W", [watts])))
    how = {
        "stopwatch": timer.name,
        "resolution_s": timer.resolution_s,
        **{name: getattr(measurement, name) for name in SAMPLING_FIELDS},
        "confidence": measurement.interval[2],
        **getattr(stopwatch, "sampling", {}),
    }
    if loads:
        how["load"] = loads[0].report() | ({"power_by": slices.joules.source} if slices else {})
    if timer is not watched:
        # Check the load's result after one launch more, which is no sample.
        launched = measurement.warmup_launches + loads[0].launches
        watched.time(launch, launched + len(measurement.seconds) * measurement.launches_per_sample, 1, 1)
    quality = {
        "converged": measurement.converged and all(each.is_settled for each in loads),
        "relative_half_width": measurement.relative_half_width,
        "discarded": measurement.discarded,
        **({"kept_despite": measurement.kept_despite} if measurement.kept_despite else {}),
        **telemetry.report,
        **({"gpu": gpu.report | {"slices": slices.report()}} if gpu and slices else {}),
        **({"disturbances": disturbed} if disturbed else {}),
        **({"levels": measurement.levels} if measurement.levels else {}),
    }
    return measurement, {"metrics": metrics, "sampling": how, "quality": quality}


# Logarithm of a computing launch's time over that of the loop's, where cores were never seen at their best. Launches
# follow the loop with 0 to 1, in the middle 0.5, which brings figures of six runs on a machine of two speeds together,
# fits to each case no better (docs/measure.md). Copies and collectives do not follow it.
SLOW_ELASTICITY = 0.5


def time_metric(measurement: Measurement, drift: float, is_compute: bool = True) -> Metric:
    """The samples of one measurement as a metric in seconds a launch.

    Its bounds are the interval of the median, or where the figure of another run lies. Where cores were slow in too
    many slices, the figures are those at their best as expected of such launches; samples are as they were taken.
    """
    low, high = measurement.interval[:2]
    if measurement.quantile != USUAL:
        low, high = another_runs(measurement.value, MedianInterval(*measurement.interval, 0.0), drift)
    at_best = measurement.slow_by ** -(SLOW_ELASTICITY if is_compute else 0.0)
    return Metric(
        unit="s",
        value=measurement.value * at_best,
        low=low * at_best**2,
        high=high,
        q20=measurement.q20 * at_best,
        q80=measurement.q80 * at_best,
        samples=[float(f"{sample:.6g}") for sample in measurement.seconds],
    )


def observed_metric(observed: Observed, digits: int = 9) -> Metric:
    """A quantity other than time: its median, and quantiles where it was seen more than once."""
    low, q20, median, q80, high = np.quantile(list(observed.samples), (0.0, 0.2, 0.5, 0.8, 1.0)).tolist()
    samples = [float(f"{value:.{digits}g}") for value in observed.samples]
    return Metric(observed.unit, median, low, high, q20, q80, samples)


def as_plain(value: Any) -> Any:
    """As JSON: it has no NaN or infinity, so null stands for them; nine digits are more than any clock here sees."""
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
