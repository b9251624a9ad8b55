import dataclasses
import itertools

import numpy as np
import pytest

from pyperf_suite.measure.levels import levels_of, with_levels
from pyperf_suite.measure.sampling import StopRule, WarmUp, concluded
from pyperf_suite.measure.telemetry import WAITED
from pyperf_suite.record.interval import UNDISTURBED

RNG = np.random.default_rng(1)
SLICES, SIZE = 10, 30
LOOPS_S = np.full(SLICES, 70e-6)
RULE = StopRule(quantile=UNDISTURBED, confidence=0.9)


def noisy(*levels_s: float) -> list[float]:
    """Samples of these levels in turn, each off by a percent."""
    samples = list(itertools.islice(itertools.cycle(levels_s), SLICES * SIZE))
    return (np.array(samples) * RNG.normal(1, 0.01, len(samples))).tolist()


def measured(samples: list[float]):
    return concluded(RULE, WarmUp(1, 0.0, True, samples[0], 1), samples, [SIZE] * SLICES, "time_cap")


def judged(samples: list[float], reasons=("",) * SLICES, loops_s=LOOPS_S):
    return with_levels(measured(samples), list(reasons), loops_s, RULE)


@pytest.mark.parametrize("fast_of_ten", [1, 5])
def test_launches_of_two_levels_are_reported_by_their_mean(fast_of_ten):
    slow_s, fast_s = 600e-6, 200e-6
    measurement = judged(noisy(*[fast_s] * fast_of_ten, *[slow_s] * (10 - fast_of_ten)))
    mean_s = (fast_of_ten * fast_s + (10 - fast_of_ten) * slow_s) / 10
    assert measurement.levels["kind"] == "two levels"
    assert measurement.value == pytest.approx(mean_s, rel=0.01)
    assert measurement.interval[:2] == pytest.approx((mean_s, mean_s), rel=0.02)
    assert (measurement.levels["fast_s"], measurement.levels["slow_s"]) == pytest.approx((fast_s, slow_s), rel=0.01)
    assert measurement.levels["slow_share"] == pytest.approx(1 - fast_of_ten / 10)


def test_a_mean_whose_interval_is_wide_has_not_converged():
    halves = [noisy(200e-6, 600e-6, 600e-6)[:SIZE], noisy(200e-6, 200e-6, 600e-6)[:SIZE]]
    undisturbed = dataclasses.replace(measured([*itertools.chain(*halves * (SLICES // 2))]), converged=True)
    for width, converged in ((0.05, False), (0.5, True)):
        rule = dataclasses.replace(RULE, relative_half_width=width)
        found = with_levels(undisturbed, [""] * SLICES, LOOPS_S, rule)
        assert found.levels["is_figure"]
        assert 0.05 < found.relative_half_width < 0.5
        assert found.converged is converged


@pytest.mark.parametrize(
    ("samples", "kind"),
    [
        (noisy(*[200e-6] * 9, 600e-6), "two levels"),  # a few slow launches
        ((np.array(noisy(200e-6)) * np.linspace(1, 2, SLICES * SIZE)).tolist(), "drift"),
        ((200e-6 * (1 + RNG.exponential(0.6, SLICES * SIZE))).tolist(), "tail"),
    ],
    ids=["few slow", "drift", "tail"],
)
def test_what_may_be_the_machines_doing_is_said_and_leaves_the_figure(samples, kind):
    found = judged(samples)
    assert found.levels["kind"] == kind
    assert found.value == measured(samples).value
    assert found.levels["mean_s"] == pytest.approx(np.mean(samples))


@pytest.mark.parametrize("samples", [noisy(200e-6), noisy(200e-6, 215e-6)], ids=["one level", "two alike"])
def test_one_figure_stands_for_launches_of_one_level(samples):
    assert judged(samples) == measured(samples)


def test_what_others_took_is_no_level():
    # The core was another's for a tick in every second launch: as much slower, but nothing of the launch's own.
    samples, reasons = noisy(2e-3, 6e-3), (WAITED,) * SLICES
    assert judged(samples, reasons).levels is None
    assert judged(noisy(200e-6, 600e-6), reasons).levels["is_figure"]


def test_a_drift_of_the_loop_explains_one_of_launches():
    samples = (np.array(noisy(200e-6)) * np.linspace(1, 2, SLICES * SIZE)).tolist()
    assert judged(samples, loops_s=LOOPS_S * np.linspace(1, 2, SLICES)).levels is None


def test_too_few_samples_have_no_levels():
    parts = np.split(np.array(noisy(200e-6, 600e-6)), SLICES)
    assert levels_of(parts[:3], LOOPS_S[:3], UNDISTURBED) is None
    assert levels_of([part[:3] for part in parts[:6]], LOOPS_S[:6], UNDISTURBED) is None
