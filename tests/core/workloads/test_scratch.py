"""Arrays that workers of a run share are computed once, and whatever befalls their folder costs only that."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from pyperf_suite.workloads.scratch import SharedArrays

LARGE = 10_000


def arrays(value: float, size: int = LARGE) -> Mapping[str, np.ndarray]:
    return {"reference": np.full(size, float(value)), "limits": np.full((2, 3), value, np.float32)}


class Counted:
    """A computation that counts how often it is asked for."""

    def __init__(self, value: float = 1.0, size: int = LARGE) -> None:
        self.value, self.size, self.times = value, size, 0

    def __call__(self) -> Mapping[str, np.ndarray]:
        self.times += 1
        return arrays(self.value, self.size)


def assert_same(arrays: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


def test_what_does_not_fit_drives_out_what_was_read_least_recently(tmp_path: Path) -> None:
    shared = SharedArrays(tmp_path, most_bytes=int(2.5 * 8 * LARGE))
    computes = [Counted(value) for value in range(3)]
    shared.keep("case", "0", computes[0])
    time.sleep(0.01)
    shared.keep("case", "1", computes[1])
    time.sleep(0.01)
    shared.keep("case", "0", computes[0])
    time.sleep(0.01)
    shared.keep("case", "2", computes[2])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2.5 * 8 * LARGE
    shared.keep("case", "0", computes[0])
    shared.keep("case", "1", computes[1])
    assert [compute.times for compute in computes] == [1, 2, 1]


def test_what_can_never_fit_is_computed_each_time_and_drives_nothing_out(tmp_path: Path) -> None:
    shared = SharedArrays(tmp_path, most_bytes=8 * LARGE)
    small, large = Counted(1, 100), Counted(2, 10 * LARGE)
    shared.keep("case", "small", small)
    assert_same(shared.keep("case", "large", large), arrays(2, 10 * LARGE))
    assert_same(shared.keep("case", "large", large), arrays(2, 10 * LARGE))
    shared.keep("case", "small", small)
    assert (small.times, large.times) == (1, 2)


def test_a_full_disk_costs_the_sharing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    compute = Counted()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A file that may not grow is as a disk that is full: Python ignores the signal, so that the write fails.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * LARGE, before[1]))
    try:
        for _ in range(2):
            assert_same(SharedArrays(tmp_path).keep("case", "rows", compute), arrays(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert compute.times == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [b"", b"garbage\n", b"{}\n", b'{"arrays": {"a": 3}, "bytes": 0}\n', None], ids=str)
def test_a_file_that_is_not_whole_is_computed_anew(tmp_path: Path, left: bytes | None) -> None:
    shared = SharedArrays(tmp_path)
    shared.keep("case", "rows", Counted())
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-4] if left is None else left)
    compute = Counted(2)
    for _ in range(2):
        assert_same(SharedArrays(tmp_path).keep("case", "rows", compute), arrays(2))
    assert compute.times == 1


def test_a_folder_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    assert_same(SharedArrays(tmp_path / "gone").keep("case", "rows", Counted()), arrays(1))


def _write_for_ever(folder: Path) -> None:
    number = 0
    while True:
        SharedArrays(folder).keep("case", str(number % 7), Counted(number % 7, 200_000))
        SharedArrays(folder, most_bytes=4 * 8 * 200_000).keep("evicting", str(number % 5), Counted(number % 5, 200_000))
        number += 1


@pytest.mark.slow
def test_no_reader_sees_half_of_what_a_killed_writer_or_several_at_once_wrote(tmp_path: Path) -> None:
    for attempt in range(3):
        writers = [multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(tmp_path,)) for _ in "ab"]
        for writer in writers:
            writer.start()
        time.sleep(0.05 + 0.05 * attempt)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
        for value, key in itertools.product(range(5), ("case", "evicting")):
            found = SharedArrays(tmp_path).keep(key, str(value), Counted(value, 200_000))
            assert_same(found, arrays(value, 200_000))
