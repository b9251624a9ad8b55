"""Host side of every Triton kernel: block sizes, tensors checked, launches, machine code for a target.

torch and Triton are imported when something is run or compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.hardware.catalogue import architecture, capability

SMALLEST_BLOCK = 16  # a side of what a tensor core takes at once
LARGEST_BLOCK = 1 << 20  # elements that Triton lets a block have
LARGEST_DESCRIPTOR_BLOCK = 256  # elements along one side of a TMA box
TMA_ALIGNMENT_BYTES = 16
OPERAND_PATHS = ("addresses", "descriptors")


@dataclass(frozen=True)
class Binary:
    """A kernel compiled for a target without a device: machine code, PTX, and what a launch of it takes."""

    name: str
    target: str
    cubin: bytes
    ptx: str
    threads: int
    shared_bytes: int


class Launch:
    """One kernel with its arguments, ready to be enqueued on the current stream as often as wanted."""

    def __init__(
        self, kernel: Any, programs: int, arguments: Sequence[Any], options: Mapping[str, Any], requested: str
    ) -> None:
        """`requested` begins the sentence for a device that has too little, as in "Tile 128x128x64"."""
        import triton

        self._kernel = kernel[(programs,)]
        self._arguments = tuple(arguments)
        self._options = dict(options)
        self._requested = requested
        self._out_of_resources = triton.runtime.errors.OutOfResources

    def __call__(self) -> Any:
        """Enqueue it; the kernel, or None if interpreted. Raises ValueError for too little memory or registers."""
        try:
            return self._kernel(*self._arguments, **self._options)
        except self._out_of_resources as error:
            raise ValueError(
                f"{self._requested} needs {error.required} of this device's {error.limit} of {error.name}: take "
                "a smaller tile or fewer stages."
            ) from None


def shared_with_host(function: Callable[..., Any]) -> Any:
    """The device's form of a function that the host calls too; the interpreter calls it as the Python it is."""
    import triton

    compiled = triton.jit(function)
    return function if interprets(compiled) else compiled


def interprets(kernel: Any) -> bool:
    """True if Triton interprets this kernel in this process instead of compiling it."""
    import triton

    return not isinstance(kernel, triton.runtime.JITFunction)


def compiler_options(stages: int, warps: int) -> dict[str, Any]:
    """Options for Triton's compiler. Fused multiply-adds are requested because its default is about to change."""
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}


def compile_kernel(
    kernel: Any,
    target: str,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    aligned: Iterable[str] | None = None,
) -> Binary:
    """Compile a kernel for a target such as "sm_90", which need not be here.

    `types` names Triton's type of each argument that is no 32-bit integer, `constants` the value of each that is known
    now, `aligned` those that are multiples of 16, by default all addresses. Raises ValueError for what is not a target,
    and RuntimeError where Triton interprets instead of compiling.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if interprets(kernel):
        raise RuntimeError("Triton interprets in this process: unset TRITON_INTERPRET to compile.")
    signature = dict.fromkeys(kernel.arg_names, "i32") | dict(types) | dict.fromkeys(constants, "constexpr")
    if aligned is None:
        aligned = [name for name, type_name in types.items() if type_name.startswith("*")]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    major, minor = capability(target)  # Triton adds the letter of sm_90a itself
    compiled = triton.compile(
        ASTSource(kernel, signature, dict(constants), attributes),
        target=GPUTarget("cuda", 10 * major + minor, 32),
        options=dict(options),
    )
    return Binary(
        compiled.metadata.name,
        target,
        compiled.asm["cubin"],
        compiled.asm["ptx"],
        compiled.metadata.num_warps * 32,
        compiled.metadata.shared,
    )


def largest_block(operands: str) -> int:
    """The most elements along one side of a block that is read by addresses or through descriptors."""
    return LARGEST_DESCRIPTOR_BLOCK if operands == "descriptors" else LARGEST_BLOCK


def nearest_block(side: int, largest: int) -> int:
    """The power of two nearest to a side, the larger of two as near, within what a block may have."""
    below = 1 << (max(side, 1).bit_length() - 1)
    nearest = below if side - below < 2 * below - side else 2 * below
    return min(max(nearest, SMALLEST_BLOCK), largest)


def shown(tile: tuple[int, ...]) -> str:
    """A tile as people write it."""
    return "x".join(map(str, tile))


def check_known(kernel: str, name: str, value: str, choices: Iterable[str]) -> None:
    """Raise ValueError for a value that is not among those a kernel knows."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"Triton's {kernel} does not know {name} {value!r}: choose from {', '.join(choices)}.")


def check_pipeline(stages: int, warps: int) -> None:
    """Raise ValueError for stages or warps that no program has."""
    if stages < 1 or warps not in (1, 2, 4, 8, 16, 32):
        raise ValueError(
            f"{stages} stages and {warps} warps were requested, but there is at least 1 stage and warps are a power of "
            "two up to 32."
        )


def check_tma(device: Any) -> None:
    """Raise ValueError for a GPU that has no TMA; where Triton interprets there is no need of one."""
    import torch

    if device.type != "cuda":
        return
    found = torch.cuda.get_device_capability(device)
    if "tma" not in architecture(found).features:
        raise ValueError(
            f"Tensor descriptors need compute capability 9.0, but {torch.cuda.get_device_name(device)} has "
            f"{found[0]}.{found[1]}: use addresses."
        )


def check_tensor(
    name: str, tensor: Any, shape: tuple[int, ...], dtype: str, device: Any, taker: str = "product"
) -> None:
    """Raise ValueError for a tensor of another shape, dtype or device than requested."""
    found = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device)
    if found != (shape, dtype, device):
        raise ValueError(
            f"{name} is {found[1]}{list(found[0])} on {found[2]}, but this {taker} takes {dtype}{list(shape)} on "
            f"{device}."
        )


def row_stride(tensor: Any) -> int:
    """Elements from one row to the next; of a single row, its length rounded up to what TMA takes."""
    if tensor.shape[-2] > 1:
        return int(tensor.stride(-2))
    step = TMA_ALIGNMENT_BYTES // tensor.element_size()
    return -(-int(tensor.shape[-1]) // step) * step


def check_descriptor(name: str, tensor: Any) -> None:
    """Raise ValueError for an address or strides that TMA cannot take."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(
            f"{name} has stride {tensor.stride(-1)} along its rows, but a tensor descriptor needs 1: use addresses."
        )
    for property_name, size_bytes in (
        ("starts at an address", tensor.data_ptr()),
        ("has a row stride", row_stride(tensor) * tensor.element_size()),
    ):
        if size_bytes % TMA_ALIGNMENT_BYTES:
            raise ValueError(
                f"{name} {property_name} that is {size_bytes % TMA_ALIGNMENT_BYTES} bytes past a multiple of "
                f"{TMA_ALIGNMENT_BYTES}, which TMA cannot take: pad it to a multiple, or use addresses."
            )
