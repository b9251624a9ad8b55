"""What steps by policy of checkpointing say: its cost, the batch it makes room for, and what that is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.laws.model_flops import hardware_flop, model_flop
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.training.checkpointed_step import CheckpointedStepParameters
from pyperf_suite.operators.training.shape import Checkpointing
from pyperf_suite.probes.training.claims import BEKMAN, Claim
from pyperf_suite.probes.training.largest_batch import Search, searches
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Figure, Findings, Panel, Series, Table
from pyperf_suite.spec.rows import Reading, all_observed, readings, speedup

COSTS = Claim("dropping what blocks made costs 20-25 % of throughput", BEKMAN, 0.75, 0.80)
REPAYS = Claim("the larger batch that then fits raises throughput overall", BEKMAN, 1.0)

NONE = Checkpointing()
COLUMNS = ("checkpointing", "batch", "ms", "tokens/s", "x none at this batch", "kept MB", "peak MB", "batch after it")


@dataclass(frozen=True)
class Transformer:
    """All of the same transformer and budget: readings by policy and batch, bytes by case, and searches by policy."""

    parameters: CheckpointedStepParameters
    steps: Mapping[Checkpointing, Mapping[int, Reading]]
    held: Mapping[str, Mapping[str, float]]
    searches: Mapping[Checkpointing, Search]

    def __str__(self) -> str:
        p = self.parameters
        return f"{p.layers} blocks of {p.hidden}, seq {p.seq}, {p.precision}"

    def bytes_of(self, reading: Reading) -> Mapping[str, float]:
        """What was observed of it."""
        return self.held[reading.case.case_id]


def explain(records: Sequence[Record]) -> Findings:
    """Sentences by transformer, a table of every step, and where throughput stands over memory."""
    transformers = _transformers(records)
    sentences = [said for each in transformers for said in (*_costs(each), *_largest(each), *_repaid(each))]
    rows = tuple(row for each in transformers for row in _rows(each))
    return Findings(
        tuple(sentences),
        (Table("Steps by checkpointing and batch", COLUMNS, rows),) if rows else (),
        tuple(_figure(number, each) for number, each in enumerate(transformers) if len(each.steps) > 1),
    )


def _transformers(records: Sequence[Record]) -> list[Transformer]:
    found = searches(records)
    # Where nothing fits there are no readings, and that is to be told too.
    steps: dict[CheckpointedStepParameters, dict[Checkpointing, dict[int, Reading]]] = {
        replace(each.parameters, checkpointing=NONE): {} for each in found
    }
    for reading in readings(records):
        p = reading.case.parameters
        key = replace(p, batch=1, checkpointing=NONE)
        steps.setdefault(key, {}).setdefault(p.checkpointing, {})[p.batch] = reading
    return [
        Transformer(
            key,
            {policy: dict(sorted(by_batch.items())) for policy, by_batch in by_policy.items()},
            all_observed(records),
            {s.parameters.checkpointing: s for s in found if replace(s.parameters, checkpointing=NONE) == key},
        )
        for key, by_policy in steps.items()
    ]


def _costs(transformer: Transformer) -> Iterator[str]:
    """Every policy beside none at the largest batch that both were measured at."""
    plain = transformer.steps.get(NONE, {})
    for policy, by_batch in transformer.steps.items():
        shared = sorted(set(by_batch) & set(plain))
        if policy == NONE or not shared:
            continue
        reading, beside = by_batch[shared[-1]], plain[shared[-1]]
        ratio = speedup(beside, reading)
        if ratio is None:
            continue
        ours, theirs = transformer.bytes_of(reading), transformer.bytes_of(beside)
        subject = f"{transformer}, batch {shared[-1]}: {_doing(policy)} trains at {{}} x the rate of keeping all"
        freed = (
            f"and keeps {ours['kept'] / 1e6:.3g} of {theirs['kept'] / 1e6:.3g} MB for backward "
            f"({ours['peak'] / 1e6:.3g} of {theirs['peak'] / 1e6:.3g} MB held at most)"
        )
        if policy.kind == "every":
            by_flop = _rate_by_flop(reading.case.parameters)
            yield COSTS.sentence(subject, ratio, f"({by_flop:.2f} by FLOPs alone) {freed}")
        else:
            yield f"{subject.format(ratio)} {freed}."


def _largest(transformer: Transformer) -> Iterator[str]:
    """The batches that fit under each policy, and which of them were seen to be the last."""
    told = []
    for policy, search in transformer.searches.items():
        if search.fits:
            told.append(f"{policy} {search.largest}{'' if search.is_settled else ' or more'}")
        elif search.too_large:
            told.append(f"{policy} none")
    if told:
        budget = transformer.parameters.budget_bytes / 1e6
        yield f"{transformer}: the largest batch that fits {budget:.4g} MB is, by checkpointing, {', '.join(told)}."


def _repaid(transformer: Transformer) -> Iterator[str]:
    """The best policy at its largest batch beside none at its own, where both searches came to an end."""
    last = {
        policy: transformer.steps[policy][search.largest]
        for policy, search in transformer.searches.items()
        if search.is_settled and search.largest in transformer.steps.get(policy, {})
    }
    plain = last.pop(NONE, None)
    compared = {policy: ratio for policy, each in last.items() if plain and (ratio := _rate_ratio(plain, each))}
    if plain is None or not compared:
        return
    best = max(compared, key=lambda policy: compared[policy].value)
    batch = last[best].case.parameters.batch
    yield REPAYS.sentence(
        f"{transformer}: {_doing(best)} with batch {batch} trains {{}} x as many tokens a second as keeping all with "
        f"batch {plain.case.parameters.batch}",
        compared[best],
    )
    if compared[best].low > 1:
        yield f"{transformer}: take {best} with batch {batch}, the fastest within this memory."
    elif compared[best].high < 1:
        yield f"{transformer}: keep all with batch {plain.case.parameters.batch}, the fastest within this memory."


def _rate_ratio(plain: Reading, other: Reading) -> Ratio | None:
    """Tokens a second of the other over those of keeping all, within the same processes."""
    ratio = speedup(plain, other)
    return None if ratio is None else ratio * (other.case.parameters.batch / plain.case.parameters.batch)


def _rate_by_flop(p: CheckpointedStepParameters) -> float:
    """What is left of the throughput where blocks are computed twice and time is FLOPs alone."""
    once = model_flop(p.dimensions, p.batch, p.seq)
    return float(once / hardware_flop(p.dimensions, p.batch, p.seq, "layers"))


def _rows(transformer: Transformer) -> Iterator[tuple[str, ...]]:
    plain = transformer.steps.get(NONE, {})
    for policy, by_batch in transformer.steps.items():
        search = transformer.searches.get(policy)
        for batch, reading in by_batch.items():
            held = transformer.bytes_of(reading)
            ratio = speedup(plain[batch], reading) if policy != NONE and batch in plain else None
            yield (
                str(policy),
                str(batch),
                f"{reading.seconds * 1e3:.2f}",
                f"{_tokens_per_s(reading):.0f}",
                "-" if ratio is None else str(ratio),
                f"{held['kept'] / 1e6:.2f}",
                f"{held['peak'] / 1e6:.2f}",
                "does not fit" if search is not None and batch + 1 in search.too_large else "-",
            )


def _figure(number: int, transformer: Transformer) -> Figure:
    """Throughput over the most that a step holds: one would be up and to the left."""
    series = []
    for policy, by_batch in transformer.steps.items():
        p = [reading.case.parameters for reading in by_batch.values()]
        series.append(
            Series(
                str(policy),
                [transformer.bytes_of(reading)["peak"] / 1e6 for reading in by_batch.values()],
                [_tokens_per_s(reading) for reading in by_batch.values()],
                "points",
                [each.tokens / reading.high for each, reading in zip(p, by_batch.values(), strict=True)],
                [each.tokens / reading.low for each, reading in zip(p, by_batch.values(), strict=True)],
            )
        )
    budget = transformer.parameters.budget_bytes
    panel = Panel(
        title=str(transformer),
        x_label="MB held at most",
        y_label="tokens/s",
        series=tuple(series),
        strong_edges=(budget / 1e6,) if budget else (),
    )
    return Figure(
        name=f"checkpointing_{number}",
        title="Throughput over memory by checkpointing",
        caption="A point a batch, the larger to the right; bars span the processes. Line: the budget.",
        rows=((panel,),),
    )


def _tokens_per_s(reading: Reading) -> float:
    return float(reading.case.parameters.tokens / reading.seconds)


def _doing(policy: Checkpointing) -> str:
    if policy.kind == "selective":
        return "keeping products and attention alone"
    return (
        "dropping all within every block" if policy.every == 1 else f"dropping all within every {policy.every} blocks"
    )
