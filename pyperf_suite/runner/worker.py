"""The process that owns the device: reads one case a line, measures it, answers with one line of JSON.

Started as `python -m pyperf_suite.runner.worker`; a crash or a hang in here costs one case and never the run.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from typing import IO, Any

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import Effort

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve requests `{"case", "effort", "device"}` from standard input until it closes."""
    answers = _take_over_stdout()
    _die_with_parent()
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line)), allow_nan=False) + "\n")
        answers.flush()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    effort = Effort.from_json(request["effort"]) if request["effort"] is not None else None
    try:
        return measure_case(Case.from_json(request["case"]), effort, resolve(request["device"]))
    except Exception as error:  # the parent must get an answer; the log keeps the traceback
        traceback.print_exc()
        return {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"}


def _take_over_stdout() -> IO[str]:
    """Keep the real standard output for answers; whatever libraries print goes to standard error, the worker's log."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, so that no orphan keeps a device busy."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
