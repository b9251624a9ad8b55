"""Whether communication hides behind compute: a product beside an all_reduce, and what each does to the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.training.overlap import RUNS, OverlapParameters
from pyperf_suite.probes.collectives.sizes import readable
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.claims import BEKMAN, Claim
from pyperf_suite.ranks.environment import ranks_here, require_launched
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import YES, Flag, Sizes
from pyperf_suite.spec.findings import Findings, Table
from pyperf_suite.spec.rows import Reading, readings, speedup

OVERLAPS = Claim("an efficient framework overlaps communication and compute", BEKMAN, low=1.0)
# "as long as the communication overhead is smaller than compute the network requirements are satisfied"; so much more
# is still called nothing.
HIDDEN_WITHIN = 1.05
HIDES = Claim("communication that is shorter than compute costs nothing", BEKMAN, high=HIDDEN_WITHIN)

COLUMNS = (
    "product",
    "message",
    "ranks",
    "product ms",
    "all_reduce ms",
    "in turn ms",
    "together ms",
    "hidden",
    "product beside",
    "all_reduce beside",
    "SMs of NCCL",
)


@dataclass(frozen=True)
class OverlapAxes:
    """What the probe varies: products of `size`³ beside all_reduces of `message` bytes, in every `run`."""

    implementation: tuple[str, ...]
    ranks: tuple[int, ...]
    size: tuple[int, ...]
    message: tuple[Sizes, ...]
    dtype: tuple[str, ...] = ("float32",)
    run: tuple[str, ...] = RUNS
    peer_to_peer: tuple[Flag, ...] = (YES,)


class OverlapProbe(Probe):
    """A product and an all_reduce alone, in turn, together, and each beside the other."""

    name = "overlap"
    question = "Does communication hide behind compute here, and what does each cost the other?"

    def axes(self, profile: str, device: Device) -> OverlapAxes:
        """Products of some 10 ms on a CPU core; on GPUs those of large layers beside a bucket and beside a model."""
        axes = _cuda_axes(profile) if device.kind == "cuda" else _cpu_axes(profile)
        return replace(axes, ranks=ranks_here(axes.ranks))

    def sweep(self, axes: OverlapAxes) -> list[Case]:
        """Every product with every message in every run. Raises UserError for other ranks than a launcher started."""
        require_launched(axes.ranks)
        messages = sorted({size for ladder in axes.message for size in ladder.ladder()})
        settings = itertools.product(
            axes.implementation, axes.ranks, axes.peer_to_peer, axes.dtype, axes.size, messages, axes.run
        )
        cases: dict[str, Case] = {}
        for implementation, ranks, direct, dtype, size, message, run in settings:
            parameters = OverlapParameters(size, message, ranks, run, dtype, direct.value)
            case = Case("overlap", parameters, implementation)
            cases.setdefault(case.case_id, case)
        return list(cases.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """What is hidden, what each costs the other, and how many multiprocessors NCCL takes."""
        by_setting: dict[tuple[str, OverlapParameters], dict[str, Reading]] = {}
        for reading in readings(records):
            p = reading.case.parameters
            setting = (reading.case.implementation, replace(p, run="together"))
            by_setting.setdefault(setting, {})[p.run] = reading
        if not by_setting:
            return Findings()
        found = [(library, p, runs) for (library, p), runs in by_setting.items()]
        sentences = [sentence for each in found for sentence in _sentences(*each)]
        rows = tuple(_row(p, runs) for _, p, runs in found)
        return Findings(tuple(sentences), (Table("A product beside an all_reduce", COLUMNS, rows),))

    def group(self, case: Case) -> str:
        """One table a library and number of ranks."""
        return f"overlap {case.implementation} {case.parameters.ranks} ranks"


def _cpu_axes(profile: str) -> OverlapAxes:
    """A message that takes about as long as the product over gloo's TCP."""
    standard = OverlapAxes(("gloo",), (2,), (768,), (Sizes.parse("4MiB"),))
    if profile == "quick":
        return replace(standard, run=("in_turn", "together"))
    if profile == "standard":
        return standard
    return replace(standard, ranks=(2, 4), size=(768, 1024), message=(Sizes(2**20, 2**24, 4),))


def _cuda_axes(profile: str) -> OverlapAxes:
    """A product of a large layer beside DDP's bucket and beside a whole layer's gradients."""
    standard = OverlapAxes(
        ("nccl",), (len(gpus()),), (8192,), tuple(map(Sizes.parse, ("25MiB", "400MiB"))), ("bfloat16",)
    )
    if profile == "quick":
        return replace(standard, message=(Sizes.parse("25MiB"),), run=("in_turn", "together"))
    if profile == "standard":
        return standard
    return replace(standard, size=(4096, 8192), message=(Sizes(2**20, 2**30, 4),))


def _sentences(library: str, p: OverlapParameters, runs: dict[str, Reading]) -> Iterator[str]:
    direct = "" if p.peer_to_peer else " without direct copies"
    ranks = f"{p.ranks} rank{'' if p.ranks == 1 else 's'}"
    what = f"{p.size}³ {p.dtype} beside an all_reduce of {readable(p.bytes)} ({ranks}, {library}{direct})"
    together, in_turn = runs.get("together"), runs.get("in_turn")
    if together and in_turn and (ratio := speedup(in_turn, together)) is not None:
        share = hidden_share(runs)
        told = f", so that {_in_words(share)} of the shorter hides" if share is not None else ""
        yield OVERLAPS.sentence(f"{what}: together they are {{}} x as fast as in turn{told}", ratio)
    product, all_reduce = runs.get("product"), runs.get("all_reduce")
    if product and all_reduce and together and all_reduce.seconds < product.seconds:
        ratio = speedup(together, product)
        if ratio is not None:
            subject = f"{what}: the all_reduce is {all_reduce.seconds / product.seconds:.0%} as long as the product"
            yield HIDES.sentence(f"{subject}, and both together take {{}} x the product alone", ratio)
    slowed = [
        f"the {name.replace('_', '-') if name != 'all_reduce' else name} takes {ratio} x as long beside the other"
        for name in ("product", "all_reduce")
        if (ratio := _slowdown(runs, name)) is not None
    ]
    if slowed:
        yield f"{what}: {', '.join(slowed)}{_blocks_in_words(runs)}."


def _slowdown(runs: dict[str, Reading], name: str) -> Ratio | None:
    """Its time while the other goes on over its time alone."""
    alone, beside = runs.get(name), runs.get(f"{name}_beside")
    return speedup(beside, alone) if alone and beside else None


def hidden_share(runs: dict[str, Reading]) -> tuple[float, float, float] | None:
    """(in turn − together) / the shorter of both alone: the median over processes, the least and the most.

    1 is all that there is to hide, 0 nothing; below 0 the two hinder each other so that in turn is better. None where
    no process ran all four.
    """
    names = ("product", "all_reduce", "in_turn", "together")
    if any(name not in runs for name in names):
        return None
    processes = sorted(set.intersection(*(set(runs[name].by_process) for name in names)))
    shares = []
    for process in processes:
        product, all_reduce, in_turn, together = (runs[name].by_process[process] for name in names)
        shares.append((in_turn - together) / min(product, all_reduce))
    if not shares:
        return None
    shares.sort()
    middle = (shares[(len(shares) - 1) // 2] + shares[len(shares) // 2]) / 2
    return middle, shares[0], shares[-1]


def _in_words(share: tuple[float, float, float]) -> str:
    """More than all is what waiting for each other in turn adds, and nothing to tell of."""
    return "all" if share[0] >= 1 else f"{share[0]:.0%} [{share[1]:.0%}, {share[2]:.0%}]"


def _blocks(runs: dict[str, Reading]) -> tuple[int | None, int | None]:
    """NCCL's thread blocks and the GPU's multiprocessors, where a record has them."""
    for reading in runs.values():
        details = reading.kernel.get("details", {})
        if details.get("nccl_blocks"):
            return int(details["nccl_blocks"]), int(details["multiprocessors"])
    return None, None


def _blocks_in_words(runs: dict[str, Reading]) -> str:
    if not any("multiprocessors" in reading.kernel.get("details", {}) for reading in runs.values()):
        return ""
    blocks, multiprocessors = _blocks(runs)
    if blocks is None:
        return "; how many multiprocessors NCCL takes is unknown"
    return f"; NCCL's kernel has {blocks} blocks, at most as many of {multiprocessors} multiprocessors"


def _row(p: OverlapParameters, runs: dict[str, Reading]) -> tuple[str, ...]:
    times = [
        f"{runs[name].seconds * 1e3:.3g}" if name in runs else "-"
        for name in ("product", "all_reduce", "in_turn", "together")
    ]
    share, blocks = hidden_share(runs), _blocks(runs)[0]
    return (
        f"{p.size}³ {p.dtype}",
        readable(p.bytes),
        str(p.ranks),
        *times,
        f"{share[0]:.0%}" if share is not None and math.isfinite(share[0]) else "-",
        *(str(_slowdown(runs, name) or "-") for name in ("product", "all_reduce")),
        str(blocks) if blocks is not None else "-",
    )
