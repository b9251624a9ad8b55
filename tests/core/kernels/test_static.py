import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.kernels import attention, gemm_sm80, matmul, nvrtc
from pyperf_suite.kernels.attention_defaults import RIVALS, default_configuration
from pyperf_suite.kernels.disassembly import NoDisassembler, disassemble, disassembler, parse
from pyperf_suite.kernels.gemm_sm80 import Specialisation, default_set, in_layout, specialise
from pyperf_suite.kernels.occupancy import occupancy
from pyperf_suite.kernels.static import StaticMetrics, of_cuda, of_triton, triton_kernels

pytestmark = pytest.mark.usefixtures("tools")

UNALIGNED = (4097, 4097, 4097)
PATHS = {
    "16-byte": specialise(64, 64, 64),
    "8-byte": specialise(64, 64, 64, leading_dimensions=(4100, 4100, 4100)),
    "4-byte": specialise(64, 64, 64, leading_dimensions=(4098, 4098, 4098)),
    "predicated": specialise(64, 64, 64, leading_dimensions=UNALIGNED),
}


def metrics_of(specialisation: Specialisation, target: str) -> StaticMetrics:
    return of_cuda(specialisation.name, specialisation, gemm_sm80.sources(), target)


def installed(package: str, version: str) -> Path:
    """Folder of a version of a wheel that only tests use, installed once; or a skip. Workers may ask at once."""
    kept = Path(__file__).parents[3] / "build" / "tests"
    kept.mkdir(parents=True, exist_ok=True)
    folder = kept / f"{package}-{version}-{sys.version_info.major}.{sys.version_info.minor}"
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = folder.with_name(f"{folder.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            install = [sys.executable, "-m", "pip", "install", "--target", new, "--no-deps", f"{package}=={version}"]
            done = subprocess.run(install, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                pytest.skip(f"pip cannot install {package} {version}: {(done.stderr.strip() or 'no reason')[-200:]}")
            new.rename(folder)
    return folder


def loads_by(specialisation: Specialisation) -> int:
    """LDG of a kernel that copies by cp.async: partial sums, four at a time, and the flag in a loop of two tests."""
    return specialisation.m * specialisation.n // specialisation.threads // 4 + 2


def test_constants_of_a_tile_are_folded_by_the_nvrtc_that_is_here():
    specialisation = specialise(64, 64, 64)
    assert metrics_of(specialisation, "sm_80").instructions["LDG"] == loads_by(specialisation)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("specialisation", default_set(), ids=lambda one: one.name)
def test_default_ampere_kernels_multiply_on_tensor_cores_and_keep_to_their_registers(specialisation, target):
    metrics = metrics_of(specialisation, target)
    k_tile_products = specialisation.m * specialisation.n * specialisation.k // (16 * 8 * 16) // specialisation.warps
    assert metrics.instructions["HMMA"] == k_tile_products  # one k-tile's loop body, and no second copy of it
    assert metrics.instructions["LDGSTS"] > 0
    assert metrics.instructions["LDSM"] > 0
    assert metrics.instructions["LDG"] == loads_by(specialisation)
    assert metrics.local_memory_instructions == 0
    assert metrics.stack_bytes == 0
    assert metrics.registers <= specialisation.register_bound
    assert metrics.static_shared_bytes <= 1024  # what sm_90 reserves; the kernel declares none
    assert metrics.occupancy.blocks >= 1


LATER = ("sm_80", "sm_100a", "sm_120a")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "layout", "target"),
    [(n, layout, LATER[(n + at) % 3]) for n in range(3) for at, layout in enumerate(("TN", "NN", "NT", "TT"))],
)
def test_the_largest_ampere_tiles_do_not_spill_in_any_layout_nor_on_later_architectures(number, layout, target):
    assert metrics_of(in_layout(default_set()[number], layout), target).local_memory_instructions == 0


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_the_path_by_which_operands_are_read_is_in_the_machine_code(path):
    specialisation = PATHS[path]
    assert specialisation.path == path
    instructions = metrics_of(specialisation, "sm_80").instructions
    # For each operand, once before the loop and once in it; more than eight passes are a loop of their own.
    passes = specialisation.m * specialisation.k * 2 // specialisation.threads // specialisation.access_a
    if path == "predicated":
        assert instructions["LDGSTS"] == 0
        assert instructions["LDG"] >= 4 * 8  # the elements of a chunk one by one
    else:
        assert instructions["LDGSTS"] == 4 * min(passes, 8)


# Triton's instructions for tensor cores by generation.
TENSOR_CORE = {"sm_80": ("HMMA",), "sm_90": ("HGMMA", "QGMMA"), "sm_100": ("UTCMMA",)}
GROUPED = matmul.Configuration((128, 128, 64), stages=3, warps=8, layout="NN")


def triton_cases() -> Iterator[tuple[str, str, Callable[[str], Any]]]:
    """Every default kernel of each generation, the products of experts, and attention without a mask."""
    for target in TENSOR_CORE:
        yield from ((target, name, kernel.compile_for) for name, kernel in triton_kernels(target).items())
        yield target, "grouped", partial(matmul.compile_grouped_for, configuration=GROUPED)
        unmasked = default_configuration(target, 128, "bfloat16")
        yield target, unmasked.name, partial(attention.compile_for, configuration=unmasked)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "name", "compile_for"), list(triton_cases()))
def test_triton_kernels_multiply_on_tensor_cores_of_three_generations_and_do_not_spill(
    target, name, compile_for, triton_cache
):
    pytest.importorskip("triton")
    metrics = of_triton(name, compile_for(target), "")
    assert metrics.target == target
    assert sum(metrics.instructions[each] for each in TENSOR_CORE[target]) > 0
    # One stage has nothing to copy ahead of its use.
    copies = "UTMALDG" if "descriptors" in name else "LDG" if "_s1_" in name else "LDGSTS"
    assert metrics.instructions[copies] > 0
    assert metrics.threads % (32 * int(re.findall(r"_w(\d+)_", name + "_w8_")[0])) == 0
    assert metrics.local_memory_instructions == 0
    assert metrics.dynamic_shared_bytes > 0
    assert metrics.occupancy.blocks >= 1


# Blocks of which two programs fit a multiprocessor, so that one multiplies during the softmax of another.
TWICE_RESIDENT = {64: ("128x64:s3:w8", "128x128:s2:w4", "64x128:s2:w4"), 128: ("64x64:s2:w4", "128x32:s3:w4")}


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim", TWICE_RESIDENT)
def test_attention_blocks_that_are_tried_on_hopper_are_resident_twice_and_do_not_spill(head_dim, causal, triton_cache):
    pytest.importorskip("triton")
    first = default_configuration("sm_90", head_dim, "bfloat16", causal)
    tried = {}
    for held, stepped, stages, warps in RIVALS["Hopper"][head_dim]:
        blocks = replace(first, block_m=held, block_n=stepped, stages=stages, warps=warps)
        metrics = of_triton(blocks.name, attention.compile_for("sm_90", blocks), "")
        assert metrics.local_memory_instructions == 0, blocks.name
        tried[f"{held}x{stepped}:s{stages}:w{warps}"] = metrics.occupancy.blocks
    assert all(tried[blocks] >= 2 for blocks in TWICE_RESIDENT[head_dim])
    assert of_triton(first.name, attention.compile_for("sm_90", first), "").occupancy.blocks == 1


# Next to the Triton of this environment that of torch 2.11, which GPU machines have: it makes other code.
OTHER_TRITON = "3.6.0"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["", OTHER_TRITON], ids=["here", OTHER_TRITON])
def test_no_triton_serialises_wgmma_or_spills_in_a_default_kernel_but_one_rival(version, triton_cache):
    pytest.importorskip("triton")
    paths = [str(installed("triton", version)) if version else "", os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).with_name("compiled_defaults.py")
    # One size of each kernel tells of the other Triton, and each takes seconds to compile.
    left_out = ("_d64_", "_d256_", "_64x128x64_", "_128x128x64_s4_w8_data_parallel") if version else ()
    command = [sys.executable, script, *left_out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    assert not version or compiled["triton"] == version
    assert compiled["kernels"]
    for name, kernel in compiled["kernels"].items():
        assert kernel["warnings"] == 0, name
        assert kernel["local_memory_instructions"] == 0, name
    # Serialised, each wgmma is followed by a wait for all: the machine code itself, whatever ptxas warns of.
    serialised = {name for name, kernel in compiled["kernels"].items() if kernel["waits_for_all"] >= kernel["wgmmas"]}
    assert serialised <= {"triton_attention_bf16_d64_causal_128x128_s2_w4_descriptors"}


@pytest.mark.slow
def test_a_binary_without_the_kernel_or_that_is_none_is_refused():
    compiled = nvrtc.compile_cubin("two.cu", 'extern "C" __global__ void one() {}', {}, "sm_80")
    assert disassemble(compiled.cubin, "one").registers >= 0
    with pytest.raises(ValueError, match="has no kernel 'other'"):
        disassemble(compiled.cubin, "other")
    with pytest.raises(ValueError, match="cannot read this binary") as refusal:
        disassemble(b"not a cubin", "one")
    assert tempfile.gettempdir() not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "is_read"), [("12.0.140", False), ("12.2.140", False), ("12.3.107", True)])
def test_an_old_compiler_compiles_our_sources_and_is_named_where_the_disassembler_reads_none_of_it(version, is_read):
    library = installed("nvidia-cuda-nvrtc-cu12", version) / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
    code = """
from pyperf_suite.kernels import gemm_sm80, gemm_sm90, static
for module in (gemm_sm80, gemm_sm90):
    try:
        kernel = module.default_set()[0]
        print(static.of_cuda(kernel.name, kernel, module.sources(), module.ARCHITECTURE).registers)
    except static.NoDisassembler as refusal:
        print(refusal)
"""
    environment = os.environ | {"PYPERF_LIBNVRTC": str(library)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    ampere, hopper = done.stdout.splitlines()
    assert ampere.isdigit()
    words = rf"NVRTC {version[:4]} is too old for this disassembler: cuobjdump 1\d\.\d .* sm_90a. Use NVRTC 12.3"
    assert hopper.isdigit() if is_read else re.match(words, hopper)


def test_instructions_are_counted_without_predicates_and_suffixes():
    listing = """
Resource usage:
 Function one:
  REG:42 STACK:8 SHARED:1024 LOCAL:0 CONSTANT[0]:400
 Function two:
  REG:10 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:352
\t\tFunction : one
\t.headerflags\t@"EF_CUDA_SM80"
        /*0000*/               @!P0 LDL.64 R2, [R1] ;        /* 0x0000000001027983 */
                                                             /* 0x000fe20000100a00 */
        /*0010*/          @!UPT UIADD3 URZ, URZ, URZ ;       /* 0x000000ff3f057290 */
        /*0020*/                    HMMA.16816.F32.BF16 R4, R8, R2, R4 ;   /* 0x0000 */
        /*0030*/                    HMMA.16816.F32 R4, R8, R2, R4 ;   /* 0x0000 */
\t\tFunction : two
        /*0000*/                    EXIT ;   /* 0x0000 */
"""
    code = parse(listing, "one")
    assert code.instructions == {"HMMA": 2, "LDL": 1, "UIADD3": 1}
    assert (code.registers, code.stack_bytes, code.static_shared_bytes, code.code_bytes) == (42, 8, 1024, 64)


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared_bytes", "blocks", "limited_by"),
    [
        ("sm_80", 128, 255, 0, 2, "registers"),
        ("sm_80", 256, 128, 0, 2, "registers"),
        ("sm_80", 128, 168, 48 << 10, 3, "registers"),
        ("sm_80", 128, 32, 80 << 10, 2, "shared memory"),
        ("sm_80", 128, 32, 82 << 10, 1, "shared memory"),  # 1 KB of each block is the system's
        ("sm_80", 1024, 32, 0, 2, "warps"),
        ("sm_80", 32, 16, 0, 32, "blocks"),
        ("sm_86", 1024, 32, 0, 1, "warps"),
        ("sm_90a", 384, 168, 200 << 10, 1, "registers"),
        ("sm_90a", 128, 32, 227 << 10, 1, "shared memory"),
        ("sm_90a", 128, 32, 228 << 10, 0, "shared memory"),
        ("sm_80", 512, 255, 0, 0, "registers"),
    ],
)
def test_occupancy_is_what_the_scarcest_resource_allows(target, threads, registers, shared_bytes, blocks, limited_by):
    found = occupancy(target, threads, registers, shared_bytes)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * threads // 32
    assert found.share == found.warps / found.most_warps


def test_a_missing_compiler_or_disassembler_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PYPERF_LIBNVRTC", str(tmp_path / "libnvrtc.so"))
    nvrtc.library.cache_clear()
    with pytest.raises(nvrtc.NoCompiler, match=r"PYPERF_LIBNVRTC=.* cannot be opened"):
        nvrtc.library()
    monkeypatch.delenv("PYPERF_LIBNVRTC")
    monkeypatch.setattr(nvrtc, "wheels", lambda: iter(()))
    monkeypatch.setattr(nvrtc, "SONAMES", ("libnvrtc-of-no-version.so",))
    with pytest.raises(nvrtc.NoCompiler, match="pip install nvidia-cuda-nvrtc"):
        nvrtc.library()
    nvrtc.library.cache_clear()
    disassembler.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoDisassembler, match="pip install triton"):
        disassembler()
    disassembler.cache_clear()
