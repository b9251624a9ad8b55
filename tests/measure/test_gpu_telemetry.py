"""A GPU's state is told before and after; heat and brakes rule samples out, a power cap does not."""

from __future__ import annotations

import pytest

from pyperf_suite.measure.sampling import SteadyRule, StopRule, measure
from pyperf_suite.measure.stopwatch import CpuStopwatch
from pyperf_suite.measure.telemetry import DISCARD_REASONS, AroundGpu


class FakeManager:
    """A manager whose GPU throttles as told, one list a reading, the last for ever; with links it counts bytes."""

    def __init__(self, *throttling: list[str], links: bool = False) -> None:
        self._throttling = list(throttling)
        self._sent = 0 if links else None
        self.asked: list[str] = []

    def readings(self, uuid: str) -> dict:
        self.asked.append("readings")
        return {"sm_clock_mhz": 1980, "throttle_reasons": self._next(uuid)}

    def throttle_reasons(self, uuid: str) -> list[str]:
        self.asked.append("throttle reasons")
        return self._next(uuid)

    def _next(self, uuid: str) -> list[str]:
        assert uuid == "GPU-1"
        return self._throttling.pop(0) if len(self._throttling) > 1 else self._throttling[0]

    def nvlink_bytes(self, uuid: str) -> tuple[int, int] | None:
        if self._sent is None:
            return None
        self._sent += 1024
        return self._sent, 3 * self._sent


def test_readings_stand_before_and_after_with_every_reason_seen_between():
    with AroundGpu(FakeManager([], ["power cap"], []), "GPU-1") as gpu:
        assert gpu.why_discard() is None
    assert gpu.report == {
        "before": {"sm_clock_mhz": 1980, "throttle_reasons": []},
        "after": {"sm_clock_mhz": 1980, "throttle_reasons": []},
        "throttle_reasons_seen": ["power cap"],
    }


def test_between_blocks_nothing_is_asked_for_but_throttle_reasons():
    manager = FakeManager([])
    with AroundGpu(manager, "GPU-1") as gpu:
        before = len(manager.asked)
        for _ in range(3):
            gpu.why_discard()
        assert manager.asked[before:] == ["throttle reasons"] * 3


def test_what_went_over_the_links_meanwhile_is_told_where_it_is_counted():
    with AroundGpu(FakeManager([], links=True), "GPU-1") as gpu:
        pass
    assert gpu.report["nvlink_bytes"] == {"sent": 1024, "received": 3 * 1024}


@pytest.mark.parametrize("reason", DISCARD_REASONS)
def test_heat_and_brakes_rule_samples_out(reason):
    gpu = AroundGpu(FakeManager(["power cap", reason]), "GPU-1")
    assert gpu.why_discard() == reason


def test_a_gpu_that_tells_nothing_discards_nothing():
    class Silent:
        def readings(self, uuid: str) -> dict:
            return {}

        def throttle_reasons(self, uuid: str) -> None:
            return None

        def nvlink_bytes(self, uuid: str) -> None:
            return None

    with AroundGpu(Silent(), "GPU-1") as gpu:
        assert gpu.why_discard() is None
    assert gpu.report["before"] == {}


def test_samples_of_a_hot_block_are_kept_apart_with_their_reason():
    hot = ["thermal slowdown by hardware"]
    gpu = AroundGpu(FakeManager(hot, []), "GPU-1")
    steady = SteadyRule(min_time_s=0.0, time_cap_s=0.01)
    found = measure(lambda _: None, CpuStopwatch(), StopRule(time_cap_s=0.05), steady, gpu.why_discard)
    assert found.discarded
    assert {reason for _, reason in found.discarded} == set(hot)
    assert len(found.kept) == len(found.seconds) - len(found.discarded)
