"""Which steps of a series are shown: those nominated of times, and every change of an exact figure."""

from __future__ import annotations

from pyperf_suite.history.stored.series import Break, Point, Series
from pyperf_suite.history.tracking import Step, steps_of


def series(values, kind="timing", breaks=(), units="") -> Series:
    points = tuple(
        Point(f"r{index}", f"{index}", value, value, value, commit=f"c{index}", unit=units[index : index + 1])
        for index, value in enumerate(values)
    )
    return Series("m", "p", "aa", "label", "s", points, tuple(breaks), kind=kind)


def test_an_exact_figure_steps_wherever_it_differs():
    steps = steps_of(series([0.0, 8.0, 8.0, 4.0], kind="static"))
    assert steps == [Step(1, 0.0, 8.0, "c0", "c1"), Step(3, 8.0, 4.0, "c2", "c3")]
    assert [step.effect for step in steps] == ["from 0 to 8", "-50.0%"]


def test_a_time_steps_where_change_detection_nominates_it():
    noise = [1 + 0.002 * (index * 7 % 5) for index in range(20)]
    times = [value * (1.1 if index >= 12 else 1) for index, value in enumerate(noise)]
    (step,) = steps_of(series(times))
    assert (step.index, step.commit_before, step.commit_after) == (12, "c11", "c12")
    assert abs(step.after / step.before - 1.1) < 0.01


def test_a_change_that_came_with_a_break_is_no_step():
    times = [1 + 0.002 * (index * 7 % 5) + (0.1 if index >= 12 else 0) for index in range(20)]
    assert steps_of(series(times, breaks=[Break(12, "driver 570.1 -> 580.2")])) == []


def test_units_that_differ_in_speed_do_not_make_steps():
    assert steps_of(series([1.0, 1.2] * 15, units="ab" * 15)) == []


def test_zeros_of_another_projects_file_are_no_steps():
    assert steps_of(series([0.0] * 12)) == []
