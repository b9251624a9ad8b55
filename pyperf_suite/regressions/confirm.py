"""A nominated change put to the test: the two commits between which it came, in live pairs on this machine.

History says when; only code that runs side by side says whether it was the code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.findings.discovery import is_users
from pyperf_suite.hardware.devices import Device
from pyperf_suite.regressions.pairs.ab import RuleFor, compare_arms
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase
from pyperf_suite.regressions.stored.foreign import FOREIGN_PROBES
from pyperf_suite.regressions.tracking import Nomination
from pyperf_suite.regressions.verdict import Judgement
from pyperf_suite.runner.record import Case

# The arm of a commit: `revision_arm` of the checkout.
ArmOf = Callable[[str], Arm]


class Confirmable(NamedTuple):
    """A nomination with the case that its runs measured."""

    nomination: Nomination
    case: Case

    @property
    def commits(self) -> tuple[str, str]:
        return (self.nomination.change.commit_before, self.nomination.change.commit_after)


def why_not(nomination: Nomination, machine: str) -> str | None:
    """Why a nomination cannot be confirmed here; None where it can."""
    if nomination.series.machine != machine:
        return f"it was measured on {nomination.series.machine}, and this is {machine}"
    if nomination.series.kind != "timing" or nomination.series.probe in FOREIGN_PROBES:
        return "it is no timed case of this suite"
    if is_users(nomination.series.probe):
        return "it is a kernel of your own, and its runs name this suite's commits alone: compare yours with ab"
    before, after = nomination.change.commit_before, nomination.change.commit_after
    if not before or not after:
        return "its runs do not name their commits"
    around = nomination.series.points[nomination.change.index - 1 : nomination.change.index + 1]
    if before == after or any(point.dirty for point in around):
        return "its runs measured uncommitted changes, which are gone"
    return None


def find_case(records: Path, case_id: str) -> Case:
    """The case of that id in a journal. Raises UserError where it is not there, or no case any more."""
    why = f"{records} holds no case {case_id}."
    try:
        with files.open_for_reading(records) as lines:
            for line in lines:
                if case_id.encode() in line:
                    try:
                        record = json.loads(line)
                        if record.get("case_id") == case_id:
                            return Case.from_json(record["case"])
                    except UserError as error:
                        why = str(error)
                    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
                        continue  # a torn or foreign line; another trial's may be whole
    except OSError as error:
        raise UserError(f"{records} cannot be read: {error.strerror}.") from None
    raise UserError(why)


def confirm(
    wanted: Iterable[Confirmable],
    arm_of: ArmOf,
    device: Device,
    rule: RuleFor | None = None,
    seed: int = 0,
    **how: Any,
) -> list[Judgement]:
    """Compare both commits of each nomination; all of the same two commits as one suite, in the order first wanted.

    `how` is as for `compare_arms`. A nomination whose commit is not in the checkout stays what it was, with the reason.
    Raises UserError if a pair cannot be written to the journal.
    """
    suites: dict[tuple[str, str], list[Confirmable]] = {}
    for each in wanted:
        suites.setdefault(each.commits, []).append(each)
    found: list[Judgement] = []
    for (before, after), members in suites.items():
        try:
            old, new = arm_of(before), arm_of(after)
        except UserError as reason:
            found += [unconfirmed(each.nomination, str(reason)) for each in members]
            continue
        cases = [PairedCase.same(each.nomination.series.probe, each.case) for each in members]
        decided = compare_arms(old, new, cases, device, rule, seed, **how)
        found += [_joined(each.nomination, finding) for each, finding in zip(members, decided, strict=True)]
    return found


def unconfirmed(nomination: Nomination, reason: str) -> Judgement:
    """The nomination's own finding, with why it was not rerun."""
    judgement = nomination.judgement()
    return replace(
        judgement,
        sentence=f"{judgement.sentence} It was not rerun: {reason.rstrip('.')}.",
        details={**judgement.details, "not_rerun": reason},
    )


def _joined(nomination: Nomination, decided: Judgement) -> Judgement:
    history = nomination.judgement()
    return replace(
        decided,
        benchmark=history.benchmark,
        sentence=f"Rerun of both commits: {decided.sentence} History: {nomination.sentence}",
        details={**decided.details, "history": dict(history.details)},
    )


def cases_of(
    wanted: Sequence[Nomination], machine: str, records_of: Callable[[Nomination], Path]
) -> tuple[list[Confirmable], list[Judgement]]:
    """Those that can be confirmed, with their cases; and judgements of those that cannot, with the reason."""
    able: list[Confirmable] = []
    unable: list[Judgement] = []
    for nomination in wanted:
        reason = why_not(nomination, machine)
        if reason is None:
            try:
                able.append(Confirmable(nomination, find_case(records_of(nomination), nomination.series.case_id)))
                continue
            except UserError as error:
                reason = str(error)
        unable.append(unconfirmed(nomination, reason))
    return able, unable
