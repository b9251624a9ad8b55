import json
import os
import time

import pytest

from pyperf_suite.measure import telemetry
from pyperf_suite.measure.telemetry import DISCARD_REASONS, AroundGpu


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A machine whose /proc and /sys hold only what a test writes there."""
    monkeypatch.setattr(telemetry, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(telemetry, "_SYS", tmp_path / "sys")
    monkeypatch.setattr(telemetry, "_psutil_mhz", list)
    (tmp_path / "proc").mkdir()
    return tmp_path


def test_stolen_time_is_a_share_of_the_time_wanted(elsewhere):
    stat = elsewhere / "proc" / "stat"
    stat.write_text("cpu  100 0 100 9999 0 0 0 50 0 0\ncpu0 1 2 3\n")
    with telemetry.Around() as around:
        stat.write_text("cpu  250 0 130 20000 0 10 10 150 0 0\n")
    report = around.report
    # 200 ticks busy and 100 stolen: a third of what was wanted.
    assert report["steal_share"] == pytest.approx(1 / 3)
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert (report["cpu_busy_s"], report["cpu_steal_s"]) == pytest.approx((200 / ticks_per_s, 100 / ticks_per_s))
    with telemetry.Around() as around:
        pass
    assert around.report["steal_share"] == 0.0, "nobody wanted any"
    for line, known in (("cpu 1 2 3 4 5 6 7 8", True), ("cpu 1 2 3 4 5 6 7", False), ("cpu0 1 2 3 4 5 6 7 8", False)):
        stat.write_text(line)
        assert ("cpu_steal_s" in telemetry.snapshot()) is known


def test_clocks_are_those_of_the_cores_this_process_may_use_by_the_governor_if_it_has_them(elsewhere, monkeypatch):
    monkeypatch.setattr(telemetry, "_usable_cores", lambda: {0, 2})
    text = "".join(f"processor\t: {core}\ncpu MHz\t\t: {1000.5 + core}\n\n" for core in range(4))
    (elsewhere / "proc" / "cpuinfo").write_text(text)
    assert telemetry.snapshot()["cpu_mhz"] == {"low": 1000.5, "median": 1001.5, "high": 1002.5}
    monkeypatch.setattr(telemetry, "_usable_cores", lambda: {1})
    folder = elsewhere / "sys/devices/system/cpu/cpu1/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_cur_freq").write_text("2400000\n")
    assert telemetry.snapshot()["cpu_mhz"]["median"] == 2400.0
    monkeypatch.setattr(telemetry, "_usable_cores", lambda: None)
    assert telemetry.snapshot()["cpu_mhz"]["high"] == 1003.5


def test_the_hottest_sensor_is_reported(elsewhere):
    for zone, value in (("thermal_zone0", "41000\n"), ("thermal_zone1", "55500\n"), ("thermal_zone2", "broken\n")):
        folder = elsewhere / "sys/class/thermal" / zone
        folder.mkdir(parents=True)
        (folder / "temp").write_text(value)
    assert telemetry.snapshot()["temperature_celsius"] == 55.5


def test_around_reports_the_block_even_if_it_fails():
    def fail():
        time.sleep(0.01)
        raise RuntimeError

    around = telemetry.Around()
    with pytest.raises(RuntimeError), around:
        fail()
    report = around.report
    assert report["elapsed_s"] >= 0.01
    assert report["before"]["monotonic_s"] < report["after"]["monotonic_s"]
    json.dumps(report, allow_nan=False)


class FakeManager:
    """A manager whose GPU throttles by a list for each reading, the last for ever; with links it counts bytes."""

    def __init__(self, *throttling: list[str], links: bool = False) -> None:
        self._throttling = list(throttling)
        self._sent = 0 if links else None
        self.requested: list[str] = []

    def readings(self, uuid: str) -> dict:
        self.requested.append("readings")
        return {"sm_clock_mhz": 1980, "throttle_reasons": self._next(uuid)}

    def throttle_reasons(self, uuid: str) -> list[str]:
        self.requested.append("throttle reasons")
        return self._next(uuid)

    def throttled_s(self, uuid: str) -> dict[str, float] | None:
        return None

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


def test_what_went_over_the_links_meanwhile_is_reported_where_it_is_counted():
    with AroundGpu(FakeManager([], links=True), "GPU-1") as gpu:
        pass
    assert gpu.report["nvlink_bytes"] == {"sent": 1024, "received": 3 * 1024}


@pytest.mark.parametrize("reason", DISCARD_REASONS)
def test_heat_and_brakes_rule_samples_out(reason):
    gpu = AroundGpu(FakeManager(["power cap", reason]), "GPU-1")
    assert gpu.why_discard() == reason


def test_what_lowered_clocks_during_a_block_is_counted_and_not_what_the_gpu_says_when_it_is_over():
    counters = iter([(1.0, 0.0), (1.25, 0.0), (1.25, 0.002), (1.25, 0.002)])
    names = "power cap", "thermal slowdown by hardware"
    manager = FakeManager([])
    manager.throttled_s = lambda uuid: dict(zip(names, next(counters), strict=True))
    with AroundGpu(manager, "GPU-1") as gpu:
        assert [gpu.why_discard() for _ in range(3)] == [None, "thermal slowdown by hardware", None]
    assert gpu.report["throttle_reasons_seen"] == sorted(names)
    assert gpu.report["throttled_s"] == {"power cap": 0.25, "thermal slowdown by hardware": 0.002}
    assert manager.requested == ["readings", "readings"]
    # NVML's word counts where the driver's numbers for heat are not known.
    manager = FakeManager(["thermal slowdown by software"])
    manager.throttled_s = lambda uuid: {"power cap": 1.0}
    with AroundGpu(manager, "GPU-1") as gpu:
        assert gpu.why_discard() == "thermal slowdown by software"
