"""The time of a collective on a named GPU: measured curves of its kind of link, and a network beyond one node.

Curves are straight lines over the size, joined, one for each operation and number of ranks. One line misses by several
times as much, because protocol and algorithm change with the size. What was never measured on a GPU is read off one
with the same kind of link, its bytes scaled by what the two links carry.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.hardware.links import pcie_of
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.traffic import OPERATIONS, bus_factor
from pyperf_suite.planner.laws import internode, transfers
from pyperf_suite.planner.laws.calibration import Band, CalibrationBlock, Gpu, spec_of
from pyperf_suite.planner.laws.explained import Causes, Explained
from pyperf_suite.planner.laws.internode import Network, Point
from pyperf_suite.planner.laws.traffic import AlphaBetaOverRanks
from pyperf_suite.planner.laws.transfers import Interval

Floats = NDArray[np.float64]

BLOCK, SUBJECT = "collectives", "collectives are"
NCCL = "nccl"
# Operations that no table has, read off a curve that loads the links equally, at as many bytes on the bus.
LIKE = {
    "broadcast": "all_gather",
    "gather": "all_gather",
    "scatter": "reduce_scatter",
    "reduce": "reduce_scatter",
    "send_receive": "all_to_all",
    "all_to_all_v": "all_to_all",
}
# The usual ones, among which most curves were measured.
RANKS_OF_A_NODE = 8
# What the maker's servers have for each GPU of that architecture; older ones and unknown ones are reckoned as HDR.
NETWORK_OF = {
    "Hopper": internode.INFINIBAND["NDR"],
    "Blackwell": internode.INFINIBAND["NDR"],
    "Blackwell Ultra": internode.INFINIBAND["XDR"],
}
# From here up links are NVLink or its like; below a GPU sends over PCIe, where curves have another shape.
FASTEST_PCIE_BYTES_PER_S = 130e9

# Numbers of ranks that were not measured: between two that were (4 from 2 and 8), and beyond (8 from 2 and 4).
BETWEEN_RANKS: Interval = (-0.30, 0.30, 11.0)
BEYOND_RANKS: Interval = (-0.55, 0.55, 20.0)
# A launch grows with the ranks that relay one after the other: from 4 to 8 by two thirds on A100, H100, H200 and B200.
LAUNCH_OVER_RANKS = 0.7
# What is read off another operation has no table to judge by but 8 B200's send_receive: up to four times all_to_all's.
OTHER_OPERATION: Interval = (-0.40, 0.90, 30.0)


@dataclass(frozen=True)
class CollectiveLaws:
    """The curves of one GPU by operation.

    `intervals` say how far measured times lie around each curve, by operation and ranks: on other versions of NCCL
    where the curve was measured, on whole curves left out where it was inferred; `inferred` names the latter.
    `transferred` is how far curves that are not the GPU's own were off where a GPU was left out, by bytes, with the
    median error in %, for the ranks from which on that holds; empty where the curves are the GPU's own.
    """

    curves: Mapping[str, AlphaBetaOverRanks]
    intervals: Mapping[tuple[str, int], Interval]
    inferred: frozenset[tuple[str, int]]
    fitted_bytes: tuple[float, float]
    origin: str
    transferred: Mapping[int, tuple[Band, float]] = field(default_factory=dict)

    def apart(self, ranks: float) -> tuple[Band, float] | None:
        """What `transferred` says of that many ranks."""
        return next((self.transferred[n] for n in sorted(self.transferred, reverse=True) if n <= ranks), None)


def collective_time(
    gpu: Gpu,
    op: str,
    nbytes: ArrayLike,
    ranks: ArrayLike,
    ranks_per_node: ArrayLike | None = None,
    network: float | str | Iterable[Point] | None = None,
) -> Explained:
    """Seconds of NCCL's `op` for messages of `nbytes` (the S of nccl-tests) among `ranks` GPUs; arrays broadcast.

    Beyond one node each GPU sends its share over the network while the node works: the slower of both, and the latency
    of the steps between nodes. The parts are ideal (bytes on the bus at the link's peak), launch (the time of no
    bytes), bandwidth (what the link falls short of its peak) and network (what lies beyond a node).

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration` with a block "collectives".
        op: one of `traffic.OPERATIONS`; "allreduce" and "alltoall" do as well.
        nbytes: bytes, not negative.
        ranks: at least 1; among 1 there is nothing to do and no time passes.
        ranks_per_node: ranks fill nodes of so many one after the other; by default 8, for GB200 and GB300 72. An array
            broadcasts too.
        network: what each GPU can send out of its node in bytes/s, one direction, or measured bus bandwidths that the
            time between nodes then passes through, as in "1GB:180GB/s"; by default the peak of the maker's servers.

    Raises:
        UserError: an unknown GPU or operation, negative bytes, less than one rank, or a network that carries
            nothing.
    """
    spec = spec_of(gpu)
    laws = _laws_of(gpu, spec)
    operation = _operation(op)
    usual = 72 if spec.name.startswith("GB") else RANKS_OF_A_NODE
    per_node = np.asarray(usual if ranks_per_node is None else ranks_per_node)
    size, count, per_node = np.broadcast_arrays(*_checked(operation, nbytes, ranks), per_node)
    reached = internode.checked_network(usual_network_bytes_per_s(spec) if network is None else network)
    if np.any(per_node < 1):
        raise UserError(f"Nodes of {np.min(per_node)} ranks were requested: give 1 or more.")
    inside = np.minimum(count, per_node)
    # As many bytes on each rank's bus as the whole operation puts there, among the ranks of one node.
    factor, inner_factor = bus_factor(operation, count), bus_factor(operation, inside)
    per_byte = np.where(inside > 1, factor / np.where(inner_factor > 0, inner_factor, 1.0), 0.0)
    inner_size = size * per_byte
    in_node = _in_node(laws, operation, inner_size, inside)
    seconds = _with_network(laws, operation, size, count, per_node, in_node, reached)

    def parts() -> dict[str, Floats]:
        launch = _in_node(laws, operation, np.zeros_like(size), inside)
        ideal = np.where(inside > 1, size * factor / np.vectorize(link_bytes_per_s)(spec, inside), 0.0)
        bandwidth = in_node - launch - ideal
        return {"ideal": ideal, "launch": launch, "bandwidth": bandwidth, "network": seconds - in_node}

    curve = LIKE.get(operation, operation)
    known = list(laws.curves[curve].curves)
    inferred = np.isin(inside, [n for name, n in laws.inferred if name == curve])
    unseen = operation in LIKE or bool(laws.transferred)
    beyond = (inner_size < laws.fitted_bytes[0]) | (inner_size > laws.fitted_bytes[1]) | ~np.isin(inside, known)
    low, high, error_percent = _interval(laws, operation, inner_size, inside)
    if np.any(count > per_node):
        by_rate = isinstance(reached, float)
        band, percent = (
            (internode.BETWEEN_NODES, internode.BETWEEN_PERCENT)
            if by_rate
            else (internode.THROUGH_POINTS, internode.THROUGH_PERCENT)
        )
        error_percent = max(percent, error_percent or 0.0)
        between = band.around(np.ones_like(seconds), np.maximum(size, 1.0))
        low = np.where(count > per_node, np.minimum(between[0], low), low)
        high = np.where(count > per_node, np.maximum(between[1], high), high)
    return Explained(
        seconds,
        Causes(parts),
        (count > 1) & (unseen | beyond | inferred | (count > per_node)),
        error_percent,
        laws.origin,
        seconds * low,
        seconds * high,
        NCCL,
    )


def usual_network_bytes_per_s(spec: GpuSpec) -> float:
    """What the maker's servers have for each GPU to send out of its node, in one direction, at the peak."""
    return NETWORK_OF.get(spec.architecture, internode.INFINIBAND["HDR"]) * 1e9


def link_bytes_per_s(spec: GpuSpec, ranks: float = np.inf) -> float:
    """What a GPU can send to the others of so many at once, in one direction; by default all of its links together."""
    pcie, peers = pcie_of(spec.compute_capability).gb_per_s * 1e9, link_peers(spec)
    link = spec.link_bytes_per_s or pcie
    if peers is None or np.isinf(ranks):
        return link
    return link * max(ranks - 1, 1) / peers if ranks - 1 <= peers else pcie


def link_peers(spec: GpuSpec) -> int | None:
    """How many others its links go to; None where a switch joins all, and for a link that is not its maker's."""
    return spec.link_peers if spec.link_bytes_per_s == find_gpu(spec.name).link_bytes_per_s else None


PCIE_ONLY, DIRECT, ADDING_SWITCH = 0, 2, 3


def link_kind(spec: GpuSpec) -> int:
    """PCIe, NVLink or its like, or a switch that adds up itself (NVLink SHARP, from Hopper on); near ones are alike."""
    if link_peers(spec) is None and link_bytes_per_s(spec) <= FASTEST_PCIE_BYTES_PER_S:
        return PCIE_ONLY
    return ADDING_SWITCH if link_peers(spec) is None and (spec.compute_capability or (0, 0)) >= (9, 0) else DIRECT


COLUMNS = ("operation", "ranks", "start_s", "bends_bytes", "betas_s_per_byte", "inferred", "interval")


def pack_curves(
    curves: Mapping[tuple[str, int], PiecewiseAlphaBeta],
    inferred: frozenset[tuple[str, int]],
    intervals: Mapping[tuple[str, int], Interval],
) -> dict[str, NDArray[np.generic]]:
    """Curves by operation and ranks as the arrays of a calibration's block, one row a curve, ragged ends NaN."""
    rows = sorted(curves)
    most = max(len(curve.betas_s_per_byte) for curve in curves.values())
    bends, betas = np.full((len(rows), most - 1), np.nan), np.full((len(rows), most), np.nan)
    for row, key in enumerate(rows):
        bends[row, : len(curves[key].bends_bytes)] = curves[key].bends_bytes
        betas[row, : len(curves[key].betas_s_per_byte)] = curves[key].betas_s_per_byte
    named = np.array([operation for operation, _ in rows]), np.array([ranks for _, ranks in rows])
    starts, known = np.array([curves[key].start_s for key in rows]), np.array([key in inferred for key in rows])
    columns = *named, starts, bends, betas, known, np.array([intervals[key] for key in rows])
    return dict(zip(COLUMNS, columns, strict=True))


@functools.lru_cache(maxsize=64)
def unpack_laws(block: CalibrationBlock) -> CollectiveLaws:
    """The inverse of `pack_curves`, with the block's range and origin."""
    by_operation: dict[str, dict[int, PiecewiseAlphaBeta]] = {}
    intervals: dict[tuple[str, int], Interval] = {}
    inferred = set()
    for name, n, start, bends, betas, is_inferred, interval in zip(*(block.arrays[c] for c in COLUMNS), strict=True):
        key = (str(name), int(n))
        given_bends, given_betas = (tuple(row[~np.isnan(row)].tolist()) for row in (bends, betas))
        low, high, percent = (float(end) for end in interval)
        by_operation.setdefault(key[0], {})[key[1]] = PiecewiseAlphaBeta(
            float(start), given_bends, given_betas, percent / 100
        )
        intervals[key] = (low, high, percent)
        if is_inferred:
            inferred.add(key)
    laws = {name: AlphaBetaOverRanks(name, curves) for name, curves in by_operation.items()}
    return CollectiveLaws(laws, intervals, frozenset(inferred), block.fitted_range["nbytes"], block.origin)


def transferred_laws(spec: GpuSpec, known: Mapping[str, CollectiveLaws]) -> CollectiveLaws:
    """The laws of the nearest of GPUs known by name, by the kind and speed of its links, for what `spec`'s carry.

    Among more ranks than its links reach a GPU sends over PCIe: there launches are read off, and the rate is that of
    most published machines. Raises UserError where none is known.
    """
    source = transfers.nearest(spec, known, SUBJECT, link_bytes_per_s, link_kind)
    laws, peers = known[source.name], link_peers(spec)
    origin = f"read off {source}, whose curves are from {laws.origin}"
    over_pcie = (peers + 2 if peers else RANKS_OF_A_NODE + 1) if link_kind(spec) else 2
    curves = {
        name: AlphaBetaOverRanks(
            name,
            {
                n: _over_pcie(law, n, spec) if n >= over_pcie else _faster(law.curves[n], spec, source, n)
                for n in {*law.curves, over_pcie}
                if n <= RANKS_OF_A_NODE
            },
        )
        for name, law in laws.curves.items()
    }
    similar = transfers.have_same_kernels(source, spec) and link_kind(source) == link_kind(spec)
    same_rate = transfers.log_ratio(link_bytes_per_s(spec), link_bytes_per_s(source)) < 0.1
    low, high, percent = transfers.SAME_LINK if similar and same_rate else transfers.OTHER_NVLINK
    apart = {2: (Band(np.array([1.0]), np.array([low]), np.array([high])), percent)}
    if over_pcie <= RANKS_OF_A_NODE:
        origin += f", among {over_pcie} and more at the rate over PCIe of most published machines"
        apart[over_pcie] = transfers.OVER_PCIE, transfers.OVER_PCIE_PERCENT
    return replace(laws, curves=curves, origin=origin, transferred=apart)


def _faster(curve: PiecewiseAlphaBeta, spec: GpuSpec, source: GpuSpec, ranks: int) -> PiecewiseAlphaBeta:
    """A faster link carries more bytes in the same time; the launch stays as it was."""
    speed_up = link_bytes_per_s(spec, ranks) / link_bytes_per_s(source, ranks)
    bends, betas = (np.array(values) for values in (curve.bends_bytes, curve.betas_s_per_byte))
    return replace(curve, bends_bytes=tuple(bends * speed_up), betas_s_per_byte=tuple(betas / speed_up))


def _over_pcie(law: AlphaBetaOverRanks, ranks: int, spec: GpuSpec) -> PiecewiseAlphaBeta:
    """A launch, then the bytes on the bus at the usual share of the slot's peak."""
    slot = link_bytes_per_s(spec, ranks)
    beta = float(bus_factor(law.operation, ranks)) / (transfers.PCIE_SHARE * slot)
    return PiecewiseAlphaBeta(transfers.PCIE_LAUNCH * float(law.seconds(0, ranks)), (), (beta,))


def _laws_of(gpu: Gpu, spec: GpuSpec) -> CollectiveLaws:
    # A short run of one's own corrects products and attention alone.
    calibration, is_own = transfers.find_law(gpu, BLOCK, SUBJECT, "", link_bytes_per_s, link_kind)
    laws = unpack_laws(calibration.block(BLOCK))
    return laws if is_own else transferred_laws(spec, {calibration.gpu: laws})


def _operation(op: str) -> str:
    name = {"allreduce": "all_reduce", "alltoall": "all_to_all", "allgather": "all_gather"}.get(op, op)
    if name not in OPERATIONS:
        raise UserError(f"Unknown collective {op!r}: choose from {', '.join(OPERATIONS)}.")
    return name


def _checked(operation: str, nbytes: ArrayLike, ranks: ArrayLike) -> tuple[Floats, Floats]:
    size, count = np.broadcast_arrays(np.asarray(nbytes, dtype=np.float64), np.asarray(ranks, dtype=np.float64))
    if not (np.all(np.isfinite(size)) and np.all(size >= 0)):
        raise UserError(f"{operation} of {np.min(size):g} bytes was requested: give sizes of 0 bytes and more.")
    if not np.all(np.isfinite(count)) or np.any(count < 1):
        raise UserError(f"{operation} among {np.min(count):g} ranks was requested: give 1 rank or more.")
    return size, count


def _in_node(laws: CollectiveLaws, operation: str, size: Floats, ranks: Floats) -> Floats:
    """Seconds within a node."""
    law = laws.curves[LIKE.get(operation, operation)]
    largest = max(law.curves)
    seconds = np.zeros(size.shape)
    for n in np.unique(ranks):
        if n > 1:
            similar = bus_factor(operation, n) / bus_factor(law.operation, n)
            here = ranks == n
            seconds[here] = law.seconds(size[here] * similar, int(n))
            if n > largest and operation not in internode.UNRELAYED:
                seconds[here] += float(law.curves[largest].seconds(0)) * ((n / largest) ** LAUNCH_OVER_RANKS - 1)
    return seconds


def _with_network(
    laws: CollectiveLaws,
    operation: str,
    size: Floats,
    ranks: Floats,
    per_node: NDArray[np.int64],
    in_node: Floats,
    network: Network,
) -> Floats:
    """Seconds with what lies beyond a node; measured points are of the operation among so many ranks."""
    if isinstance(network, float):
        return internode.between_nodes_s(operation, size, ranks, per_node, in_node, network)
    seconds = in_node.copy()
    for n, inside in {*zip(ranks.ravel().tolist(), per_node.ravel().tolist(), strict=True)}:
        here = (ranks == n) & (per_node == inside)
        factor, inner = float(bus_factor(operation, n)), float(bus_factor(operation, inside))
        per_byte = factor / inner if inner else 0.0

        def at_rate(
            size: Floats, rate: float, n: float = n, inside: int = inside, per_byte: float = per_byte
        ) -> Floats:
            within = _in_node(laws, operation, size * per_byte, np.full(size.shape, float(inside)))
            all_of = np.full(size.shape, n), np.full(size.shape, inside)
            return internode.between_nodes_s(operation, size, *all_of, within, rate)

        if n > inside:
            seconds[here] = internode.through_points(at_rate, network, factor, size[here])
    return seconds


def _interval(
    laws: CollectiveLaws, operation: str, size: Floats, inside: Floats
) -> tuple[Floats, Floats, float | None]:
    """Factors to the ends of the interval within a node, and the worst median error in % of what was requested."""
    low, high, worst = np.zeros(size.shape), np.zeros(size.shape), 0.0
    curve = LIKE.get(operation, operation)
    known = np.array(sorted(n for name, n in laws.intervals if name == curve))
    for n in np.unique(inside[inside > 1]):
        nearest = int(known[np.argmin(np.abs(np.log(n / known)))])
        ends = [laws.intervals[curve, nearest]]
        if n not in known:
            ends.append(BETWEEN_RANKS if known[0] < n < known[-1] else BEYOND_RANKS)
        if operation in LIKE:
            ends.append(OTHER_OPERATION)
        lows, highs, percents = zip(*ends, strict=True)
        low[inside == n], high[inside == n] = min(lows), max(highs)
        worst = max(worst, *percents)
        if apart := laws.apart(n):
            here, worst = inside == n, max(worst, apart[1])
            around = apart[0].around(1.0, np.maximum(size[here], 1.0))
            low[here], high[here] = np.minimum(low[here], np.log(around[0])), np.maximum(high[here], np.log(around[1]))
    if not np.any(inside > 1):
        return np.exp(low), np.exp(high), None
    return np.exp(low), np.exp(high), worst
