"""FlashAttention-2's kernel names tell bucket and blocks; other names tell nothing and are not guessed at."""

from __future__ import annotations

import pytest

from pyperf_suite.laws.attention.counted import Blocks
from pyperf_suite.workloads.kernel_names import FlashKernel, flash_kernel


@pytest.mark.parametrize(
    ("name", "found"),
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
def test_a_forward_kernels_name_tells_its_bucket_and_blocks(name: str, found: FlashKernel) -> None:
    assert flash_kernel(["ampere_sgemm_64x64_nn", name]) == found


def test_backward_kernels_and_other_libraries_tell_nothing() -> None:
    backward = (
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8>>"
    )
    assert flash_kernel([backward, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(Params)"]) is None
    assert flash_kernel([]) is None
