"""Control groups of both versions, on a host, in a container, in a namespace."""

from __future__ import annotations

import pytest

from pyperf_suite.hardware import memory

NO_LIMIT_V1 = "9223372036854771712"


def test_a_version_2_quota_of_the_container_grants_its_share_of_cores(machine):
    files = machine({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"})
    assert memory.cpu_quota_cores(files) == 1.5


def test_the_narrowest_quota_between_the_process_and_the_root_holds(machine):
    files = machine(
        {
            "proc/self/cgroup": "0::/system.slice/job.service\n",
            "sys/fs/cgroup/system.slice/cpu.max": "200000 100000",
            "sys/fs/cgroup/system.slice/job.service/cpu.max": "max 100000",
        }
    )
    assert memory.cpu_quota_cores(files) == 2.0


def test_a_version_1_quota_is_found_though_the_path_is_the_hosts(machine):
    files = machine(
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/0123abcd\n1:name=systemd:/docker/0123abcd\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        }
    )
    assert memory.cpu_quota_cores(files) == 4.0


@pytest.mark.parametrize(
    "contents",
    [
        {},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 0"},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "lots"},
        {"proc/self/cgroup": "no colons here", "sys/fs/cgroup/cpu.max": "100000 100000"},
        {
            "proc/self/cgroup": "2:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    ],
)
def test_no_quota_is_made_up_where_none_is_set_or_the_file_is_malformed(machine, contents):
    assert memory.cpu_quota_cores(machine(contents)) is None


def test_version_2_memory_counts_inactive_page_cache_as_free(machine):
    files = machine(
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": "1000000",
            "sys/fs/cgroup/memory.current": "700000",
            "sys/fs/cgroup/memory.stat": "anon 300000\nfile 400000\ninactive_file 250000\n",
        }
    )
    assert memory.memory_available_bytes(files) == 550_000


def test_version_1_memory_is_limited_by_the_processs_own_group(machine):
    files = machine(
        {
            "proc/self/cgroup": "4:memory:/job\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "5000",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "4000",
            "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 500\n",
        }
    )
    assert memory.memory_available_bytes(files) == 1500


def test_a_group_above_its_limit_leaves_nothing_rather_than_a_negative_amount(machine):
    files = machine(
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": "1000",
            "sys/fs/cgroup/memory.current": "1200",
        }
    )
    assert memory.memory_available_bytes(files) == 0


def test_memory_without_a_limit_is_not_limited(machine):
    files = machine(
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": "5"}
    )
    assert memory.memory_available_bytes(files) is None


def test_the_narrowest_memory_limit_holds_and_no_limit_of_version_1_is_none(machine):
    files = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/job/memory.max": "4096"}
    assert memory.memory_limit_bytes(machine(files)) == 4096
    files = {"proc/self/cgroup": "3:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1}
    assert memory.memory_limit_bytes(machine(files)) is None
