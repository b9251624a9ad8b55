"""What the bytes of training steps say: the guides' claims, the law's error, and tables to plan with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.model_flops import Recompute
from pyperf_suite.laws.training.activations import Keeping, kept_bytes
from pyperf_suite.laws.training.memory import (
    GRADIENT_BYTES,
    LAST_STAGE,
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    MemoryNeed,
    activation_bytes,
    training_memory,
)
from pyperf_suite.laws.transformer import Sharding
from pyperf_suite.operators.training.saved_memory import TrainingMemoryParameters
from pyperf_suite.operators.training.shape import Checkpointing
from pyperf_suite.probes.training.claims import BEKMAN, BIGSCIENCE, TRANSFORMERS, Claim
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Figure, Findings, Panel, Series, Table

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
NEED_COLUMNS = (*(PART_NAMES.get(part.name, part.name) for part in fields(MemoryNeed)), "all")
# Which of them tables of several ranks are about, and over how many it is cut there.
SHARED, RANKS = "GPT-3 1.3B", 8
RECOMPUTED: dict[Recompute, str] = {"nothing": "nothing", "attention": "attention (selective)", "layers": "all (full)"}
# Places between the least and the greatest size at which the law is drawn.
LINE_POINTS = 33
FORMULA_OF: dict[str, Recompute] = {"none": "attention", "selective": "attention", "every": "layers"}


def explain(records: Sequence[Record]) -> Findings:
    """Each claim beside what was read, the law's error, tables, and activations by batch and sequence."""
    latest = {r.case_id: r for r in records if r.kind == "static" and r.outcome == "ok"}
    found = sorted((_Found.of(record) for record in latest.values()), key=lambda each: each.order)
    if not found:
        return Findings()
    sentences = [_law_sentence(found), *_claim_sentences(found), *_recompute_sentences(found)]
    tables = (_table(found), _rule_table(), _zero_table(), _parallel_table())
    return Findings(tuple(sentences), tables, _figures(found))


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


def _law_sentence(found: Sequence[_Found]) -> str:
    errors = [each.law / each.bytes["activations"] - 1 for each in found]
    worst = max(range(len(found)), key=lambda index: abs(errors[index]))
    return (
        f"Saved activations of {len(found)} configurations are within {100 * abs(errors[worst]):.1f} % of the law "
        "of what torch keeps, operation by operation (laws/training/activations.py)"
        + (f"; furthest off: {found[worst].name}." if errors[worst] else ".")
    )


def _claim_sentences(found: Sequence[_Found]) -> Iterator[str]:
    for each in _first(found, lambda p: p.precision.startswith("autocast")):
        held = sum(each.bytes[name] for name in ("weights", "gradients", "optimizer", "weight_copies"))
        a_parameter = held / each.bytes["parameters"]
        yield EIGHTEEN.counted(
            f"Weights in both precisions, gradients and AdamW's state take {a_parameter:.2f} bytes a parameter "
            f"({each.name})",
            a_parameter,
        )
    for each in _first(found, lambda p: p.checkpointing.kind == "none"):
        share = each.bytes["peak"] / each.four
        yield ANATOMY.counted(
            f"The peak of a step is {share:.2f} x the sum of the four ({_shares(each)}; {each.name})", share
        )
    whole = [each for each in found if each.p.attention == "explicit" and each.p.dropout and not each.p.gated]
    for each in _first(whole, lambda p: p.checkpointing.kind == "none" and p.element != "float32"):
        masks = "; dropout's masks take 2 bytes an element on a CPU, 1 in the formula" if each.device == "cpu" else ""
        share = each.bytes["activations"] / each.formula
        yield FORMULA.counted(
            f"With scores written out and dropout, activations take {share:.2f} x the formula ({each.name}{masks})",
            share,
        )
    for each in _first(found, lambda p: p.checkpointing.kind == "none"):
        left = each.bytes["activations"] / (LEFT_BYTES_A_PARAMETER * each.bytes["parameters"])
        yield RULE.counted(
            f"Where parameters x 18 fill 75 % of a memory, activations of {each.p.tokens} tokens take {left:.2f} x the "
            f"rest ({each.name})",
            left,
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
    needs = {
        str(stage): training_memory(KNOWN[SHARED], 1, KNOWN_SEQ, data_ranks=RANKS, zero_stage=stage)
        for stage in range(LAST_STAGE + 1)
    }
    rows = tuple((stage, *_gigabytes(need)) for stage, need in needs.items())
    title = f"By the law, GB a rank of {RANKS} for {SHARED}, one sequence of {KNOWN_SEQ}"
    return Table(title, ("ZeRO stage", *NEED_COLUMNS), rows)


def _parallel_table() -> Table:
    """Tensor parallelism alone, and with the sequence cut where it leaves tokens whole, by what is computed again."""
    rows = []
    for ranks, sequence in ((1, False), (RANKS, False), (RANKS, True)):
        for recompute, dropped in RECOMPUTED.items():
            sharding = Sharding(ranks, sequence_parallel=sequence)
            need = training_memory(KNOWN[SHARED], 1, KNOWN_SEQ, sharding, recompute=recompute)
            rows.append((str(ranks), "yes" if sequence else "no", dropped, *_gigabytes(need)))
    title = f"By the law, GB a rank for {SHARED} cut over tensor-parallel ranks (TP), one sequence of {KNOWN_SEQ}"
    return Table(title, ("TP", "sequence parallel", "computed again", *NEED_COLUMNS), tuple(rows))


def _gigabytes(need: MemoryNeed) -> tuple[str, ...]:
    return (*(f"{getattr(need, part.name) / 1e9:.2f}" for part in fields(need)), f"{need.total / 1e9:.2f}")


def _figures(found: Sequence[_Found]) -> tuple[Figure, ...]:
    """Activations by batch and by sequence, of the GPT and the Llama of which the most sizes were counted."""
    rows = []
    for gated in (False, True):
        drawn = [_panels(each, found) for each in found if each.p.gated == gated]
        most = max(drawn, key=lambda panels: sum(len(panel.series[1].x) for panel in panels), default=())
        if most:
            rows.append(most)
    caption = "Points: bytes that were counted. Line: the law of what torch keeps, nothing fitted."
    return (Figure("memory_activations", "Activations kept for backward", caption, tuple(rows)),) if rows else ()


def _panels(first: _Found, found: Sequence[_Found]) -> tuple[Panel, ...]:
    axes = (("batch", "batch"), ("seq", "tokens a sequence"))
    panels = (_panel(first, axis, label, found) for axis, label in axes)
    return tuple(panel for panel in panels if panel is not None)


def _panel(first: _Found, axis: str, label: str, found: Sequence[_Found]) -> Panel | None:
    """Those that differ from the first in that axis alone, and the law between them; None where there are no others."""
    alike = sorted(
        (each for each in found if replace(each.p, **{axis: getattr(first.p, axis)}) == first.p),
        key=lambda each: int(getattr(each.p, axis)),
    )
    sizes = [int(getattr(each.p, axis)) for each in alike]
    if len(set(sizes)) < 2:
        return None
    between = np.unique(np.linspace(sizes[0], sizes[-1], LINE_POINTS).round().astype(int)).tolist()
    law = [replace(first, p=replace(first.p, **{axis: size})).law / 1e6 for size in between]
    counted = [each.bytes["activations"] / 1e6 for each in alike]
    measured = Series("counted", sizes, counted, "points", counted, counted)
    return Panel(first.name, label, "MB", (Series("law", between, law, "line"), measured))


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
