"""The state of a GPU around a measurement, and whether the samples just taken can stand for it.

A power cap is how a GPU runs under load and is told; heat and brakes are the room's and the board's, and such samples
are discarded with that reason, never for their value.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

DISCARD_REASONS = (
    "hardware slowdown",
    "thermal slowdown by software",
    "thermal slowdown by hardware",
    "power brake",
)


class Manager(Protocol):
    """`hardware.nvml.Nvml`."""

    def readings(self, uuid: str) -> dict[str, Any]: ...


class AroundGpu:
    """`with AroundGpu(manager, uuid) as gpu: ...` leaves readings before and after in `gpu.report`.

    Every throttle reason seen by `why_discard`, which sampling asks after each block, is listed as well.
    """

    def __init__(self, manager: Manager, uuid: str) -> None:
        self._manager, self._uuid = manager, uuid
        self._seen: set[str] = set()
        self.report: dict[str, Any] = {}

    def why_discard(self) -> str | None:
        """The reason why the samples just taken do not count, or None."""
        reasons = self._manager.readings(self._uuid).get("throttle_reasons", [])
        self._seen.update(reasons)
        return next((reason for reason in reasons if reason in DISCARD_REASONS), None)

    def __enter__(self) -> AroundGpu:
        self._before = self._manager.readings(self._uuid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        after = self._manager.readings(self._uuid)
        self.report = {"before": self._before, "after": after, "throttle_reasons_seen": sorted(self._seen)}
