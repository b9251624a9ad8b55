"""Which algorithm and protocol NCCL took at each size, read in visits of their own: its log costs time in every call.

What those visits tell is put beside the times of the same case without a log; their own times count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pyperf_suite.operators.collective import CollectiveParameters
from pyperf_suite.ranks.environment import rank_environment
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record

TOLD = ("algorithm", "protocol", "channels")

# Our own path's choices are NCCL's whoever calls it.
LOGGED_BY = "nccl"


def cases_to_log(records: Iterable[Record]) -> list[Case]:
    """The plain cases that our path over NCCL ran on GPUs, now logged; none under a launcher, where no log is on."""
    if rank_environment().launched:
        return []
    found = {}
    for record in records:
        if record.kind != "timing" or record.outcome != "ok" or record.identity.get("kind") == "cpu":
            continue
        case = record.parsed_case()
        p = case.parameters
        if case.implementation == LOGGED_BY and p.ranks > 1 and not (p.in_place or p.registered or p.logged):
            found[case.case_id] = replace(case, parameters=replace(p, logged=True))
    return list(found.values())


def with_algorithms(records: Sequence[Record]) -> list[Record]:
    """The records without those that were logged, whose choices stand in the kernel's details of the others."""
    choices: dict[CollectiveParameters, dict[str, Any]] = {}
    others = []
    for record in records:
        parameters = record.parsed_case().parameters if record.kind == "timing" else None
        if parameters is None or not parameters.logged:
            others.append(record)
        elif record.outcome == "ok":
            details = record.kernel.get("details", {})
            choices[replace(parameters, logged=False)] = {name: details[name] for name in TOLD if name in details}
    return [_told(record, choices) for record in others]


def _told(record: Record, choices: dict[CollectiveParameters, dict[str, Any]]) -> Record:
    if not choices or record.kind != "timing" or record.outcome != "ok":
        return record
    case = record.parsed_case()
    # In place or out of place, by a call or by a graph, the choice is made from the size.
    plain = replace(case.parameters, in_place=False, registered=False)
    if "nccl" not in case.implementation or plain not in choices:
        return record
    details = {**record.kernel.get("details", {}), **choices[plain]}
    return replace(record, kernel={**record.kernel, "details": details})
