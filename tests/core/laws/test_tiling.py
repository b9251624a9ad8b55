import math
from collections import Counter, defaultdict
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import (
    PARTIAL_IN_K_TILES,
    POLICIES,
    CriticalPath,
    Schedule,
    StaircaseLaw,
    Tile,
    critical_path,
    elements_in,
    judged_by_waves,
    largest_power_of_two,
    nearest_with,
    nonnegative_fit,
    relative_error,
    round_up,
    tile_count,
    tile_efficiency,
    visiting_group,
    wave_count,
)


@pytest.mark.parametrize(
    ("text", "tile"),
    [
        ("1x300x7", Tile(1, 300, 7)),
        ("128x256x64:s6:c2x2", Tile(128, 256, 64, 6, 2, 2)),
        ("128x256x64", Tile(128, 256, 64)),
        ("128x256x64:c2", Tile(128, 256, 64, cluster=2)),
        ("256x128x64:s4:c1x2", Tile(256, 128, 64, stages=4, cluster_n=2)),
    ],
)
def test_a_cluster_has_one_number_along_m_and_two_along_n(text, tile):
    assert str(tile) == text
    assert Tile.parse(text) == Tile.parse(f" {text} ") == tile


def test_a_schedule_is_read_back_as_it_is_written():
    for text in ("split_k(1)@1", "split_k(16)@200", *(f"{policy}@7" for policy in POLICIES if policy != "split_k")):
        assert str(Schedule.parse(text)) == text
    with pytest.raises(UserError, match="is not known"):
        critical_path(1, 1, 1, Tile(1, 1, 1), Schedule("library", 1))


@pytest.mark.parametrize(
    "text", ["", "128", "128x128", "128x128x0", "0x1x1", "axbxc", "-1x2x3", "1x2x3x4", "1x2x3:s0", "1x2x3:c1x0"]
)
def test_what_is_not_a_tile_is_refused_in_one_sentence(text):
    with pytest.raises(UserError, match="tile"):
        Tile.parse(text)


def test_published_figures_of_tile_and_wave_quantization_come_out():
    # NVIDIA's matmul guide: 257 x 256 on 128-tiles is 0.39 % more maths and 1.5 x the tiles of 256 x 256.
    assert tile_count(257, 256, Tile(128, 128, 32)) / tile_count(256, 256, Tile(128, 128, 32)) == 1.5
    assert tile_efficiency(257, 256, Tile(128, 128, 32)) == pytest.approx(257 / 384)
    # A100, M = 2304, tiles 256 x 128: full waves at N = 1536, 3072, 4608, 6144 (108 SMs).
    full = [n for n in range(128, 6200, 128) if tile_count(2304, n, Tile(256, 128, 32)) % 108 == 0]
    assert full == [1536, 3072, 4608, 6144]
    # B300, 148 -> 152 SMs (stas00/ml-engineering): speed-up = ratio of waves.
    speed_ups = wave_count([152, 296, 304, 3584], 148) / wave_count([152, 296, 304, 3584], 152)
    np.testing.assert_allclose(speed_ups, [2.0, 1.0, 1.5, 1.042], atol=5e-4)


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 9),
    st.sampled_from(["data_parallel", "persistent", "stream_k"]),
    st.integers(1, 7),
    st.sampled_from(["8x32x4", "8x32x4:c2", "8x32x4:c1x2"]),
)
def test_the_closed_form_agrees_with_what_the_native_scheduler_hands_out(
    tiles_m, tiles_n, k_tiles, policy, workers, text
):
    native = pytest.importorskip("pyperf_suite._native")
    tile = Tile.parse(text)
    m, n, k = tiles_m * tile.m, tiles_n * tile.n, k_tiles * tile.k
    # A kernel in clusters schedules their tiles among them.
    cluster_tile = (tile.m * tile.cluster, tile.n * tile.cluster_n, tile.k)
    segments = native.schedule_segments(m, n, k, cluster_tile, policy, 1, workers)
    begun = Counter(segment[1:3] for segment in segments)
    work = defaultdict(lambda: np.zeros(3, int))
    for unit, tile_m, tile_n, k_begin, k_end, owner in segments:
        # One that is no owner writes a partial result; an owner reads those of all others of its tile.
        partials = begun[tile_m, tile_n] - 1 if owner else 1
        # Units of data_parallel are tiles, handed out in order to whoever is free; equal tiles make that a round.
        work[unit % workers] += (k_end - k_begin, 1, partials)
    path = critical_path(m, n, k, tile, Schedule(policy, workers * tile.ctas))
    found = (path.k_extent / tile.k, path.tiles, path.partials)
    busy = {worker: k_tiles + PARTIAL_IN_K_TILES * partials for worker, (k_tiles, _, partials) in work.items()}
    assert found in [tuple(work[worker]) for worker in work if busy[worker] == max(busy.values())]


@pytest.mark.parametrize(
    ("shape", "tile", "schedule", "k_extent", "tiles", "partials"),
    [
        # Paths of 2 x 3 tiles with 1000 of K, which are 32 steps of 32.
        ((128, 192, 1000), "64x64x32", "data_parallel@4", 2000, 2, 0),
        ((128, 192, 1000), "64x64x32", "persistent@6", 1000, 1, 0),
        ((128, 192, 1000), "64x64x32:c2", "persistent@4", 2000, 2, 0),  # three clusters by two
        ((128, 192, 1000), "64x64x32:c2", "persistent@1", 3000, 3, 0),  # a cluster is there whole
        ((128, 192, 1000), "64x64x32", "split_k(3)@4", 5000 / 3, 5, 5),  # 18 slices
        ((128, 192, 1000), "64x64x32", "split_k(3)@18", 11 * 32, 1, 1),  # 11 of 32 steps
        ((128, 192, 1000), "64x64x32", "split_k(1)@6", 1000, 1, 0),
        ((128, 192, 1000), "64x64x32", "stream_k@3", 2000, 2, 0),
        ((128, 192, 1000), "64x64x32", "stream_k@4", 1500, 2, 1),
        ((128, 192, 1000), "64x64x32", "stream_k@6", 1000, 1, 0),
        ((128, 192, 1000), "64x64x32", "stream_k@8", 750, 2, 2),
        ((256, 256, 1000), "64x64x32", "stream_k@5", 2000 + 39 * 1000 / 32, 4, 2),  # 16 tiles: two whole; 192 steps
        ((64, 64, 4096), "64x64x256", "split_k(4)@4", 1024, 1, 1),
    ],
)
def test_the_busiest_worker_has_what_counting_gives(shape, tile, schedule, k_extent, tiles, partials):
    path = critical_path(*shape, Tile.parse(tile), Schedule.parse(schedule))
    assert (path.k_extent, path.tiles, path.partials) == (pytest.approx(k_extent), tiles, partials)


def read_at_once(native: ModuleType, m: int, n: int, tile: Tile, workers: int, group: int) -> int:
    """Rows of A and columns of B that the first wave of tiles reads."""
    cluster_tile = (tile.m * tile.cluster, tile.n * tile.cluster_n, 1)
    visited = native.schedule_segments(m, n, 1, cluster_tile, "data_parallel", 1, 1, group)[: workers // tile.ctas]
    rows, columns = ({segment[place] for segment in visited} for place in (1, 2))
    return len(rows) * cluster_tile[0] + len(columns) * cluster_tile[1]


@pytest.mark.parametrize("text", ["128x256x64", "128x128x64", "128x256x64:c2", "256x128x64:c1x2"])
@pytest.mark.parametrize(("m", "n"), [(8192, 8192), (16384, 4096), (512, 8192), (128, 8192), (8192, 512)])
def test_no_group_of_rows_lets_the_first_wave_read_less_than_the_one_chosen(text, m, n):
    native = pytest.importorskip("pyperf_suite._native")
    tile = Tile.parse(text)
    read = {group: read_at_once(native, m, n, tile, 132, group) for group in range(1, 65)}
    chosen = visiting_group(m, n, tile, 132)
    # A last band that is not full may cut the wave's edge by a tile more or less than the closed form says.
    assert read[chosen] <= min(read.values()) + max(tile.m * tile.cluster, tile.n * tile.cluster_n)


def test_a_large_square_is_visited_in_bands_as_high_as_a_wave_is_wide():
    # 66 pairs of 128x256: 7 to 10 rows of 256 x 256 and as many columns; 8 rows leave no band half empty.
    assert visiting_group(8192, 8192, Tile(128, 256, 64, cluster=2), 132) == 8
    assert visiting_group(128, 8192, Tile(128, 256, 64), 132) == 1
    # 66 tiles at once in two slices of 132 workers: 11 rows of 128 and 6 columns of 256 are 2944, the least.
    assert visiting_group(8192, 8192, Tile(128, 256, 64), 132, splits=2) == 11
    # Nine at once of 2 x 9 tiles: one row and all columns, 128 + 9 x 128, as two rows and five columns are 896.
    assert visiting_group(256, 1152, Tile(128, 128, 64), 9) == 2


def paths() -> CriticalPath:
    n = np.arange(32, 2000, 37)
    parts = [
        critical_path(128, n, k, Tile(128, 128, 256), Schedule.parse(schedule))
        for schedule in ("data_parallel@3", "split_k(3)@3", "stream_k@3")
        for k in (700, 4096)
    ]
    return CriticalPath(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("k_extent", "tiles", "partials"))
    )


@given(st.integers(0, 2**32 - 1))
def test_no_cost_comes_out_negative_whatever_the_noise(seed):
    path = paths()
    law = StaircaseLaw.fit(path, np.random.default_rng(seed).uniform(1e-6, 1e-2, path.k_extent.size))
    assert min(law.overhead_s, law.per_k_s, law.per_tile_s, law.per_partial_s) >= 0


def test_a_law_is_judged_on_even_waves_that_it_was_not_fitted_to():
    law = StaircaseLaw(1e-6, 2e-9, 3e-6, 0.0)
    waves = np.arange(1, 9)
    cases = [critical_path(128, 128 * 2 * wave, 512, Tile(128, 128, 64), Schedule("persistent", 2)) for wave in waves]
    seconds = [
        float(law.seconds(case)) * (1.1 if wave % 2 == 0 else 1.0) for case, wave in zip(cases, waves, strict=True)
    ]
    judged = judged_by_waves(cases, seconds, waves)
    assert judged is not None
    assert (judged.fitted_on, judged.held_out) == (4, pytest.approx((1 - 1 / 1.1,) * 4))
    assert math.isclose(judged.noise, 0.0)
    uncertain = judged_by_waves(cases, seconds, waves, errors=0.01 * waves)
    assert uncertain.noise == pytest.approx(0.6744897501960817 * 0.05)  # the median of 2, 4, 6 and 8 %
    assert judged_by_waves(cases[:1], seconds[:1], waves[:1]) is None
    assert judged_by_waves(cases[1:2], seconds[1:2], waves[1:2]) is None


def test_costs_add_up_and_are_fitted_by_the_least_squares_of_relative_residuals():
    law = StaircaseLaw(1.0, 2.0, 3.0, 4.0)
    assert law.seconds(CriticalPath(np.array([10.0]), np.array([2.0]), np.array([1.0]))) == 1 + 20 + 6 + 4
    assert law.tile_seconds(10.0) == 23
    # One cost c of two times 1 and 2: least are ((c - 1)/1)^2 + ((c - 2)/2)^2; the second counts four times then.
    assert nonnegative_fit(np.ones((2, 1)), [1.0, 2.0]) == pytest.approx([1.5 / 1.25])
    assert nonnegative_fit(np.ones((2, 1)), [1.0, 2.0], [1.0, 0.5]) == pytest.approx([3 / 2])
    assert relative_error([0.75, 3.0], [1.0, 2.0]).tolist() == [0.25, 0.5]
    # Times with errors of 0 and of 2 % beside what the law leaves out, 2 %: weights are 2 to 1.
    paths = [critical_path(1, 1, 1, Tile(1, 1, 1), Schedule("persistent", 1))] * 3
    judged = judged_by_waves(paths, [1.0, 1.0, 2.0], [1, 2, 3], [0.0, 0.0, 0.02])
    assert judged.held_out == (pytest.approx((2 * 1 + 1 / 2) / (2 + 1 / 4) - 1),)


def test_sizes_are_rounded_up_and_have_their_power_of_two():
    assert [round_up(size, 64) for size in (1, 63, 64, 65, 128)] == [64, 64, 64, 128, 128]
    assert round_up(np.array([1, 129]), 128).tolist() == [128, 256]
    assert [largest_power_of_two(size) for size in (1, 3, 1000, 1024, 3 << 30)] == [1, 1, 8, 1024, 1 << 30]


def test_of_two_equally_near_sizes_the_smaller_is_taken_and_a_line_holds_fewer_wide_elements():
    assert [nearest_with(1 << power, 1024) for power in range(8)] == [1023, 1022, 1020, 1016, 1008, 992, 960, 896]
    assert [elements_in(128, size_bytes) for size_bytes in (4, 2, 1)] == [32, 64, 128]
    assert elements_in(64, 256) == 1
