"""How often something happened of how many tries, with the interval that so few or so many tries allow."""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Proportion:
    """`hits` of `tries`, and where the rate lies with a confidence of at least 95 %.

    The interval is Clopper and Pearson's (*Biometrika* 26, 1934): exact, so never too narrow, also for 0 of 200.
    """

    hits: int
    tries: int

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.tries:
            raise ValueError(f"{self.hits} of {self.tries} is no proportion")

    @property
    def value(self) -> float:
        """The share of hits; nan for no tries."""
        return self.hits / self.tries if self.tries else float("nan")

    @property
    def low(self) -> float:
        """The lowest rate that would give so many hits or more in one of forty series."""
        from scipy import special

        return (
            float(special.betaincinv(self.hits, self.tries - self.hits + 1, (1 - CONFIDENCE) / 2)) if self.hits else 0.0
        )

    @property
    def high(self) -> float:
        """The highest rate that would give so few hits or fewer in one of forty series."""
        from scipy import special

        if self.hits == self.tries:
            return 1.0
        return float(special.betaincinv(self.hits + 1, self.tries - self.hits, (1 + CONFIDENCE) / 2))

    def __str__(self) -> str:
        """As in `0.5 % [0.0, 2.8]`."""
        if not self.tries:
            return "none tried"
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"
