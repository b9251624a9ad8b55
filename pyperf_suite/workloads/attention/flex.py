"""torch's flex_attention, compiled for each case with a causal mask that skips whole blocks.

Where it does not compile, or not within the time it is given, the case is unsupported with the compiler's reason.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

from pyperf_suite.errors import Unsupported
from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.attention.torch_launches import Attend, TorchAttention, bind_attend
from pyperf_suite.workloads.operator import Bound, TorchTensors
from pyperf_suite.workloads.workload import Kernel

COMPILE_BUDGET_S = 60.0
"""Twice what the first case takes on a slow core; within the deadline whose passing costs a worker its process."""


class FlexAttention(TorchAttention):
    """`torch.compile(flex_attention)`: Triton's code on GPUs, C++ on CPUs, where it has no backward pass."""

    name = "flex"
    called = "torch's flex_attention"

    def bind(self, parameters: AttentionParameters, tensors: TorchTensors) -> tuple[list[Bound], Kernel]:
        """Compile by launching once, within the budget."""
        if parameters.backward and not tensors.where.is_gpu:
            raise Unsupported("torch's flex_attention has no backward pass on CPUs.")
        torch = tensors.torch
        # A process that compiled for many shapes would else be refused for having compiled too often.
        torch.compiler.reset()
        try:
            with warnings.catch_warnings(), time_limit(COMPILE_BUDGET_S):
                # The compiler's own imports and hints are none of the reader's business.
                warnings.simplefilter("ignore")
                bound = bind_attend(parameters, tensors, _compiled(torch, parameters, tensors.device))
                bound[0].launch()
        except (Unsupported, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a compiler stumbles over
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason is given")
            raise Unsupported(f"torch's flex_attention does not compile for this case: {first}") from None
        mask = "block_mask" if parameters.masks_something else "none"
        return bound, Kernel("torch.flex_attention", "compiled", {"mask": mask})


def _compiled(torch: Any, parameters: AttentionParameters, device: Any) -> Attend:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    arguments: dict[str, Any] = {"enable_gqa": parameters.group > 1}
    if parameters.masks_something:
        last_of_first = parameters.keys - parameters.seq_q
        arguments["block_mask"] = create_block_mask(
            lambda _batch, _head, query, key: key <= query + last_of_first,
            None,
            None,
            parameters.seq_q,
            parameters.keys,
            device=str(device),
        )
    return lambda q, k, v: compiled(q, k, v, **arguments)


class OutOfTime(BaseException):
    """The limit has passed; no Exception, which compilers catch to try another way."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise Unsupported in the main thread once `seconds` have passed; in others, where no signal arrives, never."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except OutOfTime:
        raise Unsupported(f"torch's flex_attention did not compile within {seconds:.3g} s.") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
