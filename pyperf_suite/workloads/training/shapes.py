"""The models that the guides train, by name, and what the guides measured of them.

Dimensions are those of the published models, with random weights: nothing is downloaded. As then, attention writes its
scores out and a tenth of the activations is dropped. BERT's norms stand before a block here and not behind it, and
there are no token types; parameters, products and bytes are the same to a percent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.errors import OneOf
from pyperf_suite.findings.rows import Column
from pyperf_suite.laws.training.memory import gpt_weights
from pyperf_suite.workloads.training import TransformerShape

# Batch and sequence are the guides' own where the first of their experiments has them.
_AS_THEN: Mapping[str, Any] = {"attention": "explicit", "dropout": 0.1}
SHAPES: Mapping[str, TransformerShape] = {
    "bert-base": TransformerShape(768, 12, 12, 128, 8, vocab=28996, classes=2, **_AS_THEN),
    "bert-large": TransformerShape(1024, 16, 24, 512, 4, vocab=30522, classes=2, **_AS_THEN),
    "gpt2": TransformerShape(768, 12, 12, 1024, 4, vocab=50257, **_AS_THEN),
}
NAMES = OneOf(SHAPES)


def sized(name: str, seq: int, batch: int) -> TransformerShape:
    """Return the model of that name on `batch` sequences of `seq` tokens."""
    return replace(SHAPES[name], seq=seq, batch=batch)


def shape_name(shape: Any) -> str:
    """Return the name of a model of these dimensions; "" if none has them."""

    def key(model: Any) -> tuple[int, ...]:
        return (model.hidden, model.heads, model.layers, model.vocab, model.classes)

    return next((name for name, known in SHAPES.items() if key(known) == key(shape)), "")


def with_shape(axes: Any, name: str, **changed: Any) -> Any:
    """The axes of a probe for one named shape, on the guide's batch and length. Raises UserError for another name."""
    NAMES.check("shape", name)
    own = {"seq": (SHAPES[name].seq,), "batch": (SHAPES[name].batch,)}
    return replace(axes, shape=(name,), **{key: each for key, each in own.items() if hasattr(axes, key)}, **changed)


def tensor_sizes(shape: TransformerShape) -> tuple[tuple[int, int], ...]:
    """Rows and columns of each parameter, in the model's order; a vector is one row."""
    hidden, sizes = shape.hidden, [(1, *weight.shape)[-2:] for weight in gpt_weights(shape.dimensions)]
    ends = [(hidden, hidden), (1, hidden), (shape.classes, hidden), (1, shape.classes)] if shape.classes else []
    return tuple((rows, columns) for rows, columns in (*sizes, *ends))


@dataclass(frozen=True)
class PublishedStep:
    """A guide's measurement of a model on one GPU; `memory` is nvidia-smi's, in bytes. None is not stated."""

    shape: str
    batch: int
    seq: int
    samples_per_s: float | None
    memory: float | None
    hardware: str
    source: str
    half: bool = False
    checkpointed: bool = False
    optimizer: str = "AdamW"


ONE_GPU = "Hugging Face Transformers, Efficient Training on a Single GPU"
MANY = "Hugging Face Transformers, Performance and Scalability"
_V100, _TWO, _TITAN = "V100 SXM2 16GB", "2 GPUs, not named", "2 x TITAN RTX"


def _on_v100(batch: int, samples_per_s: float, mb: int, **how: Any) -> PublishedStep:
    return PublishedStep("bert-large", batch, 512, samples_per_s, mb * 1e6, _V100, ONE_GPU, **how)


PUBLISHED = (
    _on_v100(4, 8.86, 14949),
    _on_v100(1, 7.75, 8681),
    _on_v100(1, 5.99, 6775, checkpointed=True),
    _on_v100(4, 18.64, 13939, half=True),
    _on_v100(1, 10.09, 7275, half=True, checkpointed=True),
    _on_v100(4, 7.96, 12295, optimizer="Adafactor"),
    _on_v100(1, 9.06, 4847, half=True, checkpointed=True, optimizer="Adafactor"),
    _on_v100(4, 9.15, 13085, optimizer="8-bit Adam"),
    _on_v100(1, 10.35, 5363, half=True, checkpointed=True, optimizer="8-bit Adam"),
    *(
        PublishedStep("bert-base", batch, 128, None, mb * 1e6, _TWO, MANY, half=half)
        for batch, plain, mixed in ((8, 4247, 4163), (16, 4971, 4793), (32, 6827, 6207), (64, 10037, 8061))
        for half, mb in ((False, plain), (True, mixed))
    ),
    # 200 steps of 4 sequences on each of two GPUs under DDP over NVLink took 101.9003 s.
    PublishedStep("gpt2", 4, 1024, 200 * 4 / 101.9003, None, _TITAN, MANY),
)


def published(
    name: str, batch: int, half: bool = False, checkpointed: bool = False, optimizer: str = "AdamW"
) -> PublishedStep | None:
    """Return a guide's measurement of the model of that name in that way, of the batch nearest to this one."""
    how = (name, half, checkpointed, optimizer)
    found = [each for each in PUBLISHED if (each.shape, each.half, each.checkpointed, each.optimizer) == how]
    return min(found, key=lambda each: abs(each.batch - batch), default=None)


def published_step(shape: Any) -> PublishedStep | None:
    """The same for a step by its parameters."""
    half, dropped = shape.precision not in ("float32", "tfloat32"), shape.checkpointing.kind == "every"
    return published(shape_name(shape), shape.batch, half, dropped)


def published_columns(figure: str, unit: str) -> tuple[Column, ...]:
    """Columns for what a guide has, and on what, next to a row's own; the row's `guide` is what was published."""

    def of_guide(select: Callable[[PublishedStep], Any]) -> Callable[[Any], Any]:
        return lambda row: (guide := row.by_name("guide")) and select(guide)

    return (
        Column("by the guide", of_guide(lambda guide: getattr(guide, figure)), unit, 2),
        Column("its batch", of_guide(lambda guide: f"{guide.batch} x {guide.seq}")),
        Column("its hardware", of_guide(lambda guide: guide.hardware)),
        Column("guide", of_guide(lambda guide: guide.source), priority=0),
    )
