"""The state of a GPU around a measurement, and whether the samples just taken can stand for it.

A power cap is how a GPU runs under load and is told; heat and brakes are the room's and the board's, and such samples
are discarded with that reason, never for their value.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Protocol

from pyperf_suite.hardware.devices import Device, Unavailable, gpus
from pyperf_suite.hardware.nvml import nvml

DISCARD_REASONS = (
    "hardware slowdown",
    "thermal slowdown by software",
    "thermal slowdown by hardware",
    "power brake",
)


class Manager(Protocol):
    """`hardware.nvml.Nvml`."""

    def readings(self, uuid: str) -> dict[str, Any]: ...

    def throttle_reasons(self, uuid: str) -> list[str] | None: ...

    def nvlink_bytes(self, uuid: str) -> tuple[int, int] | None: ...


def around_gpu(device: Device) -> AbstractContextManager[AroundGpu | None]:
    """Telemetry of a device where it is a GPU that tells of itself; else a block that does nothing."""
    manager = nvml() if device.kind == "cuda" else None
    if manager is None or isinstance(manager, Unavailable):
        return nullcontext()
    # By UUID: NVML counts all GPUs of the machine, CUDA those that this process may see.
    return AroundGpu(manager, gpus()[device.index].uuid)


class AroundGpu:
    """`with AroundGpu(manager, uuid) as gpu: ...` leaves readings before and after in `gpu.report`.

    Every throttle reason seen by `why_discard`, which sampling asks after each block, is listed as well, and the bytes
    that went over its NVLinks meanwhile, where it counts them.
    """

    def __init__(self, manager: Manager, uuid: str) -> None:
        self._manager, self._uuid = manager, uuid
        self._seen: set[str] = set()
        self.report: dict[str, Any] = {}

    def why_discard(self) -> str | None:
        """The reason why the samples just taken do not count, or None.

        Asks for nothing else: the GPU waits for the answer between two blocks.
        """
        reasons = self._manager.throttle_reasons(self._uuid) or []
        self._seen.update(reasons)
        return next((reason for reason in reasons if reason in DISCARD_REASONS), None)

    def __enter__(self) -> AroundGpu:
        self._before = self._manager.readings(self._uuid)
        self._sent_before = self._manager.nvlink_bytes(self._uuid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sent_after = self._manager.nvlink_bytes(self._uuid)
        after = self._manager.readings(self._uuid)
        self.report = {"before": self._before, "after": after, "throttle_reasons_seen": sorted(self._seen)}
        if self._sent_before is not None and sent_after is not None:
            sent, received = (now - then for now, then in zip(sent_after, self._sent_before, strict=True))
            self.report["nvlink_bytes"] = {"sent": sent, "received": received}
