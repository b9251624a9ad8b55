"""A matrix product beside an all_reduce: each alone, in turn, both at once, and each while the other goes on.

On a GPU the two are on streams of their own; on a CPU gloo's threads exchange while the main thread computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyperf_suite.workloads.collective import direct_copies
from pyperf_suite.workloads.collective.torch_group import process_group
from pyperf_suite.workloads.training import on_ranks
from pyperf_suite.workloads.training.on_ranks import DTYPES, MOST_RANKS
from pyperf_suite.workloads.training.side_by_side import OnCpu, OnGpu
from pyperf_suite.workloads.workload import Implementation, Place, Transfers, Work, Workload

# What is timed. "product_beside" times products while all_reduces go on throughout, "all_reduce_beside" the other way.
RUNS = ("product", "all_reduce", "in_turn", "together", "product_beside", "all_reduce_beside")
MOST_SIZE, MOST_BYTES = 1 << 17, 1 << 40
# Of the float64 copies by which products and means are compared.
WIDE_BYTES = 8


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
    def footprint_bytes(self) -> int:
        """Of one rank: operands and product, the message, and of each what it is compared with."""
        return (3 * DTYPES[self.dtype] + WIDE_BYTES) * self.size**2 + self.bytes + 2 * WIDE_BYTES * self.count

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
        on_ranks.require_words(self, {"run": RUNS, "dtype": tuple(DTYPES)})
        least = DTYPES[self.dtype]
        on_ranks.require_within(self, {"size": (1, MOST_SIZE), "bytes": (least, MOST_BYTES), "ranks": (1, MOST_RANKS)})


class Overlap(Workload[OverlapParameters]):
    """Products and all_reduces of all ranks; the product is compared with float64, the mean of the ranks exactly."""

    name = "overlap"
    parameters_type = OverlapParameters

    def __init__(self) -> None:
        self.implementations: Mapping[str, Implementation[OverlapParameters]] = {
            each.name: each for each in (BesideGloo(), BesideNccl())
        }

    def validate(self, parameters: OverlapParameters) -> None:
        """Raise UserError for sizes, ranks or a run that cannot be."""
        parameters.validate()

    def ranks(self, parameters: OverlapParameters) -> int:
        """How many processes compute and exchange."""
        return parameters.ranks

    def environment(self, parameters: OverlapParameters) -> dict[str, str]:
        """What NCCL must be told before it is loaded."""
        return direct_copies.environment(parameters.peer_to_peer)

    def work(self, parameters: OverlapParameters) -> Work:
        """Bytes of the message, where there is one."""
        return Work(bytes=parameters.bytes if parameters.has_all_reduce else 0)

    def footprint_bytes(self, parameters: OverlapParameters) -> int:
        """Of one rank."""
        return parameters.footprint_bytes


class BesideGloo(Implementation[OverlapParameters]):
    """On CPU cores: products on as many threads as OMP_NUM_THREADS says, or one, beside gloo's own threads."""

    name = "gloo"
    device_kind = "cpu"

    def validate(self, parameters: OverlapParameters) -> None:
        """Raise UserError for what is NCCL's, and for more ranks than cores can keep alive."""
        on_ranks.require_for_gloo(parameters.ranks, parameters.peer_to_peer)

    def prepare(self, parameters: OverlapParameters, place: Place) -> Transfers:
        """Join gloo's process group and make this rank's operands. Raises Unsupported for want of memory."""
        joined = process_group(place.ranks, "gloo", place.deadline_s)
        on_ranks.require_memory(place.ranks, parameters.footprint_bytes)
        return OnCpu(parameters, place.ranks.rank, joined, "cpu")


class BesideNccl(Implementation[OverlapParameters]):
    """One GPU a rank: cuBLAS on one stream, NCCL on another."""

    name = "nccl"
    device_kind = "cuda"

    def prepare(self, parameters: OverlapParameters, place: Place) -> Transfers:
        """Join NCCL's process group and make this rank's operands on its GPU.

        Raises Unsupported for ranks that go without direct copies and were started with them.
        """
        direct_copies.require_started_so(parameters.peer_to_peer)
        gpu = f"cuda:{place.device.index}"
        return OnGpu(
            parameters, place.ranks.rank, process_group(place.ranks, "nccl", place.deadline_s, device=gpu), gpu
        )
