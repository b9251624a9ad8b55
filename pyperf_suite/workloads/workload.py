"""Protocol of workloads: products, attention, exchanges, machine code, training steps and anybody's kernel."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError, check_limits
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.checks import CheckVerdict
from pyperf_suite.measure.stopwatch import CpuStopwatch, Stopwatch

if TYPE_CHECKING:
    from pyperf_suite.ranks.group import Group

Parameters = TypeVar("Parameters")


@dataclass(frozen=True)
class Work:
    """Least work of a launch: floating-point operations, and bytes that are read or written once."""

    flop: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Kernel:
    """Kernel that ran: its name, the path it took, and details worth keeping (tile, ISA, threads)."""

    name: str
    path: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Observed:
    """A quantity other than time, in that unit: one value, or as many as were seen."""

    unit: str
    samples: Sequence[float]


# Set to 1, checks of users' kernels go as far as for code that nobody trusts (`run --audit`).
AUDIT_VARIABLE = "PYPERF_AUDIT"


@dataclass(frozen=True)
class ExecutionContext:
    """Place where a case is prepared: a device, and the group of ranks that share the case, if any.

    `sets` is how many operand sets to rotate through; None for as many as leave caches cold. `inputs` is the seed of a
    user's inputs where two processes are to be given the same; None for one that is drawn in secret. Each of
    `processes` processes makes its share of a case's checks, and goes on from what `earlier` ones found
    (checks.joined); with `audit` as far as for code that nobody trusts.
    """

    device: Device
    seed: int = 0
    group: Group | None = None
    deadline_s: float = 120.0
    sets: int | None = None
    inputs: int | None = None
    processes: int = 1
    earlier: Mapping[str, Any] = field(default_factory=dict)
    audit: bool = field(default_factory=lambda: os.environ.get(AUDIT_VARIABLE) == "1")

    @property
    def ranks(self) -> Group:
        assert self.group is not None
        return self.group


@dataclass(frozen=True)
class Checked:
    """How what came out compares with what it must be: wrong elements of those compared, the first in words."""

    wrong: int
    compared: int
    first: str = ""

    @property
    def passed(self) -> bool:
        return self.wrong == 0 and self.compared > 0

    @property
    def message(self) -> str:
        if self.passed:
            return f"correct: {self.compared} values compared"
        return f"{self.wrong} of {self.compared} values are wrong: {self.first or 'nothing was compared'}"

    def to_json(self) -> dict[str, Any]:
        return {"passed": self.passed, "method": "own", **asdict(self), "message": self.message}


def together(checks: Sequence[Checked]) -> Checked:
    """Several as one, with the first that found something."""
    first = next((each.first for each in checks if each.wrong), "")
    return Checked(sum(each.wrong for each in checks), sum(each.compared for each in checks), first)


class Prepared(ABC):
    """A case made ready: nothing is left to do in a timed region but `launch`.

    Launch i works on set i modulo `sets`. `unchecked` says why what timed launches leave cannot be checked, empty where
    it can: then `poison`, `verify_last`, `snapshot` and `matches` look at a set (measure/checks.py). `check` does
    the whole. It is called before timing, and after only where it `sees_more`.
    """

    kernel: Kernel
    # Work that is known only now, and not from the parameters.
    work: Work | None = None
    sets: int = 1
    unchecked: str = ""
    sees_more: bool = False
    sampling: Mapping[str, Any] = {}  # facts for the record on how samples were taken, if not as usual
    # Parts of the machine's state that differ for this case: the code's commit, the versions that it found.
    state: Mapping[str, Any] = {}
    checks: Any = None  # checks of launches' results, where they differ from the usual (measure/checks.py)
    # Figures that are read and not timed, as records keep metrics; then nothing is launched.
    exact: Mapping[str, Mapping[str, Any]] | None = None

    @functools.cached_property
    def stopwatch(self) -> Stopwatch:
        """The clock that sees launches: the host's, where `launch` returns when the work is done."""
        return CpuStopwatch()

    @abstractmethod
    def launch(self, index: int) -> None:
        """Do it once."""

    def untimed(self, index: int) -> None:
        """The same for a check, whose time nobody asks."""
        self.launch(index)

    def poison(self, index: int | None = None) -> None:
        """Leave nothing in one set, or in all, that could pass for a result."""
        raise NotImplementedError

    def verify_last(self, index: int) -> Any:
        """The verdict: compare what the last launch on that set left with what must be there."""
        raise NotImplementedError

    def snapshot(self, index: int) -> Any:
        """A copy or a fingerprint of what is there, for `matches`; nothing where all of it is verified each time."""
        return None

    def matches(self, index: int, snapshot: Any) -> bool:
        """True if the results equal the snapshot, bit for bit."""
        return bool(self.verify_last(index).passed)

    def check(self) -> CheckVerdict:
        """Launch on every set once more, untimed, and compare each."""
        self.poison()
        for index in range(self.sets):
            self.untimed(index)
        return together([self.verify_last(index) for index in range(self.sets)])

    def observed(self) -> Mapping[str, Observed]:
        """Return further observations of these launches, measured after they were timed: bytes, shares, counts."""
        return {}

    def cpu_elsewhere_s(self) -> float:
        """CPU seconds that processes of its own have used since it was checked: no load of others."""
        return 0.0

    def references(self) -> dict[str, Any]:
        """Return the judges of the results, for records."""
        return {}

    def close(self) -> None:
        """End processes and free what garbage collection does not; a second call does nothing."""
        return


class Exact(Prepared):
    """Figures that are the same each time: one trial is all there is."""

    def __init__(self, kernel: Kernel, metrics: Mapping[str, Mapping[str, Any]]) -> None:
        self.kernel, self.exact = kernel, metrics

    def launch(self, index: int) -> None:
        """Nothing is left to do."""


def exact_metric(unit: str, value: float) -> dict[str, Any]:
    """A figure that is read, as records keep metrics."""
    return {"unit": unit, "samples": [value]} | dict.fromkeys(("value", "low", "high", "q20", "q80"), value)


@dataclass(frozen=True)
class RankTimes:
    """Times of one rank for each iteration, in order.

    `seconds` is the iteration as this rank's clock or device measured it; `arrived_ns` and `done_ns` are
    `time.monotonic_ns()` of this rank when it entered and left, for iterations that were waited for one by one. A rank
    that takes no part in the timed operation has none of all three.
    """

    seconds: NDArray[np.float64]
    arrived_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]


BUILD_ON_EACH_OTHER = "Each iteration starts from what the last one left."


class Transfers(Prepared):
    """A rank's part of a case that several processes work on together; all of them call each method in one order."""

    calls: int = 1  # how many times an iteration runs what is timed, and its times are of one
    deadline_s: float = 120.0  # within which all that was begun must be over

    @abstractmethod
    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        """Run `iterations` times, in the same configuration as is checked, all of it within the deadline."""

    @abstractmethod
    def verify_last(self, index: int = 0) -> Checked:
        """Compare the output of what ran last after `poison`, exactly."""

    def launch(self, index: int) -> None:
        self.time(1, self.deadline_s)


class ImplementationBase(ABC, Generic[Parameters]):
    """One way to do what a workload names, on one kind of device ("any": on the requested one)."""

    name: ClassVar[str]
    device_kind: ClassVar[str] = "any"
    # True if it imports torch, which takes seconds that the sides of a pair spend side by side.
    needs_torch: ClassVar[bool] = False

    def validate(self, parameters: Parameters) -> None:
        """Raise UserError where this implementation can never take these parameters, before anything is measured."""


class Implementation(ImplementationBase[Parameters]):
    """One that makes a case ready by itself."""

    @abstractmethod
    def prepare(self, parameters: Parameters, place: ExecutionContext) -> Prepared:
        """Make the case ready. Raises Unsupported with the reason where this machine has no way to run it."""


class ByFunction(Implementation[Any]):
    """One whose case `make(parameters, place)` makes ready."""

    def __init__(self, name: str, make: Callable[[Any, ExecutionContext], Prepared], device_kind: str = "any") -> None:
        self.name, self._make, self.device_kind = name, make, device_kind  # type: ignore[misc]

    def prepare(self, parameters: Any, place: ExecutionContext) -> Prepared:
        return self._make(parameters, place)


class Workload(ABC, Generic[Parameters]):
    """Parameters of cases, and implementations that measure under them.

    `is_exact`: its figures are read and not timed. `own_check`: it compares with what a pass of its own
    computes, by the first process of a run. `fresh_ranks`: each trial starts a group of its own. `takes_turns`: nothing
    of a case goes on between its slices, and what other cases do meanwhile in its process changes none of its figures.
    `library` is what a user's arrays are of, empty where the suite makes them. A process that imports the file or
    module `source` measures no other's cases.
    """

    name: str
    parameters_type: type
    implementations: Mapping[str, Any]
    is_exact: ClassVar[bool] = False
    own_check: ClassVar[bool] = True
    fresh_ranks: ClassVar[bool] = False
    takes_turns: ClassVar[bool] = True
    library: str = ""
    source: str = ""

    def validate(self, parameters: Parameters) -> None:
        """Raise UserError where limits of the fields' types, or the parameters' own, do not hold."""
        check_limits(parameters)
        own = getattr(parameters, "validate", None)
        if own is not None:
            own()

    def type_for(self, data: Mapping[str, Any]) -> type:
        return self.parameters_type

    def footprint_bytes(self, parameters: Parameters) -> int:
        """Memory that one set of operands needs; none for what is only looked at."""
        return 0

    def work(self, parameters: Parameters) -> Work:
        """FLOPs and bytes of one launch, as far as they can be known beforehand; of an exchange, its message."""
        return Work()

    def ranks(self, parameters: Parameters) -> int:
        """How many processes a case takes; 0 for a single one that needs no group."""
        return 0

    def environment(self, parameters: Parameters) -> dict[str, str]:
        """Variables that its ranks must be started with, as NCCL reads most of its settings once."""
        return {}

    def implementation(self, name: str) -> Any:
        if name not in self.implementations:
            raise UserError(
                f"{self.name} has no implementation {name!r}: choose from {', '.join(sorted(self.implementations))}."
            )
        return self.implementations[name]

    def prepare(self, parameters: Parameters, implementation: str, place: ExecutionContext) -> Prepared:
        """The case made ready. Raises Unsupported with the reason where this machine cannot run it."""
        prepared: Prepared = self.implementation(implementation).prepare(parameters, place)
        return prepared


def by_name(*implementations: Any) -> dict[str, Any]:
    """Implementations as a workload holds them."""
    return {each.name: each for each in implementations}
