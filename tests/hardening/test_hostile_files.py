"""Whatever lies in a results folder in place of a file of the suite, every command ends soon and in a sentence.

Nothing is written through a link, and nobody else's file changes. `PYPERF_HOSTILE=all` tries every command on every
file and kind; without it each pair of file and kind is tried with some of the commands.
"""

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

from pyperf_suite import files
from tests.commands import invoke
from tests.records import a_run

LONGEST_S = 30
THEIRS = b"somebody else's\n" * 100


def folder(path: Path, theirs: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(THEIRS)


def unix_socket(path: Path, theirs: Path) -> None:
    place = Path(f"/tmp/pyperf-hostile-{os.getpid()}")  # a socket's own name may only be short
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(place))
    shutil.move(place, path)


def link_to_a_pipe(path: Path, theirs: Path) -> None:
    os.mkfifo(theirs.with_name(f"pipe-of-{path.name}"))
    path.symlink_to(theirs.with_name(f"pipe-of-{path.name}"))


def sparse(path: Path, theirs: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "fifo": lambda path, theirs: os.mkfifo(path),
    "folder": folder,
    "unix_socket": unix_socket,
    "link_to_zero": lambda path, theirs: path.symlink_to("/dev/zero"),
    "link_to_full": lambda path, theirs: path.symlink_to("/dev/full"),
    "link_to_a_pipe": link_to_a_pipe,
    "link_to_theirs": lambda path, theirs: path.symlink_to(theirs),
    "link_to_nothing": lambda path, theirs: path.symlink_to(theirs.with_name("made-by-nobody")),
    "link_to_itself": lambda path, theirs: path.symlink_to(path.name),
    "garbage": lambda path, theirs: path.write_bytes(random.Random(path.name).randbytes(70_000)),
    "zeros": lambda path, theirs: path.write_bytes(bytes(70_000)),
    "sparse": sparse,
    "nested": lambda path, theirs: path.write_bytes(b"[" * 200_000 + b"\n"),
    "a_number": lambda path, theirs: path.write_bytes(b"9" * 5000 + b"\n"),
}
RUNS = {"OLD": "20260101T000000Z-0001", "RUN": "20260102T000000Z-0002"}
OTHERS = ("ab-20260101T000000Z-0000", "selfcheck-20260101T000000Z-0000")
FILES = (
    *("RUN/run.json", "RUN/records.jsonl", "RUN/records.jsonl.torn", "RUN/findings.md", "RUN/findings.json"),
    "report.html",
    *("OLD/run.json", "OLD/records.jsonl"),
    *(f"MACHINE/{OTHERS[0]}/ab.json", f"MACHINE/{OTHERS[0]}/pairs.jsonl"),
    *(f"MACHINE/{OTHERS[1]}/selfcheck.json", f"MACHINE/{OTHERS[1]}/comparisons.jsonl"),
)
COMMANDS = (
    "report results",
    "report results/RUN",
    "track --results results",
    "history --results results",
    "export results/RUN -o x.csv",
    "compare results/OLD results/RUN",
    "compare results/OLD/records.jsonl results/RUN/records.jsonl",
    "calibrate results/RUN",
    "run static_kernels -a kernel=none-of-them --results results --resume",
)
PAIRS = list(itertools.product(FILES, KINDS))
EVERY_COMMAND = os.environ.get("PYPERF_HOSTILE") == "all"


def test_a_file_that_a_user_names_is_not_read_where_it_is_larger_than_any_journal(tmp_path):
    sparse(tmp_path / "records.jsonl", tmp_path)
    with pytest.raises(OSError, match="larger than"):
        files.open_for_reading(tmp_path / "records.jsonl", may_be_pipe=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile") / "good"
    for day, name in enumerate(RUNS.values(), 1):
        run = a_run(place, name, [f"2026-01-{day:02d}T00:00:00+00:00"] * 3)
    for name in OTHERS:
        (run.parent / name).mkdir()
    return place


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


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PAIRS)), ids=[f"{file}-{kind}" for file, kind in PAIRS])
@pytest.mark.filterwarnings("ignore")
def test_every_command_ends_soon_and_in_a_sentence(tmp_path, results, soon, monkeypatch, number):
    file, kind = PAIRS[number]
    theirs = tmp_path / "theirs" / "file"
    theirs.parent.mkdir()
    theirs.write_bytes(THEIRS)
    shutil.copytree(results, tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    (machine,) = (each.name for each in results.iterdir())

    def named(text):
        for word, run in RUNS.items():
            text = text.replace(word, f"{machine}/{run}")
        return text.replace("MACHINE", machine)

    target = Path("results", named(file))
    target.parent.mkdir(exist_ok=True)
    target.unlink(missing_ok=True)
    KINDS[kind](target, theirs)
    there = set(theirs.parent.iterdir())
    for command in COMMANDS if EVERY_COMMAND else [COMMANDS[(3 * number + step) % len(COMMANDS)] for step in range(3)]:
        ended = invoke(*named(command).split())
        assert isinstance(ended.exception, SystemExit | None), (command, ended.exception)
        assert ended.exit_code in (0, 1, 2, 3), command
        assert "Traceback" not in ended.output
        assert ended.exit_code != 2 or len(ended.output) > 20, "it says why"
        assert theirs.read_bytes() == THEIRS, command
        assert set(theirs.parent.iterdir()) == there, command
