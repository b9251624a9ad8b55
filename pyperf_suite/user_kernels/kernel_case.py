"""A case of a user's file as it is launched and timed, in the process that runs the code.

Nothing newer than Python 3.9 is used; numpy and torch are used where the user's code does. Arrays go through files in
memory.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, cycle, islice, starmap
from operator import methodcaller
from typing import Any

from pyperf_suite.user_kernels import arrays
from pyperf_suite.user_kernels.guards import Auditor
from pyperf_suite.user_kernels.user_file import UserFile

# Taken before any code of a user's runs, which may put others in their places.
_CLOCK = time.perf_counter_ns
_GC_DISABLE, _GC_ENABLE, _GC_IS_ENABLED = gc.disable, gc.enable, gc.isenabled
_STARMAP, _ISLICE = starmap, islice


class KernelCase(UserFile):
    """A case of a user's file, launched and timed."""

    def __init__(self) -> None:
        super().__init__()
        self._sets: list[list[Any]] = []
        self._calls: list[tuple[Any, ...]] = []
        self._laid_out: set[int] = set()
        self._open_slots: dict[str, Any] = {}
        self._last: deque[Any] = deque(maxlen=1)
        self._last_set = 0
        self._kept: list[tuple[Any, Any]] = []
        self._fetched: list[Any] = []
        self._times_called = 0
        self._called: Callable[..., Any] = _nothing
        self._stopwatch: Any = None
        self.left: Any = None
        self._auditor = Auditor(self)

    @classmethod
    def of(cls, file: UserFile) -> KernelCase:
        """A case of a file that this process has imported."""
        made = cls()
        for name in ("is_seeded", "caught", "_root", "_module", "_library", "_api", "_device", "_guards"):
            setattr(made, name, getattr(file, name))
        return made

    def _place(self, sets: int, slots: Sequence[str]) -> dict[str, Any]:
        """Make `sets` sets of the arguments, each elsewhere in memory, filled from the slots in turn."""
        self._slot_of = [slots[index % len(slots)] for index in range(sets)]
        self._sets = [[leaf.room() for leaf in self.leaves] for _ in range(sets)]
        self._calls, self._times_filled = [()] * sets, [0] * sets
        self._restored = [at for at, leaf in enumerate(self.leaves) if leaf.role == "modified"]
        self._called = methodcaller("__call__") if self._launch.kwargs else self._function
        self._load(list(enumerate(self._slot_of)))
        on_gpu = any(leaf.spec.get("device", "").startswith("cuda") for leaf in self.leaves)
        if on_gpu or isinstance(self._function, self._api.CudaKernel):
            self._take_gpu_clock(sets)
        if self._stopwatch:
            return {"stopwatch": self._stopwatch.name, "resolution_s": self._stopwatch.resolution_s, "path": "gpu"}
        steps_ns = []
        for _ in range(101):  # samples that launch nothing
            last: deque[Any] = deque(maxlen=1)
            begin = _CLOCK()
            last.extend(_STARMAP(_nothing, _ISLICE(chain((), cycle([()])), 0)))
            steps_ns.append(_CLOCK() - begin)
        resolution_s = max(sorted(steps_ns)[50] * 1e-9, time.get_clock_info("perf_counter").resolution)
        return {"stopwatch": "perf_counter_ns in the kernel process", "resolution_s": resolution_s, "path": "cpu"}

    def _take_gpu_clock(self, sets: int) -> None:
        self._stopwatch = self._gpu().stopwatch()
        # Launches that do not count would modify what is not given back before them.
        self._stopwatch.sets, self._stopwatch.wakes = sets, not self._restored
        torch = self._api._torch(self._device)
        torch.cuda.set_stream(torch.cuda.ExternalStream(self._stopwatch.stream, self._device))
        self._settle()  # sets were filled on another stream
        # The first time, the stopwatch launches on every set: what that modified is given back.
        self._stopwatch.time(self._launch_once, 0, 1, 1)
        self._load(list(enumerate(self._slot_of)))

    def _load(self, sets: Iterable[tuple[int, str]], layout: str = "") -> dict[str, Any]:
        """Give sets the values of slots, where they lie or, with a layout or after one, elsewhere in memory.

        Every second time outputs hold a number instead of poison: a kernel that looks for that leaves it as it is.
        """
        for index, slot in sets:
            if layout or index in self._laid_out:
                self._sets[index], self._calls[index] = [leaf.room(layout) for leaf in self.leaves], ()
                (self._laid_out.add if layout else self._laid_out.discard)(index)
            self._slot_of[index] = slot
            self._fill(index)
            self._times_filled[index] += 1
        self._close_slots()
        return {}

    def _fill(self, index: int, role: str = "") -> None:
        """Give a set's leaves, or those of a role, the values of its slot, which stays open; outputs are poisoned."""
        path, values = self._slot_of[index], self._sets[index]
        plain: Iterator[Any] = iter(())
        has_plain = any(leaf.kind == "plain" for leaf in self.leaves)
        if has_plain:
            with open(f"{path}.plain", "rb") as file:
                plain = iter(pickle.load(file))
        if path not in self._open_slots:
            self._open_slots[path] = open(path, "rb")  # noqa: SIM115 - closed after all sets
        for at, leaf in enumerate(self.leaves):
            fresh = next(plain) if leaf.kind == "plain" else None
            if role and leaf.role != role:
                continue
            if leaf.kind == "plain":
                values[at] = fresh
                _hash_text(fresh)
            elif leaf.role == "output":
                (arrays.poison if self._times_filled[index] % 2 else arrays.draw_over)(values[at])
            else:
                leaf.read(self._open_slots[path], values[at])
        if has_plain or not self._calls[index]:
            self._calls[index] = self._arguments(values)

    def _close_slots(self) -> None:
        while self._open_slots:
            self._open_slots.popitem()[1].close()

    def _arguments(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments of `_called` for a set, or a function that has taken keyword arguments already."""
        leaves = (values[at] for at in self._order)
        args = tuple(arrays.replaced(each, leaves) for each in self._launch.args)
        if not self._launch.kwargs:
            return args
        keywords = {name: arrays.replaced(each, leaves) for name, each in self._launch.kwargs.items()}
        return (partial(self._function, *args, **keywords),)

    def _time(self, first: int, samples: int, batch: int) -> dict[str, Any]:
        """Seconds of each sample of `batch` launches, on the sets from `first` on in turn; and what is against them."""
        self._poison_result()
        self._times_called += 1
        timed = self._time_on_gpu if self._stopwatch is not None else self._time_on_cpu
        was_enabled = _GC_IS_ENABLED()
        _GC_DISABLE()
        try:
            return timed(first, samples, batch)
        finally:
            if was_enabled:
                _GC_ENABLE()

    def _time_on_cpu(self, first: int, samples: int, batch: int) -> dict[str, Any]:
        called, last, calls, chunk = self._called, self._last, self._calls, batch
        if self._restored:
            chunk = min(batch, len(calls))
        seconds, released = [], 0
        for _ in range(samples):
            spent, left = 0, batch
            while left:
                count = min(left, chunk)
                start = first % len(calls)
                if self._restored:
                    self._restore(start, count)
                series = _ISLICE(chain(calls[start:], cycle(calls)), count)
                full = _CLOCK()
                last.clear()
                begin = _CLOCK()
                last.extend(_STARMAP(called, series))
                spent += _CLOCK() - begin
                released += begin - full
                if not last or next(series, None) is not None:
                    raise arrays.UserCodeError(f"{self._implementation} raised StopIteration", self._shown_where)
                first, left = first + count, left - count
            seconds.append(spent * 1e-9)
        self._last_set = (first - 1) % len(calls)
        self._keep_result()
        return {"seconds": seconds, "released_s": released * 1e-9}

    def _time_on_gpu(self, first: int, samples: int, batch: int) -> dict[str, Any]:
        calls = self._calls
        if not self._restored:
            seconds = list(self._stopwatch.time(self._launch_once, first, samples, batch))
        else:
            seconds = []
            for sample in range(samples):
                spent, done = 0.0, 0
                while done < batch:
                    count, at = min(batch - done, len(calls)), first + sample * batch + done
                    self._restore(at % len(calls), count)
                    spent += sum(self._stopwatch.time(self._launch_once, at, 1, count))
                    done += count
                seconds.append(spent)
        self._last_set = (first + samples * batch - 1) % len(calls)
        self._keep_result()
        clocks = self._stopwatch.clocks_hz(samples) if not self._restored else []
        return {"seconds": seconds, "clocks_hz": [hz if hz == hz else None for hz in clocks]}

    def _launch_once(self, index: int) -> None:
        self._last.append(self._called(*self._calls[index % len(self._calls)]))

    def _enqueue(self, first: int, count: int) -> dict[str, Any]:
        for index in range(first, first + count):
            self._launch_once(index)
        return {}

    def _settle(self) -> dict[str, Any]:
        if self._stopwatch is not None:
            self._gpu().context.synchronize()
        return {}

    def _restore(self, start: int, count: int) -> None:
        for index in range(start, start + count):
            self._fill(index % len(self._sets), "modified")
        self._close_slots()

    def _result(self) -> Any:
        """Return the last launch's result, or the arrays that it wrote where it returned nothing."""
        if self._last and self._last[-1] is not None:
            return self._last[-1]
        values = self._sets[self._last_set] if self._sets else []
        written = [value for leaf, value in zip(self.leaves, values) if leaf.role != "input" and leaf.kind == "array"]
        return written[0] if len(written) == 1 else tuple(written) if written else None

    def _keep_result(self) -> None:
        """Copy the result, or blocks of it, at once when the clock has stopped: what comes later is seen."""
        self._kept = [(each, arrays.keep(each)) for each in arrays.arrays_in(self._result())]

    def _changed(self, after_s: float) -> dict[str, Any]:
        """True if the result, `after_s` seconds from now, is another than when the clock stopped."""
        time.sleep(after_s)
        return {"changed": any(arrays.keep(each, kept) != kept for each, kept in self._kept)}

    def _poison_result(self) -> None:
        """Poison the result's memory, unless it is an argument, which `_load` fills: the next result must be new."""
        for each in self._fetched:
            arrays.poison(each)
        self._fetched, self._kept = [], []

    def _fetch(self, result: str, inputs: str, limit_bytes: int) -> dict[str, Any]:
        """Write what the last launch left, and its inputs now; without a path for the `result`, `left` returns it."""
        values, out = self._sets[self._last_set] if self._sets else [], self._result()
        size = {"bytes": 0}
        if result:
            size = arrays.write_result(out, result, exact_types=True, where=self._shown_where, limit_bytes=limit_bytes)
        if inputs:
            with open(inputs, "r+b") as file:
                for leaf, value in zip(self.leaves, values):
                    if leaf.role == "input" and leaf.kind == "array":
                        leaf.write(file, value)
        plain = arrays.digest(self.leaves, values)
        owned = [
            arrays.extent(value)
            for leaf, value in zip(self.leaves, values)
            if leaf.kind == "array" and leaf.role == "input"
        ]
        returned = list(arrays.arrays_in(out))
        outputs = [value for leaf, value in zip(self.leaves, values) if leaf.role == "output"]
        fresh = [each for each in returned if not arrays.overlaps(each, owned)]
        self._fetched = [each for each in fresh if not any(each is value for value in outputs)]
        found = {"overlaps": len(fresh) < len(returned), "repeats": arrays.repeats(returned)}
        modifies = bool(self._restored) or found["overlaps"]
        self._auditor.remember(self._slot_of[self._last_set], out, size["bytes"], modifies)
        self.left = None if result else out
        self._last.clear()
        return {**size, **self._changed(0.0), **found, "set": self._last_set, "plain": plain}

    def _draw(self, launches: int) -> dict[str, Any]:
        """Launch so often on the same inputs, and tell whether a result differs from the first."""
        return {"differs": self._auditor.differs(launches)}

    def _audit(self, **request: Any) -> dict[str, Any]:
        """Launches compared with what was fetched for the same inputs; and what is against them."""
        self._poison_result()
        return self._auditor.launch(**request)

    def _others(self, result: str, limit_bytes: int) -> dict[str, Any]:
        """Run the other implementations on the set that was launched last, each writing `result`.NAME."""
        reported = {}
        measured = self._function
        for number, (name, function) in enumerate(self._launch.functions.items()):
            self._function = function
            if name != self._implementation:
                self._fill(self._last_set)
                self._close_slots()
                called = self._function if not self._launch.kwargs else self._called
                try:
                    out = called(*self._arguments(self._sets[self._last_set]))
                    arrays.write_result(
                        out, f"{result}.{number}", exact_types=True, where=("", 0), limit_bytes=limit_bytes
                    )
                except Exception:
                    continue
                reported[name] = f"{result}.{number}"
        self._function = measured
        return {"results": reported}


def _hash_text(value: Any) -> None:
    """Have text in a plain value keep its hash now: fresh text then takes no longer than text that was launched on."""
    if isinstance(value, (list, tuple)):
        for each in value:
            _hash_text(each)
    elif isinstance(value, dict):  # which has its keys' hashes
        _hash_text(list(value.values()))
    elif isinstance(value, (str, bytes)):
        hash(value)


def _nothing(*_: Any) -> None:
    """Do nothing: timed to find the cost of timing."""
