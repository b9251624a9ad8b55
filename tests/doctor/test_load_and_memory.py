"""Who else uses the machine, and what is left of its memory."""

from __future__ import annotations

import dataclasses

import pytest

from pyperf_suite.doctor.host import MemoryReadings, memory_checks, read_memory
from pyperf_suite.doctor.load import Activity, Busy, LoadReadings, load_checks

GIB = 2**30
WHOLE = Busy(1.0, 0.999, 0.0, 4e-8)
IDLE = Activity(WHOLE, steal_share=0.0, other_cores=0.01, consumers=(), swapped_pages=0)
QUIET = LoadReadings(IDLE, cores=8, load_average=(0.1, 0.2, 0.3))
ROOMY = MemoryReadings(
    available_bytes=64 * GIB,
    limit_bytes=None,
    huge_pages="madvise",
    swap_total_bytes=0,
    swap_used_bytes=0,
    swapped_pages=0,
    shared_total_bytes=32 * GIB,
    shared_free_bytes=32 * GIB,
    locked_limit_bytes=None,
    has_network_cards=True,
)


def named(checks):
    return {check.name: check for check in checks}


def test_an_idle_machine_with_room_is_ok():
    checks = [*load_checks(QUIET), *memory_checks(ROOMY)]
    assert {check.verdict for check in checks} == {"ok"}


@pytest.mark.parametrize(
    ("name", "activity", "verdict", "words"),
    [
        ("stolen time", {"steal_share": 0.05}, "warning", "5.0%"),
        ("stolen time", {"steal_share": 0.3}, "problem", "30.0%"),
        ("other processes", {"other_cores": 1.0, "consumers": (("java", 12, 0.9),)}, "warning", "java (12) 11%"),
        ("other processes", {"other_cores": 7.0}, "problem", "88% of 8 CPUs"),
        ("one busy thread", {"busy": Busy(1.0, 0.5, 0.016, 4e-8)}, "warning", "got 50% of a core"),
        ("one busy thread", {"busy": Busy(1.0, 0.99, 0.004, 4e-8)}, "ok", "longest interruption 4 ms"),
    ],
)
def test_what_others_take_is_told_with_who_they_are(name, activity, verdict, words):
    readings = dataclasses.replace(QUIET, activity=dataclasses.replace(IDLE, **activity))
    check = named(load_checks(readings))[name]
    assert (check.verdict, words in check.found) == (verdict, True), check


def test_a_machine_that_was_busy_a_minute_ago_is_a_warning():
    assert (
        named(load_checks(dataclasses.replace(QUIET, load_average=(0.0, 6.0, 6.0))))["load average"].verdict
        == "warning"
    )


def test_where_nothing_is_counted_nothing_is_judged():
    checks = load_checks(LoadReadings(None, 8, None))
    assert {check.verdict for check in checks} == {"not applicable"}


@pytest.mark.parametrize(
    ("name", "readings", "verdict", "words"),
    [
        ("memory", {"available_bytes": GIB // 2, "limit_bytes": GIB}, "problem", "of a limit of 1.0 GiB"),
        ("memory", {"available_bytes": 2 * GIB}, "warning", "2.0 GiB"),
        ("swap", {"swapped_pages": 900}, "problem", "900 pages"),
        ("swap", {"swap_total_bytes": 8 * GIB, "swap_used_bytes": GIB}, "warning", "1.0 GiB of 8.0 GiB"),
        ("swap", {"swap_total_bytes": 8 * GIB}, "ok", "of 8.0 GiB"),
        ("swap", {"swap_total_bytes": None}, "not applicable", "does not tell"),
        ("huge pages", {"huge_pages": "never"}, "warning", "4 KiB"),
        ("/dev/shm", {"shared_total_bytes": 64 * 2**20, "shared_free_bytes": 64 * 2**20}, "problem", "64 MiB"),
        ("/dev/shm", {"shared_free_bytes": GIB // 2}, "warning", "512 MiB free of 32.0 GiB"),
        ("/dev/shm", {"shared_total_bytes": None}, "problem", "there is none"),
        ("locked memory", {"locked_limit_bytes": 65536}, "warning", "network card"),
        ("locked memory", {"has_network_cards": False}, "not applicable", "no InfiniBand"),
    ],
)
def test_memory_is_judged_by_what_runs_out_first(name, readings, verdict, words):
    check = named(memory_checks(dataclasses.replace(ROOMY, **readings)))[name]
    assert (check.verdict, words in check.found) == (verdict, True), check


def test_swap_and_huge_pages_are_read_from_the_kernels_files(machine):
    meminfo = "MemTotal: 16000000 kB\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n"
    pages = "sys/kernel/mm/transparent_hugepage/enabled"
    read = read_memory(machine({"proc/meminfo": meminfo, pages: "always madvise [never]\n"}), swapped_pages=3)
    assert (read.swap_total_bytes, read.swap_used_bytes, read.swapped_pages) == (2 * GIB, GIB, 3)
    assert read.huge_pages == "never"
    assert read_memory(machine({"proc/meminfo": ""}), 0).swap_total_bytes is None
