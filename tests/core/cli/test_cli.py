"""The command line: what a newcomer types, what is refused, and that help comes at once.

Records as a table: every record a row, nothing lost in the numbers; and files written for a user.
"""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result

from pyperf_suite.cli.history import table_of
from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.probes import probe_names
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.runner.session import Session
from pyperf_suite.workloads.matmul import MatmulParameters
from tests.commands import invoke
from tests.records import a_record, metric

SMALL = ("-a", "tile=32x32x32", "-a", "k=40", "-a", "workers=1", "-a", "schedule=data_parallel,stream_k")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """One small finished run and what it printed."""
    results = tmp_path_factory.mktemp("results")
    return results, invoke("run", "tile_wave", *SMALL, "--results", str(results))


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--list", "--json"), ("run", "--list")])
def test_output_that_nobody_reads_ends_as_by_its_signal_and_is_no_verdict(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "pyperf_suite", *arguments], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.slow
def test_a_run_ends_with_sentences_a_table_the_records_and_a_picture(finished):
    results, result = finished
    assert result.exit_code == 0, result.output
    assert "Tile and wave cliffs" in result.output
    (records,) = results.glob("*/*/records.jsonl")
    (picture,) = results.glob("*/*/*.png")
    assert str(records) in result.output
    assert "1 picture" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {record.outcome for record in read_journal(records)} == {"ok"}


@pytest.mark.slow
def test_resuming_a_finished_run_measures_nothing_and_reports_it_as_json(finished, tmp_path):
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
    assert f"{len(before)} of {len(before)} trials are kept, nothing is left" in result.stderr
    assert [record for record in read_journal(journal) if record.kind == "timing"] == before


def test_the_list_names_every_probe_and_what_each_profile_of_a_named_one_costs_here():
    every = invoke("run", "--list")
    assert every.exit_code == 0
    assert [name for name in probe_names() if name not in every.output] == []
    one = invoke("run", "--list", "optimizer")
    for words in ("quick", "standard", "full", "-a tensors=", "-a workers="):
        assert words in one.output
    assert "baseline" not in one.output


def test_the_list_has_the_axes_as_replaced_and_is_json_on_request():
    replaced = ("-a", "optimizer.workers=1", "-a", "baseline.workers=7")
    text = invoke("run", "--list", "optimizer", *replaced).output
    assert text.count("-a workers=") == text.count("-a workers=1\n") == 1
    every = json.loads(invoke("run", "--list", "--json").stdout)["probes"]
    assert {each["name"] for each in every} >= {"baseline", "optimizer"}
    assert all(set(each) == {"name", "topic", "question"} for each in every)
    (one,) = json.loads(invoke("run", "--list", "optimizer", "--json", *replaced).stdout)["probes"]
    assert [each["profile"] for each in one["profiles"]] == ["quick", "standard", "full"]
    assert {each["axes"]["workers"] for each in one["profiles"]} == {"1"}
    assert all(each["cases"] > 0 and each["seconds"] > 0 for each in one["profiles"])
    assert one["profiles"][0]["cases"] < one["profiles"][-1]["cases"]


def test_a_run_appends_what_was_found_as_markdown_without_pictures(tmp_path, instant_workers):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    arguments = ("run", "tile_wave", *SMALL, "--results", str(tmp_path), "--markdown", str(summary))
    assert invoke(*arguments).exit_code == 0
    text = summary.read_text()
    assert text.startswith("before\n# 2")
    assert "pyperf-suite run tile_wave -a tile=32x32x32" in text
    assert "**Tile and wave cliffs**" in text
    assert "![" not in text


def test_a_summary_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    for path, why in (
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "summary.md", "is in no folder that takes files"),
        (tmp_path / f"{'long' * 80}.md", "cannot be written (File name too long)"),
    ):
        refused = invoke("run", "tile_wave", *SMALL, "--results", str(tmp_path / "runs"), "--markdown", str(path))
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"--markdown {path} {why}" in refused.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_run_that_is_ended_from_outside_ends_its_workers_and_says_how_to_go_on(
    name, tmp_path, instant_workers, monkeypatch, request
):
    closed, usual = [], Session.close
    # Whoever started the tests may ignore it, as nohup does, and a run keeps that.
    before = signal.signal(getattr(signal, name), signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(getattr(signal, name), before))

    def close(session: Session) -> None:
        closed.append(session)
        usual(session)

    killed = lambda session, *group, **how: os.kill(os.getpid(), getattr(signal, name))  # noqa: E731
    monkeypatch.setattr(Session, "_measure_group", killed)
    monkeypatch.setattr(Session, "close", close)
    result = invoke("run", "tile_wave", *SMALL, "--results", str(tmp_path))
    assert result.exit_code == 128 + getattr(signal, name)
    assert "Interrupted; 1 record is kept in" in result.stderr, "the sentinel's"
    assert "Go on with --resume" in result.stderr
    assert len(closed) == 1
    assert signal.getsignal(getattr(signal, name)) is signal.SIG_DFL


def test_who_ignores_the_end_of_a_terminal_keeps_ignoring_it(tmp_path, instant_workers, monkeypatch):
    handlers = []

    def trial(session: Session, *trial: object) -> None:
        handlers.append(signal.getsignal(signal.SIGHUP))
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "measure_trial", trial)
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert invoke("run", "tile_wave", *SMALL, "--results", str(tmp_path)).exit_code == 130
    finally:
        signal.signal(signal.SIGHUP, usual)
    assert handlers == [signal.SIG_IGN]


CASE = Case("matmul", MatmulParameters(8, 8, 8, Schedule("library", 1)), "torch")
HOSTILE = 'a,"b"\nc=cmd|x'


@pytest.fixture
def records():
    """Two, whose fields differ in name and in type."""
    state = ({"turbo": "1", "packages": {"torch": "2.9.0"}}, {"turbo": True})
    return [
        a_record(CASE, metric(0.1 + 0.2), reason=HOSTILE, state=state[0]),
        a_record(CASE, metric(3e-9), state=state[1]),
    ]


def test_a_csv_needs_no_pyarrow_has_a_row_a_record_and_loses_no_digit_whatever_the_text(records, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    rows = list(csv.DictReader(io.StringIO(table_of(records, ".csv").decode(), newline="")))
    assert [float(row["metrics.time.value"]) for row in rows] == [0.1 + 0.2, 3e-9]
    assert [row["reason"] for row in rows] == [HOSTILE, ""]
    assert [row["case.operator"] for row in rows] == ["matmul", "matmul"]
    assert [row["state.turbo"] for row in rows] == ["1", "true"]
    assert json.loads(rows[0]["metrics.time.samples"]) == records[0].metrics["time"].samples


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+1", "-1", "\t=1"])
def test_a_text_is_no_formula_in_a_csv(text):
    record = a_record(CASE, metric(-1e-9), reason=text, state={text: True})
    (row,) = csv.DictReader(io.StringIO(table_of([record], ".csv").decode(), newline=""))
    assert row["reason"] == f"'{text}"
    assert row["metrics.time.value"] == "-1e-09"


def test_parquet_holds_numbers_as_numbers_and_of_several_types_text(records):
    pytest.importorskip("pyarrow")
    from pyarrow import BufferReader, parquet

    table = parquet.read_table(BufferReader(table_of(records, ".parquet")))
    assert table["metrics.time.value"].to_pylist() == [0.1 + 0.2, 3e-9]
    assert table["state.turbo"].to_pylist() == ["1", "True"]
    assert table["state.packages.torch"].to_pylist() == ["2.9.0", None]
    assert str(table.schema.field("process").type) == "int64"


def test_another_suffix_and_no_pyarrow_are_each_one_sentence(records, monkeypatch):
    with pytest.raises(UserError, match=r"\.csv or \.parquet"):
        table_of(records, ".json")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        table_of(records, ".parquet")
