"""The process that owns the device: reads one case a line, measures it, answers with one line of JSON.

Started as `python -m pyperf_suite.runner.worker`, by torchrun where a case takes a group of ranks: then rank 0 reads
and answers, and the others do as it does. A crash or a hang in here costs one case and never the run.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import sys
import traceback
from typing import IO, TYPE_CHECKING, Any

from pyperf_suite.processes import end_with_parent
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.ranks.watchdog import say, stand_by

if TYPE_CHECKING:
    from pyperf_suite.ranks.group import Group


def main() -> None:
    """Serve requests from standard input until it closes.

    A request is `{"case", "effort", "device", "deadline_s"}`; with "give_up_s" this process ends itself if it takes
    longer, also where it hangs in C: whoever asked should have ended it before.
    """
    end_with_parent()
    answers = _take_over_stdout()
    try:
        if rank_environment().launched:
            stand_by()
            _serve_as_a_rank(answers)
            return
        for line in sys.stdin:
            _write(answers, _answer(json.loads(line)))
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


def _serve_as_a_rank(answers: IO[str]) -> None:
    """Rank 0 hands each request to all ranks; where one is lost, rank 0 says so as the answer and the group ends."""
    from pyperf_suite.ranks.group import Group, RanksMissing

    with Group() as group:
        if group.rank == 0:
            group.watchdog.at_end(lambda sentence: _write(answers, _lost(sentence)))
        try:
            if group.rank != 0:
                follow(group)
                return
            for line in sys.stdin:
                _write(answers, lead(group, json.loads(line)))
            lead(group, None)
        except RanksMissing as missing:
            _write(answers, _lost(str(missing)))
            say(group.rank, str(missing))
            sys.exit(2)


def lead(group: Group, request: dict[str, Any] | None) -> dict[str, Any]:
    """Rank 0: have all ranks do what is requested, None to let them go. Raises RanksMissing."""
    group.from_first("next case", request, None)
    return _answer(request, group) if request is not None else {}


def follow(group: Group) -> None:
    """Other ranks: do what rank 0 requests until it lets them go. Raises RanksMissing."""
    while (request := group.from_first("next case", None, None)) is not None:
        _answer(request, group)


def _answer(request: dict[str, Any], group: Group | None = None) -> dict[str, Any]:
    if "give_up_s" in request:
        faulthandler.dump_traceback_later(request["give_up_s"], exit=True)
    try:
        return _measured(request, group)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _measured(request: dict[str, Any], group: Group | None) -> dict[str, Any]:
    # Here and not above: before this comes the wait for other ranks, in which deaths have to be reported.
    from pyperf_suite.hardware.devices import Device, resolve
    from pyperf_suite.ranks.group import RanksMissing
    from pyperf_suite.runner.measuring import measure_case
    from pyperf_suite.runner.profiles import Effort
    from pyperf_suite.runner.record import Case

    effort = Effort.from_json(request["effort"]) if request["effort"] is not None else None
    try:
        device = resolve(request["device"])
        if group is not None and device.kind == "cuda":
            device = Device("cuda", group.environment.local_rank)
        return measure_case(Case.from_json(request["case"]), effort, device, group, request["deadline_s"])
    except RanksMissing:
        raise
    except Exception as error:  # the parent must get an answer; the log keeps the traceback
        traceback.print_exc()
        return {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"}


def _lost(sentence: str) -> dict[str, Any]:
    return {"outcome": "failed", "reason": sentence, "fatal": True}


def _write(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer, allow_nan=False) + "\n")
    answers.flush()


def _take_over_stdout() -> IO[str]:
    """Keep the real standard output for answers; whatever libraries print goes to standard error, the worker's log."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    main()
    # What Python would do next is take torch apart, a second in which the run waits for its end. A profiler that has
    # put itself into this process writes its trace then.
    if "CUDA_INJECTION64_PATH" not in os.environ:
        atexit._run_exitfuncs()
        os._exit(0)
