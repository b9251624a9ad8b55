"""Cost and freed bytes of dropping activations to compute them again, and whether a larger batch pays for it.

After every policy at the same batch, the largest batch that fits a budget of bytes is searched for under each. Bytes
grow with the batch in a straight line but for what the allocator does, so a line through two batches says where to
look, and what is looked at decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pyperf_suite.errors import Within
from pyperf_suite.findings.axes import AxisTable, all_cores, by, crossed
from pyperf_suite.findings.data import BEKMAN, Claim, ClaimVerdict, Figure, Findings, Panel, Remark, figure, findings
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Column, Row, Rows, series_by, table
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.laws.training.memory import NEAR_LIMIT
from pyperf_suite.laws.transformer import Recompute, hardware_flop, model_flop
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import all_observed
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.training_step import TrainingStepParameters

COSTS = Claim("dropping what blocks made costs 20-25 % of throughput", BEKMAN, 0.75, 0.80)
REPAYS = Claim("the larger batch that then fits raises throughput overall", BEKMAN, 1.0)
CONTEXT_BYTES = 1 << 30  # memory of a GPU that the CUDA context and the libraries take before anything is placed there

TRAINS = (
    "Checkpointing {checkpointing} trains at {measured} the rate without ({by_flop} by FLOPs alone) and keeps {kept} "
    "of {kept_without} for backward, batch {batch} ({model})"
)

TRAINS_MORE = (
    "Checkpointing {checkpointing} with batch {batch} trains {measured} the tokens a second of none with batch {plain} "
    "({model})"
)

NONE, SELECTIVE, BLOCK, *_ = POLICIES = tuple(map(Checkpointing.parse, ("none", "selective", "every:1", "every:2")))


def megabytes(device: Device) -> tuple[int, ...]:
    """Return the megabytes of a GPU's memory next to CUDA's context."""
    return (math.floor((gpus()[device.index].memory_bytes - CONTEXT_BYTES) / 1e6),)


@dataclass(frozen=True)
class CheckpointingAxes(AxisTable):
    """On a CPU a few small blocks, a tenth of a second a step at the largest batch; on a GPU what its memory holds.

    `budget_mb` is what a step may hold in all, in units of 1e6 bytes; 0 is what the device has free, and then no larger
    batch is searched for. With `vocab` 0 there are blocks alone, without embedding, logits and loss.
    """

    hidden: tuple[int, ...] = by((128,), full=(256,), cuda=(4096,))
    heads: tuple[int, ...] = by((4,), cuda=(32,))
    layers: tuple[int, ...] = by((2,), (4,), (8,), cuda=by((2,), standard=(4,)))
    seq: tuple[int, ...] = by((64,), full=(128,), cuda=(2048,))
    vocab: tuple[int, ...] = by((0,), cuda=by((0,), full=(0, 50304)))
    attention: tuple[str, ...] = ("sdpa",)
    precision: tuple[str, ...] = by(("float32",), cuda=("bfloat16",))
    part: tuple[str, ...] = ("train",)
    budget_mb: Annotated[tuple[int, ...], Within(0)] = by((0,), (25,), (200,), cuda=by((0,), standard=megabytes))
    workers: Annotated[tuple[int, ...], Within(1)] = by(all_cores, cuda=(1,))
    batch: Annotated[tuple[int, ...], Within(1)] = by((4,), full=(1, 2, 4), cuda=by((2,), full=(1, 2, 4, 8)))
    checkpointing: tuple[Checkpointing, ...] = by(
        (NONE, BLOCK), POLICIES, (*POLICIES, Checkpointing("every", 4)), cuda=by((NONE, BLOCK), POLICIES)
    )


def sweep(axes: CheckpointingAxes) -> Iterator[Case]:
    """Each policy at each batch of each transformer; the search adds its own (see `follow_up`)."""
    for named in crossed(axes):
        budget = named.pop("budget_mb") * 1_000_000
        yield Case("checkpointed_step", TrainingStepParameters(**named, budget_bytes=budget), "torch")


@dataclass
class BatchSearch:
    """One policy of one transformer: batches that fit with their bytes, and others; of `parameters` the batch is 1.

    `broken` where a batch neither fits nor is too large: something failed, and a search would not end.
    """

    parameters: TrainingStepParameters
    fits: dict[int, Mapping[str, float]] = field(default_factory=dict)
    too_large: set[int] = field(default_factory=set)
    broken: bool = False

    @property
    def largest(self) -> int:
        return max(self.fits, default=0)

    @property
    def is_settled(self) -> bool:
        return self.largest + 1 in self.too_large

    @property
    def next_batch(self) -> int | None:
        """The batch to try next; None where nothing is left to learn."""
        above = sorted(batch for batch in self.too_large if batch > self.largest)
        if self.broken or self.is_settled or not (self.fits or above):
            return None
        if not self.fits:
            return above[0] // 2
        if not above or self._predicted < above[0]:
            return max(self._predicted, self.largest + 1)
        # The line promised too much: steps down that double, and halves where these would go below what fits.
        down = above[0] - 2 ** (len(above) - 1)
        return down if down > self.largest else (self.largest + above[0]) // 2

    @property
    def _predicted(self) -> int:
        """Return the batch where the line through the bytes of one sequence and the largest batch meets the budget."""
        seen = self.fits[self.largest]
        if self.largest > 1:
            each, start = (seen["peak"] - seen["peak_of_one"]) / (self.largest - 1), seen["peak_of_one"]
        else:
            each, start = seen["peak"] - seen["fixed"], seen["peak"]
        return 1 + math.floor((self.parameters.budget_bytes - start) / max(each, 1.0))


def searches(records: Sequence[Record]) -> list[BatchSearch]:
    """Return a search for each policy with a budget in these records."""
    observed = all_observed(records)
    by_policy: dict[TrainingStepParameters, BatchSearch] = {}
    for record in records:
        p = record.parsed_case().parameters
        if not p.budget_bytes:
            continue
        search = by_policy.setdefault(replace(p, batch=1), BatchSearch(replace(p, batch=1)))
        if record.outcome == "ok":
            search.fits[p.batch] = observed[record.case_id]
        elif record.outcome == "unsupported" and "does not fit" in record.reason:
            search.too_large.add(p.batch)
        else:
            search.broken = True
    return sorted(by_policy.values(), key=lambda search: _order(search.parameters))


def follow_up(records: Sequence[Record]) -> list[Case]:
    """For each policy the batch to try next, until one is known to fit and the next one not to."""
    tried = [replace(each.parameters, batch=batch) for each in searches(records) if (batch := each.next_batch)]
    return [Case("checkpointed_step", parameters, "torch") for parameters in tried]


def model(p: TrainingStepParameters) -> str:
    """`4 blocks of 128, seq 64, float32`."""
    return f"{p.layers} blocks of {p.hidden}, seq {p.seq}, {p.precision}"


def _order(p: TrainingStepParameters) -> tuple[Any, ...]:
    return (model(p), p.vocab, p.checkpointing != NONE, str(p.checkpointing), p.batch)


def rate(row: Row[TrainingStepParameters]) -> Quantity:
    """Tokens a second."""
    return row.reading.per_second(row.p.tokens, "/s")


def relative(row: Row[TrainingStepParameters]) -> Ratio | None:
    """How many times as fast it is as without checkpointing."""
    return row.against(checkpointing=NONE)


def by_flop(row: Row[TrainingStepParameters]) -> Quantity:
    """The rate relative to none if only FLOPs cost time: what blocks drop is computed twice, the rest is no product."""
    again: Recompute = "layers" if row.p.checkpointing.kind == "every" else "nothing"
    size = (row.p.dimensions, row.p.batch, row.p.seq)
    return Quantity(model_flop(*size) / hardware_flop(*size, again), "x", predicted=True)


def is_reported(row: Row[TrainingStepParameters]) -> bool:
    """True for the largest batch of a policy that was also measured without checkpointing."""
    return row is next((each for each in reversed(row.rows.same_except(row, "batch")) if relative(each)), None)


def analyse(rows: Rows[TrainingStepParameters]) -> Findings:
    """Return the cost of other policies, the largest batches, whether they repay it, and advice."""
    tried = searches(rows.records)
    after = {replace(each.parameters, batch=batch - 1): "does not fit" for each in tried for batch in each.too_large}
    settled = [replace(each.parameters, batch=each.largest) for each in tried if each.is_settled]
    largest = [row for p in settled for row in rows if row.p == p]
    return findings(
        (_cost(row) for row in rows.where(is_reported)),
        (_headroom(rows, row) for row in largest if row.p.checkpointing == NONE),
        (_repaid(group) for group in Rows(largest).groups("batch", "checkpointing")),
        table("Largest batch that fits", LARGEST, tried),
        table(
            "Steps by checkpointing and batch", (*STEPS, Column("batch after it", lambda row: after.get(row.p))), rows
        ),
        (_figure(number, group) for number, group in enumerate(rows.groups("batch", "checkpointing"))),
    )


LARGEST = (
    Column("model", lambda search: model(search.parameters), priority=0),
    Column("budget", lambda search: search.parameters.budget_bytes, "MB"),
    Column("checkpointing", lambda search: str(search.parameters.checkpointing), priority=2),
    Column("largest batch", lambda search: search.largest or None, "count", priority=2),
    Column("the next one", lambda search: "does not fit" if search.is_settled else None),
)
STEPS = (
    Column("model", priority=0),
    Column("checkpointing", priority=2),
    Column("batch", priority=2),
    Column("time", "seconds", "ms"),
    Column("tokens", lambda row: rate(row).value, "/s", priority=2),
    Column("relative to none", "relative", "x"),
    Column("kept", unit="MB"),
    Column("peak", unit="MB", priority=2),
)


def _cost(row: Row[TrainingStepParameters]) -> Remark | ClaimVerdict:
    """The guide speaks of all that blocks made."""
    measured = relative(row)
    if measured and row.p.checkpointing.kind == "every":
        return row.judge(COSTS, TRAINS, measured)
    return row.remark(TRAINS, effect="measured", measured=measured)


def _repaid(rows: Rows[TrainingStepParameters]) -> Iterator[Remark | ClaimVerdict]:
    """The best policy at its largest batch compared with none at its own, where both searches came to an end."""
    plain = rows.first(checkpointing=NONE)
    if plain is None:
        return
    others = ((row.faster_than(plain), row) for row in rows if row is not plain)
    compared = [(faster * (row.p.batch / plain.p.batch), row) for faster, row in others if faster]
    if not compared:
        return
    ratio, best = max(compared, key=lambda each: each[0].value)
    yield best.judge(REPAYS, TRAINS_MORE, ratio, plain=plain.p.batch)
    if ratio.low > 1 or ratio.high < 1:
        yield (best if ratio.low > 1 else plain).remark(
            "Fastest within {budget}: checkpointing {checkpointing} with batch {batch} ({model})",
            budget=Quantity(plain.p.budget_bytes, "MB"),
        )


def _headroom(rows: Rows[TrainingStepParameters], largest: Row[TrainingStepParameters]) -> Iterator[Remark]:
    """Yield the budget that the smallest batch leaves, the gain of the largest, and a warning if it is too near."""
    smallest = rows.same_except(largest, "batch")[0]
    faster = largest.faster_than(smallest) if smallest.p.batch < largest.p.batch else None
    if faster:
        yield smallest.remark(
            "Batch {batch} leaves {unused:MB} of {budget:MB} unused: it could be {larger}, which trains {gain} the "
            "tokens a second ({model})",
            effect="gain",
            unused=smallest.p.budget_bytes - smallest.observed["peak"],
            budget=smallest.p.budget_bytes,
            larger=largest.p.batch,
            gain=faster * (largest.p.batch / smallest.p.batch),
        )
    if largest.observed["peak"] > NEAR_LIMIT * largest.p.budget_bytes:
        yield largest.remark(
            "Batch {batch} takes {peak:MB} of {budget:MB}, within 5 % of the limit: fragmentation may end a long run "
            "({model})",
            kind="caution",
            budget=largest.p.budget_bytes,
        )


def _figure(number: int, rows: Rows[TrainingStepParameters]) -> Figure | None:
    """Throughput over the most that a step holds: one would be up and to the left."""
    lines = series_by("checkpointing", rows, "peak", "rate")
    budget = rows[0].p.budget_bytes
    edges = (budget,) if budget else ()
    panel = Panel(model(rows[0].p), "held at most", "tokens", lines, edges, x_unit="MB", y_unit="/s")
    caption = "A point a batch, the larger to the right; bars span the processes. Line: the budget."
    title = "Throughput over memory by checkpointing"
    return figure(f"checkpointing_{number}", title, caption, [panel] if len(lines) > 1 else ())


PROBE = Probe(
    name="checkpointing",
    question="What does computing activations again cost, what does it free, and does a larger batch repay it?",
    topic="training",
    title="Training: checkpointing",
    axes=CheckpointingAxes.of,
    sweep=sweep,
    computed={
        "model": lambda row: model(row.p),
        "rate": rate,
        "relative": relative,
        "by_flop": by_flop,
        "kept": lambda row: Quantity(row.observed["kept"], "MB"),
        "kept_without": lambda row: (
            Quantity(without.observed["kept"], "MB") if (without := row.like(checkpointing=NONE)) else None
        ),
    },
    order=lambda row: _order(row.p),
    analyse=analyse,
    follow_up=follow_up,
    group=lambda case: f"checkpointing {model(case.parameters)}",
)
