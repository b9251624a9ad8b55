import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyperf_suite.workloads.operands import widen

DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
DEADLINE_S = 20
REDUCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sum": lambda stacked: stacked.sum(0),
    "prod": lambda stacked: stacked.prod(0),
    "max": lambda stacked: stacked.max(0),
    "min": lambda stacked: stacked.min(0),
    "avg": lambda stacked: stacked.sum(0) / len(stacked),
}


def encoded(values: np.ndarray, dtype: str) -> bytes:
    """Whole numbers small enough for any type, as bytes of that type."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(dtype).tobytes()


def decoded(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return widen(np.frombuffer(data, np.uint16), dtype).astype(np.float64)
    return np.frombuffer(data, dtype).astype(np.float64)


def sent(rank: int, count: int) -> np.ndarray:
    """A rank's inputs: 1 to 3, other on each rank, and of another period than the double's slots."""
    return (np.arange(count) * 7 + np.arange(count) // 5 + 2 * rank) % 3 + 1.0


def run_once(nccl: Any, communicator: Any, operation: str, count: int, dtype: str, **options: Any) -> bytes | None:
    """Runs it with buffers of just the bytes needed, poisoned; what the rank has received."""
    rank, ranks = communicator.rank, communicator.ranks
    needs = nccl.buffer_bytes(operation, count, dtype, rank, ranks)
    buffers = [nccl.Buffer(communicator, need) if need else None for need in needs]
    for buffer in filter(None, buffers):
        buffer.fill(0xA5)
    if buffers[0]:
        buffers[0].write(encoded(sent(rank, buffers[0].bytes // len(encoded(np.ones(1), dtype))), dtype))
    collective = nccl.Collective(communicator, operation, count, dtype, *buffers, **options)
    collective.run(DEADLINE_S)
    return buffers[1].read() if buffers[1] else None


@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_every_reduction_is_exact_in_every_type(nccl, ranks, reduction, operation):
    count = 30

    def program(communicator):
        rank, whole = communicator.rank, count * (2 if operation == "reduce_scatter" else 1)
        due = REDUCTIONS[reduction](np.stack([sent(each, whole) for each in range(2)]))
        mine = due[rank * count : (rank + 1) * count] if operation == "reduce_scatter" else due
        wrong = []
        for dtype in DTYPES:
            exact = np.floor(mine) if "int" in dtype else mine  # NCCL divides integers as C does
            received = run_once(nccl, communicator, operation, count, dtype, reduction=reduction)
            if received is not None and not np.array_equal(decoded(received, dtype), exact):
                wrong.append(dtype)
        return wrong

    assert ranks.results(2, program) == [[], []]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("synchronise_each", [False, True])
def test_timed_runs_are_counted_ordered_and_leave_the_right_data(nccl, ranks, graph, synchronise_each):
    iterations = 150  # more than the host may run ahead

    def program(communicator):
        buffer = nccl.Buffer(communicator, 4 * 100)
        buffer.write(encoded(np.ones(100), "float32"))
        options = {"in_place": True, "reduction": "avg"}
        collective = nccl.Collective(communicator, "all_reduce", 100, "float32", buffer, **options)
        seconds, arrival_ns, completion_ns = collective.time(
            iterations, DEADLINE_S, synchronise_each=synchronise_each, graph_calls=int(graph)
        )
        waited = completion_ns - arrival_ns
        return (
            [len(each) for each in (seconds, arrival_ns, completion_ns)] == [iterations] * 3,
            bool((seconds > 0).all()),
            bool((np.diff(arrival_ns) >= 0).all() and (np.diff(completion_ns) >= 0).all()),
            bool((seconds * 1e9 <= waited + 1).all()),
            not synchronise_each or bool((arrival_ns[1:] >= completion_ns[:-1]).all()),
            decoded(buffer.read(), "float32").tolist() == [1.0] * 100,
        )

    assert ranks.results(2, program) == [(True,) * 6] * 2


@pytest.mark.parametrize("settings", [{}, {"blocking": 1}])
def test_ranks_make_a_symmetric_window_together_and_it_is_given_back(nccl, ranks, fake_libnccl, settings):
    live = ctypes.CDLL(str(fake_libnccl())).fake_live
    before = live()

    def program(communicator):
        windows = [nccl.Buffer(communicator, 8, window_within_s=DEADLINE_S) for _ in range(2)]
        windows[0].write(np.ones(1))
        nccl.Collective(communicator, "all_reduce", 1, "float64", *windows).run(DEADLINE_S)
        found = all(each.registered for each in windows), float(np.frombuffer(windows[1].read())[0])
        del windows
        communicator.finalize(DEADLINE_S)
        return found

    assert ranks.results(2, program, settings=settings) == [(True, 2.0)] * 2
    assert live() == before


def test_what_has_run_is_not_run_again_behind_the_callers_back(nccl, ranks):
    def program(communicator):
        buffer = nccl.Buffer(communicator, 8)
        buffer.write(np.ones(1))
        collective = nccl.Collective(communicator, "all_reduce", 1, "float64", buffer, in_place=True)
        collective.run(DEADLINE_S)
        collective.time(2, DEADLINE_S, graph_calls=3)
        # Nothing is left on the stream once another collective on it has run.
        other = nccl.Buffer(communicator, 8)
        nccl.Collective(communicator, "all_reduce", 1, "float64", other, in_place=True).run(DEADLINE_S)
        return float(np.frombuffer(buffer.read())[0])

    assert ranks.results(2, program) == [2.0**7] * 2


def test_ranks_that_share_several_ids_meet(nccl, ranks, fake_libnccl, monkeypatch):
    def program(communicator):
        buffer = nccl.Buffer(communicator, 8)
        buffer.write(np.ones(1))
        nccl.Collective(communicator, "all_reduce", 1, "float64", buffer, in_place=True).run(DEADLINE_S)
        return float(np.frombuffer(buffer.read())[0])

    assert ranks.results(4, program, ids=3) == [4.0] * 4
    with pytest.raises(ValueError, match="3 unique ids were given for 2 ranks: give at least one and at most one for"):
        ranks.results(2, program, ids=3)
    monkeypatch.setenv("PYPERF_LIBNCCL", str(fake_libnccl(22200)))
    with pytest.raises(nccl.NotAvailable, match=r"NCCL 2\.22\.0 takes one unique id, 2\.23 or later several"):
        ranks.results(2, program, ids=2)
