from __future__ import annotations

import math

import numpy as np
import pytest

from pyperf_suite.history.compare import noise_from_store, run_noise
from pyperf_suite.history.stored.journals import Measured
from pyperf_suite.history.stored.series import Break, Point, Series
from pyperf_suite.history.stored.store import Store


def series(logs, breaks=(), unit=lambda index: "") -> Series:
    points = [Point(f"run-{i}", "", math.exp(log), 0.0, 0.0, unit=unit(i)) for i, log in enumerate(logs)]
    return Series("machine", "probe", "case", "label", "s", tuple(points), tuple(Break(i, "driver") for i in breaks))


def noise(count: int, deviation: float = 0.03) -> np.ndarray:
    return np.random.default_rng(0).normal(0, deviation, count)


def test_the_noise_is_the_standard_deviation_of_runs():
    assert run_noise(series(noise(400))).deviation == pytest.approx(0.03, rel=0.1)


def test_a_slow_drift_of_the_machine_is_not_taken_for_noise():
    drifting = run_noise(series(noise(400) + np.linspace(0, 1, 400)))
    assert drifting.deviation == pytest.approx(run_noise(series(noise(400))).deviation, rel=0.05)


def test_a_step_widens_the_noise_but_a_break_and_another_gpu_do_not():
    step = np.where(np.arange(40) < 20, 0.0, 0.5)
    quiet = run_noise(series(noise(40))).deviation
    assert run_noise(series(noise(40) + step)).deviation > 1.5 * quiet
    assert run_noise(series(noise(40) + step, breaks=[20])).deviation == pytest.approx(quiet, rel=0.1)
    other_gpu = series(noise(40) + step, unit=lambda index: "a" if index < 20 else "b")
    assert run_noise(other_gpu).deviation == pytest.approx(quiet, rel=0.1)


def test_the_runs_that_are_compared_do_not_tell_their_own_noise():
    logs = [*noise(6), 0.4]
    assert run_noise(series(logs), without=["run-6"]).deviation < 0.04 < run_noise(series(logs)).deviation


def test_fewer_than_five_runs_tell_nothing_and_few_tell_little():
    assert run_noise(series(noise(4))) is None
    assert run_noise(series(noise(6)), without=["run-1", "run-3"]) is None
    assert run_noise(series(noise(8), breaks=[2, 3, 5, 6, 7])) is None
    assert run_noise(series(noise(5))).freedom < 3 < run_noise(series(noise(9))).freedom


def test_a_benchmark_without_a_history_is_taken_to_be_as_noisy_as_the_noisier_of_its_machine(results, write_run):
    spreads = {"quiet": 0.001, "loud": 0.1}
    for run in range(8):
        for number, (case_id, spread) in enumerate(spreads.items()):
            seconds = 1e-3 * math.exp(spread * (-1) ** run)
            write_run(f"202601{run + 1:02}T000000Z-0001", [seconds], case_id=case_id, position=number)
    machine = next(results.iterdir()).name
    with Store(results) as store:
        store.update()
        noise_of = noise_from_store(store, machine)
        quiet, loud, new = (
            noise_of(Measured("tile_wave", case_id, case_id, "timing")) for case_id in ("quiet", "loud", "new")
        )
        elsewhere = noise_from_store(store, "another-machine")(Measured("tile_wave", "loud", "loud", "timing"))
        left = noise_from_store(store, machine, [f"202601{run + 1:02}T000000Z-0001" for run in range(4)])
        assert left(Measured("tile_wave", "loud", "loud", "timing")) is None
    # Values to and fro, each as far from the next as two spreads.
    assert loud.deviation == pytest.approx(0.2 / math.sqrt(2))
    assert quiet.deviation == pytest.approx(0.002 / math.sqrt(2))
    assert "8 runs of its own" in loud.source
    assert 0.8 * loud.deviation < new.deviation < loud.deviation
    assert "noisier of 2 benchmarks" in new.source
    assert elsewhere is None
