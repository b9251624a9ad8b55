import re
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

SCHEDULES = ("data_parallel", "persistent", "split_k", "stream_k")


@st.composite
def plans(draw: st.DrawFn, schedules: tuple[str, ...] = SCHEDULES) -> dict:
    """Arguments of `schedule_segments`, tile counts from one to several waves of the workers."""
    tile = (draw(st.integers(1, 64)), draw(st.integers(1, 64)), draw(st.integers(1, 64)))
    shape = [draw(st.integers(1, 9 * side)) for side in tile]
    schedule = draw(st.sampled_from(schedules))
    k_tiles = -(-shape[2] // tile[2])
    return {
        "m": shape[0],
        "n": shape[1],
        "k": shape[2],
        "tile": tile,
        "schedule": schedule,
        "splits": draw(st.integers(1, k_tiles)) if schedule == "split_k" else 1,
        "workers": draw(st.integers(1, 150)),
        "group": draw(st.integers(1, 12)),
    }


def tile_counts(plan: dict) -> tuple[int, int, int]:
    tiles_m, tiles_n, k_tiles = (-(-plan[axis] // side) for axis, side in zip("mnk", plan["tile"], strict=True))
    return tiles_m, tiles_n, k_tiles


@given(plan=plans())
def test_every_k_tile_of_every_output_tile_is_computed_exactly_once_and_has_one_owner(native, plan):
    tiles_m, tiles_n, k_tiles = tile_counts(plan)
    segments = defaultdict(list)
    for _, tile_m, tile_n, k_begin, k_end, owner in native.schedule_segments(**plan):
        segments[tile_m, tile_n].append((k_begin, k_end, owner))
    assert set(segments) == {(i, j) for i in range(tiles_m) for j in range(tiles_n)}
    for parts in segments.values():
        parts.sort()
        edges = [0] + [k_end for _, k_end, _ in parts]
        assert [k_begin for k_begin, _, _ in parts] == edges[:-1]
        assert edges[-1] == k_tiles
        assert all(k_begin < k_end for k_begin, k_end, _ in parts)
        assert [owner for *_, owner in parts] == [False] * (len(parts) - 1) + [True]


@given(plan=plans(("stream_k",)))
def test_stream_k_shares_k_tiles_out_evenly(native, plan):
    tiles_m, tiles_n, k_tiles = tile_counts(plan)
    work = [0] * plan["workers"]
    for unit, _, _, k_begin, k_end, _ in native.schedule_segments(**plan):
        work[unit] += k_end - k_begin
    assert max(work) - min(work) <= 1
    assert sum(work) == tiles_m * tiles_n * k_tiles


@given(plan=plans(("stream_k",)))
def test_stream_k_splits_no_tile_where_waves_divide_evenly_and_few_elsewhere(native, plan):
    tiles_m, tiles_n, k_tiles = tile_counts(plan)
    segments = native.schedule_segments(**plan)
    partial = {(tile_m, tile_n) for _, tile_m, tile_n, begin, end, _ in segments if end - begin < k_tiles}
    if tiles_m * tiles_n % plan["workers"] == 0:
        assert not partial
    assert len(partial) <= 2 * plan["workers"] - 1


@given(plan=plans(("split_k", "stream_k")))
def test_nobody_waits_for_work_that_starts_later(native, plan):
    """Sums grow in ascending k: split-k hands lower slices out first, stream-k begins with what is waited for."""
    k_tiles = tile_counts(plan)[2]
    finished: dict[tuple[int, int], int] = defaultdict(int)
    segments = native.schedule_segments(**plan)
    if plan["schedule"] == "split_k":
        for _, tile_m, tile_n, k_begin, k_end, _ in segments:
            assert finished[tile_m, tile_n] == k_begin
            finished[tile_m, tile_n] = k_end
        return
    by_unit = defaultdict(list)
    for unit, _, _, k_begin, k_end, _ in segments:
        by_unit[unit].append((k_begin, k_end))
    for parts in by_unit.values():
        streamed = [(k_begin, k_end) for k_begin, k_end in parts if k_end - k_begin < k_tiles]
        # Only a unit's last part may wait (k_begin > 0), and only its first be waited for (k_end < k_tiles).
        assert all(k_begin == 0 for k_begin, _ in streamed[:-1])
        assert all(k_end == k_tiles for _, k_end in streamed[1:])


@given(plan=plans(("data_parallel", "persistent")))
def test_persistent_units_visit_every_workers_th_tile_of_the_data_parallel_order(native, plan):
    order = [s[1:3] for s in native.schedule_segments(**{**plan, "schedule": "data_parallel"})]
    visits = defaultdict(list)
    for unit, tile_m, tile_n, *_ in native.schedule_segments(**{**plan, "schedule": "persistent"}):
        visits[unit].append((tile_m, tile_n))
    for unit in range(plan["workers"]):
        assert visits[unit] == order[unit :: plan["workers"]]


def test_group_one_is_row_major_and_larger_groups_go_down_the_columns_of_a_band(native):
    def order(group):
        return [s[1:3] for s in native.schedule_segments(30, 20, 1, (10, 10, 1), "data_parallel", 1, 1, group)]

    assert order(1) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert order(2) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_units_are_tiles_slices_or_workers(native):
    def units(schedule, splits=1):
        return 1 + max(s[0] for s in native.schedule_segments(40, 40, 40, (10, 10, 10), schedule, splits, 3))

    assert (units("data_parallel"), units("split_k", 4)) == (16, 64)
    assert (units("persistent"), units("stream_k")) == (3, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"m": 0}, "m = 0"),
        ({"k": -3}, "k = -3"),
        ({"n": 2**40}, "n = 1099511627776"),
        ({"workers": 0}, "workers = 0"),
        ({"group": 0}, "group = 0"),
        ({"tile": (8, 0, 8)}, "8x0x8"),
        ({"schedule": "split_k", "splits": 9}, "between 1 and 8"),
        ({"splits": 2}, "split_k alone"),
        ({"schedule": "round_robin"}, "'round_robin' is unknown"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_one_sentence(native, change, words):
    plan = {"m": 64, "n": 64, "k": 64, "tile": (8, 8, 8), "schedule": "persistent", "splits": 1, "workers": 2}
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        native.schedule_segments(**{**plan, **change})
    assert ". " not in str(refusal.value)
