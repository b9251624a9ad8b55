"""The suite's own attention on a GPU: Triton's kernels with explicit blocks, forward and backward, any head_dim.

The kernel's details say what the law needs: blocks, the padded head_dim, and the slots that programs share.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels.attention import Attention, Configuration, Shape
from pyperf_suite.kernels.attention_backward import Gradients
from pyperf_suite.kernels.attention_defaults import default_configuration
from pyperf_suite.kernels.occupancy import occupancy
from pyperf_suite.laws.attention.counted import Blocks
from pyperf_suite.measure.cuda_stopwatch import CudaStopwatch
from pyperf_suite.workloads.attention.operands import GRADIENTS, INPUTS, join_gradients, operand_shapes
from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.device_tensors import DeviceTensors
from pyperf_suite.workloads.operator import Array, Launches, Tensors, TimedImplementation
from pyperf_suite.workloads.workload import Kernel

# What parameters are checked for before the device is known: addresses take all that any target takes.
ANY_TARGET = "sm_80"


class TritonAttention(TimedImplementation[AttentionParameters]):
    """`kernels/attention.py`: through tensor descriptors where the device and the rows allow, else by addresses."""

    name = "triton"
    device_kind = "cuda"

    def validate(self, parameters: AttentionParameters) -> None:
        """Raise UserError for blocks, sizes or a dtype that the Triton kernels do not have."""
        try:
            configuration_of(parameters, ANY_TARGET)
            shape_of(parameters)
        except ValueError as error:
            raise UserError(str(error)) from None

    def prepare(
        self, parameters: AttentionParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> Launches:
        """Compile for the device through Triton and bind a launch to each operand set, the forward pass done before."""
        if importlib.util.find_spec("triton") is None:
            raise Unsupported("triton is not installed.")
        dtypes = dict.fromkeys(operand_shapes(parameters), parameters.dtype)
        tensors = DeviceTensors(operands, dtypes, sets, device)
        try:
            return TritonLaunches(parameters, tensors, *gpu_of(tensors))
        except ValueError as error:
            raise Unsupported(str(error)) from None


class TritonLaunches(Launches):
    """Launches bound to each operand set; those of the backward pass keep the forward's O and log-sum-exp."""

    def __init__(
        self, parameters: AttentionParameters, tensors: DeviceTensors, target: str, multiprocessors: int
    ) -> None:
        """Raises ValueError where the device has too little of what the blocks need."""
        self._tensors = tensors
        self._parameters = parameters
        self.sets = len(tensors.sets)
        self._written = GRADIENTS if parameters.backward else ("o",)
        configuration = configuration_of(parameters, target)
        # Its own blocks are asked of the backward pass alone.
        forward = configuration_of(replace(parameters, backward=False, blocks=None), target)
        self._bound: list[Callable[[], Any]] = [
            self._backward(configuration, forward, each) if parameters.backward else self._forward(configuration, each)
            for each in tensors.sets
        ]
        compiled = self.launch(0)
        tensors.torch.cuda.synchronize(tensors.device)
        kernels = compiled if isinstance(compiled, dict) else {"forward": compiled}
        costs = {name: costs_of(kernel, target, multiprocessors) for name, kernel in kernels.items()}
        # Of a backward pass the first, dk_dv, has the most work.
        self.kernel = Kernel(
            name=configuration.name,
            path=configuration.operands,
            details={
                "blocks": str(blocks_of(configuration)),
                "padded_head_dim": configuration.padded_head_dim,
                "padding_waste": configuration.waste,
                "heads_together": self._heads_together,
                "target": target,
                **next(iter(costs.values())),
                "kernels": costs,
            },
        )

    def _forward(self, configuration: Configuration, operands: Mapping[str, Any]) -> Callable[[], Any]:
        """A launch that writes O of an operand set."""
        return self._bind_forward(configuration, operands, self._new_lse())

    def _backward(
        self, configuration: Configuration, forward: Configuration, operands: Mapping[str, Any]
    ) -> Callable[[], Any]:
        """A launch that writes dQ, dK and dV of an operand set, whose forward pass is done here."""
        lse = self._new_lse()
        self._bind_forward(forward, operands, lse)()
        named = (operands[name] for name in ("q", "k", "v", "o"))
        gradients = (operands[name] for name in ("do", *GRADIENTS))
        shape = shape_of(self._parameters)
        return Gradients(configuration, shape, self._tensors.device).bind(*named, lse, *gradients)

    def _bind_forward(self, configuration: Configuration, operands: Mapping[str, Any], lse: Any) -> Callable[[], Any]:
        attention = Attention(configuration, shape_of(self._parameters), self._tensors.device)
        self._heads_together = attention.together
        return attention.bind(*(operands[name] for name in ("q", "k", "v", "o")), lse)

    def _new_lse(self) -> Any:
        torch = self._tensors.torch
        return torch.empty(shape_of(self._parameters).lse, dtype=torch.float32, device=self._tensors.device)

    @property
    def stopwatch(self) -> CudaStopwatch:
        return self._tensors.clock

    def launch(self, index: int) -> Any:
        return self._bound[index % len(self._bound)]()

    def output(self, index: int) -> Array:
        tensors = self._tensors.sets[index % len(self._tensors.sets)]
        outputs = [self._tensors.download(tensors[name], self._parameters.dtype) for name in self._written]
        return join_gradients(*outputs) if self._parameters.backward else outputs[0]

    def tensors(self, index: int) -> Tensors:
        self._tensors.torch.cuda.synchronize(self._tensors.device)
        operands = self._tensors.sets[index % self.sets]
        inputs = (*INPUTS, "do") if self._parameters.backward else INPUTS
        return Tensors({name: operands[name] for name in inputs}, {name: operands[name] for name in self._written})

    def poison(self, index: int | None = None) -> None:
        self._tensors.poison(self._written, self._chosen(index))


def default_blocks(parameters: AttentionParameters, target: str) -> Blocks:
    """The blocks that are taken on a target such as "sm_90" where none, or not all of them, are asked for."""
    return blocks_of(
        default_configuration(
            target, parameters.head_dim, parameters.dtype, parameters.causal, parameters.backward, parameters.seq_q
        )
    )


def configuration_of(parameters: AttentionParameters, target: str) -> Configuration:
    """The Triton configuration for a case on a target. Raises ValueError where there is none.

    Stages and warps that the blocks leave at 1 are the target's own. Blocks larger than TMA's go by addresses.
    """
    default = default_configuration(
        target, parameters.head_dim, parameters.dtype, parameters.causal, parameters.backward, parameters.seq_q
    )
    asked = parameters.blocks
    if asked is None:
        return default
    sizes = {
        "block_m": asked.m,
        "block_n": asked.n,
        "stages": asked.stages if asked.stages > 1 else default.stages,
        "warps": asked.warps if asked.warps > 1 else default.warps,
    }
    try:
        return replace(default, **sizes)
    except ValueError:
        return replace(default, **sizes, operands="addresses")


def shape_of(parameters: AttentionParameters) -> Shape:
    """The sizes as the kernels take them. Raises ValueError for more rows than they count."""
    return Shape(parameters.batch, parameters.heads, parameters.key_heads, parameters.seq_q, parameters.keys)


def blocks_of(configuration: Configuration) -> Blocks:
    """The blocks of a configuration as parameters name them."""
    return Blocks(configuration.block_m, configuration.block_n, configuration.stages, configuration.warps)


def gpu_of(tensors: DeviceTensors) -> tuple[str, int]:
    """The target that the device is, as in "sm_90", and its multiprocessors."""
    major, minor = tensors.torch.cuda.get_device_capability(tensors.device)
    return f"sm_{major}{minor}", tensors.torch.cuda.get_device_properties(tensors.device).multi_processor_count


def costs_of(compiled: Any, target: str, multiprocessors: int) -> dict[str, int | None]:
    """Registers, spills, shared memory and slots of a compiled kernel; None where they are not known.

    Slots are the programs that the whole device holds at once.
    """
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
