"""How thoroughly a run measures: the number of processes, and when a case has been sampled enough."""

from __future__ import annotations

from dataclasses import dataclass

from pyperf_suite.errors import UserError
from pyperf_suite.measure.stop_rule import StopRule


@dataclass(frozen=True)
class Profile:
    """One way to run every probe. The process is the unit of statistics: `processes` of them visit each case."""

    name: str
    processes: int
    rule: StopRule
    purpose: str


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("quick", 1, StopRule(relative_half_width=0.03, time_cap_s=0.2), "a first look: one process"),
        Profile(
            "standard",
            3,
            StopRule(relative_half_width=0.01, time_cap_s=0.4),
            "figures to act on: three processes",
        ),
        Profile(
            "full",
            5,
            StopRule(relative_half_width=0.005, time_cap_s=1.5),
            "figures to publish: five processes",
        ),
    )
}


def find_profile(name: str) -> Profile:
    """The profile of that name. Raises UserError that names those there are."""
    if name not in PROFILES:
        raise UserError(f"Unknown profile {name!r}: choose from {', '.join(PROFILES)}.")
    return PROFILES[name]
