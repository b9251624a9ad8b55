"""The command line: what a newcomer types, what is refused, and that help comes at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyperf_suite.cli.main import main
from pyperf_suite.findings.discovery import probe_names
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import read_journal
from pyperf_suite.runner.session import Session

SMALL = ("-a", "tile=32x32x32", "-a", "k=40", "-a", "workers=1", "-a", "schedule=data_parallel,stream_k")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """One small finished run and what it printed."""
    results = tmp_path_factory.mktemp("results")
    return results, invoke("run", "tile_wave", *SMALL, "--results", str(results))


@pytest.fixture
def kept(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    """The journal of a copy of that run, which a test may spoil."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    (records,) = tmp_path.glob("*/*/records.jsonl")
    return records


def resume(records: Path, *arguments: str) -> Result:
    return invoke("run", "tile_wave", *SMALL, "--results", str(records.parents[2]), "--resume", *arguments)


def timed(records: Path) -> list[Record]:
    return [record for record in read_journal(records) if record.kind == "timing"]


@pytest.mark.slow
def test_a_run_ends_with_sentences_a_table_the_records_and_a_picture(finished: tuple[Path, Result]) -> None:
    results, result = finished
    assert result.exit_code == 0, result.output
    assert "Tile and wave cliffs" in result.output
    assert "it misses the " in result.output
    (records,) = results.glob("*/*/records.jsonl")
    (picture,) = results.glob("*/*/*.png")
    assert str(records) in result.output
    assert picture.name in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {record.outcome for record in read_journal(records)} == {"ok"}


@pytest.mark.slow
def test_resuming_a_finished_run_measures_nothing_and_reports_it_as_json(kept: Path) -> None:
    before = timed(kept)
    result = resume(kept, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    [probe] = found["probes"]
    assert (found["run_id"], probe["name"]) == (kept.parent.name, "tile_wave")
    assert len(probe["cases"]) == len({record.case_id for record in before})
    assert found == json.loads((kept.parent / "findings.json").read_text())
    assert timed(kept) == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
def test_a_damaged_record_is_measured_again_on_resume_and_nothing_else_is(kept: Path, instant_workers: Any) -> None:
    before = read_journal(kept)
    lines = kept.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"outcome"', b'"outcom"', 1)
    kept.write_bytes(b"".join(lines))
    assert resume(kept).exit_code == 0
    added = read_journal(kept)[len(before) - 1 :]
    assert [(record.kind, record.case_id) for record in added] == [
        ("sentinel", before[0].case_id),
        ("timing", before[1].case_id),
        ("sentinel", before[0].case_id),
    ]


@pytest.mark.slow
def test_a_journal_of_a_newer_schema_stops_a_resume_in_one_sentence_and_stays_as_it_is(kept: Path) -> None:
    newer = b'{"schema_version": 99}\n' + kept.read_bytes()
    kept.write_bytes(newer)
    result = resume(kept)
    assert result.exit_code == 2
    assert "line 1" in result.output
    assert kept.read_bytes() == newer


@pytest.mark.slow
def test_a_torn_last_line_is_a_plain_warning_and_the_run_goes_on(
    kept: Path, instant_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command replaces
    kept.write_bytes(kept.read_bytes()[:-30])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = resume(kept)
    assert result.exit_code == 0
    assert any(line.startswith("Warning: ") and "torn" in line for line in result.stderr.splitlines())
    assert "DamagedJournal" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "tile_weave"), "Unknown probe 'tile_weave': did you mean tile_wave?"),
        (("run", "tile_wave", "--profile", "slow"), "Unknown profile 'slow'"),
        (("run", "tile_wave", "--device", "tpu"), "tpu"),
        (("run", "tile_wave", "--device", "cuda:31"), "cuda:31"),
        (("run", "tile_wave", "-a", "dtype=int3"), "dtype=int3 was requested: choose from"),
        (("run", "tile_wave", "-a", "k=0"), "k=0"),
        (("run", "tile_wave", "-a", "k=-5"), "k=-5"),
        (("run", "tile_wave", "-a", "k=four"), "k=four"),
        (("run", "tile_wave", "-a", "k=2000000000"), "GB of memory"),
        (("run", "tile_wave", "-a", "tile=7x7x7"), "7"),
        (("run", "tile_wave", "-a", "workers=4096"), "4096 workers"),
        (("run", "tile_wave", "-a", "schedule=magic"), "magic"),
        (("run", "tile_wave", "-a", "tile"), "'tile' is not an axis"),
        (("run", "tile_wave", "-a", "along=z"), "along=z"),
        (("run", "tile_wave", "-a", "across=0"), "across=0"),
        (("run", "tile_wave", "-a", "waves=99999999"), "waves=99999999"),
        (("run", "tile_wave", "-a", "workers=99999999999999999999"), "workers=99999999999999999999"),
        (("run", "tile_wave", "-a", "workers=0"), "workers=0"),
        (("run", "tile_wave", "-a", "offset=-9999999"), "no case with offset=-9999999"),
        (("run", "static_kernels", "-a", "compiler=gcc"), "no case with compiler=gcc"),
        (("run", "tile_wave", "--results", "/proc/nowhere"), "cannot be written"),
        (("run", "tile_wave", "-a", "tile_weave.k=8"), "Unknown probe 'tile_weave'"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    results = () if "--results" in arguments else ("--results", str(tmp_path))
    result = invoke(*arguments, *results)
    assert result.exit_code == 2, result.output
    assert sentence in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "tile_wave", "--deadline", "nan"), "nan is not a finite number"),
        (("run", "tile_wave", "--deadline", "inf"), "inf is not a finite number"),
        (("collectives", "--soak", "nan"), "nan is not a finite number"),
    ],
)
def test_a_time_that_is_no_number_is_bad_usage(arguments: tuple[str, ...], sentence: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert sentence in result.output


def test_the_list_names_every_probe_and_what_each_profile_of_a_named_one_costs_here() -> None:
    every = invoke("run", "--list")
    assert every.exit_code == 0
    assert [name for name in probe_names() if name not in every.output] == []
    one = invoke("run", "--list", "optimizer")
    for words in ("quick", "standard", "full", "-a tensors=", "-a workers="):
        assert words in one.output
    assert "baseline" not in one.output
    refused = invoke("run", "--list", "optimiser")
    assert refused.exit_code == 2
    assert "did you mean optimizer?" in refused.output


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "pyperf_suite", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "pyperf-suite" in done.stdout


def test_a_model_whose_training_cannot_be_judged_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    result = invoke("collectives", "--model", "layers=2,depth=3", "--device", "cpu", "--results", str(tmp_path))
    assert result.exit_code == 2
    assert "The model 'layers=2,depth=3' knows no depth" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_run_that_is_ended_from_outside_ends_its_workers_and_says_how_to_go_on(
    name: str,
    tmp_path: Path,
    instant_workers: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    closed, usual = [], Session.close
    # Whoever started the tests may ignore it, as nohup does, and a run keeps that.
    before = signal.signal(getattr(signal, name), signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(getattr(signal, name), before))

    def close(session: Session) -> None:
        closed.append(session)
        usual(session)

    monkeypatch.setattr(Session, "measure_trial", lambda session, *trial: os.kill(os.getpid(), getattr(signal, name)))
    monkeypatch.setattr(Session, "close", close)
    result = invoke("run", "tile_wave", *SMALL, "--results", str(tmp_path))
    assert result.exit_code == 128 + getattr(signal, name)
    assert "Interrupted; 1 record is kept in" in result.stderr, "the sentinel's"
    assert "Go on with --resume" in result.stderr
    assert len(closed) == 1
    assert signal.getsignal(getattr(signal, name)) is signal.SIG_DFL


def test_who_ignores_the_end_of_a_terminal_keeps_ignoring_it(
    tmp_path: Path, instant_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def trial(session: Session, *trial: object) -> None:
        seen.append(signal.getsignal(signal.SIGHUP))
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "measure_trial", trial)
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert invoke("run", "tile_wave", *SMALL, "--results", str(tmp_path)).exit_code == 130
    finally:
        signal.signal(signal.SIGHUP, usual)
    assert seen == [signal.SIG_IGN]
