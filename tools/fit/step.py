"""Finds what training frameworks make of a step on published runs: the constants of laws/training/framework.py.

Each framework's runs on one generation of GPUs are fitted apart, a constant by constant prior holding what few runs say
nothing of. Errors are stated on runs whose model, and on runs whose source, the fit did not see.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.calibration import CalibrationBlock
from pyperf_suite.planner.laws.explained import KernelPrices
from pyperf_suite.planner.laws.training.framework import (
    BLOCK,
    CARRIED_BYTES_PER_S,
    GENERATIONS,
    KINDS,
    LOW_PRECISION,
    NAMES,
    StepConstants,
    generation_of,
    on_gpu,
    pack_constants,
)
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.laws.training.published import TrainingRun, read_runs
from pyperf_suite.planner.laws.training.step import (
    MEASURED_GPU,
    PricedStep,
    price_step,
    prices_of,
    step_parts,
)
from pyperf_suite.planner.training_runs import nearest_constants
from tools.fit.published import read_columns, rows_of

RUNS = "training_published.csv"
MULTI_NODE = "train_iteration_multi_node_a100"
SINGLE_NODE = "train_iteration_single_node_a100"
ORIGIN = (
    "runs of NVIDIA/dgxc-benchmarking, Megatron-Bridge, mosaicml/llm-foundry, pytorch/torchtitan, bigscience and "
    "papers (some recalled), training iterations published with vTrain (f8dda847)"
)
# The tables do not state it; Megatron-LM's padding of GPT-2's vocabulary.
VOCAB = 51200
# pytorch/torchtitan at 31a17bf, benchmarks/llama3_h100_202412_torchtitan.md (BSD-3-Clause), tables 1 and 3: Llama 3.1
# 8B on H100 with 500 W and 2.4 TB/s, sequences of 8192 by two, FSDP2 with selective recomputation. Framework
# (torchtitan compiles), dtype, GPUs and tokens a second and GPU.
LLAMA_8B = ModelDimensions(32, 4096, 14336, 32, 128256, kv_heads=8, gated=True)
TORCHTITAN_H100 = (
    *(("fsdp2", "bf16", 8, 5762), ("torchtitan", "bf16", 8, 6667), ("torchtitan", "fp8", 8, 8532)),
    *(("fsdp2", "bf16", 128, 5605), ("torchtitan", "bf16", 128, 6514), ("torchtitan", "fp8", 128, 8380)),
)
# Runs of engines that are none of the frameworks: their own attention and overlap.
ANOTHER_ENGINE = ("MegaScale (", "power-limited")
# What a constant is before any run is seen, and by what share runs move it (the deviation of its logarithm).
PRIORS: Mapping[str, tuple[float, float]] = {
    "slowdown": (1.01, 0.03),
    "host_s_per_layer": (0.8e-3, 0.3),
    "attention": (1.0, 0.1),
    "scores": (1.0, 0.4),
    "memory": (1.1, 0.15),
    "experts": (1.3, 0.2),
    "expert_host_s": (0.15e-3, 0.4),
    "narrow_experts": (1.0, 0.02),
    "fused_experts": (0.7, 0.3),
    "permute": (1.0, 0.4),
    "fp8": (0.82, 0.06),
    "mxfp8": (0.85, 0.1),
    "nvfp4": (1.3, 0.2),
    "cast": (0.9, 0.3),
    "tensor": (1.0, 0.4),
    "tensor_overlapped": (0.4, 0.4),
    "exchange": (1.3, 0.5),
    "gather": (2.5, 0.5),
    "all_to_all": (0.3, 0.4),
    "send": (0.1, 1.0),
    "accumulate": (1.0, 0.3),
    "step_s": (0.2, 0.3),
    "micro_batch_s": (1e-3, 0.1),
    "nodes": (0.003, 0.7),
}
# ZeRO copies gradients to and from buffers in each micro-batch.
SHARDED: Mapping[str, tuple[float, float]] = {"accumulate": (2.0, 0.5), "step_s": (0.05, 0.5)}
# Where a framework differs so much that the prior above does not hold.
OWN_PRIORS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "fsdp1": {"attention": (2.0, 0.5), **SHARDED},
    "torchtitan": {"attention": (1.5, 0.2), **SHARDED},
    "fsdp2": {"attention": (1.5, 0.2), "memory": (2.5, 0.5), **SHARDED},
    "deepspeed": {
        "tensor": (2.0, 0.7), "gather": (8.0, 1.0), "micro_batch_s": (10e-3, 1.0), "slowdown": (1.03, 0.04), **SHARDED
    },
}  # fmt: skip
# Before Blackwell no grouped product of 8 bits was much faster; there it is, and few runs are of 16 bits.
OF_BLACKWELL: Mapping[str, tuple[float, float]] = {"narrow_experts": (0.75, 0.1)}
# What dense runs say nothing of; found on runs with experts, all else held as dense runs gave it.
OF_EXPERTS = ("experts", "narrow_experts", "fused_experts", "expert_host_s", "permute", "all_to_all")
# Scatter that runs of one layout have.
USUAL_ERROR = 0.03
# Equal layouts of one source and model say the same many times: together they count as so many runs.
WORTH = 6.0


@dataclass(frozen=True)
class Iteration:
    """One published iteration: what was trained, how, and the seconds that it took."""

    model: ModelDimensions
    plan: ParallelPlan
    seconds: float


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
    def generation(self) -> str:
        return generation_of(self.run.gpu)

    @property
    def kind(self) -> str:
        if self.run.model.experts > 1:
            return KINDS[2]
        return KINDS[1] if self.run.plan.dtype in LOW_PRECISION else KINDS[0]

    @property
    def weight(self) -> tuple[object, ...]:
        return self.run.source, self.run.name, self.run.plan.dtype, self.run.gpu.name

    def predicted(self, constants: StepConstants) -> float:
        return float(sum(step_parts(self.priced, on_gpu(constants, self.run.gpu)).values()))


@dataclass
class Fitted:
    """The constants of a framework on one generation, their deviations, and errors of runs left out."""

    constants: StepConstants
    deviations: Mapping[str, float]
    runs: Sequence[PricedRun] = ()
    by_model: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    by_source: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


def fit_step(tables_folder: Path, prices: Callable[..., KernelPrices] | None = None) -> dict[str, CalibrationBlock]:
    """A block "step.FRAMEWORK" for each framework of the published runs, by its name.

    Raises UserError where the folder has not the tables.
    """
    priced = price_runs(training_runs(tables_folder), prices or prices_of)
    found: dict[str, dict[str, Fitted]] = {}
    for framework in dict.fromkeys(run.framework for run in priced):
        own = [run for run in priced if run.framework == framework]
        found[framework] = {generation: fit_generation(own, framework, generation) for generation in GENERATIONS}
    return {f"{BLOCK}.{framework}": _block(each) for framework, each in found.items()}


def training_runs(tables_folder: Path) -> list[TrainingRun]:
    """All runs with a time that a framework of ours ran: the published table, and vTrain's over many nodes.

    Raises UserError where the folder has not both.
    """
    runs, _ = read_runs(tables_folder / RUNS)
    usable = [run for run in runs if run.ran and run.seconds and not any(each in run.note for each in ANOTHER_ENGINE)]
    a100 = find_gpu(MEASURED_GPU)
    for each in read_iterations(tables_folder, MULTI_NODE):
        plan = replace(each.plan, framework="megatron")
        name = f"GPT-{each.model.hidden}"
        network = CARRIED_BYTES_PER_S[MEASURED_GPU]
        usable.append(TrainingRun(name, "vTrain", a100, each.model, plan, network, each.seconds, None, True))
    for framework, dtype, gpus, tokens_per_s in TORCHTITAN_H100:
        plan = ParallelPlan(
            global_batch=2 * gpus, micro_batch=2, seq=8192, data=gpus, recompute="layers", recompute_share=0.5,
            overlap_gradients=True, gradient_bytes=4, zero_stage=3, dtype=dtype, framework=framework,
        )  # fmt: skip
        seconds = plan.global_batch * plan.seq / (tokens_per_s * gpus)
        h100 = find_gpu("H100")
        usable.append(TrainingRun("Llama3.1-8B", "TorchTitan", h100, LLAMA_8B, plan, 50e9, seconds, None, True))
    return usable


def read_iterations(tables_folder: Path, table: str) -> list[Iteration]:
    """The iterations of a table of vTrain's. Raises UserError where the folder has not got it.

    They are GPT-2's kind of model under Megatron-LM of 2022: attention not fused, activations recomputed.
    """
    return [
        Iteration(
            ModelDimensions(
                layers=row["layers"],
                hidden=row["hidden_size"],
                ffn=4 * row["hidden_size"],
                heads=row["attention_heads"],
                vocab=VOCAB,
                bias=True,
                tied=True,
                positions=row["sequence_length"],
            ),
            ParallelPlan(
                global_batch=row["global_batch"],
                micro_batch=row["micro_batch"],
                seq=row["sequence_length"],
                tensor=row["tensor_parallelism"],
                data=row["data_parallelism"],
                pipeline=row["pipeline_parallelism"],
                recompute="layers",
                fused_attention=False,
            ),
            row["iteration_time_(ms)"] * 1e-3,
        )
        for row in rows_of(read_columns(tables_folder, table))
    ]


def price_runs(runs: Iterable[TrainingRun], prices: Callable[..., KernelPrices]) -> list[PricedRun]:
    """Runs with their kernels priced; those that the laws refuse are left out."""
    requested = functools.cache(lambda gpu, dtype: Remembered(prices(gpu, dtype)))
    priced = []
    for run in runs:
        try:
            found = price_step(run.model, run.plan, requested(run.gpu, run.plan.dtype), run.network_bytes_per_s)
        except UserError:
            continue
        priced.append(PricedRun(run, found, float(run.seconds or 0.0)))
    return priced


def fit_generation(runs: Sequence[PricedRun], framework: str, generation: str) -> Fitted:
    """The constants of a framework on one generation; without runs on it those of all its runs."""
    own = [run for run in runs if run.generation == generation]
    if not own:
        return Fitted(*fit_constants(runs, framework))
    fitted = Fitted(*fit_constants(own, framework), own)
    fitted.by_model = left_out(own, framework, lambda run: run.run.name)
    # Releases of one repository are one source.
    fitted.by_source = left_out(own, framework, lambda run: re.split("[@:,]", run.run.source)[0])
    return fitted


def fit_constants(runs: Sequence[PricedRun], framework: str) -> tuple[StepConstants, dict[str, float]]:
    """The constants that come nearest to the runs, by relative error, and the deviation of each one's logarithm."""
    priors = {name: OWN_PRIORS.get(framework, {}).get(name, PRIORS[name]) for name in NAMES}
    if runs and all(run.generation == "Blackwell" for run in runs):
        priors |= OF_BLACKWELL
    start = StepConstants(**{name: mean for name, (mean, _) in priors.items()})
    widths = {name: width for name, (_, width) in priors.items()}
    dense = [run for run in runs if run.kind != KINDS[2]]
    sparse = [run for run in runs if run.kind == KINDS[2]]
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


@dataclass(frozen=True)
class Stack:
    """Priced runs that differ in numbers alone, as one grid: `places` are theirs among all runs."""

    places: NDArray[np.intp]
    priced: PricedStep
    nvfp4: NDArray[np.float64]


# What a plan has that is no array, and what is one.
SAME = (
    *("recompute", "fused_attention", "overlap_gradients", "sequence_parallel", "dtype", "recompute_share"),
    *("overlap_tensor", "uneven_stages", "expert_kernels"),
)
NUMBERS = (
    *("global_batch", "micro_batch", "seq", "tensor", "data", "pipeline", "chunks", "context", "expert"),
    *("zero_stage", "ranks_per_node"),
)


def stacked(runs: Sequence[PricedRun]) -> list[Stack]:
    """All runs, a grid for each way to run."""
    similar: dict[tuple[Any, ...], list[int]] = {}
    for place, run in enumerate(runs):
        similar.setdefault(tuple(getattr(run.run.plan, name) for name in SAME), []).append(place)
    stacks = []
    for same, places in similar.items():
        steps = [runs[place].priced for place in places]
        numbers: dict[str, Any] = {
            name: np.array([int(getattr(step.plan, name)) for step in steps]) for name in NUMBERS
        }
        plan = ParallelPlan(**numbers, **dict(zip(SAME, same, strict=True)))
        model: Any = SimpleNamespace(layers=np.array([step.model.layers for step in steps]))
        groups = (_column([getattr(step, name) for step in steps]) for name in ("layer", "ends", "exchange"))
        seconds = (
            np.array([float(getattr(step, name)) for step in steps])
            for name in ("sends", "whole_sends", "optimizer", "gradient_pass")
        )
        ratios = np.array([on_gpu(StepConstants(1.0, 0.0), runs[place].run.gpu).nvfp4 for place in places])
        stacks.append(Stack(np.array(places), PricedStep(model, plan, *groups, *seconds), ratios))
    return stacks


def _column(prices: Sequence[Any]) -> Any:
    """The same prices of several runs, each field an array."""
    names = [each.name for each in fields(prices[0])]
    return type(prices[0])(**{name: np.array([float(getattr(each, name)) for each in prices]) for name in names})


def predicted(stacks: Iterable[Stack], constants: StepConstants, count: int) -> NDArray[np.float64]:
    """Seconds of all runs under constants."""
    seconds = np.empty(count)
    for stack in stacks:
        own = replace(constants, nvfp4=constants.nvfp4 * stack.nvfp4)
        seconds[stack.places] = sum(step_parts(stack.priced, own).values())
    return seconds


def left_out(runs: Sequence[PricedRun], framework: str, group: Callable[[PricedRun], str]) -> NDArray[np.float64]:
    """log(measured / predicted) of each run, by constants that saw none of its group; NaN where that leaves no run."""
    groups = np.array([group(run) for run in runs])
    errors = np.full(len(runs), np.nan)
    for out in np.unique(groups):
        places = np.flatnonzero(groups == out)
        seen = [run for run, name in zip(runs, groups, strict=True) if name != out]
        if seen:
            constants, _ = fit_constants(seen, framework)
            errors[places] = [np.log(runs[place].seconds / runs[place].predicted(constants)) for place in places]
    return errors


class Remembered:
    """Prices that are requested once for each shape: a fit asks for the same ones over and over."""

    def __init__(self, prices: Any) -> None:
        self._prices = prices
        self._known: dict[tuple[str, Any], Any] = {}
        self.wide: Any = Remembered(prices.wide) if getattr(prices, "wide", prices) is not prices else self

    def __getattr__(self, law: str) -> Any:
        if law.startswith("_"):
            raise AttributeError(law)

        def ask(*arguments: Any) -> Any:
            key = law, tuple(float(each) if np.ndim(each) == 0 and not isinstance(each, str) and each is not None
                             else each for each in arguments)  # fmt: skip
            if key not in self._known:
                found = getattr(self._prices, law)(*arguments)
                self._known[key] = replace(found, seconds=float(found.seconds))
            return self._known[key]

        return ask


def _percent(errors: NDArray[np.float64]) -> float:
    """The mean of |predicted − measured| / measured, of log(measured / predicted)."""
    known = errors[np.isfinite(errors)]
    return round(float(np.mean(np.abs(np.expm1(-known)))) * 100, 2) if known.size else float("nan")


def _block(by_generation: Mapping[str, Fitted]) -> CalibrationBlock:
    """The block of a framework: constants and their deviations by generation, and how far off runs left out were."""
    every = [fitted for fitted in by_generation.values() if fitted.runs]
    more: dict[str, NDArray[np.generic]] = {
        f"{name}_deviation": np.array([by_generation[each].deviations[name] for each in GENERATIONS]) for name in NAMES
    }
    more["gpus"] = np.array(sorted({run.run.gpu.name for fitted in every for run in fitted.runs}))
    by_model = np.concatenate([fitted.by_model for fitted in every])
    held_out: dict[str, float | int | str] = {
        **({"mape": _percent(by_model)} if np.isfinite(by_model).any() else {}),
        "mape_by_source": _percent(np.concatenate([fitted.by_source for fitted in every])),
        "rows": sum(len(fitted.runs) for fitted in every),
        "sites": len({run.run.name for fitted in every for run in fitted.runs}),
        "how": "all runs of one model left out together; by_source: of one source",
    }
    if "mape" not in held_out:
        held_out |= {"how": "runs of one model: none could be left out, and the interval is torchtitan's"}
        del held_out["mape_by_source"]
    ends: dict[str, list[list[float]]] = {"low": [], "high": [], "errors_percent": []}
    for generation, fitted in by_generation.items():
        of_kinds = [_errors(every, fitted, kind) for kind in KINDS]
        ends["low"].append([low for low, _, _ in of_kinds])
        ends["high"].append([high for _, high, _ in of_kinds])
        ends["errors_percent"].append([mape for _, _, mape in of_kinds])
        for kind, (low, high, mape) in zip(KINDS, of_kinds, strict=True):
            known = _of_kind(fitted, kind, fitted.by_model)
            if known.size:
                suffix = f"{generation} {kind}".lower().replace(" ", "_")
                covered = 100 * float(np.mean((known >= low) & (known <= high)))
                held_out[f"mape_{suffix}"], held_out[f"rows_{suffix}"] = mape, known.size
                held_out[f"median_{suffix}"] = round(100 * float(np.median(np.abs(np.expm1(-known)))), 2)
                held_out[f"bias_{suffix}"] = round(100 * float(np.mean(np.expm1(-known))), 2)
                held_out[f"coverage_{suffix}"] = round(covered, 1)
    constants = {generation: fitted.constants for generation, fitted in by_generation.items()}
    return pack_constants(constants, held_out, ORIGIN, more | {name: np.array(rows) for name, rows in ends.items()})


# Fewer errors than these say little of how wide they scatter: then those of all generations and kinds, and a margin.
FEWEST_ERRORS, MARGIN = 12, 1.3
# Runs of one model leave nothing out: then what torchtitan's lie within at most.
WITHOUT_ERRORS = 0.2


def _of_kind(fitted: Fitted, kind: str, errors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array(
        [error for run, error in zip(fitted.runs, errors, strict=True) if run.kind == kind and np.isfinite(error)]
    )


def _errors(every: Sequence[Fitted], own: Fitted, kind: str) -> tuple[float, float, float]:
    """The 5th and 95th percentile of log(measured / predicted) of runs whose model was left out, and their mean, in %.

    Runs whose source was left out count too: further runs may be of either kind.
    """
    errors = np.concatenate([_of_kind(own, kind, each) for each in (own.by_model, own.by_source)]) if own.runs else []
    margin = 1.0
    if len(errors) < FEWEST_ERRORS:
        similar = [_of_kind(each, kind, each.by_model) for each in every]
        errors = np.concatenate(similar)
        if len(errors) < FEWEST_ERRORS:
            errors = np.concatenate([each.by_model[np.isfinite(each.by_model)] for each in every])
        if not len(errors):
            return -WITHOUT_ERRORS, WITHOUT_ERRORS, float("nan")
        margin = MARGIN
    low, high = margin * np.quantile(errors, [0.05, 0.95])
    known = _of_kind(own, kind, own.by_model) if own.runs else np.empty(0)
    return float(low), float(high), _percent(known if known.size else np.asarray(errors))
