"""Whole steps of this rank, timed one by one: by the host's clock, or by events on torch's stream."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pyperf_suite.workloads.workload import RankTimes


def timed_by_host(step: Callable[[], None], iterations: int, meet: Callable[[], None]) -> RankTimes:
    """Steps that are done when they return, after all ranks have met."""
    arrived_ns, done_ns = [0] * iterations, [0] * iterations
    stamp = time.monotonic_ns
    meet()
    for index in range(iterations):
        arrived_ns[index] = stamp()
        step()
        done_ns[index] = stamp()
    arrived, done = np.array(arrived_ns, dtype=np.int64), np.array(done_ns, dtype=np.int64)
    return RankTimes(np.asarray((done - arrived) * 1e-9, dtype=np.float64), arrived, done)


def timed_by_events(step: Callable[[], None], iterations: int, meet: Callable[[], None], place: str) -> RankTimes:
    """Steps on the GPU `place`, each waited for: seconds by events on torch's stream, which waits for exchanges."""
    torch: Any = importlib.import_module("torch")
    stamp = time.monotonic_ns
    torch.cuda.set_device(place)
    arrived_ns, done_ns, seconds = [0] * iterations, [0] * iterations, [0.0] * iterations
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    meet()
    torch.cuda.synchronize()
    for index in range(iterations):
        arrived_ns[index] = stamp()
        begin.record()
        step()
        end.record()
        end.synchronize()
        done_ns[index] = stamp()
        seconds[index] = begin.elapsed_time(end) * 1e-3
    return RankTimes(np.array(seconds), np.array(arrived_ns, dtype=np.int64), np.array(done_ns, dtype=np.int64))
