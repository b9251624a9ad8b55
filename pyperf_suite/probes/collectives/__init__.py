"""Raw collective bandwidth: every collective over sizes, by each path that the machine has, among all its ranks.

Under a launcher the ranks are those that it started; else they are started on this machine, as many as the axis says.
The laws of the measured curves say whether the network is enough to train a model in parallel, where one is named
(verdict.py). The records are also written as the table of nccl-tests (2.13 and later, src/common.cu: its heading and
writeBenchmarkLineBody).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from pyperf_suite.errors import OneOf, UserError
from pyperf_suite.findings.axes import NO, YES, AxisTable, Flag, Sizes, a_rank_a_gpu, by, every_size, ranks_of, sizes
from pyperf_suite.findings.data import Document, Findings, Remark, Table, findings
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Rows, grouped
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.laws.traffic import GIGA
from pyperf_suite.probes.collectives import curves as curve_findings
from pyperf_suite.probes.collectives import ranks as of_ranks
from pyperf_suite.probes.collectives.curves import FEWEST_SIZES, Curve, curves_of
from pyperf_suite.ranks.launch import require_launched
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.collective import OPERATIONS, CollectiveParameters

TYPES = {"float32": "float", "float16": "half", "float8_e4m3fn": "f8e4m3"}

_CASE = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_PLACE = "  {:>7}  {:>6}  {:>6}  {:>5}"
_PLACE_NAMES = "  {:>7}  {:>6}  {:>6} {:>6}".format("time", "algbw", "busbw", "#wrong")
_UNKNOWN = _PLACE.format("N/A", "N/A", "N/A", "N/A")
_HEADING = tuple(
    f"#{line[1:].rstrip()}"
    for line in (
        " " * len(_CASE.format(*[""] * 5)) + f"{'out-of-place':^32}{'in-place':^32}",
        _CASE.format("size", "count", "type", "redop", "root") + _PLACE_NAMES * 2,
        _CASE.format("(B)", "(elements)", "", "", "") + _PLACE.format("(us)", "(GB/s)", "(GB/s)", "") * 2,
    )
)


def nccl_tests_text(curves: Sequence[Curve]) -> Document:
    """A block for each setting; times in us, rates in GB/s (1e9), `N/A` for what was not measured."""
    lines: list[str] = []
    of_both = grouped(curves, lambda each: (replace(each.p, in_place=False), each.implementation))
    for setting, similar in of_both.items():
        by_place = {curve.p.in_place: curve for curve in similar}
        lines += _block(*(by_place.get(in_place, Curve(*setting)) for in_place in (False, True)))
    return Document("nccl_tests.txt", "\n".join(lines))


def _block(out_of_place: Curve, in_place: Curve) -> Iterator[str]:
    yield f"# {out_of_place}"
    yield from _HEADING
    both = (out_of_place, in_place)
    for size in sorted({size for curve in both for size in (*curve.points, *curve.wrong)}):
        p = replace(out_of_place.p, bytes=size)
        reduction = p.reduction if p.operation.reduces else "none"
        root = p.root if p.operation.has_root else -1
        case = _CASE.format(size, p.count, TYPES.get(p.dtype, p.dtype), reduction, root)
        yield case + _place(out_of_place, size) + _place(in_place, size)
    wrong = sum(sum(curve.wrong.values()) for curve in both)
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    rates = [point.busbw / GIGA for curve in both for point in curve.points.values()]
    if rates:
        yield f"# Avg bus bandwidth    : {statistics.fmean(rates):g}"
    yield from ("#", "")


def _place(curve: Curve, size: int) -> str:
    wrong, point = curve.wrong.get(size, 0), curve.points.get(size)
    if point is None:
        return _PLACE.format("N/A", "N/A", "N/A", wrong) if wrong else _UNKNOWN
    us = point.seconds * 1e6
    time = f"{us:.0f}" if us >= 10_000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"
    return _PLACE.format(time, f"{point.algbw() / GIGA:.2f}", f"{point.busbw / GIGA:.2f}", wrong)


# Operations that the ways of training in parallel send, the most common first.
TRAINING = ("all_reduce", "all_gather", "reduce_scatter")
MORE = (*TRAINING, "send_receive", "all_to_all")
OPERATION_NAMES = (*MORE, "broadcast", "reduce", "gather", "scatter")

# Buffers of input and output on each rank, and the reference that the output is compared with.
BUFFERS = 4
LARGEST_BYTES = 8 * 2**30
DEFAULT = "default"  # NCCL's own settings
# Up to this number of ranks, pairs are measured one at a time within a minute; of more ranks, as many at once as fit.
RANKS_PAIRED_ONE_BY_ONE = 8


def up_to_memory(device: Device, most_bytes: int, factor: int) -> tuple[Sizes]:
    """Sizes from 8 bytes up to that, or to what a GPU's memory holds of all buffers."""
    return (Sizes(8, min(most_bytes, gpus()[device.index].memory_bytes // (2 * BUFFERS)), factor),)


@dataclass(frozen=True)
class CollectivesAxes(AxisTable):
    """On GPUs up to what their memory holds, by our path, torch's and graph replay; on a CPU both ends of the curve.

    Every `op` is measured at every `size`, both out of place and, where `in_place` has true and the operation can, in
    place. The variants of `peer_to_peer`, `registered`, `symmetric` and `settings` are of NCCL's implementations alone,
    and a buffer is not both registered and a symmetric window. `settings` is default or what NCCL's configuration calls
    it, as in blocking=1 or CTAPolicy=2+maxCTAs=8. `pairs` is none, all (every two ranks), bisection, or one pair as in
    0-3; each is measured at every `pair_size` of the first dtype by the first implementation. A size too small for one
    element a rank is left out. The full profile has float32, as nccl-tests has it, and then what is trained in. On a
    CPU a copy of more than 16 MiB through memory tells nothing new.
    """

    ranks: tuple[int, ...] = by(ranks_of(2), full=ranks_of(2, 4), cuda=a_rank_a_gpu)
    op: Annotated[tuple[str, ...], OneOf(OPERATIONS)] = by(TRAINING, standard=MORE, full=OPERATION_NAMES)
    size: tuple[Sizes, ...] = by(
        sizes("64..16MiB:64"),
        standard=sizes("64..16MiB:8"),
        full=sizes("8..64MiB:4"),
        cuda=by(
            partial(up_to_memory, most_bytes=2**30, factor=16),
            standard=partial(up_to_memory, most_bytes=LARGEST_BYTES, factor=4),
        ),
    )
    dtype: tuple[str, ...] = by(("float32",), full=("float32", "bfloat16"))
    implementation: tuple[str, ...] = by(("gloo",), cuda=by(("nccl", "c10d_nccl"), ("nccl", "nccl_graph", "c10d_nccl")))
    in_place: tuple[Flag, ...] = by((NO,), full=(NO, YES))
    reduction: tuple[str, ...] = ("sum",)
    root: tuple[int, ...] = (0,)
    peer_to_peer: tuple[Flag, ...] = (YES,)
    registered: tuple[Flag, ...] = (NO,)
    symmetric: tuple[Flag, ...] = (NO,)
    settings: tuple[str, ...] = (DEFAULT,)
    pairs: tuple[str, ...] = by(("none",), full=("all",), cuda=by(("none",), standard=("all",)))
    pair_size: tuple[Sizes, ...] = by(sizes("4MiB"), cuda=by(sizes("4MiB"), standard=sizes("64MiB")))


def sweep(axes: CollectivesAxes) -> list[Case]:
    """Every operation at every size in each variant it takes, then the pairs.

    Raises UserError for other ranks than a launcher started, for NCCL's variants where none runs over it, and where
    every size is too small for one element a rank.
    """
    require_launched(axes.ranks)
    over_nccl = any("nccl" in implementation for implementation in axes.implementation)
    of_nccl = (axes.peer_to_peer, axes.registered, axes.symmetric, axes.settings)
    if not over_nccl and of_nccl != ((YES,), (NO,), (NO,), (DEFAULT,)):
        raise UserError(
            "Peer-to-peer copies, registered buffers, symmetric windows and settings are NCCL's, but only "
            f"{', '.join(axes.implementation)} was requested: leave peer_to_peer, registered, symmetric and settings "
            "out, or measure GPUs."
        )
    cases = list(_collectives(axes))
    fitting = [case for case in cases if case.parameters.count]
    if cases and not fitting:
        cases[-1].validate()
    return [*fitting, *_pairs(axes)]


def _collectives(axes: CollectivesAxes) -> Iterator[Case]:
    """The sweep over sizes; what an operation does not take is not crossed with it."""
    for op, ranks, dtype, implementation in itertools.product(axes.op, axes.ranks, axes.dtype, axes.implementation):
        operation, ours = OPERATIONS[op], implementation in ("nccl", "nccl_graph")
        memory = itertools.product(axes.registered, axes.symmetric) if ours else [(NO, NO)]
        variants = itertools.product(
            axes.in_place if operation.in_place else (NO,),
            axes.reduction if operation.reduces else ("sum",),
            axes.root if operation.has_root else (0,),
            axes.peer_to_peer if "nccl" in implementation else (YES,),
            [flags for flags in memory if flags != (YES, YES)],
            axes.settings if ours else (DEFAULT,),
            every_size(axes.size),
        )
        for in_place, reduction, root, direct, (registered, symmetric), settings, size in variants:
            usual = CollectiveParameters(op, size, ranks, dtype, in_place.value, reduction, root)
            usual = replace(usual, settings="" if settings == DEFAULT else settings, peer_to_peer=direct.value)
            parameters = replace(usual, registered=registered.value, symmetric=symmetric.value)
            yield Case("collective", parameters, implementation)


def _pairs(axes: CollectivesAxes) -> Iterator[Case]:
    for which, ranks, size in itertools.product(axes.pairs, axes.ranks, every_size(axes.pair_size)):
        op = "bisection" if which == "bisection" else "ping_pong"
        for pattern in _patterns(which, ranks) if ranks > 1 else ():
            parameters = CollectiveParameters(op, size, ranks, dtype=axes.dtype[0], pattern=pattern)
            yield Case("collective", parameters, axes.implementation[0])


def _patterns(which: str, ranks: int) -> list[str]:
    if which != "all":
        return {"none": [], "bisection": [""]}.get(which, [which])
    one_by_one = [(pair,) for pair in itertools.combinations(range(ranks), 2)]
    together = one_by_one if ranks <= RANKS_PAIRED_ONE_BY_ONE else tournament(ranks)
    return [",".join(f"{one}-{other}" for one, other in pairs) for pairs in together]


def tournament(ranks: int) -> list[tuple[tuple[int, int], ...]]:
    """Rounds in which every rank meets each other once, as many pairs at once as there can be: the circle method."""
    players = list(range(ranks)) + ([-1] if ranks % 2 else [])
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        met = zip(players[:half], reversed(players[half:]), strict=True)
        rounds.append(tuple(sorted((min(pair), max(pair)) for pair in met if -1 not in pair)))
        players = [players[0], players[-1], *players[1:-1]]
    return rounds


Judge = Callable[[Sequence[Curve]], Iterable[Remark | Table]]


def analyse(rows: Rows[CollectiveParameters], judge: Judge | None = None) -> Findings:
    """Rates, stragglers, slow links, paths, laws, nccl-tests' text; `judge` says if they are enough to train over."""
    curves = curves_of(rows)
    if not curves:
        return Findings()
    # A pair at a size or two is a place on the map; over many sizes it is a curve.
    sweeps = [c for c in curves if not c.p.pairs or len(c.points) >= FEWEST_SIZES]
    maps = of_ranks.pair_maps([curve for curve in curves if curve not in sweeps])
    soaked = of_ranks.soaked_of(curves)
    return findings(
        curve_findings.wrong(curves),
        curve_findings.highest_rates(sweeps),
        curve_findings.between_nodes(sweeps),
        curve_findings.tables(sweeps),
        judge(sweeps) if judge else None,
        of_ranks.stood_still(curves),
        of_ranks.stragglers(sweeps),
        (of_ranks.pair_findings(found) for found in maps),
        curve_findings.paths(sweeps),
        curve_findings.laws(sweeps),
        of_ranks.soak_findings(soaked),
        curve_findings.figures(sweeps),
        nccl_tests_text(curves),
    )


PROBE = Probe(
    name="collectives",
    question="How fast are the links between ranks, and is that enough to train a model in parallel?",
    topic="network",
    axes=CollectivesAxes.of,
    sweep=sweep,
    analyse=analyse,
    # The paths of an operation stand together.
    group=lambda case: f"collectives {case.parameters.op} {case.parameters.dtype} {case.parameters.ranks} ranks",
)
