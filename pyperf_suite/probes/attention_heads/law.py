"""The law of our own attention kernels fitted to readings and judged on others, and why one split beats another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyperf_suite.laws.attention.counted import Blocks, TiledAttention
from pyperf_suite.laws.attention.law import AttentionLaw
from pyperf_suite.laws.matmul.staircase import relative_error
from pyperf_suite.operators.attention.kernel_names import flash_kernel
from pyperf_suite.probes.attention_heads.sweeps import OWN, Setting
from pyperf_suite.spec.rows import Reading

# A law has five constants; with fewer cases it repeats what it was given.
FEWEST_FITTED = 5

# A cause is named where it explains so much of the difference, and all that are named at least so much together.
ONE_CAUSE, ALL_CAUSES = 0.25, 0.5


@dataclass(frozen=True)
class FittedLaw:
    """A law, how many cases made it, and its relative errors on those it was not fitted to."""

    law: AttentionLaw
    fitted_on: int
    held_out: tuple[float, ...]


def tiled(reading: Reading) -> TiledAttention | None:
    """The tiles that a forward pass was computed in; None where its kernel does not tell them.

    The gradients are computed in tiles of other kinds, which the law does not count. A library does not tell its slots:
    as on a single one, none of its tiles are too few.
    """
    p, details = reading.case.parameters, reading.kernel.get("details", {})
    if p.backward:
        return None
    if {"blocks", "padded_head_dim"} <= details.keys():
        padded_head_dim, blocks = details["padded_head_dim"], Blocks.parse(details["blocks"])
    elif (kernel := flash_kernel(details.get("launched", ()))) is not None:
        padded_head_dim, blocks = kernel.padded_head_dim, kernel.blocks
    else:
        return None
    return TiledAttention(
        batch=p.batch,
        heads=p.heads,
        seq_q=p.seq_q,
        seq_k=p.keys,
        head_dim=p.head_dim,
        padded_head_dim=padded_head_dim,
        causal=p.causal,
        blocks=blocks,
        slots=details.get("slots") or 1,
        heads_together=details.get("heads_together", 0),
    )


def law_key(setting: Setting) -> str:
    """The kernel that a law is fitted for: who computes, and on how many workers."""
    return f"{setting.kernel}, {setting.workers} worker{'s' if setting.workers > 1 else ''}"


def laws_of(found: Iterable[Reading]) -> dict[str, FittedLaw]:
    """A law for each of our kernels, judged on every third (head_dim, queries, keys, mask) and fitted on the others.

    Decoding takes no part: with one query a kernel is another one. A kernel with too few cases has no law.
    """
    members: dict[str, list[tuple[TiledAttention, float]]] = {}
    for reading in found:
        case = tiled(reading)
        if case is not None and case.seq_q > 1 and reading.case.implementation in OWN:
            members.setdefault(law_key(Setting.of(reading)), []).append((case, reading.seconds))
    fitted = {key: _fitted(cases) for key, cases in sorted(members.items())}
    return {key: law for key, law in fitted.items() if law is not None}


def causes(slow: Reading, fast: Reading, fitted: FittedLaw | None) -> list[str]:
    """What explains that one split is slower than another of the same work, the strongest first.

    Each cause is a share of time well spent (see TiledAttention and AttentionLaw.product_share), and explains the
    logarithm of the ratio of both shares. None is named unless together they explain half of the difference.
    """
    slow_case, fast_case = tiled(slow), tiled(fast)
    difference = math.log(slow.seconds / fast.seconds)
    if slow_case is None or fast_case is None or difference <= 0:
        return []
    shares = {
        f"bucket padding, head_dim {slow_case.head_dim} computed as {slow_case.padded_head_dim}": (
            slow_case.padding_efficiency,
            fast_case.padding_efficiency,
        ),
        f"tile waste, {slow_case.tile_efficiency:.0%} of the computed pairs count and {fast_case.tile_efficiency:.0%} "
        "there": (slow_case.tile_efficiency, fast_case.tile_efficiency),
        f"too few tiles for the slots, {slow_case.tiles} on {slow_case.slots}": (
            slow_case.slot_efficiency,
            fast_case.slot_efficiency,
        ),
    }
    if fitted is not None:
        slow_share, fast_share = (fitted.law.product_share(case.padded_head_dim) for case in (slow_case, fast_case))
        what = f"the softmax of more heads, {1 - slow_share:.0%} of a step and {1 - fast_share:.0%} there"
        shares[what] = (slow_share, fast_share)
    explained = {name: math.log(good / bad) / difference for name, (bad, good) in shares.items() if bad and good}
    named = sorted((name for name in explained if explained[name] >= ONE_CAUSE), key=lambda name: -explained[name])
    return named if sum(explained[name] for name in named) >= ALL_CAUSES else []


def _fitted(cases: Sequence[tuple[TiledAttention, float]]) -> FittedLaw | None:
    keys = sorted({_key(case) for case, _ in cases})
    judging = set(keys[1::3])
    fitting, held_out = (
        [(case, seconds) for case, seconds in cases if (_key(case) in judging) == judged] for judged in (False, True)
    )
    if len(fitting) < FEWEST_FITTED or not held_out:
        return None
    law = AttentionLaw.fit(*_columns(fitting))
    held, seconds = _columns(held_out)
    return FittedLaw(law, len(fitting), tuple(relative_error(law.seconds(held), seconds).tolist()))


def _key(case: TiledAttention) -> tuple[int, int, int, bool]:
    return (case.head_dim, case.seq_q, case.seq_k, case.causal)


def _columns(pairs: Sequence[tuple[TiledAttention, float]]) -> tuple[list[TiledAttention], list[float]]:
    return [case for case, _ in pairs], [seconds for _, seconds in pairs]
