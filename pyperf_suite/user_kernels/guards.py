"""Guard modules against measured code, and distinguish a kernel that computes from one that remembers.

Used by the process that runs the kernel, in whatever interpreter, and by the one that judges it: so only the standard
library is imported, and nothing newer than Python 3.9 is used.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from itertools import starmap
from types import FunctionType, ModuleType
from typing import Any

from pyperf_suite.user_kernels.arrays import PLAIN, arrays_in, extent, is_array, is_torch, plain_values, poison

# Modules whose functions and classes' methods must stay what they were, by name; () stands for all that they have. The
# suite and references are made of them.
GUARDED: Mapping[str, tuple[str, ...]] = {
    "builtins": (),
    "time": (),
    "gc": (),
    "json": ("dumps", "loads"),
    "os": ("read", "write", "fork", "getppid", "kill", "dup", "close"),
    "signal": ("signal", "setitimer", "pthread_sigmask"),
    "threading": ("Thread.start", "active_count", "enumerate"),
    "random": (),
    "statistics": (),
    "math": (),
    "numpy": (),
    "numpy.fft": (),
    "numpy.linalg": (),
    "numpy.random": (),
    "numpy.testing": (),
    "scipy.linalg": (),
    "scipy.special": (),
    "torch": (),
    "torch.cuda": (
        *("synchronize", "current_stream", "default_stream", "stream", "Event.record", "Event.elapsed_time"),
        *("Event.synchronize", "Event.__new__", "Stream.synchronize"),
    ),
    "torch.fft": (),
    "torch.linalg": (),
    "torch.random": ("manual_seed",),
    "torch.nn.functional": (),
    "torch.nn.modules.module": ("Module.__call__", "Module._call_impl"),
    **{
        f"torch.nn.modules.{name}": ()
        for name in ("activation", "conv", "dropout", "linear", "loss", "normalization", "pooling", "sparse")
    },
    "torch.special": (),
    "torch.testing": (),
}

# Names that torch itself replaces: when torch._dynamo is imported, as by torch.compile and custom operators, and where
# a file sets the default dtype.
_REPLACED_BY_TORCH = {"torch.manual_seed", "torch.Storage"}
# Names that are no constants of their module, or belong to whoever reads them.
_VARIABLE = {"__doc__", "__spec__", "__loader__", "__name__", "__package__", "__file__", "_"}


class Guards:
    """Functions as they were before any code of the user's ran; `replaced` names those that are others now.

    A module that is imported later is remembered as it is when its import ends, before whoever imports it sees it.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[str, Mapping[str, Any], str, Any, Any]] = []
        self._methods: list[tuple[type, frozenset[str]]] = []
        self._modules: dict[str, ModuleType] = {}
        self._operators: frozenset[str] | None = None
        for name, module in list(sys.modules.items()):
            self._remember(name, module)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As a finder of modules: what the others find, remembered when it has been executed."""
        if not self._is_guarded(name):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._remember_when_executed(spec)
                return spec
        return None

    def replaced(self) -> list[str]:
        """The functions that are others than they were, or run other code."""
        changed = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        for name, holder, attribute, value, code in self._kept:
            now = holder.get(attribute)
            if now is not value or (code is not None and now.__code__ is not code):
                changed.append(f"{name}.{attribute}")
        for kind, names in self._methods:
            changed += [
                f"{kind.__module__}.{kind.__qualname__}.{name}"
                for name in vars(kind).keys() - names
                if any(name in vars(base) for base in kind.__mro__[1:])
            ]
        return changed + sorted(f"torch.ops.{each}" for each in _operators() - (self._operators or _operators()))

    @staticmethod
    def _is_guarded(name: str) -> bool:
        return name in GUARDED or name.partition(".")[0] in ("pyperf_suite", "__main__")

    def _remember_when_executed(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def then_remember(module: ModuleType) -> None:
            execute(module)
            self._remember(module.__name__, module)

        loader.exec_module = then_remember  # type: ignore[method-assign]

    def _remember(self, name: str, module: Any) -> None:
        if not self._is_guarded(name) or not isinstance(module, ModuleType):
            return
        self._modules[name] = module
        for path in GUARDED.get(name) or _callables(module):
            if f"{name}.{path}" in _REPLACED_BY_TORCH:
                continue
            *outer, attribute = path.split(".")
            holder: Any = module
            for each in outer:
                holder = getattr(holder, each, None)
            if holder is not None and attribute in vars(holder):
                value = vars(holder)[attribute]
                shown = ".".join([name, *outer])
                self._kept.append((shown, vars(holder), attribute, value, getattr(value, "__code__", None)))
        # Methods of a tensor are its base's: one that is put on the class itself hides it.
        if name == "torch" and hasattr(module, "Tensor"):
            self._methods.append((module.Tensor, frozenset(vars(module.Tensor))))
            self._operators = _operators()


def _operators() -> frozenset[str]:
    """Kernels of torch's own operators that Python registered for a device, as `aten/softmax/CPU`."""
    registered = getattr(sys.modules.get("torch.library"), "_impls", ())
    return frozenset(each for each in registered if each.startswith("aten/") and each.endswith(("/CPU", "/CUDA")))


def _callables(module: ModuleType) -> Iterator[str]:
    """The functions of a module and the methods of its own classes; neither is its to exchange while it runs."""
    for name, value in list(vars(module).items()):
        if name in _VARIABLE or not callable(value):
            continue
        yield name
        if isinstance(value, type) and value.__module__ == module.__name__ != "builtins":
            yield from (f"{name}.{each}" for each, method in vars(value).items() if isinstance(method, FunctionType))


# A kernel that recognises its inputs must be this much faster on those that it has seen, with this much certainty.
SEEN_FASTER = 1.25
SEEN_CHANCE = 1e-5


def recognises(fresh: Sequence[float], repeated: Sequence[float], faster: float = SEEN_FASTER) -> bool:
    """True if launches on repeated values are so much faster than on fresh ones that the kernel remembers; seconds.

    The values are of one distribution and were written to the same memory in random order, so a kernel that computes
    takes the same time for both: the ranks of the two samples are compared (Mann and Whitney, one-sided, exact but
    for ties).
    """
    if not fresh or not repeated or statistics.median(fresh) < faster * statistics.median(repeated):
        return False
    slower = sum(one > other for one in fresh for other in repeated)
    return _chance_of(len(fresh) * len(repeated) - slower, len(fresh), len(repeated)) < SEEN_CHANCE


def _chance_of(inversions: int, count: int, other_count: int) -> float:
    """Return the share of all orders of two samples of these sizes that have at most `inversions` inversions."""
    ways = [1] + [0] * (count * other_count)
    # The number of orders by inversions is a Gaussian binomial coefficient: a product of (1 - q^(other+i)) / (1 - q^i).
    for i in range(1, count + 1):
        for at in range(len(ways) - 1, other_count + i - 1, -1):
            ways[at] -= ways[at - other_count - i]
        for at in range(i, len(ways)):
            ways[at] += ways[at - i]
    return sum(ways[: inversions + 1]) / math.comb(count + other_count, count)


# Launches without a pause whose results are compared afterwards, and their bytes; one where memory is returned again.
TOGETHER, TOGETHER_BYTES = 16, 8 << 20
# Sets of a request, of many: filling one takes longer than a short launch.
AUDITED_SETS = 32
# Elements of a row that are poisoned between launches: the others are a cache line or two away.
POISONED_ONE_OF = 32
_STARMAP = starmap


class Auditor:
    """Compares results of `process`'s launches, bit for bit, with those fetched and verified for the same inputs."""

    def __init__(self, process: Any) -> None:
        self._process, self._together, self._modifies = process, TOGETHER, False
        self._right: dict[str, Any] = {}

    def remember(self, slot: str, result: Any, size_bytes: int, modifies: bool) -> None:
        """The result of the inputs in a slot; whether sets are other ones once it was poisoned, or by the launch."""
        self._right[slot], self._modifies = _copy(result), modifies
        self._together = max(1, min(self._together, TOGETHER_BYTES // max(1, size_bytes)))

    def differs(self, launches: int) -> bool:
        """True if one of `launches` launches on the same inputs leaves another result than the first."""
        process, first = self._process, None
        for number in range(launches):
            process._load([(0, process._slot_of[0])])
            process._launch_once(0)
            process._settle()
            process._last_set = 0
            if number and not _equal(process._result(), first):
                return True
            first = first if number else _copy(process._result())
            process._last.clear()
        return False

    def launch(self, first: int, launches: int, slots: Sequence[str]) -> dict[str, Any]:
        """Launch so often, on inputs of the other slot each; how many were equal, and the `slot` of the first not."""
        process, done = self._process, 0
        calls, slot_of = process._calls, process._slot_of
        used: set[int] = set()
        sets = min(AUDITED_SETS, len(calls))
        while done < launches:
            count = min(self._together, sets, launches - done)
            burst = [(first + (done + at) % sets) % len(calls) for at in range(count)]
            ungiven = burst if self._modifies else [index for index in burst if index not in used]
            process._load([(index, slots[slot_of[index] == slots[0]]) for index in ungiven])
            used.update(burst)
            results = list(_STARMAP(process._called, [calls[index] for index in burst]))
            process._settle()
            begins = [extent(each)[0] for each in arrays_in(results)]
            if count > 1 and len(set(begins)) < len(begins):
                self._together = 1
                continue
            for index, result in zip(burst, results):
                process._last.append(result)
                process._last_set = index
                returned = process._result()
                if not _equal(returned, self._right[slot_of[index]]):
                    process._keep_result()
                    return {"equal": done, "slot": slot_of[index]}
                done += 1
                # Memory that was returned, or an argument that was written: a launch that leaves it is seen.
                for each in arrays_in(returned):
                    poison(each, every=POISONED_ONE_OF)
        return {"equal": done, "slot": ""}


def _copy(result: Any) -> Any:
    if is_array(result):
        return result.detach().clone() if is_torch(result) else result.copy()
    if type(result) in (list, tuple):
        return type(result)([each if type(each) in PLAIN else _copy(each) for each in result])
    return {key: _copy(each) for key, each in result.items()} if type(result) is dict else result


def _equal(first: Any, second: Any) -> bool:
    """True if two results are equal; never by a comparison of the results' own."""
    if type(first) is not type(second):
        return False
    if is_array(first):
        library = sys.modules["torch" if is_torch(first) else "numpy"]
        equal = library.equal if is_torch(first) else library.array_equal
        left, right = plain_values(first)[0], plain_values(second)[0]
        if first.dtype != second.dtype or left.shape != right.shape:
            return False
        # Not a number is equal to itself here.
        return bool(equal(left, right)) or bool(((left == right) | ((left != left) & (right != right))).all())
    if type(first) in (list, tuple):
        return len(first) == len(second) and all(a is b or _equal(a, b) for a, b in zip(first, second))
    if type(first) is dict:
        return first.keys() == second.keys() and all(_equal(each, second[key]) for key, each in first.items())
    return (type(first) in PLAIN or type(first).__module__ == "numpy") and bool(first == second)
