import io
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pyperf_suite.cli.main import CommandLine
from pyperf_suite.cli.options import finish, outcome_options
from pyperf_suite.files import strict_json
from pyperf_suite.record.interval import Ratio
from pyperf_suite.regressions.thresholds import FAIL_ON
from pyperf_suite.regressions.verdict import Judgement, exit_code
from pyperf_suite.render.comparisons import (
    MOST_ROWS,
    comparisons_as_json,
    junit_xml,
    print_comparisons,
    summary,
)


def finding(verdict="equivalent", benchmark="matmul[native]", ratio=1.0, sentence="As before.", **details):
    return Judgement(
        benchmark,
        "tile_wave",
        "c0ffee",
        verdict,
        Ratio(ratio, ratio - 0.01, ratio + 0.01) if ratio is not None else None,
        0.01,
        sentence,
        details,
    )


EVERY_VERDICT = [
    finding(),
    finding("faster"),
    finding("undecided"),
    finding("failed", ratio=None),
    finding("slower", ratio=1.05),
]


@pytest.mark.parametrize(
    ("verdicts", "fail_on", "code"),
    [
        ((), "undecided", 3),  # nothing was compared
        ((), "never", 0),
        (("equivalent", "faster"), "undecided", 0),
        (("undecided", "slower"), "undecided", 1),
        (("undecided", "slower", "failed"), "undecided", 3),
        (("undecided", "slower", "failed"), "slower", 1),
        (("undecided", "slower", "failed"), "never", 0),
        (("undecided",), "undecided", 3),
        (("undecided",), "failed", 0),
        (("failed",), "failed", 3),
        (("failed", "equivalent"), "slower", 0),
        (("failed", "failed"), "slower", 3),  # nothing was measured
        (("failed",), "never", 0),
    ],
)
def test_a_failure_outranks_a_regression_and_that_what_is_open_as_far_as_each_is_minded(verdicts, fail_on, code):
    assert exit_code([finding(verdict) for verdict in verdicts], fail_on) == code


@pytest.mark.parametrize(
    ("verdict", "low", "confidence", "codes"),
    [
        ("undecided", 1.011, 0.95, (0, 0, 1, 1, 1)),
        ("undecided", 1.009, 0.95, (0, 0, 0, 0, 3)),
        ("undecided", 1.011, 0.94, (0, 0, 0, 0, 3)),
        ("undecided", float("nan"), 0.0, (0, 0, 0, 0, 3)),  # of a single pair
        ("equivalent", 1.011, 0.99, (0, 0, 0, 0, 0)),
    ],
)
def test_what_lies_beyond_the_margin_as_a_whole_is_probably_slower(verdict, low, confidence, codes):
    found = replace(finding(verdict, ratio=1.1, confidence=confidence), ratio=Ratio(1.1, low, 1.2))
    assert tuple(exit_code([found], level) for level in FAIL_ON) == codes
    assert (b"<failure" in junit_xml("", [found], "failed")) is (codes[3] == 1)


def shown(findings, notes=(), width=100):
    console = Console(file=io.StringIO(), width=width)
    print_comparisons(console, "ab main HEAD", findings, notes, exit_code(findings), "undecided")
    return console.file.getvalue()


def test_a_label_is_whole_and_not_taken_for_markup_in_a_narrow_terminal():
    label = f"matmul[native_[bold]m=1[/]_{'x' * 200}]"
    text = shown([finding("slower", label)], width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert label in "".join(text.split())


def test_what_a_terminal_would_obey_is_not_sent_to_it():
    assert "\x1b" not in shown([finding("slower", "evil\x1b]0;title\x07", sentence="also\x1b[2J\ud800")])


def test_the_json_is_strict_whatever_the_details_hold():
    details = {"further_pairs": math.inf, "commits": ("a", "b"), "p": np.float64(0.5), "sd": np.array([1.0, math.nan])}
    message = comparisons_as_json("compare", [finding("undecided", **details)], [], 3, {"false_alarms": float("nan")})
    read = strict_json(message)
    assert read["findings"][0]["details"] == {"further_pairs": None, "commits": ["a", "b"], "p": 0.5, "sd": [1.0, None]}
    assert read["counts"]["undecided"] == 1
    assert read["exit_code"] == 3
    assert read["false_alarms"] is None


def test_a_summary_has_one_line_a_benchmark_whatever_its_name():
    name = "m`<script>|a\nb` **x** [link](http://x)"
    rows = [
        line for line in summary("ab", [finding("slower", name)], []).splitlines() if "slower" in line and "|" in line
    ]
    assert len(rows) == 1
    assert "<script>" not in rows[0]
    assert r"\|a b\` \*\*x\*\* \[link\]" in rows[0]


def test_a_summary_of_ten_thousand_benchmarks_fits_a_job_page_and_says_what_it_leaves_out():
    text = summary("ab", [finding("undecided", "m" * 150, sentence="s" * 300)] * 10_000, [])
    assert len(text.encode()) < 1 << 20
    assert f"{10_000 - MOST_ROWS} more are left out" in text


def test_junit_fails_a_regression_and_skips_what_stayed_open():
    suite = ElementTree.fromstring(junit_xml("ab", EVERY_VERDICT))
    assert suite.attrib | {"time": ""} == {
        "name": "ab", "tests": "5", "failures": "1", "errors": "1", "skipped": "1", "time": "",
    }  # fmt: skip
    assert [test[0].tag for test in suite] == ["system-out", "system-out", "skipped", "error", "failure"]
    suite = ElementTree.fromstring(junit_xml("ab", EVERY_VERDICT, "never"))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")


@settings(max_examples=30)
@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=20), st.floats(0, 1e9))
def test_junit_is_well_formed_whatever_a_benchmark_is_called(name, seconds):
    text = junit_xml(name, [finding("slower", name, sentence=name, seconds=seconds)])
    assert len(ElementTree.fromstring(text)) == 1


@click.group(cls=CommandLine)
def front_end():
    pass


@front_end.command()
@outcome_options
def judge(outcome):
    finish(EVERY_VERDICT, outcome, "judged", ["Be careful."])


def invoke(*arguments):
    return CliRunner().invoke(front_end, ["judge", *map(str, arguments)])


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_command_prints_writes_the_files_asked_for_and_exits_by_its_findings(tmp_path):
    (tmp_path / "summary.md").write_text("# From the step before\n")
    done = invoke("--markdown", tmp_path / "summary.md", "--junit", tmp_path / "junit.xml")
    assert done.exit_code == 3, "a failure outranks a regression"
    assert "1 slower" in done.stdout
    assert (tmp_path / "summary.md").read_text().startswith("# From the step before\n## judged")
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().get("failures") == "1"


def test_a_file_that_cannot_be_written_is_one_sentence_before_anything_is_judged(tmp_path):
    path = tmp_path / "absent" / "junit.xml"
    done = invoke("--junit", path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"Error: --junit {path} is in no folder that takes files: name a file that can be written.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_file_whose_disk_is_full_at_the_end_is_one_sentence_after_the_findings():
    done = invoke("--junit", "/dev/full")
    assert done.exit_code == 3
    assert "1 slower" in done.stdout
    assert done.stderr.count("\n") == 1
    assert "/dev/full cannot be written" in done.stderr
