"""What workloads of several ranks ask of a machine, whatever they compute: gloo's limits, NCCL's start, memory."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.operators.collective.gloo import RANKS_A_CORE
from pyperf_suite.ranks.environment import rank_environment
from pyperf_suite.ranks.group import Group

# What ranks compute in, by bytes an element.
DTYPES = {"float32": 4, "bfloat16": 2}
MOST_RANKS = 1 << 15

# What NCCL reads once, when it is loaded, to go without direct copies between GPUs.
WITHOUT_DIRECT_COPIES = {"NCCL_P2P_DISABLE": "1"}


def require_words(parameters: object, words: Mapping[str, tuple[str, ...]]) -> None:
    """Raise UserError for a field that is none of its words."""
    for name, allowed in words.items():
        if getattr(parameters, name) not in allowed:
            raise UserError(f"Unknown {name} {getattr(parameters, name)!r}: choose from {', '.join(allowed)}.")


def require_within(parameters: object, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Raise UserError for a field outside of its bounds, both included."""
    for name, (low, high) in bounds.items():
        if not low <= getattr(parameters, name) <= high:
            raise UserError(f"{name}={getattr(parameters, name)} was asked for: ask for {low} to {high}.")


def environment(peer_to_peer: bool) -> Mapping[str, str]:
    """What ranks must be started with."""
    return {} if peer_to_peer else WITHOUT_DIRECT_COPIES


def require_for_gloo(ranks: int, peer_to_peer: bool) -> None:
    """Raise UserError for what is NCCL's, and for more ranks than this machine's cores can keep alive."""
    if not peer_to_peer:
        raise UserError("gloo moves data between CPUs over TCP: peer_to_peer is NCCL's alone.")
    most = RANKS_A_CORE * cpu.detect().usable_cores
    if not rank_environment().launched and ranks > most:
        raise UserError(f"{ranks} ranks were asked for: this machine's cores keep {most} alive at most.")


def require_started_so(peer_to_peer: bool) -> None:
    """Raise Unsupported where a launcher started ranks with direct copies that are to go without."""
    if any(os.environ.get(name) != value for name, value in environment(peer_to_peer).items()):
        raise Unsupported(
            "No direct copies between GPUs were asked for, but these ranks were started with them: start them with "
            "NCCL_P2P_DISABLE=1, or let pyperf-suite start them."
        )


def require_memory(group: Group, bytes_a_rank: int) -> None:
    """Raise Unsupported where the ranks on this machine need more memory together than it has free."""
    ranks_here = -(-group.count // max(1, group.environment.nodes))
    needed_bytes, free_bytes = ranks_here * bytes_a_rank, memory.available_bytes()
    if needed_bytes > free_bytes:
        raise Unsupported(
            f"{ranks_here} ranks on this machine need {needed_bytes / 1e9:.1f} GB, but {free_bytes / 1e9:.1f} GB of "
            "memory are free: ask for fewer ranks or less on each."
        )
