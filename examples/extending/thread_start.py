"""Starting threads, and waiting for them."""

from dataclasses import dataclass
from threading import Thread
from typing import Annotated

from pyperf_suite.errors import Within
from pyperf_suite.workloads.workload import ByFunction, Checked, Kernel, Prepared, Workload, by_name


@dataclass(frozen=True)
class ThreadStartParameters:
    """How many threads start in a row."""

    threads: Annotated[int, Within(1, 1024)] = 1


class Threads(Prepared):
    """Each adds its number to a list, which is what is checked."""

    kernel = Kernel("threading.Thread", "start and join")

    def __init__(self, parameters, place):
        self.numbers, self.ran = range(parameters.threads), []

    def launch(self, index):
        threads = [Thread(target=self.ran.append, args=(number,)) for number in self.numbers]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def poison(self, index=None):
        self.ran.clear()

    def verify_last(self, index):
        missing = set(self.numbers) - set(self.ran)
        return Checked(len(missing), len(self.numbers), f"threads {sorted(missing)} did not run")


class ThreadStart(Workload):
    """One implementation: Python's own threads."""

    name, parameters_type = "thread_start", ThreadStartParameters
    implementations = by_name(ByFunction("threading", Threads))


WORKLOAD = ThreadStart()
