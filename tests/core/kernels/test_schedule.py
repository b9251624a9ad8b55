"""The schedules that Triton's and CUDA's kernels walk are those of the C++ one, segment for segment."""

import ctypes
from collections.abc import Iterator
from importlib import resources
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.kernels.schedule import POLICIES, Schedule, boundary, place, reciprocal, segment, visits


@pytest.fixture(scope="module")
def native() -> ModuleType:
    """The extension, in whose schedule header all other kernels believe."""
    return pytest.importorskip("pyperf_suite._native", reason="the native extension is not built")


def segments(schedule: Schedule) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """Yield a kernel's work, unit by unit, as `_native.schedule_segments` gives it."""
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


# The header as a GPU compiles it: 32-bit counts, reciprocals.
ON_GPU = """#define PYPERF_EMULATED_GPU
#include "schedule.cuh"
template <bool shared> int walk(const pyperf::Schedule& schedule, int* out) {
    int count = 0;
    for (int unit = 0; unit < schedule.units(); ++unit) {
        pyperf::Segment one;
        for (auto cursor = schedule.begin<shared>(unit); schedule.next<shared>(cursor, one); ++count)
            for (int each : {unit, one.tile_m, one.tile_n, one.k_begin, one.k_end, int(one.owner)}) *out++ = each;
    }
    return count;
}
extern "C" int walk_shared(const pyperf::Schedule* schedule, int* out) { return walk<true>(*schedule, out); }
extern "C" int walk_own(const pyperf::Schedule* schedule, int* out) { return walk<false>(*schedule, out); }
extern "C" int shared_tiles(const pyperf::Schedule* schedule) { return schedule->shared_tiles(); }
extern "C" int quotient(int n, unsigned factor, int shift) { return pyperf::quotient(n, 0, {factor, shift}); }
"""


@pytest.fixture(scope="module")
def on_gpu(compiled) -> ctypes.CDLL:
    """A library of that."""
    header = (resources.files("pyperf_suite.kernels") / "cuda" / "schedule.cuh").read_text("utf-8")
    texts = {"schedule.cuh": header, "schedule.cpp": "#include <initializer_list>\n" + ON_GPU}
    built = compiled("schedule.so", texts, ("-std=c++17", "-O1", "-shared", "-fPIC", "schedule.cpp"))
    return ctypes.CDLL(str(built))


@given(schedule=schedules())
def test_a_gpu_visits_the_segments_of_the_native_schedule_without_a_division(native, on_gpu, schedule):
    expected = native.schedule_segments(
        *(schedule.tiles_m, schedule.tiles_n, schedule.k_tiles, (1, 1, 1)),
        *(schedule.policy, schedule.splits, schedule.workers, schedule.group),
    )
    assert on_gpu.shared_tiles(schedule.packed()) == schedule.shared_tiles
    for walk in (on_gpu.walk_shared, *([on_gpu.walk_own] if not schedule.shared_tiles else [])):
        out = (ctypes.c_int * 6 * (len(expected) + 1))()
        assert walk(schedule.packed(), out) == len(expected)
        assert [tuple(segment) for segment in out][:-1] == expected


COUNTS = st.integers(0, (1 << 31) - 1)


@given(n=COUNTS, divisor=COUNTS.filter(bool), multiple=st.integers(-1, 1))
def test_a_reciprocal_gives_every_quotient_of_31_bits(on_gpu, n, divisor, multiple):
    near = min(max(n // divisor * divisor + multiple, 0), (1 << 31) - 1)  # where a quotient steps
    factor, shift = reciprocal(divisor)
    assert factor < 1 << 32
    for each in (n, near, (1 << 31) - 1):
        assert on_gpu.quotient(each, factor, shift) == each // divisor


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
