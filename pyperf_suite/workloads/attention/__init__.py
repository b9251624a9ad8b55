"""Attention, softmax(scale · Q·Kᵀ)·V with scale = 1/√head_dim, or its gradients, and torch's functions of it.

Q and O are stored [batch, heads, seq_q, head_dim], K and V [batch, kv_heads, seq_k, head_dim], all contiguous. What
torch allocates for a result at each launch is part of the time, as it is for those who call it. A backend that refuses
a case, or a compiler that fails, makes it unsupported with torch's own reason.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.laws.tiled_attention import Blocks, visible_pairs
from pyperf_suite.workloads.backends import require_cores, require_installed
from pyperf_suite.workloads.operands import Operands
from pyperf_suite.workloads.operator import BoundLaunch, Launches, TimedImplementation, TorchTensors, free_bytes
from pyperf_suite.workloads.workload import ExecutionContext, Kernel

DTYPES = ("float32", "float16", "bfloat16")
INPUTS = ("q", "k", "v")
GRADIENTS = ("dq", "dk", "dv")

# Beyond this no machine has memory for one head; it also keeps sizes inside 64-bit arithmetic.
LARGEST_SIZE = 1 << 24
Size = Annotated[int, Within(1, LARGEST_SIZE)]
SizeOrNone = Annotated[int, Within(0, LARGEST_SIZE)]


@dataclass(frozen=True)
class AttentionParameters:
    """One attention. `seq_k` 0 is seq_q, `kv_heads` 0 is heads; `blocks` None lets the implementation choose.

    Causal is bottom-right aligned: query i sees keys ≤ i + seq_k − seq_q. `backward` measures the gradients alone, from
    a forward pass done before. `workers` bounds the cores of a CPU; a GPU takes all its multiprocessors.
    """

    batch: Size
    heads: Size
    head_dim: Size
    seq_q: Size
    seq_k: SizeOrNone = 0
    kv_heads: SizeOrNone = 0
    causal: bool = False
    backward: bool = False
    dtype: Annotated[str, OneOf(DTYPES)] = "bfloat16"
    workers: Size = 1
    blocks: Blocks | None = None

    @property
    def keys(self) -> int:
        return self.seq_k or self.seq_q

    @property
    def key_heads(self) -> int:
        """The number of heads of K and V, each shared by `group` heads of Q."""
        return self.kv_heads or self.heads

    @property
    def group(self) -> int:
        """The grouped-query ratio: heads of Q that share one head of K and V."""
        return self.heads // self.key_heads

    @property
    def hidden(self) -> int:
        return self.heads * self.head_dim

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.heads, self.seq_q, self.head_dim)

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.key_heads, self.keys, self.head_dim)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)

    @property
    def pairs(self) -> int:
        return int(visible_pairs(self.seq_q, self.keys, self.causal))

    @property
    def masks_something(self) -> bool:
        """True if causality hides any key: a single query sees all of them."""
        return self.causal and self.seq_q > 1

    @property
    def shapes(self) -> dict[str, tuple[int, int, int, int]]:
        """Shape of each operand by name; the gradients stand there only for the backward pass."""
        shapes = {"q": self.q_shape, "k": self.k_shape, "v": self.k_shape, "o": self.q_shape}
        if self.backward:
            shapes |= {"do": self.q_shape, "dq": self.q_shape, "dk": self.k_shape, "dv": self.k_shape}
        return shapes

    @property
    def results(self) -> tuple[str, ...]:
        return GRADIENTS if self.backward else ("o",)

    def validate(self) -> None:
        heads, key_heads = self.heads, self.key_heads
        if heads % key_heads:
            allowed = ", ".join(str(each) for each in range(1, heads + 1) if heads % each == 0)
            raise UserError(
                f"{key_heads} key heads were requested, but they must divide the {heads} heads: choose from {allowed}."
            )
        if self.causal and self.seq_q > self.keys:
            raise UserError(
                f"Causal attention of {self.seq_q} queries to {self.keys} keys was requested, but the first "
                f"{self.seq_q - self.keys} queries would see no key: ask for at least as many keys."
            )


Attend = Callable[[Any, Any, Any], Any]  # Q, K and V to O

# Scores may take what is free but for this share, which torch's allocator and the products' workspaces need.
SCORES_SHARE = 0.9

# Switches in torch.backends.cuda, and the words by which operators and warnings name each backend.
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

FLASH3_PACKAGE = "flash_attn_interface"

# Backends that take no mask on a GPU but know a causal one that ends at the lower right.
KNOW_LOWER_RIGHT = ("default", "flash", "efficient")

# fp32 scores and probabilities of the math backend, the latter kept for its gradients.
MATH_LAUNCH_BYTES, MATH_KEPT_BYTES = 8, 4


class TorchAttention(TimedImplementation[AttentionParameters]):
    """One that `bind`s a function of torch, which chooses its own blocks; `called` is what people call it."""

    called: str
    needs_torch = True

    def validate(self, parameters: AttentionParameters) -> None:
        if parameters.blocks is not None:
            raise UserError(
                f"{self.called} chooses its blocks itself, but {parameters.blocks} was requested of it: leave it out."
            )
        require_cores(parameters.workers)

    def prepare(self, parameters: AttentionParameters, operands: Operands, place: ExecutionContext) -> Launches:
        tensors = TorchTensors(operands, place, parameters.workers, operands.inputs)
        bound, kernel = self.bind(parameters, tensors)
        launches = Launches(tensors, bound)
        launched = tensors.launched_kernels(launches.launch)
        where = {"launched": launched} if tensors.where.is_gpu else tensors.where.details()
        launches.kernel = self.described(kernel, launched, where)
        return launches

    def bind(self, parameters: AttentionParameters, tensors: TorchTensors) -> tuple[list[BoundLaunch], Kernel]:
        """Launches, of which one has run, and what is known of the kernel so far."""
        raise NotImplementedError

    def described(self, kernel: Kernel, launched: Sequence[str], where: Mapping[str, Any]) -> Kernel:
        return Kernel(launched[0] if launched else kernel.name, kernel.path, {**kernel.details, **where})


def bind_attend(parameters: AttentionParameters, tensors: TorchTensors, attend: Attend) -> list[BoundLaunch]:
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
    """Raise Unsupported where score matrices, at these bytes a pair by launch and by set, exceed the free memory."""
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


class TorchSdpa(TorchAttention):
    """One choice of backend, and "default" leaves it to torch and records it as the path.

    flash: torch's copy of FA2 on GPUs, its own of the same algorithm on CPUs; cudnn: the attention of cuDNN; efficient:
    that of xFormers, built on CUTLASS; math: the formula as torch operations, the whole score matrix in memory.
    """

    called = "torch's scaled_dot_product_attention"

    def __init__(self, backend: str) -> None:
        self.name, self._backend = f"sdpa_{backend}", backend  # type: ignore[misc]

    def bind(self, parameters: AttentionParameters, tensors: TorchTensors) -> tuple[list[BoundLaunch], Kernel]:
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
                    with operators_seen() as operators:
                        bound = bind_attend(parameters, tensors, attend)
                        bound[0].launch()
                break
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, NotImplementedError) as error:
                if way == ways[-1]:
                    reason = reason_of_refusal(backend, [str(each.message) for each in caught], str(error))
                    raise Unsupported(f"torch's {backend} backend of attention refuses this case: {reason}") from None
        picked = backend_of(operators)
        details = {"backend": picked, "mask": mask} | ({"gqa": way} if way else {})
        return bound, Kernel(f"torch.sdpa.{picked}", picked, details)


class FlashAttention3(TorchAttention):
    """FlashAttention-3 of its own package (`flash_attn_interface`, for Hopper GPUs), where that is installed."""

    name = "flash3"
    called = "FlashAttention-3"

    def bind(self, parameters: AttentionParameters, tensors: TorchTensors) -> tuple[list[BoundLaunch], Kernel]:
        """Call it on views of [batch, seq, heads, head_dim], the layout it takes; a shared key head as it is."""
        require_installed(FLASH3_PACKAGE)
        attention = importlib.import_module(FLASH3_PACKAGE).flash_attn_func

        def attend(q: Any, k: Any, v: Any) -> Any:
            rows = (each.transpose(1, 2) for each in (q, k, v))
            output = attention(*rows, causal=parameters.masks_something)
            # Versions before 3.0.0b1 returned (output, log of the sum of exponentials).
            return (output[0] if isinstance(output, tuple) else output).transpose(1, 2)

        bound = bind_attend(parameters, tensors, attend)
        try:
            bound[0].launch()
        except tensors.torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            reason = (str(error).strip().splitlines() or ["it gives no reason"])[0]
            raise Unsupported(f"FlashAttention-3 refuses this case: {reason}") from None
        return bound, Kernel("flash_attn_interface.flash_attn_func", "flash3")


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
        try:
            return sdpa(q, k, v, **arguments)
        except RuntimeError as error:
            if "Invalid backend" not in str(error):
                raise
            raise RuntimeError(why_not(torch, backend, (q, k, v), arguments)) from None

    return attend, mask


def why_not(torch: Any, backend: str, inputs: tuple[Any, ...], arguments: Mapping[str, Any]) -> str:
    """Why a backend cannot be used: torch 2.11 says it on the process's standard error, and only when asked alone."""
    causal, gqa = "is_causal" in arguments, "enable_gqa" in arguments
    question = torch.backends.cuda.SDPAParams(*inputs, arguments.get("attn_mask"), 0.0, causal, gqa)
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            getattr(torch.backends.cuda, f"can_use_{backend}_attention")(question, debug=True)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        reasons = re.findall(r"(?m)Warning: (.*?)(?: \(function \w+\))?$", file.read().decode("utf-8", "replace"))
    return "; ".join(each.rstrip(".") for each in reasons) + "." if reasons else "it gives no reason."


def switches(torch: Any, backend: str) -> Callable[[], None]:
    """A function that allows this backend alone, or all for "default".

    Call it before each launch, as a whole process shares what torch allows: it takes a third of a microsecond, and
    the context manager torch.nn.attention.sdpa_kernel, which sets the same, fifty.
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
