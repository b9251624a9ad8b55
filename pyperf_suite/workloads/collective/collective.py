"""Collectives as an operator: what a group of processes exchanges, by NCCL or by gloo."""

from __future__ import annotations

from collections.abc import Mapping

from pyperf_suite.hardware import nccl_log
from pyperf_suite.workloads.collective import direct_copies
from pyperf_suite.workloads.collective.c10d_nccl import C10dNccl
from pyperf_suite.workloads.collective.gloo import Gloo
from pyperf_suite.workloads.collective.nccl import Nccl, NcclGraph
from pyperf_suite.workloads.collective.parameters import CollectiveParameters
from pyperf_suite.workloads.workload import Implementation, Work, Workload


class Collective(Workload[CollectiveParameters]):
    """One collective operation among ranks; its output is compared with what it must be on every rank, exactly."""

    name = "collective"
    parameters_type = CollectiveParameters
    implementations: Mapping[str, Implementation[CollectiveParameters]] = {
        implementation.name: implementation for implementation in (Gloo(), Nccl(), NcclGraph(), C10dNccl())
    }

    def validate(self, parameters: CollectiveParameters) -> None:
        """Raise UserError for an operation, size, dtype, root or pattern that cannot be."""
        parameters.validate()

    def ranks(self, parameters: CollectiveParameters) -> int:
        """How many processes exchange."""
        return parameters.ranks

    def environment(self, parameters: CollectiveParameters) -> dict[str, str]:
        """NCCL reads once, when it is loaded, whether to use direct copies between GPUs, and what to log and where."""
        direct = direct_copies.environment(parameters.peer_to_peer)
        return {**direct, **(nccl_log.environment() if parameters.logged else {})}

    def work(self, parameters: CollectiveParameters) -> Work:
        """The size of nccl-tests, in whole elements."""
        return Work(bytes=parameters.message_bytes)

    def footprint_bytes(self, parameters: CollectiveParameters) -> int:
        """Bytes of one rank's buffers."""
        return parameters.footprint_bytes
