"""What `size` reports besides the search: where the time goes, what a change saves, and the rules of sizing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import round_up
from pyperf_suite.planner.laws.explained import IDEAL, KernelPrices
from pyperf_suite.planner.sizing.search import HEAD_DIMS, Candidate, judged
from pyperf_suite.planner.sizing.step import Setting, parts_of, price, shapes_of, width_of_mlp

# Savings of less than this share of the step are no cause worth naming.
LEAST_SAVED = 0.002
# Beyond this power of two the rules promise nothing more.
ENOUGH = 64


@dataclass(frozen=True)
class TimeBreakdown:
    """The time of one part of a micro-batch: `calls` of `sizes` on one GPU, and the seconds of all calls by cause."""

    part: str
    law: str
    sizes: tuple[int, ...]
    calls: float
    causes: dict[str, float]
    extrapolated: bool

    @property
    def seconds(self) -> float:
        """Of all calls."""
        return sum(self.causes.values())

    @property
    def flop(self) -> float:
        """2·M·N·K of all calls of a product, 0 for other work."""
        return 2.0 * float(np.prod(self.sizes, dtype=np.float64)) * self.calls if self.law == "gemm" else 0.0

    @property
    def lost(self) -> list[tuple[str, float]]:
        """Causes other than the ideal time with their seconds, the largest first; what saves time is left out."""
        found = [(cause, seconds) for cause, seconds in self.causes.items() if cause != IDEAL and seconds > 0]
        return sorted(found, key=lambda each: -each[1])


def spent_by(settings: Sequence[Setting], prices: KernelPrices) -> list[list[TimeBreakdown]]:
    """Every part of each setting's micro-batch, in the order of the work."""
    parts = parts_of(shapes_of(settings))
    count = len(settings)
    found: list[list[TimeBreakdown]] = [[] for _ in settings]
    for part, its in zip(parts, price(parts, prices), strict=True):
        calls, extrapolated = np.broadcast_to(part.calls, count), np.broadcast_to(its.extrapolated, count)
        sizes = [np.broadcast_to(size, count) for size in part.sizes]
        causes = {cause: np.broadcast_to(seconds, count) for cause, seconds in its.causes.items()}
        for n in np.flatnonzero(calls).tolist():
            its_causes = {cause: float(seconds[n] * calls[n]) for cause, seconds in causes.items()}
            its_sizes = tuple(int(size[n]) for size in sizes)
            found[n].append(
                TimeBreakdown(part.name, part.law, its_sizes, float(calls[n]), its_causes, bool(extrapolated[n]))
            )
    return found


def saved(
    present: Sequence[TimeBreakdown], other: Sequence[TimeBreakdown], candidate: Candidate, here: Setting
) -> tuple[str, float] | None:
    """What most makes a candidate faster for the same work: the cause, and the share of the present time that it saves.

    The passes of a product are taken together; None where nothing saves enough to be named.
    """
    total = sum(part.seconds for part in present)
    setting = candidate.setting
    # To a token's GPU-time, and to the work of the present model: FLOP of the candidate over its FLOP.
    scale = (setting.tp / setting.tokens) / (here.tp / here.tokens) / (candidate.speed * candidate.time_ratio)
    balance: dict[str, float] = {}
    for sign, parts in ((1.0, present), (-scale, other)):
        for part in parts:
            for cause, seconds in part.causes.items():
                if cause != IDEAL:
                    name = f"{part.part.partition(',')[0]}: {cause}"
                    balance[name] = balance.get(name, 0.0) + sign * seconds / total
    most = max(balance.items(), key=lambda each: each[1], default=("", 0.0))
    return most if most[1] > LEAST_SAVED else None


@dataclass(frozen=True)
class SizeCheck:
    """One rule of sizing (Anthony et al. 2024, arXiv 2401.14489): what it asks, and what the model has.

    `other` is the nearest setting on the other side of the rule: one that breaks a rule which is kept, one that keeps a
    rule which is broken; None if there is none.
    """

    rule: str
    found: str
    kept: bool
    other: Candidate | None


def checks(setting: Setting, prices: KernelPrices, memory_limit_bytes: float) -> list[SizeCheck]:
    """Every rule that concerns the setting, with its predicted effect; a GPU may use so much memory."""
    rules = list(_rules(setting))
    candidates = iter(judged([setting, *(other for *_, other in rules if other is not None)], prices)[1:])
    found = []
    for rule, size, kept, other in rules:
        candidate = next(candidates) if other is not None else None
        if kept is None:
            kept = candidate is None or candidate.memory_bytes > memory_limit_bytes
        found.append(SizeCheck(rule, size, kept, candidate))
    return found


def _rules(setting: Setting) -> Iterator[tuple[str, str, bool | None, Setting | None]]:
    """Rule, size, whether it is kept (None: if memory has no room for the other), and the other setting."""
    model, tp = setting.model, setting.tp
    multiple = ENOUGH * tp
    share = f" x tp {tp}" if tp > 1 else ""
    kept = model.vocab % multiple == 0
    other = _resized(setting, vocab=model.vocab + 1 if kept else round_up(model.vocab, multiple))
    yield f"vocab is a multiple of {ENOUGH}{share}", f"{model.vocab}", kept, other
    width = width_of_mlp(model)
    ffn = getattr(model, width)
    kept = ffn % multiple == 0
    swiglu = f" (8/3 hidden would be {8 * model.hidden / 3:.0f})" if model.gated and model.experts == 1 else ""
    other = _resized(setting, **{width: ffn + tp if kept else _nearest(ffn, multiple)})
    yield f"{width} is a multiple of {ENOUGH}{share}", f"{ffn}{swiglu}", kept, other
    kept = model.hidden % multiple == 0
    # A broken rule keeps heads as they are, which need not fill hidden.
    heads = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim} if kept else {}
    other = _resized(setting, hidden=model.hidden + 1 if kept else _nearest(model.hidden, multiple), **heads)
    yield f"hidden is a multiple of {ENOUGH}{share}", f"{model.hidden}", kept, other
    if not model.latent_rank:
        kept = model.head_dim % ENOUGH == 0
        yield f"head_dim is a multiple of {ENOUGH}", f"{model.head_dim}", kept, _with_other_heads(setting, kept)
    kept = setting.tokens % ENOUGH == 0
    tokens = f"{setting.micro_batch} x {setting.seq} = {setting.tokens}"
    other = replace(setting, seq=setting.seq + 1 if kept else round_up(setting.seq, ENOUGH))
    yield f"tokens at a time are a multiple of {ENOUGH}", tokens, kept, other
    larger = replace(setting, micro_batch=2 * setting.micro_batch)
    yield "the micro-batch is as large as memory lets it be", f"{setting.micro_batch}", None, larger
    if tp > 1:
        fewer = replace(setting, tp=tp // 2) if tp % 2 == 0 else replace(setting, tp=1)
        yield "tensor parallelism is as small as memory lets it be", f"{tp}", None, fewer


def _resized(setting: Setting, **sizes: int) -> Setting | None:
    """The setting with other dimensions, None if nothing could be trained so."""
    try:
        return replace(setting, model=setting.model.resized(**sizes))
    except UserError:
        return None


def _nearest(size: int, multiple: int) -> int:
    below = max(multiple, size // multiple * multiple)
    return min((below, round_up(size, multiple)), key=lambda each: (abs(each - size), each))


def _with_other_heads(setting: Setting, kept: bool) -> Setting | None:
    """The same width of all heads together, in heads that keep the rule, or break it if it is kept."""
    model = setting.model
    queries = model.heads * model.head_dim
    wanted: Sequence[int] = range(8, 257, 8) if kept else HEAD_DIMS
    sizes = [size for size in wanted if queries % size == 0 and (size % ENOUGH != 0) == kept]
    for head_dim in sorted(sizes, key=lambda size: abs(size - model.head_dim)):
        heads = queries // head_dim
        kv_heads = heads if model.heads == model.kv_heads else model.kv_heads
        if heads % kv_heads == 0 and (other := _resized(setting, heads=heads, kv_heads=kv_heads, head_dim=head_dim)):
            return other
    return None
