"""The index over all runs: always what the journals say, whatever happens to it or beside it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.history.stored import index_file, index_update
from pyperf_suite.history.stored.journals import MOST_NOTES
from pyperf_suite.history.stored.store import Store

INDEX = ".index.sqlite"


def points(results, machine=None):
    """Every value of the folder's one benchmark, in order, after an update."""
    with Store(results) as store:
        store.update()
        found = store.benchmarks(machine=machine)
        assert len(found) <= 1
        return store.series(found[0]).values if found else []


def damage(results):
    """What an update says of the files."""
    with Store(results) as store:
        store.update()
        return store.damage


def run_id(day):
    """The run of that day."""
    return f"202601{day:02}T000000Z-0001"


@pytest.fixture
def lines_read(monkeypatch):
    """The numbers of the lines that updates read from journals."""
    read, whole = [], index_update.read_lines

    def counted(*arguments):
        for line in whole(*arguments):
            read.append(line.number)
            yield line

    monkeypatch.setattr(index_update, "read_lines", counted)
    return read


def test_an_update_reads_only_what_was_written_since(results, write_run, lines_read):
    write_run(run_id(1), [1e-3, 1e-3])
    write_run(run_id(2), [2e-3])
    assert points(results) == [1e-3, 2e-3]
    lines_read.clear()
    write_run(run_id(2), [4e-3], records=None, process=1)
    write_run(run_id(3), [3e-3])
    assert points(results) == [1e-3, 3e-3, 3e-3]
    assert lines_read == [2, 1]
    lines_read.clear()
    assert points(results) == [1e-3, 3e-3, 3e-3]
    assert lines_read == []


def test_a_torn_last_line_waits_for_its_writer(results, write_run, make_record):
    path = write_run(run_id(1))
    line = json.dumps(make_record(run_id(1), 3e-3, process=1)).encode() + b"\n"
    for part in (line[:1], line[1:-2], line[-2:-1]):
        with path.open("ab") as file:
            file.write(part)
        expected = [2e-3] if part is not line[:1] and path.read_bytes().endswith(b"}") else [1e-3]
        assert points(results) == expected
    with path.open("ab") as file:
        file.write(b"\n")
    assert points(results) == [2e-3]
    assert damage(results) == []


def test_a_file_that_shrank_is_read_anew(results, write_run):
    path = write_run(run_id(1), [1e-3, 3e-3])
    assert points(results) == [2e-3]
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert points(results) == [1e-3]


def test_a_file_that_became_another_of_the_same_length_is_read_anew(results, write_run):
    path = write_run(run_id(1), [1e-3])
    assert points(results) == [1e-3]
    path.write_bytes(path.read_bytes().replace(b"0.001", b"0.002"))
    os.utime(path, ns=(1, 1))
    assert points(results) == [2e-3]


def test_a_run_that_is_gone_is_forgotten(results, write_run):
    write_run(run_id(1), [1e-3])
    gone = write_run(run_id(2), [2e-3])
    assert points(results) == [1e-3, 2e-3]
    gone.unlink()
    assert points(results) == [1e-3]
    with Store(results) as store:
        assert [run.run_id for run in store.runs()] == [run_id(1)]


def test_machines_never_share_a_series(results, write_run):
    write_run(run_id(1), [1e-3], machine="cpu-a-2c")
    write_run(run_id(2), [2e-3], machine="cpu-b-2c")
    assert (points(results, "cpu-a-2c"), points(results, "cpu-b-2c")) == ([1e-3], [2e-3])


def test_a_record_counts_for_the_machine_it_names_not_for_the_folder_it_lies_in(results, write_run):
    path = write_run(run_id(1), [1e-3], machine="cpu-a-2c")
    path.parent.parent.rename(results / "cpu-b-2c")
    assert points(results, "cpu-a-2c") == [1e-3]


def test_what_is_no_record_is_named_and_the_rest_is_indexed(results, write_run, make_record):
    path = write_run(run_id(1), [1e-3])
    with path.open("a") as file:
        file.write(json.dumps(make_record() | {"schema_version": 2}) + "\n" + "[" * 100_000 + "\n")
    write_run(run_id(1), [3e-3], process=1)
    assert points(results) == [2e-3]
    found = damage(results)
    assert [f"{path}, line {number} is not" in sentence for number, sentence in enumerate(found, 2)] == [True, True]
    assert "version 2" in found[0]
    assert "nested too deeply" in found[1]


def test_a_journal_that_is_no_file_is_said_and_not_waited_for(results, write_run):
    write_run(run_id(1), [1e-3])
    (results / "cpu-made-up-2c" / run_id(2)).mkdir()
    os.mkfifo(results / "cpu-made-up-2c" / run_id(2) / "records.jsonl")
    assert points(results) == [1e-3]
    assert ["not a regular file" in sentence for sentence in damage(results)] == [True]


def test_damage_is_told_again_later_and_of_very_much_only_the_number(results, write_run):
    path = write_run(run_id(1))
    for _ in range(2):
        with path.open("a") as file:
            file.write("garbage\n" * 100)
        told = damage(results)
    assert len(told) == MOST_NOTES + 1
    assert f"{200 - MOST_NOTES} more lines" in told[-1]
    assert damage(results) == told


def test_benchmarks_are_found_by_case_label_part_or_glob(results, write_run, make_record):
    case = {"operator": "matmul", "parameters": {"m": 7}, "implementation": "torch"}
    write_run(run_id(1), records=[make_record(run_id(1)), make_record(run_id(1), case=case, case_id="b" * 16)])
    with Store(results) as store:
        store.update()
        for pattern in ("b" * 16, "matmul[torch m=7]", "torch m", "matmul[torch*]", "matmul?torch*"):
            assert [one.case_id for one in store.benchmarks(pattern)] == ["b" * 16]
        assert len(store.benchmarks("matmul*")) == 2
        assert store.benchmarks("absent") == []


def test_a_benchmark_tells_how_many_runs_there_are_and_when(results, write_run):
    write_run(run_id(1), [1e-3, 1e-3])
    write_run(run_id(5), [1e-3])
    with Store(results) as store:
        store.update()
        (benchmark,) = store.benchmarks()
    assert (benchmark.count, benchmark.first[:10], benchmark.last[:10]) == (2, "2026-01-01", "2026-01-05")
    assert benchmark.unit_of_measure == "s"


def test_runs_are_listed_with_their_outcomes_however_they_came(results, write_run):
    write_run(run_id(1), [1e-3, None])
    with Store(results) as store:
        store.update()
        path = write_run(run_id(1), [1e-3], process=2)
        store.update()
        (run,) = store.runs()
    assert (run.ok, run.failed, run.unsupported, run.path, run.machine) == (2, 1, 0, path, "cpu-made-up-2c")


def test_pytest_benchmark_files_are_read_from_a_folder_until_they_are_gone(results, tmp_path):
    saved = tmp_path / ".benchmarks" / "Linux"
    saved.mkdir(parents=True)
    for number in (1, 2):
        stats = {"median": number * 1e-3, "rounds": 1}
        document = {"benchmarks": [{"fullname": "a", "stats": stats}], "datetime": f"2026-01-0{number}T00:00:00"}
        (saved / f"000{number}_a.json").write_text(json.dumps(document))
    (saved / "broken.json").write_text("{")
    with Store(results) as store:
        store.add(tmp_path / ".benchmarks")
        store.update()
    assert points(results) == [1e-3, 2e-3]
    assert ["broken.json" in sentence for sentence in damage(results)] == [True]
    (saved / "0001_a.json").unlink()
    assert points(results) == [2e-3]


def test_adding_what_is_not_there_is_refused(results, tmp_path):
    with Store(results) as store, pytest.raises(UserError, match="There is no"):
        store.add(tmp_path / "absent.json")


@pytest.mark.parametrize("kept_bytes", [0, 100, 5000])
def test_a_damaged_index_is_made_anew(results, write_run, kept_bytes):
    write_run(run_id(1), [1e-3])
    assert points(results) == [1e-3]
    content = (results / INDEX).read_bytes()
    (results / INDEX).write_bytes(content[:kept_bytes] + b"\xff" * (len(content) - kept_bytes if kept_bytes else 0))
    assert points(results) == [1e-3]
    assert points(results) == [1e-3]
    with sqlite3.connect(results / INDEX) as made_anew:
        assert made_anew.execute("SELECT count(*) FROM observations").fetchone() == (1,)
    made_anew.close()


@pytest.mark.parametrize("content", [b"no database at all" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_index_of_ours_is_never_written_to(results, write_run, content):
    write_run(run_id(1), [1e-3])
    (results / INDEX).write_bytes(content)
    with Store(results) as store:
        store.update()
        assert len(store.notes) == 1
    assert points(results) == [1e-3]
    assert (results / INDEX).read_bytes() == content


@pytest.mark.parametrize("link", [True, False])
def test_somebody_elses_database_keeps_its_tables(results, write_run, tmp_path, link):
    write_run(run_id(1), [1e-3])
    theirs = tmp_path / "theirs.sqlite" if link else results / INDEX
    with sqlite3.connect(theirs) as database:
        database.execute("CREATE TABLE accounts (owner TEXT)")
        database.execute("INSERT INTO accounts VALUES ('somebody')")
    database.close()
    if link:
        (results / INDEX).symlink_to(theirs)
    before = theirs.read_bytes()
    with Store(results) as store:
        store.update()
        assert len(store.notes) == 1
    assert points(results) == [1e-3]
    assert theirs.read_bytes() == before


def test_an_index_of_the_version_before_is_made_anew(results, write_run):
    write_run(run_id(1), [1e-3])
    with sqlite3.connect(results / INDEX) as old:
        for name in index_file.TABLES:
            old.execute(f"CREATE TABLE {name} (id INTEGER)")
        old.execute("PRAGMA user_version = 1")
    old.close()
    assert points(results) == [1e-3]
    with Store(results) as store:
        assert not store.notes


def test_a_lock_that_is_a_link_makes_no_file_elsewhere(results, write_run, tmp_path):
    write_run(run_id(1), [1e-3])
    (results / index_file.LOCK_NAME).symlink_to(tmp_path / "made")
    assert points(results) == [1e-3]
    assert not (tmp_path / "made").exists()


def test_an_index_damaged_while_open_is_made_anew(results, write_run):
    write_run(run_id(1), [1e-3])
    with Store(results) as store:
        store.update()
        (benchmark,) = store.benchmarks()
        store._index.connection.execute("DROP TABLE observations")
        assert store.series(benchmark).values == [1e-3]
    assert points(results) == [1e-3]


def test_an_index_of_another_version_is_made_anew(results, write_run):
    write_run(run_id(1), [1e-3])
    assert points(results) == [1e-3]
    other = sqlite3.connect(results / INDEX)
    other.execute("DROP TABLE runs")
    other.execute("PRAGMA user_version = 99")
    other.commit()
    other.close()
    assert points(results) == [1e-3]


def test_where_the_index_cannot_be_written_it_is_kept_in_memory_and_said(results, write_run):
    write_run(run_id(1), [1e-3])
    (results / INDEX).mkdir()  # which even root cannot open as a file
    with Store(results) as store:
        store.update()
        assert store.series(store.benchmarks()[0]).values == [1e-3]
        assert ["cannot be kept" in note for note in store.notes] == [True]


def test_in_a_read_only_folder_the_index_that_lies_there_is_used(results, write_run, lines_read):
    write_run(run_id(1), [1e-3])
    assert points(results) == [1e-3]
    write_run(run_id(2), [2e-3])
    (results / ".index.lock").unlink()
    (results / ".index.lock").mkdir()  # stands for a folder in which nothing can be opened for writing
    before = (results / INDEX).read_bytes()
    lines_read.clear()
    with Store(results) as store:
        store.update()
        assert store.series(store.benchmarks()[0]).values == [1e-3, 2e-3]
        assert ["cannot be kept" in note for note in store.notes] == [True]
    assert lines_read == [1]
    assert (results / INDEX).read_bytes() == before


def test_on_a_full_disk_the_index_goes_on_in_memory_from_where_it_was(results, write_run, lines_read):
    write_run(run_id(1), [1e-3])
    assert points(results) == [1e-3]
    write_run(run_id(2), [2e-3], state={"filler": "x" * 100_000})
    lines_read.clear()
    with Store(results) as store:
        store._index.connection.execute("PRAGMA max_page_count = 1")
        store.update()
        assert store.series(store.benchmarks()[0]).values == [1e-3, 2e-3]
        assert ["full" in note for note in store.notes] == [True]
    assert lines_read == [1, 1]  # the new run, once in vain
    assert points(results) == [1e-3, 2e-3]


def test_a_folder_that_is_not_there_holds_nothing_and_is_not_made(tmp_path):
    assert points(tmp_path / "absent") == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_results_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        Store(tmp_path / "file")


def test_an_index_that_stays_locked_is_said_in_one_sentence(results, write_run, monkeypatch):
    write_run(run_id(1))
    assert len(points(results)) == 1
    monkeypatch.setattr(index_file, "BUSY_S", 0.05)
    other = sqlite3.connect(results / INDEX, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserError, match="Another process"):
        points(results)
    other.close()
    assert len(points(results)) == 1


def test_an_update_killed_in_the_middle_of_a_file_is_as_if_it_had_not_begun(results, write_run):
    write_run(run_id(1), [1e-3] * 400)
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from pyperf_suite.history.stored import index_update\n"
        "from pyperf_suite.history.stored.store import Store\n"
        "insert = index_update.IndexUpdate._insert\n"
        "def insert_or_die(self, file, runs, line, one):\n"
        "    insert(self, file, runs, line, one)\n"
        "    self._connection.execute('PRAGMA cache_size = 2')\n"  # so that half of it is in the file already
        "    if line == 300:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "index_update.IndexUpdate._insert = insert_or_die\n"
        "Store(Path(sys.argv[1])).update()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(results)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (results / f"{INDEX}-journal").stat().st_size > 0
    with Store(results) as store:
        assert store.runs() == []
        store.update()
        (run,) = store.runs()
        assert run.ok == 400


def test_many_updates_at_once_index_each_record_once(results, write_run):
    for day in range(1, 21):
        write_run(run_id(day), [day * 1e-3] * 5)

    def update(_):
        with Store(results) as store:
            store.update()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(update, range(12)))
    with Store(results) as store:
        assert [run.ok for run in store.runs()] == [5] * 20
    assert points(results) == pytest.approx([day * 1e-3 for day in range(1, 21)])


def test_a_journal_being_written_is_indexed_record_by_record(results, write_run):
    for process in range(5):
        write_run(run_id(1), [1e-3], process=process)
        with Store(results) as store:
            store.update()
            assert store.series(store.benchmarks()[0]).points[0].processes == process + 1


def test_no_journal_is_ever_altered(results, write_run):
    path = write_run(run_id(1))
    with path.open("ab") as file:
        file.write(b"garbage\n{torn")
    before, stamp = path.read_bytes(), path.stat().st_mtime_ns
    damage(results)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, stamp)


def test_holdings_name_each_runs_benchmarks_by_its_folder_and_leave_sentinels_and_failures_out(results, write_run):
    first = write_run(run_id(1), [1e-3, 1e-3]).parent
    write_run(run_id(1), [1e-3], case_id="sentinel", kind="sentinel")
    # A folder that was renamed: its records still name the machine as it was called.
    renamed = write_run(run_id(2), [1e-3], machine="renamed", identity={"slug": "as it was called"}).parent
    write_run(run_id(3), [None])
    with Store(results) as store:
        store.update()
        held = store.holdings()
    assert {path: {key[:3] for key in keys} for path, keys in held.items()} == {
        first: {("cpu-made-up-2c", "tile_wave", "0123456789abcdef")},
        renamed: {("as it was called", "tile_wave", "0123456789abcdef")},
    }


def test_runs_with_lines_that_are_no_records_are_told(results, write_run, make_record):
    write_run(run_id(1))
    newer = write_run(run_id(2), records=[make_record(run_id(2), schema_version=99)]).parent
    with Store(results) as store:
        store.update()
        assert store.damaged() == {newer}
