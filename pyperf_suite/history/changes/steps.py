"""Where a series is shown to have stepped: what change detection nominates, and every change of an exact figure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from pyperf_suite.history.stored.series import Series


@dataclass(frozen=True)
class Step:
    """From point `index` on, those of the same unit lie at another level: the medians on both sides.

    The commits are those of the last point before and of the first one after, empty where unknown.
    """

    index: int
    before: float
    after: float
    commit_before: str = ""
    commit_after: str = ""

    @property
    def effect(self) -> str:
        """By how much it moved, as in +4.3%; from 0 there is no share to tell."""
        return f"{self.after / self.before - 1:+.1%}" if self.before else f"from 0 to {self.after:g}"


def steps_of(series: Series) -> list[Step]:
    """The steps of a series, by index. What is nominated is not confirmed: only a paired rerun does that."""
    points = series.points
    if series.kind == "static":
        return [
            Step(index, last.value, point.value, last.commit, point.commit)
            for index, (last, point) in enumerate(itertools.pairwise(points), 1)
            if last.value != point.value
        ]
    if not all(point.value > 0 for point in points):
        return []  # no time: other projects' files may hold zeros
    from pyperf_suite.history.changes.changepoints import find_changes

    changes = find_changes(
        series.values,
        [point.commit for point in points],
        [point.unit for point in points],
        [each.index for each in series.breaks],
    )
    return [
        Step(change.index, change.before_s, change.after_s, change.commit_before, change.commit_after)
        for change in changes
    ]
