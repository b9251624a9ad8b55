"""Records of the probe sorted by where they ran: ranks, library, links; in each the steps of every model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pyperf_suite.operators.training.data_parallel import BUCKET_BYTES, DataParallelParameters
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.rows import Reading, readings

NAME_OF_LIBRARY = {"gloo": "gloo", "nccl": "NCCL", "c10d_nccl": "NCCL", "dp": "NCCL"}


@dataclass(frozen=True)
class Setting:
    """Where steps and all_reduces belong together."""

    library: str
    ranks: int
    peer_to_peer: bool
    dtype: str

    def __str__(self) -> str:
        direct = "" if self.peer_to_peer else " without direct copies between GPUs"
        ranks = f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        return f"{ranks} over {self.library}{direct}, {self.dtype}"


@dataclass
class Place:
    """What was measured in one setting: steps in the order of the records, and all_reduces alone by their bytes."""

    setting: Setting
    steps: list[Reading] = field(default_factory=list)
    all_reduces: dict[int, Reading] = field(default_factory=dict)
    # By case: seconds of an iteration on the rank that is last in it, for ranks that exchange wait for each other.
    last_rank_s: dict[str, float] = field(default_factory=dict)

    def alone(self, step: Reading) -> Reading | None:
        """The step without exchange of that step's model."""
        found = [each for each in self.steps if exchange_of(each) == "none" and model_of(each) == model_of(step)]
        return found[0] if found else None

    def pairs(
        self, one: Callable[[DataParallelParameters], bool], change: Callable[[DataParallelParameters], object]
    ) -> list[tuple[Reading, Reading]]:
        """Steps that `one` chooses, each with the step, if any, whose parameters are what `change` makes of its own."""
        by_parameters = {each.case.parameters: each for each in self.steps}
        found = []
        for each in self.steps:
            other = by_parameters.get(change(each.case.parameters)) if one(each.case.parameters) else None
            if other is not None:
                found.append((each, other))
        return found


def places_of(records: Sequence[Record]) -> list[Place]:
    """One for each setting, in order of the records."""
    found: dict[Setting, Place] = {}
    last_rank_s: dict[str, list[float]] = {}
    for record in records:
        if record.outcome == "ok" and (seconds := _last_rank_s(record)) is not None:
            last_rank_s.setdefault(record.case_id, []).append(seconds)
    for reading in readings(records):
        p = reading.case.parameters
        library = NAME_OF_LIBRARY.get(reading.case.implementation, reading.case.implementation)
        setting = Setting(library, p.ranks, p.peer_to_peer, p.dtype)
        place = found.setdefault(setting, Place(setting))
        if reading.case.operator == "collective":
            place.all_reduces[p.message_bytes] = reading
        else:
            place.steps.append(reading)
        if reading.case.case_id in last_rank_s:
            place.last_rank_s[reading.case.case_id] = statistics.median(last_rank_s[reading.case.case_id])
    return list(found.values())


def _last_rank_s(record: Record) -> float | None:
    """The median over iterations of the largest of the ranks' times; of many ranks, the largest of their medians."""
    sampling = record.sampling
    if sampling.get("rank_samples_s"):
        return statistics.median(map(max, zip(*sampling["rank_samples_s"], strict=True)))
    medians = [median for median in sampling.get("rank_median_s", ()) if median is not None]
    return max(medians, default=None)


def exchange_of(step: Reading) -> str:
    """ddp, after, none or dp."""
    exchange: str = step.case.parameters.exchange
    return exchange


def model_of(step: Reading) -> DataParallelParameters:
    """The model alone, the same for all exchanges."""
    return without_exchange(step.case.parameters)


def without_exchange(p: DataParallelParameters) -> DataParallelParameters:
    """The parameters of the step without exchange of one micro-batch."""
    return replace(p, exchange="none", bucket_bytes=BUCKET_BYTES, accumulate=1, no_sync=True, static_graph=False)


def buckets_of(step: Reading) -> tuple[int, ...]:
    """Bytes of the buckets of one exchange, in order; none without exchange."""
    return tuple(step.kernel.get("details", {}).get("buckets", ()))


def wire_bytes_of(step: Reading) -> int:
    """Bytes that each rank sends in a step."""
    return int(step.kernel.get("details", {}).get("wire_bytes", 0))


def described(p: DataParallelParameters) -> str:
    """The model in words."""
    vocab = f", vocabulary {p.vocab}" if p.vocab else ""
    return f"{p.layers} x {p.hidden}{vocab}, {p.batch} x {p.seq} tokens"


def exchanged(p: DataParallelParameters) -> str:
    """The exchange in words."""
    if p.exchange != "ddp":
        return {"after": "after backward", "none": "none", "dp": "DataParallel"}[p.exchange]
    words = [f"DDP, {readable(p.bucket_bytes)}"]
    words += ["static graph"] if p.static_graph else []
    if p.accumulate > 1:
        words.append(f"{p.accumulate} micro-batches" + ("" if p.no_sync else ", each exchanged"))
    return ", ".join(words)
