import csv
import itertools
import math
import time

import numpy as np
import pytest
import scipy  # whose parts are imported at first use: stats takes two seconds

from pyperf_suite.regressions import changepoints
from pyperf_suite.regressions.changepoints import (
    FEWEST_POINTS,
    detect_steps,
    draw_in_outliers,
    find_changes,
)
from tests.core.series import correlated

STEP = math.log(1.05)


def noise(generator: np.random.Generator, points: int, correlation: float, deviation: float) -> np.ndarray:
    """AR(1) noise of that standard deviation."""
    return deviation * correlated(generator.standard_normal(points + 50), correlation)[50:]


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.01, 0.03, 0.1])
def test_at_most_2_percent_of_quiet_series_with_correlated_noise_are_alarmed(deviation):
    generator = np.random.default_rng(0)
    alarmed = sum(bool(find_changes(np.exp(noise(generator, 200, 0.5, deviation)))) for _ in range(200))
    assert alarmed <= 4


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_step_of_5_percent_is_found_5_points_after_it(correlation):
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(50):
        logs = noise(generator, 200, correlation, 0.01)
        logs[-5:] += STEP
        found += [change.index for change in find_changes(np.exp(logs))] == [195]
    assert found >= 40


@pytest.mark.nightly
@pytest.mark.parametrize("step", [0.0, STEP])
def test_10000_points_take_less_than_3_seconds(step):
    logs = noise(np.random.default_rng(2), 10_000, 0.5, 0.01) + step * (np.arange(10_000) // 1000 % 2)
    began = time.process_time()
    assert [change.index for change in find_changes(np.exp(logs))] == (list(range(1000, 10_000, 1000)) if step else [])
    assert time.process_time() - began < 3


def test_a_step_of_2_percent_is_found_in_4_of_5_series_with_noise_of_half_a_percent():
    generator = np.random.default_rng(11)
    series = [noise(generator, 80, 0.0, 0.005) + math.log(1.02) * (np.arange(80) >= 60) for _ in range(100)]
    assert sum(bool(find_changes(np.exp(logs))) for logs in series) >= 80


def test_of_longer_series_the_newest_points_are_searched(monkeypatch):
    monkeypatch.setattr(changepoints, "MOST_POINTS", 50)
    logs = noise(np.random.default_rng(3), 200, 0.0, 0.01)
    logs[30:] += STEP
    logs[180:] += STEP
    assert [change.index for change in find_changes(np.exp(logs))] == [180]


def test_steps_of_a_real_history_are_found_and_its_outlier_is_not(measured_tables):
    path = measured_tables / "tigerbeetle_history.csv"
    if not path.exists():
        pytest.skip(f"TigerBeetle's history is not in {measured_tables}")
    with path.open() as file:
        values = [float(row["value"]) for row in csv.DictReader(file)]
    with path.with_name("tigerbeetle_history_labels.csv").open() as file:
        labels = {int(row["index"]): row["kind"] for row in csv.DictReader(file)}
    found = [change.index for change in find_changes(values)]
    labelled = [index for index, kind in labels.items() if kind.startswith("step")]
    assert len(labelled) == 3
    assert set(labelled) <= set(found)
    assert not any(abs(index - found_index) <= 2 for index in labels.keys() - set(labelled) for found_index in found)
    assert len(found) <= 6  # what else there is: 3.4 % at 61, then it climbs slowly by 7 %


def stepped(points: int = 40, at: int = 25, step: float = STEP) -> np.ndarray:
    logs = noise(np.random.default_rng(4), points, 0.0, 0.005)
    logs[at:] += step
    return np.exp(logs)


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says():
    generator = np.random.default_rng(5)
    hits = tries = 0
    for _ in range(200):
        logs = noise(generator, 60, 0.5, 0.01)
        logs[40:] += STEP
        for change in find_changes(np.exp(logs)):
            tries += 1
            hits += change.ratio.low <= 1.05 <= change.ratio.high
    assert tries > 150
    assert 0.9 * tries <= hits


def test_a_step_below_the_least_effect_is_not_nominated():
    times = stepped(step=math.log(1.015))
    assert find_changes(times) == []
    assert len(find_changes(times, least_effect=0.01)) == 1


def test_gpus_that_take_turns_are_series_of_their_own():
    units = ["GPU-a", "GPU-b"] * 40
    logs = noise(np.random.default_rng(6), 80, 0.0, 0.005)
    logs[1::2] += 0.2  # one is slower than the other, always
    assert find_changes(np.exp(logs), groups=units) == []
    logs[61::2] += STEP
    commits = [str(index) for index in range(80)]
    [change] = find_changes(np.exp(logs), groups=units, commits=commits)
    assert change.index == 61
    assert (change.commit_before, change.commit_after) == ("59", "61")
    assert (change.points_before, change.points_after) == (30, 10)


@pytest.mark.parametrize("rise", [0.05, 0.15])
def test_a_slow_drift_is_no_step_and_hides_none(rise):
    generator = np.random.default_rng(9)
    drift = np.linspace(0, rise, 200)
    alarmed = sum(bool(find_changes(np.exp(noise(generator, 200, 0.3, 0.01) + drift))) for _ in range(30))
    assert alarmed <= 1
    logs = noise(generator, 200, 0.3, 0.01) + drift / 5
    logs[150:] += STEP
    assert any(abs(change.index - 150) <= 1 for change in find_changes(np.exp(logs)))


def test_a_level_that_lasted_two_points_is_not_one():
    times = stepped(step=0.0)
    times[20:22] *= 1.3
    assert find_changes(times) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_time_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="finite positive"):
        find_changes([1.0] * 10 + [bad])


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_noise_and_its_memory_are_found_beside_steps(correlation):
    steps = 0.1 * (np.arange(1200) // 200 % 2)
    found = detect_steps(noise(np.random.default_rng(7), 1200, correlation, 0.01) + steps)
    assert len(found.starts) == 5
    assert found.noise == pytest.approx(0.01, rel=0.1)
    assert found.correlation == pytest.approx(correlation, abs=0.1)


@pytest.mark.parametrize(
    ("values", "starts"),
    [
        (np.repeat([1.0, 1.05, 1.0], [4, 3, 9]), (4, 7)),
        (np.zeros(40), ()),
        *((np.arange(count, dtype=float), ()) for count in range(2 * FEWEST_POINTS)),
    ],
)
def test_values_without_any_noise_have_their_steps_and_too_few_have_none(values, starts):
    assert detect_steps(values).starts == starts


def test_the_interval_of_a_step_is_students_with_the_memory_that_so_few_points_leave_open():
    [change] = find_changes([1.0] * 6 + [1.05] * 6)
    # No noise but a clock's 1e-4, and of twelve points a correlation of one standard error, 1 / sqrt(12), is possible.
    memory, lags = 1 / math.sqrt(12), np.arange(1, 6)
    variance = 2 * (1 + 2 * np.sum((1 - lags / 6) * memory**lags)) / 6
    reach = scipy.stats.t.ppf(0.975, 12 - 1 - 1) * 1e-4 * math.sqrt(variance)
    assert change.ratio.value == pytest.approx(1.05)
    assert math.log(change.ratio.high / 1.05) == pytest.approx(reach)
    assert math.log(1.05 / change.ratio.low) == pytest.approx(reach)
    assert (change.before, change.after, change.effect) == (pytest.approx(1.0), pytest.approx(1.05), "+5.0%")
    assert (change.index, change.points_before, change.points_after) == (6, 6, 6)
    [_, second] = find_changes([1.0] * 6 + [1.05] * 6 + [1.0] * 9)
    memory, variance = 1 / math.sqrt(21), 0.0
    for count in (6, 9):
        lags = np.arange(1, count)
        variance += (1 + 2 * np.sum((1 - lags / count) * memory**lags)) / count
    reach = scipy.stats.t.ppf(0.975, 21 - 2 - 1) * 1e-4 * math.sqrt(variance)
    assert math.log(second.ratio.high * 1.05) == pytest.approx(reach)


def test_a_mean_of_correlated_points_and_a_criterion_of_residuals_are_those_worked_out_by_hand():
    assert changepoints._variance_of_mean(1, 0.5) == 1.0
    assert changepoints._variance_of_mean(3, 0.5) == pytest.approx((1 + 2 * (2 / 3 * 0.5 + 1 / 3 * 0.25)) / 3)
    # Residuals to and fro count as uncorrelated: n log(1) and 5 log(n) for each of two steps.
    assert changepoints._criterion(np.array([1.0, -1.0, 1.0, -1.0]), 2) == pytest.approx(10 * math.log(4))
    # The correlation of 1, 1, 1, 1 is 3/4: innovations of 1/4 thrice, and the first with 1 - 9/16.
    assert changepoints._criterion(np.ones(4), 0) == pytest.approx(4 * math.log((3 / 16 + 7 / 16) / 4))
    assert changepoints._noise(np.ones(100)) == (1.0, 0.9)
    assert changepoints._noise(np.zeros(9)) == (1e-4, 0.0)
    assert detect_steps(np.zeros(0)) == changepoints.Steps((), 1e-4, 0.0)


def squares(values, starts) -> float:
    return float(sum(np.sum((part - part.mean()) ** 2) for part in np.split(values, starts)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("penalty", [0.3, 1.0, 3.0])
def test_levels_are_those_of_least_squares_among_all_there_are(seed, penalty):
    values = np.random.default_rng(seed).standard_normal(11) + np.repeat([0.0, 2.0, 0.0], [3, 5, 3])
    choices = [starts for count in range(3) for starts in itertools.combinations(range(3, 9), count)]
    choices = [starts for starts in choices if len(starts) < 2 or starts[1] - starts[0] >= 3]
    best = min(choices, key=lambda starts: squares(values, starts) + penalty * len(starts))
    assert tuple(sorted(changepoints._least_squares(values, penalty))) == best
    assert changepoints._least_squares(values, penalty) == sorted(changepoints._least_squares(values, penalty))
    assert (changepoints._best_split(values),) == min(choices[1:7], key=lambda starts: squares(values, starts))
    # Edges that joining moved find their best places again, one step after the other until none moves.
    [moved] = changepoints._moved_to_best_places(values, (4,))
    assert (moved,) == min(choices[1:7], key=lambda starts: squares(values, starts))
    first, second = changepoints._moved_to_best_places(values, (4, 7))
    assert squares(values, (first, second)) <= squares(values, (4, 7))
    assert changepoints._moved_to_best_places(values, (first, second)) == (first, second)


def test_the_two_levels_that_differ_least_for_their_lengths_are_joined():
    # Means 0, 1 and 3 of 3, 9 and 3 points: 1 x 27/12 and 4 x 27/12 more squares.
    values = np.repeat([0.0, 1.0, 3.0], [3, 9, 3])
    assert changepoints._join_closest(values, [3, 12]) == [12]
    # The first of the pairs that are 2 and 1 apart has fewer points: 4 x 9/6 and 1 x 900/60.
    assert changepoints._join_closest(np.repeat([0.0, 2.0, 3.0], [3, 3, 3]), [3, 6]) == [3]
    assert changepoints._join_closest(np.repeat([0.0, 2.0, 3.0, 9.0], [3, 3, 30, 30]), [3, 6, 36]) == [3, 36]


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([0.0, 0.0, 0.0, 9.0], [0.0, 0.0, 0.0, 9.0]),  # too few to tell
        ([0.0, 0.0, 0.0, 0.0, 9.0], [0.0, 0.0, 0.0, 0.0, 3e-4]),  # to three times the least noise
        ([0.0, 0.0, 0.0, -9.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, -3e-4, 0.0, 0.0, 0.0]),
        ([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        # Noise of 1 between neighbours: three times that over 0.6745 and the root of two.
        ([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 9.0], [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1 + 3 / 0.67449 / math.sqrt(2)]),
    ],
)
def test_what_stands_alone_is_drawn_in_to_three_deviations(values, drawn):
    assert draw_in_outliers(np.array(values)) == pytest.approx(drawn, rel=1e-4)


@pytest.mark.parametrize("index", [0, 1, 30, 58, 59])
@pytest.mark.parametrize("size", [-2.0, 0.3])
def test_an_outlier_is_drawn_in_and_is_no_step(index, size):
    values = noise(np.random.default_rng(5), 60, 0.0, 0.01)
    values[index] += size
    assert detect_steps(values).starts == ()
    assert abs(draw_in_outliers(values)[index]) < 0.1
