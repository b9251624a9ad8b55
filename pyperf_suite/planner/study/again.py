"""A study repeated: which rows came out as before, which changed by how much, and whether the order is the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Quantity, Remark, Table, remark
from pyperf_suite.findings.rows import Column, table
from pyperf_suite.planner.study import rank_correlation
from pyperf_suite.planner.study.results import StudyResult, results_of
from pyperf_suite.regressions.compare import RunNoise, difference
from pyperf_suite.regressions.verdict import Verdict, Word, judge, suite_words
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import RunFolder, open_run

# A row is reproduced where it changed by less, unless somebody says otherwise.
MARGIN = 0.05
# What runs differ by themselves is the question here, and so no part of the noise.
NO_NOISE = RunNoise(0.0, math.inf, "not counted")


@dataclass(frozen=True)
class Repeated:
    """A configuration in both runs; `word` is the verdict on its time as one of all rows."""

    before: StudyResult
    now: StudyResult
    verdict: Verdict
    word: Word

    @property
    def said(self) -> str:
        return {"equivalent": "reproduced", "slower": "changed", "faster": "changed"}.get(self.word, "undecided")

    @property
    def change(self) -> Quantity:
        """Of samples per second."""
        ratio = self.verdict.ratio
        processes = min(len(self.before.rates), len(self.now.rates))
        return Quantity(1 / ratio.value - 1, "+%", 1 / ratio.high - 1, 1 / ratio.low - 1, processes)


def find_study(name: str, results: Path, machine: str) -> RunFolder:
    """The finished study that a person names: `latest`, a run's name, or its folder.

    Raises UserError where there is none, it is no run of `study`, or it was measured on another machine.
    """
    folder = Path(name)
    if name == "latest":
        found = sorted((results / machine).glob("*/study.png"))
        if not found:
            raise UserError(f"There is no study in {results / machine}: run one with `pyperf-suite study`.")
        folder = found[-1].parent
    elif not (folder / "run.json").exists():
        folder = results / machine / name
    run = open_run(folder)
    words = run.manifest.get("asked", [])
    if run.manifest.get("probes") != ["study"] or "steps after" not in str(run.manifest.get("profile")):
        raise UserError(f"{folder} was not measured by `pyperf-suite study`: --again repeats a study.")
    if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
        raise UserError(f"{folder / 'run.json'} does not say what was requested: start the study anew.")
    if (measured_on := run.path.resolve().parent.name) != machine:
        raise UserError(f"{name} was measured on {measured_on}, but this is {machine}: repeat it on that machine.")
    return run


def repeated(old: Sequence[Record], new: Sequence[Record], margin: float = MARGIN) -> list[Repeated]:
    """Every configuration that both runs timed, the fastest of the new run first."""
    before = {each.case.case_id: each for each in results_of(old) if each.timed}
    both = [(before[now.case.case_id], now) for now in results_of(new) if now.timed and now.case.case_id in before]
    verdicts = [_judged(*pair, margin) for pair in both]
    together = zip(both, verdicts, suite_words(verdicts), strict=True)
    return [Repeated(*pair, verdict, word) for pair, verdict, word in together]


def _judged(before: StudyResult, now: StudyResult, margin: float) -> Verdict:
    """By the means of experiments, which are the unit; of a single one nothing is known of their spread."""
    old, new = ([1 / rate for rate in each.rates] for each in (before, now))
    found = difference(old, new, NO_NOISE)
    if min(len(old), len(new)) > 1:
        return judge(found, margin)
    return Verdict("undecided", judge(found, margin, may_decide=False).ratio, 1.0, 0.0)


def findings_of_again(
    name: str, old: Sequence[Record], new: Sequence[Record], margin: float
) -> Iterator[Remark | Table]:
    """What was reproduced of the run of that name."""
    rows = repeated(old, new, margin)
    if not rows:
        yield remark("No configuration was timed both now and in {name}", kind="caution", name=name)
        return
    counts: dict[str, Any] = {word: sum(each.said == word for each in rows) for word in ("reproduced", "undecided")}
    changed = [each for each in rows if each.said == "changed"]
    sentence = (
        "Of {rows} configurations of {name}, {reproduced} came out as before within {margin:%}, {count} changed and "
        "{undecided} are undecided"
    )
    yield remark(sentence, rows=len(rows), name=name, margin=margin, count=len(changed), **counts)
    if changed:
        worst = max(changed, key=lambda each: abs(each.change.value))
        yield remark("{configuration} changed most: {change}", configuration=worst.now.name, change=worst.change)
    old_order = sorted(rows, key=lambda each: -each.before.rate)
    moved = sum(one is not other for one, other in zip(rows, old_order, strict=True))
    order = rank_correlation([each.before.rate for each in rows], [each.now.rate for each in rows])
    ranking = "The order of configurations is the same" if not moved else "{moved} of {rows} changed place in the order"
    ranking += "" if order is None else "; its rank correlation with the earlier one is {order} (Spearman)"
    first = "; the fastest is {now}" + (" again" if rows[0] is old_order[0] else ", before it was {then}")
    names: dict[str, Any] = {"now": rows[0].now.name, "then": old_order[0].before.name}
    yield remark(ranking + first, moved=moved, rows=len(rows), order=order, **names)
    yield table(f"Compared with {name}", COLUMNS, rows)


COLUMNS = (
    Column("configuration", lambda each: each.now.name, priority=2),
    Column("micro-batch", lambda each: each.now.parameters.batch, priority=0),
    Column("before", lambda each: each.before.rate, "samples/s"),
    Column("now", lambda each: each.now.rate, "samples/s"),
    Column("change", "change", "+%"),
    Column("verdict", "said", priority=2),
)
