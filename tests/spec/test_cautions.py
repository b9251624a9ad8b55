"""What makes a run doubtful is found in its records, and nothing is said of a sound one."""

from __future__ import annotations

from typing import Any

import pytest

from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.spec.summary import cautions_of
from pyperf_suite.workloads.matmul import MatmulParameters
from tests import records as made_up

BUSY = {"elapsed_s": 1.0, "process_cpu_s": 0.5, "cpu_busy_s": 2.0}


def a_record(
    kind: str = "timing", outcome: str = "ok", seconds: float = 1.0, converged: bool = True, **quality: object
) -> Record:
    case = Case("matmul", MatmulParameters(1, 2, 3, Schedule("library", 1)), "torch")
    fields = {"kind": kind, "outcome": outcome, "quality": {"converged": converged} | quality}
    return made_up.a_record(case, seconds, reason="" if outcome == "ok" else "because", **fields)


def test_a_sound_run_needs_no_caution() -> None:
    idle = BUSY | {"cpu_busy_s": 0.55}
    records = [a_record("sentinel"), a_record(**idle, cpu_steal_s=0.01), a_record("sentinel", seconds=1.01)]  # type: ignore[arg-type]
    assert cautions_of(records, [""]) == ([], {"": []})


@pytest.mark.parametrize(
    ("records", "values"),
    [
        ([a_record(outcome="failed")] * 2, {"count": 2, "outcome": "failed", "reason": "because"}),
        ([a_record(outcome="unsupported")], {"count": 1, "outcome": "unsupported"}),
        ([a_record(converged=False), a_record()], {"loose": 1, "measured": 2}),
        ([a_record(kept_despite=["power cap"]), a_record()], {"count": 1, "measured": 2, "reasons": "power cap"}),
        ([a_record("sentinel"), a_record("sentinel", seconds=1.25)], {"drift": 0.25}),
        ([a_record(**BUSY, cpu_steal_s=0.0)], {"others": 1.5}),  # type: ignore[arg-type]
        ([a_record(**BUSY | {"cpu_busy_s": 0.5}, cpu_steal_s=0.6)], {"stolen": 0.6}),  # type: ignore[arg-type]
    ],
)
def test_what_makes_figures_doubtful_is_said_with_its_size(records: list[Record], values: dict[str, Any]) -> None:
    of_the_run, of_probes = cautions_of(records, [""])
    (caution,) = [*of_the_run, *of_probes[""]]
    assert caution.kind == "caution"
    assert {name: getattr(caution.values[name], "value", caution.values[name]) for name in values} == values


def test_cases_touch_their_probe_and_those_of_no_probe_that_is_shown_the_whole_run() -> None:
    records = [a_record(converged=False), a_record("sentinel"), a_record("sentinel", seconds=1.25)]
    of_the_run, of_probes = cautions_of(records, ["", "other"])
    assert [[*each.values] for each in of_the_run] == [["drift"]]
    assert [[*each.values] for each in of_probes[""]] == [["loose", "measured"]]
    assert [[*each.values] for each in cautions_of(records, ["other"])[0]] == [["drift"], ["loose", "measured"]]
