"""The time of a collective on a named GPU: measured curves of its kind of link, and a network beyond one node.

Curves are straight lines over the size, joined, one for each operation and number of ranks. One line misses by several
times as much, because protocol and algorithm change with the size. What was never measured on a GPU is read off the
nearest one that was, its bytes scaled by what the two links carry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.hardware.links import INFINIBAND, pcie_of
from pyperf_suite.laws.calibration import (
    Calibration,
    CalibrationBlock,
    all_shipped,
    log_ratio,
    most_alike,
    shipped_calibration,
    spec_of,
)
from pyperf_suite.laws.explained import Causes, Explained
from pyperf_suite.laws.traffic import OPERATIONS, bus_factor

MOST_SEGMENTS = 8
FOLDS = 5
# Huber's constant: a residual beyond 1.345 σ counts by its size, not its square; 95 % efficient on normal noise.
HUBER = 1.345
REWEIGHTINGS = 4
# Below this relative scatter every point is trusted: a clean curve must not call its own bends outliers.
LEAST_SCATTER = 0.02
# Times scatter: another segment has to lower the held-out error by more than this share of it, and of the time.
WORTH_A_SEGMENT = 0.05
LEAST_GAIN = 0.001


@dataclass(frozen=True)
class Segment:
    """One straight line: seconds = alpha_s + beta_s_per_byte · S for S from `from_bytes` up to `to_bytes`."""

    from_bytes: float
    to_bytes: float
    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True)
class PiecewiseAlphaBeta:
    """seconds(S) = start + Σ βᵢ · (what of S lies in segment i): continuous, and never less for more bytes.

    `bends_bytes` are the sizes between segments, ascending; there is one more of `betas_s_per_byte`. The first segment
    begins at no bytes, where the time is `start_s`; the last one goes on without end. `held_out_error` is the median
    relative error on sizes that were left out of the fit, None where too few sizes were measured to leave any out.
    """

    start_s: float
    bends_bytes: tuple[float, ...]
    betas_s_per_byte: tuple[float, ...]
    held_out_error: float | None = None

    def seconds(self, size_bytes: ArrayLike) -> NDArray[np.float64]:
        """Predicted seconds of messages of `size_bytes`, the S of `traffic.message_bytes`."""
        size = np.asarray(size_bytes, dtype=np.float64)
        knots = np.array([0.0, *self.bends_bytes])
        at_knots = self.start_s + _lengths(knots, self.bends_bytes) @ np.array(self.betas_s_per_byte)
        beyond = np.maximum(size - knots[-1], 0.0) * self.betas_s_per_byte[-1]
        return np.asarray(np.interp(size, knots, at_knots) + beyond)

    def segments(self) -> tuple[Segment, ...]:
        """The straight lines with their own α, the time at which each would meet the axis; smallest sizes first."""
        edges = (0.0, *self.bends_bytes, np.inf)
        return tuple(
            Segment(low, high, float(self.seconds(low)) - beta * low, beta)
            for (low, high), beta in zip(pairwise(edges), self.betas_s_per_byte, strict=True)
        )

    @classmethod
    def fit(cls, size_bytes: ArrayLike, seconds: ArrayLike, most_segments: int = MOST_SEGMENTS) -> PiecewiseAlphaBeta:
        """Fit to measured times, one per size or several.

        Bends are log-spaced; as many as pay on sizes left out. The fit is non-negative least squares on relative
        residuals, reweighted after Huber, so that 5 us counts as much as 50 ms and one outlier bends nothing.

        Raises:
            ValueError: no measurements, a size below 0 or a time that is not positive.
        """
        size, time = _checked_times(size_bytes, seconds)
        errors = held_out_errors(size, time, most_segments)
        stated = float(np.median(errors)) if errors.size else None
        return cls(*_fit_segments(size, time, _choose_segments(size, time, most_segments)), stated)


@dataclass(frozen=True)
class AlphaBetaOverRanks:
    """One operation's law at several numbers of ranks, and between them.

    Between two measured numbers of ranks the time at a size is drawn straight over log n. Beyond them the nearest
    curve is read at the size with as many bytes on the bus, which scales bandwidth and not latency.

    On the published tables of ai-dynamo/aiconfigurator (095f58a5), all GPUs and libraries, the median error is 9 % for
    4 ranks from 2 and 8, and 16 % for 8 from 2 and 4: beyond what was measured this is a first guess.
    """

    operation: str
    curves: Mapping[int, PiecewiseAlphaBeta]

    def seconds(self, size_bytes: ArrayLike, ranks: int) -> NDArray[np.float64]:
        """Predicted seconds of messages of `size_bytes` among that many ranks; 1 rank moves nothing in no time."""
        size = np.asarray(size_bytes, dtype=np.float64)
        if ranks == 1:
            return np.zeros(size.shape)
        known = np.array(sorted(self.curves))
        if not known[0] <= ranks <= known[-1]:
            nearest = int(known[0] if ranks < known[0] else known[-1])
            scale = bus_factor(self.operation, ranks) / bus_factor(self.operation, nearest)
            return self.curves[nearest].seconds(size * scale)
        above = int(known[np.searchsorted(known, ranks)])
        if above == ranks:
            return self.curves[above].seconds(size)
        below = int(known[np.searchsorted(known, ranks) - 1])
        share = np.log(ranks / below) / np.log(above / below)
        return (1 - share) * self.curves[below].seconds(size) + share * self.curves[above].seconds(size)

    @classmethod
    def fit(cls, operation: str, size_bytes: ArrayLike, ranks: ArrayLike, seconds: ArrayLike) -> AlphaBetaOverRanks:
        """Fit a curve to the times at each number of ranks, of 2 and more; raises ValueError where there are none."""
        size, count, time = (np.asarray(column) for column in (size_bytes, ranks, seconds))
        curves = {int(n): PiecewiseAlphaBeta.fit(size[count == n], time[count == n]) for n in np.unique(count) if n > 1}
        if not curves:
            raise ValueError(f"No times of {operation} among 2 ranks or more were given.")
        return cls(operation, curves)


def seconds_of(laws: Mapping[str, AlphaBetaOverRanks]) -> Callable[[str, float, int], float]:
    """The laws of several operations as the one function that `traffic` asks: operation, S in bytes, ranks -> seconds.

    It raises UserError for an operation that has no law.
    """

    def seconds(operation: str, size_bytes: float, ranks: int) -> float:
        if operation not in laws:
            known = ", ".join(sorted(laws)) or "nothing"
            raise UserError(f"{operation} was not measured, only {known}: measure it for a verdict that needs it.")
        return float(laws[operation].seconds(size_bytes, ranks))

    return seconds


def held_out_errors(
    size_bytes: ArrayLike, seconds: ArrayLike, most_segments: int = MOST_SEGMENTS
) -> NDArray[np.float64]:
    """|predicted − measured| / measured at every measured point, each by a law that never saw its size.

    The sizes are dealt out in order to five folds; for each fold a law is fitted to the others' sizes, which choose its
    segments among themselves too. The smallest and the largest size are extrapolated to. Empty below five sizes.
    Raises ValueError as `PiecewiseAlphaBeta.fit` does.
    """
    size, time = _checked_times(size_bytes, seconds)
    errors = np.full(size.shape, np.nan)
    for held_out in _folds(size):
        seen_size, seen_time = size[~held_out], time[~held_out]
        chosen = _choose_segments(seen_size, seen_time, most_segments)
        law = PiecewiseAlphaBeta(*_fit_segments(seen_size, seen_time, chosen))
        errors[held_out] = np.abs(law.seconds(size[held_out]) / time[held_out] - 1)
    return errors[~np.isnan(errors)]


def _choose_segments(size: NDArray[np.float64], time: NDArray[np.float64], most: int) -> int:
    folds = list(_folds(size))
    if not folds:
        return 1
    chosen, least = 1, 1.0
    # At least two sizes a segment: one that no size lies in would say nothing.
    for segments in range(1, min(most, np.unique(size).size // 2) + 1):
        errors = []
        for held_out in folds:
            law = PiecewiseAlphaBeta(*_fit_segments(size[~held_out], time[~held_out], segments))
            predicted, measured = law.seconds(size[held_out]), time[held_out]
            # Relative to the larger of the two: no single size can outweigh the others, however far off.
            errors.append(np.abs(predicted - measured) / np.maximum(predicted, measured))
        error = float(np.mean(np.concatenate(errors)))
        if error < least - max(WORTH_A_SEGMENT * least, LEAST_GAIN):
            chosen, least = segments, error
    return chosen


def _fit_segments(
    size: NDArray[np.float64], time: NDArray[np.float64], segments: int
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    from scipy.optimize import nnls

    smallest = max(float(size.min()), 1.0)
    bends = tuple(np.geomspace(smallest, max(float(size.max()), smallest), segments + 1)[1:-1].tolist())
    features = np.column_stack([np.ones_like(size), _lengths(size, bends)]) / time[:, None]
    # Columns differ by ten orders of magnitude; scaled ones keep the solver's tolerance meaningful.
    scale = np.maximum(features.max(axis=0), np.finfo(np.float64).tiny)
    weights = np.ones_like(time)
    for _ in range(REWEIGHTINGS):
        root = np.sqrt(weights)
        solution, _ = nnls(features / scale * root[:, None], root)
        residuals = np.abs(features / scale @ solution - 1)
        scatter = max(1.4826 * float(np.median(residuals)), LEAST_SCATTER)
        before, weights = weights, np.minimum(1.0, HUBER * scatter / np.maximum(residuals, HUBER * scatter))
        if np.array_equal(before, weights):
            break
    start, *betas = (float(constant) for constant in solution / scale)
    return start, bends, tuple(betas)


def _lengths(size: NDArray[np.float64], bends: tuple[float, ...]) -> NDArray[np.float64]:
    """How many bytes of each size lie in each segment: one more dimension than `size`, along the segments."""
    low = np.array([0.0, *bends])
    high = np.array([*bends, np.inf])
    return np.clip(size[..., None] - low, 0.0, high - low)


def _folds(size: NDArray[np.float64]) -> Iterator[NDArray[np.bool_]]:
    """Which points are left out in turn: whole sizes, dealt out in order; nothing where there are too few."""
    distinct, position = np.unique(size, return_inverse=True)
    if distinct.size >= FOLDS:
        yield from (position % FOLDS == fold for fold in range(FOLDS))


def _checked_times(size_bytes: ArrayLike, seconds: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    size, time = (np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in (size_bytes, seconds))
    if size.size == 0:
        raise ValueError("A law cannot be fitted to no measurements.")
    if not (np.all(size >= 0) and np.all(time > 0) and np.all(np.isfinite(time))):
        raise ValueError("A law of time over size needs sizes of at least 0 bytes and times above 0 seconds.")
    return size, time


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

# Median error of a GPU's curves read off another's, each left out (tools/fit/collectives.py): H100 from H200 and
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
        op: one of `traffic.OPERATIONS`; "allreduce" and "alltoall" do as well.
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
    return spec.link_bytes_per_s or pcie_of(spec.compute_capability).gb_per_s * 1e9


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


def unpack_laws(block: CalibrationBlock) -> CollectiveLaws:
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

    PCIe never stands for NVLink if anything else is known; of several, that whose link is nearest in speed, then
    the one of the same architecture. Raises UserError where none is known.
    """
    link = link_bytes_per_s(spec)
    nearest = most_alike(
        spec,
        known,
        "collectives are",
        lambda other: (
            has_nvlink(other) != has_nvlink(spec),
            round(log_ratio(link_bytes_per_s(other), link), 2),
            other.architecture != spec.architecture,
        ),
    )
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

    Trees send as little as can be, (k−1)/(n−1) of the bytes on the bus (`traffic.inter_node_rate`); of rings, one
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
