"""Raw collective bandwidth: every collective over sizes, by each path that the machine has, among all its ranks.

Under a launcher the ranks are those that it started; else they are started on this machine, as many as the axis says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pyperf_suite.errors import OneOf, UserError
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.collectives import ranks as of_ranks
from pyperf_suite.probes.collectives import rates, soak
from pyperf_suite.probes.collectives.curves import FEWEST_SIZES, curves_of
from pyperf_suite.probes.collectives.nccl_text import nccl_tests_text
from pyperf_suite.probes.collectives.training import FLOP_PER_S, Training, judged
from pyperf_suite.ranks.launch import rank_environment, ranks_here, require_launched
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.spec.axes import NO, YES, Flag, Sizes, every_size, sizes
from pyperf_suite.spec.findings import Findings, findings
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.rows import Rows, rows_of
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.collective.parameters import OPERATIONS

# What the ways of training in parallel send (see laws/network/traffic.py), the most common first.
TRAINING = ("all_reduce", "all_gather", "reduce_scatter")
MORE = (*TRAINING, "send_receive", "all_to_all")
ALL = (*MORE, "broadcast", "reduce", "gather", "scatter")

# Buffers of input and output on each rank, and the reference that the output is compared with.
BUFFERS = 4
LARGEST_BYTES = 8 * 2**30
# One at a time so many pairs are measured in a minute; of more ranks as many pairs at once as there can be.
RANKS_PAIRED_ONE_BY_ONE = 8


@dataclass(frozen=True)
class CollectivesAxes:
    """What the probe varies.

    Every `op` is measured at every `size`, both out of place and, where `in_place` has true and the operation can,
    in place. The variants of `peer_to_peer` and `registered` are of NCCL's implementations alone. `pairs` is none, all
    (every two ranks), bisection, or one pair as in 0-3; each is measured at every `pair_size` of the first dtype by
    the first implementation. A size too small for one element a rank is left out.
    """

    ranks: tuple[int, ...]
    op: Annotated[tuple[str, ...], OneOf(OPERATIONS)] = TRAINING
    size: tuple[Sizes, ...] = sizes("16..16MiB:16")
    dtype: tuple[str, ...] = ("float32",)
    implementation: tuple[str, ...] = ("gloo",)
    in_place: tuple[Flag, ...] = (NO,)
    reduction: tuple[str, ...] = ("sum",)
    root: tuple[int, ...] = (0,)
    peer_to_peer: tuple[Flag, ...] = (YES,)
    registered: tuple[Flag, ...] = (NO,)
    pairs: tuple[str, ...] = ("none",)
    pair_size: tuple[Sizes, ...] = sizes("4MiB")


def axes(profile: str, device: Device) -> CollectivesAxes:
    """On GPUs up to what their memory holds, by our path, torch's and graph replay.

    On a CPU sizes by 16 show both ends of the curve; above 16 MiB a copy through memory tells nothing new.
    """
    if device.kind == "cpu":
        quick = CollectivesAxes(ranks_here((2,)))
        standard = replace(quick, op=MORE, size=sizes("64..16MiB:8"))
        full = replace(standard, ranks=ranks_here((2, 4)), size=sizes("8..64MiB:4"), pairs=("all",))
    else:
        present = gpus()
        largest = min(LARGEST_BYTES, present[device.index].memory_bytes // (2 * BUFFERS))
        quick = CollectivesAxes(ranks_here((len(present),)), size=(Sizes(8, min(largest, 2**30), 16),))
        quick = replace(quick, implementation=("nccl", "c10d_nccl"))
        standard = replace(quick, op=MORE, size=(Sizes(8, largest, 4),), pairs=("all",), pair_size=sizes("64MiB"))
        full = standard = replace(standard, implementation=("nccl", "nccl_graph", "c10d_nccl"))
    # float32 as nccl-tests has it, then what is trained in.
    full = replace(full, op=ALL, dtype=("float32", "bfloat16"), in_place=(NO, YES))
    return {"quick": quick, "standard": standard, "full": full}[profile]


def sweep(axes: CollectivesAxes) -> list[Case]:
    """Every operation at every size in each variant it takes, then the pairs.

    Raises UserError for other ranks than a launcher started, for NCCL's variants where none runs over it, and where
    every size is too small for one element a rank.
    """
    require_launched(axes.ranks)
    over_nccl = any("nccl" in implementation for implementation in axes.implementation)
    if not over_nccl and (NO in axes.peer_to_peer or YES in axes.registered):
        raise UserError(
            f"Peer-to-peer copies and registered buffers are NCCL's, but only {', '.join(axes.implementation)} was "
            "asked for: leave peer_to_peer and registered out, or measure GPUs."
        )
    cases = list(_collectives(axes))
    fitting = [case for case in cases if case.parameters.count]
    if cases and not fitting:
        cases[-1].validate()
    return [*fitting, *_pairs(axes)]


def _collectives(axes: CollectivesAxes) -> Iterator[Case]:
    """The sweep over sizes; what an operation does not take is not crossed with it."""
    for op, ranks, dtype, implementation in itertools.product(axes.op, axes.ranks, axes.dtype, axes.implementation):
        operation = OPERATIONS[op]
        variants = itertools.product(
            axes.in_place if operation.in_place else (NO,),
            axes.reduction if operation.reduces else ("sum",),
            axes.root if operation.has_root else (0,),
            axes.peer_to_peer if "nccl" in implementation else (YES,),
            axes.registered if implementation in ("nccl", "nccl_graph") else (NO,),
            every_size(axes.size),
        )
        for in_place, reduction, root, direct, registered, size in variants:
            usual = CollectiveParameters(op, size, ranks, dtype, in_place.value, reduction, root)
            parameters = replace(usual, peer_to_peer=direct.value, registered=registered.value)
            yield Case("collective", parameters, implementation)


def _pairs(axes: CollectivesAxes) -> Iterator[Case]:
    """Ping-pong between pairs of ranks, or all halves of the machine at once."""
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


def cases_to_log(records: Sequence[Record]) -> list[Case]:
    """The plain cases that our path over NCCL ran, now logged; none under a launcher, where no log is on."""
    if rank_environment().launched:
        return []
    ours = rows_of(records).where(implementation="nccl", in_place=False, registered=False, logged=False)
    return [replace(row.case, parameters=replace(row.parameters, logged=True)) for row in ours if row.ranks > 1]


def analyse(rows: Rows, training: Training | None = None) -> Findings:
    """Rates, ways to train, stragglers, slow links, paths, laws, and the text of nccl-tests; `training` is judged."""
    curves = curves_of(rows)
    if not curves:
        return Findings()
    # A pair at a size or two is a place on the map; over many sizes it is a curve.
    sweeps = [c for c in curves if not c.parameters.pairs or len(c.points) >= FEWEST_SIZES]
    maps = of_ranks.pair_maps([curve for curve in curves if curve not in sweeps])
    soaked = soak.soaked_of(curves)
    kind = str(rows.records[0].identity.get("kind", "cpu"))
    return findings(
        rates.wrong(curves),
        rates.highest_rates(sweeps),
        rates.between_nodes(sweeps),
        judged(sweeps, training or Training().at(FLOP_PER_S[kind])),
        of_ranks.stragglers(sweeps),
        (of_ranks.pair_findings(found) for found in maps),
        rates.paths(sweeps),
        rates.laws(sweeps),
        soak.soak_findings(soaked),
        rates.tables(sweeps),
        rates.figures(sweeps),
        nccl_tests_text(curves),
    )


PROBE = Probe(
    name="collectives",
    question="How fast are the links between ranks, and is that enough to train in parallel?",
    topic="network",
    axes=axes,
    sweep=sweep,
    analyse=analyse,
    follow_up=cases_to_log,
    # The paths of an operation stand together.
    group=lambda case: f"collectives {case.parameters.op} {case.parameters.dtype} {case.parameters.ranks} ranks",
)
