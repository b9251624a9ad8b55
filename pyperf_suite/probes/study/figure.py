"""The bars of a study: samples per second of each configuration with the standard error, sorted, predictions beside."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyperf_suite.probes.study.results import Result
from pyperf_suite.probes.study.tables import described_model, short
from pyperf_suite.spec.findings import Bar, Bars, Figure

LONGEST_NOTE = 90


def figures_of(found: Sequence[Result], number: int, models: int) -> list[Figure]:
    """One figure of a model's configurations, in the order of the table."""
    if not any(each.rate for each in found):
        return []
    foretold = any(each.prediction for each in found)
    bars = Bars(
        title="",
        x_label="samples/s",
        bars=tuple(_bar(each) for each in found),
        label="measured (mean ± standard error over experiments)",
        mark_label="predicted by the laws",
    )
    beside = " Diamonds: predicted." if foretold else ""
    return [
        Figure(
            name="study" if models == 1 else f"study_{number}",
            title=described_model(found[0]),
            caption=f"Bars: samples per second over all steps of an experiment, the fastest on top.{beside}",
            rows=((bars,),),
        )
    ]


def _bar(result: Result) -> Bar:
    name, p = result.parameters.name, result.parameters
    mark = p.global_batch / result.prediction.seconds if result.prediction else math.nan
    if result.rate is None:
        return Bar(name, math.nan, note=f"{result.outcome}: {short(result.reason, LONGEST_NOTE)}")
    return Bar(name, result.rate.mean, result.rate.standard_error, mark)
