"""Attention head sizing: which number of heads, and so which head dimension, runs fastest at the same parameters.

Sweeps split a hidden size into heads, and step head_dim over the buckets of known kernels at a fixed number of heads.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.attention.counted import Blocks
from pyperf_suite.operators.attention import AttentionParameters
from pyperf_suite.probes.attention_heads.findings import explain
from pyperf_suite.probes.attention_heads.sweeps import OWN
from pyperf_suite.probes.probe import Probe
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import readings

MASKS = ("full", "causal")
PHASES = ("forward", "backward", "decode")

# No dimension of an attention is larger.
MOST = 1 << 31

# All query heads share a single key head (multi-query attention).
ALL = "all"

# Blocks that our kernel chooses for the case.
CHOSEN = "chosen"

# These compute no gradients.
FORWARD_ONLY = ("native",)

# Just at and past each bucket of the known implementations (FlashAttention-3's tile_size.h: 64, 96, 128, 192, 256).
BUCKET_EDGES = (64, 72, 80, 96, 104, 112, 128, 136, 160, 192, 200, 256)


@dataclass(frozen=True)
class AttentionHeadsAxes:
    """What the probe varies.

    Each `heads` splits each `hidden`; each `head_dim` is measured with each number of `heads_of_head_dim`. Forward and
    backward passes of every implementation are crossed with all of these at the first kv_ratio, mask, seq and batch.
    The other values of those four, one at a time, decoding, and the implementations `beside` take the first
    `varied_splits` splits only. `kv_ratio` is how many query heads share a key head, or "all".
    """

    implementation: tuple[str, ...]
    beside: tuple[str, ...]
    hidden: tuple[int, ...]
    heads: tuple[int, ...]
    head_dim: tuple[int, ...]
    heads_of_head_dim: tuple[int, ...]
    kv_ratio: tuple[str, ...]
    mask: tuple[str, ...]
    phase: tuple[str, ...]
    seq: tuple[int, ...]
    batch: tuple[int, ...]
    dtype: tuple[str, ...]
    workers: tuple[int, ...]
    blocks: tuple[str, ...] = (CHOSEN,)
    varied_splits: tuple[int, ...] = (1,)
    mode: tuple[str, ...] = ("burst",)

    def __post_init__(self) -> None:
        """Raise UserError for a word there is not, or a size that cannot be."""
        for name, words in (("mask", MASKS), ("phase", PHASES)):
            for value in getattr(self, name):
                if value not in words:
                    raise UserError(f"{name}={value} was asked for: choose from {', '.join(words)}.")
        for value in self.kv_ratio:
            if value != ALL and not (re.fullmatch("[1-9][0-9]{0,8}", value)):
                raise UserError(f"kv_ratio={value} was asked for: write a number of query heads to a key head, or all.")
        for name in ("hidden", "heads", "head_dim", "heads_of_head_dim", "seq", "batch", "workers"):
            for number in getattr(self, name):
                if number < 1:
                    raise UserError(f"{name}={number} was asked for, but {name} is at least 1.")
                if number > MOST:
                    raise UserError(f"{name}={number} was asked for, but {name} is at most {MOST}.")
        if min(self.varied_splits) < 0:
            raise UserError(f"varied_splits={min(self.varied_splits)} was asked for, but it counts splits: 0 or more.")


@dataclass(frozen=True)
class Split:
    """So many query heads of so many dimensions."""

    heads: int
    head_dim: int

    @classmethod
    def of(cls, hidden: int, heads: int) -> Split:
        """The hidden size in equal heads. Raises UserError that names the nearest numbers that divide it."""
        if hidden % heads:
            allowed = _nearest_divisors(hidden, heads)
            raise UserError(
                f"{heads} heads were asked for, but they do not divide the hidden size {hidden}: take {allowed}."
            )
        return cls(heads, hidden // heads)

    def key_heads(self, ratio: str) -> int:
        """Key heads at a grouped-query ratio. Raises UserError for a ratio that does not divide the heads."""
        if ratio == ALL:
            return 1
        if self.heads % int(ratio):
            allowed = _nearest_divisors(self.heads, int(ratio))
            raise UserError(
                f"kv_ratio={ratio} was asked for, but it does not divide {self.heads} heads: take {allowed}."
            )
        return self.heads // int(ratio)


@dataclass(frozen=True)
class _Variation:
    """What is varied beside the split."""

    kv_ratio: str
    mask: str
    seq: int
    batch: int


class AttentionHeads(Probe):
    """The same hidden size in few wide heads or many narrow ones, by every implementation of attention."""

    name = "attention_heads"
    question = "How many heads should a hidden size be split into on this machine, and what does another number cost?"

    def axes(self, profile: str, device: Device) -> AttentionHeadsAxes:
        """Small models on a CPU; on a GPU the splits of hidden size 5120, and head_dim over every bucket."""
        return _cuda_axes(profile) if device.kind == "cuda" else _cpu_axes(profile)

    def sweep(self, axes: AttentionHeadsAxes) -> list[Case]:
        """Every split forward and backward; the other axes on the first splits (see AttentionHeadsAxes)."""
        cases: dict[str, Case] = {}
        splits = [Split.of(hidden, heads) for hidden, heads in itertools.product(axes.hidden, axes.heads)]
        varied = splits[: axes.varied_splits[0]]
        splits += [Split(heads, width) for heads, width in itertools.product(axes.heads_of_head_dim, axes.head_dim)]
        base, *variations = _variations(axes)
        passes = [phase for phase in axes.phase if phase != "decode"]
        for split in splits:
            _add(cases, axes, split, base, axes.implementation, passes)
        for split in varied:
            _add(cases, axes, split, base, axes.beside, passes)
            _add(cases, axes, split, base, axes.implementation, axes.phase)
            for variation in variations:
                _add(cases, axes, split, variation, axes.implementation, axes.phase)
        return list(cases.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """The split to take with its cause, head_dim's cliffs, what the default picked, and the law."""
        return explain(readings(records))

    def group(self, case: Case) -> str:
        """One table an implementation and pass."""
        p = case.parameters
        phase = "backward" if p.backward else "decode" if p.seq_q == 1 else "forward"
        return f"attention_heads {case.implementation} {phase}"


def _cpu_axes(profile: str) -> AttentionHeadsAxes:
    """A small model: the products of a block and their softmax fill caches as a large one's do."""
    quick = AttentionHeadsAxes(
        implementation=("native", "sdpa_default"),
        beside=(),
        hidden=(768,),
        heads=(12, 6),
        head_dim=(),
        heads_of_head_dim=(8,),
        kv_ratio=("1",),
        mask=("full",),
        phase=("forward", "backward"),
        seq=(256,),
        batch=(1,),
        dtype=("float32",),
        workers=(cpu.detect().usable_cores,),
    )
    if profile == "quick":
        return quick
    standard = replace(
        quick,
        beside=("two_gemm", "two_gemm_products"),
        heads=(12, 6, 8, 16),
        head_dim=(72, 136),
        mask=("full", "causal"),
        seq=(256, 512),
    )
    if profile == "standard":
        return standard
    return replace(
        standard,
        implementation=("native", "sdpa_default", "sdpa_flash", "sdpa_math", "flex", "two_gemm", "two_gemm_products"),
        beside=(),
        heads=(12, 8, 6, 16, 4, 24),
        head_dim=BUCKET_EDGES,
        kv_ratio=("1", "4", ALL),
        phase=PHASES,
        seq=(512, 1024, 2048),
        dtype=("float32", "bfloat16"),
        varied_splits=(2,),
    )


def _cuda_axes(profile: str) -> AttentionHeadsAxes:
    """Causal first, as models are trained; 40 and 64 heads of 5120 are the two that have been built most."""
    quick = AttentionHeadsAxes(
        implementation=("triton", "sdpa_default"),
        beside=(),
        hidden=(5120,),
        heads=(40, 64),
        head_dim=(),
        heads_of_head_dim=(32,),
        kv_ratio=("1",),
        mask=("causal",),
        phase=("forward", "backward"),
        seq=(4096,),
        batch=(2,),
        dtype=("bfloat16",),
        workers=(1,),
    )
    if profile == "quick":
        return quick
    standard = replace(
        quick,
        implementation=("triton", "sdpa_default", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient"),
        beside=("sdpa_math", "flex", "two_gemm", "two_gemm_products"),
        heads=(40, 64, 20, 32, 80, 160),
        head_dim=BUCKET_EDGES,
        kv_ratio=("1", "4", "8", ALL),
        mask=("causal", "full"),
        phase=PHASES,
        seq=(4096, 1024, 16384),
        varied_splits=(2,),
    )
    if profile == "standard":
        return standard
    return replace(
        standard,
        implementation=(*standard.implementation, *standard.beside),
        beside=(),
        heads_of_head_dim=(32, 33),  # with 4 blocks of queries 33 heads fill the 132 multiprocessors of an H200
        seq=(4096, 512, 1024, 2048, 8192, 16384),
        dtype=("bfloat16", "float16"),
    )


def _variations(axes: AttentionHeadsAxes) -> list[_Variation]:
    """The first of each, then every other value of one at a time."""
    base = _Variation(axes.kv_ratio[0], axes.mask[0], axes.seq[0], axes.batch[0])
    others = [
        replace(base, **{name: value})
        for name in ("kv_ratio", "mask", "seq", "batch")
        for value in getattr(axes, name)[1:]
    ]
    return [base, *others]


def _add(
    cases: dict[str, Case],
    axes: AttentionHeadsAxes,
    split: Split,
    variation: _Variation,
    implementations: Sequence[str],
    phases: Sequence[str],
) -> None:
    for implementation, phase, dtype, workers in itertools.product(implementations, phases, axes.dtype, axes.workers):
        if phase == "backward" and implementation in FORWARD_ONLY:
            continue
        for blocks, mode in itertools.product(_blocks_of(implementation, axes), axes.mode):
            parameters = replace(_parameters(split, variation, phase), dtype=dtype, workers=workers, blocks=blocks)
            case = Case("attention", parameters, implementation, mode=mode)
            cases.setdefault(case.case_id, case)


def _parameters(split: Split, variation: _Variation, phase: str) -> AttentionParameters:
    decoding = phase == "decode"
    key_heads = split.key_heads(variation.kv_ratio)
    return AttentionParameters(
        batch=variation.batch,
        heads=split.heads,
        head_dim=split.head_dim,
        seq_q=1 if decoding else variation.seq,
        seq_k=variation.seq if decoding else 0,
        kv_heads=0 if key_heads == split.heads else key_heads,
        # A single query sees all keys, masked or not.
        causal=variation.mask == "causal" and not decoding,
        backward=phase == "backward",
    )


def _blocks_of(implementation: str, axes: AttentionHeadsAxes) -> Iterator[Blocks | None]:
    """Ours are asked for each of the blocks, a library for none: it chooses them itself."""
    asked = axes.blocks if implementation in OWN else (CHOSEN,)
    return (None if blocks == CHOSEN else Blocks.parse(blocks) for blocks in asked)


def _nearest_divisors(whole: int, asked: int) -> str:
    """The divisors on both sides of what was asked for, as `5 or 8`."""
    small = [count for count in range(1, math.isqrt(whole) + 1) if whole % count == 0]
    divisors = sorted({*small, *(whole // count for count in small)})
    below = [count for count in divisors if count < asked][-1:]
    above = [count for count in divisors if count > asked][:1]
    return " or ".join(map(str, below + above))
