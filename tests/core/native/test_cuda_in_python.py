"""Implementations on a GPU: kernels compiled by the real NVRTC, loaded and timed on a double of libcuda."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.measure.stopwatch import CudaStopwatch
from pyperf_suite.workloads.backends import CudaDevice, cache_folder, cuda_device

pytestmark = pytest.mark.slow

WORK = 'extern "C" __global__ void work() {}'
KERNEL_S, EVENT_S = 5e-6, 0.5e-6  # what a kernel and an event cost on the double
HOLD = "launch pyperf_hold_stream grid 1x1x1 block 1x1x1 cluster 1 shared 0 stream own"


@pytest.fixture
def device(native, fake, nvrtc, tmp_path, monkeypatch) -> CudaDevice:
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path / "kernels"))
    return CudaDevice(0)


@pytest.fixture
def uncached() -> Iterator[None]:
    cuda_device.cache_clear()
    yield
    cuda_device.cache_clear()


class Work:
    """Launches of an empty kernel on a stopwatch's stream, counting them."""

    def __init__(self, device: CudaDevice, stopwatch: CudaStopwatch) -> None:
        kernel = device.kernel(device.compile("work.cu", WORK, {}), "work")
        self._launch = device.native.Launch(kernel, (1, 1, 1), (1, 1, 1), [])
        self._stream = stopwatch.stream
        self.indices: list[int] = []

    def launch(self, index: int) -> None:
        self.indices.append(index)
        self._launch.run(self._stream)


@pytest.mark.parametrize("wakes", [True, False])
def test_the_first_sample_of_a_block_has_the_clock_of_the_others(device, fake, wakes):
    stopwatch = device.stopwatch()
    stopwatch.wakes = wakes
    work = Work(device, stopwatch)
    fake.set(kernel_ns=170_000, ramp_ns=170_000)
    for first in (0, 10, 20):  # the time of a launch is known after the first
        stopwatch.time(work.launch, first, samples=10, launches_per_sample=1)
    clocks = stopwatch.clocks_hz(10)
    assert clocks[1:] == pytest.approx([1.98e9] * 9, rel=1e-4)
    assert clocks[0] == pytest.approx(1.98e9 * (1.0 if wakes else 0.96), rel=1e-3)
    assert work.indices.count(19) == 1 + wakes
    assert stopwatch.wake(work.launch, 30, 2) == (0 if wakes else 2)


@pytest.mark.parametrize(("kernel_ns", "follows"), [(170_000, True), (5_000, False)])
def test_launches_of_a_load_are_not_held_back_if_the_gpu_takes_longer_than_the_host(device, fake, kernel_ns, follows):
    stopwatch = device.stopwatch()
    work = Work(device, stopwatch)
    fake.set(kernel_ns=kernel_ns)
    stopwatch.time(work.launch, 0, samples=4, launches_per_sample=1)
    stopwatch.follow_on()
    fake.log()
    assert stopwatch.time(work.launch, 400, 4, 1) == pytest.approx([kernel_ns * 1e-9] * 4, rel=1e-6)
    assert (HOLD in fake.log()) is not follows
    assert ("held" in stopwatch.name) is not follows
    # The GPU waits for the first of a block, which is no sample.
    assert work.indices[-5:] == [399, 400, 401, 402, 403]


class ManyKernels(Work):
    """Launches of `kernels` kernels each; with `waits` each also waits for the device."""

    def __init__(self, device: CudaDevice, stopwatch: CudaStopwatch, kernels: int, waits: bool = False) -> None:
        super().__init__(device, stopwatch)
        self._kernels, self._wait = kernels, device.context.synchronize if waits else lambda: None

    def launch(self, index: int) -> None:
        for _ in range(self._kernels):
            super().launch(index)
        self._wait()


class Uncountable:
    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def operations_of(self, launch: Any, index: int) -> None:
        return None


def test_every_operand_set_is_launched_before_the_stream_is_held(device, fake):
    stopwatch = device.stopwatch()
    stopwatch.sets = 3
    work = Work(device, stopwatch)
    holds = []
    fake.log()
    stopwatch.time(lambda index: (work.launch(index), holds.append(bool(fake.log().count(HOLD)))), 4, 2, 1)
    before = work.indices[: work.indices.index(6) + 1]
    assert set(before) == {4, 5, 6}
    assert holds[len(before)] is True
    assert not any(holds[: len(before)])
    assert work.indices[len(before) :] == [4, 5]


@pytest.mark.parametrize("kernels", [1, 4, 12, 300, 505])
def test_launches_of_many_kernels_are_all_timed_behind_a_held_stream(device, fake, kernels):
    stopwatch = device.stopwatch()
    [seconds] = stopwatch.time(ManyKernels(device, stopwatch, kernels).launch, 0, samples=1, launches_per_sample=600)
    assert "held" in stopwatch.name
    assert fake.get("timed_out") == 0
    assert seconds == pytest.approx(600 * kernels * KERNEL_S, rel=1e-6)


def test_launches_that_cannot_be_counted_are_queued_by_fewer_until_they_fit(device, fake):
    stopwatch = CudaStopwatch(
        Uncountable(device.native.Stopwatch(device.context, b"\x7fELF", hold_limit_s=0.01)),
        timed_out=device.native.QueueTimedOut,
    )
    work = ManyKernels(device, stopwatch, 12)
    seconds = stopwatch.time(work.launch, 0, samples=3, launches_per_sample=400)
    assert "held" in stopwatch.name
    assert seconds == pytest.approx([400 * 12 * KERNEL_S] * 3, rel=1e-2)
    timed_out = fake.get("timed_out")
    assert 1 <= timed_out <= 3
    stopwatch.time(work.launch, 1200, samples=3, launches_per_sample=400)
    assert fake.get("timed_out") == timed_out  # what was learnt is kept


@pytest.mark.parametrize("countable", [True, False])
def test_launches_that_no_queue_holds_are_timed_without_one_and_the_record_says_so(device, fake, countable):
    native = device.native.Stopwatch(device.context, b"\x7fELF", hold_limit_s=0.01)
    stopwatch = CudaStopwatch(native if countable else Uncountable(native), timed_out=device.native.QueueTimedOut)
    work = ManyKernels(device, stopwatch, 1100)
    [seconds] = stopwatch.time(work.launch, 0, 1, 2)
    assert stopwatch.name == device.stopwatch("open").name
    assert seconds == pytest.approx(2 * 1100 * KERNEL_S, rel=1e-6)


def test_a_launch_that_waits_for_the_device_is_timed_without_a_held_stream_and_the_record_says_so(device, fake):
    stopwatch = device.stopwatch(hold_limit_s=0.01)
    [seconds] = stopwatch.time(ManyKernels(device, stopwatch, 2, waits=True).launch, 0, 1, 3)
    assert stopwatch.name == device.stopwatch("open").name
    assert seconds == pytest.approx(6 * KERNEL_S, rel=1e-6)
    assert fake.get("timed_out") == 1


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvrtc.so.13"])
def test_a_machine_without_driver_or_nvrtc_makes_the_case_unsupported(native, fake, monkeypatch, uncached, library):
    variable = f"PYPERF_{library.partition('.')[0].upper()}"
    monkeypatch.setenv(variable, f"/nowhere/{library}")
    with pytest.raises(Unsupported, match=rf"{variable}=/nowhere/{re.escape(library)} cannot be opened"):
        cuda_device(0)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"PYPERF_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/pyperf_suite/kernels"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/pyperf_suite/kernels"),
        ({"HOME": "/c"}, "/c/.cache/pyperf_suite/kernels"),
    ],
)
def test_kernels_are_kept_where_the_user_says_or_where_caches_belong(monkeypatch, environment, folder):
    for name in ("PYPERF_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == folder


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    for name in ("PYPERF_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless(cls):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(homeless))
    assert cache_folder() == ""
