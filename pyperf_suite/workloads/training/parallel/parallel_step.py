"""A whole training iteration of a GPT cut over data-, tensor- and pipeline-parallel ranks, by torch's own engine.

Forward and backward of all micro-batches, exchange of gradients, AdamW's update. Every case has ranks of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from pyperf_suite.errors import Unsupported
from pyperf_suite.ranks.group import Group
from pyperf_suite.workloads.collective.agreement import agree, connect_together
from pyperf_suite.workloads.collective.torch_group import process_group
from pyperf_suite.workloads.training.on_ranks import DTYPES, require_for_gloo
from pyperf_suite.workloads.training.parallel.engine import GpuParallelSteps, ParallelSteps, require_possible
from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.workloads.workload import Implementation, Place, Transfers, Work, Workload


class ParallelStep(Workload[ParallelStepParameters]):
    """Iterations of all ranks together; each compares its gradients with those of a single process."""

    name = "parallel_step"
    parameters_type = ParallelStepParameters
    # What one layout leaves allocated, or breaks, is not to be seen in the next.
    fresh_ranks = True

    def __init__(self) -> None:
        self.implementations: Mapping[str, Implementation[ParallelStepParameters]] = {
            each.name: each for each in (OverGloo(), OverNccl())
        }

    def validate(self, parameters: ParallelStepParameters) -> None:
        """Raise UserError for a transformer or a way to cut it that cannot be."""
        parameters.validate()

    def ranks(self, parameters: ParallelStepParameters) -> int:
        """Of all groups together."""
        return parameters.ranks

    def work(self, parameters: ParallelStepParameters) -> Work:
        """Bytes of the whole model's gradients, which data-parallel ranks exchange."""
        return Work(bytes=DTYPES[parameters.dtype] * parameters.dimensions.parameters if parameters.data > 1 else 0)


class OverGloo(Implementation[ParallelStepParameters]):
    """Ranks on CPU cores that exchange over gloo; each computes on as many threads as OMP_NUM_THREADS says, or one."""

    name = "gloo"
    device_kind = "cpu"

    def validate(self, parameters: ParallelStepParameters) -> None:
        """Raise UserError for more ranks than this machine's cores can keep alive."""
        require_for_gloo(parameters.ranks, peer_to_peer=True)

    def prepare(self, parameters: ParallelStepParameters, place: Place) -> Transfers:
        """Join gloo's process group and build this rank's part. Raises Unsupported for what torch cannot combine."""
        return _prepared(ParallelSteps, "gloo", parameters, place.ranks, "cpu", place.deadline_s)


class OverNccl(Implementation[ParallelStepParameters]):
    """One GPU a rank, exchanging over NCCL."""

    name = "nccl"
    device_kind = "cuda"

    def prepare(self, parameters: ParallelStepParameters, place: Place) -> Transfers:
        """Join NCCL's process group and build this rank's part on its GPU. Raises Unsupported as gloo's does."""
        return _prepared(
            GpuParallelSteps, "nccl", parameters, place.ranks, f"cuda:{place.device.index}", place.deadline_s
        )


def _prepared(
    steps: type[ParallelSteps],
    backend: str,
    parameters: ParallelStepParameters,
    group: Group,
    place: str,
    deadline_s: float,
) -> Transfers:
    """All ranks join, agree that torch can do it, and build their parts together."""
    if importlib.util.find_spec("torch") is None:
        raise Unsupported("torch is not installed.")
    process_group(group, backend, deadline_s, device=place)
    agree(group, "look for what torch can combine", lambda: require_possible(parameters, place), deadline_s)
    return connect_together(group, "build parts", lambda: steps(parameters, group.rank, place), deadline_s)
