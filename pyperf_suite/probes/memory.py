"""The anatomy of a training step's memory, counted, compared with the formulas that people plan with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Annotated, Any

import numpy as np

from pyperf_suite.errors import OneOf
from pyperf_suite.findings.axes import AxisTable, by, crossed
from pyperf_suite.findings.data import (
    BEKMAN,
    BIGSCIENCE,
    TRANSFORMERS,
    Claim,
    Figure,
    Findings,
    Panel,
    Remark,
    Series,
    Table,
    findings,
)
from pyperf_suite.findings.probe import Probe, RowClaim
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, series, table
from pyperf_suite.laws.training.memory import MIXED, NEAR_LIMIT, ActivationPolicy, activation_bytes, kept_bytes
from pyperf_suite.laws.transformer import ModelDimensions, Recompute
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.training_step import TrainingStepParameters

KORTHIKANTI = "Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models"
BYTES_A_PARAMETER = MIXED.weight + MIXED.gradient + MIXED.state
# The rule of the share: the part of a memory that weights, gradients and states may fill; the rest is activations'.
SHARE = 0.75
LEFT_BYTES_A_PARAMETER = BYTES_A_PARAMETER * (1 - SHARE) / SHARE

EIGHTEEN = Claim("18 bytes a parameter in mixed precision with AdamW", BEKMAN, 17.5, 18.5)
# Nothing else: not all four are there at once, so that together they are the most there can be.
ANATOMY = Claim("memory is weights, gradients, optimizer state and saved activations", TRANSFORMERS, 0.0, 1.05)
FORMULA = Claim("a layer keeps sbh(34 + 5as/h) bytes", KORTHIKANTI, 0.95, 1.05)
RULE = Claim("parameters x 18 below 75 % of the memory needs no model parallelism", BIGSCIENCE, 0.0, 1.0)
# Models that the rule is tried on by the law, as GPT-3's table 2.1 (Brown et al. 2020) and Llama have them.
KNOWN_MODELS = {
    "GPT-3 1.3B": ModelDimensions(24, 2048, 8192, 16, 50257, bias=True, tied=True, positions=2048),
    "GPT-3 6.7B": ModelDimensions(32, 4096, 16384, 32, 50257, bias=True, tied=True, positions=2048),
    "GPT-3 13B": ModelDimensions(40, 5120, 20480, 40, 50257, bias=True, tied=True, positions=2048),
    "Llama-2 7B": ModelDimensions(32, 4096, 11008, 32, 32000, gated=True),
}
KNOWN_SEQ = 2048
FORMULA_OF: Mapping[str, Recompute] = {"none": "attention", "selective": "attention", "every": "layers"}
LINE_POINTS = 33  # places between the least and the greatest size at which the law is drawn
BLOCKS = ("gpt", "llama")
NONE = Checkpointing()
POLICIES = tuple(map(Checkpointing.parse, ("none", "every:1", "every:2", "selective")))
PARTS = ("weights", "gradients", "optimizer", "activations", "weight_copies")


@dataclass(frozen=True)
class MemoryAxes(AxisTable):
    """Small models on a CPU, where every byte is counted; on a GPU the dimensions that are trained there.

    `block` to `checkpointing` are crossed, the others are varied one at a time.
    """

    block: Annotated[tuple[str, ...], OneOf(BLOCKS)] = by(("gpt",), standard=BLOCKS)
    attention: tuple[str, ...] = by(("sdpa",), standard=("sdpa", "explicit"))
    dropout: tuple[float, ...] = by((0.0,), standard=(0.0, 0.1))
    checkpointing: tuple[Checkpointing, ...] = by(POLICIES[:2], standard=POLICIES)
    precision: tuple[str, ...] = by(("bfloat16", "autocast_bfloat16"), ("bfloat16", "autocast_bfloat16", "float32"))
    batch: tuple[int, ...] = by((2,), standard=(2, 1, 4))
    seq: tuple[int, ...] = by((64,), standard=(64, 128), cuda=(2048, 4096))
    kv_heads: tuple[int, ...] = by((0,), standard=(0, 2))
    hidden: tuple[int, ...] = by((128,), cuda=(2048,))
    heads: tuple[int, ...] = by((4,), cuda=(16,))
    layers: tuple[int, ...] = by((3,), cuda=(4,))
    vocab: tuple[int, ...] = by((512,), cuda=(50304,))
    implementation: tuple[str, ...] = by(("storages",), cuda=("allocator",))


def sweep(axes: MemoryAxes) -> Iterator[Case]:
    """The crossed ones at the first of each other, then every other value of those, one at a time."""
    varied = ("precision", "batch", "seq", "kv_heads", "hidden", "heads", "layers", "vocab")
    for how in crossed(axes, "implementation", "block", "attention", "dropout", "checkpointing"):
        first = {name: values[0] for name, values in vars(axes).items()}
        changes: list[dict[str, Any]] = [{}]
        if all(how[name] == first[name] for name in ("attention", "dropout", "checkpointing")):
            changes += [{name: value} for name in varied for value in getattr(axes, name)[1:]]
        for changed in changes:
            chosen = first | how | changed
            implementation, gated = chosen.pop("implementation"), chosen.pop("block") == "llama"
            yield Case("training_memory", TrainingStepParameters(**chosen, gated=gated), implementation)


def model(row: Row[TrainingStepParameters]) -> str:
    """As in `llama, 2 kv heads, sdpa, dropout 0.1, every:2, bfloat16`."""
    words = (
        "llama" if row.p.gated else "gpt",
        f"{row.p.kv_heads} kv heads" if row.p.kv_heads else "",
        row.p.attention,
        f"dropout {row.p.dropout}" if row.p.dropout else "",
        str(row.p.checkpointing) if row.p.checkpointing != NONE else "",
        row.p.precision,
    )
    return ", ".join(filter(None, words))


def law(row: Row[TrainingStepParameters], **changed: Any) -> float:
    """Bytes of activations by the law of what torch keeps, with other sizes on request."""
    p = replace(row.p, **changed)
    return kept_bytes(p.dimensions, p.batch, p.seq, p.keeping(row.reading.kernel["path"])).total


def law_off(row: Row[TrainingStepParameters]) -> float:
    """By what share the law is above what was counted."""
    return law(row) / row.observed["activations"] - 1


def together(row: Row[TrainingStepParameters]) -> float:
    """Bytes of all parts."""
    return sum(row.observed[part] for part in PARTS)


def is_explicit(row: Row[TrainingStepParameters]) -> bool:
    """True if scores are written out, and kept."""
    return row.p.attention == "explicit" and row.p.checkpointing == NONE


def of_formula(row: Row[TrainingStepParameters]) -> float:
    """Activations as a multiple of Korthikanti's formula, which is for 16 bits."""
    p = row.p
    recompute: Recompute = "nothing" if is_explicit(row) else FORMULA_OF[p.checkpointing.kind]
    return row.observed["activations"] / float(activation_bytes(p.dimensions, p.batch, p.seq, recompute=recompute))


def kept(row: Row[TrainingStepParameters], policy: Checkpointing) -> float | None:
    """Activations under a policy, as a share of those that there are without."""
    under = row.like(checkpointing=policy)
    return None if under is None else under.observed["activations"] / row.observed["activations"]


def first(is_wanted: Callable[[Row[TrainingStepParameters]], bool]) -> Callable[[Row[TrainingStepParameters]], bool]:
    """Return a test for the first GPT or the first Llama of those wanted."""
    return lambda row: row is next(filter(is_wanted, row.rows.where(gated=row.p.gated)), None)


def share_of(part: str) -> Callable[[Row[TrainingStepParameters]], float]:
    """Bytes of a part among those of all; cast copies count as weights."""
    parts = ("weights", "weight_copies") if part == "weights" else (part,)
    return lambda row: sum(row.observed[each] for each in parts) / together(row)


def analyse(rows: Rows[TrainingStepParameters]) -> Findings:
    """The law's error, what was counted, where a rule ends by the law, and activations by batch and sequence."""
    if not rows:
        return Findings()
    worst = max(rows, key=lambda row: abs(law_off(row)))
    plain = rows.where(checkpointing=NONE, dropout=0.0)
    return findings(
        worst.remark(
            "The law of what torch keeps for backward is at most {error:%} off what was counted in {configurations} "
            "configurations (furthest in {configuration})",
            kind="law",
            error=abs(law_off(worst)),
            configurations=len(rows),
        ),
        _headroom(rows[0]),
        table("Bytes of a training step, counted", COUNTED, rows),
        table(
            "Activations kept under checkpointing, logits and loss included",
            KEPT,
            [row for row in plain if any(kept(row, policy) for policy in POLICIES[1:])],
        ),
        _rule_by_law(),
        _figure(rows),
    )


def _headroom(row: Row[TrainingStepParameters]) -> Remark | None:
    """Return the memory that a step leaves unused, and the batch that would fill it as far as is safe."""
    capacity = row.observed.get("capacity")
    if capacity is None:
        return None
    if row.observed["peak"] > NEAR_LIMIT * capacity:
        sentence = (
            "{configuration} takes {peak:size} of {capacity:size}, within 5 % of the limit: fragmentation may end a "
            "long run"
        )
        return row.remark(sentence, kind="caution", capacity=capacity)
    of_one = row.observed["activations"] / row.p.batch
    batch = row.p.batch + math.floor((NEAR_LIMIT * capacity - row.observed["peak"]) / of_one)
    sentence = (
        "{configuration} leaves {unused:size} of {capacity:size} unused: by what it keeps its batch could be {larger}; "
        "`checkpointing` measures what that gains"
    )
    unused = capacity - row.observed["peak"]
    return row.remark(sentence, kind="predicted", unused=unused, capacity=capacity, larger=batch)


COUNTED = (
    Column("configuration", priority=2),
    Column("weights", lambda row: row.observed["weights"], "MB"),
    Column("gradients", unit="MB"),
    Column("AdamW", "optimizer", "MB"),
    Column("activations", unit="MB"),
    Column("casts", "weight_copies", "MB"),
    Column("law off", "law_off", "+%", priority=0),
    Column("of the 16-bit formula", of_formula, "x", priority=0),
    Column("peak", unit="MB", priority=2),
)
KEPT = (
    Column("configuration", priority=2),
    *(Column(str(each), partial(kept, policy=each), "%") for each in POLICIES[1:]),
)


def _rule_by_law() -> Table:
    """Return by model where the rule of 75 % breaks, for models that people know."""

    def sequences(item: tuple[str, ModelDimensions], kind: str) -> float:
        kept = kept_bytes(item[1], 1, KNOWN_SEQ, ActivationPolicy(2, 2, checkpointing=kind, device="cuda")).total
        return LEFT_BYTES_A_PARAMETER * item[1].parameters / kept

    return table(
        f"By the law, sequences of {KNOWN_SEQ} that fit if parameters x 18 B are 75 % of the memory (bfloat16, GPU)",
        (
            Column("model", itemgetter(0)),
            Column("memory", lambda item: BYTES_A_PARAMETER * item[1].parameters / SHARE, "GB", predicted=True),
            Column("nothing dropped", partial(sequences, kind="none"), predicted=True),
            Column("selective", partial(sequences, kind="selective"), predicted=True),
            Column("every layer", partial(sequences, kind="every"), predicted=True),
        ),
        KNOWN_MODELS.items(),
    )


def _figure(rows: Rows[TrainingStepParameters]) -> Figure | None:
    drawn = [
        max(map(_panels, group), key=lambda panels: sum(len(panel.series[1].x) for panel in panels))
        for group in grouped(rows, lambda row: row.p.gated).values()
    ]
    caption = "Points: bytes that were counted. Line: the law of what torch keeps, nothing fitted."
    figure = Figure("memory_activations", "Activations kept for backward", caption, tuple(filter(None, drawn)))
    return figure if figure.rows else None


def _panels(row: Row[TrainingStepParameters]) -> tuple[Panel, ...]:
    """Return panels of rows that differ in batch alone and in sequence alone, with the law between them."""
    panels = []
    for axis, label, at in (
        ("batch", "batch", f"seq {row.p.seq}"),
        ("seq", "tokens a sequence", f"batch {row.p.batch}"),
    ):
        similar = sorted(row.rows.same_except(row, axis), key=lambda row: int(getattr(row.p, axis)))
        if len(similar) > 1:
            ends = getattr(similar[0].p, axis), getattr(similar[-1].p, axis)
            between = np.unique(np.linspace(*ends, LINE_POINTS).round().astype(int)).tolist()
            line = Series("law", between, [law(row, **{axis: size}) for size in between], "line")
            counted = series("counted", similar, axis, "activations")
            panels.append(Panel(f"{model(row)}, {at}", label, "activations", (line, counted), y_unit="MB"))
    return tuple(panels)


PROBE = Probe(
    name="memory",
    question="What takes a training step's memory, and do the formulas that people plan with say so?",
    topic="training",
    title="Training: memory",
    axes=MemoryAxes.of,
    sweep=sweep,
    computed={
        "model": model,
        "configuration": lambda row: f"{model(row)}, {row.p.batch} x {row.p.seq}",
        "law_off": law_off,
        "path": lambda row: row.reading.kernel["path"],
        **{f"share_of_{part}": share_of(part) for part in PARTS},
    },
    order=lambda row: (
        *(row.p.gated, row.p.attention != "sdpa", row.p.dropout, row.p.checkpointing != NONE, str(row.p.checkpointing)),
        *(row.p.precision, row.p.kv_heads, row.p.hidden, row.p.layers, row.p.seq, row.p.batch),
    ),
    claims=(
        RowClaim(
            EIGHTEEN,
            "Weights in both precisions, gradients and AdamW's state take {measured} a parameter ({configuration})",
            ratio=lambda row: (together(row) - row.observed["activations"]) / row.observed["parameters"],
            where=first(lambda row: row.p.precision.startswith("autocast")),
            unit="B",
        ),
        RowClaim(
            ANATOMY,
            "The peak of a step is {measured} the sum of weights ({share_of_weights:%}), gradients "
            "({share_of_gradients:%}), AdamW's state ({share_of_optimizer:%}) and activations "
            "({share_of_activations:%}): {configuration}",
            ratio=lambda row: row.observed["peak"] / together(row),
            where=first(lambda row: row.p.checkpointing == NONE),
        ),
        RowClaim(
            FORMULA,
            "With scores written out and dropout, activations on a {path} take {measured} the formula: {configuration}",
            ratio=of_formula,
            # The formula's own case: a GPT in 16 bits with dropout and nothing dropped.
            where=first(
                lambda row: is_explicit(row) and row.p.dropout > 0 and row.p.element != "float32" and not row.p.gated
            ),
        ),
        RowClaim(
            RULE,
            "Where parameters x 18 fill 75 % of a memory, activations of {tokens} tokens take {measured} the rest "
            "({configuration})",
            ratio=lambda row: row.observed["activations"] / (LEFT_BYTES_A_PARAMETER * row.observed["parameters"]),
            where=first(lambda row: row.p.checkpointing == NONE),
        ),
    ),
    analyse=analyse,
    is_timed=False,
)
