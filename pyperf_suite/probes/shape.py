"""The shape of one product as an axis is written: MxNxK."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyperf_suite.errors import UserError


@dataclass(frozen=True)
class Shape:
    """M x N x K of one product."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """The inverse of `str`. Raises UserError for anything else."""
        parts = text.split("x")
        if len(parts) != 3 or not all(re.fullmatch("-?[0-9]{1,12}", part.strip()) for part in parts):
            raise UserError(f"{text[:80]!r} is not a shape: write MxNxK, as in 512x4096x1024.")
        return cls(*(int(part) for part in parts))
