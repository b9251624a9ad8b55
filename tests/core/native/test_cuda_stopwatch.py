"""The device's stopwatch: order of queued work, and meaning of the times; the device is a double of libcuda."""

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ELF = b"\x7fELF"  # all that the double asks of machine code
KERNEL_S, EVENT_S = 5e-6, 0.5e-6  # what a kernel and an event cost on the double
HOLD = "launch pyperf_hold_stream grid 1x1x1 block 1x1x1 cluster 1 shared 0 stream own"
CLOCKS = "launch pyperf_read_clocks grid 132x1x1 block 1x1x1 cluster 1 shared 0 stream own"
WORK = "launch work grid 1x1x1 block 1x1x1 cluster 1 shared 0 stream own"


@pytest.fixture
def stopwatch(cuda, context) -> Callable[..., Any]:
    return lambda **options: cuda.Stopwatch(context, ELF, **options)


@pytest.fixture
def work(cuda, context) -> Callable[[Any], Callable[[int], None]]:
    launch = cuda.Launch(cuda.Kernel(cuda.Module(context, ELF), "work"), (1, 1, 1), (1, 1, 1), [])

    def on_stream_of(stopwatch: Any) -> Callable[[int], None]:
        return lambda index: launch.run(stopwatch.stream)

    return on_stream_of


def seconds_of(timed: list[tuple[float, float]]) -> list[float]:
    return [seconds for seconds, _ in timed]


SAMPLE = ["event", WORK, WORK, "event", CLOCKS]


@pytest.mark.parametrize(
    ("options", "queued"),
    [
        ({}, [HOLD, CLOCKS, *SAMPLE, *SAMPLE]),
        ({"queueing": "graph"}, ["capture", CLOCKS, *SAMPLE, *SAMPLE, "graph"]),
        ({"queueing": "open", "clocks": False}, ["event", WORK, WORK, "event"] * 2),
    ],
    ids=["held back", "one graph", "open, without clocks"],
)
def test_samples_are_queued_with_the_clocks_outside_what_is_timed(fake, stopwatch, work, options, queued):
    watch = stopwatch(**options)
    fake.log()
    timed = watch.time(work(watch), 0, samples=2, launches_per_sample=2)
    assert fake.log() == queued
    assert all(math.isnan(hz) == (CLOCKS not in queued) for _, hz in timed)


@pytest.mark.parametrize("queueing", ["held", "graph", "open"])
def test_a_sample_is_the_time_of_its_launches_and_one_event(stopwatch, work, queueing):
    watch = stopwatch(queueing=queueing)
    timed = watch.time(work(watch), 0, samples=3, launches_per_sample=4)
    assert seconds_of(timed) == pytest.approx([4 * KERNEL_S + EVENT_S] * 3, rel=1e-6)
    assert watch.queueing == queueing


@pytest.mark.parametrize(
    ("queueing", "samples", "launches", "parts", "blocks"),
    [
        *((queueing, 5, 3, 1, 3) for queueing in ("held", "graph")),  # two samples of 6 operations a block
        ("held", 1, 25, 3, 3),  # a sample longer than the queue
    ],
)
def test_what_does_not_fit_the_queue_is_timed_block_by_block_and_summed(
    fake, stopwatch, work, queueing, samples, launches, parts, blocks
):
    watch = stopwatch(queue_limit=16, queueing=queueing)
    fake.log()
    timed = watch.time(work(watch), 0, samples, launches)
    assert seconds_of(timed) == pytest.approx([launches * KERNEL_S + parts * EVENT_S] * samples, rel=1e-6)
    log = fake.log()
    assert (log.count(HOLD if queueing == "held" else "graph"), log.count(WORK)) == (blocks, samples * launches)


def test_the_queue_never_holds_more_than_its_limit(fake, stopwatch, work):
    watch = stopwatch(queue_limit=64)
    fake.log()
    watch.time(work(watch), 0, samples=40, launches_per_sample=7)
    blocks = "\n".join(fake.log()).split(HOLD)[1:]
    assert max(len(block.strip().splitlines()) + 1 for block in blocks) <= 64


def test_the_clock_is_cycles_over_seconds_of_the_same_multiprocessor(fake, stopwatch, work):
    fake.set(sm_khz=1_755_000, kernel_ns=1_000_000)
    watch = stopwatch()
    clocks = [hz for _, hz in watch.time(work(watch), 0, samples=3, launches_per_sample=5)]
    assert clocks == pytest.approx([1.755e9] * 3, rel=1e-4)


def test_a_multiprocessor_that_no_block_reached_lends_no_reading_of_another_block(fake, stopwatch, work):
    watch = stopwatch()
    fake.set(kernel_ns=1_000_000)
    watch.time(work(watch), 0, samples=1, launches_per_sample=1)
    fake.set(visited=40, sm_khz=1_000_000)
    [(_, hz)] = watch.time(work(watch), 0, samples=1, launches_per_sample=1)
    assert hz == pytest.approx(1e9, rel=1e-4)


WAITS = r"could not be queued within 0\.25 s .* a launch waits for the device"
IN_A_GRAPH = r"\(900\): a launch waited or allocated, which a graph cannot hold"


@pytest.mark.parametrize(
    ("queueing", "waits", "error", "words"),
    [
        ("held", True, "QueueTimedOut", WAITS),
        ("graph", True, "CudaError", IN_A_GRAPH),
        *((queueing, False, "", "no operands") for queueing in ("held", "graph", "open")),
    ],
)
def test_a_launch_that_waits_or_raises_is_reported_and_the_stopwatch_lives_on(
    cuda, context, fake, stopwatch, work, queueing, waits, error, words
):
    watch = stopwatch(queueing=queueing, hold_limit_s=0.25)
    live = fake.get("live")

    def fail(index):
        raise KeyError("no operands")

    with pytest.raises(getattr(cuda, error) if waits else KeyError, match=words):
        watch.time((lambda index: context.synchronize()) if waits else fail, 0, 1, 1)
    assert (fake.get("live"), fake.get("context_depth")) == (live, 0)
    assert fake.get("timed_out") == (error == "QueueTimedOut")  # else the stream was let go at once
    assert seconds_of(watch.time(work(watch), 0, 1, 1)) == pytest.approx([KERNEL_S + EVENT_S], rel=1e-6)


@pytest.mark.parametrize(
    "function",
    ["cuStreamCreate", "cuEventCreate", "cuMemHostGetDevicePointer_v2", "cuMemAlloc_v2", "cuStreamSynchronize"],
)
def test_a_stopwatch_that_cannot_be_made_leaves_nothing_behind(cuda, context, fake, stopwatch, function):
    before = fake.get("live")
    fake.fail(function, 2)
    with pytest.raises(cuda.OutOfMemory):
        stopwatch()
    gc.collect()
    assert (fake.get("live"), fake.get("context_depth")) == (before, 0)


def test_a_stopwatch_gives_everything_back(fake, context, stopwatch, work):
    before = fake.get("live")
    watch = stopwatch(queueing="graph")
    watch.time(lambda index: None, 0, 3, 1)
    del watch
    gc.collect()
    assert fake.get("live") == before
