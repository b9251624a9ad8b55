"""How far a machine's verdicts can be trusted, measured: code compared with itself, and with itself slowed down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Selfcheck:
    """What a selfcheck of one machine found."""

    path: Path

    def sentence(self) -> str:
        """One line for `compare` and `ab`: `this machine's false-alarm rate: 0.5 % [0.0, 2.0] of 200 comparisons…`."""
        return ""


def latest_selfcheck(results: Path, machine: str) -> Selfcheck | None:
    """The newest selfcheck stored for a machine (its slug) that holds a comparison; None where there is none."""
    found = sorted((results / machine).glob("selfcheck-*/selfcheck.json"))
    return Selfcheck(found[-1]) if found else None
