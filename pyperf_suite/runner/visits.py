"""A case's two visits in one run, apart in time, as one record: a slow stretch of the machine seldom lasts for both.

The first visit is written to the journal at once, so that a kill then costs no case; the record of both replaces it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pyperf_suite.measure.checks import excluded_rate
from pyperf_suite.measure.levels import with_levels
from pyperf_suite.measure.sampling import StopRule, WarmUp, concluded
from pyperf_suite.measure.telemetry import SLOW, Disturbances, are_slow
from pyperf_suite.record.record import STOOD_STILL, Metric, Record
from pyperf_suite.runner.timing import SAMPLING_FIELDS, as_plain, time_metric

SUMMED_SAMPLING = ("warmup_launches", "warmup_s", "iterations")
SUMMED_QUALITY = (
    "elapsed_s",
    "cpu_busy_s",
    "cpu_steal_s",
    "process_cpu_s",
    "voluntary_context_switches",
    "involuntary_context_switches",
    "major_page_faults",
)


def joined(first: Record, second: Record, rule: StopRule) -> Record:
    """Join two visits by `rule`; a failed second stands as it is, and where it could not be made, the first does."""
    if second.outcome == "unsupported":
        kept = {name: value for name, value in first.sampling.items() if name != "visit_due"}
        return dataclasses.replace(first, sampling=kept)
    if second.outcome != "ok":
        return second
    visits = (first, second)
    slices = [size for visit in visits for size in visit.sampling["slices"]]
    rule = dataclasses.replace(rule, quantile=first.sampling["quantile"])
    disturbances, reasons = _disturbances(visits)
    measurement = concluded(
        rule,
        WarmUp(
            sum(visit.sampling["warmup_launches"] for visit in visits),
            sum(visit.sampling["warmup_s"] for visit in visits),
            all(visit.sampling["steady"] for visit in visits),
            0.0,
            first.sampling["launches_per_sample"],
        ),
        [sample for visit in visits for sample in visit.metrics["time"].samples],
        slices,
        second.sampling["stopped_by"],
        loops_s=disturbances["loop_s"],
        best_loop_s=disturbances.get("best_loop_s", math.inf),
    )
    measurement = with_levels(measurement, reasons, disturbances["loop_s"], rule)
    time = time_metric(measurement, disturbances["drift"], bool(second.work.get("flop")))
    sampling = dict(second.sampling)
    for name, of_ranks in second.sampling.items():
        if name.startswith("rank_"):
            pairs = zip(first.sampling[name], of_ranks, strict=True)
            is_samples = name == "rank_samples_s"
            both = [a + b if is_samples else None if a is None or b is None else (a + b) / 2 for a, b in pairs]
            sampling[name] = both
    sampling |= {name: getattr(measurement, name) for name in SAMPLING_FIELDS}
    summed = [name for name in SUMMED_SAMPLING if name in second.sampling]
    sampling |= {name: sum(visit.sampling[name] for visit in visits) for name in summed}
    sampling |= {
        "confidence": measurement.interval[2],
        "visits": [len(visit.sampling["slices"]) for visit in visits],
        "groups": [visit.sampling.get("group", "") for visit in visits],
    }
    quality = dict(second.quality)
    summed = [name for name in SUMMED_QUALITY if name in first.quality]
    quality |= {name: sum(visit.quality[name] for visit in visits) for name in summed}
    wanted_s = quality.get("cpu_busy_s", 0.0) + quality.get("cpu_steal_s", 0.0)
    if "steal_share" in quality and wanted_s > 0:
        quality["steal_share"] = quality["cpu_steal_s"] / wanted_s
    quality |= {
        "before": first.quality.get("before", {}),
        "converged": measurement.converged,
        "relative_half_width": measurement.relative_half_width,
        "disturbances": disturbances,
        **({"levels": measurement.levels} if measurement.levels else {}),
    }
    if still_s := [visit.quality[STOOD_STILL] for visit in visits if STOOD_STILL in visit.quality]:
        quality[STOOD_STILL] = list(map(max, *still_s)) if len(still_s) > 1 else still_s[0]
    if measurement.levels is None:
        quality.pop("levels", None)
    return dataclasses.replace(
        second,
        started_at=first.started_at,
        metrics={**_metrics(visits), "time": time},
        sampling=as_plain(sampling),
        quality=as_plain(quality),
        verification=_verification(visits),
        trial_s=first.trial_s + second.trial_s,
    )


def _disturbances(visits: Sequence[Record]) -> tuple[dict[str, Any], list[str]]:
    """The disturbances of all slices, by the best loop that is known after the second visit; and of each slice."""
    reports = [visit.quality["disturbances"] for visit in visits]
    best_s = min(report.get("best_loop_s", math.inf) for report in reports)
    reasons: list[str] = []
    for report in reports:
        other = {i: reason for reason, numbers in report["slices"].items() if reason != SLOW for i in numbers}
        slow = are_slow(report["loop_s"], best_s)
        reasons += [other.get(number) or SLOW * is_slow for number, is_slow in enumerate(slow)]
    loops_s = [loop_s for report in reports for loop_s in report["loop_s"]]
    return reports[1] | Disturbances.described(reasons, loops_s, best_s), reasons


def _metrics(visits: Sequence[Record]) -> dict[str, Metric]:
    """Metrics other than time: the samples of both visits, and bounds that hold those of both."""
    metrics: dict[str, Metric] = {}
    for name, metric in visits[1].metrics.items():
        both = [visit.metrics[name] for visit in visits if name in visit.metrics]
        samples = [sample for each in both for sample in each.samples]
        middle = [statistics.fmean(getattr(each, share) for each in both) for share in ("value", "q20", "q80")]
        low, high = min(each.low for each in both), max(each.high for each in both)
        metrics[name] = Metric(metric.unit, middle[0], low, high, middle[1], middle[2], samples)
    return metrics


def _verification(visits: Sequence[Record]) -> Mapping[str, Any]:
    """The second visit's verification, with the launches that were looked at in both."""
    found = [visit.verification for visit in visits]
    if not all("launches_checked" in each and "excludes_errors_in_one_of" in each for each in found):
        return found[1]
    checked = sum(each["launches_checked"] for each in found)
    excluded = {"excludes_errors_in_one_of": math.floor(1 / excluded_rate(checked))} if checked else {}
    return {**found[1], "launches_checked": checked, **excluded}
