"""Launches: what reaches the driver, and what is refused before it does; the device is a double of libcuda."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ELF = b"\x7fELF"  # all that the double asks of machine code


@pytest.fixture
def kernel(cuda, context) -> Callable[[str], Any]:
    """A kernel of that name; the double has all but `absent`."""
    module = cuda.Module(context, ELF)
    return lambda name: cuda.Kernel(module, name)


def test_grid_block_cluster_and_shared_memory_reach_the_driver(cuda, fake, kernel):
    launch = cuda.Launch(kernel("gemm"), (132, 2, 1), (384, 1, 1), [], cluster=(2, 1, 1), dynamic_shared_bytes=200_000)
    launch.run()
    launch.run(stream=1)
    cuda.Launch(kernel("gemm"), (5, 1, 1), (32, 1, 1), []).run()
    shape = "launch gemm grid 132x2x1 block 384x1x1 cluster 2 shared 200000 stream"
    plain = "launch gemm grid 5x1x1 block 32x1x1 cluster 1 shared 0 stream default"
    assert fake.log() == ["set gemm 8 200000", f"{shape} default", f"{shape} own", plain]


def test_a_second_launch_with_less_shared_memory_leaves_the_first_what_it_needs(cuda, kernel):
    gemm = kernel("gemm")
    large = cuda.Launch(gemm, (1, 1, 1), (32, 1, 1), [], dynamic_shared_bytes=100_000)
    cuda.Launch(gemm, (1, 1, 1), (32, 1, 1), [], dynamic_shared_bytes=60_000).run()
    large.run()


def test_a_tensor_map_reaches_the_kernel_aligned(cuda, context, fake, kernel):
    tensor_map = cuda.tensor_map(context, 1 << 20, "bfloat16", (4096, 8192), 8192, (64, 128))
    assert len(tensor_map) == 128
    cuda.Launch(kernel("takes_map"), (1, 1, 1), (32, 1, 1), [tensor_map, np.uint32(7)]).run()
    assert fake.log() == [
        "map type 9 rank 2 address 1048576 shape 4096x8192 stride 8192 box 64x128 step 1x1",
        "map interleave 0 swizzle 3 promotion 3 fill 0",
        "launch takes_map grid 1x1x1 block 32x1x1 cluster 1 shared 0 stream default",
        "map aligned before 7",
    ]


@pytest.mark.parametrize(
    ("grid", "block", "options", "words"),
    [
        ((0, 1, 1), (1, 1, 1), {}, "A grid of 0x1x1 was asked for: each side must be at least 1"),
        ((1, 65536, 1), (1, 1, 1), {}, "at most 2147483647x65535x65535"),
        ((2**31, 1, 1), (1, 1, 1), {}, "A grid of 2147483648x1x1"),
        ((1, 1, 1), (1025, 1, 1), {}, "A block of 1025x1x1"),
        ((1, 1, 1), (385, 1, 1), {}, "Kernel any was asked for with blocks of 385 threads and can have 1 to 384"),
        ((3, 1, 1), (1, 1, 1), {"cluster": (2, 1, 1)}, "A grid of 3x1x1 blocks does not divide into clusters of 2x1x1"),
        ((16, 16, 1), (1, 1, 1), {"cluster": (16, 2, 1)}, "A cluster of 32 blocks was asked for: it can have 1 to 16"),
        (
            (1, 1, 1),
            (1, 1, 1),
            {"dynamic_shared_bytes": 232_385},
            "232385 bytes of dynamic shared memory .* 232384 for it",
        ),
        ((1, 1, 1), (1, 1, 1), {"dynamic_shared_bytes": -1}, "-1 bytes of dynamic shared memory"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_its_limit(cuda, kernel, grid, block, options, words):
    with pytest.raises(ValueError, match=words):
        cuda.Launch(kernel("any"), grid, block, [], **options)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ([np.uint64(0)], ValueError, "Kernel add was given 1 arguments and has 4 parameters"),
        ([np.uint64(0)] * 4, ValueError, "Argument 3 of kernel add has 8 bytes and its parameter 4"),
        ([1, 2, 3, 4], TypeError, "bytes-like"),
    ],
)
def test_arguments_are_counted_and_measured_against_the_parameters(cuda, kernel, arguments, error, words):
    with pytest.raises(error, match=words):
        cuda.Launch(kernel("add"), (1, 1, 1), (1, 1, 1), arguments)


def test_a_driver_that_does_not_know_parameter_sizes_launches_all_the_same(cuda, fake, kernel):
    fake.set(parameter_info=0)
    assert kernel("takes_map").parameter_bytes == []
    cuda.Launch(kernel("takes_map"), (1, 1, 1), (1, 1, 1), [bytes(128), np.uint32(3)]).run()
    assert fake.log()[-1] == "map aligned before 3"


def test_before_sm_90_clusters_and_tensor_maps_are_not_available(cuda, context, fake):
    fake.set(major=8, clusters=0, tensor_maps=0)
    ampere = cuda.Context(cuda.Driver())
    kernel = cuda.Kernel(cuda.Module(ampere, ELF), "any")
    with pytest.raises(cuda.NotAvailable, match=r"Fake H200 has no thread block clusters, which came with sm_90"):
        cuda.Launch(kernel, (2, 1, 1), (1, 1, 1), [], cluster=(2, 1, 1))
    with pytest.raises(cuda.NotAvailable, match="no thread block clusters"):
        kernel.max_active_clusters(128, 1)
    with pytest.raises(cuda.NotAvailable, match=r"no bulk tensor copy engine \(TMA\)"):
        cuda.tensor_map(ampere, 0, "float16", (64, 64), 128, (64, 64))
    cuda.Launch(kernel, (2, 1, 1), (1, 1, 1), []).run()


MATRIX = {"address": 4096, "dtype": "bfloat16", "shape": (64, 32), "stride_bytes": 128, "box": (64, 32)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"address": 4104}, "cannot take the address 4104: it must be a multiple of 16 bytes"),
        ({"stride_bytes": 130}, "rows 130 bytes apart: .* a leading dimension of bfloat16 a multiple of 8"),
        ({"dtype": "float32", "stride_bytes": 264, "shape": (32, 2), "box": (32, 2)}, "of float32 a multiple of 4"),
        ({"dtype": "float8_e4m3", "stride_bytes": 72}, "of float8_e4m3 a multiple of 16"),
        ({"stride_bytes": 112}, "at least the 128 bytes of a row"),
        ({"stride_bytes": 1 << 40}, r"below 2\^40"),
        ({"shape": (0, 32)}, r"a matrix of 32x0: each side must be between 1 and 2\^32"),
        ({"shape": (64, 2**32 + 1)}, "a matrix of 4294967297x64"),
        ({"box": (64, 257)}, "a box of 257x64: each side must be between 1 and 256"),
        ({"box": (4, 32)}, "its rows have 8 bytes, and it must be a multiple of 16"),
        ({"box": (128, 32)}, "rows of 256 bytes with a swizzle of 128"),
        ({"swizzle_bytes": 64}, "rows of 128 bytes with a swizzle of 64"),
        ({"swizzle_bytes": 16}, "A swizzle of 16 bytes was asked for: it can be 0, 32, 64 or 128"),
        ({"l2_promotion_bytes": 32}, "it can be 0, 64, 128 or 256"),
        ({"dtype": "int4"}, "A tensor map of int4 was asked for"),
    ],
)
def test_what_tma_cannot_take_is_refused_with_the_limit_and_without_a_gpu(cuda, change, words):
    with pytest.raises(ValueError, match=words):
        cuda.check_tensor_map(**(MATRIX | change))
