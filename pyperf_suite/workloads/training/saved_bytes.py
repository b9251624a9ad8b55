"""What autograd keeps from a forward pass for the backward one, counted exactly by the storages that stay.

Saved-tensor hooks see what is saved, a dispatch mode what lives on where checkpointing hides it. Imported where a case
is prepared and nowhere else, for its classes are torch's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
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
        """Both together."""
        return self.activations + self.weight_copies


def saved_bytes(model: nn.Module, call: Callable[[], Any]) -> int:
    """Bytes that one forward pass, `call()`, keeps for backward beside the weights and buffers of `model`.

    On any device; each storage counts once and whole, as a view keeps all of it. What `call` returns counts only where
    backward needs it. Not for compiled models, which run as written while they are watched.
    """
    return kept(model, call).total


def kept(model: nn.Module, call: Callable[[], Any]) -> Kept:
    """The same by what it is (see Kept)."""
    weights = _storages_of(model)
    watch = _Watch(weights)
    # What is there before need not be looked at again (all of torch, a third of a second) to find what only cycles hold
    # of what the call made, which is not kept.
    gc.freeze()
    try:
        with torch.autograd.graph.saved_tensors_hooks(watch.saw, _unchanged), watch:
            result = call()
        gc.collect()
    finally:
        gc.unfreeze()
    returned = {storage._cdata for storage in _storages(result)}
    sizes = {True: 0, False: 0}
    for address, (reference, size) in watch.seen.items():
        owned = address in weights or (address in returned and address not in watch.saved)
        if not owned and not reference.expired():
            sizes[address in watch.copies] += size
    return Kept(activations=sizes[False], weight_copies=sizes[True])


class _Watch(TorchDispatchMode):
    """Remembers, without holding it, every storage that is made or saved while it is entered."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()
        self.weights = weights
        # By address, which nothing else takes while there is a reference to it, however weak.
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self.saved: set[int] = set()
        self.copies: set[int] = set()

    def saw(self, tensor: Tensor) -> Tensor:
        """What autograd calls with each tensor it saves."""
        self.saved.update(self._remember(tensor))
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = self._remember(result)
        if func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in self.weights:
            self.copies.update(made)
        return result

    def _remember(self, tensors: Any) -> list[int]:
        found = list(_storages(tensors))
        for storage in found:
            if storage._cdata not in self.seen:
                self.seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return [storage._cdata for storage in found]


def _storages_of(model: nn.Module) -> set[int]:
    """Addresses of weights and buffers, which stay while the model does."""
    return {each.untyped_storage()._cdata for owned in (model.parameters(), model.buffers()) for each in owned}


def _storages(tensors: Any) -> Iterator[Any]:
    return (each.untyped_storage() for each in tree_leaves(tensors) if isinstance(each, Tensor))


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor
