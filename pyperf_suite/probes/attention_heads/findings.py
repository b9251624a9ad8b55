"""What the attention sweeps say: the number of heads to take and why, head_dim's cliffs, and the law beside them."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyperf_suite.laws.attention.law import FittedLaw, causes
from pyperf_suite.laws.matmul.tiling import Tile, tile_efficiency
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.probes.attention_heads.law import law_key, laws_of, tiled
from pyperf_suite.probes.attention_heads.sweeps import (
    HELD,
    ends,
    is_swept,
    kernel,
    kv_ratio,
    pass_of,
    relative_rate,
    split,
    sweep_of,
    sweeps_of,
    what,
)
from pyperf_suite.spec.findings import Figure, Findings, Panel, Remark, Series, Table, findings, remark
from pyperf_suite.spec.probe import RowTable
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, Row, Rows, grouped, series, table, wins

DEFAULT = "sdpa_default"

# What a user can have instead of the default without a kernel of their own.
CHOICES = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math", "flex")

# Two points are a table's row, not a picture.
FEWEST_SIZES = 3

# Where implementations change their kernel: head dimensions beyond these take the next one's (FlashAttention-3).
BUCKETS = (64, 96, 128, 192, 256)

CAUSES = {
    "padding": "head_dim is padded to the next bucket",
    "edges": "fewer of the computed pairs count",
    "slots": "too few tiles leave slots idle",
    "softmax": "more heads have more softmax",
}

IMPLEMENTATION, WHAT, PASS = Column("implementation", kernel), Column("what", what, priority=0), Column("pass", pass_of)
SPLIT, RATE = Column("heads x head_dim", split, priority=2), Column("rate", "flop_per_s", "TFLOP/s", 2)


def analyse(rows: Rows) -> Findings:
    """The recommendation first, then cliffs, what torch picks, the law, and pictures of both kinds of sweep."""
    laws, by_heads = laws_of(rows), sweeps_of(rows, "heads")
    longest = max(map(len, by_heads), default=0)
    return findings(
        # Of masks, key heads and lengths with a few splits only the table tells.
        (advice(sweep, laws.get(law_key(sweep[0]))) for sweep in by_heads if 2 * len(sweep) > longest),
        map(cliff, sweeps_of(rows, "head_dim")),
        picks(rows),
        (told_law(key, law) for key, law in laws.items()),
        table("Fastest and slowest split", EXTREMES, map(ends, by_heads)),
        computed(rows, laws),
        figures(rows, "heads", laws),
        figures(rows, "head_dim", laws),
    )


def of(row: Row) -> dict[str, Any]:
    """What remarks name of a row beside its parameters."""
    return {"kernel": kernel(row), "what": what(row), "split": split(row), "of_pass": pass_of(row)}


def advice(sweep: list[Row], fitted: FittedLaw | None) -> Iterator[Remark]:
    """The fastest split beside the slowest, and what makes the difference in the forward pass."""
    fast, slow = ends(sweep)
    faster = fast.faster_than(slow)
    if faster is None:
        return
    # Heads of K and V get narrower with those of Q; where all share one, it has other parameters.
    parameters = "" if kv_ratio(fast) == "all" else ", with the same parameters"
    template = "{kernel}, {what}, hidden {hidden}: {split} is {faster} as fast as {slow} in {of_pass}" + parameters
    yield fast.remark(template, effect="faster", faster=faster, slow=split(slow), **of(fast))
    bad, good = tiled(slow), tiled(fast)
    if bad is not None and good is not None and wins(faster):
        law = None if fitted is None else fitted.law
        for cause in causes(bad, good, slow.seconds / fast.seconds, law):
            template = "{kernel}, {what}, hidden {hidden}: {split} is slower than {fast}: {cause}"
            yield slow.remark(template, fast=split(fast), cause=CAUSES[cause], **of(slow))


def cliff(sweep: list[Row]) -> Remark | None:
    """The largest drop of throughput from one head dimension to the next."""
    steps = [(relative_rate(after, before), before, after) for before, after in itertools.pairwise(sweep)]
    drops = [(ratio, before, after) for ratio, before, after in steps if ratio is not None and ratio.value < 1]
    if not drops:
        return None
    drop, before, after = min(drops, key=lambda step: step[0].value)
    return before.remark(
        "{kernel}, {what}, {heads} heads: throughput of {of_pass} falls most from head_dim {head_dim} to {after}, from "
        "{rate} to {then} ({drop})",
        effect="drop",
        after=after.head_dim,
        rate=RATE.cell(before),
        then=RATE.cell(after),
        drop=drop,
        **of(before),
    )


def picks(rows: Rows) -> Iterator[Remark]:
    """Which backends torch picked by itself, and where another was faster beyond the interval."""
    for key, members in grouped(rows.where(implementation=DEFAULT), law_key).items():
        paths = Counter(str(row.kernel.get("path", "a backend it does not tell")) for row in members)
        for path, count in sorted(paths.items()):
            template = "{kernel}: torch picked {path} in {count} of {cases} cases"
            yield remark(template, kernel=key, path=path, count=count, cases=len(members))
        choices = [(row, row.like(implementation=name)) for row in members for name in CHOICES]
        ratios = [(other.faster_than(row), other) for row, other in choices if other is not None]
        faster = [(ratio, other) for ratio, other in ratios if ratio is not None and wins(ratio)]
        if faster:
            ratio, best = max(faster, key=lambda each: each[0].value)
            count = len({str(other.parameters) for _, other in faster})
            template = (
                "{kernel} is {faster} as fast as what torch picks at {split} in {of_pass} ({what}), the most of "
                "{count} cases where another backend is faster"
            )
            yield best.remark(template, effect="faster", faster=ratio, count=count, **of(best))


def told_law(key: str, fitted: FittedLaw) -> Remark:
    """The law's constants and how far it is off."""
    return remark(
        "Law of {kernel}: time = overhead + what the busiest slot computes, {overhead} and {product} a product of "
        "both, which are {narrow} of a step at head_dim 64 and {wide} at head_dim 128 (the rest is softmax); fitted on "
        "{fitted_on} forward cases, it misses {held_out} held-out ones by {median} (median; worst {worst})",
        kind="law",
        kernel=key,
        overhead=Quantity(fitted.law.overhead_s, "us"),
        product=Quantity(fitted.law.per_product_s, "ns"),
        narrow=Quantity(fitted.law.product_share(64), "%"),
        wide=Quantity(fitted.law.product_share(128), "%"),
        fitted_on=fitted.fitted_on,
        held_out=len(fitted.held_out),
        median=Quantity(statistics.median(fitted.held_out), "%"),
        worst=Quantity(max(fitted.held_out), "%"),
    )


EXTREMES = (
    Column("implementation", lambda ends: kernel(ends[0])),
    Column("what", lambda ends: what(ends[0])),
    Column("pass", lambda ends: pass_of(ends[0])),
    Column("hidden", lambda ends: ends[0].hidden, priority=0),
    Column("fastest", lambda ends: split(ends[0]), priority=2),
    Column("slowest", lambda ends: split(ends[1]), priority=2),
    Column("faster", lambda ends: ends[0].faster_than(ends[1]), "x", 2),
)


def computed(rows: Rows, laws: Mapping[str, FittedLaw]) -> Table:
    """What the forward kernels compute beside what is asked of them: where splits lose time."""
    cases = {row.case.case_id: case for row in rows if (case := tiled(row)) is not None}

    def softmax(row: Row) -> float | None:
        fitted, head_dim = laws.get(law_key(row)), cases[row.case.case_id].padded_head_dim
        return None if fitted is None else 1 - fitted.law.product_share(head_dim)

    columns = (
        *(IMPLEMENTATION, WHAT, SPLIT),
        Column("padding", lambda row: 1 - cases[row.case.case_id].padding_efficiency, "%"),
        Column("pairs that count", lambda row: cases[row.case.case_id].tile_efficiency, "%"),
        Column("tiles", lambda row: cases[row.case.case_id].tiles),
        Column("slots", lambda row: row.kernel["details"].get("slots")),
        Column("softmax", softmax, "%", predicted=True),
    )
    return table("What the forward kernels compute", columns, rows.where(lambda row: row.case.case_id in cases))


def softmax_share(row: Row) -> Quantity | None:
    """Softmax's and the mask's share of the two-product form: 1 − t(products) / t(whole)."""
    ratio = row.against(implementation="two_gemm_products")
    if ratio is None:
        return None
    low, high = max(0.0, 1 - ratio.high), max(0.0, 1 - ratio.low)
    return Quantity(max(0.0, 1 - ratio.value), "%", low, high, ratio.processes)


def tile_of_values(row: Row) -> Tile | None:
    """The output tile of P·V, rows by columns of a row-major result (see operators/matmul/kernel_names.py)."""
    products = row.kernel.get("details", {}).get("products", ())
    tile = products[-1].get("tile") if len(products) > 1 and not row.backward else None
    if not tile or len(tile) < 2:
        return None
    rows_first = products[-1].get("family") == "nvjet" and str(products[-1].get("name", "")).endswith("N")
    m, n = tile[:2] if rows_first else tile[1::-1]
    return Tile(m, n, 1)


def filled(row: Row) -> float | None:
    """Share of what P·V computes that is its result: poor tiles are the saw-tooth of the two-product form."""
    tile = tile_of_values(row)
    return None if tile is None else float(tile_efficiency(row.seq_q * row.group, row.head_dim, tile))


def figures(rows: Rows, along: str, laws: Mapping[str, FittedLaw]) -> Iterator[Figure]:
    """One figure for each dtype, way of measuring and number fixed: a panel a pass, a series an implementation."""
    drawn = grouped(
        (sweep for sweep in sweeps_of(rows, along) if len(sweep) >= FEWEST_SIZES),
        lambda sweep: (getattr(sweep[0], HELD[along]), sweep[0].mode, sweep[0].dtype, sweep[0].workers, what(sweep[0])),
    )
    for (held, mode, dtype, workers, computed), sweeps in drawn.items():
        row = sweeps[0][0]
        fixed = f"hidden {held}" if along == "heads" else f"{held} heads"
        mask = "causal" if row.causal else "full"
        panels = grouped(sweeps, lambda sweep: sweep[0].backward).values()
        yield Figure(
            name=f"attention_{along}_{fixed.replace(' ', '_')}_{mode}_{dtype}_w{workers}"
            f"_b{row.batch}_q{row.seq_q}_k{row.keys}_{mask}_kv{kv_ratio(row)}",
            title=f"Attention by {'number of heads' if along == 'heads' else 'head dimension'}: {fixed}, {dtype}, "
            f"{computed}",
            caption="Points: measured, bars span the processes; line: the law of our own kernel. Padding does not "
            "count as work." + (" Dotted: the buckets of head_dim." if along == "head_dim" else ""),
            rows=(tuple(_panel(each, along, laws) for each in panels),),
        )


def _panel(sweeps: list[list[Row]], along: str, laws: Mapping[str, FittedLaw]) -> Panel:
    head_dims = [row.head_dim for sweep in sweeps for row in sweep]
    edges = tuple(float(bucket) for bucket in BUCKETS if min(head_dims) <= bucket <= max(head_dims))
    return Panel(
        title=pass_of(sweeps[0][0]),
        x_label=along,
        y_label="throughput",
        series=tuple(each for sweep in sweeps for each in _series(sweep, along, laws)),
        weak_edges=edges if along == "head_dim" else (),
        y_unit="TFLOP/s",
    )


def _series(sweep: list[Row], along: str, laws: Mapping[str, FittedLaw]) -> Iterator[Series]:
    """What was measured, and the law where the kernel has one."""
    label = f"{sweep[0].implementation} {sweep[0].blocks or ''}".rstrip()
    yield series(label, sweep, lambda row: getattr(row, along), lambda row: row.throughput)
    fitted = laws.get(law_key(sweep[0]))
    cases = [(row, case) for row in sweep if (case := tiled(row)) is not None]
    if fitted is not None and cases:
        seconds = fitted.law.seconds([case for _, case in cases]).tolist()
        rates = [(getattr(row, along), row.flop / each) for (row, _), each in zip(cases, seconds, strict=True)]
        yield series(f"law of {label}", rates, lambda point: point[0], lambda point: point[1], "line")


def in_pass(column: Column, backward: bool) -> Column:
    """The column of that pass, whichever of the two a row is."""

    def value(row: Row) -> Any:
        timed = row if row.backward == backward else row.like(backward=backward)
        return None if timed is None else column.cell(timed)

    return replace(column, value=value)


def by_size(title: str, along: str) -> RowTable:
    """A line for each size of each sweep, both passes in it."""

    def beside_best(row: Row) -> Ratio | str | None:
        best = max(sweep_of(row, along), key=lambda each: each.flop_per_s)
        return "best" if best is row else relative_rate(row, best)

    beside = Column("beside the best", beside_best, "x")
    return RowTable(
        title,
        (
            *(IMPLEMENTATION, WHAT),
            Column(HELD[along], priority=0),
            SPLIT,
            Column("computed as", lambda row: (case := tiled(row)) and case.padded_head_dim, priority=0),
            *(replace(in_pass(RATE, False), name="forward"), in_pass(beside, False)),
            *(replace(in_pass(RATE, True), name="backward"), in_pass(beside, True)),
        ),
        where=lambda row: is_swept(row, along) and not (row.backward and row.like(backward=False)),
    )


TABLES = (
    by_size("Throughput by number of heads at constant hidden size", "heads"),
    by_size("Throughput by head dimension at a fixed number of heads", "head_dim"),
    RowTable(
        "Other masks, key heads and lengths",
        (IMPLEMENTATION, WHAT, SPLIT, PASS, Column("time", "seconds", "us"), RATE),
        where=lambda row: not any(is_swept(row, along) for along in HELD),
    ),
    RowTable(
        "Two products with a softmax between them",
        (
            *(IMPLEMENTATION, WHAT, SPLIT, PASS),
            Column("softmax and mask", softmax_share, "%", 2),
            Column("tile of P·V", lambda row: (tile := tile_of_values(row)) and f"{tile.m}x{tile.n}", priority=0),
            Column("tile filled", filled, "%", 0),
        ),
        where=lambda row: row.implementation == "two_gemm",
    ),
)
