"""What the attention sweeps say: the number of heads to take and why, head_dim's cliffs, and the law beside them."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyperf_suite.laws.attention.law import FittedLaw, causes
from pyperf_suite.laws.matmul.tiling import Tile, tile_efficiency
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.probes.attention_heads.figures import figures_of
from pyperf_suite.probes.attention_heads.law import law_key, laws_of, tiled
from pyperf_suite.probes.attention_heads.sweeps import (
    BACKWARD,
    FORWARD,
    Sweep,
    kernel,
    pass_of,
    split,
    sweeps_of,
    what,
    widest,
)
from pyperf_suite.spec.findings import Findings, Remark, Table, findings, remark
from pyperf_suite.spec.probe import RowTable
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, Row, Rows, grouped, table, wins

DEFAULT = "sdpa_default"

# What a user can have instead of the default without a kernel of their own.
CHOICES = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math", "flex")


def analyse(rows: Rows) -> Findings:
    """The recommendation first, tables of all that was measured, pictures of both kinds of sweep."""
    laws = laws_of(rows)
    by_heads, by_head_dim = sweeps_of(rows, "heads"), sweeps_of(rows, "head_dim")
    chosen, beside = widest(by_heads)
    swept = {
        row.case.case_id for each in by_heads + by_head_dim for one in each.passes.values() for row in one.values()
    }
    others = rows.where(lambda row: row.case.case_id not in swept)
    # What torch picks by itself before others, and decoding, which has no backward pass, last.
    in_order = sorted(chosen, key=lambda sweep: (sweep.row.seq_q == 1, sweep.row.implementation != DEFAULT))
    return findings(
        (advice(sweep, laws.get(law_key(sweep.row))) for sweep in in_order),
        elsewhere(chosen, beside),
        map(cliffs, by_head_dim),
        picks(rows),
        (told_law(key, law) for key, law in laws.items()),
        by_size("Throughput by number of heads at constant hidden size", "hidden", by_heads),
        by_size("Throughput by head dimension at a fixed number of heads", "heads", by_head_dim),
        table("Other masks, key heads and lengths", OTHERS, others),
        figures_of([*chosen, *by_head_dim], laws),
    )


def advice(sweep: Sweep, fitted: FittedLaw | None) -> Iterator[Remark]:
    """The fastest split beside the slowest, pass by pass, and what makes the difference in the forward pass."""
    order = sweep.by_time()
    if len(order) < 2:
        return
    fast, slow = sweep.at(order[0]), sweep.at(order[-1])
    shared = {"sweep": sweep.name, "fast": split(fast), "slow": split(slow)}
    parameters = "" if sweep.row.key_heads == 1 else ", with the same parameters"
    for name, rows in sweep.passes.items():
        faster = rows[order[0]].faster_than(rows[order[-1]])
        if faster is not None:
            template = f"{{sweep}}: {{fast}} is {{faster}} as fast as {{slow}} in {name}{parameters}"
            yield remark(template, effect="faster", faster=faster, **shared)
            if name == FORWARD and wins(faster):
                yield from why(rows[order[-1]], rows[order[0]], fitted, shared)


def why(slow: Row, fast: Row, fitted: FittedLaw | None, shared: dict[str, str]) -> list[Remark]:
    """The causes that explain the difference, the strongest first."""
    bad, good = tiled(slow), tiled(fast)
    if bad is None or good is None:
        return []
    law = fitted.law if fitted is not None else None
    softmax = [1 - law.product_share(case.padded_head_dim) if law is not None else 0.0 for case in (bad, good)]
    told = {
        "padding": remark(
            "{sweep}: {slow} computes head_dim {head_dim} as {padded}",
            head_dim=bad.head_dim,
            padded=bad.padded_head_dim,
            **shared,
        ),
        "edges": remark(
            "{sweep}: {bad} of the pairs that {slow} computes count, {good} of those of {fast}",
            bad=Quantity(bad.tile_efficiency, "%"),
            good=Quantity(good.tile_efficiency, "%"),
            **shared,
        ),
        "slots": remark(
            "{sweep}: {slow} has {tiles} tiles for {slots} slots", tiles=bad.tiles, slots=bad.slots, **shared
        ),
        "softmax": remark(
            "{sweep}: the softmax takes {bad} of a step of {slow}, {good} of one of {fast}",
            bad=Quantity(softmax[0], "%", predicted=True),
            good=Quantity(softmax[1], "%", predicted=True),
            **shared,
        ),
    }
    return [told[cause] for cause in causes(bad, good, slow.seconds / fast.seconds, law)]


def elsewhere(chosen: Sequence[Sweep], beside: Sequence[Sweep]) -> Iterator[Remark]:
    """Whether each recommendation holds under other masks, key heads and lengths, where fewer splits were measured."""
    for key, (sweep, *_) in grouped(chosen, lambda sweep: sweep.kernel_and_fixed).items():
        order = sweep.by_time()
        orders = [(other, other.by_time()) for other in beside if other.kernel_and_fixed == key]
        compared = [(other, theirs) for other, theirs in orders if len(theirs) > 1 and set(theirs) <= set(order)]
        # Few splits were measured there: the recommendation stands where the fastest of them is so in the wide sweep.
        moved = [(other, theirs) for other, theirs in compared if theirs[0] != min(theirs, key=order.index)]
        shared = {"kernel": kernel(sweep.row), "hidden": sweep.fixed}
        if compared:
            yield remark(
                "{kernel}, hidden {hidden}: the same split is the fastest in {same} of {compared} other masks, kv "
                "ratios, lengths and decoding",
                same=len(compared) - len(moved),
                compared=len(compared),
                **shared,
            )
        for other, theirs in moved:
            template = "{kernel}, hidden {hidden}: {split} is the fastest for {what}"
            yield remark(template, split=split(other.at(theirs[0])), what=what(other.row), **shared)


def cliffs(sweep: Sweep) -> Iterator[Remark]:
    """The largest drop of throughput from one head dimension to the next, for each pass."""
    for name, rows in sweep.passes.items():
        steps = [
            (sweep.relative_rate(name, after, before), before, after) for before, after in itertools.pairwise(rows)
        ]
        drops = [(ratio, before, after) for ratio, before, after in steps if ratio is not None and ratio.value < 1]
        if len(rows) > 2 and drops:
            ratio, before, after = min(drops, key=lambda drop: drop[0].value)
            yield remark(
                "{sweep}: {pass} throughput falls most from head_dim {before} to {after}, {rate} -> {rate_after} ({ratio})",
                effect="ratio",
                sweep=sweep.name,
                before=before,
                after=after,
                ratio=ratio,
                rate=Quantity(rows[before].flop_per_s, "TFLOP/s"),
                rate_after=Quantity(rows[after].flop_per_s, "TFLOP/s"),
                **{"pass": name},
            )


def picks(rows: Rows) -> Iterator[Remark]:
    """Which backends torch picked by itself, and where another was faster beyond the interval."""
    for key, members in grouped(rows.where(implementation=DEFAULT), law_key).items():
        paths = Counter(str(row.kernel.get("path", "a backend it does not tell")) for row in members)
        for path, count in sorted(paths.items()):
            template = "{kernel}: torch picked {path} in {count} of {cases} cases"
            yield remark(template, kernel=key, path=path, count=count, cases=len(members))
        ratios = [
            (ratio, row, name)
            for row in members
            for name in CHOICES
            if (other := row.like(implementation=name)) is not None
            if (ratio := other.faster_than(row)) is not None and wins(ratio)
        ]
        if ratios:
            faster, row, name = max(ratios, key=lambda each: each[0].value)
            yield remark(
                "{name} is {faster} as fast as {kernel} at {split} in {pass} ({what}), the most of {count} cases",
                effect="faster",
                name=name,
                faster=faster,
                kernel=key,
                split=split(row),
                what=what(row),
                count=len({row.case.case_id for _, row, _ in ratios}),
                **{"pass": pass_of(row)},
            )


def told_law(key: str, fitted: FittedLaw) -> Remark:
    """The law's constants and how far it is off."""
    law = fitted.law
    return remark(
        "Law of {kernel}: time = overhead + what the busiest slot computes, {overhead} and {product} a product of both, "
        "which are {narrow} of a step at head_dim 64 and {wide} at head_dim 128 (the rest is softmax); fitted on "
        "{fitted_on} forward cases, it misses {held_out} of held-out head dimensions, lengths and masks by {median} "
        "(median; worst {worst})",
        kind="law",
        kernel=key,
        overhead=Quantity(law.overhead_s, "us"),
        product=Quantity(law.per_product_s, "ns"),
        narrow=Quantity(law.product_share(64), "%"),
        wide=Quantity(law.product_share(128), "%"),
        fitted_on=fitted.fitted_on,
        held_out=len(fitted.held_out),
        median=Quantity(statistics.median(fitted.held_out), "%"),
        worst=Quantity(max(fitted.held_out), "%"),
    )


@dataclass(frozen=True)
class Place:
    """One size of a sweep with both of its passes: a line of a table."""

    sweep: Sweep
    size: int

    def rate(self, name: str) -> float | None:
        """Useful work a second in that pass."""
        row = self.sweep.passes.get(name, {}).get(self.size)
        return None if row is None else row.flop_per_s

    def beside_best(self, name: str) -> Ratio | str | None:
        """Throughput of a pass relative to that of the best size."""
        rows = self.sweep.passes.get(name, {})
        if self.size not in rows:
            return None
        best = max(rows, key=lambda size: rows[size].flop_per_s)
        return "best" if best == self.size else self.sweep.relative_rate(name, self.size, best)


def in_vain(row: Row) -> float | None:
    """Share of the products that are the padding of head_dim."""
    case = tiled(row)
    return None if case is None else 1 - case.padding_efficiency


IMPLEMENTATION, WHAT = Column("implementation", kernel), Column("what", what, priority=0)
SPLIT = (
    Column("heads x head_dim", split, priority=2),
    Column("computed as", lambda row: case.padded_head_dim if (case := tiled(row)) is not None else None, priority=0),
    Column("padding", in_vain, "%", priority=0),
)
PASS = Column("pass", pass_of)
OTHERS = (
    *(IMPLEMENTATION, WHAT, *SPLIT, PASS),
    Column("time", lambda row: row.seconds, "us"),
    Column("rate", lambda row: row.flop_per_s, "TFLOP/s", 2),
)


def by_size(title: str, fixed: str, sweeps: Sequence[Sweep]) -> Table:
    """A line for each size of each sweep."""
    of_row = (IMPLEMENTATION, WHAT, Column(fixed, lambda row: getattr(row, fixed)), *SPLIT)
    columns = [replace(each, value=lambda at, of=each.value: of(at.sweep.at(at.size))) for each in of_row]
    for name in (FORWARD, BACKWARD):
        columns.append(Column(f"{name} rate", partial(Place.rate, name=name), "TFLOP/s", 2))
        columns.append(Column("beside the best", partial(Place.beside_best, name=name), "x"))
    return table(title, columns, (Place(sweep, size) for sweep in sweeps for size in sweep.sizes))


def softmax_share(row: Row) -> Quantity | None:
    """Softmax's and the mask's share of the two-product form: 1 − t(products) / t(whole)."""
    products = row.like(implementation="two_gemm_products")
    ratio = None if products is None else products.faster_than(row)
    if ratio is None:
        return None
    value, low, high = (max(0.0, 1 - 1 / each) for each in (ratio.value, ratio.low, ratio.high))
    return Quantity(value, "%", low, high, ratio.processes)


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


def tile_name(row: Row) -> str | None:
    """`128x64`."""
    tile = tile_of_values(row)
    return None if tile is None else f"{tile.m}x{tile.n}"


TWO_PRODUCTS = RowTable(
    "Two products with a softmax between them",
    (
        *(IMPLEMENTATION, WHAT, SPLIT[0], PASS),
        Column("softmax and mask", softmax_share, "%", 2),
        Column("tile of P·V", tile_name, priority=0),
        Column("filled", filled, "%", 0),
    ),
    where=lambda row: row.implementation == "two_gemm",
)
