"""How many bytes a piece of training adds to what there was, at the moment when it holds most.

On the CPU a dispatch mode counts the storages that operations make and that still live; a GPU's allocator counts for
itself. Imported where a case is prepared and nowhere else, for its classes are torch's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """The most bytes beyond those allocated before that `call()` holds at any time, what it leaves behind included.

    Exact to an operation on the CPU, where memory that a kernel takes and gives back unseen does not count; on a GPU
    every allocation counts, in the blocks of the allocator. Not for compiled models, which run as written while they
    are watched on a CPU.
    """
    gc.collect()  # what only cycles hold would be freed during the call, and not be missed
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    watch = _Watch()
    with watch:
        call()
    return watch.most


def bytes_of(values: Any) -> int:
    """Bytes that the tensors anywhere in `values` keep alive: each storage once and whole, a view's included."""
    return sum({storage._cdata: storage.nbytes() for storage in _storages(values)}.values())


class _Watch(TorchDispatchMode):
    """Knows, without holding it, every storage that is made while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        # By address, which nothing else takes while there is a reference to it, however weak.
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        new = [s for s in _storages(result) if s._cdata not in before and s._cdata not in self._made]
        for storage in new:
            self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        if new:
            self._made = {key: made for key, made in self._made.items() if not made[0].expired()}
            self.most = max(self.most, sum(size for _, size in self._made.values()))
        return result


def _storages(values: Any) -> Iterable[Any]:
    return (
        plain.untyped_storage()
        for each in tree_leaves(values)
        if isinstance(each, Tensor)
        for plain in plain_tensors(each)
    )


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors that a wrapper, as of quantized values or a DTensor, is made of; else itself."""
    made_of: Any = tensor
    if not is_traceable_wrapper_subclass(made_of):
        return [tensor]
    names, _ = made_of.__tensor_flatten__()
    inner = (getattr(made_of, name) for name in names)
    return [plain for each in inner if isinstance(each, Tensor) for plain in plain_tensors(each)]
