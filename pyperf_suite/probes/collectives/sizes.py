"""Sizes of messages as an axis is written: one, or a ladder as in 1KiB..1GiB:4."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyperf_suite.errors import UserError

# nccl-tests means powers of 1024 by K, M and G; units of 1000 would only be mistaken for them.
UNITS = {"": 1, "B": 1, "K": 2**10, "KIB": 2**10, "M": 2**20, "MIB": 2**20, "G": 2**30, "GIB": 2**30}
DEFAULT_FACTOR = 2


@dataclass(frozen=True)
class Sizes:
    """From `smallest` to `largest` bytes, each `factor` times the one before: nccl-tests' -b, -e and -f."""

    smallest: int
    largest: int
    factor: int = DEFAULT_FACTOR

    def ladder(self) -> tuple[int, ...]:
        """Every size in bytes, ascending; the largest is among them where the factor leads to it."""
        sizes = [self.smallest]
        while sizes[-1] * self.factor <= self.largest:
            sizes.append(sizes[-1] * self.factor)
        return tuple(sizes)

    def __str__(self) -> str:
        if self.smallest == self.largest:
            return _written(self.smallest)
        return f"{_written(self.smallest)}..{_written(self.largest)}:{self.factor}"

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """The inverse of `str`. Raises UserError for anything else, and for a ladder that leads nowhere."""
        match = re.fullmatch(r"\s*([^.:]+)(?:\.\.([^.:]+)(?::(\d{1,9}))?)?\s*", text)
        if match is None:
            raise UserError(f"{text!r} is not a size: write one as in 64KiB, or a ladder as in 1KiB..1GiB:4.")
        smallest = _bytes(match[1])
        sizes = cls(smallest, _bytes(match[2]) if match[2] else smallest, int(match[3] or DEFAULT_FACTOR))
        if sizes.factor < 2 or sizes.largest < sizes.smallest:
            raise UserError(
                f"The sizes {text!r} do not grow: write the smaller one first and a factor of at least 2, as in "
                "1KiB..1GiB:4."
            )
        return sizes


def readable(size_bytes: float) -> str:
    """`16 MiB`: in the largest unit that leaves at least one of it."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes:.4g} B"


def _written(size_bytes: int) -> str:
    """The shortest exact spelling."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes % UNITS[unit.upper()] == 0:
            return f"{size_bytes // UNITS[unit.upper()]}{unit}"
    return str(size_bytes)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([a-zA-Z]{0,3})", text.strip())
    if match is None or match[2].upper() not in UNITS or not int(match[1]):
        raise UserError(f"{text.strip()!r} is not a size: write bytes, or KiB, MiB or GiB, as in 64KiB.")
    return int(match[1]) * UNITS[match[2].upper()]
