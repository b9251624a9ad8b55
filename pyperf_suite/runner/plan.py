"""What a run will measure: cases of probes, in a seeded random order, visited by several processes."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Profile
from pyperf_suite.workloads import find_workload


@dataclass(frozen=True)
class PlannedCase:
    """One case and the probe that asked for it."""

    probe: str
    case: Case

    @property
    def is_exact(self) -> bool:
        """Whether its figures are read and not timed: they are the same in every process, so one is asked."""
        return find_workload(self.case.operator).is_exact

    @property
    def key(self) -> tuple[str, str]:
        """What its records are found by."""
        return self.probe, self.case.case_id


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
    def processes(self) -> int:
        """How many visit the cases; one alone where nothing is timed."""
        return 1 if all(planned.is_exact for planned in self.cases) else self.profile.processes

    @property
    def probes(self) -> tuple[str, ...]:
        """Names of the probes, sorted."""
        return tuple(sorted({planned.probe for planned in self.cases}))

    def validate(self) -> None:
        """Raise UserError for a case that can never be measured, or not in this machine's memory."""
        on_gpu = self.device.kind == "cuda"
        available = gpus()[self.device.index].memory_bytes if on_gpu else memory.available_bytes()
        for planned in self.cases:
            case = planned.case
            case.validate()
            implementation = find_workload(case.operator).implementation(case.implementation)
            if implementation.device_kind not in ("any", self.device.kind):
                raise UserError(
                    f"{case.label} runs on {implementation.device_kind}, but the device asked for is {self.device}: "
                    f"ask for {implementation.device_kind}."
                )
            needed = find_workload(case.operator).footprint_bytes(case.parameters)
            if needed > available:
                raise UserError(
                    f"{case.label} needs {needed / 1e9:.1f} GB for its operands, but "
                    f"{f'{self.device} has' if on_gpu else 'this machine has'} {available / 1e9:.1f} GB of memory "
                    f"{'in all' if on_gpu else 'free'}: ask for smaller dimensions."
                )


def in_random_order(cases: Sequence[PlannedCase], seed: int) -> tuple[PlannedCase, ...]:
    """The cases shuffled by the seed, so that drift of the machine does not line up with any axis of a sweep."""
    shuffled = list(cases)
    random.Random(seed).shuffle(shuffled)
    return tuple(shuffled)


# Sizes this close are compared with each other, as the last of one wave and the first of the next are.
NEIGHBOURS = 0.02


def most_informative_first(cases: Sequence[PlannedCase], seed: int) -> tuple[PlannedCase, ...]:
    """The cases in an order that may be cut anywhere: for a run with a budget.

    What is compared stays together: all implementations and schedules of one problem, and problems whose sizes differ
    by at most 2 %. Of such bundles each dtype, layout or other kind of problem comes in turn, and within a kind its
    sizes from coarse to fine: the middle, the quarters, the eighths. Ties are drawn by the seed.
    """
    drawn = in_random_order(cases, seed)
    problems: dict[tuple[object, ...], dict[tuple[float, ...], list[PlannedCase]]] = {}
    for planned in drawn:
        kind, sizes = _problem(planned)
        problems.setdefault(kind, {}).setdefault(sizes, []).append(planned)
    queues = [_coarse_to_fine(_bundles(by_size)) for by_size in problems.values()]
    in_turn = (bundle for bundles in itertools.zip_longest(*queues, fillvalue=()) for bundle in bundles)
    return tuple(planned for bundle in in_turn for planned in bundle)


def _problem(planned: PlannedCase) -> tuple[tuple[object, ...], tuple[float, ...]]:
    """What kind of problem a case is, and its sizes; tiles, schedules and implementations are ways to solve it."""
    values = vars(planned.case.parameters)
    kind = tuple((name, value) for name, value in values.items() if isinstance(value, str | bool))
    sizes = tuple(float(value) for value in values.values() if isinstance(value, int) and not isinstance(value, bool))
    return (planned.probe, planned.case.operator, planned.case.mode, *kind), sizes


def _bundles(by_size: Mapping[tuple[float, ...], list[PlannedCase]]) -> list[list[PlannedCase]]:
    """The problems of one kind by size, neighbours in one bundle."""
    bundles: list[list[PlannedCase]] = []
    last: tuple[float, ...] | None = None
    for sizes in sorted(by_size):
        near = last is not None and all(abs(a - b) <= NEIGHBOURS * max(a, b) for a, b in zip(last, sizes, strict=True))
        if near:
            bundles[-1].extend(by_size[sizes])
        else:
            bundles.append(list(by_size[sizes]))
        last = sizes
    return bundles


def _coarse_to_fine(bundles: list[list[PlannedCase]]) -> list[list[PlannedCase]]:
    """Halving the gaps: the middle first, then the middles of both halves, and so on."""
    ordered = []
    gaps = deque([(0, len(bundles))])
    while gaps:
        begin, end = gaps.popleft()
        if begin < end:
            middle = (begin + end) // 2
            ordered.append(bundles[middle])
            gaps.extend([(begin, middle), (middle + 1, end)])
    return ordered
