"""What the collectives say: rates beside peaks, the law, what each layer costs, who is late, and what training gets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pyperf_suite.laws.network import guides as network_guides
from pyperf_suite.laws.network.communication import inter_node_rate
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.probes.collectives.algorithms import with_algorithms
from pyperf_suite.probes.collectives.curves import FEWEST_SIZES, Curve, Setting, curves_of, plain
from pyperf_suite.probes.collectives.figure import figures_of
from pyperf_suite.probes.collectives.nccl_text import nccl_tests_text
from pyperf_suite.probes.collectives.pairs import pair_figure, pair_maps, pair_sentence, pair_table
from pyperf_suite.probes.collectives.peaks import nodes_of, peak_for
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.probes.collectives.soak import soak_figure, soak_sentences, soak_table, soaked_of
from pyperf_suite.probes.collectives.stragglers import straggler_sentences
from pyperf_suite.probes.collectives.table import tables_of
from pyperf_suite.probes.collectives.verdicts import FLOP_PER_S, Training, judged
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings, Table
from pyperf_suite.spec.rows import mean_speedup

# Up to here the time of a message is mostly its start: what a layer above adds shows.
SMALL_BYTES = 64 * 2**10

LAW_COLUMNS = ("what", "start us", "last rate GB/s", "from", "pieces", "off at sizes held out")


def explain(records: Sequence[Record], training: Training | None = None) -> Findings:
    """Sentences with the conclusion first, tables as nccl-tests has them, pictures, and nccl-tests' own text."""
    curves = curves_of(with_algorithms(records))
    if not curves:
        return Findings()
    # A pair at a size or two is a place on the map; over many sizes it is a curve.
    sweeps = [c for c in curves if not c.setting.parameters.pairs or len(c.points) >= FEWEST_SIZES]
    kind = str(records[0].identity.get("kind", "cpu"))
    verdict_sentences, verdict_table = judged(curves, training or Training.at(FLOP_PER_S[kind]))
    maps, soaked = pair_maps([curve for curve in curves if curve not in sweeps]), soaked_of(curves)
    sentences = [*_wrong(curves), *_rates(sweeps), *_between_nodes(sweeps), *verdict_sentences]
    sentences += straggler_sentences(sweeps)
    sentences += [pair_sentence(found) for found in maps]
    sentences += _beside(sweeps)
    sentences += _law_sentence(sweeps)
    sentences += _start_sentence(sweeps)
    sentences += soak_sentences(soaked)
    tables = [
        *tables_of(sweeps),
        *_law_table(sweeps),
        *([verdict_table] if verdict_table else []),
        *map(pair_table, maps),
    ]
    tables += [soak_table(soaked)] if soaked else []
    figures = (*figures_of(sweeps), *map(pair_figure, maps), *([soak_figure(soaked)] if soaked else []))
    return Findings(tuple(sentences), tuple(tables), figures, (nccl_tests_text(curves),))


def _wrong(curves: Sequence[Curve]) -> list[str]:
    return [
        f"{curve.setting}: {sum(curve.wrong.values())} elements are wrong at {len(curve.wrong)} of its sizes, so its "
        "figures there mean nothing."
        for curve in curves
        if curve.wrong
    ]


def _rates(curves: Sequence[Curve]) -> list[str]:
    """The highest busbw of each operation beside the links' peak, and the time of its smallest message."""
    sentences = []
    for curve in plain(curves):
        best, smallest = curve.best, curve.points[min(curve.points)]
        ranks = curve.setting.parameters.ranks
        rate = f"{best.busbw():.3g} GB/s busbw" if ranks > 1 else f"{best.algbw:.3g} GB/s algbw (one rank has no bus)"
        peak = peak_for(best.visits[0])
        share = f", {best.busbw() / peak.gb_per_s:.0%} of {peak.name}'s {peak.gb_per_s:g}" if peak else ""
        tail = smallest.quantile_s(0.99) / smallest.quantile_s(0.5)
        sentences.append(
            f"{curve.setting}: {rate}{share} at {readable(best.size_bytes)}; {smallest.seconds * 1e6:.1f} us for "
            f"{readable(smallest.size_bytes)}, and 1 in 100 of those takes {tail:.1f} x the median or more."
        )
    return sentences


def _between_nodes(curves: Sequence[Curve]) -> list[str]:
    """The guides' thresholds beside all_reduce over several nodes, and their advice where there are too few."""
    sentences = []
    for curve in plain(curves):
        nodes = nodes_of(curve.best.visits[0])
        if curve.operation == "all_reduce" and nodes > 1:
            ranks = curve.setting.parameters.ranks
            each = float(inter_node_rate(curve.best.busbw(), ranks, nodes))
            sentences.append(
                f"{network_guides.sentence(curve.best.busbw())[:-1]}; each accelerator's share of its node's network "
                f"carries {each * 8:.3g} Gbps of it."
            )
            sentences += [said for said in [network_guides.warning(nodes)] if said]
    return list(dict.fromkeys(sentences))


def _beside(curves: Sequence[Curve]) -> list[str]:
    """What each other path or variant costs beside ours or the plain one, over all operations measured by both."""
    compared: dict[tuple[str, str, str], list[tuple[Curve, Curve]]] = {}
    for first in plain(curves):
        for other in curves:
            if other.points and other.setting.what == first.setting.what and _one_apart(first.setting, other.setting):
                p = first.setting.parameters
                setting = f"{p.dtype} among {p.ranks} rank{'' if p.ranks == 1 else 's'}"
                compared.setdefault((setting, first.setting.how, other.setting.how), []).append((first, other))
    sentences = []
    for (setting, how, other_how), pairs in compared.items():
        told = [
            f"{ratio} x the time {where}"
            for where, ratio in (
                (f"up to {readable(SMALL_BYTES)}", _slowdown(pairs, small=True)),
                ("above", _slowdown(pairs, small=False)),
            )
            if ratio is not None
        ]
        operations = f"{len(pairs)} operations" if len(pairs) > 1 else pairs[0][0].setting.parameters.op
        if told:
            sentences.append(f"{other_how} takes {', '.join(told)} beside {how} ({operations}, {setting}).")
    return sentences


def _one_apart(one: Setting, other: Setting) -> bool:
    """Whether they differ in a single thing, so that a difference in time is that thing's."""
    p, q = one.parameters, other.parameters
    apart = (p.in_place != q.in_place, p.registered != q.registered, p.peer_to_peer != q.peer_to_peer)
    return sum(apart) + (one.implementation != other.implementation) == 1


def _slowdown(pairs: Sequence[tuple[Curve, Curve]], small: bool) -> Ratio | None:
    """The geometric mean over operations and sizes of the other's time over the first's."""
    readings = [
        (other.points[size].reading, first.points[size].reading)
        for first, other in pairs
        for size in first.points
        if size in other.points and (size <= SMALL_BYTES) == small
    ]
    return mean_speedup(readings)


def _law_sentence(curves: Sequence[Curve]) -> list[str]:
    """How far all laws together are off at sizes that they have not seen."""
    errors = [curve.law.held_out_error for curve in plain(curves) if curve.law is not None]
    known = [error for error in errors if error is not None]
    if not known:
        return []
    worst = f"; worst curve {max(known):.0%}" if len(known) > 1 else ""
    counted = "The law misses" if len(known) == 1 else f"The laws of {len(known)} curves miss"
    return [f"{counted} sizes held out by {statistics.median(known):.0%} (median{worst})."]


def _replayed(curves: Sequence[Curve]) -> dict[str, Curve]:
    """By what is moved, the curve of a replayed graph: its start time holds nothing of the host's."""
    graphs = [
        c for c in curves if c.setting.implementation == "nccl_graph" and c.setting.is_plain and c.law is not None
    ]
    return {curve.setting.what: curve for curve in graphs}


def _start_sentence(curves: Sequence[Curve]) -> list[str]:
    """Whose start times the table of laws has, where those of single calls are not the network's."""
    calls = [curve for curve in plain(curves) if curve.law is not None and curve.setting.implementation == "nccl"]
    if not calls:
        return []
    why = "a single call includes a host thread that NCCL starts for each call on a communicator that does not block"
    replayed = [_replayed(curves)[curve.setting.what] for curve in calls if curve.setting.what in _replayed(curves)]
    if not replayed:
        return [f"Start times are those of single calls, and {why}: measure nccl_graph for the network's."]
    graphs = [next(iter(curve.points.values())).details.get("calls_per_graph", 1) for curve in replayed]
    return [f"Start times of NCCL are those of nccl_graph, {min(graphs)} calls in a graph: {why}."]


def _law_table(curves: Sequence[Curve]) -> list[Table]:
    """The constants that people compare: the time of no bytes, and the rate of the last straight piece."""
    rows, replayed = [], _replayed(curves)
    for curve in plain(curves):
        if curve.law is None:
            continue
        start = replayed.get(curve.setting.what, curve).law
        assert start is not None
        segments, error = curve.law.segments(), curve.law.held_out_error
        beta = segments[-1].beta_s_per_byte
        rows.append(
            (
                str(curve.setting),
                f"{start.segments()[0].alpha_s * 1e6:.3g}",
                f"{1e-9 / beta:.3g}" if beta else "any",
                readable(segments[-1].from_bytes),
                str(len(segments)),
                "-" if error is None else f"{error:.1%}",
            )
        )
    return [Table("Laws: time = start + size / rate, in straight pieces", LAW_COLUMNS, tuple(rows))] if rows else []
