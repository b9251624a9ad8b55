"""The parser of kernel names, against names that profilers printed on real machines.

Each kind says where its names were seen: issues and pull requests by number, "profiles" for tables of torch's profiler
or Nsight Systems in public repositories.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.workloads.kernel_names import READERS, KernelName, parse, product_kernel

HALF, BRAIN, SINGLE = "float16", "bfloat16", "float32"


def told(name: str) -> dict:
    """The fields that a name tells, but for the name itself."""
    kernel = parse(name)
    assert kernel is not None
    return {field: value for field, value in vars(kernel).items() if value is not None and field != "name"}


def gemm(family: str, tile: tuple, tile_k: int | None, stages: int | None, layout: str, *rest: str) -> dict:
    """The fields of most names: instruction, operand, accumulator and output last."""
    fields = {"family": family, "tile": tile, "tile_k": tile_k, "stages": stages, "layout": layout}
    fields |= dict(zip(("instruction", "operand", "accumulator", "output"), rest, strict=False))
    return {field: value for field, value in fields.items() if value is not None}


MMA, SLIM = "mma 16x8x16", "mma 16x8x8"

# pytorch/pytorch#181718 (RTX 4090), pytorch/pytorch#146817 and profiles of A100, RTX 30 and T4.
CUBLAS = {
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn": gemm(
        "cublas", (128, 256), 64, 3, "NN", MMA, BRAIN, SINGLE, BRAIN
    ),
    "ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn": gemm(
        "cublas", (128, 128), 32, 1, "NN", SLIM, BRAIN, SINGLE, BRAIN
    ),
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn": gemm(
        "cublas", (64, 64), 64, 5, "TN", MMA, HALF, SINGLE, HALF
    ),
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_relu_f2f_stages_64x3_nn": gemm(
        "cublas", (128, 128), 64, 3, "NN", MMA, BRAIN, SINGLE, BRAIN
    ),
    "ampere_s16816gemm_bf16_128x64_ldg8_stages_32x6_nn": gemm(
        "cublas", (128, 64), 32, 6, "NN", MMA, BRAIN, SINGLE, SINGLE
    ),
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nt": gemm(
        "cublas", (128, 64), None, None, "NT", MMA, BRAIN, SINGLE, BRAIN
    ),
    "ampere_fp16_s1688gemm_fp16_256x64_ldg8_relu_f2f_tn": gemm(
        "cublas", (256, 64), None, None, "TN", SLIM, HALF, SINGLE, HALF
    ),
    "ampere_sgemm_128x64_tn": gemm("cublas", (128, 64), None, None, "TN", "fma", SINGLE, SINGLE, SINGLE),
    "ampere_sgemm_32x32_sliced1x4_nn": gemm("cublas", (32, 32), None, None, "NN", "fma", SINGLE, SINGLE, SINGLE),
    "turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_stages_32x1_tn": gemm(
        "cublas", (256, 128), 32, 1, "TN", SLIM, HALF, SINGLE, HALF
    ),
    "turing_h1688gemm_256x64_sliced1x2_ldg8_tn": gemm("cublas", (256, 64), None, None, "TN", SLIM, HALF, HALF, HALF),
    "volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_nn": gemm(
        "cublas", (256, 128), None, None, "NN", "mma 8x8x4", HALF, SINGLE, HALF
    ),
}

# pytorch/xla#6518: torch's table cuts names at 55 characters.
CUT_OFF = {
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_...": {
        "family": "cublas",
        "tile": (128, 256),
        "instruction": MMA,
        "operand": BRAIN,
        "accumulator": SINGLE,
        "output": BRAIN,
    },
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_3...": {
        "family": "cublas",
        "tile": (128, 64),
        "instruction": MMA,
        "operand": BRAIN,
        "accumulator": SINGLE,
        "output": BRAIN,
    },
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_...": {
        "family": "cutlass2",
        "instruction": SLIM,
        "accumulator": SINGLE,
        "output": SINGLE,
    },
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize256x128x64_warpgroupsize2x1x1_execute_segment_k_of…": {
        **gemm("xmma", (256, 128), 64, None, "TN", "wgmma", BRAIN, SINGLE, BRAIN),
    },
}

# pytorch/pytorch#181718 and profiles of A100, RTX 40, RTX 50 and B200.
CUTLASS2 = {
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(cutlass_80_tensorop_"
    "bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8::Params)": gemm(
        "cutlass2", (256, 128), 32, 3, "TN", MMA, BRAIN, SINGLE, BRAIN
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_64x6_tn_align8>(T1::Params)": gemm(
        "cutlass2", (64, 64), 64, 6, "TN", MMA, BRAIN, SINGLE, SINGLE
    ),
    "cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>": gemm(
        "cutlass2", (128, 128), None, None, "NN", SLIM, BRAIN, SINGLE, BRAIN
    ),
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_nn_align8>(T1::Params)": gemm(
        "cutlass2", (32, 32), 128, 2, "NN", "wmma 16x16x16", BRAIN, SINGLE, BRAIN
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>(T1::Params)": gemm(
        "cutlass2", (128, 256), 16, 3, "NN", SLIM, "tfloat32", SINGLE, SINGLE
    ),
    "cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>": gemm(
        "cutlass2", (256, 128), 8, 4, "NN", "fma", SINGLE, SINGLE, SINGLE
    ),
    "_ZN7cutlass7Kernel2I66cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_tn_align8EEvNT_6ParamsE": gemm(
        "cutlass2", (256, 128), 32, 3, "TN", MMA, HALF, SINGLE, HALF
    ),
}

# CUTLASS's changelog (3.9) has the first two as the old and the new style; the others from profiles of B200 and GB300.
CUTLASS3 = {
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x256x64_1x1x1_0_tnn_align8_warpspecialized_"
    "cooperative_epi_tma": {
        "family": "cutlass3",
        "tile": (128, 256),
        "tile_k": 64,
        "cluster": (1, 1),
        "layout": "TN",
        "operand": BRAIN,
        "accumulator": SINGLE,
        "output": BRAIN,
    },
    "cutlass3x_sm90_tensorop_gemm_bf16_bf16_f32_bf16_bf16_128x256x64_1x1x1_0_tnn_align8_warpspecialized_cooperative_"
    "epi_tma": {
        "family": "cutlass3",
        "tile": (128, 256),
        "tile_k": 64,
        "cluster": (1, 1),
        "layout": "TN",
        "operand": BRAIN,
        "accumulator": SINGLE,
        "output": BRAIN,
    },
    "cutlass3x_sm100_tensorop_s128x64x8tf32gemm_f32_f32_f32_f32_f32_128x64x32_0_tnn_align4_2sm": {
        "family": "cutlass3",
        "tile": (128, 64),
        "tile_k": 32,
        "paired": True,
        "layout": "TN",
        "operand": "tfloat32",
        "accumulator": SINGLE,
        "output": SINGLE,
    },
    "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_64x64x16_1x1x1_3_tnn_align1_bias_f32_relu": {
        "family": "cutlass3",
        "tile": (64, 64),
        "tile_k": 16,
        "stages": 3,
        "cluster": (1, 1),
        "layout": "TN",
        "instruction": "fma",
        "operand": SINGLE,
        "accumulator": SINGLE,
        "output": SINGLE,
    },
}

# Profiles of H100 (torch 2.1 to 2.4, vLLM, SGLang), of fp8 on RTX 40 and 50, and of A100 through cuBLASLt.
XMMA = {
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_"
    "cublas": gemm("xmma", (128, 128), 64, None, "TN", "wgmma", BRAIN, SINGLE, BRAIN),
    "sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_"
    "cublas": gemm("xmma", (128, 256), 64, None, "TN", "wgmma", BRAIN, SINGLE, SINGLE),
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_"
    "cublas": gemm("xmma", (128, 128), 32, None, "TN", "wgmma", "tfloat32", SINGLE, SINGLE),
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_cgasize1x2x1_stage4_gmmastage2_warpgroupsize1x1x1_"
    "tensor64x128x32": {
        **gemm("xmma", (128, 128), 128, 4, "TN", "wgmma 64x128x32", "float8_e4m3fn", SINGLE, BRAIN),
        "cluster": (1, 2),
    },
    "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x64x64_stage4_warpsize2x2x1_tensor16x8x32_algo2_execute_"
    "kernel__5x_cublas": gemm("xmma", (128, 64), 64, 4, "TN", "mma 16x8x32", "float8_e4m3fn", SINGLE, BRAIN),
    "sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize96x64x32_stage3_warpsize2x2x1_tensor16x8x16_kernel": gemm(
        "xmma", (96, 64), 32, 3, "NN", MMA, HALF, SINGLE, HALF
    ),
    # With one pair of types their order is not known.
    "sm90_xmma_gemm_f32f32_f32_nn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_on_kernel__5x_cublas": {
        "family": "xmma",
        "tile": (128, 128),
        "tile_k": 32,
        "layout": "NN",
        "instruction": "wgmma",
    },
}

# sgl-project/sglang#22353 (B200) and profiles of H100, H200, B200 and GB300; those with sm: cuBLAS 13.
NVJET = {
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNN": {
        **gemm("nvjet", (128, 256), 64, 4, "NN"),
        "cluster": (2, 1),
        "operand": HALF,
        "accumulator": SINGLE,
        "output": HALF,
    },
    "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NTN": {
        **gemm("nvjet", (192, 192), 64, 3, "NT"),
        "cluster": (2, 1),
        "operand": BRAIN,
        "accumulator": SINGLE,
        "output": BRAIN,
    },
    "nvjet_sm90_tst_256x144_64x4_1x2_h_bz_coopA_bias_TNT": {
        **gemm("nvjet", (256, 144), 64, 4, "TN"),
        "cluster": (1, 2),
        "operand": BRAIN,
        "accumulator": SINGLE,
        "output": BRAIN,
    },
    "nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT": {
        **gemm("nvjet", (64, 8), 64, 16, "NN"),
        "cluster": (1, 1),
        "split_k": True,
        "operand": HALF,
        "accumulator": SINGLE,
        "output": SINGLE,
    },
    "nvjet_tst_192x16_64x8_2x2_2cta_h_bz_TNT": {
        **gemm("nvjet", (192, 16), 64, 8, "TN"),
        "cluster": (2, 2),
        "paired": True,
        "operand": BRAIN,
        "accumulator": SINGLE,
        "output": BRAIN,
    },
    "nvjet_tst_256x96_64x5_2x1_2cta_v_badd_NNT": {
        **gemm("nvjet", (256, 96), 64, 5, "NN"),
        "cluster": (2, 1),
        "paired": True,
        "operand": BRAIN,
        "accumulator": SINGLE,
        "output": BRAIN,
    },
    # fp8: which of the two kinds q is, no source says.
    "nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT": {
        **gemm("nvjet", (128, 256), 128, 6, "TN"),
        "cluster": (2, 1),
        "paired": True,
        "accumulator": SINGLE,
        "output": BRAIN,
    },
    "nvjet_sm103_tss_32x64_64x16_4x1_v_bz_splitK_TNN": {
        **gemm("nvjet", (32, 64), 64, 16, "TN"),
        "cluster": (4, 1),
        "split_k": True,
        "operand": BRAIN,
        "accumulator": SINGLE,
        "output": SINGLE,
    },
    "nvjet_qqtst_112x128_128x7_2x1_v_bz_coopA_algo2_TNN": {
        **gemm("nvjet", (112, 128), 128, 7, "TN"),
        "cluster": (2, 1),
        "accumulator": SINGLE,
        "output": BRAIN,
    },
}

# Profiles of H100, RTX 30 and 50 and DGX Spark; torch's own tests for Inductor's template.
OTHERS = {
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, false, false>": {
        "family": "split_k_reduction",
        "split_k": True,
    },
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_b...": {
        "family": "gemv"
    },
    "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 2, 4, false, false>": {"family": "gemv"},
    "void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024, false, cublasGemvParamsEx<int, >": {
        "family": "gemv"
    },
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched>": {"family": "thin_gemm"},
    "triton_tem_fused_mm_0": {"family": "triton"},
}

REAL = CUBLAS | CUT_OFF | CUTLASS2 | CUTLASS3 | XMMA | NVJET | OTHERS


@pytest.mark.parametrize("name", REAL)
def test_a_real_name_tells_what_it_says_and_no_more(name):
    assert told(name) == REAL[name]


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
    ["nvjet_hsh", "nvjet_hsh_h_bz_TNN", "nvjet_hsh_128x", "ampere_fp16_s16816gemm", "ampere_gemm_x", "cutlass_80_gemm"],
)
def test_a_name_cut_short_tells_no_tile(name):
    kernel = parse(name)
    assert kernel is not None
    assert (kernel.tile, kernel.tile_k, kernel.stages, kernel.cluster) == (None, None, None, None)


def test_sizes_that_stand_in_no_known_place_are_not_guessed():
    kernel = parse("nvjet_tst_h_64x4_2x1_TNN")
    assert kernel is not None
    assert (kernel.tile, kernel.stages, kernel.cluster) == (None, None, None)


def test_a_reduction_beside_a_product_says_that_it_is_split_along_k():
    product, reduction = "ampere_s16816gemm_bf16_128x64_ldg8_stages_32x6_nn", "void splitKreduce_kernel<32, 16>"
    alone, split = product_kernel([product]), product_kernel(["Memset (Device)", product, reduction])
    assert alone is not None
    assert split is not None
    assert (alone.split_k, split.split_k) == (None, True)
    assert split.tile == (128, 64)
    assert product_kernel([reduction]) is None


FRAGMENTS = [
    "_",
    "x",
    "...",
    "…",
    "128x256",
    "64x4",
    "99999x1",
    "tn",
    "TNT",
    "stages",
    "gemm",
    "s",
    "bf16",
    "tensor16x8x16",
]
PREFIXES = ["nvjet_", "sm90_xmma_gemm_", "cutlass3x_sm100_", "cutlass_80_", "ampere_", "void ", "²³", "٣x٣"]


@given(st.lists(st.sampled_from(FRAGMENTS + PREFIXES) | st.text(max_size=8), max_size=30).map("".join))
def test_no_text_raises_and_what_is_told_is_of_the_right_kind(text):
    kernel = parse(text)
    assert kernel is None or isinstance(kernel, KernelName)
    if kernel is not None:
        assert kernel.family in {family for _, family, _ in READERS}
        assert kernel.tile is None or (len(kernel.tile) == 2 and all(isinstance(size, int) for size in kernel.tile))
        assert kernel.stages is None or isinstance(kernel.stages, int)


@pytest.mark.parametrize("filler", ["nvjet_", "ampere_gemm", "_128x128", "cutlass_80_", "9" * 50])
def test_a_very_long_name_is_cut_and_read_at_once(filler):
    parse(filler * 100_000)
    parse("ampere_s16816gemm_" + filler * 100_000)
