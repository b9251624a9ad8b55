import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.traffic import (
    GIGA,
    OPERATIONS,
    bus_factor,
    element_count,
    inter_node_rate,
    message_bytes,
    nvls_wire_rate,
)
from tests.models import MODELS
from tools.fit.published import SAMPLE


def test_a_token_meets_its_experts_only():
    assert MODELS["mixtral-8x7b"].active_parameters == 12_879_925_248
    assert MODELS["llama-2-7b"].active_parameters == MODELS["llama-2-7b"].parameters


FLOAT_BYTES = 4
NCCL_TESTS_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
operations = st.sampled_from(OPERATIONS)
rank_counts = st.integers(1, 100_000)


def printed_time_bounds_s(microseconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The times that nccl-tests prints so: none of 10 ms and more has decimals, of 0.1 ms and more one, else two."""
    half = np.select([microseconds >= 10_000, microseconds >= 100], [0.5, 0.05], 0.005)
    return (microseconds - half) * 1e-6, (microseconds + half) * 1e-6


def test_every_size_and_rate_that_nccl_tests_printed_comes_out():
    with (SAMPLE / "nccl_tests_8xa100.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert len(rows) == 204
    mismatches = 0
    for name, operation in NCCL_TESTS_NAMES.items():
        of_this = [row for row in rows if row["op"] == name]
        columns = {key: np.array([float(row[key]) for row in of_this]) for key in rows[0] if key != "op"}
        size = message_bytes(operation, columns["count"], FLOAT_BYTES, columns["nranks"])
        wrong = size != columns["bytes"]
        for place in ("oop", "ip"):
            shortest, longest = printed_time_bounds_s(columns[f"{place}_us"])
            for rate, factor in ((f"{place}_algbw", 1.0), (f"{place}_busbw", bus_factor(operation, columns["nranks"]))):
                # Rates have two decimals; a little more, for a time that lies on the edge of its rounding.
                wrong |= columns[rate] > size / shortest / GIGA * factor + 0.00501
                wrong |= columns[rate] < size / longest / GIGA * factor - 0.00501
        mismatches += int(wrong.sum())
    assert mismatches == 0


def test_the_wire_rate_of_nvls_is_flat_where_busbw_climbs():
    # 8 x H200, all_reduce with NVLS on 5 to 8 of its GPUs, as published: the ends of the ramp of busbw in GB/s.
    ranks, published_busbw, published_wire = np.array([5, 8]), np.array([414, 473]), np.array([310.6, 304.1])
    wire = nvls_wire_rate(published_busbw / bus_factor("all_reduce", ranks), ranks)
    np.testing.assert_allclose(wire, published_wire, rtol=1e-3)
    assert published_busbw[1] / published_busbw[0] > 1.14
    assert 0.975 < wire[1] / wire[0] < 1


@pytest.mark.parametrize(
    ("operation", "size_in_buffers", "factor", "factor_alone"),
    [
        ("all_reduce", 1, 1.75, 0),
        ("all_gather", 8, 0.875, 0),
        ("reduce_scatter", 8, 0.875, 0),
        ("all_to_all", 8, 0.875, 0),
        ("gather", 8, 0.875, 0),
        ("scatter", 8, 0.875, 0),
        ("all_to_all_v", 1, 0.875, 0),
        ("broadcast", 1, 1, 1),
        ("reduce", 1, 1, 1),
        ("send_receive", 1, 1, 1),
    ],
)
def test_each_operation_is_counted_as_nccl_tests_counts_it(operation, size_in_buffers, factor, factor_alone):
    assert message_bytes(operation, 1000, 2, 8) == size_in_buffers * 2000
    assert bus_factor(operation, 8) == factor
    assert bus_factor(operation, 1) == factor_alone


@given(operations, st.integers(0, 2**40), st.sampled_from([1, 2, 4, 8]), rank_counts)
def test_the_count_for_a_size_is_the_largest_that_fits(operation, size_bytes, element_bytes, ranks):
    count = element_count(operation, size_bytes, element_bytes, ranks)
    assert message_bytes(operation, count, element_bytes, ranks) <= size_bytes
    assert message_bytes(operation, count + 1, element_bytes, ranks) > size_bytes


def test_the_network_carries_nothing_on_one_node_and_busbw_where_every_rank_is_a_node():
    np.testing.assert_allclose(inter_node_rate(100.0, [8, 16, 16], [1, 2, 16]), [0.0, 100 / 15, 100.0])
    assert inter_node_rate(100.0, 1, 1) == 0


@pytest.mark.parametrize("nodes", [0, 9])
def test_nodes_that_the_ranks_cannot_be_spread_over_are_refused(nodes):
    with pytest.raises(UserError, match=r"8 ranks .* nodes"):
        inter_node_rate(100.0, 8, nodes)


def test_an_unknown_collective_and_less_than_one_rank_are_refused():
    with pytest.raises(UserError, match=r"'allreduce'.*all_reduce, all_gather"):
        bus_factor("allreduce", 8)
    with pytest.raises(UserError, match="at least 1 rank, but 0"):
        message_bytes("all_gather", 1, 4, [8, 0])
