"""Rows of a run: what a row is called by, the rows that differ from it in one thing, and tables of columns."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.findings.data import remark
from pyperf_suite.findings.rows import Column, Row, Rows, law_over_sizes, misses, rows_of, series
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import RUN_SPREAD, Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import is_settled, mean_speedup, readings, speedup, wins
from pyperf_suite.workloads.training.training_step import TrainingStepParameters
from tests.records import a_record, metric


def of(rows: Rows, n: int, implementation: str = "torch") -> Row:
    row = rows.first(n=n, implementation=implementation)
    assert row is not None
    return row


@pytest.fixture
def rows(product: Any) -> Rows:
    """Two sizes by two implementations, the second twice as fast; one case failed, one has another K as well."""
    return rows_of(
        [
            *product(16).records(4.0, 4.4, 4.0, passing=3.0),
            *product(16, "numpy").records(2.0, 2.2, 2.0),
            *product(32).records(8.0, 8.0, 8.0),
            *product(32, "numpy").records(4.0, processes=(7,)),
            *product(64).records(1.0, outcome="failed"),
            *product(16, k=4).records(1.0),
        ]
    )


def test_the_later_of_two_trials_of_a_process_stands(product: Any) -> None:
    (row,) = rows_of([*product(8).records(1.0, 1.0), *product(8).records(3.0)])
    assert (row.reading.by_process, row.seconds) == ({0: 3.0, 1: 1.0}, 2.0)


def test_each_point_of_a_series_has_a_bar_and_a_line_has_none() -> None:
    points = [(1, 2.0), (2, None), (3, Ratio(3.0, 2.5, 3.5, 3))]
    drawn = series("a", points, lambda point: point[0], lambda point: point[1])
    assert (drawn.label, drawn.x, drawn.y, drawn.style, drawn.predicted) == ("a", [1, 3], [2.0, 3.0], "points", False)
    assert (drawn.low, drawn.high) == ([2.0, 2.5], [2.0, 3.5])
    law = series("law", points[:2], lambda point: point[0], lambda point: point[1], "line")
    assert (law.y, law.low, law.high, law.predicted) == ([2.0], [], [], True)
    # 2 s a byte squared from 1 to 100 bytes: half a byte a second at one byte, and less by its size.
    squared = law_over_sizes("law", SimpleNamespace(seconds=lambda sizes: 2 * sizes**2), 1.0, 100.0, 3, factor=4.0)
    assert (squared.x, squared.y) == (pytest.approx([1.0, 10.0, 100.0]), pytest.approx([2.0, 0.2, 0.02]))
    assert misses([0.25, 0.5, 0.125]) == {"count": 3, "median": Quantity(0.25, "%"), "worst": Quantity(0.5, "%")}


@pytest.mark.parametrize(
    ("ratio", "has_won", "settled"),
    [
        (Ratio(1.02, 1.01, 1.03), True, True),  # 2 % are worth a change
        (Ratio(1.2, 1.0, 1.4), False, False),
        (Ratio(1.019, 1.018, 1.021), False, False),
        (Ratio(1.01, 0.99, 1.019), False, True),
    ],
)
def test_what_is_faster_by_a_fiftieth_beyond_its_interval_wins(ratio: Ratio, has_won: bool, settled: bool) -> None:
    assert (wins(ratio), is_settled(ratio)) == (has_won, settled)


def test_a_rate_lies_between_those_of_the_slowest_and_the_fastest_process(rows: Rows) -> None:
    rate = of(rows, 16).reading.per_second(44.0, "GB/s")
    assert (rate.value, rate.low, rate.high, rate.processes) == (11.0, pytest.approx(10.0), 11.0, 3)
    assert of(rows, 16).reading.throughput.value == of(rows, 16).reading.flop_per_s


def counted(outcome="ok", batch=2):
    case = Case("training_memory", TrainingStepParameters(batch=batch), "storages")
    fields = {"kind": "static", "outcome": outcome, "metrics": {"peak": 7.0}, "kernel": {"path": "cpu"}}
    return a_record(case, None, **fields)


@pytest.mark.parametrize(
    ("value", "unit", "cell"),
    [
        (2.0, "ms", Quantity(2.0, "ms")),
        (2, "B", Quantity(2.0, "B")),
        (np.int64(2), "B", Quantity(2.0, "B")),
        (np.float32(2), "", Quantity(2.0)),
        (2, "", 2),
        (np.int64(2), "", 2),
        (Ratio(2, 1, 3, 3), "", Quantity(2, "x", 1, 3, 3)),
        (Quantity(2.0, "s"), "ms", Quantity(2.0, "s")),
        ("loop", "ms", "loop"),
        (True, "", "True"),
        ((1, 2), "", "(1, 2)"),
        (None, "ms", None),
    ],
)
def test_a_cell_is_a_quantity_a_name_or_unknown(value, unit, cell):
    found = Column("c", lambda item: item, unit).cell(value)
    assert (found.value, found.unit) == (cell.value, cell.unit) if isinstance(cell, Quantity) else found == cell
    assert type(found) is type(cell)


def slices_of(seconds: list[float], group: str = "one", share: float = 0.1) -> Any:
    """A record of a product by one process, whose slices have one sample each."""
    case = Case("training_memory", TrainingStepParameters(), "formula")
    sampling = {"quantile": share, "slices": [1] * len(seconds), "group": group}
    low = metric(float(np.quantile(seconds, share)), low=min(seconds), high=max(seconds), samples=seconds)
    work = {"flop": 1, "bytes": 1}
    quality = {"converged": True, "relative_half_width": 0.2}
    return a_record(case, low, sampling=sampling, quality=quality, work=work)


def test_slices_of_the_same_rounds_are_pairs() -> None:
    machine = [1.0, 1.5, 1.1, 2.0, 1.2, 1.0, 1.7]
    [slow], [fast] = (readings([slices_of([factor * each for each in machine])]) for factor in (1.1, 1.0))
    [other] = readings([slices_of(machine, group="another")])
    paired, apart = speedup(slow, fast), speedup(slow, other)
    assert paired.value == apart.value == pytest.approx(1.1)
    # A disturbance of the machine hit both alike, and the pairs show none of it.
    assert paired.high / paired.low == pytest.approx(1.0)
    assert apart.high / apart.low > 1.5
    for count, known in ((6, True), (5, False)):
        pair = [readings([slices_of([factor * each for each in machine[:count]])])[0] for factor in (1.1, 1.0)]
        assert (speedup(*pair).high / speedup(*pair).low < 1.01) is known
    [alone] = readings([slices_of(machine, group="")])
    assert (len(alone.slices), len(slow.slices)) == (0, 7)


def test_the_error_of_a_reading_is_that_of_its_interval_without_the_drift_that_cases_share() -> None:
    # The tenth of 1 and 3 is 1.2, from 1 to 3: half of that is 1.645 standard errors.
    record = slices_of([1.0, 3.0])
    error = 1 / 1.645 / 1.2
    drifting = replace(record, quality={"converged": True, "disturbances": {"drift": 0.2}})
    usual = replace(record, sampling={"quantile": 0.5})
    found = readings([replace(each, case_id=str(n)) for n, each in enumerate((record, drifting, usual))])
    shared = math.sqrt(error**2 - 2 * (0.2**2 - RUN_SPREAD**2))
    assert [each.error for each in found] == pytest.approx([error, shared, 0.0])
    assert [each.within for each in found] == pytest.approx([0.2 * 1.96 / 1.645, 0.0, 1 / 1.2])


def test_the_mean_of_pairs_is_geometric() -> None:
    pairs = [(slices_of([slow] * 7), slices_of([1.0] * 7)) for slow in (2.0, 8.0)]
    ratio = mean_speedup([(readings([slow])[0], readings([fast])[0]) for slow, fast in pairs])
    assert (ratio.value, ratio.processes) == (pytest.approx(4.0), 1)


def test_pairs_that_say_another_ratio_than_the_best_slices_make_it_as_unsure() -> None:
    # One side was disturbed in all slices but one: its tenth of a quantile is 1, and its slices are 3 times as long.
    [slow], [fast] = readings([slices_of([3.0] * 7)]), readings([slices_of([1.0] + [3.0] * 6)])
    ratio = speedup(slow, fast)
    value = 3 / np.quantile([1.0] + [3.0] * 6, 0.1)
    logs = [np.log(3), 0, 0, 0, 0, 0, 0]
    half = np.hypot(np.mean(logs) - np.log(value), 1.96 * np.std(logs, ddof=1) / np.sqrt(7))
    assert ratio.value == pytest.approx(value)
    assert ratio.high / ratio.value == pytest.approx(1 + half)


def test_what_was_never_seen_undisturbed_makes_no_ratio() -> None:
    calm = slices_of([1.0] * 7)
    busy = replace(calm, quality={**calm.quality, "disturbances": {"clean_share": 0.0}})
    [one], [other] = readings([calm]), readings([busy])
    ratio = speedup(one, other)
    assert (ratio.low, ratio.high) == pytest.approx((1 / 101, 101))
    assert remark("{faster} as fast", faster=ratio).is_noise
    assert remark("{time}", time=other.time).is_noise
    assert not remark("{time}", time=one.time).is_noise
    # The usual time has its disturbances in it.
    [usual] = readings([replace(busy, sampling={"quantile": 0.5})])
    assert not usual.is_noisy


@pytest.mark.parametrize(
    ("clocks", "mode", "value", "ends"),
    [
        # Cycles are compared; if their elasticities are 0.4, the second is less far ahead.
        ((1.6e9, 1.5e9), "burst", 1.1 * 16 / 15, (1.1 * (16 / 15) ** 0.4, 1.1 * 16 / 15)),
        # At the same clock an unknown elasticity is no matter.
        ((1.6e9, 1.6e9), "burst", 1.1, (1.1, 1.1)),
        # Under a load the clock is what the kernel makes of it; where one was not seen nothing is known.
        ((1.4e9, 1.6e9), "sustained", 1.1, (1.1, 1.1)),
        ((1.5e9, None), "burst", 1.1, (1.1, 1.1)),
    ],
)
def test_a_ratio_is_that_at_one_clock_with_what_unknown_elasticities_leave_open(clocks, mode, value, ends) -> None:
    pair = []
    for seconds, clock in zip((1.1, 1.0), clocks, strict=True):
        record = slices_of([seconds] * 7)
        samples = [clock] * len(record.metrics["time"].samples)
        seen = {"sm_clock": metric(clock, "Hz", samples=samples)} if clock else {}
        case, state = {**record.case, "mode": mode}, {"gpu": {"maximum_sm_clock_mhz": 1980}}
        pair += readings([replace(record, case=case, metrics={**record.metrics, **seen}, state=state)])
    ratio = speedup(*pair)
    assert ratio.value == pytest.approx(value)
    assert (ratio.low, ratio.high) == pytest.approx(ends)
