"""Offload: what leaves the GPU, what the bus, the host's memory and drives cost, and who can do it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.training.memory import need_of
from pyperf_suite.planner.laws.training.offload import (
    ADDED_BYTES,
    BUS_SHARE,
    DRIVE_BYTES,
    HOST_SHARE,
    OFFLOADS,
    Host,
    usual_host,
)
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.laws.training.step import OPTIMIZER_BYTES_PER_PARAMETER as ADAM_BYTES
from pyperf_suite.planner.laws.training.step import adam_on_host_s, step_time, waited_for_host

LLAMA = ModelDimensions(32, 4096, 14336, 32, 128256, kv_heads=8, gated=True)
# Copies reach 20 GB/s each way, the CPU's kernels 100 GB/s, drives 5 GB/s.
HOST = Host(20e9 / BUS_SHARE, 100e9 / HOST_SHARE, 5e9)
PLAN = ParallelPlan(
    global_batch=64,
    micro_batch=1,
    seq=4096,
    data=8,
    overlap_gradients=True,
    zero_stage=3,
    framework="deepspeed",
    host=HOST,
)


ADAM_S, ADDED_S = 1e9 * ADAM_BYTES / 100e9, 1e9 * ADDED_BYTES / 100e9
DRIVES_S = 1e9 * DRIVE_BYTES / 5e9 - ADAM_S
LONG = {"forward": 1.0, "backward": 1.0}


@pytest.mark.parametrize(
    ("offload", "framework", "changed", "waited_s"),
    [
        # 2 GB each way at 20 GB/s: gradients during backward, parameters back after the update.
        ("optimizer", "deepspeed", {}, 0.1 + 0.1),
        ("optimizer", "deepspeed", {"backward": 0.04}, 0.06 + 0.1),
        ("optimizer", "deepspeed", {"backward": 1.0}, 0.1),
        # Gradients leave with each micro-batch from ZeRO 2 on, with an iteration below; Megatron's wait for the end of
        # backward.
        ("optimizer", "deepspeed", {"micro_batches": 4}, 4 * 0.1 + 0.1),
        ("optimizer", "deepspeed", {"micro_batches": 4, "zero_stage": 1}, 0.1 + 0.1),
        ("optimizer", "megatron", {"zero_stage": 1, "gradient_bytes": 4, "backward": 1.0}, 0.2 + 0.1),
        # Parameters are fetched in forward and backward of each micro-batch.
        ("cpu", "deepspeed", {"backward": 1.0}, 0.1),
        ("cpu", "deepspeed", LONG, 0),
        # FSDP sends 4 bytes a parameter, and adds gradients of further micro-batches on the CPU.
        ("cpu", "fsdp2", {"gradient_bytes": 4, "backward": 1.0}, 0.2),
        ("cpu", "fsdp2", {"gradient_bytes": 4, "micro_batches": 3, **LONG}, 2 * ADDED_S),
        # DeepSpeed brings the sum so far back to the GPU, next to the parameters.
        ("cpu", "deepspeed", {"micro_batches": 2, "forward": 1.0}, 2 * 0.2),
        # Drives are read and written while Adam computes.
        ("nvme", "deepspeed", LONG, DRIVES_S),
        ("nvme", "deepspeed", {"backward": 1.0}, DRIVES_S + 2e9 / 5e9),
    ],
)
def test_an_iteration_waits_for_what_is_not_hidden_and_adam_is_bound_by_the_hosts_memory(
    offload, framework, changed, waited_s
):
    usual = {"zero_stage": 3, "gradient_bytes": 2, "micro_batches": 1, "forward": 0.0, "backward": 0.0} | changed
    stage, nbytes, micro_batches, forward_s, backward_s = usual.values()
    plan = replace(
        PLAN, offload=offload, framework=framework, zero_stage=stage, gradient_bytes=nbytes,
        global_batch=PLAN.data * micro_batches,
    )  # fmt: skip
    assert float(waited_for_host(plan, HOST, 1e9, forward_s, backward_s)) == pytest.approx(waited_s)
    assert adam_on_host_s(HOST, 1e9) == pytest.approx(ADAM_S)


def test_a_host_is_the_makers_server_or_the_cpu_on_the_module():
    a100, h100, grace = (usual_host(find_gpu(name)) for name in ("A100", "H100", "GH200"))
    assert (a100.bus_bytes_per_s, h100.bus_bytes_per_s) == (31.5e9, 63e9)
    assert a100.host_bytes_per_s < h100.host_bytes_per_s
    # NVLink-C2C; what copies reach is bound by the host's memory too.
    assert grace.bus_bytes_per_s == 450e9
    assert grace.bus == grace.host < 450e9
    assert h100.holds(1e15)
    assert replace(h100, memory_bytes=100.0).holds([80, 95]).tolist() == [True, False]


def test_a_step_that_offloads_has_adam_on_the_cpu_and_a_part_for_what_it_waits_for():
    usual = step_time("A100", LLAMA, PLAN)
    away = step_time("A100", LLAMA, replace(PLAN, offload="optimizer"))
    assert "offload" not in usual.parts
    assert away.parts["optimizer"] > max(1e9 * ADAM_BYTES / 100e9, usual.parts["optimizer"])
    assert float(away.seconds) == pytest.approx(sum(map(float, away.parts.values())))
    same = [name for name in usual.parts if name != "optimizer"]
    assert {name: float(away.parts[name]) for name in same} == {name: float(usual.parts[name]) for name in same}
    # The host's assumed rates are no surer than the law.
    on_host = away.parts["optimizer"] + away.parts["offload"]
    law, host = usual.high / usual.seconds, max(usual.high / usual.seconds, 1.5)
    assert away.high == pytest.approx((away.seconds - on_host) * law + on_host * host)
    assert away.low < away.seconds * usual.low / usual.seconds
    faster = replace(PLAN, offload="optimizer", host=Host(40e9, 400e9))
    assert step_time("A100", LLAMA, faster).parts["optimizer"] < away.parts["optimizer"]


def test_what_is_offloaded_is_the_hosts_and_no_more_the_gpus():
    plan = replace(PLAN, framework="fsdp2")
    needs = {offload: need_of(LLAMA, replace(plan, offload=offload)) for offload in OFFLOADS}
    share = LLAMA.parameters / 8
    assert needs["none"].host == needs["none"].nvme == 0
    assert (needs["optimizer"].optimizer, needs["optimizer"].gradients) == (0, 0)
    assert needs["optimizer"].host == pytest.approx(16 * share)
    assert needs["optimizer"].weights == needs["none"].weights
    assert (needs["cpu"].weights, needs["cpu"].gradients, needs["cpu"].optimizer) == (0, 0, 0)
    assert needs["cpu"].host == needs["nvme"].nvme == pytest.approx(18 * share)
    # Four pieces of the largest matrix, the output's, are on their way at once.
    assert needs["cpu"].host > needs["nvme"].host == pytest.approx(18 * 4 * LLAMA.vocab * LLAMA.hidden / 8)
    assert needs["cpu"].total == pytest.approx(
        needs["none"].activations + needs["none"].gathered + needs["none"].buffers
    )
    # Gradients that are not scattered stay until the update.
    whole = need_of(LLAMA, replace(plan, zero_stage=1, offload="optimizer"))
    assert whole.gradients == 4 * LLAMA.parameters
