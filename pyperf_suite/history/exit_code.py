"""What a shell, a CI job or a git bisect learns of findings: 0 fine, 1 regression, 3 undecided.

2 is left to usage and data errors, which every command of the suite ends in by a UserError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyperf_suite.history.finding import Finding

FINE, REGRESSION, UNDECIDED = 0, 1, 3

# Each minds all that the one before it minds, and one thing more.
FAIL_ON = ("never", "slower", "failed", "undecided", "nominated")
DEFAULT_FAIL_ON = "undecided"

# The key in a finding's details under which a change that nobody has confirmed says "slower" or "faster".
NOMINATED = "nominated"

Concern = Literal["regression", "failed", "undecided"]


def concern(finding: Finding, fail_on: str = DEFAULT_FAIL_ON) -> Concern | None:
    """What about a finding is minded at that level; None where it is fine.

    `never` minds nothing; `slower` what got slower; `failed` also what could not be measured; `undecided` also what
    stayed open; `nominated` takes a slower change that history shows, though no paired rerun confirmed it, for a
    regression. Raises ValueError for another level.
    """
    level = FAIL_ON.index(fail_on)
    if finding.verdict == "slower" and level >= FAIL_ON.index("slower"):
        return "regression"
    if finding.verdict == "failed" and level >= FAIL_ON.index("failed"):
        return "failed"
    if finding.verdict == "undecided" and level >= FAIL_ON.index("undecided"):
        nominated = finding.details.get(NOMINATED) == "slower"
        return "regression" if nominated and level >= FAIL_ON.index("nominated") else "undecided"
    return None


def exit_code(findings: Iterable[Finding], fail_on: str = DEFAULT_FAIL_ON) -> int:
    """1 where anything minded is a regression, else 3 where anything minded is open or failed, else 0."""
    concerns = {concern(finding, fail_on) for finding in findings} - {None}
    if "regression" in concerns:
        return REGRESSION
    return UNDECIDED if concerns else FINE
