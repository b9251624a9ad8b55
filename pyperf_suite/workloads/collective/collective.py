"""Collectives as a workload: what a group of processes exchanges, by NCCL or by gloo."""

from __future__ import annotations

from pyperf_suite.hardware import nccl_log
from pyperf_suite.workloads.collective.nccl import Nccl, NcclGraph
from pyperf_suite.workloads.collective.parameters import CollectiveParameters
from pyperf_suite.workloads.collective.torch_distributed import C10dNccl, Gloo
from pyperf_suite.workloads.on_ranks import OnRanks
from pyperf_suite.workloads.workload import Work, by_name


class Collective(OnRanks[CollectiveParameters]):
    """One collective operation among ranks; its output is compared with what it must be on every rank, exactly."""

    name = "collective"
    parameters_type = CollectiveParameters
    implementations = by_name(Gloo(), Nccl(), NcclGraph(), C10dNccl())

    def environment(self, parameters: CollectiveParameters) -> dict[str, str]:
        return super().environment(parameters) | (nccl_log.environment() if parameters.logged else {})

    def work(self, parameters: CollectiveParameters) -> Work:
        """The size of nccl-tests, in whole elements."""
        return Work(bytes=parameters.message_bytes)
