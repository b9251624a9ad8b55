"""The process that owns the device: reads cases as a line of JSON, measures them, answers each with a line of JSON.

Started as `python -m pyperf_suite.runner.worker`, by ranks/launch.py where a case takes several ranks: then rank 0
reads and answers, and the others do as it does. A crash or a hang in here costs one case and never the run.
"""

from __future__ import annotations

import atexit
import faulthandler
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyperf_suite.errors import ExitCode
from pyperf_suite.process.serving import Requests
from pyperf_suite.process.system import deadline_listeners
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.ranks.watchdog import say, stand_by

if TYPE_CHECKING:
    from pyperf_suite.ranks.group import Group

# A file of this worker's scratch folder that holds the number of the case whose turn it is.
SCRATCH_VARIABLE, TURN_FILE = "PYPERF_SCRATCH", "turn"

ARMED_FOR_S = 5.0  # how long the timer that ends a hanging process is left as it is: to set it starts a thread


def main() -> None:
    """Serve requests from standard input until it closes.

    A request is `{"cases", "earlier", "effort", "device", "deadline_s", "token"}`. The answer to each case is a line,
    with its number as "case" and the request's "token", when it is done. With "give_up_s" this process ends itself
    where a turn takes longer, also where it hangs in C: the parent should have ended it before.
    """
    requests = Requests(allow_nan=False)
    try:
        if rank_environment().launched:
            stand_by()
            _serve_as_a_rank(requests)
            return
        import pyperf_suite.runner.measuring  # noqa: F401 - before the first request, while others start

        for request in requests:
            for answer in _answers(request):
                requests.answer(answer)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


def _serve_as_a_rank(requests: Requests) -> None:
    """Rank 0 hands each request to all ranks; where one is lost, rank 0 says so as the answer and the group ends."""
    from pyperf_suite.ranks.group import Group, RanksMissing

    with Group() as group:
        if group.rank == 0:
            group.watchdog.at_end(lambda sentence: requests.answer(_lost(sentence)))
        try:
            if group.rank != 0:
                follow(group)
                return
            for request in requests:
                for answer in lead(group, request):
                    requests.answer(answer)
            let_go(group)
        except RanksMissing as missing:
            if group.rank == 0:
                requests.answer({"case": missing.case, **_lost(str(missing))})
            say(group.rank, str(missing))
            sys.exit(ExitCode.FAILED)


def lead(group: Group, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rank 0: have all ranks do what is requested, and answer. Raises RanksMissing."""
    group.from_first("next cases", request, None)
    yield from _answers(request, group)


def let_go(group: Group) -> None:
    """Rank 0: have the other ranks end."""
    group.from_first("next cases", None, None)


def follow(group: Group) -> None:
    """Other ranks: do what rank 0 requests until it lets them go. Raises RanksMissing."""
    while (request := group.from_first("next cases", None, None)) is not None:
        for _ in _answers(request, group):
            pass


def _answers(request: dict[str, Any], group: Group | None = None) -> Iterator[dict[str, Any]]:
    # Here and not above: before this comes the wait for other ranks, in which deaths have to be reported.
    from pyperf_suite.hardware.devices import Device, resolve
    from pyperf_suite.measure.telemetry import Disturbances
    from pyperf_suite.ranks.group import RanksMissing
    from pyperf_suite.record.case import Case
    from pyperf_suite.runner.measuring import measure_by_turns
    from pyperf_suite.runner.profiles import Effort

    turns = _Turns(request.get("give_up_s"), is_written=group is None or group.rank == 0)
    effort = Effort.from_json(request["effort"]) if request["effort"] is not None else None
    Disturbances.remembered_s = request.get("best_loop_s", {})
    try:
        device = resolve(request["device"])
        if group is not None and device.kind == "cuda":
            device = Device("cuda", group.environment.local_rank)
        cases = [Case.from_json(each) for each in request["cases"]]
        how = effort, device, group, request["deadline_s"], turns.begin, request.get("earlier", ())
        for number, answer in measure_by_turns(cases, *how):
            yield {"case": number, **answer}
    except RanksMissing as missing:
        missing.case = turns.number
        raise
    except Exception as error:  # the parent must get an answer; the log keeps the traceback
        traceback.print_exc()
        yield {"case": turns.number, "outcome": "failed", "reason": f"{type(error).__name__}: {error}", "fatal": True}
    finally:
        turns.end()


class _Turns:
    """Whose turn it is: for whoever finds this process dead, in a file; and until when the turn must be over."""

    def __init__(self, give_up_s: float | None, is_written: bool) -> None:
        self.number = 0
        self._turns = 0
        self._give_up_s = give_up_s
        self._armed_s = -math.inf
        folder = os.environ.get(SCRATCH_VARIABLE) if is_written else None
        self._file = os.open(Path(folder) / TURN_FILE, os.O_WRONLY | os.O_CREAT, 0o600) if folder else None
        deadline_listeners.append(self._go_on)

    def begin(self, number: int) -> None:
        self.number, self._turns = number, self._turns + 1
        if self._file is not None:
            os.pwrite(self._file, b"%8d %12d" % (number, self._turns), 0)
        if self._give_up_s is not None and time.monotonic() - self._armed_s > ARMED_FOR_S:
            faulthandler.dump_traceback_later(self._give_up_s + ARMED_FOR_S, exit=True)
            self._armed_s = time.monotonic()

    def _go_on(self) -> None:
        """The same turn has its deadline from now on."""
        self.begin(self.number)

    def end(self) -> None:
        deadline_listeners.remove(self._go_on)
        faulthandler.cancel_dump_traceback_later()
        if self._file is not None:
            os.close(self._file)


def _lost(sentence: str) -> dict[str, Any]:
    return {"outcome": "failed", "reason": sentence, "fatal": True}


if __name__ == "__main__":
    main()
    # Python would take torch apart next, a second in which the run waits for its end. A profiler that has put itself
    # into this process writes its trace then.
    if "CUDA_INJECTION64_PATH" not in os.environ:
        atexit._run_exitfuncs()
        os._exit(0)
