"""The search for the largest batch ends on evidence, and the findings tell the machine that made the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.cuda_driver import Gpu
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.probes import checkpointing
from pyperf_suite.probes.checkpointing import COSTS, PROBE, REPAYS, CheckpointingAxes
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.spec.findings import Findings, Remark, Table
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.workloads.training.shape import Checkpointing

CPU = resolve("cpu")
AXES: CheckpointingAxes = replace(PROBE.axes("standard", CPU), workers=(1,), budget_mb=(100,))
FIXED_MB = 10.0
# What a sequence adds to the most that is held, and the rate relative to keeping all.
MB_EACH = {"none": 9.0, "selective": 6.0, "every:1": 2.5, "every:2": 3.0}
RATE = {"none": 1.0, "selective": 0.95, "every:1": 0.78, "every:2": 0.78}

Held = Callable[[str, int], float]


def straight(policy: str, batch: int) -> float:
    """Bytes on a line, as on a CPU."""
    return 1e6 * (FIXED_MB + MB_EACH[policy] * batch)


def in_blocks(policy: str, batch: int) -> float:
    """An allocator that wastes more the more there is: the line promises too much."""
    return straight(policy, batch) * (1.0 if batch <= 4 else 1.25)


def metric(unit: str, value: float) -> Metric:
    return Metric(unit, value, value, value, value, value, [value])


def a_record(case: Case, process: int, held: Held, rate_of_batch: Callable[[int], float], wobble: float) -> Record:
    p = case.parameters
    policy, peak = str(p.checkpointing), held(str(p.checkpointing), p.batch)
    fits = peak <= p.budget_bytes or not p.budget_bytes
    seconds = p.tokens / (1e5 * RATE[policy] * rate_of_batch(p.batch)) * (1 + wobble * (process - 1))
    bytes_ = {
        "kept": peak - 1e6 * FIXED_MB,
        "fixed": 1e6 * FIXED_MB,
        "peak": peak,
        "peak_of_one": held(policy, 1),
        "budget": float(p.budget_bytes),
    }
    return Record(
        run_id="made-up",
        kind="timing",
        case=case.to_json(),
        case_id=case.case_id,
        process=process,
        position=0,
        started_at="",
        outcome="ok" if fits else "unsupported",
        reason="" if fits else f"Batch {p.batch} does not fit: it is made up.",
        metrics={"time": metric("s", seconds)} | {n: metric("B", v) for n, v in bytes_.items()} if fits else {},
        work={"flop": 1, "bytes": 0},
        quality={"converged": True},
    )


def cells(table: Table) -> list[dict[str, object]]:
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def searched(
    axes: CheckpointingAxes = AXES,
    held: Held = straight,
    rate_of_batch: Callable[[int], float] = lambda batch: 1.0,
    wobble: float = 0.001,
) -> tuple[list[Record], int]:
    """Records of a whole run, and how many rounds its search took."""
    records, cases, rounds = [], list(PROBE.sweep(axes)), -1
    known = set()
    while cases:
        rounds += 1
        assert rounds < 12, "the search wanders"
        for case in cases:
            assert case.case_id not in known
            known.add(case.case_id)
            records += [a_record(case, process, held, rate_of_batch, wobble) for process in range(3)]
        cases = PROBE.follow_up(records)
    return records, rounds


def batches(records: list[Record], outcome: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for record in records:
        p = record.parsed_case().parameters
        if record.outcome == outcome:
            found.setdefault(str(p.checkpointing), set()).add(p.batch)
    return found


@pytest.mark.parametrize("held", [straight, in_blocks])
@pytest.mark.parametrize("start", [1, 4, 64])
def test_the_search_ends_at_the_last_batch_that_fits_and_has_seen_the_next_fail(held, start):
    records, _ = searched(replace(AXES, batch=(start,)), held)
    for policy, fitting in batches(records, "ok").items():
        last = max(fitting)
        assert held(policy, last) <= 100e6 < held(policy, last + 1)
        assert last + 1 in batches(records, "unsupported")[policy]


def test_on_a_straight_line_one_batch_is_measured_and_the_next_tried():
    records, rounds = searched()
    assert rounds == 2
    assert batches(records, "ok")["none"] == {4, 10}
    assert batches(records, "unsupported")["none"] == {11}


def test_a_model_that_never_fits_ends_at_a_batch_of_one():
    records, _ = searched(replace(AXES, budget_mb=(11,), checkpointing=(Checkpointing(),)))
    assert batches(records, "unsupported") == {"none": {4, 2, 1}}
    (row,) = cells(PROBE.findings(records).tables[0])
    assert (row["checkpointing"], row["largest batch"], row["the next one"]) == ("none", None, "does not fit")
    assert row["budget"] == Quantity(11e6, "MB")


def test_without_a_budget_nothing_is_searched_for():
    records, rounds = searched(replace(AXES, budget_mb=(0,)))
    assert rounds == 0
    found = PROBE.findings(records)
    assert {each.claim for each in found.verdicts} == {COSTS}
    assert [table.title for table in found.tables] == ["Steps by checkpointing and batch"]


def test_a_batch_that_failed_ends_its_search():
    records, _ = searched()
    broken = [replace(r, outcome="failed", reason="boom", metrics={}) for r in records[:1]]
    assert PROBE.follow_up(broken) == []


def test_the_cost_is_judged_and_compared_with_what_flops_alone_would_give():
    found = PROBE.findings(searched()[0])
    costs = {each.told.values["checkpointing"]: each for each in found.verdicts if each.claim == COSTS}
    assert set(costs) == {"every:1", "every:2"}
    every = costs["every:1"]
    assert (every.measured.value, every.outcome) == (pytest.approx(0.78), "holds")
    told = every.told.values
    assert (told["batch"], told["kept"], told["kept_without"]) == (4, Quantity(10e6, "MB"), Quantity(36e6, "MB"))
    assert told["by_flop"].predicted
    assert 0.75 <= told["by_flop"].value < 0.8
    (selective,) = (each for each in found.remarks if isinstance(each, Remark) and each.effect)
    assert (selective.values["checkpointing"], selective.values["by_flop"].value) == ("selective", 1)
    assert selective.values["measured"].value == pytest.approx(0.95)
    peaks = {(row["checkpointing"], row["batch"]): row["peak"] for row in cells(found.tables[1])}
    assert (peaks["every:1", 4], peaks["none", 4]) == (Quantity(20e6, "MB"), Quantity(46e6, "MB"))


def test_the_largest_batches_are_told_by_policy():
    rows = cells(PROBE.findings(searched()[0]).tables[0])
    assert {row["checkpointing"]: row["largest batch"].value for row in rows} == {
        "none": 10,
        "selective": 15,
        "every:1": 36,
        "every:2": 30,
    }
    assert {row["the next one"] for row in rows} == {"does not fit"}


def test_a_search_that_has_not_ended_does_not_say_that_the_next_batch_does_not_fit():
    records = [record for record in searched()[0] if record.outcome == "ok"]
    assert {row["the next one"] for row in cells(PROBE.findings(records).tables[0])} == {None}


@pytest.mark.parametrize(
    ("rate_of_batch", "policy", "gain", "outcome", "fastest"),
    [
        (lambda batch: 1.0, "selective", 0.95, "does not hold here", ("none", 10)),
        (lambda batch: batch**0.5, "every:1", 0.78 * 3.6**0.5, "holds", ("every:1", 36)),
    ],
    ids=["larger batches are no faster", "larger batches are faster"],
)
def test_the_fastest_policy_within_the_budget_is_the_advice(rate_of_batch, policy, gain, outcome, fastest):
    found = PROBE.findings(searched(rate_of_batch=rate_of_batch)[0])
    (repaid,) = (each for each in found.verdicts if each.claim == REPAYS)
    assert (repaid.measured.value, repaid.outcome) == (pytest.approx(gain), outcome)
    assert (repaid.told.values["checkpointing"], repaid.told.values["plain"]) == (policy, 10)
    advice = found.remarks[-1].values
    assert (advice["checkpointing"], advice["batch"]) == fastest
    assert advice["budget"] == Quantity(100e6, "MB")


def test_processes_that_disagree_leave_it_undecided():
    records, _ = searched(replace(AXES, checkpointing=tuple(map(Checkpointing.parse, ("none", "every:1")))))
    shaken = [
        replace(r, metrics={**r.metrics, "time": metric("s", r.metrics["time"].value * (1 + 0.5 * r.process))})
        if r.outcome == "ok" and str(r.parsed_case().parameters.checkpointing) == "every:1"
        else r
        for r in records
    ]
    assert {each.claim: each.outcome for each in PROBE.findings(shaken).verdicts}[COSTS] == "undecided"


def test_every_step_has_a_row_and_the_figure_a_line_at_the_budget():
    records, _ = searched()
    found = PROBE.findings(records)
    rows = {(row["checkpointing"], row["batch"]): row for row in cells(found.tables[1])}
    assert rows["none", 10]["batch after it"] == "does not fit"
    assert rows["none", 4]["batch after it"] is None
    assert rows["every:1", 4]["relative to none"].value == pytest.approx(0.78)
    assert rows["none", 4]["tokens"].value == pytest.approx(1e5)
    assert len(rows) == sum(len(each) for each in batches(records, "ok").values())
    panel = found.figures[0].rows[0][0]
    assert (panel.strong_edges, panel.x_unit) == ((100e6,), "MB")
    assert {series.label: series.x[0] for series in panel.series} == {
        policy: 1e6 * (FIXED_MB + 4 * each) for policy, each in MB_EACH.items()
    }
    none = next(series for series in panel.series if series.label == "none")
    assert none.y[0] == pytest.approx(1e5)
    assert none.low[0] < none.y[0] < none.high[0]


def test_one_policy_alone_is_not_drawn():
    assert PROBE.findings(searched(replace(AXES, checkpointing=(Checkpointing(),)))[0]).figures == ()


def test_nothing_measured_is_nothing_said():
    assert PROBE.findings([]) == Findings()


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_every_profile_has_cases_that_can_be(profile):
    cases = PROBE.cases(profile, CPU)
    assert {"none", "every:1"} <= {str(case.parameters.checkpointing) for case in cases}
    assert len(cases) == len({case.case_id for case in cases})


def test_a_gpu_is_searched_up_to_its_memory(monkeypatch):
    gpu = Gpu(0, "made up", "GPU-0", (9, 0), 132, 80 << 30)
    monkeypatch.setattr(checkpointing, "gpus", lambda: (gpu,))
    budgets = {case.parameters.budget_bytes for case in PROBE.cases("standard", Device("cuda"))}
    assert len(budgets) == 1
    assert 78 << 30 < budgets.pop() < 80 << 30


@pytest.mark.parametrize(
    ("axis", "value", "sentence"),
    [
        ("batch", "0", "batch is at least 1"),
        ("budget_mb", "-1", "budget_mb is at least 0"),
        ("checkpointing", "some", "none, every:K or selective"),
        ("hidden", "130", "cannot be divided"),
    ],
)
def test_an_axis_that_cannot_be_says_so(axis, value, sentence):
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("quick", CPU, {axis: value})
