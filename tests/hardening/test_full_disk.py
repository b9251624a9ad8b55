import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.files import write_for_user
from pyperf_suite.findings.data import Figure, Findings, Panel, Series, remark
from pyperf_suite.hardware.machine import identity
from pyperf_suite.planner.laws.calibration import shipped_calibration
from pyperf_suite.record.journal import Journal, read_journal
from pyperf_suite.regressions.stored.store import Store
from pyperf_suite.render.run_report import write_all
from pyperf_suite.runner.results import create_run, find_run, read_run
from tests.commands import invoke
from tests.records import PLAN, SMALL, a_record, a_run

DISK_KIB = 1000


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount here to make a small disk with")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", str(place)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> None:
    with (disk / "others").open("ab", buffering=0) as file:
        try:
            while file.write(b"x" * 1024):
                pass
        except OSError:
            pass


def test_a_journal_keeps_all_that_it_said_it_kept_and_goes_on_when_there_is_space_again(disk):
    path = disk / "records.jsonl"
    (disk / "others").write_bytes(b"x" * 100_000)
    kept = 0

    def append_until_refused(journal):
        nonlocal kept
        while kept < 10_000:
            journal.append(a_record(SMALL, 1e-3, reason="why " * 100, position=kept))
            kept += 1

    with Journal(path) as journal, pytest.raises(UserError, match="free some space and go on with --resume"):
        append_until_refused(journal)
    assert 0 < kept < 10_000
    # Nothing torn is left either: that would only be warned of.
    assert [record.position for record in read_journal(path)] == list(range(kept))
    (disk / "others").unlink()
    with Journal(path) as journal:
        journal.append(a_record(SMALL, 1e-3, position=kept))
    assert [record.position for record in read_journal(path)] == list(range(kept + 1))


def test_a_command_that_has_no_space_fails_and_one_that_cannot_write_is_a_mistake(disk):
    path = a_run(disk / "results")
    fill(disk)
    for name, code in (("full.csv", 3), ("absent/full.csv", 2)):
        done = invoke("export", path, "-o", disk / name)
        assert done.exit_code == code
        assert "cannot be written" in done.stderr


def test_a_run_that_cannot_begin_leaves_nothing_that_the_next_one_stumbles_over(disk):
    fill(disk)
    with pytest.raises(UserError, match="cannot be written"):
        create_run(disk / "results", identity(PLAN.device), PLAN)
    (disk / "others").unlink()
    run = create_run(disk / "results", identity(PLAN.device), PLAN)
    assert find_run(disk / "results", identity(PLAN.device), PLAN).path == run.path
    assert not [path for path in run.path.parent.iterdir() if not (path / "run.json").exists()]


def test_a_cache_that_has_no_space_is_reported_and_the_records_are_read(disk, monkeypatch):
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(disk / "cache"))
    a_run(disk / "results")
    (disk / "cache" / "history").mkdir(parents=True, mode=0o700)
    fill(disk)
    store = Store(disk / "results")
    assert [one.ok for one in store.measured] == [1]
    assert len(store.series()) == 1
    assert len(store.notes) == 1
    (disk / "others").unlink()
    store = Store(disk / "results")
    assert not store.notes
    assert len(store.series()) == 1


def test_pages_and_pictures_without_space_are_warned_of_and_none_is_left_half(disk):
    run = read_run(a_run(disk, timestamps=()))
    panel = Panel("a", "m", "s", (Series("measured", (1, 2), (1, 2), "line"),))
    found = {"tile_wave": Findings((remark("word " * 5000),), figures=(Figure("drawn", "t", "c", ((panel,),)),))}
    fill(disk)
    with pytest.warns(UserWarning, match="could not be written") as warned:
        assert write_all(found, [], run) == []
    assert len(warned) == 3
    assert {path.name for path in run.path.iterdir()} == {"run.json", "records.jsonl"}


def test_what_a_new_file_would_replace_survives_a_full_disk(disk):
    (disk / "export.csv").write_bytes(b"old")
    calibration = shipped_calibration("H200 SXM")
    calibration.save(disk / "own.npz")
    before = (disk / "own.npz").read_bytes()
    fill(disk)
    with pytest.raises(UserError, match="what was there is unchanged"):
        write_for_user(disk / "export.csv", b"new" * 10_000)
    with pytest.raises(OSError, match="No space"):
        dataclasses.replace(calibration, gpu="L4").save(disk / "own.npz")
    assert (disk / "export.csv").read_bytes() == b"old"
    assert (disk / "own.npz").read_bytes() == before
    assert {path.name for path in disk.iterdir()} == {"export.csv", "own.npz", "others"}


def test_a_results_folder_deleted_in_mid_run_is_one_sentence(tmp_path):
    with Journal(a_run(tmp_path / "results") / "records.jsonl") as journal:
        journal.append(a_record(SMALL, 1e-3))
        shutil.rmtree(tmp_path / "results")
        with pytest.raises(UserError, match="was deleted while the run was writing it"):
            journal.append(a_record(SMALL, 1e-3))


def test_a_results_folder_moved_in_mid_run_takes_the_records_along(tmp_path):
    with Journal(a_run(tmp_path / "results") / "records.jsonl") as journal:
        (tmp_path / "results").rename(tmp_path / "moved")
        journal.append(a_record(SMALL, 1e-3, position=1))
    (moved,) = (tmp_path / "moved").glob("*/*/records.jsonl")
    assert [record.position for record in read_journal(moved)] == [0, 1]


@pytest.mark.parametrize("command", [["run", "tile_wave"], ["history"]])
def test_commands_on_a_read_only_disk_say_one_sentence_or_work(disk, command):
    journal = a_run(disk) / "records.jsonl"
    before = journal.read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    answer = invoke(*command, "--results", disk)
    if command[0] == "run":
        assert answer.exit_code == 2
        assert "cannot be written" in answer.stderr
        assert len(answer.stderr.strip().splitlines()) == 1
    else:
        assert answer.exit_code == 0, answer.output
    assert answer.exception is None or isinstance(answer.exception, SystemExit)
    assert journal.read_bytes() == before
