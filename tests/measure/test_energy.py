"""Joules of launches by made-up counters: coarse and fine ones, ones that wrap, stand still or may not be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyperf_suite.hardware.devices import Device, Unavailable
from pyperf_suite.measure import telemetry
from pyperf_suite.measure.telemetry import EnergyMeter, GpuEnergy, PackageEnergy, step_of

WATTS = 250.0


class Machine:
    """A device that draws WATTS, its counter and its clock; a look at either takes 10 microseconds."""

    name, resolution_s = "made up", 1e-6

    def __init__(self, step_s: float, launch_s: float = 0.0) -> None:
        self.now, self._step_s, self._launch_s = 0.3, step_s, launch_s
        self.launched: list[int] = []

    def clock(self) -> float:
        self.now += 1e-5
        return self.now

    def joules(self) -> float:
        return WATTS * self._step_s * (self.clock() // self._step_s)

    def time(self, launch: object, first: int, samples: int, launches_per_sample: int) -> list[float]:
        count = samples * launches_per_sample
        self.launched += range(first, first + count)
        self.now += count * self._launch_s
        return [self._launch_s * launches_per_sample] * samples


@pytest.mark.parametrize("step_s", [1e-3, 0.02, 0.1])
@pytest.mark.parametrize("launch_s", [2e-6, 1e-3, 0.03, 0.7])
def test_a_launch_costs_power_times_time_however_coarse_the_counter_is(step_s: float, launch_s: float) -> None:
    machine = Machine(step_s, launch_s)
    meter = EnergyMeter(machine, step_of(machine, machine.clock))
    batch = 50 if launch_s < 1e-4 else 1
    found = meter.of_launches(print, machine, 7, batch, launch_s * batch, machine.clock)
    assert found.joules / found.seconds == pytest.approx(WATTS, rel=max(found.error, 0.01))
    assert found.joules / found.launches == pytest.approx(WATTS * launch_s, rel=0.15)
    assert found.error <= 0.11
    assert machine.launched == list(range(7, 7 + found.launches)), "operands rotate on from where sampling ended"


def test_a_counters_steps_are_measured() -> None:
    machine = Machine(0.02)
    assert step_of(machine, machine.clock) == pytest.approx(0.02, rel=0.01)


def test_a_counter_that_stands_still_is_none() -> None:
    machine = Machine(1e9)
    with pytest.raises(Unavailable, match="did not change"):
        step_of(machine, machine.clock)


def zone(folder: Path, number: str, name: str, microjoules: int) -> Path:
    made = folder / f"intel-rapl:{number}"
    made.mkdir()
    (made / "name").write_text(f"{name}\n")
    (made / "energy_uj").write_text(f"{microjoules}\n")
    (made / "max_energy_range_uj").write_text("1000000\n")
    return made / "energy_uj"


def test_packages_and_their_memory_are_added_and_nothing_twice(tmp_path: Path) -> None:
    counted = [
        zone(tmp_path, "0", "package-0", 10),
        zone(tmp_path, "1", "package-1", 20),
        zone(tmp_path, "0:1", "dram", 5),
    ]
    for number, name in (("0:0", "core"), ("2", "psys")):
        zone(tmp_path, number, name, 0).write_text("no number")
    counter = PackageEnergy(tmp_path)
    for file in counted:
        file.write_text(str(int(file.read_text()) + 400_000))
    assert counter.joules() == pytest.approx(1.2)
    assert counter.name == "RAPL package-0, dram, package-1"


def test_a_counter_that_begins_again_loses_nothing(tmp_path: Path) -> None:
    file = zone(tmp_path, "0", "package-0", 900_000)
    counter, seen = PackageEnergy(tmp_path), []
    for now in (950_000, 50_000, 40_000):
        file.write_text(str(now))
        seen.append(round(counter.joules(), 6))
    assert seen == [0.05, 0.15, 1.14]


def test_why_there_is_none_names_the_machine_or_who_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="no energy counter"):
        PackageEnergy(tmp_path)
    zone(tmp_path, "0", "package-0", 1)
    read = Path.read_text

    def refused(path: Path, *how: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError
        return read(path)

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(Unavailable, match=r"only root may read .*chmod a\+r"):
        PackageEnergy(tmp_path)


def test_a_gpus_counter_is_its_own_or_none() -> None:
    class Manager:
        def energy_j(self, uuid: str) -> float | None:
            return {"GPU-1": 5.5, "MIG-1": 5.5}.get(uuid)

    assert GpuEnergy(Manager(), "GPU-1").joules() == 5.5
    for uuid, why in (("MIG-1", "slice"), ("GPU-2", "no energy counter")):
        with pytest.raises(Unavailable, match=why):
            GpuEnergy(Manager(), uuid)


def test_a_device_without_a_counter_says_so_once_for_all_cases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(telemetry.PackageEnergy.__init__, "__defaults__", (tmp_path,))
    telemetry.energy_meter.cache_clear()
    try:
        assert isinstance(telemetry.energy_meter(Device("cpu")), Unavailable)
    finally:
        telemetry.energy_meter.cache_clear()
