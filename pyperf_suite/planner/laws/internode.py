"""The time of a collective between nodes: what crosses the network, the steps to get there, and measured points.

Fitted to nccl-tests that others published of 2 to 8 nodes (tests/data/published/nccl_tests_between_nodes.csv);
`python -m tools.fit.collectives` fits the constants again and leaves out one source after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.planner.laws.calibration import Band

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
# Where measured times lie around the law, by bytes, and its median error in %: by the rate of the network, as
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


# What each GPU sends out of its node, bytes/s in one direction, or measured points of the cluster, ascending in bytes.
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
        return _named_rate(text)
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


def _named_rate(text: str) -> float:
    name, match = text.strip().upper(), re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:gbps|gbit/s)", text.strip(), re.IGNORECASE)
    if name in INFINIBAND:
        return INFINIBAND[name] * 1e9
    if match is None or not 0 < float(match[1]) <= FASTEST_GBPS:
        names = ", ".join(INFINIBAND)
        raise UserError(f"{text[:40]!r} is not the rate of a network: write one of {names}, or a number as in 400Gbps.")
    return float(match[1]) / 8 * 1e9


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
        # Of rings, one for each GPU of a node, each crosses once.
        share, steps = STAGE.ring, np.maximum(nodes - 1, 0)
        crossing = size * (ranks - 1) / ranks / per_node
    latency = steps * (STAGE.step_s + np.minimum(FILL_SHARE * crossing, FILL_BYTES) / rate)
    latency = latency + STAGE.switch_s * size / (size + STAGE.switch_bytes)
    seconds = np.maximum(in_node_s, crossing / (share * rate)) + latency
    return np.where(nodes > 1, seconds, in_node_s)


SLOWEST, FASTEST = 1e7, 1e14
HALVINGS = 50


def through_points(
    seconds_at: Callable[[Floats, float], Floats], points: tuple[Point, ...], factor: float, size: Floats
) -> Floats:
    """Seconds of messages of `size` by a law that passes through measured points.

    The largest point sets the rate of the network, as far as one explains it; what the law is off at the points is
    drawn straight over the logarithm of the size, and stays as it is beyond them. `seconds_at` is the law by sizes and
    rate, `factor` that of the bus.
    """
    sizes = np.array([point.nbytes for point in points])
    measured = factor * sizes / np.array([point.bus_bytes_per_s for point in points])
    low, high = np.log(SLOWEST), np.log(FASTEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_slow = seconds_at(sizes[-1:], float(np.exp(middle)))[0] > measured[-1]
        low, high = (middle, high) if too_slow else (low, middle)
    rate = float(np.exp(high))
    log_residual = np.log(measured / seconds_at(sizes, rate))
    off = np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), log_residual)
    return np.asarray(seconds_at(size, rate) * np.exp(off))
