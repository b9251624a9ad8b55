"""Map programs to blocks of an attention, and to the blocks of the other side that they step over and mask.

The functions are plain integer arithmetic: Triton compiles this very text for the device, and the tests run it as
Python against the mask itself. Causal is bottom-right aligned: query i sees keys j ≤ i + seq_k − seq_q.
"""

from __future__ import annotations

# The functions call no other and leave what is known when a kernel is compiled unannotated, because in their text
# Triton knows its own names and `int` only.


def place(program: int, blocks: int, heads: int, together: int, descending) -> tuple[int, int]:  # type: ignore[no-untyped-def]
    """The head and the block of a program: `together` heads at a time, the heaviest block of each of them first.

    Heads that are visited together share the cache. Among them the work of a block only falls from program to program,
    so that the last wave is light. `descending` where the last block sees the most, as with causal queries.
    """
    first_head = program // (blocks * together) * together
    visited = min(together, heads - first_head)
    inside = program % (blocks * together)
    block = inside // visited
    if descending:
        block = blocks - 1 - block
    return first_head + inside % visited, block


def key_steps(first_query: int, queries, step, seq_q: int, seq_k: int, causal) -> tuple[int, int]:  # type: ignore[no-untyped-def]
    """For queries of a block, the steps of keys that all see, and where those end that any sees.

    Steps between the two are masked: the diagonal crosses them, or they hang over the last key.
    """
    whole = seq_k // step
    end = (seq_k + step - 1) // step
    if causal:
        whole = min(whole, (first_query + seq_k - seq_q + 1) // step)
        end = (min(first_query + queries + seq_k - seq_q, seq_k) + step - 1) // step
    return whole, end


def query_steps(first_key: int, keys, step, seq_q: int, seq_k: int, causal) -> tuple[int, int, int]:  # type: ignore[no-untyped-def]
    """For a block of keys, where the steps of queries begin that see any of them, and that see all, and where they end.

    The edges need no mask: queries that are not there are zeros, and what becomes of keys that are not there is not
    stored.
    """
    begin = 0
    whole = 0
    end = (seq_q + step - 1) // step
    if causal:
        begin = min(max(first_key - (seq_k - seq_q), 0) // step, end)
        whole = min((max(first_key + keys - 1 - (seq_k - seq_q), 0) + step - 1) // step, end)
    return begin, whole, end
