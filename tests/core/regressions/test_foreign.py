"""The JSON of pytest-benchmark, of any age and from anybody."""

from __future__ import annotations

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.regressions.stored import foreign
from pyperf_suite.regressions.stored.foreign import read_foreign
from pyperf_suite.regressions.stored.journals import RunSummary

ROUNDS = [1e-3, 1.1e-3, 0.9e-3, 1.05e-3, 0.95e-3, 1e-3, 1.02e-3, 0.98e-3, 1.01e-3]


def document(**fields):
    """What a current version writes, shortened."""
    return {
        "machine_info": {
            "node": "secret-host",
            "system": "Linux",
            "release": "6.1",
            "python_implementation": "CPython",
            "python_version": "3.11.7",
            "cpu": {"brand_raw": "AMD EPYC 7763", "count": 64},
        },
        "commit_info": {"id": "c" * 40, "dirty": True},
        "benchmarks": [benchmark()],
        "datetime": "2026-02-03T04:05:06.789012+00:00",
        "version": "5.3.1",
    } | fields


def benchmark(name="tests/test_a.py::test_a[1]", **stats):
    """One of its benchmarks, without the rounds themselves."""
    message = {"min": 0.9e-3, "max": 1.1e-3, "median": 1e-3, "iqr": 0.06e-3, "rounds": 9}
    return {"name": name.rpartition(":")[2], "fullname": name, "stats": message | stats}


def only(summary):
    """The one benchmark of a file that is read without a note."""
    assert summary.damage == []
    (found,) = summary.measured
    return found


@pytest.fixture
def written(tmp_path):
    """Writes a document, or text as it is, and returns its path."""

    def write(content):
        path = tmp_path / "0001.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_a_current_file_gives_a_median_with_its_interval_commit_and_machine(written):
    found = only(read_foreign(written(document())))
    assert (found.probe, found.label, found.ok) == ("pytest-benchmark", "tests/test_a.py::test_a[1]", 1)
    assert found.machine == "cpu-amd-epyc-7763-linux-64c"
    assert found.started_at == "2026-02-03T04:05:06.789+00:00"
    assert found.state["source"] == {"commit": "c" * 40, "dirty": True}
    assert found.medians == (1e-3,)
    assert found.high - 1e-3 == pytest.approx(1.57 * 0.06e-3 / math.sqrt(9))


def test_the_nodes_name_is_kept_nowhere(written):
    assert "secret-host" not in str(read_foreign(written(document())))


def test_the_rounds_give_the_interval_where_the_file_has_them(written):
    found = only(read_foreign(written(document(benchmarks=[benchmark(data=ROUNDS)]))))
    assert min(ROUNDS) <= found.low < found.seconds < found.high <= max(ROUNDS)


def test_a_file_of_version_3_is_read_without_its_later_fields(written):
    old = document(machine_info={"processor": "x86_64", "system": "Darwin"}, datetime="2016-10-02T10:00:00.123456")
    del old["version"]
    old["commit_info"] = {"id": "unknown", "dirty": False}
    found = only(read_foreign(written(old)))
    assert (found.machine, found.started_at) == ("cpu-x86-64-darwin-unknown-c", "2016-10-02T10:00:00.123+00:00")
    assert "source" not in found.state


def test_brand_is_read_by_its_older_name_too(written):
    info = {"system": "Linux", "cpu": {"brand": "AMD EPYC 7763", "count": 64}}
    found = only(read_foreign(written(document(machine_info=info))))
    assert found.machine == "cpu-amd-epyc-7763-linux-64c"


def test_the_same_name_again_is_one_more_process(written):
    found = only(read_foreign(written(document(benchmarks=[benchmark(), benchmark(median=1.01e-3)]))))
    assert (found.ok, found.medians) == (2, (1e-3, 1.01e-3))


@pytest.mark.parametrize(
    "bad",
    [
        benchmark(median=0.0),
        benchmark(median=-1.0),
        benchmark(median="fast"),
        benchmark(median=None),
        benchmark(median=True),
        benchmark(median=10**400),
        benchmark(data=[1e-3, "x"]),
        {"fullname": "no stats"},
        {"stats": {"median": 1.0}},
        "text",
        None,
    ],
    ids=str,
)
def test_a_benchmark_that_is_none_is_noted_and_the_others_are_kept(written, bad):
    found = read_foreign(written(document(benchmarks=[bad, benchmark()])))
    assert [one.label for one in found.measured] == ["tests/test_a.py::test_a[1]"]
    (note,) = found.damage
    assert "benchmark 1 cannot be used" in note


def test_a_number_beyond_all_floats_is_no_time(written):
    text = json.dumps(document()).replace('"median": 0.001', '"median": 1e999')
    found = read_foreign(written(text))
    assert found.measured == []
    assert "inf, not a positive number of seconds" in found.damage[0]


def test_of_very_many_bad_benchmarks_only_the_number_is_told(written):
    notes = read_foreign(written(document(benchmarks=[None] * 1000))).damage
    assert len(notes) == foreign.MOST_NOTES + 1
    assert f"{1000 - foreign.MOST_NOTES} more" in notes[-1]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is not JSON"),
        ("[" * 200_000, "nested too deeply"),
        ('{"benchmarks": NaN}', "NaN"),
        ('{"benchmarks": [], "benchmarks": []}', "twice"),
        ("[]", "no list of benchmarks"),
        ('{"benchmarks": {}}', "no list of benchmarks"),
        (document(datetime="yesterday"), "no date"),
        (document(datetime={"year": 2026}), "no date"),
    ],
    ids=["empty", "deep", "NaN", "twice", "a list", "no list", "yesterday", "no text"],
)
def test_what_is_no_such_file_is_refused_in_one_sentence_that_names_it(written, content, why):
    path = written(content)
    with pytest.raises(UserError, match=why) as refused:
        read_foreign(path)
    assert str(path) in str(refused.value)


def test_a_file_too_large_is_refused_before_it_is_parsed(written, monkeypatch):
    monkeypatch.setattr(foreign, "LARGEST_FILE_BYTES", 1000)
    with pytest.raises(UserError, match="larger than"):
        read_foreign(written(" " * 1001))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_foreign(tmp_path / "absent.json")


def test_half_a_surrogate_pair_in_a_name_does_no_harm(written):
    found = only(read_foreign(written(document(benchmarks=[benchmark("test_\ud800")]))))
    assert found.label.encode().startswith(b"test_")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system does not name open files")
def test_a_pipe_that_nobody_writes_is_refused_and_one_that_is_written_is_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UserError, match="is not JSON"):
        read_foreign(tmp_path / "pipe.json")
    reading, writing = os.pipe()
    with ThreadPoolExecutor() as pool:
        found = pool.submit(read_foreign, Path(f"/dev/fd/{reading}"))
        os.write(writing, b'{"benchmarks": [], "datetime": "2026-01-01T00:00:00"}')
        os.close(writing)
        assert found.result() == RunSummary()
    os.close(reading)
