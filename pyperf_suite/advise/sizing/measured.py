"""`size --measure`: the best candidates run beside the present model, so that what is told of them was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyperf_suite.advise.sizing.prices import Prices
from pyperf_suite.advise.sizing.search import Candidate, Search
from pyperf_suite.advise.validation.findings import validation_findings
from pyperf_suite.advise.validation.validation import Validation, measure, plan_of, require_gpu, validate
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.hardware.devices import Device
from pyperf_suite.runner.plan import Plan
from pyperf_suite.runner.profiles import Profile
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import RunFolder
from pyperf_suite.runner.workers import DEADLINE_S
from pyperf_suite.spec.findings import Findings

PRESENT = "present"
# Each brings about ten products of its own; more candidates than this differ by less than they can be told apart.
MOST_MEASURED = 4


@dataclass(frozen=True)
class MeasuredSizing:
    """Settings by name, the present one first, as they were predicted and measured, and where the records lie."""

    names: tuple[str, ...]
    validation: Validation
    folder: RunFolder

    @property
    def findings(self) -> Findings:
        """Sentences and tables of predicted against measured."""
        return validation_findings(self.names, self.validation)

    def to_json(self) -> dict[str, Any]:
        """Plain data: seconds a token, and rates of work over the present model's with their intervals."""
        mean, median = self.validation.error_percent
        return {
            "records": str(self.folder.records_path),
            "prediction_error_percent": {"mean": mean, "median": median},
            "settings": [
                {
                    "name": name,
                    "predicted_s": each.predicted_s,
                    "measured_s": asdict(each.cost_s),
                    "predicted_speed": each.predicted_speedup,
                    "measured_speed": asdict(each.speedup),
                    "measured_share": each.measured_share,
                }
                for name, each in zip(self.names, self.validation.settings, strict=True)
            ],
            "products": [
                {
                    "case": product.case.to_json(),
                    "predicted_s": product.predicted_s,
                    "measured_s": product.reading.seconds if product.reading else None,
                }
                for product in self.validation.products
            ],
        }


@dataclass(frozen=True)
class SizingRun:
    """The candidates to measure, the present model first, and the plan that measures them all."""

    candidates: tuple[Candidate, ...]
    plan: Plan

    @classmethod
    def of(cls, gpu: GpuSpec, search: Search, device: Device, profile: Profile) -> SizingRun:
        """Raises UserError where the device is another GPU, or has no room for a shape."""
        require_gpu(gpu, device)
        candidates = (search.present, *chosen(search))
        return cls(candidates, plan_of([candidate.setting for candidate in candidates], device, profile))

    def measured(
        self, prices: Prices, results: Path, told: Callable[[Record], None], deadline_s: float = DEADLINE_S
    ) -> MeasuredSizing:
        """Run the plan; `told` is given the last record of each case.

        Raises UserError where the results cannot be written, or nothing could be measured.
        """
        folder, records = measure(self.plan, results, told, deadline_s)
        return MeasuredSizing(tuple(map(name_of, self.candidates)), self.judged(prices, records), folder)

    def judged(self, prices: Prices, records: Sequence[Record]) -> Validation:
        """The records beside the predictions; a token is worth the model's own FLOP, so padding is no work."""
        settings = [candidate.setting for candidate in self.candidates]
        work = [candidate.speed * candidate.time_ratio for candidate in self.candidates]
        return validate(settings, prices, records, self.plan.device, work)


def chosen(search: Search, most: int = MOST_MEASURED) -> list[Candidate]:
    """The candidates that are predicted to do their work fastest, each once; none where nothing beats the noise."""
    faster = [candidate for candidate in (*search.pareto, *search.alone.values()) if candidate.is_faster]
    by_name = {name_of(candidate): candidate for candidate in faster}
    return sorted(by_name.values(), key=lambda candidate: -candidate.speed)[:most]


def name_of(candidate: Candidate) -> str:
    """What a candidate changes, as in `heads 40 -> 32, vocab 50257 -> 50304`."""
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in candidate.changes) or PRESENT
