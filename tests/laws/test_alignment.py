"""Divisors of sizes, and the sizes beside them that divide by more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.tiling import elements_in, largest_power_of_two, nearest_with, round_up

SIZES = st.integers(1, 1 << 31)
RUNGS = st.integers(0, 10).map(lambda power: 1 << power)


@given(SIZES)
def test_the_largest_power_of_two_divides_a_size_and_its_double_does_not(size: int) -> None:
    divisor = largest_power_of_two(size)
    assert size % divisor == 0
    assert size % (2 * divisor) == divisor


@given(SIZES, st.integers(1, 300))
def test_rounding_up_gives_the_next_multiple(size: int, multiple: int) -> None:
    rounded = round_up(size, multiple)
    assert rounded % multiple == 0
    assert size <= rounded < size + multiple


@given(RUNGS, st.integers(1, 5000))
def test_no_size_of_a_rung_is_nearer_than_the_nearest(divisor: int, size: int) -> None:
    nearest = nearest_with(divisor, size)
    assert largest_power_of_two(nearest) == divisor
    alike = range(divisor, size + 2 * divisor + 1, 2 * divisor)
    assert abs(nearest - size) == min(abs(other - size) for other in alike)


def test_of_two_equally_near_sizes_the_smaller_is_taken() -> None:
    assert [nearest_with(1 << power, 1024) for power in range(8)] == [1023, 1022, 1020, 1016, 1008, 992, 960, 896]


def test_a_line_of_memory_holds_fewer_of_the_wider_elements() -> None:
    assert [elements_in(128, size_bytes) for size_bytes in (4, 2, 1)] == [32, 64, 128]
    assert elements_in(64, 256) == 1
