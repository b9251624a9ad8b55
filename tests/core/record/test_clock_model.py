"""A GPU's time at one clock: on the committed runs of two H200, and on a fake whose clock follows its power."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyperf_suite.record.clock_model import at_one_clock, interval_at_one_clock, reference_clock_hz
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.reading import Reading, _pair_error, readings, speedup
from pyperf_suite.record.record import Metric, Record
from tests.core.measure.fake_gpu import FakeGpu, Kernel
from tests.records import SMALL, a_record

RUNS = sorted((Path(__file__).parents[3] / "bench_results" / "cuda-nvidia-h200-132sm-140gib").glob("2026*"))
COMMITTED = [record for run in RUNS for record in read_journal(run / "records.jsonl") if record.at_clock]
PRODUCTS = [r for r in COMMITTED if r.case["operator"] == "matmul" and r.kind == "timing"]


def products(m: int, n: int, run: int) -> dict[str, Record]:
    """By implementation and tile, the products of that shape in one of the runs."""
    return {
        f"{record.case['implementation']} {record.case['parameters'].get('tile', '')}".strip(): record
        for record in PRODUCTS
        if record.run_id == RUNS[run].name
        and record.case["parameters"]["m"] == m
        and record.case["parameters"]["n"] == n
    }


def test_one_fit_of_a_product_predicts_every_other_measurement_of_it_within_half_a_percent():
    fits = {m: products(m, m, 0)["cublas"].at_clock for m in (4096, 8192)}
    errors = []
    for run in RUNS:
        for record in read_journal(run / "records.jsonl"):
            m = record.case["parameters"].get("m")
            is_same = m in fits and m == record.case["parameters"]["n"] and record.case["implementation"] == "cublas"
            if is_same and (run != RUNS[0] or record.kind == "sentinel"):
                ratio = record.metrics["sm_clock"].value / reference_clock_hz(1980e6)
                predicted_s = fits[m].seconds * ratio ** -fits[m].elasticity
                errors.append(math.log(predicted_s / record.metrics["time"].value))
    assert len(errors) == 12
    assert max(map(abs, errors)) <= 0.006


def test_three_kernels_of_one_product_are_equal_at_one_clock():
    of_4096 = products(4096, 4096, 0)
    seconds = [of_4096[name].seconds for name in ("cuda_sm90 128x256x64:c2", "triton 128x256x64", "cublas")]
    assert [each / seconds[-1] for each in seconds] == pytest.approx([1, 1, 1], abs=0.004)
    by_time = [of_4096[name].metrics["time"].value for name in ("cuda_sm90 128x256x64:c2", "cublas")]
    assert by_time[1] / by_time[0] > 1.1
    assert of_4096["triton 128x128x64"].at_clock.elasticity == pytest.approx(0.44, abs=0.02)


@pytest.mark.parametrize(
    ("m", "n", "run", "winner"),
    [
        (512, 8192, 4, "cublas"),
        (2048, 4096, 4, "cuda_sm90 128x128x64"),
        (4096, 14336, 4, "cublas"),
        (8192, 28672, 4, "cuda_sm90 128x256x64:c2"),
    ],
)
def test_the_fastest_kernel_is_the_fastest_at_one_clock(m, n, run, winner):
    known = {name: record for name, record in products(m, n, run).items() if record.at_clock.elasticity is not None}
    assert min(known, key=lambda name: known[name].seconds) == winner


def test_one_case_in_two_runs_or_on_two_cards_differs_by_no_more_than_its_law():
    by_case: dict[str, list[Record]] = {}
    for record in COMMITTED:
        by_case.setdefault(record.case_id, []).append(record)
    pairs = [pair for records in by_case.values() for pair in itertools.combinations(records, 2)]
    apart = [abs(math.log(one.seconds / other.seconds)) for one, other in pairs]
    assert len(apart) >= 30
    assert max(apart) <= 0.006
    assert max(abs(math.log(a.metrics["time"].value / b.metrics["time"].value)) for a, b in pairs) > 0.07


def test_products_are_known_within_a_third_of_a_percent_and_decided_in_a_fifth_of_the_time():
    assert np.median([record.at_clock.half_width for record in PRODUCTS]) <= 0.003
    spent_s = needed_s = 0.0
    for record in (each for each in PRODUCTS if len(each.sampling["slices"]) >= 3):
        slices, times, clocks = (
            record.sampling["slices"], record.metrics["time"].samples, record.metrics["sm_clock"].samples,
        )  # fmt: skip
        batch, counts = record.sampling["launches_per_sample"], itertools.accumulate(slices)
        for number, count in enumerate(counts, 1):
            interval = interval_at_one_clock(times[:count], clocks[:count], slices[:number], 0.9, batch)
            if number >= 3 and interval.half_width <= 0.01 * np.median(times[:count]):
                break
        spent_s += sum(times)
        needed_s += sum(times[:count])
    assert spent_s == pytest.approx(3.08, abs=0.05)
    assert needed_s <= 0.6


def test_a_clock_that_did_not_move_leaves_the_elasticity_unknown_and_the_interval_says_so():
    draw = np.random.default_rng(0)
    seconds, clocks = 1e-3 * draw.normal(1, 1e-3, 40), 1.75e9 * draw.normal(1, 1e-3, 40)
    converted = at_one_clock(seconds, clocks, [8] * 5, 1.5e9)
    assert converted.elasticity is None
    assert converted.seconds == pytest.approx(1e-3 * 1.75 / 1.5, rel=2e-3)
    assert converted.low == pytest.approx(1e-3 * (1.75 / 1.5) ** 0.4, rel=5e-3)
    assert converted.high == pytest.approx(converted.seconds, rel=5e-3)
    # A launch that does not compute, or is over before the GPU is full, keeps its seconds.
    for is_compute, scale in ((False, 1.0), (True, 1e-3)):
        kept = at_one_clock(seconds * scale, clocks, [8] * 5, 1.5e9, is_compute=is_compute)
        assert kept.seconds == pytest.approx(1e-3 * scale, rel=2e-3)
        assert kept.log_of_doubt == 0
    assert converted.log_of_doubt == pytest.approx(0.6 * math.log(1.75 / 1.5), rel=5e-3)


def test_copies_keep_their_seconds_where_the_clock_moves():
    copies = [r for r in COMMITTED if r.case["implementation"] in ("host_to_device", "device_to_host")]
    moved = [record.at_clock for record in copies if record.at_clock.elasticity is not None]
    assert len(moved) == 2
    assert all(abs(at.elasticity) < 0.05 for at in moved)


def test_the_reference_clock_is_a_share_of_the_highest_unless_the_sentinel_ran_elsewhere():
    assert reference_clock_hz(1.98e9) == 1.5e9
    assert reference_clock_hz(1.98e9, 1.66e9) == 1.5e9
    assert reference_clock_hz(1.41e9, 1.409e9) == 1.41e9


# Change that is called none: half of the one that must be found.
MARGIN = 0.005


def taken(slices: list[list[tuple[float, float]]], discarded: Sequence[int] = (), group: str = "") -> Reading:
    """The reading of a case whose slices were these, without the discarded samples."""
    samples = [sample for part in slices for sample in part]
    seconds, clocks = ([sample[column] for sample in samples] for column in (0, 1))
    middle = [float(np.median(values)) for values in (seconds, clocks)]
    metrics = {
        name: Metric(unit, value, min(values), max(values), min(values), max(values), values)
        for name, unit, value, values in (("time", "s", middle[0], seconds), ("sm_clock", "Hz", middle[1], clocks))
    }
    sampling = {"slices": [len(part) for part in slices], "launches_per_sample": 1, "quantile": 0.5, "group": group}
    quality = a_record(SMALL).quality | {"discarded": [(index, "throttled") for index in discarded]}
    state = {"gpu": {"maximum_sm_clock_mhz": 1980}}
    record = a_record(SMALL, metrics=metrics, sampling=sampling, quality=quality, state=state)
    [reading] = readings([record])
    return reading


def test_a_discarded_sample_leaves_every_other_in_its_own_slice():
    reading = taken([[(seconds, 1.5e9)] * 4 for seconds in (1e-3, 2e-3, 3e-3)], discarded=(0, 1), group="g")
    assert list(reading.slices.values()) == pytest.approx([1e-3, 2e-3, 3e-3])


@pytest.mark.parametrize("discarded", [0, 3, 7])
def test_slices_of_a_case_that_lost_one_pair_with_those_of_their_own_rounds(discarded):
    # The machine takes 1 % more from round to round, the second case twice as long: each pair has the ratio 2.
    first, second = ([[(scale * 1e-3 * 1.01**n, 1.5e9)] * 4 for n in range(10)] for scale in (1, 2))
    reading = taken(second, discarded=range(4 * discarded, 4 * discarded + 4), group="g")
    assert [n for _, n in reading.slices] == [n for n in range(10) if n != discarded]
    together = replace(taken(first), groups=("g",), seconds=reading.seconds / 2)
    assert _pair_error(reading, replace(together, slices={("g", n): each[0][0] for n, each in enumerate(first)})) < 1e-9


def test_equal_kernels_with_other_neighbours_are_equal_at_one_clock():
    hot, cool, measured = Kernel(4e-3, 1100), Kernel(4e-3, 300), Kernel(5e-4)
    beside_hot, beside_cool = (
        FakeGpu(seed).slices([measured, neighbour], 10)[0] for seed, neighbour in ((1, hot), (2, cool))
    )
    raw = [np.median([s for part in slices for s, _ in part]) for slices in (beside_hot, beside_cool)]
    assert raw[0] / raw[1] > 1.03
    hot_reading, cool_reading = taken(beside_hot), taken(beside_cool)
    assert hot_reading.elasticity == pytest.approx(measured.elasticity, abs=0.1)
    assert hot_reading.seconds == pytest.approx(measured.seconds, rel=0.003)
    # Next to cool work the clock hardly moves: cycles are used, and the interval holds the truth.
    assert cool_reading.elasticity is None
    assert cool_reading.low < measured.seconds < cool_reading.high
    assert cool_reading.seconds / hot_reading.seconds == pytest.approx(1, abs=0.02)


def test_a_kernel_that_draws_more_power_is_equal_at_one_clock_and_slower_under_a_sustained_load():
    frugal, greedy = Kernel(5e-4, 800), Kernel(5e-4, 880)
    at_one = [taken(slices).seconds for slices in FakeGpu(3).slices([frugal, greedy], 12)]
    assert at_one[1] / at_one[0] == pytest.approx(1, abs=0.005)
    sustained = [FakeGpu(4).settled(kernel)[0] for kernel in (frugal, greedy)]
    assert sustained[1] / sustained[0] > 1.02


@pytest.mark.parametrize(("slower", "lowest", "highest"), [(1.01, 0.95, 1.0), (1.0, 0.0, 0.01)])
@pytest.mark.slow
def test_of_400_pairs_of_ten_slices_a_change_of_one_percent_is_found_and_none_where_there_is_none(
    slower, lowest, highest
):
    found = 0
    for seed in range(400):
        old, new = map(taken, FakeGpu(seed).slices([Kernel(5e-4), Kernel(5e-4 * slower)], 10))
        ratio = speedup(new, old)
        found += (ratio.low > 1 or ratio.high < 1) and abs(math.log(ratio.value)) > MARGIN
    assert lowest <= found / 400 <= highest
