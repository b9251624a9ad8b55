"""Whether NCCL copies between GPUs directly: it reads that once, when it is loaded, so ranks must be started for it."""

from __future__ import annotations

import os

from pyperf_suite.errors import Unsupported

WITHOUT_DIRECT_COPIES = {"NCCL_P2P_DISABLE": "1"}


def environment(peer_to_peer: bool) -> dict[str, str]:
    """What ranks must be started with."""
    return {} if peer_to_peer else WITHOUT_DIRECT_COPIES


def require_started_so(peer_to_peer: bool) -> None:
    """Raise Unsupported where a launcher started ranks with direct copies that are to go without."""
    if any(os.environ.get(name) != value for name, value in environment(peer_to_peer).items()):
        raise Unsupported(
            "No direct copies between GPUs were asked for, but these ranks were started with them: start them with "
            "NCCL_P2P_DISABLE=1, or let pyperf-suite start them."
        )
