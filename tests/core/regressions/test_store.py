import json
import os
import shutil
from pathlib import Path

import pytest

from pyperf_suite.regressions.stored import store as store_module
from pyperf_suite.regressions.stored.store import Store, find_run_folder, find_side
from pyperf_suite.render.results import read_results


def points(results, machine=None):
    """Every value of the folder's one benchmark, in order, as it is now."""
    found = Store(results).series(machine=machine)
    assert len(found) <= 1
    return found[0].values if found else []


def run_id(day):
    return f"202601{day:02}T000000Z-0001"


@pytest.fixture
def read(monkeypatch):
    """An entry for each journal that is read."""
    names, whole = [], store_module.series.summarise_journal

    def counted(file, machine):
        names.append(machine)
        return whole(file, machine)

    monkeypatch.setattr(store_module.series, "summarise_journal", counted)
    return names


def test_a_torn_last_line_waits_for_its_writer(results, write_run, make_record):
    path = write_run(run_id(1))
    line = json.dumps(make_record(run_id(1), 3e-3, process=1)).encode() + b"\n"
    for part, expected in ((line[:1], 1e-3), (line[1:-2], 1e-3), (line[-2:-1], 2e-3), (line[-1:], 2e-3)):
        with path.open("ab") as file:
            file.write(part)
        assert points(results) == [expected]
    assert Store(results).damage == []


def test_files_that_shrank_became_others_or_are_gone_are_followed(results, write_run):
    path = write_run(run_id(1), [1e-3, 3e-3])
    gone = write_run(run_id(2), [9e-3])
    assert points(results) == [2e-3, 9e-3]
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    gone.unlink()
    assert points(results) == [1e-3]
    path.write_bytes(path.read_bytes().replace(b"0.001", b"0.002"))
    os.utime(path, ns=(1, 1))
    assert points(results) == [2e-3]


def test_runs_one_folder_deeper_are_found_and_a_copy_counts_once(results, write_run):
    for day in range(1, 5):
        write_run(run_id(day), [day * 1e-3])
    machine = next(results.iterdir())
    for day in (2, 3):
        shutil.copytree(machine / run_id(day), results / f"artifact-{day}" / machine.name / run_id(day))
    for day in (3, 4):
        shutil.rmtree(machine / run_id(day))
    shutil.copytree(results, results.parent / "unpacked" / "bench_results")
    assert points(results) == [1e-3, 2e-3, 3e-3]
    assert points(results.parent / "unpacked") == [1e-3, 2e-3]
    latest = [find_side(name, results).name for name in ("latest", "latest~1", "latest~2", run_id(2))]
    assert [Path(each).name for each in latest] == [run_id(day) for day in (3, 2, 1, 2)]
    assert {run.run_id for run in read_results(results).runs} == {run_id(day) for day in (1, 2, 3)}


def test_machines_never_share_a_series_and_a_record_counts_for_the_machine_it_names(results, write_run):
    path = write_run(run_id(1), [1e-3], machine="cpu-a-2c")
    write_run(run_id(2), [2e-3], machine="cpu-b-2c")
    assert (points(results, "cpu-a-2c"), points(results, "cpu-b-2c")) == ([1e-3], [2e-3])
    path.parent.parent.rename(results / "cpu-c-2c")
    assert points(results, "cpu-a-2c") == [1e-3]


def test_what_is_no_record_is_named_and_the_rest_is_read(results, write_run, make_record):
    path = write_run(run_id(1), [1e-3])
    with path.open("a") as file:
        file.write(json.dumps(make_record() | {"schema_version": 2}) + "\n" + "[" * 100_000 + "\n")
    write_run(run_id(1), [3e-3], process=1)
    (results / "cpu-made-up-2c" / run_id(2)).mkdir()
    os.mkfifo(results / "cpu-made-up-2c" / run_id(2) / "records.jsonl")
    for _ in range(2):  # as it is read, and again from the cache
        store = Store(results)
        assert points(results) == [2e-3]
        assert [f"{path}, line {number} is not" in each for number, each in enumerate(store.damage, 2)] == [
            True,
            True,
            False,
        ]
        for why, sentence in zip(("version 2", "nested too deeply", "it is a pipe"), store.damage, strict=True):
            assert why in sentence


@pytest.mark.parametrize("why", ["can be written by other users", "Not a directory"])
def test_a_cache_folder_that_others_can_write_or_that_cannot_be_made_is_reported_and_not_used(
    results, write_run, cache, why
):
    write_run(run_id(1), [1e-3])
    if why == "Not a directory":
        cache.parent.write_text("")
    else:
        cache.mkdir(parents=True)
        cache.chmod(0o777)
    store = Store(results)
    assert [why in note for note in store.notes] == [True]
    assert store.series()[0].values == [1e-3]
    assert not cache.exists() or list(cache.iterdir()) == []


def test_no_journal_is_ever_altered(results, write_run, cache):
    path = write_run(run_id(1))
    with path.open("ab") as file:
        file.write(b"garbage\n{torn")
    before, stamp = path.read_bytes(), path.stat().st_mtime_ns
    Store(results)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, stamp)
    assert [each.name for each in results.iterdir()] == ["cpu-made-up-2c"]
    shutil.rmtree(cache)
    assert points(results) == [1e-3]


def test_latest_counts_back_on_the_machine_of_the_newest_run_and_over_runs_that_recorded_something(results, write_run):
    for day, machine in ((1, "a"), (2, "other"), (3, "a"), (5, "a"), (6, "a")):
        write_run(run_id(day), [1e-3] if day < 6 else [], machine=machine)
    (results / "a" / run_id(7)).mkdir()
    (results / "a" / run_id(8) / "records.jsonl").mkdir(parents=True)
    found = [find_side(name, results).name for name in ("latest", "latest~0", "latest~1", "latest~2", run_id(2))]
    assert [Path(name).name for name in found] == [run_id(day) for day in (5, 5, 3, 1, 2)]
    held = ("records.jsonl", "watch.json")
    (results / "a" / "watch-20260104T000000Z-0001").mkdir()
    (results / "a" / "watch-20260104T000000Z-0001" / "watch.json").write_text("{}")
    assert find_run_folder("latest~1", results, held).name.startswith("watch-")
