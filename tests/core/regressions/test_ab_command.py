import json

import pytest
from click.testing import CliRunner

from pyperf_suite.cli.ab import ab
from pyperf_suite.cli.main import CommandLine
from pyperf_suite.errors import UserError
from pyperf_suite.record.interval import Ratio
from pyperf_suite.regressions.verdict import Judgement

VARIANTS = ("--old", "schedule=data_parallel", "--new", "schedule=stream_k", "--device", "cpu")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = CommandLine(commands={"ab": ab})
    return lambda *arguments: CliRunner().invoke(group, ["ab", *arguments], catch_exceptions=False)


@pytest.fixture
def checkout(monkeypatch):
    """A checkout in which every word but "typo" is a revision."""

    class Checkout:
        def commit(self, revision):
            if revision == "typo":
                raise UserError("no such revision")
            return "a" * 40

    monkeypatch.setattr("pyperf_suite.regressions.pairs.builds.find_checkout", Checkout)


@pytest.fixture
def compared(monkeypatch):
    """Replaces the comparing: each case gets the verdict given; returns what was asked for."""

    def replace(verdict, **details):
        requested = []

        def compare_arms(old, new, cases, device, rule, seed, budget_s, journal, progress):
            requested.append({"old": old, "new": new, "cases": cases, "rule": rule, "budget_s": budget_s})
            if isinstance(verdict, BaseException):
                journal({"pair": 0})
                raise verdict
            journal({"pair": 0})
            return [
                Judgement(case.label, case.probe, case.case_id, verdict, Ratio(1.1, 1.05, 1.15), 0.01, "So.", details)
                for case in cases
            ]

        monkeypatch.setattr("pyperf_suite.regressions.pairs.ab.compare_arms", compare_arms)
        return requested

    return replace


@pytest.mark.parametrize(("verdict", "code"), [("slower", 1), ("equivalent", 0), ("undecided", 3), ("failed", 3)])
def test_the_exit_code_is_that_of_the_findings(run, compared, verdict, code):
    compared(verdict)
    assert run(*VARIANTS, "baseline").exit_code == code


def test_pairs_manifest_and_findings_are_kept(run, compared, tmp_path):
    compared("slower")
    message = run(*VARIANTS, "baseline", "--json", "--results", "here")
    (folder,) = (tmp_path / "here").glob("*/ab-*")
    assert (folder / "pairs.jsonl").read_text() == '{"pair":0}\n'
    assert json.loads((folder / "ab.json").read_text())["arms"]["old"]["name"] == "schedule=data_parallel"
    findings = json.loads((folder / "findings.json").read_text())
    assert [finding["verdict"] for finding in findings] == ["slower"] * len(findings)
    assert any(str(folder.name) in note for note in json.loads(message.stdout)["notes"])


def test_an_interruption_says_where_the_pairs_are(run, compared):
    compared(KeyboardInterrupt())
    ended = run(*VARIANTS, "baseline")
    assert ended.exit_code == 130, "1 would say slower"
    assert "Interrupted; 1 pairs are kept in" in ended.stderr


def test_a_comparison_in_which_nothing_can_be_measured_fails_at_every_level_that_minds_anything(run, compared):
    compared("failed", unsupported=True)
    ended = run(*VARIANTS, "baseline", "--json", "--fail-on", "slower")
    message = json.loads(ended.stdout)
    assert (ended.exit_code, message["exit_code"]) == (3, 3)
    assert any("left out, the first matmul" in note for note in message["notes"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--old", "schedule=stream_k", "--new", "HEAD"), "can only be compared with a variant"),
        (("--old", "tile=", "--new", "tile=32x32x32"), "FIELD=VALUE"),
        ((*VARIANTS, "no_such_probe"), "Unknown probe"),
        ((*VARIANTS, "baseline", "-k", "nothing-like-it"), "leaves none"),
        ((*VARIANTS, "collectives"), "groups of processes"),
        ((*VARIANTS, "baseline", "--budget", "0"), "--budget"),
        ((*VARIANTS, "baseline", "--budget", "nan"), "--budget"),
        ((*VARIANTS, "baseline", "--margin", "-1"), "--margin"),
        ((*VARIANTS, "baseline", "--device", "cuda:99"), "cuda:99"),
        ((*VARIANTS, "baseline", "--results", "file/below"), "cannot be written"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(run, tmp_path, arguments, words):
    (tmp_path / "file").write_text("")
    ended = run("--device", "cpu", *arguments)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.output


def test_both_sides_are_looked_up_before_either_is_built(run, checkout, monkeypatch):
    monkeypatch.setattr("pyperf_suite.regressions.pairs.builds.revision_arm", lambda *_: pytest.fail("it was built"))
    message = run("--old", "main", "--new", "typo", "baseline", "--device", "cpu")
    assert message.exit_code == 2
    assert "no such revision" in message.stderr
