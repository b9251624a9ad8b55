"""A study repeated: each row is reproduced, changed or undecided, by the suite's one verdict; so is the order."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Remark, Table
from pyperf_suite.planner.study.grid import StudyAxes, cases_of
from pyperf_suite.planner.study.results import find_study, findings_of_again, repeated
from pyperf_suite.runner.record import Case, Record
from tests.records import a_record, cells, metric

ONE, TWO, FOUR = cases_of(StudyAxes(data=(1, 2, 4)))


def run(*of: tuple[Case, list[float]]) -> list[Record]:
    return [
        a_record(case, metric(each, samples=[each] * 5), process=process, probe="study", identity={"kind": "cpu"})
        for case, seconds in of
        for process, each in enumerate(seconds)
    ]


STEADY = [1.0, 1.005, 0.995]


def times(seconds: float) -> list[float]:
    return [seconds * each for each in STEADY]


def test_each_row_is_reproduced_changed_or_undecided() -> None:
    old = run((ONE, times(1.0)), (TWO, times(0.6)), (FOUR, [0.3, 0.5, 0.4]))
    new = run((ONE, times(1.001)), (TWO, times(0.75)), (FOUR, [0.35, 0.6, 0.4]))
    rows = {each.now.case: each for each in repeated(old, new)}
    assert [rows[case].said for case in (ONE, TWO, FOUR)] == ["reproduced", "changed", "undecided"]
    change = rows[TWO].change
    assert change.value == pytest.approx(0.6 / 0.75 - 1)
    assert change.low < change.value < change.high < -0.05


def test_the_margin_decides_what_counts_as_before() -> None:
    old, new = run((ONE, times(1.0))), run((ONE, times(1.08)))
    (wide,), (narrow,) = repeated(old, new, 0.2), repeated(old, new, 0.01)
    assert (wide.said, narrow.said) == ("reproduced", "changed")


def test_of_single_experiments_nothing_is_decided() -> None:
    (row,) = repeated(run((ONE, [1.0])), run((ONE, [2.0])))
    assert row.said == "undecided"


def test_the_order_and_the_fastest_are_compared() -> None:
    old = run((ONE, times(1.0)), (TWO, times(0.6)), (FOUR, times(0.4)))
    same = list(findings_of_again("a-run", old, old, 0.05))
    moved = list(findings_of_again("a-run", old, run((ONE, times(1.0)), (TWO, times(0.3)), (FOUR, times(0.4))), 0.05))

    def ranking(found: list[Remark | Table]) -> Remark:
        return next(each for each in found if isinstance(each, Remark) and "moved" in each.values)

    assert (ranking(same).values["moved"], ranking(same).values["order"].value) == (0, pytest.approx(1.0))
    message = ranking(moved).values
    assert (message["moved"], message["now"], message["then"]) == (2, TWO.parameters.name, FOUR.parameters.name)
    assert message["order"].value == pytest.approx(0.5)
    table = next(each for each in moved if isinstance(each, Table))
    assert [row["verdict"] for row in cells(table)] == ["changed", "reproduced", "reproduced"]


def test_runs_that_share_no_configuration_say_so() -> None:
    (said,) = findings_of_again("a-run", run((ONE, STEADY)), run((TWO, STEADY)), 0.05)
    assert isinstance(said, Remark)
    assert said.kind == "caution"


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        ('{"plan_id": "x", "probes": ["baseline"], "profile": "quick", "asked": []}', "not measured by"),
        ('{"plan_id": "x", "probes": ["study"], "profile": "3 steps after 1", "asked": 7}', "start the study anew"),
        (
            '{"plan_id": "x", "probes": ["study"], "profile": "3 steps after 1", "asked": []}',
            "repeat it on that machine",
        ),
        ("[]", "plan_id"),
    ],
)
def test_what_cannot_be_repeated_is_refused(tmp_path: Path, manifest: str, sentence: str) -> None:
    folder = tmp_path / "another-machine" / "a-run"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(manifest)
    with pytest.raises(UserError, match=sentence):
        find_study(str(folder), tmp_path, "this-machine")
    with pytest.raises(UserError, match="There is no study"):
        find_study("latest", tmp_path, "this-machine")
