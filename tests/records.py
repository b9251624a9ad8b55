"""Records that tests make up, and readers of what was found in them: `from tests.records import a_record, records`."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyperf_suite.findings.data import Claim, ClaimVerdict, Findings, Remark, Table
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.measure.sampling import Measurement, sampling, to_the_end
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import Journal
from pyperf_suite.record.record import Metric, Record
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.results import create_run
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.matmul import MatmulParameters


def metric(
    value: float, unit: str = "s", low: float | None = None, high: float | None = None, samples: Iterable[Any] = ()
) -> Metric:
    """A median without spread, or from `low` to `high`; one sample unless `samples` are given."""
    low, high = value if low is None else low, value if high is None else high
    return Metric(unit, value, low, high, low, high, list(samples) or [value])


def a_record(
    case: Case,
    seconds: float | Metric | None = 1e-3,
    *,
    metrics: Mapping[str, float | Metric] | None = None,
    details: Mapping[str, Any] | None = None,
    outcome: str = "ok",
    **fields: Any,
) -> Record:
    """The record that a worker leaves of one trial: `a_record(case, 2e-3, process=1, metrics={"saved": 4096})`.

    `metrics` are added to the time; plain numbers become metrics without spread. `details` are those of the kernel.
    A failed or unsupported record has no metrics and a reason, and so has one without `seconds` no time. `fields` are
    those of `Record`, and replace the usual ones.
    """
    measured = {} if seconds is None else {"time": seconds}
    measured |= metrics or {}
    usual: dict[str, Any] = {
        "run_id": "made-up",
        "kind": "timing",
        "case": case.to_json(),
        "case_id": case.case_id,
        "process": 0,
        "position": 0,
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "outcome": outcome,
        "reason": "" if outcome == "ok" else "a made-up reason",
        "metrics": {name: each if isinstance(each, Metric) else metric(each) for name, each in measured.items()}
        if outcome == "ok"
        else {},
        "kernel": {"name": case.implementation, "path": "", "details": dict(details or {})},
        "quality": {"converged": True},
    }
    if "work" not in fields:
        work = find_workload(case.operator).work(case.parameters)
        usual["work"] = {"flop": work.flop, "bytes": work.bytes}
    return Record(**usual | fields)


def a_product(
    m: int,
    n: int = 0,
    k: int = 0,
    implementation: str = "native",
    schedule: str = "data_parallel@1",
    tile: str = "",
    mode: str = "burst",
    **fields: Any,
) -> Case:
    """A case of a product, square unless n and k are given: `a_product(64, schedule="library@1", dtype="bfloat16")`."""
    parameters = MatmulParameters(
        m, n or m, k or m, Schedule.parse(schedule), Tile.parse(tile) if tile else None, **fields
    )
    return Case("matmul", parameters, implementation, mode=mode)


# A small case of the CPU, and a plan of it alone.
SMALL = a_product(64, schedule="persistent@1", tile="32x32x32")
PLAN = Plan((PlannedCase("tile_wave", SMALL),), QUICK, resolve("cpu"))


def a_run(results: Path, run_id: str | None = None, timestamps: Sequence[str] = ("2026-01-01T00:00:00+00:00",)) -> Path:
    """The folder of a run of that plan, with a record for each timestamp."""
    run = create_run(results, identity(PLAN.device), PLAN, run_id)
    with Journal(run.records_path) as journal:
        for number, moment in enumerate(timestamps):
            named = {"run_id": run.run_id, "probe": "tile_wave", "process": number, "position": number}
            journal.append(a_record(SMALL, 1e-3, started_at=moment, **named))
    return run.path


def a_journal(run: Path, records: Iterable[Record], **manifest: Any) -> Path:
    """The folder of a run, made with that manifest and these records."""
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"plan_id": "0", **manifest}))
    with Journal(run / "records.jsonl") as journal:
        for each in records:
            journal.append(each)
    return run


def records(
    cases: Iterable[Case],
    seconds: float | Callable[[Case], float | None] = 1e-3,
    *,
    processes: int | Iterable[int] = 3,
    wobble: float = 0.0,
    noise: float = 0.0,
    **fields: Any,
) -> list[Record]:
    """A record of every case in every process, in the order of a run: `records(cases, seconds_of_case, wobble=0.001)`.

    Process p takes (1 + wobble·p) times as long, and each time has log-normal noise of that size, the same in each
    test. A field given as a function is called with the case: `details=lambda case: {"slots": 2}`.
    """
    random, made_records = np.random.default_rng(0), []
    cases = list(cases)
    for process in range(processes) if isinstance(processes, int) else processes:
        for case in cases:
            value = seconds(case) if callable(seconds) else seconds
            if value is not None:
                value *= (1 + wobble * process) * float(np.exp(noise * random.standard_normal()))
            own = {name: field(case) if callable(field) else field for name, field in fields.items()}
            made_records.append(a_record(case, value, **{"process": process, "position": len(made_records)} | own))
    return made_records


def cells(table: Table) -> list[dict[str, Any]]:
    """The lines of a table by the names of its columns, the first of each name."""
    names = [column.name for column in table.columns]
    return [{name: row[names.index(name)] for name in names} for row in table.rows]


def lines(findings: Findings, title: str, **values: object) -> list[dict[str, Any]]:
    """The lines of the only table whose title begins so, that have these values."""
    (table,) = [each for each in findings.tables if each.title.startswith(title)]
    return [line for line in cells(table) if values.items() <= line.items()]


def verdicts(findings: Findings, claim: Claim) -> list[ClaimVerdict]:
    """Verdicts on a claim, in order."""
    return [each for each in findings.verdicts if each.claim == claim]


def judged(findings: Findings, claim: Claim) -> ClaimVerdict:
    """The only one."""
    (verdict,) = verdicts(findings, claim)
    return verdict


def remarks(findings: Findings, *names: str, kind: str | None = None, **values: object) -> list[Remark]:
    """Remarks that have values of all these names, and these values, and are of that kind if one is given."""
    found = [each for each in findings.remarks if isinstance(each, Remark) and kind in (None, each.kind)]
    return [each for each in found if set(names) <= set(each.values) and values.items() <= dict(each.values).items()]


def printed_lines(document: Mapping[str, Any], title: str) -> list[dict[str, Any]]:
    """The same of the findings that a command printed as JSON; quantities by their value."""
    (table,) = [each for probe in document["probes"] for each in probe["tables"] if each["title"].startswith(title)]
    names = [column["name"] for column in table["columns"]]
    values = [[cell["value"] if isinstance(cell, dict) else cell for cell in row] for row in table["rows"]]
    return [dict(zip(names, row, strict=True)) for row in values]


def printed_values(document: Mapping[str, Any], *names: str) -> list[dict[str, Any]]:
    """Values of the remarks that have all these names, of the findings that a command printed as JSON."""
    message = [each["values"] for probe in document["probes"] for each in (*probe["cautions"], *probe["remarks"])]
    return [
        {name: each["value"] if isinstance(each, dict) else each for name, each in values.items()}
        for values in message
        if set(names) <= set(values)
    ]


def measure(*arguments: Any, **how: Any) -> Measurement:
    """Measure by `sampling` where nobody else has a turn."""
    return to_the_end(sampling(*arguments, **how))
