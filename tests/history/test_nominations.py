"""What is said of a change in a stored series: since when, with which commits, and whether it may be the machine's."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.history.stored.series import Break, Point, Series
from pyperf_suite.history.tracking import nominations
from pyperf_suite.history.verdict import NOMINATED, exit_code

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def commit(index: int) -> str:
    return f"{index:03d}" + "c" * 37


def series_of(values, commits=None, clocks=None, **fields) -> Series:
    """One run a day, each of a commit of its own."""
    points = tuple(
        Point(
            f"run{index}",
            (BEGIN + datetime.timedelta(days=index)).isoformat(timespec="milliseconds"),
            float(value),
            float(value),
            float(value),
            commit=commit(index) if commits is None else commits[index],
            clock_hz=None if clocks is None else clocks[index],
        )
        for index, value in enumerate(values)
    )
    return Series("machine", "tile_wave", "0123456789abcdef", "matmul[x]", "s", points, **fields)


def times(*levels: tuple[int, float], seed: int = 0) -> np.ndarray:
    """So many points at each level, with noise of half a percent."""
    flat = np.concatenate([np.full(count, level) for count, level in levels])
    return 1e-3 * flat * np.exp(0.005 * np.random.default_rng(seed).standard_normal(len(flat)))


def test_a_slower_change_is_undecided_until_someone_confirms_it_and_names_its_commits():
    [found] = nominations(series_of(times((20, 1.0), (6, 1.1))))
    finding = found.finding()
    assert finding.verdict == "undecided"
    assert finding.details[NOMINATED] == "slower"
    assert finding.details["commit_before"] == commit(19)
    assert finding.details["commit_after"] == commit(20)
    assert f"{commit(19)[:10]}..{commit(20)[:10]}" in finding.sentence
    assert "2026-01-21" in finding.sentence
    assert finding.ratio is not None
    assert finding.ratio.low < 1.1 < finding.ratio.high
    assert (exit_code([finding]), exit_code([finding], "nominated")) == (3, 1)


def test_a_faster_change_is_no_reason_to_fail():
    [found] = nominations(series_of(times((20, 1.0), (6, 0.9))))
    assert found.finding().verdict == "faster"
    assert exit_code([found.finding()], "nominated") == 0


def test_a_change_that_was_made_good_again_is_undone_and_what_undid_it_is_not():
    slower, faster = nominations(series_of(times((20, 1.0), (10, 1.1), (10, 1.0))))
    assert (slower.undone, faster.undone) == (True, False)
    kept, worse = nominations(series_of(times((20, 1.0), (10, 1.1), (10, 1.2))))
    assert not kept.undone
    assert not worse.undone


def test_a_change_between_runs_of_the_same_clean_commit_is_not_the_codes():
    values = times((20, 1.0), (6, 1.1))
    [found] = nominations(series_of(values, commits=["a" * 40] * 26))
    assert found.same_code
    assert "machine" in found.sentence
    [found] = nominations(series_of(values, commits=["a" * 40] * 21 + ["b" * 40] * 5))
    assert not found.same_code  # a point beside it is of another, and no place is that sure
    [found] = nominations(series_of(values, commits=[""] * 26))
    assert not found.same_code
    assert "do not name the commits" in found.sentence
    dirty = series_of(values, commits=["a" * 40] * 26)
    dirty = replace(dirty, points=tuple(replace(point, dirty=True) for point in dirty.points))
    [found] = nominations(dirty)
    assert not found.same_code


def test_what_lies_among_the_newest_points_or_after_a_date_is_recent():
    [found] = nominations(series_of(times((20, 1.0), (29, 1.1))))
    assert found.is_recent(None)
    assert found.is_recent("2026-01-21")
    assert not found.is_recent("2026-01-22")
    [older] = nominations(series_of(times((20, 1.0), (31, 1.1))))
    assert not older.is_recent(None)


def test_nothing_is_nominated_at_a_break():
    values = times((20, 1.0), (10, 1.1))
    assert nominations(series_of(values, breaks=(Break(20, "driver 1 -> 2"),))) == []


def test_a_clock_that_fell_by_as_much_is_named():
    values = times((20, 1.0), (6, 1.1))
    [found] = nominations(series_of(values, clocks=[2e9] * 20 + [1.8e9] * 6))
    assert "clock changed by -10.0 %" in found.sentence
    [found] = nominations(series_of(values, clocks=[2e9] * 20 + [1.99e9] * 6))
    assert "clock" not in found.sentence
    [found] = nominations(series_of(values, clocks=[2e9] * 20 + [2.2e9] * 6))  # it would explain the opposite
    assert "clock" not in found.sentence


def test_a_sentinel_that_slowed_down_in_the_same_runs_is_named():
    values = times((20, 1.0), (6, 1.1))
    sentinel = series_of(times((20, 1.0), (6, 1.1), seed=1), kind="sentinel")
    [found] = nominations(series_of(values), [sentinel])
    assert "sentinel" in found.sentence
    [found] = nominations(series_of(values), [series_of(times((26, 1.0), seed=1), kind="sentinel")])
    assert "sentinel" not in found.sentence


@pytest.mark.parametrize(
    ("metric", "values", "verdict"),
    [
        ("local_memory", [0, 0, 64], "slower"),
        ("local_memory", [64, 0], "faster"),
        ("resident_warps", [16, 8], "slower"),
        ("resident_warps", [8, 16], "faster"),
    ],
)
def test_one_run_is_enough_for_exact_figures_and_needs_no_confirmation(metric, values, verdict):
    [found] = nominations(series_of(values, metric=metric, kind="static"))
    finding = found.finding()
    assert finding.verdict == verdict
    assert finding.ratio is None
    assert f"{values[-2]} -> {values[-1]}" in finding.sentence
    assert NOMINATED not in finding.details


def test_exact_figures_of_which_neither_direction_is_worse_are_not_judged():
    assert nominations(series_of([100, 128], metric="registers", kind="static")) == []


def test_an_exact_figure_that_another_compiler_changed_is_not_the_codes():
    broken = (Break(1, "kernel compiler 13.0 -> 13.1"),)
    assert nominations(series_of([0, 64, 64], metric="local_memory", kind="static", breaks=broken)) == []
