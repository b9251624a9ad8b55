"""What the attention sweeps say: the number of heads to take and why, head_dim's cliffs, and the law beside them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from pyperf_suite.probes.attention_heads.backends import default_sentences, softmax_sentences, tile_sentences
from pyperf_suite.probes.attention_heads.figure import figures_of
from pyperf_suite.probes.attention_heads.law import FittedLaw, causes, law_key, laws_of, tiled
from pyperf_suite.probes.attention_heads.sweeps import BACKWARD, FORWARD, OWN, Setting, Sweep, sweeps_of, widest
from pyperf_suite.spec.findings import Findings, Table
from pyperf_suite.spec.rows import Reading, wins

# Head dimensions that the law's sentence shows the products' share for: the two most built.
SHOWN_HEAD_DIMS = (64, 128)

SPLIT_COLUMNS = (
    "implementation",
    "what",
    "{fixed}",
    "heads x head_dim",
    "computed as",
    "forward TFLOP/s",
    "beside the best",
    "backward TFLOP/s",
    "beside the best",
)
OTHER_COLUMNS = ("implementation", "what", "heads x head_dim", "pass", "us", "TFLOP/s")


def explain(found: Sequence[Reading]) -> Findings:
    """Sentences with the recommendation first, tables of all that was measured, pictures of both kinds of sweep."""
    laws = laws_of(found)
    by_heads, by_head_dim = sweeps_of(found, "heads"), sweeps_of(found, "head_dim")
    chosen, beside = widest(by_heads)
    sentences = [_recommendation(sweep, laws.get(law_key(sweep.setting))) for sweep in _for_training_first(chosen)]
    sentences += _elsewhere(chosen, beside)
    sentences += [said for sweep in by_head_dim for said in _cliff(sweep)]
    sentences += default_sentences(found) + softmax_sentences(found) + tile_sentences(found)
    sentences += _padding(found)
    sentences += [_law_sentence(key, law) for key, law in laws.items()]
    tables = (
        _table("Throughput by number of heads at constant hidden size", "hidden", by_heads),
        _table("Throughput by head dimension at a fixed number of heads", "heads", by_head_dim),
        _others(found, [*by_heads, *by_head_dim]),
    )
    return Findings(
        tuple(sentences), tuple(table for table in tables if table.rows), figures_of([*chosen, *by_head_dim], laws)
    )


def _for_training_first(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """What torch picks by itself before others, and decoding, which has no backward pass, last."""
    return sorted(sweeps, key=lambda sweep: (sweep.setting.seq_q == 1, sweep.setting.implementation != "sdpa_default"))


def _recommendation(sweep: Sweep, fitted: FittedLaw | None) -> str:
    """The fastest split beside the slowest, pass by pass, and what makes the difference in the forward pass."""
    head = f"hidden {sweep.fixed} ({sweep.setting}): "
    order = sweep.by_time()
    if len(order) < 2:
        return head + "no two splits were measured in the same passes."
    best, worst = order[0], order[-1]
    faster = sweep.faster(best, worst)
    if not faster:
        return head + "no process measured two splits."
    if not any(wins(ratio) for ratio in faster.values()):
        told = _in_passes(sweep, best, worst)
        return head + f"no split is faster than another beyond the intervals, by enough to act on ({told})."
    # Both passes together make the order; where they disagree, one of them is slower.
    relation = "faster than" if all(ratio.value >= 1 for ratio in faster.values()) else "as fast as"
    parameters = "" if sweep.setting.kv == "all" else "; same parameters"
    return (
        head + f"{sweep.split(best)} is {_in_passes(sweep, best, worst, relation)}{parameters}"
        f"{_close_seconds(sweep, order)}. {_cause(sweep, best, worst, fitted)}"
    )


def _in_passes(sweep: Sweep, best: int, other: int, relation: str = "beside") -> str:
    """`1.21 [1.20, 1.22] x faster than 64 x 80 in forward, 1.34 [1.33, 1.35] x in backward`."""
    (first, ratio), *others = sweep.faster(best, other).items()
    told = f"{ratio} x {relation} {sweep.split(other)} in {first}"
    return told + "".join(f", {ratio} x in {name}" for name, ratio in others)


def _close_seconds(sweep: Sweep, order: Sequence[int]) -> str:
    """The splits that are as fast as the best one within their intervals, in every pass."""
    close = [
        sweep.split(size)
        for size in order[1:-1]
        if (faster := sweep.faster(order[0], size)) and not any(wins(ratio) for ratio in faster.values())
    ]
    return f"; {' and '.join(close)} {'is' if len(close) == 1 else 'are'} as fast within the interval" if close else ""


def _cause(sweep: Sweep, best: int, worst: int, fitted: FittedLaw | None) -> str:
    forward = sweep.passes[FORWARD]
    if not {best, worst} <= forward.keys():
        return "Cause not told apart: the forward pass was not measured."
    found = causes(forward[worst], forward[best], fitted)
    return f"Cause in forward: {'; '.join(found)}." if found else "Cause not told apart."


def _elsewhere(chosen: Sequence[Sweep], beside: Sequence[Sweep]) -> list[str]:
    """Whether each recommendation holds under other masks, key heads and lengths, where fewer splits were measured."""
    sentences = []
    for sweep in chosen:
        setting, order = sweep.setting, sweep.by_time()
        orders = [(other, other.by_time()) for other in beside if other.kernel_and_fixed == sweep.kernel_and_fixed]
        compared = [(other, theirs) for other, theirs in orders if len(theirs) > 1 and set(theirs) <= set(order)]
        # Few splits were measured there: the recommendation stands where the fastest of them is so in the wide sweep.
        moved = [(other, theirs) for other, theirs in compared if theirs[0] != min(theirs, key=order.index)]
        if compared:
            turns = ", ".join(f"{other.split(theirs[0])} for {other.setting.what}" for other, theirs in moved)
            sentences.append(
                f"{setting.kernel}, hidden {sweep.fixed}: in {len(compared) - len(moved)} of {len(compared)} other "
                "masks, kv ratios, lengths and decoding the order stays the same"
                + (f"; it turns to {turns}." if turns else ".")
            )
    return list(dict.fromkeys(sentences))


def _cliff(sweep: Sweep) -> list[str]:
    """The largest drop of throughput from one head dimension to the next, for each pass."""
    sentences = []
    for name, readings in sweep.passes.items():
        sizes = list(readings)
        steps = {
            (before, after): ratio
            for before, after in itertools.pairwise(sizes)
            if (ratio := sweep.relative_rate(name, after, before)) is not None
        }
        if len(sizes) < 3 or not steps:
            continue
        (before, after), ratio = min(steps.items(), key=lambda step: step[1].value)
        head = f"{sweep.fixed} heads ({sweep.setting}), {name}: "
        if ratio.high >= 1:
            sentences.append(head + "throughput falls nowhere between head dimensions beyond the intervals.")
        else:
            sentences.append(
                head + f"throughput falls most from head_dim {before} to {after}, "
                f"{readings[before].tflop_per_s:.3f} -> {readings[after].tflop_per_s:.3f} TFLOP/s ({ratio} x)."
            )
    return sentences


def _padding(found: Sequence[Reading]) -> list[str]:
    """How much of our kernels' products is the padding of head_dim."""
    sentences = []
    for name in OWN:
        cases = {case.head_dim: case for r in found if r.case.implementation == name and (case := tiled(r)) is not None}
        padded = [case for _, case in sorted(cases.items()) if case.padding_efficiency < 1]
        if padded:
            told = ", ".join(
                f"{case.head_dim} as {case.padded_head_dim} ({1 - case.padding_efficiency:.0%} of its products in vain)"
                for case in padded
            )
            sentences.append(f"Our {name} kernel computes head_dim {told}; it pads none of the others.")
        elif cases:
            sentences.append(
                f"Our {name} kernel pads none of the head dimensions {', '.join(map(str, sorted(cases)))}."
            )
    return sentences


def _law_sentence(key: str, fitted: FittedLaw) -> str:
    shares = " and ".join(f"{fitted.law.product_share(d):.0%} at head_dim {d}" for d in SHOWN_HEAD_DIMS)
    return (
        f"Law of {key}: time = overhead + what the busiest slot computes, {fitted.law.overhead_s * 1e6:.0f} us and "
        f"{fitted.law.per_product_s * 1e9:.3g} ns a product of both, which are {shares} of a step (the rest is "
        f"softmax); fitted on {fitted.fitted_on} forward cases, it misses the {len(fitted.held_out)} of held-out head "
        f"dimensions, lengths and masks by {statistics.median(fitted.held_out):.1%} (median; worst "
        f"{max(fitted.held_out):.0%})."
    )


def _table(title: str, fixed: str, sweeps: Sequence[Sweep]) -> Table:
    columns = tuple(column.format(fixed=fixed) for column in SPLIT_COLUMNS)
    return Table(title, columns, tuple(_row(sweep, size) for sweep in sweeps for size in sweep.sizes))


def _row(sweep: Sweep, size: int) -> tuple[str, ...]:
    forward = sweep.passes[FORWARD].get(size)
    case = tiled(forward) if forward is not None else None
    cells = [cell for name in (FORWARD, BACKWARD) for cell in _rate_cells(sweep, name, size)]
    return (
        sweep.setting.kernel,
        sweep.setting.what,
        str(sweep.fixed),
        sweep.split(size),
        str(case.padded_head_dim) if case is not None else "-",
        *cells,
    )


def _rate_cells(sweep: Sweep, name: str, size: int) -> tuple[str, str]:
    """Throughput, and its ratio to that of the best size."""
    readings = sweep.passes[name]
    if size not in readings:
        return "-", "-"
    best = max(readings, key=lambda each: readings[each].tflop_per_s)
    ratio = sweep.relative_rate(name, size, best)
    return f"{readings[size].tflop_per_s:.3f}", "best" if size == best else str(ratio) if ratio is not None else "-"


def _others(found: Sequence[Reading], sweeps: Sequence[Sweep]) -> Table:
    """What belongs to no sweep: other masks, key heads, lengths and decoding on a single split."""
    swept = {r.case.case_id for sweep in sweeps for readings in sweep.passes.values() for r in readings.values()}
    rows = []
    for reading in found:
        p = reading.case.parameters
        if reading.case.case_id not in swept:
            setting = Setting.of(reading)
            rows.append(
                (
                    setting.kernel,
                    setting.what,
                    f"{p.heads} x {p.head_dim}",
                    BACKWARD if p.backward else FORWARD,
                    f"{reading.seconds * 1e6:.1f}",
                    f"{reading.tflop_per_s:.3f}",
                )
            )
    return Table("Other masks, key heads and lengths", OTHER_COLUMNS, tuple(sorted(rows)))
