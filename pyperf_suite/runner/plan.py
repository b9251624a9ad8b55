"""What a run will measure: cases of probes, in a seeded random order, visited by several processes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators import find_operator
from pyperf_suite.operators.operator import Inspected
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Profile

# Starting a case costs inputs and references beside warm-up and samples; seen on two cores, used for estimates.
SECONDS_AROUND_A_CASE = 0.12


@dataclass(frozen=True)
class PlannedCase:
    """One case and the probe that asked for it."""

    probe: str
    case: Case

    @property
    def is_exact(self) -> bool:
        """Whether its figures are read and not timed: they are the same in every process, so one is asked."""
        return isinstance(find_operator(self.case.operator), Inspected)


@dataclass(frozen=True)
class Plan:
    """Everything that decides what a run measures; the same plan resumes the same run.

    `asked` is what led to the cases beside probe, profile, device and seed, as it was written: axes that replace a
    sweep's, or a study's arguments. It is kept for whoever wants to measure the same again, and decides nothing.
    """

    cases: tuple[PlannedCase, ...]
    profile: Profile
    device: Device
    seed: int = 0
    asked: tuple[str, ...] = ()

    @property
    def plan_id(self) -> str:
        """16 hexadecimal digits that are equal for plans that measure the same cases in the same way."""
        parts = sorted(f"{planned.probe}:{planned.case.case_id}" for planned in self.cases)
        text = "\n".join([self.profile.name, str(self.device), str(self.seed), *parts])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def probes(self) -> tuple[str, ...]:
        """Names of the probes, sorted."""
        return tuple(sorted({planned.probe for planned in self.cases}))

    @property
    def seconds_at_most(self) -> float:
        """How long the run takes where every case reaches its time cap."""
        timed = sum(not planned.is_exact for planned in self.cases)
        visits = len(self.cases) + timed * (self.profile.processes - 1)
        return visits * SECONDS_AROUND_A_CASE + timed * self.profile.processes * self.profile.effort.seconds_at_most

    @property
    def outlook(self) -> str:
        """One line on what is ahead, as in `120 cases x 3 processes on cpu, profile standard, at most about 4 min`."""
        processes = 1 if all(planned.is_exact for planned in self.cases) else self.profile.processes
        seconds = self.seconds_at_most
        time = f"{seconds / 60:.0f} min" if seconds > 100 else f"{seconds:.0f} s"
        return (
            f"{len(self.cases)} case{'s' if len(self.cases) > 1 else ''} x "
            f"{processes} process{'es' if processes > 1 else ''} on {self.device}, "
            f"profile {self.profile.name}, at most about {time}"
        )

    def validate(self) -> None:
        """Raise UserError for a case that can never be measured, or not in this machine's memory."""
        available = memory.available_bytes()
        if self.device.kind == "cuda":
            available = min(available, gpus()[self.device.index].memory_bytes)
        for planned in self.cases:
            case = planned.case
            case.validate()
            implementation = find_operator(case.operator).implementation(case.implementation)
            if implementation.device_kind not in ("any", self.device.kind):
                raise UserError(
                    f"{case.label} runs on {implementation.device_kind}, but the device asked for is {self.device}: "
                    f"ask for {implementation.device_kind}."
                )
            needed = find_operator(case.operator).footprint_bytes(case.parameters)
            if needed > available:
                raise UserError(
                    f"{case.label} needs {needed / 1e9:.1f} GB for its operands, but {available / 1e9:.1f} GB of "
                    "memory are free: ask for smaller dimensions."
                )


def in_random_order(cases: Sequence[PlannedCase], seed: int) -> tuple[PlannedCase, ...]:
    """The cases shuffled by the seed, so that drift of the machine does not line up with any axis of a sweep."""
    shuffled = list(cases)
    random.Random(seed).shuffle(shuffled)
    return tuple(shuffled)
