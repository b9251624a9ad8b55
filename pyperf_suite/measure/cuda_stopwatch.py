"""The stopwatch of a CUDA device: events between launches whose gaps are hidden, and the clock each sample ran at.

The timing itself is `csrc/cuda/stopwatch.cpp`; this gives it the interface that every clock is read through.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Protocol

from .stopwatch import Launch

# What a record says of how gaps between launches were hidden.
NAMES = {
    "held": "cuda events behind a held stream",
    "graph": "cuda events in a replayed graph",
    "open": "cuda events",
}


class DeviceStopwatch(Protocol):
    """`_native.cuda.Stopwatch`: a sample is (seconds, clock of the multiprocessors in Hz or NaN)."""

    @property
    def stream(self) -> int: ...

    @property
    def queueing(self) -> str: ...

    def time(
        self, launch: Launch, first: int, samples: int, launches_per_sample: int
    ) -> Sequence[tuple[float, float]]: ...

    def synchronize(self) -> None: ...


class CudaStopwatch:
    """Times launches that go to its `stream`: elsewhere they would neither be held back nor waited for.

    For torch that is `torch.cuda.stream(torch.cuda.ExternalStream(stopwatch.stream))` around each launch.
    """

    def __init__(self, device: DeviceStopwatch) -> None:
        self._device = device
        self._ready: Launch | None = None
        self._clocks_hz: list[float] = []
        self.name = NAMES[device.queueing]
        self.stream = device.stream
        self.resolution_s = median(seconds for seconds, _ in device.time(_nothing, 0, 101, 0))

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> list[float]:
        """Seconds of each sample on the device's clock; a launch not timed before is first launched once.

        That loads kernels and allocates workspaces, for which the device would have to be waited for behind a
        held stream.
        """
        if launch != self._ready:
            launch(first)
            self._device.synchronize()
            self._ready = launch
        timed = self._device.time(launch, first, samples, launches_per_sample)
        self._clocks_hz.extend(hz for _, hz in timed)
        return [seconds for seconds, _ in timed]

    def clocks_hz(self, samples: int) -> list[float]:
        """The multiprocessors' clock during each of the last `samples` samples; NaN where it could not be read."""
        return self._clocks_hz[len(self._clocks_hz) - samples :]


def _nothing(index: int) -> None:
    """A launch that launches nothing: what is then timed is the stopwatch."""
