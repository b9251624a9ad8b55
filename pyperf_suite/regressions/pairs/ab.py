"""Old against new by live pairs, as many as it takes to decide by a rule stated before: one benchmark, or a suite."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import random
import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes import is_users
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.journal import Journal
from pyperf_suite.regressions import verdict
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase
from pyperf_suite.regressions.pairs.live_pair import SIDES, ArmFailed, Pace, Pair, end_judges, measure_pair
from pyperf_suite.runner.results import make_folder, new_stamp
from pyperf_suite.runner.workers import WorkerProcess

WritePair = Callable[[Mapping[str, Any]], None]


class PairJournal(Journal):
    """pairs.jsonl of one comparison: a context manager that writes each pair that it is called with."""

    ADVICE = "All earlier pairs are kept; free some space, or name another folder with --results."
    written = 0

    def __call__(self, pair: Mapping[str, Any]) -> None:
        """Write one pair and wait until it is on disk. Raises UserError where the disk refuses."""
        self.write(json.dumps(pair, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        self.written += 1


def comparison_folder(results: Path, machine: str, manifest: Mapping[str, Any], kind: str = "ab") -> Path:
    """Make `<results>/<machine>/<kind>-<stamp>/` with the manifest as `<kind>.json`. Raises UserError if it cannot."""
    now = datetime.datetime.now(datetime.timezone.utc)
    path = results / machine / f"{kind}-{new_stamp(results / machine, now)}-{secrets.token_hex(2)}"
    make_folder(results, path, f"{kind}.json", {"started_at": now.isoformat(timespec="seconds"), **manifest})
    return path


# A clock that differs by more between the sides explains a difference that is no fault of the code.
CLOCK_DIFFERENCE = 0.01
# Share of the wanted time that goes to other guests of a hypervisor before a reader is told.
STOLEN_SHARE = 0.02

Progress = Callable[[PairedCase, Sequence[Pair]], None]
RuleFor = Callable[[PairedCase], verdict.SequentialRule]


@dataclasses.dataclass
class LiveComparison:
    """One benchmark on its way to a verdict; `spin_share` slows each launch of the new arm, as selfcheck does."""

    old: Arm
    new: Arm
    case: PairedCase
    device: Device
    rule: verdict.SequentialRule
    judges: dict[str, WorkerProcess]
    budget_s: float = 30.0
    seed: int = 0
    spin_share: float = 0.0
    journal: WritePair | None = None
    pace: Pace | None = None
    progress: Progress | None = None
    pairs: list[Pair] = dataclasses.field(default_factory=list)
    spent_s: float = 0.0
    prepared_s: float = 0.0
    failure: ArmFailed | None = None
    decision: verdict.Verdict | None = None

    def run(self) -> None:
        """Measure pairs until the rule decides, pairs or budget are used up, or an arm fails."""
        unbuilt = {side: arm.failure for side, arm in zip(SIDES, (self.old, self.new), strict=True) if arm.failure}
        if unbuilt:
            self.failure = ArmFailed(unbuilt, unsupported=False)
        while self.failure is None and not self._is_over():
            self._measure_one()

    def _is_over(self) -> bool:
        if not self.pairs:
            return False
        if self.pairs[-1].static is not None:
            return True
        next_s = self.spent_s + statistics.median([pair.seconds for pair in self.pairs[1:]] or [self.spent_s])
        final = len(self.pairs) >= self.rule.max_pairs or next_s > self.budget_s
        if final or len(self.pairs) in self.rule.looks:
            self.decision = self.rule.decide([pair.log_ratio for pair in self.pairs], final=final)
            return final or self.decision.word != "undecided"
        return False

    def _measure_one(self) -> None:
        """One pair more. A process that is lost once may be the machine's fault; a second in a row is the arm's."""
        begin = time.monotonic()
        number = len(self.pairs)
        for attempt in range(2):
            try:
                pair = measure_pair(
                    self.old,
                    self.new,
                    self.case,
                    self.device,
                    seed=random.Random(f"{self.seed} {self.case.case_id} {number} {attempt}").getrandbits(32),
                    verify=number == 0,
                    spin_share=self.spin_share,
                    pace=self.pace,
                    judges=self.judges if is_users(self.case.old.operator) else None,
                )
            except ArmFailed as failure:
                end_judges(self.judges)
                if number == 0 or attempt == 1:
                    self.failure = failure
                continue
            self.pairs.append(pair)
            break
        self.spent_s += time.monotonic() - begin
        if number == 0 and self.pairs:
            # Templates, and what makes inputs and references, are started once.
            self.prepared_s = self.pairs[0].startup_s
            self.spent_s -= self.prepared_s
        if len(self.pairs) > number:
            if self.journal is not None:
                self.journal(self._line(number, self.pairs[-1]))
            if self.progress is not None:
                self.progress(self.case, self.pairs)

    def _line(self, number: int, pair: Pair) -> dict[str, Any]:
        what = {"probe": self.case.probe, "case_id": self.case.case_id, "pair": number, "log_ratio": pair.log_ratio}
        slowed = {"spin_share": self.spin_share} if self.spin_share else {}
        measured = {name: value for name, value in vars(pair).items() if value is not None}
        return what | slowed | measured | {"old": self.case.old.to_json(), "new": self.case.new.to_json()}

    def judgement(self, as_one_of_many: verdict.Word | None = None) -> verdict.Judgement:
        """The verdict with its details; `as_one_of_many` is the one that allows for the other cases of the suite."""
        if self.failure is not None:
            arms, reasons = {"old": self.old, "new": self.new}, self.failure.reasons
            sentence = "; ".join(
                reason if reason.startswith(arms[side].name) else f"{arms[side].name}: {reason}"
                for side, reason in reasons.items()
            )
            if self.failure.unsupported:
                sentence = f"Nothing to compare with: {sentence}"
            why = {"reasons": reasons, "unsupported": self.failure.unsupported}
            return self._judgement("failed", None, sentence, why)
        if self.pairs[-1].static is not None:
            sides = [{name: one["value"] for name, one in side.items()} for side in self.pairs[-1].static]
            word, sentence, figures = verdict.judge_figures(*sides)
            return self._judgement(word, None, sentence, {"figures": figures})
        decision = self.decision
        assert decision is not None
        word = as_one_of_many or decision.word
        sentence = _sentence(word, decision, self.rule, self.spent_s)
        if word == "undecided" and decision.word != word:
            sentence += f" Alone it would be {decision.word}; as one of several that is not sure enough."
        cautions = self._cautions()
        details: dict[str, Any] = {
            "p_value": decision.p_value,
            "confidence": decision.confidence,
            "further_pairs": decision.further_pairs,
            "old_s": statistics.median(pair.old_s for pair in self.pairs),
            "new_s": statistics.median(pair.new_s for pair in self.pairs),
            "machine": self._machine(),
        }
        return self._judgement(word, decision.ratio, " ".join([sentence, *cautions]), details)

    def _judgement(
        self, word: verdict.Word, ratio: Ratio | None, sentence: str, details: Mapping[str, Any]
    ) -> verdict.Judgement:
        common: dict[str, Any] = {
            "pairs": len(self.pairs),
            "seconds": self.spent_s,
            "prepared_s": self.prepared_s,
            "old": self.old.to_json(),
            "new": self.new.to_json(),
            **({"kernels": dict(zip(SIDES, self.pairs[0].kernels, strict=True))} if self.pairs else {}),
            **({"spin_share": self.spin_share} if self.spin_share else {}),
        }
        return verdict.Judgement(
            self.case.label, self.case.probe, self.case.case_id, word, ratio, self.rule.margin, sentence,
            common | dict(details),
        )  # fmt: skip

    def _machine(self) -> dict[str, float]:
        """Clocks of both sides and stolen time over the pairs, where the machine tells."""
        found: dict[str, float] = {}
        clocks = [pair.machine["clock_hz"] for pair in self.pairs if pair.machine.get("clock_hz")]
        if clocks:
            found |= {f"{side}_clock_hz": statistics.median(clock[side] for clock in clocks) for side in SIDES}
        stolen = [pair.machine.get("steal_share", 0.0) for pair in self.pairs]
        return found | {"steal_share": statistics.fmean(stolen)}

    def _cautions(self) -> list[str]:
        cautions = []
        machine = self._machine()
        if "old_clock_hz" in machine:
            change = machine["new_clock_hz"] / machine["old_clock_hz"] - 1
            if abs(change) > CLOCK_DIFFERENCE:
                cautions.append(
                    f"The GPU's clock was {verdict.percent(change)} under the new one: its power may have changed."
                )
        if machine["steal_share"] > STOLEN_SHARE:
            cautions.append(f"Other guests of this machine took {100 * machine['steal_share']:.0f} % of its time.")
        paths = [kernel.get("path") for kernel in self.pairs[0].kernels]
        if paths[0] != paths[1]:
            cautions.append(f"The path taken changed from {paths[0]} to {paths[1]}.")
        return cautions


def compare_arms(
    old: Arm,
    new: Arm,
    cases: Sequence[PairedCase],
    device: Device,
    rule: verdict.SequentialRule | RuleFor | None = None,
    seed: int = 0,
    **how: Any,
) -> list[verdict.Judgement]:
    """Compare a suite, in random order; the budget is for each benchmark. Judgements come in the order of `cases`.

    Each benchmark is judged by the rule for a suite of this size, and the verdicts must stand together. `how` are the
    further fields of `LiveComparison`. Raises UserError if a pair cannot be written to the journal.
    """
    rule_for = rule if callable(rule) else lambda _: rule or verdict.SequentialRule()
    judges: dict[str, WorkerProcess] = {}
    comparisons = [
        LiveComparison(old, new, case, device, rule_for(case).for_suite(len(cases)), judges, seed=seed, **how)
        for case in cases
    ]
    try:
        for comparison in random.Random(seed).sample(comparisons, len(comparisons)):
            comparison.run()
    finally:
        end_judges(judges)
    decided = {id(each): each.decision for each in comparisons if each.decision is not None}
    together = dict(zip(decided, verdict.suite_words(list(decided.values())), strict=True))
    return [comparison.judgement(together.get(id(comparison))) for comparison in comparisons]


def _sentence(word: verdict.Word, decision: verdict.Verdict, rule: verdict.SequentialRule, seconds: float) -> str:
    ratio, margin = decision.ratio, rule.margin
    interval = verdict.range_text(ratio)
    cost = f"{decision.pairs} {'pair' if decision.pairs == 1 else 'pairs'} in {seconds:.0f} s"
    if word == "equivalent":
        return f"No difference beyond {100 * margin:g} %: {verdict.percent(ratio.value - 1)} ({interval}; {cost})."
    if word in ("slower", "faster"):
        return f"{100 * abs(ratio.value - 1):.1f} % {word} ({interval}; {cost})."
    open_so_far = "Probably slower" if verdict.is_probable(ratio, margin, decision.confidence) else "Undecided"
    start = f"{open_so_far}: {verdict.percent(ratio.value - 1)} ({interval}) after {cost}"
    if decision.word != "undecided":
        return f"{start}."
    each_s = seconds / decision.pairs
    fewest = rule.looks[0]
    if decision.pairs < fewest:
        return f"{start}, where at least {fewest} are needed: --budget {math.ceil(fewest * each_s * 1.2)}."
    if decision.further_pairs is None:
        return f"{start}; it lies too near the margin of {100 * margin:g} % for any number of pairs."
    pairs = "pair" if decision.further_pairs == 1 else "pairs"
    further = f"about {decision.further_pairs} further {pairs} ({decision.further_pairs * each_s:.0f} s)"
    return f"{start}; {further} would decide."
