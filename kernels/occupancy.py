"""How many blocks of a kernel fit a multiprocessor: the published formula with the published limits."""

from __future__ import annotations

from dataclasses import dataclass

from pyperf_suite.hardware.catalogue import Architecture, architecture, architectures, capability

WARP_THREADS = 32
REGISTERS = 65536  # 32-bit, of a multiprocessor and at most of a block: all capabilities from 8.0
PARTITIONS = 4  # of a multiprocessor: a warp's registers come from one of them
REGISTER_UNIT = 256  # registers are allocated to a warp in these
SHARED_UNIT_BYTES = 128
RESERVED_SHARED_BYTES = 1024  # of each block, by the system, from 8.0 on


@dataclass(frozen=True)
class Occupancy:
    """Blocks of a kernel on one multiprocessor, and what keeps more of them out."""

    blocks: int
    warps: int
    most_warps: int
    limited_by: str  # "registers", "shared memory", "warps" or "blocks"

    @property
    def share(self) -> float:
        """Resident warps over the most there can be."""
        return self.warps / self.most_warps


def limits_of(target: str) -> Architecture:
    """The limits of a target such as "sm_90a". Raises ValueError for one whose limits are not in the catalogue."""
    found = architecture(target)
    if found.compute_capability != capability(target) or not found.resident_warps:
        known = ", ".join(each.target for each in architectures() if each.resident_warps)
        raise ValueError(f"The limits of {target} are not known: occupancy is computed for {known}.")
    return found


def occupancy(target: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Blocks of `threads` threads with these registers each and shared memory per block, on one multiprocessor.

    The formula of NVIDIA's occupancy calculator (cuda_occupancy.h): registers are rounded up for each warp and come
    from its partition, shared memory is rounded up for each block. 0 blocks where not even one fits.
    """
    limits = limits_of(target)
    warps = -(-threads // WARP_THREADS)
    warp_registers = -(-registers * WARP_THREADS // REGISTER_UNIT) * REGISTER_UNIT
    warps_by_registers = REGISTERS // PARTITIONS // warp_registers * PARTITIONS if registers else limits.resident_warps
    block_bytes = -(-(shared_bytes + RESERVED_SHARED_BYTES) // SHARED_UNIT_BYTES) * SHARED_UNIT_BYTES
    by_limit = {
        "blocks": limits.resident_blocks,
        "warps": limits.resident_warps // warps,
        "registers": warps_by_registers // warps,
        "shared memory": limits.shared_bytes // block_bytes if shared_bytes <= limits.shared_block_bytes else 0,
    }
    limited_by = min(by_limit, key=lambda name: by_limit[name])
    blocks = by_limit[limited_by]
    return Occupancy(blocks, blocks * warps, limits.resident_warps, limited_by)
