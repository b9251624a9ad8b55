"""A study of layouts: the same training step cut over ranks in many ways, each run and ranked by samples per second."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyperf_suite.findings.data import Bar, Bars, Claim, ClaimVerdict, Figure, Findings, Remark, Table, findings, remark
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Column, Rows, grouped, table
from pyperf_suite.laws.training.memory import NEAR_LIMIT
from pyperf_suite.planner.study.grid import axes, cases_of
from pyperf_suite.planner.study.results import PARTS, StudyResult, results_of
from pyperf_suite.planner.study.search import SearchStep, search_steps
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.planner.workloads.parallel_step import WORKLOAD
from pyperf_suite.record.quantity import Quantity, quantity
from pyperf_suite.record.reading import mean_speedup
from pyperf_suite.workloads.on_ranks import MOST_RANKS
from pyperf_suite.workloads.training import Checkpointing

# 2.7 B parameters on 16 A100 of Polaris, samples/s over 5 steps, in decreasing order: ZeRO 1 with flash attention, ZeRO
# 1 without, ZeRO 2, ZeRO 3, pipelines; what is checkpointed is behind all that is not.
SEED = "Megatron-DeepSpeed performance study, 2.7 B parameters on 16 GPUs, 2023"
FLASH = Claim("flash attention before none", SEED, low=1.0)
ZERO_2 = Claim("ZeRO 1 before ZeRO 2", SEED, low=1.0)
ZERO_3 = Claim("ZeRO 2 before ZeRO 3", SEED, low=1.0)
PIPELINE = Claim("no pipeline before any", SEED, low=1.0)
CHECKPOINTING = Claim("nothing checkpointed before activations checkpointed", SEED, low=1.0)

KEEP, AGAIN = Checkpointing("none"), Checkpointing("every")
LONGEST_REASON, LONGEST_NOTE = 160, 90
COMPARABLE = ("dimensions", "seq", "global_batch", "dtype")

Change = Callable[[ParallelStepParameters], ParallelStepParameters | None]


def _turned(name: str, values: Container[Any], turned: Any) -> Change:
    """One parameter turned from any of these values into another."""
    return lambda p: replace(p, **{name: turned}) if getattr(p, name) in values else None


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
    (None, "shards on the device", "shards offloaded to the CPU", _turned("offload", ("none",), "cpu")),
    (None, "torch's engine", "DeepSpeed's", _turned("engine", ("torch",), "deepspeed")),
    (None, "the interleaved schedule", "1F1B", _turned("chunks", range(2, MOST_RANKS + 1), 1)),
    (CHECKPOINTING, "activations kept", "activations computed again", _turned("checkpointing", (KEEP,), AGAIN)),
)


def _bytes_of(part: str) -> Column:
    return Column(part, lambda each: each.memory.get(part), "MB", priority=0)


COLUMNS = (
    Column("configuration", "name", priority=2),
    Column("ranks", lambda each: each.parameters.ranks),
    Column("micro-batch", lambda each: f"{each.parameters.batch} x {each.parameters.micro_batches}", priority=0),
    Column("mean", "rate", "samples/s", priority=2),
    Column("± error", "error", "samples/s"),
    Column("median", lambda each: each.median[0], "samples/s"),
    Column("rate", lambda each: each.rate * each.parameters.seq, "tokens/s", priority=0),
    Column("MFU", "mfu", "%"),
    *map(_bytes_of, PARTS),
    Column("memory", lambda each: None if "peak" in each.memory else sum(each.memory.values()) or None, "MB"),
)
LOST = (
    Column("configuration", "name", priority=2),
    Column("outcome", lambda each: each.lost[0].outcome),
    Column("experiments lost", lambda each: len(each.lost)),
    Column("of", lambda each: len(each.trials)),
    Column("reason", lambda each: textwrap.shorten(each.lost[0].reason, LONGEST_REASON), priority=2),
)


def analyse(rows: Rows) -> Findings:
    """Return the speed of each model's and batch's configurations, and the course of a search."""
    steps, results = search_steps(rows.records), results_of(rows.records)
    if kept := [each.case for each in steps if each.is_kept]:
        # Pairs decide better than means over experiments of other times.
        results.sort(key=lambda each: each.case != kept[-1])
    # Configurations of one model, sequence and global batch are compared with each other.
    models = grouped(results, lambda each: tuple(getattr(each.parameters, name) for name in COMPARABLE))
    found = list(models.values())
    names = ["study"] if len(found) == 1 else [f"study_{number}" for number in range(1, len(found) + 1)]
    return findings(_searched(steps), map(_of_model, found, names))


PATH = (
    Column("step", "number"),
    Column("tried", "change", priority=2),
    Column("configuration", lambda each: each.case.parameters.name, priority=2),
    Column("micro-batch", lambda each: each.case.parameters.batch),
    Column("verdict", lambda each: each.verdict or "the run ended", priority=2),
    Column("pairs", lambda each: each.speed and each.speed.processes),
    Column("speed", "speed", "x", priority=2),
    Column("runs", "runs", priority=0),
)


def _searched(steps: Sequence[SearchStep]) -> Iterator[Remark | Table]:
    """Report the path of a search and its cost."""
    if not steps:
        return
    best = next((each for each in reversed(steps) if each.is_kept), None)
    runs, tried = sum(each.runs for each in steps), len({each.case for each in steps})
    sentence = "The search found no configuration that fits in {runs} runs of {tried} of {of} configurations"
    if best is not None:
        sentence = (
            "The search ended at {configuration} with micro-batches of {batch}, in {runs} runs of {tried} of {of} "
            "configurations"
        )
    p = best.case.parameters if best else None
    where = {"configuration": p.name, "batch": p.batch} if p else {}
    yield remark(sentence, runs=runs, tried=tried, of=steps[0].of, **where)
    yield table("The path of the search", PATH, steps)


def _of_model(results: Sequence[StudyResult], name: str) -> Iterator[Any]:
    timed, p = [each for each in results if each.timed], results[0].parameters
    model = (
        f"{'Llama' if p.gated else 'GPT'} of {p.layers} layers, hidden {p.hidden}, {p.heads} heads, seq {p.seq}, "
        f"{p.dtype}, global batch {p.global_batch}"
    )
    if lost := [each.name for each in results if not each.timed]:
        sentence = "{lost} of {configurations} configurations gave no time: {names}"
        yield remark(sentence, kind="caution", lost=len(lost), configurations=len(results), names=", ".join(lost))
    if timed:
        fewest = min(timed, key=lambda each: len(each.rates))
        if fewest.error is None:
            alone = "One experiment has no error: --experiments 3 shows how far experiments differ"
            yield remark(alone, kind="caution")
        else:
            sure = "Rates are means over {experiments} experiments; intervals of medians have a confidence of "
            yield remark(sure + "{confidence:%}", experiments=len(fewest.rates), confidence=fewest.median[1])
        yield _fastest(model, timed, len(results))
        yield from (_compared(timed, *each) for each in COMPARED)
        yield _headroom(timed)
        yield table(model, COLUMNS, timed)
        yield _figure(model, results, name)
    yield table("Experiments without a time", LOST, (each for each in results if each.lost))


def _fastest(model: str, timed: Sequence[StudyResult], configurations: int) -> Remark:
    """Name the fastest, with its speed relative to the slowest: how much the choice matters."""
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
    """Mean speed of the second of each pair relative to the first; of a single experiment without bounds.

    Its steps know nothing of what differs between experiments.
    """
    ratio = mean_speedup([(slow.reading, fast.reading) for slow, fast in pairs])
    if ratio is None:
        return None
    return Quantity(ratio.value, "x", processes=1) if ratio.processes == 1 else quantity(ratio)


def _compared(
    timed: Sequence[StudyResult], claim: Claim | None, way: str, rival: str, change: Change
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
    values: dict[str, Any] = {"way": way, "other": rival, "fast": fast.name, "slow": slow.name, "pairs": len(pairs)}
    if claim is not None:
        return claim.judge(sentence, measured, remedy="--experiments 3 has three", **values)
    return remark(sentence, effect="measured", measured=measured, **values)


def _headroom(timed: Sequence[StudyResult]) -> Remark | None:
    """Report the memory that the fastest leaves unused, and the worth of a larger micro-batch."""
    best = timed[0]
    if best.room is None:
        return None
    p, (used, limit) = best.parameters, best.room
    values: dict[str, Any] = {"configuration": best.name, "used": used, "limit": limit, "unused": limit - used}
    if used > NEAR_LIMIT * limit:
        sentence = "{configuration} takes {used:size} of the {limit:size} of a rank, within 5 % of the limit: "
        return remark(sentence + "fragmentation may end a long run", kind="caution", **values)
    sequences = p.batch * p.micro_batches
    room = NEAR_LIMIT * limit - used
    # All but weights, gradients and states grow with the micro-batch.
    states = sum(size for part, size in best.memory.items() if part not in ("activations", "peak"))
    growing_bytes = max(0.0, best.memory.get("peak", 0.0) - states)
    sizes = [size for size in range(p.batch, sequences // p.pipeline + 1) if sequences % size == 0]
    batch = max(size for size in sizes or [p.batch] if growing_bytes * (size / p.batch - 1) <= room)
    larger = replace(p, batch=batch, micro_batches=sequences // batch)
    measured = next((each for each in timed if each.case == replace(best.case, parameters=larger)), None)
    gain = _faster([(best, measured)]) if measured and measured is not best else None
    if batch == p.batch:
        worth = ", and no larger micro-batch than its {own} divides the global batch and fits"
    else:
        worth = ": its micro-batch could be {batch} instead of {own}"
        worth += ", which trains {gain} as fast" if gain else "; what that gains was not measured"
    sentence = "{configuration} leaves {unused:size} of the {limit:size} of a rank unused"
    return remark(sentence + worth, batch=batch, own=p.batch, gain=gain, **values)


def _figure(model: str, results: Sequence[StudyResult], name: str) -> Figure:
    label = "measured (mean ± standard error over experiments)"
    caption = "Samples per second over all steps of an experiment, the fastest on top."
    rows = []
    for each in results:
        if each.timed:
            rows.append(Bar(each.name, each.rate, each.error or math.nan))
        else:
            note = textwrap.shorten(f"{each.lost[0].outcome}: {each.lost[0].reason}", LONGEST_NOTE)
            rows.append(Bar(each.name, math.nan, note=note))
    bars = Bars("", "samples/s", tuple(rows), label, "", "samples/s")
    return Figure(name, model, caption, ((bars,),))


PROBE = Probe(
    name="study",
    question="Which way to cut a training step over ranks is fastest here, and what does each way cost and hold?",
    topic="the whole step",
    title="Study of configurations",
    axes=axes,
    sweep=cases_of,
    analyse=analyse,
    group=lambda _: "study",
    workload=WORKLOAD,
    # Each trial starts a launcher anew, minutes in all: a run that names no probe, and pytest's table, leave it out.
    is_timed=False,
    has_items=False,
)
