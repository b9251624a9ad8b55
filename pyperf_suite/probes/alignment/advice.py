"""Pad or not: for each size what it wins to build the larger one, and what to pad at each call, with a verdict.

Advice is given only beyond the interval: what was measured once too often or too seldom to tell is called undecided.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyperf_suite.probes.alignment.sweeps import Pad, Sweep
from pyperf_suite.spec.findings import Table
from pyperf_suite.spec.rows import is_settled, wins

COLUMNS = (
    "implementation, dtype, layout",
    "M x N x K",
    "size",
    "known as",
    "pad to",
    "throughput beside it",
    "built so: x faster",
    "padded at each call: x faster",
    "verdict",
)


def verdict(pad: Pad) -> str:
    """What to do about a size: pad it where it is made, at each call as well, or leave it."""
    call = pad.at_each_call
    if wins(pad.once):
        if call is None:
            return "build it padded"
        if wins(call):
            return "pad, even at each call"
        return (
            "build it padded, do not pad at each call"
            if is_settled(call)
            else "build it padded; at each call undecided"
        )
    return "leave it" if is_settled(pad.once) else "undecided"


def pads_of(sweep: Sweep) -> list[Pad]:
    """Every size that a larger one was measured for, beside the larger one that takes the least time."""
    found = (sweep.pad(size, sweep.cheapest_above(size)) for size in sweep.sizes)
    return [pad for pad in found if pad is not None]


def pad_table(sweeps: Sequence[Sweep]) -> Table | None:
    """One row a size, those with a name first; None where nothing could be padded.

    A person pads for the library: kernels of ours have rows of their own only where they were measured alone.
    """
    libraries = [sweep for sweep in sweeps if sweep.setting.is_library]
    sweeps = libraries or sweeps
    rows = [(pad.size not in sweep.names, _row(sweep, pad)) for sweep in sweeps for pad in pads_of(sweep)]
    ordered = tuple(row for _, row in sorted(rows, key=lambda each: each[0]))
    return Table("Pad or not, net of the padding's own work", COLUMNS, ordered) if rows else None


def real_life_sentences(sweeps: Sequence[Sweep]) -> list[str]:
    """What to do about each size that people stumble over, as a library multiplies it."""
    sentences = []
    for sweep in sweeps:
        if sweep.setting.is_library:
            named = [pad for pad in pads_of(sweep) if pad.size in sweep.names]
            sentences += [_sentence(sweep, pad) for pad in named]
    return sentences


def _sentence(sweep: Sweep, pad: Pad) -> str:
    name = sweep.along.upper()
    call = f", padding at each call {pad.at_each_call} x" if pad.at_each_call else ""
    return (
        f"{_capitalised(sweep.names[pad.size])}, {name} = {pad.size} -> {pad.padded} ({sweep.setting}, "
        f"{sweep.shape(name)}): built so it runs {pad.once} x as fast{call}: {verdict(pad)}."
    )


def _row(sweep: Sweep, pad: Pad) -> tuple[str, ...]:
    return (
        str(sweep.setting),
        sweep.shape(sweep.along.upper()),
        str(pad.size),
        sweep.names.get(pad.size, "-"),
        str(pad.padded),
        f"{pad.relative_rate.value:.2f}",
        str(pad.once),
        str(pad.at_each_call) if pad.at_each_call else "-",
        verdict(pad),
    )


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
