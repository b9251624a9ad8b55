"""torch's scaled_dot_product_attention: the backend it picks by itself, and each of its backends forced.

A backend that refuses a case is unsupported there with torch's own reason, which it tells in warnings.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from pyperf_suite.errors import Unsupported
from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.attention.torch_launches import (
    Attend,
    TorchAttention,
    bind_attend,
    lower_right,
    require_score_memory,
)
from pyperf_suite.workloads.operator import Bound, TorchTensors
from pyperf_suite.workloads.workload import Kernel

# What torch.backends.cuda switches, and the words by which operators and warnings name each backend.
SWITCHES = {
    "flash": "enable_flash_sdp",
    "cudnn": "enable_cudnn_sdp",
    "efficient": "enable_mem_efficient_sdp",
    "math": "enable_math_sdp",
}
OPERATORS = {
    "flash": ("_scaled_dot_product_flash_attention",),
    "cudnn": ("_scaled_dot_product_cudnn_attention",),
    "efficient": ("_scaled_dot_product_efficient_attention", "_efficient_attention_forward"),
    "fused_overrideable": ("_scaled_dot_product_fused_attention_overrideable",),
}
WARNED_AS = {"flash": "flash attention", "cudnn": "cudnn attention", "efficient": "memory efficient", "math": "math"}

# Backends that take no mask on a GPU but know a causal one that ends at the lower right.
KNOW_LOWER_RIGHT = ("default", "flash", "efficient")

# fp32 scores and probabilities of the math backend, the latter kept for its gradients.
MATH_LAUNCH_BYTES, MATH_KEPT_BYTES = 8, 4


class TorchSdpa(TorchAttention):
    """One choice of backend, and "default" leaves it to torch and records it as the path.

    flash: torch's copy of FA2 on GPUs, its own of the same algorithm on CPUs; cudnn: the attention of cuDNN; efficient:
    that of xFormers, built on CUTLASS; math: the formula as torch operations, the whole score matrix in memory.
    """

    called = "torch's scaled_dot_product_attention"

    def __init__(self, backend: str) -> None:
        self.name, self._backend = f"sdpa_{backend}", backend  # type: ignore[misc]

    def bind(self, parameters: AttentionParameters, tensors: TorchTensors) -> tuple[list[Bound], Kernel]:
        """Find the way to ask for this case, see which backend answers, and run the forward pass of a backward one."""
        torch, backend = tensors.torch, self._backend
        if backend in ("cudnn", "efficient") and not tensors.where.is_gpu:
            raise Unsupported(f"torch's {backend} backend of attention runs on GPUs only.")
        if backend == "math":
            kept_bytes = MATH_KEPT_BYTES if parameters.backward else 0
            require_score_memory(parameters, tensors, MATH_LAUNCH_BYTES, kept_bytes)
        # With K and V of fewer heads than Q where the backend takes that, else expanded to all heads at each launch.
        ways = ("enable_gqa", "expanded") if parameters.group > 1 else ("",)
        for way in ways:
            attend, mask = attention_function(torch, backend, parameters, tensors.device, way)
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    with operators_seen() as seen:
                        bound = bind_attend(parameters, tensors, attend)
                        bound[0].launch()
                break
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, NotImplementedError) as error:
                if way == ways[-1]:
                    reason = reason_of_refusal(backend, [str(each.message) for each in caught], str(error))
                    raise Unsupported(f"torch's {backend} backend of attention refuses this case: {reason}") from None
        picked = backend_of(seen)
        details = {"backend": picked, "mask": mask} | ({"gqa": way} if way else {})
        return bound, Kernel(f"torch.sdpa.{picked}", picked, details)


def attention_function(
    torch: Any, backend: str, parameters: AttentionParameters, device: Any, way: str
) -> tuple[Attend, str]:
    """The call a user would write, after the backend's switches, and how it says what is masked."""
    arguments: dict[str, Any] = {}
    mask = "none"
    if parameters.masks_something:
        # is_causal is aligned at the upper left, which is the same only for a square mask.
        if parameters.seq_q == parameters.keys:
            arguments["is_causal"], mask = True, "is_causal"
        elif device.type == "cuda" and backend in KNOW_LOWER_RIGHT:
            from torch.nn.attention.bias import causal_lower_right

            arguments["attn_mask"], mask = causal_lower_right(parameters.seq_q, parameters.keys), "causal_lower_right"
        else:
            arguments["attn_mask"], mask = lower_right(torch, parameters, device), "boolean"
    if way == "enable_gqa":
        arguments["enable_gqa"] = True
    switch = switches(torch, backend)
    sdpa, group = torch.nn.functional.scaled_dot_product_attention, parameters.group

    def attend(q: Any, k: Any, v: Any) -> Any:
        switch()
        if way == "expanded":
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        return sdpa(q, k, v, **arguments)

    return attend, mask


def switches(torch: Any, backend: str) -> Callable[[], None]:
    """A function that allows this backend alone, or all for "default".

    Set before each launch, as they are torch's for the whole process: a third of a microsecond, where the context
    manager torch.nn.attention.sdpa_kernel, which sets the same, takes fifty.
    """
    calls = [
        (getattr(torch.backends.cuda, function), backend in ("default", name)) for name, function in SWITCHES.items()
    ]

    def switch() -> None:
        for set_to, allowed in calls:
            set_to(allowed)

    return switch


@contextlib.contextmanager
def operators_seen() -> Iterator[list[str]]:
    """A list that grows by the names of torch's operators as they run in this context."""
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    with Seen():
        yield names


def backend_of(operators: list[str]) -> str:
    """The backend whose operator is among these; the math backend has none of its own."""
    for backend, words in OPERATORS.items():
        if any(word in operator for operator in operators for word in words):
            return backend
    return "math"


def reason_of_refusal(backend: str, warned: list[str], error: str) -> str:
    """Why torch says that a backend cannot be used: what it warned of under the backend's name, else its error."""
    reasons: list[str] = []
    about: str | None = None
    for message in warned:
        text = re.sub(r"\s*\(Triggered internally.*", "", message, flags=re.DOTALL).strip()
        if text.endswith("not used because:"):
            about = text.lower()
        elif about is not None and about.startswith(WARNED_AS.get(backend, "")):
            reasons.append(text.rstrip("."))
    return "; ".join(reasons) + "." if reasons else (error.strip().splitlines() or ["it gives no reason."])[0]
