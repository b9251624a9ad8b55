"""How much the suite's way to time gloo costs beside the best plain loop over torch.distributed that one can write.

python -m torch.distributed.run --standalone --nproc-per-node=2 tools/gloo_against_plain_loop.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch.distributed as distributed

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.estimates import median_interval
from pyperf_suite.ranks.group import Group
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.collective.collective import Collective, TorchTransfers
from pyperf_suite.workloads.workload import Place

SIZES_BYTES = (8, 1 << 12, 1 << 16, 1 << 20, 1 << 24)
# Blocks are long beside their start and short beside what else the machine does; many pairs make up for the noise.
BLOCK_S = 0.02
PAIRS = 101
DEADLINE_S = 60.0


def main() -> None:
    """Let both loops take turns over the same tensors, first the one and then the other first; rank 0 prints."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    with Group() as group:
        if group.rank == 0:
            print(
                f"{group.count} ranks, {pairs} pairs of blocks of {BLOCK_S:g} s; medians and 95 % interval over pairs"
            )
            print("operation      size B   plain us   suite us   suite/plain            suite's loop adds us a call")
        for op in ("all_reduce", "all_gather", "broadcast"):
            for size_bytes in SIZES_BYTES:
                _compare(group, op, size_bytes, pairs)


def _compare(group: Group, op: str, size_bytes: int, pairs: int) -> None:
    parameters = CollectiveParameters(op, max(size_bytes, 4 * group.count), group.count, in_place=op != "all_gather")
    transfers = (
        Collective()
        .implementation("gloo")
        .prepare(parameters, Place(Device("cpu"), group=group, deadline_s=DEADLINE_S))
    )
    assert isinstance(transfers, TorchTransfers)
    plain = _plain_call(op, transfers)
    iterations = max(2, round(BLOCK_S / _seconds_of_plain(plain, 10)))
    iterations = group.from_first("choose iterations", iterations, DEADLINE_S)
    rows = []
    for pair in range(pairs):
        # Of two in a row the second may find the machine warmer: each is the second as often.
        if pair % 2:
            suite, plain_s = _seconds_of_suite(transfers, iterations), _seconds_of_plain(plain, iterations)
        else:
            plain_s, suite = _seconds_of_plain(plain, iterations), _seconds_of_suite(transfers, iterations)
        rows.append([plain_s, *suite])
    transfers.close()
    # Averaged over ranks, as records are.
    reported = np.mean(group.gather("collect", rows, DEADLINE_S), axis=0)
    if group.rank == 0:
        plain_us, suite_us, adds_us = np.median(reported, axis=0) * 1e6
        ratios = reported[:, 1] / reported[:, 0]
        interval = median_interval(ratios, 0.95)
        ratio = f"{np.median(ratios):.3f} ({interval.low:.3f}-{interval.high:.3f})"
        print(
            f"{op:<12} {parameters.message_bytes:>8} {plain_us:>10.1f} {suite_us:>10.1f}   {ratio:<20} {adds_us:>6.2f}",
            flush=True,
        )


def _plain_call(op: str, transfers: TorchTransfers) -> Callable[[], object]:
    send, receive = (memory and memory.tensor for memory in (transfers.send, transfers.receive))
    if op == "all_reduce":
        return lambda: distributed.all_reduce(send)
    if op == "broadcast":
        return lambda: distributed.broadcast(send, 0)
    all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    return lambda: all_gather(receive, send)


def _seconds_of_plain(call: Callable[[], object], iterations: int) -> float:
    distributed.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        call()
    return (time.perf_counter() - begin) / iterations


def _seconds_of_suite(transfers: TorchTransfers, iterations: int) -> tuple[float, float]:
    """(seconds of an iteration as records have them, what the loop itself adds to each)."""
    times = transfers.time(iterations, DEADLINE_S)
    loop_s = float(times.done_ns[-1] - times.arrived_ns[0]) * 1e-9 / iterations
    iteration_s = float(times.seconds.mean())
    return iteration_s, loop_s - iteration_s


if __name__ == "__main__":
    main()
