"""Attention as people first write it: two batched products and a softmax between them, the scores in memory.

Beside it the products alone, so that softmax's share is 1 − t(products)/t(whole); the products' tiles explain the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.attention.torch_launches import (
    TorchAttention,
    bind_attend,
    lower_right,
    require_score_memory,
)
from pyperf_suite.workloads.kernel_names import REDUCTION, parse
from pyperf_suite.workloads.operands import element_type
from pyperf_suite.workloads.operator import Bound, TorchTensors
from pyperf_suite.workloads.workload import Kernel

SINGLE_BYTES = 4


class TwoGemm(TorchAttention):
    """Scores by one batched product, which scales and masks them, their softmax in fp32, times V by another.

    Or `products_alone`: what lies between them was computed before.
    """

    def __init__(self, name: str, products_alone: bool = False) -> None:
        self.name, self._products_alone = name, products_alone  # type: ignore[misc]
        self.called = f"torch's products, of which {name} consists,"

    def bind(self, parameters: AttentionParameters, tensors: TorchTensors) -> tuple[list[Bound], Kernel]:
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
        """The products, each with what its kernel's name tells."""
        found = [each for each in map(parse, launched) if each is not None]
        told = [each.told for each in found if each.family != REDUCTION]
        return Kernel(kernel.name, kernel.path, {"products": told, **where})


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
        """Scale·Q·Kᵀ, −∞ where a key is hidden, in the operands' dtype."""
        return self._torch.baddbmm(self._bias, q, k.transpose(1, 2), beta=self._beta, alpha=self._scale)

    def probabilities(self, scores: Any) -> Any:
        """Softmax over keys, in fp32, rounded back."""
        return self._torch.softmax(scores, dim=-1, dtype=self._torch.float32).to(scores.dtype)

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        """The whole: two products and what is between them."""
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
