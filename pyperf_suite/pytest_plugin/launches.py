"""What a test hands to its fixtures, made ready for the measuring path.

Calls are timed in a loop of their own, as pytest-benchmark makes them. What the `suite` fixture is given gets argument
sets, and verdicts on results: function, reference and verdict share the test's process, as of a test's closures none
can be sent to another.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported, interpreted_bfloat16, triton_without_gpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.sampling import SteadyRule, StopRule, to_the_end
from pyperf_suite.measure.stopwatch import CpuStopwatch, Stopwatch, garbage_collector_at_rest
from pyperf_suite.measure.verify import Verification
from pyperf_suite.measure.verify_result import Tolerance, compare, number_type, refused
from pyperf_suite.process.system import is_users
from pyperf_suite.pytest_plugin import Call
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.timing import as_plain, timed
from pyperf_suite.user_kernels import sensitivity
from pyperf_suite.user_kernels.api import Launch
from pyperf_suite.user_kernels.arrays import (
    Leaf,
    exact_arithmetic,
    is_array,
    is_torch,
    other_kind,
    plain_values,
    poison,
    replaced,
    walk,
)
from pyperf_suite.user_kernels.checks import ALWAYS_THE_SAME, REPEATED
from pyperf_suite.workloads.backends import TorchDevice, leave_nothing_behind
from pyperf_suite.workloads.operator import same_bits, sets_to_rotate
from pyperf_suite.workloads.workload import Kernel, Prepared, Work

# Rounds that a test requests are taken in blocks of so many seconds.
_BLOCK_S = 0.1


def effort_of(call: Call, profile: Effort) -> Effort:
    """The profile's, or as many rounds as the test requests."""
    if not call.rounds:
        return profile
    return Effort(SteadyRule(launches=max(1, call.warmup_rounds)), StopRule.exactly(call.rounds, _BLOCK_S))


class CallStopwatch:
    """The host's clock around calls of a function; a launch is one call, whatever the index.

    `result` is what the last round of a call with `rounds` returned.
    """

    name = CpuStopwatch.name

    def __init__(self, call: Call) -> None:
        self._call = call
        # A test that counts its rounds gets no warm-up that it did not ask for.
        self._leave_out = 1 if call.rounds and not call.warmup_rounds else 0
        self.resolution_s = CpuStopwatch().resolution_s
        self.result: Any = None

    def time(self, launch: Any, first: int, samples: int, launches_per_sample: int) -> list[float]:
        if self._leave_out:
            self._leave_out = 0
            return [0.0] * samples
        with garbage_collector_at_rest():
            if self._call.rounds:
                return [self._round() for _ in range(samples)]
            return self._samples(samples, range(launches_per_sample))

    def _samples(self, samples: int, calls: range) -> list[float]:
        clock, function, args, kwargs = time.perf_counter_ns, self._call.function, self._call.args, self._call.kwargs
        seconds = [0.0] * samples
        for sample in range(samples):
            begin = clock()
            for _ in calls:
                function(*args, **kwargs)
            seconds[sample] = (clock() - begin) * 1e-9
        return seconds

    def _round(self) -> float:
        call, clock, function = self._call, time.perf_counter_ns, self._call.function
        args, kwargs = call.arguments()
        if call.iterations == 1:
            begin = clock()
            self.result = function(*args, **kwargs)
            end = clock()
        else:
            calls = range(call.iterations)
            begin = clock()
            for _ in calls:
                function(*args, **kwargs)
            end = clock()
        if call.teardown is not None:
            call.teardown(*args, **kwargs)
        return (end - begin) * 1e-9 / call.iterations


def time_call(call: Call, case: Case, profile: Effort) -> tuple[dict[str, Any], Any]:
    """The measured part of a record of a call, and what the function returned. Raises what the function raises."""
    prepared = _PreparedCall(call)
    answer = _timed(prepared, case, effort_of(call, profile), Device("cpu"))
    answer["verification"] = {"passed": True, "method": "test", "message": prepared.unchecked}
    if call.rounds and not call.warmup_rounds:
        answer["sampling"] |= {"warmup_launches": 0, "warmup_s": 0.0}
    if call.rounds:
        answer["sampling"]["launches_per_sample"] = call.iterations
    answer["sampling"]["cache"] = "as the last call left it"
    return answer, prepared.stopwatch.result if call.rounds and call.iterations == 1 else call.once()


class _PreparedCall(Prepared):
    unchecked = "The test's own assertions judge what the function returns."

    def __init__(self, call: Call) -> None:
        self.kernel = Kernel(name_of(call.function), "python")
        self._stopwatch = CallStopwatch(call)

    @property
    def stopwatch(self) -> CallStopwatch:
        return self._stopwatch

    def check(self) -> Verification:
        return Verification(True, "full", 0.0, 0.0, 0.0, (), self.unchecked)

    def launch(self, index: int) -> None:
        """The stopwatch calls the function itself: a call in between would be timed with it."""


def _timed(prepared: Prepared, case: Case, effort: Effort | None, device: Device) -> dict[str, Any]:
    """Measure what is ready. Raises what the function raises."""
    try:
        with untraced():
            return to_the_end(timed(prepared, Work(), case, effort, device))
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # a generator makes that of it
            raise error.__cause__ from None
        raise


def name_of(function: Any) -> str:
    """What a function is called where it was defined."""
    return str(getattr(function, "__qualname__", "") or type(function).__qualname__)


@contextmanager
def untraced() -> Iterator[None]:
    """No tracer and no profiler, as of a coverage tool, while something is timed."""
    tracer: Any = sys.gettrace()
    profiler: Any = sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
        if hasattr(profiler, "enable"):  # of cProfile, which is no function
            profiler.enable()
        else:
            sys.setprofile(profiler)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]

# Nothing was to compare a result with.
UNJUDGED = "nothing says what is right: give reference= or check="


def answer(launch: Launch, name: str, case: Case, effort: Effort | None, device: Device) -> dict[str, Any]:
    """The measured part of one implementation's record; verified alone without an effort. Every way to end is one."""
    try:
        fewest = len(_FILLED_WITH) if launch.outputs else 1
        prepared = FunctionLaunches(launch, name, device, None if effort is not None else fewest)
        found = _timed(prepared, case, effort, device)
    except Unsupported as reason:
        found = {"outcome": "unsupported", "reason": str(reason)}
    except Exception as error:  # a function of the test's may raise anything
        words = triton_without_gpu(error)
        found = {"outcome": "unsupported" if words else "failed", "reason": words or reason_of(error)}
    finally:
        leave_nothing_behind(device)
    plain: dict[str, Any] = as_plain(found)
    return plain


def reason_of(error: BaseException) -> str:
    """Where the user's code raised an error, its type and first line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    where = f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""
    lines = str(error).strip().splitlines()
    return f"{where}{type(error).__name__}{f': {lines[0][:300]}' if lines else ''}"


def device_of(launch: Launch) -> Device:
    """The GPU that holds an argument, else the CPU."""
    for _, leaf in walk([*launch.args, *launch.kwargs.values()]):
        if is_torch(leaf) and leaf.is_cuda:
            return Device("cuda", leaf.device.index or 0)
    return Device("cpu")


# Outputs are filled by turns, so that a function that looks for either leaves the other.
_FILLED_WITH = ("not a number", "a number drawn at random")


class FunctionLaunches(Prepared):
    """Calls of one implementation, each on the next of the argument sets, which hold the same values."""

    def __init__(self, launch: Launch, name: str, device: Device, sets: int | None = None) -> None:
        """Copy the arguments as often as leaves caches cold, or `sets` times; the test's own stay as they are."""
        self._launch, self._function = launch, launch.functions[name]
        arguments = list(launch.args), dict(launch.kwargs)
        self._arrays = [(role, leaf) for role, leaf in self._leaves(arguments)]
        set_bytes = sum(leaf.nbytes for _, leaf in self._arrays)
        self.sets, cache = sets_to_rotate(set_bytes, device) if set_bytes else (1, "as the last call left it")
        self.sets = sets or self.sets
        self.sampling = {"cache": cache, "operand_sets": self.sets}
        self._sets = [self._copy() for _ in range(self.sets)]
        self._results: list[Any] = [None] * self.sets
        self._times_filled = 0
        self.sees_more = launch.random
        self._restores = any(role == "modified" for role, _ in self._arrays)
        self._clock = TorchDevice(device).stopwatch if device.kind == "cuda" else super().stopwatch
        if device.kind == "cuda":
            self._clock.sets = self.sets  # type: ignore[attr-defined]
        self._expected: Any = None
        longest = max([1, *(size for _, leaf in self._arrays for size in leaf.shape)])
        number = number_type(str(leaf.dtype).removeprefix("torch.") for role, leaf in self._arrays if role != "output")
        self._tolerance = Tolerance(launch.tolerance, terms=longest, number=number)
        self.work = Work(launch.flop, launch.bytes)
        details = {"baseline": launch.baseline, "implementations": list(launch.functions)}
        self.kernel = Kernel(str(getattr(self._function, "__qualname__", name)), "python", details)

    @property
    def stopwatch(self) -> Stopwatch:
        return _Restoring(self._clock, self) if self._restores else self._clock

    def launch(self, index: int) -> None:
        """Call the function on a set, and keep what it returns until the set comes round again."""
        at = index % self.sets
        args, kwargs = self._sets[at]
        self._results[at] = self._function(*args, **kwargs)

    def untimed(self, index: int) -> None:
        self.restore(index)
        self.launch(index)

    def restore(self, index: int) -> None:
        """Give the arguments that the function modifies their values back."""
        if self._restores:
            for (role, true), (_, own) in zip(self._arrays, self._leaves(self._sets[index % self.sets]), strict=True):
                if role == "modified":
                    _assign(own, true)

    def poison(self, index: int | None = None) -> None:
        """Forget results, and fill what `suite.empty` made with NaN or, every second time, a number."""
        for at in range(self.sets) if index is None else (index % self.sets,):
            self._results[at] = None
            fill = _draw_over if self._times_filled % len(_FILLED_WITH) else poison
            self._times_filled += 1
            for (role, _), (_, own) in zip(self._arrays, self._leaves(self._sets[at]), strict=True):
                if role == "output":
                    fill(own)

    def check(self) -> Verification:
        """Require that of a few launches on the same inputs not all give the same, where results are random."""
        first: Any = None
        for _ in range(REPEATED):
            self.poison(0)
            self.untimed(0)
            try:
                found = _tree(self._result(0))
            except TypeError:
                return Verification(True, "full", 0.0, 0.0, 0.0, (), "results that only check= can compare")
            first = first or found
            if not _same(found, first):
                return Verification(True, "full", 0.0, 0.0, 0.0, (), "correct: results differ")
        return refused("stale result", ALWAYS_THE_SAME)

    def verify_last(self, index: int) -> Verification:
        """By the test's check or its reference; else by the baseline, where that is another implementation."""
        at = index % self.sets
        for number, ((role, true), (_, own)) in enumerate(zip(self._arrays, self._leaves(self._sets[at]), strict=True)):
            if role == "input" and not _equal(_on_host(own), _on_host(true)):
                return refused("inputs modified", f"it changed array {number} of its arguments: name it in modifies=")
        result = self._result(at)
        if self._launch.check is not None:
            return self._by_check(result)
        found = _tree(result)
        expected = self._expected_tree()
        if expected is None:
            return Verification(True, "full", 0.0, 0.0, 0.0, (), UNJUDGED)
        verdict = compare(found, expected, lambda _, spec: spec["values"], self._tolerance)
        words = interpreted_bfloat16(str(leaf.dtype).removeprefix("torch.") for _, leaf in self._arrays)
        if words and not verdict.passed:
            raise Unsupported(words)
        return verdict

    def snapshot(self, index: int) -> Any:
        """What is there as data, which later launches do not change."""
        return None if self._launch.random else _tree(self._result(index % self.sets))

    def matches(self, index: int, snapshot: Any) -> bool:
        """Whether it is that, bit for bit; what is random never is."""
        return snapshot is not None and _same(_tree(self._result(index % self.sets)), snapshot)

    def _result(self, at: int) -> Any:
        """What the function returned, or where that is nothing, what it wrote."""
        if self._results[at] is not None:
            return self._results[at]
        return self._written(self._sets[at])

    def _written(self, arguments: Arguments) -> Any:
        written = [leaf for role, leaf in self._leaves(arguments) if role != "input"]
        return written[0] if len(written) == 1 else tuple(written) or None

    def _by_check(self, result: Any) -> Verification:
        args, kwargs = self._copy()
        assert self._launch.check is not None
        try:
            said = self._launch.check(result, *args, **kwargs)
        except AssertionError as error:
            said = str(error) or "an assertion does not hold"
        if said is False or isinstance(said, str):
            return refused("check", f"the test's check says no{f': {said[:300]}' if said else ''}")
        return Verification(True, "full", 0.0, 0.0, 0.0, (), "correct: the test's check holds")

    def _expected_tree(self) -> Any:
        """What is right, computed once; None where nothing says it."""
        launch = self._launch
        judge = launch.reference
        if judge is None and self._function is not launch.functions[launch.baseline]:
            judge = launch.functions[launch.baseline]
        if judge is not None and self._expected is None:
            result = self._judged(judge, self._copy())
            self._expected = _tree(result)
            if launch.tolerance is None:
                self._measure_tolerance(judge, result)
        return self._expected

    def _judged(self, judge: Callable[..., Any], arguments: Arguments) -> Any:
        with exact_arithmetic() if self._launch.reference is not None else contextlib.nullcontext():
            result = judge(*arguments[0], **arguments[1])
        return result if result is not None else self._written(arguments)

    def _measure_tolerance(self, judge: Callable[..., Any], result: Any) -> None:
        """How far rounding may move each element of what is right."""
        inputs = [leaf for role, leaf in self._arrays if role != "output"]
        sizes, found = sensitivity.measure(lambda change: self._judged(judge, self._copy(change)), result, inputs)
        if found:
            self._tolerance = replace(self._tolerance, terms=found["terms"], sizes=sizes, edges=found["edges"])

    def _copy(self, change: Callable[[Any], Any] | None = None) -> Arguments:
        """The arguments with every array elsewhere in memory, or changed; one that is passed twice stays one."""
        launch, made = self._launch, {}
        for role, leaf in self._arrays:
            if id(leaf) not in made:
                if change is not None and role != "output":
                    made[id(leaf)] = change(leaf)
                    continue
                made[id(leaf)] = Leaf("array", leaf, "input", 0).room()
                _assign(made[id(leaf)], leaf)
        values = [made.get(id(leaf), leaf) for _, leaf in walk([list(launch.args), dict(launch.kwargs)])]
        args, kwargs = replaced([list(launch.args), dict(launch.kwargs)], iter(values))
        return tuple(args), kwargs

    def _leaves(self, arguments: Any) -> Iterator[tuple[str, Any]]:
        launch = self._launch
        outputs = {id(each) for each in launch.outputs}
        args, kwargs = arguments
        pairs = zip([*enumerate(args), *kwargs.items()], [*launch.args, *launch.kwargs.values()], strict=True)
        for (key, value), original in pairs:
            leaves = zip(walk(value), walk(original), strict=True)
            for (kind, leaf), (_, own) in leaves:
                if kind == "array":
                    role = "output" if id(own) in outputs else "modified" if key in launch.modifies else "input"
                    yield role, leaf


class _Restoring:
    """A stopwatch that first gives every launch its values back, untimed; a sample is the sum of its launches."""

    def __init__(self, stopwatch: Stopwatch, launches: FunctionLaunches) -> None:
        self._stopwatch, self._launches = stopwatch, launches
        self.name, self.resolution_s = stopwatch.name, stopwatch.resolution_s

    def time(self, launch: Any, first: int, samples: int, launches_per_sample: int) -> list[float]:
        count = samples * launches_per_sample
        seconds: list[float] = []
        while len(seconds) < count:
            part = min(count - len(seconds), self._launches.sets)
            for index in range(first, first + part):
                self._launches.restore(index)
            seconds += self._stopwatch.time(launch, first, part, 1)
            first += part
        each = range(0, count, launches_per_sample) if launches_per_sample else ()
        return [math.fsum(seconds[at : at + launches_per_sample]) for at in each]


def _draw_over(array: Any) -> None:
    """Fill an array with one number that nobody can know."""
    number = random.SystemRandom().uniform(2, 100)
    if is_torch(array):
        with sys.modules["torch"].no_grad():
            array.fill_(number)
    elif array.dtype.kind in "iufc":
        array[...] = number


def _assign(into: Any, values: Any) -> None:
    if is_torch(into):
        with sys.modules["torch"].no_grad():
            into.copy_(values)
    else:
        into[...] = values


def _on_host(value: Any) -> np.ndarray[Any, Any]:
    """An array's values where numpy sees them: bfloat16 and float8 as float32, which holds them exactly."""
    if not is_torch(value):
        return np.asarray(value)
    torch = sys.modules["torch"]
    host = plain_values(value)[0].detach().resolve_conj().resolve_neg().cpu()
    narrow = host.dtype is torch.bfloat16 or str(host.dtype).startswith("torch.float8")
    found: np.ndarray[Any, Any] = (host.float() if narrow else host).numpy()
    return found


def _tree(value: Any) -> dict[str, Any]:
    """A result as `compare` takes it. Raises TypeError for what cannot be compared."""
    if isinstance(value, np.generic) or type(value) is complex:
        return {**_tree(np.asarray(value)), "number": type(value) is complex}
    if words := other_kind(value):
        raise TypeError(f"{words}, or give check=")
    if is_array(value):
        precision = plain_values(value)[1]
        values = _on_host(value if is_torch(value) else plain_values(value)[0]).copy()
        dtype = precision or (str(value.dtype)[6:] if is_torch(value) else values.dtype.name)
        return {"kind": "array", "dtype": dtype, "shape": list(values.shape), "values": values}
    if isinstance(value, bool | int | float | str | None):
        return {"kind": "plain", "value": value}
    if isinstance(value, list | tuple):
        if value and all(type(each) in (int, float, str, bool) for each in value):
            return {"kind": "plain", "value": list(value)}
        return {"kind": "tuple", "items": [_tree(each) for each in value]}
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        return {"kind": "dict", "items": {str(key): _tree(each) for key, each in dict.items(value)}}
    raise TypeError(
        f"a {type(value).__name__} was returned, which nothing can be compared with: return arrays, numbers, text, or "
        "tuples of them, or give check="
    )


def _same(found: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    if found["kind"] != kept["kind"]:
        return False
    if found["kind"] == "array":
        return found["dtype"] == kept["dtype"] and _equal(found["values"], kept["values"])
    if found["kind"] == "plain":
        return bool(found["value"] == kept["value"])
    ours, theirs = found["items"], kept["items"]
    if found["kind"] == "dict":
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    return len(ours) == len(theirs) and all(map(_same, ours, theirs))


def _equal(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Bit for bit, where numpy has words of that size."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.itemsize in (1, 2, 4, 8) and left.dtype.kind in "biuf":
        return same_bits(np.ascontiguousarray(left), np.ascontiguousarray(right))
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "c"))
