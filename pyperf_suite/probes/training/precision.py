"""Precisions of training: what float32, autocast and pure half precision take in time and memory, by batch size.

The guide's table of memory that mixed precision saves is made again here; autocast's cache of cast weights is set
beside steps without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.precision_step import CAST_CACHES, PrecisionStepParameters
from pyperf_suite.operators.training.trained_shape import PRECISIONS
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.precision_findings import AUTOCAST, explain
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings


@dataclass(frozen=True)
class PrecisionAxes:
    """What the probe varies.

    Each `precision` is crossed with each `batch`, those `beside` take the last batch alone. With `unaligned_batch`
    sequences a model is trained whose dimensions are odd, `unaligned_hidden` in `unaligned_heads` (0 for none), in the
    first precision and the first of autocast's. Each `cast_cache` is measured in the latter, with so many
    `micro_batches` of `cached_batch` sequences. The MLP has 4 times hidden features.
    """

    precision: tuple[str, ...]
    beside: tuple[str, ...]
    batch: tuple[int, ...]
    seq: tuple[int, ...]
    hidden: tuple[int, ...]
    heads: tuple[int, ...]
    layers: tuple[int, ...]
    vocab: tuple[int, ...]
    unaligned_hidden: tuple[int, ...]
    unaligned_heads: tuple[int, ...]
    unaligned_batch: tuple[int, ...]
    cast_cache: tuple[str, ...]
    micro_batches: tuple[int, ...]
    cached_batch: tuple[int, ...]
    workers: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise UserError for a word there is not, or a size that cannot be."""
        for name, words in (("precision", PRECISIONS), ("beside", PRECISIONS), ("cast_cache", CAST_CACHES)):
            for value in getattr(self, name):
                if value not in words:
                    raise UserError(f"{name}={value} was asked for: choose from {', '.join(words)}.")
        for name, least in ((name, 0 if name in ("vocab", "unaligned_hidden") else 1) for name in SIZES):
            for number in getattr(self, name):
                if number < least:
                    raise UserError(f"{name}={number} was asked for, but {name} is at least {least}.")


SIZES = tuple(name for name in PrecisionAxes.__dataclass_fields__ if name not in ("precision", "beside", "cast_cache"))


class Precision(Probe):
    """One transformer's step in each precision, batch by batch, and autocast's cache of casts on and off."""

    name = "precision"
    question = "What do half precisions win in time and memory, and from which batch size on?"

    def axes(self, profile: str, device: Device) -> PrecisionAxes:
        """A small GPT on a CPU; on a GPU layers of hidden 2048."""
        return _cuda_axes(profile) if device.kind == "cuda" else _cpu_axes(profile)

    def sweep(self, axes: PrecisionAxes) -> list[Case]:
        """Precisions by batch, the unaligned model, and the caches of casts."""
        return list({case.case_id: case for case in _cases(axes)}.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """Speed and memory beside float32, what unaligned sizes cost, and what the cache of casts wins."""
        return explain(records)

    def group(self, case: Case) -> str:
        """One table a precision, and one for the caches of casts."""
        p = case.parameters
        return f"precision {p.precision}" + (" micro-batches" if p.micro_batches > 1 else "")


def _cpu_axes(profile: str) -> PrecisionAxes:
    """So small that a step takes milliseconds on one core."""
    standard = PrecisionAxes(
        precision=("float32", "autocast_bfloat16"),
        beside=("bfloat16",),
        batch=(1, 4, 16),
        seq=(32,),
        hidden=(256,),
        heads=(4,),
        layers=(1,),
        vocab=(512,),
        unaligned_hidden=(255,),
        unaligned_heads=(5,),
        unaligned_batch=(4,),
        cast_cache=CAST_CACHES,
        micro_batches=(4,),
        cached_batch=(1,),
        workers=(1,),
    )
    if profile == "quick":
        return replace(
            standard,
            beside=(),
            batch=(4,),
            unaligned_hidden=(0,),
            cast_cache=("iteration",),
            micro_batches=(1,),
            cached_batch=(4,),
        )
    if profile == "standard":
        return standard
    return replace(
        standard,
        precision=("float32", "autocast_bfloat16", "bfloat16", "autocast_float16", "float16"),
        beside=(),
        batch=(1, 2, 4, 8, 16, 32, 64),
        layers=(4,),
        seq=(128,),
        unaligned_batch=(16,),
    )


def _cuda_axes(profile: str) -> PrecisionAxes:
    """A hundred million parameters; float32 in full and in tfloat32, which torch leaves off unless it is asked."""
    standard = replace(
        _cpu_axes("standard"),
        precision=("float32", "tfloat32", "autocast_bfloat16", "bfloat16", "autocast_float16", "float16"),
        beside=(),
        seq=(1024,),
        hidden=(2048,),
        heads=(16,),
        layers=(2,),
        vocab=(8192,),
        unaligned_hidden=(2047,),
        unaligned_heads=(23,),
    )
    if profile == "quick":
        return replace(
            standard, precision=("float32", "autocast_bfloat16"), batch=(4,), layers=(1,), unaligned_hidden=(0,)
        )
    if profile == "standard":
        return standard
    return replace(standard, batch=(1, 2, 4, 8, 16, 32))


def _cases(axes: PrecisionAxes) -> Iterator[Case]:
    models = itertools.product(axes.seq, axes.hidden, axes.heads, axes.layers, axes.vocab, axes.workers)
    cast = next((each for each in axes.precision if each.startswith(AUTOCAST)), None)
    compared = [each for each in (axes.precision[0], cast) if each]
    for seq, hidden, heads, layers, vocab, workers in models:
        model = PrecisionStepParameters(
            seq=seq, hidden=hidden, heads=heads, layers=layers, vocab=vocab, workers=workers
        )
        for batch, precision in itertools.product(axes.batch, axes.precision):
            yield _case(replace(model, batch=batch, precision=precision))
        for precision in axes.beside:
            yield _case(replace(model, batch=axes.batch[-1], precision=precision))
        sizes = itertools.product(axes.unaligned_hidden, axes.unaligned_heads, axes.unaligned_batch, compared)
        for odd, odd_heads, batch, precision in sizes:
            if odd:
                shape = replace(model, hidden=odd, heads=odd_heads, ffn=4 * odd - 1, vocab=vocab and (vocab - 1) | 1)
                yield _case(replace(shape, batch=batch, precision=precision))
        caches = itertools.product(axes.cast_cache, axes.micro_batches, axes.cached_batch)
        for cache, micro_batches, batch in caches:
            if cast:
                step = replace(model, precision=cast, batch=batch, micro_batches=micro_batches, cast_cache=cache)
                yield _case(step)


def _case(parameters: PrecisionStepParameters) -> Case:
    return Case("precision_step", parameters, "torch")
