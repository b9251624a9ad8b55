"""Attention as an operator, forward and backward: our own kernels, on a GPU in CUDA and Triton, and two products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pyperf_suite as suite
from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.kernels import attention_sm90
from pyperf_suite.kernels.attention import ELEMENT_TYPES, Configuration, Shape, heads_together
from pyperf_suite.kernels.attention import Attention as ForwardKernel
from pyperf_suite.kernels.attention_backward import Gradients
from pyperf_suite.kernels.attention_defaults import default_configuration
from pyperf_suite.kernels.occupancy import occupancy
from pyperf_suite.laws.tiled_attention import Blocks, attention_flop
from pyperf_suite.measure.tolerance import Keep
from pyperf_suite.measure.verify import Verification
from pyperf_suite.measure.verify_attention import verify_attention
from pyperf_suite.user_kernels.api import Launch
from pyperf_suite.workloads.attention import (
    GRADIENTS,
    INPUTS,
    AttentionParameters,
    FlashAttention3,
    TorchAttention,
    TorchSdpa,
    bind_attend,
    lower_right,
    require_score_memory,
)
from pyperf_suite.workloads.backends import (
    INSTRUCTION_SETS,
    CudaDevice,
    cuda_device,
    native_extension,
    require_installed,
)
from pyperf_suite.workloads.kernel_names import REDUCTION, parse
from pyperf_suite.workloads.operands import Operands, element_type
from pyperf_suite.workloads.operator import (
    BoundLaunch,
    DeviceMemory,
    HostArrays,
    Launches,
    NativeKernels,
    Operator,
    TimedImplementation,
    TorchTensors,
    refusing,
)
from pyperf_suite.workloads.workload import ExecutionContext, Kernel, by_name

# Target that parameters are checked for before the device is known: addresses take all that any target takes.
ANY_TARGET = "sm_80"
SINGLE_BYTES = 4  # bytes of an element of the softmax between two products


class TritonAttention(TimedImplementation[AttentionParameters]):
    """`kernels/attention.py`: through tensor descriptors where the device and the rows allow, else by addresses."""

    name = "triton"
    device_kind = "cuda"

    def validate(self, parameters: AttentionParameters) -> None:
        with refusing(UserError):
            configuration_of(parameters, ANY_TARGET)
            shape_of(parameters)

    def prepare(self, parameters: AttentionParameters, operands: Operands, place: ExecutionContext) -> Launches:
        require_installed("triton")
        tensors = TorchTensors(operands, place)
        with refusing(Unsupported):
            return _bound(parameters, tensors, *gpu_of(tensors))


def _bound(parameters: AttentionParameters, tensors: TorchTensors, target: str, multiprocessors: int) -> Launches:
    """Launches on each operand set, after a forward pass for gradients. Raises ValueError if the blocks do not fit."""
    configuration, shape = configuration_of(parameters, target), shape_of(parameters)
    # The backward pass alone takes blocks of its own.
    own = replace(parameters, blocks=None) if parameters.backward else parameters
    forward = ForwardKernel(configuration_of(replace(own, backward=False), target), shape, tensors.device)
    bound = []
    for arrays in tensors.sets:
        lse = tensors.torch.empty(shape.lse, dtype=tensors.torch.float32, device=tensors.device)
        operands = [arrays[name] for name in ("q", "k", "v", "o")]
        launch = forward.bind(*operands, lse)
        if parameters.backward:
            launch()
            gradients = [arrays[name] for name in ("do", *GRADIENTS)]
            launch = Gradients(configuration, shape, tensors.device).bind(*operands, lse, *gradients)
        bound.append(BoundLaunch.into(launch, **{name: arrays[name] for name in parameters.results}))
    compiled = bound[0].launch()
    tensors.synchronize()
    kernels = compiled if isinstance(compiled, dict) else {"forward": compiled}
    costs = {name: costs_of(kernel, target, multiprocessors) for name, kernel in kernels.items()}
    blocks = Blocks(configuration.block_m, configuration.block_n, configuration.stages, configuration.warps)
    details = {
        "blocks": str(blocks),
        "padded_head_dim": configuration.padded_head_dim,
        "padding_waste": configuration.waste,
        "heads_together": forward.together,
        "target": target,
        # The first kernel of a backward pass, dk_dv, has the most work.
        **next(iter(costs.values())),
        "kernels": costs,
    }
    return Launches(tensors, bound, Kernel(configuration.name, configuration.operands, details))


def configuration_of(parameters: AttentionParameters, target: str) -> Configuration:
    """The Triton configuration of a case, stages and warps the target's where left at 1. Raises ValueError for none."""
    p, requested = parameters, parameters.blocks
    default = default_configuration(target, p.head_dim, p.dtype, p.causal, p.backward, p.seq_q)
    if requested is None:
        return default
    if requested.persistent:
        raise ValueError(f"Blocks {requested} are for workers that stay, which Triton's attention has none of.")
    sizes = {
        "block_m": requested.m,
        "block_n": requested.n,
        "stages": requested.stages if requested.stages > 1 else default.stages,
        "warps": requested.warps if requested.warps > 1 else default.warps,
    }
    try:
        return replace(default, **sizes)
    except ValueError:
        return replace(default, **sizes, operands="addresses")


def shape_of(parameters: AttentionParameters) -> Shape:
    """The sizes as the kernels take them. Raises ValueError for more rows than they count."""
    return Shape(parameters.batch, parameters.heads, parameters.key_heads, parameters.seq_q, parameters.keys)


def gpu_of(tensors: TorchTensors) -> tuple[str, int]:
    """The target that the device is, as in "sm_90", and its multiprocessors."""
    major, minor = tensors.torch.cuda.get_device_capability(tensors.device)
    return f"sm_{major}{minor}", tensors.torch.cuda.get_device_properties(tensors.device).multi_processor_count


def costs_of(compiled: Any, target: str, multiprocessors: int) -> dict[str, int | None]:
    """Registers, spills, shared memory and slots (programs on the device at once) of a kernel; None if unknown."""
    registers = getattr(compiled, "n_regs", None)
    shared_bytes = None if compiled is None else compiled.metadata.shared
    resident = None
    if registers is not None and shared_bytes is not None:
        # ValueError for a target whose limits are not in the table.
        with suppress(ValueError):
            resident = occupancy(target, 32 * compiled.metadata.num_warps, registers, shared_bytes).blocks
    return {
        "registers": registers,
        "spills": getattr(compiled, "n_spills", None),
        "shared_bytes": shared_bytes,
        "resident": resident,
        "slots": None if resident is None else resident * multiprocessors,
    }


class HopperAttention(TimedImplementation[AttentionParameters]):
    """`kernels/attention_sm90.py`: the copy engine feeds warpgroups that multiply with wgmma; forward only."""

    name = f"cuda_{attention_sm90.FAMILY}"
    device_kind = "cuda"

    def validate(self, parameters: AttentionParameters) -> None:
        if parameters.backward:
            raise UserError(
                f"{self.name} computes the forward pass only, but the backward pass was requested of it: ask triton or "
                "a library for that."
            )
        with refusing(UserError):
            shape_of(parameters)

    def specialise(self, parameters: AttentionParameters) -> attention_sm90.Specialisation:
        """The instance of the kernel for a case. Raises ValueError if there is none."""
        p, blocks = parameters, parameters.blocks
        dtype = ELEMENT_TYPES[p.dtype]
        if blocks is None:
            return attention_sm90.specialise(p.head_dim, dtype, seq_q=p.seq_q)
        if blocks.warps not in (1, blocks.m // attention_sm90.WARP_ROWS):
            raise ValueError(
                f"Blocks {blocks} name {blocks.warps} warps, but each warp of {self.name} has "
                f"{attention_sm90.WARP_ROWS} queries: leave the warps out, or take triton."
            )
        stages = blocks.stages if blocks.stages > 1 else None  # as many as fit
        return attention_sm90.specialise(p.head_dim, dtype, blocks.m, blocks.n, stages)

    def prepare(self, parameters: AttentionParameters, operands: Operands, place: ExecutionContext) -> Launches:
        """Compile for the device, place the operand sets in its memory, encode every launch."""
        gpu = cuda_device(place.device.index)
        memory = DeviceMemory(operands, place, gpu)
        with refusing(Unsupported):
            return self._bound(parameters, gpu, memory)

    def _bound(self, parameters: AttentionParameters, gpu: CudaDevice, memory: DeviceMemory) -> Launches:
        p, instance, shape = parameters, self.specialise(parameters), shape_of(parameters)
        properties = gpu.context.properties
        target = ".".join(map(str, properties.compute_capability))
        instance.check_device(target)
        source, headers = attention_sm90.sources()
        cubin = gpu.compile(attention_sm90.SOURCE, source, headers, instance.options())
        loaded = gpu.kernel(cubin, attention_sm90.ENTRY)
        resident = loaded.max_active_blocks(instance.threads, instance.smem_bytes)
        slots = int(resident * properties.multiprocessors)
        stepped_bytes = 2 * p.keys * p.head_dim * attention_sm90.ELEMENT_BYTES
        together = heads_together(stepped_bytes, properties.l2_bytes) * shape.group
        # Workers that stay load their next block while they store the last; of a causal mask's unequal blocks whoever
        # is free takes the heaviest left.
        persistent = not p.causal if p.blocks is None else p.blocks.persistent
        schedule = instance.schedule(shape, together, slots if persistent else None)
        lse = gpu.native.DeviceMemory(gpu.context, 4 * math.prod(shape.lse))
        encode = partial(gpu.native.tensor_map, gpu.context)
        bound = []
        for arrays in memory.sets:
            q, k, v, o = (arrays[name].address for name in "qkvo")
            launch = gpu.native.Launch(
                loaded,
                (schedule.units, 1, 1),
                (instance.threads, 1, 1),
                instance.bind(encode, (q, k, v, o), lse.address, shape, p.head_dim, p.causal, schedule),
                dynamic_shared_bytes=instance.smem_bytes,
            )
            bound.append(BoundLaunch.into(partial(launch.run, memory.stopwatch.stream), o=arrays["o"]))
        memory.extra = (lse,)
        details = {
            "blocks": str(Blocks(instance.queries, instance.keys, instance.stages, persistent=persistent)),
            "padded_head_dim": instance.head_dim,
            "padding_waste": 1 - p.head_dim / instance.head_dim,
            "heads_together": together,
            "target": f"sm_{target.replace('.', '')}",
            "registers": loaded.registers,
            "local_bytes": loaded.local_bytes,
            "shared_bytes": instance.smem_bytes,
            "resident": resident,
            "slots": slots,
        }
        return Launches(memory, bound, Kernel(instance.name, "tma", details))


class NativeCpuAttention(NativeKernels[AttentionParameters]):
    """The GEMM's packing and micro-kernels with the online softmax between them, forward only."""

    def validate(self, parameters: AttentionParameters) -> None:
        if parameters.backward:
            raise UserError(
                "The native attention computes the forward pass only, but the backward pass was requested of it: "
                "ask a library for that."
            )
        native = self.require_here(parameters.workers)
        blocks = parameters.blocks
        if blocks is not None:
            if blocks != Blocks(blocks.m, blocks.n):
                raise UserError(
                    f"Blocks {blocks} name stages, warps or workers that stay, which a CPU kernel does not have: "
                    f"ask for {blocks.m}x{blocks.n}."
                )
            with refusing(UserError):
                native.check_blocks(blocks.m, blocks.n, self.isa)

    def prepare(self, parameters: AttentionParameters, operands: Operands, place: ExecutionContext) -> Launches:
        p = parameters
        with refusing(Unsupported):
            blocks = p.blocks or default_native_blocks(p, self.isa)
            attention = native_extension().Attention(
                p.batch,
                p.heads,
                p.key_heads,
                p.seq_q,
                p.keys,
                p.head_dim,
                p.dtype,
                p.causal,
                blocks=(blocks.m, blocks.n),
                workers=p.workers,
                isa=self.isa,
            )
        memory = HostArrays(operands, place)
        bound = [
            BoundLaunch.into(partial(attention.run, *(each[name].ctypes.data for name in "qkvo")), o=each["o"])
            for each in memory.sets
        ]
        details = {
            "blocks": str(blocks),
            "padded_head_dim": attention.padded_head_dim,
            "slots": attention.workers,
            **self.details(attention, p.dtype, p.workers),
        }
        return Launches(memory, bound, Kernel(f"native_attention_{attention.isa}", "packed", details))


def default_native_blocks(parameters: AttentionParameters, isa: str | None = None) -> Blocks:
    """The blocks that the native kernel takes if none are requested. Raises ValueError where it has none."""
    p = parameters
    native = native_extension()
    sizes = native.default_blocks(p.batch, p.heads, p.seq_q, p.keys, p.head_dim, p.dtype, p.causal, p.workers, isa)
    return Blocks(*sizes)


class TwoGemm(TorchAttention):
    """Scores by a batched product, their softmax in fp32, times V by another; or the `products_alone`."""

    def __init__(self, name: str, products_alone: bool = False) -> None:
        self.name, self._products_alone = name, products_alone  # type: ignore[misc]
        self.called = f"torch's products, of which {name} consists,"

    def bind(self, parameters: AttentionParameters, tensors: TorchTensors) -> tuple[list[BoundLaunch], Kernel]:
        """Build the mask, and what is known before a launch: probabilities for products alone, a backward's graph."""
        # Scores and probabilities in dtype, the softmax between them in fp32; a graph keeps the latter two.
        of_dtype = element_type(parameters.dtype).size_bytes
        kept_bytes = of_dtype + SINGLE_BYTES if parameters.backward or self._products_alone else 0
        require_score_memory(parameters, tensors, 2 * of_dtype + SINGLE_BYTES, kept_bytes)
        products = BatchedProducts(tensors.torch, parameters, tensors.device)
        if not self._products_alone:
            bound = bind_attend(parameters, tensors, products.attend)
        else:
            given = products.given_gradients if parameters.backward else products.given_output
            bound = [tensors.returned_by(given(each), *parameters.results) for each in tensors.sets]
        bound[0].launch()
        return bound, Kernel("torch.bmm", "products" if self._products_alone else "products and softmax")

    def described(self, kernel: Kernel, launched: Sequence[str], where: Mapping[str, Any]) -> Kernel:
        found = [each for each in map(parse, launched) if each is not None]
        reported = [each.message for each in found if each.family != REDUCTION]
        return Kernel(kernel.name, kernel.path, {"products": reported, **where})


class BatchedProducts:
    """The products over [batch · kv_heads, rows, columns]: a group's queries are rows of one product with its keys.

    So grouped-query attention expands nothing, and shows in the products' sizes.
    """

    def __init__(self, torch: Any, parameters: AttentionParameters, device: Any) -> None:
        self._torch = torch
        self._scale = parameters.scale
        self._shapes = (parameters.q_shape, parameters.k_shape)
        self._batches = parameters.batch * parameters.key_heads
        dtype = getattr(torch, parameters.dtype)
        # With beta 0 torch leaves the summand unread.
        self._bias, self._beta = torch.zeros(1, 1, 1, dtype=dtype, device=device), 0
        if parameters.masks_something:
            hidden = lower_right(torch, parameters, device).logical_not().repeat(parameters.group, 1)
            self._bias = torch.zeros(1, *hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
            self._beta = 1

    def _stacked(self, tensor: Any) -> Any:
        """[batch, any heads, rows, head_dim] as [batch · kv_heads, all rows of a group, head_dim]."""
        return tensor.reshape(self._batches, -1, tensor.shape[-1])

    def scores(self, q: Any, k: Any) -> Any:
        return self._torch.baddbmm(self._bias, q, k.transpose(1, 2), beta=self._beta, alpha=self._scale)

    def probabilities(self, scores: Any) -> Any:
        return self._torch.softmax(scores, dim=-1, dtype=self._torch.float32).to(scores.dtype)

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (self._stacked(each) for each in (q, k, v))
        return self._torch.bmm(self.probabilities(self.scores(q, k)), v).view(self._shapes[0])

    def given_output(self, tensors: Mapping[str, Any]) -> Callable[[], Any]:
        """A launch of both products of the forward pass, the second with probabilities known before."""
        q, k, v = (self._stacked(tensors[name]) for name in ("q", "k", "v"))
        probabilities = self.probabilities(self.scores(q, k))

        def launch() -> Any:
            self.scores(q, k)
            return self._torch.bmm(probabilities, v).view(self._shapes[0])

        return launch

    def given_gradients(self, tensors: Mapping[str, Any]) -> Callable[[], Any]:
        """A launch of the four products of the backward pass, with P and dS known before."""
        torch = self._torch
        q, k, v, do = (self._stacked(tensors[name]) for name in ("q", "k", "v", "do"))
        probabilities = self.probabilities(self.scores(q, k))
        gradient = torch.bmm(do, v.transpose(1, 2)).float()
        gradient -= (gradient * probabilities).sum(dim=-1, keepdim=True)
        of_scores = (gradient * probabilities).to(q.dtype)
        nothing = of_scores.new_zeros(1, 1, 1)

        def launch() -> Any:
            dv = torch.bmm(probabilities.transpose(1, 2), do)
            torch.bmm(do, v.transpose(1, 2))
            dq = torch.baddbmm(nothing, of_scores, k, beta=0, alpha=self._scale)
            dk = torch.baddbmm(nothing, of_scores.transpose(1, 2), q, beta=0, alpha=self._scale)
            return dq.view(self._shapes[0]), dk.view(self._shapes[1]), dv.view(self._shapes[1])

        return launch


IMPLEMENTATIONS = by_name(
    *map(NativeCpuAttention, ("", *INSTRUCTION_SETS)),
    HopperAttention(),
    TritonAttention(),
    *map(TorchSdpa, ("default", "flash", "cudnn", "efficient", "math")),
    FlashAttention3(),
    TwoGemm("two_gemm"),
    TwoGemm("two_gemm_products", products_alone=True),
)


@suite.kernel(AttentionParameters)
def attention(p: AttentionParameters) -> Launch:
    """O = softmax(Q·Kᵀ/√d)·V, or its gradients dQ, dK, dV for a given dO, of which the forward pass is no part.

    4·b·h·d·Σᵢ visible(i) FLOP, backward 2.5 times that; Q, K, V, O once, backward dO, dQ, dK, dV as well.
    """
    operands = {}
    for name, shape in p.shapes.items():
        make = suite.randn if name in (*INPUTS, "do") else suite.empty
        operands[name] = make(*shape, dtype=p.dtype)
    check = partial(check_attention, p.results, p.causal, p.dtype)
    flop = int(attention_flop(p.batch, p.heads, p.head_dim, p.pairs, p.backward))
    moved = sum(each.nbytes for each in operands.values())
    return suite.launch(IMPLEMENTATIONS, check=check, flop=flop, bytes=moved, **operands)


def check_attention(
    results: Sequence[str], causal: bool, dtype: str, values: Mapping[str, Any], keep: Keep
) -> Verification:
    """Compare these results with those of float64."""
    q, k, v = (values[name] for name in INPUTS)
    found = {name: values[name] for name in results}
    return verify_attention(found, q, k, v, values.get("do"), causal, dtype, keep=keep)


ATTENTION = Operator(attention, IMPLEMENTATIONS)
