"""What workloads that torch computes have in common: where they run, and how what launches leave is compared.

A launch is right where every element of its results is as near to float64 as honest rounding leaves it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pyperf_suite.errors import Unsupported, out_of_memory
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.workload import Checked, Implementation, Kernel, Place, Prepared

RESULT = "the result"


class ByTorch(Implementation[Any]):
    """What torch launches, on as many CPU cores as the parameter `workers` says, or on a GPU."""

    name = "torch"
    needs_torch = True

    def __init__(self, launches: Callable[[Any, int, TorchDevice], Prepared], queueing: str = "open") -> None:
        """`launches(parameters, seed, where)` are made; for `queueing` see TorchDevice."""
        self._launches, self._queueing = launches, queueing

    def validate(self, parameters: Any) -> None:
        require_cores(parameters.workers)

    def prepare(self, parameters: Any, place: Place) -> Prepared:
        """Make what is launched. Raises Unsupported where torch is absent or cannot do it there."""
        where = TorchDevice(place.device, parameters.workers, self._queueing)
        return self._launches(parameters, place.seed, where)


def use_products_of(where: TorchDevice, element: str) -> None:
    """Let a GPU round float32 to tfloat32 in products, or not. Raises Unsupported for tfloat32 on a CPU."""
    if where.is_gpu:
        where.torch.set_float32_matmul_precision("high" if element == "tfloat32" else "highest")
        where.torch.backends.cudnn.allow_tf32 = element == "tfloat32"
    elif element == "tfloat32":
        raise Unsupported("A CPU has no tfloat32.")


class Due(NamedTuple):
    """What a launch must leave, by name in float64; by how much each element may be off, and each tensor in norm.

    Where `in_norm`, a share of the tensor's own norm, is None, rounding.compared has its own rule.
    """

    exact: Mapping[str, Any]
    allowed: Mapping[str, Any]
    in_norm: float | None = None


class ComparedLaunches(Prepared):
    """Launches of torch whose results have names and are compared element by element."""

    def __init__(self, where: TorchDevice) -> None:
        self._where = where

    @property
    def stopwatch(self) -> Stopwatch:
        return self._where.stopwatch

    @abstractmethod
    def results(self, index: int) -> Mapping[str, Any]:
        """What the last launch on that set left, by name; what it did not make is missing or None."""

    @abstractmethod
    def due(self) -> Due:
        """What it must leave, computed once."""

    def left(self, index: int) -> Checked:
        from pyperf_suite.workloads.training.rounding import compared

        return compared(self.results(index), *self.due())

    def kept(self, index: int) -> Any:
        return {name: each.detach().clone() for name, each in self.results(index).items()}

    def equals(self, index: int, kept: Any) -> bool:
        found = self.results(index)
        return found.keys() == kept.keys() and all(self._where.torch.equal(found[name], kept[name]) for name in kept)

    def _where_there_is_room(self, compute: Callable[[Any], Any]) -> Any:
        """`compute(device)` where launches run, or on the CPU where a GPU has too little memory for it."""
        if self._where.is_gpu:
            try:
                return compute(self._where.device)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
        return compute("cpu")


class Passes(ComparedLaunches):
    """Launches of one operation that rotate through equal sets of operands; results are allocated at each."""

    def __init__(self, where: TorchDevice, kernel: Kernel, sets: Sequence[Any], names: Sequence[str]) -> None:
        """`names` are those of what `_run` gives for one of the `sets`."""
        super().__init__(where)
        self.kernel, self.sets, self._sets, self._names = kernel, len(sets), sets, names
        self._left: list[tuple[Any, ...]] = [()] * self.sets

    @abstractmethod
    def _run(self, operands: Any) -> tuple[Any, ...]:
        """The operation, once."""

    def launch(self, index: int) -> None:
        place = index % self.sets
        self._left[place] = ()  # the last result is gone before the next is made
        self._left[place] = self._run(self._sets[place])

    def poison(self, index: int | None = None) -> None:
        """No results: those that no launch makes are missed."""
        for place in range(self.sets) if index is None else (index % self.sets,):
            self._left[place] = ()

    def results(self, index: int) -> Mapping[str, Any]:
        return dict(zip(self._names, self._left[index % self.sets], strict=False))
