"""What a worker does with one case: prepare, verify, warm up, sample, verify again, tell.

Runs inside the worker process, which owns the device; returns plain JSON, so that the parent never touches a tensor.
"""

from __future__ import annotations

import datetime
import math
from contextlib import closing
from typing import Any

import numpy as np

from pyperf_suite.errors import Failed, Unsupported, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.ranked import measure_ranked
from pyperf_suite.runner.timing import timed
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.backends import context_is_lost, leave_nothing_behind
from pyperf_suite.workloads.workload import Place


def measure_case(
    case: Case, effort: Effort | None, device: Device, group: Group | None = None, deadline_s: float = 120.0
) -> dict[str, Any]:
    """Measure one case and return the measured part of its record; with `effort` None only verify it.

    `group` is where this process is a rank of one; all its ranks call this together, and each step of theirs must be
    over within `deadline_s`. Every way a case can end is an outcome, never an exception: `unsupported` and `failed`
    carry their reason, `fatal` says that this process is of no further use: its CUDA context is lost, or the group out
    of step. But RanksMissing, after which the group is of no use, is raised. A GPU is left as it was found.
    """
    started_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    together = group is not None
    try:
        result = _measure(case, effort, device, group, deadline_s)
    except RanksMissing:
        raise
    except (Unsupported, UserError) as reason:
        result, together = {"outcome": "unsupported", "reason": str(reason)}, False
    except Failed as failed:
        result = {"outcome": "failed", "reason": str(failed)}
        if failed.reason:
            result["verification"] = {"passed": False, "reason": failed.reason, "message": str(failed)}
    except MemoryError:
        result = {"outcome": "failed", "reason": "Out of memory while the case was prepared or verified."}
        together = False
    except Exception as error:  # a case that breaks costs that case, not the run
        result = {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"}
        # A rank that fails by itself has left the others in a step it never came to.
        result |= {"fatal": True} if group is not None else {}
        together = False
    lost = context_is_lost(device)
    if not lost:
        leave_nothing_behind(device)
    if together and group is not None and device.kind == "cuda":
        lost = any(group.gather("look after the GPUs", lost, deadline_s))
    result |= {"fatal": True} if lost else {}
    plain: dict[str, Any] = as_plain({"started_at": started_at} | result)
    return plain


def _measure(
    case: Case, effort: Effort | None, device: Device, group: Group | None, deadline_s: float
) -> dict[str, Any]:
    workload = find_workload(case.operator)
    workload.validate(case.parameters)
    place = Place(device, case.seed, group, deadline_s)
    if workload.ranks(case.parameters):
        if group is None:
            raise Unsupported("This case takes a group of processes: start it with torchrun or pyperf-suite run.")
        return measure_ranked(workload, case, effort, place)
    with closing(workload.prepare(case.parameters, case.implementation, place)) as prepared:
        return timed(prepared, workload.work(case.parameters), case, effort, device)


def as_plain(value: Any) -> Any:
    """As JSON: it has no NaN or infinity, so null stands for them; nine digits are more than any clock here sees."""
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
