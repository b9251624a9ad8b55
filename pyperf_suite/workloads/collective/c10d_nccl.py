"""Collectives by NCCL through torch.distributed, as training scripts call them: beside our own calls, Python's tax."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported
from pyperf_suite.workloads.collective.parameters import CollectiveParameters
from pyperf_suite.workloads.collective.torch_group import process_group
from pyperf_suite.workloads.collective.torch_transfers import TorchTransfers
from pyperf_suite.workloads.workload import Implementation, Place, RankTimes, Transfers


class C10dNccl(Implementation[CollectiveParameters]):
    """torch.distributed over NCCL."""

    name = "c10d_nccl"
    device_kind = "cuda"

    def prepare(self, parameters: CollectiveParameters, place: Place) -> Transfers:
        """Join torch's process group, which the first case makes, and allocate this rank's buffers."""
        if parameters.registered:
            raise Unsupported("torch.distributed registers no buffers that are handed to it: leave registered out.")
        if parameters.dtype.startswith("float8") and parameters.operation.reduces:
            raise Unsupported("Not every torch.distributed reduces float8: ask for bfloat16, or for nccl.")
        gpu = f"cuda:{place.device.index}"
        joined = process_group(place.ranks, "nccl", place.deadline_s, device=gpu)
        torch: Any = importlib.import_module("torch")
        try:
            return C10dNcclTransfers(parameters, place.ranks.rank, joined, gpu, "c10d nccl")
        except torch.cuda.OutOfMemoryError as error:
            raise Unsupported(str(error).split(". ", 1)[0] + ": ask for a smaller size.") from None


class C10dNcclTransfers(TorchTransfers):
    """Timed by two events on torch's stream, around what the call queues, as our own calls of NCCL are.

    Waiting for the second gives the interpreter's lock back.
    """

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        iterations = iterations if self.takes_part else 0
        arrived_ns, done_ns, seconds = [0] * iterations, [0] * iterations, [0.0] * iterations
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        call, stamp = self.call, time.monotonic_ns
        # Ranks learn of a block one after the other; what is timed begins for all at once.
        self.torch.distributed.barrier(self.process_group)
        self.torch.cuda.synchronize()
        for index in range(iterations):
            arrived_ns[index] = stamp()
            begin.record()
            call()
            end.record()
            end.synchronize()
            done_ns[index] = stamp()
            seconds[index] = begin.elapsed_time(end) * 1e-3
        return RankTimes(np.array(seconds), np.array(arrived_ns, dtype=np.int64), np.array(done_ns, dtype=np.int64))
