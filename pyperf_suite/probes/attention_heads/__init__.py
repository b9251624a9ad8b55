"""Attention head sizing: which number of heads, and so which head dimension, runs fastest at the same parameters.

Sweeps split a hidden size into heads, and step head_dim over the buckets of known kernels at a fixed number of heads.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.attention.counted import Blocks
from pyperf_suite.operators.attention import AttentionParameters
from pyperf_suite.probes.attention_heads.findings import TABLES, analyse
from pyperf_suite.probes.attention_heads.law import OWN
from pyperf_suite.probes.attention_heads.sweeps import setting
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.axes import OneOf, Within
from pyperf_suite.spec.probe import Probe

MASKS = ("full", "causal")
PHASES = ("forward", "backward", "decode")

# All query heads share a single key head (multi-query attention).
ALL = "all"

# Blocks that our kernel chooses for the case.
CHOSEN = "chosen"

# These compute no gradients.
FORWARD_ONLY = ("native",)

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


# Each profile adds to the one before it.
CPU_PROFILES: dict[str, dict[str, Any]] = {
    "quick": {},
    "standard": {
        "beside": ("two_gemm", "two_gemm_products"),
        "heads": (12, 6, 8, 16),
        "head_dim": (72, 136),
        "mask": ("full", "causal"),
        "seq": (256, 512),
    },
    "full": {
        "implementation": ("native", *SDPA[:2], "sdpa_math", "flex", "two_gemm", "two_gemm_products"),
        "beside": (),
        "heads": (12, 8, 6, 16, 4, 24),
        "head_dim": BUCKET_EDGES,
        "kv_ratio": ("1", "4", ALL),
        "phase": PHASES,
        "seq": (512, 1024, 2048),
        "dtype": ("float32", "bfloat16"),
        "varied_splits": (2,),
    },
}
# Causal first, as models are trained; 40 and 64 heads of 5120 are the two that have been built most.
CUDA_PROFILES: dict[str, dict[str, Any]] = {
    "quick": {
        "workers": (1,),
        "implementation": ("triton", "sdpa_default"),
        "hidden": (5120,),
        "heads": (40, 64),
        "heads_of_head_dim": (32,),
        "mask": ("causal",),
        "seq": (4096,),
        "batch": (2,),
        "dtype": ("bfloat16",),
    },
    "standard": {
        "implementation": ("triton", *SDPA),
        "beside": BESIDE,
        "heads": (40, 64, 20, 32, 80, 160),
        "head_dim": BUCKET_EDGES,
        "kv_ratio": ("1", "4", "8", ALL),
        "mask": ("causal", "full"),
        "phase": PHASES,
        "seq": (4096, 1024, 16384),
        "varied_splits": (2,),
    },
    "full": {
        "implementation": ("triton", *SDPA, *BESIDE),
        "beside": (),
        "heads_of_head_dim": (32, 33),  # with 4 blocks of queries 33 heads fill the 132 multiprocessors of an H200
        "seq": (4096, 512, 1024, 2048, 8192, 16384),
        "dtype": ("bfloat16", "float16"),
    },
}


def axes(profile: str, device: Device) -> AttentionHeadsAxes:
    """Small models on a CPU; on a GPU the splits of hidden size 5120, and head_dim over every bucket."""
    profiles = CUDA_PROFILES if device.kind == "cuda" else CPU_PROFILES
    chosen = AttentionHeadsAxes(workers=(cpu.detect().usable_cores,))
    for name in itertools.takewhile(lambda each: each != profile, profiles):
        chosen = replace(chosen, **profiles[name])
    return replace(chosen, **profiles[profile])


def sweep(axes: AttentionHeadsAxes) -> Iterator[Case]:
    """Every split forward and backward; the other axes on the first splits (see AttentionHeadsAxes)."""
    splits = [(heads, _head_dim(hidden, heads)) for hidden, heads in itertools.product(axes.hidden, axes.heads)]
    varied = splits[: axes.varied_splits[0]]
    base, *variations = _variations(axes)
    passes = tuple(phase for phase in axes.phase if phase != "decode")
    for split in (*splits, *itertools.product(axes.heads_of_head_dim, axes.head_dim)):
        yield from _cases(axes, split, base, axes.implementation, passes)
    for split in varied:
        yield from _cases(axes, split, base, axes.beside, passes)
        for variation in (base, *variations):
            yield from _cases(axes, split, variation, axes.implementation, axes.phase)


def _variations(axes: AttentionHeadsAxes) -> Iterator[dict[str, Any]]:
    """The first of each, then every other value of one at a time."""
    base = {name: getattr(axes, name)[0] for name in ("kv_ratio", "mask", "seq", "batch")}
    yield base
    yield from (base | {name: value} for name in base for value in getattr(axes, name)[1:])


def _cases(
    axes: AttentionHeadsAxes,
    split: tuple[int, int],
    variation: Mapping[str, Any],
    implementations: Sequence[str],
    phases: Sequence[str],
) -> Iterator[Case]:
    heads, head_dim = split
    key_heads = _key_heads(heads, variation["kv_ratio"])
    for implementation, phase, dtype, workers in itertools.product(implementations, phases, axes.dtype, axes.workers):
        if phase == "backward" and implementation in FORWARD_ONLY:
            continue
        decoding = phase == "decode"
        parameters = AttentionParameters(
            batch=variation["batch"],
            heads=heads,
            head_dim=head_dim,
            seq_q=1 if decoding else variation["seq"],
            seq_k=variation["seq"] if decoding else 0,
            kv_heads=0 if key_heads == heads else key_heads,
            # A single query sees all keys, masked or not.
            causal=variation["mask"] == "causal" and not decoding,
            backward=phase == "backward",
            dtype=dtype,
            workers=workers,
        )
        # A library chooses its blocks itself.
        asked = axes.blocks if implementation in OWN else (CHOSEN,)
        for blocks, mode in itertools.product(asked, axes.mode):
            own = replace(parameters, blocks=None if blocks == CHOSEN else Blocks.parse(blocks))
            yield Case("attention", own, implementation, mode=mode)


def _head_dim(hidden: int, heads: int) -> int:
    """Of the hidden size in equal heads. Raises UserError that names the nearest numbers that divide it."""
    if hidden % heads:
        raise UserError(
            f"{heads} heads were asked for, but they do not divide the hidden size {hidden}: take "
            f"{_nearest_divisors(hidden, heads)}."
        )
    return hidden // heads


def _key_heads(heads: int, ratio: str) -> int:
    """Key heads at a grouped-query ratio. Raises UserError for what is no ratio, or does not divide the heads."""
    if ratio == ALL:
        return 1
    if not re.fullmatch("[1-9][0-9]{0,8}", ratio):
        raise UserError(f"kv_ratio={ratio} was asked for: write a number of query heads to a key head, or all.")
    if heads % int(ratio):
        raise UserError(
            f"kv_ratio={ratio} was asked for, but it does not divide {heads} heads: take "
            f"{_nearest_divisors(heads, int(ratio))}."
        )
    return heads // int(ratio)


def _nearest_divisors(whole: int, asked: int) -> str:
    """The divisors on both sides of what was asked for, as `5 or 8`."""
    small = [count for count in range(1, math.isqrt(whole) + 1) if whole % count == 0]
    divisors = sorted({*small, *(whole // count for count in small)})
    below = [count for count in divisors if count < asked][-1:]
    above = [count for count in divisors if count > asked][:1]
    return " or ".join(map(str, below + above))


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
    order=lambda row: (*setting(row), row.hidden, row.heads, row.backward),
    tables=TABLES,
    analyse=analyse,
    group=group,
)
