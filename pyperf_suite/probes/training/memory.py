"""The anatomy of a training step's memory, measured, beside the formulas that people plan with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.activations import Keeping, kept_bytes
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.memory import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    MemoryNeed,
    activation_bytes,
    training_memory,
)
from pyperf_suite.laws.model_flops import Recompute
from pyperf_suite.measure.ratio import exactly
from pyperf_suite.operators.training.saved_memory import TrainingMemoryParameters
from pyperf_suite.operators.training.shape import Checkpointing
from pyperf_suite.probes.findings import Findings, Table
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.claims import BEKMAN, BIGSCIENCE, TRANSFORMERS, Claim
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record

KORTHIKANTI = "Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models"
BYTES_A_PARAMETER = WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES
# The rule of the share: what is left of a memory that weights, gradients and states may fill to that share.
SHARE = 0.75
LEFT_BYTES_A_PARAMETER = BYTES_A_PARAMETER * (1 - SHARE) / SHARE

EIGHTEEN = Claim("18 bytes a parameter in mixed precision with AdamW", BEKMAN, 17.5, 18.5)
# Nothing else: not all four are there at once, so that together they are the most there can be.
ANATOMY = Claim("memory is weights, gradients, optimizer state and saved activations", TRANSFORMERS, 0.0, 1.05)
FORMULA = Claim("a layer keeps sbh(34 + 5as/h) bytes", KORTHIKANTI, 0.95, 1.05)
RULE = Claim("parameters x 18 below 75 % of the memory needs no model parallelism", BIGSCIENCE, 0.0, 1.0)
# Models that the rule is tried on by the law, as GPT-3's table 2.1 (Brown et al. 2020) and Llama have them.
KNOWN = {
    "GPT-3 1.3B": ModelDimensions(24, 2048, 8192, 16, 50257, bias=True, tied=True, positions=2048),
    "GPT-3 6.7B": ModelDimensions(32, 4096, 16384, 32, 50257, bias=True, tied=True, positions=2048),
    "GPT-3 13B": ModelDimensions(40, 5120, 20480, 40, 50257, bias=True, tied=True, positions=2048),
    "Llama-2 7B": ModelDimensions(32, 4096, 11008, 32, 32000, gated=True),
}
KNOWN_SEQ = 2048
PART_NAMES = {"optimizer": "AdamW", "gathered": "gathered layers"}
FORMULA_OF: dict[str, Recompute] = {"none": "attention", "selective": "attention", "every": "layers"}


@dataclass(frozen=True)
class MemoryAxes:
    """What the probe varies: `block` to `checkpointing` are crossed, the others are varied one at a time."""

    block: tuple[str, ...]
    attention: tuple[str, ...]
    dropout: tuple[float, ...]
    checkpointing: tuple[Checkpointing, ...]
    precision: tuple[str, ...]
    batch: tuple[int, ...]
    seq: tuple[int, ...]
    kv_heads: tuple[int, ...]
    hidden: tuple[int, ...]
    heads: tuple[int, ...]
    layers: tuple[int, ...]
    vocab: tuple[int, ...]
    implementation: tuple[str, ...]


class Memory(Probe):
    """A GPT's or a Llama's step, in memory."""

    name = "memory"
    question = "What takes a training step's memory, and do the formulas that people plan with say so?"
    is_timed = False

    def axes(self, profile: str, device: Device) -> MemoryAxes:
        """Small models on a CPU, where every byte is counted; on a GPU the dimensions that are trained there."""
        crossed = profile != "quick"
        gpu = device.kind == "cuda"
        return MemoryAxes(
            block=("gpt", "llama") if crossed else ("gpt",),
            attention=("sdpa", "explicit") if crossed else ("sdpa",),
            dropout=(0.0, 0.1) if crossed else (0.0,),
            checkpointing=tuple(
                Checkpointing.parse(text)
                for text in (("none", "every:1", "every:2", "selective") if crossed else ("none", "every:1"))
            ),
            precision=("bfloat16", "autocast_bfloat16", "float32") if crossed else ("bfloat16", "autocast_bfloat16"),
            batch=(2, 1, 4) if crossed else (2,),
            seq=(2048, 4096) if gpu else (64, 128) if crossed else (64,),
            kv_heads=(0, 2) if crossed else (0,),
            hidden=(2048,) if gpu else (128,),
            heads=(16,) if gpu else (4,),
            layers=(4,) if gpu else (3,),
            vocab=(50304,) if gpu else (512,),
            implementation=("allocator" if gpu else "storages",),
        )

    def sweep(self, axes: MemoryAxes) -> list[Case]:
        """The crossed ones at the first of each other, then every other value of those, one at a time."""
        cases: dict[str, Case] = {}
        for implementation, parameters in itertools.product(axes.implementation, _swept(axes)):
            case = Case("training_memory", parameters, implementation)
            cases.setdefault(case.case_id, case)
        return list(cases.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """Each claim beside what was read, the law's error, and tables."""
        latest = {r.case_id: r for r in records if r.kind == "static" and r.outcome == "ok"}
        found = sorted((_Found.of(record) for record in latest.values()), key=lambda each: each.order)
        if not found:
            return Findings()
        sentences = [_law_sentence(found), *_claim_sentences(found), *_recompute_sentences(found)]
        tables = (_table(found), _rule_table(), _zero_table())
        return Findings(tuple(each for each in sentences if each), tables)


@dataclass(frozen=True)
class _Found:
    """One configuration's bytes."""

    p: TrainingMemoryParameters
    bytes: dict[str, float]
    device: str

    @classmethod
    def of(cls, record: Record) -> _Found:
        values = {name: float(metric.value) for name, metric in record.metrics.items()}
        return cls(record.parsed_case().parameters, values, record.kernel["path"])

    @property
    def order(self) -> tuple[Any, ...]:
        """GPTs first, and of each the plain one."""
        p = self.p
        plain = (p.attention != "sdpa", p.dropout, p.checkpointing.kind != "none", str(p.checkpointing))
        return (p.gated, *plain, p.precision, p.kv_heads, p.hidden, p.layers, p.seq, p.batch)

    @property
    def four(self) -> float:
        """Bytes of the four parts, casts of weights with the weights."""
        return sum(self.bytes[name] for name in ("weights", "gradients", "optimizer", "activations", "weight_copies"))

    @property
    def law(self) -> float:
        """Bytes of activations by the law."""
        return kept_bytes(self.p.dimensions, self.p.batch, self.p.seq, self.p.keeping(self.device)).total

    @property
    def formula(self) -> float:
        """The same by Korthikanti's formula, which is for 16 bits."""
        plain = self.p.attention == "explicit" and self.p.checkpointing.kind == "none"
        recompute: Recompute = "nothing" if plain else FORMULA_OF[self.p.checkpointing.kind]
        return float(activation_bytes(self.p.dimensions, self.p.batch, self.p.seq, recompute=recompute))

    @property
    def name(self) -> str:
        """As in `llama, 2 kv heads, sdpa, dropout 0.1, every:2, bfloat16, 2 x 64`."""
        kv = f", {self.p.kv_heads} kv heads" if self.p.kv_heads else ""
        dropout = f", dropout {self.p.dropout:g}" if self.p.dropout else ""
        kept = "" if self.p.checkpointing.kind == "none" else f", {self.p.checkpointing}"
        return (
            f"{'llama' if self.p.gated else 'gpt'}{kv}, {self.p.attention}{dropout}{kept}, {self.p.precision}, "
            f"{self.p.batch} x {self.p.seq}"
        )


def _swept(axes: MemoryAxes) -> Iterator[TrainingMemoryParameters]:
    crossed = itertools.product(axes.block, axes.attention, axes.dropout, axes.checkpointing)
    for block, attention, dropout, checkpointing in crossed:
        first = TrainingMemoryParameters(
            hidden=axes.hidden[0],
            heads=axes.heads[0],
            layers=axes.layers[0],
            seq=axes.seq[0],
            batch=axes.batch[0],
            kv_heads=axes.kv_heads[0],
            vocab=axes.vocab[0],
            gated=block == "llama",
            dropout=dropout,
            attention=attention,
            checkpointing=checkpointing,
            precision=axes.precision[0],
        )
        yield first
        if (attention, dropout, checkpointing) != (axes.attention[0], axes.dropout[0], axes.checkpointing[0]):
            continue
        for name in ("precision", "batch", "seq", "kv_heads", "hidden", "heads", "layers", "vocab"):
            for value in getattr(axes, name)[1:]:
                changed: dict[str, Any] = {name: value}
                yield replace(first, **changed)


def _law_sentence(found: Sequence[_Found]) -> str:
    errors = [each.law / each.bytes["activations"] - 1 for each in found]
    worst = max(range(len(found)), key=lambda index: abs(errors[index]))
    return (
        f"Saved activations of {len(found)} configurations are within {100 * abs(errors[worst]):.1f} % of the law "
        "of what torch keeps, operation by operation (laws/activations.py)"
        + (f"; furthest off: {found[worst].name}." if errors[worst] else ".")
    )


def _claim_sentences(found: Sequence[_Found]) -> Iterator[str]:
    for each in _first(found, lambda p: p.precision.startswith("autocast")):
        held = sum(each.bytes[name] for name in ("weights", "gradients", "optimizer", "weight_copies"))
        measured = exactly(held / each.bytes["parameters"])
        yield EIGHTEEN.sentence(
            "Weights in both precisions, gradients and AdamW's state take {} bytes a parameter",
            measured,
            f"({each.name})",
        )
    for each in _first(found, lambda p: p.checkpointing.kind == "none"):
        yield ANATOMY.sentence(
            "The peak of a step is {} of the sum of the four",
            exactly(each.bytes["peak"] / each.four),
            f"({_shares(each)}; {each.name})",
        )
    whole = [each for each in found if each.p.attention == "explicit" and each.p.dropout and not each.p.gated]
    for each in _first(whole, lambda p: p.checkpointing.kind == "none" and p.element != "float32"):
        masks = "; dropout's masks take 2 bytes an element on a CPU, 1 in the formula" if each.device == "cpu" else ""
        yield FORMULA.sentence(
            "With scores written out and dropout, activations take {} of the formula",
            exactly(each.bytes["activations"] / each.formula),
            f"({each.name}{masks})",
        )
    for each in _first(found, lambda p: p.checkpointing.kind == "none"):
        left = exactly(each.bytes["activations"] / (LEFT_BYTES_A_PARAMETER * each.bytes["parameters"]))
        yield RULE.sentence(
            f"Where parameters x 18 fill 75 % of a memory, activations of {each.p.tokens} tokens take {{}} of the rest",
            left,
            f"({each.name})",
        )


def _recompute_sentences(found: Sequence[_Found]) -> Iterator[str]:
    """What checkpointing keeps of what there is without, for each block and attention."""
    by_name = {(each.p, each.device): each for each in found}
    for each in found:
        if each.p.checkpointing.kind != "none" or each.p.dropout:
            continue
        told = []
        for text in ("every:1", "every:2", "selective"):
            other = by_name.get((replace(each.p, checkpointing=Checkpointing.parse(text)), each.device))
            if other is not None:
                told.append(f"{text} {100 * other.bytes['activations'] / each.bytes['activations']:.0f} %")
        if told:
            yield f"Checkpointing keeps of the activations: {', '.join(told)} ({each.name}; logits and loss included)."


def _table(found: Sequence[_Found]) -> Table:
    columns = ("configuration", *(f"{name}, MB" for name in ("weights", "gradients", "AdamW", "activations")))
    columns = (*columns, "casts, MB", "law off", "of the 16-bit formula", "peak, MB")
    rows = []
    for each in found:
        parts = ("weights", "gradients", "optimizer", "activations", "weight_copies")
        rows.append(
            (
                each.name,
                *(f"{each.bytes[name] / 1e6:.3f}" for name in parts),
                f"{100 * (each.law / each.bytes['activations'] - 1):+.1f} %",
                f"{each.bytes['activations'] / each.formula:.2f} x",
                f"{each.bytes['peak'] / 1e6:.3f}",
            )
        )
    return Table("Bytes of a training step, counted", columns, tuple(rows))


def _rule_table() -> Table:
    """Where the rule of 75 % breaks, by the law: sequences whose activations fill the rest."""
    rows = []
    for name, model in KNOWN.items():
        left = LEFT_BYTES_A_PARAMETER * model.parameters
        kinds = (("none", 1), ("selective", 1), ("every", 1))
        fits = []
        for kind, every in kinds:
            keeping = Keeping(2, 2, checkpointing=kind, every=every, device="cuda")
            fits.append(f"{left / kept_bytes(model, 1, KNOWN_SEQ, keeping).total:.1f}")
        rows.append((name, f"{BYTES_A_PARAMETER * model.parameters / SHARE / 1e9:.0f}", *fits))
    return Table(
        f"By the law, sequences of {KNOWN_SEQ} that fit beside parameters x 18 = 75 % of the memory (bfloat16, GPU)",
        ("model", "memory, GB", "nothing dropped", "selective", "every layer"),
        tuple(rows),
    )


def _zero_table() -> Table:
    name, model = next(iter(KNOWN.items()))
    rows = []
    for stage in range(4):
        need = training_memory(model, 1, KNOWN_SEQ, data_ranks=8, zero_stage=stage)
        parts = (getattr(need, field.name) for field in fields(need))
        rows.append((str(stage), *(f"{part / 1e9:.2f}" for part in parts), f"{need.total / 1e9:.2f}"))
    columns = ("ZeRO stage", *(PART_NAMES.get(part.name, part.name) for part in fields(MemoryNeed)), "all")
    return Table(f"By the law, GB a rank of 8 for {name}, one sequence of {KNOWN_SEQ}", columns, tuple(rows))


def _shares(each: _Found) -> str:
    parts = {
        "weights": each.bytes["weights"] + each.bytes["weight_copies"],
        "gradients": each.bytes["gradients"],
        "AdamW": each.bytes["optimizer"],
        "activations": each.bytes["activations"],
    }
    return ", ".join(f"{name} {100 * size / each.four:.0f} %" for name, size in parts.items())


def _first(found: Sequence[_Found], wanted: Any) -> list[_Found]:
    """The first GPT and the first Llama of those wanted."""
    chosen: dict[bool, _Found] = {}
    for each in found:
        if wanted(each.p):
            chosen.setdefault(each.p.gated, each)
    return list(chosen.values())
