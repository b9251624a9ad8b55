import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.hardware import memory
from pyperf_suite.hardware.kernel_files import cpu_list, parse_bytes, parse_cpu_list

NO_LIMIT_V1 = "9223372036854771712"
CGROUP = "sys/fs/cgroup"


QUOTA, THROTTLED = memory.cpu_quota_cores, memory.cpu_throttled_s
LEFT, LIMIT = memory.memory_available_bytes, memory.memory_limit_bytes
IN_USE = {"memory.max": "1000000", "memory.current": "700000"}
JOB_V1 = {"limit_in_bytes": "5000", "usage_in_bytes": "4000", "stat": "total_inactive_file 500\n"}


@pytest.mark.parametrize(
    ("asked", "groups", "contents", "answer"),
    [
        (QUOTA, "0::/", {"cpu.max": "150000 100000\n"}, 1.5),
        # The narrowest between the process and the root holds.
        (QUOTA, "0::/a.slice/job", {"a.slice/cpu.max": "200000 100000", "a.slice/job/cpu.max": "max 100000"}, 2.0),
        # Version 1, and the path is the host's.
        (
            QUOTA,
            "5:cpu,cpuacct:/docker/0123abcd\n1:name=systemd:/docker/0123abcd\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "400000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            4.0,
        ),
        (QUOTA, "0::/", {}, None),
        *((QUOTA, "0::/", {"cpu.max": text}, None) for text in ("max 100000", "100000 0", "lots")),
        (QUOTA, "no colons here", {"cpu.max": "100000 100000"}, None),
        (QUOTA, "2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        # Inactive page cache counts as free.
        (LEFT, "0::/", IN_USE | {"memory.stat": "anon 300000\nfile 400000\ninactive_file 250000\n"}, 550_000),
        # Version 1: the process's own group limits it, its root does not.
        (
            LEFT,
            "4:memory:/job\n",
            {"memory/memory.limit_in_bytes": NO_LIMIT_V1, "memory/memory.usage_in_bytes": "1"}
            | {f"memory/job/memory.{name}": text for name, text in JOB_V1.items()},
            1500,
        ),
        (LEFT, "0::/", {"memory.max": "1000", "memory.current": "1200"}, 0),
        (LEFT, "0::/", {"memory.max": "max", "memory.current": "5"}, None),
        (LIMIT, "0::/job\n", {"memory.max": "max", "job/memory.max": "4096"}, 4096),
        (LIMIT, "3:memory:/\n", {"memory/memory.limit_in_bytes": NO_LIMIT_V1}, None),
        (
            THROTTLED,
            "0::/job",
            {"cpu.stat": "throttled_usec 2500000\n", "job/cpu.stat": "nr_throttled 3\nthrottled_usec 500000\n"},
            2.5,
        ),
        (THROTTLED, "5:cpu:/\n", {"cpu/cpu.stat": "nr_periods 7\nthrottled_time 1500000000\n"}, 1.5),
        (THROTTLED, "0::/", {"cpu.stat": "usage_usec 5\n"}, None),
    ],
)
def test_what_groups_of_both_versions_allow_leave_and_took_is_found_and_none_is_made_up(
    machine, asked, groups, contents, answer
):
    files = machine({"proc/self/cgroup": groups, **{f"{CGROUP}/{name}": text for name, text in contents.items()}})
    assert asked(files) == answer


@pytest.mark.parametrize(("limit_bytes", "used_bytes"), [(3_000_000, 1_000_000), (1 << 60, 0)])
def test_what_can_be_taken_is_what_the_group_leaves_of_what_the_machine_has(machine, limit_bytes, used_bytes):
    group = {f"{CGROUP}/memory.max": str(limit_bytes), f"{CGROUP}/memory.current": str(used_bytes)}
    available = memory.available_bytes(machine({"proc/self/cgroup": "0::/", **group}))
    assert 0 < available <= psutil.virtual_memory().total
    assert available <= limit_bytes - used_bytes
    assert 0 < memory.available_bytes() <= psutil.virtual_memory().total


def test_sizes_and_lists_of_cpus_are_read_as_the_kernel_writes_them_and_what_is_none_is_none():
    sizes = [parse_bytes(text) for text in ("48K", "491520 KB", "2M", "1G", "4096", "32KiB")]
    assert sizes == [49152, 491520 * 1024, 2 << 20, 1 << 30, 4096, 32768]
    assert [parse_bytes(text) for text in (None, "", "K", "-1K", "1.5M", "many")] == [None] * 6
    assert parse_cpu_list("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert [parse_cpu_list(text) for text in (None, "", "a-b", "1-", "0,,2")] == [frozenset()] * 5


@given(st.frozensets(st.integers(0, 300)))
def test_every_cpu_list_is_read_back_whole(cpus):
    assert parse_cpu_list(cpu_list(cpus)) == parse_cpu_list(",".join(map(str, sorted(cpus)))) == cpus
    assert cpu_list({3, 1, 2, 8}) == "1-3,8"
