"""All series of a store searched for changes: what `track` tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyperf_suite.history.changes.nominations import Nomination, nominations
from pyperf_suite.history.changes.step_detector import FEWEST_POINTS
from pyperf_suite.history.stored.series import Benchmark, Series
from pyperf_suite.history.stored.store import Store

# So many notes of a kind are told one by one.
TOLD = 10


@dataclass
class Tracked:
    """What was found: changes that stand, the most recent first, and the rest, for notes."""

    current: list[Nomination] = field(default_factory=list)
    earlier: list[Nomination] = field(default_factory=list)
    of_the_machine: list[Nomination] = field(default_factory=list)
    searched: int = 0
    too_short: int = 0
    breaks: list[tuple[str, str]] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What a reader should know beside the findings."""
        told = [f"{self.searched} series were searched for changes."]
        if self.too_short:
            told.append(
                f"{self.too_short} more have fewer than {2 * FEWEST_POINTS} points since the last break, of one GPU: "
                "too few for a change to be seen."
            )
        told += _some([f"Not the code: {each.sentence}" for each in self.of_the_machine], "changes of the machine")
        told += _some(
            [f"A break, across which no change is looked for: {what} at {when[:16]}Z." for when, what in self.breaks],
            "breaks",
        )
        undone = sum(each.undone for each in self.earlier)
        if self.earlier:
            older = len(self.earlier) - undone
            kinds = [
                f"{older} older, which --since DATE tells" if older else "",
                f"{undone} made good again" if undone else "",
            ]
            told.append(f"Changes not told: {'; '.join(filter(None, kinds))}.")
        return told


def track(store: Store, benchmarks: Sequence[Benchmark], since: str | None = None) -> Tracked:
    """Search the series of these benchmarks; `since` is ISO 8601, UTC: changes that began earlier are not told."""
    found = Tracked()
    sentinels: dict[str, list[Series]] = {}
    for benchmark in store.benchmarks():
        if benchmark.kind == "sentinel":
            sentinels.setdefault(benchmark.machine, []).append(store.series(benchmark))
    breaks: dict[tuple[str, str], None] = {}
    for benchmark in benchmarks:
        series = store.series(benchmark)
        found.searched += 1
        if series.kind != "static" and _longest_stretch(series) < 2 * FEWEST_POINTS:
            found.searched -= 1
            found.too_short += 1
            continue
        for each in series.breaks if series.kind != "static" else ():
            when = series.points[each.index].started_at
            if not since or when >= since:
                breaks[when[:13], each.what] = None
        for nomination in nominations(series, () if series.kind == "sentinel" else sentinels.get(series.machine, ())):
            _sort_in(found, nomination, since)
    found.current.sort(key=lambda each: each.first.started_at, reverse=True)
    found.breaks = sorted(breaks, reverse=True)
    return found


def _longest_stretch(series: Series) -> int:
    """Points of one GPU between breaks, at most."""
    broken = {each.index for each in series.breaks}
    counts: dict[tuple[int, str], int] = {}
    part = 0
    for index, point in enumerate(series.points):
        part += index in broken
        counts[part, point.unit] = counts.get((part, point.unit), 0) + 1
    return max(counts.values(), default=0)


def _sort_in(found: Tracked, nomination: Nomination, since: str | None) -> None:
    if not nomination.is_recent(since) or nomination.undone:
        found.earlier.append(nomination)
    elif nomination.same_code or nomination.series.kind == "sentinel":
        found.of_the_machine.append(nomination)
    else:
        found.current.append(nomination)


def _some(sentences: Sequence[str], what: str) -> list[str]:
    rest = len(sentences) - TOLD
    return [*sentences[:TOLD], *([f"{rest} more {what} of this kind."] if rest > 0 else [])]
