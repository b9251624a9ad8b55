"""The Hopper attention on a device: each default instance, head_dim, length and schedule against float64."""

from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels.attention_sm90 import Specialisation, default_set
from pyperf_suite.laws.tiled_attention import Blocks
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.attention.attention import ATTENTION, HopperAttention
from pyperf_suite.workloads.backends import cuda_device
from pyperf_suite.workloads.operator import judged
from pyperf_suite.workloads.workload import ExecutionContext

pytestmark = pytest.mark.gpu

BASE = AttentionParameters(2, 8, 64, 512, kv_heads=2, causal=True)
SMALL = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 130, "seq_k": 131}  # for the double, which takes seconds


@pytest.fixture(scope="module", autouse=True)
def hopper() -> None:
    found = cuda_device(0).context.properties
    if tuple(found.compute_capability) != (9, 0):
        pytest.skip(f"the Hopper attention needs compute capability 9.0, and this is a {found.name}")


def attentions(*cases: AttentionParameters) -> pytest.MarkDecorator:
    """Run a test for each case; `instances` finds them here."""
    return pytest.mark.parametrize("case", tuple(dict.fromkeys(cases)), ids=str)


def instances() -> set[Specialisation]:
    """All that the tests of this file launch: what `tools/gpu_check.sh prepare` compiles beforehand."""
    marks = (mark for each in globals().values() for mark in getattr(each, "pytestmark", ()))
    return {HopperAttention().specialise(case) for mark in marks if mark.args[:1] == ("case",) for case in mark.args[1]}


def check(parameters: AttentionParameters, is_double: bool) -> dict:
    """Verify two operand sets, and that other launches write the same bits; gives the kernel's details."""
    operator, implementation = ATTENTION, HopperAttention()
    small = {name: min(size, getattr(parameters, name) or size) for name, size in SMALL.items()}
    parameters = replace(parameters, **small) if is_double else parameters
    operator.validate(parameters)
    implementation.validate(parameters)
    operands = operator.operands(parameters, seed=1)
    launches = implementation.prepare(parameters, operands, ExecutionContext(Device("cuda"), sets=2))
    launches.poison()
    for index in (0, 1):
        launches.launch(index)
    first = launches.snapshot(0)
    verification = judged(operator.launched(parameters).check, operands, launches.outputs(0))
    assert verification.passed, f"{parameters}: {verification.message}"
    assert launches.matches(1, first)
    for _ in range(2 if is_double else 50):
        launches.launch(0)
    assert launches.matches(0, first)
    details = dict(launches.kernel.details)
    assert details["local_bytes"] == 0
    assert details["slots"] > 0
    return details


@attentions(
    *(
        replace(BASE, head_dim=one.head_dim, causal=causal, seq_k=seq_k, blocks=Blocks(one.queries, one.keys))
        for one in default_set()
        for causal, seq_k in ((False, 300), (True, 1021))
    )
)
def test_each_default_instance_is_right(case, is_double):
    assert check(case, is_double)["padded_head_dim"] == case.head_dim


@attentions(
    *(
        replace(BASE, head_dim=head_dim, dtype=dtype)
        for dtype in ("bfloat16", "float16")
        for head_dim in (8, 40, 64, 72, 80, 96, 104, 112, 128, 136, 160, 192, 200, 256)
    )
)
def test_each_head_dim_is_right_and_the_same_each_time(case, is_double):
    check(case, is_double)


@attentions(
    *(
        replace(BASE, head_dim=head_dim, seq_q=queries, seq_k=keys, causal=causal)
        for head_dim in (64, 128)
        for queries, keys in ((1, 1), (1, 1000), (127, 129), (129, 511), (1000, 1003), (4096, 4096))
        for causal in (False, True)
    )
)
def test_sequences_that_break_things_are_right(case, is_double):
    check(case, is_double)


@attentions(*(replace(BASE, kv_heads=heads, head_dim=128) for heads in (1, 2, 8)))
def test_grouped_heads_are_right(case, is_double):
    check(case, is_double)


@attentions(
    *(
        replace(BASE, causal=causal, head_dim=128, heads=64, seq_q=1000, blocks=Blocks(128, 128, 2, persistent=stays))
        for causal in (False, True)
        for stays in (False, True)
    )
)
def test_workers_that_stay_and_blocks_that_are_handed_out_are_right(case, is_double):
    assert check(case, is_double)["blocks"] == str(case.blocks)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"head_dim": 256, "blocks": Blocks(128, 80, 3)}, "2 stages do"),
        ({"head_dim": 128, "blocks": Blocks(192, 128)}, "nearest that can is 192x80"),
        ({"head_dim": 100}, "pad head_dim to 104, or take triton"),
        ({"head_dim": 264}, "at most 256 fit registers"),
        ({"dtype": "float32"}, "multiplies it in bf16 or fp16"),
    ],
)
def test_what_the_kernel_does_not_have_is_unsupported_in_one_sentence(is_double, changed, words):
    with pytest.raises(Unsupported, match=words):
        check(replace(BASE, **changed), is_double)


def test_a_head_is_the_same_next_to_one_that_is_not_a_number():
    parameters = replace(BASE, batch=1, heads=2, kv_heads=2, seq_q=130, seq_k=131, head_dim=64)
    results = []
    for spoiled in (False, True):
        operands = ATTENTION.operands(parameters, seed=1)
        launches = HopperAttention().prepare(parameters, operands, ExecutionContext(Device("cuda"), sets=1))
        if spoiled:
            for name in "qkv":
                held = launches._memory.sets[0][name]
                held.write(np.full(held.bytes // 4, 0x7FC0, np.uint16))
        launches.poison()
        launches.launch(0)
        results.append(launches.outputs(0)["o"][0, 1])
    np.testing.assert_array_equal(*results)
