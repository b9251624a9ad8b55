"""Every check of the doctor on made-up machines: fit for measuring, except for what a line of the table changes."""

import dataclasses
import os
import platform
from collections.abc import Callable
from typing import Any

import pytest

from pyperf_suite.hardware.devices import Gpu, Unavailable
from pyperf_suite.hardware.software import Compiler, Copy
from pyperf_suite.node.check import Check, of_part
from pyperf_suite.node.doctor import gpu, host, load, software
from pyperf_suite.node.doctor.software import NCCL, Opened
from pyperf_suite.workloads.backends import CorePeak

GIB = 2**30
CPUS, NODES = "sys/devices/system/cpu", "sys/devices/system/node"
QUOTA, STATUS = "sys/fs/cgroup/cpu.max", "proc/self/status"
# Four cores on one socket, bare metal, nothing to complain of.
SERVER = {
    "proc/cpuinfo": "processor : 0\nmodel name : A CPU\nflags : fpu avx2\n",
    STATUS: "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n",
    "proc/self/cgroup": "0::/\n",
    f"{CPUS}/online": "0-3\n",
    f"{CPUS}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPUS}/intel_pstate/no_turbo": "1\n",
    f"{NODES}/node0/cpulist": "0-3\n",
    host.CLOCK_SOURCE: "tsc\n",
    **{f"{CPUS}/cpu{n}/topology/thread_siblings_list": f"{n}\n" for n in range(4)},
}
TWO_THREADS = {f"{CPUS}/cpu{n}/topology/thread_siblings_list": f"{n % 2},{n % 2 + 2}\n" for n in range(4)}
TWO_NODES = {f"{NODES}/node0/cpulist": "0-1\n", f"{NODES}/node1/cpulist": "2-3\n"}
H100 = gpu.GpuReading(
    Gpu(0, "NVIDIA H100 80GB HBM3", "GPU-1", (9, 0), 132, 80 * GIB),
    values={
        "power_limit_w": 700.0,
        "ecc": True,
        "persistence_mode": True,
        "application_sm_clock_mhz": 1980,
        "maximum_sm_clock_mhz": 1980,
        "sm_clock_mhz": 345,
        "temperature_celsius": 34,
        "throttle_reasons": [],
        "compute_mode": "default",
        "default_power_limit_w": 700.0,
        "default_sm_clock_mhz": 1980,
        "mig": False,
        "uncorrected_errors": 0,
        "remapping": "none",
        "slowdown_celsius": 87,
    },
    processes=(),
)
CPU_TORCH = {"version": "2.13.0+cpu", "cuda": None, "threads": 2, "opened": {}}
PACKAGES = {"pytest": "9.2.0", "pytest-benchmark": "5.3.1"}
WHEEL = Opened(Copy("/env/nvidia/nccl/lib/libnccl.so.2", "wheel"), {"version": "2.27.5"})
SYSTEM = Opened(Copy("/usr/lib/libnccl.so.2", "loader"), {"version": "2.18.3"})
STRAY = Opened(Copy("/opt/conda/lib/libnccl.so.2", "elsewhere"), {"version": "2.21.5"})
NAMED = Opened(Copy("/mine/libnccl.so.2", NCCL.override), {"version": "2.30.1"})
RELATIVE = Opened(Copy("libnccl.so.2", NCCL.override), {"version": "2.30.1"})
NVRTC_13 = Opened(Copy("/env/nvidia/cu13/lib/libnvrtc.so.13", "wheel"), {"version": "13.0"})
NVRTC_12 = Opened(Copy("/usr/lib/libnvrtc.so.12", "loader"), {"version": "12.8"})
GPU_TORCH = {"version": "2.13.0", "cuda": "13.0", "threads": 8, "opened": {}, "devices": ["ok"]}
ABSENT = Unavailable("libcuda.so.1 cannot be opened, so there is no NVIDIA driver here")


def broken(opened: Opened) -> Opened:
    return Opened(opened.copy, {"error": "OSError: file too short"})


def of_gpu(
    uuid: str = "GPU-1", capability: tuple[int, int] = (9, 0), processes: Any = (), **values: Any
) -> list[Check]:
    """The checks of that H100, of which NVML says something else."""
    described = dataclasses.replace(H100.gpu, uuid=uuid, compute_capability=capability)
    return gpu.reading_checks(0, gpu.GpuReading(described, {**H100.values, **values}, processes))


def of_software(gpus: int = 0, torch: Any = CPU_TORCH, driver_cuda: Any = None, **changed: Any) -> list[Check]:
    """A machine where all is installed, apart from what is changed."""
    copies, in_process = changed.get("copies", {}), (torch or {}).get("opened", {})
    checks = {
        "Python": software.python(changed.get("python", (3, 11, 7))),
        "pytest-benchmark": software.pytest_plugin(changed.get("packages", PACKAGES)),
        "C++ extension": software.extension(changed.get("extension")),
        "C++ compiler": software.compiler(changed.get("compiler", Compiler("c++", "c++ 12.2.0", requested=False))),
        **{
            wanted.name: software.library(wanted, copies.get(wanted.name, ()), in_process, gpus, driver_cuda)
            for wanted in (software.NVRTC, NCCL)
        },
        "torch": software.torch(torch, gpus, driver_cuda),
        "triton": software.triton(changed.get("triton", "3.7.1"), gpus),
    }
    return of_part("Software", checks)


def with_gpu(**changed: Any) -> list[Check]:
    usual = {"gpus": 1, "driver_cuda": "13.0", "torch": GPU_TORCH, "copies": {"NVRTC": (NVRTC_13,)}}
    return of_software(**(usual | changed))


def of_free_memory(**figures: Any) -> list[Check]:
    return of_part("cuda:0", {"memory": software.gpu_memory(**figures)})


MEMORY = {
    "memory": host.available,
    "swap": host.swap,
    "huge pages": host.huge_pages,
    "/dev/shm": host.shared,
    "locked memory": host.locked,
}
LOAD = {
    "stolen time": load.stolen,
    "other processes": load.others,
    "one busy thread": load.whole_core,
    "load average": load.average,
}


def by_figures(**figures: Any) -> list[Check]:
    """Checks of memory and load, by the figures that each is given."""
    judges: dict[str, Callable[..., Check]] = {**MEMORY, **LOAD}
    return of_part("host", {what: judges[what](*given) for what, given in figures.items()})


LINES: list[tuple[Any, str, dict[str, Any], str, str]] = [
    ("files", "governor", {f"{CPUS}/cpu0/cpufreq/scaling_governor": "powersave"}, "caution", "powersave"),
    ("files", "turbo", {f"{CPUS}/intel_pstate/no_turbo": "0"}, "caution", "depend on heat"),
    ("files", "hyper-threads", TWO_THREADS, "caution", "threads of 2 cores"),
    ("files", "hyper-threads", TWO_THREADS, "caution", "taskset -c 0-1 pyperf-suite run"),
    ("files", "CPU quota", {QUOTA: "50000 100000"}, "failed", "0.5 of a core"),
    ("files", "CPU quota", {QUOTA: "250000 100000"}, "caution", "2.5 cores' time on 4 CPUs"),
    ("files", "CPU quota", {QUOTA: "400000 100000"}, "ok", "none that binds"),
    ("files", "CPUs allowed", {STATUS: "Cpus_allowed_list: 1-2"}, "ok", "1-2, 2 of 4"),
    ("files", "NUMA", TWO_NODES, "caution", "2 nodes"),
    ("files", "NUMA", TWO_NODES | {"proc/sys/kernel/numa_balancing": "1"}, "caution", "moves memory between them"),
    ("files", "NUMA", TWO_NODES | {STATUS: "Cpus_allowed_list: 2-3\nMems_allowed_list: 1"}, "ok", "node 1 of 2"),
    ("files", "clock", {host.CLOCK_SOURCE: "hpet"}, "caution", "hpet"),
    ("files", "machine", {"sys/hypervisor/type": "xen"}, "caution", "a virtual machine (xen)"),
    ("files", "machine", {".dockerenv": ""}, "ok", "in a container (docker)"),
    (by_figures, "stolen time", {"stolen time": (0.0,)}, "ok", "0.0%"),
    (by_figures, "stolen time", {"stolen time": (0.05,)}, "caution", "5.0%"),
    (by_figures, "stolen time", {"stolen time": (0.3,)}, "failed", "30.0%"),
    (by_figures, "stolen time", {"stolen time": (None,)}, "unknown", "not reported"),
    (by_figures, "other processes", {"other processes": (8, 0.01, ())}, "ok", "0% of 8 CPUs"),
    (by_figures, "other processes", {"other processes": (8, 1.0, [("java", 12, 0.9)])}, "caution", "java (12) 11%"),
    (by_figures, "other processes", {"other processes": (8, 7.0, ())}, "failed", "88% of 8 CPUs"),
    (by_figures, "other processes", {"other processes": (8, None, ())}, "unknown", "not reported"),
    (by_figures, "one busy thread", {"one busy thread": (0.5, 1.0, 0.016)}, "caution", "got 50% of a core"),
    (by_figures, "one busy thread", {"one busy thread": (0.99, 1.0, 0.004)}, "ok", "longest interruption 4 ms"),
    (by_figures, "load average", {"load average": ((0.0, 6.0, 6.0), 8)}, "caution", "was busy"),
    (by_figures, "load average", {"load average": ((0.1, 0.2, 0.3), 8)}, "ok", "0.10, 0.20, 0.30"),
    (by_figures, "load average", {"load average": (None, 8)}, "unknown", "not reported"),
    (by_figures, "memory", {"memory": (GIB // 2, GIB)}, "failed", "of a limit of 1 GiB"),
    (by_figures, "memory", {"memory": (2 * GIB, None)}, "caution", "2 GiB"),
    (by_figures, "memory", {"memory": (64 * GIB, None)}, "ok", "64 GiB"),
    (by_figures, "swap", {"swap": (0, 0, 900 << 12)}, "failed", "3.516 MiB went"),
    (by_figures, "swap", {"swap": (8 * GIB, GIB, 0)}, "caution", "1 GiB of 8 GiB"),
    (by_figures, "swap", {"swap": (8 * GIB, 0, 0)}, "ok", "of 8 GiB"),
    (by_figures, "swap", {"swap": (0, 0, 0)}, "ok", "none"),
    (by_figures, "huge pages", {"huge pages": ("never",)}, "caution", "4 KiB"),
    (by_figures, "huge pages", {"huge pages": ("madvise",)}, "ok", "madvise"),
    (by_figures, "huge pages", {"huge pages": (None,)}, "unknown", "not reported"),
    (by_figures, "/dev/shm", {"/dev/shm": (2**26, 2**26)}, "failed", "64 MiB"),
    (by_figures, "/dev/shm", {"/dev/shm": (32 * GIB, GIB // 2)}, "caution", "512 MiB free of 32 GiB"),
    (by_figures, "/dev/shm", {"/dev/shm": (32 * GIB, 32 * GIB)}, "ok", "32 GiB free"),
    (by_figures, "/dev/shm", {"/dev/shm": (None, None)}, "failed", "there is none"),
    (by_figures, "locked memory", {"locked memory": (65536, True)}, "caution", "network card"),
    (by_figures, "locked memory", {"locked memory": (65536, False)}, "unknown", "no InfiniBand"),
    (by_figures, "locked memory", {"locked memory": (None, True)}, "ok", "no limit"),
    (of_gpu, "power limit", {"power_limit_w": 400.0}, "caution", "43% below its default of 700 W"),
    (of_gpu, "clocks", {"application_sm_clock_mhz": 1200}, "caution", "held to 1200 MHz"),
    (of_gpu, "clocks", {"application_sm_clock_mhz": None}, "ok", "at most 1980 MHz"),
    (of_gpu, "throttling", {"throttle_reasons": ["power cap"]}, "caution", "power cap"),
    (of_gpu, "throttling", {"throttle_reasons": ["power cap", "hardware slowdown"]}, "failed", "hardware slowdown"),
    (of_gpu, "temperature", {"temperature_celsius": 80}, "failed", "slowed down at 87"),
    (of_gpu, "temperature", {"temperature_celsius": 72}, "caution", "warm before"),
    (of_gpu, "compute mode", {"compute_mode": "prohibited"}, "failed", "no process may compute"),
    (of_gpu, "compute mode", {"compute_mode": "exclusive process"}, "caution", "one process at a time"),
    (of_gpu, "persistence", {"persistence_mode": False}, "caution", "set up anew"),
    (of_gpu, "MIG", {"mig": True}, "failed", "cut up"),
    (of_gpu, "MIG", {"uuid": "MIG-1"}, "caution", "a slice of a GPU"),
    (of_gpu, "ECC", {"uncorrected_errors": 3}, "failed", "3 uncorrected errors"),
    (of_gpu, "ECC", {"remapping": "pending"}, "failed", "wait to be replaced"),
    (of_gpu, "ECC", {"ecc": False}, "ok", "off"),
    (of_gpu, "other processes", {"processes": ((41, GIB),)}, "failed", "41 (1 GiB)"),
    (of_gpu, "kind", {"capability": (7, 0)}, "caution", "own kernels from 8.0"),
    (of_software, "Python", {"python": (3, 9, 1)}, "failed", "3.10 or newer"),
    (of_software, "Python", {}, "ok", platform.python_implementation()),
    (
        of_software,
        "pytest-benchmark",
        {"packages": PACKAGES | {"pytest-benchmark": None}},
        "failed",
        "pip install pytest-benchmark",
    ),
    (of_software, "C++ extension", {"extension": "It does not load"}, "failed", "It does not load"),
    (of_software, "C++ compiler", {"compiler": None}, "caution", "none on the PATH"),
    (of_software, "C++ compiler", {"compiler": Compiler("icpx", None, requested=True)}, "caution", "CXX=icpx cannot"),
    (of_software, "triton", {"triton": None, "gpus": 1}, "caution", "pip install triton"),
    (of_software, "torch", {"torch": None}, "failed", "not installed"),
    (of_software, "torch", {"torch": {"error": "ended by signal 11"}}, "failed", "does not import: ended by signal 11"),
    (with_gpu, "torch", {}, "ok", "a sum on each GPU is right"),
    (with_gpu, "torch", {"torch": GPU_TORCH | {"devices": []}}, "failed", "it sees 0 of 1 GPUs"),
    (with_gpu, "torch", {"torch": GPU_TORCH | {"devices": ["no image"]}}, "failed", "cuda:0: no image"),
    (with_gpu, "torch", {"torch": GPU_TORCH | {"cuda": None}}, "failed", "but there is a GPU"),
    (with_gpu, "torch", {"torch": GPU_TORCH | {"devices": ["CUDA out of memory"]}}, "failed", "fills the GPU"),
    # CUDA's minor versions are compatible (CUDA Compatibility guide), so 13.2 on a driver for 13.0 is fine.
    (with_gpu, "torch", {"torch": GPU_TORCH | {"cuda": "13.2"}}, "ok", "built for CUDA 13.2"),
    (with_gpu, "torch", {"driver_cuda": "12.4"}, "failed", "13.0, 8 threads, but the driver supports CUDA up to 12.4"),
    (with_gpu, "NVRTC", {"driver_cuda": "12.4"}, "failed", "up to 12.4 and may refuse what NVRTC 13.0"),
    (with_gpu, "NVRTC", {}, "ok", f"13.0 {NVRTC_13.copy.path} (wheel), the first"),
    (with_gpu, "NVRTC", {"copies": {"NVRTC": (NVRTC_13, NVRTC_12)}}, "ok", "2 versions: 13.0 "),
    (with_gpu, "NVRTC", {"copies": {"NVRTC": (NVRTC_13, NVRTC_12)}}, "ok", f"Opened: {NVRTC_13.copy.path}"),
    (of_free_memory, "memory", {"free_bytes": 79 * GIB, "total_bytes": 80 * GIB}, "ok", "79 GiB free"),
    (of_free_memory, "memory", {"free_bytes": 2 * GIB, "total_bytes": 80 * GIB}, "failed", "2 GiB free of 80"),
    (of_software, "NVRTC", {}, "unknown", "no GPU to use it on"),
    (of_software, "NVRTC", {"gpus": 1}, "failed", "pip install nvidia-cuda-nvrtc"),
    (of_software, "NCCL", {"copies": {"NCCL": (WHEEL, SYSTEM)}}, "ok", "2.18.3 /usr/lib/libnccl.so.2 (loader)"),
    (of_software, "NCCL", {"copies": {"NCCL": (WHEEL, STRAY)}}, "ok", "(elsewhere, where nothing looks)"),
    (of_software, "NCCL", {"copies": {"NCCL": (WHEEL, SYSTEM)}}, "ok", f"Opened: {WHEEL.copy.path}, the first"),
    (of_software, "NCCL", {"copies": {"NCCL": (broken(WHEEL), SYSTEM)}}, "ok", "does not open (OSError: file too"),
    (of_software, "NCCL", {"copies": {"NCCL": (broken(WHEEL), SYSTEM)}}, "ok", f"Opened: {SYSTEM.copy.path}"),
    (
        with_gpu,
        "NCCL",
        {"copies": {"NCCL": (WHEEL,)}, "torch": GPU_TORCH | {"opened": {"libnccl": "/env/torch/libnccl.so.2"}}},
        "ok",
        "because importing torch has it",
    ),
    (of_software, "NCCL", {"copies": {"NCCL": (NAMED, WHEEL)}}, "ok", "libnccl.so.2, because PYPERF_LIBNCCL names it"),
    (of_software, "NCCL", {"copies": {"NCCL": (broken(NAMED), WHEEL)}}, "failed", "unset PYPERF_LIBNCCL"),
    (of_software, "NCCL", {"copies": {"NCCL": (RELATIVE, WHEEL)}}, "failed", "absolute path"),
]


@pytest.mark.parametrize(("checks", "name", "changed", "verdict", "words"), LINES)
def test_what_differs_from_a_machine_that_is_fit_is_judged_with_what_to_do(
    machine, checks, name, changed, verdict, words
):
    found = host.cpu_checks(machine(SERVER | changed)) if checks == "files" else checks(**changed)
    [check] = [each for each in found if each.what == name]
    assert check.verdict == verdict, check
    assert words in "\n".join(map(str, (check.found, check.why, check.advice, check.command)))
    assert bool(check.advice) == check.needs_attention


def test_a_machine_that_is_fit_has_nothing_but_ok(machine):
    checks = [*host.cpu_checks(machine(SERVER)), *of_gpu()]
    assert {check.verdict for check in checks} == {"ok"}
    assert {check.verdict for check in of_software()} == {"ok", "unknown"}


def test_what_is_not_reported_is_no_fault_of_the_machine(machine):
    assert {check.verdict for check in host.cpu_checks(machine({}))} == {"ok", "unknown"}
    found = {check.what: check.verdict for check in gpu.reading_checks(0, gpu.GpuReading(H100.gpu))}
    assert (found.pop("kind"), {*found.values()}) == ("ok", {"unknown"})
    assert gpu.manager_check("libnvidia-ml cannot be opened").verdict == "caution"


def peak(workers: int = 1, flop_per_s: float = 100e9, clock_hz: float = 3e9) -> CorePeak:
    return CorePeak("avx512", "fma", "float32", workers, flop_per_s, clock_hz, idle_clock_hz=3e9)


@pytest.mark.parametrize(
    ("peaks", "verdict", "words"),
    [
        ((peak(), peak(2)), "ok", "float32 100 GFLOP/s a core (avx512 fma, 33 a cycle at 3.00 GHz)"),
        ((peak(clock_hz=2.5e9),), "ok", "lowers the clock from 3.00 GHz"),
        ((peak(), peak(2, 96e9)), "ok", "GFLOP/s"),
        ((peak(), peak(2, 60e9)), "caution", "60% of its float32 rate"),
        ((), "unknown", "not built"),
    ],
)
def test_a_peak_is_judged_by_what_all_cores_reach_together(peaks, verdict, words):
    check = host.peak_check(peaks)
    assert (check.verdict, words in f"{check.found} {check.why}") == (verdict, True)
    assert ("lowers" in str(check.found)) == (words.startswith("lowers"))


def test_a_gpu_on_the_bus_that_cuda_cannot_use_fails(machine, monkeypatch):
    devices = {"0000:17:00.0": "0x030200\n", "0000:18:00.0": "0x068000\n"}
    folder = "sys/bus/pci/devices"
    vendors = {f"{folder}/{name}/vendor": "0x10de\n" for name in devices}
    files = machine(vendors | {f"{folder}/{name}/class": kind for name, kind in devices.items()})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [check], _, _ = gpu.gpu_checks(files, ABSENT, ABSENT)
    assert check.verdict == "failed"
    assert str(check.found).startswith("1 NVIDIA on the PCI bus, but libcuda.so.1 cannot be opened")
    assert "CUDA_VISIBLE_DEVICES=''" in str(check.found)


def test_huge_pages_are_read_from_the_kernels_files(machine):
    files = machine({"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"})
    found = {check.what: check.verdict for check in host.memory_checks(files, 0)}
    assert (found.keys(), found["huge pages"]) == (MEMORY.keys(), "caution")


def test_the_greediest_processes_and_the_interruptions_of_a_busy_thread_are_known():
    before = {11: ("editor", 1.0), 12: ("trainer", 3.0), os.getpid(): ("python", 0.0)}
    after = {11: ("editor", 1.1), 12: ("trainer", 3.9), os.getpid(): ("python", 0.5), 13: ("born", 0.3)}
    found = [(name, number, pytest.approx(cores)) for name, number, cores in load.consumers(before, after, 1.0)]
    assert found == [("trainer", 12, 0.9), ("born", 13, 0.3), ("editor", 11, 0.1)]
    times = iter([0.0, 1e-6, 2e-6, 0.010002, 0.010003, 2.0])
    assert load.keep_busy(1.0, clock=lambda: next(times)) == pytest.approx(2.0 - 0.010003)


@pytest.mark.parametrize(
    ("name", "folder", "writable", "verdict", "words"),
    [
        ("results", "new/deeper", None, "ok", "(not there yet)"),
        ("results", "", False, "failed", "cannot be written"),
        ("kernel cache", "", False, "caution", "cannot be written"),
        ("results", "file", None, "failed", "is no folder"),
        ("results", "x" * 5000, None, "failed", ""),  # a name that no system takes
    ],
)
def test_a_folder_is_judged_by_itself_or_by_its_nearest_parent(tmp_path, name, folder, writable, verdict, words):
    (tmp_path / "file").write_text("")
    may = None if writable is None else lambda path: writable
    check = host.place_check(str(tmp_path / folder), is_cache=name == "kernel cache", writable=may)
    assert (check.verdict, words in str(check.found)) == (verdict, True)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
