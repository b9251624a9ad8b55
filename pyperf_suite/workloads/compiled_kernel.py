"""Our GPU kernels as machine code: compiled for a target that need not be here, and read.

Nothing is timed; the figures are exact, so a kernel that starts to spill is seen on a machine without a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import ModuleType
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Unsupported, UserError
from pyperf_suite.kernels import (
    attention,
    attention_backward,
    attention_defaults,
    disassembly,
    gemm_sm80,
    gemm_sm90,
    matmul,
    nvrtc,
    static,
)
from pyperf_suite.workloads.workload import Exact, Implementation, Kernel, Place, Workload, by_name

CUDA_TARGETS: Mapping[str, ModuleType] = {"sm_80": gemm_sm80, "sm_90a": gemm_sm90}
TRITON_TARGETS = ("sm_80", "sm_90", "sm_100")
TARGETS = sorted({*CUDA_TARGETS, *TRITON_TARGETS})

# What a Triton kernel is compiled from.
MATMUL_SOURCES = ("matmul_device.py", "schedule.py")
FORWARD_SOURCES = ("attention_device.py", "attention_schedule.py")
BACKWARD_SOURCES = ("attention_backward_device.py", *FORWARD_SOURCES)


@dataclass(frozen=True)
class CompiledKernelParameters:
    """A kernel of a target's default set, by name, and the target as compilers write it."""

    kernel: str
    target: Annotated[str, OneOf(TARGETS)]

    def validate(self) -> None:
        """Raise UserError for a kernel that the target does not have."""
        known = {**cuda_kernels(self.target), **triton_kernels(self.target)}
        if self.kernel not in known:
            raise UserError(
                f"Unknown kernel {self.kernel!r} for {self.target}: choose from {', '.join(sorted(known))}."
            )


class Compiled(Implementation[CompiledKernelParameters]):
    """Sources through one compiler, read by `read`."""

    def __init__(self, name: str, read: Callable[[CompiledKernelParameters], static.StaticMetrics]) -> None:
        self.name, self._read = name, read  # type: ignore[misc]

    def prepare(self, parameters: CompiledKernelParameters, place: Place) -> Exact:
        """Compile and read. Raises Unsupported where a compiler or a disassembler is missing, with what brings it."""
        try:
            found = self._read(parameters)
        except (ImportError, nvrtc.NoCompiler, disassembly.NoDisassembler) as reason:
            raise Unsupported(str(reason)) from None
        details = {"threads": found.threads, "limited_by": found.occupancy.limited_by, **found.state()}
        return Exact(Kernel(found.kernel, found.target, details), found.metrics())


def read_cuda(parameters: CompiledKernelParameters) -> static.StaticMetrics:
    """Our CUDA sources through NVRTC."""
    module = CUDA_TARGETS[parameters.target]
    specialised = cuda_kernels(parameters.target)[parameters.kernel]
    return static.of_cuda(parameters.kernel, specialised, module.sources(), parameters.target)


def read_triton(parameters: CompiledKernelParameters) -> static.StaticMetrics:
    """Our Triton kernels through Triton's own compiler."""
    kernel = triton_kernels(parameters.target)[parameters.kernel]
    folder = files("pyperf_suite.kernels")
    source = "\0".join((folder / name).read_text("utf-8") for name in kernel.sources)
    return static.of_triton(parameters.kernel, kernel.compile_for(parameters.target), source)


class CompiledKernel(Workload[CompiledKernelParameters]):
    """One kernel of ours, compiled for one target."""

    name = "compiled_kernel"
    parameters_type = CompiledKernelParameters
    is_exact = True
    implementations = by_name(Compiled("nvrtc", read_cuda), Compiled("triton", read_triton))


@functools.cache
def cuda_kernels(target: str) -> dict[str, Any]:
    """The default set of our CUDA kernels for a target, by name; none for a target they are not made for."""
    module = CUDA_TARGETS.get(target)
    return {kernel.name: kernel for kernel in module.default_set()} if module is not None else {}


@dataclass(frozen=True)
class TritonKernel:
    """How one Triton kernel becomes machine code for a target, and the files of kernels/ that it is compiled from."""

    compile_for: Callable[[str], Any]
    sources: tuple[str, ...]


@functools.cache
def triton_kernels(target: str) -> dict[str, TritonKernel]:
    """The default sets of our Triton kernels for a target, by name; none for a target that is not watched."""
    if target not in TRITON_TARGETS:
        return {}
    kernels = {}
    for product in matmul.default_set(target):
        compile_product = functools.partial(matmul.compile_for, configuration=product)
        kernels[triton_name(product)] = TritonKernel(compile_product, MATMUL_SOURCES)
    for each in attention_defaults.default_set(target):
        if not each.backward:
            compile_forward = functools.partial(attention.compile_for, configuration=each)
            kernels[each.name] = TritonKernel(compile_forward, FORWARD_SOURCES)
            continue
        for kernel in attention_backward.KERNELS:
            compile_backward = functools.partial(attention_backward.compile_for, configuration=each, kernel=kernel)
            kernels[f"{each.name}_{kernel}"] = TritonKernel(compile_backward, BACKWARD_SOURCES)
    return kernels


def triton_name(configuration: matmul.Configuration) -> str:
    """What a person reads: `triton_bf16_tn_128x256x64_s4_w8_persistent_descriptors`."""
    types = matmul.OPERAND_TYPES[configuration.dtype]
    return (
        f"triton_{types}_{configuration.layout.lower()}_{matmul.shown(configuration.tile)}_s{configuration.stages}"
        f"_w{configuration.warps}_{configuration.policy}_{configuration.operands}"
    )
