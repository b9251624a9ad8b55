"""The command line: what a newcomer types, what is refused, and that help comes at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyperf_suite.cli.main import main
from pyperf_suite.findings.discovery import probe_names
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
def test_resuming_a_finished_run_measures_nothing_and_reports_it_as_json(
    finished: tuple[Path, Result], tmp_path: Path
) -> None:
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    (journal,) = tmp_path.glob("*/*/records.jsonl")
    before = [record for record in read_journal(journal) if record.kind == "timing"]
    result = invoke("run", "tile_wave", *SMALL, "--results", str(tmp_path), "--resume", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    [probe] = found["probes"]
    assert (found["run_id"], probe["name"]) == (journal.parent.name, "tile_wave")
    assert len(probe["cases"]) == len({record.case_id for record in before})
    assert found == json.loads((journal.parent / "findings.json").read_text())
    assert [record for record in read_journal(journal) if record.kind == "timing"] == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
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
        (("run", "--list", "optimiser"), "did you mean optimizer?"),
        (("collectives", "--model", "layers=2,depth=3", "--device", "cpu"), "'layers=2,depth=3' knows no depth"),
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
