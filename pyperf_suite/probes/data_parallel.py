"""A training step on several ranks: DDP's options compared with a step without exchange, and its all_reduces."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, UserError
from pyperf_suite.findings.axes import (
    NO,
    YES,
    AxisTable,
    Flag,
    Sizes,
    a_rank_a_gpu,
    by,
    every_size,
    ranks_of,
    size_name,
    size_ticks,
    sizes,
)
from pyperf_suite.findings.data import (
    TRANSFORMERS,
    Claim,
    ClaimVerdict,
    Figure,
    Findings,
    Panel,
    Remark,
    Table,
    figure,
    findings,
    remark,
)
from pyperf_suite.findings.probe import Probe, RowClaim
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, misses, series, table
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.training.data_parallel import (
    DataParallelLaw,
    GradientExchange,
    fit_data_parallel,
    held_out_step_errors,
)
from pyperf_suite.probes.overlap import OVERLAPS
from pyperf_suite.ranks.launch import rank_environment, require_launched
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import mean_speedup
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.training.data_parallel import BUCKET_BYTES, EXCHANGES, DataParallelParameters

FEWEST_STEPS = 4  # with fewer, each that is left out takes too much away from two constants
FEWEST_SIZES = 2


@dataclass(frozen=True)
class Fitted:
    """The law in one setting; by case its prediction, and its error on the step when that is left out."""

    law: DataParallelLaw
    predicted_s: Mapping[str, float]
    held_out: Mapping[str, float]


def setting_of(row: Row) -> str:
    """Return the key of steps and all_reduces that belong together."""
    library = "gloo" if row.implementation == "gloo" else "NCCL"
    direct = "" if row.p.peer_to_peer else " without direct copies between GPUs"
    return f"{row.p.ranks} rank{'' if row.p.ranks == 1 else 's'} over {library}{direct}, {row.p.dtype}"


def other(step: Row, exchange: str, **changed: Any) -> Row | None:
    """The step of the same model with another exchange."""
    library = "nccl" if step.implementation == "dp" else step.implementation
    return step.like(
        implementation="dp" if exchange == "dp" else library,
        exchange=exchange,
        bucket_bytes=BUCKET_BYTES,
        accumulate=1,
        no_sync=True,
        **changed,
    )


def fastest(steps: Iterable[Row]) -> Row:
    """The one of the least time."""
    return min(steps, key=lambda step: float(step.seconds))


def over_none(step: Row) -> Ratio | None:
    """Its time over that without exchange."""
    none = other(step, "none")
    return None if none is None or step.p.exchange == "none" else none.faster_than(step)


def buckets_of(step: Row) -> tuple[float, ...]:
    """Bytes of the buckets of one exchange, in order; none without exchange."""
    return tuple(map(float, step.reading.details.get("buckets", ())))


def described(step: Row) -> str:
    """The model in words."""
    vocab = f", vocabulary {step.p.vocab}" if step.p.vocab else ""
    return f"{step.p.layers} x {step.p.hidden}{vocab}, {step.p.batch} x {step.p.seq} tokens"


def exchanged(step: Row) -> str:
    """The exchange in words."""
    if step.p.exchange != "ddp":
        return {"after": "after backward", "none": "none", "dp": "DataParallel"}[step.p.exchange]
    words = ["DDP", size_name(step.p.bucket_bytes)]
    words += [f"{step.p.accumulate} micro-batches"] if step.p.accumulate > 1 else []
    words += [] if step.p.no_sync else ["each exchanged"]
    return ", ".join(words)


def last_rank_s(records: Sequence[Record]) -> dict[str, float]:
    """By case, an iteration's time on its last rank, which those that exchange wait for.

    The median over iterations of the largest of the ranks' times; of many ranks, the largest of their medians.
    """
    seconds: dict[str, list[float]] = {}
    for record in records:
        samples = record.sampling.get("rank_samples_s")
        medians = [median for median in record.sampling.get("rank_median_s", ()) if median is not None]
        if record.outcome == "ok" and (samples or medians):
            last = statistics.median(map(max, zip(*samples, strict=True))) if samples else max(medians)
            seconds.setdefault(record.case_id, []).append(last)
    return {case_id: statistics.median(each) for case_id, each in seconds.items()}


def fitted_to(steps: Rows, all_reduces: Sequence[Row], slowest_s: Mapping[str, float]) -> Fitted | None:
    """None where too few steps or all_reduces were measured."""
    pairs = [(step, none) for step in steps if step.p.exchange in ("ddp", "after") and (none := other(step, "none"))]
    if len(pairs) < FEWEST_STEPS or len(all_reduces) < FEWEST_SIZES:
        return None
    curve = PiecewiseAlphaBeta.fit([row.p.message_bytes for row in all_reduces], [row.seconds for row in all_reduces])

    def all_reduce_s(size_bytes: float) -> float:
        return float(curve.seconds(size_bytes))

    exchanges = {
        step.case.case_id: GradientExchange(
            # The step computes until the last rank has.
            compute_s=step.p.accumulate * slowest_s.get(none.case.case_id, none.seconds),
            buckets_bytes=buckets_of(step),
            overlapped=step.p.exchange == "ddp",
            micro_batches=step.p.accumulate,
            every_micro_batch=not step.p.no_sync,
        )
        for step, none in pairs
    }
    measured = (list(exchanges.values()), [step.seconds for step, _ in pairs])
    law = fit_data_parallel(all_reduce_s, *measured)
    errors = held_out_step_errors(all_reduce_s, *measured, list(exchanges)).tolist()
    predicted_s = {case_id: law.seconds(exchange) for case_id, exchange in exchanges.items()}
    return Fitted(law, predicted_s, dict(zip(exchanges, errors, strict=True)))


HEAD_DIM = 64
# By which torch.distributed's own all_reduce is measured, over the library that the steps use.
COLLECTIVE_OVER = {"gloo": "gloo", "nccl": "c10d_nccl"}

LI = "Li et al. 2020, PyTorch Distributed"
BUCKETS = Claim("gradients are exchanged in buckets, so that it can begin before the last is there", LI, low=1.0)
NO_SYNC = Claim("skipping the exchange of all micro-batches but the last saves time", LI, low=1.0)
# 200 steps of GPT-2 on 2 x TITAN RTX: DP over NVLink 110 s, DDP over NVLink 101 s, DDP without NVLink 131 s.
DDP_BEATS_DP = Claim("DDP is typically faster than DP: 101 s against 110 s over NVLink", TRANSFORMERS, low=1.0)
LINKS_MATTER = Claim("DDP is slower over slow links: 131 s without NVLink, 101 s with it", TRANSFORMERS, low=1.0)
DP_BEATS_UNLINKED = Claim("DP over NVLink is faster than DDP without it: 110 s against 131 s", TRANSFORMERS, low=1.0)

# Error that the law should keep to, as a median over steps that were not fitted.
WANTED_ERROR = 0.10
FEWEST_BUCKETS = 3


@dataclass(frozen=True)
class DataParallelAxes(AxisTable):
    """Models of a few layers on a CPU; on GPUs layers of 4096, all GPUs, and NCCL without direct copies too.

    Every model (hidden, layers, seq, batch, vocab; 0 is a stack of blocks without logits) makes its step in every
    `exchange`: ddp with each `bucket`, after, none, dp. The first model also takes `accumulate` micro-batches, with and
    without no_sync, with the first bucket. `all_reduce` are the sizes that the law is read off. Steps on a CPU compute
    about as long as they exchange over gloo: 3.2 MB of gradients a layer, 64 tokens a rank. On GPUs a layer has 403 MB
    of gradients, sizes at which buckets and links matter.
    """

    ranks: tuple[int, ...] = by(ranks_of(2), full=ranks_of(2, 4), cuda=a_rank_a_gpu)
    implementation: tuple[str, ...] = by(("gloo",), cuda=("nccl",))
    hidden: tuple[int, ...] = by((256,), cuda=(4096,))
    layers: tuple[int, ...] = by((4,), full=(4, 2, 8))
    seq: tuple[int, ...] = by((64,), cuda=(2048,))
    batch: tuple[int, ...] = (1,)
    exchange: Annotated[tuple[str, ...], OneOf(EXCHANGES)] = by(
        ("none", "ddp"), ("none", "ddp", "after"), cuda=by(("none", "ddp"), ("none", "ddp", "after", "dp"))
    )
    bucket: tuple[Sizes, ...] = by(
        sizes("4MiB"),
        sizes("4MiB", "1MiB", "25MiB"),
        sizes("4MiB", "1MiB", "2MiB", "8MiB", "25MiB"),
        cuda=by(sizes("25MiB"), sizes("25MiB", "100MiB", "4GiB"), sizes("25MiB", "50MiB", "100MiB", "400MiB", "4GiB")),
    )
    vocab: tuple[int, ...] = (0,)
    accumulate: tuple[int, ...] = by((1,), standard=(1, 2), full=(1, 2, 4))
    peer_to_peer: tuple[Flag, ...] = by((YES,), cuda=by((YES,), standard=(YES, NO)))
    dtype: tuple[str, ...] = by(("float32",), cuda=("bfloat16",))
    all_reduce: tuple[Sizes, ...] = by(
        (), sizes("64KiB..16MiB:16"), sizes("64KiB..32MiB:2"), cuda=by((), sizes("1MiB..1GiB:4"), sizes("1MiB..1GiB:2"))
    )


def sweep(axes: DataParallelAxes) -> Iterator[Case]:
    """Steps, then the all_reduces. Raises UserError for other ranks than a launcher started, and for DP on CPUs."""
    require_launched(axes.ranks)
    if "dp" in axes.exchange and "nccl" not in axes.implementation:
        requested = ", ".join(axes.implementation)
        raise UserError(
            f"exchange=dp is one process that drives GPUs, but only {requested} was requested: leave it out."
        )
    places = list(itertools.product(axes.implementation, axes.ranks, axes.peer_to_peer))
    names = ("hidden", "layers", "seq", "batch", "vocab", "dtype")
    models = []
    for values in itertools.product(*(getattr(axes, name) for name in names)):
        model: dict[str, Any] = dict(zip(names, values, strict=True))
        heads = model["hidden"] // HEAD_DIM if model["hidden"] % HEAD_DIM == 0 else 1
        models.append(DataParallelParameters(**model, heads=heads, exchange="none"))
    # Not sorted: the first bucket is the one that the other options are tried with.
    buckets = [size for ladder in axes.bucket for size in ladder.ladder()]
    for (implementation, ranks, direct), base, exchange in itertools.product(places, models, axes.exchange):
        # One process for all GPUs is none of a launcher's, and copies between them are not NCCL's to forbid.
        if exchange == "dp" and (implementation != "nccl" or not direct.value or rank_environment().launched):
            continue
        steps = [replace(base, ranks=ranks, peer_to_peer=direct.value, exchange=exchange)]
        if exchange == "ddp":
            usual = [replace(steps[0], bucket_bytes=size) for size in buckets]
            counts = [count for count in axes.accumulate if base is models[0] and count > 1]
            options = itertools.product(counts, (True, False))
            steps = [*usual, *(replace(usual[0], accumulate=count, no_sync=no_sync) for count, no_sync in options)]
        yield from (Case("data_parallel", step, "dp" if exchange == "dp" else implementation) for step in steps)
    settings = itertools.product(places, axes.dtype, every_size(axes.all_reduce))
    for (implementation, ranks, direct), dtype, size in settings:
        message = CollectiveParameters("all_reduce", size, ranks, dtype=dtype, in_place=True, peer_to_peer=direct.value)
        yield Case("collective", message, COLLECTIVE_OVER.get(implementation, implementation))


def analyse(rows: Rows) -> Findings:
    """Return the cost of the exchange, how it is hidden, the guides' claims, and the law with its held-out error."""
    slowest_s = last_rank_s(rows.records)
    items: list[Any] = []
    cost = "{model} on {setting}: DDP with buckets of {bucket} takes {longer} the step without exchange"
    for setting, members in grouped(rows.where(operator="data_parallel"), setting_of).items():
        steps = Rows(members)
        # DDP's steps with nothing but their buckets chosen, model by model.
        ddp = steps.where(exchange="ddp", accumulate=1).groups("bucket_bytes")
        all_reduces = [row for row in rows.where(operator="collective") if setting_of(row) == setting]
        fitted = fitted_to(steps, all_reduces, slowest_s)
        for best in map(fastest, ddp):
            longer, bucket = over_none(best), Quantity(best.p.bucket_bytes, "size")
            model = described(best)
            items.append(remark(cost, effect="longer", model=model, setting=setting, bucket=bucket, longer=longer))
        items += [_verdicts(setting, steps, ddp), _law(setting, fitted)]
        items += [_table(setting, steps, fitted), _figure(setting, ddp, fitted)]
    correct = "In all {trials} trials the gradients are those of a single process, the same bits on ranks that exchange"
    trials = [each for each in rows.records if each.outcome == "ok" and each.case.get("operator") == "data_parallel"]
    return findings(items, remark(correct, trials=len(trials)) if items else None)


def _verdicts(setting: str, steps: Rows, ddp: Sequence[Rows]) -> Iterator[ClaimVerdict]:
    """Each claim on the mean over (slow, fast) steps, where a process measured them all."""
    best = [fastest(group) for group in ddp]
    unlinked = steps.where(exchange="ddp", peer_to_peer=False)
    together, single = [(other(step, "after"), step) for step in best], [_single_and_several(group) for group in ddp]
    linked = [(step, step.like(peer_to_peer=True)) for step in unlinked]
    dp = [(other(step, "dp"), step) for step in best]
    dp_linked = [(step, other(step, "dp", peer_to_peer=True)) for step in best if not step.p.peer_to_peer]
    for claim, compared, sentence in (
        (OVERLAPS, together, "With {setting}, exchanging while backward goes on is {measured} as fast as after it"),
        (BUCKETS, single, "With {setting}, the best of several buckets are {measured} as fast as a single one"),
        (DDP_BEATS_DP, dp, "With {setting}, DDP is {measured} as fast as DP"),
        (LINKS_MATTER, linked, "DDP with {setting} takes {measured} the time with them"),
        (DP_BEATS_UNLINKED, dp_linked, "DP with direct copies is {measured} as fast as DDP with {setting}"),
    ):
        pairs = [(slow.reading, fast.reading) for slow, fast in compared if slow and fast]
        if (ratio := mean_speedup(pairs)) is not None:
            yield claim.judge(f"{sentence} (models: {{models}})", ratio, setting=setting, models=len(pairs))


def _single_and_several(steps: Rows) -> tuple[Row | None, Row | None]:
    """With room for all, any size makes the same bucket: the smallest that does. And the best of several buckets."""
    single = [step for step in steps if len(buckets_of(step)) == 1]
    several = [step for step in steps if len(buckets_of(step)) > 1]
    smallest = min(single, key=lambda step: int(step.p.bucket_bytes), default=None)
    return smallest, fastest(several) if several else None


def _law(setting: str, fitted: Fitted | None) -> Remark | None:
    if fitted is None:
        return None
    return remark(
        "Law on {setting}: {law.hidden:%} of what is exchanged during backward is hidden, an all_reduce takes "
        "{law.slowdown:x} as long in a step as alone; steps held out are missed by {median} (median of {count}, wanted "
        "{wanted:%}) and at worst by {worst}",
        fitted,
        kind="law",
        setting=setting,
        wanted=WANTED_ERROR,
        **misses(fitted.held_out.values()),
    )


def _table(setting: str, steps: Rows, fitted: Fitted | None) -> Table:
    columns = (
        Column("model", described),
        Column("exchange", exchanged, priority=2),
        Column("step", "time", "ms", priority=2),
        Column("over no exchange", over_none, "x"),
        Column("buckets", lambda step: len(buckets_of(step)) or None),
        Column("sent by a rank", lambda step: step.reading.details.get("wire_bytes") or None, "MB"),
        Column("law", lambda step: fitted and fitted.predicted_s.get(step.case.case_id), "ms", 0, predicted=True),
        Column("law off where left out", lambda step: fitted and fitted.held_out.get(step.case.case_id), "%", 0),
    )
    return table(f"Data-parallel steps on {setting}", columns, sorted(steps, key=_order))


def _order(step: Row) -> tuple[object, ...]:
    """Models together, without exchange first, then by bucket and micro-batches."""
    size = (step.p.hidden, step.p.layers, step.p.seq, step.p.batch, step.p.vocab)
    exchange = ("none", "ddp", "after", "dp").index(step.p.exchange)
    return (*size, exchange, step.p.accumulate, step.p.no_sync, step.p.bucket_bytes)


def _figure(setting: str, ddp: Sequence[Rows], fitted: Fitted | None) -> Figure | None:
    panels = [_panel(steps, fitted) for steps in ddp if len(steps) >= FEWEST_BUCKETS]
    if not panels:
        return None
    of = ddp[0][0]
    library = "gloo" if of.implementation == "gloo" else "NCCL"
    return figure(
        f"data_parallel_{library}_{of.p.ranks}_ranks_{of.p.dtype}{'' if of.p.peer_to_peer else '_no_p2p'}",
        f"A data-parallel step over the size of gradient buckets: {setting}",
        "Points: measured, bars span the processes. Line: compute + exposed communication. Dashed: without "
        f"exchange. torch's own buckets are {size_name(BUCKET_BYTES)}.",
        panels,
        across=len(panels),
    )


def _panel(steps: Rows, fitted: Fitted | None) -> Panel:
    ordered = sorted(steps, key=lambda step: int(step.p.bucket_bytes))
    none, law = other(ordered[0], "none"), fitted.predicted_s if fitted else {}
    drawn = (
        series("DDP", ordered, "bucket_bytes", "time"),
        series("law", ordered, "bucket_bytes", lambda step: law.get(step.case.case_id), "line"),
        series("no exchange", (ordered[0], ordered[-1]), "bucket_bytes", lambda _: none and none.seconds, "baseline"),
    )
    shown, ticks = tuple(each for each in drawn if each.x), size_ticks(step.p.bucket_bytes for step in ordered)
    return Panel(described(ordered[0]), "bucket", "step", shown, x_ticks=ticks, x_unit="size", y_unit="ms")


PROBE = Probe(
    name="data_parallel",
    question="What does exchanging gradients cost a training step here, and what hides it?",
    topic="network",
    title="Training: data parallel",
    axes=DataParallelAxes.of,
    sweep=sweep,
    computed={"setting": setting_of},
    claims=(
        RowClaim(
            NO_SYNC,
            "With {setting}, no_sync over {accumulate} micro-batches is {measured} as fast as exchanging in each",
            ratio=lambda row: row.against(no_sync=False),
            where=lambda row: row.case.operator == "data_parallel" and row.p.accumulate > 1 and row.p.no_sync,
        ),
    ),
    analyse=analyse,
    group=lambda case: f"data_parallel {case.operator} {case.implementation} {case.parameters.ranks} ranks",
)
