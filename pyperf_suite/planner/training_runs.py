"""The law of a training step against runs, published ones or a team's own; and its constants fitted to these anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.planner.laws.calibration import COVERED, POOLED, Calibration, CalibrationBlock, shipped_calibration
from pyperf_suite.planner.laws.explained import Explained
from pyperf_suite.planner.laws.training.framework import (
    BLOCK,
    CONSTANTS,
    NAMES,
    StepConstants,
    found_constants,
    on_gpu,
)
from pyperf_suite.planner.laws.training.published import TrainingRun, read_runs
from pyperf_suite.planner.laws.training.step import PricedStep, price_step, prices_of, step_parts, step_time
from pyperf_suite.planner.layout.plan import VERDICTS

Floats = NDArray[np.float64]

# Layouts whose times differ by less are in no order.
APART = 0.05


@dataclass(frozen=True)
class JudgedRun:
    """A run and what the law says of it.

    `predicted` is its time, None where `refused` says why; `verdict` is one of VERDICTS.
    """

    run: TrainingRun
    predicted: Explained | None
    verdict: str
    refused: str = ""

    @property
    def is_timed(self) -> bool:
        return self.run.ran and bool(self.run.seconds)

    @property
    def is_called_too_large(self) -> bool:
        return self.run.ran and self.verdict == VERDICTS[-1]


def judged(runs: Iterable[TrainingRun], calibration: Calibration | None = None) -> Iterator[JudgedRun]:
    """Each run by the law, with the constants of its framework; on the GPU of a `calibration` with those there."""
    for run in runs:
        laws = calibration if calibration is not None and calibration.gpu == run.gpu.name else run.gpu
        try:
            verdict = run.verdict
            prices = prices_of(laws, run.plan.dtype)
            yield JudgedRun(run, step_time(laws, run.model, run.plan, None, prices, run.network_bytes_per_s), verdict)
        except UserError as reason:
            yield JudgedRun(run, None, "", str(reason))


def right_orders(runs: Sequence[JudgedRun]) -> tuple[int, int]:
    """Count pairs of layouts of a model on equal GPUs that differ by more than APART: those the law has right, and all.

    Runs of one layout count as one, by the mean of their logarithms.
    """
    groups: dict[tuple[object, ...], dict[str, list[Floats]]] = defaultdict(lambda: defaultdict(list))
    for each in runs:
        run, plan = each.run, each.run.plan
        if each.predicted is not None and each.is_timed:
            similar = (run.source.split("@")[0], run.name, run.model, run.gpu.name, plan.dtype, plan.ranks, plan.seq)
            times = np.array([float(run.seconds or 0.0), float(each.predicted.seconds)])
            groups[similar][str(plan)].append(np.log(times / run.tokens))
    right = pairs = 0
    for layouts in groups.values():
        means = [np.mean(times, axis=0) for times in layouts.values()]
        for (measured, predicted), (other, other_predicted) in combinations(means, 2):
            if abs(measured - other) > np.log1p(APART):
                pairs += 1
                right += int((measured - other) * (predicted - other_predicted) > 0)
    return right, pairs


# How far constants of one's own cluster may lie from those of published runs, at least: the deviation of a logarithm.
WIDTH = 0.1
# What a logarithm needs in the place of 0, and how far inside of its range a search begins.
TINY, NEAR = 1e-6, 1e-3
# What runs of one layout scatter by; and how many runs say something of how wide errors are.
SCATTER, ENOUGH_RUNS = 0.03, 12


def nearest_constants(
    start: StepConstants, widths: Mapping[str, float], errors: Callable[[StepConstants], Floats]
) -> tuple[StepConstants, dict[str, float]]:
    """The named constants at which errors are least, the others as in `start`, and the deviation of each logarithm.

    `errors` are log(predicted / measured) over the scatter that is usual, of either sign; `widths` say how far each
    logarithm may move, inside of the range of CONSTANTS.
    """
    from scipy.optimize import least_squares

    means = np.array([float(getattr(start, name)) for name in widths])
    ranges = [(max(CONSTANTS[name].low, TINY), CONSTANTS[name].high) for name in widths]
    lowest, highest = np.log(np.array(ranges).T / means)

    def given(logs: Floats) -> StepConstants:
        return replace(start, **dict(zip(widths, (means * np.exp(logs)).tolist(), strict=True)))

    def misses(logs: Floats) -> Floats:
        off = errors(given(logs))
        # Beyond the usual scatter an error counts by its logarithm, not its square (Cauchy's distribution).
        soft = np.sign(off) * np.sqrt(np.log1p(off**2))
        return np.concatenate([soft, logs / np.array(list(widths.values()))])

    inside = np.clip(np.zeros(len(widths)), lowest + NEAR, highest - NEAR)
    found = least_squares(misses, inside, bounds=(lowest, highest), x_scale=list(widths.values()), diff_step=1e-3,
                          xtol=1e-4, ftol=1e-4)  # fmt: skip
    deviations = np.sqrt(np.diag(np.linalg.pinv(found.jac.T @ found.jac)))
    return given(found.x), dict(zip(widths, deviations.tolist(), strict=True))


@dataclass(frozen=True)
class Refitted:
    """The constants of a framework on runs of one's own: the block, None where the known ones are as good.

    `before` and `after` are errors in %, of `after` on runs whose model the fit did not see (or else, on each run that
    it did not see).
    """

    framework: str
    rows: int
    before: float
    after: float
    block: CalibrationBlock | None


def refitted(path: Path, gpu: str | None = None) -> tuple[Calibration, list[Refitted], list[str]]:
    """The constants of each framework fitted to the runs of a table; of one GPU, `gpu` where there are several.

    Also returns why rows were left out. Raises UserError where the table has no runs with a time, or several GPUs.
    """
    runs, refused = read_runs(path)
    timed = [run for run in runs if run.ran and run.seconds and gpu in (None, run.gpu.name)]
    names = sorted({run.gpu.name for run in timed})
    if len(names) != 1:
        what = f"runs on {', '.join(names)}: name one with --gpu" if names else "no run with a time"
        raise UserError(f"{path} has {what}{'' if names else f' on {gpu}' if gpu else ''}.")
    own: dict[str, list[tuple[TrainingRun, PricedStep]]] = defaultdict(list)
    for run in timed:
        try:
            priced = price_step(run.model, run.plan, prices_of(run.gpu, run.plan.dtype), run.network_bytes_per_s)
            own[str(run.plan.framework)].append((run, priced))
        except UserError as reason:
            refused.append(f"{run.name}: {reason}")
    found = [_refitted(framework, members, path) for framework, members in sorted(own.items())]
    blocks = {f"{BLOCK}.{each.framework}": each.block for each in found if each.block is not None}
    return Calibration(names[0], blocks), found, refused


def _refitted(framework: str, runs: Sequence[tuple[TrainingRun, PricedStep]], path: Path) -> Refitted:
    spec = runs[0][0].gpu
    shipped = shipped_calibration(POOLED)
    if shipped is None:
        raise UserError("There are no published constants to begin with.")
    like = shipped.block(BLOCK)
    found = found_constants(spec, framework).constants
    start = replace(StepConstants(**{name: float(like.arrays[name]) for name in NAMES}), network=found.network)
    # Held by what published runs say of each.
    widths = {
        name: max(WIDTH, float(like.arrays[f"{name}_deviation"])) for name in NAMES if float(getattr(start, name)) > 0
    }
    measured = np.log([float(run.seconds or 0.0) for run, _ in runs])

    def missed(constants: StepConstants, places: NDArray[np.intp]) -> Floats:
        """log(measured / predicted)."""
        here = on_gpu(constants, spec, framework)
        predicted = [float(sum(step_parts(runs[place][1], here).values())) for place in places.tolist()]
        return np.asarray(measured[places] - np.log(predicted))

    def fitted(places: NDArray[np.intp]) -> StepConstants:
        return nearest_constants(start, widths, lambda constants: missed(constants, places) / SCATTER)[0]

    everything = np.arange(len(runs))
    groups = np.unique([run.name for run, _ in runs], return_inverse=True)[1]
    groups = groups if groups.any() else everything
    before = _percent(missed(start, everything))
    if len(runs) == 1:
        return Refitted(framework, 1, before, before, None)
    errors = np.empty(len(runs))
    for out in np.unique(groups):
        errors[groups == out] = missed(fitted(np.flatnonzero(groups != out)), np.flatnonzero(groups == out))
    after = _percent(errors)
    if after >= before:
        return Refitted(framework, len(runs), before, after, None)
    constants = fitted(everything)
    arrays = dict(like.arrays) | {name: np.array(float(getattr(constants, name))) for name in NAMES}
    arrays["seen"] = np.array([f"{framework} {spec.name}"])
    arrays["errors_percent"] = np.full(like.arrays["errors_percent"].shape, after)
    if len(runs) >= ENOUGH_RUNS:
        arrays["ends"] = np.full(like.arrays["ends"].shape, float(np.quantile(np.abs(errors), COVERED)))
    held_out: Mapping[str, float | int | str] = {
        "mape": round(after, 2),
        "median": round(_percent(errors, np.median), 2),
        "rows": len(runs),
        "sites": len(np.unique(groups)),
        "how": "all runs of one model left out together, of a single model each run",
    }
    block = CalibrationBlock(arrays, held_out, like.fitted_range, f"runs of {path.name}, from {like.origin}"[:400])
    return Refitted(framework, len(runs), before, after, block)


def _percent(errors: Floats, of=np.mean) -> float:  # type: ignore[no-untyped-def]
    return float(of(np.abs(np.expm1(-errors)))) * 100
