"""A test that pytest measured, as a probe to readers: a row for each parametrisation and implementation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.spec.findings import Findings, Remark, findings
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.rows import Column, Row, Rows, table


def probe_of_test(name: str) -> Probe:
    """The probe of the records that a test left. It has no cases: pytest alone runs a test."""

    def axes(*_: Any) -> Any:
        raise UserError(f"{name} is a test, which pytest measures: run `pytest {name} --suite-measure`.")

    return Probe(
        name=name,
        question="How long does what the test measures take?",
        topic="tests",
        title=name,
        axes=axes,
        sweep=lambda _: (),
        analyse=_analyse,
        has_items=False,
    )


def _analyse(rows: Rows) -> Findings:
    parameters = dict.fromkeys(field.name for row in rows for field in dataclasses.fields(row.parameters))
    columns = [
        Column("implementation", priority=2),
        *(Column(name, _parameter(name), priority=2) for name in parameters),
        Column("time", "reading.time", "duration", 2),
    ]
    if any(row.reading.flop for row in rows):
        columns.append(Column("rate", lambda row: row.reading.throughput if row.reading.flop else None, "TFLOP/s"))
    return findings(_beside_baselines(rows), [table("Measured by pytest", columns, rows)])


def _parameter(name: str) -> Callable[[Row], Any]:
    """Of that name; rows of one test may have different ones."""
    return lambda row: getattr(row.parameters, name, None)


def _beside_baselines(rows: Rows) -> Iterator[Remark]:
    for row in rows:
        baseline = row.reading.details.get("baseline")
        faster = _against(row, baseline) if baseline else None
        if faster is not None:
            said = "{implementation} is {faster} as fast as {baseline}{where}"
            where = "".join(f" {name}={value}" for name, value in vars(row.parameters).items())
            where = f" at{where}" if where else ""
            yield row.remark(said, effect="faster", faster=faster, baseline=baseline, where=where)


def _against(row: Row, baseline: str) -> Any:
    return row.against(implementation=baseline) if row.implementation != baseline else None
