"""Every way to cut a training over a cluster's GPUs that comes out even, as columns of a table; why others do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.laws.transformer import RECOMPUTES, ModelDimensions, Recompute, Sharding
from pyperf_suite.planner.laws.collectives import Network
from pyperf_suite.planner.laws.training.framework import FRAMEWORKS, USUAL, check_framework
from pyperf_suite.planner.laws.training.memory import USABLE_SHARE
from pyperf_suite.planner.laws.training.offload import OFFLOADED_BY, OFFLOADS, Host, Offload, check_offload, usual_host
from pyperf_suite.planner.laws.training.plan import ParallelPlan, as_published

Column = NDArray[np.int64]

# Far above any cluster there is, and low enough that every product of sizes stays exact.
MOST_GPUS = 1 << 20
MOST_TOKENS = 1 << 26  # of a micro-batch on one rank: laws count no further
# At once: some ten seconds' and a gigabyte's worth.
MOST_LAYOUTS = 2_000_000
# The axes of a layout: fields of a `ParallelPlan`, as people write them.
WRITTEN = {
    "data": "DP",
    "tensor": "TP",
    "pipeline": "PP",
    "chunks": "virtual PP",
    "context": "CP",
    "expert": "EP",
    "zero_stage": "ZeRO",
    "micro_batch": "micro-batch",
    "recompute": "recompute",
    "offload": "offload",
}
# Fields whose values have names; columns hold their places.
NAMED: Mapping[str, tuple[str, ...]] = {"recompute": RECOMPUTES, "offload": OFFLOADS}
SPLIT = ("data", "tensor", "pipeline", "context", "expert")
# Stages of ZeRO of each framework, and the axes that it cannot cut: FSDP1's and DDP's ranks are all data-parallel;
# FSDP2's pipelines without torchtitan and DeepSpeed's have one group of layers a stage, and neither library has ring
# attention.
RUNS: Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "megatron": ((0, 1), ()),
    "fsdp1": ((2, 3), ("tensor", "pipeline", "chunks", "context", "expert")),
    "fsdp2": ((2, 3), ("chunks",)),
    "torchtitan": ((2, 3), ()),
    "deepspeed": ((0, 1, 2, 3), ("chunks", "context")),
    "ddp": ((0,), ("tensor", "pipeline", "chunks", "context", "expert")),
}
# DeepSpeed's pipeline engine refuses more (deepspeed/runtime/pipe/engine.py).
DEEPSPEED_PIPELINE_STAGE = 1


class TooManyLayouts(UserError):
    """More layouts divide than can be evaluated at once."""


@dataclass(frozen=True)
class Cluster:
    """`gpus` of a kind in nodes of `gpus_per_node`; `memory_bytes` of each, of which a twentieth is kept free.

    `network` is the rate at which each sends out of its node in bytes/s, one direction, or measured points of the
    cluster; None: as the laws have it. `host` is each GPU's share of its host; None: of its maker's servers.
    Raises UserError for numbers that no cluster has, and for a last node that is not full.
    """

    gpu: GpuSpec
    gpus: int
    gpus_per_node: int
    memory_bytes: float
    network: Network | None = None
    host: Host | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MOST_GPUS:
            raise UserError(f"--gpus has to lie between 1 and {MOST_GPUS}, but {self.gpus} was requested.")
        if self.gpus % self.gpus_per_node:
            below = self.gpus // self.gpus_per_node * self.gpus_per_node
            nearest = " or ".join(str(n) for n in (below, below + self.gpus_per_node) if n)
            raise UserError(
                f"{self.gpus} GPUs do not fill nodes of {self.gpus_per_node}: take {nearest}, or name another "
                "--gpus-per-node."
            )

    @property
    def usable_bytes(self) -> float:
        """Bytes of one GPU's memory that a training may take."""
        return USABLE_SHARE * self.memory_bytes

    @property
    def hosted(self) -> Host:
        """Each GPU's share of its host."""
        return self.host or usual_host(self.gpu)


@dataclass(frozen=True)
class Training:
    """A training: `global_batch` sequences of `seq` tokens an iteration; the rest as in `ParallelPlan`.

    `library` is whose kernels are priced, None the default of each law. `framework` runs it, of several with commas
    between them each layout the first that does, None one of USUAL; `dtype` is that of products in layers, None bf16
    (before Ampere fp16). `offloads` are tried, of OFFLOADS; () none, and where nothing surely fits the others too.
    ZeRO shares over `shard_over` ranks where these divide DP x CP, 0 over all. `state_dtype` is of the optimizer's
    states. Raises UserError for a framework that is unknown or offloads nothing so.
    """

    model: ModelDimensions
    global_batch: int
    seq: int
    fused_attention: bool = True
    sequence_parallel: bool = True
    overlap: bool = True
    library: str | None = None
    framework: str | None = None
    dtype: str | None = None
    offloads: tuple[Offload, ...] = ()
    shard_over: int = 0
    state_dtype: str = "fp32"

    def __post_init__(self) -> None:
        for name in self.frameworks:
            check_framework(name)
        able = self.offloaded
        for offload in self.offloads:
            check_offload(offload)
            if offload not in able:
                raise UserError(
                    f"{self.framework} does not offload {offload!r}: it has {', '.join(able)} (deepspeed has all)."
                )

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Frameworks that were named, or that may be taken where none was."""
        return tuple(re.findall(r"[^,\s]+", self.framework)) if self.framework else USUAL

    @property
    def offloaded(self) -> tuple[Offload, ...]:
        """Offloads that one of them has."""
        return tuple(each for each in OFFLOADS if any(each in OFFLOADED_BY[name] for name in self.frameworks))

    def dtype_on(self, gpu: GpuSpec) -> str:
        """The dtype of products in layers: the one requested, else bf16, and before Ampere fp16."""
        return self.dtype or ("bf16" if "bf16" in gpu.peak_flop_per_s else "fp16")


@dataclass(frozen=True)
class Grid:
    """Layouts in columns of equal length, one for each name of WRITTEN; of those with names their places in `NAMED`.

    `uneven` counts the splits of the GPUs into TP, CP, PP and DP that come out uneven, by the first reason for it.
    """

    columns: Mapping[str, Column]
    uneven: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.columns["data"])

    def taken(self, places: Any) -> Grid:
        """The grid of these layouts alone."""
        return replace(self, columns={name: column[places] for name, column in self.columns.items()})


def plans(training: Training, cluster: Cluster, grid: Grid) -> Iterator[tuple[NDArray[np.intp], ParallelPlan]]:
    """Places of the layouts that recompute and offload the same on one framework, and the laws' plan of them."""
    columns = grid.columns
    kinds = np.stack([columns["recompute"], frameworks_of(training, columns), columns["offload"]], axis=1)
    for kind in np.unique(kinds, axis=0).tolist():
        similar = np.flatnonzero((kinds == kind).all(axis=1))
        recompute, framework, offload = kind
        counts: dict[str, Any] = {name: column[similar] for name, column in columns.items() if name not in NAMED}
        # ZeRO shares over the ranks requested where they divide and are fewer, else (0) over all.
        shards, over = counts["data"] * counts["context"], training.shard_over
        plan = ParallelPlan(
            global_batch=training.global_batch, seq=training.seq, recompute=RECOMPUTES[recompute],
            offload=OFFLOADS[offload], framework=FRAMEWORKS[framework], fused_attention=training.fused_attention,
            overlap_gradients=training.overlap, sequence_parallel=training.sequence_parallel,
            ranks_per_node=cluster.gpus_per_node, dtype=training.dtype_on(cluster.gpu), host=cluster.hosted,
            state_dtype=training.state_dtype,
            shard_over=over * ((shards % max(over, 1) == 0) & (shards > over)), **counts,
        )  # fmt: skip
        yield similar, as_published(plan, cluster.gpu)


def written(layout: ParallelPlan) -> str:
    """A layout as people write it: "DP 8, TP 4, PP 2, ZeRO 1, micro-batch 2, recompute nothing"."""
    always = ("data", "tensor", "pipeline", "zero_stage", "micro_batch", "recompute")
    shown = [name for name in WRITTEN if name in always or getattr(layout, name) not in (1, "none")]
    return ", ".join(f"{WRITTEN[name]} {getattr(layout, name)}" for name in shown)


def frameworks_of(training: Training, columns: Mapping[str, Column]) -> NDArray[np.intp]:
    """The framework of each layout, as its place in FRAMEWORKS: the first of the training's that runs it; else -1."""
    places, names = np.full(len(columns["data"]), -1), list[str](FRAMEWORKS)
    for name in reversed(training.frameworks):
        places[runs(name, columns)] = names.index(name)
    return places


def runs(framework: str, columns: Mapping[str, Column]) -> NDArray[np.bool_]:
    """True for each layout that a framework runs."""
    stages, uncut = RUNS[framework]
    stage = columns["zero_stage"]
    # Parameters that nobody else has cannot be shared.
    alone = columns["data"] * columns["context"] == 1
    able = np.isin(stage, stages) | ((stage == 0) & alone)
    # An optimizer leaves the GPU that has a share of it, parameters the one that gathers them.
    offload = columns["offload"]
    able &= np.isin(offload, [OFFLOADS.index(each) for each in OFFLOADED_BY[framework]])
    able &= np.where(offload > 0, stage >= np.where(offload > 1, LAST_STAGE, 1), (stage == 0) | ~alone)
    for name in uncut:
        able &= columns[name] == 1
    if framework == "deepspeed":
        able &= (columns["pipeline"] == 1) | (stage <= DEEPSPEED_PIPELINE_STAGE)
    return np.asarray(able)


def layouts(training: Training, cluster: Cluster, fixed: Mapping[str, int] | None = None) -> Grid:
    """Every layout that divides.

    Where these would be more than `MOST_LAYOUTS`, those with the `fixed` values alone (as of `held_to`). Raises
    UserError where there is none, with the reasons, and where there are too many.
    """
    try:
        grid = _layouts(training, cluster, {})
    except UserError:
        if not fixed:
            raise
        grid = _layouts(training, cluster, fixed)
    if not len(grid):
        why = "; ".join(f"{reason} ({count})" for reason, count in grid.uneven.items())
        raise UserError(
            f"{cluster.gpus} GPUs cannot share this model and a global batch of {training.global_batch} in any way "
            f"{f'that {training.framework} runs ' if training.framework else ''}({why}): take another number of GPUs, "
            "or another --global-batch."
        )
    return grid


def held_to(grid: Grid, fixed: Mapping[str, int], framework: str | None = None) -> Grid:
    """Layouts with these values alone; of those with names their places in `NAMED`. A refusal names the framework.

    Raises UserError for a value that no layout with the values before it has.
    """
    before: list[str] = []
    for name, value in fixed.items():
        column = grid.columns[name]
        if not (column == value).any():
            of = f" and {framework} runs" if framework else ""
            others = f" with {', '.join(before)}" if before else ""
            has = ", ".join(_written(name, each) for each in np.unique(column).tolist()[:16])
            raise UserError(
                f"No layout that divides{of} has {WRITTEN[name]} {_written(name, value)}{others}: take {has}."
            )
        before.append(f"{WRITTEN[name]} {_written(name, value)}")
        grid = grid.taken(column == value)
    return grid


def divisors(number: int) -> list[int]:
    """All divisors, the smallest first."""
    low = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})


def _layouts(training: Training, cluster: Cluster, fixed: Mapping[str, int]) -> Grid:
    reasons: Counter[str] = Counter()
    blocks = [np.empty((len(WRITTEN), 0), dtype=np.int64)]
    count = 0
    gpus = cluster.gpus
    splits = (
        (tensor, context, pipeline)
        for tensor in divisors(gpus)
        for context in divisors(gpus // tensor)
        for pipeline in divisors(gpus // tensor // context)
    )
    for tensor, context, pipeline in splits:
        data = gpus // (tensor * context * pipeline)
        reason = uneven(training, cluster, tensor, context, pipeline, data)
        if reason:
            reasons[reason] += 1
            continue
        block = _variants(training, tensor, context, pipeline, data)
        for name, value in fixed.items():
            block = block[:, block[list(WRITTEN).index(name)] == value]
        blocks.append(block)
        count += block.shape[1]
        if count > MOST_LAYOUTS:
            raise TooManyLayouts(
                f"More than {MOST_LAYOUTS} layouts divide, too many to evaluate at once: hold some axis to a value, as "
                "with --cp 1, --virtual-pp 1 or --recompute layers."
            )
    return Grid(dict(zip(WRITTEN, np.concatenate(blocks, axis=1), strict=True)), reasons)


def uneven(training: Training, cluster: Cluster, tensor: int, context: int, pipeline: int, data: int) -> str | None:
    """The first thing that such a split cannot divide."""
    model = training.model
    if not bool(Sharding(tensor).divides(model)):
        return "TP does not divide the heads or the MLP"
    if cluster.gpus_per_node % tensor and tensor % cluster.gpus_per_node:
        return "TP fills no whole nodes, nor a share of one"
    if pipeline > model.layers:
        return "PP has more stages than there are layers"
    # Causal work is even where each rank has a piece of the sequence's front and one of its back.
    if training.seq % (2 * context if context > 1 else 1):
        return "CP does not divide the sequence in pairs of pieces"
    if training.sequence_parallel and (training.seq // context) % tensor:
        return "TP does not divide the sequence (SP)"
    return "DP does not divide the global batch" if training.global_batch % data else None


def _variants(training: Training, tensor: int, context: int, pipeline: int, data: int) -> Column:
    """Every way to fill such a split, a column each: virtual PP, EP, ZeRO, micro-batch, recompute, offload."""
    model, per_rank = training.model, training.global_batch // data
    longest = max(1, MOST_TOKENS // training.seq)
    # A fused kernel keeps no scores that could be computed again instead.
    recomputes: tuple[Recompute, ...] = ("nothing", "layers") if training.fused_attention else RECOMPUTES
    axes = (
        divisors(model.layers // pipeline) if pipeline > 1 and model.layers % pipeline == 0 else [1],
        divisors(int(np.gcd(model.experts, data * context))),
        range(LAST_STAGE + 1) if data * context > 1 or set(training.offloads) - {"none"} else [0],
        [size for size in divisors(per_rank) if size <= longest],
        list(map(RECOMPUTES.index, recomputes)),
        [OFFLOADS.index(offload) for offload in training.offloads or OFFLOADS[:1]],
    )
    chunks, expert, zero_stage, micro_batch, recompute, offload = (
        axis.ravel() for axis in np.meshgrid(*(np.array(axis, dtype=np.int64) for axis in axes))
    )
    same = [np.full(len(chunks), size) for size in (data, tensor, pipeline, context)]
    table = np.stack([*same[:3], chunks, same[3], expert, zero_stage, micro_batch, recompute, offload])
    # The interleaved schedule goes round the stages with as many micro-batches each time.
    able = (chunks == 1) | (per_rank // micro_batch % pipeline == 0)
    able &= frameworks_of(training, dict(zip(WRITTEN, table, strict=True))) >= 0
    return np.asarray(table[:, able], dtype=np.int64)


def _written(name: str, value: int) -> str:
    return NAMED[name][value] if name in NAMED else str(value)
