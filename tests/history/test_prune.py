"""Pruning: only what is surely a finished run goes, each named first, and a rule is always asked for."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.history.stored.prune import Rules, delete, plan_pruning
from pyperf_suite.runner.results import Journal

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.timezone.utc)
MACHINE = "cpu-someones-2c"
FAST, OTHER = ("tile_wave", "aa"), ("tile_wave", "bb")


def run(results: Path, days_ago: int, machine: str = MACHINE) -> Path:
    """A finished run's folder, begun so many days before NOW and last touched long ago."""
    path = results / machine / f"{NOW - datetime.timedelta(days=days_ago):%Y%m%dT%H%M%SZ}-00{days_ago:02x}"
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"run_id": path.name, "plan_id": "1"}))
    (path / "records.jsonl").write_text("{}\n")
    (path / "wave.png").write_bytes(b"png")
    settle(path)
    return path


def settle(path: Path) -> None:
    for each in [*path.iterdir(), path]:
        os.utime(each, (1, 1), follow_symlinks=False)


def older_than(days: int) -> Rules:
    return Rules(older_than=datetime.timedelta(days=days))


def test_runs_older_than_the_age_are_named_with_their_files_and_size_and_nothing_is_deleted(tmp_path):
    old, young = run(tmp_path, 40), run(tmp_path, 20)
    planned = plan_pruning(tmp_path, older_than(30), {}, NOW)
    (doomed,) = planned.doomed
    assert doomed.name == f"{MACHINE}/{old.name}"
    assert doomed.files == ("records.jsonl", "run.json", "wave.png")
    assert doomed.size_bytes == sum(file.stat().st_size for file in old.iterdir())
    assert doomed.reason == "40 days old"
    assert planned.staying == 1
    assert old.is_dir()
    assert young.is_dir()


def test_a_run_that_is_among_the_last_of_any_of_its_benchmarks_stays(tmp_path):
    oldest, middle, newest = run(tmp_path, 30), run(tmp_path, 20), run(tmp_path, 10)
    held = {oldest: frozenset({FAST, OTHER}), middle: frozenset({FAST}), newest: frozenset({FAST})}
    planned = plan_pruning(tmp_path, Rules(keep_last=1), held, NOW)
    assert [each.path for each in planned.doomed] == [middle]
    held[newest] = frozenset({FAST, OTHER})
    planned = plan_pruning(tmp_path, Rules(keep_last=1), held, NOW)
    assert [each.path for each in planned.doomed] == [oldest, middle]


def test_the_last_of_a_benchmark_are_counted_for_each_machine_alone(tmp_path):
    here, there = run(tmp_path, 30), run(tmp_path, 10, "cuda-nvidia-h200")
    held = {here: frozenset({FAST}), there: frozenset({FAST})}
    assert plan_pruning(tmp_path, Rules(keep_last=1), held, NOW).doomed == ()


def test_both_rules_together_let_go_only_what_either_would(tmp_path):
    runs = [run(tmp_path, days) for days in (40, 35, 20, 10)]
    held = {path: frozenset({FAST}) for path in runs}
    rules = Rules(older_than=datetime.timedelta(days=30), keep_last=3)
    assert [each.path for each in plan_pruning(tmp_path, rules, held, NOW).doomed] == runs[:1]


def test_only_the_machine_asked_for_is_pruned(tmp_path):
    run(tmp_path, 40)
    there = run(tmp_path, 41, "cuda-nvidia-h200")
    rules = Rules(datetime.timedelta(days=1), machine="cuda-nvidia-h200")
    assert [each.path for each in plan_pruning(tmp_path, rules, {}, NOW).doomed] == [there]


def test_without_a_rule_nothing_is_planned(tmp_path):
    run(tmp_path, 40)
    with pytest.raises(UserError, match="needs a rule"):
        plan_pruning(tmp_path, Rules(), {}, NOW)


def test_a_results_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        plan_pruning(tmp_path / "absent", older_than(1), {}, NOW)


def test_a_run_that_is_being_written_is_left_alone_and_named(tmp_path):
    path = run(tmp_path, 40)
    with Journal(path / "records.jsonl"):
        settle(path)
        planned = plan_pruning(tmp_path, older_than(30), {}, NOW)
    assert planned.doomed == ()
    assert [(each.path, each.reason) for each in planned.spared] == [(path, "another process is writing it")]


def test_a_run_that_is_resumed_after_it_was_named_is_not_deleted(tmp_path):
    path = run(tmp_path, 40)
    (doomed,) = plan_pruning(tmp_path, older_than(30), {}, NOW).doomed
    with (path / "records.jsonl").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="was not deleted: another process is writing it"):
            delete(doomed)
    assert len(list(path.iterdir())) == 3


def test_a_run_that_changed_just_now_is_left_alone(tmp_path):
    path = run(tmp_path, 40)
    (path / "wave.png").write_bytes(b"drawn anew")
    (spared,) = plan_pruning(tmp_path, older_than(30), {}, NOW).spared
    assert "may not be over" in spared.reason


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("run.json", None, "is not a run's folder"),
        ("run.json", "{", "damaged"),
        ("run.json", '{"run_id": "another", "plan_id": "1"}', "its manifest is that of run another"),
    ],
)
def test_a_folder_that_only_looks_like_a_run_is_left_alone(tmp_path, name, content, reason):
    path = run(tmp_path, 40)
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_text(content)
    settle(path)
    planned = plan_pruning(tmp_path, older_than(30), {}, NOW)
    assert planned.doomed == ()
    assert reason in planned.spared[0].reason


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("/etc")])
def test_a_run_that_holds_a_folder_or_a_link_is_left_alone(tmp_path, make):
    path = run(tmp_path, 40)
    make(path / "mine")
    settle(path)
    (spared,) = plan_pruning(tmp_path, older_than(30), {}, NOW).spared
    assert spared.reason == "it holds what no run writes: mine"


def test_what_is_not_named_as_a_run_is_not_even_looked_at(tmp_path):
    run(tmp_path, 40)
    (tmp_path / MACHINE / "ab-20250101T000000Z").mkdir()
    (tmp_path / MACHINE / "calibration.json").write_text("{}")
    (tmp_path / "linked").symlink_to(tmp_path / MACHINE)
    (tmp_path / MACHINE / "20250101T000000Z-ffff").symlink_to(tmp_path)
    planned = plan_pruning(tmp_path, older_than(1), {}, NOW)
    assert (len(planned.doomed), len(planned.spared), planned.staying) == (1, 0, 0)


def test_deleting_takes_the_run_and_nothing_beside_it(tmp_path):
    old, young = run(tmp_path, 40), run(tmp_path, 20)
    (doomed,) = plan_pruning(tmp_path, older_than(30), {}, NOW).doomed
    delete(doomed)
    assert list((tmp_path / MACHINE).iterdir()) == [young]
    assert not old.exists()


def test_a_file_that_was_not_named_keeps_its_run(tmp_path):
    path = run(tmp_path, 40)
    (doomed,) = plan_pruning(tmp_path, older_than(30), {}, NOW).doomed
    (path / "notes.txt").write_text("mine")
    settle(path)
    with pytest.raises(UserError, match="no longer those that were named"):
        delete(doomed)
    assert (path / "records.jsonl").read_text() == "{}\n"


def test_what_a_kill_leaves_of_a_deletion_is_named_as_a_run_again(tmp_path, monkeypatch):
    path = run(tmp_path, 40)
    (doomed,) = plan_pruning(tmp_path, older_than(30), {}, NOW).doomed
    deleted: list[str] = []
    unlink = Path.unlink

    def killed_before_the_last(self: Path) -> None:
        if len(deleted) == 2:
            raise KeyboardInterrupt
        deleted.append(self.name)
        unlink(self)

    monkeypatch.setattr(Path, "unlink", killed_before_the_last)
    with pytest.raises(KeyboardInterrupt):
        delete(doomed)
    monkeypatch.undo()
    assert deleted == ["wave.png", "records.jsonl"]
    settle(path)
    assert [each.path for each in plan_pruning(tmp_path, older_than(30), {}, NOW).doomed] == [path]


def test_a_run_with_records_that_cannot_be_read_is_not_taken_for_one_that_holds_nothing(tmp_path):
    newer, newest = run(tmp_path, 30), run(tmp_path, 10)
    planned = plan_pruning(tmp_path, Rules(keep_last=1), {newest: frozenset({FAST})}, NOW, unread={newer})
    assert not planned.doomed
    (spared,) = planned.spared
    assert spared.path == newer
    assert "this version cannot read" in spared.reason
    by_age = plan_pruning(tmp_path, older_than(20), {}, NOW, unread={newer})
    assert [each.path for each in by_age.doomed] == [newer]


def watched(results: Path, days_ago: int, command: str = "python train.py") -> Path:
    began = NOW - datetime.timedelta(days=days_ago)
    path = results / MACHINE / f"watch-{began:%Y%m%dT%H%M%SZ}-00{days_ago:02x}"
    path.mkdir(parents=True)
    (path / "watch.json").write_text(json.dumps({"started_at": began.isoformat(), "command": command.split()}))
    (path / "samples.jsonl").write_text("{}\n")
    settle(path)
    return path


def test_watched_jobs_go_by_age_and_the_last_of_each_command_stay(tmp_path):
    rare, older, newer = watched(tmp_path, 50, "python other.py"), watched(tmp_path, 40), watched(tmp_path, 20)
    run(tmp_path, 10)
    assert [each.path for each in plan_pruning(tmp_path, older_than(30), {}, NOW).doomed] == [rare, older]
    planned = plan_pruning(tmp_path, Rules(datetime.timedelta(days=1), keep_last=1), {}, NOW)
    assert older in {each.path for each in planned.doomed}
    assert not {rare, newer} & {each.path for each in planned.doomed}


def test_a_watched_job_is_deleted_whole(tmp_path):
    path = watched(tmp_path, 40)
    (doomed,) = plan_pruning(tmp_path, older_than(30), {}, NOW).doomed
    delete(doomed)
    assert not path.exists()


def test_a_job_that_has_been_watched_for_weeks_is_not_over_after_ten_minutes(tmp_path):
    path = watched(tmp_path, 20)
    began = (NOW - datetime.timedelta(days=20)).timestamp()
    just_now = time.time() - 3600
    for each in [*path.iterdir(), path]:
        os.utime(each, (just_now, just_now))
    assert just_now - began > 10 * 86400
    (spared,) = plan_pruning(tmp_path, older_than(10), {}, NOW).spared
    assert "may not be over" in spared.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "no watch.json that can be read"),
        ('{"started_at": "2026-01-01T00:00:00+00:00"}', "is of what began at 2026-01-01"),
        ('{"started_at": 1}', "no watch.json that can be read"),
    ],
)
def test_a_folder_that_only_looks_like_a_watched_job_is_left_alone(tmp_path, content, reason):
    path = watched(tmp_path, 40)
    (path / "watch.json").write_text(content)
    settle(path)
    (spared,) = plan_pruning(tmp_path, older_than(30), {}, NOW).spared
    assert reason in spared.reason
