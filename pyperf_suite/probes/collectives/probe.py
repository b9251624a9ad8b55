"""Raw collective bandwidth: every collective over sizes, by each path that the machine has, among all its ranks.

Under a launcher the ranks are those that it started; else they are started on this machine, as many as the axis says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.collective import CollectiveParameters
from pyperf_suite.operators.collective.parameters import OPERATIONS
from pyperf_suite.probes.collectives.algorithms import cases_to_log
from pyperf_suite.probes.collectives.findings import explain
from pyperf_suite.probes.collectives.pairs import all_pairs, tournament
from pyperf_suite.probes.collectives.verdicts import Training
from pyperf_suite.probes.probe import Probe
from pyperf_suite.ranks.environment import rank_environment
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import Sizes
from pyperf_suite.spec.findings import Findings

# What the ways of training in parallel send (see laws/network/traffic.py), the most common first.
TRAINING = ("all_reduce", "all_gather", "reduce_scatter")
ALL = (*TRAINING, "send_receive", "all_to_all", "broadcast", "reduce", "gather", "scatter")

# Buffers of input and output on each rank, and the reference that the output is compared with.
BUFFERS = 4
LARGEST_BYTES = 8 * 2**30
# One at a time so many pairs are measured in a minute; of more ranks as many pairs at once as there can be.
RANKS_PAIRED_ONE_BY_ONE = 8


@dataclass(frozen=True)
class Flag:
    """A yes or no as an axis is written."""

    value: bool

    def __str__(self) -> str:
        return str(self.value).lower()

    @classmethod
    def parse(cls, text: str) -> Flag:
        """Read true or false. Raises UserError for anything else."""
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise UserError(f"{text!r} was asked for where it is yes or no: write true or false.")
        return cls(word == "true")


NO, YES = Flag(False), Flag(True)


@dataclass(frozen=True)
class CollectivesAxes:
    """What the probe varies.

    Every `op` is measured at every `size`, both out of place and, where `in_place` has true and the operation can,
    in place. The variants of `peer_to_peer` and `registered` are of NCCL's implementations alone. `pairs` is none, all
    (every two ranks), bisection, or one pair as in 0-3; each is measured at every `pair_size` of the first dtype by
    the first implementation. A size too small for one element a rank is left out.
    """

    op: tuple[str, ...]
    size: tuple[Sizes, ...]
    dtype: tuple[str, ...]
    ranks: tuple[int, ...]
    implementation: tuple[str, ...]
    in_place: tuple[Flag, ...] = (NO,)
    reduction: tuple[str, ...] = ("sum",)
    root: tuple[int, ...] = (0,)
    peer_to_peer: tuple[Flag, ...] = (YES,)
    registered: tuple[Flag, ...] = (NO,)
    pairs: tuple[str, ...] = ("none",)
    pair_size: tuple[Sizes, ...] = (Sizes.parse("4MiB"),)


class Collectives(Probe):
    """The collectives of training, by our own path over NCCL and torch's beside it, or by gloo on CPUs."""

    name = "collectives"
    question = "How fast are the links between ranks, and is that enough to train in parallel?"

    def __init__(self, training: Training | None = None) -> None:
        """Verdicts are about `training`, or about a model of 7e9 parameters where none is given."""
        self._training = training

    def axes(self, profile: str, device: Device) -> CollectivesAxes:
        """A few sizes on a CPU, where messages go through memory; on GPUs up to what their memory holds."""
        axes = _cuda_axes(profile, device) if device.kind == "cuda" else _cpu_axes(profile)
        launched = rank_environment()
        return replace(axes, ranks=(launched.count,)) if launched.launched else axes

    def sweep(self, axes: CollectivesAxes) -> list[Case]:
        """Every operation at every size in each variant it takes, then the pairs.

        Raises UserError for other ranks than a launcher started, and for NCCL's variants where none runs over it.
        """
        launched = rank_environment()
        others = [ranks for ranks in axes.ranks if launched.launched and ranks != launched.count]
        if others:
            raise UserError(
                f"ranks={others[0]} was asked for, but the launcher started {launched.count}: leave the axis out, or "
                f"start {others[0]}."
            )
        if not any(_over_nccl(implementation) for implementation in axes.implementation) and (
            NO in axes.peer_to_peer or YES in axes.registered
        ):
            raise UserError(
                f"Peer-to-peer copies and registered buffers are NCCL's, but only {', '.join(axes.implementation)} was "
                "asked for: leave peer_to_peer and registered out, or measure GPUs."
            )
        cases: dict[str, Case] = {}
        for parameters, implementation in itertools.chain(_collectives(axes), _pairs(axes)):
            case = Case("collective", parameters, implementation)
            cases.setdefault(case.case_id, case)
        return list(cases.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """Rates, verdicts, stragglers, slow links, the law, and the table that nccl-tests made known."""
        return explain(records, self._training)

    def follow_up(self, records: Sequence[Record]) -> list[Case]:
        """On GPUs, what was measured once more with NCCL's log of the algorithms that it takes."""
        return cases_to_log(records)

    def group(self, case: Case) -> str:
        """One table an operation, dtype and number of ranks, so that the paths stand together."""
        p = case.parameters
        return f"collectives {p.op} {p.dtype} {p.ranks} ranks"


def _cpu_axes(profile: str) -> CollectivesAxes:
    """Sizes by 16 show both ends of the curve; above 16 MiB a copy through memory tells nothing new."""
    quick = CollectivesAxes(
        op=TRAINING,
        size=(Sizes(16, 16 * 2**20, 16),),
        dtype=("float32",),
        ranks=(2,),
        implementation=("gloo",),
    )
    if profile == "quick":
        return quick
    standard = replace(quick, op=(*TRAINING, "send_receive", "all_to_all"), size=(Sizes(64, 16 * 2**20, 8),))
    if profile == "standard":
        return standard
    return replace(
        standard,
        op=ALL,
        size=(Sizes(8, 64 * 2**20, 4),),
        dtype=("float32", "bfloat16"),
        ranks=(2, 4),
        in_place=(NO, YES),
        pairs=("all",),
    )


def _cuda_axes(profile: str, device: Device) -> CollectivesAxes:
    """Our path, torch's and graph replay beside each other; float32 as nccl-tests has it, then what is trained in."""
    present = gpus()
    largest = min(LARGEST_BYTES, present[device.index].memory_bytes // (2 * BUFFERS))
    quick = CollectivesAxes(
        op=TRAINING,
        size=(Sizes(8, min(largest, 2**30), 16),),
        dtype=("float32",),
        ranks=(len(present),),
        implementation=("nccl", "c10d_nccl"),
    )
    if profile == "quick":
        return quick
    standard = replace(
        quick,
        op=(*TRAINING, "send_receive", "all_to_all"),
        size=(Sizes(8, largest, 4),),
        implementation=("nccl", "nccl_graph", "c10d_nccl"),
        pairs=("all",),
        pair_size=(Sizes.parse("64MiB"),),
    )
    if profile == "standard":
        return standard
    return replace(
        standard,
        op=ALL,
        dtype=("float32", "bfloat16"),
        in_place=(NO, YES),
    )


def _collectives(axes: CollectivesAxes) -> Iterator[tuple[CollectiveParameters, str]]:
    """Parameters and implementation of the sweep over sizes; what an operation does not take is not crossed with it.

    Raises UserError where every size is too small for one element a rank.
    """
    too_small: list[CollectiveParameters] = []
    fits = False
    sizes = sorted({size for ladder in axes.size for size in ladder.ladder()})
    for op, ranks, dtype, implementation in itertools.product(axes.op, axes.ranks, axes.dtype, axes.implementation):
        if op not in OPERATIONS:
            raise UserError(f"op={op} was asked for: choose from {', '.join(OPERATIONS)}.")
        operation = OPERATIONS[op]
        variants = itertools.product(
            axes.in_place if operation.in_place else (NO,),
            axes.reduction if operation.reduces else ("sum",),
            axes.root if operation.has_root else (0,),
            axes.peer_to_peer if _over_nccl(implementation) else (YES,),
            axes.registered if implementation in ("nccl", "nccl_graph") else (NO,),
        )
        for (in_place, reduction, root, peer_to_peer, registered), size in itertools.product(variants, sizes):
            parameters = CollectiveParameters(
                op=op,
                bytes=size,
                ranks=ranks,
                dtype=dtype,
                in_place=in_place.value,
                reduction=reduction,
                root=root,
                peer_to_peer=peer_to_peer.value,
                registered=registered.value,
            )
            if parameters.count:
                fits = True
                yield parameters, implementation
            else:
                too_small.append(parameters)
    if too_small and not fits:
        too_small[-1].validate()


def _over_nccl(implementation: str) -> bool:
    return "nccl" in implementation


def _pairs(axes: CollectivesAxes) -> Iterator[tuple[CollectiveParameters, str]]:
    """Ping-pong between pairs of ranks, or all halves of the machine at once."""
    sizes = sorted({size for ladder in axes.pair_size for size in ladder.ladder()})
    for which, ranks, size in itertools.product(axes.pairs, axes.ranks, sizes):
        if which == "none" or ranks < 2:
            continue
        plain = CollectiveParameters("ping_pong", size, ranks, dtype=axes.dtype[0])
        if which == "bisection":
            yield replace(plain, op="bisection"), axes.implementation[0]
            continue
        for pattern in _patterns(which, ranks):
            yield replace(plain, pattern=pattern), axes.implementation[0]


def _patterns(which: str, ranks: int) -> list[str]:
    if which != "all":
        return [which]
    together = [(pair,) for pair in all_pairs(ranks)] if ranks <= RANKS_PAIRED_ONE_BY_ONE else tournament(ranks)
    return [",".join(f"{one}-{other}" for one, other in pairs) for pairs in together]
