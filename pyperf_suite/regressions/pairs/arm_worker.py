"""A side of a live pair, or both: prepares a case in a fresh process and times short slices of it on request.

Run as a script by the interpreter of either arm, and told where that arm's build lies. It asks of the build only what
any revision has (cases, workloads, launches and their stopwatch), so that revisions need to know nothing of pairs.
Users' kernels, which have processes of their own, of both sides have one judge.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # A script's folder comes first on the path: its modules must not be found in the place of others.
    del sys.path[0]

import functools
import importlib.util
import math
import os
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

# Launches for so long tell whether a user's kernel runs on several cores.
SETTLING_S = 0.02
_CPU_CLOCK_OF_PROCESS = 2  # CPUCLOCK_SCHED of Linux
# Outcomes of exceptions by name, for each build has classes of its own.
EXPECTED = {"Unsupported": "unsupported", "UserError": "unsupported", "Failed": "failed", "WrongLaunch": "failed"}
# Samples of one launch that tell how many cycles it takes on a GPU where it is to be slowed down.
SPIN_SAMPLES = 51


# This revision's, next to whatever build is measured.
_PATH = Path(__file__).parents[2] / "process" / "serving.py"
_SPEC: Any = importlib.util.spec_from_file_location("serving", _PATH)
serving: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(serving)


def main() -> None:
    """Serve requests, or be the template of processes that do so (`serve CHANNEL MODULES`)."""
    if sys.argv[1:]:
        serving.serve_copies(int(sys.argv[2]), sys.argv[3:], work)
    work()


def work() -> None:
    """Serve requests, each for the bench of its `side`, until there are no more."""
    requests, benches = serving.Requests(), dict[str, Bench]()
    for request in requests:
        bench = benches.setdefault(request.pop("side"), Bench())
        requests.answer(bench.answer(request))
    for bench in benches.values():
        bench.close()
    if not any(bench.judges for bench in benches.values()):
        # Nothing is worth being torn down in order: the next pair waits for this process to be gone.
        os._exit(0)


class Bench:
    """One prepared case. `answer` takes `{"prepare": …}` once, then slices, `{"slice": …}`, then `{"finish": {}}`.

    A user's kernel runs in a process of its own, and is checked in every pair: before its slices, within, and after.
    So this process may prepare it again, for the next pair.
    """

    def __init__(self) -> None:
        self._environment: dict[str, str] = {}
        self._launched = 0
        self._users: Any = None
        self._close: Callable[[], None] | None = None
        self.judges = False
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request with `{"outcome": "ok" | "failed" | "unsupported", …}`; never an exception."""
        try:
            os.environ.update(self._environment)
            ((what, arguments),) = request.items()
            return getattr(self, f"_{what}")(**arguments)
        except Exception as error:  # the parent must get an answer; the log keeps the traceback
            kind = type(error).__name__
            if kind not in EXPECTED:
                traceback.print_exc()
            begins = {"WrongLaunch": "Wrong result: "}.get(kind, "" if kind in EXPECTED else f"{kind}: ")
            return {"outcome": EXPECTED.get(kind, "failed"), "reason": f"{begins}{error}"}

    def _prepare(
        self,
        case: dict[str, Any],
        device: str,
        verify: bool,
        cores: list[int] | None,
        path: list[str],
        environment: dict[str, str],
        spin_share: float = 0.0,
        inputs: int | None = None,
        anew: bool = False,
    ) -> dict[str, Any]:
        """Prepare the case on these cores; verify its output if requested; have launches take `spin_share` longer.

        `inputs` is the seed of a user's inputs, which both sides are given; `path` is where the build lies, and
        `environment` where a user's kernel runs, by a template that is made `anew` if another judge has the other side.
        """
        self._environment = environment
        os.environ.update(environment)
        sys.path[:0] = [each for each in path if each not in sys.path[: len(path)]]
        import pyperf_suite
        from pyperf_suite.hardware.devices import resolve
        from pyperf_suite.record.case import Case

        if not importlib.util.find_spec("pyperf_suite.workloads"):
            return {"outcome": "unsupported", "reason": "This revision is too old to take turns with another in pairs."}
        from pyperf_suite.workloads import find_workload
        from pyperf_suite.workloads.workload import ExecutionContext

        package = {"package": str(Path(pyperf_suite.__file__).parent)}
        where, parsed = resolve(device), Case.from_json(case)
        operator: Any = find_workload(parsed.operator)
        operator.validate(parsed.parameters)
        if operator.ranks(parsed.parameters):
            return {"outcome": "unsupported", "reason": "A case for a group of processes cannot take turns in a pair."}
        if parsed.mode != "burst":
            return {"outcome": "unsupported", "reason": f"Taking turns leaves pauses, so mode={parsed.mode} cannot be."}
        if getattr(operator.implementation(parsed.implementation), "needs_torch", False):
            import torch  # noqa: F401 - takes seconds, which the two sides should spend side by side
        if cores:
            os.sched_setaffinity(0, cores)
        if "PYPERF_KERNEL_ROOT" in os.environ:
            # It says where this code and what it needs lie, which a kernel's own interpreter must not find first.
            os.environ.pop("PYTHONPATH", None)
        if anew:
            from pyperf_suite.process.child import forget_templates

            forget_templates()
        place = ExecutionContext(where, parsed.seed)
        if inputs is not None:  # only revisions that have it are given it
            place = replace(place, inputs=inputs)
        launches = operator.prepare(parsed.parameters, parsed.implementation, place)
        kernel = {"name": launches.kernel.name, "path": launches.kernel.path}
        if launches.exact is not None:  # figures of what is only looked at: nothing to take turns with
            static = {name: dict(metric) for name, metric in launches.exact.items()}
            return package | {"outcome": "ok", "static": static, "kernel": kernel}
        self._close, self._launch, self._stopwatch = launches.close, launches.launch, launches.stopwatch
        answer: dict[str, Any] = package | {"outcome": "ok", "kernel": kernel}
        if launches.checks is not None:  # a user's kernel, which only its own process can launch
            if spin_share:
                return {"outcome": "unsupported", "reason": "A slowdown cannot be injected into a user's kernel."}
            self._users, self.judges = launches, True
            self._stopwatch = launches.checks.checking(launches.stopwatch, can_stop=False)
            launches.checks.before_timing()
            if sys.platform == "linux":
                answer["other_threads"] = self._other_threads()
            return answer | {"resolution_s": self._stopwatch.resolution_s}
        checked = launches.check() if verify else None
        if checked is not None and not checked.passed:
            return {"outcome": "failed", "reason": f"Wrong result: {checked.message}"}
        if spin_share and where.kind == "cpu":
            self._launch = _slowed(launches.launch, spin_share)
        elif spin_share:
            self._launch = _slowed_on_gpu(launches.launch, self._stopwatch, spin_share)
        return answer | {"resolution_s": self._stopwatch.resolution_s, "libraries": serving.libraries(path)}

    def _other_threads(self) -> float:
        """Return the share of launches' CPU time outside the main thread: a kernel on one core has none."""
        pid = self._users.pid
        clock = (~pid << 3) | _CPU_CLOCK_OF_PROCESS

        def spent_ns() -> tuple[int, int, int]:
            main = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]
            return time.monotonic_ns(), time.clock_gettime_ns(clock), int(main)

        batch, wall_s = 1, 0.0
        while wall_s < SETTLING_S:
            before = spent_ns()
            self._users.time(0, 1, batch)
            wall, whole, main = (after - earlier for after, earlier in zip(spent_ns(), before, strict=True))
            wall_s = wall * 1e-9
            batch = math.ceil(batch * min(10, 1.5 * SETTLING_S / wall_s))
        return max(0.0, 1 - main / whole)

    def _pin(self, cores: list[int]) -> dict[str, Any]:
        for pid in (0, self._users.pid):
            os.sched_setaffinity(pid, cores)
        return {"outcome": "ok"}

    def _reseed(self, inputs: int) -> dict[str, Any]:
        self._users.reseed(inputs)
        return {"outcome": "ok"}

    def _finish(self) -> dict[str, Any]:
        """Check a last launch, and the clock of all, where they are a user's; then end its process."""
        if self._users is not None:
            self._users.checks.after_timing()
            self.close()
            os.sched_setaffinity(0, self._cores)
        return {"outcome": "ok"}

    def close(self) -> None:
        if self._close is not None:
            self._close()
        self._close = self._users = None

    def _slice(self, samples: int, launches_per_sample: int) -> dict[str, Any]:
        """Seconds a launch took in each sample, in order, and on a GPU the clock they ran at."""
        timed = self._stopwatch.time(self._launch, self._launched, samples, launches_per_sample)
        self._launched += samples * launches_per_sample
        answer: dict[str, Any] = {"outcome": "ok", "seconds": [sample / launches_per_sample for sample in timed]}
        if hasattr(clock := self._users or self._stopwatch, "clocks_hz"):
            clocks = [hz for hz in clock.clocks_hz(samples) if math.isfinite(hz)]
            answer["clock_hz"] = statistics.median(clocks) if clocks else None
        return answer


def _slowed(launch: Callable[[int], object], share: float) -> Callable[[int], None]:
    """The launch, `share` longer than it just took by spinning on the clock, less what the wrapping takes."""
    clock = time.perf_counter_ns

    def slowed(index: int, launch: Callable[[int], object] = launch, spent_ns: float = 0.0) -> None:
        begin = clock()
        launch(index)
        end = clock()
        until = end + share * (end - begin) - spent_ns
        while clock() < until:
            pass

    costs = []
    for _ in range(101):
        begin = clock()
        slowed(0, int)
        costs.append(clock() - begin)
    spent_ns = float(sorted(costs)[50])
    return lambda index: slowed(index, launch, spent_ns)


def _slowed_on_gpu(launch: Callable[[int], object], stopwatch: Any, share: float) -> Callable[[int], None]:
    """The launch with a kernel behind it that spins for `share` of the cycles that the launch takes.

    What a kernel that does not spin takes there is found first, and the spin is shorter by that. Raises Unsupported
    where the slowdown would be less than that, or the GPU tells no clock.
    """
    torch: Any = importlib.import_module("torch")
    stream = torch.cuda.ExternalStream(stopwatch.stream)

    def slowed(index: int, cycles: int = 0) -> None:
        launch(index)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)

    def cycles_of(launched: Callable[[int], object]) -> float:
        seconds = stopwatch.time(launched, 0, SPIN_SAMPLES, 1)
        taken = zip(seconds, stopwatch.clocks_hz(SPIN_SAMPLES), strict=True)
        return statistics.median(each * hz for each, hz in taken)

    alone = cycles_of(launch)
    behind = cycles_of(slowed) - alone
    if not share * alone >= behind:
        from pyperf_suite.errors import Unsupported

        short = f"{100 * share:g} % of {alone:.0f} cycles"
        raise Unsupported(f"A slowdown by {short} cannot be injected: a kernel that does not spin takes {behind:.0f}.")
    return functools.partial(slowed, cycles=round(share * alone - behind))


if __name__ == "__main__":
    main()
