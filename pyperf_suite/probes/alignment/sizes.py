"""Which sizes show what a dimension's divisors cost: around products of transformer layers, and those people meet.

A product varies along one dimension at a time; each size that could be padded brings the size it would be padded to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import largest_power_of_two, round_up
from pyperf_suite.spec.axes import Shape

# The largest power of two of the ladder 1, 2, 4 … of divisors; what divides by more is taken as dividing by this.
TOP_CLASS = 128

# Tokens of a batch come in multiples of this; one more or less is off by one.
NAMED_BESIDE = 64

# The layout in which a layer's passes multiply: y = x·Wᵀ, dx = dy·W, dW = dyᵀ·x.
BASE_LAYOUTS = {"square": "TN", "fprop": "TN", "dgrad": "NN", "wgrad": "NT", "skinny": "TN"}


def class_of(size: int) -> int:
    """The alignment class: the largest power of two that divides the size, the top of the ladder at most."""
    return min(largest_power_of_two(size), TOP_CLASS)


@dataclass(frozen=True)
class Base:
    """A product around which one dimension at a time is varied, and what part it has in a network.

    With tokens, in and out features of a linear layer, M x N x K is tokens x out x in for fprop, tokens x in x out for
    dgrad and out x in x tokens for wgrad.
    """

    part: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.part}:{self.shape}"

    @classmethod
    def parse(cls, text: str) -> Base:
        """The inverse of `str`. Raises UserError for anything else."""
        part, _, shape = text.strip().partition(":")
        if part not in BASE_LAYOUTS:
            raise UserError(
                f"{text!r} is not a base: write PART:MxNxK with one of {', '.join(BASE_LAYOUTS)}, "
                "as in fprop:256x1024x1024."
            )
        return cls(part, Shape.parse(shape))


@dataclass(frozen=True)
class RealLife:
    """A size of which it is known that people stumble over it, along one dimension of a layer's fprop.

    `sizes` are those of the dimension, `beside` offsets from its usual size, `pad_to` the multiples people pad it to.
    """

    along: str
    known_as: str
    pad_to: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()


REAL_LIFE = {
    "vocabulary": RealLife("n", "vocabulary of GPT-2", (64,), sizes=(50257,)),
    "ffn": RealLife("n", "FFN of 8/3 x 4096", (64, 256), sizes=(10922,)),
    "ffn_down": RealLife("k", "FFN of 8/3 x 4096, on the way down", (64, 256), sizes=(10922,)),
    "hidden": RealLife("k", "hidden size off by one", (64,), sizes=(4095, 4097)),
    "tokens": RealLife("m", "batch x sequence off by one", (8,), beside=(-1, 1)),
    "none": RealLife("m", "none", ()),
}


def known_as(along: str, size: int) -> str | None:
    """What people know this size of this dimension as, if it is no size that another would be padded to."""
    for case in REAL_LIFE.values():
        off_by_one = any((size - offset) % NAMED_BESIDE == 0 for offset in case.beside)
        if along == case.along and (size in case.sizes or off_by_one):
            return case.known_as
    return None


@dataclass(frozen=True)
class Varied:
    """One dimension of a product and the sizes it takes, ascending; `pad_to` the multiples they are padded to."""

    shape: Shape
    layout: str
    along: str
    sizes: tuple[int, ...]
    pad_to: tuple[int, ...]

    def shapes(self) -> list[dict[str, Any]]:
        """M, N and K for every size, and for every size that one is padded to."""
        padded = (round_up(size, multiple) for size in self.sizes for multiple in self.pad_to)
        return [vars(self.shape) | {self.along: size} for size in sorted({*self.sizes, *padded})]

    def padded_at_each_call(self) -> list[dict[str, Any]]:
        """M, N, K and the multiple to pad them to, where that changes this dimension and no other."""
        others = [size for name, size in vars(self.shape).items() if name != self.along]
        return [
            vars(self.shape) | {self.along: size, "pad_to": multiple}
            for size in self.sizes
            for multiple in self.pad_to
            if size % multiple and not any(other % multiple for other in others)
        ]
