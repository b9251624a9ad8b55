"""Sizes and rates of collectives as nccl-tests counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError

GIGA = 1e9


@dataclass(frozen=True)
class Accounting:
    """How one operation is counted.

    `every_rank` says that the size counts the blocks of all ranks, each of `count` elements, rather than one buffer of
    `count`; `factor` is the share of the size that the busiest link carries, as a function of the ranks n.
    """

    every_rank: bool
    factor: Literal["2(n-1)/n", "(n-1)/n", "1"]


# nccl-tests, src/*.cu: the GetCollByteCount and GetBw functions of each operation.
ACCOUNTING = {
    "all_reduce": Accounting(False, "2(n-1)/n"),
    "all_gather": Accounting(True, "(n-1)/n"),
    "reduce_scatter": Accounting(True, "(n-1)/n"),
    "all_to_all": Accounting(True, "(n-1)/n"),
    "gather": Accounting(True, "(n-1)/n"),
    "scatter": Accounting(True, "(n-1)/n"),
    # Ranks exchange unequal parts: the size is the most bytes that any rank sends or receives, given as its count.
    "all_to_all_v": Accounting(False, "(n-1)/n"),
    "broadcast": Accounting(False, "1"),
    "reduce": Accounting(False, "1"),
    "send_receive": Accounting(False, "1"),
}
OPERATIONS = tuple(ACCOUNTING)


def message_bytes(operation: str, count: ArrayLike, element_bytes: ArrayLike, ranks: ArrayLike) -> NDArray[np.int64]:
    """The size S in bytes that nccl-tests reports and divides by the time, of a count of elements as NCCL counts them.

    That is of the whole buffer for all_reduce, broadcast, reduce and send_receive, of one rank's block for the others,
    and for all_to_all_v the most that any rank sends or receives. Raises UserError for another operation, or less than
    one rank.
    """
    buffer = np.asarray(count, dtype=np.int64) * np.asarray(element_bytes, dtype=np.int64)
    blocks = _ranks(ranks).astype(np.int64) if _accounting(operation).every_rank else np.int64(1)
    return np.asarray(buffer * blocks, dtype=np.int64)


def element_count(
    operation: str, size_bytes: ArrayLike, element_bytes: ArrayLike, ranks: ArrayLike
) -> NDArray[np.int64]:
    """The largest count, as NCCL counts, whose message is at most `size_bytes`. Raises as `message_bytes` does."""
    one = message_bytes(operation, 1, element_bytes, ranks)
    return np.asarray(np.asarray(size_bytes, dtype=np.int64) // one, dtype=np.int64)


def bus_factor(operation: str, ranks: ArrayLike) -> NDArray[np.float64]:
    """The ratio busbw / algbw: 2(n−1)/n, (n−1)/n or 1 (nccl-tests, doc/PERFORMANCE.md).

    At n = 1 it is 0 where nothing crosses a link by the formula, and stays 1 for broadcast, reduce and send_receive.
    Raises UserError as `message_bytes` does.
    """
    n = _ranks(ranks)
    crossing = (n - 1) / n
    return {"2(n-1)/n": 2 * crossing, "(n-1)/n": crossing, "1": np.ones_like(n)}[_accounting(operation).factor]


def nvls_wire_rate(algbw_gb_per_s: ArrayLike, ranks: ArrayLike) -> NDArray[np.float64]:
    """GB/s on each GPU's links where the switch reduces (NVLS all_reduce): algbw·(n+1)/n.

    Each GPU sends its whole buffer S for the switch to add up, and its 1/n of the sum for the switch to spread. This
    rate is flat over n where busbw climbs with n, and can exceed what the links carry. Raises UserError as above.
    """
    n = _ranks(ranks)
    return np.asarray(algbw_gb_per_s, dtype=np.float64) * (n + 1) / n


def inter_node_rate(busbw_gb_per_s: ArrayLike, ranks: ArrayLike, nodes: ArrayLike) -> NDArray[np.float64]:
    """GB/s that each accelerator's share of its node's network has to carry over k nodes: busbw·(k−1)/(n−1).

    Of an all_reduce 2(k−1)/k of S leaves each node whatever the algorithm, by way of n/k accelerators. 0 on one node.
    Raises UserError where there are less than one node or more nodes than ranks.
    """
    n, k = _ranks(ranks), np.asarray(nodes, dtype=np.float64)
    if np.any(k < 1) or np.any(k > n):
        raise UserError(f"{np.max(n):g} ranks were said to live on {np.max(k):g} nodes: give 1 node up to one a rank.")
    return np.asarray(busbw_gb_per_s, dtype=np.float64) * (k - 1) / np.maximum(n - 1, 1)


def _accounting(operation: str) -> Accounting:
    if operation not in ACCOUNTING:
        raise UserError(f"Unknown collective {operation!r}: choose from {', '.join(OPERATIONS)}.")
    return ACCOUNTING[operation]


def _ranks(ranks: ArrayLike) -> NDArray[np.float64]:
    n = np.asarray(ranks, dtype=np.float64)
    if np.any(n < 1):
        raise UserError(f"A collective needs at least 1 rank, but {np.min(n):g} were given.")
    return n
