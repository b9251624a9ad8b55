"""How long the experts of one MoE layer take on one rank: two grouped products, and ordering tokens by expert.

The law counts what routing leaves a rank (token-expert pairs, experts with a token, their tiles) and prices tiles,
weights read, and tokens moved; a smooth factor over these same figures, fitted to published tables, is what the
library makes of that. There is a law for each library, as their kernels differ by up to 3x.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.laws import transfers
from pyperf_suite.planner.laws.calibration import Band, CalibrationBlock, Gpu, correction_of, outside, spec_of, stated
from pyperf_suite.planner.laws.explained import Causes, Explained, validated_sizes
from pyperf_suite.planner.laws.gemm import Rates, joined, waited

Floats = NDArray[np.float64]

LAW = "grouped_gemm"
# Which block prices a dtype; "fp8" has one scale a tensor, "fp8_block" one for each 128 x 128 weights.
BLOCK_OF = {"bf16": f"{LAW}_bf16", "fp16": f"{LAW}_bf16", "fp8": f"{LAW}_fp8", "fp8_block": f"{LAW}_fp8_block"}
UNITS_OF = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp8_block": "fp8"}
BALANCED, POWER_LAW = "balanced", "power_law_"
# Rows and columns of a tile. Most libraries take the best of a menu for each shape; SGLang's Triton kernel, where it is
# not tuned, the small one for no more tokens than experts on the rank, else the large one, two to a multiprocessor.
MENU = ((16, 128), (32, 128), (64, 128), (128, 128), (256, 128))
UNTUNED = ((16, 32), (64, 64))
HEIGHTS = (16, 32, 64, 128, 256)
DEPTH_STEP = 64
L2_BYTES_PER_CLOCK = 64.0
# Backward computes two products for each of forward's, for the data and for the weights. No table has it: what it may
# take less or more than twice forward's is an allowance, on top of forward's interval.
BACKWARD_PRODUCTS, BACKWARD_ALLOWANCE = 2.0, 1.5
# Half the width of the interval, as a logarithm, next to that of model shapes left out, for a size beyond those fitted:
# rows of most tokens, choices or widths left out of the fit are covered to 94 % by it, and to 89 without.
BEYOND_SIZES = 0.2
PIECE = 2048


@dataclass(frozen=True)
class ExpertWork:
    """What the experts on one rank are given; every field has a value for each block of experts.

    `width` is an expert's on the rank (expert_ffn / tp), `products` 3 with a gate, else 2. `pairs` of a token and an
    expert land on the rank, on `active` of its experts, `busiest` on one of them at most; `tiles[:, i]` are the tiles
    of `HEIGHTS[i]` rows that they fill.
    """

    tokens: Floats
    hidden: Floats
    width: Floats
    top_k: Floats
    experts: Floats
    ep: Floats
    products: Floats
    pairs: Floats
    active: Floats
    busiest: Floats
    tiles: Floats

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> ExpertWork:
        return ExpertWork(*(getattr(self, each.name)[rows] for each in fields(self)))

    @property
    def weights(self) -> Floats:
        return self.active * self.hidden * self.width * self.products

    @property
    def flop(self) -> Floats:
        """Of all products, without padding."""
        return 2.0 * self.pairs * self.hidden * self.width * self.products

    def layers(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """Columns and depth of the two grouped products: up (with its gate) and down."""
        return ((self.products - 1) * self.width, self.hidden), (self.hidden, self.width)

    def features(self, seconds: Floats) -> Floats:
        """Base-2 logarithms of what a library's factor may depend on, [rows, `FEATURES`]."""
        whole = np.maximum(np.floor(self.width), 1).astype(np.int64)
        values = {
            "rows": self.pairs / self.active,
            "active": self.active,
            "local": self.experts / self.ep,
            "tokens": self.tokens,
            "width": self.width,
            "hidden": self.hidden,
            "ep": self.ep,
            "top_k": self.top_k,
            "imbalance": self.busiest * self.active / self.pairs,
            "gate": self.products - 1,
            "weights": self.weights,
            "pairs": self.pairs,
            "seconds": seconds * 1e6,
            "alignment": np.minimum(64, whole & -whole),
            "copies": self.tokens * self.top_k,
        }
        return np.log2(np.stack([values[name] for name in FEATURES], axis=1))


FEATURES = ("rows", "active", "local", "tokens", "width", "hidden", "ep", "top_k", "imbalance", "gate", "weights",
            "pairs", "seconds", "alignment", "copies")  # fmt: skip


@dataclass(frozen=True)
class ExpertCosts:
    """What a library's kernels reach. Shares are of the data sheet's rates; `tile_rates` has one for each tile.

    `memory_shares` are one, or SGLang's of its small tile, its large one and of experts without a gate.
    `wave_smoothing` joins whole and broken waves, `overlap` compute and memory; `copy_costs` are, of the memory's rate,
    what moving pairs over hidden and width, and copies of all the group's tokens over hidden and width, costs.
    """

    tile_rates: Floats
    memory_shares: Floats
    copy_costs: Floats
    launch_s: float
    prologue_clocks: float
    wave_smoothing: float
    overlap: float
    activation_share: float
    token_s: float
    copy_s: float
    expert_s: float
    l2_share: float
    resident_share: float

    def as_arrays(self) -> dict[str, Floats]:
        """As a calibration's block keeps it: arrays by name, and all numbers in one more."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        return {**arrays, "numbers": np.array([value for name, value in values.items() if name not in arrays])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> ExpertCosts:
        rates, shares, copies = (arrays[name] for name in ("tile_rates", "memory_shares", "copy_costs"))
        return cls(rates, shares, copies, *arrays["numbers"].tolist())


@dataclass(frozen=True)
class LibraryFactor:
    """The logarithm of a factor: a Gaussian process over features (kriging), read off a few hundred nodes.

    It is the sum of processes, each with a variance and, for every feature, one over the length in doublings over which
    likeness decays; 0 where it does not depend on the feature. Far from all nodes the factor goes to 1.
    """

    nodes: Floats
    weights: Floats
    variances: Floats
    decays: Floats

    def __call__(self, features: Floats) -> Floats:
        factor = np.empty(len(features))
        for start in range(0, len(features), PIECE):
            piece = slice(start, start + PIECE)
            factor[piece] = self.likeness(features[piece]) @ self.weights
        return factor

    def likeness(self, features: Floats) -> NDArray[np.float32]:
        """Of each row with each node, in single precision: a million rows take seconds."""
        total = np.zeros((len(features), len(self.nodes)), dtype=np.float32)
        for variance, decay in zip(self.variances, self.decays, strict=True):
            used = decay > 0
            middle = self.nodes[:, used].mean(axis=0)
            here, there = (
                ((each[:, used] - middle) * decay[used]).astype(np.float32) for each in (features, self.nodes)
            )
            exponent = here @ there.T
            exponent -= (here**2).sum(axis=1)[:, None] / 2
            exponent -= (there**2).sum(axis=1)[None, :] / 2
            total += np.float32(variance) * np.exp(np.minimum(exponent, 0, out=exponent), out=exponent)
        return total

    def as_arrays(self) -> dict[str, NDArray[np.generic]]:
        """As a calibration's block keeps it; nodes are in steps of 1/256 of a doubling."""
        return {
            "nodes": np.round(self.nodes * NODE_STEPS).astype(np.int16),
            "weights": self.weights.astype(np.float32),
            "variances": self.variances,
            "decays": self.decays,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> LibraryFactor:
        nodes = np.asarray(arrays["nodes"], dtype=np.float64) / NODE_STEPS
        return cls(nodes, *(np.asarray(arrays[name], dtype=np.float64) for name in ("weights", "variances", "decays")))


NODE_STEPS = 256


def counted_seconds(costs: ExpertCosts, rates: Rates, work: ExpertWork, library: str) -> tuple[Floats, ...]:
    """Seconds by the law of tiles, and of them: compute, products with what memory adds, and routing.

    The first is products, routing and launch together.
    """
    memory_shares = costs.memory_shares[0]
    if library == "sglang":
        small, large, ungated = costs.memory_shares
        memory_shares = np.where(work.products == 2, ungated, _by_tokens(work, small, large))
    weight_s = _weight_seconds(costs, rates, work, memory_shares)
    compute, products = np.zeros(work.tokens.shape), np.zeros(work.tokens.shape)
    for columns, depth in work.layers():
        tiles_s = _tile_seconds(costs, rates, work, library, columns, depth)
        moved = work.pairs * (columns + depth) * rates.operand_bytes
        memory_s = weight_s * work.active * columns * depth + moved / (
            costs.activation_share * rates.memory_bytes_per_s
        )
        compute += tiles_s
        products += joined(tiles_s, memory_s, costs.overlap)
    copies = work.tokens * work.top_k
    moved = np.stack([work.pairs * work.hidden, work.pairs * work.width, copies * work.hidden, copies * work.width])
    routing = costs.copy_costs @ moved * 2.0 / rates.memory_bytes_per_s
    routing += costs.token_s * work.tokens + costs.copy_s * copies + costs.expert_s * work.experts
    return products + routing + costs.launch_s, compute, products, routing


def _tile_seconds(
    costs: ExpertCosts, rates: Rates, work: ExpertWork, library: str, columns: Floats, depth: Floats
) -> Floats:
    untuned = library == "sglang"
    resident = 2 if untuned else 1
    steps = np.ceil(depth / DEPTH_STEP) * DEPTH_STEP
    seconds = []
    for (height, width), rate in zip(UNTUNED if untuned else MENU, costs.tile_rates, strict=True):
        waves = work.tiles[:, HEIGHTS.index(height)] * np.ceil(columns / width) / (rates.sms * resident)
        tile_s = 2.0 * height * width * steps / (rate * rates.flop_per_s / rates.sms)
        seconds.append(
            waited(waves, costs.wave_smoothing) * resident * (tile_s + costs.prologue_clocks / rates.clock_hz)
        )
    return _by_tokens(work, *seconds) if untuned else np.asarray(np.min(seconds, axis=0))


def _by_tokens(work: ExpertWork, small: ArrayLike, large: ArrayLike) -> Floats:
    """The first where SGLang's untuned kernel takes its small tile, else the second."""
    return np.where(work.tokens <= work.experts / work.ep, small, large)


def _weight_seconds(costs: ExpertCosts, rates: Rates, work: ExpertWork, shares: ArrayLike) -> Floats:
    """Seconds for each weight: those that stay in L2 from one call to the next are read from there."""
    read = work.weights * rates.operand_bytes
    resident = 1.0 / (1.0 + (read / (costs.resident_share * rates.l2_bytes)) ** 3)
    memory = np.asarray(shares) * rates.memory_bytes_per_s
    l2 = np.maximum(costs.l2_share * L2_BYTES_PER_CLOCK * rates.sms * rates.clock_hz, memory)
    return np.asarray(rates.operand_bytes * (resident / l2 + (1 - resident) / memory))


# Draws of a power law are averaged; their figures are kept at powers of two of the tokens.
DRAWS = 32
NODES_OF_TOKENS = 17


def expert_work(
    tokens: ArrayLike,
    hidden: ArrayLike,
    expert_ffn: ArrayLike,
    experts: ArrayLike,
    top_k: ArrayLike,
    ep: ArrayLike = 1,
    tp: ArrayLike = 1,
    balance: ArrayLike = BALANCED,
    gated: ArrayLike = True,
) -> ExpertWork:
    """What the busiest rank is given, as `grouped_gemm_time` takes it; fields are flat. Raises UserError likewise."""
    sizes = validated_sizes("block of experts", tokens=tokens, hidden=hidden, expert_ffn=expert_ffn, experts=experts,
                        top_k=top_k, ep=ep, tp=tp)  # fmt: skip
    kinds = np.asarray(balance, dtype=str), np.asarray(gated)
    tokens, hidden, ffn, experts, top_k, ep, tp, skew, gate = map(np.ravel, np.broadcast_arrays(*sizes, *kinds))
    if np.any(top_k > experts) or np.any(experts % ep != 0):
        raise UserError("Experts have to be at least top_k, and to divide evenly over the ep ranks.")
    figures = np.empty((tokens.size, 3 + len(HEIGHTS)))
    settings = np.stack([experts, ep, top_k], axis=1)
    for kind in np.unique(skew):
        same = skew == kind
        if kind == BALANCED:
            figures[same] = _balanced(tokens[same], *settings[same].T)
            continue
        for setting in np.unique(settings[same], axis=0):
            here = same & (settings == setting).all(axis=1)
            figures[here] = _skewed(tokens[here], setting, _exponent(str(kind)))
    pairs, active, busiest = figures[:, :3].T
    return ExpertWork(
        tokens, hidden, ffn / tp, top_k, experts, ep, np.where(gate, 3.0, 2.0), pairs, active, busiest, figures[:, 3:]
    )


def _exponent(balance: str) -> float:
    try:
        exponent = float(balance.removeprefix(POWER_LAW)) if balance.startswith(POWER_LAW) else 0.0
    except ValueError:
        exponent = 0.0
    if not 1 < exponent <= 4:
        raise UserError(f"There is no balance {balance!r}: choose {BALANCED}, power_law_1.01 or power_law_1.2.")
    return exponent


def _balanced(tokens: Floats, experts: Floats, ep: Floats, top_k: Floats) -> Floats:
    """Tokens spread evenly: pairs, experts with a token, pairs of the busiest, and tiles of each height."""
    pairs = np.maximum(tokens * top_k / ep, 1.0)
    active = np.minimum(experts / ep, pairs)
    few = np.floor(pairs / active)
    more = pairs / active - few
    tiles = [active * ((1 - more) * np.ceil(few / rows) + more * np.ceil((few + 1) / rows)) for rows in HEIGHTS]
    return np.stack([pairs, active, np.ceil(pairs / active), *tiles], axis=1)


def _skewed(tokens: Floats, setting: Floats, exponent: float) -> Floats:
    """The same of the busiest rank under a power law, straight between powers of two of the tokens."""
    experts, ep, top_k = (int(each) for each in setting)
    table, at = _power_law(experts, ep, top_k, exponent), np.log2(tokens)
    figures = np.stack([np.exp(np.interp(at, np.arange(NODES_OF_TOKENS), column)) for column in table.T], axis=1)
    beyond = np.maximum(tokens / 2.0 ** (NODES_OF_TOKENS - 1), 1.0)[:, None]
    return np.asarray(figures * np.where(np.arange(figures.shape[1]) == 1, 1.0, beyond))


@functools.lru_cache(maxsize=4096)
def _power_law(experts: int, ep: int, top_k: int, exponent: float) -> Floats:
    """Logarithms of the mean figures over draws, as ai-dynamo/aiconfigurator draws loads for its tables.

    Loads of experts are independent with density x^-exponent from 1 to 0.8 of the tokens (from 0.01 to 2 where there
    are fewer pairs than experts), scaled to the pairs, each at most the tokens; the rank is the one with the most.
    """
    uniform = np.random.default_rng(0).random((DRAWS, experts))
    table = []
    for tokens in 2.0 ** np.arange(NODES_OF_TOKENS):
        low, high = (1.0, max(0.8 * tokens, 1.001)) if tokens * top_k > experts else (0.01, 2.0)
        ends = low ** (1 - exponent), high ** (1 - exponent)
        loads = ((ends[1] - ends[0]) * uniform + ends[0]) ** (1 / (1 - exponent))
        counts = np.minimum(np.round(loads / loads.sum(axis=1, keepdims=True) * tokens * top_k), tokens)
        order = np.argsort(counts, axis=1, kind="stable")
        missing = tokens * top_k - counts.sum(axis=1)
        for count, least_first, left in zip(counts, order, missing, strict=True):
            if left > 0:  # to those with the fewest, a share each
                free = least_first[count[least_first] < tokens]
                count[free] += left // free.size + (np.arange(free.size) < left % free.size)
                np.minimum(count, tokens, out=count)
            elif left < 0:
                taken = least_first[count[least_first] > 0][: int(-left)]
                count[taken] -= 1
        ranks = counts.reshape(DRAWS, ep, experts // ep)
        busiest = ranks[np.arange(DRAWS), ranks.sum(axis=2).argmax(axis=1)]
        tiles = [np.ceil(busiest / rows).sum(axis=1).mean() for rows in HEIGHTS]
        table.append([busiest.sum(1).mean(), (busiest > 0).sum(1).mean(), busiest.max(1).mean(), *tiles])
    return np.log(np.maximum(table, 1.0))


@dataclass(frozen=True)
class ExpertLaw:
    """What is known of one library's experts on one GPU in one dtype; `like` is the GPU that was measured."""

    gpu: GpuSpec
    like: GpuSpec
    library: str
    dtype: str
    block: CalibrationBlock

    @property
    def transferred(self) -> bool:
        return self.gpu.name != self.like.name

    @property
    def origin(self) -> str:
        moved = f"transferred to {self.gpu.name} by its data sheet from " if self.transferred else ""
        return moved + self.block.origin

    def seconds(self, work: ExpertWork) -> tuple[Floats, tuple[Floats, ...]]:
        """With the library's factor, and what was counted."""
        costs = ExpertCosts.from_arrays(self.block.arrays)
        if self.library == "sglang" and not transfers.have_same_kernels(self.gpu, self.like):  # another without a gate
            costs = replace(costs, memory_shares=costs.memory_shares[[0, 1, 1]])
        rates = Rates.of(self.gpu, UNITS_OF[self.dtype])
        rates = replace(rates, flop_per_s=rates.flop_per_s * transfers.held_down(self.gpu, self.like))
        counted = counted_seconds(costs, rates, work, self.library)
        factor = LibraryFactor.from_arrays(self.block.arrays)
        return counted[0] * np.exp(factor(work.features(counted[0]))), counted

    def around(self, seconds: Floats, work: ExpertWork) -> tuple[Floats, Floats]:
        if self.transferred and not transfers.have_same_kernels(self.gpu, self.like):
            ends = transfers.EXPERTS_OF_OTHER_KERNELS[self.library]
            return seconds * np.exp(ends[0]), seconds * np.exp(ends[1])
        band = Band.from_arrays(self.block.arrays)
        assert band is not None
        low, high = (np.log(end / seconds) for end in band.around(seconds, band_figure(self.library, seconds, work)))
        width = np.where(outside(self.block.fitted_range, vars(work)), BEYOND_SIZES, 0.0)
        if self.transferred:
            width = np.hypot(
                width,
                transfers.EXPERTS_OF_TWIN[self.library]
                if transfers.are_twins(self.gpu, self.like)
                else transfers.SAME_KIND,
            )
        low, high = (np.where(width > 0, np.copysign(np.hypot(side, width), side), side) for side in (low, high))
        return seconds * np.exp(low), seconds * np.exp(high)


def band_figure(library: str, seconds: Floats, work: ExpertWork) -> Floats:
    """What the width of an interval depends on: of TensorRT-LLM the weights read, as large ones are often not tuned."""
    return work.weights if library == "trtllm" else seconds


def expert_law(gpu: Gpu, dtype: str = "bf16", library: str | None = None) -> ExpertLaw:
    """The law of a GPU, or of the one most like it that has tables. Raises UserError where there is none."""
    if dtype not in BLOCK_OF:
        raise UserError(f"No experts were measured in {dtype!r}: choose from {', '.join(BLOCK_OF)}.")
    spec, name = spec_of(gpu), BLOCK_OF[dtype]
    spec.peak(UNITS_OF[dtype])
    calibration, is_own = transfers.find_law(gpu, name, "experts are", library)
    if not is_own and spec.compute_capability is None:
        raise UserError(f"No experts were measured on {spec.name}, or on any GPU like it: there are only NVIDIA's.")
    chosen, like = calibration.library(name, library), spec if is_own else find_gpu(calibration.gpu)
    if (
        not is_own
        and (chosen, dtype) in transfers.EXPERTS_NOT_TRANSFERRED
        and not transfers.have_same_kernels(spec, like)
    ):
        raise UserError(f"{chosen}'s experts in {dtype} were not measured on {spec.name}: ask for fp8_block or trtllm.")
    return ExpertLaw(spec, like, chosen, dtype, calibration.block(f"{name}.{chosen}"))


def grouped_gemm_time(
    gpu: Gpu,
    tokens: ArrayLike,
    hidden: ArrayLike,
    expert_ffn: ArrayLike,
    experts: ArrayLike,
    top_k: ArrayLike,
    dtype: str = "bf16",
    ep: ArrayLike = 1,
    tp: ArrayLike = 1,
    balance: ArrayLike = BALANCED,
    gated: ArrayLike = True,
    backward: bool = False,
    library: str | None = None,
) -> Explained:
    """Seconds of a MoE layer's experts on one rank, the busiest; without its router and without communication.

    Sizes are numbers, or arrays that broadcast together. The parts are `ideal` products at the peak, `kernel` what
    tiles of the library fall short of it, `bandwidth` what reading weights and tokens adds, `routing` ordering tokens
    by expert and adding up what their experts return, `launch`, and `library` what was measured beyond that.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration`.
        tokens: of the whole expert group, that is of all its `ep` ranks together.
        hidden: the model's width.
        expert_ffn: the inner width of one expert, before it is split over `tp`.
        experts: in the layer, on all ranks.
        top_k: experts that each token is sent to.
        dtype: bf16, fp16, fp8 (a scale a tensor) or fp8_block (a scale a block of weights).
        ep: ranks that the experts are split over.
        tp: ranks that each expert is split over.
        balance: "balanced", or "power_law_1.01" or "power_law_1.2" for loads of experts of that density.
        gated: whether up has a gate next to it, so three products and not two.
        backward: backward's time instead, which was never measured: twice forward's products and routing, in an
            interval that is wider by an allowance.
        library: trtllm, sglang or vllm; by default the first of them that was measured.

    Raises:
        UserError: an unknown GPU, dtype, library or balance, sizes that no layer has, or a GPU unlike all measured.
    """
    law = expert_law(gpu, dtype, library)
    work = expert_work(tokens, hidden, expert_ffn, experts, top_k, ep, tp, balance, gated)
    shape = np.broadcast_shapes(
        *(np.shape(size) for size in (tokens, hidden, expert_ffn, experts, top_k, ep, tp, balance, gated))
    )
    forward, (counted, compute, products, routing) = law.seconds(work)
    sizes = {"tokens": work.tokens, "hidden": work.hidden, "expert_ffn": work.width}
    forward = forward * correction_of(gpu, BLOCK_OF[dtype], sizes)
    known_error = None if law.transferred or backward else float(law.block.held_out["mape"])
    error_percent, origin = stated(gpu, BLOCK_OF[dtype], known_error, law.origin)
    times = BACKWARD_PRODUCTS if backward else 1.0
    low, high = (times * end for end in law.around(forward, work))
    if backward:
        low, high = low / BACKWARD_ALLOWANCE, high * BACKWARD_ALLOWANCE
    ideal = work.flop / Rates.of(law.gpu, UNITS_OF[dtype]).flop_per_s

    def parts() -> dict[str, Floats]:
        causes = {
            "ideal": ideal,
            "kernel": compute - ideal,
            "bandwidth": products - compute,
            "routing": routing,
            "launch": counted - products - routing,
            "library": forward - counted,
        }
        return {cause: (times * seconds).reshape(shape) for cause, seconds in causes.items()}

    return Explained(
        seconds=(times * forward).reshape(shape),
        parts=Causes(parts),
        extrapolated=outside(law.block.fitted_range, vars(work)).reshape(shape) | law.transferred | backward,
        error_percent=error_percent,
        origin=origin,
        low=low.reshape(shape),
        high=high.reshape(shape),
        library=law.library,
    )
