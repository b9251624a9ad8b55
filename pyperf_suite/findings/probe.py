"""A probe as data: its question, its axes by profile, and the columns and claims that make findings of its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import replace_axes
from pyperf_suite.findings.data import Claim, ClaimVerdict, Findings, Remark, findings, remark
from pyperf_suite.findings.rows import Column, Row, Rows, getter, rows_of, table
from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record

UNLISTED = "{noisy} of {cases} cases were never seen undisturbed: what {count} sentences say of them is not listed"


@dataclass(frozen=True)
class RowTable:
    """A table with a line for each row that `where` holds for."""

    title: str
    columns: Sequence[Column]
    where: Callable[[Row], bool] | str = ""


@dataclass(frozen=True)
class RowClaim:
    """A claim, tried on each row that `where` holds for.

    `message` is a sentence on the row as `remark` fills it, with `{measured}`, which is the row's `ratio`. Rows without
    a ratio, because what they are compared with was not measured, say nothing. As text, `ratio` and `where` name what
    a row has.
    """

    claim: Claim
    message: str
    ratio: Callable[[Row], Ratio | Quantity | float | None] | str
    where: Callable[[Row], bool] | str = ""
    unit: str = "x"

    def verdicts(self, rows: Rows) -> Iterable[ClaimVerdict]:
        for row in rows.where(getter(self.where)):
            ratio = getter(self.ratio)(row)
            if ratio is not None:
                yield self.claim.judge(self.message, ratio, row, unit=self.unit)


@dataclass(frozen=True)
class Probe:
    """One question to a machine. Its module in `probes/` has it as PROBE and is found by that.

    `axes(profile, device)` gives a frozen dataclass of tuples, which `sweep` crosses into cases. What its records say
    are `claims` and `tables` over rows, sorted by `order`, and what `analyse(rows)` computes of its own, which
    comes first. `computed` is what each row has besides its own, which columns and templates then name.
    `follow_up(records)` names cases worth measuring after these records, as a bisection does; it is called again
    with what they gave, until it names nothing new. `shaped(axes, name, device)` are the axes for a model that guides
    train, requested as `shape=NAME`, which then fixes the axes `fixed_by_shape`. `workload` is what its cases are of
    where the suite has no such. A run that names no probe leaves out what is not timed; pytest, what has no items.
    """

    name: str
    question: str
    topic: str
    axes: Callable[[str, Device], Any]
    sweep: Callable[[Any], Iterable[Case]]
    title: str = ""
    computed: Mapping[str, Callable[[Row], Any]] = field(default_factory=dict)
    order: Callable[[Row], Any] | None = None
    tables: Sequence[RowTable] = ()
    claims: Sequence[RowClaim] = ()
    analyse: Callable[[Rows], Findings] | None = None
    follow_up: Callable[[Sequence[Record]], list[Case]] | None = None
    shaped: Callable[[Any, str, Device], Any] | None = None
    fixed_by_shape: Sequence[str] = ()
    group: Callable[[Case], str] = lambda case: f"{case.operator} {case.implementation}"
    workload: Any = None
    is_timed: bool = True
    has_items: bool = True

    @property
    def heading(self) -> str:
        return self.title or self.name.replace("_", " ").capitalize()

    def cases(self, profile: str, device: Device, overrides: Mapping[str, str] | None = None) -> list[Case]:
        """The cases of a profile, with some axes replaced. Raises UserError for an axis or value that cannot be."""
        overrides, axes = dict(overrides or {}), [self.axes(profile, device)]
        if "shape" in overrides and self.shaped:
            names = overrides.pop("shape").split(",")
            if both := [name for name in self.fixed_by_shape if name in overrides]:
                raise UserError(
                    f"{both[0]}={overrides[both[0]]} was requested with shape={','.join(names)}, which fixes it: leave "
                    "one of them out."
                )
            axes = [self.shaped(axes[0], name.strip(), device) for name in names]
        requested = (case for each in axes for case in self.sweep(replace_axes(each, overrides)))
        cases = list({case.case_id: case for case in requested}.values())
        if not cases:
            words = ", ".join(f"{name}={values}" for name, values in (overrides or {}).items())
            raise UserError(f"{self.name} has no case with {words}: leave an axis out to get the profile's own.")
        for case in cases:
            case.validate()
        return cases

    def findings(self, records: Sequence[Record]) -> Findings:
        """Return the findings of these records, which are the probe's own."""
        rows = rows_of(records, self.order, self.computed)
        own = findings(
            (claim.verdicts(rows) for claim in self.claims),
            (table(each.title, each.columns, rows.where(getter(each.where))) for each in self.tables),
        )
        result = self.analyse(rows) + own if self.analyse else own
        noisy = sum(row.reading.is_noisy for row in rows)
        if 2 * noisy <= len(rows):
            return result
        said = [each for each in result.remarks if isinstance(each, Remark) and not each.is_noise]
        said = [each for each in said if each.kind != "caution"]
        unlisted = remark(UNLISTED, kind="caution", noisy=noisy, cases=len(rows), count=len(said))
        remarks = (replace(each, disturbed=True) if each in said else each for each in result.remarks)
        return replace(result, remarks=(unlisted, *remarks))
