"""What a transfer is asked for by, whichever way it takes."""

from __future__ import annotations

from dataclasses import dataclass

from pyperf_suite.errors import UserError
from pyperf_suite.workloads.training.host_memory import ANY_NODE


@dataclass(frozen=True)
class TransferParameters:
    """So many bytes at once.

    `workers` are CPU cores that copy. `pinned` host memory is what a GPU reads without a detour. `numa_node` is where
    the host's source lies (a GPU's target too), ANY_NODE for wherever the kernel puts it. `folder` is the one on whose
    disk a file is read; empty for the one that results go to.
    """

    size_bytes: int
    workers: int = 1
    pinned: bool = False
    numa_node: int = ANY_NODE
    folder: str = ""


def refuse_pinned(name: str, parameters: TransferParameters) -> None:
    """Raise UserError where pinned memory is asked of a copy that no GPU takes part in."""
    if parameters.pinned:
        raise UserError(f"Pinned memory is for copies to and from a GPU, which {name} is not: leave pinned out.")
