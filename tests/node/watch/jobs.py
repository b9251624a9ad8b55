"""Small trainings that each wait for something else: `python jobs.py NAME SECONDS [FIGURES]`."""

from __future__ import annotations

import os
import sys
import time

import psutil


def busy(seconds: float) -> None:
    """Use this much CPU time of this thread, whatever else the machine does."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def end_s(seconds: float) -> float:
    """When work of so long ends: at the earliest twice as long after the start as that took, which shows no pattern."""
    started_s = time.time() - psutil.Process().create_time()
    return time.monotonic() + max(seconds, 2 * started_s)


def until(seconds: float):
    end = end_s(seconds)
    while time.monotonic() < end:
        yield


class Items:
    """A data set whose items take so much CPU time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> float:
        busy(self.seconds)
        return float(index)


def loaders(seconds: float, item_s: float, size: float) -> None:
    """Two loaders need eight times `item_s` of CPU a batch each, the step multiplies matrices of that size."""
    import torch
    from torch.utils.data import DataLoader

    # Into one result: with results made and freed in each step this process was seen to grow by 25 MB/s (torch 2.13).
    a, b = torch.ones(int(size), int(size)), torch.empty(int(size), int(size))
    batches = iter(DataLoader(Items(item_s), batch_size=8, num_workers=2))
    for _ in until(seconds):
        next(batches)
        torch.mm(a, a, out=b)


def ranks(seconds: float, *work_s: float) -> None:
    """Two ranks by torchrun's variables, with so much work in each step."""
    import torch
    from torch import distributed

    store = os.environ.get("STORE")  # of ranks that no launcher started
    rank = int(os.environ["RANK"])
    place = {"init_method": store, "rank": rank, "world_size": 2} if store else {}
    distributed.init_process_group("gloo", **place)
    gradients = torch.ones(100_000)
    going = torch.ones(1)
    end = end_s(seconds)
    while going.item():
        busy(work_s[rank])
        distributed.all_reduce(gradients)
        going.fill_(time.monotonic() < end)
        distributed.broadcast(going, 0)
    distributed.destroy_process_group()


def spawned_rank(rank: int, *figures: float) -> None:
    os.environ["RANK"] = str(rank)
    ranks(*figures)


def spawned(*figures: float) -> None:
    """The same ranks by torch.multiprocessing.spawn."""
    import tempfile

    import torch

    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(WORLD_SIZE="2", STORE=f"file://{folder}/store")
        torch.multiprocessing.spawn(spawned_rank, figures, nprocs=2)


def leak(seconds: float) -> None:
    """4 MiB are kept in each step of about 50 ms."""
    kept = []
    for _ in until(seconds):
        kept.append(os.urandom(1 << 12) * 1024)
        time.sleep(0.03)
        busy(0.02)


def launches(seconds: float) -> None:
    """Operators too small for a second thread."""
    import torch

    x = torch.ones(64)
    for _ in until(seconds):
        for _ in range(1000):
            x = torch.relu(x + 1.0)


def sleeps(seconds: float) -> None:
    """A thread that launches and then waits for the device, nearly idle."""
    for _ in until(seconds):
        busy(0.002)
        time.sleep(0.02)


def spins(seconds: float) -> None:
    """A thread that is always busy, as one that launches or that waits in a loop for a device."""
    for _ in until(seconds):
        pass


def threads(seconds: float) -> None:
    """Products that use every core."""
    import torch

    a = torch.ones(1200, 1200)
    for _ in until(seconds):
        a @ a


if __name__ == "__main__":
    globals()[sys.argv[1]](*map(float, sys.argv[2:]))
