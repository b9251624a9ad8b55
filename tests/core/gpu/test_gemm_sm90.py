"""The Hopper kernel on a device: each default instance, type, layout and schedule gives exact products of integers.

Operands are small integers, so that sums are exact in fp32 (and in what the tensor cores keep of fp8 products): results
must be equal bit for bit, and what surrounds C must stay as it was, but for the rest of the 16 bytes in which a row
ends: the copy engine writes zeros there.
"""

import itertools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from pyperf_suite.kernels import gemm_sm90
from pyperf_suite.kernels.gemm_sm90 import TILE_N, Specialisation, default_set, in_layout, specialise
from pyperf_suite.workloads.backends import CudaDevice, cuda_device
from tests.core.gpu.conftest import memory

pytestmark = pytest.mark.gpu

SHAPES = [(1, 1, 1), (127, 255, 63), (128, 256, 64), (129, 257, 65), (1009, 1013, 521), (2048, 2304, 1024)]
TORCH_TYPES = {"bf16": "bfloat16", "fp16": "float16", "e4m3": "float8_e4m3fn", "fp32": "float32"}


@pytest.fixture(scope="module")
def torch():
    """torch, for its types; its device is not used."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def gpu() -> CudaDevice:
    """The first device, if it is a Hopper."""
    device = cuda_device(0)
    if tuple(device.context.properties.compute_capability) != (9, 0):
        pytest.skip(f"the Hopper kernel needs compute capability 9.0, and this is a {device.context.properties.name}")
    return device


@pytest.fixture(scope="module")
def slots(gpu: CudaDevice) -> int:
    return int(gpu.context.properties.multiprocessors)


def words(torch, values: np.ndarray, kind: str) -> np.ndarray:
    """The values, rounded to `kind`, as bytes: [rows, columns · element bytes]."""
    return torch.from_numpy(values).to(getattr(torch, TORCH_TYPES[kind])).contiguous().view(torch.uint8).numpy()


def padded(rows: np.ndarray) -> np.ndarray:
    """Rows of bytes followed by padding of all ones, 16 bytes at least, to a multiple of 16: what TMA takes."""
    whole = np.full((rows.shape[0], rows.shape[1] // 16 * 16 + 32), 0xFF, np.uint8)
    whole[:, : rows.shape[1]] = rows
    return whole


@dataclass(frozen=True)
class Ready:
    gpu: CudaDevice
    launch: Any
    c: Any
    flags: Any
    kept: tuple[Any, ...]

    def result(self) -> np.ndarray:
        """The bytes of C and of its padding as a launch leaves them that finds nothing but ones."""
        self.c.fill(0xFF)
        self.launch.run()
        self.gpu.context.synchronize()
        return np.frombuffer(self.c.read(), np.uint8)


def ready(
    gpu: CudaDevice, tile: Specialisation, sizes: tuple[int, int, int], rows: list[np.ndarray], **requested
) -> Ready:
    assert tile in instances(), f"{tile.name} is compiled while the test runs: name it in a parameter `tile`"
    operands = [memory(gpu, each) for each in rows]
    sizes_bytes = (tile.in_bytes, tile.in_bytes, tile.out_bytes)
    leading = tuple(each.shape[1] // size for each, size in zip(rows, sizes_bytes, strict=True))
    encoded = [
        gpu.native.tensor_map(
            gpu.context,
            it.address,
            it.dtype,
            it.shape,
            it.stride_bytes,
            it.box,
            it.swizzle_bytes,
            it.l2_promotion_bytes,
        )
        for it in tile.tensor_maps(*(each.address for each in operands), leading, sizes)
    ]
    schedule = tile.schedule(*sizes, **{"policy": "data_parallel", "group": 4, **requested})
    workspace, flags = (
        memory(gpu, np.zeros(max(16, size), np.uint8))
        for size in (tile.workspace_bytes(schedule), tile.flags_bytes(schedule))
    )
    source, headers = gemm_sm90.sources()
    kernel = gpu.kernel(gpu.compile(gemm_sm90.SOURCE, source, headers, tile.options()), gemm_sm90.ENTRY)
    launch = gpu.native.Launch(
        kernel,
        (tile.grid(schedule), 1, 1),
        (tile.threads, 1, 1),
        tile.arguments(tuple(encoded), schedule, workspace.address, flags.address),
        cluster=(tile.cluster, 1, 1),
        dynamic_shared_bytes=tile.smem_bytes,
    )
    return Ready(gpu, launch, operands[2], flags, (operands, workspace))


def check(torch, gpu: CudaDevice, tile: Specialisation, sizes: tuple[int, int, int], **requested) -> None:
    """Launch twice; each time C must be exact, what is around it untouched, and at last the flags zero."""
    m, n, k = sizes
    generator = np.random.default_rng(m + n + k)
    a, b = (generator.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    c = (a.astype(np.float64) @ b).astype(np.float32)
    operands = (a.T if tile.a_transposed else a, b.T if tile.b_transposed else b, c)
    kinds = (tile.in_type, tile.in_type, tile.out_type)
    rows = [padded(words(torch, np.ascontiguousarray(each), kind)) for each, kind in zip(operands, kinds, strict=True)]
    product = ready(gpu, tile, sizes, rows, **requested)
    expected, used = rows[2].copy(), n * tile.out_bytes
    expected[:, used : -(-used // 16) * 16] = 0
    for _ in range(2):
        found = product.result().reshape(expected.shape)
        wrong = np.argwhere(found != expected)
        assert len(wrong) == 0, (
            f"{tile.name} {requested}: {len(wrong)} bytes differ, the first in row and byte {wrong[0]}: "
            f"{found[tuple(wrong[0])]}, where {expected[tuple(wrong[0])]} is right"
        )
    assert not any(product.flags.read()), f"{tile.name} {requested}: a launch must leave its flags zero"


def named(instances: Iterable[Specialisation]) -> pytest.MarkDecorator:
    """Run a test for each instance; `instances` finds them here, and `ready` takes no other."""
    return pytest.mark.parametrize("tile", tuple(dict.fromkeys(instances)), ids=lambda tile: tile.name)


def instances() -> set[Specialisation]:
    """All that the tests of this file launch: what `tools/gpu_check.sh prepare` compiles beforehand."""
    marks = (mark for each in globals().values() for mark in getattr(each, "pytestmark", ()))
    return {tile for mark in marks if mark.args[0] == "tile" for tile in mark.args[1]}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@named(default_set())
def test_each_default_instance_is_exact_on_odd_shapes(torch, gpu, slots, tile, shape):
    check(torch, gpu, tile, shape)
    check(torch, gpu, tile, shape, policy="persistent", workers=slots // tile.cluster)


@named(replace(tile, shared_tiles=True) for tile in default_set())
def test_units_that_share_tiles_sum_them_exactly_and_leave_their_flags_zero(torch, gpu, slots, tile, is_double):
    sizes, larger = ((209, 213, 449), (301, 299, 193)) if is_double else ((1009, 1013, 2049), (3001, 2999, 705))
    check(torch, gpu, tile, sizes, policy="split_k", splits=5)
    for workers in (3, 7, slots // tile.cluster):
        check(torch, gpu, tile, sizes, policy="stream_k", workers=workers)
    check(torch, gpu, tile, larger, policy="stream_k", workers=slots // tile.cluster)


def in_each_layout() -> Iterator[Specialisation]:
    for m, n, pair in ((64, 64, {}), (128, 256, {"cluster_m": 2}), (256, 128, {"cluster_n": 2}), (192, 192, {})):
        for layout, kind in itertools.product(("NN", "TN", "NT", "TT"), ("bf16", "fp16")):
            tile = in_layout(specialise(m, n, in_type=kind, out_type=kind, **pair), layout)
            yield from (tile, replace(tile, k=32))


@named(in_each_layout())
def test_each_layout_is_exact(torch, gpu, tile):
    check(torch, gpu, tile, (513, 521, 261))


@named(
    specialise(128, 192, k_bytes // gemm_sm90.INPUT_TYPES[in_type][0], in_type=in_type, out_type=out_type)
    for in_type in gemm_sm90.INPUT_TYPES
    for out_type in gemm_sm90.OUTPUT_TYPES
    for k_bytes in gemm_sm90.TILE_K_BYTES
)
def test_each_pair_of_types_is_exact(torch, gpu, tile):
    check(torch, gpu, tile, (391, 387, 261))


@named(specialise(64, n, stages=2, b_transposed=is_k_major) for n in TILE_N for is_k_major in (True, False))
def test_each_width_of_a_tile_is_exact(torch, gpu, tile):
    check(torch, gpu, tile, (130, 2 * tile.n + 9, 200))


PAIRS = ({"cluster_m": 2}, {"cluster_n": 2})
OF_PAIRS = tuple(
    specialise(*tile, in_type="e4m3", **pair)
    for tile in ((64, 64), (128, 256), (192, 176), (256, 128))
    for pair in PAIRS
)


@named(OF_PAIRS)
def test_pairs_multiply_e4m3_exactly(torch, gpu, tile):
    check(torch, gpu, tile, (391, 523, 261))


@named(replace(tile, k=64, shared_tiles=True) for tile in OF_PAIRS)
def test_pairs_share_tiles_of_e4m3_exactly(torch, gpu, slots, tile):
    check(torch, gpu, tile, (391, 523, 261), policy="stream_k", workers=slots // 2)


@named(specialise(64, n, stages=2, b_transposed=False, **pair) for n in TILE_N for pair in PAIRS)
def test_pairs_read_an_n_major_b_of_each_width_exactly(torch, gpu, tile):
    check(torch, gpu, tile, (259, 2 * tile.n + 9, 200))


@named(
    specialise(m, n, cluster_m=cluster_m, cluster_n=3 - cluster_m, shared_tiles=shared)
    for m, n, cluster_m, shared in ((128, 256, 2, False), (256, 128, 1, False), (128, 256, 2, True))
)
def test_a_hundred_launches_of_a_large_product_leave_the_same_bits(torch, gpu, slots, tile):
    size = 8192
    policy = "stream_k" if tile.shared_tiles else "persistent"
    generator = np.random.default_rng(size)
    a, b = (generator.standard_normal((size, size), np.float32) for _ in range(2))
    rows = [padded(words(torch, each, "bf16")) for each in (a, b, np.zeros((size, size), np.float32))]
    product = ready(gpu, tile, (size, size, size), rows, policy=policy, workers=slots // 2 - 1, group=8)
    first = product.result()
    expected = memory(gpu, first)
    for launch in range(1, 100):
        product.c.fill(0xFF)
        product.launch.run()
        differ = words_outside(gpu, product.c, expected)
        assert differ == 0, f"{tile.name} {policy}: launch {launch} differs from the first in {differ} words"
    some = generator.choice(size, 32, replace=False)
    rounded = [torch.from_numpy(each).to(torch.bfloat16).double() for each in (a[some], b)]
    found = torch.from_numpy(first.reshape(rows[2].shape)[some, : 2 * size].copy()).view(torch.bfloat16)
    # bf16 keeps 8 bits, of sums whose own errors are far smaller.
    torch.testing.assert_close(found.double(), rounded[0] @ rounded[1].T, rtol=2**-8, atol=0.05)


def words_outside(gpu: CudaDevice, written: Any, expected: Any) -> int:
    """How many words of four bytes differ, counted on the device: 128 MB would take longer to copy than to make."""
    source = (files("pyperf_suite.kernels") / "cuda" / "periodic.cu").read_text("utf-8")
    kernel = gpu.kernel(gpu.compile("periodic.cu", source, {}, ("--std=c++17",)), "pyperf_outside_4")
    counter, count = memory(gpu, np.array([0, -1])), written.bytes // 4
    bounds = [written.address, count, expected.address, expected.address]
    arguments = [struct.pack("<Q", each) for each in bounds]
    arguments += [struct.pack("<I", count), struct.pack("<Q", counter.address)]
    gpu.native.Launch(kernel, (1024, 1, 1), (256, 1, 1), arguments).run()
    gpu.context.synchronize()
    return int(np.frombuffer(counter.read(), np.uint64)[0])
