"""The answer of `size` for other programs: seconds, bytes, and ratios over the present model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pyperf_suite.advise.sizing.report import Causes, Sizing
from pyperf_suite.advise.sizing.search import Candidate


def sizing_as_json(sizing: Sizing, pictures: Sequence[str] = ()) -> dict[str, Any]:
    """Plain data of everything that was worked out; `pictures` are the paths of what was drawn."""
    found = sizing.search
    return {
        "gpu": sizing.gpu.name,
        "memory_limit_bytes": found.memory_limit_bytes,
        "held_out_error_percent": sizing.errors,
        "origins": sizing.origins,
        "present": _candidate_as_json(found.present, ()) | {"utilization": sizing.utilization},
        "work": [asdict(part) | {"seconds": part.seconds, "flop": part.flop} for part in sizing.spent],
        "checks": [
            {
                "rule": check.rule,
                "found": check.found,
                "kept": check.kept,
                "compared_with": None if check.other is None else _candidate_as_json(check.other, ()),
            }
            for check in sizing.checks
        ],
        "alone": {
            name: _candidate_as_json(candidate, sizing.causes_alone[name]) for name, candidate in found.alone.items()
        },
        "pareto": [
            _candidate_as_json(candidate, causes) for candidate, causes in zip(found.pareto, sizing.causes, strict=True)
        ],
        "priced": found.priced,
        "within_bounds": found.within,
        "faster": found.faster,
        "notes": sizing.notes,
        "pictures": list(pictures),
    }


def _candidate_as_json(candidate: Candidate, causes: Causes) -> dict[str, Any]:
    setting = asdict(candidate.setting)
    return {
        "setting": setting,
        "changes": {name: [before, after] for name, before, after in candidate.changes},
        "micro_batch_s": candidate.seconds,
        "time_ratio": candidate.time_ratio,
        "speed": candidate.speed,
        "speed_low": candidate.low,
        "speed_high": candidate.high,
        "faster": candidate.is_faster,
        "slower": candidate.is_slower,
        "parameters": candidate.parameters,
        "parameter_change": candidate.parameter_change,
        "memory_bytes": candidate.memory_bytes,
        "extrapolated": candidate.extrapolated,
        "saves": dict(causes),
    }
