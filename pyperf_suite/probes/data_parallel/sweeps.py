"""Which steps are measured: models by exchange, DDP's options, and the all_reduces that the law is read off."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.collective import CollectiveParameters
from pyperf_suite.operators.training.data_parallel import EXCHANGES, DataParallelParameters
from pyperf_suite.ranks.environment import rank_environment, ranks_here, require_launched
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.axes import NO, YES, Flag, OneOf, Sizes

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
    exchange: Annotated[tuple[str, ...], OneOf(EXCHANGES)]
    bucket: tuple[Sizes, ...]
    vocab: tuple[int, ...] = (0,)
    accumulate: tuple[int, ...] = (1,)
    static_graph: tuple[Flag, ...] = (NO,)
    peer_to_peer: tuple[Flag, ...] = (YES,)
    dtype: tuple[str, ...] = ("float32",)
    all_reduce: tuple[Sizes, ...] = ()


def axes(profile: str, device: Device) -> DataParallelAxes:
    """Models of a few layers on a CPU; on GPUs layers of 4096, all GPUs, and NCCL without direct copies too."""
    axes = _cuda_axes(profile) if device.kind == "cuda" else _cpu_axes(profile)
    return replace(axes, ranks=ranks_here(axes.ranks))


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


def sweep(axes: DataParallelAxes) -> Iterator[Case]:
    """Steps, then the all_reduces. Raises UserError for other ranks than a launcher started, and for DP on CPUs."""
    require_launched(axes.ranks)
    if "dp" in axes.exchange and "nccl" not in axes.implementation:
        asked = ", ".join(axes.implementation)
        raise UserError(f"exchange=dp is one process that drives GPUs, but only {asked} was asked for: leave it out.")
    for implementation, ranks, direct in itertools.product(axes.implementation, axes.ranks, axes.peer_to_peer):
        for number, model in enumerate(_models(axes)):
            plain = replace(model, ranks=ranks, peer_to_peer=direct.value)
            for exchange in axes.exchange:
                steps = [replace(plain, exchange=exchange)]
                if exchange == "ddp":
                    steps = list(_ddp(axes, steps[0], first=number == 0))
                elif exchange == "dp" and not _has_dp(implementation, plain):
                    steps = []
                way = "dp" if exchange == "dp" else implementation
                yield from (Case("data_parallel", parameters, way) for parameters in steps)
    yield from _all_reduces(axes)


def _has_dp(implementation: str, plain: DataParallelParameters) -> bool:
    """One process for all GPUs is none of a launcher's, and copies between them are not NCCL's to forbid."""
    return implementation == "nccl" and plain.peer_to_peer and not rank_environment().launched


def _models(axes: DataParallelAxes) -> Iterator[DataParallelParameters]:
    """Each model without an exchange, in the order of the axes."""
    sizes = itertools.product(axes.hidden, axes.layers, axes.seq, axes.batch, axes.vocab, axes.dtype)
    for hidden, layers, seq, batch, vocab, dtype in sizes:
        heads = hidden // HEAD_DIM if hidden % HEAD_DIM == 0 else 1
        yield DataParallelParameters(
            hidden=hidden, heads=heads, layers=layers, seq=seq, batch=batch, vocab=vocab, dtype=dtype, exchange="none"
        )


def _ddp(axes: DataParallelAxes, plain: DataParallelParameters, first: bool) -> Iterator[DataParallelParameters]:
    """One model's steps with each bucket; of the first model with DDP's other options as well."""
    buckets = dict.fromkeys(size for ladder in axes.bucket for size in ladder.ladder())
    usual = [replace(plain, bucket_bytes=size) for size in buckets]
    if first:
        for graph, accumulate in itertools.product(axes.static_graph, axes.accumulate):
            # DDP takes no static graph with several micro-batches.
            if accumulate == 1:
                yield replace(usual[0], static_graph=graph.value)
            elif not graph.value:
                yield replace(usual[0], accumulate=accumulate, no_sync=True)
                yield replace(usual[0], accumulate=accumulate, no_sync=False)
    yield from usual[1:] if first else usual


def _all_reduces(axes: DataParallelAxes) -> Iterator[Case]:
    sizes = sorted({size for ladder in axes.all_reduce for size in ladder.ladder()})
    places = itertools.product(axes.implementation, axes.ranks, axes.peer_to_peer, axes.dtype, sizes)
    for implementation, ranks, direct, dtype, size in places:
        parameters = CollectiveParameters(
            "all_reduce", size, ranks, dtype=dtype, in_place=True, peer_to_peer=direct.value
        )
        yield Case("collective", parameters, COLLECTIVE_OVER.get(implementation, implementation))
