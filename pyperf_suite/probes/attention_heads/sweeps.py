"""Readings of the attention probe in order: what stays fixed, and sweeps by number of heads and by head dimension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.spec.rows import Reading, speedup

# Our own kernels, whose blocks are asked for.
OWN = ("native", "triton")

FORWARD, BACKWARD = "forward", "backward"

# A step over head dimensions shows with three.
FEWEST = {"heads": 2, "head_dim": 3}


@dataclass(frozen=True, order=True)
class Setting:
    """What stays fixed while heads vary. `kv` is how many query heads share a key head, or "all"."""

    implementation: str
    mode: str
    dtype: str
    workers: int
    blocks: str
    batch: int
    seq_q: int
    seq_k: int
    kv: str
    causal: bool

    @classmethod
    def of(cls, reading: Reading) -> Setting:
        """The setting that a reading was taken in."""
        p, case = reading.case.parameters, reading.case
        return cls(
            implementation=case.implementation,
            mode=case.mode,
            dtype=p.dtype,
            workers=p.workers,
            blocks=str(p.blocks or ""),
            batch=p.batch,
            seq_q=p.seq_q,
            seq_k=p.keys,
            kv="all" if p.key_heads == 1 < p.heads else str(p.group),
            causal=p.causal,
        )

    @property
    def kernel(self) -> str:
        """Who computes, as in `sustained triton 128x64, bfloat16`."""
        mode = "" if self.mode == "burst" else f"{self.mode} "
        return f"{mode}{self.implementation}{' ' + self.blocks if self.blocks else ''}, {self.dtype}"

    @property
    def what(self) -> str:
        """What is computed, as in `2 x 4096 tokens, causal, kv ratio 4`."""
        tokens = f"{self.batch} x {self.seq_q} tokens"
        if self.seq_q != self.seq_k:
            tokens += f" to {self.seq_k} keys"
        mask = ", causal" if self.causal else ""
        return tokens + mask + ("" if self.kv == "1" else f", kv ratio {self.kv}")

    def __str__(self) -> str:
        return f"{self.kernel}, {self.what}"


@dataclass(frozen=True)
class Sweep:
    """Readings along `heads` at a fixed hidden size, or along `head_dim` at a fixed number of heads.

    `passes` has the readings of "forward" and of "backward" by heads or head_dim, growing.
    """

    setting: Setting
    along: str
    fixed: int
    passes: Mapping[str, Mapping[int, Reading]]

    @property
    def sizes(self) -> list[int]:
        """The varied number, wherever any pass was measured."""
        return sorted({size for readings in self.passes.values() for size in readings})

    @property
    def kernel_and_fixed(self) -> tuple[str, int, int]:
        """What it shares with sweeps of other masks, key heads and lengths."""
        return (self.setting.kernel, self.setting.workers, self.fixed)

    def split(self, size: int) -> str:
        """`40 x 128`: heads and their dimension."""
        heads, head_dim = (size, self.fixed // size) if self.along == "heads" else (self.fixed, size)
        return f"{heads} x {head_dim}"

    def by_time(self) -> list[int]:
        """Sizes that all measured passes have, the fastest first: by forward and backward together."""
        measured = [readings for readings in self.passes.values() if readings]
        common = set.intersection(*(set(readings) for readings in measured))
        return sorted(common, key=lambda size: (sum(readings[size].seconds for readings in measured), size))

    def faster(self, fast: int, slow: int) -> dict[str, Ratio]:
        """For each pass, how many times faster one size is than another; passes that lack either are left out."""
        found = {}
        for name, readings in self.passes.items():
            ratio = speedup(readings[slow], readings[fast]) if {fast, slow} <= readings.keys() else None
            if ratio is not None:
                found[name] = ratio
        return found

    def relative_rate(self, name: str, size: int, beside: int) -> Ratio | None:
        """Throughput of a pass at one size over that at another."""
        readings = self.passes[name]
        ratio = speedup(readings[beside], readings[size])
        return ratio and ratio * (readings[size].flop / readings[beside].flop)


def sweeps_of(found: Iterable[Reading], along: str) -> list[Sweep]:
    """Sweeps with enough sizes to compare, in the order of their settings; a reading may belong to one of each kind."""
    members: dict[tuple[Setting, int], dict[str, dict[int, Reading]]] = {}
    for reading in found:
        p = reading.case.parameters
        size, fixed = (p.heads, p.hidden) if along == "heads" else (p.head_dim, p.heads)
        passes = members.setdefault((Setting.of(reading), fixed), {FORWARD: {}, BACKWARD: {}})
        passes[BACKWARD if p.backward else FORWARD][size] = reading
    sweeps = [
        Sweep(setting, along, fixed, {name: dict(sorted(readings.items())) for name, readings in passes.items()})
        for (setting, fixed), passes in sorted(members.items(), key=lambda item: item[0])
    ]
    return [sweep for sweep in sweeps if len(sweep.sizes) >= FEWEST[along]]


def widest(sweeps: Sequence[Sweep]) -> tuple[list[Sweep], list[Sweep]]:
    """The sweeps with most sizes of each kernel and fixed number, and the others, which vary something beside."""
    most: dict[tuple[str, int, int], int] = {}
    for sweep in sweeps:
        key = sweep.kernel_and_fixed
        most[key] = max(most.get(key, 0), len(sweep.sizes))
    chosen = [sweep for sweep in sweeps if len(sweep.sizes) == most[sweep.kernel_and_fixed]]
    return chosen, [sweep for sweep in sweeps if sweep not in chosen]
