"""Attention written in torch, on a CPU or a GPU, forward or backward by autograd.

What torch allocates for a result at each launch is part of the time, as it is for those who call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.workloads.attention.parameters import INPUTS, AttentionParameters
from pyperf_suite.workloads.backends import require_cores
from pyperf_suite.workloads.operands import Operands
from pyperf_suite.workloads.operator import Bound, Launches, TimedImplementation, TorchTensors, free_bytes
from pyperf_suite.workloads.workload import Kernel, Place

# Q, K and V to O.
Attend = Callable[[Any, Any, Any], Any]

# Scores may take what is free but for this share, which torch's allocator and the products' workspaces need.
SCORES_SHARE = 0.9


class TorchAttention(TimedImplementation[AttentionParameters]):
    """One that `bind`s a function of torch, which chooses its own blocks; `called` is what people call it."""

    called: str
    needs_torch = True

    def validate(self, parameters: AttentionParameters) -> None:
        """Raise UserError for blocks of ours, or more workers than cores."""
        if parameters.blocks is not None:
            raise UserError(
                f"{self.called} chooses its blocks itself, but {parameters.blocks} was asked of it: leave it out."
            )
        require_cores(parameters.workers)

    def prepare(self, parameters: AttentionParameters, operands: Operands, place: Place) -> Launches:
        """Make the inputs tensors, bind a launch to each set, and on a GPU ask which kernels run."""
        tensors = TorchTensors(operands, place, parameters.workers, operands.inputs)
        bound, kernel = self.bind(parameters, tensors)
        launches = Launches(tensors, bound)
        launched = tensors.launched_kernels(launches.launch)
        where = {"launched": launched} if tensors.where.is_gpu else tensors.where.details()
        launches.kernel = self.described(kernel, launched, where)
        return launches

    def bind(self, parameters: AttentionParameters, tensors: TorchTensors) -> tuple[list[Bound], Kernel]:
        """Launches, of which one has run, and what is known of the kernel so far."""
        raise NotImplementedError

    def described(self, kernel: Kernel, launched: Sequence[str], where: Mapping[str, Any]) -> Kernel:
        """The kernel, given the names of those that were launched: the first of them, where there are any."""
        return Kernel(launched[0] if launched else kernel.name, kernel.path, {**kernel.details, **where})


def bind_attend(parameters: AttentionParameters, tensors: TorchTensors, attend: Attend) -> list[Bound]:
    """Launches of this function, or of its gradients by autograd, whose forward pass is done here."""

    def function(inputs: Mapping[str, Any]) -> Callable[[], Any]:
        q, k, v = (inputs[name] for name in INPUTS)
        if not parameters.backward:
            return lambda: attend(q, k, v)
        for each in (q, k, v):
            each.requires_grad_()
        output, gradient, grad = attend(q, k, v), inputs["do"], tensors.torch.autograd.grad
        return lambda: grad(output, (q, k, v), gradient, retain_graph=True)

    return [tensors.returned_by(function(each), *parameters.results) for each in tensors.sets]


def require_score_memory(
    parameters: AttentionParameters, tensors: TorchTensors, launch_bytes: int, kept_bytes: int
) -> None:
    """Raise Unsupported where the score matrices do not fit in the memory that is free.

    `launch_bytes` of each pair of query and key live during a launch, `kept_bytes` for each operand set.
    """
    pairs = parameters.batch * parameters.heads * parameters.seq_q * parameters.keys
    needed = pairs * (launch_bytes + kept_bytes * tensors.count)
    free = free_bytes(tensors.place.device)
    if needed > SCORES_SHARE * free:
        raise Unsupported(
            f"The score matrix of {pairs} pairs of query and key needs {needed / 1e9:.3g} GB, but "
            f"{free / 1e9:.3g} GB are free: ask for fewer heads or a shorter sequence."
        )


def lower_right(torch: Any, parameters: AttentionParameters, device: Any) -> Any:
    """The causal mask as booleans [seq_q, seq_k], True where query i sees key j ≤ i + seq_k − seq_q."""
    ones = torch.ones(parameters.seq_q, parameters.keys, dtype=torch.bool, device=device)
    return ones.tril(parameters.keys - parameters.seq_q)
