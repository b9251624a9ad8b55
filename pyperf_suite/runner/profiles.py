"""How thoroughly a run measures: the number of processes, how long a case warms up, and when it is sampled enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.errors import UserError, offer
from pyperf_suite.measure.power import PAUSE_SHARE, SettleRule
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.record.interval import UNDISTURBED, USUAL

# Work of a CPU before a sustained measurement begins. A GPU works until its clock has settled, and is then sampled for
# SUSTAINED_SAMPLES_S, in blocks that leave it as few pauses.
SUSTAINED_S = 2.0
SUSTAINED_SAMPLES_S = 1.0

# Part of the time for samples that each of two visits gets: two short ones say more of another run than a long one.
VISIT_SHARE_OF_CAP = 0.3


@dataclass(frozen=True)
class Effort:
    """Limits of one trial of a case for warm-up and samples; its `processes` share the case's checks."""

    warm_up: SteadyRule
    stop: StopRule
    processes: int = 1

    def sustained(self, settles: bool = False) -> Effort:
        """The same after SUSTAINED_S of launches without a pause, or once a GPU's clock settles, which has its rule."""
        if not settles:
            warm_up = replace(self.warm_up, min_time_s=SUSTAINED_S, time_cap_s=2 * SUSTAINED_S)
            return replace(self, warm_up=warm_up).for_median()
        cap_s, block_s = max(self.stop.time_cap_s, SUSTAINED_SAMPLES_S), SettleRule.block_s
        # The interval is looked at once, when time is up.
        stop = replace(self.stop, time_cap_s=cap_s, block_s=block_s, checkpoint_growth=1e9)
        return replace(self, stop=stop).for_median()

    def per_visit(self) -> Effort:
        """The same for one of two visits."""
        warm_up, stop = self.warm_up, self.stop
        return replace(
            self,
            warm_up=replace(warm_up, time_cap_s=max(warm_up.min_time_s, warm_up.time_cap_s / 2)),
            stop=replace(stop, time_cap_s=VISIT_SHARE_OF_CAP * stop.time_cap_s),
        )

    def for_median(self) -> Effort:
        """The same, which reports the median: of a GPU a low quantile would be its boost clock's best moments."""
        return replace(self, stop=replace(self.stop, quantile=USUAL))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Effort:
        return cls(SteadyRule(**data["warm_up"]), StopRule(**data["stop"]), data["processes"])

    @property
    def seconds_at_most(self) -> float:
        """Warm-up and samples together, for launches that are short compared with the caps."""
        return self.warm_up.time_cap_s + self.stop.time_cap_s

    def beside_s(self, mode: str) -> float:
        """Seconds on a GPU besides these: of a burst its pauses at most, of a load what it takes at least to settle."""
        return SettleRule.min_time_s if mode == "sustained" else PAUSE_SHARE * self.stop.time_cap_s


@dataclass(frozen=True)
class Profile:
    """One way to run every probe. The process is the unit of statistics: `processes` of them measure each case."""

    name: str
    processes: int
    effort: Effort
    purpose: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "effort", replace(self.effort, processes=self.processes))


def _undisturbed(relative_half_width: float, time_cap_s: float) -> StopRule:
    """Return the rule for the undisturbed time of a launch: it takes as many slices as show it."""
    return StopRule(
        relative_half_width,
        confidence=0.9,
        min_samples=6,
        min_effective_samples=6,
        time_cap_s=time_cap_s,
        quantile=UNDISTURBED,
    )


QUICK = Profile(
    "quick",
    processes=1,
    effort=Effort(SteadyRule(min_time_s=0.02, time_cap_s=0.04), _undisturbed(relative_half_width=0.08, time_cap_s=0.2)),
    purpose="a first look",
)
STANDARD = Profile(
    "standard",
    processes=3,
    effort=Effort(SteadyRule(time_cap_s=0.2), _undisturbed(relative_half_width=0.01, time_cap_s=0.4)),
    purpose="figures to act on",
)
FULL = Profile(
    "full",
    processes=5,
    effort=Effort(SteadyRule(time_cap_s=0.3), _undisturbed(relative_half_width=0.005, time_cap_s=1.0)),
    purpose="figures to publish",
)

PROFILES = {profile.name: profile for profile in (QUICK, STANDARD, FULL)}


def find_profile(name: str) -> Profile:
    """The profile of that name. Raises UserError that names the nearest, or those there are."""
    if name not in PROFILES:
        raise UserError(f"Unknown profile {name[:80]!r}: {offer(name, PROFILES)}")
    return PROFILES[name]
