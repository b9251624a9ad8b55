"""A summary has the largest certain effects first, then claims that fail, then what is undecided.

What makes a run doubtful is found in its records, and nothing is said of a sound one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.findings.data import Claim, ClaimVerdict, Findings, Remark, remark
from pyperf_suite.findings.summary import cautions_of, failures_of, fitness_of, summary_of
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.record import Record
from pyperf_suite.render import text
from pyperf_suite.workloads.matmul import MatmulParameters
from tests import records as made_up

TWICE = Claim("twice as fast", "A Guide", 1.9, 2.1)


def effect(name: str, value: float, width: float = 0.01, processes: int = 3) -> Remark:
    ratio = Ratio(value, value - width, value + width, processes)
    return remark(f"{name} is {{faster}} as fast", effect="faster", faster=ratio)


def judged(claim: Claim, value: float, processes: int = 3) -> ClaimVerdict:
    return claim.judge("it is {measured}", Ratio(value, value - 0.05, value + 0.05, processes))


def points(*remarks: Remark | ClaimVerdict) -> list[str]:
    return [each.message.template if isinstance(each.message, Remark) else each.message.claim.text
            for each in summary_of({"probe": Findings(remarks)})]  # fmt: skip


def test_claims_that_fail_come_before_open_ones_and_each_claim_once() -> None:
    open_one = Claim("no slower", "A Guide", 1.0, 2.0).judge("it is {measured}", Ratio(1.0, 0.9, 1.1, 3))
    message = points(open_one, judged(TWICE, 3.0), judged(TWICE, 5.0), effect("fast", 2.0))
    assert message[:2] == ["fast is {faster} as fast", "twice as fast"]
    assert "undecided" in message[2]


BUSY = {"elapsed_s": 1.0, "process_cpu_s": 0.5, "cpu_busy_s": 2.0}


def a_record(
    kind: str = "timing", outcome: str = "ok", seconds: float = 1.0, converged: bool = True, **quality: object
) -> Record:
    case = Case("matmul", MatmulParameters(1, 2, 3, Schedule("library", 1)), "torch")
    fields = {"kind": kind, "outcome": outcome, "quality": {"converged": converged} | quality}
    return made_up.a_record(case, seconds, reason="" if outcome == "ok" else "because", **fields)


def subjects(findings: dict[str, Findings], records: list[Record] | None = None) -> list[str]:
    return [text.point(each) for each in summary_of(findings, records or []) if each.kind == "subject"]


def test_each_subject_has_a_line_found_or_not_and_says_what_it_would_cost_to_decide() -> None:
    law = remark("a head takes {x:us}", kind="law", x=2e-6)
    noise = effect("noise", 1.5, 0.6)
    findings = {
        "collectives": Findings((remark("busbw is 3 GB/s"), remark("and a straggler"))),
        "other": Findings((effect("other", 9.0),)),
        "attention_heads": Findings((remark("unsure", kind="caution"), law)),
        "tile_wave": Findings((effect("small", 1.5), effect("a step", 2.0))),
        "alignment": Findings((noise, remark("unsure", kind="caution"))),
    }
    records = [replace(a_record(), probe="alignment", trial_s=25.0)]
    first, second, third, fourth = subjects(findings, records)
    assert first.startswith("a step is 2")
    assert second.startswith("What odd sizes cost does not stand out of the noise here; run alignment ")
    assert second.endswith("--profile standard decides, in about 3 min")
    assert (third, fourth) == ("a head takes 2 us", "busbw is 3 GB/s")
    said = [text.point(each) for each in summary_of(findings, records)]
    assert len(said) == len(set(said)), "no line twice"
    assert any(each.startswith("other is 9") for each in said)
    vague = effect("padding", 1.4, 1.3)
    [second] = subjects({"other": findings["other"], "alignment": Findings((vague,))})
    assert "does not stand out of the noise" in second, "a ratio that spans more than four times says nothing"
    assert subjects({"alignment": Findings((noise,))}) == [], "a run of one probe has its findings on the screen"


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([a_record(), a_record(converged=False)], "Fit for use: the machine kept its speed; 1 of 2"),
        ([a_record(converged=False)], "Not fit to act on, only for a first look: 0 of 1 measurements"),
        (
            [a_record("sentinel"), a_record(), a_record("sentinel", seconds=1.25)],
            "the machine's speed changed by 25 %",
        ),
        ([a_record(**BUSY, cpu_steal_s=0.0)], "look: other processes kept 1.5 cores busy"),  # type: ignore[arg-type]
    ],
)
def test_a_run_says_first_whether_its_figures_are_fit_for_use_and_why_not(records: list[Record], sentence: str) -> None:
    fitness = fitness_of(records)
    assert fitness is not None
    assert sentence in text.sentence(fitness)
    assert fitness_of([a_record("sentinel"), a_record(outcome="failed")]) is None


@pytest.mark.parametrize(
    ("records", "values"),
    [
        ([a_record(outcome="unsupported")], {"count": 1, "reason": "because"}),
        ([a_record(converged=False), a_record()], {"loose": 1, "measured": 2}),
        ([a_record(kept_despite=["power cap"]), a_record()], {"count": 1, "measured": 2, "reasons": "power cap"}),
        ([a_record("sentinel"), a_record("sentinel", seconds=1.25)], {"drift": 0.25}),
        ([a_record(before={"allowed_cores": n}) for n in (8, 8, 3)], {"most": 8, "cores": 3}),
        ([a_record(**BUSY, cpu_steal_s=0.0)], {"others": 1.5}),  # type: ignore[arg-type]
        ([a_record(**BUSY | {"cpu_busy_s": 0.5}, cpu_steal_s=0.6)], {"stolen": 0.6}),  # type: ignore[arg-type]
    ],
)
def test_what_makes_figures_doubtful_is_said_with_its_size(records: list[Record], values: dict[str, Any]) -> None:
    of_the_run, of_probes = cautions_of(records, [""])
    (caution,) = [*of_the_run, *of_probes[""]]
    assert caution.kind == "caution"
    assert {name: getattr(caution.values[name], "value", caution.values[name]) for name in values} == values


def ended(n: int, outcome: str = "failed", reason: str = "because", implementation: str = "native") -> Record:
    """A trial of the case with that n."""
    case = Case("matmul", MatmulParameters(1, n, 3, Schedule("library", 1)), implementation)
    return made_up.a_record(case, outcome=outcome, reason=reason if outcome != "ok" else "")


def test_what_failed_is_named_with_the_first_reason_once_for_each_cause() -> None:
    same = [ended(n, reason=f"bench.py:7: it took {n} GB") for n in range(2, 7)]
    first, second = failures_of([ended(1, "ok"), *same, ended(9, reason="bench.py:8: it took 9 GB")])
    assert isinstance(first.message, Remark)
    assert (first.kind, first.message.values["count"], first.message.values["cases"]) == ("failed", 5, 7)
    assert first.message.values["reason"] == "bench.py:7: it took 2 GB"
    assert [f"n={n} " in str(first.message.values["names"]) for n in range(2, 7)] == [True, True, True, False, False]
    assert isinstance(second.message, Remark)
    assert second.message.values["count"] == 1


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([a_record("sentinel", outcome="failed"), ended(1, "unsupported", "no GPU")], "because"),
        ([a_record("sentinel"), ended(1, "unsupported", "no GPU")], "no GPU"),
    ],
)
def test_why_nothing_was_measured_is_said(records: list[Record], words: str) -> None:
    (point,) = failures_of(records)
    assert isinstance(point.message, Remark)
    assert point.message.values["reason"] == words
