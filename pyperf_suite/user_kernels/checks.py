"""Judge anybody's kernel by the last launch of each part of timed ones, and by results in files, which are data."""

from __future__ import annotations

import filecmp
import json
import math
import secrets
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import Failed
from pyperf_suite.hardware import cpu
from pyperf_suite.measure.checks import CHECKING_SHARE, Checks, Part, WrongLaunch, require_right
from pyperf_suite.measure.stopwatch import Launch
from pyperf_suite.measure.verify import Verification
from pyperf_suite.measure.verify_result import Pool, Tolerance, refused
from pyperf_suite.user_kernels.api import USUAL
from pyperf_suite.user_kernels.arrays import POISON
from pyperf_suite.user_kernels.guards import recognises
from pyperf_suite.workloads.operands import widen

# Seconds and numbers below are of a case, save those of audited launches: of several processes each makes its share,
# and goes on where others ended.

# Launches that take so long have fresh inputs each; what making them takes is no time of samples, up to so much.
LONG_S, UNSAMPLED_S = 5e-3, 2.0
# Fewest and most launches that are checked at the end, in `checking_s` or in the share of a longer case.
FEWEST_LAST_CHECKS, LAST_CHECKS = 2, 8
MAX_COMPARED_AT_ONCE = 250
# Launches of what is random that may not all give the same, and what is said where they do.
REPEATED = 8
ALWAYS_THE_SAME = f"{REPEATED} launches on the same inputs gave the same, where random=True says that results differ"
UNSUITED = "unsuited"
# Launches on fresh inputs that are compared with as many on seen ones: at most 60, within 3 s. After each 12 it is
# decided whether they are slower, and for longer where it seems so after a few.
MOST_COMPARED, COMPARING_S, LOOK_AFTER = 60, 3.0, 12
# The fastest of FRESH_TRIES bursts takes at most this factor of the reported time, and FRESH_SPARE_S besides, in which
# threads of a library wake after a pause: single launches of honest torch took 36 and, on busy cores, 550 times.
FRESH_TRIES, SHORT_BURST, MAX_FRESH_OVER_REPORTED, FRESH_SPARE_S = 40, 16, 3.5, 100e-6
# Launches of a burst on sets that were all given fresh inputs: enough that one computed ahead is no large share.
PAIRED_BURST = 4
SUSPECTED_AFTER, MAX_FRESH_OVER_SEEN, SUSPECTED_S = 3, 1.1, 12.0
# After launches, threads of libraries spin for a while; then the process may use this share of a core, over so long.
SPIN_S, REST_S, BUSY_SHARE = 0.3, 0.01, 0.1
# A kernel that moves at least so much a launch and a second is compared with the fastest of COPIES copies of its size.
LEAST_COPIED_BYTES, MOST_COPIED_BYTES, COPIED_BYTES_PER_S, COPIES = 4 << 20, 256 << 20, 4e9, 5
# A part of LONG_PART_S or longer has at least this share in its samples, besides the time between two samples: a list
# of all sets is copied. A busy machine answers late, so the best of several counts, each of more samples than the last
# until one takes that long.
LONG_PART_S, REPORTED_SHARE, BETWEEN_SAMPLES_S, PER_SET_S = 5e-3, 0.6, 5e-6, 1e-8
CLOCK_TRIES, LONGEST_PART_S = 7, 0.5
MOST_QUEUED = 500
COMPARED_BYTES = 1 << 18
# bfloat16 and float8 are bits to numpy.
BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8, "complex32": np.uint32}

Array = NDArray[Any]


@dataclass(frozen=True)
class CheckBudget:
    """How far checks of a case go, in all its processes: seconds, and numbers of launches.

    `other_inputs_s` is for inputs of kinds after the first, `checking_s` for launches that are verified at the end, of
    which `repeated` in `repeating_s` are compared bit for bit with verified ones; `compared` pairs of fresh and seen
    inputs decide where they look alike, and where launches are `seen_faster` times as fast on seen ones. A core that
    has just run a launch of two microseconds takes its branches up to 1.4 times as fast on the same values.
    """

    other_inputs_s: float
    checking_s: float
    repeated: int
    repeating_s: float
    compared: int
    seen_faster: float


USUAL_BUDGET = CheckBudget(
    other_inputs_s=0.05, checking_s=0.05, repeated=250, repeating_s=0.05, compared=4, seen_faster=1.6
)
AUDIT_BUDGET = CheckBudget(
    other_inputs_s=0.5, checking_s=0.25, repeated=1000, repeating_s=1.5, compared=12, seen_faster=1.25
)


class PartStopwatch:
    """The clock of the kernel process, by parts: every part is one request, and the judge sees it pass."""

    def __init__(self, launches: Any) -> None:
        """`launches` are the UserLaunches of workload.py, which time a part at a time."""
        self._launches = launches
        self.name, self.resolution_s = launches.clock

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> list[float]:
        """Seconds of each sample; `launch` is not called, the kernel process knows what it runs."""
        return self._launches.time(first, samples, launches_per_sample)[0]


class UserChecks(Checks):
    """Checks of anybody's launches: the set that ends a part has fresh inputs, whose reference judges its result."""

    def __init__(
        self,
        launches: Any,
        processes: int = 1,
        earlier: Mapping[str, Any] = MappingProxyType({}),
        budget: CheckBudget = USUAL_BUDGET,
    ) -> None:
        """Judge in one of `processes` processes, with the findings of `earlier` ones (`joined`)."""
        super().__init__()
        self._launches, self._processes, self._earlier, self._budget = launches, processes, earlier, budget
        self._timed = 0  # launches checked that were timed
        self._fresh_s: list[float] = []
        self._seen_s: list[float] = []
        self._fresh, self._is_long, self._batch = False, False, 1
        self._wall_s = self._launch_s = self._released_s = self._copied_per_s = 0.0
        self._tried: list[str] = []
        self._reported_s: deque[float] = deque(maxlen=256)

    def before_timing(self) -> Verification:
        """One launch on fresh inputs, then one on others. Raises WrongLaunch."""
        verdict = self._launch_and_check(0)
        self._launches.require_nothing_replaced()
        self._fresh = self._launches.fresh()
        begin_s = self.clock()
        # The same set with other values: a result that was kept is seen.
        verdict = self._launch_and_check(0)
        self._check_s = self.clock() - begin_s
        self._is_long = self._launch_s > LONG_S and self._fresh and not self._launches.is_paired
        self._require_that_it_draws()
        self._try_other_inputs()
        self._launches.begin()
        self.begin()
        return verdict

    def _require_that_it_draws(self) -> None:
        """Raise WrongLaunch where results that are to differ from call to call are all the same."""
        if self._launches.is_random and not self._launches.draws_anew(REPEATED):
            raise WrongLaunch(refused("stale result", f"{self._launches.where}: {ALWAYS_THE_SAME}"))

    def _try_other_inputs(self) -> None:
        """Check launches on inputs of other kinds: those that tell most first, and as many as there is time for."""
        end_s = self.clock() + self._budget.other_inputs_s / self._processes
        tried = self._earlier.get("inputs_tried", ())
        kinds = [each for each in self._launches.other_inputs() if each not in tried]
        # The first again where the reference failed on it, as where one of few large values overflows.
        for number, kind in enumerate((*kinds[:1], *kinds)):
            if number > 1 and self.clock() > end_s:
                break
            if kind in self._tried or not self._launches.refresh(0, kind):
                continue
            try:
                self._launches.launch(0)
            except Failed:
                if self._launches.reference_fails():
                    continue
                raise
            if self._require_right(0).reason != UNSUITED:
                self._tried.append(kind)
        if kinds:
            # Timed inputs lie as their maker laid them, as in every other process.
            self._launches.refresh(0)
            self._launches.give_back(0)

    def time(self, part: Part, first: int, samples: int, batch: int) -> list[float]:
        """Samples of one block, as `Checks.time`; each long launch is a part of its own, on fresh inputs."""
        self._batch = batch
        self._is_long = self._is_long and batch == 1 and self._launch_s > LONG_S / 2
        if self._is_long:
            indices = range(first, first + samples)
            seconds = [each for index in indices for each in self._fresh_part(index, 1, 1, self.may_look)]
        else:
            seconds = super().time(self._part, first, samples, batch)
        self._reported_s.extend(each / max(1, batch) for each in seconds)
        return seconds

    def arm(self, last: int, launches: int) -> None:
        """Give the set that ends the part inputs that it has never seen."""
        begin_s = self.clock()
        self._launches.refresh(last)
        self._refreshing_s = self.clock() - begin_s
        if self._is_long:
            self.unsampled_s = min(UNSAMPLED_S, self.unsampled_s + self._refreshing_s)

    def look(self, last: int, launches: int) -> None:
        begin_s = self.clock()
        self._require_right(last)
        self._timed += 1
        self._check_s = self.clock() - begin_s + (0.0 if self._is_long else self._refreshing_s)

    def after_timing(self) -> None:
        """As many checks of timed launches as are due, and of what is seen in times alone. Raises WrongLaunch."""
        self._compare_with_a_copy()
        self._require_that_it_rests()
        self._require_a_true_clock()
        if self._fresh and not self._is_long:
            self._require_that_it_computes()
        # At the end: what stops to work after some launches has stopped by now.
        allowed_s = max(self._budget.checking_s / self._processes, CHECKING_SHARE * (self.clock() - self._begun_s))
        end_s, fewest = self.clock() + allowed_s, self._share(FEWEST_LAST_CHECKS)
        for number in range(LAST_CHECKS):
            if number >= fewest and self.clock() > end_s:
                break
            batch = 1 if self._is_long else 1 + secrets.randbelow(16)
            self._fresh_part(secrets.randbelow(self._launches.sets), 1, batch)
        self._require_that_it_draws()
        if not self._launches.is_paired and not self._launches.is_random:
            self._audit()
        self._launches.require_nothing_replaced()

    def report(self) -> dict[str, Any]:
        return {
            "sets": self._launches.sets,
            **super().report(),
            "timed_launches_checked": self._timed,
            "fresh_inputs": self._fresh,
            "inputs_tried": [USUAL, *self._tried],
            "fresh_s": [float(f"{each:.4g}") for each in self._fresh_s],
            "seen_s": [float(f"{each:.4g}") for each in self._seen_s],
            "caching_checked": self._fresh and (self._is_long or len(self._all_fresh_s) >= self._budget.compared),
            "released_s": self._released_s,
            "rounding": self._launches.rounding,
            "audited": self._budget is AUDIT_BUDGET,
            **({"copied_bytes_per_s": self._copied_per_s} if self._copied_per_s else {}),
        }

    def _share(self, count: int) -> int:
        """Return this process's part of `count` checks."""
        return -(-count // self._processes)

    @property
    def _all_fresh_s(self) -> list[float]:
        return [*self._earlier.get("fresh_s", ()), *self._fresh_s]

    def _fresh_part(self, first: int, samples: int, batch: int, is_looked_at: bool = True) -> Sequence[float]:
        """A part whose last launch has fresh inputs, looked at or not."""
        if is_looked_at:
            return self.looked_at(self._part, first, samples, batch)
        self.arm(first + samples * batch - 1, samples * batch)
        return self._part(first, samples, batch)

    def _audit(self) -> None:
        """Compare many launches with those that were checked last. Raises WrongLaunch."""
        most, repeating_s, audited = self._budget.repeated, self._budget.repeating_s, 0
        end_s = self.clock() + repeating_s
        at_once = max(1, min(most, MAX_COMPARED_AT_ONCE, int(repeating_s / 8 / self._wall_s)))
        while audited < most and self.clock() < end_s:
            equal, verdict = self._launches.audit(at_once)
            if verdict is not None:
                require_right(verdict)
            audited += equal + (verdict is not None)
            self.checked += equal + (verdict is not None)
            if verdict is None and equal < at_once:
                break

    def _compare_with_a_copy(self) -> None:
        """Measure what the machine's memory can move, where the file's bytes look like much."""
        moved = self._launches.work.bytes if self._launches.work else 0
        if self._launches.kernel.path == "cpu" and moved > max(LEAST_COPIED_BYTES, COPIED_BYTES_PER_S * self._launch_s):
            self._copied_per_s = self._earlier.get("copied_bytes_per_s") or copied_bytes_per_s(moved)

    def _part(self, first: int, samples: int, batch: int) -> list[float]:
        seconds, wall_s = self._launches.time(first, samples, batch)
        self._released_s = self._launches.released_s / (samples * batch)
        reported_s = math.fsum(seconds)
        if reported_s > 1.05 * wall_s + 1e-3:
            raise WrongLaunch(
                refused(
                    "clock",
                    f"{self._launches.where}: {reported_s:.3g} s were reported for a part that took {wall_s:.3g} s",
                )
            )
        self._wall_s, self._launch_s = wall_s / (samples * batch), reported_s / (samples * batch)
        return seconds

    def _require_a_true_clock(self) -> None:
        """Raise WrongLaunch where samples make up too little of the time that the judge sees pass."""
        if self._launches.restores:
            return
        if self._launches.kernel.path == "gpu":
            launches = 1 + min(MOST_QUEUED, int(4 * LONG_PART_S / max(self._launch_s, 1e-6)))
            due_s = launches * self._launch_s
            seen_s = min(self._launches.settling_s(launches) for _ in range(3))
            if seen_s > due_s / REPORTED_SHARE + LONG_PART_S:  # as on another stream
                words = f"the GPU worked for {seen_s:.3g} s after {launches} launches, whose events say {due_s:.3g} s"
                raise WrongLaunch(refused("late work", f"{self._launches.where}: {words}"))
            return
        samples, share = 1 + int(LONG_PART_S / (self._wall_s * self._batch)), 0.0
        for _ in range(CLOCK_TRIES):
            seconds, wall_s = self._launches.time(secrets.randbelow(self._launches.sets), samples, self._batch)
            self._wall_s = wall_s / (samples * self._batch)
            between_s = samples * (BETWEEN_SAMPLES_S + PER_SET_S * self._launches.sets) + self._launches.released_s
            share = max(share, (math.fsum(seconds) + between_s) / wall_s)
            if share >= REPORTED_SHARE:
                return
            samples *= 4 if wall_s < LONGEST_PART_S else 1
        sentence = f"the reported times make up {100 * share:.0f} % of the time that passed at most"
        raise WrongLaunch(refused("clock", f"{self._launches.where}: {sentence}"))

    def _require_that_it_computes(self) -> None:
        """Raise WrongLaunch where launches are faster on inputs that were seen before than on fresh ones.

        Both are written to the same set in the same way, in random order, and the launch on them comes after others
        without a pause. One that is not counted comes first, on what is then seen: a set that was not used for a while
        is slower.
        """

        def pair() -> tuple[float, float]:
            index = self._launches.sets + secrets.randbelow(self._launches.sets)
            before = secrets.randbelow(min(4, self._launches.sets))
            self._launches.make()
            is_fresh_first = bool(secrets.randbelow(2))
            seconds = []
            for made in (-2, -1, -1) if is_fresh_first else (-2, -2, -1):
                self._launches.fill(index, made)
                seconds.append(self._launches.time(index - before, before + 1, 1)[0][-1])
            return (seconds[1], seconds[2]) if is_fresh_first else (seconds[2], seconds[1])

        earlier = self._all_fresh_s, [*self._earlier.get("seen_s", ())]
        compared = self._budget.compared
        least = min(self._share(compared), max(compared - len(earlier[0]), 0))
        self._fresh_s, self._seen_s = self._alike(pair, *earlier, least, "on inputs that it was given before")
        self._require_that_bursts_compute(min((*earlier[0], *self._fresh_s), default=math.inf))
        self._alike(self._pair_of_bursts, [], [], self._share(compared), "on sets that were left as they were")

    def _pair_of_bursts(self) -> tuple[float, float]:
        """Seconds of launches without a pause on sets that were all given fresh inputs, and on sets left as they were.

        A result that is computed ahead while another set is launched is of no use in the former.
        """
        count, seconds = min(self._launches.sets, PAIRED_BURST), [0.0, 0.0]
        order = (0, 1) if secrets.randbelow(2) else (1, 0)
        for is_left in order:
            first = secrets.randbelow(self._launches.sets)
            for index in range(first, first + count):
                self._launches.make()
                if not is_left:
                    self._launches.fill(index)
            seconds[is_left] = math.fsum(self._launches.time(first, count, 1)[0]) / count
        return seconds[0], seconds[1]

    def _alike(
        self, pair: Callable[[], tuple[float, float]], fresh: list[float], again: list[float], count: int, words: str
    ) -> tuple[list[float], list[float]]:
        """Compare as many pairs as it takes to see that both take the same time; those made now.

        `fresh` and `again` are from earlier processes. Raises WrongLaunch where the latter are faster, beyond chance.
        """
        earlier, begin_s, looks_alike = len(fresh), self.clock(), True
        allowed_s = max(COMPARING_S / self._processes, CHECKING_SHARE * (self.clock() - self._begun_s))
        while len(fresh) < earlier + MOST_COMPARED and self.clock() - begin_s < allowed_s:
            if looks_alike and len(fresh) >= earlier + count:
                break
            fresh_s, known_s = pair()
            fresh.append(fresh_s)
            again.append(known_s)
            looks_alike = statistics.median(fresh) < MAX_FRESH_OVER_SEEN * statistics.median(again)
            if not looks_alike and len(fresh) >= SUSPECTED_AFTER:
                # A kernel that seems to remember is given the time to show it.
                allowed_s = SUSPECTED_S
            if len(fresh) % LOOK_AFTER == 0 and recognises(fresh, again, self._budget.seen_faster):
                ratio = statistics.median(fresh) / statistics.median(again)
                message = f"{words} it is {ratio:.1f} times as fast as on fresh inputs"
                raise WrongLaunch(refused("recognised inputs", f"{self._launches.where}: {message}"))
        return fresh[earlier:], again[earlier:]

    def _require_that_bursts_compute(self, fastest_s: float) -> None:
        """Raise WrongLaunch where launches are never nearly as fast as is reported if each set is launched once.

        `fastest_s` is the fastest on fresh inputs so far. On a busy machine, or where threads wake, a single launch may
        be slow: then short bursts are tried, in which no set comes twice.
        """
        reported_s = statistics.median(self._reported_s or [math.inf])
        burst = min(self._launches.sets, SHORT_BURST)
        for _ in range(FRESH_TRIES):
            if fastest_s <= MAX_FRESH_OVER_REPORTED * reported_s + FRESH_SPARE_S:
                return
            index = secrets.randbelow(self._launches.sets)
            self._launches.refresh(index)
            fastest_s = min(fastest_s, self._launches.time(index, 1, burst)[0][-1] / burst)
        message = f"launches on fresh inputs take {fastest_s / reported_s:.1f} times as long as is reported of one"
        raise WrongLaunch(refused("recognised inputs", f"{self._launches.where}: {message}"))

    def _require_that_it_rests(self) -> None:
        """Raise WrongLaunch where threads or children of the process go on working while nothing is launched."""
        for pause_s in (0.0, SPIN_S, 2 * SPIN_S):
            time.sleep(pause_s)
            used_s, begin_s = self._launches.cpu_seconds(), self.clock()
            time.sleep(REST_S)
            share = (self._launches.cpu_seconds() - used_s) / (self.clock() - begin_s)
            if share < BUSY_SHARE:
                return
        message = f"while nothing is launched, threads or processes of its own use {share:.2f} cores"
        raise WrongLaunch(refused("late work", f"{self._launches.where}: {message}"))

    def _launch_and_check(self, index: int) -> Verification:
        self._launches.refresh(index)
        self._part(index, 1, 1)
        return self._require_right(index)

    def _require_right(self, index: int) -> Verification:
        verdict: Verification = self._launches.verify_last(index)
        require_right(verdict)
        self.checked += verdict.reason != UNSUITED
        self._launches.give_back(index)
        return verdict


def joined(earlier: Mapping[str, Any], latest: Mapping[str, Any]) -> dict[str, Any]:
    """Join the findings of earlier processes and of one more: the checks that later ones need not repeat."""
    lists = {name: [*earlier.get(name, ()), *latest.get(name, ())] for name in ("inputs_tried", "fresh_s", "seen_s")}
    return lists | {name: earlier.get(name) or latest.get(name) for name in ("rounding", "copied_bytes_per_s")}


def copied_bytes_per_s(moved_bytes: int) -> float:
    """Bytes a second, read and written, of copies of `moved_bytes` by all cores."""
    half, workers = min(moved_bytes, MOST_COPIED_BYTES) // 2, cpu.detect().usable_cores
    parts = [(np.zeros(half // workers, np.uint8), np.ones(half // workers, np.uint8)) for _ in range(workers)]
    seconds = []
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(COPIES):
            begin_s = time.perf_counter()
            deque(pool.map(lambda pair: np.copyto(*pair), parts))
            seconds.append(time.perf_counter() - begin_s)
    return 2 * half / min(seconds)


def read_tree(path: str) -> dict[str, Any]:
    """Return a result that a process wrote, and its `path`; a Failed if it is none: a process may write anything."""
    try:
        tree = json.loads(Path(f"{path}.json").read_text("utf-8"))
        size_bytes = Path(path).stat().st_size
        for leaf in _leaves(tree):
            if leaf["kind"] == "array":
                if math.prod(leaf["shape"]) * stored_type(leaf["dtype"]).itemsize != leaf["bytes"]:
                    raise ValueError("an array of another size than its shape")
                if not 0 <= leaf["offset"] <= leaf["offset"] + leaf["bytes"] <= size_bytes:
                    raise ValueError("an array outside of its file")
            elif leaf["kind"] != "plain" or "value" not in leaf:
                raise ValueError("no result")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Failed(f"The kernel process wrote a result that cannot be read ({error!r:.100}).") from None
    return {**tree, "path": path}


def _leaves(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The arrays and plain values of a result."""
    if tree["kind"] in ("tuple", "dict"):
        for each in tree["items"] if tree["kind"] == "tuple" else tree["items"].values():
            yield from _leaves(each)
    else:
        yield tree


def float_bytes(dtype: str) -> int:
    """The size of a real or complex floating-point type's real part; 0 for other types."""
    if not dtype.startswith(("float", "bfloat", "complex")):
        return 0
    return stored_type(dtype).itemsize // (2 if dtype.startswith("complex") else 1)


def narrowed(result: Mapping[str, Any], wanted: Mapping[str, Any], input_bytes: Sequence[int]) -> Verification | None:
    """The verdict on a result of a narrower float than inputs of these sizes and the reference; None if it is none."""
    if result["kind"] in ("tuple", "dict"):
        keys = range(len(result["items"])) if result["kind"] == "tuple" else result["items"]
        pairs = ((result["items"][key], wanted["items"][key]) for key in keys)
        return next((each for pair in pairs if (each := narrowed(*pair, input_bytes)) is not None), None)
    if result["kind"] != "array" or wanted["kind"] != "array" or not input_bytes:
        return None
    returned, right = (each.get("precision", each["dtype"]) for each in (result, wanted))
    if not 0 < float_bytes(returned) < min(float_bytes(right), *input_bytes):
        return None
    return refused(
        "wrong dtype",
        f"it returned {returned}, which is narrower than its inputs and the reference's {right}; if that is meant, "
        "have the reference return it as well",
    )


def stored_type(dtype: str) -> np.dtype[Any]:
    """As numpy stores it. Raises ValueError for objects."""
    found = np.dtype(np.uint8 if dtype.startswith(("float8_", "float6_", "float4_")) else BITS.get(dtype, dtype))
    if found.hasobject:
        raise ValueError("objects")
    return found


def read_array(path: str, spec: Mapping[str, Any]) -> Array:
    """The values of an array in a file; of bfloat16 and float8 as float32."""
    count = math.prod(spec["shape"])
    values = np.fromfile(path, stored_type(spec["dtype"]), count, offset=spec["offset"]).reshape(spec["shape"])
    if spec["dtype"] == "float8_e5m2":  # the upper half of a float16
        return (values.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)
    return widen(values, spec["dtype"]) if spec["dtype"] in BITS else values


def shares_elements(tree: Mapping[str, Any]) -> bool:
    """True if two elements of an array in a result lie at one place in memory, as those of an expanded one do."""
    for leaf in _leaves(tree):
        reach = 0
        steps = zip(leaf.get("strides", ()), leaf.get("shape", ()), strict=True)
        for stride, size in sorted((abs(stride), size) for stride, size in steps if size > 1):
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def holds_poison(tree: Mapping[str, Any], path: str) -> bool:
    """True if a result holds a NaN that the suite put in its place."""
    for leaf in _leaves(tree):
        size = float_bytes(leaf["dtype"]) if leaf["kind"] == "array" else 0
        if size in POISON and (read_bytes(path, leaf["offset"], leaf["bytes"]).view(f"i{size}") == POISON[size]).any():
            return True
    return False


def read_bytes(path: str, offset: int, size_bytes: int) -> Array:
    """Part of a file."""
    return np.fromfile(path, np.uint8, size_bytes, offset=offset)


def first_difference(paths: tuple[str, str], offset: int, size_bytes: int) -> int | None:
    """Return the first byte from `offset` in which two files differ within `size_bytes`; read by blocks of a cache."""
    for begin in range(0, size_bytes, COMPARED_BYTES):
        count = min(COMPARED_BYTES, size_bytes - begin)
        one, other = (read_bytes(path, offset + begin, count) for path in paths)
        if not np.array_equal(one, other):
            return begin + int((one != other).argmax())
    return None


def are_equal(slot: str, other_slot: str, suffix: str = ".plain") -> bool:
    """True if two slots hold the same inputs, or two files the same result: values, and all else in another file."""
    files = (slot, other_slot), (f"{slot}{suffix}", f"{other_slot}{suffix}")
    return all(filecmp.cmp(*pair, shallow=False) for pair in files)


def with_rounding(tolerance: Tolerance, rounding: Mapping[str, Any]) -> Tolerance:
    """With what sensitivity.py measured of a reference: K, S of all elements together, and edges of whole numbers."""
    pools = {name: Pool(*each) for name, each in rounding["pools"].items()}
    return replace(tolerance, terms=rounding["terms"], pools=pools, edges=rounding.get("edges", {}))


def read_sizes(path: str, shapes: Sequence[tuple[str, Sequence[int]]]) -> dict[str, Array]:
    """Return the sizes of sensitivity.py for each array, by name."""
    values, end, found = np.fromfile(path, np.float32), 0, {}
    for name, shape in shapes:
        begin, end = end, end + math.prod(shape)
        found[name] = values[begin:end].reshape(shape)
    return found
