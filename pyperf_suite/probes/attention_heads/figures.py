"""Pictures of the attention sweeps: throughput over heads and over head_dim, every implementation and the law."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyperf_suite.laws.attention.law import FittedLaw
from pyperf_suite.probes.attention_heads.law import law_key, tiled
from pyperf_suite.probes.attention_heads.sweeps import BACKWARD, FORWARD, Sweep, kv_ratio, what
from pyperf_suite.spec.findings import Figure, Panel, Series
from pyperf_suite.spec.rows import grouped

# Two points are a table's row, not a picture.
FEWEST_SIZES = 3

# Where implementations change their kernel: head dimensions beyond these take the next one's (FlashAttention-3).
BUCKETS = (64, 96, 128, 192, 256)


def figures_of(sweeps: Iterable[Sweep], laws: Mapping[str, FittedLaw]) -> Iterator[Figure]:
    """One figure for each dtype, way of measuring and number fixed: a panel a pass, a series an implementation."""
    drawn = grouped(
        (sweep for sweep in sweeps if len(sweep.sizes) >= FEWEST_SIZES),
        lambda sweep: (sweep.along, sweep.fixed, sweep.row.mode, sweep.row.dtype, sweep.row.workers, what(sweep.row)),
    )
    for (along, size, mode, dtype, workers, computed), members in drawn.items():
        row = members[0].row
        fixed = f"hidden {size}" if along == "heads" else f"{size} heads"
        mask = "causal" if row.causal else "full"
        panels = [_panel(members, name, laws) for name in (FORWARD, BACKWARD)]
        yield Figure(
            name=f"attention_{along}_{fixed.replace(' ', '_')}_{mode}_{dtype}_w{workers}"
            f"_b{row.batch}_q{row.seq_q}_k{row.keys}_{mask}_kv{kv_ratio(row)}",
            title=f"Attention by {'number of heads' if along == 'heads' else 'head dimension'}: {fixed}, {dtype}, "
            f"{computed}",
            caption="Points: measured, bars span the processes; line: the law of our own kernel. Padding does not "
            "count as work." + (" Dotted: the buckets of head_dim." if along == "head_dim" else ""),
            rows=(tuple(panel for panel in panels if panel.series),),
        )


def _panel(sweeps: Sequence[Sweep], name: str, laws: Mapping[str, FittedLaw]) -> Panel:
    measured = [sweep for sweep in sweeps if name in sweep.passes]
    sizes = [size for sweep in measured for size in sweep.passes[name]]
    edges = [float(bucket) for bucket in BUCKETS if sizes and min(sizes) <= bucket <= max(sizes)]
    return Panel(
        title=name,
        x_label=sweeps[0].along,
        y_label="throughput",
        series=tuple(series for sweep in measured for series in _series(sweep, name, laws)),
        weak_edges=tuple(edges) if sweeps[0].along == "head_dim" else (),
        y_unit="TFLOP/s",
    )


def _series(sweep: Sweep, name: str, laws: Mapping[str, FittedLaw]) -> Iterator[Series]:
    """What was measured, and the law where the kernel has one."""
    rows = sweep.passes[name]
    label = f"{sweep.row.implementation} {sweep.row.blocks or ''}".rstrip()
    rates = [row.flop_per_s for row in rows.values()]
    low = [row.flop / row.high for row in rows.values()]
    high = [row.flop / row.low for row in rows.values()]
    yield Series(label, list(rows), rates, "points", low, high)
    cases = {size: case for size, row in rows.items() if (case := tiled(row)) is not None}
    fitted = laws.get(law_key(sweep.row))
    if fitted is not None and cases:
        seconds = fitted.law.seconds(list(cases.values())).tolist()
        predicted = [rows[size].flop / second for size, second in zip(cases, seconds, strict=True)]
        yield Series(f"law of {label}", list(cases), predicted, "line")
