"""A guide's claim as a constant with its source, and the one sentence that sets a measured ratio beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.spec import findings

# Where the guides' sentences come from; the probes name one of these, or a paper.
BEKMAN = "Bekman, Machine Learning Engineering"
TRANSFORMERS = "Hugging Face Transformers, Performance and Scalability"
BIGSCIENCE = "BigScience, tflops_optimization.md"


@dataclass(frozen=True)
class Claim(findings.Claim):
    """Being replaced by spec.findings.Claim: subjects with gaps as probes had them."""

    def sentence(self, subject: str, measured: Ratio, where: str = "", several: str = "") -> Any:
        """Subject, ratio and verdict."""
        gap = subject.replace("{} x", "{measured}").replace("{}", "{measured}")
        told = gap if "{measured}" in gap else f"{gap} {{measured}}"
        return self.judge(f"{told} {where}" if where else told, measured, remedy=several)

    def counted(self, told: str, value: float) -> Any:
        """What was told of a value that is counted and not timed, as bytes are, and the verdict: it has no interval."""
        return self.judge(told, value)
