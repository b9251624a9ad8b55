"""Findings on loaders: who waits, what helps, what binds, and what a start costs."""

from __future__ import annotations

import pytest

from pyperf_suite.findings.data import Findings, Remark
from pyperf_suite.laws.training.data_parallel import InputPipelineLaw
from pyperf_suite.probes.input_pipeline import MORE_DO_NOT, PROBE
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.training.input_pipeline import InputPipelineParameters
from tests.records import judged, lines, records, remarks

CORES = 4
START_S, NEXT_S = 0.060, 0.004
# Processes differ by so much each, all cases alike.
DRIFT = 0.01


def visits(parameters: InputPipelineParameters, load_s: float, scale: float = 1.0, cores: int = CORES) -> list[Record]:
    """Three processes' records of a machine that keeps to the law; `scale` makes this one case slower or faster."""
    step_s = parameters.step_us * 1e-6
    law = InputPipelineLaw(load_s, step_s, cores, parameters.model == "host")
    iteration_s, starts = law.seconds(parameters.loaders) * scale, parameters.loaders > 0
    metrics = {
        "wait": iteration_s - step_s,
        "model": step_s,
        "starved": (iteration_s - step_s) / iteration_s,
        "first_batch": load_s + (START_S if starts else 0.0),
        "next_epoch": load_s + (NEXT_S if parameters.persistent else START_S) * starts,
    }
    case, fields = Case("input_pipeline", parameters, "torch"), {"metrics": metrics, "details": {"cores": cores}}
    return records([case], parameters.iterations * iteration_s, wobble=DRIFT, **fields)


def over_loaders(load_s: float, loaders=(0, 1, 2, 4), **more) -> list[Record]:
    return [each for count in loaders for each in visits(InputPipelineParameters(loaders=count), load_s, **more)]


def message(findings: Findings, name: str) -> Remark:
    (remark,) = remarks(findings, name)
    return remark


def rows(findings: Findings) -> list[dict]:
    return lines(findings, "Iterations")


def test_too_few_loaders_bind_and_enough_are_named():
    findings = PROBE.findings(over_loaders(load_s=0.018, loaders=(0, 1, 2)))
    bound = message(findings, "binds")
    assert (bound.values["how"], bound.values["binds"], bound.values["enough"]) == (
        *("2 loaders, prefetch 2", "the loaders", 4),
    )
    assert bound.kind == "predicted"
    assert message(findings, "starved").values["starved"].value == pytest.approx(4 / 9)
    assert [row["law"].value for row in rows(findings)] == pytest.approx([23e-3, 18e-3, 9e-3])
    assert [row["waiting"].value for row in rows(findings)] == pytest.approx([18 / 23, 13 / 18, 4 / 9])


def test_too_few_cores_bind_whatever_the_loaders():
    findings = PROBE.findings(over_loaders(load_s=0.030, loaders=(0, 2, 4), cores=2))
    bound = message(findings, "binds")
    assert (bound.values.get("enough"), bound.values["cores"]) == (None, 2)
    assert "no number of loaders" in bound.template
    more = judged(findings, MORE_DO_NOT)
    assert (more.message.values["loaders"], more.message.values["fewer"], more.outcome) == (4, 2, "holds")
    assert more.measured.value == pytest.approx(1.0)
