"""Attention head sizing: which number of heads, and so which head dimension, runs fastest at the same parameters.

Sweeps split a hidden size into heads, and step head_dim over the buckets of known kernels at a fixed number of heads.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.attention.counted import Blocks
from pyperf_suite.probes.attention_heads.findings import TABLES, analyse
from pyperf_suite.probes.attention_heads.law import OWN, kv_ratio, law_key
from pyperf_suite.runner.record import Case
from pyperf_suite.spec.probe import Probe
from pyperf_suite.workloads.attention import AttentionParameters

MASKS = ("full", "causal")
PHASES = ("forward", "backward", "decode")

# All query heads share a single key head (multi-query attention).
ALL = "all"

# Blocks that our kernel chooses for the case.
CHOSEN = "chosen"

SDPA = ("sdpa_default", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient")
BESIDE = ("sdpa_math", "flex", "two_gemm", "two_gemm_products")

# Just at and past each bucket of the known implementations (FlashAttention-3's tile_size.h: 64, 96, 128, 192, 256).
BUCKET_EDGES = (64, 72, 80, 96, 104, 112, 128, 136, 160, 192, 200, 256)

Sizes = Annotated[tuple[int, ...], Within(1, 1 << 31)]


@dataclass(frozen=True)
class AttentionHeadsAxes:
    """What the probe varies; defaults are those of the quick profile on a CPU.

    Each `heads` splits each `hidden`; each `head_dim` is measured with each number of `heads_of_head_dim`. Forward and
    backward passes of every implementation are crossed with all of these at the first kv_ratio, mask, seq and batch.
    The other values of those four, one at a time, decoding, and the implementations `beside` take the first
    `varied_splits` splits only. `kv_ratio` is how many query heads share a key head, or "all".
    """

    workers: Sizes
    implementation: tuple[str, ...] = ("native", "sdpa_default")
    beside: tuple[str, ...] = ()
    hidden: Sizes = (768,)
    heads: Sizes = (12, 6)
    head_dim: Sizes = ()
    heads_of_head_dim: Sizes = (8,)
    kv_ratio: tuple[str, ...] = ("1",)
    mask: Annotated[tuple[str, ...], OneOf(MASKS)] = ("full",)
    phase: Annotated[tuple[str, ...], OneOf(PHASES)] = ("forward", "backward")
    seq: Sizes = (256,)
    batch: Sizes = (1,)
    dtype: tuple[str, ...] = ("float32",)
    blocks: tuple[str, ...] = (CHOSEN,)
    varied_splits: Annotated[tuple[int, ...], Within(0)] = (1,)
    mode: tuple[str, ...] = ("burst",)


def axes(profile: str, device: Device) -> AttentionHeadsAxes:
    """Small models on a CPU; on a GPU the splits of hidden size 5120, and head_dim over every bucket."""
    if device.kind == "cpu":
        quick = AttentionHeadsAxes(workers=(cpu.detect().usable_cores,))
        standard = replace(
            quick, beside=BESIDE[2:], heads=(12, 6, 8, 16), head_dim=(72, 136), mask=MASKS, seq=(256, 512)
        )
        full = replace(
            standard,
            implementation=("native", *SDPA[:2], *BESIDE),
            beside=(),
            heads=(12, 8, 6, 16, 4, 24),
            head_dim=BUCKET_EDGES,
            kv_ratio=("1", "4", ALL),
            phase=PHASES,
            seq=(512, 1024, 2048),
            dtype=("float32", "bfloat16"),
            varied_splits=(2,),
        )
    else:
        # Causal first, as models are trained; 40 and 64 heads of 5120 are the two that have been built most.
        quick = AttentionHeadsAxes(
            workers=(1,),
            implementation=("triton", SDPA[0]),
            hidden=(5120,),
            heads=(40, 64),
            heads_of_head_dim=(32,),
            mask=("causal",),
            seq=(4096,),
            batch=(2,),
            dtype=("bfloat16",),
        )
        standard = replace(
            quick,
            implementation=("triton", *SDPA),
            beside=BESIDE,
            heads=(40, 64, 20, 32, 80, 160),
            head_dim=BUCKET_EDGES,
            kv_ratio=("1", "4", "8", ALL),
            mask=("causal", "full"),
            phase=PHASES,
            seq=(4096, 1024, 16384),
            varied_splits=(2,),
        )
        full = replace(
            standard,
            implementation=("triton", *SDPA, *BESIDE),
            beside=(),
            heads_of_head_dim=(32, 33),  # with 4 blocks of queries 33 heads fill the 132 multiprocessors of an H200
            seq=(4096, 512, 1024, 2048, 8192, 16384),
            dtype=("bfloat16", "float16"),
        )
    return {"quick": quick, "standard": standard, "full": full}[profile]


def sweep(axes: AttentionHeadsAxes) -> Iterator[Case]:
    """Every split forward and backward; the other axes on the first splits (see AttentionHeadsAxes)."""
    splits = [
        (heads, _share(hidden, heads, f"{heads} heads were asked for, but they do not divide the hidden size {hidden}"))
        for hidden, heads in itertools.product(axes.hidden, axes.heads)
    ]
    base = {name: getattr(axes, name)[0] for name in ("kv_ratio", "mask", "seq", "batch")}
    varied = [base, *(base | {name: value} for name in base for value in getattr(axes, name)[1:])]
    passes = [phase for phase in axes.phase if phase != "decode"]
    asked: list[tuple[tuple[int, int], dict[str, Any], Sequence[str], Sequence[str]]] = []
    for split in (*splits, *itertools.product(axes.heads_of_head_dim, axes.head_dim)):
        asked.append((split, base, axes.implementation, passes))
    for split in splits[: axes.varied_splits[0]]:
        asked.append((split, base, axes.beside, passes))
        asked += [(split, other, axes.implementation, axes.phase) for other in varied]
    for split, other, implementations, phases in asked:
        everything = itertools.product(implementations, phases, axes.dtype, axes.workers, axes.blocks, axes.mode)
        for implementation, phase, dtype, workers, blocks, mode in everything:
            parameters = _parameters(*split, **other, phase=phase, dtype=dtype, workers=workers)
            # A library chooses its blocks itself; our kernel for CPUs computes no gradients.
            if blocks != CHOSEN and implementation in OWN:
                parameters = replace(parameters, blocks=Blocks.parse(blocks))
            if (implementation, phase) != ("native", "backward"):
                yield Case("attention", parameters, implementation, mode=mode)


def _parameters(
    heads: int, head_dim: int, kv_ratio: str, mask: str, seq: int, batch: int, phase: str, **other: Any
) -> AttentionParameters:
    key_heads = _key_heads(heads, kv_ratio)
    if phase == "decode":
        # A single query sees all keys, masked or not.
        other |= {"seq_q": 1, "seq_k": seq}
    else:
        other |= {"seq_q": seq, "causal": mask == "causal", "backward": phase == "backward"}
    return AttentionParameters(batch, heads, head_dim, kv_heads=0 if key_heads == heads else key_heads, **other)


def _key_heads(heads: int, ratio: str) -> int:
    """Key heads at a grouped-query ratio. Raises UserError for what is no ratio, or does not divide the heads."""
    if ratio == ALL:
        return 1
    if not re.fullmatch("[1-9][0-9]{0,8}", ratio):
        raise UserError(f"kv_ratio={ratio} was asked for: write a number of query heads to a key head, or all.")
    return _share(heads, int(ratio), f"kv_ratio={ratio} was asked for, but it does not divide {heads} heads")


def _share(whole: int, parts: int, refusal: str) -> int:
    """One of so many equal parts. Raises UserError with the nearest numbers that divide the whole."""
    if whole % parts:
        small = [count for count in range(1, math.isqrt(whole) + 1) if whole % count == 0]
        divisors = sorted({*small, *(whole // count for count in small)})
        above = bisect.bisect(divisors, parts)
        raise UserError(f"{refusal}: take {' or '.join(map(str, divisors[above - 1 : above + 1]))}.")
    return whole // parts


def group(case: Case) -> str:
    """One table an implementation and pass."""
    p = case.parameters
    phase = "backward" if p.backward else "decode" if p.seq_q == 1 else "forward"
    return f"attention_heads {case.implementation} {phase}"


PROBE = Probe(
    name="attention_heads",
    question="How many heads should a hidden size be split into on this machine, and what does another number cost?",
    topic="attention",
    title="Heads and head size",
    axes=axes,
    sweep=sweep,
    order=lambda row: (
        *(law_key(row), row.batch, row.seq_q, row.keys, kv_ratio(row), row.causal),
        *(row.hidden, row.heads, row.backward),
    ),
    tables=TABLES,
    analyse=analyse,
    group=group,
)
