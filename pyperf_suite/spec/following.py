"""What probes ask for after what was planned: a search whose next case depends on what the last one gave.

Records decide, so a resumed run goes on with the search where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.discovery import find_probe

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
    asking = {name: ask for name in plan.probes if (ask := find_probe(name).follow_up) is not None}
    for _ in range(MOST_ROUNDS if asking else 0):
        # Read once a round: records may lie on a disk.
        theirs = [record for record in records if record.probe in asking]
        asked = [
            PlannedCase(name, case)
            for name, ask in asking.items()
            for case in ask([record for record in theirs if record.probe == name])
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
