"""What the alignment sweeps say: sizes by name, what divisors cost, cliffs with their kernels, where folklore fails."""

from __future__ import annotations

from collections.abc import Sequence

from pyperf_suite.probes.alignment.advice import pad_table, pads_of, real_life_sentences
from pyperf_suite.probes.alignment.figure import figures_of
from pyperf_suite.probes.alignment.rungs import Defiance, Rung, defiances_of, rungs_of
from pyperf_suite.probes.alignment.sweeps import Edge, Setting, Sweep, rung_of, sweeps_of
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings, Table
from pyperf_suite.spec.rows import Reading, readings, wins

# Later ones are smaller, and sentences have an end; the tables hold them all.
MOST_NAMED = 3

ONE_PROCESS = (
    "One process measured this, and its intervals know nothing of how processes differ: take it as a first look, and "
    "the standard profile, with three, for advice."
)

RUNG_COLUMNS = (
    "implementation, dtype, layout",
    "along",
    "divides by",
    "sizes",
    "throughput beside next aligned",
    "padding: x faster",
    "path",
)
EDGE_COLUMNS = ("implementation, dtype, layout", "M x N x K", "from -> to", "rate", "kernel before", "kernel after")
DEFIANCE_COLUMNS = ("implementation, dtype, layout", "M x N x K", "size", "divides by", "rate", "of size", "divides by")


def explain(records: Sequence[Record]) -> Findings:
    """Sentences with the advice first, then tables of what stands behind them, and a picture of each base."""
    found = readings(records)
    sweeps = sweeps_of(found)
    rungs = rungs_of(sweeps)
    edges = [(sweep, edge) for sweep in sweeps for edge in sweep.edges() if edge.is_found]
    edges.sort(key=lambda found: max(found[1].faster_above.value, found[1].faster_above.inverse.value), reverse=True)
    defiances = defiances_of(sweeps)
    sentences = real_life_sentences(sweeps)
    for setting in dict.fromkeys(sweep.setting for sweep in sweeps):
        own = [sweep for sweep in sweeps if sweep.setting == setting]
        sentences += _setting_sentences(setting, own, [rung for rung in rungs if rung.setting == setting])
    sentences += [_edge_sentence(sweep, edge) for sweep, edge in edges[:MOST_NAMED]]
    sentences += [_defiance_sentence(defiance) for defiance in defiances[:MOST_NAMED]]
    sentences += _refusals(records)
    if rungs and all(len(reading.by_process) == 1 for reading in found):
        sentences.append(ONE_PROCESS)
    tables = (
        _rung_table(rungs),
        pad_table(sweeps),
        _edge_table(edges),
        _defiance_table(defiances),
    )
    return Findings(tuple(sentences), tuple(table for table in tables if table is not None), figures_of(sweeps))


def _setting_sentences(setting: Setting, sweeps: Sequence[Sweep], rungs: Sequence[Rung]) -> list[str]:
    """What its least divisors cost, where padding wins, and how often padding at each call did."""
    least: dict[str, Rung] = {}
    for rung in rungs:
        least.setdefault(rung.along, rung)
    if not least:
        return []
    costs = ", ".join(
        f"{rung.relative_rate.value:.2f} x at {'odd' if rung.divisor == 1 else f'{rung.divisor}-divisible'} "
        f"{along.upper()} {_paths(rung)}".rstrip()
        for along, rung in least.items()
    )
    sentence = f"{setting}: throughput beside the next aligned size is {costs}; "
    paying = [rung for rung in rungs if wins(rung.gain)]
    if not paying:
        return [sentence + "padding wins at no divisor beyond its interval." + _at_each_call(sweeps)]
    best = max(paying, key=lambda rung: rung.gain.value)
    where = {rung.along: [str(r.divisor) for r in paying if r.along == rung.along] for rung in paying}
    told = ", ".join(f"{along.upper()} that divides by {_joined(divisors)}" for along, divisors in where.items())
    return [
        sentence + f"built with the larger size, products win for {told}; most for {best.along.upper()} = "
        f"{_some(best.sizes)}, which run {best.gain} x as fast padded, net of the extra work." + _at_each_call(sweeps)
    ]


def _at_each_call(sweeps: Sequence[Sweep]) -> str:
    pads = [(sweep, pad, pad.at_each_call) for sweep in sweeps for pad in pads_of(sweep) if pad.at_each_call]
    if not pads:
        return ""
    winning = [each for each in pads if wins(each[2])]
    sweep, pad, best = max(pads, key=lambda each: each[2].value)
    return (
        f" Padded at each call, with its slice, {len(winning)} of {len(pads)} sizes win; the best, "
        f"{sweep.along.upper()} = {pad.size}, runs {best} x as fast as unpadded."
    )


def _paths(rung: Rung) -> str:
    """The path our kernels took; a library's is the same whatever the size."""
    paths = "/".join(path for path in rung.paths if path)
    return f"({paths})" if paths and not rung.setting.is_library else ""


def _edge_sentence(sweep: Sweep, edge: Edge) -> str:
    name = sweep.along.upper()
    before, after = _kernel(edge.below), _kernel(edge.above)
    kernels = f"the kernel changes from {before} to {after}" if before != after else f"both sides run {before}"
    return (
        f"A cliff: {sweep.setting}, {sweep.shape(name)}: among {name} that divide by {rung_of(edge.size)}, "
        f"{edge.size} -> {edge.size_above} changes the rate to {edge.faster_above} x; {kernels}."
    )


def _defiance_sentence(found: Defiance) -> str:
    sweep, name = found.sweep, found.sweep.along.upper()
    return (
        f"Folklore fails: {sweep.setting}, {sweep.shape(name)}: {name} = {found.size} divides by {rung_of(found.size)} "
        f"and runs at {found.rate} x the rate of {found.neighbour}, which divides by {rung_of(found.neighbour)}."
    )


def _refusals(records: Sequence[Record]) -> list[str]:
    """What an implementation could not take, with the reason it gave first."""
    refused: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        if record.outcome == "unsupported":
            case = record.parsed_case()
            key = (case.implementation, case.parameters.dtype)
            refused.setdefault(key, {}).setdefault(record.case_id, record)
    return [
        f"{implementation} does not take {len(cases)} of the {dtype} products: {next(iter(cases.values())).reason}"
        for (implementation, dtype), cases in sorted(refused.items())
    ]


def _rung_table(rungs: Sequence[Rung]) -> Table | None:
    rows = tuple(
        (
            str(rung.setting),
            rung.along.upper(),
            str(rung.divisor),
            _some(rung.sizes),
            str(rung.relative_rate),
            str(rung.gain),
            "/".join(path for path in rung.paths if path) or "-",
        )
        for rung in rungs
    )
    return Table("Throughput by divisor, beside the next aligned size", RUNG_COLUMNS, rows) if rows else None


def _edge_table(edges: Sequence[tuple[Sweep, Edge]]) -> Table | None:
    rows = tuple(
        (
            str(sweep.setting),
            sweep.shape(sweep.along.upper()),
            f"{edge.size} -> {edge.size_above}",
            f"{edge.faster_above} x",
            _kernel(edge.below),
            _kernel(edge.above),
        )
        for sweep, edge in edges
    )
    return Table("Cliffs between sizes that divide alike", EDGE_COLUMNS, rows) if rows else None


def _defiance_table(defiances: Sequence[Defiance]) -> Table | None:
    rows = tuple(
        (
            str(found.sweep.setting),
            found.sweep.shape(found.sweep.along.upper()),
            str(found.size),
            str(rung_of(found.size)),
            f"{found.rate} x",
            str(found.neighbour),
            str(rung_of(found.neighbour)),
        )
        for found in defiances
    )
    return Table("Where sizes that divide by more run slower", DEFIANCE_COLUMNS, rows) if rows else None


def _kernel(reading: Reading) -> str:
    """What ran: its name, with the path where that is not all there is to say."""
    path = str(reading.kernel.get("path", ""))
    name = str(reading.kernel.get("name", "")) or "a kernel without a name"
    return f"{name} ({path})" if path and path not in name else name


def _joined(words: Sequence[str]) -> str:
    """As a sentence has them: 1, 2 or 4."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _some(sizes: Sequence[int]) -> str:
    """The first of them, and how many more."""
    shown = ", ".join(str(size) for size in sizes[:MOST_NAMED])
    return shown + (f" and {len(sizes) - MOST_NAMED} more" if len(sizes) > MOST_NAMED else "")
