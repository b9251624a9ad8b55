"""The answer of `layout` as findings: the fastest layouts, where time and memory go, the rules, what was excluded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from pyperf_suite.findings.data import Findings, Quantity, Remark, Table, findings, remark
from pyperf_suite.findings.rows import Column, table
from pyperf_suite.planner.laws.collectives import usual_network_bytes_per_s
from pyperf_suite.planner.laws.explained import counted
from pyperf_suite.planner.laws.prices import UnseenPrices
from pyperf_suite.planner.laws.training.framework import KINDS, LOW_PRECISION, MEANT
from pyperf_suite.planner.laws.training.offload import BUS_SHARE, HOST_SHARE, MEANT_BY, UNSURE
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.laws.training.step import kind_of
from pyperf_suite.planner.layout.grid import WRITTEN, Training, written
from pyperf_suite.planner.layout.plan import (
    DAY_S,
    ENOUGH,
    VERDICTS,
    Budget,
    LayoutRule,
    Planned,
    PredictedLayout,
    described_step,
    ends_of,
    rules,
    smallest_network,
    surely_faster,
)

NO_BUDGET = Budget()
# Extrapolated shares of the time that are worth a mark.
MARKED_SHARE = 0.05

# A ranked layout, and the share of its time for which the laws extrapolate.
Ranked = tuple[PredictedLayout, float]


@dataclass(frozen=True)
class LayoutAnswer:
    """The answer: `top` ranked, `splits` the best of each split, and `excluded`, which are faster but do not fit.

    With each excluded layout stands the nearest that fits.
    """

    planned: Planned
    top: tuple[Ranked, ...]
    splits: tuple[Ranked, ...]
    rules: tuple[LayoutRule, ...]
    excluded: tuple[tuple[PredictedLayout, PredictedLayout], ...]
    laws: UnseenPrices
    notes: tuple[str, ...] = ()


def layout_answer(planned: Planned, most: int, notes: Sequence[str] = ()) -> LayoutAnswer:
    """Work out the answer, of each list at most so many."""
    top = planned.ranked[:most].tolist()
    splits = planned.best_of_splits(planned.ranked, most)
    shares, laws = planned.unseen([*top, *splits])
    ranked = [(planned.at(place), share) for place, share in zip([*top, *splits], shares, strict=True)]
    faster = planned.fastest(~planned.fits & (planned.seconds < planned.best.seconds))
    excluded = [(planned.at(place), planned.nearest_that_fits(place)) for place in planned.best_of_splits(faster, most)]
    return LayoutAnswer(
        planned,
        tuple(ranked[: len(top)]),
        tuple(ranked[len(top) :]),
        tuple(rules(planned)),
        tuple(excluded),
        laws,
        tuple(notes),
    )


def findings_of_layouts(answer: LayoutAnswer, budget: Budget = NO_BUDGET) -> Findings:
    """The fastest layout that fits surely, a faster one that may not, what that stands on, and tables."""
    best, surest = answer.planned.best, answer.planned.surest
    what = "Faster, if it fits, is " if surest else "Fastest is "
    return findings(
        _fastest(answer.planned, surest, "Fastest that fits surely is ") if surest else None,
        _fastest(answer.planned, best, what) if best != surest else None,
        budgeted(answer.planned, surest or best, budget),
        _training(answer.planned, answer.planned.best),
        _counted_layouts(answer.planned),
        _choice(answer.planned),
        _network(answer.planned),
        _host(answer.planned, _shown(answer)),
        enough(answer.planned, answer.planned.best),
        _engines(answer.planned, _shown(answer)),
        _errors(answer),
        _untested(_shown(answer)),
        (remark(note, kind="caution") for note in answer.notes),
        _ranking("Fastest layouts (predicted)", answer.top),
        _ranking("Best of each split (predicted)", answer.splits),
        _shares(answer.top),
        _memory(answer.top),
        table("The recipe's rules", RULES, answer.rules),
        table("Faster, but too large", EXCLUDED, answer.excluded),
    )


def _fastest(planned: Planned, best: PredictedLayout, what: str) -> Iterator[Remark]:
    cluster = planned.cluster
    yield remark(
        "{what}{layout} under {framework}: {time} an iteration{interval}, {tokens} tokens a second, {mfu} of the peak "
        "(MFU), {memory} of {usable} usable on a GPU: {verdict}.",
        kind="predicted",
        what=what,
        layout=written(best.plan),
        framework=best.framework,
        time=Quantity(best.seconds, "duration", predicted=True),
        interval=interval_of(best),
        tokens=Quantity(best.tokens_per_s, "count", predicted=True),
        mfu=Quantity(best.mfu, "%", predicted=True),
        memory=Quantity(best.memory_bytes, "size", predicted=True),
        usable=Quantity(cluster.usable_bytes, "size"),
        verdict=best.verdict,
    )


def _training(planned: Planned, best: PredictedLayout) -> Iterator[Remark]:
    training, cluster = planned.training, planned.cluster
    model, dtype = training.model, training.dtype_on(cluster.gpu)
    yield remark(
        "{parameters} billion parameters{active}, {batch} an iteration, on {gpus} {gpu} in nodes of {node}, at the "
        "clocks of a sustained load. MFU is of the whole iteration, of the peak in {dtype}, and does not count masked "
        "pairs; by 6 FLOP an active parameter and token, 8 where layers are recomputed, a GPU does {rate}.",
        kind="predicted",
        parameters=Quantity(model.parameters / 1e9),
        active=f", {model.active_parameters / 1e9:.3g} of them active" if model.experts > 1 else "",
        dtype=dtype,
        batch=f"{counted(training.global_batch, 'sequence')} of {training.seq} tokens",
        gpus=cluster.gpus,
        gpu=cluster.gpu.name,
        node=cluster.gpus_per_node,
        rate=Quantity(best.flop_per_s, "TFLOP/s", predicted=True),
    )
    if dtype in LOW_PRECISION:
        yield remark(
            "Products of layers are computed in {dtype}; attention, the router, logits, norms, the optimizer and what "
            "is kept and sent stay as in bf16.",
            dtype=dtype,
        )


def _counted_layouts(planned: Planned) -> Iterator[Remark]:
    surely, perhaps, not_at_all = np.bincount(planned.verdicts, minlength=len(VERDICTS)).tolist()
    yield remark(
        "{evaluated} evaluated: {surely} fit surely, {perhaps} may not fit, {others} do not, by what frameworks were "
        "found to hold; {ranked} are ranked. All times are predictions, none was measured.",
        kind="predicted",
        evaluated=counted(len(planned.grid), "layout"),
        surely=surely,
        perhaps=perhaps,
        others=not_at_all,
        ranked=len(planned.ranked),
    )


def interval_of(predicted: PredictedLayout) -> str:
    """In words, empty where it is not known."""
    if np.isnan(predicted.low):
        return ""
    return f" (90 % interval {predicted.low:.3g} to {predicted.high:.3g} s)"


def _choice(planned: Planned) -> Remark:
    """How many layouts the laws cannot tell from the best."""
    error = (planned.error_percent() or 0.0) / 100
    if not error:
        return remark(
            "The laws' error on this GPU is not known: layouts that are a few percent apart are as good as each other.",
            kind="caution",
        )
    near = planned.ranked[planned.seconds[planned.ranked] <= (1 + error) * planned.best.seconds]
    return remark(
        "Within the law's error of the fastest: {count} in {splits} of the GPUs. Try the best of a few splits.",
        kind="predicted",
        count=counted(len(near), "layout"),
        splits=counted(len(planned.best_of_splits(near, len(near) or 1)), "split"),
    )


def _network(planned: Planned) -> Remark | None:
    cluster, network = planned.cluster, planned.cluster.network or planned.usual.constants.network
    if cluster.gpus <= cluster.gpus_per_node:
        return None
    how = "during computation where possible" if planned.training.overlap else "after computation"
    if isinstance(network, tuple):
        points = "Between nodes collectives take as long as the {count} measured points say; "
        return remark(points + "gradients and parameters are sent {how}.", count=len(network), how=how)
    return remark(
        "Between nodes a GPU is assumed to send {rate} in one direction{whose} (--network names another); "
        "gradients and gathered parameters are sent {how}.",
        rate=Quantity(network or usual_network_bytes_per_s(cluster.gpu), "GB/s"),
        whose="" if network else ", the peak of what its maker's servers have",
        how=how,
    )


def _host(planned: Planned, predicted: Sequence[PredictedLayout]) -> Iterator[Remark]:
    """What is offloaded, where to, and what that was reckoned with."""
    kinds = dict.fromkeys(each.plan.offload for each in predicted if each.plan.offload != "none")
    if not kinds:
        return
    host, most = planned.cluster.hosted, max(each.memory["host"] for each in predicted)
    yield remark(
        "Offload is {what}. Of the host a GPU is assumed to have {bus} of bus each way, {memory} of memory bandwidth "
        "and {drives} of drives (peaks; copies reach {copied} of the bus, Adam on the CPU {reached} of the memory); "
        "what it takes may be {unsure} times less or longer.",
        kind="predicted",
        what="; ".join(f"{kind}: {MEANT_BY[kind]}" for kind in kinds),
        bus=Quantity(host.bus_bytes_per_s, "GB/s"),
        memory=Quantity(host.host_bytes_per_s, "GB/s"),
        drives=Quantity(host.nvme_bytes_per_s, "GB/s"),
        copied=Quantity(BUS_SHARE, "%"),
        reached=Quantity(HOST_SHARE, "%"),
        unsure=UNSURE,
    )
    known = "" if host.memory_bytes else ": whether it is there was not checked (--host-memory)"
    yield remark(
        "Offload needs up to {most} of the host's memory for each GPU{known}.",
        kind="caution" if known or not host.holds(most) else "predicted",
        most=Quantity(most, "size", predicted=True),
        known=known if host.holds(most) else ": more than nine tenths of what it has, so that it does not fit",
    )


def findings_of_given(given: Sequence[Planned], budget: Budget = NO_BUDGET, notes: Sequence[str] = ()) -> Findings:
    """One given layout with its parts, or two of them and which is faster; each `Planned` has a single layout."""
    shares = [each.unseen([0])[0][0] for each in given]
    rows = [(each.at(0), share) for each, share in zip(given, shares, strict=True)]
    known = {name: found for each in given for name, found in each.found.items()}
    first, priced = replace(given[0], found=known), [predicted for predicted, _ in rows]
    heads = ("",) if len(given) == 1 else ("A is ", "B is ")
    return findings(
        *((compared(first.training, *priced),) if len(given) == 2 else ()),
        *(_fastest(each, predicted, head) for each, predicted, head in zip(given, priced, heads, strict=True)),
        *(budgeted(each, predicted, budget) for each, predicted in zip(given, priced, strict=True)),
        _training(first, priced[0]),
        _network(first),
        _host(first, priced),
        *(enough(each, predicted) for each, predicted in zip(given, priced, strict=True)),
        _engines(first, priced),
        law_errors(first, priced),
        _untested(priced),
        (remark(note, kind="caution") for note in notes),
        _ranking("Layouts (predicted)", rows),
        _shares(rows),
        _memory(rows),
    )


def budgeted(planned: Planned, predicted: PredictedLayout, budget: Budget) -> Iterator[Remark]:
    """Days and dollars of a training, with their ends where the law states an interval."""
    gpus, tokens = planned.cluster.gpus, planned.training.global_batch * planned.training.seq
    days = [seconds / tokens / DAY_S for seconds in ends_of(predicted)]
    if budget.tokens:
        yield remark(
            "{gpus} GPUs train {tokens} tokens in {days} days.",
            kind="predicted",
            gpus=gpus,
            tokens=f"{budget.tokens:g}",
            days=_span([budget.tokens * each for each in days]),
        )
    for what, count in (("A billion tokens cost", 1e9), ("The whole training costs", budget.tokens)):
        if budget.price and count:
            yield remark(
                "{what} {dollars} dollars at {price} an hour and GPU.",
                kind="predicted",
                what=what,
                dollars=_span([24 * gpus * budget.price * count * each for each in days]),
                price=f"{budget.price:g}",
            )


def _span(values: Sequence[float]) -> str:
    first, *ends = (f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in values)
    return f"{first} ({ends[0]} to {ends[1]})" if ends else first


def enough(planned: Planned, predicted: PredictedLayout) -> Remark | None:
    """The smallest network with which the step is not much longer than with an endless one."""
    if planned.cluster.gpus <= planned.cluster.gpus_per_node:
        return None
    rate = smallest_network(planned, predicted.plan)
    if rate is None:
        return remark("{layout} needs next to no network between nodes.", layout=_short(predicted.plan))
    return remark(
        "{layout} needs {rate} a GPU between nodes: from there on an endless network would save less than {share} of "
        "the iteration.",
        kind="predicted",
        layout=_short(predicted.plan),
        rate=Quantity(rate, "GB/s", predicted=True),
        share=Quantity(ENOUGH, "%"),
    )


def compared(training: Training, first: PredictedLayout, second: PredictedLayout) -> Remark:
    """Which of two layouts is faster, and how sure that is."""
    chance = surely_faster(training, first, second)
    faster, slower, name = (first, second, "A") if chance >= 0.5 else (second, first, "B")
    return remark(
        "{name} is faster by {gain}, confidence {chance}: {layout}.",
        kind="predicted",
        name=name,
        gain=Quantity(1 - faster.seconds / slower.seconds, "%", predicted=True),
        chance=Quantity(max(chance, 1 - chance), "%"),
        layout=written(faster.plan),
    )


def _shown(answer: LayoutAnswer) -> list[PredictedLayout]:
    return [predicted for predicted, _ in (*answer.top, *answer.splits)]


def _engines(planned: Planned, predicted: Sequence[PredictedLayout]) -> Remark:
    """Whose constants stand for the frameworks shown."""
    shown = sorted({each.framework for each in predicted})
    meant = "; ".join(f"{name} is {MEANT[name]}" for name in shown)
    how = (
        ""
        if planned.training.framework
        else " By default ZeRO 2 and 3 run under fsdp2, else megatron, and deepspeed offloads what these cannot."
    )
    return remark("Frameworks: {meant}.{how}", meant=meant, how=how)


def _errors(answer: LayoutAnswer) -> Iterator[Remark]:
    yield from law_errors(answer.planned, _shown(answer))
    for law, error in answer.laws.errors.items():
        yield remark(
            "The law of {law} errs by {error} on measurements that it was not fitted on.",
            kind="law",
            law=law,
            error="an unknown amount" if error is None else Quantity(error / 100, "%"),
        )


def _untested(shown: Sequence[PredictedLayout]) -> Iterator[Remark]:
    if untested := sorted({name for predicted in shown for name in predicted.untested}):
        yield remark(
            "Of the frameworks shown no run that uses {what} was published: there the law was compared with none.",
            kind="caution",
            what=", ".join(untested),
        )


def law_errors(planned: Planned, shown: Sequence[PredictedLayout]) -> Iterator[Remark]:
    """How far off the law of a step was on runs whose source it had not seen, by framework."""
    for name in sorted({each.framework for each in shown}):
        found = planned.found[name]
        error = planned.error_percent(found)
        if error is None or np.isnan(error):
            continue
        yield remark(
            "The law of a step errs by {error} on runs under {framework} ({runs}) whose source its constants were "
            "not fitted on{elsewhere}.",
            kind="caution" if found.is_transferred else "law",
            error=Quantity(error / 100, "%"),
            framework=name,
            runs=KINDS[kind_of(planned.training.model, planned.training.dtype_on(planned.cluster.gpu))],
            elsewhere=f", none of them on {planned.cluster.gpu.name}: its interval is wider"
            if found.is_transferred
            else "",
        )


def _ranking(heading: str, rows: Sequence[Ranked]) -> Table:
    """Axes with one value in all rows are in the first remark, and the first to go on a narrow terminal."""
    axes = []
    for name, title in WRITTEN.items():
        values = {getattr(predicted.plan, name) for predicted, _ in rows}
        axes.append(Column(title, _of(f"plan.{name}"), priority=2 if len(values) > 1 else 0))
    return table(
        heading,
        (
            *axes,
            *((Column("framework", _of("framework")),) if len({each.framework for each, _ in rows}) > 1 else ()),
            Column("iteration", _of("seconds"), "duration", priority=2),
            Column("from", lambda row: None if np.isnan(row[0].low) else row[0].low, "duration"),
            Column("to", lambda row: None if np.isnan(row[0].high) else row[0].high, "duration"),
            Column("tokens/s", _of("tokens_per_s"), "count"),
            Column("MFU", _of("mfu"), "%"),
            Column("a GPU", _of("memory_bytes"), "GiB"),
            Column("memory", _of("verdict")),
            Column("extrapolated share of the time", lambda row: row[1] if row[1] >= MARKED_SHARE else None, "%"),
            Column("untested", lambda row: ", ".join(row[0].untested) or None, priority=0),
        ),
        rows,
    )


def _of(name: str) -> Any:
    """The value of a ranked layout's attribute."""
    get = attrgetter(name)
    return lambda row: get(row[0])


def _shares(rows: Sequence[Ranked]) -> Table:
    def share(name: str) -> Any:
        return lambda row: row[0].parts.get(name, 0.0) / row[0].seconds

    return table(
        "Where the iteration goes (tensor, context, experts, gradients, parameters: what is waited for)",
        (LAYOUT, *(Column(name, share(name), "%") for name in _parts([each.parts for each, _ in rows], 0.0005))),
        rows,
    )


def _memory(rows: Sequence[Ranked]) -> Table:
    def taken(name: str) -> Any:
        return lambda row: row[0].memory[name]

    parts = [Column(name, taken(name), "GiB") for name in _parts([each.memory for each, _ in rows], 0.0)]
    total = Column("on the GPU", _of("memory_bytes"), "GiB", priority=2)
    return table("Memory of the fullest GPU", (LAYOUT, *parts, total), rows)


def _parts(rows: Sequence[Mapping[str, float]], share: float) -> list[str]:
    """The parts that are anything in any row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if any(row.get(name, 0.0) > share * sum(row.values()) for row in rows)]


def _short(layout: ParallelPlan) -> str:
    """A layout in few letters: "DP8 TP4 PP2x3 Z1 mb2 re-layers"."""
    chunks = f"x{layout.chunks}" if layout.chunks > 1 else ""
    words = [f"DP{layout.data}", f"TP{layout.tensor}", f"PP{layout.pipeline}{chunks}"]
    words += [f"{name}{size}" for name, size in (("CP", layout.context), ("EP", layout.expert)) if size > 1]
    words += [f"Z{layout.zero_stage}", f"mb{layout.micro_batch}"]
    words += [f"re-{layout.recompute}"] if layout.recompute != "nothing" else []
    return " ".join(words + ([f"off-{layout.offload}"] if layout.offload != "none" else []))


def _name(predicted: PredictedLayout | None) -> str:
    return "none fits" if predicted is None else _short(predicted.plan)


def _time(predicted: PredictedLayout | None) -> Quantity | None:
    return None if predicted is None else Quantity(predicted.seconds, "duration", predicted=True)


LAYOUT = Column("layout", lambda row: _short(row[0].plan), priority=2)
RULES = (
    Column("rule", lambda rule: rule.rule, priority=2),
    Column("here", lambda rule: rule.here),
    Column("laws agree", lambda rule: {True: "yes", False: "no", None: None}[rule.agrees], priority=2),
    Column("fastest that keeps it", lambda rule: _name(rule.kept)),
    Column("iteration", lambda rule: _time(rule.kept), "duration"),
    Column("fastest that does not", lambda rule: _name(rule.broken)),
    Column("iteration", lambda rule: _time(rule.broken), "duration"),
    Column("breaking it takes", lambda rule: rule.gain, "+%", priority=2),
)
EXCLUDED = (
    LAYOUT,
    Column("iteration", lambda row: _time(row[0]), "duration", priority=2),
    Column("a GPU", _of("memory_bytes"), "GiB"),
    Column("too much by", _of("over_bytes"), "size"),
    Column("memory", _of("verdict")),
    Column("nearest that fits", lambda row: described_step(row[0].plan, row[1].plan)),
    Column("iteration then", lambda row: _time(row[1]), "duration"),
)
