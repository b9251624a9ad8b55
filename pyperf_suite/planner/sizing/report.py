"""The answer of `size`: what a micro-batch takes and loses time to, which rules matter, which sizes are faster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings, Remark, Table, findings, remark
from pyperf_suite.findings.rows import Column, table
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.tiling import round_up
from pyperf_suite.laws.transformer import model_flop
from pyperf_suite.planner.laws.calibration import Calibration, spec_of
from pyperf_suite.planner.laws.explained import IDEAL, Explained, legend
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.planner.laws.roofline import utilization
from pyperf_suite.planner.laws.training.framework import found_constants
from pyperf_suite.planner.laws.training.layer_work import passes_and_slowdown
from pyperf_suite.planner.laws.training.memory import USABLE_SHARE
from pyperf_suite.planner.laws.training.step import step_time
from pyperf_suite.planner.sizing.search import HEAD_DIMS, REPEATABILITY, Bounds, Candidate, Search, judged, search
from pyperf_suite.planner.sizing.step import Setting, grid_of, parts_of, price, resized, width_of_mlp
from pyperf_suite.record.quantity import Quantity

# Beyond this power of two the rules promise nothing more.
LARGEST_MULTIPLE = 64
TOKENS = "tokens at a time"
# Share by which a token takes longer, of which a proposal says so.
SHOWN_COST = 0.0005


@dataclass(frozen=True)
class TimeBreakdown:
    """The time of one part of a micro-batch: `calls` of `sizes` on one GPU, and the seconds of all calls by cause.

    `explained` is the law's answer for one call of this part and others.
    """

    part: str
    law: str
    sizes: tuple[int, ...]
    calls: float
    causes: dict[str, float]
    explained: Explained
    extrapolated: bool

    @property
    def seconds(self) -> float:
        """Time of all calls."""
        return sum(self.causes.values())

    @property
    def lost(self) -> list[tuple[str, float]]:
        """Causes other than the ideal time with their seconds, the largest first; what saves time is left out."""
        found = [(cause, seconds) for cause, seconds in self.causes.items() if cause != IDEAL and seconds > 0]
        return sorted(found, key=lambda each: -each[1])


def spent_by(setting: Setting, prices: Prices) -> list[TimeBreakdown]:
    """Every part of a micro-batch, in the order of the work."""
    parts = [part for part in parts_of(*grid_of([setting])) if np.any(part.calls)]
    return [
        TimeBreakdown(
            part.name,
            part.law,
            tuple(int(np.squeeze(size)) for size in part.sizes),
            float(np.squeeze(part.calls)),
            {cause: float(np.squeeze(seconds * part.calls)) for cause, seconds in its.causes.items()},
            its.explained,
            bool(np.any(its.at(its.explained.extrapolated))),
        )
        for part, its in zip(parts, price(parts, prices), strict=True)
    ]


@dataclass(frozen=True)
class SizeCheck:
    """One rule of sizing (Anthony et al. 2024, arXiv 2401.14489): what it asks, and what the model has.

    `better` is the nearest setting that keeps a broken rule; None where it is kept or nothing keeps it.
    """

    rule: str
    multiple: int
    kept: bool
    better: Candidate | None


def checks(setting: Setting, prices: Prices) -> list[SizeCheck]:
    """Every rule that concerns the setting, with what keeping it is worth."""
    model, tp = setting.model, setting.tp
    width = width_of_mlp(model)
    multiples = {"vocab": LARGEST_MULTIPLE * tp, width: LARGEST_MULTIPLE * tp, "hidden": LARGEST_MULTIPLE * tp}
    if not model.latent_rank:
        multiples["head_dim"] = LARGEST_MULTIPLE
    sizes = {name: getattr(model, name) for name in multiples} | {TOKENS: setting.tokens}
    multiples[TOKENS] = LARGEST_MULTIPLE
    others = {name: _kept(setting, name, multiples[name]) for name in multiples if sizes[name] % multiples[name]}
    settings = [setting, *(other for other in others.values() if other)]
    candidates = dict(zip([name for name in others if others[name]], judged(settings, prices)[1:], strict=True))
    return [
        SizeCheck(f"{name} divisible by {multiple}", sizes[name], name not in others, candidates.get(name))
        for name, multiple in multiples.items()
    ]


def _kept(setting: Setting, name: str, multiple: int) -> Setting | None:
    """The setting with the nearest size that keeps the rule, of a vocabulary a larger one; None if there is none."""
    model = setting.model
    size = setting.seq if name == TOKENS else getattr(model, name)
    queries = model.heads * model.head_dim
    up = round_up(size, multiple)
    tried = [up] if name in ("vocab", TOKENS) else [up, max(multiple, up - multiple)]
    if name == "head_dim":
        tried = [head_dim for head_dim in HEAD_DIMS if head_dim % multiple == 0 and queries % head_dim == 0]
    # Another hidden keeps heads as they are, which need not fill it; another head_dim the width of all together.
    heads = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim} if name == "hidden" else {}
    for other in sorted(tried, key=lambda other: abs(other - size)):
        try:
            if name == TOKENS:
                return replace(setting, seq=other)
            changed = heads | {name: other} | ({"heads": queries // other} if name == "head_dim" else {})
            return replace(setting, model=resized(model, **changed))
        except UserError:
            continue
    return None


UNSURE = "within the laws' error"
LAW_NAMES = {"gemm": "products", "attention": "attention", "memory_bound": "memory bound", "collective": "collectives"}
# A change of these makes another model; of the others, the same one in better sizes.
CHANGE_THE_MODEL = ("layers", "kv_heads")


@dataclass(frozen=True)
class Sizing:
    """The answer for one setting on one GPU.

    `iteration` is the law of a whole iteration of this one micro-batch, as `layout` predicts it: the GPU's work,
    waiting for the host, and the optimizer.
    """

    gpu: GpuSpec
    setting: Setting
    iteration: Explained
    spent: tuple[TimeBreakdown, ...]
    checks: tuple[SizeCheck, ...]
    search: Search
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> Findings:
        """Return the first change to make and the step's time, with tables."""
        shown = [each.extrapolated for each in (self.search.present, *self.search.pareto, *self.search.alone.values())]
        alone = (Column("dimension", lambda row: row[0]), *OUTCOMES)
        ideal = sum(part.causes.get(IDEAL, 0.0) for part in self.spent)
        return findings(
            _answer(self),
            _step(self),
            remark(
                "{share} of the GPU's work is beyond the ideal time of the data sheet.",
                kind="predicted",
                share=Quantity(1 - ideal / sum(part.seconds for part in self.spent), "%", predicted=True),
            ),
            _errors(self),
            _memory(self),
            _EXTRAPOLATED if any([*shown, *(part.extrapolated for part in self.spent)]) else None,
            (remark(note, kind="caution") for note in self.notes),
            table("One dimension at a time", alone, list(self.search.alone.items())),
            _products(self),
            table("The classic rules, and what keeping them is worth here", RULES, self.checks),
            table(
                "Together: no other is better in time, parameters and memory at once",
                OUTCOMES,
                [("", each) for each in self.search.pareto],
            ),
            remark(legend(cause for part in self.spent for cause, _ in part.lost)),
        )

    def _repr_markdown_(self) -> str:
        """The findings, as a notebook shows them."""
        from pyperf_suite.render.text import markdown_of

        return "\n".join(markdown_of(self.findings))

    @property
    def utilization(self) -> float:
        """MFU of the iteration: the model's FLOP over what the GPUs could do at their peak."""
        setting = self.setting
        flop = model_flop(setting.model, setting.plan.global_batch, setting.seq)
        return float(utilization(flop, float(self.iteration.seconds), setting.plan.ranks, self.gpu.peak(setting.dtype)))


def sizing(
    laws: GpuSpec | Calibration,
    setting: Setting,
    bounds: Bounds,
    prices: Prices | None = None,
    notes: Sequence[str] = (),
) -> Sizing:
    """Work it all out. `bounds.memory_bytes` is what may be used of each GPU."""
    gpu = spec_of(laws)
    plan = setting.plan_on(gpu)
    times = passes_and_slowdown(plan, found_constants(laws, str(plan.framework)).constants)
    slower = {kind: slowdown for kind, (_, slowdown) in times.items()}
    prices = replace(prices or Prices(laws, setting.dtype), slower=slower)
    return Sizing(
        gpu,
        setting,
        step_time(laws, setting.model, plan, prices=prices),
        tuple(spent_by(setting, prices)),
        tuple(checks(setting, prices)),
        search(setting, bounds, prices),
        tuple(notes),
    )


_EXTRAPOLATED = remark(
    "* The laws were not fitted on some of these sizes, this dtype or this GPU; they may err by more than they state.",
    kind="caution",
)


def _answer(sizing: Sizing) -> Iterator[Remark]:
    """The single change that is worth most, then the next; combinations last."""
    search = sizing.search
    if search.priced == 1:
        yield remark(
            "There is no neighbour to compare with: none differs only in {dimensions}.",
            dimensions=", ".join(search.bounds.vary),
        )
        return
    singles = sorted((each for each in search.alone.values() if each.is_faster), key=lambda each: -each.speed)
    if singles:
        # Propose, of choices that the laws cannot tell from the best, the one that changes the parameters least.
        best_low = singles[0].low
        singles.sort(key=lambda each: (each.high < best_low, abs(each.parameter_change)))
    for word, candidate in zip(("Change first", "Next", "Then"), singles, strict=False):
        yield _proposal(word, candidate)
    if search.pareto and len(search.pareto[0].changes) > 1:
        yield _proposal("Together", max(search.pareto, key=lambda each: each.speed))
    vocab, heads = search.alone.get("vocab"), search.alone.get("heads")
    if vocab is not None and not vocab.is_faster and vocab.low > 1:
        yield _proposal("Padding costs nothing", vocab)
    if heads is not None and heads.unknown:
        yield _unknown(heads, sizing.setting)
    elif not singles and not search.pareto:
        yield remark(
            "Keep the dimensions: no neighbour does its work faster by more than the laws' error and the repeatability "
            "of measurements ({noise}).",
            noise=Quantity(REPEATABILITY, "%"),
        )
    yield remark(
        "{compared} neighbours were compared, {allowed} within the limits on parameters, width and memory; {faster} "
        "are faster by more than the laws' error.",
        kind="predicted",
        compared=search.priced,
        allowed=search.within,
        faster=search.faster,
    )


def _unknown(candidate: Candidate, setting: Setting) -> Remark:
    """Why nothing is said of other heads, and the command that measures both splits.

    Both have the query heads a key head of either, as far as these divide the heads of both.
    """
    models = (setting.model, candidate.setting.model)
    heads = [model.heads for model in models]
    ratios = {model.heads // model.kv_heads: None for model in models}
    common = [ratio for ratio in ratios if not any(count % ratio for count in heads)] or [math.gcd(*heads)]
    return remark(
        "Not known: what {change} is worth lies beyond the law of attention. Measure with pyperf-suite run "
        "attention_heads -a hidden={width} -a heads={heads} -a head_dim={head_dim} -a heads_of_head_dim={first} "
        "-a kv_ratio={ratios} -a varied_splits=2 -a seq={seq} -a batch={batch}",
        kind="predicted",
        change=change_of(candidate),
        width=setting.model.heads * setting.model.head_dim,
        heads=",".join(map(str, heads)),
        head_dim=setting.model.head_dim,
        first=heads[0],
        ratios=",".join(map(str, common)),
        seq=setting.seq,
        batch=setting.micro_batch,
    )


def _proposal(word: str, candidate: Candidate) -> Remark:
    """A change, its work a second, and the time a token where that gets longer."""
    marked = ", ".join(name for name, _, _ in candidate.changes if name in CHANGE_THE_MODEL)
    cost = candidate.time_ratio - 1
    slower = {"cost": Quantity(cost, "+%", predicted=True)} if cost >= SHOWN_COST else {}
    return remark(
        "{word}: {change}{note}, {faster} as fast, {parameters} parameters"
        + (", {cost} time a token." if slower else "."),
        kind="predicted",
        effect="faster",
        word=word,
        change=change_of(candidate),
        note=f" (another model: {marked})" if marked else "",
        faster=speed_of(candidate),
        parameters=Quantity(candidate.parameter_change, "+%"),
        **slower,
    )


def _step(sizing: Sizing) -> Iterator[Remark]:
    setting, present, model = sizing.setting, sizing.search.present, sizing.setting.model
    shared = f" over {model.kv_heads} key-value heads" if model.kv_heads != model.heads else ""
    experts = f"{model.expert_ffn} x {model.experts} experts, {model.top_k} a token"
    seen = f"attention over {'a chunk' if model.chunked else 'a window'} of {model.window}"
    kinds = ((model.windowed_layers, f"with {seen}"), (model.dense_layers, "without experts"))
    of_kinds = "".join(f", {count} {kind}" for count, kind in kinds if count)
    yield remark(
        "{parameters} billion parameters ({model}), {micro_batch} x {seq} tokens in {dtype} on {gpu}: {time} of GPU "
        "work forward and backward{each}, at the clocks of a sustained load.",
        kind="predicted",
        parameters=Quantity(present.parameters / 1e9),
        model=f"{model.layers} layers{of_kinds}, hidden {model.hidden}, "
        f"{model.heads} heads of {model.head_dim}{shared}, "
        f"ffn {model.ffn if model.experts == 1 else experts}, vocab {model.vocab}",
        micro_batch=setting.micro_batch,
        seq=setting.seq,
        dtype=setting.dtype,
        gpu=sizing.gpu.name,
        time=Quantity(present.seconds, "duration", predicted=True),
        each=(f" on each of {setting.tp} tensor-parallel GPUs" if setting.tp > 1 else "")
        + (f", experts shared by {setting.ep}" if setting.ep > 1 else ""),
    )
    parts, sharers = sizing.iteration.parts, "shards" if setting.shards > 1 else "data-parallel GPUs"
    sent = sum(float(parts[name]) for name in ("gradients", "parameters"))
    yield remark(
        "An iteration of one micro-batch takes {time}, {mfu} of the peak (MFU), as `layout` counts it: {optimizer} for "
        "the optimizer{sent}{waited}.",
        kind="predicted",
        time=Quantity(float(sizing.iteration.seconds), "duration", predicted=True),
        mfu=Quantity(sizing.utilization, "%", predicted=True),
        optimizer=Quantity(float(parts["optimizer"]), "duration", predicted=True),
        sent=f", {1e3 * sent:.3g} ms for the traffic of {setting.plan.data} {sharers}" if sent else "",
        waited=f", {1e3 * float(parts['host']):.3g} ms waiting for the host" if parts["host"] else "",
    )


def _errors(sizing: Sizing) -> Iterator[Remark]:
    errors: dict[str, list[float | None]] = {}
    for part in sizing.spent:
        errors.setdefault(LAW_NAMES[part.law], []).append(part.explained.error_percent)
    for law, found in errors.items():
        known = [error for error in found if error is not None]
        yield remark(
            "The law of {law} errs by {error} on measurements that it was not fitted on.",
            kind="law",
            law=law,
            error=Quantity(max(known) / 100, "%") if known else "an unknown amount",
        )
    if origins := dict.fromkeys(part.explained.origin for part in sizing.spent if part.explained.origin):
        yield remark("Sources of the laws: {sources}.", kind="law", sources="; ".join(origins))


def _memory(sizing: Sizing) -> Remark | None:
    setting, search = sizing.setting, sizing.search
    usable = USABLE_SHARE * sizing.gpu.memory_bytes
    if search.present.memory_bytes <= usable:
        return None
    return remark(
        "The model does not fit: weights, gradients, AdamW and activations need {needed} on each GPU with tp = {tp} "
        "and {shards} shards, where {usable} are usable. Candidates may need at most {more} more; --shards gives the "
        "number of data-parallel GPUs that share these (ZeRO-3, FSDP).",
        kind="caution",
        needed=Quantity(search.present.memory_bytes, "size"),
        usable=Quantity(usable, "size"),
        tp=setting.tp,
        shards=setting.shards,
        more=Quantity(search.bounds.parameter_change, "%"),
    )


def _products(sizing: Sizing) -> Table:
    total = sum(part.seconds for part in sizing.spent)

    def sizes(part: TimeBreakdown) -> str:
        """Sizes as the law takes them; attention without its window where it sees all."""
        if part.law != "attention":
            return " x ".join(map(str, part.sizes))
        *sizes, window = part.sizes
        return " x ".join(map(str, sizes)) + (f", window {window}" if window else "")

    def rate(part: TimeBreakdown) -> float | None:
        """2·M·N·K of all calls of a product a second, None for other work."""
        return 2.0 * math.prod(part.sizes) * part.calls / part.seconds if part.law == "gemm" else None

    def lost(part: TimeBreakdown) -> tuple[str | None, float | None]:
        """The main cause, and the share of the part's time that it takes."""
        cause, seconds = part.lost[0] if part.lost else ("", 0.0)
        return (cause, seconds / part.seconds) if seconds >= 0.01 * part.seconds else (None, None)

    return table(
        "Where a micro-batch goes",
        (
            Column("work of one GPU", lambda part: part.part + (" *" if part.extrapolated else ""), priority=2),
            Column("sizes", sizes),
            Column("calls", lambda part: f"{part.calls:g}", priority=0),
            Column("time", lambda part: part.seconds, "ms", priority=2),
            Column("of the step", lambda part: part.seconds / total, "%"),
            Column("rate", rate, "TFLOP/s"),
            Column("lost to", lambda part: lost(part)[0]),
            Column("of its time", lambda part: lost(part)[1], "%"),
        ),
        [part for part in sorted(sizing.spent, key=lambda each: -each.seconds) if part.seconds >= 0.002 * total],
    )


def change_of(candidate: Candidate) -> str:
    """The changed dimensions as text: "heads 40 -> 32, vocab 50257 -> 50304"."""
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in candidate.changes)


def speed_of(candidate: Candidate) -> Quantity:
    """Speed relative to the present model, with the bounds of the laws' error."""
    return Quantity(candidate.speed, "x", candidate.low, candidate.high, predicted=True)


def _marked(candidate: Candidate) -> str:
    return change_of(candidate) + (" *" if candidate.extrapolated else "")


def _verdict(candidate: Candidate) -> str:
    if candidate.unknown:
        return "not known"
    return "faster" if candidate.is_faster else "slower" if candidate.is_slower else UNSURE


OUTCOMES = (
    Column("change", lambda row: _marked(row[1]), priority=2),
    Column("speed", lambda row: speed_of(row[1]), "x", priority=3),
    Column("verdict", lambda row: _verdict(row[1])),
    Column("time a token", lambda row: row[1].time_ratio - 1, "+%"),
    Column("parameters", lambda row: row[1].parameter_change, "+%"),
    Column("memory", lambda row: row[1].memory_bytes, "GiB"),
)
RULES = (
    Column("rule", lambda check: check.rule, priority=2),
    Column("here", lambda check: check.multiple),
    Column("kept", lambda check: "yes" if check.kept else "no", priority=2),
    Column("compared with", lambda check: check.better and _marked(check.better)),
    Column("speed then", lambda check: check.better and speed_of(check.better), "x"),
    Column("verdict", lambda check: check.better and _verdict(check.better)),
)
