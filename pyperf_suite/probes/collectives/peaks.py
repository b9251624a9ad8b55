"""What the links of the machine that made a record carry at best, from the identity that the record keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyperf_suite.hardware.catalogue import capability_of
from pyperf_suite.hardware.links import LinkPeak, nvlink_of, pcie_of
from pyperf_suite.runner.record import Record

# From this NVLink on, the switch between GPUs can reduce by itself (NVLS).
SWITCH_REDUCES = ("NVLink 4", "NVLink 5")


def link_peak(identity: Mapping[str, Any]) -> LinkPeak | None:
    """The peak of what each GPU is joined to the others by; None for CPUs, for one GPU and where it was not told."""
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


def peak_for(record: Record) -> LinkPeak | None:
    """The peak that a record's rates are a share of; None where its ranks are joined by a network between nodes."""
    return link_peak(record.identity) if nodes_of(record) == 1 else None


def may_reduce_in_switch(record: Record) -> bool:
    """Whether NVLS is what ran, by the algorithm that the record tells, or else may be, by the machine's links."""
    algorithm = record.kernel.get("details", {}).get("algorithm")
    if algorithm is not None:
        return str(algorithm).startswith("NVLS")
    peak = peak_for(record)
    return peak is not None and peak.name.endswith(SWITCH_REDUCES)


def nodes_of(record: Record) -> int:
    """How many nodes the ranks of a record lived on; 1 where it does not tell."""
    return int(record.sampling.get("nodes", 1))
