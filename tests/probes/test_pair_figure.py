"""The map of pairs in colours: each pair beside the median of its kind, the same from both sides, none with itself."""

from __future__ import annotations

import math

from pyperf_suite.probes.collectives.pairs import PairMap, pair_figure


def test_a_slow_link_stands_out_on_both_sides_of_the_diagonal() -> None:
    rates = {(0, 1): 10.0, (0, 2): 10.0, (1, 2): 2.0}
    figure = pair_figure(PairMap("send_receive float32, gloo", 1 << 20, 3, rates))
    [[heat_map]] = figure.rows
    assert heat_map.x == heat_map.y == (0, 1, 2)
    assert heat_map.values[1][2] == heat_map.values[2][1] == 0.2
    assert heat_map.values[0][1] == 1.0
    assert all(math.isnan(heat_map.values[rank][rank]) for rank in range(3))
    assert "10 GB/s" in figure.caption


def test_links_of_several_kinds_are_each_compared_with_their_own() -> None:
    rates = {(0, 1): 100.0, (2, 3): 100.0, (0, 2): 10.0, (1, 3): 10.0}
    paths = {(0, 1): "NV18", (2, 3): "NV18", (0, 2): "SYS", (1, 3): "SYS"}
    [[heat_map]] = pair_figure(PairMap("how", 1024, 4, rates, paths)).rows
    assert {value for row in heat_map.values for value in row if not math.isnan(value)} == {1.0}


def test_maps_of_different_sizes_have_files_of_different_names() -> None:
    names = {pair_figure(PairMap("how, gloo", size, 2, {(0, 1): 1.0})).name for size in (1024, 2048)}
    assert len(names) == 2
    assert all(name.replace("_", "").isalnum() for name in names)
