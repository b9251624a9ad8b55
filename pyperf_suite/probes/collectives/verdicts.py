"""What the measured curves mean for training: whether the network is enough for each way to train in parallel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.network import traffic
from pyperf_suite.laws.network.alpha_beta import AlphaBetaOverRanks, seconds_of
from pyperf_suite.laws.network.traffic import SecondsOf, Traffic, Workload, verdict
from pyperf_suite.probes.collectives.curves import Curve, plain
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.spec.findings import Table

# Dimensions of Llama 2 7B (Touvron et al. 2023), the size at which people first need more than one accelerator.
DEFAULT_MODEL = ModelDimensions(layers=32, hidden=4096, ffn=11008, heads=32, vocab=32000, gated=True)
# For expert parallelism the same model with Mixtral's routing (Jiang et al. 2024).
TOP_K, FEWEST_EXPERTS = 2, 8
# What a rank is taken to compute: 40 % of an H100's dense bfloat16 peak, and what some ten CPU cores do.
FLOP_PER_S = {"cuda": 400e12, "cpu": 1e12}

COLUMNS = (
    "parallelism",
    "ranks",
    "calls a step",
    "GB on the bus a step",
    "communication",
    "exposed",
    "of the step",
    "verdict",
    "network-bound below compute of",
)


@dataclass(frozen=True)
class Training:
    """The step that verdicts are about: `compute_s` is what a rank computes in it, forward and backward."""

    compute_s: float
    model: ModelDimensions = DEFAULT_MODEL
    work: Workload = field(default_factory=lambda: Workload(seq=4096))

    @classmethod
    def at(cls, flop_per_s: float, model: ModelDimensions = DEFAULT_MODEL, work: Workload | None = None) -> Training:
        """Of a rank that computes so fast: 6 FLOP a parameter and token (Kaplan et al. 2020)."""
        work = work or Workload(seq=4096)
        tokens = work.seq * work.micro_batch * work.micro_batches
        return cls(6 * model.active_parameters * tokens / flop_per_s, model, work)

    @classmethod
    def parse(cls, text: str, flop_per_s: float = FLOP_PER_S["cuda"]) -> Training:
        """Read `layers=32,hidden=4096,ffn=11008,heads=32,vocab=32000,seq=4096,compute_ms=400`.

        The names are the fields of ModelDimensions and Workload; without compute_ms a step computes at `flop_per_s`.
        Raises UserError for a name there is not, a value that is no number, and dimensions that no model can have.
        """
        values = dict(_assignment(part) for part in text.split(","))
        model_names, work_names = ([each.name for each in fields(kind)] for kind in (ModelDimensions, Workload))
        unknown = values.keys() - {*model_names, *work_names, "compute_ms"}
        needed = {"layers", "hidden", "ffn", "heads", "vocab"} - values.keys()
        if unknown or needed:
            wrong = f"knows no {min(unknown)}" if unknown else f"lacks {', '.join(sorted(needed))}"
            raise UserError(
                f"The model {text[:200]!r} {wrong}: give {', '.join([*model_names, *work_names, 'compute_ms'])}."
            )
        for name, value in values.items():
            if name != "compute_ms" and not value.is_integer():
                raise UserError(f"{name}={value:g} was asked for, but a model has whole numbers throughout.")
        if not 0 < values.get("compute_ms", 1.0) < math.inf:
            raise UserError(f"compute_ms={values['compute_ms']:g} was asked for, but computing takes some time.")
        dimensions: dict[str, Any] = {name: int(value) for name, value in values.items() if name in model_names}
        model = ModelDimensions(**dimensions)
        sizes: dict[str, int] = {"seq": 4096} | {
            name: int(value) for name, value in values.items() if name in work_names
        }
        found = cls.at(flop_per_s, model, Workload(**sizes))
        return replace(found, compute_s=values["compute_ms"] * 1e-3) if "compute_ms" in values else found

    def __str__(self) -> str:
        work = self.work
        batches = f"{work.micro_batches} x " if work.micro_batches > 1 else ""
        return (
            f"a model of {_count(self.model.parameters)} parameters ({self.model.layers} layers, hidden "
            f"{self.model.hidden}), {batches}{work.micro_batch} x {work.seq} tokens a rank, "
            f"{duration(self.compute_s)} of computing a step"
        )


def measured_laws(curves: Sequence[Curve]) -> dict[str, AlphaBetaOverRanks]:
    """A law for each operation from its plain curves; those with too few sizes are left out."""
    by_operation: dict[str, dict[int, Curve]] = {}
    for curve in plain(curves):
        if curve.law is not None and curve.setting.parameters.ranks > 1 and not curve.setting.parameters.pairs:
            by_operation.setdefault(curve.operation, {}).setdefault(curve.setting.parameters.ranks, curve)
    return {
        operation: AlphaBetaOverRanks(operation, {ranks: c.law for ranks, c in of_ranks.items() if c.law is not None})
        for operation, of_ranks in by_operation.items()
    }


def _assignment(part: str) -> tuple[str, float]:
    name, _, value = part.partition("=")
    try:
        return name.strip(), float({"true": "1", "false": "0"}.get(value.strip().lower(), value))
    except ValueError:
        raise UserError(f"{part.strip()!r} is no dimension of a model: write NAME=NUMBER, as in hidden=4096.") from None


def judged(curves: Sequence[Curve], training: Training) -> tuple[list[str], Table | None]:
    """Sentences and the table of verdicts at the most ranks measured; nothing where no law could be fitted."""
    laws = measured_laws(curves)
    if not laws:
        return [], None
    ranks = max(count for law in laws.values() for count in law.curves)
    seconds = seconds_of(laws)
    verdicts: dict[str, list[str]] = {"enough for": [], "the bottleneck for": []}
    rows: list[tuple[str, ...]] = []
    unjudged: dict[str, list[str]] = {}
    for name, sent in _parallelisms(training, ranks).items():
        if isinstance(sent, UserError):
            unjudged.setdefault(str(sent).rstrip("."), []).append(name)
            continue
        missing = sorted({transfer.operation for transfer in sent.transfers} - laws.keys())
        if missing:
            unjudged.setdefault(f"{' and '.join(missing)} not measured", []).append(name)
            continue
        found = verdict(sent, training.compute_s, seconds)
        word = "the bottleneck for" if found.network_bound else "enough for"
        verdicts[word].append(f"{name} ({found.exposed_share:.0%} exposed)")
        rows.append(
            (
                name,
                str(ranks),
                str(sum(transfer.calls for transfer in sent.transfers)),
                f"{sent.bus_bytes / 1e9:.3g}",
                duration(found.communication_s),
                duration(found.exposed_s),
                f"{found.exposed_share:.0%}",
                "network-bound" if found.network_bound else "enough",
                _compute_needed(bound_below_s(sent, seconds)),
            )
        )
    words = "; ".join(f"{word} {', '.join(named)}" for word, named in verdicts.items() if named)
    sentences = (
        [f"Among {ranks} ranks the network is {words}: predicted{_error(laws)} for {training}."] if words else []
    )
    if unjudged:
        reasons = [f"{' and '.join(names)} ({reason})" for reason, names in unjudged.items()]
        sentences.append(f"Not judged: {', '.join(reasons)}.")
    largest = {curve.setting.parameters.op: curve.largest.size_bytes for curve in plain(curves) if curve.points}
    title = f"Verdicts for {training} (predicted; sizes above {readable(max(largest.values()))} are extrapolated)"
    return sentences, Table(title, COLUMNS, tuple(rows)) if rows else None


def bound_below_s(sent: Traffic, seconds: SecondsOf) -> float:
    """Seconds of computing a step below which that traffic is network-bound; inf where it always is, 0 where never."""
    low, high = 1e-7, 1e7
    if verdict(sent, high, seconds).network_bound:
        return math.inf
    if not verdict(sent, low, seconds).network_bound:
        return 0.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if verdict(sent, middle, seconds).network_bound else (low, middle)
    return high


def _parallelisms(training: Training, ranks: int) -> dict[str, Traffic | UserError]:
    """The traffic of each way to train over all ranks, or why the model cannot be spread so."""
    model, work = training.model, training.work
    experts = model if model.experts > 1 else replace(model, experts=max(FEWEST_EXPERTS, ranks), top_k=TOP_K)
    ways: dict[str, Callable[[], Traffic]] = {
        "DDP": lambda: traffic.ddp(model, work, ranks),
        "ZeRO-1": lambda: traffic.zero_1(model, work, ranks),
        "ZeRO-2": lambda: traffic.zero_2(model, work, ranks),
        "ZeRO-3": lambda: traffic.zero_3(model, work, ranks),
        "TP": lambda: traffic.tensor_parallel(model, work, ranks),
        "TP+SP": lambda: traffic.tensor_and_sequence_parallel(model, work, ranks),
        "PP": lambda: traffic.pipeline_parallel(model, work, ranks),
        f"EP of {experts.experts} experts": lambda: traffic.expert_parallel(experts, work, ranks),
    }
    found: dict[str, Traffic | UserError] = {}
    for name, way in ways.items():
        try:
            found[name] = way()
        except UserError as reason:
            found[name] = reason
    return found


def _error(laws: Mapping[str, AlphaBetaOverRanks]) -> str:
    """How far the laws of the prediction are off at sizes that they have not seen, where that is known."""
    curves = [curve for law in laws.values() for curve in law.curves.values()]
    errors = [curve.held_out_error for curve in curves if curve.held_out_error is not None]
    return f" (by laws that are {statistics.median(errors):.0%} off at sizes held out)" if errors else ""


def duration(seconds: float) -> str:
    """`412 ms`: in the largest unit that leaves at least one of it."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{float(f'{seconds / factor:.3g}'):g} {unit}"
    return "0"


def _count(number: int) -> str:
    return f"{number / 1e9:.1f}e9" if number >= 1e9 else f"{number / 1e6:.3g}e6"


def _compute_needed(seconds: float) -> str:
    return duration(seconds) if 0 < seconds < math.inf else "any" if seconds else "none"
