"""Ranks that train together: gradients that are the mean of all in every exchange, and products beside all_reduces."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.workloads import on_ranks
from pyperf_suite.workloads.backends import fingerprint
from pyperf_suite.workloads.training import Checkpointing, data_parallel
from pyperf_suite.workloads.training.data_parallel import (
    RUNS,
    DataParallel,
    DataParallelParameters,
    OnCpu,
    OnGpu,
    OverlapParameters,
    Replica,
    blocks_in_trace,
)
from pyperf_suite.workloads.workload import ExecutionContext

torch = pytest.importorskip("torch")

SMALL = DataParallelParameters(hidden=64, heads=2, layers=2, seq=16, batch=2)
EXCHANGES = {
    "none": replace(SMALL, exchange="none"),
    "after backward": replace(SMALL, exchange="after"),
    "a single bucket": SMALL,
    "small buckets": replace(SMALL, bucket_bytes=64 * 2**10),
    "no_sync": replace(SMALL, accumulate=3),
    "each micro-batch": replace(SMALL, accumulate=3, no_sync=False),
    "accumulated, then exchanged": replace(SMALL, accumulate=2, exchange="after"),
    "with logits": replace(SMALL, vocab=96),
    "checkpointed": replace(SMALL, checkpointing=Checkpointing("every", 1)),
    "bfloat16": replace(SMALL, dtype="bfloat16"),
}


@pytest.mark.slow
@pytest.mark.parametrize("parameters", EXCHANGES.values(), ids=EXCHANGES)
def test_every_exchange_gives_the_gradients_of_a_single_process_on_all_ranks(workers, parameters):
    case = Case("data_parallel", parameters, "gloo")
    assert Case.from_json(case.to_json()) == case
    answer = workers.measure(0, case, None)
    assert answer["outcome"] == "ok", answer
    assert answer["verification"]["compared"] > 40
    details = answer["kernel"]["details"]
    assert details.get("wire_bytes", 0) == parameters.exchanges * parameters.gradient_bytes
    assert sum(details.get("buckets", ())) == (parameters.gradient_bytes if parameters.exchanges else 0)
    assert answer["work"]["bytes"] == parameters.exchanges * parameters.gradient_bytes


def replica(parameters: DataParallelParameters) -> Replica:
    made = Replica(parameters, 0, None, "cpu")
    made.poison()
    made.time(1, 10.0)
    return made


@pytest.mark.parametrize("exchange", ["ddp", "after"])
def test_a_rank_that_was_left_out_is_seen(group_of_one, exchange):
    assert replica(replace(SMALL, exchange=exchange, ranks=1)).verify_last().wrong == 0
    # The mean over two ranks is due, and one has nobody to exchange with.
    checked = replica(replace(SMALL, exchange=exchange, ranks=2)).verify_last()
    assert checked.wrong > SMALL.dimensions.parameters / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pick", ["largest", "usual"])
def test_a_single_element_with_the_wrong_sign_is_found(group_of_one, dtype, pick):
    steps = replica(replace(SMALL, ranks=1, dtype=dtype))
    assert steps.verify_last().wrong == 0
    for weight in steps.model.parameters():
        gradient = weight.grad.view(-1)
        place = int(gradient.abs().argmax() if pick == "largest" else gradient.abs().argsort()[3 * len(gradient) // 5])
        gradient[place] *= -1
        assert steps.verify_last().wrong == 1
        gradient[place] *= -1


def test_gradients_that_are_zero_where_they_must_be_are_right(group_of_one):
    # A norm over a single element gives its bias whatever comes in, and no weight before it has a gradient.
    made = replica(replace(SMALL, hidden=1, heads=1, ranks=1, exchange="none"))
    assert made.verify_last().wrong == 0
    made.model.blocks[0].attention.qkv.weight.grad.add_(1.0)
    assert made.verify_last().wrong == 3


def test_gradients_that_differ_between_ranks_are_seen(group_of_one, monkeypatch):
    steps = replica(replace(SMALL, ranks=1))
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)

    def another(gathered, mine, group):
        gathered[0].copy_(mine)
        gathered[1].copy_(mine + 1)

    monkeypatch.setattr(torch.distributed, "all_gather", another)
    checked = steps.verify_last()
    assert (checked.wrong, checked.first) == (1, "gradients differ between ranks")


@pytest.mark.parametrize("count", [1, 7, 64, 1001])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_fingerprint_tells_a_changed_and_a_swapped_element_and_not_where_bits_lie(dtype, count):
    values = torch.arange(1, count + 2).to(dtype)
    expected = fingerprint([values[1:]])
    assert fingerprint([values[1:].clone()]) == expected
    for place in {0, count // 2, count - 1}:
        other = values[1:].clone()
        other[place] *= -1
        assert fingerprint([other]) != expected
    if 1 < count <= 64:
        assert fingerprint([values[1:].flip(0)]) != expected
    assert fingerprint([values[1:], values[:1]]) != fingerprint([values[:1], values[1:]])


def test_buckets_that_are_timed_are_those_of_the_record(group_of_one):
    made = replica(replace(SMALL, ranks=1, bucket_bytes=64 * 2**10))
    made.time(4, 10.0)
    buckets = made.kernel.details["buckets"]
    assert len(buckets) > 3
    assert ", ".join(map(str, buckets)) == made.call._get_ddp_logging_data()["rebuilt_bucket_sizes"]


def test_data_parallel_says_how_many_gpus_it_lacks():
    with pytest.raises(Unsupported, match="DataParallel over 4096 GPUs"):
        DataParallel().prepare(replace(SMALL, exchange="dp", ranks=4096), "dp", ExecutionContext(Device("cuda")))


BOTH = OverlapParameters(96, 1 << 16)
TWO_HERE: Any = SimpleNamespace(count=2, rank=0, environment=SimpleNamespace(nodes=1))


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_every_run_computes_and_exchanges_what_it_must(workers, run):
    case = Case("overlap", replace(BOTH, run=run), "gloo")
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
    alone = replace(BOTH, ranks=1, dtype=dtype)
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


def test_an_all_reduce_beside_products_ends_with_itself(group_of_one):
    sides = OnCpu(replace(BOTH, ranks=1, run="all_reduce_beside"), 0, None, "cpu")
    times = sides.time(5, 10.0)
    assert (times.seconds > 0).all()
    assert ((times.done_ns - times.arrived_ns) * 1e-9 == pytest.approx(times.seconds)) is True


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
    log: list[str] = []
    main = SimpleNamespace(name="main", wait_stream=lambda _: log.append("main waits"))
    side = SimpleNamespace(name="side", wait_stream=lambda _: None)
    event = SimpleNamespace(
        record=lambda stream: log.append(f"end {stream.name}" if "begin" in log else "begin"),
        synchronize=lambda: None,
        elapsed_time=lambda _: 1.0,
    )
    stubs = {"set_device": lambda _: None, "synchronize": lambda _: None, "current_stream": lambda _: main}
    stubs |= {"Stream": lambda _: side, "Event": lambda **_: event, "stream": lambda _: nullcontext()}
    stubs["get_device_properties"] = lambda _: SimpleNamespace(multi_processor_count=132)
    for name, stub in stubs.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(data_parallel, "_blocks_of_nccl", lambda *_: 24)
    monkeypatch.setattr(OnGpu, "_agreed_others", lambda self: 2 if self.timed("product")[0] else 0)
    sides = OnGpu(replace(BOTH, ranks=1, run=run), 0, None, "cpu")
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
