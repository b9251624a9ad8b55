"""Constants of training frameworks that no kernel's law has, fitted to published runs.

One set is of all frameworks and GPUs, next to what is known of each framework's attention. Every constant is a factor
of a physical term of the step, or seconds with a name; `planner/laws/training/step.py` has the terms,
`tools/fit/step.py` finds the constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.planner.laws.calibration import POOLED, Calibration, shipped_calibration, spec_of

Framework = Literal["megatron", "fsdp1", "fsdp2", "torchtitan", "deepspeed", "ddp"]
FRAMEWORKS: tuple[Framework, ...] = ("megatron", "fsdp1", "fsdp2", "torchtitan", "deepspeed", "ddp")
# Meaning of each framework's name, as the answers give it.
MEANT: Mapping[str, str] = {
    "megatron": "Megatron-LM, Megatron-Core and NeMo",
    "fsdp1": "FSDP1 of llm-foundry: Triton attention, no compile",
    "fsdp2": "FSDP2 without compile",
    "torchtitan": "compiled FSDP2, as torchtitan has it",
    "deepspeed": "DeepSpeed: ZeRO, and the pipeline of Megatron-DeepSpeed",
    "ddp": "DistributedDataParallel",
}
# From here on of ZeRO's stages, parameters are sharded by FSDP where no framework is named.
SHARDED_FROM_STAGE = 2
# Unless one is named, layouts are compared under the first of these that runs them all.
USUAL: tuple[Framework, ...] = ("megatron", "torchtitan", "deepspeed")
GENERATIONS = ("Ampere", "Hopper", "Blackwell")
# Precisions of products below 16 bits; attention, logits, norms and the optimizer stay as they are.
LOW_PRECISION = ("fp8", "mxfp8", "nvfp4")
DTYPES = ("bf16", "fp16", *LOW_PRECISION)
# Products over the law of the library that was measured in fp8; of nvfp4 at the ratio of the peaks. Set by hand,
# where fits were held within 0.7 to 1.2, of nvfp4 within 0.9 to 2.
LOW_PRECISION_FACTORS = {"fp8": 0.82, "mxfp8": 0.85, "nvfp4": 1.3}
BLOCK = "step"
# Runs whose errors have one width.
KINDS = ("16 bits", "below 16 bits", "experts, 16 bits", "experts, below 16 bits")


# FlashAttention-2 on Hopper over its usual kernels, heads of 128 (laws/attention.py). The Triton kernel of the first
# takes 1.3 to 2.5 times as long as the second (Dao 2023, abstract): the middle.
ON_HOPPER, TRITON = 1.65, 1.9
FLASH_2, FLASH_1 = (1.0, ON_HOPPER, ON_HOPPER), (TRITON, TRITON * ON_HOPPER, TRITON * ON_HOPPER)
# By framework and GENERATIONS, the time of its attention's kernel over that of the law's.
ATTENTION: Mapping[str, tuple[float, float, float]] = {
    "megatron": (1.0, 1.0, 1.0),
    "fsdp1": FLASH_1,
    "fsdp2": FLASH_2,
    "torchtitan": FLASH_2,
    "deepspeed": (1.0, 1.0, 1.0),
    "ddp": FLASH_2,
}
# torch._grouped_mm on a B200 over the law of one product as large, in bf16 and mxfp8 alike (torchao's moe_training, its
# products of Llama 4 and DeepSeek-V3 forward and backward: 37.7 to 43.1 ms, the law 23.7; 13.1 to 15.8, the law 8.7).
GROUPED_MM, CALLS_GROUPED_MM = 1.7, ("fsdp2", "torchtitan")


@dataclass(frozen=True)
class StepConstants:
    """Constants that no kernel's law has, fitted to published iterations; each may be an array over a grid's plans.

    CONSTANTS has what each means, its unit and its range; those of fewer bits are set by hand.
    """

    slowdown: Any
    attention: Any = 1.0
    experts: Any = 1.0
    tensor_overlapped: Any = 0.3
    step_s: Any = 0.0
    fp8: Any = LOW_PRECISION_FACTORS["fp8"]
    mxfp8: Any = LOW_PRECISION_FACTORS["mxfp8"]
    nvfp4: Any = LOW_PRECISION_FACTORS["nvfp4"]

    def of_products(self, dtype: str) -> Any:
        """By what products of that dtype take longer than the law of products says."""
        return self.slowdown * (getattr(self, dtype) if dtype in LOW_PRECISION else 1.0)


@dataclass(frozen=True)
class Meaning:
    """Meaning of a constant, its unit ("" for a factor), and the range that physics allows."""

    meaning: str
    low: float
    high: float
    unit: str = ""


CONSTANTS: Mapping[str, Meaning] = {
    "slowdown": Meaning("kernels within a step over the same alone under a sustained load", 1.0, 1.3),
    "experts": Meaning("grouped products of experts over their law", 1.0, 2.0),
    "tensor_overlapped": Meaning("share of TP's exchange that products do not hide, where they hide it", 0.0, 0.6),
    "step_s": Meaning("fixed time of a step of several nodes", 0.0, 50e-3, "s"),
}


NAMES = tuple(CONSTANTS)


@dataclass(frozen=True)
class FoundConstants:
    """Constants, and whether they are of another GPU.

    `ends` are by KINDS the logarithm of measured over predicted that nine of ten runs stay within, of either sign, and
    `errors_percent` the mean errors, both of runs whose source the constants had not seen; empty if none are known. Of
    another GPU the ends are those where the engine or the generation of GPUs was not seen.
    """

    constants: StepConstants
    is_transferred: bool
    origin: str = ""
    ends: tuple[float, ...] = ()
    errors_percent: tuple[float, ...] = ()

    def error_percent(self, kind: int) -> float | None:
        """The law's error in % on runs of that kind whose source the constants had not seen."""
        error = self.errors_percent[kind] if self.errors_percent else np.nan
        return None if np.isnan(error) else error


def check_framework(framework: str) -> None:
    """Raise UserError for a framework that nothing is known of."""
    if framework not in FRAMEWORKS:
        raise UserError(f"Nothing is known of the framework {framework!r}: choose from {', '.join(FRAMEWORKS)}.")


def usual_framework(zero_stage: int, offload: str = "none") -> Framework:
    """The framework of a plan that names none: compiled FSDP2 where gradients or parameters are sharded, else Megatron.

    DeepSpeed for what neither offloads.
    """
    if offload == "nvme" or (offload == "optimizer" and zero_stage >= SHARDED_FROM_STAGE):
        return "deepspeed"
    return "torchtitan" if zero_stage >= SHARDED_FROM_STAGE or offload == "cpu" else "megatron"


def generation_of(spec: GpuSpec) -> str:
    """The one of GENERATIONS whose constants a GPU takes: its own, or the nearest; of other makers by its units."""
    if spec.compute_capability is None:
        return GENERATIONS[("fp8" in spec.peak_flop_per_s) + ("fp4" in spec.peak_flop_per_s)]
    major = spec.compute_capability[0]
    return GENERATIONS[0] if major < 9 else GENERATIONS[1] if major == 9 else GENERATIONS[2]


def found_constants(gpu: str | GpuSpec | Calibration, framework: str = "megatron") -> FoundConstants:
    """Return the constants of one's own calibration, or those fitted to published runs of the framework.

    They are in the block "step.FRAMEWORK" of one's own runs, or "step" of published ones. It may have `seen`, the
    frameworks and GPUs that they were found on ("fsdp1 H100 SXM"), `ends` and `errors_percent` by FRAMEWORKS and KINDS,
    and the ends as `unseen_ends` for others. Raises UserError for an unknown GPU or framework.
    """
    check_framework(framework)
    spec = spec_of(gpu)
    block = gpu.blocks.get(f"{BLOCK}.{framework}") if isinstance(gpu, Calibration) else None
    if block is None:
        pooled = shipped_calibration(POOLED)
        if pooled is None:
            raise UserError(f"No iterations are calibrated for {spec}: give the constants of a step.")
        block = pooled.block(BLOCK)
    arrays = block.arrays
    if any(name not in arrays or np.ndim(arrays[name]) for name in NAMES) or ("low" in arrays and "ends" not in arrays):
        raise UserError("The calibration's block of steps is of another version: fit it anew with `calibrate --runs`.")
    numbers = {name: float(arrays[name]) for name in NAMES}
    constants = on_gpu(StepConstants(**numbers), spec, framework)
    another = "seen" in arrays and f"{framework} {spec.name}" not in arrays["seen"].tolist()
    ends, errors = (
        tuple(arrays[name][FRAMEWORKS.index(framework)].astype(float).tolist()) if name in arrays else ()
        for name in ("unseen_ends" if another else "ends", "errors_percent")
    )
    return FoundConstants(constants, another, block.origin, ends, errors)


def on_gpu(constants: StepConstants, spec: GpuSpec, framework: str) -> StepConstants:
    """The constants for one GPU: nvfp4 is priced as fp8, attention and experts as the law's kernels, which differ."""
    peaks, kernel = spec.peak_flop_per_s, ATTENTION[framework][GENERATIONS.index(generation_of(spec))]
    ratio = peaks["fp8"] / peaks["fp4"] if "fp4" in peaks else 1.0
    grouped = GROUPED_MM if framework in CALLS_GROUPED_MM and generation_of(spec) == GENERATIONS[-1] else 1.0
    attention, experts = constants.attention * kernel, constants.experts * grouped
    return replace(constants, nvfp4=constants.nvfp4 * ratio, attention=attention, experts=experts)
