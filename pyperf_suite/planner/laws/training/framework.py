"""What a training framework makes of a step: constants that no kernel's law knows, found on published runs.

A constant belongs to one framework on one generation of GPUs. Every one is a factor of a physical term of the step, or
seconds with a name; `planner/laws/training/step.py` has the terms, `tools/fit/step.py` finds the constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.planner.laws.calibration import POOLED, Calibration, CalibrationBlock, shipped_calibration, spec_of
from pyperf_suite.planner.laws.internode import Network

Framework = Literal["megatron", "fsdp1", "fsdp2", "torchtitan", "deepspeed", "ddp"]
FRAMEWORKS: tuple[Framework, ...] = ("megatron", "fsdp1", "fsdp2", "torchtitan", "deepspeed", "ddp")
# What each name stands for, as the answers say it.
MEANT: Mapping[str, str] = {
    "megatron": "Megatron-LM, Megatron-Core and NeMo",
    "fsdp1": "FSDP1 of llm-foundry: Triton attention, no compile",
    "fsdp2": "FSDP2 without compile",
    "torchtitan": "FSDP2 of torchtitan",
    "deepspeed": "DeepSpeed: ZeRO, and the pipeline of Megatron-DeepSpeed",
    "ddp": "DistributedDataParallel",
}
# No run of these was published with all that it depends on: they take the constants of a similar one.
LIKE: Mapping[str, Framework] = {"ddp": "fsdp2"}
# From here on of ZeRO's stages, parameters are sharded by FSDP where no framework is named.
SHARDED_FROM_STAGE = 2
GENERATIONS = ("Ampere", "Hopper", "Blackwell")
# Precisions of products below 16 bits; attention, logits, norms and the optimizer stay as they are.
LOW_PRECISION = ("fp8", "mxfp8", "nvfp4")
DTYPES = ("bf16", "fp16", *LOW_PRECISION)
# How kernels of experts get to the GPU: one by one from the host, captured in a graph (where tokens are dropped to a
# fixed number), or fused and overlapped with the exchange of tokens too.
ExpertKernels = Literal["launched", "captured", "fused"]
# What a GPU of vTrain's cluster could send between nodes: HDR for two.
CARRIED_BYTES_PER_S = {"A100 SXM": 12.5e9}
BLOCK = "step"
# Runs whose errors have one width.
KINDS = ("16 bits", "below 16 bits", "experts")


@dataclass(frozen=True)
class StepConstants:
    """What no kernel's law knows, as found on published iterations; each may be an array over the plans of a grid.

    Attributes:
        slowdown: kernels within a step take so many times as long as alone under a sustained load.
        host_s_per_layer: in which the host launches one layer's forward pass; a GPU that is faster than that waits.
        network: what a GPU really sends between nodes in bytes/s, one direction, or measured points of the cluster;
            None: what its maker's servers have.
        attention: the framework's fused attention over the law's kernel; `scores` the same where it is not fused.
        memory: passes over activations and logits, over those that are counted as fused.
        experts: grouped products of experts; `narrow_experts` the same below 16 bits in addition, `fused_experts` what
            is left of them, of sorting and of exchange where they are fused. `expert_host_s` is what the host takes to
            launch each of a rank's experts.
        permute: passes over the tokens of experts, which are sorted by them.
        fp8, mxfp8, nvfp4: products of that dtype; `cast` the passes that convert their operands.
        tensor: the exchange of TP that is waited for; `tensor_overlapped` what is left of it where products hide it.
        exchange: gradients and parameters over data-parallel ranks, next to computation; `gather` those of ZeRO-3.
        all_to_all: tokens to their experts and back.
        send: of a pipeline's sends, the share that is waited for where stages hold one chunk.
        accumulate: passes over a rank's gradients in each micro-batch, where they are added up in single precision.
        step_s: which a step of several nodes takes once: waiting for the last rank, exchange that nothing hides.
        micro_batch_s: of a pipeline's engine for each micro-batch.
        nodes: what the step takes longer with each doubling of the nodes, as a share: stragglers, contended switches.
    """

    slowdown: Any
    host_s_per_layer: Any
    network: Network | None = None
    attention: Any = 1.0
    scores: Any = 1.0
    memory: Any = 1.0
    experts: Any = 1.0
    narrow_experts: Any = 1.0
    fused_experts: Any = 0.7
    expert_host_s: Any = 0.0
    permute: Any = 0.0
    fp8: Any = 1.0
    mxfp8: Any = 1.0
    nvfp4: Any = 1.0
    cast: Any = 1.0
    tensor: Any = 1.0
    tensor_overlapped: Any = 0.3
    exchange: Any = 1.0
    gather: Any = 1.0
    all_to_all: Any = 1.0
    send: Any = 0.0
    accumulate: Any = 0.0
    step_s: Any = 0.0
    micro_batch_s: Any = 0.0
    nodes: Any = 0.0

    def of_products(self, dtype: str) -> Any:
        """By what products of that dtype take longer than the law of products says."""
        return self.slowdown * (getattr(self, dtype) if dtype in LOW_PRECISION else 1.0)


NAMES = tuple(field.name for field in fields(StepConstants) if field.name != "network")


@dataclass(frozen=True)
class FoundConstants:
    """Constants, whether they are of another GPU, and their stated error in %.

    `low` and `high` are the 5th and 95th percentile of log(measured / predicted) by KINDS, empty if none are known,
    `errors_percent` the mean errors by KINDS.
    """

    constants: StepConstants
    is_transferred: bool
    error_percent: float | None
    framework: str = ""
    origin: str = ""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    errors_percent: tuple[float, ...] = ()


def check_framework(framework: str) -> None:
    """Raise UserError for a framework that nothing is known of."""
    if framework not in FRAMEWORKS:
        raise UserError(f"Nothing is known of the framework {framework!r}: choose from {', '.join(FRAMEWORKS)}.")


def usual_framework(zero_stage: int, offload: str = "none") -> Framework:
    """The framework of a layout that names none: FSDP2 where gradients or parameters are sharded, else Megatron.

    DeepSpeed for what neither offloads.
    """
    if offload == "nvme" or (offload == "optimizer" and zero_stage >= SHARDED_FROM_STAGE):
        return "deepspeed"
    return "fsdp2" if zero_stage >= SHARDED_FROM_STAGE or offload == "cpu" else "megatron"


def generation_of(spec: GpuSpec) -> str:
    """The one of GENERATIONS whose constants a GPU takes: its own, or the nearest."""
    major = (spec.compute_capability or (8, 0))[0]
    return GENERATIONS[0] if major < 9 else GENERATIONS[1] if major == 9 else GENERATIONS[2]


def found_constants(gpu: str | GpuSpec | Calibration, framework: str = "megatron") -> FoundConstants:
    """Those of a calibration of one's own, or those that published runs of the framework gave.

    Raises UserError for an unknown GPU or framework.
    """
    check_framework(framework)
    own = gpu.blocks.get(f"{BLOCK}.{framework}") if isinstance(gpu, Calibration) else None
    if own is not None:
        return _of_block(own, spec_of(gpu), framework)
    pooled = shipped_calibration(POOLED)
    if pooled is None:
        raise UserError(f"No iterations are calibrated for {spec_of(gpu)}: give the constants of a step.")
    found = _of_block(pooled.block(f"{BLOCK}.{LIKE.get(framework, framework)}"), spec_of(gpu), framework)
    return replace(found, is_transferred=True) if framework in LIKE else found


def on_gpu(constants: StepConstants, spec: GpuSpec) -> StepConstants:
    """The constants for one GPU: nvfp4 is priced as fp8, and how much faster its units are differs by GPU."""
    peaks = spec.peak_flop_per_s
    return replace(constants, nvfp4=constants.nvfp4 * peaks["fp8"] / peaks["fp4"]) if "fp4" in peaks else constants


def pack_constants(
    constants: Mapping[str, StepConstants],
    held_out: Mapping[str, float | int | str],
    origin: str,
    more: Mapping[str, NDArray[np.generic]],
) -> CalibrationBlock:
    """Constants by generation as a block "step.FRAMEWORK" of a calibration.

    `more` may have `gpus`, the names of those they were found on, `low`, `high` and `errors_percent` by generation and
    KINDS, and for each constant its `NAME_deviation`, the standard deviation of its logarithm.
    """
    every = [constants[generation] for generation in GENERATIONS]
    arrays = {name: np.array([getattr(each, name) for each in every], dtype=np.float64) for name in NAMES}
    return CalibrationBlock({**arrays, **more}, held_out, {}, origin)


def _of_block(block: CalibrationBlock, spec: GpuSpec, framework: str) -> FoundConstants:
    """The constants of a GPU's generation in a block."""
    arrays, generation = block.arrays, GENERATIONS.index(generation_of(spec))
    numbers = {name: float(arrays[name][generation]) for name in NAMES if name in arrays}
    constants = on_gpu(StepConstants(**numbers, network=CARRIED_BYTES_PER_S.get(spec.name)), spec)
    another = "gpus" in arrays and spec.name not in arrays["gpus"].tolist()
    error = float(block.held_out["mape"]) if "mape" in block.held_out else None
    low, high, errors = (
        tuple(arrays[name][generation].astype(float).tolist()) if name in arrays else ()
        for name in ("low", "high", "errors_percent")
    )
    return FoundConstants(constants, another, error, framework, block.origin, low, high, errors)
