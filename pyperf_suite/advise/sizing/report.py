"""The answer of `size` as findings: what a step takes and loses time to, which rules matter, which sizes are faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.advise.sizing.candidates import Bounds
from pyperf_suite.advise.sizing.causes import IDEAL, Spent, legend, saved, spent_by
from pyperf_suite.advise.sizing.checks import Check, checks
from pyperf_suite.advise.sizing.heat_maps import heat_maps
from pyperf_suite.advise.sizing.prices import Prices
from pyperf_suite.advise.sizing.search import REPEATABILITY, Candidate, Search, search
from pyperf_suite.advise.sizing.setting import Setting
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.model_flops import model_flop, utilization
from pyperf_suite.laws.training.memory import USABLE_SHARE
from pyperf_suite.spec.findings import Findings, Table

Causes = tuple[tuple[str, float], ...]

UNSURE = "within what the laws may err"
# Of each part of the work, in its row.
MOST_CAUSES = 3


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
    """Sentences, tables and the heat maps."""
    tables = (_products(sizing), _checks(sizing), _alone(sizing), _pareto(sizing))
    return Findings(
        remarks=(*_sentences(sizing), *sizing.notes),
        tables=tuple(table for table in tables if table.rows),
        figures=heat_maps(sizing.setting, prices, sizing.gpu.name, sizing.search.bounds.reach),
    )


def _sentences(sizing: Sizing) -> list[str]:
    return [
        _step_sentence(sizing),
        _error_sentence(sizing),
        _loss_sentence(sizing),
        _answer_sentence(sizing),
        *_memory_sentences(sizing),
        *([_EXTRAPOLATED] if sizing.search.present.extrapolated else []),
        legend(cause for part in sizing.spent for cause, _ in part.lost[:MOST_CAUSES]),
    ]


_EXTRAPOLATED = (
    "Where * stands below the laws extrapolate, to sizes, a dtype or a GPU that they were not fitted on, and may err "
    "by more than they say."
)


def _step_sentence(sizing: Sizing) -> str:
    setting, present = sizing.setting, sizing.search.present
    each = f" on each of {setting.tp} tensor-parallel GPUs" if setting.tp > 1 else ""
    return (
        f"{present.parameters / 1e9:.2f} B parameters ({_described(setting)}), {setting.micro_batch} x {setting.seq} "
        f"tokens in {setting.dtype} on {sizing.gpu.name}: predicted {present.seconds * 1e3:.1f} ms forward and "
        f"backward of a micro-batch{each}, {sizing.utilization:.0%} of the peak (MFU). The optimizer and data-parallel "
        "traffic are not counted."
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


def _error_sentence(sizing: Sizing) -> str:
    told = [
        f"{law.replace('_', '-')} {error:.1f} %" if error is not None else f"{law.replace('_', '-')} untested"
        for law, error in sizing.errors.items()
    ]
    origins = f" Sources: {'; '.join(sizing.origins)}." if sizing.origins else ""
    return f"Predicted: the mean error on measurements that the laws were not fitted on is {', '.join(told)}.{origins}"


def _loss_sentence(sizing: Sizing) -> str:
    total = sum(part.seconds for part in sizing.spent)
    ideal = sum(part.causes.get(IDEAL, 0.0) for part in sizing.spent)
    lost: dict[str, float] = {}
    for part in sizing.spent:
        for cause, seconds in part.lost:
            name = f"{part.part.partition(',')[0]} ({cause})"
            lost[name] = lost.get(name, 0.0) + seconds / total
    worst = sorted(lost.items(), key=lambda each: -each[1])[:3]
    told = ", ".join(f"{name} {share:.1%}" for name, share in worst)
    return f"{1 - ideal / total:.0%} of the step is beyond the ideal time of the data sheet, the most of it in: {told}."


def _answer_sentence(sizing: Sizing) -> str:
    found = sizing.search
    if found.priced == 1:
        return f"There is no neighbour to compare with: none differs only in {', '.join(found.bounds.vary)}."
    searched = f"{found.priced} neighbours priced, {found.within} within the bounds"
    if not found.pareto:
        return (
            f"No neighbour does its work faster beyond what the laws may err and measurements repeat "
            f"({REPEATABILITY:.0%}): keep the dimensions ({searched})."
        )
    best = max(found.pareto, key=lambda candidate: candidate.speed)
    simple = [(name, candidate) for name, candidate in found.alone.items() if candidate.is_faster]
    alone = ""
    if simple:
        _, candidate = max(simple, key=lambda each: each[1].speed)
        alone = f" Alone, {change_of(candidate)} gives {_speed_of(candidate)}."
    return (
        f"The best neighbour does its work {_speed_of(best)} as fast at {best.parameter_change:+.1%} parameters: "
        f"{change_of(best)}.{alone} Faster beyond the noise: {found.faster} ({searched})."
    )


def _memory_sentences(sizing: Sizing) -> list[str]:
    setting, found = sizing.setting, sizing.search
    needed = found.present.memory_bytes
    usable = USABLE_SHARE * sizing.gpu.memory_bytes
    if needed <= usable:
        return []
    gib = 2**30
    return [
        f"Weights, gradients, AdamW and activations need {needed / gib:.0f} GiB on each GPU, where {usable / gib:.0f} "
        f"are usable: with tp = {setting.tp} and {setting.shards} shards it does not fit, and candidates were only "
        f"asked to need at most {found.bounds.parameter_change:.1%} more; --shards says over how many data-parallel "
        "GPUs these are cut (ZeRO-3, FSDP)."
    ]


def _products(sizing: Sizing) -> Table:
    total = sum(part.seconds for part in sizing.spent)
    rows = []
    for part in sorted(sizing.spent, key=lambda each: -each.seconds):
        if part.seconds < 0.002 * total:
            continue
        lost = ", ".join(f"{cause} {seconds / part.seconds:.0%}" for cause, seconds in part.lost[:MOST_CAUSES]
                         if seconds >= 0.01 * part.seconds)  # fmt: skip
        rows.append(
            (
                part.part + (" *" if part.extrapolated else ""),
                " x ".join(map(str, part.sizes)),
                str(part.calls),
                f"{part.seconds * 1e3:.2f}",
                f"{part.seconds / total:.1%}",
                f"{part.flop / part.seconds / 1e12:.0f}" if part.flop else "-",
                lost or "-",
            )
        )
    columns = ("work of one GPU", "sizes", "calls", "ms", "of the step", "TFLOP/s", "lost to (of its time)")
    return Table("Where a micro-batch goes", columns, tuple(rows))


def _checks(sizing: Sizing) -> Table:
    rows = []
    for check in sizing.checks:
        effect, how = "-", "-"
        if check.other is not None:
            how = change_of(check.other) or f"seq {sizing.setting.seq} -> {check.other.setting.seq}"
            effect = _effect_of(check.other)
            if check.other.memory_bytes > sizing.search.memory_limit_bytes:
                effect += "; does not fit"
        rows.append((check.rule, check.found, "yes" if check.kept else "no", how, effect))
    columns = ("rule", "here", "kept", "compared with", "predicted effect on this GPU")
    return Table("The classic rules, and what they are worth here", columns, tuple(rows))


def _alone(sizing: Sizing) -> Table:
    rows = [
        (
            name,
            change_of(candidate),
            _effect_of(candidate),
            f"{candidate.time_ratio - 1:+.1%}",
            f"{candidate.parameter_change:+.2%}",
            _memory_of(candidate),
            _told(sizing.causes_alone[name]) if candidate.is_faster else "-",
        )
        for name, candidate in sizing.search.alone.items()
    ]
    columns = (
        "dimension",
        "best change alone",
        "work a second",
        "time a token",
        "parameters",
        "GiB",
        "saves (of the step)",
    )
    return Table("One dimension at a time", columns, tuple(rows))


def _pareto(sizing: Sizing) -> Table:
    rows = [
        (
            change_of(candidate) + (" *" if candidate.extrapolated else ""),
            _effect_of(candidate),
            f"{candidate.time_ratio - 1:+.1%}",
            f"{candidate.parameter_change:+.2%}",
            _memory_of(candidate),
            _told(causes),
        )
        for candidate, causes in zip(sizing.search.pareto, sizing.causes, strict=True)
    ]
    columns = ("change", "work a second", "time a token", "parameters", "GiB", "saves (of the step)")
    return Table("Together: no other is better in time, parameters and memory at once", columns, tuple(rows))


def change_of(candidate: Candidate) -> str:
    """The changed dimensions as text: "heads 40 -> 32, vocab 50257 -> 50304"."""
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in candidate.changes)


def _speed_of(candidate: Candidate) -> str:
    return f"{candidate.speed:.3f} x ({candidate.low:.3f} to {candidate.high:.3f})"


def _effect_of(candidate: Candidate) -> str:
    return _speed_of(candidate) if candidate.is_faster or candidate.is_slower else UNSURE


def _memory_of(candidate: Candidate) -> str:
    return f"{candidate.memory_bytes / 2**30:.1f}"


def _told(causes: Causes) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in causes) or "-"


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
