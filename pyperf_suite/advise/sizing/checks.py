"""The classic rules of sizing as checks: whether the model keeps each, and what that does on this GPU.

Rules as listed by Anthony et al. 2024 (arXiv 2401.14489); a rule is worth what it predicts here, which can be nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.advise.sizing.candidates import HEAD_DIMS, width_of_mlp
from pyperf_suite.advise.sizing.prices import Prices
from pyperf_suite.advise.sizing.search import Candidate, judged
from pyperf_suite.advise.sizing.setting import Setting
from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import round_up

# Beyond this power of two the rules promise nothing more.
ENOUGH = 64


@dataclass(frozen=True)
class Check:
    """One rule: what it asks, what the model has, and `other`, the nearest setting on the other side of it.

    Where the rule is kept, `other` breaks it; where it is broken, `other` keeps it. None where there is none.
    """

    rule: str
    found: str
    kept: bool
    other: Candidate | None


def checks(setting: Setting, prices: Prices, memory_limit_bytes: float) -> list[Check]:
    """Every rule that concerns the setting, with its predicted effect; a GPU may use so much memory."""
    rules = list(_rules(setting))
    others = [other for _, _, _, other in rules if other is not None]
    told = iter(judged([setting, *others], prices)[1:])
    found = []
    for rule, size, kept, other in rules:
        candidate = next(told) if other is not None else None
        if kept is None:
            kept = candidate is None or candidate.memory_bytes > memory_limit_bytes
        found.append(Check(rule, size, kept, candidate))
    return found


def _rules(setting: Setting) -> Iterator[tuple[str, str, bool | None, Setting | None]]:
    """Rule, size, whether it is kept (None: it is where memory has no room for the other), and the other setting."""
    model, tp = setting.model, setting.tp
    share = f" x tp {tp}" if tp > 1 else ""
    multiple = ENOUGH * tp
    kept = model.vocab % multiple == 0
    yield (
        f"vocab is a multiple of {ENOUGH}{share}",
        f"{model.vocab}",
        kept,
        _resized(setting, vocab=model.vocab + 1 if kept else round_up(model.vocab, multiple)),
    )
    width = width_of_mlp(model)
    ffn = getattr(model, width)
    kept = ffn % multiple == 0
    swiglu = f" (8/3 hidden would be {8 * model.hidden / 3:.0f})" if model.gated and model.experts == 1 else ""
    yield (
        f"{width} is a multiple of {ENOUGH}{share}",
        f"{ffn}{swiglu}",
        kept,
        _resized(setting, **{width: ffn + tp if kept else _nearest(ffn, multiple)}),
    )
    kept = model.hidden % multiple == 0
    if kept:  # with heads as they are, which need not fill hidden
        sizes = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
        other = _resized(setting, **sizes, hidden=model.hidden + 1)
    else:
        other = _resized(setting, hidden=_nearest(model.hidden, multiple))
    yield f"hidden is a multiple of {ENOUGH}{share}", f"{model.hidden}", kept, other
    if not model.latent_rank:
        kept = model.head_dim % ENOUGH == 0
        yield f"head_dim is a multiple of {ENOUGH}", f"{model.head_dim}", kept, _with_other_heads(setting, kept)
    kept = setting.tokens % ENOUGH == 0
    tokens = f"{setting.micro_batch} x {setting.seq} = {setting.tokens}"
    seq = setting.seq + 1 if kept else round_up(setting.seq, ENOUGH)
    yield f"tokens at a time are a multiple of {ENOUGH}", tokens, kept, replace(setting, seq=seq)
    larger = replace(setting, micro_batch=2 * setting.micro_batch)
    yield "the micro-batch is as large as memory lets it be", f"{setting.micro_batch}", None, larger
    if tp > 1:
        fewer = replace(setting, tp=tp // 2) if tp % 2 == 0 else replace(setting, tp=1)
        yield "tensor parallelism is as small as memory lets it be", f"{tp}", None, fewer


def _resized(setting: Setting, **sizes: int) -> Setting | None:
    """The setting with other dimensions, None where nothing could be trained so."""
    try:
        return replace(setting, model=setting.model.resized(**sizes))
    except UserError:
        return None


def _nearest(size: int, multiple: int) -> int:
    below = max(multiple, size // multiple * multiple)
    return min((below, round_up(size, multiple)), key=lambda each: (abs(each - size), each))


def _with_other_heads(setting: Setting, kept: bool) -> Setting | None:
    """The same width of all heads together, in heads that keep the rule, or break it where it is kept."""
    model = setting.model
    queries = model.heads * model.head_dim
    share = model.heads // model.kv_heads
    wanted: Sequence[int] = range(8, 257, 8) if kept else [size for size in HEAD_DIMS if size % ENOUGH == 0]
    sizes = [size for size in wanted if queries % size == 0 and (size % ENOUGH != 0) == kept]
    for head_dim in sorted(sizes, key=lambda size: abs(size - model.head_dim)):
        heads = queries // head_dim
        kv_heads = heads if share == 1 else model.kv_heads
        if heads % kv_heads == 0 and (other := _resized(setting, heads=heads, kv_heads=kv_heads, head_dim=head_dim)):
            return other
    return None
