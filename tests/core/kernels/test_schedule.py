"""The schedule that Triton's kernels walk makes the decisions of the one C++ and CUDA walk, segment for segment."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.kernels.schedule import POLICIES, Schedule, boundary, place, segment, visits


@pytest.fixture(scope="module")
def native() -> ModuleType:
    """The extension, in whose schedule header all other kernels believe."""
    return pytest.importorskip("pyperf_suite._native", reason="the native extension is not built")


def segments(schedule: Schedule) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """What a kernel computes, unit by unit, as `_native.schedule_segments` tells it."""
    tiles, k_tiles, streamed = schedule.tiles, schedule.k_tiles, schedule.streamed_tiles
    parts = schedule.splits if schedule.policy == "split_k" else schedule.workers
    steps = k_tiles if schedule.policy == "split_k" else streamed * k_tiles
    for unit in range(schedule.units):
        begin, end = (boundary(number, steps, parts) for number in (unit % parts, unit % parts + 1))
        for visit in range(visits(schedule.policy, unit, tiles, k_tiles, streamed, schedule.workers, begin, end)):
            tile, k_begin, k_end = segment(
                schedule.policy, unit, visit, tiles, k_tiles, streamed, schedule.splits, schedule.workers, begin, end
            )
            tile_m, tile_n = place(tile, schedule.tiles_m, schedule.tiles_n, schedule.group)
            yield unit, tile_m, tile_n, k_begin, k_end, k_end == k_tiles


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Schedules from a fraction of a wave to several waves."""
    policy = draw(st.sampled_from(POLICIES))
    k_tiles = draw(st.integers(1, 40))
    return Schedule(
        policy,
        draw(st.integers(1, 14)),
        draw(st.integers(1, 14)),
        k_tiles,
        splits=draw(st.integers(1, k_tiles)) if policy == "split_k" else 1,
        workers=draw(st.integers(1, 150)),
        group=draw(st.integers(1, 16)),
    )


@given(schedule=schedules())
def test_triton_visits_the_same_segments_in_the_same_order_as_the_native_schedule(native, schedule):
    expected = native.schedule_segments(
        schedule.tiles_m,
        schedule.tiles_n,
        schedule.k_tiles,
        (1, 1, 1),
        schedule.policy,
        schedule.splits,
        schedule.workers,
        schedule.group,
    )
    assert list(segments(schedule)) == expected


@given(schedule=schedules())
def test_only_the_shared_tiles_at_the_end_of_the_order_are_cut(schedule):
    order = {place(tile, schedule.tiles_m, schedule.tiles_n, schedule.group): tile for tile in range(schedule.tiles)}
    for _, tile_m, tile_n, k_begin, k_end, _ in segments(schedule):
        if k_end - k_begin < schedule.k_tiles:
            assert order[tile_m, tile_n] >= schedule.tiles - schedule.shared_tiles


@given(number=st.integers(0, 1 << 15), total=st.integers(0, (1 << 31) - 1), parts=st.integers(1, 1 << 15))
def test_a_share_begins_where_exact_arithmetic_says_and_never_leaves_32_bits(number, total, parts):
    number = min(number, parts)
    assert boundary(number, total, parts) == number * total // parts
    assert max(number * (total // parts), number * (total % parts)) < 1 << 31
