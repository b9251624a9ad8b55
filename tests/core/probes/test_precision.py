"""The precision probe makes the guide's table again: it judges a made-up machine by what it was made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.findings.data import Claim, ClaimVerdict, Findings
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.precision import (
    GROWS,
    MULTIPLES_OF_8,
    NOT_HALF,
    PROBE,
)
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.training.training_step import PrecisionStep, TrainingStepParameters
from tests.records import cells, records, remarks, verdicts

CPU = Device("cpu")
MB = 1_000_000
WEIGHTS = 10 * MB


def three_times_as_fast(p: TrainingStepParameters) -> float:
    """A sequence takes 9 ms in float32; casts of all weights take 1 ms."""
    fast = {"float32": 1, "autocast_bfloat16": 3, "bfloat16": 4}[p.precision]
    return p.micro_batches * p.batch * 9e-3 / fast + casts(p) * 1e-3


def casts(p: TrainingStepParameters) -> int:
    if not p.precision.startswith("autocast_"):
        return 0
    return 1 if p.cast_cache == "nested" else p.micro_batches


def findings(
    seconds: Callable[[TrainingStepParameters], float] = three_times_as_fast,
    share: float = 0.6,
    casts: Callable[[TrainingStepParameters], int] = casts,
) -> Findings:
    """Findings on a machine where a sequence keeps 2 MB in float32, `share` of it in autocast, half in bfloat16."""

    def seen(case: Case) -> dict[str, float]:
        p = case.parameters
        cast = p.precision.startswith("autocast_")
        weights = WEIGHTS // 2 if p.precision == "bfloat16" else WEIGHTS
        return {
            "activations": 2 * MB * p.batch * (share if cast else weights / WEIGHTS),
            "weight_copies": WEIGHTS // 2 if cast else 0,
            "weights": weights,
            "gradients": weights,
            "casts": casts(p),
            "cast": casts(p) * WEIGHTS // 2,
        }

    cases = PROBE.sweep(replace(PROBE.axes("standard", CPU), process=()))
    unique = {case.case_id: case for case in cases}.values()
    return PROBE.findings(records(unique, lambda case: seconds(case.parameters), metrics=seen))


def judged(claim: Claim, **machine: Any) -> ClaimVerdict:
    return next(iter(verdicts(findings(**machine), claim)))


def test_memory_is_saved_by_activations_alone_and_from_a_batch_on() -> None:
    share, grows = judged(NOT_HALF), judged(GROWS)
    assert (share.measured.value, share.message.values["batch"], share.outcome) == (pytest.approx(0.6), 16, "holds")
    assert (grows.measured.value, grows.message.values["smallest_batch"], grows.outcome) == (
        pytest.approx(16),
        1,
        "holds",
    )
    (message,) = remarks(findings(), kind="predicted", precision="autocast_bfloat16")
    assert message.values["of_one"].value == pytest.approx(0.8 * MB)
    assert message.values["weight_copies"].value == 5 * MB
    assert (message.values["break_even"].value, message.values["break_even"].predicted) == (6, True)


def test_odd_dimensions_are_compared_with_multiples_of_8_by_their_flops() -> None:
    def odd_is_slow(p: TrainingStepParameters) -> float:
        rate = 1e12 if p.precision != "float32" and p.hidden % 8 == 0 else 5e11
        return PrecisionStep().work(p).flop / rate

    found = judged(MULTIPLES_OF_8, seconds=odd_is_slow)
    assert (found.measured.value, found.outcome) == (pytest.approx(2), "holds")
    assert found.message.values["even"].startswith("1 x 256 in 4 heads")
    assert found.message.values["model"].startswith("1 x 255 in 5 heads")
    steps = cells(findings(odd_is_slow).tables[0])
    faster = {row["model"][:7]: row["speed-up over float32"] for row in steps if row["precision"] != "float32"}
    assert (faster["1 x 256"].value, faster["1 x 255"].value) == (pytest.approx(2), pytest.approx(1))
