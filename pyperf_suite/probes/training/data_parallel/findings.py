"""What the steps say: the cost of the exchange, each claim of the guides beside its ratio, and the law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyperf_suite.operators.training.data_parallel import BUCKET_BYTES, DataParallelParameters
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.probes.training.claims import BEKMAN, TRANSFORMERS, Claim
from pyperf_suite.probes.training.data_parallel.places import (
    Place,
    buckets_of,
    described,
    exchange_of,
    exchanged,
    model_of,
    places_of,
    wire_bytes_of,
)
from pyperf_suite.probes.training.data_parallel.step_law import FittedStep, fitted_step
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Figure, Findings, Panel, Series, Table
from pyperf_suite.spec.rows import Reading, mean_speedup, speedup

LI = "Li et al. 2020, PyTorch Distributed"

OVERLAP = Claim("an efficient framework overlaps communication and compute", BEKMAN, low=1.0)
BUCKETS = Claim("gradients are exchanged in buckets, so that it can begin before the last is there", LI, low=1.0)
NO_SYNC = Claim("skipping the exchange of all micro-batches but the last saves time", LI, low=1.0)
# 200 steps of GPT-2 on 2 x TITAN RTX: DP over NVLink 110 s, DDP over NVLink 101 s, DDP without NVLink 131 s.
DDP_BEATS_DP = Claim("DDP is typically faster than DP: 101 s against 110 s over NVLink", TRANSFORMERS, low=1.0)
LINKS_MATTER = Claim("DDP is slower over slow links: 131 s without NVLink, 101 s with it", TRANSFORMERS, low=1.0)
DP_BEATS_UNLINKED = Claim("DP over NVLink is faster than DDP without it: 110 s against 131 s", TRANSFORMERS, low=1.0)

# What the law is wanted to keep to, as a median over steps that it has not seen.
WANTED_ERROR = 0.10
FEWEST_BUCKETS = 3

COLUMNS = ("model", "exchange", "step ms", "beside none", "buckets", "MB sent by a rank", "law ms", "held out off")


def explain(records: Sequence[Record]) -> Findings:
    """Sentences, a table a setting, and the step's time over bucket size."""
    sentences: list[str] = []
    tables: list[Table] = []
    figures: list[Figure] = []
    places = [place for place in places_of(records) if place.steps]
    for place in places:
        law = fitted_step(place)
        sentences += [*_costs(place), *_hidden(place), *_buckets(place), *_options(place), *_by_dp(place)]
        sentences += _law(place, law)
        tables.append(_table(place, law))
        figures += _figure(place, law)
    sentences += [*_without_direct_copies(places), *_right(records, places)]
    return Findings(tuple(sentences), tuple(tables), tuple(figures))


def _of(place: Place, exchange: str) -> list[Reading]:
    return [step for step in place.steps if exchange_of(step) == exchange]


def _is_plain(p: DataParallelParameters) -> bool:
    """DDP with nothing but its buckets chosen."""
    return bool(p.exchange == "ddp" and p.accumulate == 1 and not p.static_graph)


def _plain_ddp(place: Place) -> dict[DataParallelParameters, list[Reading]]:
    """DDP's steps of each model by bucket size alone."""
    found: dict[DataParallelParameters, list[Reading]] = {}
    for step in _of(place, "ddp"):
        if _is_plain(step.case.parameters):
            found.setdefault(model_of(step), []).append(step)
    return found


def _costs(place: Place) -> Iterator[str]:
    """What the exchange adds to each model's step, with the best of its buckets."""
    for model, steps in _plain_ddp(place).items():
        best = min(steps, key=lambda step: step.seconds)
        alone = place.alone(best)
        ratio = speedup(best, alone) if alone else None
        if ratio is None or alone is None:
            continue
        yield (
            f"{described(model)} on {place.setting}: DDP with buckets of {readable(best.case.parameters.bucket_bytes)} "
            f"takes {ratio} x the step without exchange ({best.seconds * 1e3:.3g} ms against "
            f"{alone.seconds * 1e3:.3g}); each rank sends {wire_bytes_of(best) / 1e6:.3g} MB in "
            f"{_counted(len(buckets_of(best)), 'bucket')}."
        )


def _hidden(place: Place) -> Iterator[str]:
    """Overlap on against off: one exchange after backward, over all models."""
    ddp = _plain_ddp(place)
    pairs = [
        (after, min(ddp[model_of(after)], key=lambda step: step.seconds))
        for after in _of(place, "after")
        if model_of(after) in ddp
    ]
    ratio = mean_speedup(pairs)
    if ratio is not None:
        subject = f"With {place.setting}, exchanging while backward goes on is {{}} x as fast as after it"
        yield OVERLAP.sentence(subject, ratio, f"({_counted(len(pairs), 'model')})")


def _buckets(place: Place) -> Iterator[str]:
    """The best of several buckets against a single one that waits for the last gradient."""
    pairs = []
    for steps in _plain_ddp(place).values():
        single = [step for step in steps if len(buckets_of(step)) == 1]
        several = [step for step in steps if len(buckets_of(step)) > 1]
        if single and several:
            # With room for all, any size makes the same bucket: the smallest that does.
            one = min(single, key=lambda step: int(step.case.parameters.bucket_bytes))
            pairs.append((one, min(several, key=lambda step: step.seconds)))
    ratio = mean_speedup(pairs)
    if ratio is not None:
        best = " and ".join(sorted({readable(step.case.parameters.bucket_bytes) for _, step in pairs}))
        subject = f"With {place.setting}, the best buckets ({best}) are {{}} x as fast as a single one"
        yield BUCKETS.sentence(subject, ratio)


def _options(place: Place) -> Iterator[str]:
    """Accumulation without and with an exchange in each micro-batch, and the static graph."""
    skipping = place.pairs(lambda p: not p.no_sync, lambda p: replace(p, no_sync=True))
    for every, last in skipping:
        ratio = speedup(every, last)
        if ratio is not None:
            count = every.case.parameters.accumulate
            subject = (
                f"With {place.setting}, no_sync over {count} micro-batches is {{}} x as fast as exchanging in each"
            )
            yield NO_SYNC.sentence(subject, ratio)
    graphs = place.pairs(lambda p: p.static_graph, lambda p: replace(p, static_graph=False))
    for static, usual in graphs:
        ratio = speedup(usual, static)
        if ratio is not None:
            yield f"With {place.setting}, a static graph is {ratio} x as fast as DDP's usual one."


def _by_dp(place: Place) -> Iterator[str]:
    """DataParallel against DDP, over all models that both trained."""
    ddp = _plain_ddp(place)
    pairs = [
        (dp, min(ddp[model_of(dp)], key=lambda step: step.seconds)) for dp in _of(place, "dp") if model_of(dp) in ddp
    ]
    ratio = mean_speedup(pairs)
    if ratio is not None:
        yield DDP_BEATS_DP.sentence(f"With {place.setting}, DDP is {{}} x as fast as DP", ratio)


def _without_direct_copies(places: Sequence[Place]) -> Iterator[str]:
    """The same DDP steps without NVLink or PCIe copies between GPUs."""
    by_setting = {place.setting: place for place in places}
    for place in places:
        direct = by_setting.get(replace(place.setting, peer_to_peer=True))
        if place.setting.peer_to_peer or direct is None:
            continue
        others = {step.case.parameters: step for step in direct.steps}
        pairs = [
            (slow, others[fast])
            for slow in _of(place, "ddp")
            if (fast := replace(slow.case.parameters, peer_to_peer=True)) in others
        ]
        ratio = mean_speedup(pairs)
        if ratio is not None:
            subject = f"Among {place.setting.ranks} GPUs DDP without direct copies takes {{}} x the time with them"
            yield LINKS_MATTER.sentence(subject, ratio)
        dp = {replace(model_of(step), peer_to_peer=False): step for step in _of(direct, "dp")}
        fastest = {model: min(steps, key=lambda step: step.seconds) for model, steps in _plain_ddp(place).items()}
        ratio = mean_speedup([(ddp, dp[model]) for model, ddp in fastest.items() if model in dp])
        if ratio is not None:
            subject = f"Among {place.setting.ranks} GPUs DP with direct copies is {{}} x as fast as DDP without them"
            yield DP_BEATS_UNLINKED.sentence(subject, ratio)


def _law(place: Place, fitted: FittedStep | None) -> Iterator[str]:
    if fitted is None:
        return
    law, count = fitted.law, len(fitted.steps)
    kept = "within" if fitted.median_error <= WANTED_ERROR else "more than"
    yield (
        f"Law on {place.setting}: step = compute + exchange - {law.hidden:.2f} x what of it runs beside backward, an "
        f"all_reduce taking {law.slowdown:.2f} x as long in a step as alone; steps held out are missed by "
        f"{fitted.median_error:.1%} (median of {count}; worst {max(fitted.held_out):.1%}), {kept} the "
        f"{WANTED_ERROR:.0%} wanted."
    )


def _right(records: Sequence[Record], places: Sequence[Place]) -> Iterator[str]:
    """That what is compared did the same work."""
    steps = [each for each in records if each.outcome == "ok" and each.case.get("operator") == "data_parallel"]
    if steps and places:
        yield (
            f"In all {_counted(len(steps), 'visit')} the gradients are those of a single process, and where they are "
            "exchanged the same bits on every rank."
        )


def _table(place: Place, fitted: FittedStep | None) -> Table:
    predicted: dict[str, tuple[float, float]] = {}
    if fitted is not None:
        figures = zip(fitted.steps, fitted.predicted_s, fitted.held_out, strict=True)
        predicted = {step.case.case_id: (law_s, error) for step, law_s, error in figures}
    rows = []
    for step in sorted(place.steps, key=_order):
        alone = place.alone(step)
        ratio = speedup(step, alone) if alone is not None and exchange_of(step) != "none" else None
        law_s, error = predicted.get(step.case.case_id, (None, None))
        rows.append(
            (
                described(step.case.parameters),
                exchanged(step.case.parameters),
                f"{step.seconds * 1e3:.3g} [{step.low * 1e3:.3g}, {step.high * 1e3:.3g}]",
                str(ratio) if ratio is not None else "-",
                str(len(buckets_of(step)) or "-"),
                f"{wire_bytes_of(step) / 1e6:.3g}" if wire_bytes_of(step) else "-",
                f"{law_s * 1e3:.3g}" if law_s is not None else "-",
                f"{error:.1%}" if error is not None else "-",
            )
        )
    return Table(f"Data-parallel steps on {place.setting}", COLUMNS, tuple(rows))


def _order(step: Reading) -> tuple[object, ...]:
    """Models together, without exchange first, then by bucket and micro-batches."""
    p = step.case.parameters
    place = ("none", "ddp", "after", "dp").index(p.exchange)
    size = (p.hidden, p.layers, p.seq, p.batch, p.vocab)
    return (*size, place, p.accumulate, p.static_graph, p.no_sync, p.bucket_bytes)


def _figure(place: Place, fitted: FittedStep | None) -> list[Figure]:
    panels = []
    for model, steps in _plain_ddp(place).items():
        if len(steps) < FEWEST_BUCKETS:
            continue
        ordered = sorted(steps, key=lambda step: int(step.case.parameters.bucket_bytes))
        sizes = [float(step.case.parameters.bucket_bytes) for step in ordered]
        series = [
            Series(
                "DDP",
                sizes,
                [step.seconds * 1e3 for step in ordered],
                "points",
                [step.low * 1e3 for step in ordered],
                [step.high * 1e3 for step in ordered],
            )
        ]
        if fitted is not None:
            law_s = dict(zip([step.case.case_id for step in fitted.steps], fitted.predicted_s, strict=True))
            series.append(Series("law", sizes, [law_s[step.case.case_id] * 1e3 for step in ordered], "line"))
        alone = place.alone(ordered[0])
        if alone is not None:
            series.append(Series("no exchange", [sizes[0], sizes[-1]], [alone.seconds * 1e3] * 2, "beside"))
        ticks = tuple((size, readable(size)) for size in sizes)
        panels.append(Panel(described(model), "bucket", "step, ms", tuple(series), x_ticks=ticks))
    if not panels:
        return []
    setting = place.setting
    direct = "" if setting.peer_to_peer else "_no_p2p"
    error = f" ({fitted.median_error:.1%} off on steps held out, median)" if fitted else ""
    return [
        Figure(
            name=f"data_parallel_{setting.library}_{setting.ranks}_ranks_{setting.dtype}{direct}",
            title=f"A data-parallel step over the size of gradient buckets: {setting}",
            caption=f"Points: measured, bars span the processes. Line: compute + exposed communication{error}. "
            f"Dashed: without exchange. torch's own buckets are {readable(BUCKET_BYTES)}.",
            rows=(tuple(panels),),
        )
    ]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
