"""The tests that a session measures: what fresh processes said of each, told to the test when it runs."""

from __future__ import annotations

import datetime
import functools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.api import Launch
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.pytests.children import Children, following
from pyperf_suite.pytests.node import Node, nodes_of
from pyperf_suite.pytests.replay import Call, Timing, extra_info
from pyperf_suite.pytests.suite import Result, end_test
from pyperf_suite.runner.outlook import Progress
from pyperf_suite.runner.plan import PlannedCase
from pyperf_suite.runner.profiles import Profile
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.worker_process import WorkerLost
from pyperf_suite.spec.rows import readings


@dataclass(frozen=True)
class Trial:
    """A test in one fresh process: what it measured, and how it failed there, empty where it did not.

    `lost` says why the process gave no answer.
    """

    process: int
    records: Sequence[Record]
    failure: str = ""
    lost: str = ""


class MeasuredTests:
    """Chosen tests of a session, measured before any of them runs in it: never do two sessions run at a time.

    Fresh processes come one after the other, and each runs all the tests, so that its start is paid once.
    """

    def __init__(self, config: pytest.Config, profile: Profile, items: Iterable[pytest.Item]) -> None:
        self._nodes = nodes_of(items)
        self._processes = profile.processes
        device, deadline_s = resolve(config.getoption("suite_device")), config.getoption("suite_deadline")
        if not deadline_s > 0:
            raise UserError(f"--suite-deadline {deadline_s:g} was asked for: a test takes longer than no time.")
        self._children = Children(config, device, profile.effort, deadline_s)
        self._trials: dict[str, list[Trial]] = {nodeid: [] for nodeid in self._nodes}
        self._left_out: set[str] = set()
        self._records_path = Path()

    @property
    def planned(self) -> list[PlannedCase]:
        """A case for each test, as a plan names it: what it measures, and under which names, is known only then."""
        return [node.planned() for node in self._nodes.values()]

    @property
    def complete(self) -> bool:
        """Whether all tests were run by all processes that they have."""
        return not self._left_out

    def measure(self, session: Session, show: Progress) -> None:
        """Run all tests in each process in turn, and keep what they measured in the session's journal."""
        self._records_path = session.folder.records_path
        held = _held(session.records)
        visits = [(node, process) for process in range(self._processes) for node in self._nodes.values()]
        done = 0
        for process in range(self._processes):
            for node, after in following(self._to_run(process, held)):
                if list(session.within_budget([(node.planned(), process)])):
                    self._trials[node.nodeid].append(self._trial(session, node, after, process))
                else:
                    self._left_out.add(node.nodeid)
                done += 1
                left_s = functools.partial(session.seconds_left, [(each.planned(), p) for each, p in visits[done:]])
                show(done, len(visits), node.nodeid, left_s)
            self._children.end()

    def _to_run(self, process: int, held: dict[tuple[str, str, int], list[Record]]) -> list[Node]:
        """The tests that this process runs: not those that a resumed run holds, nor those that cost one before."""
        wanted = []
        for node in self._nodes.values():
            records = held.get(_key(node.name, asdict(node.parameters), process))
            if records:
                self._trials[node.nodeid].append(Trial(process, records))
            elif not any(trial.lost for trial in self._trials[node.nodeid]):
                wanted.append(node)
        return wanted

    def _trial(self, session: Session, node: Node, after: Node | None, process: int) -> Trial:
        began_s, now = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)
        try:
            said = self._children.ask(node, after)
        except WorkerLost as lost:
            reason = str(lost).replace("The worker process", "The fresh process in which it was measured")
            record = session.record(node.planned(), process, {"outcome": "failed", "reason": reason})
            return Trial(process, [record], lost=reason)
        seconds = time.monotonic() - began_s
        session.outlook.learn(node.planned(), process, seconds)
        failure = "" if said["judged_time"] and said["answers"] else said["reason"]
        records = []
        for name, answer in said["answers"].items():
            if failure and answer["outcome"] == "ok":
                answer |= {"outcome": "failed", "reason": f"The test failed after it was measured: {failure}"}
                answer["verification"] |= {"passed": False, "message": failure}
            answer["started_at"] = now.isoformat(timespec="milliseconds")
            share_s = seconds / len(said["answers"])
            records.append(session.record(node.planned(name), process, answer, seconds=share_s))
        return Trial(process, records, failure)

    def time(self, nodeid: str, call: Call) -> Timing:
        """What all processes measured of the test's call, which is made here once, untimed."""
        trials = self._told(nodeid)
        records = [record for trial in trials for record in trial.records if "time" in record.metrics]
        result = call.once()
        if not records:
            why = next(
                (trial.failure for trial in trials if trial.failure), "the test did not come to measure anything"
            )
            pytest.fail(f"The function returned here, but not where it was to be measured: {why}", pytrace=False)
        samples = [sample for record in records for sample in record.kept_seconds]
        return Timing(samples, extra_info(records, self._records_path), result)

    def measured(self, nodeid: str, launch: Launch) -> tuple[Result, Sequence[float], Mapping[str, Any]]:
        """What all processes measured of each implementation; the function is not called here.

        Fails the test where one of them was wrong.
        """
        trials = self._told(nodeid)
        records = [record for trial in trials for record in trial.records]
        for record in records:
            if record.outcome != "ok":
                end_test(record.outcome, f"{record.case['implementation']}: {record.reason}")
        by_name = {reading.case.implementation: reading for reading in readings(records)}
        if set(by_name) != set(launch.functions):
            why = next(
                (trial.failure for trial in trials if trial.failure), "the test did not come to measure it there"
            )
            pytest.fail(f"Nothing was measured in the fresh processes: {why}", pytrace=False)
        first = next(iter(launch.functions))
        own = [record for record in records if record.case["implementation"] == first]
        samples = [sample for record in own for sample in record.kept_seconds]
        info = extra_info(own, self._records_path)
        if len(by_name) > 1:
            info["seconds"] = {name: reading.seconds for name, reading in by_name.items()}
        return Result(by_name, launch.bytes, first, launch.baseline), samples, info

    def _told(self, nodeid: str) -> list[Trial]:
        """The trials of a test. Skips one that the budget left out, and fails one that cost a process."""
        trials = self._trials[nodeid]
        lost = next((trial for trial in trials if trial.lost), None)
        if lost is not None:
            pytest.fail(lost.lost, pytrace=False)
        if not trials and nodeid in self._left_out:
            pytest.skip("the budget was used up before this test was measured")
        return trials

    def failed_elsewhere(self, nodeid: str) -> str:
        """How a test failed in a fresh process, as a sentence; empty where it did not."""
        for trial in self._trials.get(nodeid, ()):
            if trial.failure:
                which = f"process {trial.process + 1} of the {self._processes} that measured it"
                return f"The test passes here, but it failed in {which}: {trial.failure}"
        return ""

    def close(self) -> None:
        """End what still runs; a second call does nothing."""
        self._children.close()


def _held(records: Iterable[Record]) -> dict[tuple[str, str, int], list[Record]]:
    """What a resumed run holds of tests, but for what failed."""
    found: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        if record.outcome == "ok" and record.kind == "timing":
            found.setdefault(_key(record.probe, record.case["parameters"], record.process), []).append(record)
    return found


def _key(name: str, parameters: Any, process: int) -> tuple[str, str, int]:
    return name, json.dumps(parameters, sort_keys=True), process
