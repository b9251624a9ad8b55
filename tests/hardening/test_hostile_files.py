"""Whatever lies in a results folder in place of a file of the suite, every command ends soon and in a sentence.

Nothing is written through a link, and nobody else's file changes. `PYPERF_HOSTILE=all` tries every command on every
file and kind; without it each pair of file and kind is tried with some of the commands.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyperf_suite import files
from pyperf_suite.cli import main
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.hardware.identity import identity
from pyperf_suite.laws.matmul.tiling import Schedule, Tile
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.record import Case
from pyperf_suite.runner.results import Journal, create_run
from pyperf_suite.workloads.matmul import MatmulParameters

LONGEST_S = 30
CPU = resolve("cpu")
THEIRS = b"somebody else's\n" * 100


def fifo(path: Path, theirs: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, theirs: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(THEIRS)


def unix_socket(path: Path, theirs: Path) -> None:
    place = Path(f"/tmp/pyperf-hostile-{os.getpid()}")  # a socket's own name may only be short
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(place))
    shutil.move(place, path)


def link_to_zero(path: Path, theirs: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_full(path: Path, theirs: Path) -> None:
    path.symlink_to("/dev/full")


def link_to_a_pipe(path: Path, theirs: Path) -> None:
    os.mkfifo(theirs.with_name(f"pipe-of-{path.name}"))
    path.symlink_to(theirs.with_name(f"pipe-of-{path.name}"))


def link_to_theirs(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs)


def link_to_nothing(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs.with_name("made-by-nobody"))


def link_to_itself(path: Path, theirs: Path) -> None:
    path.symlink_to(path.name)


def garbage(path: Path, theirs: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(70_000))


def zeros(path: Path, theirs: Path) -> None:
    path.write_bytes(bytes(70_000))


def sparse(path: Path, theirs: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def nested(path: Path, theirs: Path) -> None:
    path.write_bytes(b"[" * 200_000 + b"\n")


def a_number(path: Path, theirs: Path) -> None:
    path.write_bytes(b"9" * 5000 + b"\n")


KINDS = (
    *(fifo, folder, unix_socket, link_to_zero, link_to_full, link_to_a_pipe, link_to_theirs, link_to_nothing),
    *(link_to_itself, garbage, zeros, sparse, nested, a_number),
)
FILES = (
    *("RUN/run.json", "RUN/records.jsonl", "RUN/records.jsonl.torn", "RUN/findings.md", "RUN/findings.json"),
    *(".index.sqlite", ".index.sqlite-journal", ".index.lock", "report.html"),
    *("OLD/run.json", "OLD/records.jsonl", "MACHINE/ab-20260101T000000Z-0000/ab.json"),
    *("MACHINE/ab-20260101T000000Z-0000/pairs.jsonl", "MACHINE/selfcheck-20260101T000000Z-0000/selfcheck.json"),
    "MACHINE/selfcheck-20260101T000000Z-0000/comparisons.jsonl",
)
COMMANDS = (
    ("report", "RESULTS"),
    ("report", "RESULTS/MACHINE/RUN"),
    ("track", "--results", "RESULTS"),
    ("history", "--results", "RESULTS"),
    ("export", "--results", "RESULTS", "--format", "json"),
    ("compare", "RESULTS/MACHINE/OLD", "RESULTS/MACHINE/RUN"),
    ("compare", "RESULTS/MACHINE/OLD/records.jsonl", "RESULTS/MACHINE/RUN/records.jsonl"),
    ("prune", "--results", "RESULTS", "--keep", "1", "--dry-run"),
    ("calibrate", "RESULTS/MACHINE/RUN"),
    ("selfcheck", "--results", "RESULTS", "--report"),
    ("run", "static_kernels", "-a", "kernel=none-of-them", "--results", "RESULTS", "--resume"),
)
PAIRS = list(itertools.product(FILES, KINDS))
ALL = os.environ.get("PYPERF_HOSTILE") == "all"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, timed_record: Callable[..., object]) -> Path:
    """A results folder of two runs, and their names."""
    place = tmp_path_factory.mktemp("hostile") / "good"
    case = Case("matmul", MatmulParameters(64, 64, 64, Schedule("persistent", 1), Tile(32, 32, 32)), "native")
    plan = Plan((PlannedCase("tile_wave", case),), QUICK, CPU)
    for day, name in ((1, "20260101T000000Z-0001"), (2, "20260102T000000Z-0002")):
        run = create_run(place, identity(CPU), plan, name)
        began = f"2026-01-{day:02d}T00:00:00+00:00"
        with Journal(run.records_path) as journal:
            for process in range(3):
                journal.append(timed_record(case, 1e-3, run_id=name, process=process, started_at=began))  # type: ignore[arg-type]
    for name in ("ab-20260101T000000Z-0000", "selfcheck-20260101T000000Z-0000"):
        (run.path.parent / name).mkdir()
    return place


def test_a_file_that_a_user_names_is_not_read_where_it_is_larger_than_any_journal(tmp_path: Path) -> None:
    sparse(tmp_path / "records.jsonl", tmp_path)
    with pytest.raises(OSError, match="larger than"):
        files.open_named_by_user(tmp_path / "records.jsonl")


class TooLate(BaseException):
    """Nothing that a command catches."""


@pytest.fixture
def soon() -> Iterator[None]:
    """The test ends within LONGEST_S, even from within a read that never ends."""

    def too_late(*_: object) -> None:
        raise TooLate(f"not over within {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LONGEST_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def commands_for(number: int) -> list[tuple[str, ...]]:
    return list(COMMANDS) if ALL else [COMMANDS[(3 * number + step) % len(COMMANDS)] for step in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "file", "kind"),
    [(number, file, kind) for number, (file, kind) in enumerate(PAIRS)],
    ids=[f"{file}-{kind.__name__}" for file, kind in PAIRS],
)
@pytest.mark.filterwarnings("ignore")
def test_every_command_ends_soon_and_in_a_sentence(tmp_path, results, soon, monkeypatch, number, file, kind):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs = theirs / "file"
    theirs.write_bytes(THEIRS)
    place = tmp_path / "results"
    shutil.copytree(results, place)
    (machine,) = place.iterdir()
    names = {"OLD": f"{machine.name}/20260101T000000Z-0001", "RUN": f"{machine.name}/20260102T000000Z-0002"}
    target = place / file.replace("OLD", names["OLD"]).replace("RUN", names["RUN"]).replace("MACHINE", machine.name)
    target.unlink(missing_ok=True)
    kind(target, theirs)
    monkeypatch.chdir(tmp_path)
    there = set(theirs.parent.iterdir())
    for command in commands_for(number):
        arguments = [
            word.replace("RESULTS", "results").replace("MACHINE/OLD", names["OLD"]).replace("MACHINE/RUN", names["RUN"])
            for word in command
        ]
        ended = CliRunner().invoke(main, arguments)
        assert isinstance(ended.exception, SystemExit | None), (arguments, ended.exception)
        assert ended.exit_code in (0, 1, 2, 3), arguments
        assert "Traceback" not in ended.output
        if ended.exit_code == 2:
            assert len(ended.output) > 20, "it says why"
        assert theirs.read_bytes() == THEIRS, arguments
        assert set(theirs.parent.iterdir()) == there, arguments
