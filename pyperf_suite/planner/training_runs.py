"""Training runs as rows of a table, published or a team's own, and the constants of a step fitted to them anew.

A blank of a row is unknown: the law takes what is usual and the run says what was assumed.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.transformer import ModelDimensions, Recompute
from pyperf_suite.planner.laws.calibration import COVERED, POOLED, Calibration, CalibrationBlock, shipped_calibration
from pyperf_suite.planner.laws.training.framework import (
    BLOCK,
    CONSTANTS,
    NAMES,
    ON_HOPPER,
    SHARDED_FROM_STAGE,
    Framework,
    StepConstants,
    on_gpu,
)
from pyperf_suite.planner.laws.training.memory import RESERVE, Reserve, Verdict, need_of, verdict_of
from pyperf_suite.planner.laws.training.plan import HALF, ParallelPlan
from pyperf_suite.planner.laws.training.step import PricedStep, price_step, prices_of, step_parts
from pyperf_suite.planner.laws.transfers import card_of

# Columns without which a run cannot be predicted.
NEEDED = ("layers", "hidden", "heads", "vocab", "seq", "gpu", "gpus", "global_batch")
ENGINES: Mapping[str, Framework] = {
    "nemo": "megatron",
    "megatron": "megatron",
    "fsdp": "fsdp2",
    "torchtitan": "torchtitan",
    "deepspeed": "deepspeed",
    "ddp": "ddp",
}
# Figures of a card that its kind has not: watts it may draw, and its memory's rate.
CARD = ("power_w", "memory_gb_s")
# Names of GPUs in tables that the catalogue has under another.
GPUS = {"A100 40GB": "A100 SXM 40GB"}
# Words of a table for what is recomputed, what the law does for it, and the share of each layer's forward pass.
RECOMPUTED: Mapping[str, tuple[Recompute, float]] = {
    "nothing": ("nothing", 1.0),
    "attention": ("attention", 1.0),
    "layers": ("layers", 1.0),
    # torchtitan: every other layer, or every other product of a layer.
    "selective layer": ("layers", 0.5),
    "selective op": ("layers", 0.5),
}
# DeepSeek's latent attention: ranks and widths of its public configurations.
LATENT = {"query_rank": 1536, "latent_rank": 512, "rope_head_dim": 64, "value_head_dim": 128, "head_dim": 192}
# DeepSeek-V3's layers without experts, and the one that predicts a second token, which takes a layer's place.
DENSE_LAYERS, NEXT_TOKEN_LAYERS = 3, 1
# Words of a run's note, as fields of its plan.
# Megatron-Bridge's recipes send gradients in 16 bits and do not cut experts over TP (expert_tensor_parallel_size of its
# WorkloadBaseConfig). InternLM's runs had the first FlashAttention (1.0.5), as had its own training scripts: 1.7 to 3
# times as slow as the second (Dao 2023, FlashAttention-2, abstract), the middle.
BRIDGE, PURE_STATES, FIRST_FLASH_OVER_SECOND = "NeMo container", "pure bf16 states", 2.35
MEANING_OF_NOTES: Mapping[str, Mapping[str, Any]] = {
    "no flash": {"fused_attention": False},
    "as table 1": {"fused_attention": False},
    "InternEvo": {"slower_attention": FIRST_FLASH_OVER_SECOND, "gradient_bytes": HALF},
    "FlashAttention 1": {"slower_attention": FIRST_FLASH_OVER_SECOND},
    "tuned overlap": {"overlap_tensor": True},
    "PURE": {"gradient_bytes": HALF},
    PURE_STATES: {"gradient_bytes": HALF},
    BRIDGE: {"gradient_bytes": HALF, "whole_experts": True},
    # DeepSpeed of 2021 gathers each of a layer's 12 tensors on its own.
    "DeepSpeed ZeRO-3": {"gathers": 12},
}
# The framework of an engine where a note has these words: torchtitan compiles only where that is said, and Automodel
# has the fused kernels of Transformer Engine instead.
ENGINES_AS_SAID: Mapping[tuple[str, str], Framework] = {
    ("fsdp", "FSDP1"): "fsdp1",
    ("torchtitan", "compile not stated"): "fsdp2",
    ("fsdp", "Transformer Engine"): "torchtitan",
}
# NeMo of March 2024 has FlashAttention-2 on Hopper too.
OLD_NEMO = "NeMo 24.03"
# BigScience's runs on that many GPUs hung unless launches blocked (train/tr11-176B-ml/chronicles-prequel.md).
JEAN_ZAY, BLOCKED_FROM = "Jean Zay", 320
# From that release on Bridge fuses experts and overlaps their exchange in mxfp8 (cutedsl_fused_grouped_mlp).
FUSED = 26.06
ASSUMED_RECOMPUTE = "what is recomputed is not stated"
# Under frameworks in which torch keeps the states, a script chooses their dtype.
ASSUMED_STATES, OF_SCRIPTS = "the dtype of states is not stated", ("fsdp", "ddp")


@dataclass(frozen=True)
class TrainingRun:
    """One run: `seconds` an iteration and `memory_gib` of the fullest GPU, None where not measured.

    `assumed` says in words what the row leaves open. `ran` is False where memory ran out; `note` is the row's own.
    """

    name: str
    source: str
    gpu: GpuSpec
    model: ModelDimensions
    plan: ParallelPlan
    network_bytes_per_s: float | None
    seconds: float | None
    memory_gib: float | None
    ran: bool
    assumed: tuple[str, ...] = ()
    note: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of an iteration."""
        return self.plan.global_batch * self.plan.seq

    def reserved(self, reserve: Reserve = RESERVE) -> tuple[float, float, float]:
        """Bytes on the fullest GPU as predicted, and the least and the most that nine of ten such runs reserve.

        Where the row leaves open what is recomputed, or the states' dtype, the least is of the way that takes least.
        """
        predicted, way = float(need_of(self.model, self.plan, reserve).total), self.plan
        if ASSUMED_RECOMPUTE in self.assumed:
            way = replace(way, recompute="layers", recompute_share=1.0)
        if ASSUMED_STATES in self.assumed:
            way = replace(way, state_dtype="bf16")
        least = float(need_of(self.model, way, reserve).total)
        return predicted, reserve.low * min(least, predicted), reserve.high * predicted

    @property
    def verdict(self) -> Verdict:
        """Verdict on whether it fits its GPU."""
        return verdict_of(*self.reserved()[1:], self.gpu.memory_bytes)


def read_runs(path: Path) -> tuple[list[TrainingRun], list[str]]:
    """The runs of a table with the columns of `training_published.csv`, and why other rows cannot be predicted.

    Raises UserError for a file that is no such table.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no table of training runs ({error}).") from None
    if not rows or (missing := [name for name in NEEDED if name not in rows[0]]):
        what = f"it has no column {missing[0]}" if rows else "it has no rows"
        raise UserError(f"{path} is no table of training runs: {what}.")
    runs, refused = [], []
    for number, row in enumerate(rows, start=2):
        try:
            runs.append(run_of(row))
        except UserError as reason:
            refused.append(f"line {number}: {reason}")
    return runs, refused


def run_of(row: Mapping[str, str]) -> TrainingRun:
    """The run of one row. Raises UserError for what cannot be predicted, in a sentence that names it."""
    cells = {name: (value or "").strip() for name, value in row.items() if name}
    if missing := [name for name in NEEDED if not cells.get(name)]:
        raise UserError(f"The row does not state {', '.join(missing)}.")
    assumed: list[str] = []

    def number(name: str, otherwise: int, unless: str = "") -> int:
        if not cells.get(name):
            if unless:
                assumed.append(unless)
            return otherwise
        try:
            return int(float(cells[name]))
        except ValueError:
            raise UserError(f"{name} = {cells[name]!r} is no number.") from None

    power, memory = (float(cells[name]) if cells.get(name) else None for name in CARD)
    gpu = card_of(find_gpu(GPUS.get(cells["gpu"], cells["gpu"])), power, memory)
    note = cells.get("engine_note", "")
    tensor, pipeline, context = (number(name, 1) for name in ("tp", "pp", "cp"))
    gpus = number("gpus", 1)
    data = number("dp", max(1, gpus // (tensor * pipeline * context)))
    if data * tensor * pipeline * context != gpus:
        raise UserError(f"DP {data} x TP {tensor} x PP {pipeline} x CP {context} are not {gpus} GPUs.")
    zero_stage = number("zero_stage", 0, "no ZeRO")
    framework = _framework(cells, note, zero_stage)
    recompute, share = _recompute(cells, assumed)
    overlaps = cells.get("overlap", "")
    modern = framework == "megatron" and (gpu.compute_capability or (0, 0))[0] >= 9
    if modern and not overlaps:
        assumed.append("TP and DP overlapped")
    micro_batch = number("micro_batch", 1, "a micro-batch of 1")
    dtype = cells.get("dtype") or "bf16"
    state_dtype = cells.get("state_dtype") or ("bf16" if PURE_STATES in note else "fp32")
    if not cells.get("state_dtype") and PURE_STATES not in note and cells.get("engine") in OF_SCRIPTS:
        assumed.append(ASSUMED_STATES)
    shares, release = re.search(r"zero1=(\d+)", note), re.search(BRIDGE + r" (\d+\.\d+)", note)
    # NVIDIA's recipes have grad_reduce_in_fp32 = False, Megatron's default is True. TP of torchtitan always cuts the
    # sequence (its parallelize_llama), Megatron's since it recomputes attention alone.
    narrow = framework == "deepspeed" or cells.get("engine") == "nemo" or dtype == "fp16"
    cuts = framework in ("fsdp2", "torchtitan") or (framework == "megatron" and recompute != "layers")
    fields: dict[str, Any] = {
        "gradient_bytes": HALF if narrow else 2 * HALF,
        "overlap_tensor": "tp" in overlaps or modern,
        "slower_attention": ON_HOPPER if OLD_NEMO in note and modern else 1.0,
    }
    for words, said in MEANING_OF_NOTES.items():
        fields |= said if words in note else {}
    plan = ParallelPlan(
        global_batch=number("global_batch", 1), micro_batch=micro_batch, seq=number("seq", 1), tensor=tensor, data=data,
        pipeline=pipeline, recompute=recompute, recompute_share=share, chunks=number("vp", 1), context=context,
        expert=number("ep", 1), zero_stage=zero_stage, shard_over=int(shares[1]) if shares else 0,
        overlap_gradients=(zero_stage > 0 and framework != "deepspeed") or "dp" in overlaps,
        ranks_per_node=number("gpus_per_node", 8), sequence_parallel=tensor > 1 and cuts, dtype=dtype,
        framework=framework, fuses_experts=release is not None and float(release[1]) >= FUSED and dtype == "mxfp8",
        blocks=JEAN_ZAY in note and gpus >= BLOCKED_FROM, state_dtype=state_dtype, **fields,
    )  # fmt: skip
    network = float(cells["network_gb_s_per_gpu"]) * 1e9 if cells.get("network_gb_s_per_gpu") else None
    seconds = float(cells["seconds_per_step"]) if cells.get("seconds_per_step") else None
    if seconds is None and cells.get("tokens_per_s_per_gpu"):
        seconds = plan.global_batch * plan.seq / (float(cells["tokens_per_s_per_gpu"]) * gpus)
    memory = float(cells["memory_gib"]) if cells.get("memory_gib") else None
    return TrainingRun(
        cells.get("model", ""), cells.get("source", ""), gpu, _model(cells, number), plan, network, seconds, memory,
        cells.get("ran", "yes") != "no", tuple(assumed), note,
    )  # fmt: skip


def _framework(fields: Mapping[str, str], note: str, zero_stage: int) -> Framework:
    engine = fields.get("framework") or fields.get("engine", "")
    if said := [framework for (of, words), framework in ENGINES_AS_SAID.items() if of == engine and words in note]:
        return said[0]
    if not engine:
        return "fsdp2" if zero_stage >= SHARDED_FROM_STAGE else "megatron"
    if engine in ENGINES:
        return ENGINES[engine]
    raise UserError(f"Nothing is known of the engine {engine!r}: choose from {', '.join(ENGINES)}.")


def _recompute(fields: Mapping[str, str], assumed: list[str]) -> tuple[Recompute, float]:
    stated = fields.get("recompute", "")
    if not stated or fields.get("recompute_stated") == "no":
        assumed.append(ASSUMED_RECOMPUTE)
    if not stated:
        return RECOMPUTED["nothing"]
    if stated not in RECOMPUTED:
        raise UserError(f"Backward cannot recompute {stated!r}: choose from {', '.join(RECOMPUTED)}.")
    return RECOMPUTED[stated]


def _model(fields: Mapping[str, str], number) -> ModelDimensions:  # type: ignore[no-untyped-def]
    architecture, note = fields.get("architecture", ""), fields.get("engine_note", "")
    experts = number("experts", 1) or 1
    dimensions: dict[str, Any] = {
        "layers": number("layers", 1),
        "hidden": number("hidden", 1),
        "ffn": number("ffn", 0) or number("expert_ffn", 0) or 4 * number("hidden", 1),
        "heads": number("heads", 1),
        "vocab": number("vocab", 1),
        "kv_heads": number("kv_heads", 0),
        "head_dim": number("head_dim", 0),
    }
    if "learned" in architecture:
        dimensions["positions"] = number("seq", 1)
    if windowed := re.search(r"every other layer windowed at (\d+)", architecture):
        dimensions |= {"window": int(windowed[1]), "windowed_layers": dimensions["layers"] // 2}
    if experts > 1:
        dimensions |= {
            "experts": experts,
            "top_k": number("top_k", 1),
            "expert_ffn": number("expert_ffn", 0),
            "shared_ffn": number("shared_expert_ffn", 0),
        }
    if architecture.startswith("mla"):
        dimensions |= LATENT | {"kv_heads": dimensions["heads"], "dense_layers": DENSE_LAYERS}
        dimensions["layers"] += NEXT_TOKEN_LAYERS * ("w/o MTP" not in note)
    biases = "biases" in architecture and "no biases" not in architecture
    return ModelDimensions(
        **dimensions, gated=fields.get("gated") == "yes", tied=fields.get("tied") == "yes", bias=biases
    )


Floats = NDArray[np.float64]

# How far constants of one's own cluster may lie from those of published runs, at least: the deviation of a logarithm.
SIGMA = 0.1
# Substitute of 0 in logarithms, and distance from its range's ends at which a search begins.
TINY, INSET = 1e-6, 1e-3
# Scatter of runs of one layout; and runs from which on the width of errors is estimated.
RUN_SCATTER, ENOUGH_RUNS = 0.03, 12


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

    inside = np.clip(np.zeros(len(widths)), lowest + INSET, highest - INSET)
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
    by_framework: dict[str, list[tuple[TrainingRun, PricedStep]]] = defaultdict(list)
    for run in timed:
        try:
            priced = price_step(run.model, run.plan, prices_of(run.gpu, run.plan.dtype), run.network_bytes_per_s)
            by_framework[str(run.plan.framework)].append((run, priced))
        except UserError as reason:
            refused.append(f"{run.name}: {reason}")
    found = [_refitted(framework, members, path) for framework, members in sorted(by_framework.items())]
    blocks = {f"{BLOCK}.{each.framework}": each.block for each in found if each.block is not None}
    return Calibration(names[0], blocks), found, refused


def _refitted(framework: str, runs: Sequence[tuple[TrainingRun, PricedStep]], path: Path) -> Refitted:
    spec = runs[0][0].gpu
    shipped = shipped_calibration(POOLED)
    if shipped is None:
        raise UserError("There are no published constants to begin with.")
    like = shipped.block(BLOCK)
    start = StepConstants(**{name: float(like.arrays[name]) for name in NAMES})
    # Held by what published runs say of each.
    widths = {
        name: max(SIGMA, float(like.arrays[f"{name}_deviation"])) for name in NAMES if float(getattr(start, name)) > 0
    }
    measured = np.log([float(run.seconds or 0.0) for run, _ in runs])

    def missed(constants: StepConstants, places: NDArray[np.intp]) -> Floats:
        """log(measured / predicted)."""
        here = on_gpu(constants, spec, framework)
        predicted = [float(sum(step_parts(runs[place][1], here).values())) for place in places.tolist()]
        return np.asarray(measured[places] - np.log(predicted))

    def fitted(places: NDArray[np.intp]) -> StepConstants:
        return nearest_constants(start, widths, lambda constants: missed(constants, places) / RUN_SCATTER)[0]

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
