"""Links between devices: what each kind carries at most, and the PCIe links that this machine's devices run at.

All peaks are one direction, GB/s (1e9); data sheets like to quote both directions together. Linux's /sys describes the
PCIe link of every device, with any maker's driver or none; virtual devices have no link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pyperf_suite.hardware.catalogue import architecture, capability_of
from pyperf_suite.hardware.kernel_files import KernelFiles, parse_integer


@dataclass(frozen=True)
class LinkPeak:
    """A kind of link's peak by its data sheet, in one direction, and one NVLink's share where a GPU bonds several."""

    name: str
    gb_per_s: float
    per_link_gb_per_s: float | None = None


# NVIDIA's whitepapers of Volta, Ampere, Hopper and Blackwell, halved to one direction.
NVLINK = {
    2: LinkPeak("NVLink 2", 150.0, 25.0),
    3: LinkPeak("NVLink 3", 300.0, 25.0),
    4: LinkPeak("NVLink 4", 450.0, 25.0),
    5: LinkPeak("NVLink 5", 900.0, 50.0),
}
# PCI-SIG, PCI Express Base Specification 3.0 to 6.0: sixteen lanes of 8 to 64 GT/s in 128b/130b; generation 6 has FLITs
# of 256 bytes instead, of which 242 are payload.
PCIE = {number: LinkPeak(f"PCIe {number} x16", rate) for number, rate in {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}.items()}
# One lane of the two generations before, in 8b/10b; a card that idles may fall back to them.
_OLD_LANE_GB_PER_S = {1: 0.25, 2: 0.5}
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
NAMES = ("infiniband", "net", "nvme")  # places where a device's driver leaves the names that people know it by
# The bridges of RTX 3090, A40 and A6000 run slower than those between A100.
NVLINK_BRIDGE = LinkPeak("NVLink 3 bridge", 56.25, 14.0625)
_BY_NAME = {peak.name: peak for peak in (*NVLINK.values(), NVLINK_BRIDGE, *PCIE.values())}


def nvlink_of(compute_capability: tuple[int, int]) -> LinkPeak | None:
    """The NVLink of GPUs of that compute capability, (9, 0) for Hopper; None if they are older than NVLink 2."""
    nvlink = architecture(compute_capability).nvlink
    return _BY_NAME[nvlink] if nvlink else None


def pcie_of(compute_capability: tuple[int, int] | None) -> LinkPeak:
    """The PCIe that GPUs of that compute capability are made for, 4 where CUDA does not run; slots may be older."""
    return PCIE[4] if compute_capability is None else _BY_NAME[architecture(compute_capability).pcie]


def pcie_lanes_gb_per_s(generation: int, lanes: int) -> float | None:
    """Return GB/s (1e9) in one direction of `lanes` lanes of a PCIe generation; None for an unknown generation."""
    if generation in PCIE:
        return PCIE[generation].gb_per_s * lanes / 16
    return _OLD_LANE_GB_PER_S[generation] * lanes if generation in _OLD_LANE_GB_PER_S else None


def peak_of(identity: Mapping[str, Any]) -> LinkPeak | None:
    """The peak of what joins each GPU of a machine to the others; None for CPUs, one GPU, and unknown links."""
    capability = capability_of(str(identity.get("model", "")))
    if identity.get("kind") != "cuda" or capability is None:
        return None
    link = str(identity.get("link", "none"))
    return pcie_of(capability) if link == "pcie" else bonded(link, capability)


def bonded(link: str, compute_capability: tuple[int, int]) -> LinkPeak | None:
    """The peak of several NVLinks together, written as NVML's `nvlink4x18`; None for anything else."""
    nvlink, links = nvlink_of(compute_capability), re.fullmatch(r"nvlink\d*x(\d+)", link)
    if nvlink is None or nvlink.per_link_gb_per_s is None or links is None:
        return None
    return LinkPeak(f"{links[1]} x {nvlink.name}", int(links[1]) * nvlink.per_link_gb_per_s)


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

    def common(self, peer: PcieLink | None) -> PcieLink:
        """Return the link that both support: the older generation, the fewer lanes."""
        if peer is None:
            return self
        return PcieLink(min(self.generation, peer.generation), min(self.width, peer.width))


@dataclass(frozen=True)
class PcieDevice:
    """A device and its link `now`; `card` and `slot` are what it and the port before it are made for."""

    name: str
    kind: str
    now: PcieLink
    card: PcieLink | None
    slot: PcieLink | None
    numa_node: int | None  # None where the machine has one node or does not report

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) if isinstance(value, PcieLink) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PcieDevice:
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
    """The link of `current_link_*` or `max_link_*`; None if they have none, as with no lanes or 255 of them."""
    speed = re.match(r"(\d+(?:\.\d+)?) GT/s", files.text(f"{folder}/{which}_link_speed") or "")
    generation = GENERATION.get(speed[1].removesuffix(".0")) if speed else None
    width = parse_integer(files.text(f"{folder}/{which}_link_width"))
    return PcieLink(generation, width) if generation and width and 1 <= width <= 32 else None
