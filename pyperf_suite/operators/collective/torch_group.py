"""torch's process groups, made from the store that the ranks share, and buffers that are torch tensors."""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.operators.collective.data import POISON_BYTE, RankData, Stored
from pyperf_suite.operators.dtypes import element_type
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.ranks.store import connect

# Longer than any deadline of ours: the watchdog, which knows who is missing, is to speak first.
TORCH_PATIENCE_S = 3600.0

Made = TypeVar("Made")


@dataclass
class _Joined:
    """The process groups that this process is in, by backend; a process belongs to one group of ranks."""

    by_backend: dict[str, Any]


_JOINED = _Joined({})


def process_group(group: Group, backend: str, deadline_s: float, **options: Any) -> Any:
    """The process group of torch with all ranks, made when first asked for; all ranks call it together.

    Raises Unsupported on all ranks where this torch lacks the backend on any, and RanksMissing where ranks do not come.
    """
    if backend in _JOINED.by_backend:
        return _JOINED.by_backend[backend]
    distributed: Any = importlib.import_module("torch.distributed")
    agree(group, f"look for {backend}", lambda: _require(distributed, backend), deadline_s)
    # A client of its own, as torch's threads may ask while this one waits; and keys that nobody else writes.
    store = distributed.PrefixStore(f"process_group/{backend}", connect(group.environment, deadline_s))

    def join() -> Any:
        timeout = datetime.timedelta(seconds=TORCH_PATIENCE_S)
        if distributed.is_initialized():
            return distributed.new_group(backend=backend, timeout=timeout)
        distributed.init_process_group(
            backend, store=store, rank=group.rank, world_size=group.count, timeout=timeout, **options
        )
        return distributed.group.WORLD

    _JOINED.by_backend[backend] = joined(group, f"connect by {backend}", join, deadline_s)
    return _JOINED.by_backend[backend]


def agree(group: Group, doing: str, attempt: Callable[[], Made], deadline_s: float) -> Made:
    """What `attempt` makes on this rank alone, once it has on all: nobody then waits for a rank that cannot.

    Raises Unsupported on all ranks where it raised Unsupported or UserError on any.
    """
    made: Made | None = None
    trouble = ""
    try:
        made = attempt()
    except (Unsupported, UserError) as reason:
        trouble = str(reason)
    troubles = group.gather(doing, trouble, deadline_s)
    found = [(rank, reason) for rank, reason in enumerate(troubles) if reason]
    if found:
        same_everywhere = len(set(troubles)) == 1
        raise Unsupported(found[0][1] if same_everywhere else f"Rank {found[0][0]}: {found[0][1]}")
    return made  # type: ignore[return-value]


def joined(group: Group, doing: str, join: Callable[[], Made], deadline_s: float) -> Made:
    """What `join` makes together with all other ranks. Raises RanksMissing where it fails, which ends the group."""
    with group.within(doing, deadline_s):
        try:
            return join()
        except RanksMissing:
            raise
        except Exception as error:
            raise group.broken(doing, error) from error


def tensors_of(data: RankData, device: Any) -> tuple[Any, Any]:
    """The send and the receive buffer on that device; None for one that the rank does not need."""
    import torch

    dtype = getattr(torch, data.parameters.dtype)
    send, receive = (
        torch.empty(count, dtype=dtype, device=device) if count else None
        for count in (data.send_count, data.receive_count)
    )
    return send, receive


def as_output(data: RankData, send: Any, receive: Any) -> tuple[Any, Any]:
    """The parts of the buffers that are input and output: in place both are of the send buffer."""
    parameters, rank = data.parameters, data.rank
    inputs, outputs = parameters.send_count(rank), parameters.receive_count(rank)
    output = send if parameters.in_place else receive
    return (
        send[data.input_at : data.input_at + inputs] if inputs else None,
        output[data.output_at : data.output_at + outputs] if outputs else None,
    )


def _require(distributed: Any, backend: str) -> None:
    if not getattr(distributed, f"is_{backend}_available")():
        raise Unsupported(f"This torch was built without {backend}.")


@dataclass(frozen=True)
class TensorMemory:
    """A tensor as data.Memory."""

    tensor: Any
    dtype: str

    @classmethod
    def of(cls, tensor: Any, dtype: str) -> TensorMemory | None:
        """The memory of a tensor, or None for none."""
        return None if tensor is None else cls(tensor, dtype)

    def poison(self) -> None:
        self._bytes.fill_(POISON_BYTE)

    def write(self, first: int, values: Stored) -> None:
        import torch

        begin = first * values.itemsize
        # numpy has no bfloat16 and no float8, so bytes are what both understand.
        self._bytes[begin : begin + values.nbytes].copy_(torch.from_numpy(values.view("uint8")))

    def read(self, first: int, count: int) -> Stored:
        storage = element_type(self.dtype).storage
        begin, end = (place * element_type(self.dtype).size_bytes for place in (first, first + count))
        read: Stored = self._bytes[begin:end].cpu().numpy().view(storage)
        return read

    @property
    def _bytes(self) -> Any:
        import torch

        return self.tensor.view(torch.uint8)
