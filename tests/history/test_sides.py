"""Finished runs and files as sides of a comparison."""

from __future__ import annotations

import json

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.history.stored import journals
from pyperf_suite.history.stored.store import read_side
from pyperf_suite.runner.record import Record

METRIC = {"unit": "B", **dict.fromkeys(("value", "low", "high", "q20", "q80"), 1), "samples": []}
KEY = ("tile_wave", "0123456789abcdef")


def test_a_runs_folder_and_its_records_are_the_same_side(write_run):
    path = write_run(seconds=[1e-3, 2e-3, 4e-3])
    by_folder, by_file = read_side(path.parent), read_side(path)
    assert by_folder == by_file
    measured = by_folder.benchmarks[KEY]
    assert (measured.medians, measured.low, measured.high, measured.seconds) == ((1e-3, 2e-3, 4e-3), 1e-3, 4e-3, 2e-3)
    assert measured.samples == (4, 4, 4)
    assert measured.steal_share == (0.25, 0.25, 0.25)
    assert (by_folder.machine, by_folder.commit, by_folder.notes) == ("cpu-made-up-2c", "a" * 40, ())


def test_the_label_is_the_cases_own(make_record, write_run):
    record = make_record()
    measured = read_side(write_run(records=[record])).benchmarks[KEY]
    assert measured.label == Record.from_json(record).label


def test_a_case_of_an_operator_that_is_gone_keeps_its_name(make_record, write_run):
    case = {"operator": "gone", "parameters": {"n": 3}, "implementation": "old", "mode": "sustained"}
    (measured,) = read_side(write_run(records=[make_record(case=case)])).benchmarks.values()
    assert measured.label == "gone[old n=3 mode=sustained]"


def test_clocks_are_those_of_the_multiprocessors_or_else_of_the_cores(make_record, write_run):
    clock = {"unit": "Hz", **dict.fromkeys(("value", "low", "high", "q20", "q80"), 1.7e9), "samples": []}
    told = {"converged": True, "before": {"cpu_mhz": {"median": 2000}}, "after": {"cpu_mhz": {"median": 3000}}}
    records = [make_record(metrics={"sm_clock": clock}), make_record(process=1, quality=told)]
    assert read_side(write_run(records=records)).benchmarks[KEY].clock_hz == (1.7e9, 2.5e9)


def test_exact_figures_and_reasons_of_failure_are_told(make_record, write_run):
    static = make_record(exact={"registers": 96}, case_id="b" * 16)
    side = read_side(write_run(records=[static, make_record(seconds=None)]))
    assert side.benchmarks["tile_wave", "b" * 16].metrics == {"registers": 96.0}
    failed = side.benchmarks[KEY]
    assert (failed.medians, failed.failures) == ((), ("failed: a made-up reason",))


def test_a_pytest_benchmark_file_is_a_side(tmp_path):
    path = tmp_path / "saved.json"
    stats = {"median": 1e-3, "min": 1e-3, "max": 1e-3, "rounds": 5}
    document = {"benchmarks": [{"fullname": "test_a", "stats": stats}], "datetime": "2026-01-01T00:00:00"}
    path.write_text(json.dumps(document))
    (measured,) = read_side(path).benchmarks.values()
    assert (measured.label, measured.medians) == ("test_a", (1e-3,))


def test_lines_that_are_no_records_are_noted_and_a_torn_end_is_too(write_run):
    path = write_run()
    with path.open("a") as file:
        file.write('{"schema_version": 99}\nnot JSON\n\n{"run_id": "cut o')
    side = read_side(path)
    assert len(side.benchmarks) == 1
    assert [note.partition(": ")[0].rpartition(" ")[2] for note in side.notes] == ["suite", "suite", "suite"]
    assert "line 2" in side.notes[0]
    assert "version 99" in side.notes[0]
    assert "line 3" in side.notes[1]
    assert "line 5" in side.notes[2]
    assert "cut off" in side.notes[2]


def test_a_line_too_long_is_passed_over(write_run, monkeypatch):
    path = write_run()
    longest = len(path.read_bytes())
    with path.open("a") as file:
        file.write("[" * (3 * longest) + "\n")
    write_run(seconds=[2e-3])
    monkeypatch.setattr(journals, "LONGEST_LINE_BYTES", longest)
    side = read_side(path)
    assert side.benchmarks[KEY].medians == (2e-3,)  # the same process, measured again
    assert "longer than" in side.notes[0]


@pytest.mark.parametrize(
    "spoilt",
    [
        {"run_id": 3},
        {"case_id": None},
        {"process": -1},
        {"process": 10**30},
        {"started_at": "today"},
        {"state": None},
        {"state": json.loads("[" * 500 + "]" * 500)},
        {"state": {"a": json.loads("[" * 500 + "]" * 500)}},
        {"kind": "static", "metrics": dict.fromkeys(map(str, range(1001)), METRIC)},
        {"identity": []},
        {"probe": "\ud800"},
        {"quality": {"converged": True, "discarded": 3}},
    ],
    ids=lambda spoilt: str(spoilt)[:40],
)
def test_a_record_whose_fields_are_of_no_use_is_noted(make_record, write_run, spoilt):
    side = read_side(write_run(records=[make_record(case_id="b" * 16), make_record() | spoilt]))
    assert [case_id for _, case_id in side.benchmarks] == ["b" * 16]
    assert "line 2" in side.notes[0]


@pytest.mark.parametrize("value", ["0", "-1.0", "1e999", "NaN", "true"])
def test_a_time_that_is_none_is_noted(make_record, write_run, value):
    path = write_run()
    line = json.dumps(make_record(seconds=0.5, case_id="b" * 16)).replace("0.5", value)
    with path.open("a") as file:
        file.write(line + "\n")
    side = read_side(path)
    assert list(side.benchmarks) == [KEY]
    assert len(side.notes) == 1


def test_records_of_two_machines_are_no_side(make_record, write_run):
    other = make_record(identity={"slug": "cpu-other-64c"})
    with pytest.raises(UserError, match="several machines"):
        read_side(write_run(records=[make_record(), other]))


def test_what_is_no_run_is_refused_in_one_sentence(tmp_path, write_run):
    with pytest.raises(UserError, match="not a run's folder"):
        read_side(tmp_path)
    with pytest.raises(UserError, match="No such file"):
        read_side(tmp_path / "absent.jsonl")
    with pytest.raises(UserError, match="no results to compare"):
        read_side(write_run(records=[]))
