"""The answer of `layout` as findings: the fastest layouts, where time and memory go, the rules, what was excluded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.advise.layout.grid import WRITTEN, Layout
from pyperf_suite.advise.layout.planned import Planned, Priced, told_change
from pyperf_suite.advise.layout.rules import LayoutRule, rules
from pyperf_suite.laws.kernel_prices import UnseenPrices
from pyperf_suite.laws.network.collectives import usual_network_bytes_per_s
from pyperf_suite.laws.training.step_time import MEASURED_GPU
from pyperf_suite.spec.findings import Findings, Quantity, Remark, Table, findings, remark
from pyperf_suite.spec.rows import Column, table

# The law's mean error on the eight iterations that Korthikanti et al. 2022 publish in table 5, none of them fitted to:
# TP 8, PP 1 to 64, interleaved, full recomputation or SP with selective (tests/advise/test_layout_published.py).
SELENE_ERROR_PERCENT = 2.6
# Shares of time beyond what laws were fitted on that are worth a mark.
MARKED_SHARE = 0.05


@dataclass(frozen=True)
class Excluded:
    """A layout that would be faster than the best one but does not fit, and the nearest that does."""

    priced: Priced
    nearest: Priced


@dataclass(frozen=True)
class LayoutAnswer:
    """All that is told of a plan: `top` ranked and `splits` the best of each split, with the share of time unseen."""

    planned: Planned
    top: tuple[tuple[Priced, float], ...]
    splits: tuple[tuple[Priced, float], ...]
    rules: tuple[LayoutRule, ...]
    excluded: tuple[Excluded, ...]
    laws: UnseenPrices
    notes: tuple[str, ...] = ()


def layout_answer(planned: Planned, most: int, notes: Sequence[str] = ()) -> LayoutAnswer:
    """Work out what is told, of each list at most so many."""
    top = planned.ranked[:most].tolist()
    splits = planned.best_of_splits(planned.ranked, most)
    shares, laws = planned.unseen([*top, *splits])
    priced = [(planned.at(place), share) for place, share in zip([*top, *splits], shares, strict=True)]
    faster = planned.fastest(~planned.fits & (planned.seconds < planned.best.seconds))
    excluded = [
        Excluded(planned.at(place), planned.nearest_that_fits(place)) for place in planned.best_of_splits(faster, most)
    ]
    return LayoutAnswer(
        planned, tuple(priced[: len(top)]), tuple(priced[len(top) :]), rules(planned), tuple(excluded), laws,
        tuple(notes),
    )  # fmt: skip


def findings_of_layouts(answer: LayoutAnswer) -> Findings:
    """The fastest layout, how sure that is, what it stands on, and tables."""
    return findings(
        _fastest(answer.planned),
        _choice(answer.planned),
        _network(answer.planned),
        _engines(answer),
        _errors(answer),
        (remark(note, kind="caution") for note in answer.notes),
        _ranking("Fastest layouts (predicted)", answer.top),
        _ranking("Best of each split (predicted)", answer.splits),
        _shares(answer.top),
        _memory(answer.top),
        table("The recipe's rules", RULES, answer.rules),
        table("Faster, but too large", EXCLUDED, answer.excluded),
        table(
            "Splits of the GPUs into TP, CP, PP and DP that come out uneven",
            (Column("reason", lambda told: told[0]), Column("splits", lambda told: told[1])),
            answer.planned.grid.uneven.items(),
        ),
    )


def layouts_as_json(answer: LayoutAnswer) -> dict[str, Any]:
    """Plain data of everything that was worked out; seconds, bytes, shares."""
    planned = answer.planned
    training, cluster = planned.training, planned.cluster
    return {
        "predicted": True,
        "gpu": cluster.gpu.name,
        "gpus": cluster.gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "usable_bytes": cluster.usable_bytes,
        "network_bytes_per_s": planned.constants.network_bytes_per_s or usual_network_bytes_per_s(cluster.gpu),
        "parameters": training.model.parameters,
        "global_batch": training.global_batch,
        "seq": training.seq,
        "fused_attention": training.fused_attention,
        "sequence_parallel": training.sequence_parallel,
        "overlap": training.overlap,
        "held_out_error_percent": {"step": planned.error_percent, **answer.laws.errors},
        "constants_of_another_gpu": planned.of_another_gpu,
        "origins": list(answer.laws.origins),
        "evaluated": len(planned.grid),
        "fitting": int(planned.fits.sum()),
        "uneven_splits": dict(planned.grid.uneven),
        "layouts": [_as_json(priced, unseen) for priced, unseen in answer.top],
        "best_of_splits": [_as_json(priced, unseen) for priced, unseen in answer.splits],
        "rules": [
            {
                "rule": rule.rule,
                "here": rule.here,
                "laws_agree": rule.agrees,
                "longer_where_broken": rule.gain,
                "kept": rule.kept and _as_json(rule.kept),
                "broken": rule.broken and _as_json(rule.broken),
            }
            for rule in answer.rules
        ],
        "excluded": [
            {**_as_json(each.priced), "nearest_that_fits": _as_json(each.nearest)} for each in answer.excluded
        ],
        "notes": list(answer.notes),
    }


def _as_json(priced: Priced, unseen: float | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "layout": {name: getattr(priced.layout, name) for name in WRITTEN},
        "step_s": priced.seconds,
        "parts_s": dict(priced.parts),
        "memory_bytes": dict(priced.memory),
        "total_memory_bytes": priced.memory_bytes,
        "over_bytes": priced.over_bytes,
        "tokens_per_s": priced.tokens_per_s,
        "mfu": priced.mfu,
        "flop_per_s_a_gpu": priced.flop_per_s,
        "untested": list(priced.untested),
    }
    return told if unseen is None else {**told, "extrapolated_share": unseen}


def _fastest(planned: Planned) -> Iterator[Remark]:
    training, cluster, best = planned.training, planned.cluster, planned.best
    yield remark(
        "Fastest is {layout}: {time} an iteration, {tokens} tokens a second, {mfu} of the peak (MFU), {memory} of "
        "{usable} usable on a GPU.",
        kind="predicted",
        layout=str(best.layout),
        time=Quantity(best.seconds, "duration", predicted=True),
        tokens=Quantity(best.tokens_per_s, "count", predicted=True),
        mfu=Quantity(best.mfu, "%", predicted=True),
        memory=Quantity(best.memory_bytes, "size", predicted=True),
        usable=Quantity(cluster.usable_bytes, "size"),
    )
    yield remark(
        "{parameters} billion parameters, {batch} sequences of {seq} tokens an iteration, on {gpus} {gpu} in nodes of "
        "{node}. MFU does not count masked pairs; by 6 FLOP a parameter and token, 8 where layers are recomputed, a "
        "GPU does {rate}.",
        kind="predicted",
        parameters=Quantity(training.model.parameters / 1e9),
        batch=training.global_batch,
        seq=training.seq,
        gpus=cluster.gpus,
        gpu=cluster.gpu.name,
        node=cluster.gpus_per_node,
        rate=Quantity(best.flop_per_s, "TFLOP/s", predicted=True),
    )
    fitting = int(planned.fits.sum())
    yield remark(
        "{evaluated} layouts divide and were evaluated: {fitting} fit, {others} are too large for a GPU. All times are "
        "predictions, none was run.",
        kind="predicted",
        evaluated=len(planned.grid),
        fitting=fitting,
        others=len(planned.grid) - fitting,
    )


def _choice(planned: Planned) -> Remark:
    """How many layouts the laws cannot tell from the best."""
    error = (planned.error_percent or 0.0) / 100
    if not error:
        return remark(
            "The laws' error here is not known, so layouts that are a few percent apart are as good as each other.",
            kind="caution",
        )
    near = planned.ranked[planned.seconds[planned.ranked] <= (1 + error) * planned.best.seconds]
    return remark(
        "{count} layouts in {splits} splits of the GPUs are within the law's error of the fastest: try the best of a "
        "few splits.",
        kind="predicted",
        count=len(near),
        splits=len(planned.best_of_splits(near, len(near) or 1)),
    )


def _network(planned: Planned) -> Remark | None:
    cluster, network = planned.cluster, planned.constants.network_bytes_per_s
    if cluster.gpus <= cluster.gpus_per_node:
        return None
    return remark(
        "Between nodes a GPU is taken to send {rate} in one direction{whose} (--network names another); gradients and "
        "gathered parameters go {how}.",
        rate=Quantity(network or usual_network_bytes_per_s(cluster.gpu), "GB/s"),
        whose="" if network else ", the peak of what its maker's servers have",
        how="beside computation where it can" if planned.training.overlap else "after computation",
    )


def _engines(answer: LayoutAnswer) -> Remark | None:
    """What not every engine can run of what is told (DeepSpeed's pipeline engine refuses ZeRO 2 and 3)."""
    told = [priced.layout for priced, _ in (*answer.top, *answer.splits)]
    if not any(layout.pipeline > 1 and layout.zero_stage > 1 for layout in told):
        return None
    return remark(
        "ZeRO 2 and 3 beside PP can be had of FSDP2 and torch.distributed.pipelining; DeepSpeed has only ZeRO 1 beside "
        "PP: --zero 1 leaves the others out."
    )


def _errors(answer: LayoutAnswer) -> Iterator[Remark]:
    planned = answer.planned
    if planned.of_another_gpu or planned.error_percent is None:
        yield remark(
            "No iteration of {gpu} was measured, so the constants of a step are of {measured}.",
            kind="caution",
            gpu=planned.cluster.gpu.name,
            measured=MEASURED_GPU,
        )
    else:
        yield remark(
            "The law of a step errs by {error} on iterations left out where its constants were found.",
            kind="law",
            error=Quantity(planned.error_percent / 100, "%"),
        )
    yield remark(
        "It errs by {error} on eight published iterations of 22 B to 1 T parameters on A100 (TP, PP, SP).",
        kind="law",
        error=Quantity(SELENE_ERROR_PERCENT / 100, "%"),
    )
    for law, error in answer.laws.errors.items():
        yield remark(
            "The law of {law} errs by {error} on what it was not fitted on.",
            kind="law",
            law=law,
            error="an unknown amount" if error is None else Quantity(error / 100, "%"),
        )
    untested = sorted({name for priced, _ in (*answer.top, *answer.splits) for name in priced.untested})
    if untested:
        yield remark(
            "Of {what} no iteration is published to hold the law against.", kind="caution", what=", ".join(untested)
        )


def _ranking(title: str, rows: Sequence[tuple[Priced, float]]) -> Table:
    """Axes that are the same in all rows stand in the first remark, and go first on a narrow terminal."""
    values = {name: {getattr(priced.layout, name) for priced, _ in rows} for name in WRITTEN}
    return table(
        title,
        (
            *(
                Column(written, _axis(name), priority=2 if len(values[name]) > 1 else 0)
                for name, written in WRITTEN.items()
            ),
            Column("iteration", lambda told: told[0].seconds, "duration", priority=2),
            Column("tokens/s", lambda told: told[0].tokens_per_s, "count"),
            Column("MFU", lambda told: told[0].mfu, "%"),
            Column("a GPU", lambda told: told[0].memory_bytes, "GiB"),
            Column("of the time, extrapolated", lambda told: told[1] if told[1] >= MARKED_SHARE else None, "%"),
            Column("untested", lambda told: ", ".join(told[0].untested) or None, priority=0),
        ),
        rows,
    )


def _axis(name: str) -> Callable[[tuple[Priced, float]], Any]:
    return lambda told: getattr(told[0].layout, name)


def _shares(rows: Sequence[tuple[Priced, float]]) -> Table:
    shown = _parts([priced.parts for priced, _ in rows], 0.0005)

    def share(name: str) -> Callable[[tuple[Priced, float]], float]:
        return lambda told: told[0].parts[name] / told[0].seconds

    return table(
        "Where the iteration goes (tensor, context, experts, gradients, parameters: what is waited for)",
        (LAYOUT, *(Column(name, share(name), "%") for name in shown)),
        rows,
    )


def _memory(rows: Sequence[tuple[Priced, float]]) -> Table:
    shown = _parts([priced.memory for priced, _ in rows], 0.0)

    def taken(name: str) -> Callable[[tuple[Priced, float]], float]:
        return lambda told: told[0].memory[name]

    total = Column("in all", lambda told: told[0].memory_bytes, "GiB", priority=2)
    columns = (LAYOUT, *(Column(name, taken(name), "GiB") for name in shown), total)
    return table("Memory on the fullest GPU", columns, rows)


def _laid_out(priced: Priced | None) -> str:
    return "none fits" if priced is None else _short(priced.layout)


def _time(priced: Priced | None) -> Quantity | None:
    return None if priced is None else Quantity(priced.seconds, "duration", predicted=True)


LAYOUT = Column("layout", lambda told: _short(told[0].layout), priority=2)
RULES = (
    Column("rule", lambda rule: rule.rule, priority=2),
    Column("here", lambda rule: rule.here),
    Column("laws agree", lambda rule: {True: "yes", False: "no", None: None}[rule.agrees], priority=2),
    Column("fastest that keeps it", lambda rule: _laid_out(rule.kept)),
    Column("iteration", lambda rule: _time(rule.kept), "duration"),
    Column("fastest that does not", lambda rule: _laid_out(rule.broken)),
    Column("iteration", lambda rule: _time(rule.broken), "duration"),
    Column("breaking it takes", lambda rule: rule.gain, "+%", priority=2),
)
EXCLUDED = (
    Column("layout", lambda each: _short(each.priced.layout), priority=2),
    Column("iteration", lambda each: _time(each.priced), "duration", priority=2),
    Column("a GPU", lambda each: each.priced.memory_bytes, "GiB"),
    Column("too much by", lambda each: each.priced.over_bytes, "size"),
    Column("nearest that fits", lambda each: told_change(each.priced.layout, each.nearest.layout)),
    Column("iteration then", lambda each: _time(each.nearest), "duration"),
)


def _parts(rows: Sequence[Mapping[str, float]], share: float) -> list[str]:
    """The parts that are anything in any row."""
    if not rows:
        return []
    return [name for name in rows[0] if any(row[name] > share * float(np.sum(list(row.values()))) for row in rows)]


def _short(layout: Layout) -> str:
    """What tells it apart, in few letters: "DP8 TP4 PP2x3 Z1 mb2 layers"."""
    chunks = f"x{layout.chunks}" if layout.chunks > 1 else ""
    told = [f"DP{layout.data}", f"TP{layout.tensor}", f"PP{layout.pipeline}{chunks}"]
    told += [f"{name}{size}" for name, size in (("CP", layout.context), ("EP", layout.expert)) if size > 1]
    told += [f"Z{layout.zero_stage}", f"mb{layout.micro_batch}"]
    return " ".join(told + ([f"re-{layout.recompute}"] if layout.recompute != "nothing" else []))
