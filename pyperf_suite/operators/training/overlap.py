"""A matrix product beside an all_reduce: each alone, in turn, both at once, and each while the other goes on.

On a GPU the two are on streams of their own; on a CPU gloo's threads exchange while the main thread computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.collective.gloo import RANKS_A_CORE
from pyperf_suite.operators.collective.torch_group import process_group
from pyperf_suite.operators.ranked import Ranked, RankedImplementation, Transfers
from pyperf_suite.operators.training.side_by_side import OnCpu, OnGpu
from pyperf_suite.ranks.environment import rank_environment
from pyperf_suite.ranks.group import Group

# What is timed. "product_beside" times products while all_reduces go on throughout, "all_reduce_beside" the other way.
RUNS = ("product", "all_reduce", "in_turn", "together", "product_beside", "all_reduce_beside")
DTYPES = {"float32": 4, "bfloat16": 2}
MOST_SIZE, MOST_BYTES, MOST_RANKS = 1 << 17, 1 << 40, 1 << 15


@dataclass(frozen=True)
class OverlapParameters:
    """A product of `size`³ in `dtype` on every rank, and an all_reduce of `bytes` of that type among `ranks`."""

    size: int
    bytes: int
    ranks: int = 2
    run: str = "together"
    dtype: str = "float32"
    peer_to_peer: bool = True

    @property
    def count(self) -> int:
        """Elements of the message."""
        return self.bytes // DTYPES[self.dtype]

    @property
    def has_product(self) -> bool:
        """Whether a product runs."""
        return self.run != "all_reduce"

    @property
    def has_all_reduce(self) -> bool:
        """Whether anything is sent."""
        return self.run != "product"

    def validate(self) -> None:
        """Raise UserError for what cannot be, whoever implements it."""
        for name, allowed in (("run", RUNS), ("dtype", tuple(DTYPES))):
            if getattr(self, name) not in allowed:
                raise UserError(f"Unknown {name} {getattr(self, name)!r}: choose from {', '.join(allowed)}.")
        least = DTYPES[self.dtype]
        for name, low, high in (("size", 1, MOST_SIZE), ("bytes", least, MOST_BYTES), ("ranks", 1, MOST_RANKS)):
            if not low <= getattr(self, name) <= high:
                raise UserError(f"{name}={getattr(self, name)} was asked for: ask for {low} to {high}.")


class Overlap(Ranked[OverlapParameters]):
    """Products and all_reduces of all ranks; the product is compared with float64, the mean of the ranks exactly."""

    name = "overlap"
    parameters_type = OverlapParameters

    def __init__(self) -> None:
        self.implementations: Mapping[str, RankedImplementation[OverlapParameters]] = {
            each.name: each for each in (BesideGloo(), BesideNccl())
        }

    def validate(self, parameters: OverlapParameters) -> None:
        """Raise UserError for sizes, ranks or a run that cannot be."""
        parameters.validate()

    def ranks(self, parameters: OverlapParameters) -> int:
        """How many processes compute and exchange."""
        return parameters.ranks

    def environment(self, parameters: OverlapParameters) -> Mapping[str, str]:
        """NCCL reads once, when it is loaded, whether to use direct copies between GPUs."""
        return {} if parameters.peer_to_peer else {"NCCL_P2P_DISABLE": "1"}

    def bytes_moved(self, parameters: OverlapParameters) -> int:
        """Bytes of the message, where there is one."""
        return parameters.bytes if parameters.has_all_reduce else 0


class BesideGloo(RankedImplementation[OverlapParameters]):
    """On CPU cores: products on as many threads as OMP_NUM_THREADS says, or one, beside gloo's own threads."""

    name = "gloo"
    device_kind = "cpu"

    def validate(self, parameters: OverlapParameters) -> None:
        """Raise UserError for what is NCCL's, and for more ranks than cores can keep alive."""
        if not parameters.peer_to_peer:
            raise UserError("gloo moves data between CPUs over TCP: peer_to_peer is NCCL's alone.")
        most = RANKS_A_CORE * cpu.detect().usable_cores
        if not rank_environment().launched and parameters.ranks > most:
            raise UserError(f"{parameters.ranks} ranks were asked for: this machine's cores keep {most} alive at most.")

    def prepare(self, parameters: OverlapParameters, group: Group, device: Device, deadline_s: float) -> Transfers:
        """Join gloo's process group and make this rank's operands."""
        return OnCpu(parameters, group.rank, process_group(group, "gloo", deadline_s), "cpu")


class BesideNccl(RankedImplementation[OverlapParameters]):
    """One GPU a rank: cuBLAS on one stream, NCCL on another."""

    name = "nccl"
    device_kind = "cuda"

    def prepare(self, parameters: OverlapParameters, group: Group, device: Device, deadline_s: float) -> Transfers:
        """Join NCCL's process group and make this rank's operands on its GPU."""
        place = f"cuda:{device.index}"
        return OnGpu(parameters, group.rank, process_group(group, "nccl", deadline_s, device=place), place)
