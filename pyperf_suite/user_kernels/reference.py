"""Make a case's inputs and compute its references, in whichever process."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from pyperf_suite.user_kernels.api import USUAL


class Reference(ABC):
    """A file's inputs and references, by requests. `library` is what its arrays are of."""

    library: str
    # Modules that a process of its own may import before it is known whose it is.
    preload: tuple[str, ...] = ()

    @abstractmethod
    def ask(self, request: str, end_s: float | None = None, /, **arguments: Any) -> dict[str, Any]:
        """The answer to one request. Raises Failed."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """True if no other case of the file can go on with it, as it can after what its code raised."""

    @abstractmethod
    def cpu_seconds(self) -> float:
        """CPU time that it used, if it is a process of its own."""

    @abstractmethod
    def close(self) -> None:
        """End it; no request follows."""

    def build(self, requested: Mapping[str, Any], end_s: float) -> dict[str, Any]:
        """Describe a case: its arrays, and what its launch says of them."""
        return self.ask("build", end_s, **requested, seed=secrets.randbits(63), library=self.library)

    def make(
        self, case: Mapping[str, Any], slot: str, end_s: float, seed: int | None = None, inputs: str = USUAL
    ) -> dict[str, Any]:
        """A case's inputs under a seed, by default one that is drawn now, of a kind (api.INPUTS), written to a slot."""
        seed = secrets.randbits(63) if seed is None else seed  # which nobody knows
        return {**self.ask("make", end_s, **case, seed=seed, slot=slot, inputs=inputs), "seed": seed}

    def check(self, path: str, left: Any, end_s: float) -> dict[str, Any]:
        """Ask the file's own check about a result that is in a file, or that was `left` in this process."""
        return self.ask("check", end_s, result=path)

    def expect(
        self, expected: str, end_s: float, sizes: str = "", budget_s: float = 0.0, terms: float | None = None
    ) -> dict[str, Any]:
        """Compute the reference on the last inputs; report whether that shares memory with them, and its sizes."""
        return self.ask("expect", end_s, expected=expected, sizes=sizes, budget_s=budget_s, terms=terms)
