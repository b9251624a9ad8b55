"""The rank processes below a launcher, as the system lists them."""

import time

import psutil


def ranks_of(parent: int) -> list[psutil.Process]:
    """Processes of ranks that run now, by rank."""
    by_rank = {}
    for process in psutil.Process(parent).children(recursive=True):
        try:
            environ, name = process.environ(), process.name()
        except psutil.Error:
            continue
        if name.startswith("rank "):  # a copy of the suite's own launcher
            by_rank[int(name.removeprefix("rank "))] = process
        if "RANK" in environ and "LOCAL_RANK" in environ:
            by_rank[int(environ["RANK"])] = process
    return [by_rank[rank] for rank in sorted(by_rank)]


def wait_for_ranks(parent: int, count: int) -> list[psutil.Process]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ranks = ranks_of(parent)
        if len(ranks) == count:
            return ranks
        time.sleep(0.005)
    raise AssertionError(f"{count} ranks did not start")
