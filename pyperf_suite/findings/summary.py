"""Summarize a run: failures, cautions, the largest effects, claims that fail here, and undecided ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyperf_suite.errors import ExitCode
from pyperf_suite.findings.data import Claim, ClaimVerdict, Findings, Remark, remark
from pyperf_suite.findings.rows import grouped
from pyperf_suite.record.quantity import VAGUE_SPAN, Quantity, quantity

if TYPE_CHECKING:
    from pyperf_suite.record.record import Record

MOST_POINTS = 7
# Subjects of the suite, by the probe that measures each: all have a line, found or not.
SUBJECTS = {
    "tile_wave": "What tiles and waves cost",
    "alignment": "What odd sizes cost",
    "attention_heads": "What the size of heads costs",
    "collectives": "The bandwidth of collectives",
}
# Time of a standard run over that of a quick one: three processes, each of twice the samples.
STANDARD_OVER_QUICK = 6
_MOST_FAILING, _MOST_UNDECIDED = 2, 2
_MOST_CAUSES, _MOST_NAMES = 4, 3


@dataclass(frozen=True)
class SummaryPoint:
    """One line of a summary: the probe that it is of, empty where several are, and the finding."""

    kind: Literal["slow", "failed", "subject", "effect", "fails", "undecided"]
    message: Remark | ClaimVerdict
    probe: str = ""


def summary_of(findings: Mapping[str, Findings], records: Sequence[Record] = ()) -> list[SummaryPoint]:
    """A line a subject, then effects by what of them is certain, claims that do not hold, and open ones."""
    verdicts = [(name, each) for name, found in findings.items() for each in found.verdicts]
    subjects = list(_subjects(findings, records))
    others = [*_failing(verdicts), *_undecided(verdicts)]
    told = [each.message for each in subjects]
    effects = [each for each in _effects(findings) if each.message not in told]
    return [*subjects, *effects[: max(0, MOST_POINTS - len(subjects) - len(others))], *others]


def _subjects(findings: Mapping[str, Findings], records: Sequence[Record]) -> Iterator[SummaryPoint]:
    """A subject's largest effect next to other probes, else its first finding, else what would decide at which cost."""
    for probe, subject in SUBJECTS.items() if len(findings) > 1 else ():
        if probe not in findings:
            continue
        remarks = [each for each in findings[probe].remarks if isinstance(each, Remark)]
        found = [each for each in remarks if each.kind in ("", "law") and not each.is_noise and not _is_vague(each)]
        if point := next(_effects({probe: findings[probe]}), None):
            yield SummaryPoint("subject", point.message, probe)
        elif found:
            yield SummaryPoint("subject", found[0], probe)
        else:
            cost_s = STANDARD_OVER_QUICK * sum(each.trial_s or 0.0 for each in records if each.probe == probe)
            template = "{subject} does not stand out of the noise here; run {probe} --profile standard decides{cost}"
            cost = f", in about {math.ceil(cost_s / 60)} min" if cost_s else ""
            yield SummaryPoint("subject", remark(template, subject=subject, probe=probe, cost=cost), probe)


def _is_vague(message: Remark) -> bool:
    spans = [value.span for value in message.values.values() if isinstance(value, Quantity)]
    return max(spans, default=1.0) > VAGUE_SPAN


def fitness_of(records: Sequence[Record]) -> Remark | None:
    """Say if figures of a run are fit to act on, and why not; None where nothing was timed."""
    measured = [each for each in _timed(records) if each.outcome == "ok"]
    if not measured:
        return None
    converged = sum(bool(each.quality["converged"]) for each in measured)
    values: dict[str, Any] = {"converged": converged, "measured": len(measured)}
    reasons = []
    for each in about_the_machine(records):
        (name, found), *_ = each.values.items()
        values[name] = found
        reasons.append(_UNFIT[name])
    if converged < LEAST_CONVERGED * len(measured):
        reasons.append("{converged} of {measured} measurements are as narrow as the profile asks")
    if reasons:
        return remark(f"Not fit to act on, only for a first look: {'; '.join(reasons)}", kind="caution", **values)
    sentence = "Fit for use: the machine kept its speed; {converged} of {measured} measurements are as narrow as asked"
    return remark(sentence, **values)


# Below this share of measurements that converged, figures are no more than a first look.
LEAST_CONVERGED = 0.5
_UNFIT = {
    "drift": "the machine's speed changed by {drift}",
    "cores": "the cores that it may use changed to {cores}",
    "others": "other processes kept {others} cores busy",
    "stolen": "the hypervisor gave {stolen} cores' time to other machines",
}


def exit_code(records: Sequence[Record]) -> ExitCode:
    """Return a run's exit code: 3 if a case failed or none was measured, else 0. An unsupported case is no failure."""
    outcomes = {each.outcome for each in _latest(records)}
    return ExitCode.FINE if "ok" in outcomes and "failed" not in outcomes else ExitCode.FAILED


def failures_of(records: Sequence[Record]) -> list[SummaryPoint]:
    """Slow cores, and failures by cause: cases by name, the reason of the first; or why nothing was measured."""
    trials = _latest(records)
    by_cause = list(grouped((each for each in trials if each.outcome == "failed"), lambda each: each.cause).values())
    points = [*_slow(trials), *(_failed(held, trials) for held in by_cause[:_MOST_CAUSES])]
    if more := sum(len({each.case_id for each in held}) for held in by_cause[_MOST_CAUSES:]):
        points.append(SummaryPoint("failed", remark("{count} more cases failed for other reasons", count=more)))
    if points or not records or any(each.outcome == "ok" for each in trials):
        return points
    # The sentinel is measured first of all, and what it lacks others may lack too.
    sentinels = [each for each in records if each.kind == "sentinel" and each.outcome == "failed"]
    why = next(iter([*sentinels, *trials]), None)
    if why is None:
        return [SummaryPoint("failed", remark("Nothing was measured: no case was begun"))]
    message = remark("Nothing was measured: {case}: {reason}", case=why.label, reason=why.reason)
    return [SummaryPoint("failed", message, why.probe if why in trials else "")]


def _slow(trials: Sequence[Record]) -> Iterator[SummaryPoint]:
    """One point on the cases whose cores were never seen at the best that this machine is known for."""
    timed = [each for each in trials if each.outcome == "ok" and "slow_by" in each.sampling]
    slow = sorted(each.sampling["slow_by"] for each in timed if each.sampling["slow_by"] > 1)
    if slow:
        template = (
            "Slow: cores took {factor} their best while {count} of {cases} cases were timed, whose figures are "
            "estimates; measure them again when the machine has its usual speed"
        )
        factor = quantity(slow[len(slow) // 2], "x")
        yield SummaryPoint("slow", remark(template, factor=factor, count=len(slow), cases=len(timed)))


def _failed(failed: Sequence[Record], trials: Sequence[Record]) -> SummaryPoint:
    names = list(dict.fromkeys(each.label for each in failed))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    message = remark(
        "{count} of {cases} cases failed, {names}: {reason}",
        count=len(names),
        cases=len({each.case_id for each in trials}),
        names=", ".join(names[:_MOST_NAMES]) + more,
        reason=failed[0].reason,
    )
    return SummaryPoint("failed", message, failed[0].probe if len({each.probe for each in failed}) == 1 else "")


def _latest(records: Iterable[Record]) -> list[Record]:
    """The last record of each trial: one that failed counts no more once it was made again on resume."""
    trials = {(each.probe, each.case_id, each.process): each for each in records if each.kind != "sentinel"}
    return list(trials.values())


def certain_weight(quantity: Quantity) -> float:
    """The logarithm of the ratio, at that end of its interval that lies nearest to no effect; 0 for what is noise."""
    if quantity.unit not in ("x", "+%"):
        return 0.0
    added = 1.0 if quantity.unit == "+%" else 0.0
    ends = [end + added for end in (quantity.value, quantity.low, quantity.high) if not math.isnan(end)]
    if not ends or not all(0 < end < math.inf for end in ends) or min(ends) <= 1 <= max(ends):
        return 0.0
    return min(abs(math.log(end)) for end in ends)


def _effects(findings: Mapping[str, Findings]) -> Iterator[SummaryPoint]:
    """The largest of each kind of remark: what several processes timed first, then what one did."""
    strongest: dict[tuple[str, str], tuple[tuple[int, float], SummaryPoint]] = {}
    for name, message in ((name, each) for name, held in findings.items() for each in held.remarks):
        if isinstance(message, ClaimVerdict):
            quantity, template = message.measured, message.claim.text
        elif isinstance(message, Remark) and not message.kind:
            named, template = message.values.get(message.effect), message.template
            quantity = named if isinstance(named, Quantity) else Quantity(math.nan)
        else:
            continue
        weight = certain_weight(quantity)
        fails = isinstance(message, ClaimVerdict) and message.outcome == "does not hold here"
        if not weight or quantity.predicted or fails or quantity.span > VAGUE_SPAN:
            continue
        # Counted figures are certain, but are less news than timed ones.
        rank = ((0, 1, 2)[min(quantity.processes, 2)], weight)
        key = (name, template)
        if key not in strongest or rank > strongest[key][0]:
            strongest[key] = rank, SummaryPoint("effect", message, name)
    ranked = sorted(strongest.values(), key=lambda item: item[0], reverse=True)
    yield from (point for _, point in ranked)


def _failing(verdicts: list[tuple[str, ClaimVerdict]]) -> list[SummaryPoint]:
    """Return for each claim the verdict that lies furthest outside; those beyond the second as a number."""
    failing = [(name, each) for name, each in verdicts if each.outcome == "does not hold here"]
    by_claim = grouped(failing, lambda item: (item[0], item[1].claim))
    points = [
        SummaryPoint("fails", max((each for _, each in held), key=_outside), name)
        for (name, _), held in by_claim.items()
    ]
    points.sort(key=lambda point: _outside(point.message), reverse=True)  # type: ignore[arg-type]
    more = len(points) - _MOST_FAILING
    if more == 1:
        return points
    message = remark("{count} more claims do not hold here", count=more)
    return [*points[:_MOST_FAILING], SummaryPoint("fails", message)] if more > 0 else points


def _outside(verdict: ClaimVerdict) -> float:
    """How far the measured value lies from the nearer bound, as the logarithm of their ratio."""
    value, claim = verdict.measured.value, verdict.claim
    bound = claim.low if value < claim.low else claim.high
    return abs(math.log(value / bound)) if value > 0 and 0 < bound < math.inf else math.inf


def _undecided(verdicts: list[tuple[str, ClaimVerdict]]) -> list[SummaryPoint]:
    """How many claims are open for which reason, and what would decide them."""
    open_ones = [each for _, each in verdicts if each.outcome == "undecided"]
    by_reason = grouped(open_ones, lambda each: (each.why, each.remedy))
    points = []
    for (why, remedy), held in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        claims: list[Claim] = list(dict.fromkeys(each.claim for each in held))
        one = len(claims) == 1
        template = f"{{count}} {'claim is' if one else 'claims are'} undecided: {{why}}; {{remedy}}"
        points.append(SummaryPoint("undecided", remark(template, count=len(claims), why=why, remedy=remedy)))
    return points[:_MOST_UNDECIDED]


# Two sentinels of an idle machine differ by less; seen on two virtual cores.
STEADY_MACHINE = 0.05
# Cores that others may keep busy, on average over a run, before figures suffer.
BUSY_CORES = 0.1

_caution = functools.partial(remark, kind="caution")


def cautions_of(records: Sequence[Record], probes: Iterable[str]) -> tuple[list[Remark], dict[str, list[Remark]]]:
    """Remarks on the whole run, cases that could not be measured first, and by probe remarks on its cases."""
    by_probe = grouped(records, lambda record: record.probe)
    own = {name: [*about_the_cases(by_probe.pop(name, []))] for name in probes}
    others = [record for held in by_probe.values() for record in held]
    of_the_run = [*about_the_machine(records), *about_the_cases(others)]
    return sorted(of_the_run, key=lambda each: "reason" not in each.values), own


def about_the_machine(records: Sequence[Record]) -> Iterator[Remark]:
    """Drift between sentinels, cores that went, and what others and the hypervisor took while cases were timed."""
    sentinels = [each.seconds for each in records if each.kind == "sentinel" and each.outcome == "ok"]
    if len(sentinels) > 1 and (drift := max(sentinels) / min(sentinels) - 1) > STEADY_MACHINE:
        yield _caution(
            "The sentinel kernel's time changed by {drift} between the start and the end of the run: the machine "
            "itself changed speed, so small differences between cases mean little.",
            drift=quantity(drift, "%"),
        )
    measured = [each.quality for each in _timed(records) if each.outcome == "ok"]
    allowed = [cores for each in measured if (cores := each.get("before", {}).get("allowed_cores"))]
    if allowed and min(allowed) < max(allowed):
        yield _caution(
            "The run could use {most} cores while some cases were timed and {cores} while others were: their cpuset "
            "changed meanwhile, so figures of the two do not compare.",
            cores=min(allowed),
            most=max(allowed),
        )
    # Over all samples together, for the kernel counts it in ticks.
    quality = [each for each in measured if "cpu_busy_s" in each]
    elapsed_s = sum(each["elapsed_s"] for each in quality)
    if not elapsed_s:
        return
    others = sum(each["cpu_busy_s"] - each["process_cpu_s"] for each in quality) / elapsed_s
    if others > BUSY_CORES:
        yield _caution(
            "Other processes kept {others} cores busy while cases were timed; a worker that shares a core waits for "
            "whole scheduler ticks, so measure again on an idle machine.",
            others=others,
        )
    stolen = sum(each["cpu_steal_s"] for each in quality) / elapsed_s
    if stolen > BUSY_CORES:
        yield _caution(
            "The hypervisor gave {stolen} cores' time to other machines while cases were timed.", stolen=stolen
        )


def about_the_cases(records: Sequence[Record]) -> Iterator[Remark]:
    """Yield remarks on cases that cannot be measured here, and on cases that did not converge."""
    missing = [each for each in _timed(records) if each.outcome == "unsupported"]
    if missing:
        yield _caution(
            f"{{count}} {'trial' if len(missing) == 1 else 'trials'} unsupported, the first {{case}}: {{reason}}",
            count=len(missing),
            case=missing[0].label,
            reason=missing[0].reason,
        )
    measured = [each for each in _timed(records) if each.outcome == "ok"]
    loose = sum(not each.quality["converged"] for each in measured)
    if loose:
        yield _caution(
            "{loose} of {measured} measurements reached their time limit before their interval was as "
            "narrow as the profile asks: a longer profile, or an idler machine, narrows it.",
            loose=loose,
            measured=len(measured),
        )
    yield from _about_levels(measured)
    kept = [each for each in measured if each.quality.get("kept_despite")]
    if kept:
        reasons = sorted({str(reason) for each in kept for reason in each.quality["kept_despite"]})
        yield _caution(
            "{count} of {measured} measurements have no sample without {reasons}: all are kept, and do not converge.",
            count=len(kept),
            measured=len(measured),
            reasons=", ".join(reasons),
        )


def _about_levels(measured: Sequence[Record]) -> Iterator[Remark]:
    """Launches of several levels that nothing which disturbs explains: whose mean is reported, and whose is not."""
    leveled = [(each, each.quality["levels"]) for each in measured if each.quality.get("levels")]
    for record, levels in leveled:
        if levels["is_figure"]:
            yield _caution(
                "Launches of {case} have two levels, {fast} and {slow}, the slow one in {share} of samples: the time "
                "shown is their mean.",
                case=record.label,
                fast=quantity(levels["fast_s"], "duration"),
                slow=quantity(levels["slow_s"], "duration"),
                share=quantity(levels["slow_share"], "%"),
            )
    others = [(levels["mean_s"] / record.seconds, record) for record, levels in leveled if not levels["is_figure"]]
    if others:
        ratio, record = max(others, key=lambda each: each[0])
        yield _caution(
            "In {count} of {measured} measurements some launches are much slower than others, which nothing known of "
            "the machine explains: the most in {case}, whose mean is {ratio} as long as the time shown.",
            count=len(others),
            measured=len(measured),
            case=record.label,
            ratio=quantity(ratio, "x"),
        )


def _timed(records: Sequence[Record]) -> list[Record]:
    return [each for each in records if each.kind == "timing"]
