"""The parser of kernel names, against names that profilers printed on real machines.

Each kind says where its names were seen: issues and pull requests by number, "profiles" for tables of torch's profiler
or Nsight Systems in public repositories.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyperf_suite.laws.tiled_attention import Blocks
from pyperf_suite.workloads.kernel_names import FlashKernel, flash_kernel, parse, product_kernel


def real_names() -> dict[str, dict[str, str]]:
    """The names of kernel_names.txt with their fields as text."""
    lines = (Path(__file__).parent / "kernel_names.txt").read_text().splitlines()[2:]
    pairs = [line for line in lines if line and not line.startswith("#")]
    fields = (dict(word.split("=") for word in line.split()) for line in pairs[1::2])
    return dict(zip(pairs[::2], fields, strict=True))


def as_text(value: object) -> str:
    return ("x".join(map(str, value)) if isinstance(value, tuple) else str(value)).replace(" ", "_")


REAL = real_names()


@pytest.mark.parametrize("name", REAL)
def test_a_real_name_tells_what_it_says_and_no_more(name):
    kernel = parse(name)
    assert kernel is not None
    message = {field: as_text(value) for field, value in kernel.message.items() if field != "name"}
    assert message == REAL[name]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4>>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80",
        "triton_poi_fused_add_mul_silu_23",
        "Memset (Device)",
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize256x64x64",
    ],
)
def test_a_kernel_that_is_no_library_product_is_none(name):
    assert parse(name) is None


@pytest.mark.parametrize(
    "name",
    [
        *("nvjet_hsh", "nvjet_hsh_h_bz_TNN", "nvjet_hsh_128x", "ampere_fp16_s16816gemm", "ampere_gemm_x"),
        *("cutlass_80_gemm", "nvjet_tst_h_64x4_2x1_TNN"),  # whose sizes stand in no known place
    ],
)
def test_a_name_cut_short_tells_no_tile(name):
    kernel = parse(name)
    assert kernel is not None
    assert (kernel.tile, kernel.tile_k, kernel.stages, kernel.cluster) == (None, None, None, None)


def test_a_reduction_beside_a_product_says_that_it_is_split_along_k():
    product, reduction = "ampere_s16816gemm_bf16_128x64_ldg8_stages_32x6_nn", "void splitKreduce_kernel<32, 16>"
    alone, split = product_kernel([product]), product_kernel(["Memset (Device)", product, reduction])
    assert alone is not None
    assert split is not None
    assert (alone.split_k, split.split_k) == (None, True)
    assert split.tile == (128, 64)
    assert product_kernel([reduction]) is None


@pytest.mark.parametrize("filler", ["nvjet_", "ampere_gemm", "_128x128", "cutlass_80_", "9" * 50])
def test_a_very_long_name_is_cut_and_read_at_once(filler):
    parse(filler * 100_000)
    parse("ampere_s16816gemm_" + filler * 100_000)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
            "cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false>",
            FlashKernel(128, Blocks(128, 64, warps=4)),
        ),
        (
            "void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_kernel_traits<(int)96, (int)64, "
            "(int)128, (int)4, (bool)0>>",
            FlashKernel(96, Blocks(64, 128, warps=4)),
        ),
    ],
)
def test_a_forward_kernels_name_tells_its_bucket_and_blocks(name: str, kernel: FlashKernel) -> None:
    assert flash_kernel(["ampere_sgemm_64x64_nn", name]) == kernel


def test_backward_kernels_and_other_libraries_tell_nothing() -> None:
    backward = (
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8>>"
    )
    assert flash_kernel([backward, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(Params)"]) is None
    assert flash_kernel([]) is None
