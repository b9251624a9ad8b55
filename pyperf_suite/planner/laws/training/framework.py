"""What a training framework makes of a step: constants that no kernel's law knows, found on published runs.

A constant belongs to one framework on one generation of GPUs. Every one is a factor of a physical term of the step, or
seconds with a name; `planner/laws/training/step.py` has the terms, `tools/fit/step.py` finds the constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
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
KINDS = ("16 bits", "below 16 bits", "experts, 16 bits", "experts, below 16 bits")


@dataclass(frozen=True)
class Traits:
    """What is known of how a framework runs a step; nothing of it is fitted.

    Attributes:
        attention: by GENERATIONS, its kernel's time over that of the law's kernel.
        hides_parameters: what ZeRO 1 and 2 gather once a step goes next to computation.
        bucket: elements that are sent together, sums of ZeRO 1 and 2 to every rank; 0: about a layer, sums scattered.
        composite: norms, rotary embedding and gates are single operations of torch, most of them in 32 bits.
        hides_sums: TP sums an input's gradient next to the product of the weights' gradient.
        kept: elements that ZeRO 3 uses at most between two uses of one that it does not gather twice.
        adds_apart: as of a plan; cuts_kept: ranks of TP keep a share each of what is recomputed from, gathered first.
    """

    attention: tuple[float, float, float] = (1.0, 1.0, 1.0)
    hides_parameters: bool = True
    composite: bool = False
    bucket: float = 0.0
    kept: float = np.inf
    hides_sums: bool = False
    adds_apart: bool = False
    cuts_kept: bool = False


# FlashAttention-2 on H100 reaches 335 TFLOP/s where 3 reaches 616 (head_dim 128, causal; Shah et al. 2024,
# FlashAttention-3); the Triton kernel of the first one takes 1.7 times as long as the second (Dao 2023, figure 4).
ON_HOPPER = 1.8
FLASH_2, FLASH_1 = (1.0, ON_HOPPER, ON_HOPPER), (1.7, 3.1, 3.1)
TRAITS: Mapping[str, Traits] = {
    # LinearWithGradAccumulationAndAsyncCommunication of Megatron-LM, since 2021.
    "megatron": Traits(hides_sums=True),
    "fsdp1": Traits(FLASH_1),
    "fsdp2": Traits(FLASH_2, composite=True),
    "torchtitan": Traits(FLASH_2),
    # A pipeline's engine reduces gradients when the last micro-batch is through, and gathers after the update.
    "deepspeed": Traits(hides_parameters=False, bucket=5e8, kept=1e9, adds_apart=True, cuts_kept=True),
    "ddp": Traits(FLASH_2),
}


@dataclass(frozen=True)
class StepConstants:
    """What no kernel's law knows, as found on published iterations; each may be an array over the plans of a grid.

    CONSTANTS has what each means, its unit and its range. `network` is what a GPU really sends between nodes in
    bytes/s, one direction, or measured points of the cluster; None: what its maker's servers have.
    """

    slowdown: Any
    launch_s: Any
    network: Network | None = None
    attention: Any = 1.0
    scores: Any = 1.0
    memory: Any = 1.0
    experts: Any = 1.0
    permute: Any = 0.0
    fp8: Any = 1.0
    mxfp8: Any = 1.0
    nvfp4: Any = 1.0
    cast: Any = 1.0
    tensor: Any = 1.0
    tensor_overlapped: Any = 0.3
    exchange: Any = 1.0
    all_to_all: Any = 1.0
    accumulate: Any = 0.0
    step_s: Any = 0.0
    micro_batch_s: Any = 0.0
    nodes: Any = 0.0

    def of_products(self, dtype: str) -> Any:
        """By what products of that dtype take longer than the law of products says."""
        return self.slowdown * (getattr(self, dtype) if dtype in LOW_PRECISION else 1.0)


@dataclass(frozen=True)
class Meaning:
    """What a constant means, its unit ("" for a factor), and the range that physics allows."""

    meaning: str
    low: float
    high: float
    unit: str = ""


CONSTANTS: Mapping[str, Meaning] = {
    "slowdown": Meaning("kernels within a step over the same alone under a sustained load", 1.0, 1.15),
    "launch_s": Meaning(
        "the host's time for an operation, waited for where the GPU's queue runs dry", 2e-6, 15e-6, "s"
    ),
    "attention": Meaning("fused attention over its kernel as published", 0.8, 1.3),
    "scores": Meaning("products of attention that is not fused over the law of products", 1.0, 2.0),
    "memory": Meaning("traffic of passes over activations and logits over the counted bytes", 1.0, 2.0),
    "experts": Meaning("grouped products of experts over their law", 1.0, 2.0),
    "permute": Meaning("traffic of sorting tokens by expert over the counted bytes", 1.0, 2.0),
    "fp8": Meaning("products in fp8 over the law of the library that was measured", 0.7, 1.2),
    "mxfp8": Meaning("products in mxfp8 over the law of fp8", 0.7, 1.2),
    "nvfp4": Meaning("products in nvfp4 over the law of fp8 at the ratio of their peaks", 0.9, 2.0),
    "cast": Meaning("traffic of converting operands over the counted bytes", 0.5, 2.0),
    "tensor": Meaning("traffic of TP's exchange over its law", 1.0, 1.5),
    "tensor_overlapped": Meaning("share of TP's exchange that products do not hide, where they hide it", 0.0, 0.6),
    "exchange": Meaning("traffic over data-parallel ranks over the law of the network", 1.0, 1.5),
    "all_to_all": Meaning("traffic of tokens to experts and back over its law", 1.0, 1.5),
    "accumulate": Meaning("traffic of adding up or copying gradients over the counted bytes", 1.0, 2.0),
    "step_s": Meaning("fixed time of a step of several nodes", 0.0, 50e-3, "s"),
    "micro_batch_s": Meaning("time of a pipeline's engine for a micro-batch", 0.0, 15e-3, "s"),
    "nodes": Meaning("share by which a step grows with each doubling of the nodes", 0.0, 0.01),
}


NAMES = tuple(CONSTANTS)


@dataclass(frozen=True)
class FoundConstants:
    """Constants, whether they are of another GPU, and their stated error in %.

    `low` and `high` are the 5th and 95th percentile of log(measured / predicted) by KINDS, empty if none are known,
    `errors_percent` the mean errors by KINDS, all of runs whose source the constants had not seen. Of another GPU the
    ends are those where the engine or the generation of GPUs was not seen.
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
    """The one of GENERATIONS whose constants a GPU takes: its own, or the nearest; of other makers by its units."""
    if spec.compute_capability is None:
        return GENERATIONS[("fp8" in spec.peak_flop_per_s) + ("fp4" in spec.peak_flop_per_s)]
    major = spec.compute_capability[0]
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
    like = LIKE.get(framework, framework)
    return _of_block(pooled.block(f"{BLOCK}.{like}"), spec_of(gpu), framework, like != framework)


def on_gpu(constants: StepConstants, spec: GpuSpec, framework: str) -> StepConstants:
    """The constants for one GPU: nvfp4 is priced as fp8, attention as the law's kernel; both differ by GPU.

    Below its maker's power a GPU's clock falls, for power goes with the third power of it.
    """
    peaks, kernel = spec.peak_flop_per_s, TRAITS[framework].attention[GENERATIONS.index(generation_of(spec))]
    ratio = peaks["fp8"] / peaks["fp4"] if "fp4" in peaks else 1.0
    capped = max(1.0, find_gpu(spec.name).power_w / spec.power_w) ** (1 / 3)
    return replace(
        constants, nvfp4=constants.nvfp4 * ratio, attention=constants.attention * kernel,
        slowdown=constants.slowdown * capped,
    )  # fmt: skip


def pack_constants(
    constants: Mapping[str, StepConstants],
    held_out: Mapping[str, float | int | str],
    origin: str,
    more: Mapping[str, NDArray[np.generic]],
) -> CalibrationBlock:
    """Constants by generation as a block "step.FRAMEWORK" of a calibration.

    `more` may have `gpus`, the names of those they were found on, `low`, `high` and `errors_percent` by KINDS, the ends
    as `unseen_low` and `unseen_high` for other GPUs, and for each constant its `NAME_deviation`, the standard deviation
    of its logarithm.
    """
    every = [constants[generation] for generation in GENERATIONS]
    arrays = {name: np.array([getattr(each, name) for each in every], dtype=np.float64) for name in NAMES}
    return CalibrationBlock({**arrays, **more}, held_out, {}, origin)


def _of_block(block: CalibrationBlock, spec: GpuSpec, framework: str, is_like: bool = False) -> FoundConstants:
    """The constants of a GPU's generation in a block, of the framework or, if `is_like`, of a similar one."""
    arrays, generation = block.arrays, GENERATIONS.index(generation_of(spec))
    if missing := [name for name in NAMES if name not in arrays]:
        raise UserError(f"The calibration's step has no {missing[0]}, it is of another version: fit it anew.")
    numbers = {name: float(arrays[name][generation]) for name in NAMES}
    constants = on_gpu(StepConstants(**numbers, network=CARRIED_BYTES_PER_S.get(spec.name)), spec, framework)
    another = is_like or ("gpus" in arrays and spec.name not in arrays["gpus"].tolist())
    error = float(block.held_out["mape"]) if "mape" in block.held_out else None
    unseen = "unseen_" if another else ""
    low, high, errors = (
        tuple(arrays[name].astype(float).tolist()) if name in arrays else ()
        for name in (f"{unseen}low", f"{unseen}high", "errors_percent")
    )
    return FoundConstants(constants, another, error, framework, block.origin, low, high, errors)
