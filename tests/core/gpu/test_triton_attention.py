from dataclasses import replace

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiled_attention import Blocks
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.attention.attention import ATTENTION, TritonAttention
from pyperf_suite.workloads.operator import judged
from pyperf_suite.workloads.workload import ExecutionContext

pytestmark = pytest.mark.gpu

BASE = AttentionParameters(2, 8, 64, 512, kv_heads=2, causal=True)


@pytest.fixture(scope="module", autouse=True)
def device() -> Device:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("this torch finds no CUDA device")
    return Device("cuda")


def check(device: Device, parameters: AttentionParameters) -> dict:
    """Verify each of two operand sets, and that a second launch writes the same bits; gives the kernel's details."""
    operator, implementation = ATTENTION, TritonAttention()
    operator.validate(parameters)
    implementation.validate(parameters)
    operands = operator.operands(parameters, seed=1)
    launches = implementation.prepare(parameters, operands, ExecutionContext(device, sets=2))
    launches.poison()
    for index in (0, 1):
        launches.launch(index)
    first = launches.snapshot(0)
    verification = judged(operator.launched(parameters).check, operands, launches.outputs(0))
    assert verification.passed, f"{parameters}: {verification.message}"
    assert launches.matches(1, first)
    launches.launch(0)
    assert launches.matches(0, first)
    return dict(launches.kernel.details)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_dim", [16, 23, 40, 64, 72, 80, 96, 104, 112, 128, 136, 160, 192, 200, 256])
def test_each_head_dim_is_right_and_the_same_each_time(device, head_dim, causal, backward):
    check(device, replace(BASE, head_dim=head_dim, causal=causal, backward=backward))


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_each_dtype_is_right(device, dtype, backward):
    check(device, replace(BASE, dtype=dtype, backward=backward))


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("sequences", [(1, 1), (1, 1000), (127, 129), (129, 511), (1000, 1003)], ids=str)
def test_sequences_that_break_things_are_right(device, sequences, backward):
    check(device, replace(BASE, seq_q=sequences[0], seq_k=sequences[1], backward=backward))


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_grouped_heads_are_right(device, kv_heads, backward):
    check(device, replace(BASE, kv_heads=kv_heads, backward=backward))


def test_default_kernels_do_not_spill_and_their_slots_are_known(device):
    for head_dim in (64, 128, 256):
        for backward in (False, True):
            details = check(device, replace(BASE, head_dim=head_dim, backward=backward))
            assert all(cost["spills"] == 0 for cost in details["kernels"].values()), details
            assert details["slots"] > 0


def test_blocks_too_large_for_shared_memory_are_unsupported_in_one_sentence(device):
    with pytest.raises(Unsupported, match="take a smaller tile or fewer stages"):
        check(device, replace(BASE, head_dim=256, blocks=Blocks(256, 256, 6, 8)))
