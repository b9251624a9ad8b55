"""Verdicts of the probe `collectives`: is a measured network enough to train over?"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Remark, Table, remark
from pyperf_suite.findings.rows import Column, table
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.laws.training.data_parallel import BACKWARD_SHARE
from pyperf_suite.laws.training.messages import PARALLELISMS, StepTransfer
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.probes.collectives.curves import Curve, plain
from pyperf_suite.record.quantity import Quantity

# For expert parallelism a dense model is taken with Mixtral's routing (Jiang et al. 2024).
TOP_K, FEWEST_EXPERTS = 2, 8
USUAL_SEQ = 4096
# Compute rate assumed of a rank: 40 % of an H100's dense bfloat16 peak, and the rate of some ten CPU cores.
FLOP_PER_S = {"cuda": 400e12, "cpu": 1e12}
# Exposed communication of more than this share of a step is called network-bound: what a user would act on.
TOLERATED_SHARE = 0.1


@dataclass(frozen=True)
class TrainingSizes:
    """The step that is judged: a sequence of `seq` tokens, on which a rank computes for `compute_s` in all."""

    compute_s: float
    model: ModelDimensions
    seq: int = USUAL_SEQ

    def at(self, flop_per_s: float) -> TrainingSizes:
        """Return the sizes for a rank that computes at this rate: 6 FLOP a parameter and token (Kaplan et al. 2020)."""
        return replace(self, compute_s=6 * self.model.active_parameters * self.seq / flop_per_s)

    @classmethod
    def parse(cls, text: str, flop_per_s: float = FLOP_PER_S["cuda"]) -> TrainingSizes:
        """Read `layers=32,hidden=4096,ffn=11008,heads=32,vocab=32000,seq=4096,compute_ms=400`.

        The names are the fields of ModelDimensions; without compute_ms a step computes at `flop_per_s`. Raises
        UserError for a name there is not, a value that is no number, and dimensions that no model can have.
        """
        values: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            try:
                values[name.strip()] = float({"true": "1", "false": "0"}.get(value.strip().lower(), value))
            except ValueError:
                what = f"{part.strip()!r} is no dimension of a model"
                raise UserError(f"{what}: write NAME=NUMBER, as in hidden=4096.") from None
        names = (*(each.name for each in fields(ModelDimensions)), "seq", "compute_ms")
        unknown = values.keys() - {*names}
        needed = {"layers", "hidden", "ffn", "heads", "vocab"} - values.keys()
        if unknown or needed:
            wrong = f"knows no {min(unknown)}" if unknown else f"lacks {', '.join(sorted(needed))}"
            raise UserError(f"The model {text[:200]!r} {wrong}: give {', '.join(names)}.")
        compute_ms = values.pop("compute_ms", None)
        for name, number in values.items():
            if not number.is_integer():
                raise UserError(f"{name}={number:g} was requested, but a model has whole numbers throughout.")
        seq = int(values.pop("seq", USUAL_SEQ))
        for name, size in (("compute_ms", compute_ms), ("seq", seq)):
            if size is not None and not 0 < size < math.inf:
                raise UserError(f"{name}={size:g} was requested, but has to be above 0.")
        model = ModelDimensions(**{name: int(value) for name, value in values.items()})  # type: ignore[arg-type]
        return cls(0.0, model, seq).at(flop_per_s) if compute_ms is None else cls(compute_ms * 1e-3, model, seq)


@dataclass(frozen=True)
class WayToTrain:
    """A way to train in parallel over `ranks`, and the seconds a step of each of its transfers.

    `compute_s` is what a step computes for, a third of it forward. The best case is judged: all that can overlap a pass
    does so from its start to its end. The step waits for the network where it computes for less than `bound_s`.
    """

    name: str
    ranks: int
    compute_s: float
    sent_s: tuple[tuple[StepTransfer, float], ...]

    @property
    def communication_s(self) -> float:
        return sum(seconds for _, seconds in self.sent_s)

    @property
    def bus_bytes(self) -> float:
        return sum(transfer.bus_bytes for transfer, _ in self.sent_s)

    def exposed_s(self, compute_s: float) -> float:
        """Seconds that no computation hides: what it waits for, and what is longer than the pass that it overlaps."""
        passes_s = {"forward": (1 - BACKWARD_SHARE) * compute_s, "backward": BACKWARD_SHARE * compute_s, None: 0.0}
        for transfer, seconds in self.sent_s:
            passes_s[transfer.behind] -= seconds
        return sum(max(0.0, -left_s) for left_s in passes_s.values())

    def exposed_share(self, compute_s: float) -> float:
        return self.exposed_s(compute_s) / (compute_s + self.exposed_s(compute_s))

    @property
    def is_network_bound(self) -> bool:
        return self.exposed_share(self.compute_s) > TOLERATED_SHARE

    @functools.cached_property
    def bound_s(self) -> float:
        low, high = 1e-7, 1e7
        while high / low > 1.001:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.exposed_share(middle) > TOLERATED_SHARE else (low, middle)
        return high

    def remark(self) -> Remark:
        bound = "enough from" if self.is_network_bound else "too slow below"
        return remark(
            f"{{way}} among {{ranks}} ranks: {{rate}} is {{judged}} for a step that computes for {{compute}}; {bound} "
            "{bound}",
            kind="predicted",
            way=self.name,
            ranks=self.ranks,
            rate=Quantity(self.bus_bytes / self.communication_s, "GB/s", predicted=True),
            judged="too slow" if self.is_network_bound else "enough",
            compute=Quantity(self.compute_s, "duration"),
            bound=Quantity(self.bound_s, "duration", predicted=True),
        )


WAYS_TO_TRAIN = (
    Column("parallelism", "name", priority=2),
    Column("ranks", priority=0),
    Column("calls a step", lambda way: sum(transfer.calls for transfer, _ in way.sent_s), priority=0),
    Column("on the bus a step", "bus_bytes", "GB"),
    Column("communication", "communication_s", "duration", predicted=True),
    Column("exposed", lambda way: way.exposed_s(way.compute_s), "duration", predicted=True),
    Column("of the step", lambda way: way.exposed_share(way.compute_s), "%", 2, predicted=True),
    Column("network", lambda way: "network-bound" if way.is_network_bound else "enough", priority=2),
    Column("too slow below compute of", "bound_s", "duration", 2, predicted=True),
)


def network_judge(kind: str, model: str) -> Callable[[Sequence[Curve]], Iterator[Remark | Table]]:
    """Return `judged` for a device of that kind, and the model of `--model`."""
    return functools.partial(judged, TrainingSizes.parse(model, FLOP_PER_S[kind]))


def judged(training: TrainingSizes, curves: Sequence[Curve]) -> Iterator[Remark | Table]:
    """Judge whether the network is enough for each way to train at the most ranks measured; nothing without a law."""
    laws = measured_laws(curves)
    if not laws:
        return
    ranks, model = max(count for curves in laws.values() for count in curves), training.model
    experts = model if model.experts > 1 else replace(model, experts=max(FEWEST_EXPERTS, ranks), top_k=TOP_K)
    ways: list[WayToTrain] = []
    unjudged: dict[str, list[str]] = {}
    for way, traffic in PARALLELISMS.items():
        name, of = (f"EP of {experts.experts} experts", experts) if way == "EP" else (way, model)
        try:
            sent = traffic(of, training.seq, ranks)
        except UserError as error:
            unjudged.setdefault(str(error).rstrip("."), []).append(name)
            continue
        missing = sorted({transfer.operation for transfer in sent} - laws.keys())
        if missing:
            unjudged.setdefault(f"{' and '.join(missing)} not measured", []).append(name)
        else:
            sent_s = tuple((transfer, seconds_of(laws[transfer.operation], transfer)) for transfer in sent)
            ways.append(WayToTrain(name, ranks, training.compute_s, sent_s))
    if ways:
        # The first, and what needs most of the network; the others are in the table.
        yield from (way.remark() for way in dict.fromkeys((ways[0], max(ways, key=lambda way: way.bound_s))))
        yield remark(
            "Judged for a model of {parameters} parameters ({layers} layers, hidden {hidden}) and {tokens} tokens a "
            "rank; messages above {largest} are extrapolated",
            kind="predicted",
            parameters=Quantity(model.parameters, "billion"),
            layers=model.layers,
            hidden=model.hidden,
            tokens=training.seq,
            largest=max((curve.largest.size for curve in plain(curves)), key=lambda size: size.value),
        )
    for why, names in unjudged.items():
        yield remark("Not judged: {ways} ({why})", kind="caution", ways=", ".join(names), why=why)
    yield table("Ways to train in parallel (predicted)", WAYS_TO_TRAIN, ways)


def measured_laws(curves: Sequence[Curve]) -> dict[str, dict[int, PiecewiseAlphaBeta]]:
    """A law by operation and ranks from plain curves; those with too few sizes are left out."""
    laws: dict[str, dict[int, PiecewiseAlphaBeta]] = {}
    for curve in plain(curves):
        if curve.law is not None and curve.p.ranks > 1 and not curve.p.pairs:
            laws.setdefault(curve.counted_as, {}).setdefault(curve.p.ranks, curve.law)
    return laws


def seconds_of(laws: Mapping[int, PiecewiseAlphaBeta], transfer: StepTransfer) -> float:
    """Seconds of all calls by the law of the nearest number of ranks, at as many bytes on the bus."""
    nearest = min(laws, key=lambda ranks: (abs(math.log(ranks / transfer.ranks)), ranks))
    scale = bus_factor(transfer.operation, transfer.ranks) / bus_factor(transfer.operation, nearest)
    return transfer.calls * float(laws[nearest].seconds(transfer.size_bytes * scale))
