"""The time of collectives on named GPUs: what it adds up from, what it extrapolates, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.calibration import Block, Calibration
from pyperf_suite.laws.collectives import (
    BLOCK,
    CollectiveLaws,
    PiecewiseAlphaBeta,
    collective_time,
    pack_curves,
    transferred_laws,
    unpack_laws,
)
from pyperf_suite.laws.traffic import OPERATIONS, busbw

CALIBRATED = ("H200 SXM", "H100 SXM", "A100 SXM", "L40S", "B200 SXM")
MIB = 2**20


def straight(start_s: float, bytes_per_s: float) -> PiecewiseAlphaBeta:
    """A curve that is one line."""
    return PiecewiseAlphaBeta(start_s, (), (1 / bytes_per_s,))


@pytest.fixture
def made_up() -> Calibration:
    """A calibration of an A100 whose collectives take 10 us and then run at 100 GB/s among 2 and at 50 among 8."""
    curves = {
        (operation, ranks): straight(10e-6, 200e9 / ranks * (1 if ranks == 2 else 2))
        for operation in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")
        for ranks in (2, 8)
    }
    packed = pack_curves(curves, frozenset({("all_gather", 8)}), dict.fromkeys(curves, 4.0))
    block = Block(packed, {"median": 4.0, "mape": 6.0}, {"nbytes": (512.0, 2.0**29), "ranks": (2.0, 8.0)}, "made up")
    return Calibration("A100 SXM", {BLOCK: block})


@pytest.mark.parametrize("gpu", CALIBRATED)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_a_time_that_grows_with_bytes(gpu: str, operation: str) -> None:
    seconds = collective_time(gpu, operation, np.geomspace(512, 2**33, 60), 8).seconds
    assert np.all(seconds > 0)
    assert np.all(np.diff(seconds) >= 0)


def test_large_messages_over_nvlink_run_near_the_rates_that_are_published_for_eight_h200() -> None:
    # stas00/ml-engineering: 16 GiB among 8 H200 with NVLS 480 GB/s, all_gather 361, reduce_scatter 363.
    for operation, published in (("all_reduce", 480), ("all_gather", 361), ("reduce_scatter", 363)):
        seconds = collective_time("H200", operation, 16 * 2**30, 8).seconds
        assert float(busbw(operation, 16 * 2**30, seconds, 8)) == pytest.approx(published, rel=0.1)


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


def test_arrays_of_sizes_and_ranks_broadcast() -> None:
    size, ranks = np.array([[1024.0], [MIB]]), np.array([1, 2, 4, 8, 64])
    seconds = collective_time("H100", "all_reduce", size, ranks).seconds
    assert seconds.shape == (2, 5)
    assert seconds[1, 3] == collective_time("H100", "all_reduce", MIB, 8).seconds
    assert np.all(seconds[:, 0] == 0)


def test_names_without_underscores_mean_the_same() -> None:
    for name, same in (("allreduce", "all_reduce"), ("alltoall", "all_to_all"), ("allgather", "all_gather")):
        assert collective_time("A100", name, MIB, 4).seconds == collective_time("A100", same, MIB, 4).seconds


def test_a_calibration_of_ones_own_is_read_in_place_of_the_shipped_one(made_up: Calibration) -> None:
    explained = collective_time(made_up, "all_reduce", [0, 1e8], 2)
    np.testing.assert_allclose(explained.seconds, [10e-6, 10e-6 + 1e-3])
    np.testing.assert_allclose(explained.parts["launch"], 10e-6)
    assert explained.error_percent == 4.0
    assert explained.origin == "made up"


def test_a_calibration_of_products_alone_leaves_collectives_as_they_are() -> None:
    for gpu in ("RTX 4090", "H200 SXM"):
        sizes = ("all_reduce", [1e6, 1e8], [2, 8])
        assert np.array_equal(collective_time(Calibration(gpu), *sizes).seconds, collective_time(gpu, *sizes).seconds)


def test_what_was_not_measured_is_marked_as_extrapolated(made_up: Calibration) -> None:
    def marked(operation: str, nbytes: float, ranks: int) -> bool:
        return bool(collective_time(made_up, operation, nbytes, ranks).extrapolated)

    assert not marked("all_reduce", MIB, 8)
    assert not marked("all_reduce", MIB, 1)
    assert marked("all_reduce", 2**31, 8)
    assert marked("all_reduce", MIB, 4)
    assert marked("all_reduce", MIB, 16)
    assert marked("all_gather", MIB, 8)
    assert marked("broadcast", MIB, 2)
    assert collective_time("B300", "all_reduce", MIB, 8).extrapolated


def test_operations_without_a_table_take_as_long_as_those_that_load_the_bus_alike(made_up: Calibration) -> None:
    # Between two, a broadcast puts S on the bus, and an all_gather half of its S.
    broadcast = collective_time(made_up, "broadcast", 1e8, 2).seconds
    assert broadcast == pytest.approx(float(collective_time(made_up, "all_gather", 2e8, 2).seconds))


def test_beyond_a_node_the_slower_of_network_and_links_decides(made_up: Calibration) -> None:
    def seconds(network_bytes_per_s: float, operation: str = "all_reduce") -> float:
        return float(
            collective_time(
                made_up, operation, 1e9, 16, ranks_per_node=8, network_bytes_per_s=network_bytes_per_s
            ).seconds
        )

    fast, slow = seconds(1e15), seconds(1e9)
    # As many bytes on the bus as 15/14 of the message puts there among the eight of one node.
    assert fast == pytest.approx(float(collective_time(made_up, "all_reduce", 1e9 * 15 / 14, 8).seconds) + 10e-6)
    # Of 2·15/16 of the message on the bus, a tree between two nodes sends a fifteenth for each of eight GPUs.
    assert slow == pytest.approx(1e9 * 2 / 16 / 1e9 + 10e-6)
    assert seconds(1e9, "all_gather") == pytest.approx(1e9 * 15 / 16 / 8 / 1e9 + 5e-6)
    assert seconds(1e9, "all_to_all") == pytest.approx(1e9 * 8 / 16 / 1e9 + 5e-6)


def test_racks_of_72_send_nothing_over_a_network_among_64() -> None:
    assert collective_time("GB200", "all_reduce", 1e9, 64).parts["network"] == 0
    assert collective_time("B200", "all_reduce", 1e9, 64).parts["network"] > 0


def test_curves_survive_packing() -> None:
    curves = {
        ("all_reduce", 2): PiecewiseAlphaBeta(1e-5, (1e3, 1e6), (1e-9, 2e-9, 3e-9)),
        ("all_gather", 8): straight(2e-5, 1e9),
    }
    packed = pack_curves(curves, frozenset({("all_gather", 8)}), {("all_reduce", 2): 1.0, ("all_gather", 8): 2.0})
    laws = unpack_laws(Block(packed, {}, {"nbytes": (1.0, 2.0)}))
    size = np.geomspace(1, 1e9, 20)
    for (operation, ranks), curve in curves.items():
        np.testing.assert_array_equal(laws.curves[operation].seconds(size, ranks), curve.seconds(size))
    assert laws.inferred == {("all_gather", 8)}
    assert laws.error_percent == {("all_reduce", 2): 1.0, ("all_gather", 8): 2.0}


class TestWhatIsReadOffAnotherGpu:
    """GPUs without a table take the curves of the one that is linked most alike."""

    @pytest.fixture
    def known(self, made_up: Calibration) -> dict[str, CollectiveLaws]:
        laws = unpack_laws(made_up.block(BLOCK))
        return dict.fromkeys(("A100 SXM", "H100 SXM", "B200 SXM", "L40S"), laws)

    @pytest.mark.parametrize(
        ("gpu", "nearest", "error_percent"),
        [
            ("H200 SXM", "H100 SXM", 3.0),
            ("B300 SXM", "B200 SXM", 29.0),
            ("GB200", "B200 SXM", 3.0),
            ("RTX 4090", "L40S", 3.0),
            ("T4", "L40S", 69.0),
        ],
    )
    def test_it_is_the_gpu_with_the_nearest_link(
        self, known: dict[str, CollectiveLaws], gpu: str, nearest: str, error_percent: float
    ) -> None:
        laws = transferred_laws(find_gpu(gpu), known)
        assert laws.origin.startswith(f"read off {nearest},")
        assert laws.transferred_error_percent == error_percent

    def test_a_link_of_half_the_rate_carries_half_the_bytes_in_the_same_time(
        self, known: dict[str, CollectiveLaws]
    ) -> None:
        laws = transferred_laws(find_gpu("H200 SXM"), {"B200 SXM": known["B200 SXM"]})
        assert laws.speed_up == pytest.approx(0.5)

    def test_without_any_calibration_nothing_is_made_up(self) -> None:
        with pytest.raises(UserError, match="No GPU's collectives are calibrated"):
            transferred_laws(find_gpu("H200"), {})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("H200", "all_reduse", 1, 2), "Unknown collective 'all_reduse': choose from all_reduce"),
        (("H200", "all_reduce", -1, 2), "-1 bytes was asked for"),
        (("H200", "all_reduce", np.nan, 2), "sizes of 0 bytes and more"),
        (("H200", "all_reduce", 1, 0), "among 0 ranks"),
        (("H2000", "all_reduce", 1, 2), "no GPU 'H2000'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(arguments: tuple, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        collective_time(*arguments)


def test_a_network_that_carries_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="carries nothing"):
        collective_time("H200", "all_reduce", 1, 16, network_bytes_per_s=-1)
