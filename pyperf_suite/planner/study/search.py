"""A study's grid searched instead of crossed: the guides' procedure, run live.

First the smallest TP and PP with which a single replica fits, then the largest micro-batch, then data parallelism, the
stage of ZeRO and checkpointing. Each step is kept only if live pairs say that it is faster, and rounds go on until one
keeps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

from pyperf_suite.errors import OUT_OF_MEMORY, UserError
from pyperf_suite.planner.study.results import DOES_NOT_FIT, FASTER, FITS, NOT_FASTER, used_bytes
from pyperf_suite.regressions.verdict import ALPHA, SequentialRule
from pyperf_suite.runner.record import Case, Record

# What is varied once a replica fits, in this order; TP, PP and the schedule of a pipeline stay as they fit.
VARIED = ("batch", "data", "zero_stage", "checkpointing", "offload", "attention", "engine")
# A value that lost by more than this share is not tried again after others have changed.
FAR = 0.1
FEWEST_PAIRS = 2
# A log ratio beyond any measured: what could further pairs still decide?
AT_BEST = -100.0
START, CANDIDATE, INCUMBENT = "start", "candidate", "incumbent"

Answer = Mapping[str, Any]
Note = Callable[[Answer], Mapping[str, Any]]
"""What a record is to say of the search, once its worker has answered."""
Measure = Callable[[Case, int, Note], Record | None]
"""The record of one more experiment of that number, None once the budget is used up."""


def rule_of(pairs: int) -> SequentialRule:
    """One look after so many pairs: with up to eight all have to agree, which noise alone does in 1 of 2^pairs cases.

    Raises UserError for fewer than two.
    """
    if pairs < FEWEST_PAIRS:
        raise UserError(f"--search decides by at least {FEWEST_PAIRS} pairs of experiments: ask for --experiments 3.")
    return SequentialRule(margin=0.0, alpha=max(ALPHA, 2 * 0.5**pairs), looks=(pairs,), max_pairs=pairs)


@dataclass
class StudySearch:
    """A search over the configurations of one model; `run` makes it.

    No rank may hold more than `limit_bytes`. Raises UserError for configurations of several models.
    """

    cases: Sequence[Case]
    measure: Measure
    pairs: int
    limit_bytes: float = math.inf
    best: Case | None = None
    runs: int = 0
    is_over_budget: bool = False
    _step: int = 0
    _experiment: int = -1
    # Cases that lost, or were kept and surpassed; and by what logarithm values of an axis lost.
    _settled: set[str] = field(default_factory=set)
    _lost: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rule = rule_of(self.pairs)
        models = {(p.dimensions, p.seq, p.global_batch, p.dtype) for p in (each.parameters for each in self.cases)}
        if len(models) > 1:
            raise UserError(
                f"--search is of one model, but this grid has {len(models)} (by sizes, seq, global_batch and dtype): "
                "give one value of each."
            )

    def run(self) -> Case | None:
        """The fastest configuration found; None if none fits."""
        self.best = next(filter(self._fits, self._starts()), None)
        before = None
        while self.best is not None and self.best is not before and not self.is_over_budget:
            before = self.best
            for axis in VARIED:
                for candidate in self._candidates(axis, self.best):
                    if not self.is_over_budget and self._is_faster(axis, candidate, self.best):
                        self.best = candidate
        return self.best

    def _starts(self) -> Iterator[Case]:
        """Of each TP and PP, the smallest first, a single replica that spares nothing; then those that spare most."""
        cuts: dict[tuple[int, int], list[Case]] = {}
        for case in self.cases:
            cuts.setdefault((case.parameters.tensor, case.parameters.pipeline), []).append(case)
        for sign in (1, -1):
            starts = [
                min(similar, key=lambda case: (case.parameters.batch, *(sign * each for each in _sparing(case))))
                for similar in cuts.values()
            ]
            # The guides take PP before TP.
            ways = (lambda case: case.parameters.tensor * case.parameters.pipeline, lambda case: case.parameters.tensor)
            yield from sorted(starts, key=lambda case: tuple(way(case) for way in ways))

    def _fits(self, case: Case) -> bool:
        if self.is_over_budget or case.case_id in self._settled:
            return False
        self._step += 1
        self._experiment += 1
        seconds = self._visit(case, START, START, lambda _, why: {"verdict": why or FITS})
        if seconds is None:
            self._settled.add(case.case_id)
        return seconds is not None

    def _candidates(self, axis: str, best: Case) -> list[Case]:
        """What differs from the best in this axis and may be faster; more ranks share the global batch anew."""
        adapted = {axis, "batch"} if axis == "data" else {axis}
        similar: dict[Any, list[Case]] = {}
        for case in self.cases:
            if axis in (changed := _differences(best, case)) and changed <= adapted:
                similar.setdefault(getattr(case.parameters, axis), []).append(case)
        # Of those with other micro-batches the largest that is no larger than what was found to fit, else the smallest.
        most = best.parameters.batch
        found = [
            min(each, key=lambda case: (case.parameters.batch > most, -case.parameters.batch))
            for each in similar.values()
        ]
        found = [each for each in found if each.case_id not in self._settled and not self._is_far(axis, each)]
        if axis == "batch":
            # The largest that fits uses the memory that is there; whether it is faster is measured.
            return sorted(found, key=lambda each: -each.parameters.batch)
        return found

    def _is_far(self, axis: str, case: Case) -> bool:
        return self._lost.get(_value(axis, case), 0.0) > math.log1p(FAR)

    def _is_faster(self, axis: str, candidate: Case, best: Case) -> bool:
        """By live pairs, each two experiments in turn; it ends as soon as no further pair could make it faster."""
        self._step += 1
        common = {"against": best.case_id}
        log_ratios: list[float] = []
        while self._can_win(log_ratios) and len(log_ratios) < self.pairs:
            self._experiment += 1
            pair: dict[str, float] = {}
            # ABBA; the candidate is the first of all, for it may not run.
            for role in (INCUMBENT, CANDIDATE) if len(log_ratios) % 2 else (CANDIDATE, INCUMBENT):
                note = partial(self._noted, common, log_ratios, pair, role)
                seconds = self._visit(candidate if role == CANDIDATE else best, axis, role, note)
                if seconds is None:
                    if role == CANDIDATE:
                        self._settled.add(candidate.case_id)
                    return False
                pair[role] = seconds
            log_ratios.append(math.log(pair[CANDIDATE] / pair[INCUMBENT]))
        is_faster = self._can_win(log_ratios)
        loss = abs(math.log(self._rule.decide(log_ratios, final=True).ratio.value))
        loser = best if is_faster else candidate
        self._settled.add(loser.case_id)
        self._lost[_value(axis, loser)] = loss
        return is_faster

    def _can_win(self, log_ratios: Sequence[float]) -> bool:
        missing = [AT_BEST] * (self.pairs - len(log_ratios))
        return self._rule.decide([*log_ratios, *missing], final=True).word == FASTER

    def _noted(
        self,
        common: Mapping[str, Any],
        log_ratios: Sequence[float],
        pair: Mapping[str, float],
        role: str,
        seconds: float | None,
        why: str,
    ) -> dict[str, Any]:
        """What a record of a pair says; the one that decides the step has the verdict too."""
        if seconds is None:
            return {**common, "verdict": why}
        seen = {**pair, role: seconds}
        if len(seen) < 2:
            return dict(common)
        ratios = [*log_ratios, math.log(seen[CANDIDATE] / seen[INCUMBENT])]
        may_win = self._can_win(ratios)
        if may_win and len(ratios) < self.pairs:
            return dict(common)
        ratio = self._rule.decide(ratios, final=True).ratio
        speed = [1 / ratio.value, 1 / ratio.high, 1 / ratio.low]
        return {**common, "verdict": FASTER if may_win else NOT_FASTER, "pairs": len(ratios), "speed": speed}

    def _visit(
        self, case: Case, axis: str, role: str, note: Callable[[float | None, str], Mapping[str, Any]]
    ) -> float | None:
        """Seconds of a step; None where it does not run, or the budget is used up."""
        common = {"step": self._step, "axis": axis, "role": role, "of": len(self.cases)}
        record = self.measure(case, self._experiment, lambda answer: {**common, **note(*self._seen(answer))})
        if record is None:
            self.is_over_budget = True
            return None
        self.runs += record.outcome != "unsupported"
        return self._seen(asdict(record))[0]

    def _seen(self, answer: Answer) -> tuple[float | None, str]:
        """Seconds of a step, None without, and then why."""
        if answer["outcome"] != "ok":
            return None, DOES_NOT_FIT if OUT_OF_MEMORY in answer["reason"] else answer["outcome"]
        details = answer["kernel"]["details"]
        if used_bytes(details) > self.limit_bytes:
            return None, DOES_NOT_FIT
        return answer["metrics"]["time"]["value"], ""


def _sparing(case: Case) -> tuple[int, ...]:
    """What a configuration does to hold less, data-parallel ranks first; 0 and 1 are nothing."""
    p = case.parameters
    return (p.data, p.zero_stage, p.checkpointing.kind != "none")


def _differences(case: Case, other: Case) -> set[str]:
    """What two configurations differ in; of the same global batch micro-batches follow from the rest."""
    names = [each.name for each in fields(case.parameters) if each.name != "micro_batches"]
    found = {name for name in names if getattr(case.parameters, name) != getattr(other.parameters, name)}
    return found | ({"implementation"} if case.implementation != other.implementation else set())


def _value(axis: str, case: Case) -> tuple[str, str]:
    return axis, str(getattr(case.parameters, axis))
