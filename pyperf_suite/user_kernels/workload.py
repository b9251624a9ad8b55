"""Anybody's kernel, judged: named `FILE.py:function` or `package.module:function`, never imported into this process.

The judge draws seeds, keeps a clock of its own, computes the verdict and owns the record. A fresh kernel process runs
the measured function; a reference process makes inputs and computes references (kernel_process.py has both parts).
What they write is read as data, and never executed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import random
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pyperf_suite import __version__
from pyperf_suite.errors import Failed, Unsupported
from pyperf_suite.hardware.machine import source_of
from pyperf_suite.hardware.memory import limit_bytes
from pyperf_suite.measure.checks import WrongLaunch
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.measure.verify import Verification
from pyperf_suite.measure.verify_result import Tolerance, compare, number_type, refused
from pyperf_suite.user_kernels import checks
from pyperf_suite.user_kernels.api import CONSTANT_ROWS, INPUTS, USUAL, Launch
from pyperf_suite.user_kernels.arrays import LAYOUTS, comparable, lay_out
from pyperf_suite.user_kernels.audit.processes import (
    PYTHON_VARIABLE,
    ReferenceProcess,
    UserProcess,
    interpreter,
    memory_folder,
)
from pyperf_suite.user_kernels.declared import PATH_VARIABLE, library_of, parameters_of, root, split, start_request
from pyperf_suite.user_kernels.here import TEST_LAUNCH, CaseHere, FileHere, Reference
from pyperf_suite.workloads.operator import sets_to_rotate
from pyperf_suite.workloads.workload import ByFunction, ExecutionContext, Kernel, Observed, Prepared, Work, Workload

# Sets with values of their own; others are copies elsewhere in memory.
DISTINCT_SETS = 3
# Size of a result, over that of its reference, at which a kernel is stopped.
LARGEST_RESULT = 4
SMALLEST_LIMIT_BYTES = 64 << 20
# Time after which a wrong result is looked at again: work that goes on by itself is seen to end.
LATE_S = 0.05
# How long is measured how rounding moves elements of the reference: on usual inputs, once, and on those of each kind.
USUAL_MOVES_S, OTHER_MOVES_S = 0.2, 0.05
# Plausible time to release a result: of arrays by bytes, of numbers and other objects by their text.
RESULT_FILES = "result", "result.json"
RELEASE_S_PER_BYTE, RELEASE_S_PER_CHARACTER = 2e-10, 2e-8
UNJUDGED = "nothing says what is right: give reference= or check="
# Earlier inputs that are tried as the cause of a wrong result, and for how long.
REMEMBERED_SEEDS, STALE_S = 4, 3.0
# Before the runner gives up on this process, so that it can say which line hung.
DEADLINE_SHARE, DEADLINE_SPARE_S = 0.9, 1.0

Array = NDArray[Any]


_files: dict[tuple[str, str], FileHere] = {}


def file_here(name: str, device: str) -> FileHere:
    """The file of that kernel, imported by this process once. Raises Failed."""
    key = (split(name)[0], device)
    if key not in _files:
        _files[key] = FileHere.imported(start_request(name, device))
    return _files[key]


_kept: dict[tuple[str, ...], ReferenceProcess] = {}


def reference_process(name: str, device: str, end_s: float, others: int) -> ReferenceProcess:
    """Return the process of that file; `others` other processes are kept at most."""
    key = (split(name)[0], device, interpreter(), os.environ.get(PATH_VARIABLE, ""), str(root(split(name)[0])))
    if key not in _kept or _kept[key].is_closed:
        _kept.pop(key, None)
        while len(_kept) > others:
            _kept.pop(next(iter(_kept))).close()
        _kept[key] = ReferenceProcess(start_request(name, device), end_s)
    return _kept[key]


def shared_preload() -> list[str]:
    """Modules that all kept processes found worth importing before a copy is made, in the order of the first."""
    first, *others = (each.preload for each in _kept.values())
    return [name for name in first if all(name in other for other in others)]


@atexit.register
def forget_reference() -> None:
    """End the reference process that is kept, as this process does when it ends in order; and forget files."""
    _files.clear()
    while _kept:
        _kept.popitem()[1].close()


class UserKernel(Workload[Any]):
    """Workload of a case whose operator is the name of a user's function."""

    own_check = False
    parameters_type = parameters_of(())
    implementations: Mapping[str, Any] = {}

    def __init__(self, name: str) -> None:
        self.name, self.source = name, split(name)[0]
        self.library = library_of(self.source)

    def type_for(self, data: Mapping[str, Any]) -> type:
        return parameters_of(tuple(data))

    def validate(self, parameters: Any) -> None:
        """Accept all parameters: the kernel's own process checks them."""

    def implementation(self, name: str) -> ByFunction:
        """Whichever of that name; on which device it runs is known only when it is built.

        To prepare a case starts both processes. Raises Failed with what went wrong in the user's code, and where.
        """
        return ByFunction(name, lambda parameters, place: UserLaunches(self.name, asdict(parameters), name, place))


class UserLaunches(Prepared):
    """A user's case made ready in its kernel process, timed by parts: every part is one request.

    `launch` is for whoever times through `stopwatch`. `where` is the place of the function, for people. Arguments that
    it modifies are given back before each launch where it `restores`; another process has the same inputs where it
    `is_paired`. `clock` is the process's clock, and what a sample that launches nothing takes.

    The code runs in this process, or with `audit`, for one of a pair, and by an interpreter of its own, in two others.
    """

    # Seconds that releasing results took in the last part, between samples: as reported, but at most the plausible.
    released_s = 0.0

    def __init__(
        self,
        name: str,
        axes: dict[str, Any],
        implementation: str,
        place: ExecutionContext,
        launch: Launch | None = None,
    ) -> None:
        """Make ready a case of that name in a user's file, or a `launch` that this process was given."""
        self._is_given = launch is not None
        self._given_expectation: tuple[dict[str, Any], Tolerance] | None = None
        self._right: Verification | None = None
        self._end_s = time.monotonic() + DEADLINE_SHARE * place.deadline_s - DEADLINE_SPARE_S
        self._resources = contextlib.ExitStack()
        self._clocks_hz: list[float] = []
        try:
            self._prepare(name, axes, implementation, place, launch)
        except BaseException:
            self.close()
            raise
        self.checks = checks.UserChecks(
            self, place.processes, place.earlier, checks.AUDIT_BUDGET if place.audit else checks.USUAL_BUDGET
        )

    def _prepare(
        self, name: str, axes: dict[str, Any], implementation: str, place: ExecutionContext, launch: Launch | None
    ) -> None:
        device = str(place.device)
        self._case = {"kernel": TEST_LAUNCH if launch else split(name)[1], "axes": axes}
        requested = self._requested = {**self._case, "implementation": implementation}
        self._process: UserProcess | CaseHere
        # Nothing is to be kept from code that runs in this process; sides of a pair have processes of their own.
        is_here = not place.audit and place.inputs is None and PYTHON_VARIABLE not in os.environ
        if launch is not None or is_here:
            file = FileHere.of_launch(launch, device) if launch is not None else file_here(name, device)
            self._reference: Reference = file
            self._find_reference: Callable[[], Reference] = lambda: file
            self._process = CaseHere(file)
            self._resources.callback(self._process.close)
            started = file.started
            self._built = self._reference.build(requested, self._end_s)
        else:
            others = int(place.inputs is not None)
            self._find_reference = functools.partial(reference_process, name, device, self._end_s, others)
            self._reference = self._find_reference()
            left_s, limit = self._end_s - time.monotonic(), limit_bytes()
            # Both sides of a pair are copies of one template.
            process = UserProcess(interpreter(), implementation, left_s, limit, preload=shared_preload())
            self._process = process
            self._resources.callback(process.close)
            # Both import what the user's code imports, side by side.
            began = process.begin("start", **start_request(name, device))
            self._built = self._reference.build(requested, self._end_s)
            started = process.finish(began)
        self._process.about(self._built)
        self._input_seeds = None if place.inputs is None else random.Random(place.inputs)
        mine = self._process.ask("build", **requested, seed=self._drawn(), library=self._reference.library)
        self._process.about(mine)
        self._require_same_inputs(mine)
        longest = max([1, *(size for leaf in self._arrays for size in leaf["shape"])])
        number = number_type(leaf["dtype"] for leaf in self._arrays if leaf["role"] != "output")
        self._tolerance = Tolerance(self._built["tolerance"], terms=longest, number=number)
        self.rounding = place.earlier.get("rounding")
        if self.rounding:
            self._tolerance = checks.with_rounding(self._tolerance, self.rounding)
        slot_bytes = lay_out(self._built["leaves"])
        self.restores = any(leaf["role"] == "modified" for leaf in self._built["leaves"])
        self.is_paired, self.is_random = place.inputs is not None, bool(self._built["random"])
        self._place_sets(slot_bytes, place)
        versions = started["versions"] | mine["versions"]
        self.work = Work(self._built["flop"], self._built["bytes"])
        self.where = f"{mine['file']}:{mine['line']}" if mine["file"] else name
        details = {"where": self.where, "doc": mine["doc"], "python": started["python"], "versions": versions}
        details |= {"baseline": mine["baseline"], "implementations": mine["implementations"]}
        self.kernel = Kernel(implementation, self._path, details)
        self.state = {
            "python": started["python"],
            "packages": {"pyperf_suite": __version__, **versions},
            "source": _source(str(root(split(name)[0])), mine["kernel_file"]),
        }

    def reseed(self, inputs: int) -> None:
        """Give all sets other inputs, those that another process gets under the same seed."""
        self._input_seeds = random.Random(inputs)
        slots = self._slots[:-2]
        self._slot_seeds = [self._make(slot, self._drawn())["seed"] for slot in slots]
        self._process.ask("load", sets=[[index, slots[index % len(slots)]] for index in range(self.sets)])

    def _require_same_inputs(self, mine: Mapping[str, Any]) -> None:
        ours, theirs = (list(map(comparable, built["leaves"])) for built in (self._built, mine))
        if ours != theirs:
            raise Failed(
                f"{mine['kernel_file']}:{mine['kernel_line']}: the inputs differ from call to call in more than their "
                "values: shapes and dtypes must follow from the axes."
            )

    @property
    def _arrays(self) -> list[dict[str, Any]]:
        return [leaf for leaf in self._built["leaves"] if leaf["kind"] == "array"]

    def _place_sets(self, slot_bytes: int, place: ExecutionContext) -> None:
        if self._arrays and slot_bytes:
            self.sets, cache = sets_to_rotate(slot_bytes, place.device)
        else:
            self.sets, cache = 1, "warm"
        if place.sets is not None:
            self.sets = place.sets
        distinct = 1 if self._is_given else min(self.sets, DISTINCT_SETS)
        # Inputs of each, fresh ones twice, those that are looked at, a result and its reference in float64.
        self._files = self._resources.enter_context(memory_folder((distinct + 3 + 1 + 8) * slot_bytes))
        self._slots = [self._path_of(f"slot{number}", slot_bytes) for number in range(distinct + 2)]
        self._inputs = self._path_of("inputs", slot_bytes)
        self._unseen = self._path_of("unseen", slot_bytes)
        for name in RESULT_FILES:
            self._path_of(name, 0)
        made = [self._reference.make(self._case, slot, self._end_s, self._drawn()) for slot in self._slots[:-2]]
        self._slot_seeds = [each["seed"] for each in made]
        self._seeds: deque[int] = deque(maxlen=REMEMBERED_SEEDS)
        self._expected_bytes = limit_bytes() // LARGEST_RESULT
        placed = self._process.ask("place", sets=self.sets, slots=self._slots[:-2])
        self._path = placed["path"]
        self.clock = (placed["stopwatch"], placed["resolution_s"])
        self.sampling = {"cache": cache, "operand_sets": self.sets}

    def _path_of(self, name: str, size_bytes: int) -> str:
        path = self._files / name
        with path.open("wb") as file:
            file.truncate(size_bytes)
        return str(path)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stopwatch(self) -> Stopwatch:
        return checks.PartStopwatch(self)

    def launch(self, index: int) -> None:
        self.time(index, 1, 1)

    def time(self, first: int, samples: int, batch: int) -> tuple[list[float], float]:
        """Seconds of each sample as the kernel process reports, and of all as the judge saw them pass."""
        begin = time.perf_counter()
        reported = self._process.ask("time", first=first, samples=samples, batch=batch)
        wall_s = time.perf_counter() - begin
        self._require_left_alone(reported)
        seconds = reported.get("seconds")
        if not isinstance(seconds, list) or len(seconds) != samples or not all(map(_is_time, seconds)):
            raise WrongLaunch(refused("clock", f"{self.where}: its process reported no time for each sample"))
        clocks = reported.get("clocks_hz") or []
        self._clocks_hz = [*self._clocks_hz, *(hz for hz in clocks if isinstance(hz, float) and 0 < hz < 1e11)]
        released_s = reported.get("released_s", 0.0)
        arrays, text = (Path(self._files / name).stat().st_size for name in RESULT_FILES)
        plausible_s = samples * (arrays * RELEASE_S_PER_BYTE + text * RELEASE_S_PER_CHARACTER)
        self.released_s = min(released_s, plausible_s) if _is_time(released_s) else 0.0
        return seconds, wall_s

    def clocks_hz(self, samples: int) -> list[float]:
        """The multiprocessors' clock during each of the last samples, of those that have been told."""
        return self._clocks_hz[-samples:]

    def require_nothing_replaced(self) -> None:
        """Raise WrongLaunch where functions that the suite and references are made of are others than they were."""
        self._require_left_alone(self._process.ask("replaced"))

    def cpu_seconds(self) -> float:
        """CPU time that the kernel process and its children have used."""
        return self._process.cpu_seconds()

    def _require_left_alone(self, reported: Mapping[str, Any]) -> None:
        """Raise WrongLaunch where the code replaced functions, read what is not its own, or unblocked signals."""
        for name, reason, words in (
            ("replaced", "replaced function", "it put something else in the place of"),
            ("looked", "harness inspected", "while it was timed it read what is not its own, by"),
            ("signals", "late work", "while it was timed it let signals through, which are blocked:"),
        ):
            found = reported.get(name)
            if found:
                shown = ", ".join(str(each)[:80] for each in found[:4]) if isinstance(found, list) else repr(found)[:80]
                raise WrongLaunch(refused(reason, f"{self.where}: {words} {shown}"))

    def settling_s(self, launches: int) -> float:
        """Return the seconds that a GPU works on after `launches` were queued: by the judge's clock, of all streams."""
        self._process.ask("settle")
        self._process.ask("enqueue", first=0, count=launches)
        begin = time.perf_counter()
        self._process.ask("settle")
        return time.perf_counter() - begin

    def observed(self) -> dict[str, Observed]:
        return {"sm_clock": Observed("Hz", self._clocks_hz)} if self._clocks_hz else {}

    def make(self, inputs: str = USUAL) -> bool:
        """Make inputs under a seed drawn now, and keep those before them; False if there are none of the kind."""
        self._kind, self._slots[-2:] = inputs, self._slots[:-3:-1]
        if self._is_given and len(self._seeds) > 1:  # both slots hold the same for good
            return True
        self._inputs_made = self._make(self._slots[-1], inputs=inputs)
        if checks.UNSUITED in self._inputs_made:
            return False
        self._seeds.append(self._inputs_made["seed"])
        return inputs == USUAL or self._inputs_made["drawn"] > 0

    def fill(self, index: int, slot: int = -1, layout: str = "") -> None:
        """Give a set the inputs that were made last, or with -2 those made before them."""
        self._process.ask("load", sets=[[index % self.sets, self._slots[slot]]], layout=layout)

    def refresh(self, index: int, inputs: str = USUAL) -> bool:
        """Make inputs, of a kind or in a layout, and give them to a set; False if there are none of the kind."""
        kind, layout = (USUAL, inputs) if inputs in LAYOUTS else (inputs, "")
        if not self.make(kind):
            return False
        self.fill(index, layout=layout)
        return True

    def _make(self, slot: str, seed: int | None = None, inputs: str = USUAL) -> dict[str, Any]:
        """Have the reference process write inputs to a slot; a new one, where another case of the file lost it."""
        found = self._find_reference()
        if found is not self._reference:
            found.build(self._requested, self._end_s)
            self._reference = found
        return found.make(self._case, slot, self._end_s, seed, inputs)

    def reference_fails(self) -> bool:
        """True if the reference fails on the inputs that were made last, too."""
        return checks.UNSUITED in self._reference.expect(str(self._files / "expected"), self._end_s)

    def other_inputs(self) -> list[str]:
        """The kinds of inputs that are tried besides usual ones, the most telling first."""
        first, *others = *INPUTS, *LAYOUTS
        random.SystemRandom().shuffle(others)
        taken = () if self._built["has_check"] else self._built["inputs"]
        taken = [each for each in taken if each in LAYOUTS or not self._is_given]
        return [each for each in (first, *others) if each in taken]

    def audit(self, launches: int) -> tuple[int, Verification | None]:
        """Launch on the last two inputs made: how many results equal the verified, and a verdict on the first not."""
        first, slots = random.SystemRandom().randrange(self.sets), self._slots[-2:]
        found = self._process.ask("audit", first=first, launches=launches, slots=slots)
        self._require_left_alone(found)
        equal = min(launches, int(found["equal"]))
        if equal < launches and found["slot"] == slots[0]:
            # The reference holds those of the other slot; without a seed they cannot be made again.
            self._inputs_made = self._make(self._unseen, self._seeds[-2])
            if not checks.are_equal(self._unseen, slots[0]):
                return equal, None
            self._seeds.append(self._inputs_made["seed"])
            self._slots[-2:] = slots[::-1]
        return equal, self.verify_last(first) if equal < launches else None

    def draws_anew(self, launches: int) -> bool:
        """True if one of `launches` launches on the same inputs gives another result than the first."""
        drawn = self._process.ask("draw", launches=launches)
        self._require_left_alone(drawn)
        return bool(drawn["differs"])

    def fresh(self) -> bool:
        """True if inputs differ from seed to seed; where they do not, a kernel may remember them."""
        return not checks.are_equal(self._slots[0], self._slots[-1])

    def give_back(self, index: int) -> None:
        """Give a set the inputs that it had before `refresh`, where they are to be those of another process."""
        if self._input_seeds is not None:
            self.fill(index, index % self.sets % (len(self._slots) - 2))

    def _drawn(self) -> int:
        return secrets.randbits(63) if self._input_seeds is None else self._input_seeds.getrandbits(63)

    def verify_last(self, index: int) -> Verification:
        """Compare what the last launch left with the reference of the inputs that its set was given by `refresh`.

        The reference is computed only now: what the kernel process could have found of it did not exist.
        """
        result, expected = str(self._files / "result"), str(self._files / "expected")
        limit = max(SMALLEST_LIMIT_BYTES, LARGEST_RESULT * self._expected_bytes)
        # A check in this process is given what was left itself, of whatever kind.
        is_kept = self._built["has_check"] and self._process.is_here
        fetched = self._process.ask("fetch", result="" if is_kept else result, inputs=self._inputs, limit_bytes=limit)
        tree = {} if is_kept else checks.read_tree(result)
        verdict = self._changed_late(fetched) or self._unchanged(fetched)
        if verdict is None and self._built["has_check"]:
            verdict = self._by_the_users_check(result)
        elif verdict is None and self._is_given and not self._is_compared:
            verdict = Verification(True, "full", 0.0, 0.0, 0.0, (), UNJUDGED)
        if verdict is None:
            expectation, tolerance = self._expectation(expected)
            if checks.UNSUITED in expectation:
                return replace(
                    refused(checks.UNSUITED, f"the reference itself {expectation[checks.UNSUITED]}"), passed=True
                )
            self._require_left_alone(expectation)
            self._expected_bytes = Path(expected).stat().st_size
            wanted = checks.read_tree(expected)
            verdict = self._found_before(result) or self._compared(tree, wanted, tolerance)
            if not verdict.passed:
                verdict = replace(verdict, message=f"{verdict.message}{self._hint(tree, wanted)}")
            elif self._built["tolerance"] is None:
                widths = [width for leaf in self._arrays if (width := checks.float_bytes(leaf["dtype"]))]
                verdict = checks.narrowed(tree, wanted, widths) or verdict
            if verdict.passed and self._is_given and self._right is None:
                self._right = verdict
                for ending in ("", ".json"):
                    shutil.copyfile(f"{result}{ending}", f"{self._files / 'right'}{ending}")
            is_shared = fetched["repeats"] or checks.shares_elements(tree)
            if verdict.passed and is_shared and not (expectation["repeats"] or checks.shares_elements(wanted)):
                verdict = refused(
                    "shared elements",
                    "elements of its result share memory, as in an array that was expanded or is returned twice, so "
                    "not all were written: if that is meant, have the reference return such views as well",
                )
            if verdict.passed and fetched["overlaps"] and not expectation["overlaps"]:
                verdict = refused(
                    "aliased output",
                    "it returned memory of its input: if that is meant, have the reference return a view as well",
                )
        if not verdict.passed and verdict.reason != "inputs modified":
            verdict = self._changed_late(self._process.ask("changed", after_s=LATE_S)) or self._stale(verdict, tree)
        if not verdict.passed and self._built["interpreted"]:
            raise Unsupported(f"{self.where}: {self._built['interpreted']}")
        kind = f"on {self._kind} inputs " if self._kind != USUAL else ""
        return verdict if verdict.passed else replace(verdict, message=f"{self.where}: {kind}{verdict.message}")

    def _expectation(self, expected: str) -> tuple[dict[str, Any], Tolerance]:
        """Have the reference computed, and what it allows: measured once for usual inputs, each time for others."""
        if self._is_given and self._given_expectation is not None:
            return self._given_expectation
        is_usual = self._kind == USUAL
        tolerance = replace(self._tolerance, unusual=not is_usual)
        if tolerance.relative is not None or (self.rounding and is_usual):
            return self._reference.expect(expected, self._end_s), tolerance
        path, terms = str(self._files / "sizes"), self.rounding and self.rounding["terms"]
        budget_s = USUAL_MOVES_S if is_usual else OTHER_MOVES_S
        answer = self._reference.expect(expected, self._end_s, path, budget_s, terms)
        if "terms" not in answer:
            return answer, tolerance
        rounded = checks.with_rounding(replace(tolerance, sizes=checks.read_sizes(path, answer["sizes"])), answer)
        if is_usual:
            self.rounding = {name: answer[name] for name in ("terms", "pools", "edges")}
            self._tolerance = replace(rounded, sizes={})
        elif self._kind == CONSTANT_ROWS:
            # Equal terms are rounded in the same direction, so that their errors add up as K and not as √K.
            rounded = replace(rounded, terms=rounded.terms**2)
        self._given_expectation = answer, rounded
        return answer, rounded

    def _changed_late(self, reported: Mapping[str, Any]) -> Verification | None:
        if not reported.get("changed"):
            return None
        return refused("late work", "its result was written after the launch had returned and the clock had stopped")

    def _stale(self, verdict: Verification, result: Mapping[str, Any]) -> Verification:
        """The verdict on a wrong result, which may be what was right for other inputs, or memory that nobody wrote."""
        expected = str(self._files / "other")
        if verdict.reason == "not finite" and checks.holds_poison(result, result["path"]):
            words = "parts of its result were not written by the launch: they hold what the suite had put there"
            return replace(verdict, reason="stale result", message=words)
        if verdict.reason != "wrong values" or self._built["has_check"]:
            return verdict
        end_s = time.monotonic() + STALE_S
        for seed in [] if self._is_given else list(self._seeds)[-2::-1] + self._slot_seeds:
            if time.monotonic() > end_s:
                break
            self._make(self._unseen, seed)
            self._reference.expect(expected, self._end_s)
            if self._compared(result, checks.read_tree(expected)).passed:
                words = "its result is right for other inputs, which it was given before"
                return replace(verdict, reason="stale result", message=words)
        return verdict

    def _unchanged(self, fetched: Mapping[str, Any]) -> Verification | None:
        for number, leaf in enumerate(self._built["leaves"]):
            if leaf["kind"] != "array" or leaf["role"] != "input":
                continue
            changed = checks.first_difference((self._slots[-1], self._inputs), leaf["offset"], leaf["bytes"])
            if changed is not None:
                at = changed // max(1, leaf["bytes"] // max(1, math.prod(leaf["shape"])))
                return refused(
                    "inputs modified",
                    f"it changed its input {leaf['argument']} (element {at} first, array {number} of the arguments): "
                    f"say modifies={leaf['argument']!r}",
                )
        if self._inputs_made["plain"] and fetched["plain"] != self._inputs_made["plain"]:
            return refused("inputs modified", "it changed a list or other plain input: say modifies=...")
        return None

    def _by_the_users_check(self, result: str) -> Verification | None:
        said = self._reference.check(result, self._process.left, self._end_s)
        if not said["passed"]:
            words = f": {str(said['message'])[:300]}" if said["message"] else ""
            return refused("check", f"the check at {self._built['reference_at']} says no{words}")
        if self._built["has_reference"]:
            return None
        return Verification(True, "full", 0.0, 0.0, 0.0, (), "correct: by the file's own check")

    def _found_before(self, result: str) -> Verification | None:
        """The verdict that the same bits had before, where inputs are the same each time."""
        right = self._files / "right"
        return self._right if self._right is not None and checks.are_equal(result, str(right), ".json") else None

    def _compared(
        self, result: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: Tolerance | None = None
    ) -> Verification:
        paths = {"found": result["path"], "expected": wanted["path"]}
        return compare(
            result, wanted, lambda which, spec: checks.read_array(paths[which], spec), tolerance or self._tolerance
        )

    def _hint(self, result: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
        """Return another possible cause: an array that the function closes over, or the reference itself."""
        names, objects = self._built["closes_over"], self._built["objects"]
        if objects and not self._is_given:
            return (
                f"; where an object that it uses ({', '.join(objects)}) is made with the inputs, the reference has "
                "another: make it at the top of the file, under a seed"
            )
        if names and not self._is_given:
            return f"; the function closes over {', '.join(names)}: what varies has to be an argument of suite.launch"
        if not self._built["has_reference"]:
            return f"; there is no reference=, so it was compared with {self._itself}"
        try:
            path = f"{result['path']}.other"
            others = self._process.ask("others", result=path, limit_bytes=SMALLEST_LIMIT_BYTES)["results"]
        except Failed:
            return ""
        for name, path in others.items():
            if self._compared(checks.read_tree(path), result).passed:
                return (
                    f"; {name} gives the same as this one, so the reference at {self._built['reference_at']} may be "
                    "what is wrong"
                )
        return ""

    def cpu_elsewhere_s(self) -> float:
        return max(0.0, self._cpu_s() - self._cpu_before_s)

    def begin(self) -> None:
        """From now on launches are timed."""
        self._clocks_hz = []
        self._cpu_before_s = self._cpu_s()

    def _cpu_s(self) -> float:
        if self._process.is_here:
            return 0.0
        return self._process.cpu_seconds() + self._reference.cpu_seconds()

    def references(self) -> dict[str, Any]:
        if self._built["has_reference"]:
            return {"references": ["the file's reference"]}
        if self._built["has_check"]:
            return {"references": ["the file's check"]}
        if self._is_given and not self._is_compared:
            return {}
        others = len(self._built["implementations"]) > 1
        return {"references": [self._built["baseline"] if others else self._itself]}

    @property
    def _itself(self) -> str:
        return "the same function" if self._process.is_here else "the same function in another process"

    @property
    def _is_compared(self) -> bool:
        """True where something other than the measured function says what is right."""
        return bool(self._built["has_reference"] or self._built["baseline"] != self._requested["implementation"])

    def close(self) -> None:
        self._resources.close()


@functools.cache
def _source(top: str, file: str) -> dict[str, Any]:
    path = Path(top) / file
    return source_of(path.parent, path.name) if file else {}


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e9
