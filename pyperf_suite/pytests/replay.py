"""What passes between a test's fixture and whoever measures: a call, its times, and the clock that tells them again.

Imports nothing heavy: a session that measures nothing has this too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyperf_suite.runner.record import Record


@dataclass(frozen=True)
class Call:
    """What a test handed to pytest-benchmark's fixture.

    `rounds` of 0 leaves it to the stop rule; otherwise so many are made, each of `iterations` calls, after
    `warmup_rounds`. `setup` runs before each of them and `teardown` after it, untimed.
    """

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    setup: Callable[[], Any] | None = None
    teardown: Callable[..., Any] | None = None
    rounds: int = 0
    warmup_rounds: int = 0
    iterations: int = 1

    def arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Those of the next round. Raises TypeError where `setup` makes arguments and there are others."""
        made = self.setup() if self.setup is not None else None
        if made and (self.args or self.kwargs):
            raise TypeError("Can't use `args` or `kwargs` if `setup` returns the arguments.")
        return made or (self.args, self.kwargs)

    def once(self) -> Any:
        """What the function returns, called once with setup and teardown."""
        args, kwargs = self.arguments()
        result = self.function(*args, **kwargs)
        if self.teardown is not None:
            self.teardown(*args, **kwargs)
        return result


@dataclass(frozen=True)
class Timing:
    """What was measured of a call: seconds of each sample, what is kept beside them, and what the function returns."""

    seconds: Sequence[float]
    extra_info: Mapping[str, Any]
    result: Any


class Source(Protocol):
    """Who measures a test's call, here or in processes of its own."""

    def time(self, nodeid: str, call: Call) -> Timing:
        """The times of the call. Raises what the function raises, and pytest's own outcomes."""
        ...


class ReplayClock:
    """A timer whose pairs of calls differ by the loaded samples, one pair a sample, exactly: 0.0, then the sample."""

    __name__ = "pyperf_suite_replay"

    def __init__(self) -> None:
        self._readings: Iterator[float] = iter(())

    def load(self, samples: Sequence[float]) -> None:
        """Samples in seconds to be told next."""
        self._readings = iter([reading for sample in samples for reading in (0.0, sample)])

    def __call__(self) -> float:
        return next(self._readings, 0.0)


def extra_info(records: Sequence[Record], path: Path) -> dict[str, Any]:
    """What pytest-benchmark's JSON says beside the rounds; plain values, as it stores no others."""
    seconds = sorted(record.seconds for record in records)
    work, median_s = records[0].work, seconds[len(seconds) // 2]
    # What computes nothing moves bytes: nccl-tests' algbw.
    rate = {"tflop_per_s": work["flop"] / median_s / 1e12} if work["flop"] else {}
    if work["bytes"] and not rate:
        rate = {"gb_per_s": work["bytes"] / median_s / 1e9}
    return {
        "case_id": records[0].case_id,
        **rate,
        "kernel": records[0].kernel["name"],
        "processes": len(records),
        "converged": all(record.quality["converged"] for record in records),
        "records": str(path),
    }
