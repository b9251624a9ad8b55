"""Attention as people first write it: two batched products and a softmax between them, the scores in memory.

Beside it the products alone, so that softmax's share is 1 − t(products)/t(whole); the products' tiles explain the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pyperf_suite.hardware.devices import Device
from pyperf_suite.workloads.attention.parameters import AttentionParameters, require_library_blocks
from pyperf_suite.workloads.attention.torch_launches import TorchAttention, lower_right, masks_something
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.dtypes import element_type
from pyperf_suite.workloads.matmul.kernel_names import REDUCTION, product_kernel
from pyperf_suite.workloads.operator import Array, Launches, TimedImplementation
from pyperf_suite.workloads.workload import Kernel

SINGLE_BYTES = 4


class TwoGemm(TimedImplementation[AttentionParameters]):
    """Scores by one batched product, which scales and masks them, their softmax in fp32, times V by another."""

    name = "two_gemm"
    device_kind = "any"
    products_alone: ClassVar[bool] = False

    def validate(self, parameters: AttentionParameters) -> None:
        """Raise UserError for blocks of ours, which the library's products choose, or more workers than cores."""
        require_library_blocks(f"torch's products, of which {self.name} consists,", parameters)
        require_cores(parameters.workers)

    def prepare(
        self, parameters: AttentionParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> Launches:
        """Build the mask, and what is known before a launch: probabilities for products alone, a backward's graph."""
        launches = TorchAttention(parameters, operands, sets, device)
        # Scores and probabilities in dtype, the softmax between them in fp32; a graph keeps the latter two.
        of_dtype = element_type(parameters.dtype).size_bytes
        keeps = parameters.backward or self.products_alone
        launches.require_score_memory(2 * of_dtype + SINGLE_BYTES, of_dtype + SINGLE_BYTES if keeps else 0)
        products = BatchedProducts(launches.torch, parameters, launches.device)
        if not self.products_alone:
            launches.bind(products.attend)
        elif parameters.backward:
            launches.bind_each(products.gradients_given_probabilities)
        else:
            launches.bind_each(products.output_given_probabilities)
        launches.launch(0)
        names = launches.launched()
        kernels = [found for found in map(product_kernel, ([name] for name in names)) if found is not None]
        told = [
            {field: value for field, value in vars(kernel).items() if value is not None}
            for kernel in kernels
            if kernel.family != REDUCTION
        ]
        launches.kernel = Kernel(
            name="torch.bmm",
            path="products" if self.products_alone else "products and softmax",
            details={"products": told} | launches.details(names),
        )
        return launches


class TwoGemmProducts(TwoGemm):
    """The products of `two_gemm` alone: what lies between them was computed before."""

    name = "two_gemm_products"
    products_alone = True


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
        if masks_something(parameters):
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

    def output_given_probabilities(self, tensors: Mapping[str, Any]) -> Callable[[], Any]:
        """A launch of both products of the forward pass, the second with probabilities known before."""
        q, k, v = (self._stacked(tensors[name]) for name in ("q", "k", "v"))
        probabilities = self.probabilities(self.scores(q, k))

        def launch() -> Any:
            self.scores(q, k)
            return self._torch.bmm(probabilities, v).view(self._shapes[0])

        return launch

    def gradients_given_probabilities(self, tensors: Mapping[str, Any]) -> Callable[[], Any]:
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
