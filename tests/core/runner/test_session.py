from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import Effort, Profile
from pyperf_suite.runner.results import create_run
from pyperf_suite.runner.session import CLOSING_S, Session
from pyperf_suite.runner.workers import Workers
from pyperf_suite.workloads.workload import AUDIT_VARIABLE
from tests.records import a_product

CPU = resolve("cpu")
EFFORT = Effort(SteadyRule(min_time_s=0.0, time_cap_s=0.01), StopRule(time_cap_s=0.01))
TWO_PROCESSES = Profile("quick", 2, EFFORT, "for tests")


def a_plan(sizes: tuple[int, ...] = (16, 33), profile: Profile = TWO_PROCESSES) -> Plan:
    cases = [a_product(size, schedule="persistent@1", tile="32x32x32") for size in sizes]
    return Plan(tuple(PlannedCase("tile_wave", case) for case in cases), profile, CPU)


class InThisProcess(Workers):
    """Workers that measure without a process of their own."""

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, object]:
        return measure_case(case, effort, CPU)

    def close(self) -> None:
        return


class Instant(Workers):
    """Workers whose trials take as long as the test says, by the test's own clock."""

    def __init__(self, seconds: float = 1.0, outcome: str = "unsupported") -> None:
        self.now_s = 0.0
        self.seconds, self.outcome = seconds, outcome
        self.trials: list[tuple[int, str]] = []
        self.left = 1_000  # trials before someone interrupts

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, object]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.now_s += self.seconds
        self.trials.append((process, case.case_id))
        return {"outcome": self.outcome, "reason": "a double"}

    def close(self) -> None:
        return


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Opens a session of that plan over instant workers; the sentinel is left out."""
    monkeypatch.setattr(Session, "_measure_sentinel", lambda *_: None)

    def opened(plan: Plan, workers: Instant, **options: float) -> Session:
        folder = create_run(tmp_path, identity(CPU), plan)
        return Session(plan, folder, workers=[workers], clock=lambda: workers.now_s, **options).open()

    return opened


@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
@pytest.mark.parametrize(("outcome", "damaged"), [("failed", False), ("unsupported", True)])
def test_a_trial_that_failed_or_whose_record_is_damaged_is_made_again_on_resume(begin, outcome, damaged):
    plan = a_plan(sizes=(16,), profile=Profile("quick", 1, EFFORT, "for tests"))
    session = begin(plan, Instant(seconds=2.5, outcome=outcome))
    (record,) = session.measure(plan.cases[0])
    assert (record.outcome, record.reason, record.trial_s) == (outcome, "a double", 2.5)
    session.close()
    path = session.folder.records_path
    if damaged:
        path.write_bytes(path.read_bytes().replace(b'"outcome"', b'"outcom"', 1))
    with closing(Session(plan, session.folder, workers=[Instant()]).open()) as again:
        assert not again.is_finished(plan.cases[0])


def test_a_run_is_not_resumed_with_other_checks_than_its_kernels_had(begin, monkeypatch):
    plan = a_plan(sizes=(16,), profile=Profile("quick", 1, EFFORT, "for tests"))
    workers = Instant()
    workers.measure = lambda *_: {"outcome": "unsupported", "reason": "a double", "verification": {"audited": False}}
    session = begin(plan, workers)
    session.measure(plan.cases[0])
    session.close()
    with closing(Session(plan, session.folder, workers=[Instant()]).open()) as again:
        assert again.is_finished(plan.cases[0])
    monkeypatch.setenv(AUDIT_VARIABLE, "1")
    with (
        closing(Session(plan, session.folder, workers=[Instant()])) as again,
        pytest.raises(UserError, match="was measured without --audit"),
    ):
        again.open()


def test_experiments_one_at_a_time_can_be_added_to_and_are_measured_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Session, "_measure_sentinel", lambda *_: None)

    def steps(count, processes):
        effort = Effort(SteadyRule(launches=1), StopRule.exactly(count, 0.1))
        return Profile(f"{count} steps", processes, effort, "steps")

    plan = a_plan(profile=steps(4, 1))
    folder = create_run(tmp_path, identity(CPU), plan)
    with_more = a_plan(profile=steps(4, 2))
    assert with_more.plan_id == plan.plan_id
    assert a_plan(profile=steps(5, 1)).plan_id != plan.plan_id
    for longer in (plan, with_more):
        session = Session(longer, folder, workers=[InThisProcess()]).open()
        for process in range(longer.profile.processes):
            session.measure_trial(longer.cases[0], process)
        session.close()
    timing = [record for record in read_journal(folder.records_path) if record.kind == "timing"]
    assert [record.process for record in timing] == [0, 1]
    assert [len(record.metrics["time"].samples) for record in timing] == [4, 4]
    assert all(record.sampling["warmup_launches"] == 1 and record.quality["converged"] for record in timing)


def test_a_budget_ends_a_run_in_order_and_what_it_left_out_can_be_resumed(begin):
    plan, workers = a_plan(sizes=(8, 16, 24, 32)), Instant(seconds=5.0)
    session = begin(plan, workers, budget_s=25 + CLOSING_S)
    assert session.beyond_budget(session.trials()) == ""
    session.measure_trials(session.trials(), lambda *_: None)
    assert workers.now_s <= 25
    assert len(workers.trials) == 5, "four cases once and one twice"
    assert session.left_out == {(planned, 1) for planned in plan.cases[1:]}
    assert session.cut_short
    session.close()
    again = Session(plan, session.folder, workers=[workers]).open()
    again.measure_trials(again.trials(), lambda *_: None)
    assert len(workers.trials) == 8
    assert len(set(workers.trials)) == 8
    assert not again.cut_short
    again.close()


def test_what_a_budget_is_expected_to_leave_out_is_named_before_the_first_trial(begin, monkeypatch):
    plan = a_plan(sizes=(8, 16, 24, 32, 40, 48))
    for budget_s, left in ((60 + CLOSING_S, 0), (21 + CLOSING_S, 4), (1.0, 6)):
        session = begin(plan, Instant(seconds=5.0), budget_s=budget_s)
        monkeypatch.setattr(session.outlook, "trial_s", lambda *_: 10.0)
        said = session.beyond_budget(session.trials())
        assert (f"leave out {left} of 6 cases" in said) == bool(said) == bool(left)
        if left:
            assert all(planned.case.label in said for planned in plan.cases[6 - left :][:3])
            assert f"and {left - 3} more" in said
        session.close()


def test_what_another_run_wrote_until_the_journal_was_ours_is_not_measured_again(begin, tmp_path, monkeypatch):
    plan, workers = a_plan(sizes=(8, 16)), Instant()
    first = begin(plan, workers)
    first.measure_trial(plan.cases[0], 0)
    late = Session(plan, first.folder, workers=[workers])  # asked to resume while the first run still writes
    first.measure_trial(plan.cases[1], 0)
    first.close()
    late.open()
    late.measure_trials(late.trials(), lambda *_: None)
    late.close()
    assert len(workers.trials) == len(set(workers.trials)) == 4


def test_the_last_sentinel_is_measured_by_workers_that_have_done_nothing_where_there_are_such(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Session, "_measure_sentinel", lambda session, workers: asked.append(workers))
    for workers in ([Instant(), Instant()], [Instant()]):
        asked.clear()
        Session(a_plan(), create_run(tmp_path, identity(CPU), a_plan()), workers).open().finish()
        assert asked == [workers[0], workers[-1]]
