"""Available memory: the machine's or the control group's, whichever is less."""

from __future__ import annotations

import psutil

from pyperf_suite.hardware import memory


def test_a_control_groups_limit_is_what_can_be_taken(machine):
    files = machine(
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": "3000000",
            "sys/fs/cgroup/memory.current": "1000000",
        }
    )
    assert memory.available_bytes(files) == 2_000_000


def test_a_limit_wider_than_the_machine_grants_no_more_than_it_has(machine):
    files = machine(
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": str(1 << 60),
            "sys/fs/cgroup/memory.current": "0",
        }
    )
    assert 0 < memory.available_bytes(files) <= psutil.virtual_memory().total


def test_this_machine_has_memory_to_give():
    assert 0 < memory.available_bytes() <= psutil.virtual_memory().total
