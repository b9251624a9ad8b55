"""One step and its like: where it ran, what it exchanged, and the law joined to the all_reduces measured there."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.laws.network.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.training.data_parallel import DataParallelLaw, Exchange, fit, held_out_errors
from pyperf_suite.measure.estimates import Ratio
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import size_name
from pyperf_suite.spec.rows import Row, Rows
from pyperf_suite.workloads.training.data_parallel import BUCKET_BYTES

# Of fewer steps each that is left out takes too much away from two constants.
FEWEST_STEPS = 4
FEWEST_SIZES = 2


@dataclass(frozen=True)
class Fitted:
    """The law in one setting; by case what it predicts, and by how much it misses the step when that is left out."""

    law: DataParallelLaw
    predicted_s: Mapping[str, float]
    held_out: Mapping[str, float]


def setting_of(row: Row) -> str:
    """Where steps and all_reduces belong together."""
    library = "gloo" if row.implementation == "gloo" else "NCCL"
    direct = "" if row.peer_to_peer else " without direct copies between GPUs"
    return f"{row.ranks} rank{'' if row.ranks == 1 else 's'} over {library}{direct}, {row.dtype}"


def other(step: Row, exchange: str, **changed: Any) -> Row | None:
    """The step of the same model with another exchange."""
    library = "nccl" if step.implementation == "dp" else step.implementation
    return step.like(
        implementation="dp" if exchange == "dp" else library,
        exchange=exchange,
        bucket_bytes=BUCKET_BYTES,
        accumulate=1,
        no_sync=True,
        static_graph=False,
        **changed,
    )


def fastest(steps: Iterable[Row]) -> Row:
    """The one of the least time."""
    return min(steps, key=lambda step: float(step.seconds))


def over_none(step: Row) -> Ratio | None:
    """Its time over that without exchange."""
    none = other(step, "none")
    return None if none is None or step.exchange == "none" else none.faster_than(step)


def buckets_of(step: Row) -> tuple[float, ...]:
    """Bytes of the buckets of one exchange, in order; none without exchange."""
    return tuple(map(float, step.details.get("buckets", ())))


def described(step: Row) -> str:
    """The model in words."""
    vocab = f", vocabulary {step.vocab}" if step.vocab else ""
    return f"{step.layers} x {step.hidden}{vocab}, {step.batch} x {step.seq} tokens"


def exchanged(step: Row) -> str:
    """The exchange in words."""
    if step.exchange != "ddp":
        return {"after": "after backward", "none": "none", "dp": "DataParallel"}[step.exchange]
    words = ["DDP", size_name(step.bucket_bytes)]
    words += ["static graph"] if step.static_graph else []
    words += [f"{step.accumulate} micro-batches"] if step.accumulate > 1 else []
    words += [] if step.no_sync else ["each exchanged"]
    return ", ".join(words)


def last_rank_s(records: Sequence[Record]) -> dict[str, float]:
    """By case, an iteration's time on the rank that is last in it, for ranks that exchange wait for each other.

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
    pairs = [(step, none) for step in steps if step.exchange in ("ddp", "after") and (none := other(step, "none"))]
    if len(pairs) < FEWEST_STEPS or len(all_reduces) < FEWEST_SIZES:
        return None
    curve = PiecewiseAlphaBeta.fit([row.message_bytes for row in all_reduces], [row.seconds for row in all_reduces])

    def all_reduce_s(size_bytes: float) -> float:
        return float(curve.seconds(size_bytes))

    exchanges = {
        step.case.case_id: Exchange(
            # The step computes until the last rank has.
            compute_s=step.accumulate * slowest_s.get(none.case.case_id, none.seconds),
            buckets_bytes=buckets_of(step),
            overlapped=step.exchange == "ddp",
            micro_batches=step.accumulate,
            every_micro_batch=not step.no_sync,
        )
        for step, none in pairs
    }
    measured = (list(exchanges.values()), [step.seconds for step, _ in pairs])
    law = fit(all_reduce_s, *measured)
    errors = held_out_errors(all_reduce_s, *measured, list(exchanges)).tolist()
    predicted_s = {case_id: law.seconds(exchange) for case_id, exchange in exchanges.items()}
    return Fitted(law, predicted_s, dict(zip(exchanges, errors, strict=True)))
