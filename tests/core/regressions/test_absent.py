"""Absent benchmarks are not fine: `track` of runs in which one failed, vanished, or nothing can be read."""

import datetime
import json

import pytest
from click.testing import CliRunner

from pyperf_suite.cli.main import main
from pyperf_suite.record.journal import Journal
from tests.core.series import BEGIN

IDS = ("0123456789abcdef", "00000000000000aa", "00000000000000bb")


def run_id(day: int) -> str:
    return f"{BEGIN + datetime.timedelta(days=day):%Y%m%dT%H%M%SZ}-0001"


@pytest.fixture
def write_nights(write_run, make_record):
    """A run a night; `seconds(night, number)` gives a time for each process of a case, None where it failed."""

    def write(nights, seconds, **fields):
        for night in range(nights):
            for number, case_id in enumerate(IDS):
                case = {"operator": f"kernel{number}", "implementation": "numpy", "parameters": {"n": min(number, 1)}}
                named = {"case": case, "case_id": case_id} | fields
                write_run(run_id(night), seconds(night, number), **named)

    return write


@pytest.fixture
def track(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        done = CliRunner().invoke(main, ["track", "--results", str(results), "--json", *arguments])
        said = json.loads(done.stdout) if done.stdout.startswith("{") else done.stderr
        return said, done.exit_code

    return invoke


FINE = [1e-3, 1.001e-3, 1.002e-3]


@pytest.mark.parametrize(
    ("bad", "first", "words"),
    [
        (
            [None] * 3,
            0,
            "Never measured, not measured in 30 runs since 2026-01-01T00:00Z, the newest: failed: a made-up",
        ),
        ([None] * 3, 10, "Last measured 2026-01-10T00:00Z, not measured in 20 runs since 2026-01-11T00:00Z"),
        ([None, None, 1e-3], 10, "2 of 3 processes failed, the first: failed: a made-up reason"),
    ],
)
@pytest.mark.parametrize("fail_on", ["undecided", "failed"])
def test_a_benchmark_that_was_wrong_for_20_nights_is_failed(track, write_nights, bad, first, words, fail_on):
    write_nights(30, lambda night, number: bad if number == 1 and night >= first else FINE)
    data, code = track("--fail-on", fail_on)
    [finding] = data["findings"]
    assert (finding["verdict"], finding["case_id"], code) == ("failed", IDS[1], 3)
    assert track("--since", "2026-01-29")[0]["findings"] == [finding]
    assert words in finding["sentence"]
    assert finding["sentence"].endswith("a made-up reason.")


def test_a_benchmark_that_works_again_is_fine_and_is_not_judged_by_survivors(track, write_nights):
    def seconds(night, number):
        return [None, 2e-3, 2e-3] if number == 1 and 10 <= night < 19 else FINE

    write_nights(20, seconds)
    data, code = track()
    assert (data["findings"], code) == ([], 0)


def test_nothing_but_failures_is_failed_also_where_only_slower_counts(track, write_nights):
    write_nights(20, lambda night, number: [None] * 3)
    data, code = track("--fail-on", "slower")
    assert ([each["verdict"] for each in data["findings"]], code) == (["failed"] * 3, 3)


def test_a_benchmark_that_vanished_is_failed_and_its_new_name_is_offered(track, write_nights):
    """The second and third case have the same parameters; the third is new where the second ends."""
    write_nights(40, lambda night, number: FINE if number == 0 or (number == 1) == (night < 20) else [])
    data, code = track()
    [finding] = data["findings"]
    assert (finding["verdict"], finding["case_id"], code) == ("failed", IDS[1], 3)
    assert "vanished: 20 runs since 2026-01-21T00:00Z measured what was measured with it" in finding["sentence"]
    assert "with the same parameters: kernel2[numpy n=1]" in finding["sentence"]
    assert track("kernel1")[1] == 3
    assert track("kernel0")[1] == 0
    assert track("--since", "2026-01-25")[1] == 0


@pytest.mark.parametrize(
    ("nights", "is_there"),
    [
        (40, lambda night, number: number == 0 or night < 5),  # left out for longer than anybody waits
        (40, lambda night, number: number == 0 or night < 38),  # two nights may have been a choice
        (40, lambda night, number: night < 20 or (night + number) % 3 == 0),  # in turn, one at a time
    ],
)
def test_what_was_left_out_on_purpose_is_no_absence(track, write_nights, nights, is_there):
    write_nights(nights, lambda night, number: FINE if is_there(night, number) else [])
    data, code = track()
    assert (data["findings"], code) == ([], 0)


def test_cases_of_another_profile_are_no_absence(track, write_run, make_record):
    for night in range(20):
        write_run(run_id(night), FINE, profile="standard" if night < 10 else "quick")
        if night < 10:
            write_run(run_id(night), FINE, case_id=IDS[1], profile="standard")
    data, code = track()
    assert (data["findings"], code) == ([], 0)


@pytest.mark.parametrize("content", ["", "{}\n", '{"schema_version": 99}\n', '{"half a rec', None])
def test_a_newest_run_without_a_readable_record_is_failed(track, write_nights, results, content):
    write_nights(10, lambda night, number: FINE)
    newest = max(results.glob("*/*/records.jsonl"))
    if content is None:
        newest.with_name("run.json").write_text("{}")
        newest.unlink()
    else:
        newest.write_text(content)
    data, code = track()
    [finding] = data["findings"]
    assert (finding["verdict"], code) == ("failed", 3)
    assert f"{newest}, the newest run, holds no record that can be read" in finding["sentence"]
    assert not finding["sentence"].endswith("..")


def test_a_run_that_has_just_started_is_not_yet_read(track, write_nights, results):
    write_nights(10, lambda night, number: FINE)
    started = max(results.glob("*/*")).with_name(f"{run_id(10)}")
    started.mkdir()
    with Journal(started / "records.jsonl"):
        data, code = track()
    assert (data["findings"], code) == ([], 0)
    assert track()[1] == 3, "it is over, and holds nothing"


def test_cases_that_failed_in_both_runs_are_failed(results, write_nights):
    write_nights(2, lambda night, number: [None] * 3)
    for fail_on in ("undecided", "failed", "slower"):
        arguments = ["compare", "latest~1", "latest", "--results", str(results), "--json", "--fail-on", fail_on]
        done = CliRunner().invoke(main, arguments)
        findings = json.loads(done.stdout)["findings"]
        assert ([each["verdict"] for each in findings], done.exit_code) == (["failed"] * 3, 3)
        assert "Not measured in either run: failed: a made-up reason" in findings[0]["sentence"]


def test_a_case_is_not_compared_by_the_processes_that_survived(results, write_nights):
    write_nights(2, lambda night, number: [None, None, 1e-3] if night else FINE)
    done = CliRunner().invoke(main, ["compare", "latest~1", "latest", "--results", str(results), "--json"])
    finding = json.loads(done.stdout)["findings"][0]
    assert (finding["verdict"], done.exit_code) == ("failed", 3)
    assert "Not measured in the new run: 2 of 3 processes failed" in finding["sentence"]
