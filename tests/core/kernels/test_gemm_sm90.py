import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.kernels import gemm_sm90, nvrtc
from pyperf_suite.kernels.disassembly import INSTRUCTION_BYTES, disassemble, disassembler
from pyperf_suite.kernels.gemm_sm90 import default_set, in_layout, specialise
from pyperf_suite.kernels.static import of_cuda

LARGEST = [one for one in default_set() if one.m * one.n == max(other.m * other.n for other in default_set())]

PAIRS = ({"cluster_m": 2}, {"cluster_n": 2})
COMPILED = [
    *default_set(),
    # Variants of the largest tiles.
    *(replace(one, shared_tiles=True) for one in LARGEST),
    *(replace(one, out_type="fp32") for one in LARGEST),
    *(in_layout(one, "NT") for one in LARGEST),
    *(replace(in_layout(one, "TT"), shared_tiles=True) for one in LARGEST),
    # Other types, any width of a wgmma, and pairs of e4m3 and of odd N-major widths.
    *(specialise(128, 256, cluster_m=2, in_type=in_type) for in_type in ("fp16", "e4m3")),
    *(specialise(64, n, stages=2) for n in (16, 136, 248)),
    *(specialise(128, n, cluster_m=2 - n // 8 % 2) for n in range(136, 256, 8)),
    specialise(128, 256, in_type="e4m3", cluster_n=2),
    *(specialise(64, n, stages=2, b_transposed=False, **pair) for n in (24, 200) for pair in PAIRS),
]


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("specialisation", COMPILED, ids=lambda one: one.name)
def test_hopper_kernels_have_one_wgmma_a_block_and_step_of_k_use_tma_both_ways_and_do_not_spill(specialisation):
    metrics = of_cuda(specialisation.name, specialisation, gemm_sm90.sources(), gemm_sm90.ARCHITECTURE)
    blocks = specialisation.m // 64 // specialisation.consumers
    steps = specialisation.k * specialisation.in_bytes // 32
    assert metrics.instructions["QGMMA" if specialisation.in_type == "e4m3" else "HGMMA"] == blocks * steps
    assert metrics.instructions["UTMALDG"] >= 2
    assert metrics.instructions["UTMASTG"] == blocks * specialisation.n * specialisation.out_bytes // (
        specialisation.store_span_bytes
    )
    assert metrics.local_memory_instructions == 0
    assert metrics.stack_bytes == 0
    assert metrics.registers <= specialisation.register_bound
    assert metrics.occupancy.blocks >= 1


@pytest.mark.usefixtures("tools")
def test_the_compiler_neither_ignores_setmaxnreg_nor_serialises_wgmma():
    source, headers = gemm_sm90.sources()
    for specialisation in LARGEST:
        compiled = nvrtc.compile_cubin(
            gemm_sm90.SOURCE, source, headers, gemm_sm90.ARCHITECTURE, specialisation.options()
        )
        assert "spill" in compiled.log  # the compiler does report
        assert "Potential Performance Loss" not in compiled.log  # C7508 to C7511
        assert disassemble(compiled.cubin, gemm_sm90.ENTRY).instructions["USETMAXREG"] == 2
        assert instructions_before_load(compiled.cubin) <= MOST_BEFORE_LOAD[False]


# "/*0050*/ @!P0 BRA 0x1d0 ;": where it stands, its predicate, the instruction and its operands.
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+) )?([A-Z][A-Z0-9_.]*) *(.*?)\s*;", re.MULTILINE)


def instructions_before_load(cubin: bytes) -> int:
    """Instructions from which the first TMA load is still ahead, on any branch; a loop's count once."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        sass = subprocess.run([disassembler(), "--dump-sass", file.name], capture_output=True, text=True, check=True)
    after, before, loads = {}, defaultdict(set), set()
    for address, predicate, name, operands in INSTRUCTION.findall(sass.stdout):
        at = int(address, 16)
        goes_on = bool(predicate) or name not in ("EXIT", "BRA") or operands.startswith(("P", "UP", "!"))
        after[at] = {at + INSTRUCTION_BYTES} if goes_on else set()
        if name.startswith("BRA"):
            after[at].add(int(operands.rsplit("0x", 1)[1], 16))
        if name.startswith("UTMALDG"):
            after[at] = set()
            loads.add(at)
    for at, following in after.items():
        for each in following:
            before[each].add(at)
    return len(reached({0}, after) & reached(loads, before) - loads)


def reached(places: set[int], steps: Mapping[int, set[int]]) -> set[int]:
    """These places, and all to which steps lead from them."""
    found, waiting = set(places), list(places)
    while waiting:
        new = steps.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


# A division by a variable is 30 instructions; the schedule has ten, and its reciprocals come with the launch.
MOST_BEFORE_LOAD = {False: 150, True: 220}


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("shared_tiles", MOST_BEFORE_LOAD)
@pytest.mark.parametrize("specialisation", default_set(), ids=lambda one: one.name)
def test_few_instructions_stand_before_the_first_load(specialisation, shared_tiles):
    one = replace(specialisation, shared_tiles=shared_tiles)
    compiled = nvrtc.compile_cubin(gemm_sm90.SOURCE, *gemm_sm90.sources(), gemm_sm90.ARCHITECTURE, one.options())
    assert instructions_before_load(compiled.cubin) <= MOST_BEFORE_LOAD[shared_tiles]
    assert "I2F" not in disassemble(compiled.cubin, gemm_sm90.ENTRY).instructions  # an integer division begins with it


@given(
    st.sampled_from(gemm_sm90.TILE_M),
    st.sampled_from(gemm_sm90.TILE_N),
    st.sampled_from(gemm_sm90.TILE_K_BYTES),
    st.sampled_from(list(gemm_sm90.INPUT_TYPES)),
    st.sampled_from(list(gemm_sm90.OUTPUT_TYPES)),
)
def test_a_tile_is_either_built_within_the_limits_or_refused_with_one_that_is(m, n, k_bytes, in_type, out_type):
    k = k_bytes // gemm_sm90.INPUT_TYPES[in_type][0]
    try:
        tile = specialise(m, n, k, in_type=in_type, out_type=out_type)
    except ValueError as refusal:
        nearest = str(refusal).rstrip(".").rsplit(" ", 1)[1]
        assert specialise(*map(int, nearest.split("x")), in_type=in_type, out_type=out_type)
        return
    assert 2 <= tile.stages <= gemm_sm90.MOST_STAGES
    assert tile.smem_bytes <= gemm_sm90.SHARED_BYTES
    assert tile.threads * tile.register_bound <= 65536
    assert m // 64 // tile.consumers * n // 2 <= gemm_sm90.MOST_SUMS[tile.consumers]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: specialise(100, 64), "nearest tile that can is 128x64x64"),
        (lambda: specialise(128, 260), "nearest tile that can is 128x256x64"),
        (lambda: specialise(256, 256), "nearest tile that can is 256x192x64"),
        (lambda: specialise(192, 256), "nearest tile that can is 192x200x64"),
        (lambda: specialise(128, 128, 128), "nearest tile that can is 128x128x64"),
        (lambda: specialise(128, 128, consumers=3), "1 or 2 can"),
        (lambda: specialise(128, 256, stages=6), "4 stages do"),
        (lambda: specialise(128, 128, stages=1), "from 2 stages on"),
        (lambda: specialise(128, 128, cluster_m=4), "1x1, 2x1 or 1x2"),
        (lambda: specialise(128, 72, cluster_m=2), "take n = 64 or n = 80"),
        (lambda: specialise(128, 128, in_type="e4m3", b_transposed=False), "layout TN"),
        (lambda: specialise(128, 128, in_type="fp32"), "bf16, fp16, e4m3"),
        (lambda: specialise(128, 128).check_device("10.0"), "take an sm_80 kernel"),
        (lambda: specialise(128, 128).schedule(4096, 4096, 4096, "split_k", splits=2), "shared_tiles=False"),
        (lambda: specialise(128, 128).schedule(0, 4096, 4096, "data_parallel"), "M = 0 is out of range"),
        (lambda: maps(leading=(4097, 4096, 4096)), "pad it to 4104"),
        (lambda: maps(leading=(4096, 4096, 4095)), "less than its row"),
        (lambda: maps(addresses=(0, 8, 0)), "TMA needs a multiple of 16"),
    ],
)
def test_what_cannot_be_is_refused_with_the_limit_and_what_can(ask, words):
    with pytest.raises(ValueError, match=words):
        ask()


def maps(addresses=(0, 0, 0), leading=(4096, 4096, 4096), specialisation=None):
    return (specialisation or specialise(128, 256)).tensor_maps(*addresses, leading, (4096, 4096, 4096))
