"""What a study says: which configuration is fastest, what each way of cutting costs, and how predictions kept up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pyperf_suite.operators.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.operators.training.shape import Checkpointing
from pyperf_suite.probes.study.agreement import agreement_of
from pyperf_suite.probes.study.figure import figures_of
from pyperf_suite.probes.study.results import Predictor, Result, results_of
from pyperf_suite.probes.study.tables import described_model, model_of, tables_of
from pyperf_suite.probes.training.claims import Claim
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import mean_speedup, speedup

# 2.7 B parameters on 16 A100 of Polaris, samples/s over 5 steps, in decreasing order: ZeRO 1 with flash attention, ZeRO
# 1 without, ZeRO 2, ZeRO 3, pipelines; what is checkpointed is behind all that is not.
SEED = "Megatron-DeepSpeed performance study, 2.7 B parameters on 16 GPUs, 2023"
FLASH = Claim("flash attention before none", SEED, low=1.0)
ZERO_2 = Claim("ZeRO 1 before ZeRO 2", SEED, low=1.0)
ZERO_3 = Claim("ZeRO 2 before ZeRO 3", SEED, low=1.0)
PIPELINE = Claim("no pipeline before any", SEED, low=1.0)
CHECKPOINTING = Claim("nothing checkpointed before activations checkpointed", SEED, low=1.0)

Parameters = ParallelStepParameters
FUSED = ("flash", "sdpa")


def explain(records: Sequence[Record], predictor: Predictor | None = None) -> Findings:
    """Sentences, a table and bars of each model that was studied; predictions beside them where somebody makes them."""
    results = results_of(records, predictor)
    models: dict[object, list[Result]] = {}
    for each in results:
        models.setdefault(model_of(each), []).append(each)
    sentences = [sentence for found in models.values() for sentence in _sentences(found)]
    tables = [table for found in models.values() for table in tables_of(found)]
    figures = [
        figure for number, found in enumerate(models.values(), 1) for figure in figures_of(found, number, len(models))
    ]
    return Findings(tuple(sentences), tuple(tables), tuple(figures))


def _sentences(found: Sequence[Result]) -> Iterator[str]:
    timed = [each for each in found if each.rate]
    if timed:
        yield _fastest(found, timed)
        yield from _costs(timed)
        yield from _least_memory(timed)
        yield from _predicted(timed)
        yield _how_taken(timed)
    yield from _lost(found)


def _fastest(found: Sequence[Result], timed: Sequence[Result]) -> str:
    """Which one, at which rate, and by how much before the next."""
    best = timed[0]
    assert best.rate is not None
    count = len(found)
    told = f"{described_model(best)}: {_rate(best)} samples/s"
    told += f" ({best.tokens_per_s:,.0f} tokens/s, {_flop(best.flop_per_s or 0.0)}"
    told += f", {100 * best.mfu:.1f} % of the data sheet's" if best.mfu else ""
    of = f"fastest of {count} configurations" if count > 1 else "the only configuration"
    told += f") with {best.parameters.name}, {of}"
    if len(timed) > 1 and timed[1].reading and best.reading:
        ratio = speedup(timed[1].reading, best.reading)
        told += f"; {ratio} x the next, {timed[1].parameters.name}" if ratio else ""
    return told + "."


def _costs(timed: Sequence[Result]) -> Iterator[str]:
    """Each way of cutting beside the same ranks cut otherwise, as a mean over all pairs that differ in nothing else."""

    def other(change: Callable[[Parameters], Parameters | None]) -> list[tuple[Result, Result]]:
        """(changed, itself) for each result of which the change was measured too."""
        by_parameters = {(each.parameters, each.case.implementation): each for each in timed}
        pairs = []
        for each in timed:
            changed = change(each.parameters)
            if changed is not None and (changed, each.case.implementation) in by_parameters:
                pairs.append((by_parameters[changed, each.case.implementation], each))
        return pairs

    flash = other(lambda p: replace(p, attention="math") if p.attention in FUSED else None)
    yield from _claimed(FLASH, "Flash attention trains {} x as fast as plain products (math)", flash)
    sharded = other(lambda p: replace(p, zero_stage=1) if p.zero_stage == 0 and p.data > 1 else None)
    yield from _said("ZeRO 1 trains at {} x the rate of DDP, which keeps all states on all ranks", sharded, True)
    stage_2 = other(lambda p: replace(p, zero_stage=2) if p.zero_stage == 1 else None)
    yield from _claimed(ZERO_2, "ZeRO 1 trains {} x as fast as ZeRO 2", stage_2)
    stage_3 = other(lambda p: replace(p, zero_stage=3) if p.zero_stage == 2 else None)
    yield from _claimed(ZERO_3, "ZeRO 2 trains {} x as fast as ZeRO 3", stage_3)
    tensor = other(lambda p: _recut(p, "tensor"))
    yield from _said("Data parallelism trains {} x as fast as tensor parallelism on as many ranks", tensor)
    pipeline = other(lambda p: _recut(p, "pipeline"))
    yield from _claimed(PIPELINE, "Data parallelism trains {} x as fast as a pipeline on as many ranks", pipeline)
    chunks = [
        pair
        for pair in other(lambda p: replace(p, chunks=1) if p.chunks > 1 else None)
        if pair[1].parameters.pipeline > 1
    ]
    yield from _said("The interleaved schedule trains {} x as fast as 1F1B", chunks)
    dropped = other(lambda p: replace(p, checkpointing=Checkpointing("every")) if _keeps_all(p) else None)
    yield from _claimed(CHECKPOINTING, "Keeping activations trains {} x as fast as computing them again", dropped)


def _keeps_all(p: Parameters) -> bool:
    return p.checkpointing.kind == "none"


def _recut(p: Parameters, way: str) -> Parameters | None:
    """Data-parallel ranks turned into as many of another way; the global batch and the micro-batch stay."""
    if p.data == 1 or p.zero_stage or p.ranks != p.data:
        return None
    cut = replace(p, data=1, micro_batches=p.micro_batches * p.data)
    return replace(cut, tensor=p.data) if way == "tensor" else replace(cut, pipeline=p.data)


Pairs = Sequence[tuple[Result, Result]]


def _where(pairs: Pairs) -> str:
    if len(pairs) == 1:
        slow, fast = pairs[0]
        return f"({fast.parameters.name} against {slow.parameters.name})"
    return f"(mean of {len(pairs)} pairs that differ in nothing else)"


def _claimed(claim: Claim, subject: str, pairs: Pairs) -> Iterator[str]:
    ratio = mean_speedup([(slow.reading, fast.reading) for slow, fast in pairs if slow.reading and fast.reading])
    if ratio is not None:
        yield claim.sentence(subject, ratio, _where(pairs), "--experiments 3 has three")


def _said(subject: str, pairs: Pairs, turned: bool = False) -> Iterator[str]:
    """The same where nobody has claimed anything; `turned` tells the changed one's rate over the other's."""
    ratio = mean_speedup([(slow.reading, fast.reading) for slow, fast in pairs if slow.reading and fast.reading])
    if ratio is not None:
        yield f"{subject.format(ratio.inverse if turned else ratio)} {_where(pairs)}."


def _least_memory(timed: Sequence[Result]) -> Iterator[str]:
    held = [each for each in timed if each.memory_total_bytes]
    if len(held) < 2:
        return
    least = min(held, key=lambda each: each.memory_total_bytes or math.inf)
    best = timed[0]
    if least is best or not (best.memory_total_bytes and least.memory_total_bytes and best.rate and least.rate):
        return
    yield (
        f"Least memory a rank: {least.parameters.name} with {least.memory_total_bytes / 1e6:,.1f} MB, "
        f"{least.memory_total_bytes / best.memory_total_bytes:.2f} x that of the fastest, at "
        f"{least.rate.mean / best.rate.mean:.2f} x its rate."
    )


def _predicted(timed: Sequence[Result]) -> Iterator[str]:
    """How the laws kept up, where somebody asked them."""
    agreed = agreement_of(timed)
    if agreed is not None:
        yield from agreed.sentences


def _how_taken(timed: Sequence[Result]) -> str:
    """What the figures are, so that nobody has to guess."""
    rates = [each.rate for each in timed if each.rate]
    experiments = sorted({len(rate.experiments) for rate in rates})
    counted = str(experiments[0]) if len(experiments) == 1 else f"{experiments[0]} to {experiments[-1]}"
    confidence = min(rate.confidence for rate in rates)
    plural = "s" if experiments[-1] > 1 else ""
    told = f"Samples/s are those of all steps of an experiment; {counted} experiment{plural} a configuration"
    if experiments[-1] == 1:
        return f"{told}, so that no error is known."
    return f"{told}: mean ± standard error, and median [{100 * confidence:.0f} % interval]."


def _lost(found: Sequence[Result]) -> Iterator[str]:
    """How many gave no time at all, and how many only in some experiments."""
    for outcome in ("failed", "unsupported"):
        lost = [each for each in found if not each.rate and each.outcome == outcome]
        if lost:
            names = ", ".join(each.parameters.name for each in lost[:3]) + (", ..." if len(lost) > 3 else "")
            yield f"{len(lost)} of {len(found)} configurations {outcome}: {names}; the reasons are at the table's end."
    partly = [each for each in found if each.rate and each.failed]
    for each in partly:
        yield f"{each.parameters.name} failed in {each.failed} of {each.visits} experiments: {each.reason}"


def _rate(result: Result) -> str:
    assert result.rate is not None
    if math.isnan(result.rate.standard_error):
        return f"{result.rate.mean:.4g}"
    return f"{result.rate.mean:.4g} ± {result.rate.standard_error:.2g}"


def _flop(flop_per_s: float) -> str:
    scale, unit = (1e15, "PFLOP/s") if flop_per_s >= 1e15 else (1e12, "TFLOP/s")
    if flop_per_s < 1e11:
        scale, unit = 1e9, "GFLOP/s"
    return f"{flop_per_s / scale:.3g} {unit}"
