"""What workloads of several ranks ask of a machine, whatever they compute: gloo's limits, memory."""

from __future__ import annotations

from collections.abc import Mapping

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.ranks.environment import rank_environment
from pyperf_suite.ranks.group import Group
from pyperf_suite.workloads.collective.gloo import RANKS_A_CORE

# What ranks compute in, by bytes an element.
DTYPES = {"float32": 4, "bfloat16": 2}
MOST_RANKS = 1 << 15


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


def require_for_gloo(ranks: int, peer_to_peer: bool) -> None:
    """Raise UserError for what is NCCL's, and for more ranks than this machine's cores can keep alive."""
    if not peer_to_peer:
        raise UserError("gloo moves data between CPUs over TCP: peer_to_peer is NCCL's alone.")
    most = RANKS_A_CORE * cpu.detect().usable_cores
    if not rank_environment().launched and ranks > most:
        raise UserError(f"{ranks} ranks were asked for: this machine's cores keep {most} alive at most.")


def require_memory(group: Group, bytes_a_rank: int) -> None:
    """Raise Unsupported where the ranks on this machine need more memory together than it has free."""
    ranks_here = -(-group.count // max(1, group.environment.nodes))
    needed_bytes, free_bytes = ranks_here * bytes_a_rank, memory.available_bytes()
    if needed_bytes > free_bytes:
        raise Unsupported(
            f"{ranks_here} ranks on this machine need {needed_bytes / 1e9:.1f} GB, but {free_bytes / 1e9:.1f} GB of "
            "memory are free: ask for fewer ranks or less on each."
        )
