"""Pictures of the attention sweeps: throughput over heads and over head_dim, every implementation and the law."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyperf_suite.laws.attention.law import FittedLaw
from pyperf_suite.probes.attention_heads.law import law_key, tiled
from pyperf_suite.probes.attention_heads.sweeps import HELD, kv_ratio, pass_of, sweeps_of, what
from pyperf_suite.spec.findings import Figure, Panel, Series
from pyperf_suite.spec.rows import Row, Rows, grouped

# Two points are a table's row, not a picture.
FEWEST_SIZES = 3

# Where implementations change their kernel: head dimensions beyond these take the next one's (FlashAttention-3).
BUCKETS = (64, 96, 128, 192, 256)


def figures(rows: Rows, along: str, laws: Mapping[str, FittedLaw]) -> Iterator[Figure]:
    """One figure for each dtype, way of measuring and number fixed: a panel a pass, a series an implementation."""
    drawn = grouped(
        (sweep for sweep in sweeps_of(rows, along) if len(sweep) >= FEWEST_SIZES),
        lambda sweep: (getattr(sweep[0], HELD[along]), sweep[0].mode, sweep[0].dtype, sweep[0].workers, what(sweep[0])),
    )
    for (held, mode, dtype, workers, computed), sweeps in drawn.items():
        row = sweeps[0][0]
        fixed, title = (
            (f"hidden_{held}", f"number of heads: hidden {held}")
            if along == "heads"
            else (f"{held}_heads", f"head dimension: {held} heads")
        )
        mask = "causal" if row.causal else "full"
        yield Figure(
            name=f"attention_{along}_{fixed}_{mode}_{dtype}_w{workers}"
            f"_b{row.batch}_q{row.seq_q}_k{row.keys}_{mask}_kv{kv_ratio(row)}",
            title=f"Attention by {title}, {dtype}, {computed}",
            caption="Points: measured, bars span the processes; line: the law of our own kernel. Padding does not "
            "count as work." + (" Dotted: the buckets of head_dim." if along == "head_dim" else ""),
            rows=(
                tuple(_panel(each, along, laws) for each in grouped(sweeps, lambda each: each[0].backward).values()),
            ),
        )


def _panel(sweeps: list[list[Row]], along: str, laws: Mapping[str, FittedLaw]) -> Panel:
    head_dims = [row.head_dim for sweep in sweeps for row in sweep]
    edges = tuple(float(bucket) for bucket in BUCKETS if min(head_dims) <= bucket <= max(head_dims))
    return Panel(
        title=pass_of(sweeps[0][0]),
        x_label=along,
        y_label="throughput",
        series=tuple(series for sweep in sweeps for series in _series(sweep, along, laws)),
        weak_edges=edges if along == "head_dim" else (),
        y_unit="TFLOP/s",
    )


def _series(sweep: list[Row], along: str, laws: Mapping[str, FittedLaw]) -> Iterator[Series]:
    """What was measured, and the law where the kernel has one."""
    label = f"{sweep[0].implementation} {sweep[0].blocks or ''}".rstrip()
    sizes = [getattr(row, along) for row in sweep]
    low, high = [row.flop / row.high for row in sweep], [row.flop / row.low for row in sweep]
    yield Series(label, sizes, [row.flop_per_s for row in sweep], "points", low, high)
    fitted = laws.get(law_key(sweep[0]))
    cases = [case for row in sweep if (case := tiled(row)) is not None]
    if fitted is not None and len(cases) == len(sweep):
        seconds = fitted.law.seconds(cases).tolist()
        yield Series(f"law of {label}", sizes, [row.flop / s for row, s in zip(sweep, seconds, strict=True)], "line")
