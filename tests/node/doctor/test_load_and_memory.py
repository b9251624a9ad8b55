"""Who else uses the machine, and its memory, judged."""

from __future__ import annotations

import dataclasses

import pytest

from pyperf_suite.node.doctor.host import MemoryReadings, memory_checks, read_memory
from pyperf_suite.node.doctor.load import Activity, Busy, LoadReadings, between, keep_busy, load_checks, read_moment

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
    return {check.what: check for check in checks}


def test_an_idle_machine_with_room_is_ok():
    checks = [*load_checks(QUIET), *memory_checks(ROOMY)]
    assert {check.verdict for check in checks} == {"ok"}


@pytest.mark.parametrize(
    ("name", "activity", "verdict", "words"),
    [
        ("stolen time", {"steal_share": 0.05}, "caution", "5.0%"),
        ("stolen time", {"steal_share": 0.3}, "failed", "30.0%"),
        ("other processes", {"other_cores": 1.0, "consumers": (("java", 12, 0.9),)}, "caution", "java (12) 11%"),
        ("other processes", {"other_cores": 7.0}, "failed", "88% of 8 CPUs"),
        ("one busy thread", {"busy": Busy(1.0, 0.5, 0.016, 4e-8)}, "caution", "got 50% of a core"),
        ("one busy thread", {"busy": Busy(1.0, 0.99, 0.004, 4e-8)}, "ok", "longest interruption 4 ms"),
    ],
)
def test_what_others_take_is_told_with_who_they_are(name, activity, verdict, words):
    readings = dataclasses.replace(QUIET, activity=dataclasses.replace(IDLE, **activity))
    check = named(load_checks(readings))[name]
    assert (check.verdict, words in f"{check.found} {check.why}") == (verdict, True), check


def test_a_machine_that_was_busy_a_minute_ago_is_a_warning():
    assert (
        named(load_checks(dataclasses.replace(QUIET, load_average=(0.0, 6.0, 6.0))))["load average"].verdict
        == "caution"
    )


def test_where_nothing_is_counted_nothing_is_judged():
    checks = load_checks(LoadReadings(None, 8, None))
    assert {check.verdict for check in checks} == {"unknown"}


@pytest.mark.parametrize(
    ("name", "readings", "verdict", "words"),
    [
        ("memory", {"available_bytes": GIB // 2, "limit_bytes": GIB}, "failed", "of a limit of 1 GiB"),
        ("memory", {"available_bytes": 2 * GIB}, "caution", "2 GiB"),
        ("swap", {"swapped_pages": 900}, "failed", "900 pages"),
        ("swap", {"swap_total_bytes": 8 * GIB, "swap_used_bytes": GIB}, "caution", "1 GiB of 8 GiB"),
        ("swap", {"swap_total_bytes": 8 * GIB}, "ok", "of 8 GiB"),
        ("swap", {"swap_total_bytes": None}, "unknown", "does not report"),
        ("huge pages", {"huge_pages": "never"}, "caution", "4 KiB"),
        ("/dev/shm", {"shared_total_bytes": 64 * 2**20, "shared_free_bytes": 64 * 2**20}, "failed", "64 MiB"),
        ("/dev/shm", {"shared_free_bytes": GIB // 2}, "caution", "512 MiB free of 32 GiB"),
        ("/dev/shm", {"shared_total_bytes": None}, "failed", "there is none"),
        ("locked memory", {"locked_limit_bytes": 65536}, "caution", "network card"),
        ("locked memory", {"has_network_cards": False}, "unknown", "no InfiniBand"),
    ],
)
def test_memory_is_judged_by_what_runs_out_first(name, readings, verdict, words):
    check = named(memory_checks(dataclasses.replace(ROOMY, **readings)))[name]
    assert (check.verdict, words in f"{check.found} {check.why}") == (verdict, True), check


def test_swap_and_huge_pages_are_read_from_the_kernels_files(machine):
    meminfo = "MemTotal: 16000000 kB\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n"
    pages = "sys/kernel/mm/transparent_hugepage/enabled"
    read = read_memory(machine({"proc/meminfo": meminfo, pages: "always madvise [never]\n"}), swapped_pages=3)
    assert (read.swap_total_bytes, read.swap_used_bytes, read.swapped_pages) == (2 * GIB, GIB, 3)
    assert read.huge_pages == "never"
    assert read_memory(machine({"proc/meminfo": ""}), 0).swap_total_bytes is None


HALF = Busy(1.0, 0.5, 0.0, 1e-7)


def moment(machine, busy: int, steal: int, swapped: int = 0, **ticks: int):
    files = {"proc/stat": f"cpu  {busy} 0 0 500 0 0 0 {steal} 0 0\n", "proc/vmstat": f"pswpin 0\npswpout {swapped}\n"}
    for number, (name, count) in enumerate(ticks.items(), 10):
        files[f"proc/{number}/stat"] = f"{number} ({name} (x) y) R 1 1 1 0 -1 0 0 0 0 0 {count} 0 0 0 20 0\n"
    return read_moment(machine(files))


def test_stolen_time_and_the_greediest_processes_are_told(machine):
    before = moment(machine, 1000, 50, editor=100, trainer=300)
    after = moment(machine, 1150, 100, 7, editor=110, trainer=390)
    found = between(before, after, HALF, ticks_per_s=100, own=99)
    assert found.steal_share == pytest.approx(50 / 200)
    assert found.other_cores == pytest.approx(1.0)
    assert found.consumers == (("trainer (x) y", 11, 0.9), ("editor (x) y", 10, 0.1))
    assert found.swapped_pages == 7


def test_the_process_that_looks_is_not_among_the_others(machine):
    before, after = moment(machine, 0, 0, own=0, other=0), moment(machine, 80, 0, own=50, other=30)
    assert between(before, after, HALF, ticks_per_s=100, own=10).consumers == (("other (x) y", 11, 0.3),)


def test_a_process_that_began_in_between_counts_from_nothing(machine):
    before, after = moment(machine, 0, 0), moment(machine, 40, 0, born=40)
    assert between(before, after, HALF, 100, own=99).consumers == (("born (x) y", 10, 0.4),)


@pytest.mark.parametrize("text", ["", "cpu 1 2 3", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8 9"])
def test_a_kernel_without_counts_has_no_moment(machine, text):
    assert read_moment(machine({"proc/stat": text})) is None


def test_interruptions_of_a_busy_thread_are_pauses_between_two_looks_at_the_clock():
    times = iter([0.0, 1e-6, 2e-6, 0.010002, 0.010003, 2.0])
    busy = keep_busy(1.0, clock=lambda: next(times))
    assert busy.wall_s == 2.0
    assert busy.longest_interruption_s == pytest.approx(2.0 - 0.010003)
    assert busy.clock_step_s == pytest.approx(1e-6)
