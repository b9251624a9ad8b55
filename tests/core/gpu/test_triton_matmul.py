from dataclasses import replace

import pytest

from pyperf_suite.kernels.matmul import Configuration, Product, default_set
from pyperf_suite.measure.verify import verify_product

pytestmark = pytest.mark.gpu

SHAPES = [(1, 1, 1), (127, 255, 63), (128, 256, 64), (129, 257, 65), (1009, 1013, 521), (2048, 2304, 1024)]


@pytest.fixture(scope="module")
def torch():
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch finds no CUDA device")
    return module


@pytest.fixture(scope="module")
def multiprocessors(torch) -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def configurations(torch) -> tuple[Configuration, ...]:
    major, minor = torch.cuda.get_device_capability(0)
    return default_set(f"sm_{major}{minor}")


def stored(torch, shape: tuple[int, int], dtype: str, seed: int):
    """Standard normal values in rows padded with NaN to a multiple of 16 elements, as TMA wants them."""
    generator = torch.Generator("cuda").manual_seed(seed)
    element = getattr(torch, "float32" if dtype == "tfloat32" else dtype)
    whole = torch.full((shape[0], -(-shape[1] // 16) * 16), torch.nan, device="cuda").to(element)
    view = whole[:, : shape[1]]
    view.copy_(torch.randn(shape, generator=generator, device="cuda"))
    if dtype == "tfloat32":  # values that it holds exactly
        view.view(torch.int32).bitwise_and_(~0x1FFF)
    return view


def check(torch, requested: Configuration, shape: tuple[int, int, int]) -> None:
    """Launch twice into outputs of NaN: right by the tolerance table, and the same bits.

    Memory around C stays, but for the rest of the 16 bytes in which a row ends: the copy engine writes zeros there.
    """
    m, n, k = shape
    a = stored(torch, (k, m) if requested.a_transposed else (m, k), requested.dtype, 1)
    b = stored(torch, (n, k) if requested.b_transposed else (k, n), requested.dtype, 2)
    padded = torch.full((2, m, -(-n // 16) * 16), torch.nan, dtype=getattr(torch, requested.out_dtype), device="cuda")
    product = Product(requested, m, n, k, "cuda:0")
    for c in padded:
        product.bind(a, b, c[:, :n])()
    first, second = padded.float().cpu()
    assert torch.equal(first[:, :n], second[:, :n])
    step = 16 // padded.element_size()
    end = -(-n // step) * step
    assert (first[:, n:end].isnan() | (first[:, n:end] == 0)).all()
    assert first[:, end:].isnan().all()
    logical_a = (a.t() if requested.a_transposed else a).float().cpu().numpy()
    logical_b = (b.t() if requested.b_transposed else b).float().cpu().numpy()
    verification = verify_product(first[:, :n].numpy(), logical_a, logical_b, requested.dtype, requested.out_dtype)
    assert verification.passed, verification.message


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_each_default_configuration_is_right_and_the_same_each_time(torch, multiprocessors, shape):
    for requested in configurations(torch):
        k_tiles = -(-shape[2] // requested.tile[2])
        splits = min(4, k_tiles) if requested.policy == "split_k" else 1
        check(torch, replace(requested, splits=splits, workers=multiprocessors), shape)


@pytest.mark.parametrize("layout", ["NN", "TN", "NT", "TT"])
def test_each_layout_is_right_with_each_default_configuration_of_16_bit_types(torch, multiprocessors, layout):
    for requested in configurations(torch):
        if requested.dtype == "bfloat16":
            check(torch, replace(requested, layout=layout, workers=multiprocessors), (513, 521, 261))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "tfloat32"])
def test_each_dtype_is_right_through_addresses(torch, dtype):
    check(torch, Configuration((64, 64, 32), dtype, "float32"), (257, 259, 263))


@pytest.mark.parametrize("share", [1.0, 0.9, 0.5])
def test_fewer_workers_than_multiprocessors_finish_the_same_product(torch, multiprocessors, share):
    workers = max(1, round(multiprocessors * share))
    for policy in ("persistent", "stream_k"):
        requested = Configuration((128, 128, 32), policy=policy, stages=3, warps=8, workers=workers)
        check(torch, requested, (128 * 16, 128 * 19, 512))


def test_more_splits_than_waves_do_not_hang(torch, multiprocessors):
    requested = Configuration((128, 128, 32), policy="split_k", splits=64, stages=3, warps=8)
    check(torch, requested, (1024, 1024, 64 * 32))


def test_a_tile_too_large_for_shared_memory_is_refused_in_one_sentence(torch):
    requested = Configuration((256, 256, 128), stages=6, warps=8)
    a = torch.zeros(256, 512, dtype=torch.bfloat16, device="cuda")
    launch = Product(requested, 256, 256, 512, "cuda:0").bind(a, a, torch.empty_like(a)[:, :256])
    with pytest.raises(ValueError, match="take a smaller tile or fewer stages"):
        launch()
