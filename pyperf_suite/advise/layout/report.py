"""The answer of `layout` as findings: the fastest layouts, where time and memory go, the rules, what was excluded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.advise.layout.grid import WRITTEN, Layout
from pyperf_suite.advise.layout.planned import Planned, Priced, told_change
from pyperf_suite.advise.layout.rules import LayoutRule, rules
from pyperf_suite.laws.kernel_prices import UnseenPrices
from pyperf_suite.laws.network.collectives import usual_network_bytes_per_s
from pyperf_suite.laws.training.step_time import MEASURED_GPU
from pyperf_suite.spec.findings import Findings, Table

# The law's mean error on the eight iterations that Korthikanti et al. 2022 publish in table 5, none of them fitted to:
# TP 8, PP 1 to 64, interleaved, full recomputation or SP with selective (tests/advise/test_layout_published.py).
SELENE_ERROR_PERCENT = 2.6
# Shares of time beyond what laws were fitted on that are worth a mark.
MARKED_SHARE = 0.05
GIB = 2**30


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
    """Sentences and tables."""
    tables = (
        _ranking("Fastest layouts", answer.top),
        _ranking("Best of each split", answer.splits),
        _times(answer.top),
        _memory(answer.top),
        _rules(answer.rules),
        _excluded(answer.excluded),
        _uneven(answer.planned),
    )
    return Findings(remarks=(*_sentences(answer), *answer.notes), tables=tuple(table for table in tables if table.rows))


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


def _sentences(answer: LayoutAnswer) -> Iterator[str]:
    planned = answer.planned
    training, cluster, best = planned.training, planned.cluster, planned.best
    yield (
        f"{training.model.parameters / 1e9:.2f} B parameters, {training.global_batch} sequences of {training.seq} "
        f"tokens an iteration, on {cluster.gpus} {cluster.gpu.name} in nodes of {cluster.gpus_per_node}: predicted "
        f"fastest is {best.layout}, {_seconds(best.seconds)} an iteration, {best.tokens_per_s:,.0f} tokens/s, "
        f"{best.mfu:.1%} of the peak (MFU, masked pairs not counted; "
        f"{best.flop_per_s / 1e12:.0f} TFLOP/s a GPU by 6 FLOP a parameter and token, 8 where layers are recomputed), "
        f"{best.memory_bytes / GIB:.1f} of {cluster.usable_bytes / GIB:.1f} usable GiB on a GPU."
    )
    fitting = int(planned.fits.sum())
    yield (
        f"{len(planned.grid)} layouts divide and were evaluated: {fitting} fit, {len(planned.grid) - fitting} are too "
        "large for a GPU. All times are predictions, none was run."
    )
    yield _error_sentence(answer)
    yield _choice_sentence(planned)
    network = planned.constants.network_bytes_per_s
    sends = f"{(network or usual_network_bytes_per_s(cluster.gpu)) / 1e9:.3g} GB/s"
    if network is None:
        sends += ", the peak of what its maker's servers have,"
    how = "beside computation where it can" if training.overlap else "after computation"
    if cluster.gpus > cluster.gpus_per_node:
        yield (
            f"Between nodes a GPU is reckoned to send {sends} in one direction (--network names another); gradients "
            f"and gathered parameters go {how}."
        )
    yield from _engine_sentences(answer)


def _engine_sentences(answer: LayoutAnswer) -> Iterator[str]:
    """What not every engine can run of what is told (DeepSpeed's pipeline engine refuses ZeRO 2 and 3)."""
    told = [priced.layout for priced, _ in (*answer.top, *answer.splits)]
    if any(layout.pipeline > 1 and layout.zero_stage > 1 for layout in told):
        yield (
            "ZeRO 2 and 3 beside PP can be had of FSDP2 and torch.distributed.pipelining; DeepSpeed has only ZeRO 1 "
            "beside PP: --zero 1 leaves the others out."
        )


def _error_sentence(answer: LayoutAnswer) -> str:
    planned = answer.planned
    if planned.of_another_gpu or planned.error_percent is None:
        gpu = planned.cluster.gpu.name
        whole = f"no iteration of {gpu} was measured, so the constants of a step are of {MEASURED_GPU}"
    else:
        whole = f"whole iterations {planned.error_percent:.1f} %, on those left out where its constants were found"
    told = ", ".join(
        f"{law} {error:.1f} %" if error is not None else f"{law} untested" for law, error in answer.laws.errors.items()
    )
    untested = sorted({name for priced, _ in (*answer.top, *answer.splits) for name in priced.untested})
    unheld = f" Of {', '.join(untested)} no iteration is published to hold the law against." if untested else ""
    return (
        f"Mean error on measurements that were not fitted: {whole}; {SELENE_ERROR_PERCENT} % on eight published "
        f"iterations of 22 B to 1 T parameters on A100 (TP, PP, SP); its laws: {told}.{unheld}"
    )


def _choice_sentence(planned: Planned) -> str:
    """How many layouts the laws cannot tell from the best."""
    error = (planned.error_percent or 0.0) / 100
    if not error:
        return "The laws' error here is not known, so layouts that are a few percent apart are as good as each other."
    near = planned.ranked[planned.seconds[planned.ranked] <= (1 + error) * planned.best.seconds]
    splits = len(planned.best_of_splits(near, len(near) or 1))
    return (
        f"{len(near)} layouts in {splits} splits of the GPUs are within the law's error of the fastest: try the best "
        "of a few splits."
    )


def _ranking(title: str, rows: Sequence[tuple[Priced, float]]) -> Table:
    return Table(
        f"{title} (predicted)",
        (*map(_heading, WRITTEN), "iteration", "tokens/s", "MFU", "GiB a GPU", "extrapolated"),
        tuple(
            (
                *_cells(priced.layout),
                _seconds(priced.seconds),
                f"{priced.tokens_per_s:,.0f}",
                f"{priced.mfu:.1%}",
                f"{priced.memory_bytes / GIB:.1f}",
                _marks(priced, unseen),
            )
            for priced, unseen in rows
        ),
    )


def _times(rows: Sequence[tuple[Priced, float]]) -> Table:
    shown = _parts([priced.parts for priced, _ in rows], 0.0005)
    return Table(
        "Where the iteration goes, in % (tensor, context, experts, gradients, parameters: what is waited for)",
        ("layout", *shown),
        tuple(
            (_short(priced.layout), *(f"{100 * priced.parts[name] / priced.seconds:.1f}" for name in shown))
            for priced, _ in rows
        ),
    )


def _memory(rows: Sequence[tuple[Priced, float]]) -> Table:
    shown = _parts([priced.memory for priced, _ in rows], 0.0)
    return Table(
        "Memory on the fullest GPU, GiB",
        ("layout", *shown, "in all"),
        tuple(
            (
                _short(priced.layout),
                *(f"{priced.memory[name] / GIB:.2f}" for name in shown),
                f"{priced.memory_bytes / GIB:.2f}",
            )
            for priced, _ in rows
        ),
    )


def _rules(found: Sequence[LayoutRule]) -> Table:
    return Table(
        "The recipe's rules",
        ("rule", "here", "laws agree", "fastest that keeps it", "fastest that does not", "breaking it takes"),
        tuple(
            (
                rule.rule,
                rule.here,
                {True: "yes", False: "no", None: "-"}[rule.agrees],
                "none fits" if rule.kept is None else f"{_short(rule.kept.layout)}: {_seconds(rule.kept.seconds)}",
                "none fits"
                if rule.broken is None
                else f"{_short(rule.broken.layout)}: {_seconds(rule.broken.seconds)}",
                "-" if rule.gain is None else f"{rule.gain:+.1%}",
            )
            for rule in found
        ),
    )


def _excluded(found: Sequence[Excluded]) -> Table:
    return Table(
        "Faster, but too large",
        ("layout", "iteration", "GiB a GPU", "too many bytes", "nearest that fits", "iteration then"),
        tuple(
            (
                _short(each.priced.layout),
                _seconds(each.priced.seconds),
                f"{each.priced.memory_bytes / GIB:.1f}",
                f"{each.priced.over_bytes:,.0f}",
                told_change(each.priced.layout, each.nearest.layout),
                _seconds(each.nearest.seconds),
            )
            for each in found
        ),
    )


def _uneven(planned: Planned) -> Table:
    rows = tuple((reason, str(count)) for reason, count in planned.grid.uneven.items())
    return Table("Splits of the GPUs into TP, CP, PP and DP that come out uneven", ("reason", "splits"), rows)


def _parts(rows: Sequence[Mapping[str, float]], share: float) -> list[str]:
    """The parts that are anything in any row."""
    if not rows:
        return []
    return [name for name in rows[0] if any(row[name] > share * float(np.sum(list(row.values()))) for row in rows)]


def _marks(priced: Priced, unseen: float) -> str:
    marks = [f"{unseen:.0%}"] if unseen >= MARKED_SHARE else []
    return ", ".join([*marks, *(f"{name} untested" for name in priced.untested)]) or "-"


def _heading(name: str) -> str:
    return WRITTEN[name]


def _cells(layout: Layout) -> tuple[str, ...]:
    return tuple(str(getattr(layout, name)) for name in WRITTEN)


def _short(layout: Layout) -> str:
    """What tells it apart, in few letters: "DP8 TP4 PP2x3 Z1 mb2 layers"."""
    chunks = f"x{layout.chunks}" if layout.chunks > 1 else ""
    told = [f"DP{layout.data}", f"TP{layout.tensor}", f"PP{layout.pipeline}{chunks}"]
    told += [f"{name}{size}" for name, size in (("CP", layout.context), ("EP", layout.expert)) if size > 1]
    told += [f"Z{layout.zero_stage}", f"mb{layout.micro_batch}"]
    return " ".join(told + ([f"re-{layout.recompute}"] if layout.recompute != "nothing" else []))


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
