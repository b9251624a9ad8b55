"""The answer of `size` as findings: what a step takes and loses time to, which rules matter, which sizes are faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.advise.sizing.candidates import Bounds
from pyperf_suite.advise.sizing.causes import Spent, saved, spent_by
from pyperf_suite.advise.sizing.checks import Check, checks
from pyperf_suite.advise.sizing.heat_maps import heat_maps
from pyperf_suite.advise.sizing.prices import Prices
from pyperf_suite.advise.sizing.search import REPEATABILITY, Candidate, Search, search
from pyperf_suite.advise.sizing.setting import Setting
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.explained import IDEAL, legend
from pyperf_suite.laws.model_flops import model_flop, utilization
from pyperf_suite.laws.training.memory import USABLE_SHARE
from pyperf_suite.spec.findings import Findings, Quantity, Remark, Table, findings, remark
from pyperf_suite.spec.rows import Column, table

Causes = tuple[tuple[str, float], ...]

UNSURE = "within the laws' error"
# Of each part of the work, in its row.
MOST_CAUSES = 3
MOST_LOSSES = 3
# A change of these makes another model; of the others, the same one in better sizes.
CHANGE_THE_MODEL = ("layers", "kv_heads")


@dataclass(frozen=True)
class Sizing:
    """Everything that was worked out for one setting on one GPU; `causes` belong to `search.pareto`, in its order."""

    gpu: GpuSpec
    setting: Setting
    spent: tuple[Spent, ...]
    checks: tuple[Check, ...]
    search: Search
    causes: tuple[Causes, ...]
    causes_alone: dict[str, Causes]
    errors: dict[str, float | None]
    origins: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def utilization(self) -> float:
        """MFU: the model's FLOP over what the GPUs could do at their peak."""
        model = self.setting.model
        flop = model_flop(model, self.setting.micro_batch, self.setting.seq)
        present = self.search.present
        return float(utilization(flop, present.seconds, self.setting.tp, self.gpu.peak(self.setting.dtype)))


def sizing(gpu: GpuSpec, setting: Setting, bounds: Bounds, prices: Prices, notes: Sequence[str] = ()) -> Sizing:
    """Work it all out. `bounds.memory_bytes` is what may be used of each GPU."""
    found = search(setting, bounds, prices)
    told = [*found.pareto, *found.alone.values()]
    asked = _Recording(prices)
    present, *others = spent_by([setting, *(candidate.setting for candidate in told)], asked)
    causes = [tuple(saved(present, other, candidate, setting)) for other, candidate in zip(others, told, strict=True)]
    return Sizing(
        gpu,
        setting,
        tuple(present),
        tuple(checks(setting, prices, found.memory_limit_bytes)),
        found,
        tuple(causes[: len(found.pareto)]),
        dict(zip(found.alone, causes[len(found.pareto) :], strict=True)),
        asked.errors,
        tuple(dict.fromkeys(origin for origin in asked.origins if origin)),
        tuple(notes),
    )


def findings_of_sizing(sizing: Sizing, prices: Prices) -> Findings:
    """What to change first, what the step takes, tables and the heat maps."""
    return findings(
        _answer(sizing),
        _step(sizing),
        _losses(sizing),
        _errors(sizing),
        _memory(sizing),
        _EXTRAPOLATED if sizing.search.present.extrapolated else None,
        (remark(note, kind="caution") for note in sizing.notes),
        _products(sizing),
        table("The classic rules, and what they are worth here", RULES, sizing.checks),
        table("One dimension at a time", ALONE, _alone(sizing)),
        table("Together: no other is better in time, parameters and memory at once", TOGETHER, _together(sizing)),
        remark(legend(cause for part in sizing.spent for cause, _ in part.lost[:MOST_CAUSES])),
        heat_maps(sizing.setting, prices, sizing.gpu.name, sizing.search.bounds.reach),
    )


_EXTRAPOLATED = remark(
    "Where * stands the laws extrapolate, to sizes, a dtype or a GPU that they were not fitted on, and may err by more "
    "than they say.",
    kind="caution",
)


def _answer(sizing: Sizing) -> Iterator[Remark]:
    """The single change that is worth most, then the next; combinations last."""
    found = sizing.search
    if found.priced == 1:
        yield remark(
            "There is no neighbour to compare with: none differs only in {dimensions}.",
            dimensions=", ".join(found.bounds.vary),
        )
        return
    singles = sorted((each for each in found.alone.values() if each.is_faster), key=_worth, reverse=True)
    if singles:
        # Of choices that the laws cannot tell from the best, the one that changes the parameters least.
        best_low = singles[0].low
        singles.sort(key=lambda each: (each.high < best_low, abs(each.parameter_change)))
    for word, candidate in zip(("Change first", "Next", "Then"), singles, strict=False):
        yield _proposal(word, candidate)
    if found.pareto and len(found.pareto[0].changes) > 1:
        yield _proposal("Together", max(found.pareto, key=_worth))
    if not singles and not found.pareto:
        yield remark(
            "Keep the dimensions: no neighbour does its work faster beyond what the laws may err and measurements "
            "repeat ({noise}).",
            noise=Quantity(REPEATABILITY, "%"),
        )
    yield remark(
        "{compared} neighbours were compared, {allowed} within the limits on parameters, width and memory; {faster} "
        "are faster beyond the laws' error.",
        kind="predicted",
        compared=found.priced,
        allowed=found.within,
        faster=found.faster,
    )


def _worth(candidate: Candidate) -> float:
    return candidate.speed


def _proposal(word: str, candidate: Candidate) -> Remark:
    marked = ", ".join(name for name, _, _ in candidate.changes if name in CHANGE_THE_MODEL)
    return remark(
        "{word}: {change}{note}, {faster} as fast, {parameters} parameters.",
        kind="predicted",
        effect="faster",
        word=word,
        change=change_of(candidate),
        note=f" (another model: {marked})" if marked else "",
        faster=speed_of(candidate),
        parameters=Quantity(candidate.parameter_change, "+%"),
    )


def _step(sizing: Sizing) -> Remark:
    setting, present = sizing.setting, sizing.search.present
    return remark(
        "{parameters} billion parameters ({model}), {micro_batch} x {seq} tokens in {dtype} on {gpu}: {time} forward "
        "and backward of a micro-batch{each}, {mfu} of the peak (MFU). The optimizer and data-parallel traffic are not "
        "counted.",
        kind="predicted",
        parameters=Quantity(present.parameters / 1e9),
        model=_described(setting),
        micro_batch=setting.micro_batch,
        seq=setting.seq,
        dtype=setting.dtype,
        gpu=sizing.gpu.name,
        time=Quantity(present.seconds, "duration", predicted=True),
        each=f" on each of {setting.tp} tensor-parallel GPUs" if setting.tp > 1 else "",
        mfu=Quantity(sizing.utilization, "%", predicted=True),
    )


def _described(setting: Setting) -> str:
    model = setting.model
    shared = f" over {model.kv_heads} key-value heads" if model.kv_heads != model.heads else ""
    mlp = (
        f"{model.ffn}" if model.experts == 1 else f"{model.expert_ffn} x {model.experts} experts, {model.top_k} a token"
    )
    return (
        f"{model.layers} layers, hidden {model.hidden}, {model.heads} heads of {model.head_dim}{shared}, ffn {mlp}, "
        f"vocab {model.vocab}"
    )


def _errors(sizing: Sizing) -> Iterator[Remark]:
    for law, error in sizing.errors.items():
        yield remark(
            "The law of {law} errs by {error} on measurements that it was not fitted on.",
            kind="law",
            law=law.replace("_", "-"),
            error="an unknown amount" if error is None else Quantity(error / 100, "%"),
        )
    if sizing.origins:
        yield remark("Sources of the laws: {sources}.", kind="law", sources="; ".join(sizing.origins))


def _losses(sizing: Sizing) -> Iterator[Remark]:
    total = sum(part.seconds for part in sizing.spent)
    ideal = sum(part.causes.get(IDEAL, 0.0) for part in sizing.spent)
    yield remark(
        "{share} of the step is beyond the ideal time of the data sheet.",
        kind="predicted",
        share=Quantity(1 - ideal / total, "%", predicted=True),
    )
    lost: dict[tuple[str, str], float] = {}
    for part in sizing.spent:
        for cause, seconds in part.lost:
            key = (part.part.partition(",")[0], cause)
            lost[key] = lost.get(key, 0.0) + seconds / total
    for (name, cause), share in sorted(lost.items(), key=lambda each: -each[1])[:MOST_LOSSES]:
        yield remark(
            "{part} loses {share} of the step to {cause}.",
            kind="predicted",
            part=name,
            cause=cause,
            share=Quantity(share, "%", predicted=True),
        )


def _memory(sizing: Sizing) -> Remark | None:
    setting, found = sizing.setting, sizing.search
    usable = USABLE_SHARE * sizing.gpu.memory_bytes
    if found.present.memory_bytes <= usable:
        return None
    return remark(
        "Weights, gradients, AdamW and activations need {needed} on each GPU, where {usable} are usable: with tp = "
        "{tp} and {shards} shards it does not fit, and candidates were only asked to need at most {more} more; "
        "--shards says over how many data-parallel GPUs these are cut (ZeRO-3, FSDP).",
        kind="caution",
        needed=Quantity(found.present.memory_bytes, "size"),
        usable=Quantity(usable, "size"),
        tp=setting.tp,
        shards=setting.shards,
        more=Quantity(found.bounds.parameter_change, "%"),
    )


def _products(sizing: Sizing) -> Table:
    total = sum(part.seconds for part in sizing.spent)
    told = [part for part in sorted(sizing.spent, key=lambda each: -each.seconds) if part.seconds >= 0.002 * total]
    return table(
        "Where a micro-batch goes",
        (
            Column("work of one GPU", lambda part: part.part + (" *" if part.extrapolated else ""), priority=2),
            Column("sizes", lambda part: " x ".join(map(str, part.sizes))),
            Column("calls", lambda part: part.calls, priority=0),
            Column("time", lambda part: part.seconds, "ms", priority=2),
            Column("of the step", lambda part: part.seconds / total, "%"),
            Column("rate", lambda part: part.flop / part.seconds if part.flop else None, "TFLOP/s"),
            Column("lost to", lambda part: _lost(part, 0)),
            Column("of its time", lambda part: _lost_share(part, 0), "%"),
            Column("then to", lambda part: _lost(part, 1), priority=0),
            Column("of its time", lambda part: _lost_share(part, 1), "%", priority=0),
            Column("then to", lambda part: _lost(part, 2), priority=0),
            Column("of its time", lambda part: _lost_share(part, 2), "%", priority=0),
        ),
        told,
    )


def _lost(part: Spent, place: int) -> str | None:
    known = [cause for cause, seconds in part.lost if seconds >= 0.01 * part.seconds]
    return known[place] if place < len(known) else None


def _lost_share(part: Spent, place: int) -> float | None:
    return part.causes[cause] / part.seconds if (cause := _lost(part, place)) else None


def _alone(sizing: Sizing) -> list[tuple[str, Candidate, Causes]]:
    return [(name, each, sizing.causes_alone[name]) for name, each in sizing.search.alone.items()]


def _together(sizing: Sizing) -> list[tuple[str, Candidate, Causes]]:
    return [("", each, causes) for each, causes in zip(sizing.search.pareto, sizing.causes, strict=True)]


def _saving(place: int) -> tuple[Column, Column]:
    """What a candidate saves by which cause."""

    def known(told: tuple[str, Candidate, Causes], part: int) -> str | float | None:
        _, candidate, causes = told
        return causes[place][part] if candidate.is_faster and place < len(causes) else None

    return (
        Column("saves by" if place == 0 else "and by", lambda told: known(told, 0), priority=0),
        Column("of the step", lambda told: known(told, 1), "%", priority=0),
    )


OUTCOMES = (
    Column("speed", lambda told: speed_of(told[1]), "x", priority=2),
    Column("verdict", lambda told: verdict_of(told[1])),
    Column("time a token", lambda told: told[1].time_ratio - 1, "+%"),
    Column("parameters", lambda told: told[1].parameter_change, "+%"),
    Column("memory", lambda told: told[1].memory_bytes, "GiB"),
    *_saving(0),
    *_saving(1),
    *_saving(2),
)
ALONE = (
    Column("dimension", lambda told: told[0]),
    Column("best change alone", lambda told: change_of(told[1]) + (" *" if told[1].extrapolated else ""), priority=2),
    *OUTCOMES,
)
TOGETHER = (
    Column("change", lambda told: change_of(told[1]) + (" *" if told[1].extrapolated else ""), priority=2),
    *OUTCOMES,
)
RULES = (
    Column("rule", lambda check: check.rule, priority=2),
    Column("here", lambda check: check.found),
    Column("kept", lambda check: "yes" if check.kept else "no", priority=2),
    Column("compared with", lambda check: check.other and (change_of(check.other) or f"seq {check.other.setting.seq}")),
    Column("speed then", lambda check: check.other and speed_of(check.other), "x"),
    Column("verdict", lambda check: check.other and verdict_of(check.other)),
    Column("memory then", lambda check: check.other and check.other.memory_bytes, "GiB", priority=0),
)


def change_of(candidate: Candidate) -> str:
    """The changed dimensions as text: "heads 40 -> 32, vocab 50257 -> 50304"."""
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in candidate.changes)


def speed_of(candidate: Candidate) -> Quantity:
    """How many times as fast it does its own work, with the bounds of what the laws may err."""
    return Quantity(candidate.speed, "x", candidate.low, candidate.high, predicted=True)


def verdict_of(candidate: Candidate) -> str:
    """Whether it can be told from the present model."""
    return "faster" if candidate.is_faster else "slower" if candidate.is_slower else UNSURE


class _Recording:
    """Prices that remember what each law says of its own error and origin."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self.errors: dict[str, float | None] = {}
        self.origins: list[str] = []

    def __getattr__(self, law: str) -> Any:
        def asked(*arguments: Any) -> Any:
            explained = getattr(self._prices, law)(*arguments)
            self.errors[law] = explained.error_percent
            self.origins.append(explained.origin)
            return explained

        return asked
