"""The answer of `layout` as findings: the fastest layouts, where time and memory go, the rules, what was excluded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pyperf_suite.findings.data import Findings, Remark, Table, findings, remark
from pyperf_suite.findings.rows import Column, table
from pyperf_suite.planner.laws.collectives import usual_network_bytes_per_s
from pyperf_suite.planner.laws.explained import counted
from pyperf_suite.planner.laws.training.framework import KINDS, LOW_PRECISION, MEANT
from pyperf_suite.planner.laws.training.offload import BUS_SHARE, HOST_SHARE, MEANT_BY, UNSURE
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.laws.training.step import kind_of
from pyperf_suite.planner.layout.grid import WRITTEN, Training, written
from pyperf_suite.planner.layout.plan import (
    MAX_NETWORK_SHARE,
    VERDICTS,
    Planned,
    PredictedLayout,
    are_equal,
    rules,
    smallest_network,
    surely_faster,
)
from pyperf_suite.record.quantity import Quantity

DAY_S = 86400.0
# Cost of a whole training, on request: tokens in all, and dollars a GPU and hour.
Budget = tuple[float | None, float | None]
NO_BUDGET: Budget = (None, None)


def findings_of_layouts(planned: Planned, rows: int, budget: Budget = NO_BUDGET, notes: Sequence[str] = ()) -> Findings:
    """The fastest layout that surely fits, a faster one that may not, what they stand on, and tables of layouts."""
    best, surest = planned.best, planned.surest
    top = [planned.at(place) for place in planned.ranked[:rows].tolist()]
    splits = [planned.at(place) for place in planned.best_of_splits(planned.ranked)[:rows].tolist()]
    faster = planned.fastest(~planned.fits & (planned.seconds < best.seconds))
    too_large = planned.best_of_splits(faster)[:rows].tolist()
    excluded = [(planned.at(place), planned.nearest_that_fits(place)) for place in too_large]
    return findings(
        _fastest(planned, surest, "Fastest that fits surely is ") if surest else None,
        _fastest(planned, best, "Faster, if it fits, is " if surest else "Fastest is ") if best != surest else None,
        _budgeted(planned, surest or best, budget),
        _training(planned, best),
        _counted_layouts(planned),
        _choice(planned),
        _enough(planned, best),
        _assumed(planned, [*top, *splits], notes),
        _ranking("Fastest layouts (predicted)", top),
        _ranking("Best of each split (predicted)", splits),
        _shares(top),
        _memory(top),
        table("The recipe's rules", RULES, rules(planned)),
        table("Faster, but too large", EXCLUDED, excluded),
    )


def findings_of_given(layouts: Sequence[Planned], budget: Budget = NO_BUDGET, notes: Sequence[str] = ()) -> Findings:
    """One given layout with its parts, or two of them and which is faster; each `Planned` has a single layout."""
    rows = [each.at(0) for each in layouts]
    heads = ("",) if len(layouts) == 1 else ("A is ", "B is ")
    return findings(
        _compared(layouts[0].training, *rows) if len(layouts) == 2 else None,
        *(_fastest(each, row, head) for each, row, head in zip(layouts, rows, heads, strict=True)),
        *(_budgeted(each, row, budget) for each, row in zip(layouts, rows, strict=True)),
        _training(layouts[0], rows[0]),
        *(_enough(each, row) for each, row in zip(layouts, rows, strict=True)),
        _assumed(replace(layouts[0], constants={**layouts[0].constants, **layouts[-1].constants}), rows, notes),
        _ranking("Layouts (predicted)", rows),
        _shares(rows),
        _memory(rows),
    )


def _fastest(planned: Planned, best: PredictedLayout, head: str) -> Remark:
    interval = "" if np.isnan(best.low) else f" (90 % interval {best.low:.3g} to {best.high:.3g} s)"
    return remark(
        "{what}{layout} under {framework}: {time} an iteration{interval}, {tokens} tokens a second, {mfu} of the peak "
        "(MFU), {memory} of {usable} usable on a GPU: {verdict}.",
        kind="predicted",
        what=head,
        layout=written(best.plan),
        framework=best.framework,
        time=Quantity(best.seconds, "duration", predicted=True),
        interval=interval,
        tokens=Quantity(best.tokens_per_s, "count", predicted=True),
        mfu=Quantity(best.mfu, "%", predicted=True),
        memory=Quantity(best.memory_bytes, "size", predicted=True),
        usable=Quantity(planned.cluster.usable_bytes, "size"),
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


def _counted_layouts(planned: Planned) -> Remark:
    surely, perhaps, not_at_all = np.bincount(planned.verdicts, minlength=len(VERDICTS)).tolist()
    return remark(
        "{evaluated} evaluated: {surely} fit surely, {perhaps} may not fit, {others} do not, by what frameworks were "
        "found to hold; {ranked} are ranked. All times are predictions, none was measured.",
        kind="predicted",
        evaluated=counted(len(planned.grid), "layout"),
        surely=surely,
        perhaps=perhaps,
        others=not_at_all,
        ranked=len(planned.ranked),
    )


def _choice(planned: Planned) -> Remark:
    """Count the layouts that the laws cannot tell from the best."""
    error = (planned.error_percent(planned.best.framework) or 0.0) / 100
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
        splits=counted(len(planned.best_of_splits(near)), "split"),
    )


def _enough(planned: Planned, predicted: PredictedLayout) -> Remark | None:
    """The smallest network with which the step is not much longer than with an endless one."""
    if planned.cluster.gpus <= planned.cluster.gpus_per_node:
        return None
    rate = smallest_network(planned, predicted.place)
    if rate is None:
        return remark("{layout} needs next to no network between nodes.", layout=_short(predicted.plan))
    return remark(
        "{layout} needs {rate} a GPU between nodes: from there on an endless network would save less than {share} of "
        "the iteration.",
        kind="predicted",
        layout=_short(predicted.plan),
        rate=Quantity(rate, "GB/s", predicted=True),
        share=Quantity(MAX_NETWORK_SHARE, "%"),
    )


def _assumed(planned: Planned, shown: Sequence[PredictedLayout], notes: Sequence[str]) -> Iterator[Remark | None]:
    """State the assumptions behind the layouts shown, and the law's error on such."""
    frameworks = sorted({each.framework for each in shown})
    yield _network(planned)
    yield from _host(planned, shown)
    usual = " Others are compared where --framework names several."
    yield remark(
        "Frameworks: {meant}.{how}",
        meant="; ".join(f"{name} is {MEANT[name]}" for name in frameworks),
        how="" if planned.training.framework else usual,
    )
    yield from (_law_error(planned, name) for name in frameworks)
    yield from (remark(note, kind="caution") for note in notes)


def _network(planned: Planned) -> Remark | None:
    cluster, network = planned.cluster, planned.cluster.network
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


def _host(planned: Planned, shown: Sequence[PredictedLayout]) -> Iterator[Remark]:
    """Name the offloads shown and the host that is assumed for them."""
    kinds = dict.fromkeys(each.plan.offload for each in shown if each.plan.offload != "none")
    if not kinds:
        return
    host, host_bytes = planned.cluster.hosted, max(each.memory["host"] for each in shown)
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
        kind="caution" if known or not host.holds(host_bytes) else "predicted",
        most=Quantity(host_bytes, "size", predicted=True),
        known=known if host.holds(host_bytes) else ": more than nine tenths of what it has, so that it does not fit",
    )


def _law_error(planned: Planned, framework: str) -> Remark | None:
    """State the error of the law of a step on runs whose source it had not seen."""
    error = planned.error_percent(framework)
    if error is None:
        return None
    cluster, another = planned.cluster, planned.constants[framework].is_transferred
    return remark(
        "The law of a step errs by {error} on runs under {framework} ({runs}) whose source its constants were "
        "not fitted on{elsewhere}.",
        kind="caution" if another else "law",
        error=Quantity(error / 100, "%"),
        framework=framework,
        runs=KINDS[kind_of(planned.training.model, planned.training.dtype_on(cluster.gpu))],
        elsewhere=f", none of them on {cluster.gpu.name}: its interval is wider" if another else "",
    )


def _budgeted(planned: Planned, predicted: PredictedLayout, budget: Budget) -> Iterator[Remark]:
    """Days and dollars of a training, with their ends where the law states an interval."""
    (tokens, price), gpus = budget, planned.cluster.gpus
    ends = [predicted.seconds] + ([] if np.isnan(predicted.low) else [predicted.low, predicted.high])
    days = [seconds / (planned.training.global_batch * planned.training.seq) / DAY_S for seconds in ends]
    if tokens:
        yield remark(
            "{gpus} GPUs train {tokens} tokens in {days} days.",
            kind="predicted",
            gpus=gpus,
            tokens=f"{tokens:g}",
            days=_span([tokens * each for each in days]),
        )
    for what, count in (("A billion tokens cost", 1e9), ("The whole training costs", tokens)):
        if price and count:
            yield remark(
                "{what} {dollars} dollars at {price} an hour and GPU.",
                kind="predicted",
                what=what,
                dollars=_span([24 * gpus * price * count * each for each in days]),
                price=f"{price:g}",
            )


def _span(values: Sequence[float]) -> str:
    first, *ends = (f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in values)
    return f"{first} ({ends[0]} to {ends[1]})" if ends else first


def _compared(training: Training, first: PredictedLayout, second: PredictedLayout) -> Remark:
    """Name the faster of two layouts, with the confidence, and say where they are equal within the error."""
    chance = surely_faster(training, first, second)
    faster, slower, name = (first, second, "A") if chance >= 0.5 else (second, first, "B")
    return remark(
        "{equal}{name} is faster by {gain}, confidence {chance}: {layout}.",
        kind="predicted",
        equal="A and B are equal within the error: " if are_equal(training, first, second) else "",
        name=name,
        gain=Quantity(1 - faster.seconds / slower.seconds, "%", predicted=True),
        chance=Quantity(max(chance, 1 - chance), "%"),
        layout=written(faster.plan),
    )


CHOICES = ("zero_stage", "recompute", "offload")


def _ranking(heading: str, rows: Sequence[PredictedLayout]) -> Table:
    """Axes with one value in all rows are in the heading; a narrow terminal keeps the time and the verdict longest."""
    axes, same = [], []
    for name, title in WRITTEN.items():
        values = {getattr(row.plan, name) for row in rows}
        if len(rows) == 1 or len(values) > 1:
            axes.append(Column(title, f"plan.{name}", priority=3 if name in CHOICES else 2))
        else:
            same.append(f"{title} {next(iter(values))}")
    heading += f", all with {', '.join(same)}" if same else ""
    several = len({row.framework for row in rows}) > 1
    return table(
        heading,
        (
            *axes,
            *([Column("framework")] if several else []),
            Column("iteration", "seconds", "duration", priority=4),
            Column("from", lambda row: None if np.isnan(row.low) else row.low, "duration"),
            Column("to", lambda row: None if np.isnan(row.high) else row.high, "duration"),
            Column("tokens/s", "tokens_per_s", "count"),
            Column("MFU", "mfu", "%"),
            Column("a GPU", "memory_bytes", "GiB"),
            Column("memory", "verdict", priority=4),
        ),
        rows,
    )


def _shares(rows: Sequence[PredictedLayout]) -> Table:
    """The parts of the time that are 0.05 % of it in any row."""

    def share(name: str, row: PredictedLayout) -> float:
        return row.parts.get(name, 0.0) / row.seconds

    names = dict.fromkeys(name for row in rows for name in row.parts)
    shown = [name for name in names if any(share(name, row) > 0.0005 for row in rows)]
    columns = [Column(name, partial(share, name), "%") for name in shown]
    title = "Where the iteration goes (tensor, context, experts, gradients, parameters: what is waited for)"
    return table(title, (LAYOUT, *columns), rows)


def _memory(rows: Sequence[PredictedLayout]) -> Table:
    shown = [name for name in rows[0].memory if any(row.memory[name] > 0 for row in rows)]
    columns = [Column(name, partial(lambda part, row: row.memory[part], name), "GiB") for name in shown]
    total = Column("on the GPU", "memory_bytes", "GiB", priority=2)
    return table("Memory of the fullest GPU", (LAYOUT, *columns, total), rows)


def _short(layout: ParallelPlan) -> str:
    """A layout in few letters: "DP8 TP4 PP2x3 Z1 mb2 re-layers"."""
    chunks = f"x{layout.chunks}" if layout.chunks > 1 else ""
    words = [f"DP{layout.data}", f"TP{layout.tensor}", f"PP{layout.pipeline}{chunks}"]
    words += [f"{name}{size}" for name, size in (("CP", layout.context), ("EP", layout.expert)) if size > 1]
    words += [f"Z{layout.zero_stage}", f"mb{layout.micro_batch}"]
    words += [f"re-{layout.recompute}"] if layout.recompute != "nothing" else []
    return " ".join(words + ([f"off-{layout.offload}"] if layout.offload != "none" else []))


def _steps(before: ParallelPlan, after: ParallelPlan) -> str:
    """The axes that differ, as "TP 1 -> 2, micro-batch 4 -> 2"."""
    changed = [name for name in WRITTEN if getattr(before, name) != getattr(after, name)]
    return ", ".join(f"{WRITTEN[name]} {getattr(before, name)} -> {getattr(after, name)}" for name in changed)


def _name(predicted: PredictedLayout | None) -> str:
    return "none fits" if predicted is None else _short(predicted.plan)


def _time(predicted: PredictedLayout | None) -> Quantity | None:
    return None if predicted is None else Quantity(predicted.seconds, "duration", predicted=True)


LAYOUT = Column("layout", lambda row: _short(row.plan), priority=2)
RULES = (
    Column("rule", priority=2),
    Column("here"),
    Column("laws agree", lambda rule: {True: "yes", False: "no", None: None}[rule.agrees], priority=2),
    Column("fastest that keeps it", lambda rule: _name(rule.kept)),
    Column("iteration", lambda rule: _time(rule.kept), "duration"),
    Column("fastest that does not", lambda rule: _name(rule.broken)),
    Column("iteration", lambda rule: _time(rule.broken), "duration"),
    Column("breaking it takes", "gain", "+%", priority=2),
)
# Columns of pairs: the layout, and the nearest that fits.
EXCLUDED = (
    Column("layout", lambda pair: _short(pair[0].plan), priority=2),
    Column("iteration", lambda pair: _time(pair[0]), "duration", priority=2),
    Column("a GPU", lambda pair: pair[0].memory_bytes, "GiB"),
    Column("too much by", lambda pair: pair[0].over_bytes, "size"),
    Column("memory", lambda pair: pair[0].verdict),
    Column("nearest that fits", lambda pair: _steps(pair[0].plan, pair[1].plan)),
    Column("iteration then", lambda pair: _time(pair[1]), "duration"),
)
