"""The study of layouts as a probe: its grid by default, its cases, and what their records say."""

from __future__ import annotations

from collections.abc import Sequence

from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.study.axes import StudyAxes, default_axes
from pyperf_suite.probes.study.findings import explain
from pyperf_suite.probes.study.grid import cases_of
from pyperf_suite.probes.study.results import Predictor
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings


class Study(Probe):
    """A whole training step cut over ranks by torch's own engine; `pyperf-suite study` runs it as experiments."""

    name = "study"
    question = "Which way to cut a training step over ranks is fastest here, and what does each way cost and hold?"
    # Each visit starts a launcher anew, minutes in all: a run that names no probe, and pytest's table, leave it out.
    is_timed = False
    has_items = False

    def __init__(self, predictor: Predictor | None = None) -> None:
        self.predictor = predictor

    def axes(self, profile: str, device: Device) -> StudyAxes:
        """The same in every profile: what a study is made longer by is experiments."""
        return default_axes(device, len(gpus()) if device.kind == "cuda" else 0)

    def sweep(self, axes: StudyAxes) -> list[Case]:
        """Every configuration that can be. Raises UserError for a value that combines with nothing."""
        return cases_of(axes)

    def findings(self, records: Sequence[Record]) -> Findings:
        """The fastest, what each way costs beside what a published study found, and predictions where there are any."""
        return explain(records, self.predictor)

    def group(self, case: Case) -> str:
        """One table: configurations are what is compared."""
        return "study"
