"""A study of layouts: the same training step cut over ranks in many ways, each run and ranked by samples per second.

Which configurations there are, and their order, depends on the grid alone and not on the machine. What cannot be is
left out of a product of axes, but never a value that was asked for.
"""

from __future__ import annotations

import itertools
import math
import statistics
import textwrap
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from pyperf_suite.errors import UserError, Within
from pyperf_suite.hardware.catalogue import gpu_of
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.laws.model_flop import model_flop, utilization
from pyperf_suite.measure.estimates import median_interval
from pyperf_suite.probes.calibration import DTYPE_OF_LAW
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.spec.axes import NO, Flag, check_axes, read_axes
from pyperf_suite.spec.findings import (
    Bar,
    Bars,
    Claim,
    ClaimVerdict,
    Figure,
    Findings,
    Quantity,
    Remark,
    Table,
    findings,
    quantity,
    remark,
)
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.rows import Column, Reading, Rows, grouped, mean_speedup, misses, readings, table
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.on_ranks import MOST_RANKS
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.parallel_layout import ParallelStepParameters

OPERATOR = "parallel_step"
MOST_CONFIGURATIONS = 1000

MODEL = ("hidden", "heads", "layers", "seq", "vocab", "kv_heads", "ffn", "gated", "tied")
# How a step is cut over ranks; whoever replaces one of these asks for a grid of their own.
CUTS = ("data", "tensor", "pipeline", "chunks", "zero_stage")
GRID = ("global_batch", "batch", "attention", "checkpointing", "dtype", "implementation", *CUTS)
AXES = (*MODEL, *GRID)


@dataclass(frozen=True)
class Configuration:
    """Axes of the grid that some configurations have values of their own for; they are crossed with the others'."""

    axes: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __str__(self) -> str:
        return ";".join(f"{name}={'|'.join(map(str, values))}" for name, values in self.axes)

    @classmethod
    def parse(cls, text: str) -> Configuration:
        parts = [part.strip().partition("=") for part in text.split(";") if part]
        for name, equals, _ in parts:
            if not equals or name not in GRID:
                raise UserError(f"{name!r} is no part of a configuration: write AXIS=VALUE with {', '.join(GRID)}.")
        return cls(tuple(read_axes(StudyAxes, {name: value.replace("|", ",") for name, _, value in parts}).items()))


@dataclass(frozen=True)
class StudyAxes:
    """A cross product of all axes; with `configuration`, one for each of these, whose own values stand for the grid's.

    `batch` is the sequences of a micro-batch, `global_batch` of an iteration over all ranks. `zero_stage` 0 is DDP. The
    defaults are a tiny GPT on one rank of a CPU.
    """

    hidden: tuple[int, ...] = (128,)
    heads: tuple[int, ...] = (4,)
    layers: tuple[int, ...] = (4,)
    seq: tuple[int, ...] = (128,)
    vocab: tuple[int, ...] = (512,)
    global_batch: Annotated[tuple[int, ...], Within(1)] = (8,)
    batch: Annotated[tuple[int, ...], Within(1)] = (2,)
    implementation: tuple[str, ...] = ("gloo",)
    dtype: tuple[str, ...] = ("float32",)
    kv_heads: tuple[int, ...] = (0,)
    ffn: tuple[int, ...] = (0,)
    gated: tuple[Flag, ...] = (NO,)
    # A pipeline has embedding and logits on different ranks: one model for all configurations is one that ties nothing.
    tied: tuple[Flag, ...] = (NO,)
    attention: tuple[str, ...] = ("flash",)
    checkpointing: tuple[Checkpointing, ...] = (Checkpointing(),)
    data: Annotated[tuple[int, ...], Within(1)] = (1,)
    tensor: tuple[int, ...] = (1,)
    pipeline: tuple[int, ...] = (1,)
    chunks: tuple[int, ...] = (1,)
    zero_stage: tuple[int, ...] = (0,)
    configuration: tuple[Configuration, ...] = ()

    def given(self, axes: Mapping[str, tuple[Any, ...]]) -> StudyAxes:
        """With some axes replaced everywhere; those that cut a step differently leave no configuration of before."""
        kept = () if any(name in CUTS for name in axes) else self.configuration
        own = tuple(Configuration(tuple(each for each in old.axes if each[0] not in axes)) for old in kept)
        changed: dict[str, Any] = dict(axes)
        return replace(self, configuration=own, **changed)


# Ways to cut a step: on a CPU, on one GPU, and on N together.
ON_CPU = (
    *("data=1|2|4", "attention=math", "checkpointing=every"),
    *("data=2;zero_stage=1|2|3", "tensor=2", "pipeline=2;chunks=1|2"),
)
ALONE = "attention=flash|math", "checkpointing=every"
TOGETHER = "data=N;zero_stage=0|1|2|3", "data=N;zero_stage=1;attention=math", "tensor=N", "pipeline=N;chunks=1|2"
GPT_ON_GPUS = {"hidden": 2048, "heads": 16, "layers": 16, "seq": 2048, "vocab": 50304, "global_batch": 16, "batch": 1}


def default_axes(device: Device, gpus: int = 1) -> StudyAxes:
    """A tiny GPT on 1 to 4 ranks of a CPU; on GPUs a larger one over all of them, cut in each way that they divide."""
    if device.kind == "cpu":
        return StudyAxes(configuration=tuple(map(Configuration.parse, ON_CPU)))
    # Heads, layers and micro-batches come out even over so many.
    ranks = max(power for power in (1, 2, 4, 8) if power <= gpus)
    ways = [*ALONE, *(way.replace("N", str(ranks)) for way in TOGETHER)] if ranks > 1 else ALONE
    larger: dict[str, Any] = {name: (value,) for name, value in GPT_ON_GPUS.items()}
    own = tuple(map(Configuration.parse, ways))
    return StudyAxes(**larger, implementation=("nccl",), dtype=("bfloat16",), configuration=own)


def cases_of(axes: StudyAxes) -> list[Case]:
    """Every configuration of the grid once, in its order.

    Raises UserError for a value that combines with nothing, an empty list, or a product of more than a study can run.
    """
    owns: list[dict[str, Any]] = [dict(each.axes) for each in axes.configuration] or [{}]
    grids = [replace(axes, **own) for own in owns]
    for grid in grids:
        if empty := [name for name in AXES if not getattr(grid, name)]:
            raise UserError(f"{empty[0]} is an empty list: give it a value, or leave it out.")
        check_axes(grid)
    count = sum(math.prod(len(getattr(grid, name)) for name in AXES) for grid in grids)
    if count > MOST_CONFIGURATIONS:
        raise UserError(
            f"The grid crosses to {count} configurations, and a study takes {MOST_CONFIGURATIONS} at most: shorten its "
            "lists, or name the ones that matter as configurations."
        )
    crossed = (case for own, grid in zip(owns, grids, strict=True) for case in _cross(grid, own or AXES))
    return list({case.case_id: case for case in crossed}.values())


def worlds_of(cases: Iterable[Case]) -> list[int]:
    """How many ranks the cases take, ascending."""
    return sorted({case.parameters.ranks for case in cases})


def of_worlds(cases: Sequence[Case], ranks: Sequence[int]) -> list[Case]:
    """Those that take so many ranks. Raises UserError for a number that none of them takes."""
    there = worlds_of(cases)
    for number in ranks:
        if number not in there:
            raise UserError(
                f"No configuration takes {number} ranks (data x tensor x pipeline): those asked for take "
                f"{', '.join(map(str, there))}."
            )
    return [case for case in cases if case.parameters.ranks in ranks]


def _cross(grid: StudyAxes, asked: Collection[str]) -> list[Case]:
    """Every combination that can be. Raises UserError for a value of the `asked` axes for which there is none."""
    lists = {name: getattr(grid, name) for name in AXES}
    possible: list[tuple[Mapping[str, Any], Case]] = []
    refused: list[tuple[Mapping[str, Any], UserError]] = []
    for values in itertools.product(*lists.values()):
        combination = dict(zip(AXES, values, strict=True))
        try:
            possible.append((combination, _case(**combination)))
        except UserError as reason:
            refused.append((combination, reason))
    if not possible:
        raise refused[0][1]
    # A refusal names the combination that has most first values of the other axes.
    refused.sort(key=lambda each: -sum(each[0][name] == values[0] for name, values in lists.items()))
    there = {(name, value) for combination, _ in possible for name, value in combination.items()}
    for axis in asked:
        for value in lists[axis]:
            if (axis, value) not in there:
                why = next(why for combination, why in refused if combination[axis] == value)
                raise UserError(f"{axis}={value} combines with nothing else asked for: {why}")
    return [case for _, case in possible]


def _case(global_batch: int, batch: int, data: int, implementation: str, gated: Flag, tied: Flag, **axes: Any) -> Case:
    """One configuration. Raises UserError for one that cannot be, on whatever machine."""
    if global_batch % (batch * data):
        raise UserError(
            f"A global batch of {global_batch} cannot be cut into micro-batches of {batch} on {data} data-parallel "
            f"rank{'s' if data > 1 else ''} evenly: choose a divisor."
        )
    axes |= {"batch": batch, "data": data, "gated": gated.value, "tied": tied.value}
    parameters = ParallelStepParameters(**axes, micro_batches=global_batch // (batch * data))
    parameters.validate()
    if parameters.zero_stage and data == 1:
        raise UserError(
            f"ZeRO stage {parameters.zero_stage} is shared by data-parallel ranks, and there is one: ask for data=2."
        )
    find_workload(OPERATOR).implementation(implementation)
    return Case(OPERATOR, parameters, implementation)


def axes(profile: str, device: Device) -> StudyAxes:
    """The same in every profile, for a study is made longer by experiments: over a launcher's ranks, or all GPUs."""
    del profile
    found = rank_environment()
    return default_axes(device, found.count if found.launched else max(1, len(gpus())))


# What the engine counts, by what it is for. A peak is of all together, and known on GPUs alone.
PARTS = {
    "weights": ("parameter_bytes",),
    "gradients": ("gradient_bytes",),
    "optimizer": ("optimizer_bytes", "counter_bytes"),
    "activations": ("saved_activation_bytes",),
    "peak": ("peak_bytes",),
}
CONFIDENCE = 0.95

Memory = Mapping[str, float]
"""Bytes of one rank by those of `PARTS` that are known."""


@dataclass(frozen=True)
class StudyPrediction:
    """What laws say of a configuration: seconds a step, and what each rank holds."""

    seconds: float
    rank_memory: tuple[Memory, ...] = ()


Predictor = Callable[[Sequence[Case], Sequence[Record]], Mapping[str, StudyPrediction]]
"""Predicts configurations, from their records where it needs them; by case id, those alone that it can."""


@dataclass(frozen=True)
class StudyResult:
    """One configuration: the record of each of its experiments, and what laws say of it.

    The experiment, a set of processes started anew, is the unit: steps within one resemble each other. Rates are those
    of experiments that are `timed`; without one there are none.
    """

    trials: tuple[Record, ...]
    prediction: StudyPrediction | None = None

    @cached_property
    def case(self) -> Case:
        """The same in all its records."""
        return self.trials[0].parsed_case()

    @property
    def parameters(self) -> Any:
        return self.case.parameters

    @property
    def name(self) -> str:
        """As in `dp2 zero1 flash`."""
        return str(self.parameters.name)

    @cached_property
    def timed(self) -> list[Record]:
        return [each for each in self.trials if each.outcome == "ok" and min(each.kept_seconds, default=0) > 0]

    @property
    def lost(self) -> list[Record]:
        return [trial for trial in self.trials if trial not in self.timed]

    @cached_property
    def rates(self) -> list[float]:
        """Samples per second of each experiment, over the time of all its steps."""
        steps = [trial.kept_seconds for trial in self.timed]
        return [self.parameters.global_batch * len(each) / math.fsum(each) for each in steps]

    @cached_property
    def rate(self) -> float:
        """The mean over experiments."""
        return statistics.fmean(self.rates)

    @property
    def error(self) -> float | None:
        """The standard deviation of the mean over experiments, None of a single one."""
        return statistics.stdev(self.rates) / math.sqrt(len(self.rates)) if len(self.rates) > 1 else None

    @property
    def median(self) -> tuple[Quantity, float]:
        """Of each experiment's median step, and the confidence of its bounds: 75 % for three, no bounds for one."""
        usual = [self.parameters.global_batch / statistics.median(each.kept_seconds) for each in self.timed]
        found = median_interval(usual, CONFIDENCE, effective=len(usual))
        low, high = (found.low, found.high) if len(usual) > 1 else (math.nan, math.nan)
        return Quantity(statistics.median(usual), "samples/s", low, high, len(usual)), found.confidence

    @cached_property
    def reading(self) -> Reading:
        """Seconds a step, of each experiment by the mean of its steps, as its samples per second are counted."""
        usual = readings(self.timed)[0]
        times = {trial.process: statistics.fmean(trial.kept_seconds) for trial in self.timed}
        half = (usual.high - usual.low) / 2 if len(times) == 1 else 0.0
        low, high = min(times.values()) - half, max(times.values()) + half
        return replace(usual, seconds=statistics.median(times.values()), low=low, high=high, by_process=times)

    @cached_property
    def rank_memory(self) -> tuple[Memory, ...]:
        """Of each rank as the engine counted it; the same in each experiment, so the last one's."""
        reported = self.timed[-1].kernel.get("details", {}).get("rank_bytes") if self.timed else None
        columns = reported if isinstance(reported, dict) else {}
        known = {part: [columns[name] for name in names if name in columns] for part, names in PARTS.items()}
        return tuple(
            {part: float(sum(each[rank] for each in counted)) for part, counted in known.items() if counted}
            for rank in range(min(map(len, columns.values()), default=0))
        )

    @property
    def memory(self) -> Memory:
        """Of the fullest rank; nothing where nobody counted."""
        return max(self.rank_memory, key=held, default={})

    @property
    def predicted_memory(self) -> Memory:
        return max(self.prediction.rank_memory, key=held, default={}) if self.prediction else {}

    @property
    def flop_per_s(self) -> float:
        """The model's own FLOPs, what checkpointing computes again left out, over all ranks."""
        return self.rate * float(model_flop(self.parameters.dimensions, 1, self.parameters.seq))

    @property
    def mfu(self) -> float | None:
        """Share of all GPUs' peak by their data sheet; None on a CPU and for a GPU without one."""
        gpu = gpu_of(self.trials[0].identity)
        peak = gpu and gpu.peak_flop_per_s.get(DTYPE_OF_LAW[self.parameters.dtype])
        return float(utilization(self.flop_per_s, 1.0, self.parameters.ranks, peak)) if peak else None

    @property
    def predicted_rate(self) -> float | None:
        return self.parameters.global_batch / self.prediction.seconds if self.prediction else None

    @property
    def time_error(self) -> float | None:
        return self.prediction.seconds / self.reading.seconds - 1 if self.prediction else None

    @property
    def memory_error(self) -> float | None:
        """Predicted over counted bytes of the fullest rank, less 1, of the parts that are both; None without any."""
        both = [(law, self.memory[name]) for name, law in self.predicted_memory.items() if name in self.memory]
        counted_bytes = sum(counted for _, counted in both)
        return sum(law for law, _ in both) / counted_bytes - 1 if counted_bytes else None


def held(memory: Memory) -> float:
    """All bytes of a rank: its peak, or the sum of its parts where that is not known."""
    return memory["peak"] if "peak" in memory else sum(memory.values())


def results_of(records: Iterable[Record], predictor: Predictor | None = None) -> list[StudyResult]:
    """One result a configuration: the fastest first, then those that gave no time, in the order they were tried."""
    latest: dict[str, dict[int, Record]] = {}
    for record in records:
        if record.case.get("operator") == OPERATOR and record.kind == "timing":
            # A later trial of the same experiment is one that was resumed: it stands.
            latest.setdefault(record.case_id, {})[record.process] = record
    found = [StudyResult(tuple(trials.values())) for trials in latest.values()]
    if predictor is not None and found:
        predicted = predictor([each.case for each in found], [trial for each in found for trial in each.trials])
        found = [replace(each, prediction=predicted.get(each.case.case_id)) for each in found]
    return sorted(found, key=lambda each: -each.rate if each.timed else 0.0)


# 2.7 B parameters on 16 A100 of Polaris, samples/s over 5 steps, in decreasing order: ZeRO 1 with flash attention, ZeRO
# 1 without, ZeRO 2, ZeRO 3, pipelines; what is checkpointed is behind all that is not.
SEED = "Megatron-DeepSpeed performance study, 2.7 B parameters on 16 GPUs, 2023"
FLASH = Claim("flash attention before none", SEED, low=1.0)
ZERO_2 = Claim("ZeRO 1 before ZeRO 2", SEED, low=1.0)
ZERO_3 = Claim("ZeRO 2 before ZeRO 3", SEED, low=1.0)
PIPELINE = Claim("no pipeline before any", SEED, low=1.0)
CHECKPOINTING = Claim("nothing checkpointed before activations checkpointed", SEED, low=1.0)

KEEP, AGAIN = Checkpointing("none"), Checkpointing("every")
# Of fewer configurations an order says nothing.
FEWEST_IN_ORDER = 3
LONGEST_REASON, LONGEST_NOTE = 160, 90
ALL = "all parts"

Change = Callable[[ParallelStepParameters], ParallelStepParameters | None]


def _turned(name: str, own: Container[Any], other: Any) -> Change:
    """One parameter turned from any of these values into another."""
    return lambda p: replace(p, **{name: other}) if getattr(p, name) in own else None


def _recut(way: str) -> Change:
    """Data-parallel ranks turned into as many of another way; the global batch and the micro-batch stay."""

    def change(p: ParallelStepParameters) -> ParallelStepParameters | None:
        other: dict[str, Any] = {"data": 1, "micro_batches": p.micro_batches * p.data, way: p.data}
        return replace(p, **other) if p.data > 1 and p.ranks == p.data and not p.zero_stage else None

    return change


# The published claim, one way to train, the other, and the parameters that the other differs in, none without one.
COMPARED: tuple[tuple[Claim | None, str, str, Change], ...] = (
    (FLASH, "flash attention", "the math backend", _turned("attention", ("flash", "sdpa"), "math")),
    (None, "ZeRO 1", "DDP, which keeps all states on all ranks", _turned("zero_stage", (1,), 0)),
    (ZERO_2, "ZeRO 1", "ZeRO 2", _turned("zero_stage", (1,), 2)),
    (ZERO_3, "ZeRO 2", "ZeRO 3", _turned("zero_stage", (2,), 3)),
    (None, "data parallelism", "tensor parallelism", _recut("tensor")),
    (PIPELINE, "data parallelism", "a pipeline", _recut("pipeline")),
    (None, "the interleaved schedule", "1F1B", _turned("chunks", range(2, MOST_RANKS + 1), 1)),
    (CHECKPOINTING, "activations kept", "activations computed again", _turned("checkpointing", (KEEP,), AGAIN)),
)


def _bytes_of(part: str) -> Column:
    return Column(part, lambda each: each.memory.get(part), "MB", priority=0)


def _sum_of_parts(result: StudyResult) -> float | None:
    """None where it says no more than another column."""
    return held(result.memory) if len(result.memory) > 1 and "peak" not in result.memory else None


COLUMNS = (
    Column("configuration", "name", priority=2),
    Column("ranks", lambda each: each.parameters.ranks),
    Column("micro-batch", lambda each: f"{each.parameters.batch} x {each.parameters.micro_batches}", priority=0),
    Column("mean", "rate", "samples/s", priority=2),
    Column("± error", "error", "samples/s"),
    Column("median", lambda each: each.median[0], "samples/s"),
    Column("rate", lambda each: each.rate * each.parameters.seq, "tokens/s", priority=0),
    Column("MFU", "mfu", "%"),
    Column("predicted", "predicted_rate", "samples/s", predicted=True),
    Column("time off", "time_error", "+%"),
    *map(_bytes_of, PARTS),
    Column("memory", _sum_of_parts, "MB"),
    Column("predicted memory", lambda each: held(each.predicted_memory) or None, "MB", priority=0, predicted=True),
    Column("memory off", "memory_error", "+%"),
)
LOST = (
    Column("configuration", "name", priority=2),
    Column("outcome", lambda each: each.lost[0].outcome),
    Column("experiments lost", lambda each: len(each.lost)),
    Column("of", lambda each: len(each.trials)),
    Column("reason", lambda each: textwrap.shorten(each.lost[0].reason, LONGEST_REASON), priority=2),
)


def analyse(rows: Rows, predictor: Predictor | None = None) -> Findings:
    """What the configurations of each model and batch say; predictions beside them where somebody makes them."""
    found = list(grouped(results_of(rows.records, predictor), _model).values())
    names = ["study"] if len(found) == 1 else [f"study_{number}" for number in range(1, len(found) + 1)]
    return findings(map(_of_model, found, names))


def _model(result: StudyResult) -> tuple[Any, ...]:
    """What configurations have in common that are compared."""
    p = result.parameters
    return p.dimensions, p.seq, p.global_batch, p.dtype


def _of_model(found: Sequence[StudyResult], name: str) -> Iterator[Any]:
    timed, p = [each for each in found if each.timed], found[0].parameters
    model = (
        f"{'Llama' if p.gated else 'GPT'} of {p.layers} layers, hidden {p.hidden}, {p.heads} heads, seq {p.seq}, "
        f"{p.dtype}, global batch {p.global_batch}"
    )
    if lost := [each.name for each in found if not each.timed]:
        sentence = "{lost} of {configurations} configurations gave no time: {names}"
        yield remark(sentence, kind="caution", lost=len(lost), configurations=len(found), names=", ".join(lost))
    if timed:
        yield _how_taken(min(timed, key=lambda each: len(each.rates)))
        yield _fastest(model, timed, len(found))
        if len(timed) > 1 and (lead := _faster([(timed[1], timed[0])])):
            sentence = "{configuration} trains {lead} as fast as the next, {next}"
            yield remark(sentence, effect="lead", configuration=timed[0].name, lead=lead, next=timed[1].name)
        yield from (_compared(timed, *each) for each in COMPARED)
        yield _least_memory(timed)
        yield table(model, COLUMNS, timed)
        yield from _agreement([each for each in timed if each.prediction])
        yield _figure(model, found, name)
    yield table("Experiments without a time", LOST, (each for each in found if each.lost))


def _how_taken(fewest: StudyResult) -> Remark:
    """How much is known of what differs between experiments."""
    if fewest.error is None:
        return remark("One experiment has no error: --experiments 3 shows how far experiments differ", kind="caution")
    return remark(
        "Rates are means over {experiments} experiments; intervals of medians have a confidence of {confidence:%}",
        experiments=len(fewest.rates),
        confidence=fewest.median[1],
    )


def _fastest(model: str, timed: Sequence[StudyResult], configurations: int) -> Remark:
    """What it gains is how much the choice matters: its speed relative to the slowest."""
    best, slowest = timed[0], timed[-1]
    gain = _faster([(slowest, best)]) if len(timed) > 1 else None
    place = "the fastest of {configurations} configurations" if configurations > 1 else "the only configuration"
    place += ", {gain} as fast as the slowest, {slowest}" if gain else ""
    return remark(
        f"{{configuration}} is {place}: {{rate}}, {{flop}} ({{model}}, {{size}} parameters)",
        # It is reported even where noise could explain the gain.
        effect="gain" if gain and not (gain.has_interval and not gain.excludes(1.0)) else "",
        configuration=best.name,
        configurations=configurations,
        gain=gain,
        slowest=slowest.name,
        rate=Quantity(best.rate, "samples/s"),
        flop=Quantity(best.flop_per_s, "TFLOP/s"),
        model=model,
        size=Quantity(float(best.parameters.dimensions.parameters), "count"),
    )


def _faster(pairs: Sequence[tuple[StudyResult, StudyResult]]) -> Quantity | None:
    """How many times as fast the second of each pair is, in the mean; of a single experiment without bounds.

    Its steps know nothing of what differs between experiments.
    """
    ratio = mean_speedup([(slow.reading, fast.reading) for slow, fast in pairs])
    if ratio is None:
        return None
    return Quantity(ratio.value, "x", processes=1) if ratio.processes == 1 else quantity(ratio)


def _compared(
    timed: Sequence[StudyResult], claim: Claim | None, way: str, other: str, change: Change
) -> Remark | ClaimVerdict | None:
    by_case = {each.case: each for each in timed}
    pairs = [
        (slow, fast)
        for fast in timed
        if (changed := change(fast.parameters)) is not None
        if (slow := by_case.get(replace(fast.case, parameters=changed))) is not None
    ]
    measured = _faster(pairs)
    if measured is None:
        return None
    slow, fast = pairs[0]
    where = "{fast} compared with {slow}" if len(pairs) == 1 else "mean of {pairs} pairs that differ in nothing else"
    sentence = f"Training with {{way}} is {{measured}} as fast as with {{other}} ({where})"
    values: dict[str, Any] = {"way": way, "other": other, "fast": fast.name, "slow": slow.name, "pairs": len(pairs)}
    if claim is not None:
        return claim.judge(sentence, measured, remedy="--experiments 3 has three", **values)
    return remark(sentence, effect="measured", measured=measured, **values)


def _least_memory(timed: Sequence[StudyResult]) -> Remark | None:
    best = timed[0]
    least = min((each for each in timed if each.memory), key=lambda each: held(each.memory), default=best)
    if least is best or not best.memory:
        return None
    return remark(
        "{configuration} holds the least memory a rank: {held:MB}, {share:x} that of the fastest, at {rate:x} its rate",
        effect="share",
        configuration=least.name,
        held=held(least.memory),
        share=held(least.memory) / held(best.memory),
        rate=least.rate / best.rate,
    )


def _agreement(predicted: Sequence[StudyResult]) -> Iterator[Remark | Table]:
    laws = [each.prediction for each in predicted if each.prediction]
    if not laws:
        return
    errors = [abs(each.time_error or 0.0) for each in predicted]
    yield remark(
        "Predicted times of {count} configurations are off by {median} (median; worst {worst}); the rank correlation "
        "of predicted with measured times is {order} (Spearman)",
        kind="law",
        **misses(errors),
        order=rank_correlation([law.seconds for law in laws], [each.reading.seconds for each in predicted]),
    )
    both = [(law.rank_memory, each.rank_memory) for law, each in zip(laws, predicted, strict=True)]
    weighed = [list(zip(*pair, strict=True)) for pair in both if pair[0] and len(pair[0]) == len(pair[1])]
    if worst := memory_errors([rank for ranks in weighed for rank in ranks]):
        sentence = "Predicted memory of every rank of {configurations} configurations is off by {error:%} at most"
        yield remark(sentence, kind="law", configurations=len(weighed), error=worst[ALL])
        columns = (Column("part", lambda each: each[0]), Column("worst error of a rank", lambda each: each[1], "%"))
        yield table("Predicted memory", columns, worst.items())


def rank_correlation(some: Sequence[float], others: Sequence[float]) -> float | None:
    """Spearman's; None of fewer than three values, and where all on one side are equal."""
    if len(some) < FEWEST_IN_ORDER or 1 in (len(set(some)), len(set(others))):
        return None
    # In scipy.stats too, which takes a second to import. Equal values share the mean of their places.
    places = [np.sum(np.sign(np.subtract.outer(side, side)), axis=1) for side in (some, others)]
    return float(np.corrcoef(*places)[0, 1])


def memory_errors(ranks: Sequence[tuple[Memory, Memory]]) -> dict[str, float]:
    """Of (predicted, counted) bytes by part, the worst relative error of each part that is both; 0 is exact."""
    worst: dict[str, float] = {}
    for law, counted in ranks:
        both = {name: (law[name], counted[name]) for name in PARTS if name in law and name in counted}
        both[ALL] = (sum(each for each, _ in both.values()), sum(each for _, each in both.values()))
        for name, (law_bytes, counted_bytes) in both.items():
            off = abs(law_bytes - counted_bytes)
            worst[name] = max(worst.get(name, 0.0), off / counted_bytes if counted_bytes else math.inf if off else 0.0)
    return worst


def _figure(model: str, found: Sequence[StudyResult], name: str) -> Figure:
    label, marks = "measured (mean ± standard error over experiments)", "predicted by the laws"
    caption = "Samples per second over all steps of an experiment, the fastest on top, beside what laws predict."
    bars = Bars("", "samples/s", tuple(map(_bar, found)), label, marks, "samples/s")
    return Figure(name, model, caption, ((bars,),))


def _bar(result: StudyResult) -> Bar:
    if not result.timed:
        lost = result.lost[0]
        return Bar(result.name, math.nan, note=textwrap.shorten(f"{lost.outcome}: {lost.reason}", LONGEST_NOTE))
    return Bar(result.name, result.rate, result.error or math.nan, result.predicted_rate or math.nan)


PROBE = Probe(
    name="study",
    question="Which way to cut a training step over ranks is fastest here, and what does each way cost and hold?",
    topic="the whole step",
    title="Study of configurations",
    axes=axes,
    sweep=cases_of,
    analyse=analyse,
    group=lambda _: "study",
    # Each trial starts a launcher anew, minutes in all: a run that names no probe, and pytest's table, leave it out.
    is_timed=False,
    has_items=False,
)
