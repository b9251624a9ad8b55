"""Pictures of the attention sweeps: throughput over heads and over head_dim, every implementation and the law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyperf_suite.probes.attention_heads.law import FittedLaw, law_key, tiled
from pyperf_suite.probes.attention_heads.sweeps import BACKWARD, FORWARD, Sweep
from pyperf_suite.spec.findings import Figure, Panel, Series

# Two points are a table's row, not a picture.
FEWEST_SIZES = 3

# Where implementations change their kernel: head dimensions beyond these take the next one's (FlashAttention-3).
BUCKETS = (64, 96, 128, 192, 256)


def figures_of(sweeps: Sequence[Sweep], laws: Mapping[str, FittedLaw]) -> tuple[Figure, ...]:
    """One figure for each dtype, way of measuring and number fixed: a panel a pass, a series an implementation."""
    drawn: dict[tuple[str, int, str, str, int, str], list[Sweep]] = {}
    for sweep in sweeps:
        setting = sweep.setting
        if len(sweep.sizes) >= FEWEST_SIZES:
            key = (sweep.along, sweep.fixed, setting.mode, setting.dtype, setting.workers, setting.what)
            drawn.setdefault(key, []).append(sweep)
    return tuple(_figure(members, laws) for members in drawn.values())


def _figure(sweeps: Sequence[Sweep], laws: Mapping[str, FittedLaw]) -> Figure:
    first = sweeps[0]
    setting = first.setting
    fixed = f"hidden {first.fixed}" if first.along == "heads" else f"{first.fixed} heads"
    mask = "causal" if setting.causal else "full"
    shape = f"b{setting.batch}_q{setting.seq_q}_k{setting.seq_k}_{mask}_kv{setting.kv}"
    panels = [_panel(sweeps, name, laws) for name in (FORWARD, BACKWARD)]
    return Figure(
        name=f"attention_{first.along}_{fixed.replace(' ', '_')}_{setting.mode}_{setting.dtype}_"
        f"w{setting.workers}_{shape}",
        title=f"Attention by {'number of heads' if first.along == 'heads' else 'head dimension'}: {fixed}, "
        f"{setting.dtype}, {setting.what}",
        caption="Points: measured, bars span the processes; line: the law of our own kernel. Padding does not count as "
        "work." + (" Dotted: the buckets of head_dim." if first.along == "head_dim" else ""),
        rows=(tuple(panel for panel in panels if panel.series),),
    )


def _panel(sweeps: Sequence[Sweep], name: str, laws: Mapping[str, FittedLaw]) -> Panel:
    series: list[Series] = []
    for sweep in sweeps:
        readings = sweep.passes[name]
        if not readings:
            continue
        setting = sweep.setting
        label = f"{setting.implementation} {setting.blocks}".rstrip()
        taken = readings.values()
        series.append(
            Series(
                label,
                list(readings),
                [reading.tflop_per_s for reading in taken],
                "points",
                [reading.flop / reading.high / 1e12 for reading in taken],
                [reading.flop / reading.low / 1e12 for reading in taken],
            )
        )
        series += _law_line(sweep, name, label, laws.get(law_key(setting)))
    along = sweeps[0].along
    sizes = [size for sweep in sweeps for size in sweep.passes[name]]
    edges = [float(b) for b in BUCKETS if along == "head_dim" and sizes and min(sizes) <= b <= max(sizes)]
    return Panel(title=name, x_label=along, y_label="TFLOP/s", series=tuple(series), weak_edges=tuple(edges))


def _law_line(sweep: Sweep, name: str, label: str, fitted: FittedLaw | None) -> list[Series]:
    cases = {size: case for size, r in sweep.passes[name].items() if (case := tiled(r)) is not None}
    if fitted is None or not cases:
        return []
    seconds = fitted.law.seconds(list(cases.values())).tolist()
    flops = [sweep.passes[name][size].flop for size in cases]
    rates = [flop / second / 1e12 for flop, second in zip(flops, seconds, strict=True)]
    return [Series(f"law of {label}", list(cases), rates, "line")]
