"""Precisions of training: what float32, autocast and pure half precision take in time and memory, by batch size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from pyperf_suite.errors import OneOf, Within
from pyperf_suite.findings.axes import AxisTable, by, crossed
from pyperf_suite.findings.data import TRANSFORMERS, Claim, ClaimVerdict, Figure, Findings, Panel, Remark, findings
from pyperf_suite.findings.probe import Probe, RowClaim, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows, series_by
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.shapes import (
    NAMES,
    published_columns,
    published_step,
    shape_name,
    sized,
    with_shape,
)
from pyperf_suite.workloads.training.training_step import CAST_CACHES, MOMENTS, PRECISIONS, TrainingStepParameters

BASE = "float32"
AUTOCAST = "autocast_"
HALVES = ("autocast_bfloat16", "bfloat16", "autocast_float16", "float16")

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

FASTER = "{precision} is {measured} as fast as float32 at batch {batch} ({model})"
SHOWN = (
    "A process that trains {model} with AdamW in {precision} at batch {batch} takes {shown:MB}, of which tensors are "
    "{tensors:MB}"
)
FEWEST_SIZES = 3

Precisions = Annotated[tuple[str, ...], OneOf(PRECISIONS)]
Sizes = Annotated[tuple[int, ...], Within(1)]
SizesOrNone = Annotated[tuple[int, ...], Within(0)]


@dataclass(frozen=True)
class PrecisionAxes(AxisTable):
    """On a CPU a small GPT, of which a step takes milliseconds on one core; on a GPU layers of hidden 2048.

    Each `precision` is crossed with each `batch`, those `extra` take the last batch alone. With `unaligned_batch`
    sequences a model is trained whose dimensions are odd, `unaligned_hidden` (0 for no such model) in
    `unaligned_heads`, in the first precision and the first of autocast's. Each `cast_cache` is measured in the latter,
    with `micro_batches` micro-batches of `cached_batch` sequences. Those of `process` are trained by AdamW in a process
    of their own as well, with each `batch` and `checkpointing`, for what nvidia-smi or the resident set shows of it.
    The MLP has 4 times hidden features. A `shape` is a model of the guides by its name, instead of its dimensions.
    """

    # float32 in full and in tfloat32, which torch leaves off by default.
    precision: Precisions = by(
        (BASE, "autocast_bfloat16"),
        full=(BASE, *HALVES),
        cuda=by((BASE, "autocast_bfloat16"), standard=(BASE, "tfloat32", *HALVES)),
    )
    extra: Precisions = by((), standard=("bfloat16",), full=(), cuda=())
    batch: Sizes = by((4,), (1, 4, 16), (1, 2, 4, 8, 16, 32, 64), cuda=by((4,), (1, 4, 16), (1, 2, 4, 8, 16, 32)))
    seq: Sizes = by((32,), full=(128,), cuda=(1024,))
    hidden: Sizes = by((256,), cuda=(2048,))
    heads: Sizes = by((4,), cuda=(16,))
    layers: Sizes = by((1,), full=(4,), cuda=by((1,), standard=(2,)))
    vocab: SizesOrNone = by((512,), cuda=(8192,))
    unaligned_hidden: SizesOrNone = by((0,), standard=(255,), cuda=by((0,), standard=(2047,)))
    unaligned_heads: Sizes = by((5,), cuda=(23,))
    unaligned_batch: Sizes = by((4,), full=(16,), cuda=(4,))
    cast_cache: Annotated[tuple[str, ...], OneOf(CAST_CACHES)] = by(CAST_CACHES[:1], CAST_CACHES, cuda=CAST_CACHES)
    micro_batches: Sizes = by((1,), standard=(4,), cuda=(4,))
    cached_batch: Sizes = by((4,), standard=(1,), cuda=(1,))
    workers: Sizes = (1,)
    process: Precisions = by((), standard=(BASE, "autocast_bfloat16", "bfloat16"))
    checkpointing: tuple[Checkpointing, ...] = (Checkpointing(),)
    shape: Annotated[tuple[str, ...], NAMES] = ()


def shaped(axes: PrecisionAxes, name: str, device: Device) -> PrecisionAxes:
    """One of the guides' models, on as many cores as there are: it is no toy."""
    workers = (1 if device.kind == "cuda" else cpu.detect().usable_cores,)
    return with_shape(axes, name, unaligned_hidden=(0,), micro_batches=(), workers=workers)


def models(axes: PrecisionAxes) -> Iterator[TrainingStepParameters]:
    """Yield the named models, or models of every size."""
    for name, seq, workers in itertools.product(axes.shape, axes.seq, axes.workers):
        yield TrainingStepParameters(**vars(sized(name, seq, axes.batch[0])), workers=workers)
    if not axes.shape:
        for sizes in crossed(axes, "seq", "hidden", "heads", "layers", "vocab", "workers"):
            yield TrainingStepParameters(**sizes)


def swept(axes: PrecisionAxes) -> Iterator[TrainingStepParameters]:
    """Precisions by batch, the unaligned model, and the caches of casts."""
    casts = [each for each in axes.precision if each.startswith(AUTOCAST)][:1]
    for model in models(axes):
        for changed in crossed(axes, "batch", "precision"):
            yield replace(model, **changed)
        for precision in axes.extra:
            yield replace(model, batch=axes.batch[-1], precision=precision)
        unaligned = itertools.product(axes.unaligned_hidden, axes.unaligned_heads, axes.unaligned_batch)
        for odd, heads, batch in unaligned:
            vocab = model.vocab and (model.vocab - 1) | 1
            shape = replace(model, hidden=odd, heads=heads, ffn=4 * odd - 1, vocab=vocab, batch=batch)
            yield from (replace(shape, precision=each) for each in (axes.precision[0], *casts) if odd)
        caches = itertools.product(casts, axes.cast_cache, axes.micro_batches, axes.cached_batch)
        for cast, cache, micro_batches, batch in caches:
            yield replace(model, precision=cast, batch=batch, micro_batches=micro_batches, cast_cache=cache)


def sweep(axes: PrecisionAxes) -> Iterator[Case]:
    """Steps that are timed, and processes that are looked at from outside."""
    yield from (Case("precision_step", each, "torch") for each in swept(axes))
    for each, precision in itertools.product(models(axes), axes.process):
        for how in crossed(axes, "batch", "checkpointing"):
            yield Case("training_memory", replace(each, workers=1, precision=precision, **how), "process")


def model(row: Row) -> str:
    """`2 x 256 in 4 heads, vocab 512, seq 64`: what stays the same while precision and batch vary."""
    workers = f", {row.p.workers} workers" if row.p.workers > 1 else ""
    sizes = f"{row.p.layers} x {row.p.hidden} in {row.p.heads} heads, vocab {row.p.vocab}"
    return f"{shape_name(row.p) or sizes}, seq {row.p.seq}{workers}"


def is_step(row: Row) -> bool:
    """True if it was timed, and is no process whose memory was read."""
    return bool(row.case.operator == "precision_step")


def is_aligned(row: Row) -> bool:
    """True if every dimension is a multiple of 8; the batch is not one, for products see batch x seq."""
    p = row.p
    return all(size % 8 == 0 for size in (p.hidden, p.head_dim, p.width, p.vocab, p.seq))


def is_plain(row: Row) -> bool:
    """True if it is a step of one micro-batch with autocast's usual cache."""
    return bool(is_step(row) and row.p.micro_batches == 1 and row.p.cast_cache == "iteration")


def is_cast(row: Row) -> bool:
    """True if autocast chooses the types."""
    return bool(row.p.precision.startswith(AUTOCAST))


def states(row: Row) -> float:
    """Bytes of the model and of AdamW, whose moments have the type of the weights."""
    return (1 + MOMENTS) * row.observed["weights"] + row.observed["gradients"]


def needed(row: Row) -> float:
    """Bytes that are held at once, between forward and backward."""
    return states(row) + row.observed["activations"] + row.observed["weight_copies"]


def base(row: Row) -> Row | None:
    """The same in float32."""
    return None if row.p.precision == BASE else row.like(precision=BASE)


def freed(row: Row) -> float:
    """Bytes of activations that float32 keeps and it does not."""
    plain = base(row)
    return plain.observed["activations"] - row.observed["activations"] if plain else 0.0


def compared(row: Row) -> list[Row]:
    """The same at each batch at which float32 was measured too."""
    return [each for each in row.rows.same_except(row, "batch") if base(each)]


def nested(row: Row) -> Row | None:
    """The same with one context around the whole step, of several micro-batches, between which casts are kept."""
    return row.like(cast_cache="nested") if row.p.micro_batches > 1 else None


def is_reported(row: Row) -> bool:
    """True if float32 was measured at no larger batch; of odd models only where there are no others."""
    is_largest = is_plain(row) and base(row) and row is compared(row)[-1]
    return bool(is_largest and (is_aligned(row) or not any(is_plain(each) and is_aligned(each) for each in row.rows)))


def is_judged(row: Row) -> bool:
    """True if a guide speaks of it."""
    return is_cast(row) and is_reported(row)


def analyse(rows: Rows) -> Findings:
    """Pure half precision at the largest batch, what autocast and odd dimensions cost, and pictures by batch."""
    plain = rows.where(is_plain)
    return findings(
        (_pure(row) for row in rows.where(is_reported) if not is_cast(row)),
        (_break_even(row) for row in rows.where(is_judged) if len(compared(row)) > 1 and freed(row) > 0),
        (row.remark(SHOWN) for row in rows.where(operator="training_memory") if "shown" in row.observed),
        (_alignment(odd, plain) for odd in plain if is_cast(odd) and not is_aligned(odd)),
        (_figures(number, group) for number, group in enumerate(plain.groups("precision", "batch"))),
    )


def _pure(row: Row) -> Iterator[Remark]:
    """A precision without autocast compared with float32, and with itself under autocast."""
    yield row.remark(FASTER, effect="measured", measured=row.against(precision=BASE))
    if cast := row.like(precision=AUTOCAST + row.p.precision):
        yield row.remark(
            "{precision} needs {less:MB} less memory than {cast} at batch {batch} and is {faster} as fast",
            less=needed(cast) - needed(row),
            cast=cast.p.precision,
            faster=row.faster_than(cast),
        )


def _break_even(row: Row) -> Remark:
    """From which batch on it is more than copies of weights take."""
    of_one = freed(row) / row.p.batch
    return row.remark(
        "{precision} saves {of_one:MB} a sequence and keeps {weight_copies:MB} of copies of weights: up to batch "
        "{break_even:count~} it needs more memory than float32",
        kind="predicted",
        of_one=of_one,
        break_even=math.floor(row.observed["weight_copies"] / of_one),
    )


def _alignment(odd: Row, plain: Rows) -> Iterator[ClaimVerdict]:
    """FLOP a second with dimensions that are multiples of 8 compared with odd ones."""
    sentence = "{precision} computes {measured} the FLOP a second with {even} as with {model}, batch {batch}"
    for even in plain.where(is_aligned, batch=odd.p.batch, precision=odd.p.precision):
        if ratio := even.faster_than(odd):
            yield odd.judge(MULTIPLES_OF_8, sentence, ratio * (even.reading.flop / odd.reading.flop), even=model(even))


def _figures(number: int, rows: Rows) -> Iterator[Figure]:
    for name, y, label, unit, caption in (
        ("memory", "needed", "memory", "MB", "Weights, gradients, AdamW's moments, and what forward keeps: counted."),
        ("speed", "faster", "speed-up over float32", "x", "Bars are 95 % intervals over processes."),
    ):
        drawn = series_by("precision", rows, "batch", y, FEWEST_SIZES)
        if any(each.label != BASE for each in drawn):
            panel = Panel(model(rows[0]), "batch", label, drawn, y_unit=unit)
            yield Figure(f"precision_{name}_{number}", f"{name.title()} of a step by precision", caption, ((panel,),))


PROBE = Probe(
    name="precision",
    question="What do half precisions win in time and memory, and from which batch size on?",
    topic="training",
    title="Training: precision",
    axes=PrecisionAxes.of,
    sweep=sweep,
    shaped=shaped,
    fixed_by_shape=("hidden", "heads", "layers", "vocab", "unaligned_hidden", "unaligned_heads", "unaligned_batch"),
    computed={
        "model": model,
        "guide": lambda row: published_step(row.p),
        "states": states,
        "needed": needed,
        "faster": lambda row: row.against(precision=BASE),
        "saved": lambda row: (plain := base(row)) and needed(plain) - needed(row),
        "smallest": lambda row: compared(row)[0],
        "other_cache": lambda row: "no cache" if row.p.cast_cache == "off" else "one around each",
    },
    order=lambda row: (
        *(not is_step(row), not is_aligned(row), model(row), row.p.batch, PRECISIONS.index(row.p.precision)),
        row.p.cast_cache,
    ),
    claims=(
        RowClaim(TWICE_AS_FAST, FASTER, "faster", lambda row: is_judged(row) and is_aligned(row)),
        RowClaim(
            NOT_HALF,
            "{precision} keeps {measured} the activations of float32 at batch {batch} ({model})",
            ratio=lambda row: (
                row.observed["activations"] / plain.observed["activations"] if (plain := base(row)) else None
            ),
            where=is_judged,
        ),
        RowClaim(
            GROWS,
            "{precision} frees {measured} the activations at batch {batch} that it frees at batch {smallest.batch}",
            ratio=lambda row: freed(row) / of_least if (of_least := freed(compared(row)[0])) > 0 else 0.0,
            where=lambda row: is_judged(row) and len(compared(row)) > 1,
        ),
        RowClaim(
            CACHE_LASTS,
            "A context around each forward pass casts weights {measured} as often for each of {micro_batches} "
            "micro-batches as one context around the step does in all",
            ratio=lambda row: (
                row.observed["casts"] / row.p.micro_batches / step.observed["casts"] if (step := nested(row)) else None
            ),
            where=lambda row: row.p.cast_cache == "iteration",
        ),
        RowClaim(
            CACHE_IS_FASTER,
            "One context around {micro_batches} micro-batches of {batch} is {measured} as fast as {other_cache}",
            ratio=lambda row: step.faster_than(row) if (step := nested(row)) else None,
            where=lambda row: row.p.cast_cache != "nested",
        ),
    ),
    tables=(
        RowTable(
            "A training step by precision and batch",
            (
                Column("model", priority=0),
                Column("batch", priority=2),
                Column("precision", priority=2),
                Column("time", "seconds", "ms", priority=2),
                Column("speed-up over float32", "faster", "x", priority=2),
                Column("activations", unit="MB"),
                Column("weight copies", "weight_copies", "MB"),
                Column("model and AdamW", "states", "MB"),
                Column("saved", unit="MB"),
                Column("peak", lambda row: row.observed.get("peak"), "MB", priority=0),
            ),
            where=is_plain,
        ),
        RowTable(
            "Autocast's casts of weights in a step",
            (
                Column("model", priority=0),
                Column("micro-batches", "micro_batches"),
                Column("casts kept for", "cast_cache", priority=2),
                Column("time", "seconds", "ms", priority=2),
                Column("casts", unit="count"),
                Column("cast", unit="MB"),
            ),
            where=lambda row: row.p.micro_batches > 1,
        ),
        RowTable(
            "What the system shows of a process that trains with AdamW: nvidia-smi, or the resident set on a CPU",
            (
                Column("model", priority=0),
                Column("batch", priority=2),
                Column("precision", priority=2),
                Column("checkpointing", priority=0),
                Column("shown", unit="MB", priority=2),
                Column("context", unit="MB"),
                Column("reserved", lambda row: row.observed.get("reserved"), "MB"),
                Column("allocated", lambda row: row.observed.get("allocated"), "MB"),
                Column("tensors", unit="MB", priority=2),
                *published_columns("memory", "MB"),
            ),
            where=lambda row: not is_step(row) and "shown" in row.observed,
        ),
    ),
    analyse=analyse,
    group=lambda case: f"precision {case.parameters.precision}{' micro-batches' * (case.parameters.micro_batches > 1)}",
)
