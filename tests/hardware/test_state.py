"""The condition of the machine that goes into each Record."""

from __future__ import annotations

import json
import platform
import socket
from pathlib import Path

from pyperf_suite.hardware import machine as module
from pyperf_suite.hardware.devices import CudaDriver, Device, Unavailable
from pyperf_suite.hardware.nvml import Nvml

CPUS = "sys/devices/system/cpu"


def test_state_is_plain_json_with_versions_and_kernel_settings():
    found = module.state(Device("cpu"))
    assert json.loads(json.dumps(found)) == found
    assert found["python"].endswith(platform.python_version())
    assert found["packages"]["numpy"]
    assert found["kernel"].startswith(platform.system())


def test_state_names_neither_the_host_nor_anyones_folder():
    text = json.dumps(module.state(Device("cpu")))
    assert str(Path.home()) not in text.split('"')
    assert socket.gethostname() not in text.split('"')


def test_power_and_scheduling_settings_are_read_from_the_kernel(machine):
    files = machine(
        {
            f"{CPUS}/cpu0/cpufreq/scaling_governor": "powersave\n",
            f"{CPUS}/cpu1/cpufreq/scaling_governor": "performance\n",
            f"{CPUS}/cpu2/cpufreq/scaling_governor": "performance\n",
            f"{CPUS}/intel_pstate/no_turbo": "1\n",
            f"{CPUS}/smt/control": "on\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            ".dockerenv": "",
        }
    )
    found = module.kernel_state(files, frozenset({"hypervisor"}))
    assert found.pop("kernel")
    assert found == {
        "governors": ["performance", "powersave"],
        "turbo": False,
        "smt": "on",
        "transparent_hugepages": "madvise",
        "cpu_quota_cores": 1.5,
        "hypervisor": "unnamed",
        "container": "docker",
    }


def test_boost_on_amd_is_turbo(machine):
    assert module.kernel_state(machine({f"{CPUS}/cpufreq/boost": "1"}), frozenset())["turbo"] is True


def test_what_the_kernel_does_not_tell_is_none(machine):
    found = module.kernel_state(machine({}), frozenset())
    assert found["governors"] == []
    unknown = {name for name, value in found.items() if value is None}
    assert unknown == {"turbo", "smt", "transparent_hugepages", "cpu_quota_cores", "hypervisor", "container"}


def test_the_compiler_is_read_from_the_note_it_leaves_in_a_binary(tmp_path):
    binary = tmp_path / "extension.so"
    binary.write_bytes(b"\x7fELF\0GCC: (Debian 12.2.0-14) 12.2.0\0.shstrtab")
    assert module.compiler_note(binary) == "GCC: (Debian 12.2.0-14) 12.2.0"
    binary.write_bytes(b"\x7fELF\0Ubuntu clang version 18.1.3 (1ubuntu1)\0")
    assert module.compiler_note(binary) == "clang version 18.1.3"
    binary.write_bytes(b"\x7fELF")
    assert module.compiler_note(binary) is None
    assert module.compiler_note(tmp_path / "none.so") is None


def test_a_gpus_state_has_its_unit_driver_and_settings(monkeypatch, fake_cuda, fake_nvml):
    monkeypatch.setattr(module, "driver", lambda: CudaDriver(fake_cuda(["NVIDIA H200"])))
    monkeypatch.setattr(module, "nvml", lambda: Nvml(fake_nvml()))
    found = module.state(Device("cuda", 0))["gpu"]
    assert found["uuid"].startswith("GPU-")
    assert (found["cuda"], found["driver"], found["power_limit_w"]) == ("13.1", "580.82.07", 700.0)
    assert "unavailable" not in found


def test_a_gpus_state_without_nvml_says_so_and_keeps_the_rest(monkeypatch, fake_cuda):
    monkeypatch.setattr(module, "driver", lambda: CudaDriver(fake_cuda(["NVIDIA H200"])))
    monkeypatch.setattr(module, "nvml", lambda: Unavailable("libnvidia-ml.so.1 cannot be opened"))
    found = module.gpu_state(0)
    assert found["uuid"].startswith("GPU-")
    assert found["unavailable"] == "libnvidia-ml.so.1 cannot be opened"
