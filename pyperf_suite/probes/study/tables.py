"""The table of a study: a row for each configuration, the fastest first; what gave no time stands below, with why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyperf_suite.probes.study.results import Result
from pyperf_suite.spec.findings import Table

LONGEST_REASON = 160


def model_of(result: Result) -> tuple[object, ...]:
    """What configurations must have in common to be set beside each other: the model and the batch."""
    p = result.parameters
    return (p.dimensions, p.seq, p.global_batch, p.dtype)


def described_model(result: Result) -> str:
    """As in `GPT of 0.92 M parameters (4 layers, hidden 128, 4 heads, seq 128, float32), global batch 8`."""
    p = result.parameters
    return (
        f"{'Llama' if p.gated else 'GPT'} of {_counted(p.dimensions.parameters)} parameters ({p.layers} layers, hidden "
        f"{p.hidden}, {p.heads} heads, seq {p.seq}, {p.dtype}), global batch {p.global_batch}"
    )


def tables_of(found: Sequence[Result]) -> list[Table]:
    """The configurations of one model."""
    parts = list(dict.fromkeys(name for each in found for name in each.memory_bytes))
    foretold = any(each.prediction for each in found)
    weighed = any(each.prediction and each.prediction.rank_memory for each in found)
    utilized = any(each.mfu for each in found)
    columns = ["configuration", "ranks", "micro-batch", "samples/s", "median", "tokens/s"]
    columns += ["MFU"] if utilized else []
    columns += ["predicted", "off"] if foretold else []
    columns += [f"{part} MB" for part in parts]
    summed = len(parts) > 1 and "peak" not in parts
    columns += ["all MB"] if summed else []
    columns += ["predicted MB", "MB off"] if weighed else []
    rows = []
    for each in found:
        if each.rate is None:
            continue
        p, rate = each.parameters, each.rate
        row = [
            p.name,
            str(p.ranks),
            f"{p.batch} x {p.micro_batches}",
            _with_error(rate.mean, rate.standard_error),
            f"{rate.median:.4g}" + (f" [{rate.low:.4g}, {rate.high:.4g}]" if rate.confidence else ""),
            f"{each.tokens_per_s:,.0f}",
        ]
        row += [f"{100 * each.mfu:.1f} %" if each.mfu else "-"] if utilized else []
        row += list(_predicted(each)) if foretold else []
        row += [_megabytes(each.memory_bytes.get(part)) for part in parts]
        row += [_megabytes(each.memory_total_bytes)] if summed else []
        row += list(_predicted_memory(each)) if weighed else []
        rows.append(tuple(row))
    tables = [Table(described_model(found[0]), tuple(columns), tuple(rows))] if rows else []
    lost = tuple((each.parameters.name, each.outcome, short(each.reason)) for each in found if each.rate is None)
    return [*tables, Table("Without a time", ("configuration", "outcome", "reason"), lost)] if lost else tables


def short(reason: str, longest: int = LONGEST_REASON) -> str:
    """One line of a reason, which may be a page of somebody else's; the record keeps it whole."""
    line = " ".join(reason.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def _predicted(result: Result) -> tuple[str, str]:
    """Samples/s by the laws, and how far its time is from the measured one."""
    if result.prediction is None or result.reading is None:
        return "-", "-"
    law_s = result.prediction.seconds
    return f"{result.parameters.global_batch / law_s:.4g}", f"{100 * (law_s / result.reading.seconds - 1):+.0f} %"


def _predicted_memory(result: Result) -> tuple[str, str]:
    """Of the fullest rank by the laws, and how far that is from what was counted of the same parts."""
    told = result.prediction.memory_total_bytes if result.prediction else None
    share = result.foretold_share
    return _megabytes(told), "-" if share is None else f"{100 * (share - 1):+.1f} %"


def _with_error(value: float, error: float) -> str:
    return f"{value:.4g}" if math.isnan(error) else f"{value:.4g} ± {error:.2g}"


def _megabytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.2f}"


def _counted(parameters: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if parameters >= size:
            return f"{parameters / size:.3g} {letter}"
    return f"{parameters:,.0f}"
