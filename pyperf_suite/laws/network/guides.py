"""What practitioners' guides say a network between nodes should carry, and a measured one laid beside it.

Source of the figures: Hugging Face, Large Language Model Training Playbook, "How to Maximize Training Throughput".
"""

from __future__ import annotations

# Rates of all_reduce between nodes in Gbps, that is busbw in GB/s times 8.
SLOWEST_SEEN_GBPS = 5.0
FASTEST_SEEN_GBPS = 1600.0
WANTED_GBPS = 400.0
BLOOM_GBPS = 50.0
FEWEST_NODES = 4


def sentence(busbw_gb_per_s: float) -> str:
    """Place a measured busbw of all_reduce between nodes, in GB/s (1e9), among the guides' thresholds."""
    gbps = busbw_gb_per_s * 8
    measured = f"The network between nodes carries {gbps:.3g} Gbps (all_reduce busbw)"
    if gbps >= WANTED_GBPS:
        judged = f"at or above the {WANTED_GBPS:g} Gbps that are wanted to avoid being network-bound"
    elif gbps >= BLOOM_GBPS:
        judged = (
            f"below the {WANTED_GBPS:g} Gbps that are wanted to avoid being network-bound, though BLOOM was trained on "
            f"{BLOOM_GBPS:g}"
        )
    elif gbps >= SLOWEST_SEEN_GBPS:
        judged = f"below the {BLOOM_GBPS:g} Gbps that BLOOM was trained on, and far below the {WANTED_GBPS:g} wanted"
    else:
        judged = f"less than any of the {SLOWEST_SEEN_GBPS:g} to {FASTEST_SEEN_GBPS:g} Gbps that are seen: check it"
    return f"{measured}, {judged}."


def warning(nodes: int) -> str | None:
    """The guide's advice where fewer nodes are measured than it recommends; None on one node and on enough."""
    if not 1 < nodes < FEWEST_NODES:
        return None
    return f"{nodes} nodes are measured: {FEWEST_NODES} or more are recommended, best all that the training will use."
