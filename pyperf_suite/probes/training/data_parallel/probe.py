"""A training step on several ranks: DDP's options beside a step without exchange, and the all_reduces it is made of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.collective import CollectiveParameters
from pyperf_suite.operators.training.data_parallel import DataParallelParameters
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.data_parallel.findings import explain
from pyperf_suite.ranks.environment import ranks_here, require_launched
from pyperf_suite.ranks.environment import rank_environment
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import NO, YES, Flag, Sizes
from pyperf_suite.spec.findings import Findings

HEAD_DIM = 64
# By which torch.distributed's own all_reduce is measured, over the library that the steps use.
COLLECTIVE_OVER = {"gloo": "gloo", "nccl": "c10d_nccl"}


@dataclass(frozen=True)
class DataParallelAxes:
    """What the probe varies.

    Every model (hidden, layers, seq, batch, vocab; 0 is a stack of blocks without logits) makes its step in every
    `exchange`: ddp with each `bucket`, after, none, dp. The first model also takes `accumulate` micro-batches, with and
    without no_sync, and a `static_graph`, with the first bucket. `all_reduce` are the sizes that the law is read off.
    """

    implementation: tuple[str, ...]
    ranks: tuple[int, ...]
    hidden: tuple[int, ...]
    layers: tuple[int, ...]
    seq: tuple[int, ...]
    batch: tuple[int, ...]
    exchange: tuple[str, ...]
    bucket: tuple[Sizes, ...]
    vocab: tuple[int, ...] = (0,)
    accumulate: tuple[int, ...] = (1,)
    static_graph: tuple[Flag, ...] = (NO,)
    peer_to_peer: tuple[Flag, ...] = (YES,)
    dtype: tuple[str, ...] = ("float32",)
    all_reduce: tuple[Sizes, ...] = ()


class DataParallelProbe(Probe):
    """DDP against DP, against no overlap and against no exchange, and the law of a step's time."""

    name = "data_parallel"
    question = "What does exchanging gradients cost a training step here, and what hides it?"

    def axes(self, profile: str, device: Device) -> DataParallelAxes:
        """Models of a few layers on a CPU; on GPUs layers of 4096, all GPUs, and NCCL without direct copies too."""
        axes = _cuda_axes(profile) if device.kind == "cuda" else _cpu_axes(profile)
        return replace(axes, ranks=ranks_here(axes.ranks))

    def sweep(self, axes: DataParallelAxes) -> list[Case]:
        """Steps, then the all_reduces. Raises UserError for other ranks than a launcher started, and for DP on CPUs."""
        require_launched(axes.ranks)
        if "dp" in axes.exchange and "nccl" not in axes.implementation:
            asked = ", ".join(axes.implementation)
            raise UserError(
                f"exchange=dp is one process that drives GPUs, but only {asked} was asked for: leave it out."
            )
        cases: dict[str, Case] = {}
        for case in itertools.chain(_steps(axes), _all_reduces(axes)):
            cases.setdefault(case.case_id, case)
        return list(cases.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """What the exchange costs, what hides it, the guides' claims, and the law with its held-out error."""
        return explain(records)

    def group(self, case: Case) -> str:
        """One table for steps and one for all_reduces, by ranks."""
        return f"data_parallel {case.operator} {case.implementation} {case.parameters.ranks} ranks"


def _cpu_axes(profile: str) -> DataParallelAxes:
    """Steps that compute about as long as they exchange over gloo: 3.2 MB of gradients a layer, 64 tokens a rank."""
    quick = DataParallelAxes(
        implementation=("gloo",),
        ranks=(2,),
        hidden=(256,),
        layers=(4,),
        seq=(64,),
        batch=(1,),
        exchange=("none", "ddp"),
        bucket=(Sizes.parse("4MiB"),),
    )
    if profile == "quick":
        return quick
    standard = replace(
        quick,
        exchange=("none", "ddp", "after"),
        bucket=tuple(map(Sizes.parse, ("4MiB", "1MiB", "25MiB"))),
        accumulate=(1, 2),
        all_reduce=(Sizes(64 * 2**10, 16 * 2**20, 16),),
    )
    if profile == "standard":
        return standard
    return replace(
        standard,
        ranks=(2, 4),
        layers=(4, 2, 8),
        bucket=tuple(map(Sizes.parse, ("4MiB", "1MiB", "2MiB", "8MiB", "25MiB"))),
        accumulate=(1, 2, 4),
        static_graph=(NO, YES),
        all_reduce=(Sizes(64 * 2**10, 32 * 2**20, 2),),
    )


def _cuda_axes(profile: str) -> DataParallelAxes:
    """Layers of 4096 in bfloat16: 403 MB of gradients each, sizes at which buckets and links matter."""
    quick = DataParallelAxes(
        implementation=("nccl",),
        ranks=(len(gpus()),),
        hidden=(4096,),
        layers=(4,),
        seq=(2048,),
        batch=(1,),
        exchange=("none", "ddp"),
        bucket=(Sizes.parse("25MiB"),),
        dtype=("bfloat16",),
    )
    if profile == "quick":
        return quick
    standard = replace(
        quick,
        exchange=("none", "ddp", "after", "dp"),
        bucket=tuple(map(Sizes.parse, ("25MiB", "100MiB", "4GiB"))),
        accumulate=(1, 2),
        peer_to_peer=(YES, NO),
        all_reduce=(Sizes(2**20, 2**30, 4),),
    )
    if profile == "standard":
        return standard
    return replace(
        standard,
        layers=(4, 2, 8),
        bucket=tuple(map(Sizes.parse, ("25MiB", "50MiB", "100MiB", "400MiB", "4GiB"))),
        accumulate=(1, 2, 4),
        static_graph=(NO, YES),
        all_reduce=(Sizes(2**20, 2**30, 2),),
    )


def _models(axes: DataParallelAxes) -> Iterator[DataParallelParameters]:
    """Each model without an exchange, in the order of the axes."""
    sizes = itertools.product(axes.hidden, axes.layers, axes.seq, axes.batch, axes.vocab, axes.dtype)
    for hidden, layers, seq, batch, vocab, dtype in sizes:
        heads = hidden // HEAD_DIM if hidden % HEAD_DIM == 0 else 1
        yield DataParallelParameters(
            hidden=hidden, heads=heads, layers=layers, seq=seq, batch=batch, vocab=vocab, dtype=dtype, exchange="none"
        )


def _steps(axes: DataParallelAxes) -> Iterator[Case]:
    buckets = list(dict.fromkeys(size for ladder in axes.bucket for size in ladder.ladder()))
    places = itertools.product(axes.implementation, axes.ranks, axes.peer_to_peer)
    for implementation, ranks, direct in places:
        for number, model in enumerate(_models(axes)):
            plain = replace(model, ranks=ranks, peer_to_peer=direct.value)
            for exchange in axes.exchange:
                yield from _exchanges(axes, plain, exchange, implementation, buckets, first=number == 0)


def _exchanges(
    axes: DataParallelAxes,
    plain: DataParallelParameters,
    exchange: str,
    implementation: str,
    buckets: Sequence[int],
    first: bool,
) -> Iterator[Case]:
    """One model's steps with one exchange; of the first model with DDP's other options as well."""
    if exchange == "dp":
        # One process for all GPUs is none of a launcher's, and copies between them are not NCCL's to forbid.
        if implementation == "nccl" and plain.peer_to_peer and not rank_environment().launched:
            yield Case("data_parallel", replace(plain, exchange=exchange), "dp")
        return
    if exchange != "ddp":
        yield Case("data_parallel", replace(plain, exchange=exchange), implementation)
        return
    usual = [replace(plain, exchange=exchange, bucket_bytes=size) for size in buckets]
    if not first:
        yield from (Case("data_parallel", each, implementation) for each in usual)
        return
    for each, graph in itertools.product(usual[:1], axes.static_graph):
        for accumulate in axes.accumulate:
            # DDP takes no static graph with several micro-batches.
            if accumulate == 1:
                yield Case("data_parallel", replace(each, static_graph=graph.value), implementation)
            elif not graph.value:
                for no_sync in (True, False):
                    parameters = replace(each, accumulate=accumulate, no_sync=no_sync)
                    yield Case("data_parallel", parameters, implementation)
    yield from (Case("data_parallel", each, implementation) for each in usual[1:])


def _all_reduces(axes: DataParallelAxes) -> Iterator[Case]:
    sizes = sorted({size for ladder in axes.all_reduce for size in ladder.ladder()})
    places = itertools.product(axes.implementation, axes.ranks, axes.peer_to_peer, axes.dtype, sizes)
    for implementation, ranks, direct, dtype, size in places:
        parameters = CollectiveParameters(
            "all_reduce", size, ranks, dtype=dtype, in_place=True, peer_to_peer=direct.value
        )
        yield Case("collective", parameters, COLLECTIVE_OVER.get(implementation, implementation))
