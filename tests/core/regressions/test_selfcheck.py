import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyperf_suite.errors import DamagedJournal, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.machine import identity
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.journal import Journal
from pyperf_suite.regressions.selfcheck import COMPARISONS, MANIFEST, latest_selfcheck, open_selfcheck
from pyperf_suite.regressions.verdict import Judgement
from pyperf_suite.render import text
from tests.records import a_product, a_record, metric
from tools import selfcheck as tool
from tools.selfcheck import (
    EVERY_PROBE,
    change_at,
    findings_of_repeats,
    findings_of_selfcheck,
    make_comparisons,
    planned,
    records_of,
    resumable,
    selfcheck_cases,
    spreads,
    start,
)

CPU = Device("cpu", 0)
CASES = selfcheck_cases(CPU)
SETTINGS = {
    "device": "cpu",
    "rule": {"margin": 0.01, "max_pairs": 60},
    "budget_s": 30.0,
    "cases": [case.new.to_json() for case in CASES],
    "state": {},
}


def verdict_of(case, shift, seed, write):
    """A made-up comparison: sees 5 % always, 3 % in about half, calls every tenth identical one slower."""
    chance = random.Random(seed)
    for _ in range(5):
        write({"log_ratio": shift + chance.gauss(0, 0.01)})
    seen = {0.0: 0.1, 0.03: 0.5, 0.05: 1.0}[shift]
    verdict = "slower" if chance.random() < seen else "equivalent"
    return Judgement(case.label, case.probe, case.case_id, verdict, Ratio(1 + shift, 1, 2), 0.01, "So it is.", {})


def failing(case, shift, seed, write):
    return Judgement(case.label, case.probe, case.case_id, "failed", None, 0.01, "The worker died.", {})


def made(folder, counts, compare=verdict_of, machine="cpu-x", **options):
    return make_comparisons(start(folder, machine, SETTINGS), planned(counts, CASES, 0), compare, **options)


def test_rates_are_counted_from_the_lines_on_disk(tmp_path):
    checked = open_selfcheck(made(tmp_path, {0.0: 40, 0.05: 20}).path)
    lines = [json.loads(line) for line in (checked.path / COMPARISONS).read_text().splitlines()]
    alarms = sum(line["shift"] == 0 and line["verdict"] == "slower" for line in lines)
    assert (checked.false_alarms.hits, checked.false_alarms.tries) == (alarms, 40)
    assert 0 < alarms < 15
    assert (checked.rate(0.05, "slower").hits, checked.rate(0.05, "slower").tries) == (20, 20)
    assert change_at(checked, 0.05) == pytest.approx(0.05)
    assert "of an injected" not in checked.sentence()
    assert f"in {checked.false_alarms} of 40 comparisons (margin 1 %)" in checked.sentence()
    assert "5 % in 100.0 % [83.2, 100.0] of 20" in checked.sentence()


def test_what_was_interrupted_goes_on_without_repeating_or_losing_a_comparison(tmp_path):
    requested = []

    def until_interrupted(*arguments):
        requested.append(arguments)
        if len(requested) == 7:
            raise KeyboardInterrupt
        return verdict_of(*arguments)

    with pytest.raises(KeyboardInterrupt):
        made(tmp_path, {0.0: 8, 0.05: 8}, until_interrupted)
    cut = resumable(tmp_path, "cpu-x", SETTINGS)
    assert len(cut.comparisons) == 6
    whole = make_comparisons(cut, planned({0.0: 8, 0.05: 8}, CASES, 0), until_interrupted)
    assert len(whole.comparisons) == 16
    assert len(requested) == 17
    assert whole.comparisons[:6] == cut.comparisons


def test_what_failed_counts_in_no_rate_and_is_tried_again(tmp_path):
    found = made(tmp_path, {0.0: 2}, failing)
    assert (len(found.comparisons), found.false_alarms.tries) == (2, 0)
    assert findings_of_selfcheck(found).remarks[0].values["count"] == 2
    again = make_comparisons(found, planned({0.0: 2}, CASES, 0), verdict_of)
    assert again.false_alarms.tries == 2


def test_a_line_torn_by_a_kill_costs_that_comparison_alone_and_nothing_is_cut_away(tmp_path):
    folder = made(tmp_path, {0.0: 3}).path
    path = folder / COMPARISONS
    *intact, torn = path.read_bytes()[:-40].splitlines(keepends=True)
    path.write_bytes(b"".join([*intact, torn]))
    assert len(open_selfcheck(folder).comparisons) == 2
    with pytest.warns(DamagedJournal, match="a torn last line was set aside"):
        again = make_comparisons(open_selfcheck(folder), planned({0.0: 3}, CASES, 0), verdict_of)
    assert len(again.comparisons) == 3
    assert path.read_bytes().startswith(b"".join(intact))
    assert path.with_name(f"{COMPARISONS}.torn").read_bytes() == torn + b"\n"


def test_two_selfchecks_never_write_the_same_file(tmp_path):
    pytest.importorskip("fcntl")
    checked = start(tmp_path, "cpu-x", SETTINGS)
    plan = planned({0.0: 1}, CASES, 0)

    def meanwhile(*arguments):
        with pytest.raises(UserError, match="Another process"):
            make_comparisons(checked, plan, verdict_of)
        return verdict_of(*arguments)

    assert len(make_comparisons(checked, plan, meanwhile).comparisons) == 1


def test_an_hour_long_selfcheck_speaks_for_a_machine_and_not_a_short_trial_after_it(tmp_path, monkeypatch):
    assert latest_selfcheck(tmp_path, "cpu-x") is None
    made(tmp_path, {0.05: 3})
    assert latest_selfcheck(tmp_path, "cpu-x") is None
    trial = made(tmp_path, {0.0: 2})
    assert latest_selfcheck(tmp_path, "cpu-x").path == trial.path
    long = made(tmp_path, {0.0: 60})
    trial.path.rename(trial.path.with_name("selfcheck-29991231T000000Z-0000"))
    assert latest_selfcheck(tmp_path, "cpu-x").path == long.path
    assert latest_selfcheck(tmp_path, "cpu-other") is None


@pytest.mark.parametrize("manifest", ["{", "[]", "{}", "[" * 100_000, '{"schema_version": 99}'])
def test_a_damaged_selfcheck_is_passed_over_and_its_file_left_as_it_is(tmp_path, manifest):
    damaged = made(tmp_path, {0.0: 1}).path / MANIFEST
    damaged.write_text(manifest)
    whole = made(tmp_path, {0.0: 1})
    assert latest_selfcheck(tmp_path, "cpu-x").path == whole.path
    with pytest.raises(UserError, match=MANIFEST):
        open_selfcheck(damaged.parent)
    assert damaged.read_text() == manifest


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tool, "_comparing", lambda *_: verdict_of)
    return lambda *arguments: CliRunner().invoke(tool.selfcheck, ["--device", "cpu", *arguments])


def test_the_command_tells_rates_with_intervals_and_how_long_it_takes(invoke, tmp_path):
    done = invoke("--shifts", "0:12,5:8")
    assert done.exit_code == 0, done.output
    assert "5.0 %      8  100 % [63, 100]" in done.stdout
    assert "median, s" in done.stdout
    assert "1/20 matmul" in done.stderr or "1/20 attention" in done.stderr
    assert latest_selfcheck(tmp_path / "bench_results", identity(CPU).slug).false_alarms.tries == 12


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--shifts", "fast"), "is not a slowdown in percent"),
        (("--shifts", "60"), "from 0 to 50 percent"),
        (("--shifts", "nan"), "from 0 to 50 percent"),
        (("--shifts", "5:0"), "at least one comparison"),
        (("--budget", "nan"), "not a finite number"),
        (("--margin", "2"), "not between 0 and 100 %"),
        (("--resume",), "no selfcheck of the same"),
        (("--repeat", "2", "--resume"), "leave out"),
        (("--results", "pyproject.toml/x"), "cannot be written"),
    ],
)
def test_what_cannot_be_asked_of_the_command_is_one_sentence(invoke, tmp_path, arguments, sentence):
    (tmp_path / "pyproject.toml").write_text("")
    done = invoke("--shifts", "0:1", *arguments)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())


REPEATED = [a_product(n, implementation="torch", schedule="library@1") for n in (16, 32)]


def journal(folder: Path, *times: float, probe: str = "baseline", spread: float = 0.05) -> Path:
    path = folder / "records.jsonl"
    folder.mkdir()
    with Journal(path) as written:
        for case, seconds in zip(REPEATED, times, strict=False):
            quality = {"converged": True, "disturbances": {"clean_share": 0.5}}
            bounds = metric(seconds, low=seconds * (1 - spread), high=seconds * (1 + spread))
            written.append(a_record(case, bounds, probe=probe, quality=quality))
    return path


def test_runs_are_compared_by_pairs_within_probes_and_together(tmp_path):
    runs = [journal(tmp_path / "one", 1.0, 2.0), journal(tmp_path / "two", 1.1, 2.0), journal(tmp_path / "3", 1.0, 2.0)]
    cases = records_of(runs)
    found = spreads(cases)
    assert [each.probe for each in found] == ["baseline", EVERY_PROBE]
    whole = found[-1]
    assert (whole.cases, len(whole.distances), whole.clean) == (2, 6, 0.5)
    assert whole.at(1.0) == pytest.approx(0.1)
    assert whole.at(0.5) == pytest.approx(0.0)
    # The first benchmark's second run is not held by the others, nor holds them: 4 of 12 ordered pairs.
    assert whole.holds == pytest.approx(8 / 12)
    reported = findings_of_repeats(cases)
    assert [table.title for table in reported.tables] == [
        "How well figures come back",
        "Other figures of the same samples",
    ]
    said = [text.sentence(each) for each in reported.remarks]
    assert any("Figures of two of 3 runs differ by" in each for each in said)
