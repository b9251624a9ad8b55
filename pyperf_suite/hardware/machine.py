"""Describe a machine in records: its identity, and the state it was measured in.

The identity holds everything that no user can change without changing the machine: results of one identity are
comparable, and are kept in a folder of its name. All else is state: a change of state between two runs is a marked
break in a series. Neither has a host name or a path.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite import __version__
from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.devices import Device, Gpu, Unavailable, driver, gpus, required
from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.hardware.nvml import Nvml, nvml
from pyperf_suite.hardware.software import installed_version
from pyperf_suite.hardware.topology import wiring

PACKAGE = Path(__file__).resolve().parent.parent
GIT_DEADLINE_S = 5.0
# A file name may hold 255 bytes; a run's folder and a suffix must fit into a path.
LONGEST_SLUG = 96
PACKAGES = ("numpy", "pytest-benchmark", "torch", "triton")
CPU_SETTINGS = "sys/devices/system/cpu"


@dataclass(frozen=True)
class Identity:
    """A machine as far as comparison goes: equal fields, comparable times."""

    kind: str  # "cpu" or "cuda"
    fields: Mapping[str, Any]  # plain JSON values
    slug: str  # of a-z, 0-9, '.' and '-': a folder's name, stable and readable


def identity(device: Device) -> Identity:
    """The identity of this machine for runs on that device. Raises Unavailable where the driver refuses."""
    if device.kind == "cpu":
        processor = cpu.detect()
        # Cores that this process may use, for the waves of a product run on them.
        fields = {"model": processor.model, "cores": processor.usable_cores}
        return Identity("cpu", fields, slug("cpu", processor.model, f"{processor.usable_cores}c"))
    return gpu_identity(gpus(), device.index, nvml())


def gpu_identity(present: list[Gpu], index: int, manager: Nvml | Unavailable) -> Identity:
    """Model, SM count, memory, MIG profile, count of GPUs and the link between them."""
    gpu = present[index]
    mig = re.search(r"\bMIG (\S+)", gpu.name)
    model = gpu.name[: mig.start()].strip() if mig else gpu.name
    # Rounded: drivers keep differing small parts of the memory for themselves.
    memory_gib = round(gpu.memory_bytes / 1024**3)
    fields = {
        "model": model,
        "multiprocessors": gpu.multiprocessors,
        "memory_gib": memory_gib,
        "mig_profile": mig[1] if mig else None,
        "count": len(present),
        "link": _link(gpu, len(present), manager),
    }
    parts = [model, f"{gpu.multiprocessors}sm", f"{memory_gib}gib", fields["mig_profile"]]
    if len(present) > 1:
        parts += [f"x{len(present)}", fields["link"]]
    return Identity("cuda", fields, slug("cuda", *(str(part) for part in parts if part)))


def _link(gpu: Gpu, count: int, manager: Nvml | Unavailable) -> str:
    """How this process's GPUs reach each other: `none` for one alone, `pcie` where no NVLink is active."""
    if count == 1:
        return "none"
    return "unknown" if isinstance(manager, Unavailable) else manager.nvlink(gpu.uuid) or "pcie"


def slug(*parts: str) -> str:
    """Join parts into one name that every file system takes, without the words that tell no two models apart.

    >>> slug("cpu", "Intel(R) Xeon(R) Processor @ 2.60GHz", "2c")
    'cpu-intel-xeon-processor-2.60ghz-2c'
    """
    words = []
    for part in parts:
        plain = re.sub(r"\((r|tm|c)\)|\bcpu\b", " ", part.lower()) if part is not parts[0] else part.lower()
        words.append(re.sub(r"[^a-z0-9.]+", "-", plain).strip("-."))
    *head, tail = [word for word in words if word]
    # The tail (cores, count) tells machines apart: what must go goes from before it.
    return f"{'-'.join(head)[: LONGEST_SLUG - len(tail) - 1].rstrip('-.')}-{tail}"


def state(device: Device) -> dict[str, Any]:
    """The machine's state now, for a run on that device."""
    condition: dict[str, Any] = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {"pyperf_suite": __version__, **{name: installed_version(name) for name in PACKAGES}},
        "compiler": compiler_of_extension(),
        "source": source(),
        **kernel_state(KernelFiles(), frozenset(cpu.detect().isa_flags)),
    }
    if device.kind == "cuda":
        condition["gpu"] = gpu_state(device.index)
    return condition


def kernel_state(files: KernelFiles, flags: frozenset[str]) -> dict[str, Any]:
    """Return the kernel's report of itself, of power and scheduling, and of limits around this process."""
    pages = re.search(r"\[(\w+)\]", files.text("sys/kernel/mm/transparent_hugepage/enabled") or "")
    return {
        "kernel": f"{platform.system()} {platform.release()}",
        "governors": sorted(
            {files.text(path) or "" for path in files.matching(f"{CPU_SETTINGS}/cpu[0-9]*/cpufreq/scaling_governor")}
            - {""}
        ),
        "turbo": _turbo(files),
        "smt": files.text(f"{CPU_SETTINGS}/smt/control"),
        # The bracketed word of `always [madvise] never`.
        "transparent_hugepages": pages[1] if pages else None,
        "cpu_quota_cores": memory.cpu_quota_cores(files),
        "hypervisor": cpu.hypervisor(files, flags),
        "container": cpu.container(files),
    }


def gpu_state(index: int) -> dict[str, Any]:
    """UUID, driver, CUDA, settings and wiring of a GPU; `unavailable` says why something is missing."""
    condition: dict[str, Any] = {}
    try:
        found = required(driver())
        uuid = found.gpu(index).uuid
        condition |= {"uuid": uuid, "cuda": found.version()}
        manager = required(nvml())
        condition |= {"driver": manager.driver_version(), **manager.settings(uuid)}
        condition |= {"links": links} if (links := wiring(gpus(), manager)) else {}
    except Unavailable as reason:
        condition["unavailable"] = str(reason)
    return condition


def compiler_of_extension() -> str | None:
    """The compiler that built the C++ extension, by the note compilers leave in it; None if not built."""
    extension = importlib.util.find_spec("pyperf_suite._native")
    if extension is None or extension.origin is None:
        return None
    try:
        note = re.search(
            rb"GCC: \([^)\0]{1,80}\) [0-9.]{1,16}|clang version [0-9.]{1,16}", Path(extension.origin).read_bytes()
        )
    except OSError:
        return None
    return note[0].decode("ascii", "replace") if note else None


def _turbo(files: KernelFiles) -> bool | None:
    """True if the CPU may exceed its base clock; None where the kernel does not say."""
    no_turbo = files.integer(f"{CPU_SETTINGS}/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    boost = files.integer(f"{CPU_SETTINGS}/cpufreq/boost")
    return None if boost is None else boost == 1


@functools.cache
def source() -> dict[str, Any]:
    """`{"commit": 40 hexadecimal digits, "dirty": whether tracked files differ from it}`, or {} if there is none."""
    return source_of(PACKAGE)


def source_of(package: Path, file: str = "__init__.py") -> dict[str, Any]:
    """The same for the package in that folder, or for whatever has that file there."""
    # A folder in a checkout that does not track the package, as a virtual environment in somebody's project, is not it.
    if _git(package, "ls-files", "--error-unmatch", file) is None:
        return {}
    commit = _git(package, "rev-parse", "--verify", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    return {} if commit is None or changed is None else {"commit": commit, "dirty": bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's answer; None where it fails, hangs, or is not there."""
    with contextlib.suppress(UserError):
        done = git(folder, *arguments)
        return None if done.returncode else done.stdout.decode("utf-8", "replace").strip()
    return None


def git(folder: Path, *arguments: str, deadline_s: float = GIT_DEADLINE_S) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. Raises UserError where there is no git or it does not come back."""
    # GIT_DIR and the like, as a hook sets them, would answer for another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=deadline_s, env=environment
        )
    except FileNotFoundError:
        raise UserError(
            "Comparing revisions takes git, which is not installed: install it, or name two interpreters."
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"git {' '.join(arguments)[:80]} did not work in {folder}: {error}") from None
