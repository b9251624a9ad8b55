"""What an operator is that several processes compute together, and what one of them has to offer the runner.

Every method here that moves data is called by all ranks of the group, in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.devices import Device
from pyperf_suite.ranks.group import Group
from pyperf_suite.workloads.operator import Checked, Implementation, Kernel, Parameters, Subject


@dataclass(frozen=True)
class RankTimes:
    """What one rank saw of each iteration, in order.

    `seconds` is the iteration as this rank's clock or device measured it; `arrived_ns` and `done_ns` are
    `time.monotonic_ns()` of this rank when it entered and left, for iterations that were waited for one by one. A rank
    that takes no part in what is timed has none of all three.
    """

    seconds: NDArray[np.float64]
    arrived_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]


class Transfers(ABC):
    """A case made ready on this rank: buffers allocated, connections made."""

    kernel: Kernel
    # How many times an iteration runs what is timed, and its times are of one.
    calls: int = 1
    # Whether doing it any number of times after one `fill` leaves what doing it once does.
    repeatable: bool = False

    @abstractmethod
    def fill(self) -> None:
        """Write this rank's inputs, and NaN (or a value that cannot be right) into its output."""

    @abstractmethod
    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        """Run so many times, in the same configuration as is checked, all of it within the deadline."""

    @abstractmethod
    def check(self) -> Checked:
        """Compare the output of what ran last after `fill`, exactly."""

    @abstractmethod
    def close(self) -> None:
        """Free buffers and connections; a second call does nothing."""


class RankedImplementation(Implementation[Parameters]):
    """One way to do what a ranked operator names."""

    @abstractmethod
    def prepare(self, parameters: Parameters, group: Group, device: Device, deadline_s: float) -> Transfers:
        """Make this rank's part ready. Raises Unsupported with the reason where this machine cannot run the case."""


class Ranked(Subject[Parameters]):
    """A subject whose cases are run by a group of processes."""

    implementations: Mapping[str, RankedImplementation[Parameters]]
    # Whether each visit of a case starts a group of its own, which ends with it.
    fresh_ranks: ClassVar[bool] = False

    @abstractmethod
    def ranks(self, parameters: Parameters) -> int:
        """How many processes a case takes."""

    def environment(self, parameters: Parameters) -> Mapping[str, str]:
        """Variables that its processes must be started with, as NCCL reads most of its settings once."""
        return {}

    @abstractmethod
    def bytes_moved(self, parameters: Parameters) -> int:
        """Bytes of the message as nccl-tests counts them."""

    def implementation(self, name: str) -> RankedImplementation[Parameters]:
        """The implementation of that name. Raises UserError that names those there are."""
        super().implementation(name)
        return self.implementations[name]
