"""Acknowledged data is there after a power cut at any moment, whatever order the disk wrote in.

A run is recorded as its operations on files. A cut after any of them leaves them all done, or all but one that nothing
had forced to the disk yet: a write before its fsync, a name before the fsync of its folder.
"""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import DamagedJournal, UserError
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.record.journal import Journal, read_journal
from pyperf_suite.runner.results import create_run, read_run
from tests.records import PLAN, SMALL, a_record

Operation = tuple[Any, ...]
CPU = resolve("cpu")


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """Everything that is done to files below the test's folder, as it is done."""
    done: list[Operation] = []
    names: dict[int, Path] = {}
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "ftruncate", "replace", "mkdir", "close")}

    def opened(path: Any, flags: int, *mode: int, **options: Any) -> int:
        is_new = bool(flags & os.O_CREAT) and not Path(path).exists()
        descriptor: int = real["open"](path, flags, *mode, **options)
        names[descriptor] = Path(path)
        if is_new:
            done.append(("create", Path(path)))
        return descriptor

    def written(descriptor: int, content: bytes) -> int:
        size = os.fstat(descriptor).st_size
        count: int = real["write"](descriptor, content)
        done.append(("write", names[descriptor], size, bytes(content[:count])))
        return count

    def synced(descriptor: int) -> None:
        real["fsync"](descriptor)
        done.append(("sync", names[descriptor]))

    def cut(descriptor: int, size: int) -> None:
        real["ftruncate"](descriptor, size)
        done.append(("cut", names[descriptor], size))

    def renamed(source: Any, target: Any, **options: Any) -> None:
        real["replace"](source, target, **options)
        done.append(("rename", Path(source), Path(target)))

    def made(path: Any, *mode: int, **options: Any) -> None:
        real["mkdir"](path, *mode, **options)
        done.append(("mkdir", Path(path)))

    doubles = {"open": opened, "write": written, "fsync": synced, "ftruncate": cut, "replace": renamed, "mkdir": made}
    for name, double in doubles.items():
        monkeypatch.setattr(os, name, double)
    return done


def undecided(done: list[Operation]) -> list[int]:
    """Operations that nothing had forced to the disk by the end: any one of them may be missing after a cut."""
    indices = []
    for at, (operation, path, *_) in enumerate(done):
        later = done[at + 1 :]
        if operation in ("write", "cut") and ("sync", path) not in later:
            indices.append(at)
        if operation in ("create", "mkdir") and ("sync", path.parent) not in later:
            indices.append(at)
        if operation == "rename" and ("sync", done[at][2].parent) not in later:
            indices.append(at)
    return indices


def replay(done: list[Operation], missing: int | None, root: Path, there: Path) -> None:
    """Lay below `there` what the operations below `root` leave, all but the one that is missing."""
    folders, contents, places = {root}, {}, {}
    for at, (operation, path, *details) in enumerate(done):
        if at == missing or operation == "sync" or (operation != "mkdir" and path.parent not in folders):
            continue
        if operation == "mkdir" and path.parent in folders:
            folders.add(path)
        elif operation == "create":
            places[path] = at
            contents[at] = bytearray()
        elif operation in ("write", "cut") and path in places:
            content = contents[places[path]]
            offset, data = (details[0], details[1]) if operation == "write" else (details[0], b"")
            content.extend(b"\0" * max(0, offset - len(content)))
            content[offset:] = data
        elif operation == "rename" and path in places:
            places[details[0]] = places.pop(path)
    for folder in sorted(folders):
        (there / folder.relative_to(root)).mkdir(parents=True, exist_ok=True)
    for path, inode in places.items():
        (there / path.relative_to(root)).write_bytes(contents[inode])


def moments(done: list[Operation]) -> Iterator[tuple[list[Operation], int | None]]:
    """Every cut, with nothing missing and with each undecided operation missing in turn."""
    for count in range(len(done) + 1):
        before = done[:count]
        yield before, None
        for missing in undecided(before):
            yield before, missing


def test_after_a_cut_at_any_moment_all_that_was_kept_is_there_and_the_run_goes_on(tmp_path, operations):
    root = tmp_path / "root"
    root.mkdir()
    operations.clear()
    promised = []  # operations done by the time that each record was on disk
    run = create_run(root / "a" / "results", identity(CPU), PLAN)
    assert not undecided(operations), "nothing is left to chance once the folder is handed out"
    began = len(operations)
    records = [a_record(SMALL, 1e-3, position=position) for position in range(3)]
    for some in (records[:2], records[2:]):
        with Journal(run.records_path) as journal:
            for record in some:
                journal.append(record)
                promised.append(len(operations))
    done = list(operations)
    cuts = list(moments(done))
    assert len(cuts) > len(done) + 1, "some operations are undecided at some cuts"
    for number, (before, missing) in enumerate(cuts):
        there = tmp_path / f"cut{number}"
        replay(before, missing, root, there)
        path = there / run.path.relative_to(root)
        kept = sum(len(before) >= moment for moment in promised)
        if len(before) >= began:
            assert read_run(path).run_id == run.run_id
        elif path.exists():
            try:
                read_run(path)
            except UserError:
                assert not (path / "run.json").exists(), "a manifest is there whole or not at all"
        if kept:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DamagedJournal)
                found = read_journal(path / "records.jsonl")
                assert found == records[: len(found)]
                assert len(found) >= kept
                with Journal(path / "records.jsonl") as journal:
                    journal.append(records[2])
                assert read_journal(path / "records.jsonl") == [*found, records[2]]
