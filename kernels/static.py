"""Read a kernel's cost from its machine code: compiled for a target that need not be here, exact and noise-free.

A kernel that starts to spill, to need more registers or to lose its tensor-core instructions is a regression that is
seen on a machine with no GPU.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from types import ModuleType
from typing import Any, Protocol

from pyperf_suite.hardware.catalogue import architectures, capability
from pyperf_suite.kernels import attention, attention_backward, attention_defaults, attention_sm90, matmul, nvrtc
from pyperf_suite.kernels.disassembly import Disassembly, NoDisassembler, Unreadable, disassemble, release
from pyperf_suite.kernels.occupancy import RESERVED_SHARED_BYTES, Occupancy, occupancy

# The instructions that tell how a kernel works, by what they do. SASS names: CUDA Binary Utilities, "Instruction Set
# Reference". Instructions in none of these classes are address arithmetic and control flow.
INSTRUCTION_CLASSES: Mapping[str, tuple[str, ...]] = {
    "HMMA": ("HMMA",),  # mma.sync
    "HGMMA": ("HGMMA",),  # wgmma
    "QGMMA": ("QGMMA",),  # wgmma of 8-bit types
    "UTCMMA": ("UTCHMMA", "UTCQMMA"),  # tcgen05.mma
    "LDGSTS": ("LDGSTS",),  # cp.async
    "UTMALDG": ("UTMALDG",),  # bulk tensor copy in
    "UTMASTG": ("UTMASTG", "UTMAREDG"),  # and out
    "LDSM": ("LDSM",),  # ldmatrix
    "STSM": ("STSM",),  # stmatrix
    "LDS": ("LDS",),
    "STS": ("STS",),
    "LDG": ("LDG", "LD"),
    "STG": ("STG", "ST"),
    "LDL": ("LDL",),  # local memory: what does not fit the registers
    "STL": ("STL",),
    "ATOM": ("ATOM", "ATOMG", "ATOMS", "RED", "REDG"),
    "BAR": ("BAR",),
    "SYNCS": ("SYNCS",),  # mbarrier
}

# NVRTC whose binaries for sm_90a cuobjdump 13.1 reads; those of 12.0 to 12.2 have "no device code" for it.
OLDEST_READ = (12, 3)

# Sources that a Triton kernel is compiled from.
MATMUL_SOURCES = ("matmul_device.py", "schedule.py")
FORWARD_SOURCES = ("attention_device.py", "attention_schedule.py")
BACKWARD_SOURCES = ("attention_backward_device.py", *FORWARD_SOURCES)


@functools.cache
def families() -> dict[str, ModuleType]:
    """Our CUDA products by the family that the catalogue of GPUs names, the newest first: "sm90" is `gemm_sm90`."""
    names = [each.cuda_kernels for each in reversed(architectures()) if each.cuda_kernels]
    found = [import_module(f"pyperf_suite.kernels.gemm_{name}") for name in dict.fromkeys(names)]
    return {module.FAMILY: module for module in sorted(found, key=lambda each: capability(each.ARCHITECTURE))[::-1]}


def triton_targets() -> tuple[str, ...]:
    """The targets whose Triton kernels' machine code is watched: the oldest of each generation in the catalogue."""
    oldest: dict[str, str] = {}
    for each in architectures():
        if each.resident_warps:
            oldest.setdefault(each.generation, each.target)
    return tuple(oldest.values())


@functools.cache
def cuda_targets() -> dict[str, ModuleType]:
    """Our CUDA products by the target that they are made for."""
    return {family.ARCHITECTURE: family for family in families().values()}


@dataclass(frozen=True)
class TritonKernel:
    """How one Triton kernel becomes machine code for a target, and the files of kernels/ that it is compiled from."""

    compile_for: Callable[[str], Any]
    sources: tuple[str, ...]

    def source(self) -> str:
        folder = files("pyperf_suite.kernels")
        return "\0".join((folder / name).read_text("utf-8") for name in self.sources)


@functools.cache
def triton_kernels(target: str) -> dict[str, TritonKernel]:
    """The default sets of our Triton kernels for a target, by name; none for a target that is not watched."""
    if target not in triton_targets():
        return {}
    kernels = {}
    for product in matmul.default_set(target):
        compile_product = functools.partial(matmul.compile_for, configuration=product)
        kernels[product.name] = TritonKernel(compile_product, MATMUL_SOURCES)
    for blocks in attention_defaults.default_set(target):
        if not blocks.backward:
            compile_forward = functools.partial(attention.compile_for, configuration=blocks)
            kernels[blocks.name] = TritonKernel(compile_forward, FORWARD_SOURCES)
            continue
        for kernel in attention_backward.KERNELS:
            compile_backward = functools.partial(attention_backward.compile_for, configuration=blocks, kernel=kernel)
            kernels[f"{blocks.name}_{kernel}"] = TritonKernel(compile_backward, BACKWARD_SOURCES)
    return kernels


@functools.cache
def hinted_kernels(target: str) -> dict[str, TritonKernel]:
    """By hints, the first of the products that reads by addresses, told less and less of what divides by 16."""
    usual = next(each for each in matmul.default_set(target) if not each.descriptors)
    each = {hints: replace(usual, hints=hints) for hints in matmul.UNHINTED}
    compiling = {hints: functools.partial(matmul.compile_for, configuration=product) for hints, product in each.items()}
    return {each[hints].name: TritonKernel(compile_for, MATMUL_SOURCES) for hints, compile_for in compiling.items()}


class Specialised(Protocol):
    """A CUDA kernel's specialisation as gemm_sm80.py, gemm_sm90.py and attention_sm90.py describe it."""

    @property
    def threads(self) -> int: ...

    @property
    def smem_bytes(self) -> int: ...

    def options(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class CudaKernel:
    """One instance of a CUDA source, and the module of kernels/ that describes it."""

    specialised: Specialised
    module: ModuleType

    def read(self, name: str, target: str) -> StaticMetrics:
        return of_cuda(name, self.specialised, self.module.sources(), target, self.module.ENTRY)


@functools.cache
def cuda_kernels(target: str) -> dict[str, CudaKernel]:
    """The default sets of our CUDA kernels for a target, by name; none for a target they are not made for."""
    modules = [module for module in (*families().values(), attention_sm90) if target == module.ARCHITECTURE]
    return {one.name: CudaKernel(one, module) for module in modules for one in module.default_set()}


@dataclass(frozen=True)
class StaticMetrics:
    """One kernel compiled for one target. Shared memory is per block; instruction counts are of the code, not executed.

    `instructions` has every class of INSTRUCTION_CLASSES, "other" and "all".
    """

    kernel: str
    target: str
    compiler: str
    source_sha256: str
    threads: int
    registers: int
    stack_bytes: int
    local_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    code_bytes: int
    instructions: Mapping[str, int]
    occupancy: Occupancy

    @property
    def local_memory_instructions(self) -> int:
        """Loads and stores of local memory: spills, and arrays indexed at run time."""
        return self.instructions["LDL"] + self.instructions["STL"]

    def state(self) -> dict[str, str]:
        """State that may change the figures besides the suite's own source, and that source's digest."""
        return {"compiler": self.compiler, "source_sha256": self.source_sha256}

    def metrics(self) -> dict[str, dict[str, Any]]:
        """The figures as a record keeps metrics: unit, and one exact value that is its own interval and sample."""
        figures = {
            "registers": ("registers", self.registers),
            "stack": ("bytes", self.stack_bytes),
            "local_memory": ("bytes", self.local_bytes),
            "static_shared_memory": ("bytes", self.static_shared_bytes),
            "dynamic_shared_memory": ("bytes", self.dynamic_shared_bytes),
            "code": ("bytes", self.code_bytes),
            "resident_blocks": ("blocks", self.occupancy.blocks),
            "resident_warps": ("warps", self.occupancy.warps),
            **{f"instructions_{name}": ("instructions", count) for name, count in self.instructions.items()},
        }
        return {name: _exact(unit, value) for name, (unit, value) in figures.items()}


def of_cuda(
    name: str, specialised: Specialised, sources: tuple[str, Mapping[str, str]], target: str, entry: str = "pyperf_gemm"
) -> StaticMetrics:
    """Compile a CUDA source for a target and read it.

    `sources` is the text of the .cu and of its headers by name, as `sources()` of the kernel's module gives them.
    Raises NoCompiler, DoesNotCompile or NoDisassembler, each with what to do, and ValueError for a target that is not
    known.
    """
    source, headers = sources
    compiled = nvrtc.compile_cubin(name, source, headers, target, specialised.options())
    compiler = f"NVRTC {'.'.join(map(str, nvrtc.version()))}"
    text = "\0".join([source, *headers.values(), *specialised.options()])
    try:
        code = disassemble(compiled.cubin, entry)
    except Unreadable:
        if nvrtc.version() >= OLDEST_READ:
            raise
        oldest = ".".join(map(str, OLDEST_READ))
        raise NoDisassembler(
            f"{compiler} is too old for this disassembler: cuobjdump {release()} does not read what it compiles for "
            f"{target}. Use NVRTC {oldest} or later, by PYPERF_LIBNVRTC or pip install -U nvidia-cuda-nvrtc."
        ) from None
    return _metrics(name, target, compiler, text, code, specialised.threads, specialised.smem_bytes)


def of_triton(name: str, binary: Any, source: str) -> StaticMetrics:
    """Read a kernel that `matmul.compile_for` compiled with Triton; `source` is what it was compiled from."""
    # Triton counts all shared memory as dynamic, and so asks for it at launch.
    compiler = f"Triton {importlib.metadata.version('triton')}"
    code = disassemble(binary.cubin, binary.name)
    return _metrics(name, binary.target, compiler, source, code, binary.threads, binary.shared_bytes)


def _metrics(
    name: str, target: str, compiler: str, source: str, code: Disassembly, threads: int, dynamic_shared_bytes: int
) -> StaticMetrics:
    classes = {
        name: sum(code.instructions.get(opcode, 0) for opcode in opcodes)
        for name, opcodes in INSTRUCTION_CLASSES.items()
    }
    every = sum(code.instructions.values())
    # From 9.0 on cuobjdump counts what the system reserves of each block as static memory; `occupancy` adds it itself.
    reserved = RESERVED_SHARED_BYTES if capability(target) >= (9, 0) else 0
    shared_bytes = max(code.static_shared_bytes - reserved, 0) + dynamic_shared_bytes
    return StaticMetrics(
        kernel=name,
        target=target,
        compiler=compiler,
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        threads=threads,
        registers=code.registers,
        stack_bytes=code.stack_bytes,
        local_bytes=code.local_bytes,
        static_shared_bytes=code.static_shared_bytes,
        dynamic_shared_bytes=dynamic_shared_bytes,
        code_bytes=code.code_bytes,
        instructions={**classes, "other": every - sum(classes.values()), "all": every},
        occupancy=occupancy(target, threads, code.registers, shared_bytes),
    )


def _exact(unit: str, value: float) -> dict[str, Any]:
    return {"unit": unit, **dict.fromkeys(("value", "low", "high", "q20", "q80"), value), "samples": [value]}
