"""A product with an all_reduce: both right in every run, and whoever is wrong or missing is seen."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.record.case import Case
from pyperf_suite.workloads import on_ranks
from pyperf_suite.workloads.training import data_parallel
from pyperf_suite.workloads.training.data_parallel import (
    RUNS,
    OnCpu,
    OnGpu,
    Overlap,
    OverlapParameters,
    blocks_in_trace,
)

pytest.importorskip("torch")

SMALL = OverlapParameters(96, 1 << 16)
TWO_HERE: Any = SimpleNamespace(count=2, rank=0, environment=SimpleNamespace(nodes=1))


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_every_run_computes_and_exchanges_what_it_must(workers, run):
    case = Case("overlap", replace(SMALL, run=run), "gloo")
    assert Case.from_json(case.to_json()) == case
    answer = workers.measure(0, case, None)
    assert answer["outcome"] == "ok", answer
    product, message = 2 * 96**2, 2 * (1 << 14)
    due = {"product": product, "all_reduce": message}.get(run, product + message)
    assert answer["verification"]["compared"] == due
    assert answer["work"]["bytes"] == (0 if run == "product" else 1 << 16)
    beside = answer["kernel"]["details"].get("beside", 0)
    assert (1 <= beside <= 16) == run.endswith("_beside")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_product_and_a_missing_rank_are_seen(group_of_one, dtype):
    alone = replace(SMALL, ranks=1, dtype=dtype)
    sides = OnCpu(alone, 0, None, "cpu")
    assert sides.verify_last().wrong > 0, "nothing has run yet"
    sides.time(1, 10.0)
    assert sides.verify_last().wrong == 0
    sides._out[0, 3] += 1
    assert (sides.verify_last().wrong, "out[0, 3]" in sides.verify_last().first) == (1, True)
    sides.time(1, 10.0)
    place = sides._out.abs().argmax()
    sides._out.view(-1)[place] *= -1
    assert sides.verify_last().wrong == 1

    # The mean of two ranks is due, and one has nobody to exchange with.
    sides = OnCpu(replace(alone, ranks=2), 0, None, "cpu")
    sides.time(1, 10.0)
    assert sides.verify_last().wrong == alone.count
    assert "mean of the ranks" in sides.verify_last().first


def test_means_that_are_repeated_stay_what_they_are(group_of_one):
    sides = OnCpu(replace(SMALL, ranks=1), 0, None, "cpu")
    sides.time(50, 10.0)
    assert sides.verify_last().wrong == 0


def test_an_all_reduce_beside_products_ends_with_itself(group_of_one):
    sides = OnCpu(replace(SMALL, ranks=1, run="all_reduce_beside"), 0, None, "cpu")
    times = sides.time(5, 10.0)
    assert (times.seconds > 0).all()
    assert ((times.done_ns - times.arrived_ns) * 1e-9 == pytest.approx(times.seconds)) is True


def test_products_run_also_beside_an_all_reduce_that_is_through_before_they_begin(group_of_one, monkeypatch):
    import torch

    sides = OnCpu(replace(SMALL, ranks=1, run="all_reduce_beside"), 0, None, "cpu")
    through = torch.futures.Future()
    through.set_result(None)
    begun = SimpleNamespace(get_future=lambda: through, wait=lambda: None)
    monkeypatch.setattr(sides, "_all_reduce", lambda asynchronous: begun)
    sides.poison()
    sides.step()
    assert sides.verify_last().wrong == 0


@pytest.mark.parametrize(
    ("run", "queued"),
    {
        "product": ["begin", "mm", "end main"],
        "all_reduce": ["begin", "ar", "end side"],
        "in_turn": ["begin", "mm", "ar", "end side"],
        "together": ["begin", "ar", "mm", "main waits", "end main"],
        "product_beside": ["begin", "ar", "ar", "mm", "end main"],
        "all_reduce_beside": ["begin", "ar", "end side", "mm", "mm"],
    }.items(),
)
def test_a_gpu_is_timed_to_the_end_of_the_stream_that_is_asked_about(group_of_one, monkeypatch, run, queued):
    import torch

    log: list[str] = []

    class Stream:
        def __init__(self, where: str, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: Any) -> None:
            log.extend(["main waits"] if self.name == "main" else [])

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            pass

        def record(self, stream: Any) -> None:
            log.append(f"end {stream.name}" if "begin" in log else "begin")

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Any) -> float:
            return 1.0

    main = Stream("cpu", "main")
    stubs = {"set_device": lambda _: None, "synchronize": lambda _: None, "current_stream": lambda _: main}
    stubs |= {"Stream": Stream, "Event": Event, "stream": lambda _: nullcontext()}
    stubs["get_device_properties"] = lambda _: SimpleNamespace(multi_processor_count=132)
    for name, stub in stubs.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(data_parallel, "_blocks_of_nccl", lambda *_: 24)
    monkeypatch.setattr(OnGpu, "_agreed_others", lambda self: 2 if self.timed("product")[0] else 0)
    sides = OnGpu(replace(SMALL, ranks=1, run=run), 0, None, "cpu")
    for name, word in (("_product", "mm"), ("_all_reduce", "ar")):
        monkeypatch.setattr(sides, name, lambda word=word: log.append(word))
    log.clear()
    assert sides.time(1, 10.0).seconds.tolist() == [1e-3]
    assert log == queued


def test_blocks_of_nccl_are_read_from_a_trace():
    events = [
        {"name": "Memcpy", "args": {}},
        {"name": "gemm", "args": {"grid": [8, 8, 1]}},
        {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "args": {"grid": [24, 1, 1]}},
    ]
    assert blocks_in_trace(events) == 24
    assert blocks_in_trace(events[:2]) is None
    assert blocks_in_trace([{"name": "ncclDevKernel", "args": {}}]) is None


def test_a_rank_counts_what_it_holds_and_what_it_compares_with():
    assert replace(SMALL, size=1000, bytes=4000).footprint_bytes == 20 * 1000**2 + 4000 + 16 * 1000
    assert Overlap().footprint_bytes(replace(SMALL, size=1 << 17, bytes=4)) > 300e9


def test_ranks_that_do_not_fit_into_memory_together_are_refused(monkeypatch):
    monkeypatch.setattr(on_ranks.memory, "available_bytes", lambda: 10**9)
    need = "2 ranks on this machine need 1.2 GB, but 1.0 GB of memory are free: ask for fewer"
    with pytest.raises(Unsupported, match=need):
        on_ranks.require_memory(TWO_HERE, 600_000_000)
    on_ranks.require_memory(TWO_HERE, 400_000_000)


def test_ranks_started_with_direct_copies_are_not_timed_as_if_without(monkeypatch):
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    on_ranks.require_started_so(peer_to_peer=True)
    with pytest.raises(Unsupported, match="start them with NCCL_P2P_DISABLE=1"):
        on_ranks.require_started_so(peer_to_peer=False)
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    on_ranks.require_started_so(peer_to_peer=False)
