"""All of the doctor's looks at this machine, in the order in which they are told."""

from __future__ import annotations

from pathlib import Path

from pyperf_suite.doctor.check import Group
from pyperf_suite.doctor.cpu import cpu_checks, read_cpu
from pyperf_suite.doctor.gpu import gpu_checks, read_gpus
from pyperf_suite.doctor.load import load_checks, read_load
from pyperf_suite.doctor.memory import memory_checks, read_memory
from pyperf_suite.doctor.places import place_checks, read_places
from pyperf_suite.doctor.software import read_software, software_checks
from pyperf_suite.hardware.kernel_files import KernelFiles


def examine(results: Path, files: KernelFiles | None = None, gpus_expected: int | None = None) -> tuple[Group, ...]:
    """Read and judge everything; the load is watched first, before any process of ours adds to it."""
    files = files or KernelFiles()
    load = read_load(files)
    swapped_pages = load.activity.swapped_pages if load.activity else 0
    gpus = read_gpus(files)
    return (
        Group("CPU", cpu_checks(read_cpu(files))),
        Group("Load", load_checks(load)),
        Group("Memory", memory_checks(read_memory(files, swapped_pages))),
        Group("GPU", gpu_checks(gpus, gpus_expected)),
        Group("Software", software_checks(read_software(files, len(gpus.gpus), driver_cuda=gpus.cuda))),
        Group("Disk", place_checks(read_places(results))),
    )
