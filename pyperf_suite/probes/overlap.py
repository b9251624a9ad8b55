"""Measure whether communication hides behind compute: a product and an all_reduce at once, each against alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyperf_suite.findings.axes import AxisTable, Sizes, a_rank_a_gpu, by, every_size, ranks_of, size_name, sizes
from pyperf_suite.findings.data import BEKMAN, Claim, Findings, findings, remark
from pyperf_suite.findings.probe import Probe, RowClaim, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows
from pyperf_suite.ranks.launch import require_launched
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import mean_speedup
from pyperf_suite.workloads.training.data_parallel import RUNS, OverlapParameters

OVERLAPS = Claim("an efficient framework overlaps communication and compute", BEKMAN, low=1.0)
# "as long as the communication overhead is smaller than compute the network requirements are satisfied"; so much more
# is still called nothing.
HIDDEN_WITHIN = 1.05
HIDES = Claim("communication that is shorter than compute costs nothing", BEKMAN, high=HIDDEN_WITHIN)


@dataclass(frozen=True)
class OverlapAxes(AxisTable):
    """Products of `size`³ with all_reduces of `message` bytes, in every `run`.

    On a CPU core a product takes some 10 ms, and its message about as long over gloo's TCP; on GPUs there are the
    products of large layers, with a bucket of gradients and with a model's.
    """

    ranks: tuple[int, ...] = by(ranks_of(2), full=ranks_of(2, 4), cuda=a_rank_a_gpu)
    implementation: tuple[str, ...] = by(("gloo",), cuda=("nccl",))
    size: tuple[int, ...] = by((768,), full=(768, 1024), cuda=by((8192,), full=(4096, 8192)))
    message: tuple[Sizes, ...] = by(
        sizes("4MiB"),
        full=sizes("1MiB..16MiB:4"),
        cuda=by(sizes("25MiB"), sizes("25MiB", "400MiB"), sizes("1MiB..1GiB:4")),
    )
    dtype: tuple[str, ...] = by(("float32",), cuda=("bfloat16",))
    run: tuple[str, ...] = by(("in_turn", "together"), standard=RUNS)


def sweep(axes: OverlapAxes) -> Iterator[Case]:
    """Every product with every message in every run. Raises UserError for other ranks than a launcher started."""
    require_launched(axes.ranks)
    places = itertools.product(axes.implementation, axes.ranks, axes.dtype)
    settings = itertools.product(places, axes.size, every_size(axes.message), axes.run)
    for (implementation, ranks, dtype), size, message, run in settings:
        yield Case("overlap", OverlapParameters(size, message, ranks, run, dtype), implementation)


def what(row: Row[OverlapParameters]) -> str:
    """The product, the message, and where they ran."""
    place = f"{row.p.ranks} rank{'' if row.p.ranks == 1 else 's'}, {row.implementation}"
    return f"{row.p.size}³ {row.p.dtype} with an all_reduce of {size_name(row.p.bytes)} ({place})"


def seconds(run: str) -> Callable[[Row[OverlapParameters]], float | None]:
    """The time of another run of the same."""
    return lambda row: found.seconds if (found := row.like(run=run)) else None


def slowdown(run: str) -> Callable[[Row[OverlapParameters]], Ratio | None]:
    """Its time while the other goes on over its time alone."""
    return lambda row: alone.against(run=f"{run}_beside") if (alone := row.like(run=run)) else None


def hidden(row: Row[OverlapParameters]) -> Quantity | None:
    """(in turn − together) / the shorter of both alone: the median over processes, the least and the most.

    1 is all that there is to hide, 0 nothing; below 0 the two hinder each other so that in turn is better. None where
    no process ran all four.
    """
    runs = [found.reading.by_process for name in RUNS[:4] if (found := row.like(run=name))]
    processes = set.intersection(*map(set, runs)) if len(runs) == 4 else set()
    times = [[run[process] for run in runs] for process in processes]
    shares = [(in_turn - together) / min(product, all_reduce) for product, all_reduce, in_turn, together in times]
    return Quantity(statistics.median(shares), "%", min(shares), max(shares), len(shares)) if shares else None


def share(row: Row[OverlapParameters]) -> Quantity | None:
    """The time of the all_reduce alone as a share of the product's."""
    product, all_reduce = row.like(run="product"), row.like(run="all_reduce")
    return Quantity(all_reduce.seconds / product.seconds, "%") if product and all_reduce else None


def over_product(row: Row[OverlapParameters]) -> Ratio | None:
    """Both together over the product alone, where the all_reduce is shorter."""
    alone, shorter = row.like(run="product"), share(row)
    return alone.faster_than(row) if alone and shorter and shorter.value < 1 else None


def of_nccl(name: str) -> Callable[[Row[OverlapParameters]], int | None]:
    """Return a column of NCCL's kernel as a run recorded it: its blocks or the GPU's multiprocessors."""
    return lambda row: (
        max((run.reading.details.get(name) or 0 for run in row.rows.same_except(row, "run")), default=0) or None
    )


def analyse(rows: Rows[OverlapParameters]) -> Findings:
    """Return the slowdown of product and all_reduce by each other, on the mean of all settings."""
    sentence = "While both run, the {run} takes {longer} as long as alone (settings: {settings})"
    remarks = []
    for run in ("product", "all_reduce"):
        found = [(row.like(run=f"{run}_beside"), row) for row in rows.where(run=run)]
        pairs = [(overlapped.reading, alone.reading) for overlapped, alone in found if overlapped]
        if pairs:
            remarks.append(remark(sentence, effect="longer", run=run, longer=mean_speedup(pairs), settings=len(pairs)))
    return findings(remarks)


PROBE = Probe(
    name="overlap",
    question="Does communication hide behind compute here, and what does each cost the other?",
    topic="network",
    axes=OverlapAxes.of,
    sweep=sweep,
    computed={"what": what, "share": share},
    claims=(
        RowClaim(
            OVERLAPS,
            "{what}: together they are {measured} as fast as in turn",
            ratio=lambda row: row.against(run="in_turn"),
            where=lambda row: row.p.run == "together",
        ),
        RowClaim(
            HIDES,
            "{what}: both together take {measured} the product alone, the all_reduce alone {share} of it",
            ratio=over_product,
            where=lambda row: row.p.run == "together",
        ),
    ),
    tables=(
        RowTable(
            "A product with an all_reduce",
            (
                Column("product", lambda row: f"{row.p.size}³ {row.p.dtype}", priority=2),
                Column("message", "bytes", "size", priority=2),
                Column("ranks", priority=0),
                Column("product", seconds("product"), "ms"),
                Column("all_reduce", seconds("all_reduce"), "ms"),
                Column("in turn", seconds("in_turn"), "ms"),
                Column("together", seconds("together"), "ms", priority=2),
                Column("hidden", hidden, "%", priority=2),
                Column("product slowdown", slowdown("product"), "x"),
                Column("all_reduce slowdown", slowdown("all_reduce"), "x"),
                Column("blocks of NCCL", of_nccl("nccl_blocks"), priority=0),
                Column("SMs", of_nccl("multiprocessors"), priority=0),
            ),
            where=lambda row: row is row.rows.same_except(row, "run")[0],
        ),
    ),
    analyse=analyse,
    group=lambda case: f"overlap {case.implementation} {case.parameters.ranks} ranks",
)
