import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyperf_suite.cli.main import main
from pyperf_suite.record.case import Case
from tests.records import a_product

MACHINE = "cpu-someones-2c"
SMALL, LARGE = (a_product(m, 8, 8, "torch", "library@1") for m in (8, 512))


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False, env={"COLUMNS": "100"})


@pytest.fixture
def add_run(write_run):
    """A run of one day in January 2026 with a record of each case; returns its journal."""

    def add(number: int, times: dict[Case, float], torch: str = "2.9.0") -> Path:
        state = {"packages": {"torch": torch}, "source": {"commit": f"{number:040x}", "dirty": False}}
        run_id = f"202601{number:02}T000000Z-{number:04x}"
        for case, time in times.items():
            named = {"probe": "baseline", "case": case.to_json(), "case_id": case.case_id, "state": state}
            path = write_run(run_id, [time], machine=MACHINE, **named)
        return path

    return add


@pytest.fixture
def history(results, add_run) -> Path:
    """Twenty runs of one benchmark whose time doubles at the eleventh, the last with another torch; one of another."""
    for number in range(1, 21):
        times = {SMALL: 1e-3 * (1 + 0.002 * (number * 7 % 5)) * (2 if number > 10 else 1)}
        add_run(number, times | ({LARGE: 5e-6} if number == 3 else {}), "2.9.1" if number == 20 else "2.9.0")
    return results


@pytest.mark.parametrize("name", [SMALL.case_id, SMALL.label, "matmul*m=8 n=8*"])
def test_a_series_is_told_whole_by_case_label_or_glob_and_a_doubling_as_an_unconfirmed_step(history, name):
    message = invoke("history", name, "--results", history)
    assert message.exit_code == 0, message.output
    assert SMALL.label in message.output
    assert "break 2026-01-20: torch 2.9.0 -> 2.9.1" in message.output
    assert "20260120T000000Z-0014" in message.output
    (step,) = [line for line in message.output.splitlines() if line.startswith("step")]
    assert "2026-01-11: +" in step
    assert f"(commits {10:040x}"[:18] in step
    assert "not confirmed" in step


def test_every_series_with_its_runs_is_json_on_request(history):
    answer = json.loads(invoke("history", "--results", history, "--json").stdout)
    series = {each["case_id"]: each for each in answer["series"]}
    assert set(series) == {SMALL.case_id, LARGE.case_id}
    small = series[SMALL.case_id]
    assert (small["label"], small["metric"], small["unit_of_measure"], len(small["points"])) == (
        SMALL.label,
        "time",
        "s",
        20,
    )
    point = small["points"][10]
    assert (point["run_id"], point["commit"]) == ("20260111T000000Z-000b", f"{11:040x}")
    assert point["low"] <= point["value"] <= point["high"]
    assert small["breaks"] == [{"index": 19, "what": "torch 2.9.0 -> 2.9.1"}]
    assert [each["index"] for each in small["changes"]] == [10]
    assert len(json.loads(invoke("history", SMALL.case_id, "--results", history, "--json").stdout)["series"]) == 1


def test_a_damaged_line_is_warned_about_and_the_rest_is_told(history):
    (journal,) = history.glob("*/20260105*/records.jsonl")
    journal.write_text('{"schema_version": 99}\n')
    message = invoke("history", "--results", history)
    assert message.exit_code == 0
    assert f"Warning: {journal}, line 1 is not a record of the suite" in message.stderr
    assert "  19  " in message.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("history", "nothing of the kind"), "matches 'nothing of the kind'"),
        (("history", "--machine", "another"), "No measured run was found in"),
        (("export", "nothing of the kind", "-o", "x.csv"), "no run 'nothing of the kind'"),
        (("export", "latest", "-o", "x.txt"), ".csv or .parquet"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(history, arguments, sentence):
    message = invoke(*arguments, "--results", history)
    assert message.exit_code == 2
    assert sentence in " ".join(message.stderr.split())


@pytest.mark.parametrize(("command", "code"), [("history", 2), ("track", 3)])
def test_runs_that_cannot_be_read_are_not_told_as_none(write_run, command, code):
    records = write_run()
    records.write_text(records.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    message = invoke(command, "--results", records.parents[2])
    assert message.exit_code == code
    assert "schema version 99" in " ".join((message.output if code == 3 else message.stderr).split())


@pytest.mark.parametrize("field", ["probe", "label"])
def test_a_name_from_a_strangers_file_gives_the_terminal_no_orders(write_run, field):
    records = write_run()
    old = '"tile_wave"' if field == "probe" else '"native"'
    records.write_text(records.read_text().replace(old, '"\\u001b]0;title\\u0007[bold]\\u202e"', 1))
    message = invoke("history", "--results", records.parents[2])
    assert message.exit_code == 0
    assert "[bold]" in message.output
    assert not set("\x1b\x07\u202e") & set(message.output)
