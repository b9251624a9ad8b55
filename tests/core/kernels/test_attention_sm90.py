import re
import subprocess
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.kernels import attention_sm90, nvrtc
from pyperf_suite.kernels.attention import Shape
from pyperf_suite.kernels.attention_sm90 import HEAD_DIMS, KEYS, Specialisation, default_set, specialise
from pyperf_suite.kernels.disassembly import disassembler
from pyperf_suite.kernels.static import of_cuda
from tests.core.kernels.test_gemm_sm90 import INSTRUCTION

SHAPE = Shape(2, 8, 2, 1000, 1003)
# The widest that each number of consumers may have at each head_dim, and another type.
WIDEST = {(64, 64): 224, (64, 256): 96, (128, 64): 224, (128, 96): 192, (128, 128): 176, (192, 96): 112, (192, 128): 80}
COMPILED = [
    *default_set(),
    *(specialise(dim, "fp16", queries, keys, 2) for (queries, dim), keys in WIDEST.items()),
    specialise(128, "fp16", polynomial=2),
    Specialisation(128, 16, 64, 2),
    Specialisation(192, 16, 64, 2),
]
CONSUMER_REGISTERS = {1: 255, 2: 240, 3: 160}


def machine_code(kernel: Specialisation) -> tuple[str, list[str]]:
    """Return the compiler's log of an instance, and its instructions with their operands."""
    compiled = nvrtc.compile_cubin(
        attention_sm90.SOURCE, *attention_sm90.sources(), attention_sm90.ARCHITECTURE, kernel.options()
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.cubin)
        file.flush()
        command = [disassembler(), "--dump-sass", file.name]
        sass = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return compiled.log, [f"{name} {operands}" for _, _, name, operands in INSTRUCTION.findall(sass)]


def count(instructions: list[str], beginning: str) -> int:
    return sum(each.startswith(beginning) for each in instructions)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    "kernel",
    [COMPILED[0], *(pytest.param(one, marks=pytest.mark.slow) for one in COMPILED[1:])],
    ids=lambda one: one.name,
)
def test_weights_are_computed_while_the_values_of_the_step_before_are_multiplied(kernel):
    log, instructions = machine_code(kernel)
    assert "spill" in log  # the compiler does report
    assert not re.search(r"Potential Performance Loss|C75\d\d", log), log  # none is serialised, none injected
    metrics = of_cuda(kernel.name, kernel, attention_sm90.sources(), attention_sm90.ARCHITECTURE, attention_sm90.ENTRY)
    assert (metrics.local_memory_instructions, metrics.stack_bytes) == (0, 0)
    # setmaxnreg waits for registers that the launch did not give.
    assert metrics.registers == kernel.register_bound or kernel.consumers == 1
    assert metrics.registers <= kernel.register_bound
    assert (
        max(int(number) for each in instructions for number in re.findall(r"\bR(\d+)\b", each))
        < (CONSUMER_REGISTERS[kernel.consumers])
    )
    assert metrics.occupancy.blocks == 1 or kernel.consumers == 1
    assert metrics.instructions["UTMALDG"] == 3 * kernel.head_dim * 2 // kernel.span_bytes
    # With a mask and without: scores of the first step, of others the values of the step before; the last values.
    scores, values = kernel.head_dim // 16, kernel.keys // 16
    assert metrics.instructions["HGMMA"] == 2 * scores + 2 * (scores + values) + values
    waits = [at for at, each in enumerate(instructions) if each.startswith("WARPGROUP.DEPBAR.LE")]
    depths = [int(instructions[at].split("0x")[1]) for at in waits]
    assert sorted(depths) == [0, 0, 0, 0, 0, 1, 1]
    for at, following, depth in zip(waits, waits[1:], depths, strict=False):
        if depth == 1:
            assert count(instructions[at - 4 : at], "HGMMA") == 1, "the wait comes as soon as both products are issued"
            between, behind = instructions[at:following], instructions[following : following + kernel.keys]
            powers = kernel.keys // 2 * (8 - kernel.polynomial) // 8
            assert count(between, "MUFU.EX2") >= powers
            # The remaining instructions pack, and scale where a maximum rose.
            assert count(behind[: behind.index(next(each for each in behind if each.startswith("BRA")))], "MUFU") == 0
            assert count(between, "HGMMA") == 0


@given(st.sampled_from([64, 128, 192]), st.sampled_from(KEYS), st.integers(1, 260), st.sampled_from(["bf16", "fp16"]))
def test_a_block_is_either_within_the_limits_or_refused_with_what_can_be(queries, keys, head_dim, dtype):
    try:
        kernel = specialise(head_dim, dtype, queries, keys)
    except ValueError as refusal:
        words = str(refusal)
        assert re.search(r"take triton|at most 256|nearest that can|take 64 or 128|keys a step", words)
        if nearest := re.search(r"nearest that can is (\d+)x(\d+)", words):
            attention_sm90.check_block(*map(int, nearest.groups()), attention_sm90.padded_head_dim(head_dim), dtype)
        if fitting := re.search(r"take (\d+) keys a step", words):
            assert specialise(head_dim, dtype, queries, int(fitting[1]))
        return
    assert 2 <= kernel.stages <= attention_sm90.MOST_STAGES
    assert kernel.smem_bytes <= attention_sm90.SHARED_BYTES
    assert kernel.threads * kernel.register_bound <= 65536
    assert kernel.head_dim == min(each for each in HEAD_DIMS if each >= head_dim)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: specialise(100), "pad head_dim to 104, or take triton"),
        (lambda: specialise(264), "at most 256"),
        (lambda: specialise(128, "fp32"), "multiplies it in bf16 or fp16"),
        (lambda: specialise(128, "bf16", 96, 100), "nearest that can is 64x96"),
        (lambda: specialise(64, "bf16", 192, 256), "nearest that can is 192x128"),
        (lambda: specialise(256, "bf16", 192, 16), "take 64 or 128 queries"),
        (lambda: specialise(192, "bf16", 128, 128), "take 112 keys a step"),
        (lambda: specialise(128, "bf16", 128, 128, 4), "3 stages do"),
        (lambda: specialise(128, stages=1), "at least 2"),
        (lambda: specialise(128, polynomial=9), "for 0 to 8"),
        (lambda: specialise(128).check_device("10.0"), "take triton"),
        (lambda: specialise(128).tensor_maps((0, 8, 0, 0), SHAPE, 128), "K begins at address 0x8"),
        (lambda: specialise(128).tensor_maps((0, 0, 0, 0), SHAPE, 136), "computes with 128"),
        (lambda: bound(Shape(1, 1, 1, 9, 8), causal=True), "without a key"),
        (lambda: Shape(1, 3, 2, 1, 1), "do not divide 3"),
    ],
)
def test_what_cannot_be_is_refused_with_the_limit_and_what_can(ask, words):
    with pytest.raises(ValueError, match=words):
        ask()


def bound(shape: Shape, causal: bool) -> list[bytes]:
    one = specialise(104)
    return one.bind(lambda **_: b"m" * 128, (0, 0, 0, 0), 4096, shape, 104, causal, one.schedule(shape))
