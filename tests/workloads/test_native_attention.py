"""The native attention as an implementation: right through the operator, and what it refuses in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.laws.attention.counted import Blocks
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.attention.attention import Attention, NativeCpuAttention, default_native_blocks
from pyperf_suite.workloads.workload import Place

CPU = resolve("cpu")
SMALL = AttentionParameters(2, 4, 40, 67, 91, kv_heads=2, dtype="float32", blocks=Blocks(16, 64))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [None, Blocks(16, 64), Blocks(67, 128)], ids=str)
@pytest.mark.parametrize("seq_q", [1, 67])
def test_it_agrees_with_the_reference_on_every_operand_set(
    seq_q: int, blocks: Blocks | None, causal: bool, dtype: str
) -> None:
    parameters = replace(SMALL, seq_q=seq_q, blocks=blocks, causal=causal, dtype=dtype)
    operator = Attention()
    operands = operator.operands(parameters, seed=1)
    launches = NativeCpuAttention().prepare(parameters, operands, Place(CPU, sets=2))
    launches.poison()
    for index in (0, 1):
        assert not operator.verify(parameters, operands, launches.outputs(index)).passed
        launches.launch(index)
        verification = operator.verify(parameters, operands, launches.outputs(index))
        assert verification.passed, verification.message


def test_the_record_says_which_blocks_slots_and_padding_there_were() -> None:
    parameters = replace(SMALL, blocks=None)
    launches = NativeCpuAttention().prepare(parameters, Attention().operands(parameters, seed=0), Place(CPU))
    details = launches.kernel.details
    assert launches.kernel.name == f"native_attention_{details['isa']}"
    assert details["blocks"] == str(default_native_blocks(parameters))
    assert details["slots"] == 1
    assert 40 <= details["padded_head_dim"] < 40 + 16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backward": True}, "computes the forward pass only"),
        ({"workers": 4096}, "4096 workers were asked for"),
        ({"blocks": Blocks(64, 33)}, "Blocks 64x33 cannot be computed"),
        ({"blocks": Blocks(64, 64, stages=3)}, "Blocks 64x64:s3 name stages or warps.*ask for 64x64"),
        ({"blocks": Blocks(64, 64, warps=4)}, "Blocks 64x64:w4 name stages or warps"),
    ],
)
def test_what_no_machine_can_do_is_refused_before_anything_is_measured(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        NativeCpuAttention().validate(replace(SMALL, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"dtype": "float16"}, "choose float32 or bfloat16"), ({"head_dim": 520}, "head_dim = 520 is out of range")],
)
@pytest.mark.parametrize("blocks", [None, Blocks(16, 64)], ids=str)
def test_a_dtype_or_head_dim_beyond_the_kernel_is_unsupported(changes: dict, words: str, blocks: Blocks | None) -> None:
    parameters = replace(SMALL, blocks=blocks, **changes)
    NativeCpuAttention().validate(parameters)
    operands = Attention().operands(parameters, seed=0)
    with pytest.raises(Unsupported, match=words):
        NativeCpuAttention().prepare(parameters, operands, Place(CPU))
