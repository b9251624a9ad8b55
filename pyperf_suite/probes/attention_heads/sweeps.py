"""Rows in order: what stays fixed while heads vary, and sweeps by number of heads and by head dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.spec.rows import Reading, Row, Rows, grouped

FORWARD, BACKWARD = "forward", "backward"

# A step over head dimensions shows with three.
FEWEST = {"heads": 2, "head_dim": 3}


def kernel(row: Row | Reading) -> str:
    """Who computes, as in `sustained triton 128x64, bfloat16`."""
    case = row.case
    words = ("" if case.mode == "burst" else case.mode, case.implementation, str(case.parameters.blocks or ""))
    return f"{' '.join(filter(None, words))}, {case.parameters.dtype}"


def what(row: Row) -> str:
    """What is computed, as in `2 x 4096 tokens, causal, kv ratio 4`."""
    keys = "" if row.seq_q == row.keys else f" to {row.keys} keys"
    mask = ", causal" if row.causal else ""
    ratio = "" if kv_ratio(row) == "1" else f", kv ratio {kv_ratio(row)}"
    return f"{row.batch} x {row.seq_q} tokens{keys}{mask}{ratio}"


def split(row: Row) -> str:
    """`40 x 128`: heads and their dimension."""
    return f"{row.heads} x {row.head_dim}"


def kv_ratio(row: Row) -> str:
    """How many query heads share a key head, or "all"."""
    return "all" if row.key_heads == 1 < row.heads else str(row.group)


def pass_of(row: Row) -> str:
    """Which pass was timed."""
    return BACKWARD if row.backward else FORWARD


def setting(row: Row) -> tuple[Any, ...]:
    """What stays fixed while heads vary, in the order of telling."""
    who = (row.implementation, row.mode, row.dtype, row.workers, str(row.blocks or ""))
    return (*who, row.batch, row.seq_q, row.keys, kv_ratio(row), row.causal)


@dataclass(frozen=True)
class Sweep:
    """Rows along `heads` at a fixed hidden size, or along `head_dim` at a fixed number of heads.

    `passes` has the rows of "forward" and of "backward", where any were measured, by heads or head_dim, growing.
    """

    along: str
    fixed: int
    passes: Mapping[str, Mapping[int, Row]]

    @property
    def sizes(self) -> list[int]:
        """The varied number, wherever any pass was measured."""
        return sorted({size for rows in self.passes.values() for size in rows})

    @property
    def row(self) -> Row:
        """One of its rows, for what they all share."""
        return self.at(self.sizes[0])

    def at(self, size: int) -> Row:
        """A row of that size, of either pass."""
        return next(rows[size] for rows in self.passes.values() if size in rows)

    @property
    def kernel_and_fixed(self) -> tuple[Any, ...]:
        """What it shares with sweeps of other masks, key heads and lengths."""
        return (kernel(self.row), self.row.workers, self.fixed)

    @property
    def name(self) -> str:
        """`hidden 768 (native, float32, 1 x 256 tokens)`."""
        fixed = f"hidden {self.fixed}" if self.along == "heads" else f"{self.fixed} heads"
        return f"{fixed} ({kernel(self.row)}, {what(self.row)})"

    def by_time(self) -> list[int]:
        """Sizes that all measured passes have, the fastest first: by forward and backward together."""
        common = set.intersection(*(set(rows) for rows in self.passes.values()))
        return sorted(common, key=lambda size: (sum(rows[size].seconds for rows in self.passes.values()), size))

    def relative_rate(self, name: str, size: int, base: int) -> Ratio | None:
        """Throughput of a pass at one size over that at another; None where no process measured both."""
        row, other = self.passes[name][size], self.passes[name][base]
        ratio = row.faster_than(other)
        return ratio and ratio * (row.flop / other.flop)


def sweeps_of(rows: Rows, along: str) -> list[Sweep]:
    """Sweeps with enough sizes to compare; a row may belong to one of each kind."""
    fixed = "hidden" if along == "heads" else "heads"
    sweeps = []
    for (_, size), members in grouped(rows, lambda row: (setting(row), getattr(row, fixed))).items():
        passes = {
            name: {getattr(row, along): row for row in members if pass_of(row) == name} for name in (FORWARD, BACKWARD)
        }
        sweeps.append(Sweep(along, size, {name: found for name, found in passes.items() if found}))
    return [sweep for sweep in sweeps if len(sweep.sizes) >= FEWEST[along]]


def widest(sweeps: Sequence[Sweep]) -> tuple[list[Sweep], list[Sweep]]:
    """The sweeps with most sizes of each kernel and fixed number, and the others, which vary something beside."""
    most: dict[Any, int] = {}
    for sweep in sweeps:
        most[sweep.kernel_and_fixed] = max(most.get(sweep.kernel_and_fixed, 0), len(sweep.sizes))
    chosen = [sweep for sweep in sweeps if len(sweep.sizes) == most[sweep.kernel_and_fixed]]
    return chosen, [sweep for sweep in sweeps if sweep not in chosen]
