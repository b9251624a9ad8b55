"""Collectives: one signature, NCCL driven by our own C++ and torch.distributed's ways beside it."""

from __future__ import annotations

from pyperf_suite.workloads.collective.collective import Collective
from pyperf_suite.workloads.collective.parameters import CollectiveParameters

__all__ = ["Collective", "CollectiveParameters"]
