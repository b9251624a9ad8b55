"""The time of collectives on named GPUs: what it adds up from, what it extrapolates, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, all_gpus, find_gpu
from pyperf_suite.laws.traffic import GIGA, OPERATIONS, bus_factor
from pyperf_suite.planner.laws.collectives import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    OTHER_NVLINK,
    OTHER_PCIE,
    PCIE,
    LinkLaw,
    Point,
    between_nodes_s,
    collective_time,
    link_bytes_per_s,
    link_law,
    network_of,
    usual_network_bytes_per_s,
)
from tools.fit import collectives as fit
from tools.fit.published import SAMPLE, read_columns, rows_of

CALIBRATED = ("H200 SXM", "H100 SXM", "A100 SXM", "L40S", "B200 SXM")
MIB = 2**20


def busbw(operation: str, size_bytes: Any, seconds: Any, ranks: Any) -> Any:
    """As nccl-tests counts it, in GB/s."""
    return np.asarray(size_bytes) / seconds / GIGA * bus_factor(operation, ranks)


def test_large_messages_over_nvlink_run_near_the_rates_that_are_published_for_eight_h200() -> None:
    # stas00/ml-engineering: 16 GiB among 8 H200 with NVLS 480 GB/s, all_gather 361, reduce_scatter 363.
    for operation, published in (("all_reduce", 480), ("all_gather", 361), ("reduce_scatter", 363)):
        seconds = collective_time("H200", operation, 16 * 2**30, 8).seconds
        assert float(busbw(operation, 16 * 2**30, seconds, 8)) == pytest.approx(published, rel=0.12)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from((*CALIBRATED, "A40", "GB200", "V100")),
    st.sampled_from(OPERATIONS),
    st.floats(0, 1e11),
    st.integers(1, 512),
)
def test_the_causes_add_up_to_the_time(gpu: str, operation: str, nbytes: float, ranks: int) -> None:
    explained = collective_time(gpu, operation, nbytes, ranks)
    assert sum(explained.parts.values()) == pytest.approx(float(explained.seconds), rel=1e-9, abs=1e-15)


def test_a_launch_then_bytes_on_the_bus_then_what_a_switch_saves_are_counted_by_hand() -> None:
    # 7 / 8 of 1 GB on the bus at 0.693 of 300 GB/s, and 50 microseconds of leaving the protocol of low latency.
    bus = 7 / 8 * 1e9
    gathered = collective_time("A100 SXM", "all_gather", 1e9, 8)
    launch = 8.58e-6 * 8**0.276
    assert gathered.seconds == pytest.approx(launch + bus / (0.693 * 300e9) + 50e-6 * bus / (bus + 5.1e6))
    assert gathered.parts["launch"] == pytest.approx(launch)
    assert gathered.parts["ideal"] == pytest.approx(bus / 300e9)
    # On Hopper an all_reduce waits 1.22 times as long; the switch receives 1 GB and spreads an eighth of it.
    reduced = collective_time("H100 SXM", "all_reduce", [0, 1e9], 8).seconds
    assert reduced[0] == pytest.approx(4.29e-6 * 8**0.477 * 1.22)
    assert reduced[1] - reduced[0] == pytest.approx(9 / 8 * 1e9 / (0.652 * 450e9) + 1.22 * 27e-6, rel=0.01)


@pytest.mark.parametrize("law", fit.LINK_LAWS, ids=lambda law: law.gpus[0])
def test_the_constants_of_a_link_are_those_that_its_curves_are_fitted_with(law: LinkLaw) -> None:
    curves = fit.curves_of(law, fit.read_curves(SAMPLE))
    fitted = fit.fit_link(law, curves)
    for name in fit.CONSTANTS:
        assert getattr(fitted, name) == pytest.approx(getattr(law, name), rel=0.02)
    assert 100 * np.median(np.abs(np.expm1(fit.missed_by(law, curves)))) < 9


@pytest.mark.slow
@pytest.mark.parametrize("law", fit.LINK_LAWS, ids=lambda law: law.gpus[0])
def test_curves_left_out_are_as_far_off_as_is_stated(law: LinkLaw) -> None:
    missed = fit.left_out_curves(law, fit.curves_of(law, fit.read_curves(SAMPLE)))
    assert 100 * np.median(np.abs(np.expm1(-missed))) == pytest.approx(law.percent, abs=0.5)
    assert 0.87 < np.mean((missed >= law.band.low[0]) & (missed <= law.band.high[0])) < 0.93


def test_what_was_not_measured_is_marked_as_extrapolated() -> None:
    def marked(operation: str, nbytes: float, ranks: int, gpu: str = "A100 SXM") -> bool:
        return bool(collective_time(gpu, operation, nbytes, ranks).extrapolated)

    assert not marked("all_reduce", MIB, 8)
    assert not marked("all_reduce", MIB, 1)
    assert marked("all_reduce", 2**31, 8)
    assert marked("all_reduce", MIB, 3)
    assert marked("all_reduce", MIB, 16)
    assert marked("broadcast", MIB, 2)
    assert marked("all_reduce", MIB, 8, "B300")


# Trees, rings and direct sends reach 0.90, 0.857 and 0.457 of the network; a step between nodes takes 20 microseconds
# and fills with a third of what crosses, at most 5.3 MB; messages of far more than 250 kB wait 42 microseconds once.
@pytest.mark.parametrize(
    ("operation", "size", "ranks", "crossing_s", "steps", "fill_s"),
    [
        ("all_reduce", 1e9, 16, 1 / 8 / 0.9, 1, 5.3e-3),
        ("all_reduce", 1e9, 32, 2 / 8 / 0.9, 2, 5.3e-3),
        ("all_reduce", 1e9, 24, 2 / 8 / 0.9, np.log2(3), 5.3e-3),
        ("all_reduce", 1e6, 16, 1e-3 / 8 / 0.9, 1, 1e-3 / 8 / 3),
        ("all_gather", 1e9, 32, 31 / 32 / 8 / 0.857, 3, 5.3e-3),
        ("all_to_all", 1e9, 32, 24 / 32 / 0.457, 2, 5.3e-3),
        ("all_to_all", 1e9, 12, 4 / 12 / 0.457, 1, 5.3e-3),  # the second node is half full
    ],
)
def test_the_time_over_a_network_of_a_gigabyte_a_second_is_counted_by_hand(
    operation: str, size: float, ranks: int, crossing_s: float, steps: float, fill_s: float
) -> None:
    at = (np.array([size]), np.array([float(ranks)]), np.array([8]))
    due = crossing_s + steps * (20e-6 + fill_s) + 42e-6 * size / (size + 250e3)
    assert between_nodes_s(operation, *at, np.array([1e-9]), 1e9) == pytest.approx(due)
    # Nodes that take longer than the network are waited for, and a single node alone is.
    assert between_nodes_s(operation, *at, np.array([9.0]), 1e9) == pytest.approx(9 + due - crossing_s)
    assert between_nodes_s(operation, at[0], np.array([8.0]), at[2], np.array([9.0]), 1e9) == 9


class TestMeasuredPointsOfANetwork:
    """Measurements between one's own nodes stand above the law."""

    @pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
    @pytest.mark.parametrize(("ranks", "a_node"), [(16, 8), (64, 8), (8, 1)])
    def test_the_time_between_nodes_passes_through_them(self, op: str, ranks: int, a_node: int) -> None:
        sizes = np.array([1e6, 3e7, 1e9])
        points = "1GB:180GB/s, 1MB:9GB/s,30MB:60GB/s"
        seconds = collective_time("H100", op, sizes, ranks, ranks_per_node=a_node, network=points).seconds
        np.testing.assert_allclose(busbw(op, sizes, seconds, ranks), [9, 60, 180], rtol=1e-6)
        within = (collective_time("H100", op, sizes, a_node, ranks_per_node=a_node, network=n) for n in (None, points))
        np.testing.assert_array_equal(*(each.seconds for each in within))

    def test_rates_and_points_read_as_people_write_them(self) -> None:
        assert network_of("NDR") == network_of("400Gbps") == 50e9
        rates = {"EDR": 12.5e9, "hdr": 25e9, "XDR": 100e9, " 100 gbit/s": 12.5e9, "0.5Gbps": 62.5e6}
        assert {text: network_of(text) for text in rates} == rates
        assert network_of("1MiB:20GB/s,1GiB:1B/s") == (Point(2.0**20, 20e9), Point(2.0**30, 1.0))
        assert network_of("1g:0.5TB/s,2k:3MB/s") == (Point(2e3, 3e6), Point(1e9, 0.5e12))

    @pytest.mark.parametrize("text", [
        "", "x", "400", "0Gbps", "1000001Gbps", "-1 Gbps", "1GB:180", ":180GB/s", "1GB:180GB/s,", "1GB:fast",
        "-1GB:1GB/s", "1GB:0GB/s", "1GB:1GB/s,1GB:2GB/s",
    ])  # fmt: skip
    def test_others_are_refused_in_a_sentence(self, text: str) -> None:
        with pytest.raises(UserError, match=r"[.]$"):
            network_of(text)


class TestBetweenPublishedNodes:
    """Rows of other people's clusters (tests/data/published), by constants that were fitted to InfiniBand and RoCE."""

    @pytest.fixture
    def rows(self) -> list[dict[str, Any]]:
        return fit.read_rows()

    def test_collectives_are_predicted_within_15_percent_where_they_are_fitted(
        self, rows: list[dict[str, Any]]
    ) -> None:
        fitted = [row for row in rows if row["fabric"] in fit.FITTED]
        errors = np.abs(fit.predicted_s(fitted) / [row["seconds"] for row in fitted] - 1)
        assert len(fitted) > 280
        assert errors.mean() < 0.15
        assert np.median(errors) < 0.12

    def test_two_points_of_its_own_bring_any_fabric_within_15_percent(self, rows: list[dict[str, Any]]) -> None:
        points = fit.measured_points(rows)
        known = [row for row in rows if fit.key_of(row) in points and row["bytes"] not in fit.POINTS]
        predicted = fit.predicted_s(known, lambda row: points[fit.key_of(row)])
        errors = np.abs(predicted / [row["seconds"] for row in known] - 1)
        assert {row["fabric"] for row in known} >= {"EFA", "TCPXO", "RoCE", "InfiniBand NDR"}
        assert errors.mean() < 0.15

    def test_the_interval_covers_nine_of_ten(self, rows: list[dict[str, Any]]) -> None:
        inside = []
        for row in rows:
            ranks, inside_node, rate = row["num_gpus"], row["ranks_per_node"], row["network_gb_per_s"] * 1e9
            price = collective_time(row["gpu"], row["op_name"], row["bytes"], ranks, inside_node, rate)
            inside.append(price.low <= row["seconds"] <= price.high)
        assert 0.87 < np.mean(inside) < 0.95

    @pytest.mark.slow
    def test_sources_left_out_are_too(self, rows: list[dict[str, Any]]) -> None:
        fitted = [row for row in rows if row["fabric"] in fit.FITTED]
        errors = np.abs(fit.left_out_s(fitted) / [row["seconds"] for row in fitted] - 1)
        assert errors.mean() < 0.16


def test_the_interval_over_pcie_covers_most_machines() -> None:
    rows = [row for row in rows_of(read_columns(SAMPLE, "nccl_tests_pcie")) if row["gpu"] != "L40S"]
    prices = [collective_time(row["gpu"], row["op_name"], row["bytes"], row["num_gpus"]) for row in rows]
    inside = [price.low <= row["latency_us"] * 1e-6 <= price.high for row, price in zip(rows, prices, strict=True)]
    assert 0.85 < np.mean(inside) <= 1


class TestLinksAsTheyAre:
    """Bridges join pairs, a mesh has a link for each pair, and only a switch gives any of its GPUs all of its links."""

    # GB/s on the bus of large messages: NVIDIA/nccl-tests issue 178; NVIDIA/nccl issue 1161; AMD's ROCm blog of xGMI on
    # MI300X, 48 GB/s of each link of 64.
    @pytest.mark.parametrize(
        ("gpu", "ranks", "published"),
        [("A100 PCIe", 2, 208), ("A100 PCIe", 3, 20), ("H100 PCIe", 2, 115), ("MI300X", 2, 48), ("MI300X", 8, 7 * 48)],
    )
    def test_published_rates_lie_in_the_interval(self, gpu: str, ranks: int, published: float) -> None:
        price = collective_time(gpu, "all_reduce", 2**30, ranks)
        slow, fast = (busbw("all_reduce", 2**30, end, ranks) for end in (price.high, price.low))
        assert slow < published < fast
        assert price.extrapolated

    @pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.slug)
    @pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all"])
    def test_no_gpu_sends_more_than_its_links_to_the_others_carry(self, gpu: GpuSpec, operation: str) -> None:
        for ranks in range(2, 9):
            rate = busbw(operation, 2**33, collective_time(gpu, operation, 2**33, ranks).seconds, ranks)
            # A switch that adds up sends each byte once where a ring sends it almost twice.
            once = ranks / 4 + 0.5 if operation == "all_reduce" and link_law(gpu)[0].switch_share else 1.0
            assert rate < max(once, 1.0) * link_bytes_per_s(gpu, ranks) / GIGA

    def test_links_are_known_by_whom_they_join_and_networks_by_the_generation(self) -> None:
        bridge, mesh = find_gpu("A100 PCIe"), find_gpu("MI300X")
        assert [float(link_bytes_per_s(bridge, ranks)) for ranks in (1, 2, 3)] == [300e9, 300e9, 31.5e9]
        assert [float(link_bytes_per_s(mesh, ranks)) * 7 for ranks in (2, 8, np.inf)] == [448e9, 7 * 448e9, 7 * 448e9]
        rates = [usual_network_bytes_per_s(find_gpu(name)) for name in ("A100", "H100", "B200", "B300")]
        assert rates == [25e9, 50e9, 50e9, 100e9]


def test_racks_of_72_send_nothing_over_a_network_among_64() -> None:
    assert collective_time("GB200", "all_reduce", 1e9, 64).parts["network"] == 0
    assert collective_time("B200", "all_reduce", 1e9, 64).parts["network"] > 0


@pytest.mark.parametrize(
    ("gpu", "law"),
    [
        ("H200 SXM", HOPPER),
        ("GH200", HOPPER),
        ("B300 SXM", BLACKWELL),
        ("GB200", BLACKWELL),
        ("A800 SXM", replace(AMPERE, band=OTHER_NVLINK, percent=29.0)),
        ("V100 SXM", replace(AMPERE, band=OTHER_NVLINK, percent=29.0)),
        ("MI300X", replace(AMPERE, band=OTHER_NVLINK, percent=29.0)),
        ("H800 SXM", replace(HOPPER, band=OTHER_NVLINK, percent=29.0)),
        ("L40S", PCIE),
        ("RTX 4090", OTHER_PCIE),
        ("RTX PRO 6000 Blackwell Server", OTHER_PCIE),
    ],
)
def test_a_gpu_has_the_law_of_the_links_most_like_its_own(gpu: str, law: LinkLaw) -> None:
    found, origin = link_law(find_gpu(gpu))
    assert found == law
    assert origin.startswith(f"read off {law.gpus[0]},") == (find_gpu(gpu).name not in law.gpus)
