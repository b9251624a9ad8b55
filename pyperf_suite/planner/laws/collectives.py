"""The time of a collective on a named GPU: a law of its kind of link, and a network beyond one node.

`python -m tools.fit.collectives` fits the constants to the published tables, and of the network to nccl-tests that
others published of 2 to 8 nodes (tests/data/published/nccl_tests_between_nodes.csv); it leaves out one curve, and one
source, after the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.hardware.links import pcie_of
from pyperf_suite.laws.traffic import OPERATIONS, bus_factor
from pyperf_suite.planner.laws.calibration import Band, Gpu, spec_of
from pyperf_suite.planner.laws.explained import Causes, Explained
from pyperf_suite.planner.laws.transfers import have_same_kernels, log_ratio

Floats = NDArray[np.float64]

# InfiniBand Trade Association, roadmap of data rates: GB/s (1e9) of four lanes.
INFINIBAND = {"EDR": 12.5, "HDR": 25.0, "NDR": 50.0, "XDR": 100.0}
# Every rank's blocks go to every other, so no rank relays what another sends over the network.
UNRELAYED = ("all_to_all", "all_to_all_v")


@dataclass(frozen=True)
class NetworkStage:
    """How collectives take to the network.

    Of its rate trees (all_reduce), rings (all_gather, reduce_scatter) and direct sends (all_to_all) reach a share each.
    A step between nodes takes `step_s`; larger messages leave the protocol of low latency around `switch_bytes`, which
    takes `switch_s` once.
    """

    tree: float
    ring: float
    direct: float
    step_s: float
    switch_s: float
    switch_bytes: float


STAGE = NetworkStage(0.90, 0.857, 0.457, 20e-6, 42e-6, 250e3)
# Places of measured times around the law, by bytes, and its median error in %: by the rate of the network, as
# `tools.fit.collectives` finds with sources left out, and through two measured points.
BY_RATE = (
    Band(np.array([2e4, 7e5, 3e7, 2e9]), np.array([-0.37, -0.27, -0.20, -0.11]), np.array([1.30, 1.10, 0.62, 0.24])),
    14.4,
)
BY_POINTS = (
    Band(np.array([2e4, 7e5, 3e7, 2e9]), np.array([-0.22, -0.22, -0.23, -0.07]), np.array([0.57, 0.35, 0.40, 0.06])),
    9.1,
)
# A pipeline between nodes fills with a third of what crosses, up to this much.
FILL_SHARE, FILL_BYTES = 1 / 3, 5.3e6


@dataclass(frozen=True)
class Point:
    """A measured bus bandwidth of a cluster's own: bytes, and bytes/s as nccl-tests reports it."""

    nbytes: float
    bus_bytes_per_s: float


# Bytes/s that each GPU sends out of its node in one direction, or measured points of the cluster, ascending in bytes.
Network = float | tuple[Point, ...]

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SIZES = {**_UNITS, **{f"{unit}i": 1024.0**power for power, unit in enumerate("kmgt", 1)}}
# A thousand times what any network card carries: beyond it a rate is a slip of the keyboard.
FASTEST_GBPS = 1e6
_POINT = re.compile(r"(\d+(?:\.\d+)?)([kmgt]i?)?b?:(\d+(?:\.\d+)?)([kmgt]?)b/s", re.IGNORECASE)


def network_of(text: str) -> Network:
    """A network from what people write: HDR, 400Gbps, or measured points as in `1MB:20GB/s,1GB:180GB/s`.

    Raises UserError for anything else.
    """
    if ":" not in text:
        if text.strip().upper() in INFINIBAND:
            return INFINIBAND[text.strip().upper()] * 1e9
        named = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:gbps|gbit/s)", text.strip(), re.IGNORECASE)
        if named is None or not 0 < float(named[1]) <= FASTEST_GBPS:
            names = ", ".join(INFINIBAND)
            raise UserError(
                f"{text[:40]!r} is not the rate of a network: write one of {names}, or a number as in 400Gbps."
            )
        return float(named[1]) / 8 * 1e9
    points = []
    for part in text.split(","):
        match = _POINT.fullmatch(re.sub(r"\s", "", part))
        if match is None:
            raise UserError(f"{part[:40]!r} is not a measured point: write bytes and bus bandwidth as in 1GB:180GB/s.")
        size, unit, rate, rate_unit = (group or "" for group in match.groups())
        points.append(Point(float(size) * _SIZES[unit.lower()], float(rate) * _UNITS[rate_unit.lower()]))
    sizes = {point.nbytes for point in points}
    if len(sizes) < len(points) or any(point.nbytes <= 0 or point.bus_bytes_per_s <= 0 for point in points):
        raise UserError("Measured points of a network need sizes and rates above 0, each size once: correct them.")
    return tuple(sorted(points, key=lambda point: point.nbytes))


def between_nodes_s(
    operation: str, size: Floats, ranks: Floats, per_node: Floats, in_node_s: Floats, rate: float
) -> Floats:
    """Seconds of the whole operation, of which `in_node_s` pass within nodes; those alone where there is one node."""
    nodes = np.ceil(ranks / per_node)
    if operation == "all_reduce":
        # It crosses once between two nodes; among more, a node of NCCL's two trees sends as much up as down.
        share, steps = STAGE.tree, np.log2(np.maximum(nodes, 1))
        crossing = size * np.where(ranks > 2 * per_node, 2, 1) / per_node
    elif operation in UNRELAYED:
        share, steps = STAGE.direct, np.log2(np.maximum(nodes, 1))
        crossing = size * (ranks - per_node) / ranks
    else:
        # Each ring, one for each GPU of a node, crosses once.
        share, steps = STAGE.ring, np.maximum(nodes - 1, 0)
        crossing = size * (ranks - 1) / ranks / per_node
    latency = steps * (STAGE.step_s + np.minimum(FILL_SHARE * crossing, FILL_BYTES) / rate)
    latency = latency + STAGE.switch_s * size / (size + STAGE.switch_bytes)
    seconds = np.maximum(in_node_s, crossing / (share * rate)) + latency
    return np.where(nodes > 1, seconds, in_node_s)


MIN_BYTES_PER_S, MAX_BYTES_PER_S = 1e7, 1e14
HALVINGS = 50


NCCL = "nccl"
ORIGIN = "NCCL's collectives in half precision as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0)"
# Operations, numbers of ranks and bytes that tables have.
MEASURED_OPERATIONS = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
MEASURED_RANKS, MEASURED_BYTES = (2, 4, 8), (2.0**9, 2.0**29)
RANKS_OF_A_NODE = 8
# Between two GPUs these take PAIR times as long a byte as among more, over each kind of NVLink.
GATHERING, PAIR = ("all_gather", "reduce_scatter"), 1.27
# Network of the maker's servers for each GPU of that architecture; older ones and unknown ones are reckoned as HDR.
NETWORK_OF = {"Hopper": INFINIBAND["NDR"], "Blackwell": INFINIBAND["NDR"], "Blackwell Ultra": INFINIBAND["XDR"]}
# From here up links are NVLink or its like; below a GPU sends over PCIe.
FASTEST_PCIE_BYTES_PER_S = 130e9


@dataclass(frozen=True)
class LinkLaw:
    """NCCL over one kind of link, measured on `gpus`.

    A launch takes `launch_s` · ranks^`growth`; messages of more than about `fill_bytes` leave the protocol of low
    latency, which takes `fill_s` once; of an all_reduce both take `twice` as long. Bytes on the bus reach `share` of
    the link's peak, divided by (ranks − 1)^`crowding` where GPUs share a path; a switch that adds up itself carries
    `switch_share` of the peak. `band` and `percent` are the 90 % band and the median error of curves left out.
    """

    gpus: tuple[str, ...]
    launch_s: float
    growth: float
    twice: float
    share: float
    fill_s: float
    fill_bytes: float
    switch_share: float
    crowding: float
    band: Band
    percent: float

    def seconds(self, operation: str, bus_bytes: Floats, ranks: Floats, link_bytes_per_s: Floats) -> Floats:
        """Seconds among the ranks of one node, at least two of them."""
        adds_up = operation == "all_reduce"
        sent_s = bus_bytes / link_bytes_per_s
        links_s = sent_s * (ranks - 1) ** self.crowding / self.share
        if operation in GATHERING and not self.crowding:
            links_s = links_s * np.where(ranks == 2, PAIR, 1.0)
        if adds_up and self.switch_share:
            # The switch receives all of a message S from each GPU and spreads S / n for each (NVLink SHARP).
            links_s = np.minimum(links_s, sent_s * (ranks + 1) / (ranks - 1) / 2 / self.switch_share)
        waited_s = self.launch_s * ranks**self.growth + self.fill_s * bus_bytes / (bus_bytes + self.fill_bytes)
        return np.asarray(links_s + waited_s * (self.twice if adds_up else 1.0))


def _level(low: float, high: float) -> Band:
    """A band that is as wide for all sizes."""
    return Band(np.array([1.0]), np.array([low]), np.array([high]))


AMPERE = LinkLaw(("A100 SXM",), 8.58e-6, 0.276, 1.20, 0.693, 50e-6, 5.1e6, 0.0, 0.0, _level(-0.21, 0.29), 7.6)
HOPPER = LinkLaw(
    ("H100 SXM", "H200 SXM"), 4.29e-6, 0.477, 1.22, 0.713, 27e-6, 7e6, 0.652, 0.0, _level(-0.18, 0.35), 10.3
)
BLACKWELL = LinkLaw(("B200 SXM",), 5.58e-6, 0.527, 1.34, 0.668, 24e-6, 7.85e6, 0.483, 0.0, _level(-0.27, 0.35), 10.7)
PCIE = LinkLaw(("L40S",), 3.59e-6, 0.604, 1.69, 0.611, 20.3e-6, 0.194e6, 0.0, 1.29, _level(-0.23, 0.55), 8.6)
# Over PCIe a machine's own wiring decides: 14 published ones of 2 to 8 GPUs reach 5 to 80 % of their slot's peak (RTX
# 4090 without P2P in a container the least, RTX PRO 6000 behind one switch the most; L40S of the tables 5 % among 8).
# Launches differ by less. By bytes; tests/data/published/nccl_tests_pcie.csv.
OTHER_PCIE = replace(
    PCIE,
    launch_s=1.3 * PCIE.launch_s,
    share=0.45,
    fill_s=0.0,
    crowding=0.0,
    band=Band(np.array([2e4, 2e5, 4e6]), np.array([-0.32, -0.35, -0.57]), np.array([0.63, 1.90, 2.30])),
    percent=45.0,
)
# A100, B200 and Hopper read off one another, and a bridge of two H100 PCIe off the A100.
OTHER_NVLINK, OTHER_NVLINK_PERCENT = _level(-0.50, 0.60), 29.0
# Operations without a table: 8 B200's send_receive takes up to four times as long as all_to_all.
OTHER_OPERATION, OTHER_OPERATION_PERCENT = (-0.40, 0.90), 30.0
# Links whose rates differ by less, as a logarithm, are alike.
SAME_RATE = 0.1


def collective_time(
    gpu: Gpu,
    op: str,
    nbytes: ArrayLike,
    ranks: ArrayLike,
    ranks_per_node: ArrayLike | None = None,
    network: Network | str | None = None,
) -> Explained:
    """Seconds of NCCL's `op` for messages of `nbytes` (the S of nccl-tests) among `ranks` GPUs; arrays broadcast.

    Beyond one node each GPU sends its share over the network while the node works: the slower of both, and the latency
    of the steps between nodes. The parts are ideal (bytes on the bus at the link's peak), launch (the time of no
    bytes), bandwidth (what the link falls short of its peak) and network (what lies beyond a node).

    Args: gpu: its name, its `GpuSpec`, or a `Calibration`, which is read for its GPU alone. op: one of
    `traffic.OPERATIONS`; "allreduce" and "alltoall" do as well. nbytes: bytes, not negative. ranks: at least 1; among 1
    there is nothing to do and no time passes. ranks_per_node: ranks fill nodes of this size one after the other; by
    default 8, for GB200 and GB300 72. An array broadcasts too. network: what each GPU can send out of its node in
    bytes/s, one direction, or measured bus bandwidths that the time between nodes then passes through, as in
    "1GB:180GB/s"; by default the peak of the maker's servers.

    Raises:
        UserError: an unknown GPU or operation, negative bytes, less than one rank, or a network that carries
            nothing.
    """
    spec = spec_of(gpu)
    operation = {"allreduce": "all_reduce", "alltoall": "all_to_all", "allgather": "all_gather"}.get(op, op)
    if operation not in OPERATIONS:
        raise UserError(f"Unknown collective {op!r}: choose from {', '.join(OPERATIONS)}.")
    usual = 72 if spec.name.startswith("GB") else RANKS_OF_A_NODE
    per_node = usual if ranks_per_node is None else ranks_per_node
    size, count, per_node = np.broadcast_arrays(
        *(np.asarray(given, dtype=np.float64) for given in (nbytes, ranks, per_node))
    )
    if not np.all(np.isfinite(size) & (size >= 0)):
        raise UserError(f"{operation} of {np.min(size):g} bytes was requested: give sizes of 0 bytes and more.")
    if not np.all(np.isfinite(count) & (count >= 1)):
        raise UserError(f"{operation} among {np.min(count):g} ranks was requested: give 1 rank or more.")
    if np.any(per_node < 1):
        raise UserError(f"Nodes of {np.min(per_node):g} ranks were requested: give 1 or more.")
    network = network_of(network) if isinstance(network, str) else network
    reached = usual_network_bytes_per_s(spec) if network is None else network
    if isinstance(reached, (int, float)) and not 0 < reached < np.inf:
        raise UserError(f"A network of {reached:g} bytes/s carries nothing: give more.")
    law, origin = link_law(spec)
    inside, crosses = np.minimum(count, per_node), count > per_node
    # As many bytes on each rank's bus as the whole operation puts there, among the ranks of one node.
    bus_bytes = size * bus_factor(operation, count)
    in_node = _in_node(spec, law, operation, bus_bytes, inside)
    seconds = _with_network(spec, law, operation, size, count, per_node, in_node, reached)

    def parts() -> dict[str, Floats]:
        launch = _in_node(spec, law, operation, np.zeros_like(size), inside)
        ideal = np.where(inside > 1, bus_bytes / link_bytes_per_s(spec, inside), 0.0)
        return {"ideal": ideal, "launch": launch, "bandwidth": in_node - launch - ideal, "network": seconds - in_node}

    is_known = (operation in MEASURED_OPERATIONS) & (spec.name in law.gpus) & np.isin(inside, MEASURED_RANKS)
    is_known &= (size >= MEASURED_BYTES[0]) & (size <= MEASURED_BYTES[1])
    low, high, percent = _interval(spec, law, operation, np.maximum(size, 1.0), inside)
    if np.any(crosses):
        stage, stage_percent = BY_RATE if isinstance(reached, (int, float)) else BY_POINTS
        between, percent = stage.around(1.0, np.maximum(size, 1.0)), max(stage_percent, percent or 0.0)
        low = np.where(crosses, np.minimum(between[0], low), low)
        high = np.where(crosses, np.maximum(between[1], high), high)
    beyond = (count > 1) & (~is_known | crosses)
    return Explained(seconds, Causes(parts), beyond, percent, origin, seconds * low, seconds * high, NCCL)


def usual_network_bytes_per_s(spec: GpuSpec) -> float:
    """Return the rate at which each GPU of the maker's servers sends out of its node, in one direction, at the peak."""
    return NETWORK_OF.get(spec.architecture, INFINIBAND["HDR"]) * 1e9


def link_bytes_per_s(spec: GpuSpec, ranks: ArrayLike = np.inf) -> Floats:
    """Return the rate at which a GPU sends to `ranks` at once, in one direction; by default over all of its links."""
    pcie, peers = pcie_of(spec.compute_capability).gb_per_s * 1e9, link_peers(spec)
    link, count = spec.link_bytes_per_s or pcie, np.asarray(ranks, dtype=np.float64)
    if peers is None:
        return np.full(count.shape, link)
    reached = np.where(count - 1 <= peers, link * np.maximum(count - 1, 1) / peers, pcie)
    return np.where(np.isinf(count), link, reached)


def link_peers(spec: GpuSpec) -> int | None:
    """How many others its links go to; None where a switch joins all, and for a link that is not its maker's."""
    return spec.link_peers if spec.link_bytes_per_s == find_gpu(spec.name).link_bytes_per_s else None


def link_law(spec: GpuSpec) -> tuple[LinkLaw, str]:
    """The law of the links most like a GPU's, as wide as that is known, and its origin."""
    peers, rate = link_peers(spec), float(link_bytes_per_s(spec))
    if peers is None and rate <= FASTEST_PCIE_BYTES_PER_S:
        law = PCIE if spec.name in PCIE.gpus else OTHER_PCIE
    elif peers is None and (spec.compute_capability or (0, 0)) >= (9, 0):
        law = HOPPER if spec.architecture == "Hopper" else BLACKWELL
    else:
        law = AMPERE
    if spec.name in law.gpus:
        return law, ORIGIN
    origin = f"read off {law.gpus[0]}, whose curves are from {ORIGIN}"
    if law is OTHER_PCIE or (peers is not None and peers + 2 <= RANKS_OF_A_NODE):
        origin += f", among {(peers or 0) + 2} and more at the rate over PCIe of most published machines"
    source = find_gpu(law.gpus[0])
    is_like = have_same_kernels(spec, source) and log_ratio(rate, float(link_bytes_per_s(source))) < SAME_RATE
    if law is OTHER_PCIE or is_like:
        return law, origin
    return replace(law, band=OTHER_NVLINK, percent=OTHER_NVLINK_PERCENT), origin


def _is_over_pcie(spec: GpuSpec, inside: Floats) -> NDArray[np.bool_]:
    """True where more GPUs send to each other than their own links join."""
    peers = link_peers(spec)
    return np.zeros(inside.shape, dtype=bool) if peers is None else inside - 1 > peers


def _in_node(spec: GpuSpec, law: LinkLaw, operation: str, bus_bytes: Floats, inside: Floats) -> Floats:
    """Seconds within a node."""
    ranks = np.maximum(inside, 2.0)
    sizes = operation, bus_bytes, ranks, link_bytes_per_s(spec, ranks)
    seconds = np.where(_is_over_pcie(spec, ranks), OTHER_PCIE.seconds(*sizes), law.seconds(*sizes))
    return np.where(inside > 1, seconds, 0.0)


def _with_network(
    spec: GpuSpec,
    law: LinkLaw,
    operation: str,
    size: Floats,
    ranks: Floats,
    per_node: Floats,
    in_node: Floats,
    network: Network,
) -> Floats:
    """Seconds, with the part beyond a node; measured points are of the operation among the same ranks.

    The largest point sets the rate of the network, as far as one explains it; what the law is off at the points is
    drawn straight over the logarithm of the size, and stays as it is beyond them.
    """
    if isinstance(network, (int, float)):
        return between_nodes_s(operation, size, ranks, per_node, in_node, network)
    seconds, sizes = in_node.copy(), np.array([point.nbytes for point in network])
    for n, inside in {*zip(ranks.ravel().tolist(), per_node.ravel().tolist(), strict=True)}:
        if n <= inside:
            continue
        here, factor = (ranks == n) & (per_node == inside), float(bus_factor(operation, n))

        def at_rate(size: Floats, rate: float, n: float = n, inside: float = inside, factor: float = factor) -> Floats:
            all_of = np.full(size.shape, n), np.full(size.shape, inside)
            within = _in_node(spec, law, operation, size * factor, all_of[1])
            return between_nodes_s(operation, size, *all_of, within, rate)

        measured = factor * sizes / np.array([point.bus_bytes_per_s for point in network])
        low, high = np.log(MIN_BYTES_PER_S), np.log(MAX_BYTES_PER_S)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            too_slow = at_rate(sizes[-1:], float(np.exp(middle)))[0] > measured[-1]
            low, high = (middle, high) if too_slow else (low, middle)
        rate = float(np.exp(high))
        log_residual = np.log(measured / at_rate(sizes, rate))
        off = np.interp(np.log(np.maximum(size[here], 1.0)), np.log(sizes), log_residual)
        seconds[here] = at_rate(size[here], rate) * np.exp(off)
    return seconds


def _interval(
    spec: GpuSpec, law: LinkLaw, operation: str, size: Floats, inside: Floats
) -> tuple[Floats, Floats, float | None]:
    """Factors to the ends of the interval within a node, and the worst median error in % of what was requested."""
    shared, several = _is_over_pcie(spec, inside), inside > 1
    over_pcie, own = OTHER_PCIE.band.around(1.0, size), law.band.around(1.0, size)
    low, high = (np.where(shared, wide, usual) for wide, usual in zip(over_pcie, own, strict=True))
    percents = [law.percent] * bool(np.any(several & ~shared)) + [OTHER_PCIE.percent] * bool(np.any(shared))
    if operation not in MEASURED_OPERATIONS:
        low = np.minimum(low, np.exp(OTHER_OPERATION[0]))
        high = np.maximum(high, np.exp(OTHER_OPERATION[1]))
        percents = [max(percent, OTHER_OPERATION_PERCENT) for percent in percents]
    return np.where(several, low, 1.0), np.where(several, high, 1.0), max(percents, default=None)
