"""Memory and CPU time that control groups of both versions leave: on a host, in a container, in a namespace."""

from __future__ import annotations

import psutil
import pytest

from pyperf_suite.hardware import memory

NO_LIMIT_V1 = "9223372036854771712"
CGROUP = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "contents", "cores"),
    [
        ("0::/", {"cpu.max": "150000 100000\n"}, 1.5),
        # The narrowest between the process and the root holds.
        ("0::/a.slice/job", {"a.slice/cpu.max": "200000 100000", "a.slice/job/cpu.max": "max 100000"}, 2.0),
        # Version 1, and the path is the host's.
        (
            "5:cpu,cpuacct:/docker/0123abcd\n1:name=systemd:/docker/0123abcd\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "400000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            4.0,
        ),
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "100000 0"}, None),
        ("0::/", {"cpu.max": "lots"}, None),
        ("no colons here", {"cpu.max": "100000 100000"}, None),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_narrowest_quota_is_found_and_none_is_made_up(machine, groups, contents, cores):
    files = machine({"proc/self/cgroup": groups, **{f"{CGROUP}/{name}": text for name, text in contents.items()}})
    assert memory.cpu_quota_cores(files) == cores


@pytest.mark.parametrize(
    ("groups", "contents", "left_bytes"),
    [
        # Inactive page cache counts as free.
        (
            "0::/",
            {
                "memory.max": "1000000",
                "memory.current": "700000",
                "memory.stat": "anon 300000\nfile 400000\ninactive_file 250000\n",
            },
            550_000,
        ),
        # Version 1: the process's own group limits it, its root does not.
        (
            "4:memory:/job\n",
            {
                "memory/memory.limit_in_bytes": NO_LIMIT_V1,
                "memory/memory.usage_in_bytes": "1",
                "memory/job/memory.limit_in_bytes": "5000",
                "memory/job/memory.usage_in_bytes": "4000",
                "memory/job/memory.stat": "total_inactive_file 500\n",
            },
            1500,
        ),
        ("0::/", {"memory.max": "1000", "memory.current": "1200"}, 0),
        ("0::/", {"memory.max": "max", "memory.current": "5"}, None),
    ],
)
def test_what_a_group_leaves_is_its_limit_without_what_is_in_use(machine, groups, contents, left_bytes):
    files = machine({"proc/self/cgroup": groups, **{f"{CGROUP}/{name}": text for name, text in contents.items()}})
    assert memory.memory_available_bytes(files) == left_bytes


def test_the_narrowest_memory_limit_holds_and_no_limit_of_version_1_is_none(machine):
    files = {"proc/self/cgroup": "0::/job\n", f"{CGROUP}/memory.max": "max", f"{CGROUP}/job/memory.max": "4096"}
    assert memory.memory_limit_bytes(machine(files)) == 4096
    files = {"proc/self/cgroup": "3:memory:/\n", f"{CGROUP}/memory/memory.limit_in_bytes": NO_LIMIT_V1}
    assert memory.memory_limit_bytes(machine(files)) is None


@pytest.mark.parametrize(("limit_bytes", "used_bytes"), [(3_000_000, 1_000_000), (1 << 60, 0)])
def test_what_can_be_taken_is_what_the_group_leaves_of_what_the_machine_has(machine, limit_bytes, used_bytes):
    group = {f"{CGROUP}/memory.max": str(limit_bytes), f"{CGROUP}/memory.current": str(used_bytes)}
    available = memory.available_bytes(machine({"proc/self/cgroup": "0::/", **group}))
    assert 0 < available <= psutil.virtual_memory().total
    assert available <= limit_bytes - used_bytes
    assert 0 < memory.available_bytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("groups", "contents", "seconds"),
    [
        (
            "0::/job",
            {"cpu.stat": "throttled_usec 2500000\n", "job/cpu.stat": "nr_throttled 3\nthrottled_usec 500000\n"},
            2.5,
        ),
        ("5:cpu:/\n", {"cpu/cpu.stat": "nr_periods 7\nthrottled_time 1500000000\n"}, 1.5),
        ("0::/", {"cpu.stat": "usage_usec 5\n"}, None),
    ],
)
def test_the_time_that_quotas_took_is_counted_by_the_groups(machine, groups, contents, seconds):
    files = {"proc/self/cgroup": groups, **{f"{CGROUP}/{name}": text for name, text in contents.items()}}
    assert memory.cpu_throttled_s(machine(files)) == seconds
