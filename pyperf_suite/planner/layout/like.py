"""Scaling by analogy: a training's time from a measured one's, by the law's ratio between the two.

What the law has wrong of both equally cancels in the ratio.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings, Quantity, findings, remark
from pyperf_suite.findings.rows import Column, table
from pyperf_suite.hardware.catalogue import gpu_of
from pyperf_suite.planner.calibrate_cpu import step_plan
from pyperf_suite.planner.laws.explained import Explained
from pyperf_suite.planner.laws.training.published import TrainingRun, read_runs, run_of
from pyperf_suite.planner.laws.training.step import WIDER_ELSEWHERE, prices_of, step_time
from pyperf_suite.planner.layout.grid import NAMED, check_range
from pyperf_suite.planner.study.results import results_of
from pyperf_suite.runner.results import read_journal

LARGEST_BYTES = 1 << 24
# |log| of the measured over the law's ratio of nine of ten pairs of published runs at most, dense and with experts
# (constants had not seen the model). Taken from pairs without a model it holds 90 % of that model's, both.
SPREAD, SPREAD_OF_EXPERTS = 0.17, 0.36
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Analogy:
    """A measured run, what is requested, and the law's predictions of both."""

    run: TrainingRun
    requested: TrainingRun
    of_run: Explained
    of_request: Explained

    @property
    def factor(self) -> float:
        """Measured over predicted time of the run."""
        return float(self.run.seconds or 0.0) / float(self.of_run.seconds)

    @property
    def seconds(self) -> float:
        """Of an iteration as requested."""
        return self.factor * float(self.of_request.seconds)

    @property
    def ends(self) -> tuple[float, float]:
        """Seconds between which nine of ten pairs of published runs would lie."""
        experts = max(self.run.model.experts, self.requested.model.experts) > 1
        same = (self.run.model, self.run.gpu, self.run.plan) == (
            self.requested.model,
            self.requested.gpu,
            self.requested.plan,
        )
        wide = 0.0 if same else SPREAD_OF_EXPERTS if experts else SPREAD
        wide *= WIDER_ELSEWHERE if self.of_run.extrapolated or self.of_request.extrapolated else 1.0
        return self.seconds * math.exp(-wide), self.seconds * math.exp(wide)

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """By name, seconds of the measured run and of what is requested; each times the factor."""
        here, there = self.of_run.parts, self.of_request.parts
        found = [(name, self.factor * float(here.get(name, 0.0)), self.factor * float(there[name])) for name in there]
        return [each for each in found if max(each[1:]) > 0]


def read_run(path: Path) -> TrainingRun:
    """The run of a file: a study's folder or records, or a row with the columns of published runs as JSON or CSV.

    Of a study the fastest configuration. Raises UserError for a file that is none of these, with other than one run, or
    without a time.
    """
    try:
        if path.is_dir() or path.suffix == ".jsonl":
            run = _studied(path / "records.jsonl" if path.is_dir() else path)
        elif path.suffix == ".csv":
            found, refused = read_runs(path)
            if len(found) != 1:
                why = f"{len(found)} runs that can be predicted, and is scaled from one"
                raise UserError(f"it has {why}{''.join(f' ({each})' for each in refused[:1])}: leave one row.")
            run = found[0]
        else:
            given = json.loads(files.read_text(path, LARGEST_BYTES))
            row = given[0] if isinstance(given, list) and len(given) == 1 else given
            if not isinstance(row, dict):
                raise UserError("it is no JSON object with a run's columns.")
            run = run_of({str(name): "" if value is None else str(value) for name, value in row.items()})
        if not run.seconds or not 0 < run.seconds < math.inf:
            raise UserError("it has no time of an iteration: add seconds_per_step or tokens_per_s_per_gpu.")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError, ZeroDivisionError, UserError) as error:
        raise UserError(f"{path} is no run to scale from: {str(error)[:300].rstrip('.')}.") from None
    return run


def _studied(path: Path) -> TrainingRun:
    """The fastest configuration of a study on GPUs."""
    timed = [each for each in results_of(read_journal(path)) if each.timed]
    if not timed:
        raise UserError("it holds no configuration of a study with a time.")
    best, p = timed[0], timed[0].parameters
    gpu = gpu_of(best.trials[0].identity)
    if gpu is None or p.dtype != "bfloat16":
        where = best.trials[0].identity.get("model", "a CPU")
        raise UserError(f"it was measured in {p.dtype} on {where}; the laws are of bfloat16 on GPUs of the catalogue.")
    framework = "fsdp2" if p.zero_stage > 1 or p.tensor * p.pipeline > 1 else "ddp"
    plan = replace(
        step_plan(p), ranks_per_node=max(GPUS_PER_NODE, p.ranks), dtype="bf16", framework=framework,
        fused_attention=p.attention != "math", overlap_gradients=True,
    )  # fmt: skip
    return TrainingRun(best.name, str(path), gpu, p.dimensions, plan, None, best.reading.seconds, None, True)


def scaled(
    run: TrainingRun, gpus: int | None = None, axes: Mapping[str, int] | None = None, *, of: Any = None, **plan: Any
) -> Analogy:
    """What an iteration takes on so many `gpus`, all else as in the measured run but for what is given.

    `axes` are fields of a `Layout`, `plan` those of a `ParallelPlan`, `of` the run's own: its model, GPU or network;
    what is None stays. DP is what the GPUs leave. Raises UserError for a layout that does not come out even, or that
    the laws cannot price.
    """
    old = run.plan
    values: dict[str, Any] = {
        name: NAMED[name][value] if name in NAMED else value for name, value in (axes or {}).items()
    }
    values |= {name: value for name, value in plan.items() if value is not None}
    cut = {name: int(values.get(name, getattr(old, name))) for name in ("tensor", "pipeline", "context")}
    apart = math.prod(cut.values())
    gpus = int(apart * values["data"] if "data" in values else old.ranks) if gpus is None else gpus
    check_range("gpus", gpus)
    for name in ("global_batch", "seq"):
        check_range(name, int(values.get(name, getattr(old, name))))
    data = values.setdefault("data", gpus // apart)
    if data * apart != gpus:
        shares = ", ".join(f"{name} {size}" for name, size in cut.items())
        raise UserError(f"{gpus} GPUs are not DP {data} with {shares}: name others with --tp, --pp, --cp or --gpus.")
    values.setdefault("ranks_per_node", min(old.ranks_per_node, gpus))
    given = {name: value for name, value in (of or {}).items() if value is not None}
    requested = replace(run, plan=replace(old, **values), seconds=None, **given)
    return Analogy(run, requested, predicted(run), predicted(requested))


def predicted(run: TrainingRun) -> Explained:
    """What the law says of a run."""
    return step_time(run.gpu, run.model, run.plan, None, prices_of(run.gpu, run.plan.dtype), run.network_bytes_per_s)


def _written(run: TrainingRun) -> str:
    """A layout as people write it, and what it runs on."""
    plan = run.plan
    more = {"virtual PP": plan.chunks, "CP": plan.context, "EP": plan.expert}
    words = [f"{plan.ranks} {run.gpu}: DP {plan.data}, TP {plan.tensor}, PP {plan.pipeline}"]
    words += [f"{name} {size}" for name, size in more.items() if int(size) > 1]
    words += [f"ZeRO {plan.zero_stage}", f"micro-batch {plan.micro_batch} of {plan.global_batch}", f"seq {plan.seq}"]
    return ", ".join([*words, f"recompute {plan.recompute}", f"{plan.framework} in {plan.dtype}"])


def findings_of_analogy(found: Analogy, notes: Sequence[str] = ()) -> Findings:
    """The time by analogy, what it was scaled from, and each part of both."""
    run, requested, (low, high) = found.run, found.requested, found.ends
    assumed = (f"The run does not say all: {what} was assumed." for what in run.assumed)
    return findings(
        remark(
            "{time} an iteration (90 % interval {low} to {high} s, by pairs of published runs), {tokens} tokens a "
            "second on {layout}; {verdict}.",
            kind="predicted",
            time=Quantity(found.seconds, "duration", predicted=True),
            low=f"{low:.3g}",
            high=f"{high:.3g}",
            tokens=Quantity(requested.tokens / found.seconds, "count", predicted=True),
            layout=_written(requested),
            verdict=requested.verdict,
        ),
        remark(
            "Scaled from {name} of {source}, measured at {time} on {layout}. The law says {law} of it, so each part is "
            "taken {factor} times; from there to what is requested it says {ratio} times as long.",
            name=run.name or "the run",
            source=run.source or "the file",
            time=Quantity(float(run.seconds or 0.0), "duration"),
            layout=_written(run),
            law=Quantity(float(found.of_run.seconds), "duration", predicted=True),
            factor=f"{found.factor:.3g}",
            ratio=f"{float(found.of_request.seconds / found.of_run.seconds):.3g}",
        ),
        (remark(note, kind="caution") for note in (*assumed, *notes)),
        table(
            "Where an iteration goes (the law's parts, scaled by the measured run)",
            (
                Column("part", lambda row: row[0], priority=2),
                Column("measured run", lambda row: row[1], "duration"),
                Column("requested", lambda row: row[2], "duration", priority=2),
                Column("times as long", lambda row: row[2] / row[1] if row[1] else None),
            ),
            found.parts,
        ),
    )
