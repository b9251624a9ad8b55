import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.kernels import gemm_sm80
from pyperf_suite.kernels.gemm_sm80 import access_bytes, specialise, warps


def test_the_path_is_the_widest_that_addresses_and_leading_dimensions_allow():
    assert specialise(64, 64, 32).path == "16-byte"
    assert specialise(64, 64, 32, leading_dimensions=(4100, 4096, 4096)).path == "8-byte"
    assert specialise(64, 64, 32, leading_dimensions=(4096, 4098, 4096)).path == "4-byte"
    assert specialise(64, 64, 32, leading_dimensions=(4096, 4096, 4097)).path == "predicated"
    assert specialise(64, 64, 32, out_type="fp32", leading_dimensions=(4096, 4096, 4097)).path == "4-byte"
    assert specialise(64, 64, 32, addresses=(0x1000, 0x1002, 0x1000)).path == "predicated"


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20), st.sampled_from([2, 4]))
def test_every_row_can_be_reached_by_the_access_and_not_all_by_twice_that(elements, leading, size):
    access = access_bytes(elements * size, leading, size)
    rows = [elements * size + row * leading * size for row in range(16)]
    assert all(address % access == 0 for address in rows)
    assert access == 16 or any(address % (2 * access) for address in rows)


@given(st.integers(1, 16), st.integers(1, 16), st.sampled_from(gemm_sm80.TILE_K))
def test_a_tile_is_either_shared_among_warps_or_refused_with_one_that_is(rows, columns, k):
    m, n = 16 * rows, 16 * columns
    try:
        instance = specialise(m, n, k)
    except ValueError as refusal:
        nearest = str(refusal).rstrip(".").rsplit(" ", 1)[1]
        assert specialise(*map(int, nearest.split("x")))
        return
    assert (instance.warps_m, instance.warps_n) == warps(m, n)
    assert m % (16 * instance.warps_m) == 0
    assert n % (16 * instance.warps_n) == 0
    assert instance.threads * instance.register_bound * instance.resident_blocks <= 65536


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: specialise(100, 64, 32), "nearest tile that can is 96x64x32"),
        (lambda: specialise(512, 64, 32), "nearest tile that can is 256x64x32"),
        (lambda: specialise(64, 64, 48), "k is one of 32, 64, 128"),
        (lambda: specialise(64, 64, 32, 1), "1 stages were requested"),
        (lambda: specialise(64, 64, 32, in_type="fp32"), "mma.sync takes bf16 or fp16"),
        (lambda: specialise(256, 128, 64, 4).check_device("8.0"), "3 stages do"),
        (lambda: specialise(64, 64, 32).check_device("7.5"), "needs compute capability 8.0"),
        (lambda: specialise(64, 64, 32).schedule(64, 0, 64, "data_parallel"), "N = 0 is out of range"),
        (lambda: specialise(64, 64, 32).schedule(64, 64, 64, "split_k", 3), "between 1 and 2"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(ask, words):
    with pytest.raises(ValueError, match=words) as refusal:
        ask()
    assert str(refusal.value).count(". ") == 0
