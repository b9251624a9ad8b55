"""The time of a collective on a named GPU: measured curves of its kind of link, and a network beyond one node.

Curves are straight lines over the size, joined (`alpha_beta`), one for each operation and number of ranks. What was
never measured on a GPU is read off the nearest one that was, its bytes scaled by what the two links carry.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.hardware.links import INFINIBAND, pcie_of
from pyperf_suite.laws.calibration import Block, Calibration, all_shipped, shipped_calibration, spec_of
from pyperf_suite.laws.explained import Causes, Explained
from pyperf_suite.laws.network.alpha_beta import AlphaBetaOverRanks, PiecewiseAlphaBeta
from pyperf_suite.laws.network.communication import OPERATIONS, bus_factor

BLOCK = "collectives"
# Operations that no table has, read off a curve that loads the links alike, at as many bytes on the bus.
LIKE = {
    "broadcast": "all_gather",
    "gather": "all_gather",
    "scatter": "reduce_scatter",
    "reduce": "reduce_scatter",
    "send_receive": "all_to_all",
    "all_to_all_v": "all_to_all",
}
# Every rank's blocks go to every other, so no rank relays what another sends over the network.
UNRELAYED = ("all_to_all", "all_to_all_v")
# One step of a tree between nodes (NCCL src/graph/tuning.cc, latency of LL over the network).
NETWORK_STEP_S = 5e-6
RANKS_OF_A_NODE = 8
# What the maker's servers have for each GPU of that architecture; older ones and unknown ones are reckoned as HDR.
NETWORK_OF = {"Hopper": INFINIBAND["NDR"], "Blackwell": INFINIBAND["NDR"], "Blackwell Ultra": INFINIBAND["XDR"]}
# From here up links are NVLink or its like; below a GPU sends over PCIe, where curves have another shape.
FASTEST_PCIE_BYTES_PER_S = 130e9

# Median error of a GPU's curves read off another's, each left out (advise.calibrate.collectives): H100 from H200 and
# back, A100 and B200 from the nearest over NVLink. No two that were measured are linked by PCIe, so that the error of
# L40S read off A100 stands for all whose curves come from PCIe, or from another kind of link.
ERROR_PERCENT_SAME_ARCHITECTURE = 3.0
ERROR_PERCENT_OTHER_NVLINK = 29.0
ERROR_PERCENT_OTHER_LINK = 69.0


@dataclass(frozen=True)
class CollectiveLaws:
    """The curves of one GPU by operation.

    `error_percent` is each curve's own median error, by operation and ranks: on sizes left out where the curve was
    measured, on whole curves left out where it was inferred; `inferred` names the latter. `speed_up` is how much more
    the GPU's link carries than that of the GPU whose curves these are, and `transferred_error_percent` how far such
    curves were off where a GPU with curves of its own was left out; None where the curves are the GPU's own.
    """

    curves: Mapping[str, AlphaBetaOverRanks]
    error_percent: Mapping[tuple[str, int], float]
    inferred: frozenset[tuple[str, int]]
    fitted_bytes: tuple[float, float]
    origin: str
    speed_up: float = 1.0
    transferred_error_percent: float | None = None


def collective_time(
    gpu: str | GpuSpec | Calibration,
    op: str,
    nbytes: ArrayLike,
    ranks: ArrayLike,
    ranks_per_node: ArrayLike | None = None,
    network_bytes_per_s: float | None = None,
) -> Explained:
    """Seconds of NCCL's `op` for messages of `nbytes` (the S of nccl-tests) among `ranks` GPUs; arrays broadcast.

    Beyond one node each GPU sends its share over the network while the node works: the slower of both, and the steps of
    a tree. The parts are ideal (bytes on the bus at the link's peak), launch (the time of no bytes), bandwidth (what
    the link falls short of its peak) and network (what lies beyond a node).

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration` with a block "collectives".
        op: one of `communication.OPERATIONS`; "allreduce" and "alltoall" do as well.
        nbytes: bytes, not negative.
        ranks: at least 1; among 1 there is nothing to do and no time passes.
        ranks_per_node: ranks fill nodes of so many one after the other; by default 8, for GB200 and GB300 72. An array
            broadcasts too.
        network_bytes_per_s: what each GPU sends out of its node in one direction; by default as the maker's servers.

    Raises:
        UserError: an unknown GPU or operation, negative bytes, less than one rank, or a network that carries nothing.
    """
    spec = spec_of(gpu)
    # A short run of one's own corrects products and attention alone.
    own = gpu.blocks.get(BLOCK) if isinstance(gpu, Calibration) else None
    laws = _shipped_laws(spec) if own is None else unpack_laws(own)
    operation = _operation(op)
    usual = 72 if spec.name.startswith("GB") else RANKS_OF_A_NODE
    per_node = np.asarray(usual if ranks_per_node is None else ranks_per_node)
    size, count, per_node = np.broadcast_arrays(*_checked(operation, nbytes, ranks), per_node)
    network = network_bytes_per_s or usual_network_bytes_per_s(spec)
    if np.any(per_node < 1) or network <= 0:
        fewest = np.min(per_node)
        raise UserError(f"A network of {network:g} bytes/s for nodes of {fewest} ranks carries nothing: give more.")
    inside = np.minimum(count, per_node)
    # As many bytes on each rank's bus as the whole operation puts there, among the ranks of one node.
    factor, inner_factor = bus_factor(operation, count), bus_factor(operation, inside)
    inner_size = np.where(inside > 1, size * factor / np.where(inner_factor > 0, inner_factor, 1.0), 0.0)
    in_node = _in_node(laws, operation, inner_size, inside)
    outside = _over_network(operation, size * factor, count, per_node, network)
    seconds = np.maximum(in_node, outside) + _tree_s(operation, count, per_node)

    def parts() -> dict[str, NDArray[np.float64]]:
        launch = _in_node(laws, operation, np.zeros_like(size), inside)
        ideal = np.where(inside > 1, size * factor / link_bytes_per_s(spec), 0.0)
        bandwidth = in_node - launch - ideal
        return {"ideal": ideal, "launch": launch, "bandwidth": bandwidth, "network": seconds - in_node}

    curve = LIKE.get(operation, operation)
    known = list(laws.curves[curve].curves)
    inferred = np.isin(inside, [n for name, n in laws.inferred if name == curve])
    unseen = operation in LIKE or laws.transferred_error_percent is not None
    beyond = (inner_size < laws.fitted_bytes[0]) | (inner_size > laws.fitted_bytes[1]) | ~np.isin(inside, known)
    return Explained(
        seconds,
        Causes(parts),
        (count > 1) & (unseen | beyond | inferred | (count > per_node)),
        _error_percent(laws, curve, inside),
        laws.origin,
    )


def usual_network_bytes_per_s(spec: GpuSpec) -> float:
    """What the maker's servers have for each GPU to send out of its node, in one direction, at the peak."""
    return NETWORK_OF.get(spec.architecture, INFINIBAND["HDR"]).gb_per_s * 1e9


def link_bytes_per_s(spec: GpuSpec) -> float:
    """What a GPU's links to others carry in one direction: NVLink, or the PCIe that it is made for."""
    return spec.link_bytes_per_s or pcie_of(spec.compute_capability or (8, 0)).gb_per_s * 1e9


def has_nvlink(spec: GpuSpec) -> bool:
    """Whether all GPUs of a node reach each other over NVLink or its like; a bridge between two does not count."""
    return link_bytes_per_s(spec) > FASTEST_PCIE_BYTES_PER_S


def pack_curves(
    curves: Mapping[tuple[str, int], PiecewiseAlphaBeta],
    inferred: frozenset[tuple[str, int]],
    error_percent: Mapping[tuple[str, int], float],
) -> dict[str, NDArray[np.generic]]:
    """Curves by operation and ranks as the arrays of a calibration's block, one row a curve, ragged ends NaN."""
    rows = sorted(curves)
    most = max(len(curve.betas_s_per_byte) for curve in curves.values())
    bends, betas = np.full((len(rows), most - 1), np.nan), np.full((len(rows), most), np.nan)
    for row, key in enumerate(rows):
        curve = curves[key]
        bends[row, : len(curve.bends_bytes)] = curve.bends_bytes
        betas[row, : len(curve.betas_s_per_byte)] = curve.betas_s_per_byte
    return {
        "operation": np.array([operation for operation, _ in rows]),
        "ranks": np.array([ranks for _, ranks in rows]),
        "start_s": np.array([curves[key].start_s for key in rows]),
        "bends_bytes": bends,
        "betas_s_per_byte": betas,
        "inferred": np.array([key in inferred for key in rows]),
        "error_percent": np.array([error_percent[key] for key in rows]),
    }


def unpack_laws(block: Block) -> CollectiveLaws:
    """The inverse of `pack_curves`, with the block's range and origin."""
    by_operation: dict[str, dict[int, PiecewiseAlphaBeta]] = {}
    errors: dict[tuple[str, int], float] = {}
    inferred = set()
    columns = ("operation", "ranks", "start_s", "bends_bytes", "betas_s_per_byte", "inferred", "error_percent")
    for name, n, start, bends, betas, is_inferred, error in zip(*(block.arrays[c] for c in columns), strict=True):
        key = (str(name), int(n))
        given_bends, given_betas = (tuple(row[~np.isnan(row)].tolist()) for row in (bends, betas))
        curve = PiecewiseAlphaBeta(float(start), given_bends, given_betas, float(error) / 100)
        by_operation.setdefault(key[0], {})[key[1]] = curve
        errors[key] = float(error)
        if is_inferred:
            inferred.add(key)
    laws = {name: AlphaBetaOverRanks(name, curves) for name, curves in by_operation.items()}
    return CollectiveLaws(laws, errors, frozenset(inferred), block.fitted_range["nbytes"], block.origin)


def transferred_laws(spec: GpuSpec, known: Mapping[str, CollectiveLaws]) -> CollectiveLaws:
    """The laws of the GPU, of those known by name, that is linked most alike, for the bytes that `spec`'s link carries.

    NVLink is never told from PCIe unless nothing else is known; of several, that whose link is nearest in speed, then
    the one of the same architecture. Raises UserError where none is known.
    """
    if not known:
        raise UserError(f"No GPU's collectives are calibrated, so nothing can be told of {spec.name}'s: calibrate one.")
    link = link_bytes_per_s(spec)

    def unlikeness(name: str) -> tuple[bool, float, bool, str]:
        other = find_gpu(name)
        apart = round(abs(float(np.log(link_bytes_per_s(other) / link))), 2)
        return has_nvlink(other) != has_nvlink(spec), apart, other.architecture != spec.architecture, name

    nearest = find_gpu(min(known, key=unlikeness))
    laws = known[nearest.name]
    if nearest.architecture == spec.architecture:
        error = ERROR_PERCENT_SAME_ARCHITECTURE
    else:
        error = ERROR_PERCENT_OTHER_NVLINK if has_nvlink(spec) and has_nvlink(nearest) else ERROR_PERCENT_OTHER_LINK
    return replace(
        laws,
        origin=f"read off {nearest}, whose curves are from {laws.origin}",
        speed_up=link / link_bytes_per_s(nearest),
        transferred_error_percent=error,
    )


@functools.cache
def _shipped_laws(spec: GpuSpec) -> CollectiveLaws:
    calibration = shipped_calibration(spec.name)
    # A GPU that was given another link than its maker's is read off whoever has one like that.
    as_made = calibration is not None and spec.link_bytes_per_s == find_gpu(spec.name).link_bytes_per_s
    if calibration is not None and as_made and BLOCK in calibration.blocks:
        return unpack_laws(calibration.block(BLOCK))
    known = {shipped.gpu: unpack_laws(shipped.block(BLOCK)) for shipped in all_shipped() if BLOCK in shipped.blocks}
    return transferred_laws(spec, known)


def _operation(op: str) -> str:
    name = {"allreduce": "all_reduce", "alltoall": "all_to_all", "allgather": "all_gather"}.get(op, op)
    if name not in OPERATIONS:
        raise UserError(f"Unknown collective {op!r}: choose from {', '.join(OPERATIONS)}.")
    return name


def _checked(operation: str, nbytes: ArrayLike, ranks: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    size, count = np.broadcast_arrays(np.asarray(nbytes, dtype=np.float64), np.asarray(ranks, dtype=np.float64))
    if not (np.all(np.isfinite(size)) and np.all(size >= 0)):
        raise UserError(f"{operation} of {np.min(size):g} bytes was asked for: give sizes of 0 bytes and more.")
    if not np.all(np.isfinite(count)) or np.any(count < 1):
        raise UserError(f"{operation} among {np.min(count):g} ranks was asked for: give 1 rank or more.")
    return size, count


def _in_node(
    laws: CollectiveLaws, operation: str, size: NDArray[np.float64], ranks: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds within a node. A faster link carries more bytes in the same time; the launch stays as it was."""
    curve = LIKE.get(operation, operation)
    seconds = np.zeros(size.shape)
    for n in np.unique(ranks):
        if n > 1:
            alike = bus_factor(operation, n) / bus_factor(curve, n) / laws.speed_up
            here = ranks == n
            seconds[here] = laws.curves[curve].seconds(size[here] * alike, int(n))
    return seconds


def _over_network(
    operation: str,
    bus_bytes: NDArray[np.float64],
    ranks: NDArray[np.float64],
    per_node: NDArray[np.int64],
    network: float,
) -> NDArray[np.float64]:
    """Seconds of each GPU's share of what crosses between nodes.

    Trees send as little as can be, (k−1)/(n−1) of the bytes on the bus (`communication.inter_node_rate`); of rings, one
    for each GPU of a node, each crosses once.
    """
    nodes = np.ceil(ranks / per_node)
    if operation == "all_reduce":
        share = (nodes - 1) / np.maximum(ranks - 1, 1)
    elif operation in UNRELAYED:
        share = (ranks - per_node) / np.maximum(ranks - 1, 1)
    else:
        share = 1 / per_node
    return np.where(nodes > 1, bus_bytes * share / network, 0.0)


def _tree_s(operation: str, ranks: NDArray[np.float64], per_node: NDArray[np.int64]) -> NDArray[np.float64]:
    steps = np.ceil(np.log2(np.ceil(ranks / per_node)))
    return NETWORK_STEP_S * steps * (2 if operation == "all_reduce" else 1)


def _error_percent(laws: CollectiveLaws, curve: str, inside: NDArray[np.float64]) -> float | None:
    """The worst median error among the curves that an answer was read off, each of the nearest measured ranks."""
    known = np.array(sorted(laws.curves[curve].curves))
    asked = inside[inside > 1]
    if not asked.size:
        return None
    nearest = known[np.argmin(np.abs(np.log(np.unique(asked)[:, None] / known)), axis=1)]
    return max(laws.transferred_error_percent or 0.0, *(laws.error_percent[curve, int(n)] for n in nearest))
