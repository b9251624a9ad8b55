"""What a link can carry at most: the peaks that measured bandwidths are a percentage of.

All peaks are one direction, GB/s (1e9); data sheets like to quote both directions together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import capability_of


@dataclass(frozen=True)
class LinkPeak:
    """A kind of link's peak, in one direction.

    `gb_per_s` is the data sheet's. `per_link_gb_per_s` is one NVLink's share where a GPU bonds several.
    `nccl_gb_per_s` is what NCCL's own model reckons with, after protocol overhead, None where it has no figure.
    """

    name: str
    gb_per_s: float
    source: str
    per_link_gb_per_s: float | None = None
    nccl_gb_per_s: float | None = None


# NCCL's model of NVLink is the bandwidth of one link for each architecture (src/graph/topo.h: SM70 20.0, SM80 20.0,
# SM90 20.6, SM100 40.1 GB/s) times the links of the largest GPU of that generation: 6, 12, 18 and 18.
_NVLINK_SOURCE = "NVIDIA {} architecture whitepaper, halved to one direction; NCCL src/graph/topo.h"
NVLINK = {
    2: LinkPeak("NVLink 2", 150.0, _NVLINK_SOURCE.format("Volta"), 25.0, 120.0),
    3: LinkPeak("NVLink 3", 300.0, _NVLINK_SOURCE.format("Ampere"), 25.0, 240.0),
    4: LinkPeak("NVLink 4", 450.0, _NVLINK_SOURCE.format("Hopper"), 25.0, 370.8),
    5: LinkPeak("NVLink 5", 900.0, _NVLINK_SOURCE.format("Blackwell"), 50.0, 721.8),
}
# Sixteen lanes in 128b/130b; generation 6 has FLITs of 256 bytes instead, of which 242 are payload.
PCIE = {
    3: LinkPeak("PCIe 3 x16", 15.75, "PCI-SIG, PCI Express Base Specification 3.0: 8 GT/s, 128b/130b"),
    4: LinkPeak("PCIe 4 x16", 31.5, "PCI-SIG, PCI Express Base Specification 4.0: 16 GT/s, 128b/130b"),
    5: LinkPeak("PCIe 5 x16", 63.0, "PCI-SIG, PCI Express Base Specification 5.0: 32 GT/s, 128b/130b"),
    6: LinkPeak("PCIe 6 x16", 121.0, "PCI-SIG, PCI Express Base Specification 6.0: 64 GT/s, 242 of 256 bytes"),
}
# One lane of the two generations before, in 8b/10b; a card that idles may fall back to them.
_OLD_LANE_GB_PER_S = {1: 0.25, 2: 0.5}
# A thousand times what any network card carries: beyond it a rate is a slip of the keyboard.
FASTEST_GBPS = 1e6
INFINIBAND = {
    rate: LinkPeak(f"InfiniBand {rate} 4x", gb_per_s, "InfiniBand Trade Association, roadmap of data rates")
    for rate, gb_per_s in {"EDR": 12.5, "HDR": 25.0, "NDR": 50.0, "XDR": 100.0}.items()
}
# Newest first, from the oldest compute capability that has it.
_NVLINK_OF_CAPABILITY = (
    ((10, 0), NVLINK[5]),
    ((9, 0), NVLINK[4]),
    # The bridges of RTX 3090, A40 and A6000 run slower than those between A100.
    ((8, 6), LinkPeak("NVLink 3 bridge", 56.25, _NVLINK_SOURCE.format("Ampere GA102"), 14.0625, 48.0)),
    ((8, 0), NVLINK[3]),
    ((7, 0), NVLINK[2]),
)
_PCIE_OF_CAPABILITY = (
    ((12, 0), PCIE[5]),
    ((10, 3), PCIE[6]),
    ((9, 0), PCIE[5]),
    ((8, 0), PCIE[4]),
    ((0, 0), PCIE[3]),
)


def nvlink_of(compute_capability: tuple[int, int]) -> LinkPeak | None:
    """The NVLink of GPUs of that compute capability, (9, 0) for Hopper; None where they are older than NVLink 2."""
    return next((link for oldest, link in _NVLINK_OF_CAPABILITY if compute_capability >= oldest), None)


def pcie_of(compute_capability: tuple[int, int]) -> LinkPeak:
    """The PCIe that GPUs of that compute capability are made for; a slot may be of an older generation."""
    return next(link for oldest, link in _PCIE_OF_CAPABILITY if compute_capability >= oldest)


def pcie_lanes_gb_per_s(generation: int, lanes: int) -> float | None:
    """GB/s (1e9), one direction, that so many lanes of a PCIe generation carry; None for one that is not known."""
    if generation in PCIE:
        return PCIE[generation].gb_per_s * lanes / 16
    return _OLD_LANE_GB_PER_S[generation] * lanes if generation in _OLD_LANE_GB_PER_S else None


def nvlinks_per_gpu(link_gb_per_s: float, compute_capability: tuple[int, int]) -> int:
    """How many NVLinks a GPU has whose links to others carry that together (GB/s, one direction); 0 where it has none.

    What is no more than a PCIe slot carries is the slot.
    """
    nvlink = nvlink_of(compute_capability)
    if nvlink is None or nvlink.per_link_gb_per_s is None:
        return 0
    if link_gb_per_s <= 1.05 * pcie_of(compute_capability).gb_per_s:
        return 0
    return round(link_gb_per_s / nvlink.per_link_gb_per_s)


def peak_of(identity: Mapping[str, Any]) -> LinkPeak | None:
    """The peak of what joins each GPU of a machine to the others; None for CPUs, one GPU, and unknown links."""
    capability = capability_of(str(identity.get("model", "")))
    link = str(identity.get("link", "none"))
    if identity.get("kind") != "cuda" or capability is None or link in ("none", "unknown"):
        return None
    if link == "pcie":
        return pcie_of(capability)
    nvlink, links = nvlink_of(capability), re.fullmatch(r"nvlink\d*x(\d+)", link)
    if nvlink is None or nvlink.per_link_gb_per_s is None or links is None:
        return None
    bonded = int(links[1])
    return LinkPeak(f"{bonded} x {nvlink.name}", bonded * nvlink.per_link_gb_per_s, nvlink.source)


def network(rate: str) -> LinkPeak:
    """A network's peak from what people call it: HDR, NDR, XDR, or a rate such as 400 Gbps.

    Raises UserError for anything else.
    """
    text = rate.strip()
    if text.upper() in INFINIBAND:
        return INFINIBAND[text.upper()]
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:gbps|gbit/s)", text, re.IGNORECASE)
    if match is None or not 0 < float(match[1]) <= FASTEST_GBPS:
        names = ", ".join(INFINIBAND)
        raise UserError(f"{rate[:40]!r} is not the rate of a network: write one of {names}, or a number as in 400Gbps.")
    return LinkPeak(f"{float(match[1]):g} Gbps", float(match[1]) / 8, "as given")
