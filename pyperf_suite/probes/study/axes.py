"""The grid of a study as data: the model, what every configuration shares, and the ways to cut the step over ranks."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.shape import Checkpointing
from pyperf_suite.spec.axes import NO, YES, Flag

# What the library under the ranks is called on each kind of device.
LIBRARY = {"cpu": "gloo", "cuda": "nccl"}

MODEL = ("hidden", "heads", "layers", "seq", "vocab", "kv_heads", "ffn", "gated", "tied")
# How a step is cut over ranks; a command line that names one of these asks for a grid of its own.
CUTS = ("data", "tensor", "pipeline", "chunks", "zero_stage")
SHARED = ("global_batch", "batch", "attention", "checkpointing", "dtype", "implementation")
GRID = (*SHARED, *CUTS)


@dataclass(frozen=True)
class Configuration:
    """Axes of the grid that some configurations have values of their own for; they are crossed with the others'.

    `parse` reads one value an axis, as in `data=2;zero_stage=3`.
    """

    axes: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __str__(self) -> str:
        return ";".join(f"{name}={','.join(map(str, values))}" for name, values in self.axes)

    @classmethod
    def of(cls, **axes: Any) -> Configuration:
        """As in `Configuration.of(data=2, zero_stage=(1, 2, 3))`."""
        return cls(tuple((name, each if isinstance(each, tuple) else (each,)) for name, each in axes.items()))

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """Read what a user wrote. Raises UserError for anything that is no axis of the grid with a value."""
        found = {}
        for part in filter(None, text.split(";")):
            name, equals, value = part.strip().partition("=")
            if not equals or name not in GRID:
                raise UserError(f"{part!r} is no part of a configuration: write AXIS=VALUE with {', '.join(GRID)}.")
            found[name] = (parse_value(name, value),)
        return cls(tuple(found.items()))

    def without(self, names: typing.Container[str]) -> Configuration:
        """The same with those axes left to the grid."""
        return Configuration(tuple(each for each in self.axes if each[0] not in names))


@dataclass(frozen=True)
class StudyAxes:
    """A cross product of all axes; with `configuration`, one for each of these, whose own values stand for the grid's.

    `batch` is the sequences of a micro-batch, `global_batch` of an iteration over all ranks. `zero_stage` 0 is DDP.
    """

    hidden: tuple[int, ...]
    heads: tuple[int, ...]
    layers: tuple[int, ...]
    seq: tuple[int, ...]
    vocab: tuple[int, ...]
    global_batch: tuple[int, ...]
    batch: tuple[int, ...]
    implementation: tuple[str, ...]
    dtype: tuple[str, ...] = ("float32",)
    kv_heads: tuple[int, ...] = (0,)
    ffn: tuple[int, ...] = (0,)
    gated: tuple[Flag, ...] = (NO,)
    # A pipeline has embedding and logits on different ranks: one model for all configurations is one that ties nothing.
    tied: tuple[Flag, ...] = (NO,)
    attention: tuple[str, ...] = ("flash",)
    checkpointing: tuple[Checkpointing, ...] = (Checkpointing(),)
    data: tuple[int, ...] = (1,)
    tensor: tuple[int, ...] = (1,)
    pipeline: tuple[int, ...] = (1,)
    chunks: tuple[int, ...] = (1,)
    zero_stage: tuple[int, ...] = (0,)
    configuration: tuple[Configuration, ...] = ()

    def given(self, axes: Mapping[str, tuple[Any, ...]]) -> StudyAxes:
        """With some axes replaced everywhere; those that cut a step differently leave no configuration of before."""
        kept = () if any(name in CUTS for name in axes) else self.configuration
        changed: dict[str, Any] = dict(axes)
        return replace(self, configuration=tuple(each.without(axes) for each in kept), **changed)


def default_axes(device: Device, gpus: int = 1) -> StudyAxes:
    """A tiny GPT on 1 to 4 ranks of a CPU; on GPUs a larger one over all of them, cut in each way that they divide."""
    if device.kind == "cpu":
        return StudyAxes(
            hidden=(128,),
            heads=(4,),
            layers=(4,),
            seq=(128,),
            vocab=(512,),
            global_batch=(8,),
            batch=(2,),
            implementation=(LIBRARY["cpu"],),
            configuration=(
                Configuration.of(data=(1, 2, 4)),
                Configuration.of(attention="math"),
                Configuration.of(checkpointing=Checkpointing("every")),
                Configuration.of(data=2, zero_stage=(1, 2, 3)),
                Configuration.of(tensor=2),
                Configuration.of(pipeline=2, chunks=(1, 2)),
            ),
        )
    # Heads, layers and micro-batches come out even over so many.
    ranks = max(power for power in (1, 2, 4, 8) if power <= gpus)
    several = (
        Configuration.of(data=ranks, zero_stage=(0, 1, 2, 3)),
        Configuration.of(data=ranks, zero_stage=1, attention="math"),
        Configuration.of(tensor=ranks),
        Configuration.of(pipeline=ranks, chunks=(1, 2)),
    )
    return StudyAxes(
        hidden=(2048,),
        heads=(16,),
        layers=(16,),
        seq=(2048,),
        vocab=(50304,),
        global_batch=(16,),
        batch=(1,),
        implementation=(LIBRARY["cuda"],),
        dtype=("bfloat16",),
        configuration=(
            Configuration.of(attention=("flash", "math")),
            Configuration.of(checkpointing=Checkpointing("every")),
            *(several if ranks > 1 else ()),
        ),
    )


def kind_of(axis: str) -> Any:
    """The type of one value of an axis."""
    return typing.get_args(typing.get_type_hints(StudyAxes)[axis])[0]


def parse_value(axis: str, text: str) -> Any:
    """One value as a command line has it. Raises UserError for one of another kind."""
    kind = kind_of(axis)
    if hasattr(kind, "parse"):
        return kind.parse(text.strip())
    try:
        return kind(text.strip())
    except ValueError:
        raise UserError(f"{axis}={text} was asked for, but {axis} takes {WORDS[kind]}.") from None


def read_value(axis: str, value: Any) -> Any:
    """One value as a file has it. Raises UserError for one of another kind."""
    kind = kind_of(axis)
    if kind is Flag and isinstance(value, bool):
        return YES if value else NO
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind not in (int, Flag) and isinstance(value, str):
        return parse_value(axis, value)
    raise UserError(f"{axis} is {_short(value)}, but takes {WORDS[kind]}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


WORDS: dict[Any, str] = {int: "a whole number", str: "a word", Flag: "true or false", Checkpointing: "a word"}
