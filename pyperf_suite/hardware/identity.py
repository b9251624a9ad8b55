"""What makes two machines comparable: results lie in a folder of this name, and form series under it.

Identity holds what the user cannot change without changing the machine; all else is state (`state.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.cuda_driver import Gpu, gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.nvml import Nvml, nvml
from pyperf_suite.hardware.shared_library import Unavailable

# A file name may hold 255 bytes; a run's folder and a suffix must fit a path beside it.
LONGEST_SLUG = 96


@dataclass(frozen=True)
class Identity:
    """A machine as far as comparison goes: equal fields, comparable times."""

    kind: str  # "cpu" or "cuda"
    fields: Mapping[str, Any]  # plain JSON values
    slug: str  # of a-z, 0-9, '.' and '-': a folder's name, stable and readable


def identity(device: Device) -> Identity:
    """The identity of this machine for runs on that device.

    Raises:
        Unavailable: the CUDA driver refuses to describe its devices.
    """
    if device.kind == "cpu":
        return cpu_identity(cpu.detect())
    return gpu_identity(gpus(), device.index, nvml())


def cpu_identity(found: cpu.Cpu) -> Identity:
    """Model and cores: those cores that this process may use, for the waves of a product run on them."""
    fields = {"model": found.model, "cores": found.usable_cores}
    return Identity("cpu", fields, slug("cpu", found.model, f"{found.usable_cores}c"))


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
