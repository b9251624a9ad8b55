"""Precisions of training: what float32, autocast and pure half precision take in time and memory, by batch size.

The guide's table of memory that mixed precision saves is made again here; autocast's cache of cast weights is compared
with steps without it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.training.precision_step import CAST_CACHES, PrecisionStepParameters
from pyperf_suite.operators.training.trained_shape import PRECISIONS
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.axes import OneOf, Within
from pyperf_suite.spec.findings import Claim, Figure, Findings, Panel, Remark, Verdict, findings
from pyperf_suite.spec.probe import Probe, RowTable
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, Row, Rows, grouped, series, table
from pyperf_suite.spec.sources import TRANSFORMERS

BASE = "float32"
AUTOCAST = "autocast_"

# "Twice as fast" has one digit, and nobody minds more.
TWICE_AS_FAST = Claim(
    "mixed precision trains twice as fast where every dimension is a multiple of 8", TRANSFORMERS, 1.8
)
# "It's not half": what stays in float32 (norms, softmax, the loss) and the masks do not shrink.
NOT_HALF = Claim("activations are kept in half precision, but not half of the memory is saved", TRANSFORMERS, 0.5, 0.99)
# The guide's 84 MB become 1976 as the batch grows by 8, from 64 on more than in proportion.
GROWS = Claim("the bigger the batch, the bigger the saving", TRANSFORMERS, low=1.01)
MULTIPLES_OF_8 = Claim("that takes every dimension to be a multiple of 8", TRANSFORMERS, low=1.01)
CACHE_LASTS = Claim("casts are kept as long as the outermost context lasts", TRANSFORMERS, 1.0, 1.0)
CACHE_IS_FASTER = Claim("keeping casts speeds things up", TRANSFORMERS, low=1.0)

# The guide's own figures: batch, MB without and with mixed precision. BERT-base on MRPC, 2 GPUs, by nvidia-smi.
GUIDES_TABLE = table(
    "Memory by the guide (BERT-base, nvidia-smi)",
    (
        Column("batch", lambda row: row[0]),
        Column("float32", lambda row: row[1] * 1e6, "MB"),
        Column("mixed", lambda row: row[2] * 1e6, "MB"),
        Column("saved", lambda row: (row[1] - row[2]) * 1e6, "MB"),
    ),
    ((8, 4247, 4163), (16, 4971, 4793), (32, 6827, 6207), (64, 10037, 8061)),
)

# Bytes of AdamW's two moments for each byte of a weight, which they share the type of.
MOMENTS = 2

FASTER = "{precision} is {measured} as fast as float32 at batch {batch} ({model})"
FEWEST_SIZES = 3

Precisions = Annotated[tuple[str, ...], OneOf(PRECISIONS)]
Sizes = Annotated[tuple[int, ...], Within(1)]
SizesOrNone = Annotated[tuple[int, ...], Within(0)]


@dataclass(frozen=True)
class PrecisionAxes:
    """What the probe varies.

    Each `precision` is crossed with each `batch`, those `beside` take the last batch alone. With `unaligned_batch`
    sequences a model is trained whose dimensions are odd, `unaligned_hidden` (0 for no such model) in
    `unaligned_heads`, in the first precision and the first of autocast's. Each `cast_cache` is measured in the latter,
    with so many `micro_batches` of `cached_batch` sequences. The MLP has 4 times hidden features.
    """

    precision: Precisions = ("float32", "autocast_bfloat16")
    beside: Precisions = ("bfloat16",)
    batch: Sizes = (1, 4, 16)
    seq: Sizes = (32,)
    hidden: Sizes = (256,)
    heads: Sizes = (4,)
    layers: Sizes = (1,)
    vocab: SizesOrNone = (512,)
    unaligned_hidden: SizesOrNone = (255,)
    unaligned_heads: Sizes = (5,)
    unaligned_batch: Sizes = (4,)
    cast_cache: Annotated[tuple[str, ...], OneOf(CAST_CACHES)] = CAST_CACHES
    micro_batches: Sizes = (4,)
    cached_batch: Sizes = (1,)
    workers: Sizes = (1,)


# A hundred million parameters; float32 in full and in tfloat32, which torch leaves off unless it is asked.
ON_A_GPU = PrecisionAxes(
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


def axes(profile: str, device: Device) -> PrecisionAxes:
    """On a CPU a small GPT, of which a step takes milliseconds on one core; on a GPU layers of hidden 2048."""
    standard = ON_A_GPU if device.kind == "cuda" else PrecisionAxes()
    if profile == "standard":
        return standard
    if profile == "quick":
        two = ("float32", "autocast_bfloat16")
        few = replace(standard, precision=two, beside=(), batch=(4,), layers=(1,), unaligned_hidden=(0,))
        if device.kind == "cuda":
            return few
        return replace(few, cast_cache=("iteration",), micro_batches=(1,), cached_batch=(4,))
    if device.kind == "cuda":
        return replace(standard, batch=(1, 2, 4, 8, 16, 32))
    halves = ("autocast_bfloat16", "bfloat16", "autocast_float16", "float16")
    large = replace(standard, layers=(4,), seq=(128,), batch=(1, 2, 4, 8, 16, 32, 64), unaligned_batch=(16,))
    return replace(large, precision=("float32", *halves), beside=())


def sweep(axes: PrecisionAxes) -> Iterator[Case]:
    """Precisions by batch, the unaligned model, and the caches of casts."""
    for parameters in _swept(axes):
        yield Case("precision_step", parameters, "torch")


def _swept(axes: PrecisionAxes) -> Iterator[PrecisionStepParameters]:
    models = itertools.product(axes.seq, axes.hidden, axes.heads, axes.layers, axes.vocab, axes.workers)
    cast = next((each for each in axes.precision if each.startswith(AUTOCAST)), None)
    for seq, hidden, heads, layers, vocab, workers in models:
        model = PrecisionStepParameters(
            seq=seq, hidden=hidden, heads=heads, layers=layers, vocab=vocab, workers=workers
        )
        for batch, precision in itertools.product(axes.batch, axes.precision):
            yield replace(model, batch=batch, precision=precision)
        for precision in axes.beside:
            yield replace(model, batch=axes.batch[-1], precision=precision)
        sizes = itertools.product(axes.unaligned_hidden, axes.unaligned_heads, axes.unaligned_batch)
        for odd, odd_heads, batch in sizes:
            shape = replace(model, hidden=odd, heads=odd_heads, ffn=4 * odd - 1, vocab=vocab and (vocab - 1) | 1)
            for precision in filter(None, (axes.precision[0], cast)):
                if odd:
                    yield replace(shape, batch=batch, precision=precision)
        caches = itertools.product(axes.cast_cache, axes.micro_batches, axes.cached_batch)
        for cache, micro_batches, batch in caches:
            if cast:
                yield replace(model, precision=cast, batch=batch, micro_batches=micro_batches, cast_cache=cache)


def model(row: Row) -> str:
    """`2 x 256 in 4 heads, vocab 512, seq 64`: what stays the same while precision and batch vary."""
    workers = f", {row.workers} workers" if row.workers > 1 else ""
    return f"{row.layers} x {row.hidden} in {row.heads} heads, vocab {row.vocab}, seq {row.seq}{workers}"


def is_plain(row: Row) -> bool:
    """Whether it is a step as torch advises it, and not there to compare caches of casts."""
    return bool(row.micro_batches == 1 and row.cast_cache == "iteration")


def is_cast(row: Row) -> bool:
    """Whether autocast casts its weights."""
    return bool(row.precision.startswith(AUTOCAST))


def is_aligned(row: Row) -> bool:
    """Whether every dimension is a multiple of 8; the batch is not one, for products see batch x seq."""
    return all(size % 8 == 0 for size in (row.hidden, row.hidden // row.heads, row.width, row.vocab, row.seq))


def states(row: Row) -> float:
    """Bytes of weights, gradients and AdamW's moments."""
    return float((1 + MOMENTS) * row.seen["weights"] + row.seen["gradients"])


def needed(row: Row) -> float:
    """Bytes that are needed at once between forward and backward, casts of weights included."""
    return states(row) + row.seen["activations"] + row.seen["weight_copies"]


def saved(row: Row) -> float | None:
    """Bytes less than in float32."""
    base = row.like(precision=BASE)
    return None if base is None or base is row else needed(base) - needed(row)


def over_base(row: Row) -> Ratio | None:
    """Speed-up over float32."""
    return row.against(precision=BASE)


def analyse(rows: Rows) -> Findings:
    """Each precision compared with float32 at the largest batch, what odd dimensions cost, and pictures by batch."""
    plain = rows.where(is_plain)
    # Odd dimensions are there to be compared with aligned ones, where there are such.
    by_batch = (plain.where(is_aligned) or plain).groups("batch")
    return findings(
        (_compared([row for row in group if saved(row) is not None]) for group in by_batch),
        (_alignment(odd, plain) for odd in plain.where(is_cast) if not is_aligned(odd)),
        (_caches(row) for row in rows.where(cast_cache="nested") if row.micro_batches > 1),
        (_figures(number, group) for number, group in enumerate(plain.groups("precision", "batch"))),
        GUIDES_TABLE if len({row.batch for row in plain.where(precision=BASE)}) > 1 else None,
    )


def _compared(rows: Sequence[Row]) -> Iterator[Remark | Verdict]:
    """One precision at each batch that float32 was measured at too: speed and memory of the largest."""
    if not rows:
        return
    row, faster = rows[-1], over_base(rows[-1])
    if is_cast(row):
        if faster is not None and is_aligned(row):
            yield row.judge(TWICE_AS_FAST, FASTER, faster, model=model(row))
        yield from _saved_by_autocast(rows)
        return
    yield row.remark(FASTER, effect="measured", measured=faster, model=model(row))
    cast = row.like(precision=AUTOCAST + row.precision)
    if cast is not None:
        yield row.remark(
            "{precision} needs {less} less memory than {cast} at batch {batch} and is {faster} as fast",
            less=Quantity(needed(cast) - needed(row), "MB"),
            cast=cast.precision,
            faster=row.faster_than(cast),
        )


def _saved_by_autocast(rows: Sequence[Row]) -> Iterator[Remark | Verdict]:
    """What of the activations is kept, and from which batch on that is more than copies of weights take."""
    row = rows[-1]
    bases = [base for each in rows if (base := each.like(precision=BASE)) is not None]
    freed = [base.seen["activations"] - each.seen["activations"] for base, each in zip(bases, rows, strict=True)]
    share = row.seen["activations"] / bases[-1].seen["activations"]
    yield row.judge(
        NOT_HALF,
        "{precision} keeps {measured} the activations of float32 at batch {batch} ({model})",
        share,
        model=model(row),
    )
    if len(rows) == 1:
        return
    yield row.judge(
        GROWS,
        "{precision} frees {measured} the activations at batch {batch} that it frees at batch {smallest}",
        freed[-1] / freed[0] if freed[0] > 0 else 0.0,
        smallest=rows[0].batch,
    )
    if freed[-1] > 0:
        copies, of_one = row.seen["weight_copies"], freed[-1] / row.batch
        yield row.remark(
            "{precision} saves {of_one} a sequence and keeps {copies} of copies of weights: up to batch {break_even} "
            "it needs more memory than float32",
            kind="predicted",
            of_one=Quantity(of_one, "MB"),
            copies=Quantity(copies, "MB"),
            break_even=Quantity(math.floor(copies / of_one), "count", predicted=True),
        )


def _alignment(odd: Row, plain: Rows) -> Iterator[Verdict]:
    """FLOP a second with dimensions that are multiples of 8 compared with odd ones."""
    told = "{precision} computes {measured} the FLOP a second with {even} as with {odd}, batch {batch}"
    for even in plain.where(is_aligned, batch=odd.batch, precision=odd.precision):
        if (faster := even.faster_than(odd)) is not None:
            ratio = faster * (even.flop / odd.flop)
            yield odd.judge(MULTIPLES_OF_8, told, ratio, even=model(even), odd=model(odd))


def _figures(number: int, rows: Rows) -> Iterator[Figure]:
    """Memory and speed of one model by batch, where enough batches were measured."""
    by_precision = grouped(rows, attrgetter("precision"))
    for name, y, label, unit, caption in (
        ("memory", needed, "memory", "MB", "Weights, gradients and AdamW's moments, and what forward keeps: counted."),
        ("speed", over_base, "speed-up over float32", "x", "Bars are 95 % intervals over processes."),
    ):
        lines = [series(each, group, attrgetter("batch"), y) for each, group in by_precision.items()]
        drawn = tuple(each for each in lines if len(each.x) >= FEWEST_SIZES)
        if any(each.label != BASE for each in drawn):
            panel = Panel(model(rows[0]), "batch", label, drawn, y_unit=unit)
            yield Figure(f"precision_{name}_{number}", f"{name.title()} of a step by precision", caption, ((panel,),))


def _caches(nested: Row) -> Iterator[Verdict]:
    """Casts of weights and time with one context of autocast around several micro-batches, and without."""
    cut = nested.like(cast_cache="iteration")
    if cut is not None:
        yield nested.judge(
            CACHE_LASTS,
            "A context around each forward pass casts weights {measured} as often for each of {micro_batches} "
            "micro-batches as one context around the step does in all",
            cut.seen["casts"] / (nested.micro_batches * nested.seen["casts"]),
        )
    told = "One context around {micro_batches} micro-batches of {batch} is {measured} as fast as {other}"
    for cache, other in (("off", "no cache"), ("iteration", "one around each")):
        if (faster := nested.against(cast_cache=cache)) is not None:
            yield nested.judge(CACHE_IS_FASTER, told, faster, other=other)


PROBE = Probe(
    name="precision",
    question="What do half precisions win in time and memory, and from which batch size on?",
    topic="training",
    title="Training: precision",
    axes=axes,
    sweep=sweep,
    order=lambda row: (not is_aligned(row), model(row), row.batch, PRECISIONS.index(row.precision), row.cast_cache),
    tables=(
        RowTable(
            "A training step by precision and batch",
            (
                Column("model", model, priority=0),
                Column("batch", priority=2),
                Column("precision", priority=2),
                Column("time", "seconds", "ms", priority=2),
                Column("speed-up over float32", over_base, "x", priority=2),
                Column("activations", lambda row: row.seen["activations"], "MB"),
                Column("weight copies", lambda row: row.seen["weight_copies"], "MB"),
                Column("model and AdamW", states, "MB"),
                Column("saved", saved, "MB"),
                Column("peak", lambda row: row.seen.get("peak"), "MB", priority=0),
            ),
            where=is_plain,
        ),
        RowTable(
            "Autocast's casts of weights in a step",
            (
                Column("model", model, priority=0),
                Column("micro-batches", "micro_batches"),
                Column("casts kept for", "cast_cache", priority=2),
                Column("time", "seconds", "ms", priority=2),
                Column("casts", lambda row: row.seen["casts"], "count"),
                Column("cast", lambda row: row.seen["cast"], "MB"),
            ),
            where=lambda row: row.micro_batches > 1,
        ),
    ),
    analyse=analyse,
    group=lambda case: f"precision {case.parameters.precision}{' micro-batches' * (case.parameters.micro_batches > 1)}",
)
