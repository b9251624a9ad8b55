"""Data-parallel steps: gradients that are the mean over ranks in every exchange, and what is sent, counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.collective.collective import Collective
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.data_parallel import DataParallel, DataParallelParameters, Replica
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


def test_a_gradient_that_is_missing_or_of_another_step_is_seen(group_of_one):
    made = replica(replace(SMALL, ranks=1))
    weight = next(made.model.parameters())
    weight.grad.mul_(1.001)
    assert made.verify_last().wrong > 0.9 * weight.numel()
    made.poison()
    assert "is missing" in made.verify_last().first


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pick", ["largest", "usual"])
def test_a_single_element_with_the_wrong_sign_is_found(group_of_one, dtype, pick):
    made = replica(replace(SMALL, ranks=1, dtype=dtype))
    assert made.verify_last().wrong == 0
    for weight in made.model.parameters():
        gradient = weight.grad.view(-1)
        place = int(gradient.abs().argmax() if pick == "largest" else gradient.abs().argsort()[3 * len(gradient) // 5])
        gradient[place] *= -1
        assert made.verify_last().wrong == 1
        gradient[place] *= -1


def test_gradients_that_are_zero_where_they_must_be_are_right(group_of_one):
    # A norm over a single element gives its bias whatever comes in, and no weight before it has a gradient.
    made = replica(replace(SMALL, hidden=1, heads=1, ranks=1, exchange="none"))
    assert made.verify_last().wrong == 0
    made.model.blocks[0].attention.qkv.weight.grad.add_(1.0)
    assert made.verify_last().wrong == 3


def test_a_rank_counts_weights_gradients_and_what_forward_keeps():
    assert SMALL.footprint_bytes > 3 * SMALL.gradient_bytes
    longer = replace(SMALL, seq=160)
    assert longer.footprint_bytes - SMALL.footprint_bytes > 9 * 34 * 16 * 2 * 64, "ten times the tokens"
    dropped = replace(longer, checkpointing=Checkpointing("every", 1))
    assert dropped.footprint_bytes < longer.footprint_bytes
    assert DataParallel().footprint_bytes(replace(SMALL, hidden=6400, heads=100, layers=2000)) > 10e12


def test_gradients_that_differ_between_ranks_are_seen(group_of_one, monkeypatch):
    made = replica(replace(SMALL, ranks=1))
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)

    def another(found, mine, group):
        found[0].copy_(mine)
        found[1].copy_(mine + 1)

    monkeypatch.setattr(torch.distributed, "all_gather", another)
    checked = made.verify_last()
    assert (checked.wrong, checked.first) == (1, "gradients differ between ranks")


def test_buckets_that_are_timed_are_those_of_the_record(group_of_one):
    made = replica(replace(SMALL, ranks=1, bucket_bytes=64 * 2**10))
    made.time(4, 10.0)
    buckets = made.kernel.details["buckets"]
    assert len(buckets) > 3
    assert ", ".join(map(str, buckets)) == made.call._get_ddp_logging_data()["rebuilt_bucket_sizes"]


def test_data_parallel_says_how_many_gpus_it_lacks():
    with pytest.raises(Unsupported, match="DataParallel over 4096 GPUs"):
        DataParallel().prepare(replace(SMALL, exchange="dp", ranks=4096), "dp", ExecutionContext(Device("cuda")))


def test_data_parallel_is_one_process_and_others_are_as_many_as_ranks():
    assert DataParallel().ranks(replace(SMALL, exchange="dp", ranks=4)) == 1
    assert DataParallel().ranks(replace(SMALL, ranks=4)) == 4
    for workload, usual in ((DataParallel(), SMALL), (Collective(), CollectiveParameters("all_reduce", 1024, 2))):
        assert workload.environment(usual) == {}
        assert workload.environment(replace(usual, peer_to_peer=False)) == {"NCCL_P2P_DISABLE": "1"}
