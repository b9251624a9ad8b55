"""Reading and parsing the kernel's small text files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.hardware.kernel_files import cpu_list, parse_bytes, parse_cpu_list


def test_files_are_read_stripped_and_what_is_absent_empty_or_a_folder_reads_as_none(machine):
    files = machine({"sys/empty": "\n", "sys/folder/file": "1"})
    assert [files.text(path) for path in ("sys/none", "sys/empty", "sys/folder")] == [None, None, None]
    files = machine({"proc/device-tree/model": "Raspberry Pi 5 Model B\0", "sys/level": "2\n"})
    assert files.text("proc/device-tree/model") == "Raspberry Pi 5 Model B"
    assert files.integer("sys/level") == 2
    files = machine({"sys/cpu1/size": "1", "sys/cpu0/size": "0", "sys/other": "x"})
    assert [files.integer(path) for path in files.matching("sys/cpu[0-9]*/size")] == [0, 1]


def test_sizes_are_read_in_the_kernels_and_in_cpuinfos_spelling_and_what_is_none_is_none():
    sizes = [parse_bytes(text) for text in ("48K", "491520 KB", "2M", "1G", "4096", "32KiB")]
    assert sizes == [49152, 491520 * 1024, 2 << 20, 1 << 30, 4096, 32768]
    assert [parse_bytes(text) for text in (None, "", "K", "-1K", "1.5M", "many")] == [None] * 6


def test_cpu_lists_are_read_as_the_kernel_writes_them():
    assert parse_cpu_list("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert [parse_cpu_list(text) for text in (None, "", "a-b", "1-", "0,,2")] == [frozenset()] * 5


@given(st.frozensets(st.integers(0, 300)))
def test_every_cpu_list_is_read_back_whole(cpus):
    assert parse_cpu_list(cpu_list(cpus)) == parse_cpu_list(",".join(map(str, sorted(cpus)))) == cpus
    assert cpu_list({3, 1, 2, 8}) == "1-3,8"
