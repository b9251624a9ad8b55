"""What makes the findings of a run less sure than they look, from its records: shown before what it touches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyperf_suite.spec.findings import Remark, remark
from pyperf_suite.spec.quantity import quantity
from pyperf_suite.spec.rows import grouped

if TYPE_CHECKING:
    from pyperf_suite.runner.record import Record

# Two sentinels of an idle machine differ by less; seen on two virtual cores.
STEADY_MACHINE = 0.05
# Cores that others may keep busy, on average over a run, before figures suffer.
BUSY_CORES = 0.1


def cautions_of(records: Sequence[Record], probes: Iterable[str]) -> tuple[list[Remark], dict[str, list[Remark]]]:
    """What touches the whole run, the cases of probes not named among it; and by probe what touches its cases."""
    by_probe = grouped(records, lambda record: record.probe)
    own = {name: [*about_the_cases(by_probe.pop(name, []))] for name in probes}
    others = [record for held in by_probe.values() for record in held]
    return [*about_the_machine(records), *about_the_cases(others)], own


def about_the_machine(records: Sequence[Record]) -> Iterator[Remark]:
    """Drift between the sentinels of a run, and what other processes and the hypervisor took while cases were timed."""
    sentinels = [each.seconds for each in records if each.kind == "sentinel" and each.outcome == "ok"]
    if len(sentinels) > 1 and (drift := max(sentinels) / min(sentinels) - 1) > STEADY_MACHINE:
        yield remark(
            "The sentinel kernel's time changed by {drift} between the start and the end of the run: the machine "
            "itself changed speed, so small differences between cases mean little.",
            kind="caution",
            drift=quantity(drift, "%"),
        )
    # Over all samples together, for the kernel counts it in ticks.
    quality = [each.quality for each in _timed(records) if each.outcome == "ok" and "cpu_busy_s" in each.quality]
    elapsed_s = sum(each["elapsed_s"] for each in quality)
    if not elapsed_s:
        return
    others = sum(each["cpu_busy_s"] - each["process_cpu_s"] for each in quality) / elapsed_s
    if others > BUSY_CORES:
        yield remark(
            "Other processes kept {others} cores busy while cases were timed; a worker that shares a core waits for "
            "whole scheduler ticks, so measure again on an idle machine.",
            kind="caution",
            others=others,
        )
    stolen = sum(each["cpu_steal_s"] for each in quality) / elapsed_s
    if stolen > BUSY_CORES:
        yield remark(
            "The hypervisor gave {stolen} cores' time to other machines while cases were timed.",
            kind="caution",
            stolen=stolen,
        )


def about_the_cases(records: Sequence[Record]) -> Iterator[Remark]:
    """What was not measured, and what did not converge."""
    for outcome in ("failed", "unsupported"):
        missing = [each for each in _timed(records) if each.outcome == outcome]
        if missing:
            yield remark(
                f"{{count}} {'trial' if len(missing) == 1 else 'trials'} {{outcome}}, the first {{case}}: {{reason}}",
                kind="caution",
                count=len(missing),
                outcome=outcome,
                case=missing[0].label,
                reason=missing[0].reason,
            )
    measured = [each for each in _timed(records) if each.outcome == "ok"]
    loose = sum(not each.quality["converged"] for each in measured)
    if loose:
        yield remark(
            "{loose} of {measured} measurements reached their time limit before the interval of the median was as "
            "narrow as the profile asks: a longer profile, or an idler machine, narrows it.",
            kind="caution",
            loose=loose,
            measured=len(measured),
        )
    kept = [each for each in measured if each.quality.get("kept_despite")]
    if kept:
        reasons = sorted({str(reason) for each in kept for reason in each.quality["kept_despite"]})
        yield remark(
            "{count} of {measured} measurements have no sample without {reasons}: all are kept, and do not converge.",
            kind="caution",
            count=len(kept),
            measured=len(measured),
            reasons=", ".join(reasons),
        )


def _timed(records: Sequence[Record]) -> list[Record]:
    return [each for each in records if each.kind == "timing"]
