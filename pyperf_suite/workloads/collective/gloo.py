"""Collectives between CPUs by gloo, through torch.distributed: what a laptop has, with the same cases as NCCL."""

from __future__ import annotations

import time

import numpy as np

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.ranks.environment import rank_environment
from pyperf_suite.workloads.collective.parameters import CollectiveParameters
from pyperf_suite.workloads.collective.torch_group import process_group
from pyperf_suite.workloads.collective.torch_transfers import TorchTransfers
from pyperf_suite.workloads.workload import Implementation, Place, RankTimes, Transfers

# With more a collective measures the scheduler, and starting them takes minutes.
RANKS_A_CORE = 8

DTYPES = ("float32", "float16", "bfloat16", "int32", "int8")


class Gloo(Implementation[CollectiveParameters]):
    """torch.distributed over gloo: TCP between processes, reductions on the CPU."""

    name = "gloo"
    device_kind = "cpu"

    def validate(self, parameters: CollectiveParameters) -> None:
        """Raise UserError for a log that is NCCL's, and for more ranks than this machine's cores can keep alive."""
        if parameters.logged:
            raise UserError("The log of algorithms is NCCL's, but gloo was asked for: leave logged out.")
        cores = cpu.detect().usable_cores
        if not rank_environment().launched and parameters.ranks > RANKS_A_CORE * cores:
            raise UserError(
                f"{parameters.ranks} ranks were asked for on {cores} cores, where they would spend their time waiting "
                f"for each other: ask for at most {RANKS_A_CORE * cores}, or launch them on several machines."
            )

    def prepare(self, parameters: CollectiveParameters, place: Place) -> Transfers:
        """Join gloo's process group, which the first case makes, and allocate this rank's buffers."""
        _require_supported(parameters)
        ranks_here = -(-place.ranks.count // max(1, place.ranks.environment.nodes))
        needed_bytes, free_bytes = ranks_here * parameters.footprint_bytes, memory.available_bytes()
        joined = process_group(place.ranks, "gloo", place.deadline_s)
        if needed_bytes > free_bytes:
            raise Unsupported(
                f"{ranks_here} ranks on this machine need {needed_bytes / 1e9:.1f} GB for their buffers, but "
                f"{free_bytes / 1e9:.1f} GB of memory are free: ask for a smaller size."
            )
        return GlooTransfers(parameters, place.ranks.rank, joined, "cpu", "gloo")


class GlooTransfers(TorchTransfers):
    """Timed by the host's clock, as gloo's calls return when they are done.

    The loop is as tight as Python allows: the call is bound before, stamps go to lists that exist. gloo's calls give
    the interpreter's lock back while they wait, so the watchdog costs at most the microseconds of its heartbeat, four
    times a second.
    """

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        iterations = iterations if self.takes_part else 0
        arrived_ns, done_ns = [0] * iterations, [0] * iterations
        call, stamp = self.call, time.monotonic_ns
        # Ranks learn of a block one after the other; what is timed begins for all at once.
        self.torch.distributed.barrier(self.process_group)
        for index in range(iterations):
            arrived_ns[index] = stamp()
            call()
            done_ns[index] = stamp()
        arrived, done = np.array(arrived_ns, dtype=np.int64), np.array(done_ns, dtype=np.int64)
        return RankTimes(np.asarray((done - arrived) * 1e-9, dtype=np.float64), arrived, done)


def _require_supported(parameters: CollectiveParameters) -> None:
    """Raise Unsupported for what gloo does not do."""
    if parameters.dtype not in DTYPES:
        raise Unsupported(f"gloo has no {parameters.dtype}: choose from {', '.join(DTYPES)}.")
    if parameters.reduction == "avg" and parameters.dtype.startswith("int"):
        raise Unsupported(f"gloo has no average of {parameters.dtype}: ask for its sum, or for another dtype.")
    if parameters.op == "send_receive" and parameters.ranks == 1:
        raise Unsupported("gloo does not let a rank send to itself: ask for at least 2 ranks.")
    if parameters.registered or not parameters.peer_to_peer:
        raise Unsupported("gloo moves data between CPUs over TCP: peer_to_peer and registered are NCCL's alone.")
