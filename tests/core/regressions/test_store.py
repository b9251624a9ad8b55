"""The store over all runs: always what the journals say, whatever happens to its cache or beside it."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.regressions.stored import store as store_module
from pyperf_suite.regressions.stored.journals import MOST_NOTES
from pyperf_suite.regressions.stored.store import RunCache, Store


def updated(results):
    store = Store(results)
    store.update()
    return store


def points(results, machine=None):
    """Every value of the folder's one benchmark, in order, after an update."""
    store = updated(results)
    found = store.benchmarks(machine=machine)
    assert len(found) <= 1
    return store.series(found[0]).values if found else []


def run_id(day):
    return f"202601{day:02}T000000Z-0001"


@pytest.fixture
def cache(results):
    return results / RunCache.NAME


@pytest.fixture
def read(monkeypatch):
    """An entry for each journal that is read."""
    names, whole = [], store_module.summarise_journal

    def counted(file, machine):
        names.append(machine)
        return whole(file, machine)

    monkeypatch.setattr(store_module, "summarise_journal", counted)
    return names


def test_an_update_reads_only_the_journals_that_were_written_since(results, write_run, read):
    write_run(run_id(1), [1e-3, 1e-3])
    write_run(run_id(2), [2e-3])
    assert points(results) == [1e-3, 2e-3]
    read.clear()
    write_run(run_id(2), [4e-3], process=1)
    write_run(run_id(3), [3e-3])
    assert points(results) == [1e-3, 3e-3, 3e-3]
    assert len(read) == 2
    read.clear()
    assert points(results) == [1e-3, 3e-3, 3e-3]
    assert read == []


def test_one_store_follows_a_journal_being_written(results, write_run, read):
    store = Store(results)
    for process in range(5):
        write_run(run_id(1), [1e-3], process=process)
        store.update()
        assert store.series(store.benchmarks()[0]).points[0].processes == process + 1
    store.update()
    assert len(read) == 5


def test_a_torn_last_line_waits_for_its_writer(results, write_run, make_record):
    path = write_run(run_id(1))
    line = json.dumps(make_record(run_id(1), 3e-3, process=1)).encode() + b"\n"
    for part, expected in ((line[:1], 1e-3), (line[1:-2], 1e-3), (line[-2:-1], 2e-3), (line[-1:], 2e-3)):
        with path.open("ab") as file:
            file.write(part)
        assert points(results) == [expected]
    assert updated(results).damage == []


def test_files_that_shrank_became_others_or_are_gone_are_followed(results, write_run, cache):
    path = write_run(run_id(1), [1e-3, 3e-3])
    gone = write_run(run_id(2), [9e-3])
    assert points(results) == [2e-3, 9e-3]
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    gone.unlink()
    assert points(results) == [1e-3]
    assert len(list(cache.glob("*.json"))) == 1
    path.write_bytes(path.read_bytes().replace(b"0.001", b"0.002"))
    os.utime(path, ns=(1, 1))
    assert points(results) == [2e-3]


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
        store = updated(results)
        assert points(results) == [2e-3]
        assert [f"{path}, line {number} is not" in each for number, each in enumerate(store.damage, 2)] == [
            True,
            True,
            False,
        ]
        for why, sentence in zip(("version 2", "nested too deeply", "not a regular file"), store.damage, strict=True):
            assert why in sentence


def test_of_very_much_damage_only_the_number_is_reported(results, write_run):
    path = write_run(run_id(1))
    with path.open("a") as file:
        file.write("garbage\n" * 200)
    damage = updated(results).damage
    assert len(damage) == MOST_NOTES + 1
    assert f"{200 - MOST_NOTES} more lines" in damage[-1]


def test_benchmarks_are_found_by_case_label_part_or_glob(results, write_run, make_record):
    case = {"operator": "matmul", "parameters": {"m": 7}, "implementation": "torch"}
    write_run(run_id(1), records=[make_record(run_id(1)), make_record(run_id(1), case=case, case_id="b" * 16)])
    store = updated(results)
    for pattern in ("b" * 16, "matmul[torch m=7]", "torch m", "matmul[torch*]", "matmul?torch*"):
        assert [one.case_id for one in store.benchmarks(pattern)] == ["b" * 16]
    assert len(store.benchmarks("matmul*")) == 2
    assert store.benchmarks("absent") == []


def test_a_benchmark_knows_how_many_runs_there_are_when_and_whether_it_moved(results, write_run):
    write_run(run_id(1), [1e-3, 1e-3])
    write_run(run_id(5), [1e-3])
    (one,) = updated(results).benchmarks()
    assert (one.count, one.first[:10], one.last[:10], one.constant) == (2, "2026-01-01", "2026-01-05", True)
    assert one.unit_of_measure == "s"


def test_a_run_is_known_with_its_outcomes_and_its_journal(results, write_run):
    path = write_run(run_id(1), [1e-3, None])
    write_run(run_id(1), [1e-3], process=2)
    store = updated(results)
    (one,) = store.measured
    assert (one.ok, one.failed, one.unsupported, one.machine) == (2, 1, 0, "cpu-made-up-2c")
    assert store.journals() == {(one.machine, one.run_id): path}


def test_files_of_other_tools_are_read_from_a_folder_until_they_are_gone(results, tmp_path):
    saved = tmp_path / ".benchmarks" / "Linux"
    saved.mkdir(parents=True)
    for number in (1, 2):
        stats = {"median": number * 1e-3, "rounds": 1}
        document = {"benchmarks": [{"fullname": "a", "stats": stats}], "datetime": f"2026-01-0{number}T00:00:00"}
        (saved / f"000{number}_a.json").write_text(json.dumps(document))
    (saved / "broken.json").write_text("{")
    Store(results).add(tmp_path / ".benchmarks")
    assert points(results) == [1e-3, 2e-3]
    assert ["broken.json" in sentence for sentence in updated(results).damage] == [True]
    (saved / "0001_a.json").unlink()
    assert points(results) == [2e-3]
    with pytest.raises(UserError, match="There is no"):
        Store(results).add(tmp_path / "absent.json")


def spoil_with(change):
    """Spoil what is kept of the only run as somebody would who knows its form."""

    def spoil(kept):
        body = json.loads(kept.read_bytes().partition(b"\n")[2])
        change(body)
        text = json.dumps(body).encode()
        kept.write_bytes(b"%08x\n" % zlib.crc32(text) + text)

    return spoil


def put(index, value):
    return spoil_with(lambda body: body["measured"][0].__setitem__(index, value))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: kept.write_bytes(b""),
        lambda kept: kept.write_bytes(b"\xff" * 5000),
        lambda kept: kept.write_bytes(kept.read_bytes()[:-20]),
        lambda kept: kept.write_bytes(kept.read_bytes().replace(b"0.001", b"0.007")),
        lambda kept: (kept.unlink(), kept.mkdir()),
        lambda kept: (kept.unlink(), os.mkfifo(kept)),
        lambda kept: (kept.unlink(), kept.symlink_to("/dev/zero")),
        put(0, 7),
        put(6, None),
        put(7, ["0.001"]),
        put(7, [-1.0]),
        put(8, 1e999),
        put(10, {"registers": 3}),
        put(16, "fast"),
        put(-1, 7),
        spoil_with(lambda body: body.update(version=0)),
        spoil_with(lambda body: body.update(states=[])),
        spoil_with(lambda body: body.update(states=[3])),
        spoil_with(lambda body: body.update(damage=[7])),
        spoil_with(lambda body: body["measured"].append(7)),
        spoil_with(lambda body: body["measured"][0].append(7)),
    ],
)
def test_a_cache_that_is_damaged_or_spoilt_is_made_anew(results, write_run, cache, spoil):
    write_run(run_id(1), [1e-3])
    assert points(results) == [1e-3]
    (kept,) = cache.glob("*.json")
    spoil(kept)
    store = updated(results)
    assert store.series(store.benchmarks()[0]).values == [1e-3]
    store.journals()
    assert points(results) == [1e-3]


@pytest.mark.parametrize("kind", ["link", "link to nothing", "file", "pipe"])
def test_in_place_of_the_cache_nothing_is_written_and_the_records_are_read(results, write_run, tmp_path, cache, kind):
    write_run(run_id(1), [1e-3])
    theirs = tmp_path / "theirs"
    if kind == "link":
        theirs.mkdir()
        (theirs / f"{'0' * 32}.json").write_text("somebody else's")
    make = {"file": cache.touch, "pipe": lambda: os.mkfifo(cache)}
    make.get(kind, lambda: cache.symlink_to(theirs))()
    store = updated(results)
    assert store.series(store.benchmarks()[0]).values == [1e-3]
    assert ["cannot be kept" in note for note in store.notes] == [True]
    assert [each.name for each in tmp_path.glob("theirs/*")] == ([f"{'0' * 32}.json"] if kind == "link" else [])


def test_a_cache_that_the_disk_refuses_is_reported_once_and_used_as_far_as_it_goes(
    results, write_run, monkeypatch, read
):
    write_run(run_id(1), [1e-3])
    assert points(results) == [1e-3]
    write_run(run_id(2), [2e-3])
    write_run(run_id(3), [3e-3])
    read.clear()

    def full(descriptor, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyperf_suite.files.write_all", full)
    store = updated(results)
    assert store.series(store.benchmarks()[0]).values == [1e-3, 2e-3, 3e-3]
    assert ["No space left" in note for note in store.notes] == [True]
    assert len(read) == 2
    assert {each.suffix for each in (results / RunCache.NAME).iterdir() if each.name != ".gitignore"} == {".json"}


def test_a_folder_that_is_not_there_holds_nothing_and_is_not_made(tmp_path):
    assert points(tmp_path / "absent") == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        Store(tmp_path / "file")


def test_many_updates_at_once_agree(results, write_run):
    for day in range(1, 21):
        write_run(run_id(day), [day * 1e-3] * 5)
    with ThreadPoolExecutor(6) as threads:
        stores = list(threads.map(lambda _: updated(results), range(12)))
    assert all([one.ok for one in store.measured] == [5] * 20 and not store.notes for store in stores)
    assert points(results) == pytest.approx([day * 1e-3 for day in range(1, 21)])


def test_no_journal_is_ever_altered_and_git_ignores_the_cache(results, write_run, cache):
    path = write_run(run_id(1))
    with path.open("ab") as file:
        file.write(b"garbage\n{torn")
    before, stamp = path.read_bytes(), path.stat().st_mtime_ns
    updated(results)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, stamp)
    assert (cache / ".gitignore").read_text() == "*\n"
    shutil.rmtree(cache)
    assert points(results) == [1e-3]
