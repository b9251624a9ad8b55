"""Runs into points, and changes of state into breaks."""

from __future__ import annotations

import pytest

from pyperf_suite.history.stored.series import Point, breaks_of
from pyperf_suite.history.stored.store import Store


@pytest.fixture
def only_series(results):
    """The one series of the results folder."""

    def find(**wanted):
        with Store(results) as store:
            store.update()
            (benchmark,) = store.benchmarks(**wanted)
            return store.series(benchmark)

    return find


def point(state):
    """A point measured in that state."""
    return Point("run", "2026-01-01T00:00:00.000+00:00", 1e-3, 1e-3, 1e-3, state=state)


def breaks(*states, kind="timing"):
    """The breaks between points measured in those states."""
    return [(found.index, found.what) for found in breaks_of([point(state) for state in states], kind)]


def test_a_point_is_the_median_of_its_processes_and_their_range(write_run, only_series):
    write_run(seconds=[1e-3, 3e-3, 2e-3])
    (only,) = only_series().points
    assert (only.value, only.low, only.high) == (2e-3, 1e-3, 3e-3)
    assert (only.processes, only.medians) == (3, (1e-3, 3e-3, 2e-3))


def test_one_process_gives_its_own_interval(write_run, make_record, only_series):
    record = make_record()
    record["metrics"]["time"] |= {"low": 0.9e-3, "high": 1.3e-3}
    write_run(records=[record])
    (only,) = only_series().points
    assert (only.low, only.value, only.high) == (0.9e-3, 1e-3, 1.3e-3)


def test_points_stand_in_the_order_measured_whatever_their_folders_order(write_run, only_series):
    write_run("20260103T000000Z-0001", [3e-3])
    write_run("20260101T000000Z-ffff", [1e-3])
    write_run("20260102T000000Z-0001", [2e-3])
    assert only_series().values == [1e-3, 2e-3, 3e-3]


def test_a_visit_that_failed_and_was_resumed_counts_as_measured(write_run, only_series):
    write_run(seconds=[None])
    write_run(seconds=[1e-3])
    (only,) = only_series().points
    assert (only.ok, only.failed) == (1, 0)


def test_failed_processes_are_counted_and_a_run_of_failures_is_named(write_run, only_series):
    write_run("20260101T000000Z-0001", [1e-3, None])
    write_run("20260102T000000Z-0001", [None, None])
    series = only_series()
    assert [(one.ok, one.failed) for one in series.points] == [(1, 1)]
    assert series.failed_runs == ("20260102T000000Z-0001",)


def test_a_run_resumed_with_other_code_is_dirty(write_run, make_record, only_series):
    states = [{"source": {"commit": commit * 40, "dirty": False}} for commit in "ab"]
    write_run(records=[make_record(state=state, process=process) for process, state in enumerate(states)])
    (only,) = only_series().points
    assert (only.commit, only.dirty) == ("b" * 40, True)


def test_both_sentinels_of_a_run_are_processes_of_their_own(write_run, make_record, only_series):
    write_run(records=[make_record(kind="sentinel", position=position) for position in (0, 9)])
    assert only_series().points[0].processes == 2


def test_exact_figures_of_a_kernel_form_a_series_each(write_run, make_record, only_series):
    write_run(records=[make_record(exact={"registers": 128, "spills": 0})])
    series = only_series(pattern="registers")
    assert (series.values, series.metric, series.kind) == ([128.0], "registers", "static")
    assert series.title.endswith("] registers")


def test_a_copied_run_counts_once(results, write_run, only_series):
    write_run()
    copy = results / "cpu-made-up-2c" / "backup"
    copy.mkdir()
    (copy / "records.jsonl").write_bytes(write_run(records=[]).read_bytes())
    assert len(only_series().points) == 1


def test_a_changed_driver_limit_or_library_is_a_break_that_says_what():
    before = {"gpu": {"driver": "570.1", "power_limit_w": 700.0, "ecc": True}, "packages": {"torch": "2.9"}}
    after = {"gpu": {"driver": "580.2", "power_limit_w": 500.0, "ecc": False}, "packages": {"torch": "2.10"}}
    assert breaks(before, before, after, after) == [
        (2, "driver 570.1 -> 580.2, power limit (W) 700 -> 500, ECC on -> off, torch 2.9 -> 2.10")
    ]


def test_another_gpu_of_the_same_kind_is_a_unit_and_no_break(write_run, only_series):
    for day, uuid in enumerate(("GPU-1", "GPU-1", "GPU-2"), start=1):
        write_run(f"2026010{day}T000000Z-0001", state={"gpu": {"uuid": uuid, "driver": "580"}})
    series = only_series()
    assert series.breaks == ()
    assert [one.unit for one in series.points] == ["GPU-1", "GPU-1", "GPU-2"]
    assert series.units == ("GPU-1", "GPU-2")


def test_the_packages_own_version_and_commit_are_no_break():
    states = [{"packages": {"pyperf_suite": number}, "source": {"commit": number}} for number in ("1", "2")]
    assert breaks(*states) == []


def test_what_is_not_told_in_between_is_compared_with_what_was_told_last():
    assert breaks({"gpu": {"driver": "1"}}, {"gpu": {}}, {"gpu": {"driver": "1"}}) == []
    assert breaks({"gpu": {"driver": "1"}}, {"gpu": {}}, {"gpu": {"driver": "2"}}) == [(2, "driver 1 -> 2")]


def test_a_library_that_is_gone_is_a_break():
    assert breaks({"packages": {"triton": "3.7"}}, {"packages": {"triton": None}}) == [(1, "triton 3.7 -> absent")]


def test_machine_code_breaks_with_its_compiler_and_not_with_the_driver_or_governor():
    before = {"gpu": {"driver": "1"}, "governors": ["powersave"], "kernel_compiler": "NVRTC 13.0"}
    after = {"gpu": {"driver": "2"}, "governors": ["performance"], "kernel_compiler": "NVRTC 13.1"}
    assert breaks(before, after, kind="static") == [(1, "kernel compiler NVRTC 13.0 -> NVRTC 13.1")]


@pytest.mark.parametrize(
    "state", [{"packages": 3}, {"gpu": "none"}, {"gpu": {"driver": {"a": [1]}}}, {"governors": {}}]
)
def test_a_state_of_strange_form_breaks_nothing_else(state):
    assert len(breaks({"python": "3.11"}, state, {"python": "3.12"})) >= 1
