"""Scaling by analogy: a training's time from a measured one's, by the law's ratio between the two.

What the law has wrong of both alike, a framework's constants and a cluster's network, cancels in the ratio.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.advise.calibrate_cpu import step_plan
from pyperf_suite.advise.layout_grid import NAMED, check_range
from pyperf_suite.advise.layout_plan import memory_of_plan
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, gpu_of
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.model_flop import model_flop, utilization
from pyperf_suite.laws.training.published import TrainingRun, read_runs, run_of
from pyperf_suite.laws.training.step import UNITS_OF, ParallelPlan, prices_of, step_time
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.probes.study import results_of
from pyperf_suite.runner.results import read_journal
from pyperf_suite.spec.findings import Findings, Quantity, findings, remark
from pyperf_suite.spec.rows import Column, table

LARGEST_BYTES = 1 << 24
# What differs between two runs, and log(measured ratio / the law's) of pairs of published runs between which 9 of 10 lie.
SPREAD: Mapping[str, tuple[float, float]] = {
    "GPUs, batch or layout": (-0.1, 0.1),
    "model": (-0.1, 0.1),
    "GPU, framework or precision": (-0.1, 0.1),
}
STUDIED = {"bfloat16": "bf16"}
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Analogy:
    """A measured run, what is asked for, and the law's predictions of both."""

    run: TrainingRun
    asked: TrainingRun
    of_run: Explained
    of_asked: Explained

    @property
    def measured_s(self) -> float:
        return float(self.run.seconds or 0.0)

    @property
    def factor(self) -> float:
        """Measured over predicted time of the run."""
        return self.measured_s / float(self.of_run.seconds)

    @property
    def ratio(self) -> float:
        """By what the law says that an iteration takes longer than the measured one."""
        return float(self.of_asked.seconds) / float(self.of_run.seconds)

    @property
    def seconds(self) -> float:
        return self.ratio * self.measured_s

    @property
    def differs(self) -> str:
        """What of SPREAD differs most, "" where nothing does."""
        here, there = self.run, self.asked
        if (here.gpu, here.plan.framework, here.plan.dtype) != (there.gpu, there.plan.framework, there.plan.dtype):
            return "GPU, framework or precision"
        if here.model != there.model:
            return "model"
        return "" if here.plan == there.plan else "GPUs, batch or layout"

    @property
    def ends(self) -> tuple[float, float]:
        """Seconds between which nine of ten such pairs of published runs would lie."""
        low, high = SPREAD.get(self.differs, (0.0, 0.0))
        return self.seconds * math.exp(low), self.seconds * math.exp(high)


def read_run(path: Path) -> TrainingRun:
    """The run of a file: a study's folder or records, or a row with the columns of published runs as JSON or CSV.

    Of a study the fastest configuration. Raises UserError for a file that is none of these, with other than one run, or
    without a time.
    """
    try:
        if path.is_dir() or path.suffix == ".jsonl":
            return _studied(path / "records.jsonl" if path.is_dir() else path)
        if path.suffix == ".csv":
            found, refused = read_runs(path)
            if len(found) != 1:
                why = f" ({refused[0]})" if refused and not found else ""
                raise UserError(f"it has {len(found)} runs that can be predicted{why}, and one is scaled from: keep one.")
            run = found[0]
        else:
            given = json.loads(files.read_text(path, LARGEST_BYTES))
            row = given[0] if isinstance(given, list) and len(given) == 1 else given
            if not isinstance(row, dict):
                raise UserError("it is no JSON object with a run's columns.")
            run = run_of({str(name): "" if value is None else str(value) for name, value in row.items()})
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no run to scale from: {str(error)[:120]}.") from None
    except UserError as error:
        raise UserError(f"{path} is no run to scale from: {error}") from None
    if not run.seconds or not 0 < run.seconds < math.inf:
        raise UserError(f"{path} has no time of an iteration: add seconds_per_step or tokens_per_s_per_gpu.")
    return run


def _studied(path: Path) -> TrainingRun:
    """The fastest configuration of a study on GPUs."""
    timed = [each for each in results_of(read_journal(path)) if each.timed]
    if not timed:
        raise UserError("it holds no configuration of a study with a time.")
    best = timed[0]
    gpu, p = gpu_of(best.trials[0].identity), best.parameters
    if gpu is None or p.dtype not in STUDIED:
        raise UserError(f"it was measured in {p.dtype} on {best.trials[0].identity.get('model', 'a CPU')}, and the laws "
                        "of layouts are of GPUs in the catalogue and bfloat16.")  # fmt: skip
    framework = "fsdp2" if p.zero_stage > 1 or p.tensor * p.pipeline > 1 else "ddp"
    plan = replace(step_plan(p), ranks_per_node=max(GPUS_PER_NODE, p.ranks), dtype=STUDIED[p.dtype], framework=framework,
                   fused_attention=p.attention != "math", overlap_gradients=True)  # fmt: skip
    return TrainingRun(best.name, str(path), gpu, p.dimensions, plan, None, best.reading.seconds, None, True)


def scaled(
    run: TrainingRun,
    *,
    model: ModelDimensions | None = None,
    gpu: GpuSpec | None = None,
    gpus: int | None = None,
    network: Any = None,
    axes: Mapping[str, int] | None = None,
    **plan: Any,
) -> Analogy:
    """What an iteration takes on so many `gpus`, all else as in the measured run but for what is given.

    `axes` are fields of a `Layout`, `plan` those of a `ParallelPlan`. DP is what the GPUs leave. Raises UserError for
    a layout that does not come out even, or that the laws cannot price.
    """
    old, axes = run.plan, axes or {}
    values = {name: NAMED[name][value] if name in NAMED else value for name, value in axes.items()}
    values |= {name: value for name, value in plan.items() if value is not None}
    new = {name: values.get(name, getattr(old, name)) for name in ("tensor", "pipeline", "context")}
    apart = math.prod(int(each) for each in new.values())
    if gpus is None:
        gpus = apart * int(values.get("data", old.data)) if axes else int(old.ranks)
    check_range("gpus", gpus)
    data = values.setdefault("data", gpus // apart)
    if data * apart != gpus:
        cut = " x ".join(f"{name} {size}" for name, size in zip(("TP", "PP", "CP"), new.values(), strict=True))
        raise UserError(f"{gpus} GPUs are no multiple of {cut} (DP {data}): name others with --tp, --pp, --cp or --gpus.")
    for name in ("global_batch", "seq"):
        check_range(name, int(values.get(name, getattr(old, name))))
    node = values.get("ranks_per_node", min(old.ranks_per_node, gpus) if gpus % old.ranks_per_node else old.ranks_per_node)
    plan_of_asked = replace(old, **values | {"ranks_per_node": node})
    asked = replace(run, model=model or run.model, gpu=gpu or run.gpu, plan=plan_of_asked, seconds=None,
                    network_bytes_per_s=network or run.network_bytes_per_s)  # fmt: skip
    return Analogy(run, asked, predicted(run), predicted(asked))


def predicted(run: TrainingRun) -> Explained:
    """What the law says of a run."""
    return step_time(run.gpu, run.model, run.plan, None, prices_of(run.gpu, run.plan.dtype), run.network_bytes_per_s)


def written(plan: ParallelPlan) -> str:
    """A plan as people write it."""
    words = [f"{plan.ranks} GPUs: DP {plan.data}, TP {plan.tensor}, PP {plan.pipeline}"]
    words += [f"{name} {size}" for name, size in (("virtual PP", plan.chunks), ("CP", plan.context), ("EP", plan.expert))
              if int(size) > 1]  # fmt: skip
    words += [f"ZeRO {plan.zero_stage}", f"micro-batch {plan.micro_batch}", f"batch {plan.global_batch}"]
    return ", ".join([*words, f"seq {plan.seq}", f"recompute {plan.recompute}", str(plan.framework), plan.dtype])


def analogy_as_json(found: Analogy) -> dict[str, Any]:
    """Plain data of the answer; seconds."""
    low, high = found.ends
    return {
        "predicted": True,
        "scaled_from": {"source": found.run.source, "model": found.run.name, "layout": written(found.run.plan),
                        "gpu": found.run.gpu.name, "measured_s": found.measured_s,
                        "law_s": float(found.of_run.seconds)},
        "gpu": found.asked.gpu.name,
        "gpus": int(found.asked.plan.ranks),
        "layout": written(found.asked.plan),
        "differs": found.differs,
        "law_ratio": found.ratio,
        "step_s": found.seconds,
        "interval_s": [low, high],
        "tokens_per_s": found.asked.tokens / found.seconds,
        "parts_s": {name: float(part) * found.factor for name, part in found.of_asked.parts.items()},
        "measured_run_parts_s": {name: float(part) * found.factor for name, part in found.of_run.parts.items()},
        "verdict": memory_verdict(found.asked),
        "assumed": list(found.run.assumed),
    }  # fmt: skip


def memory_verdict(run: TrainingRun) -> str:
    """Whether a run fits its GPU."""
    return str(memory_of_plan(run.model, run.plan).verdict(run.gpu.memory_bytes))


def findings_of_analogy(found: Analogy, notes: tuple[str, ...] = ()) -> Findings:
    """The time by analogy, what it was scaled from, and each part of both."""
    run, asked, (low, high) = found.run, found.asked, found.ends
    flop = float(model_flop(asked.model, asked.plan.global_batch, asked.plan.seq))
    peak = asked.gpu.peak(UNITS_OF.get(asked.plan.dtype, asked.plan.dtype))
    names = [name for name in found.of_asked.parts
             if max(float(found.of_asked.parts[name]), float(found.of_run.parts.get(name, 0.0))) > 0]  # fmt: skip

    def of(predictions: Explained, name: str) -> float:
        return float(predictions.parts.get(name, 0.0)) * found.factor

    return findings(
        remark(
            "{time} an iteration{ends}, {tokens} tokens a second, {mfu} of the peak (MFU), on {gpu}, {layout}; {verdict}.",
            kind="predicted",
            time=Quantity(found.seconds, "duration", predicted=True),
            ends=f" (nine of ten such pairs of published runs within {low:.3g} to {high:.3g} s)" if found.differs else "",
            tokens=Quantity(asked.tokens / found.seconds, "count", predicted=True),
            mfu=Quantity(float(utilization(flop, found.seconds, int(asked.plan.ranks), peak)), "%", predicted=True),
            gpu=asked.gpu.name,
            layout=written(asked.plan),
            verdict=memory_verdict(asked),
        ),
        remark(
            "Scaled from {name} of {source}, measured at {time} on {gpu}, {layout}. The law says {law} of it, so every part "
            "is taken {factor} times; from there to what was asked it says {ratio} times as long.",
            name=run.name or "the run",
            source=run.source or "the file",
            time=Quantity(found.measured_s, "duration"),
            gpu=run.gpu.name,
            layout=written(run.plan),
            law=Quantity(float(found.of_run.seconds), "duration", predicted=True),
            factor=f"{found.factor:.3g}",
            ratio=f"{found.ratio:.3g}",
        ),
        *(remark("The run does not say all: {what} was assumed.", kind="caution", what=what) for what in run.assumed),
        *(remark(note, kind="caution") for note in notes),
        table(
            "Where an iteration goes (scaled by the measured run)",
            (
                Column("part", lambda name: name, priority=2),
                Column("measured run", lambda name: of(found.of_run, name), "duration"),
                Column("asked for", lambda name: of(found.of_asked, name), "duration", priority=2),
                Column("times as long", lambda name: of(found.of_asked, name) / of(found.of_run, name)
                       if of(found.of_run, name) else None),
            ),
            names,
        ),
    )  # fmt: skip


