"""Finds what training frameworks make of a step on published runs: the constants of laws/training/framework.py.

All runs are fitted together, within the ranges of CONSTANTS, a constant by constant prior holding what few runs say
nothing of. Errors are stated on runs whose source, model, engine or generation of GPUs
the fit did not see.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.findings.rows import grouped
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.calibration import POOLED, CalibrationBlock, shipped_calibration
from pyperf_suite.planner.laws.explained import Explained
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.planner.laws.training.framework import (
    BLOCK,
    CONSTANTS,
    FRAMEWORKS,
    KINDS,
    NAMES,
    StepConstants,
    generation_of,
    on_gpu,
)
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.laws.training.step import PricedStep, kind_of, price_step, prices_of, step_parts
from pyperf_suite.planner.training_runs import TrainingRun, nearest_constants, read_runs
from tools.fit.published import read_columns, rows_of
from tools.validate import JudgedRun, right_orders

# All tables of runs but those of cards with other power or memory than their kind, which judge the law.
RUNS, CARDS = "training_*.csv", "training_cards.csv"
MEASURED_GPU = "A100 SXM"
# Rate at which a GPU of vTrain's cluster could send between nodes: HDR for two.
CARRIED_BYTES_PER_S = 12.5e9
MULTI_NODE = "train_iteration_multi_node_a100"
SINGLE_NODE = "train_iteration_single_node_a100"
ORIGIN = (
    "runs of NVIDIA/dgxc-benchmarking, Megatron-Bridge, mosaicml/llm-foundry, pytorch/torchtitan, bigscience and "
    "papers (some recalled), training iterations published with vTrain (f8dda847)"
)
# The tables do not state it; Megatron-LM's padding of GPT-2's vocabulary.
VOCAB = 51200
# Runs of engines that are none of the frameworks, by words of their notes, and why.
ANOTHER_ENGINE = {
    "MegaScale (": "MegaScale has an attention and an overlap of its own.",
    "power-limited": "The GPUs ran under a cap of power that is not stated.",
}
# Words of sources that are one.
SAME_SOURCE = {"nemo-framework": "NVIDIA/NeMo"}
# Constants before any run is seen, and the share by which runs move them (the deviation of the logarithm).
PRIORS: Mapping[str, tuple[float, float]] = {
    "slowdown": (1.03, 0.03),
    "experts": (1.1, 0.05),
    "tensor_overlapped": (0.3, 0.3),
    "step_s": (20e-3, 0.5),
}
# Constants that dense runs leave open; fitted on runs with experts, all others held as dense runs gave them.
OF_EXPERTS = ("experts",)
# Scatter that runs of one layout have.
USUAL_ERROR = 0.03
# Equal layouts of one source and model say the same many times: together they count as WORTH runs.
WORTH = 6.0


@dataclass(frozen=True, eq=False)
class PricedRun:
    """A run with its kernels priced: seconds under any constants are then a matter of a few sums."""

    run: TrainingRun
    priced: PricedStep
    seconds: float

    @property
    def framework(self) -> str:
        return str(self.run.plan.framework)

    @property
    def kind(self) -> str:
        return KINDS[kind_of(self.run.model, self.run.plan.dtype)]

    @property
    def source(self) -> str:
        return source_of(self.run)

    @property
    def weight(self) -> tuple[object, ...]:
        return self.run.source, self.run.name, self.run.plan.dtype, self.run.gpu.name

    def predicted(self, constants: StepConstants) -> float:
        return float(sum(step_parts(self.priced, on_gpu(constants, self.run.gpu, self.framework)).values()))


def source_of(run: TrainingRun) -> str:
    """The repository of a run: its releases, pages and documentation are one source."""
    name = re.split("[@:,]", run.source)[0]
    return next((one for part, one in SAME_SOURCE.items() if part in name), name)


def fit_step(tables_folder: Path, prices: Callable[..., Prices] | None = None) -> dict[str, CalibrationBlock]:
    """The block "step" of the published runs. Raises UserError where the folder has not the tables."""
    priced, _ = price_runs(training_runs(tables_folder)[0], prices or prices_of)
    return {BLOCK: _block(priced, {how: errors_left_out(priced, how) for how in ("model", *LEFT_OUT)})}


def tables_in(folder: Path) -> list[Path]:
    """Tables of runs that laws are fitted on. Raises UserError where there are none."""
    tables = [path for path in sorted(folder.glob(RUNS)) if path.name != CARDS]
    if not tables:
        raise UserError(f"{folder} has no {RUNS}: name the folder of the published tables.")
    return tables


def training_runs(tables_folder: Path) -> tuple[list[TrainingRun], list[str]]:
    """All runs with a time that a framework of ours ran, and why others are none: published tables, vTrain's runs.

    Raises UserError where the folder has not all.
    """
    usable, refused = [], []
    for path in tables_in(tables_folder):
        runs, unread = read_runs(path)
        refused += [reason.partition(": ")[2] for reason in unread]
        for run in runs:
            other = next((why for part, why in ANOTHER_ENGINE.items() if part in run.note), "")
            why = other or ("" if run.seconds else "The row has no time.") or ("" if run.ran else "Memory ran out.")
            refused += [why] * bool(why)
            usable += [run] * (not why)
    usable += read_iterations(tables_folder, MULTI_NODE)
    return usable, refused


def read_iterations(tables_folder: Path, table: str) -> list[TrainingRun]:
    """The iterations of a table of vTrain's. Raises UserError where the folder has not got it.

    They are GPT-2's kind of model under Megatron-LM of 2022: attention not fused, activations recomputed, gradients of
    16 bits (src/predictor.py of vTrain counts 2 bytes each), as is Megatron-LM's default in fp16.
    """
    runs, gpu = [], find_gpu(MEASURED_GPU)
    for row in rows_of(read_columns(tables_folder, table)):
        hidden, seq = row["hidden_size"], row["sequence_length"]
        model = ModelDimensions(
            row["layers"], hidden, 4 * hidden, row["attention_heads"], VOCAB, bias=True, tied=True, positions=seq
        )
        plan = ParallelPlan(
            global_batch=row["global_batch"], micro_batch=row["micro_batch"], seq=seq, tensor=row["tensor_parallelism"],
            data=row["data_parallelism"], pipeline=row["pipeline_parallelism"], recompute="layers",
            fused_attention=False, dtype="fp16", framework="megatron",
        )  # fmt: skip
        seconds, network = row["iteration_time_(ms)"] * 1e-3, CARRIED_BYTES_PER_S
        runs.append(TrainingRun(f"GPT-{hidden}", "vTrain", gpu, model, plan, network, seconds, None, True))
    return runs


def price_runs(runs: Iterable[TrainingRun], prices: Callable[..., Prices]) -> tuple[list[PricedRun], list[str]]:
    """Runs with their kernels priced, and why laws refuse others."""
    requested = functools.cache(lambda gpu, dtype: Remembered(prices(gpu, dtype)))
    priced, refused = [], []
    for run in runs:
        try:
            found = price_step(run.model, run.plan, requested(run.gpu, run.plan.dtype), run.network_bytes_per_s)
        except UserError as reason:
            refused.append(f"{run.name}: {reason}")
        else:
            priced.append(PricedRun(run, found, float(run.seconds or 0.0)))
    return priced, refused


def fit_constants(runs: Sequence[PricedRun]) -> tuple[StepConstants, dict[str, float]]:
    """The constants that come nearest to the runs, by relative error, and the deviation of each one's logarithm."""
    start = StepConstants(**{name: mean for name, (mean, _) in PRIORS.items()})
    widths = {name: width for name, (_, width) in PRIORS.items()}
    dense = [run for run in runs if run.run.model.experts == 1]
    sparse = [run for run in runs if run.run.model.experts > 1]
    found, deviations = _fit(dense, start, {name: widths[name] for name in NAMES if name not in OF_EXPERTS})
    found, of_experts = _fit(sparse, found, {name: widths[name] for name in OF_EXPERTS})
    return found, {name: (deviations | of_experts)[name] for name in NAMES}


def _fit(
    runs: Sequence[PricedRun], start: StepConstants, widths: Mapping[str, float]
) -> tuple[StepConstants, dict[str, float]]:
    """The named constants, the others as in `start`; without runs they are their priors."""
    if not runs:
        return start, dict(widths)
    stacks, count = stacked(runs), Counter(run.weight for run in runs)
    weights = np.array([np.sqrt(min(1.0, WORTH / count[run.weight])) for run in runs]) / USUAL_ERROR
    measured = np.log([run.seconds for run in runs])
    return nearest_constants(
        start, widths, lambda constants: weights * (np.log(predicted(stacks, constants, len(runs))) - measured)
    )


# Priced runs that differ in numbers alone, as one grid: their places among all runs, the grid, factors of their GPUs.
Stack = tuple[NDArray[np.intp], PricedStep, StepConstants]
# Constants that `on_gpu` changes.
BY_GPU = ("attention", "experts")
# Fields of a plan that are no arrays, and fields that are.
SAME = (
    *("recompute", "fused_attention", "overlap_gradients", "sequence_parallel", "dtype", "recompute_share"),
    *("overlap_tensor", "fuses_experts", "framework", "slower_attention", "blocks", "state_dtype"),
)
NUMBERS = (
    *("global_batch", "micro_batch", "seq", "tensor", "data", "pipeline", "chunks", "context", "expert"),
    *("zero_stage", "ranks_per_node", "shard_over", "gradient_bytes", "gathers"),
)


def stacked(runs: Sequence[PricedRun]) -> list[Stack]:
    """All runs, a grid for each way to run."""
    similar = grouped(range(len(runs)), lambda place: tuple(getattr(runs[place].run.plan, name) for name in SAME))
    stacks = []
    for same, places in similar.items():
        steps = [runs[place].priced for place in places]
        numbers: dict[str, Any] = {
            name: np.array([int(getattr(step.plan, name)) for step in steps]) for name in NUMBERS
        }
        plan = ParallelPlan(**numbers, **dict(zip(SAME, same, strict=True)))
        model: Any = SimpleNamespace(layers=np.array([step.model.layers for step in steps]))
        prices = {kind: np.array([float(step.prices[kind]) for step in steps]) for kind in steps[0].prices}
        own = [on_gpu(StepConstants(1.0), runs[place].run.gpu, runs[place].framework) for place in places]
        ratios = replace(
            StepConstants(1.0), **{name: np.array([getattr(c, name) for c in own]) for name in (*BY_GPU, "nvfp4")}
        )
        stacks.append((np.array(places), PricedStep(model, plan, prices), ratios))
    return stacks


def predicted(stacks: Iterable[Stack], constants: StepConstants, count: int) -> NDArray[np.float64]:
    """Seconds of all runs under constants."""
    seconds = np.empty(count)
    for places, priced, here in stacks:
        given = {name: getattr(constants, name) * getattr(here, name) for name in BY_GPU}
        seconds[places] = sum(step_parts(priced, replace(constants, **given, nvfp4=here.nvfp4)).values())
    return seconds


EVERY_FRAMEWORK = "all"
# Groups left out to judge a run besides its model: constants that saw nothing of its source, engine, or generation.
LEFT_OUT: Mapping[str, Callable[[PricedRun], str]] = {
    "source": lambda run: run.source,
    "engine": lambda run: run.framework,
    "generation": lambda run: generation_of(run.run.gpu),
}


def errors_left_out(runs: Sequence[PricedRun], how: str) -> NDArray[np.float64]:
    """log(measured / predicted) of each run by constants that saw nothing of its model, source, engine ..."""
    group = LEFT_OUT.get(how, lambda run: run.run.name)
    errors = np.full(len(runs), np.nan)
    for out in dict.fromkeys(map(group, runs)):
        constants, _ = fit_constants([run for run in runs if group(run) != out])
        for place, run in enumerate(runs):
            if group(run) == out:
                errors[place] = np.log(run.seconds / run.predicted(constants))
    return errors


# Weights of a run of another framework and of another kind in the width of errors; and the least that an end is.
OTHER_FRAMEWORK, OTHER_KIND, LEAST_END = 0.5, 0.02, 0.05
NINE_OF_TEN = 0.9


def ends_of(
    runs: Sequence[PricedRun], errors: NDArray[np.float64], like: Any, without: Callable[[Any], str] | None = None
) -> tuple[float, float]:
    """The logarithm that nine of ten errors of sources left out stay within, and their mean in %, by how near each is.

    Each source counts the same, runs of another framework or kind less. `without` leaves out those that have it in
    common.
    """
    places = [place for place, run in enumerate(runs) if without is None or without(run) != without(like)]
    count = Counter(runs[place].source for place in places)
    weights = np.array(
        [
            (1 if runs[place].framework == like.framework else OTHER_FRAMEWORK)
            * (1 if runs[place].kind == like.kind else OTHER_KIND)
            / count[runs[place].source]
            for place in places
        ]
    )
    off = np.abs(errors[places])
    order = np.argsort(off)
    reached = np.cumsum(weights[order]) / weights.sum()
    end = max(LEAST_END, float(off[order][np.searchsorted(reached, NINE_OF_TEN)]))
    return end, round(100 * float(np.average(np.abs(np.expm1(-errors[places])), weights=weights)), 2)


def covered(runs: Sequence[PricedRun], errors: NDArray[np.float64], how: str) -> NDArray[np.bool_]:
    """True for runs within the interval of errors that saw nothing of their source, engine or generation either."""
    group = LEFT_OUT.get(how, LEFT_OUT["source"])
    alike = {(run.framework, run.kind, group(run)): run for run in runs}
    ends = {key: ends_of(runs, errors, run, group)[0] for key, run in alike.items()}
    return np.abs(errors) <= [ends[run.framework, run.kind, group(run)] for run in runs]


def judged_steps(tables_folder: Path) -> Iterator[str]:
    """Errors of the law of a step by framework and precision, for each way to leave runs out, as a table in Markdown.

    The intervals are those of errors that had seen nothing of the run either. Raises UserError where the folder has
    not the tables.
    """
    runs, refused = training_runs(tables_folder)
    priced, unpriced = price_runs(runs, prices_of)
    yield "| left out | framework | runs | rows | MAPE, % | median, % | bias, % | in the 90 % interval, % |"
    yield "|---" * 8 + "|"
    orders, by_source = [], []
    for how in ("model", *LEFT_OUT):
        errors = errors_left_out(priced, how)
        inside = covered(priced, errors, how)
        off = 100 * np.expm1(-errors)
        groups = {(run.framework, run.kind) for run in priced}
        for framework, kind in [*sorted(groups), *((EVERY_FRAMEWORK, kind) for kind in KINDS)]:
            own = np.array([framework in (run.framework, EVERY_FRAMEWORK) and run.kind == kind for run in priced])
            if not own.any():
                continue
            yield f"| {how} | {framework} | {kind} | {_figures(off[own], inside[own])} |"
        if how == "source":
            by_source = [*_by_source(priced, off, inside)]
        as_predicted = [
            JudgedRun(run.run, Explained(run.seconds * np.exp(-error)), "")
            for run, error in zip(priced, errors, strict=True)
        ]
        right, pairs = right_orders(as_predicted)
        orders.append(f"{how} left out: {right} of {pairs} pairs of layouts that differ by more than 5 % in order")
    yield from orders
    yield from by_source
    for reason, rows in Counter(refused + unpriced).most_common():
        yield f"{rows} rows are not judged: {reason}"


# Sources with as many rows are judged on their own, all others together.
ROWS_OF_A_SOURCE = 20


def _by_source(runs: Sequence[PricedRun], off: NDArray[np.float64], inside: NDArray[np.bool_]) -> Iterator[str]:
    """Errors in % and coverage of each source, left out."""
    yield "| source | rows | MAPE, % | median, % | bias, % | in the 90 % interval, % |"
    yield "|---" * 6 + "|"
    count = Counter(run.source for run in runs)
    names = np.array([run.source if count[run.source] >= ROWS_OF_A_SOURCE else "the rest" for run in runs])
    for name in sorted(set(names), key=lambda name: (name == "the rest", name)):
        yield f"| {name} | {_figures(off[names == name], inside[names == name])} |"


def _figures(off: NDArray[np.float64], inside: NDArray[np.bool_]) -> str:
    error = np.abs(off)
    return f"{off.size} | {error.mean():.1f} | {np.median(error):.1f} | {off.mean():+.1f} | {100 * inside.mean():.0f}"


class Remembered:
    """Prices that are requested once for each shape: a fit asks for the same ones over and over."""

    def __init__(self, prices: Any) -> None:
        self._prices = prices
        self._answers: dict[tuple[str, Any], Any] = {}
        self.wide: Any = Remembered(prices.wide) if prices.wide is not prices else self

    def __getattr__(self, law: str) -> Any:
        if law.startswith("_"):
            raise AttributeError(law)

        def ask(*arguments: Any) -> Any:
            key = law, tuple(float(each) if np.ndim(each) == 0 and not isinstance(each, str) and each is not None
                             else each for each in arguments)  # fmt: skip
            if key not in self._answers:
                found = getattr(self._prices, law)(*arguments)
                self._answers[key] = replace(found, seconds=float(found.seconds))
            return self._answers[key]

        return ask


def stated_constants() -> Iterator[str]:
    """Meaning, range and value of each constant, as a table in Markdown: `docs/layout.md` has it."""
    pooled = shipped_calibration(POOLED)
    arrays = {} if pooled is None else pooled.block(BLOCK).arrays
    yield "| constant | meaning | range | value |"
    yield "|---|---|---|---|"
    for name, each in CONSTANTS.items():
        factor, unit = (1e3, " ms") if each.unit else (1.0, "")
        value = f"{factor * float(arrays[name]):.3g}" if name in arrays else ""
        yield f"| {name} | {each.meaning} | {factor * each.low:g} to {factor * each.high:g}{unit} | {value} |"


def _percent(errors: NDArray[np.float64]) -> float:
    """The mean of |predicted − measured| / measured, of log(measured / predicted)."""
    return round(float(np.mean(np.abs(np.expm1(-errors)))) * 100, 2) if errors.size else float("nan")


def _block(runs: Sequence[PricedRun], errors: Mapping[str, NDArray[np.float64]]) -> CalibrationBlock:
    """Constants and their deviations, and how far off runs left out were."""
    constants, deviations = fit_constants(runs)
    more: dict[str, NDArray[np.generic]] = {f"{name}_deviation": np.array(each) for name, each in deviations.items()}
    more["seen"] = np.array(sorted({f"{run.framework} {run.run.gpu.name}" for run in runs}))
    alike = [[SimpleNamespace(framework=framework, kind=kind) for kind in KINDS] for framework in FRAMEWORKS]
    ends = np.array([[ends_of(runs, errors["source"], like) for like in row] for row in alike])
    # Ends for an engine or a generation of GPUs without any run.
    unseen = np.array([[max(ends_of(runs, errors[how], like)[0] for how in LEFT_OUT) for like in row] for row in alike])
    more |= {"ends": ends[..., 0], "errors_percent": ends[..., 1], "unseen_ends": unseen}
    off = np.abs(np.expm1(-errors["source"]))
    held_out: dict[str, float | int | str] = {
        "mape": _percent(errors["source"]),
        "median": round(float(np.median(off)) * 100, 2),
        "bias": round(float(np.mean(np.expm1(-errors["source"]))) * 100, 2),
        **{f"mape_by_{how}": _percent(each) for how, each in errors.items() if how != "source"},
        "coverage": round(100 * float(np.mean(covered(runs, errors["source"], "source"))), 1),
        "rows": len(runs),
        "sites": len({run.run.name for run in runs}),
        "how": "all runs of one source left out together; by_: of one model, engine or generation of GPUs",
    }
    found = {name: np.array(getattr(constants, name), dtype=np.float64) for name in NAMES}
    return CalibrationBlock({**found, **more}, held_out, {}, ORIGIN)
