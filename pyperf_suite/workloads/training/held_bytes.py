"""Bytes that a piece of training holds: what autograd keeps for backward, and the most that there is at any moment.

On the CPU a dispatch mode sees the storages that operations make, and counts those that still live; a GPU's allocator
counts peaks for itself. Imported where a case is prepared and nowhere else, for its classes are torch's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Kept:
    """Bytes that stay between forward and backward; the weights themselves are not among them.

    `weight_copies` are casts of weights, as autocast makes them: as many at any batch size. `activations` is the rest,
    inputs of the model included where backward needs them.
    """

    activations: int
    weight_copies: int

    @property
    def total(self) -> int:
        return self.activations + self.weight_copies


def kept(model: nn.Module, call: Callable[[], Any]) -> Kept:
    """Bytes that one forward pass, `call()`, keeps for backward besides the weights and buffers of `model`.

    On any device; each storage counts once and whole, as a view keeps all of it: what saved-tensor hooks see, and what
    lives on where checkpointing hides it. What `call` returns counts only where backward needs it. Not for compiled
    models, which would be compiled anew while they are watched.
    """
    weights = addresses([*model.parameters(), *model.buffers()])
    watch = Watch(weights)
    saved: set[int] = set()

    def save(tensor: Tensor) -> Tensor:
        saved.update(watch.remember([tensor]))
        return tensor

    # Objects of before need no other look (all of torch, a third of a second): only the call's own garbage in cycles is
    # to be found, which is not kept.
    gc.freeze()
    try:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), watch:
            result = call()
        gc.collect()
    finally:
        gc.unfreeze()
    not_kept = weights | (addresses(result) - saved)
    sizes = {address: size for address, size in watch.living().items() if address not in not_kept}
    copies = sum(size for address, size in sizes.items() if address in watch.casts)
    return Kept(sum(sizes.values()) - copies, copies)


def casts(model: nn.Module, call: Callable[[], Any]) -> list[int]:
    """Bytes of each cast of one of the model's weights during `call()`."""
    with Watch(addresses(list(model.parameters()))) as watch:
        call()
    return watch.cast_bytes


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """The most bytes beyond those allocated before that `call()` holds at any time, what it leaves behind included.

    Exact to an operation on the CPU, where memory that a kernel takes and gives back unseen does not count; on a GPU
    every allocation counts, in the blocks of the allocator. Not for compiled models.
    """
    gc.collect()  # what only cycles hold would be freed during the call, and not be missed
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _Peak() as watch:
        call()
    return watch.peak_bytes


def bytes_of(values: Any) -> int:
    """Bytes that the tensors anywhere in `values` keep alive: each storage once and whole, a view's included."""
    return sum({storage._cdata: storage.nbytes() for storage in storages(values)}.values())


def storages(values: Any) -> Iterable[Any]:
    """Storages of all tensors anywhere in `values`."""
    tensors = (each for each in tree_leaves(values) if isinstance(each, Tensor))
    return (plain.untyped_storage() for each in tensors for plain in plain_tensors(each))


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors that a wrapper, as of quantized values or a DTensor, is made of; else itself."""
    made_of: Any = tensor
    if not is_traceable_wrapper_subclass(made_of):
        return [tensor]
    names, _ = made_of.__tensor_flatten__()
    inner = (getattr(made_of, name) for name in names)
    return [plain for each in inner if isinstance(each, Tensor) for plain in plain_tensors(each)]


class Watch(TorchDispatchMode):
    """Remembers, without holding it, every storage that is made while it is entered, and which are casts of weights."""

    def __init__(self, weights: Set[int] = frozenset()) -> None:
        super().__init__()
        self._weights = set(weights)
        # By address, which nothing else takes while there is a reference to it, however weak.
        self._storages: dict[int, StorageWeakRef] = {}
        self.casts: set[int] = set()
        self.cast_bytes: list[int] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch not to import its compiler, which takes seconds, only to turn it off: nothing here is compiled."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = addresses((args, kwargs))
        result = func(*args, **(kwargs or {}))
        made = self.remember([each for each in tree_leaves(result) if not addresses(each) & given])
        if func is torch.ops.aten._to_copy.default and given & self._weights:
            self.casts.update(made)
            self.cast_bytes.append(result.nbytes)
        return result

    def remember(self, tensors: Any) -> list[int]:
        found = list(storages(tensors))
        for storage in found:
            if storage._cdata not in self._storages:
                self._storages[storage._cdata] = StorageWeakRef(storage)
        return [storage._cdata for storage in found]

    def living(self) -> dict[int, int]:
        """Bytes of each storage that somebody holds, as large as it is now; the others are forgotten."""
        found = {key: torch.UntypedStorage._new_with_weak_ptr(each.cdata) for key, each in self._storages.items()}
        sizes = {key: int(storage.nbytes()) for key, storage in found.items() if storage is not None}
        self._storages = {key: self._storages[key] for key in sizes}
        return sizes


class _Peak(Watch):
    """Knows the most bytes that storages made while it is entered have held together."""

    peak_bytes = 0

    def remember(self, tensors: Any) -> list[int]:
        made = super().remember(tensors)
        if made:
            self.peak_bytes = max(self.peak_bytes, sum(self.living().values()))
        return made


def addresses(values: Any) -> set[int]:
    """Keys of the storages of all tensors in `values`."""
    return {storage._cdata for storage in storages(values)}
