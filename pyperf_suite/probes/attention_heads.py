"""Attention head sizing: which number of heads, and so which head dimension, runs fastest at the same parameters."""

from __future__ import annotations

import bisect
import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.findings.axes import AxisTable, all_cores, by
from pyperf_suite.findings.data import Figure, Findings, Kind, Panel, Remark, Series, findings, remark
from pyperf_suite.findings.probe import Probe, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, series, table
from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.kernels import attention_defaults, attention_sm90
from pyperf_suite.laws.attention_pipes import EXPONENTIAL_COLUMNS, bounding_unit
from pyperf_suite.laws.tiled_attention import BUCKETS, Blocks, FittedLaw, HeadSizeLaw, TiledAttention, bucket_of, causes
from pyperf_suite.laws.tiling import Tile, tile_efficiency
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import wins
from pyperf_suite.workloads.attention import FLASH3_PACKAGE, AttentionParameters
from pyperf_suite.workloads.backends import INSTRUCTION_SETS, named_by_isa
from pyperf_suite.workloads.kernel_names import flash_kernel

MASKS = ("full", "causal")
PHASES = ("forward", "backward", "decode")
MQA = "all"  # all query heads share a single key head (multi-query attention)

# Blocks that our kernel chooses for the case, and all that may be faster in a forward pass of its head_dim.
CHOSEN, RIVALS = "chosen", "rivals"

# Backends that users run first; FlashAttention-3 only where it is installed.
SDPA = ("sdpa_default", "sdpa_cudnn", "sdpa_flash", "sdpa_efficient")
LIBRARIES = (*SDPA, *(("flash3",) if find_spec(FLASH3_PACKAGE) else ()))
HOPPER = f"cuda_{attention_sm90.FAMILY}"
EXTRA_IMPLEMENTATIONS = ("sdpa_math", "two_gemm", "two_gemm_products")

# Just at and past each bucket of the known implementations (FlashAttention-3's tile_size.h: 64, 96, 128, 192, 256).
BUCKET_EDGES = (64, 72, 80, 96, 104, 112, 128, 136, 160, 192, 200, 256)
HEAD_DIMS = (64, 72, 80, 96, 112, 128, 160, 192, 256)  # that models have

Sizes = Annotated[tuple[int, ...], Within(1, 1 << 31)]


def gpu_implementations(device: Device, others: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The libraries, those of our kernels that a GPU can run, and others."""
    family = architecture(gpus()[device.index].compute_capability).cuda_kernels
    return (*LIBRARIES, *(name for name in (HOPPER,) if name == f"cuda_{family}"), "triton", *others)


def tried_blocks(device: Device) -> tuple[str, ...]:
    """The blocks that are tried on a GPU: rivals where its generation has some."""
    generation = architecture(gpus()[device.index].compute_capability).generation
    return (CHOSEN, RIVALS) if generation in attention_defaults.RIVALS else (CHOSEN,)


def rivals(implementation: str, head_dim: int) -> Iterator[Blocks]:
    """Blocks that may be faster than those that a kernel of ours chooses at a head_dim."""
    own = {HOPPER: [attention_sm90.RIVALS], "triton": attention_defaults.RIVALS.values()}
    for by_head_dim in own.get(implementation, ()):
        yield from (Blocks(*blocks) for blocks in by_head_dim.get(head_dim, ()))


@dataclass(frozen=True)
class AttentionHeadsAxes(AxisTable):
    """Small models on a CPU; on a GPU the splits of hidden size 5120, and head_dim over every bucket.

    Each `heads` splits each `hidden`; each `head_dim` is measured with each number of `heads_of_head_dim`. Forward and
    backward passes of every implementation are crossed with all of these at the first kv_ratio, mask, seq and batch.
    The other values of those four, one at a time, decoding, and the implementations `extra` take the first
    `varied_splits` splits only; the `blocks` "rivals" are our kernels', in forward passes at the first of the four.
    `kv_ratio` is how many query heads share a key head, or "all".
    """

    workers: Sizes = by(all_cores, cuda=(1,))
    implementation: tuple[str, ...] = by(
        ("native", SDPA[0]),
        full=("native", *SDPA[:2], *EXTRA_IMPLEMENTATIONS),
        cuda=by(gpu_implementations, full=partial(gpu_implementations, others=EXTRA_IMPLEMENTATIONS)),
    )
    extra: tuple[str, ...] = by((), EXTRA_IMPLEMENTATIONS[1:], full=(), cuda=by((), EXTRA_IMPLEMENTATIONS, full=()))
    hidden: Sizes = by((768,), cuda=(5120,))
    # 40 and 64 heads of 5120 are the two that have been built most.
    heads: Sizes = by((12, 6), (12, 6, 8, 16), (12, 8, 6, 16, 4, 24), cuda=by((40, 64), (40, 64, 20, 32, 80, 160)))
    head_dim: Sizes = by((), (72, 136), BUCKET_EDGES, cuda=by(HEAD_DIMS, full=BUCKET_EDGES))
    # With 4 blocks of queries 33 heads fill the 132 multiprocessors of an H200.
    heads_of_head_dim: Sizes = by((8,), cuda=by((32,), full=(32, 33)))
    kv_ratio: tuple[str, ...] = by(("1",), full=("1", "4", MQA), cuda=by(("1",), standard=("1", "4", "8", MQA)))
    # Causal first on a GPU, as models are trained.
    mask: Annotated[tuple[str, ...], OneOf(MASKS)] = by(MASKS[:1], MASKS, cuda=by(("causal",), ("causal", "full")))
    phase: Annotated[tuple[str, ...], OneOf(PHASES)] = by(PHASES[:2], full=PHASES, cuda=by(PHASES[:2], PHASES))
    seq: Sizes = by(
        (256,),
        (256, 512),
        (512, 1024, 2048),
        cuda=by((4096,), (4096, 1024, 16384), (4096, 512, 1024, 2048, 8192, 16384)),
    )
    batch: Sizes = by((1,), cuda=(2,))
    dtype: tuple[str, ...] = by(
        ("float32",), full=("float32", "bfloat16"), cuda=by(("bfloat16",), full=("bfloat16", "float16"))
    )
    blocks: tuple[str, ...] = by((CHOSEN,), cuda=by((CHOSEN,), tried_blocks))
    varied_splits: Annotated[tuple[int, ...], Within(0)] = by((1,), full=(2,), cuda=by((1,), standard=(2,)))
    mode: tuple[str, ...] = ("burst",)


def sweep(axes: AttentionHeadsAxes) -> Iterator[Case]:
    """Every split forward and backward; the other axes on the first splits (see AttentionHeadsAxes)."""
    splits = [
        (heads, _share(hidden, heads, f"{heads} heads were requested, but they do not divide the hidden size {hidden}"))
        for hidden, heads in itertools.product(axes.hidden, axes.heads)
    ]
    base = {name: getattr(axes, name)[0] for name in ("kv_ratio", "mask", "seq", "batch")}
    varied = [base, *(base | {name: value} for name in base for value in getattr(axes, name)[1:])]
    passes = [phase for phase in axes.phase if phase != "decode"]
    requested: list[tuple[tuple[int, int], dict[str, Any], Sequence[str], Sequence[str]]] = []
    for split in (*splits, *itertools.product(axes.heads_of_head_dim, axes.head_dim)):
        requested.append((split, base, axes.implementation, passes))
    for split in splits[: axes.varied_splits[0]]:
        requested.append((split, base, axes.extra, passes))
        requested += [(split, other, axes.implementation, axes.phase) for other in varied]
    for split, fields, implementations, phases in requested:
        everything = itertools.product(implementations, phases, axes.dtype, axes.workers, axes.blocks, axes.mode)
        for implementation, phase, dtype, workers, blocks, mode in everything:
            parameters = _parameters(*split, **fields, phase=phase, dtype=dtype, workers=workers)
            # A library chooses its blocks itself; only Triton's of our kernels computes gradients.
            if blocks == RIVALS:
                tried = [replace(parameters, blocks=each) for each in rivals(implementation, parameters.head_dim)]
                tried = tried if phase == "forward" and fields is base else []
            elif blocks != CHOSEN and implementation in OUR_KERNELS:
                tried = [replace(parameters, blocks=Blocks.parse(blocks))]
            else:
                tried = [parameters]
            if not (implementation in FORWARD_ONLY and phase == "backward"):
                yield from (Case("attention", each, implementation, mode=mode) for each in tried)


def _parameters(
    heads: int, head_dim: int, kv_ratio: str, mask: str, seq: int, batch: int, phase: str, **fields: Any
) -> AttentionParameters:
    if kv_ratio != MQA and not re.fullmatch("[1-9][0-9]{0,8}", kv_ratio):
        raise UserError(f"kv_ratio={kv_ratio} was requested: write a number of query heads to a key head, or all.")
    refusal = f"kv_ratio={kv_ratio} was requested, but it does not divide {heads} heads"
    key_heads = 1 if kv_ratio == MQA else _share(heads, int(kv_ratio), refusal)
    if phase == "decode":
        # A single query sees all keys, masked or not.
        fields |= {"seq_q": 1, "seq_k": seq}
    else:
        fields |= {"seq_q": seq, "causal": mask == "causal", "backward": phase == "backward"}
    return AttentionParameters(batch, heads, head_dim, kv_heads=0 if key_heads == heads else key_heads, **fields)


def _share(total: int, parts: int, refusal: str) -> int:
    """Return one of `parts` equal parts. Raises UserError with the nearest numbers that divide the total."""
    if total % parts:
        small = [count for count in range(1, math.isqrt(total) + 1) if total % count == 0]
        divisors = sorted({*small, *(total // count for count in small)})
        above = bisect.bisect(divisors, parts)
        raise UserError(f"{refusal}: take {' or '.join(map(str, divisors[above - 1 : above + 1]))}.")
    return total // parts


def group(case: Case) -> str:
    """One table an implementation and pass."""
    p = case.parameters
    phase = "backward" if p.backward else "decode" if p.seq_q == 1 else "forward"
    return f"attention_heads {case.implementation} {phase}"


# Our own kernels, which take the requested blocks.
FORWARD_ONLY = (HOPPER, *map(named_by_isa, ("", *INSTRUCTION_SETS)))
OUR_KERNELS = (*FORWARD_ONLY, "triton")


def kernel(row: Row[AttentionParameters]) -> str:
    """Return the implementation, as in `sustained triton 128x64, bfloat16`."""
    words = ("" if row.case.mode == "burst" else row.case.mode, row.implementation, str(row.p.blocks or ""))
    return f"{' '.join(filter(None, words))}, {row.p.dtype}"


def kv_ratio(row: Row[AttentionParameters]) -> str:
    """How many query heads share a key head, or "all"."""
    return "all" if row.p.key_heads == 1 < row.p.heads else str(row.p.group)


def tiled(row: Row[AttentionParameters]) -> TiledAttention | None:
    """The tiles of a forward pass, on one slot unless told; None where its kernel does not tell them."""
    p, details = row.p, row.reading.details
    # Gradients are computed in tiles of other kinds, which the law does not count.
    if p.backward:
        return None
    if {"blocks", "padded_head_dim"} <= details.keys():
        padded_head_dim, blocks = details["padded_head_dim"], Blocks.parse(details["blocks"])
    elif (flash := flash_kernel(details.get("launched", ()))) is not None:
        padded_head_dim, blocks = flash.padded_head_dim, flash.blocks
    else:
        return None
    # A library does not tell its slots: as on a single one, none of its tiles are too few.
    slots, together = details.get("slots") or 1, details.get("heads_together", 0)
    sizes = p.batch, p.heads, p.seq_q, p.keys, p.head_dim, padded_head_dim
    return TiledAttention(*sizes, p.causal, blocks, slots, together)


def law_key(row: Row[AttentionParameters]) -> str:
    """The kernel that a law is fitted for: who computes, and on how many workers."""
    return f"{kernel(row)}, {row.p.workers} worker{'s' if row.p.workers > 1 else ''}"


def laws_of(rows: Iterable[Row[AttentionParameters]]) -> dict[str, FittedLaw]:
    """A law for each of our kernels that has enough cases. With one query a kernel is another one: none decodes."""
    members = grouped((row for row in rows if row.implementation in OUR_KERNELS and row.p.seq_q > 1), law_key)
    measured = {key: [(case, row.seconds) for row in members[key] if (case := tiled(row))] for key in sorted(members)}
    return {key: law for key, cases in measured.items() if (law := FittedLaw.fit(cases)) is not None}


DEFAULT = "sdpa_default"

# Backends that a user can have instead of the default without a kernel of their own.
CHOICES = ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "sdpa_math", "flash3")
FEWEST_SIZES = 3  # two points are a table's row, not a picture

CAUSES = {
    "padding": "head_dim is padded to the next bucket",
    "edges": "fewer of the computed pairs count",
    "slots": "too few tiles leave slots idle",
    "softmax": "more heads have more softmax",
}


def what(row: Row[AttentionParameters]) -> str:
    """Return the shape, as in `2 x 4096 tokens, causal, kv ratio 4`."""
    keys = "" if row.p.seq_q == row.p.keys else f" to {row.p.keys} keys"
    mask = ", causal" if row.p.causal else ""
    ratio = "" if kv_ratio(row) == "1" else f", kv ratio {kv_ratio(row)}"
    return f"{row.p.batch} x {row.p.seq_q} tokens{keys}{mask}{ratio}"


def split(row: Row[AttentionParameters]) -> str:
    """`40 x 128`: heads and their dimension."""
    return f"{row.p.heads} x {row.p.head_dim}"


def pass_of(row: Row[AttentionParameters]) -> str:
    """Return the pass that was timed."""
    return "backward" if row.p.backward else "forward"


@dataclass(frozen=True)
class SweepAxis:
    """The axis of a sweep, the column constant along it and its words, and how many rows are enough to compare."""

    axis: str
    constant: str
    fixed: str
    fewest: int

    def key(self, row: Row[AttentionParameters]) -> tuple[Any, ...]:
        return (law_key(row), what(row), row.by_name(self.constant), row.p.backward)

    def sweep_of(self, row: Row[AttentionParameters]) -> list[Row[AttentionParameters]]:
        """The sweep that a row belongs to; nothing where it is too short."""
        sweep = row.rows.sharing(row, self.key)
        return sweep if len(sweep) >= self.fewest else []

    def sweeps(self, rows: Rows[AttentionParameters]) -> list[list[Row[AttentionParameters]]]:
        """All that are long enough; a row may belong to one along each axis."""
        return [sweep for sweep in grouped(rows, self.key).values() if len(sweep) >= self.fewest]


HEADS = SweepAxis("heads", "hidden", "hidden {hidden}", 2)
HEAD_DIM = SweepAxis("head_dim", "heads", "{heads} heads", 3)  # a step over head dimensions shows with three


def ends(sweep: list[Row[AttentionParameters]]) -> tuple[Row[AttentionParameters], Row[AttentionParameters]]:
    """The fastest split and the slowest: by forward and backward together, if two splits were measured in both."""
    both = [(row, row.like(backward=not row.p.backward)) for row in sweep]
    seconds = {row.p.heads: row.seconds + other.seconds for row, other in both if other is not None}
    if len(seconds) < 2:
        seconds = {row.p.heads: row.seconds for row in sweep}
    ordered = sorted((row for row in sweep if row.p.heads in seconds), key=lambda row: seconds[row.p.heads])
    return ordered[0], ordered[-1]


def relative_rate(row: Row[AttentionParameters], base: Row[AttentionParameters]) -> Ratio | None:
    """Throughput relative to that of another row; None where no process measured both."""
    ratio = row.faster_than(base)
    return ratio and ratio * (row.reading.flop / base.reading.flop)


IMPLEMENTATION, CASE, PASS = Column("implementation", kernel), Column("what", what, priority=0), Column("pass", pass_of)
SPLIT = Column("heads x head_dim", split, priority=2)
WHO = (IMPLEMENTATION, CASE, SPLIT)

Laws = Mapping[str, FittedLaw]  # by kernel


def analyse(rows: Rows[AttentionParameters]) -> Findings:
    """The recommendation first, then cliffs, what torch picks, the law, and pictures of both kinds of sweep."""
    laws, by_heads, sizes = laws_of(rows), HEADS.sweeps(rows), head_size_laws(rows)
    longest = max(map(len, by_heads), default=0)
    by_heads.sort(key=lambda sweep: (rank(sweep[0]), law_key(sweep[0])))
    leading = rank(by_heads[0][0]) if by_heads else 0
    softmax = Column("softmax", lambda row: softmax_by_law(row, laws), "%", predicted=True)
    return findings(
        # The table alone tells of masks, key heads and lengths with a few splits.
        (
            advice(sweep, laws.get(law_key(sweep[0])), leads=rank(sweep[0]) <= max(leading, LAST_LIBRARY))
            for sweep in by_heads
            if 2 * len(sweep) > longest
        ),
        (head_size_remark(*law) for law in sizes),
        map(cliff, HEAD_DIM.sweeps(rows)),
        picks(rows),
        (law_remark(key, law) for key, law in laws.items()),
        table("Fastest and slowest split", EXTREMES, (ends(sweep)[0] for sweep in by_heads)),
        table("What the forward kernels compute", (*COMPUTED, softmax), rows.where(lambda row: tiled(row) is not None)),
        figures(rows, HEADS, laws),
        figures(rows, HEAD_DIM, laws),
    )


def of(row: Row[AttentionParameters]) -> dict[str, Any]:
    """Return the fields that remarks name of a row besides its parameters."""
    return {"kernel": kernel(row), "what": what(row), "split": split(row), "of_pass": pass_of(row)}


RANKS = {name: place for place, name in enumerate((*SDPA, "flash3"))}
LAST_LIBRARY = len(RANKS)


def rank(row: Row[AttentionParameters]) -> int:
    """The place of a row's implementation among those that users run, the default first and our own kernels last."""
    return LAST_LIBRARY + 1 if row.implementation in OUR_KERNELS else RANKS.get(row.implementation, LAST_LIBRARY)


def is_by_gpu(row: Row[AttentionParameters]) -> bool:
    """True if a GPU computed it."""
    return row.implementation in (HOPPER, "triton") or "launched" in row.reading.details


def columns_of(row: Row[AttentionParameters]) -> int:
    """Columns of head_dim that are computed: as the kernel tells them, else on a GPU those of the next known bucket."""
    case = tiled(row)
    return case.padded_head_dim if case else bucket_of(row.p.head_dim) if is_by_gpu(row) else row.p.head_dim


def head_size_laws(rows: Rows[AttentionParameters]) -> list[tuple[Row[AttentionParameters], HeadSizeLaw]]:
    """A row and the law of each implementation, pass and problem that has at least two head dimensions."""
    sharing = grouped(
        (row for row in rows if row.p.seq_q > 1 and row.implementation not in EXTRA_IMPLEMENTATIONS),
        lambda row: (rank(row), law_key(row), what(row), row.p.backward),
    )
    found = []
    for key in sorted(sharing):
        law = HeadSizeLaw.fit([(row.p.batch * row.p.heads, columns_of(row), row.seconds) for row in sharing[key]])
        found += [(sharing[key][0], law)] if law is not None else []
    return found


def head_size_remark(row: Row[AttentionParameters], law: HeadSizeLaw) -> Remark:
    """The constants of a law of head size, and what they mean."""
    template = (
        "{kernel}, {what}: a head takes {head} + {column} a computed column of head_dim in {of_pass}; the first, "
        "mostly the softmax, costs as much as {columns} columns"
    )
    hopper = " (the exponentials alone take a Hopper GPU {floor}; by its instructions a step is bound by the {units})"
    template += hopper if is_by_gpu(row) else ""
    template += "; it misses held-out head dimensions by {miss} (median)" if law.held_out else ""
    values: dict[str, Any] = {
        "head": Quantity(law.per_head_s, "us"),
        "column": Quantity(law.per_column_s, "ns"),
        "columns": round(law.columns),
        "floor": EXPONENTIAL_COLUMNS,
        "units": ", ".join(f"{bounding_unit(columns)} at {columns}" for columns in law.head_dims),
        "miss": Quantity(statistics.median(law.held_out), "%") if law.held_out else None,
    }
    return row.remark(template, kind="law", **values, **of(row))


def advice(sweep: list[Row[AttentionParameters]], fitted: FittedLaw | None, leads: bool = True) -> Iterator[Remark]:
    """The fastest split compared with the slowest and why; a detail, of kind law, where it does not lead."""
    fast, slow = ends(sweep)
    faster = fast.faster_than(slow)
    if faster is None:
        return
    # Heads of K and V get narrower with those of Q; where all share one, it has other parameters.
    parameters = "" if kv_ratio(fast) == "all" else ", with the same parameters"
    template = "{kernel}, {what}, hidden {hidden}: {split} is {faster} as fast as {slow} in {of_pass}" + parameters
    kind: Kind = "" if leads else "law"
    yield fast.remark(template, kind=kind, effect="faster", faster=faster, slow=split(slow), **of(fast))
    bad, good = tiled(slow), tiled(fast)
    if bad is not None and good is not None and wins(faster):
        for cause in causes(bad, good, slow.seconds / fast.seconds, fitted.law if fitted else None):
            template = "{kernel}, {what}, hidden {hidden}: {split} is slower than {fast}: {cause}"
            yield slow.remark(template, kind=kind, fast=split(fast), cause=CAUSES[cause], **of(slow))


def cliff(sweep: list[Row[AttentionParameters]]) -> Remark | None:
    """The largest drop of throughput from one head dimension to the next."""
    pairs = ((relative_rate(after, before), before, after.p.head_dim) for before, after in itertools.pairwise(sweep))
    drops = [(ratio, before, after) for ratio, before, after in pairs if ratio is not None and ratio.value < 1]
    if not drops:
        return None
    drop, before, after = min(drops, key=lambda each: each[0].value)
    return before.remark(
        "{kernel}, {what}, {heads} heads: head_dim {after} has {drop} the throughput of {head_dim} in {of_pass}, the "
        "largest drop",
        effect="drop",
        after=after,
        drop=drop,
        **of(before),
    )


def picks(rows: Rows[AttentionParameters]) -> Iterator[Remark]:
    """Yield the backends that torch picked by itself, and cases where another was faster beyond the interval."""
    for key, members in grouped(rows.where(implementation=DEFAULT), law_key).items():
        paths = Counter(str(row.reading.kernel.get("path", "a backend it does not tell")) for row in members)
        for path, count in sorted(paths.items()):
            template = "{kernel}: torch picked {path} in {count} of {cases} cases"
            yield remark(template, kernel=key, path=path, count=count, cases=len(members))
        others = [other for row in members for name in CHOICES if (other := row.like(implementation=name)) is not None]
        ratios = [(other.against(implementation=DEFAULT), other) for other in others]
        faster = [(ratio, other) for ratio, other in ratios if ratio is not None and wins(ratio)]
        if faster:
            largest, best = max(faster, key=lambda each: each[0].value)
            template = (
                "{kernel} is {faster} as fast as what torch picks at {split} in {of_pass} ({what}), the most of "
                "{count} cases where another backend is faster"
            )
            count = len({other.p for _, other in faster})
            yield best.remark(template, effect="faster", faster=largest, count=count, **of(best))


def law_remark(key: str, fitted: FittedLaw) -> Remark:
    """The law's constants and how far it is off."""
    return remark(
        "Law of {kernel}: time = overhead + what the busiest slot computes, {overhead} and {product} a product of "
        "both, which are {narrow} of a step at head_dim 64 and {wide} at head_dim 128 (the rest is softmax); fitted on "
        "{fitted_on} forward cases, it misses {held_out} held-out ones by {median} (median; worst {worst})",
        kind="law",
        kernel=key,
        overhead=Quantity(fitted.law.overhead_s, "us"),
        product=Quantity(fitted.law.per_product_s, "ns"),
        narrow=Quantity(fitted.law.product_share(64), "%"),
        wide=Quantity(fitted.law.product_share(128), "%"),
        fitted_on=fitted.fitted_on,
        held_out=len(fitted.held_out),
        median=Quantity(statistics.median(fitted.held_out), "%"),
        worst=Quantity(max(fitted.held_out), "%"),
    )


def of_tiles(name: str) -> Callable[[Row[AttentionParameters]], Any]:
    """Return a column of a count of a row's tiles."""
    return lambda row: getattr(tiled(row), name, None)


def softmax_by_law(row: Row[AttentionParameters], laws: Laws) -> float | None:
    """The softmax's share of a step, where the kernel has a law."""
    case, fitted = tiled(row), laws.get(law_key(row))
    return 1 - fitted.law.product_share(case.padded_head_dim) if case and fitted else None


def rate_by_law(row: Row[AttentionParameters], laws: Laws) -> float | None:
    """FLOP/s, where the kernel has a law."""
    case, fitted = tiled(row), laws.get(law_key(row))
    return row.reading.flop / float(fitted.law.seconds([case])[0]) if case and fitted else None


def softmax_share(row: Row[AttentionParameters]) -> Quantity | None:
    """Softmax's and the mask's share of the two-product form: 1 − t(products) / t(whole)."""
    ratio = row.against(implementation="two_gemm_products")
    if ratio is None:
        return None
    value, low, high = (max(0.0, 1 - each) for each in (ratio.value, ratio.high, ratio.low))
    return Quantity(value, "%", low, high, ratio.processes)


def tile_of_values(row: Row[AttentionParameters]) -> Tile | None:
    """The output tile of P·V, rows by columns of a row-major result (see workloads/kernel_names.py)."""
    products = row.reading.details.get("products", ())
    tile = products[-1].get("tile") if len(products) > 1 and not row.p.backward else None
    if not tile or len(tile) < 2:
        return None
    rows_first = products[-1].get("family") == "nvjet" and str(products[-1].get("name", "")).endswith("N")
    m, n = tile[:2] if rows_first else tile[1::-1]
    return Tile(m, n, 1)


def filled(row: Row[AttentionParameters]) -> float | None:
    """Share of what P·V computes that is its result: poor tiles are the saw-tooth of the two-product form."""
    tile = tile_of_values(row)
    return float(tile_efficiency(row.p.seq_q * row.p.group, row.p.head_dim, tile)) if tile else None


def figures(rows: Rows[AttentionParameters], along: SweepAxis, laws: Laws) -> Iterator[Figure]:
    """One figure for each dtype, way of measuring and number fixed: a panel a pass, a series an implementation."""

    def fixed(row: Row[AttentionParameters]) -> str:
        return along.fixed.format(hidden=row.p.hidden, heads=row.p.heads)

    def stem(row: Row[AttentionParameters]) -> str:
        sizes = f"b{row.p.batch}_q{row.p.seq_q}_k{row.p.keys}_{'causal' if row.p.causal else 'full'}_kv{kv_ratio(row)}"
        return f"{fixed(row).replace(' ', '_')}_{row.case.mode}_{row.p.dtype}_w{row.p.workers}_{sizes}"

    drawn = (sweep for sweep in along.sweeps(rows) if len(sweep) >= FEWEST_SIZES)
    for name, sweeps in grouped(drawn, lambda sweep: stem(sweep[0])).items():
        row, passes = sweeps[0][0], grouped(sweeps, lambda sweep: pass_of(sweep[0]))
        title = f"Attention by {along.axis}: {fixed(row)}, {row.p.dtype}, {what(row)}"
        caption = "Points: measured, bars span the processes; line: the law of our own kernel; dotted: known buckets."
        panels = tuple(panel(each, passes[each], along, laws) for each in passes)
        yield Figure(f"attention_{along.axis}_{name}", title, caption, (panels,))


def panel(title: str, sweeps: list[list[Row[AttentionParameters]]], along: SweepAxis, laws: Laws) -> Panel:
    """Return the panel of a pass: measurements, the law where a kernel has one, and the buckets of head_dim."""
    head_dims = [row.p.head_dim for sweep in sweeps for row in sweep]
    buckets = [float(bucket) for bucket in BUCKETS if min(head_dims) <= bucket <= max(head_dims)]
    place, drawn = along.axis, list[Series]()
    for sweep in sweeps:
        label = f"{sweep[0].implementation} {sweep[0].p.blocks or ''}".rstrip()
        law = series(f"law of {label}", sweep, place, lambda row: rate_by_law(row, laws), "line")
        drawn += [series(label, sweep, place, lambda row: row.reading.throughput), *([law] if law.x else [])]
    edges = tuple(buckets) if along is HEAD_DIM else ()
    return Panel(title, along.axis, "throughput", tuple(drawn), weak_edges=edges, y_unit="TFLOP/s")


def by_size(title: str, along: SweepAxis) -> RowTable:
    """A line for each size of each sweep, both passes in it."""

    def in_pass(
        backward: bool, value: Callable[[Row[AttentionParameters]], Any]
    ) -> Callable[[Row[AttentionParameters]], Any]:
        return lambda row: None if (timed := row.like(backward=backward)) is None else value(timed)

    def over_best(row: Row[AttentionParameters]) -> Ratio | str | None:
        best = max(row.rows.sharing(row, along.key), key=lambda each: each.reading.flop_per_s)
        return "best" if best is row else relative_rate(row, best)

    return RowTable(
        title,
        (
            *(IMPLEMENTATION, CASE, Column(along.constant, priority=0), SPLIT),
            Column("computed as", of_tiles("padded_head_dim"), priority=0),
            Column("forward", in_pass(False, lambda row: row.reading.flop_per_s), "TFLOP/s", 2),
            Column("relative to the best", in_pass(False, over_best), "x"),
            Column("backward", in_pass(True, lambda row: row.reading.flop_per_s), "TFLOP/s", 2),
            Column("relative to the best", in_pass(True, over_best), "x"),
        ),
        where=lambda row: bool(along.sweep_of(row)) and not (row.p.backward and row.like(backward=False)),
    )


EXTREMES = (
    *(IMPLEMENTATION, CASE, PASS, Column("hidden", priority=0)),
    Column("fastest", split, priority=2),
    Column("slowest", lambda row: split(ends(HEADS.sweep_of(row))[1]), priority=2),
    Column("faster", lambda row: row.faster_than(ends(HEADS.sweep_of(row))[1]), "x", 2),
)
COMPUTED = (
    *WHO,
    Column("padding", lambda row: 1 - of_tiles("padding_efficiency")(row), "%"),
    Column("pairs that count", of_tiles("tile_efficiency"), "%"),
    Column("tiles", of_tiles("tiles")),
    Column("slots", lambda row: row.reading.details.get("slots")),
)
TABLES = (
    by_size("Throughput by number of heads at constant hidden size", HEADS),
    by_size("Throughput by head dimension at a fixed number of heads", HEAD_DIM),
    RowTable(
        "Other masks, key heads and lengths",
        (*WHO, PASS, Column("time", "seconds", "us"), Column("rate", "flop_per_s", "TFLOP/s", 2)),
        where=lambda row: not (HEADS.sweep_of(row) or HEAD_DIM.sweep_of(row)),
    ),
    RowTable(
        "Two products with a softmax between them",
        (
            *WHO,
            PASS,
            Column("softmax and mask", softmax_share, "%", 2),
            Column("tile of P·V", lambda row: (tile := tile_of_values(row)) and f"{tile.m}x{tile.n}", priority=0),
            Column("tile filled", filled, "%", 0),
        ),
        where=lambda row: row.implementation == "two_gemm",
    ),
)


PROBE = Probe(
    name="attention_heads",
    question="How many heads should a hidden size be split into on this machine, and what does another number cost?",
    topic="attention",
    title="Heads and head size",
    axes=AttentionHeadsAxes.of,
    sweep=sweep,
    order=lambda row: (
        *(rank(row), law_key(row), row.p.batch, row.p.seq_q, row.p.keys, kv_ratio(row), row.p.causal),
        *(row.p.hidden, row.p.heads, row.p.backward),
    ),
    tables=TABLES,
    analyse=analyse,
    group=group,
)
