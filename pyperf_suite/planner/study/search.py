"""A study's grid searched instead of crossed: the guides' procedure, run live.

First the smallest TP and PP with which a single replica fits, then the largest micro-batch, then data parallelism, the
stage of ZeRO and checkpointing. Each step is kept only if live pairs say that it is faster, and rounds go on until one
keeps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pyperf_suite.errors import OUT_OF_MEMORY, UserError
from pyperf_suite.findings.rows import grouped
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record
from pyperf_suite.regressions.verdict import ALPHA, SequentialRule

# Axes varied once a replica fits, in this order; TP, PP and the schedule of a pipeline stay as they fit.
VARIED = ("batch", "data", "zero_stage", "checkpointing", "offload", "attention", "engine")
# A value that lost by more than this share is not tried again after others have changed.
MAX_LOSS_SHARE = 0.1
FEWEST_PAIRS = 2
# A log ratio beyond any measured: what could further pairs still decide?
AT_BEST = -100.0
START, CANDIDATE, INCUMBENT = "start", "candidate", "incumbent"

# Notes of a search on a configuration that it tried.
FITS, DOES_NOT_FIT, FASTER, NOT_FASTER = "fits", "does not fit", "faster", "not faster"

Measure = Callable[[Case, int, Mapping[str, Any]], Record | None]
"""The record of one more experiment of that number, which keeps that note; None once the budget is used up."""


def rule_of(pairs: int) -> SequentialRule:
    """Return the rule of one look after `pairs` pairs: up to eight all have to agree (noise alone: 1 of 2^pairs cases).

    Raises UserError for fewer than two.
    """
    if pairs < FEWEST_PAIRS:
        raise UserError(f"--search decides by at least {FEWEST_PAIRS} pairs of experiments: ask for --experiments 3.")
    return SequentialRule(margin=0.0, alpha=max(ALPHA, 2 * 0.5**pairs), looks=(pairs,), max_pairs=pairs)


def verdict_of(log_ratios: Sequence[float], pairs: int) -> str:
    """Judge whether a candidate is faster; empty as long as further pairs could make it so."""
    missing = [AT_BEST] * (pairs - len(log_ratios))
    if rule_of(pairs).decide([*log_ratios, *missing], final=True).word != FASTER:
        return NOT_FASTER
    return "" if missing else FASTER


def seconds_of(record: Record) -> tuple[float, str]:
    """Seconds of a step; nan where it does not run within the limit of its memory, and then why."""
    if record.outcome != "ok":
        return math.nan, DOES_NOT_FIT if OUT_OF_MEMORY in record.reason else record.outcome
    details, limit = record.kernel["details"], record.sampling.get("memory_limit_bytes", math.inf)
    # On a GPU what torch's allocator reserved, else the resident set.
    if details.get("reserved_bytes", details.get("resident_bytes", 0)) > limit:
        return math.nan, DOES_NOT_FIT
    return record.seconds, ""


@dataclass
class StudySearch:
    """A search over the configurations of one model; `run` makes it. Raises UserError for several models."""

    cases: Sequence[Case]
    measure: Measure
    pairs: int
    best: Case | None = None
    runs: int = 0
    is_over_budget: bool = False
    _step: int = 0
    _experiment: int = -1
    # Cases that lost, or were kept and surpassed; and by what logarithm values of an axis lost.
    _settled: set[str] = field(default_factory=set)
    _lost: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        models = {(p.dimensions, p.seq, p.global_batch, p.dtype) for p in (each.parameters for each in self.cases)}
        if len(models) > 1:
            raise UserError(
                f"--search is of one model, but this grid has {len(models)} (by sizes, seq, global_batch and dtype): "
                "give one value of each."
            )

    def run(self) -> Case | None:
        """The fastest configuration found; None if none fits."""
        for case in self._starts():
            if not self.is_over_budget and case.case_id not in self._settled:
                self._step += 1
                self._experiment += 1
                if not math.isnan(self._visit(case, START, START)):
                    self.best = case
                    break
                self._settled.add(case.case_id)
        before = None
        while self.best is not None and self.best is not before and not self.is_over_budget:
            before = self.best
            for axis in VARIED:
                for candidate in self._candidates(axis, self.best):
                    if not self.is_over_budget and self._is_faster(axis, candidate, self.best):
                        self.best = candidate
        return self.best

    def _starts(self) -> Iterator[Case]:
        """Yield a single replica of each TP and PP, the smallest first, that spares nothing; then the most sparing."""
        cuts = grouped(self.cases, lambda case: (case.parameters.tensor, case.parameters.pipeline))
        for sign in (1, -1):
            starts = [
                min(similar, key=lambda case: (case.parameters.batch, *(sign * each for each in _sparing(case))))
                for similar in cuts.values()
            ]
            # The guides take PP before TP.
            ways = (lambda case: case.parameters.tensor * case.parameters.pipeline, lambda case: case.parameters.tensor)
            yield from sorted(starts, key=lambda case: tuple(way(case) for way in ways))

    def _candidates(self, axis: str, best: Case) -> list[Case]:
        """List what differs from the best in this axis and may be faster; more ranks share the global batch anew."""
        adapted = {axis, "batch"} if axis == "data" else {axis}
        # Micro-batches of the same global batch follow from the rest.
        names = [each.name for each in fields(best.parameters) if each.name != "micro_batches"]
        changed = []
        for case in self.cases:
            differs = {name for name in names if getattr(best.parameters, name) != getattr(case.parameters, name)}
            if axis in differs and differs <= adapted and case.implementation == best.implementation:
                changed.append(case)
        similar = grouped(changed, lambda case: getattr(case.parameters, axis))
        # Take, of cases with other micro-batches, the largest that is no larger than one that fit, else the smallest.
        most = best.parameters.batch
        cases = [
            min(each, key=lambda case: (case.parameters.batch > most, -case.parameters.batch))
            for each in similar.values()
        ]
        far = {lost for lost, apart in self._lost.items() if apart > math.log1p(MAX_LOSS_SHARE)}
        cases = [
            each
            for each in cases
            if each.case_id not in self._settled and (axis, str(getattr(each.parameters, axis))) not in far
        ]
        if axis == "batch":
            # The largest that fits uses the memory that is there; whether it is faster is measured.
            return sorted(cases, key=lambda each: -each.parameters.batch)
        return cases

    def _is_faster(self, axis: str, candidate: Case, best: Case) -> bool:
        """Decide by live pairs, each two experiments in turn, until no further pair could make it faster."""
        self._step += 1
        log_ratios: list[float] = []
        while not (verdict := verdict_of(log_ratios, self.pairs)):
            self._experiment += 1
            pair: dict[str, float] = {}
            # ABBA; the candidate is the first of all, for it may not run.
            for role in (INCUMBENT, CANDIDATE) if len(log_ratios) % 2 else (CANDIDATE, INCUMBENT):
                case = candidate if role == CANDIDATE else best
                pair[role] = self._visit(case, axis, role, against=best.case_id, pairs=self.pairs)
                if math.isnan(pair[role]):
                    if role == CANDIDATE:
                        self._settled.add(candidate.case_id)
                    return False
            log_ratios.append(math.log(pair[CANDIDATE] / pair[INCUMBENT]))
        loser = best if verdict == FASTER else candidate
        self._settled.add(loser.case_id)
        loss = rule_of(self.pairs).decide(log_ratios, final=True).ratio.value
        self._lost[axis, str(getattr(loser.parameters, axis))] = abs(math.log(loss))
        return verdict == FASTER

    def _visit(self, case: Case, axis: str, role: str, **more: Any) -> float:
        """Seconds of a step; nan where it does not run, or the budget is used up."""
        note = {"step": self._step, "axis": axis, "role": role, "of": len(self.cases), **more}
        record = self.measure(case, self._experiment, note)
        if record is None:
            self.is_over_budget = True
            return math.nan
        self.runs += record.outcome != "unsupported"
        return seconds_of(record)[0]


@dataclass(frozen=True)
class SearchStep:
    """One step of a search: what was tried in place of the best so far.

    `change` names the axis with both values, and `verdict` is empty where the run ended first. `speed` is relative to
    the best so far, by live pairs.
    """

    number: int
    case: Case
    change: str
    verdict: str
    runs: int
    of: int
    speed: Quantity | None = None

    @property
    def is_kept(self) -> bool:
        return self.verdict in (FITS, FASTER)


def search_steps(records: Iterable[Record]) -> list[SearchStep]:
    """The path of a search, from its records; none of a run that was no search."""
    latest = {(r.case_id, r.process): r for r in records if isinstance(r.sampling.get("search"), dict)}
    cases = {record.case_id: record.parsed_case() for record in latest.values()}
    steps = grouped(latest.values(), lambda record: record.sampling["search"]["step"])
    return [_search_step(number, own, cases) for number, own in sorted(steps.items())]


def _search_step(number: int, records: Sequence[Record], cases: Mapping[str, Case]) -> SearchStep:
    tried = next(record for record in records if record.sampling["search"]["role"] != INCUMBENT)
    note, case = tried.sampling["search"], cases[tried.case_id]
    times: dict[int, dict[str, float]] = {}
    for record in records:
        times.setdefault(record.process, {})[record.sampling["search"]["role"]] = seconds_of(record)[0]
    pairs = [times[process] for process in sorted(times) if len(times[process]) == 2]
    log_ratios = [math.log(pair[CANDIDATE] / pair[INCUMBENT]) for pair in pairs]
    verdict = next((why for record in records if (why := seconds_of(record)[1])), "")
    speed, values = None, [getattr(case.parameters, note["axis"], "")]
    if before := cases.get(note.get("against", "")):
        verdict = verdict or verdict_of(log_ratios, note["pairs"])
        values.insert(0, getattr(before.parameters, note["axis"]))
        if verdict in (FASTER, NOT_FASTER):
            ratio = rule_of(note["pairs"]).decide(log_ratios, final=True).ratio
            speed = Quantity(1 / ratio.value, "x", 1 / ratio.high, 1 / ratio.low, len(log_ratios))
    change = f"{note['axis'].replace('_', ' ')} {' to '.join(map(str, values))}".strip()
    runs = sum(record.outcome != "unsupported" for record in records)
    return SearchStep(number, case, change, verdict or ("" if before else FITS), runs, note["of"], speed)


def _sparing(case: Case) -> tuple[int, ...]:
    """Rank by what a configuration does to hold less, data-parallel ranks first; 0 and 1 are nothing."""
    p = case.parameters
    return (p.data, p.zero_stage, p.checkpointing.kind != "none")
