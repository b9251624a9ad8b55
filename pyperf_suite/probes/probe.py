"""What a probe is: the cases it varies, and what it tells the user about their records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import replace_axes
from pyperf_suite.spec.findings import Findings


class Probe(ABC):
    """One question to a machine. Sweeps are data: `axes` says what varies, `sweep` crosses it into cases."""

    name: ClassVar[str]
    question: ClassVar[str]
    topic: ClassVar[str] = "laws"
    # What is not timed has no place in pytest-benchmark's table, nor in a run that names no probe.
    is_timed: ClassVar[bool] = True
    has_items: ClassVar[bool] = True

    @abstractmethod
    def axes(self, profile: str, device: Device) -> Any:
        """The axes of a profile on a device: a frozen dataclass of tuples."""

    @abstractmethod
    def sweep(self, axes: Any) -> list[Case]:
        """Every case of the axes, without duplicates."""

    @abstractmethod
    def findings(self, records: Sequence[Record]) -> Findings:
        """What the records say, with the law that explains them; records of other probes are not passed."""

    # Asked again with what its cases gave, until it returns nothing new (see spec/following.py).
    follow_up: Any = None

    def cases(self, profile: str, device: Device, overrides: Mapping[str, str] | None = None) -> list[Case]:
        """The cases of a profile, with some axes replaced. Raises UserError for an axis or value that cannot be."""
        cases = self.sweep(replace_axes(self.axes(profile, device), overrides or {}))
        if not cases:
            asked = ", ".join(f"{name}={values}" for name, values in (overrides or {}).items())
            raise UserError(f"{self.name} has no case with {asked}: leave an axis out to get the profile's own.")
        for case in cases:
            case.validate()
        return cases

    def group(self, case: Case) -> str:
        """The sweep that a case belongs to, as a heading for tables."""
        return f"{self.name} {case.operator} {case.implementation}"
