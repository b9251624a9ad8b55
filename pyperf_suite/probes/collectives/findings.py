"""What the collectives say: rates beside peaks, the law, what each layer costs, who is late, and what training gets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pyperf_suite.laws import network_guides
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.communication import inter_node_rate
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.probes.collectives.curves import FEWEST_SIZES, Curve, curves_of, plain
from pyperf_suite.probes.collectives.figure import figures_of
from pyperf_suite.probes.collectives.nccl_text import nccl_tests_text
from pyperf_suite.probes.collectives.pairs import pair_maps, pair_sentence, pair_table
from pyperf_suite.probes.collectives.peaks import link_peak, nodes_of
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.probes.collectives.soak import soak_figure, soak_sentences, soak_table, soaked_of
from pyperf_suite.probes.collectives.stragglers import straggler_sentences
from pyperf_suite.probes.collectives.table import tables_of
from pyperf_suite.probes.collectives.verdicts import FLOP_PER_S, Training, judged
from pyperf_suite.probes.findings import Findings
from pyperf_suite.probes.speedups import mean_speedup
from pyperf_suite.runner.record import Record

# Up to here the time of a message is mostly its start: what a layer above adds shows.
SMALL_BYTES = 64 * 2**10


def explain(records: Sequence[Record], training: Training | None = None) -> Findings:
    """Sentences with the conclusion first, tables as nccl-tests has them, pictures, and nccl-tests' own text."""
    curves = curves_of(records)
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
    sentences += _laws(sweeps)
    sentences += soak_sentences(soaked)
    tables = [*tables_of(sweeps), *([verdict_table] if verdict_table else []), *map(pair_table, maps)]
    tables += [soak_table(soaked)] if soaked else []
    figures = (*figures_of(sweeps), *([soak_figure(soaked)] if soaked else []))
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
        peak = link_peak(best.visits[0].identity)
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
    """What each other path or variant costs beside ours or the plain one, for small messages and for large ones."""
    by_what: dict[str, list[Curve]] = {}
    for curve in curves:
        if curve.points:
            by_what.setdefault(curve.setting.what, []).append(curve)
    sentences = []
    for what, (first, *others) in by_what.items():
        for other in others:
            told = [
                f"{ratio} x the time {where}"
                for where, ratio in (
                    (f"up to {readable(SMALL_BYTES)}", _slowdown(first, other, small=True)),
                    ("above", _slowdown(first, other, small=False)),
                )
                if ratio is not None
            ]
            if told:
                sentences.append(f"{what}: {other.setting.how} takes {', '.join(told)} beside {first.setting.how}.")
    return sentences


def _slowdown(first: Curve, other: Curve, small: bool) -> Ratio | None:
    """The geometric mean over sizes of the other's time over the first's."""
    sizes = [size for size in first.points if size in other.points and (size <= SMALL_BYTES) == small]
    return mean_speedup([(other.points[size].reading, first.points[size].reading) for size in sizes])


def _laws(curves: Sequence[Curve]) -> list[str]:
    """The two constants that people compare, and the error that the law makes at sizes it has not seen."""
    sentences, errors = [], []
    for curve in plain(curves):
        if curve.law is None:
            continue
        error = curve.law.held_out_error
        errors += [] if error is None else [error]
        stated = "" if error is None else f", {error:.0%} off at sizes held out (median)"
        sentences.append(f"Law of {curve.setting}: {_in_words(curve.law)}{stated}.")
    if len(errors) > 1:
        sentences.append(
            f"Over {len(errors)} curves the laws miss sizes held out by {statistics.median(errors):.0%} (median; worst "
            f"curve {max(errors):.0%})."
        )
    return sentences


def _in_words(law: PiecewiseAlphaBeta) -> str:
    """`278 us + size / 1.09 GB/s`, or where the line bends where it begins and where it ends."""
    first, *_ = segments = law.segments()
    last = segments[-1]
    beta = 1e-9 / last.beta_s_per_byte if last.beta_s_per_byte else float("inf")
    if len(segments) == 1:
        return f"{first.alpha_s * 1e6:.3g} us + size / {beta:.3g} GB/s"
    return (
        f"{first.alpha_s * 1e6:.3g} us at no bytes, {len(segments)} straight pieces, and size / {beta:.3g} GB/s "
        f"beyond {readable(last.from_bytes)}"
    )
