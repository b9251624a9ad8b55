"""What the alignment sweeps say: what to do about each size, what divisors cost, cliffs, where folklore fails."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from pyperf_suite.probes._products import Sweep
from pyperf_suite.probes.alignment.sizes import class_of
from pyperf_suite.probes.alignment.sweeps import (
    AlignmentClass,
    Pad,
    by_setting,
    classes_of,
    defiances_of,
    edges_of,
    is_found,
    jump,
    pads_of,
    sweeps_of,
)
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Figure, Findings, Panel, Remark, findings, remark, remark_on
from pyperf_suite.spec.rows import Column, Row, Rows, grouped, series, table, wins

# A cell names so many sizes; the tables of sizes and the picture hold them all.
MOST_NAMED = 3
# A sweep of fewer sizes is a table's row, not a picture.
FEWEST_SIZES = 3
# Sizes further than this part from the middle one would squeeze the others into a line.
NEARBY = 0.125


def analyse(rows: Rows) -> Findings:
    """Advice for sizes with a name, what padding wins in each setting, the widest cliff and the worst surprise."""
    sweeps = sweeps_of(rows)
    classes = [*classes_of(sweeps)]
    pads = sorted((pad for sweep in sweeps for pad in pads_of(sweep)), key=lambda pad: pad.known_as is None)
    # A person pads for the library: kernels of ours have rows of their own only where they were measured alone.
    of_library = [pad for pad in pads if pad.row.schedule.policy == "library"]
    edges = sorted((edge for sweep in sweeps for edge in edges_of(sweep) if is_found(edge)), key=jump, reverse=True)
    defiances = defiances_of(sweeps)
    return findings(
        None if not classes or any(len(row.by_process) > 1 for row in rows) else remark(ALONE, kind="caution"),
        (_advice(pad) for pad in of_library if pad.known_as),
        (_best(alike) for alike in grouped(classes, lambda each: each.sweep.setting).values()),
        (_at_each_call(alike) for alike in grouped(of_library, lambda pad: pad.sweep.setting).values()),
        (remark_on(edge, CLIFF, effect="rate") for edge in edges[:1]),
        (remark_on(slow, DEFIANCE, effect="rate") for slow in defiances[:1]),
        _refusals(rows.records),
        table("Throughput by divisor, beside the next aligned size", CLASS_COLUMNS, classes),
        table("Pad or not, net of the padding's own work", PAD_COLUMNS, of_library or pads),
        table("Cliffs between sizes that divide alike", EDGE_COLUMNS, edges),
        table("Where sizes that divide by more run slower", DEFIANCE_COLUMNS, defiances),
        _figures(sweeps),
    )


ALONE = (
    "One process measured this, and its intervals know nothing of how processes differ: for advice use "
    "--profile standard, which has three"
)
PLACE = "{sweep.name} = {size} ({sweep.setting}, {sweep.shape})"
CLIFF = PLACE + " runs at {rate} the rate of {other}, which divides alike"
DEFIANCE = PLACE + " runs at {rate} the rate of {other}, which divides by less: folklore fails here"


def _advice(pad: Pad) -> Remark:
    call = ", padded at each call {at_each_call}" if pad.at_each_call else ""
    told = f"{PLACE}, {{known_as}}: built as {{other}} it runs {{gain}} as fast{call}: {{verdict}}"
    # That padding wins nothing is an answer, that nobody knows is none.
    return remark_on(pad, told, effect="" if pad.verdict == "leave it" else "gain")


def _best(classes: Sequence[AlignmentClass]) -> Remark | None:
    """Where padding wins most in a setting."""
    best = max(classes, key=lambda each: (wins(each.gain), each.gain.value))
    told = "{sweep.setting}: where {sweep.name} divides by {divisor}, products built with the next aligned size run "
    return remark_on(best, told + "{gain} as fast, net of their extra work", effect="gain") if wins(best.gain) else None


def _at_each_call(pads: Sequence[Pad]) -> Remark | None:
    """How often padding at each call wins in a setting."""
    calls = [call for pad in pads if (call := pad.at_each_call) is not None]
    if not calls:
        return None
    return remark(
        "{setting}: padded at each call, {winning} of {tried} sizes run faster, the best {gain} as fast",
        setting=pads[0].sweep.setting,
        winning=sum(map(wins, calls)),
        tried=len(calls),
        gain=max(calls, key=lambda call: call.value),
    )


def _refusals(records: Sequence[Record]) -> Iterator[Remark]:
    """What an implementation could not take, with the reason it gave first."""
    refused = {record.case_id: record for record in records if record.outcome == "unsupported"}
    kinds = grouped(refused.values(), lambda each: (each.case["implementation"], each.parsed_case().parameters.dtype))
    for (implementation, dtype), of_kind in sorted(kinds.items()):
        yield remark(
            "{implementation} does not take {count} of the {dtype} products: {reason}",
            kind="caution",
            implementation=implementation,
            count=len(of_kind),
            dtype=dtype,
            reason=of_kind[0].reason,
        )


def _kernel(row: Row) -> str:
    """What ran: its name, with the path where that is not all there is to say."""
    path, name = str(row.kernel.get("path", "")), str(row.kernel.get("name", "")) or "a kernel without a name"
    return f"{name} ({path})" if path and path not in name else name


def _sizes(alike: AlignmentClass) -> str:
    """The first of them, and how many more."""
    sizes = sorted({pair.size for pair in alike.pairs})
    shown, more = ", ".join(map(str, sizes[:MOST_NAMED])), len(sizes) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _paths(alike: AlignmentClass) -> str | None:
    paths = {str(pair.row.kernel.get("path", "")) for pair in alike.pairs}
    return "/".join(sorted(paths - {""})) or None


SETTING = Column("implementation, dtype, layout", "sweep.setting")
SWEPT = (SETTING, Column("M x N x K", "sweep.shape"))
CLASS_COLUMNS = (
    SETTING,
    Column("along", "sweep.name", priority=2),
    Column("divides by", "divisor", priority=2),
    Column("sizes", _sizes, priority=0),
    Column("rate / next aligned", "rate", "x"),
    Column("gain by padding", "gain", "x", priority=2),
    Column("path", _paths, priority=0),
)
PAD_COLUMNS = (
    *SWEPT,
    Column("size", priority=2),
    Column("known as", "known_as"),
    Column("pad to", "other", priority=2),
    Column("rate / padded", "rate.value", "x", priority=0),
    Column("gain if built so", "gain", "x"),
    Column("gain at each call", "at_each_call", "x"),
    Column("verdict", priority=2),
)
EDGE_COLUMNS = (
    *SWEPT,
    Column("from -> to", lambda edge: f"{edge.other} -> {edge.size}", priority=2),
    Column("rate", unit="x", priority=2),
    Column("kernel before", lambda edge: _kernel(edge.beside)),
    Column("kernel after", lambda edge: _kernel(edge.row)),
)
DEFIANCE_COLUMNS = (
    *SWEPT,
    Column("size", priority=2),
    Column("divides by", lambda slow: class_of(slow.size)),
    Column("rate", unit="x", priority=2),
    Column("of size", "other", priority=2),
    Column("which divides by", lambda slow: class_of(slow.other)),
)


def _figures(sweeps: Sequence[Sweep]) -> Iterator[Figure]:
    """One a dtype, layout and mode: a row for each setting, a column for each sweep that all of them have."""
    drawn = [sweep for sweep in sweeps if len(sweep.rows) >= FEWEST_SIZES]
    kinds = grouped(drawn, lambda each: (each.base.mode, each.base.dtype, each.base.layout, each.base.schedule.workers))
    for (mode, dtype, layout, workers), alike in kinds.items():
        settings = by_setting(alike)
        in_all = set.intersection(*({sweep.shape for sweep in setting} for setting in settings))
        if in_all:
            yield Figure(
                name=f"alignment_{mode}_{dtype}_{layout}_w{workers}",
                title=f"Throughput by divisor: {dtype} matmul, {layout}, {workers} workers",
                caption="Each mark is a size, by the largest power of two that divides it; its bar spans the "
                "processes. Useful work alone counts: what padding adds does not. Sizes far from these are in the "
                "tables.",
                rows=tuple(tuple(_panel(sweep) for sweep in own if sweep.shape in in_all) for own in settings),
            )


def _panel(sweep: Sweep) -> Panel:
    middle = statistics.median_low(sweep.rows)
    near = [row for size, row in sweep.rows.items() if abs(size - middle) <= NEARBY * middle]
    alike = sorted(grouped(near, lambda row: class_of(getattr(row, sweep.along))).items())
    return Panel(
        title=sweep.shape,
        x_label=sweep.name,
        y_label=sweep.base.implementation,
        y_unit="TFLOP/s",
        series=tuple(series(f"divides by {divisor}", rows, sweep.along, "throughput") for divisor, rows in alike),
    )
