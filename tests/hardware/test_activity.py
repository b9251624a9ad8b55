"""What others did between two moments, from the kernel's counts."""

from __future__ import annotations

import pytest

from pyperf_suite.doctor.load import Busy, between, keep_busy, read_moment

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
