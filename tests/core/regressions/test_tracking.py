import datetime
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from pyperf_suite.cli.compare import track
from pyperf_suite.errors import UserError
from pyperf_suite.record.interval import Ratio
from pyperf_suite.regressions.pairs import ab, builds
from pyperf_suite.regressions.pairs.arms import Arm
from pyperf_suite.regressions.tracking import nominations
from pyperf_suite.regressions.tracking import track as search
from pyperf_suite.regressions.verdict import Judgement
from tests.core.repository import Repository
from tests.core.series import BEGIN, a_series, commit

MACHINE = "cpu-made-up-2c"


def run_ids(count: int) -> list[str]:
    days = (BEGIN + datetime.timedelta(days=index) for index in range(count))
    return [f"{day:%Y%m%dT%H%M%SZ}-0001" for day in days]


@pytest.fixture
def write_history(write_run):
    """Writes one run a day at these relative levels, each of its own commit unless it is named; 0.5 % noise."""

    def write(levels, commits=None, machine=MACHINE, **fields):
        noise = np.exp(0.005 * np.random.default_rng(0).standard_normal(len(levels)))
        for index, (run_id, level) in enumerate(
            zip(run_ids(len(levels)), 1e-3 * np.array(levels) * noise, strict=True)
        ):
            source = {"commit": commits[index] if commits else commit(index), "dirty": False}
            write_run(run_id, [float(level)], machine=machine, state={"source": source}, **fields)

    return write


@pytest.fixture
def message(results, monkeypatch, tmp_path):
    """Return the output of `track --json` with these arguments, and its exit code."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        done = CliRunner().invoke(track, ["--results", str(results), "--json", *arguments])
        if isinstance(done.exception, Exception) and not isinstance(done.exception, SystemExit):
            raise done.exception
        return json.loads(done.stdout), done.exit_code

    return run


@pytest.mark.parametrize(
    ("levels", "fields", "note"),
    [
        ([1.0, 1.0, 2.0, 2.0, 2.0], {}, "fewer than 6 points"),
        ([1.0] * 20 + [1.1] * 6, {"kind": "sentinel"}, "Not the code"),
        ([1.0] * 20 + [1.1] * 6, {"commits": ["a" * 40] * 26}, "Not the code"),
    ],
)
def test_too_few_points_and_what_slowed_down_without_the_code_are_notes(message, write_history, levels, fields, note):
    write_history(levels, **fields)
    data, code = message()
    assert (data["findings"], code) == ([], 3 if len(levels) == 5 else 0)  # nothing was searched
    assert any(note in each for each in data["notes"])


@pytest.mark.parametrize(("commits", "code"), [(["a"] * 20, 0), ([""] * 20, 3), (["a"] * 10 + ["b"] * 10, 3)])
def test_a_break_is_told_and_a_step_with_it_is_the_machines_where_the_code_stayed(message, write_run, commits, code):
    for index, run_id in enumerate(run_ids(20)):
        state = {"compiler": "g++ 12" if index < 10 else "g++ 13", "source": {"commit": 40 * commits[index]}}
        write_run(run_id, [1e-3 if index < 10 else 1.2e-3], state=state)
    data, found_code = message()
    assert (len(data["findings"]), found_code) == (1 if code else 0, code)
    assert sum("g++ 12 -> g++ 13" in note for note in data["notes"]) == (1 if code else 2)
    for finding in data["findings"]:
        assert "g++ 12 -> g++ 13: code and compiler cannot be told apart; `ab --old" in finding["sentence"]


@pytest.mark.parametrize("back", [0, 15, 30])
def test_runs_are_in_the_order_in_which_they_were_made_whatever_their_clock_said(message, write_run, back):
    for night, run_id in enumerate(run_ids(30)):
        clock = BEGIN + datetime.timedelta(days=night if night < 20 else night - back)
        state = {"source": {"commit": commit(night), "dirty": False}}
        write_run(run_id, [1e-3 if night < 20 else 1.08e-3], started_at=f"{clock.isoformat()}+00:00", state=state)
    data, code = message()
    [finding] = data["findings"]
    assert (code, finding["verdict"], round(finding["ratio"]["value"], 2)) == (3, "undecided", 1.08)
    assert (finding["details"]["commit_before"], finding["details"]["commit_after"]) == (commit(19), commit(20))
    # A day is that of the run, too.
    assert "since 2026-01-21T00:00Z" in finding["sentence"]
    assert (message("--since", "2026-01-21")[1], message("--since", "2026-01-22")[1]) == (3, 0)


@pytest.mark.parametrize("step", [1.0, 1.08])
@pytest.mark.parametrize("environments", ["patched", "in turn", "slower first", "rolled back"])
def test_a_step_is_found_whatever_the_machines_state_does(environments, step):
    days = np.arange(80)
    states = {
        "patched": days // 3,
        "in turn": days % 2,
        "slower first": 1 - days % 2,
        "rolled back": (days > 30) & (days < 38),
    }[environments]
    values = times((60, 1.0), (20, step)) * np.where((environments != "patched") & (states == 1), 1.2, 1.0)
    found = search([a_series(values, drivers=[str(state) for state in states])])
    places = [each.change.index for each in found.current]
    assert sorted(places) == ([] if step == 1.0 else [60, 61] if environments in ("in turn", "slower first") else [60])
    assert found.searched == 1


@pytest.mark.parametrize("upgraded", [20, 22])
@pytest.mark.parametrize(
    ("probe", "sides"),
    [
        ("bench.py", "--old numpy==2.4.6 --new numpy==2.5.0"),
        ("tile_wave", f"--old {commit(19)[:12]} --new {commit(20)[:12]}"),
    ],
)
def test_a_step_with_an_upgrade_is_undecided_between_both_and_the_command_is_named(upgraded, probe, sides):
    series = a_series(times((20, 1.0), (20, 1.08)))
    points = tuple(
        point._replace(state={**point.state, "packages": {"numpy": "2.4.6" if index < upgraded else "2.5.0"}})
        for index, point in enumerate(series.points)
    )
    [nomination] = search([replace(series, points=points, probe=probe)]).current
    finding = nomination.judgement()
    assert finding.verdict == "undecided"
    assert "numpy 2.4.6 -> 2.5.0: code and numpy cannot be told apart" in finding.sentence
    assert sides in finding.sentence
    [nomination] = search([replace(series, points=points, probe="test_it.py::test_a")]).current
    assert "code and numpy cannot be told apart." in nomination.sentence  # ab pairs no tests


def test_a_spill_in_the_newest_run_is_a_regression_without_any_rerun(message, write_run, make_record):
    for index, run_id in enumerate(run_ids(3)):
        exact = {"local_memory": 64 if index == 2 else 0}
        write_run(run_id, records=[make_record(run_id, exact=exact, probe="static_kernels")])
    data, code = message()
    assert [finding["verdict"] for finding in data["findings"]] == ["slower"]
    assert code == 1


@pytest.fixture
def rerun(monkeypatch):
    """Stands for the machine, the checkout and the pairs; `verdict` is what every rerun comes to."""
    state = SimpleNamespace(verdict="slower", compared=[], unknown=set())

    def compare(old, new, cases, device, rule, seed, **how):
        state.compared.append((old.commit, new.commit, [case.case_id for case in cases], rule(cases[0]).margin))
        ratio = Ratio(1.1, 1.09, 1.11)
        return [Judgement(c.label, c.probe, c.case_id, state.verdict, ratio, 0.01, "10 % so.", {}) for c in cases]

    def arm(_, revision):
        if revision in state.unknown:
            raise UserError(f"{revision!r} is no revision.")
        return Arm(revision, commit=revision)

    monkeypatch.setattr(ab, "compare_arms", compare)
    monkeypatch.setattr(builds, "revision_arm", arm)
    monkeypatch.setattr(builds, "find_checkout", lambda: None)
    monkeypatch.setattr("pyperf_suite.hardware.machine.identity", lambda device: SimpleNamespace(slug=MACHINE))
    return state


@pytest.mark.parametrize(("verdict", "code"), [("slower", 1), ("equivalent", 0), ("undecided", 3), ("failed", 3)])
def test_confirm_pairs_the_two_commits_and_its_verdict_counts(message, write_history, rerun, verdict, code):
    write_history([1.0] * 20 + [1.1] * 6)
    rerun.verdict = verdict
    data, found_code = message("--confirm", "--device", "cpu", "--margin", "2%")
    assert len(rerun.compared) == 1
    assert rerun.compared[0][:2] == (commit(19), commit(20))
    assert rerun.compared[0][3] == 0.02
    [finding] = data["findings"]
    assert finding["verdict"] == verdict
    assert finding["details"]["history"]["commit_after"] == commit(20)
    assert found_code == code


@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
def test_a_change_is_rerun_where_lines_of_its_journal_are_damaged(message, write_history, results, rerun):
    write_history([1.0] * 20 + [1.1] * 6)
    for path in results.glob("*/*/records.jsonl"):
        whole = path.read_text()
        path.write_text("garbage 0123456789abcdef\n" + whole + whole[:60])
    message("--confirm", "--device", "cpu")
    assert [commits for *commits, _, _ in rerun.compared] == [[commit(19), commit(20)]]


@pytest.mark.parametrize(
    ("commits", "machine", "unknown", "why"),
    [
        ([""] * 26, MACHINE, set(), "do not name their commits"),
        (None, "cpu-another-8c", set(), "measured on cpu-another-8c"),
        (None, MACHINE, {commit(19)}, "It was not rerun"),
    ],
)
def test_what_cannot_be_rerun_here_says_why(message, write_history, rerun, commits, machine, unknown, why):
    write_history([1.0] * 20 + [1.1] * 6, commits=commits, machine=machine)
    rerun.unknown = unknown
    data, code = message("--confirm", "--device", "cpu")
    assert rerun.compared == []
    assert why in data["findings"][0]["sentence"]
    assert code == 3


@pytest.mark.parametrize("here", ["", "benches"])
def test_confirm_pairs_a_bench_file_at_the_commits_of_its_own_repository(
    message, write_history, rerun, tmp_path, monkeypatch, here
):
    repository = Repository(tmp_path / "theirs")
    source = "import pyperf_suite as suite\n\n@suite.kernel()\ndef adds():\n    return suite.launch(sum, [1, 2])\n"
    for tag in ("old", "new"):
        repository.commit(tag, **{"benches/bench.py": f"{source}# {tag}\n"})
    old, new = (repository.git("rev-parse", tag) for tag in ("old", "new"))
    case = {"operator": "benches/bench.py:adds", "parameters": {}, "implementation": "sum"}
    commits = [old] * 20 + [new] * 6
    write_history([1.0] * 20 + [1.1] * 6, commits=commits, probe=case["operator"], case=case)
    monkeypatch.chdir(repository.root / here)
    data, code = message("--confirm", "--device", "cpu")
    assert [compared[:2] for compared in rerun.compared] == [(old, new)]
    assert [finding["verdict"] for finding in data["findings"]] == ["slower"]
    assert any("benches/bench.py differs between the sides" in note for note in data["notes"])
    assert code == 1


@pytest.mark.parametrize(("night", "is_rerun"), [(20, False), (25, True)])
def test_uncommitted_changes_stop_a_rerun_only_where_the_change_came(
    message, write_history, write_run, rerun, night, is_rerun
):
    write_history([1.0] * 20 + [1.1] * (night - 20), commits=[commit(19)] * 20 + [commit(20)] * (night - 20))
    for day, run_id in enumerate(run_ids(28)[night:]):
        write_run(run_id, [1.1e-3], state={"source": {"commit": commit(20), "dirty": day == 0}})
    data, _ = message("--confirm", "--device", "cpu")
    assert [compared[:2] for compared in rerun.compared] == [(commit(19), commit(20))] * is_rerun
    assert ("uncommitted changes, which are gone" in data["findings"][0]["sentence"]) is not is_rerun


@pytest.mark.parametrize("nights", [1, 2])
@pytest.mark.parametrize(("level", "spoilt"), [(10.0, 1.0), (1.1, 1.0), (1.4, 3.0)])
def test_the_newest_night_is_a_note_at_once_and_confirm_reruns_it(message, write_history, rerun, nights, level, spoilt):
    write_history([1.0] * 14 + [spoilt] + [1.0] * 15 + [level] * nights)
    data, code = message()
    assert (data["findings"], code) == ([], 0)
    [note] = [each for each in data["notes"] if each.startswith("Outside the range of its level: matmul")]
    assert f"2026-01-31T00:00Z, {nights} run" in note
    data, code = message("--confirm", "--device", "cpu")
    assert [commits[:2] for commits in rerun.compared] == [(commit(29), commit(30))]
    assert ([each["verdict"] for each in data["findings"]], code) == (["slower"], 1)


@pytest.mark.parametrize(
    ("levels", "commits"),
    [
        ([1.0] * 30 + [1.0], None),  # as before
        ([1.0, 1.0, 3.0] * 10 + [3.0], None),  # within the range of its level
        ([1.0] * 30 + [10.0], ["a" * 40] * 31),  # noted, but with no other commit to pair
        ([1.0] * 30 + [0.1], None),  # faster
    ],
)
def test_a_newest_night_like_others_or_without_a_slower_commit_is_not_rerun(
    message, write_history, rerun, levels, commits
):
    write_history(levels, commits)
    data, code = message("--confirm", "--device", "cpu")
    assert (rerun.compared, data["findings"], code) == ([], [], 0)
    noted = any("Outside the range of its level" in each for each in data["notes"])
    assert noted is (levels[-1] in (10.0, 0.1))


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.02])
@pytest.mark.parametrize(
    ("levels", "total"), [(1.005 ** np.arange(200), 2.58), (1.019 ** (np.arange(200) // 10), 1.43)]
)
def test_the_sum_of_small_steps_is_a_drift(levels, total, noise):
    values = 1e-3 * levels * np.exp(noise * np.random.default_rng(1).standard_normal(200))
    [nomination] = search([a_series(values)]).current
    finding = nomination.judgement()
    assert nomination.is_drift
    assert abs(math.log(finding.ratio.value / total)) < 0.05
    assert (finding.verdict, finding.details["commit_before"], finding.details["commit_after"]) == (
        "undecided",
        commit(0),
        commit(199),
    )
    passed = next(index for index, level in enumerate(levels) if level > 1.02)
    assert passed - 10 <= nomination.change.index <= passed + 15
    assert f"in small steps, beyond +2.0 % since {nomination.first.started_at[:16]}Z" in finding.sentence


def test_a_drift_is_accepted_by_the_day_since_which_it_counts(message, write_history):
    write_history(1.005 ** np.minimum(np.arange(80), 60))
    data, code = message()
    [finding] = data["findings"]
    assert code == 3
    assert "--since 2026-03-21 accepts it." in finding["sentence"]
    assert [message("--since", day)[1] for day in ("2026-01-10", "2026-03-03", "2026-03-21")] == [3, 0, 0]


@pytest.mark.parametrize(
    ("kernel", "sentinel", "code"),
    [(1.1, 1.1, 0), (1.1, 1.09, 0), (0.9, 0.9, 0), (1.1, 1.0, 3), (1.1, 1.04, 3), (1.1, 0.9, 3), (1.25, 1.1, 3)],
)
@pytest.mark.parametrize("pattern", [(), ("matmul",)])
def test_a_machine_that_slowed_by_as_much_is_not_the_code(message, write_history, kernel, sentinel, code, pattern):
    write_history([1.0] * 20 + [kernel] * 20)
    case = {"operator": "sentinel", "parameters": {}, "implementation": "native"}
    write_history([1.0] * 20 + [sentinel] * 20, kind="sentinel", probe="sentinel", case=case, case_id="5" * 16)
    data, found_code = message(*pattern)
    assert (len(data["findings"]), found_code) == (1 if code else 0, code)
    said = [*data["notes"], *(finding["sentence"] for finding in data["findings"])]
    told = [
        re.findall(r"matmul.* The sentinel, the same code in every run, took (.*) % with it", each) for each in said
    ]
    assert [float(each) for [each] in filter(None, told)] == pytest.approx(
        [100 * (sentinel - 1)] if sentinel != 1.0 else [], abs=0.5
    )


@pytest.mark.parametrize("noise", [0.003, 0.01])
def test_a_random_walk_is_no_drift(noise):
    generator = np.random.default_rng(0)
    found = [
        search([a_series(1e-3 * np.exp(noise * np.cumsum(generator.standard_normal(200))))]).current for _ in range(60)
    ]
    assert sum(map(bool, found)) <= 1


def times(*levels: tuple[int, float], seed: int = 0) -> np.ndarray:
    """Values of `count` points at each level, with noise of half a percent."""
    flat = np.concatenate([np.full(count, level) for count, level in levels])
    return 1e-3 * flat * np.exp(0.005 * np.random.default_rng(seed).standard_normal(len(flat)))


def test_a_change_that_was_made_good_again_is_undone_and_what_undid_it_is_not():
    slower, faster = nominations(a_series(times((20, 1.0), (10, 1.1), (10, 1.0))))
    assert (slower.undone, faster.undone) == (True, False)
    kept, worse = nominations(a_series(times((20, 1.0), (10, 1.1), (10, 1.2))))
    assert not kept.undone
    assert not worse.undone


def test_a_clock_that_fell_by_as_much_is_named():
    values = times((20, 1.0), (6, 1.1))
    [found] = nominations(a_series(values, clocks=[2e9] * 20 + [1.8e9] * 6))
    assert "clock changed by -10.0 %" in found.sentence
    [found] = nominations(a_series(values, clocks=[2e9] * 20 + [1.99e9] * 6))
    assert "clock" not in found.sentence
    [found] = nominations(a_series(values, clocks=[2e9] * 20 + [2.2e9] * 6))  # it would explain the opposite
    assert "clock" not in found.sentence
