"""What probes ask for after what was planned: a search whose next case depends on what the last one gave.

Records decide, so a resumed run goes on with the search where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyperf_suite.probes import find_probe
from pyperf_suite.probes.probe import Probe
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.record import Record

# A bisection of 4096 sizes; a probe that still asks then is not searching but wandering.
MOST_ROUNDS = 12


def follow_ups(plan: Plan, records: Sequence[Record]) -> Iterator[PlannedCase]:
    """The cases that the plan's probes ask for after it, each to be measured before the next is drawn.

    `records` must grow as cases are measured: it is read anew before each round. What an interrupted run began beyond
    its plan comes first, so that every process visits it. Raises UserError for a case that can never be measured.
    """
    known = {(planned.probe, planned.case.case_id) for planned in plan.cases}
    begun = [PlannedCase(r.probe, r.parsed_case()) for r in records if r.probe in plan.probes]
    yield from _new(begun, known)
    asking = [name for name in plan.probes if type(find_probe(name)).follow_up is not Probe.follow_up]
    for _ in range(MOST_ROUNDS if asking else 0):
        # Read once a round: records may lie on a disk.
        theirs = [record for record in records if record.probe in asking]
        asked = [
            PlannedCase(name, case)
            for name in asking
            for case in find_probe(name).follow_up([record for record in theirs if record.probe == name])
        ]
        wanted = _new(asked, known)
        if not wanted:
            return
        yield from wanted


def _new(asked: Sequence[PlannedCase], known: set[tuple[str, str]]) -> list[PlannedCase]:
    """Those not asked for before, which from now on are known."""
    found = []
    for planned in asked:
        key = (planned.probe, planned.case.case_id)
        if key not in known:
            planned.case.validate()
            known.add(key)
            found.append(planned)
    return found
