"""The PCIe links of GPUs, network cards and NVMe disks: what each runs at, and what card and slot are made for.

Linux's /sys tells it for every device, with any maker's driver or none; virtual devices have no link.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from pyperf_suite.hardware.kernel_files import KernelFiles, parse_integer
from pyperf_suite.hardware.links import pcie_lanes_gb_per_s

FOLDER = "sys/bus/pci/devices"
# PCI-SIG, PCI Express Base Specification: gigatransfers a second and lane, by generation.
GENERATION = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
# PCI-SIG, PCI Code and ID Assignment Specification: base class and subclass.
KINDS = {
    "0300": "GPU",
    "0302": "GPU",
    "0380": "GPU",
    "1200": "GPU",
    "0108": "NVMe",
    "0200": "network",
    "0207": "network",
}
# Where a device's driver leaves the names that people know it by.
NAMES = ("infiniband", "net", "nvme")


@dataclass(frozen=True, order=True)
class PcieLink:
    """A PCIe generation and a number of lanes; of two, the later generation is the greater."""

    generation: int
    width: int

    @classmethod
    def parse(cls, text: str) -> PcieLink:
        """The inverse of `str`; raises ValueError for anything else."""
        match = re.fullmatch(r"gen (\d{1,2}) x(\d{1,2})", text)
        if match is None:
            raise ValueError(f"{text!r} is no PCIe link")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"gen {self.generation} x{self.width}"

    @property
    def gb_per_s(self) -> float | None:
        """GB/s (1e9) in one direction at best; None for a generation that is not known."""
        return pcie_lanes_gb_per_s(self.generation, self.width)

    def common(self, other: PcieLink | None) -> PcieLink:
        """What the two can agree on: the older generation, the fewer lanes."""
        if other is None:
            return self
        return PcieLink(min(self.generation, other.generation), min(self.width, other.width))


@dataclass(frozen=True)
class PcieDevice:
    """A device and its link `now`; `card` and `slot` are what it and the port before it are made for, if told."""

    name: str
    kind: str
    now: PcieLink
    card: PcieLink | None
    slot: PcieLink | None
    numa_node: int | None  # None where the machine has one node or does not tell

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, links as they are written."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) if isinstance(value, PcieLink) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PcieDevice:
        """The inverse of `to_json`."""
        links = {name: data[name] and PcieLink.parse(data[name]) for name in ("now", "card", "slot")}
        return cls(**data | links)


def devices(files: KernelFiles) -> list[PcieDevice]:
    """The GPUs, network cards and NVMe disks that have a link, by their place on the bus."""
    found = [device(files, folder.rpartition("/")[2]) for folder in files.matching(f"{FOLDER}/*")]
    return [each for each in found if each is not None]


def device(files: KernelFiles, address: str) -> PcieDevice | None:
    """The device at that address, as in 0000:17:00.0; None where it is of another kind or has no link."""
    folder = f"{FOLDER}/{address}"
    kind = KINDS.get((files.text(f"{folder}/class") or "").removeprefix("0x")[:4])
    now = _link(files, folder, "current")
    if kind is None or now is None:
        return None
    node = files.integer(f"{folder}/numa_node")
    # The folder is a link into the tree of devices, where the port stands above.
    card, slot = _link(files, folder, "max"), _link(files, f"{folder}/..", "max")
    name = next((path.rpartition("/")[2] for each in NAMES for path in files.matching(f"{folder}/{each}/*")), address)
    return PcieDevice(name, kind, now, card, slot, None if node is None or node < 0 else node)


def _link(files: KernelFiles, folder: str, which: str) -> PcieLink | None:
    """The link that `current_link_*` or `max_link_*` tell; None where they do not, as with no lanes or 255 of them."""
    speed = re.match(r"(\d+(?:\.\d+)?) GT/s", files.text(f"{folder}/{which}_link_speed") or "")
    generation = GENERATION.get(speed[1].removesuffix(".0")) if speed else None
    width = parse_integer(files.text(f"{folder}/{which}_link_width"))
    return PcieLink(generation, width) if generation and width and 1 <= width <= 32 else None
