"""What the kernel tells of the CPU, judged."""

from __future__ import annotations

import dataclasses

import pytest

from pyperf_suite.node.doctor import host
from pyperf_suite.workloads.backends import CorePeak

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
# Two cores of two threads each on one socket, bare metal, nothing to complain of but the threads.
SERVER = {
    "proc/cpuinfo": "processor : 0\nmodel name : A CPU\nflags : fpu avx2\n",
    "proc/self/status": "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n",
    "proc/self/cgroup": "0::/\n",
    f"{CPUS}/online": "0-3\n",
    f"{CPUS}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPUS}/intel_pstate/no_turbo": "1\n",
    f"{NODES}/node0/cpulist": "0-3\n",
    host.CLOCK_SOURCE: "tsc\n",
    **{f"{CPUS}/cpu{n}/topology/thread_siblings_list": f"{n % 2},{n % 2 + 2}\n" for n in range(4)},
}
OWN_CORES = {f"{CPUS}/cpu{n}/topology/thread_siblings_list": f"{n}\n" for n in range(4)}
FAR_NODE = {f"{NODES}/node0/cpulist": "0-1\n", f"{NODES}/node1/cpulist": "2-3\n"}


def verdicts(machine, **contents):
    return {check.name: check for check in host.cpu_checks(host.read_cpu(machine(SERVER | contents)))}


def test_a_server_set_up_for_measuring_has_nothing_but_ok(machine):
    checks = verdicts(machine, **OWN_CORES)
    assert {check.verdict for check in checks.values()} == {"ok"}


@pytest.mark.parametrize(
    ("name", "contents", "verdict", "words"),
    [
        ("governor", {f"{CPUS}/cpu0/cpufreq/scaling_governor": "powersave"}, "warning", "powersave"),
        ("turbo", {f"{CPUS}/intel_pstate/no_turbo": "0"}, "warning", "depend on heat"),
        ("hyper-threads", {}, "warning", "threads of 2 cores"),
        ("CPU quota", {"sys/fs/cgroup/cpu.max": "50000 100000"}, "problem", "0.5 of a core"),
        ("CPU quota", {"sys/fs/cgroup/cpu.max": "250000 100000"}, "warning", "2.5 cores' time on 4 CPUs"),
        ("CPU quota", {"sys/fs/cgroup/cpu.max": "400000 100000"}, "ok", "none that binds"),
        ("CPUs allowed", {"proc/self/status": "Cpus_allowed_list: 1-2"}, "ok", "1-2, 2 of 4"),
        ("NUMA", FAR_NODE, "warning", "2 nodes"),
        ("NUMA", FAR_NODE | {"proc/sys/kernel/numa_balancing": "1"}, "warning", "moves memory between them"),
        ("NUMA", FAR_NODE | {"proc/self/status": "Cpus_allowed_list: 2-3\nMems_allowed_list: 1"}, "ok", "node 1 of 2"),
        ("clock", {host.CLOCK_SOURCE: "hpet"}, "warning", "hpet"),
        ("machine", {"sys/hypervisor/type": "xen"}, "warning", "a virtual machine (xen)"),
        ("machine", {".dockerenv": ""}, "ok", "in a container (docker)"),
    ],
)
def test_each_setting_is_judged_by_what_it_does_to_measurements(machine, name, contents, verdict, words):
    check = verdicts(machine, **contents)[name]
    assert check.verdict == verdict
    assert words in check.found
    assert bool(check.advice) == (verdict != "ok")


def test_pinning_to_one_thread_of_each_core_is_offered_as_a_command(machine):
    assert verdicts(machine)["hyper-threads"].command == "taskset -c 0-1 pyperf-suite run"


def test_a_kernel_that_tells_nothing_is_no_fault_of_the_machine(machine):
    checks = host.cpu_checks(host.read_cpu(machine({})))
    assert {check.verdict for check in checks} <= {"ok", "not applicable"}


def test_a_clock_in_coarse_steps_is_told(machine):
    readings = dataclasses.replace(host.read_cpu(machine(SERVER)), clock_resolution_s=1e-3)
    assert host.clock(readings).verdict == "warning"


def peak(workers: int = 1, flop_per_s: float = 100e9, clock_hz: float = 3e9, unit: str = "fma") -> CorePeak:
    return CorePeak("avx512", unit, "float32", workers, flop_per_s, clock_hz, idle_clock_hz=3e9)


def test_the_peak_names_rate_and_clock() -> None:
    check = host.peak_check((peak(), peak(2)))
    assert (check.name, check.verdict) == ("peak", "ok")
    assert "100 GFLOP/s" in check.found
    assert "3.00 GHz" in check.found
    assert "lowers" not in check.found


def test_a_clock_that_wide_vectors_lower_is_told() -> None:
    check = host.peak_check((peak(clock_hz=2.5e9),))
    assert check.verdict == "ok"
    assert "lowers the clock from 3.00 GHz" in check.found


@pytest.mark.parametrize(("among_all", "verdict"), [(96e9, "ok"), (60e9, "warning")])
def test_cores_that_hold_each_other_up_are_a_warning(among_all: float, verdict: str) -> None:
    assert host.peak_check((peak(), peak(2, among_all))).verdict == verdict


def test_without_our_kernels_there_is_no_peak() -> None:
    assert host.peak_check(()).verdict == "not applicable"
