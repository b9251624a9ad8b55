"""Holds the laws against measured tables, published ones or a team's own: error, bias and what the intervals cover.

A table is known by its columns. Every row is accounted for: compared, without a time, or refused with the reason.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.cli.main import HELP, Speaking
from pyperf_suite.cli.options import all_option, json_option, path_option
from pyperf_suite.errors import UserError, printable
from pyperf_suite.findings.data import Findings, Remark, remark
from pyperf_suite.findings.rows import Column, grouped, table
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.laws.attention import Kernel, attention_time
from pyperf_suite.planner.laws.calibration import Calibration
from pyperf_suite.planner.laws.collectives import collective_time
from pyperf_suite.planner.laws.explained import Explained
from pyperf_suite.planner.laws.gemm import gemm_time
from pyperf_suite.planner.laws.training.step import prices_of, step_time
from pyperf_suite.planner.layout.plan import VERDICTS
from pyperf_suite.planner.training_runs import NEEDED, TrainingRun, read_runs
from pyperf_suite.record.quantity import Quantity

Columns = Mapping[str, NDArray[Any]]

# Published tables have a column of microseconds for each library and version.
TIMES_OF = re.compile(r"(trtllm|sglang|vllm|cublas|nccl)(?:_(.+))?")
DTYPES = {name: name for name in ("bf16", "fp16", "fp8", "fp8_block", "int8", "nvfp4", "mxfp4", "tf32", "fp32")} | {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
}
# Rows priced one by one, of rows that a law refuses together, before all of them count as refused.
ASKED_APART = 3


@dataclass(frozen=True)
class TableSlice:
    """Rows of one GPU, dtype and library; `kind` has the values of the format's `kinds`, `rows` all columns."""

    gpu: GpuSpec
    laws: GpuSpec | Calibration
    dtype: str
    cache_dtype: str | None
    library: str | None
    rows: Columns
    kind: Mapping[str, Any] = field(default_factory=dict)

    def sizes(self, *names: str) -> tuple[NDArray[np.int64], ...]:
        return tuple(_numbers(self.rows[name], name).astype(np.int64) for name in names)


@dataclass(frozen=True)
class TableFormat:
    """A kind of table: the columns that it is known by, and how its rows are priced.

    Rows that differ in one of `kinds` are priced apart.
    """

    law: str
    columns: tuple[str, ...]
    price: Callable[[TableSlice], Explained]
    kinds: tuple[str, ...] = ()


def _product(requested: TableSlice) -> Explained:
    m, n, k = requested.sizes("m", "n", "k")
    return gemm_time(requested.laws, m, n, k, dtype=requested.dtype, library=requested.library)


def _attention(requested: TableSlice) -> Explained:
    if requested.cache_dtype not in (None, "bf16", "fp16"):  # which only inference has
        raise UserError(f"Attention with a cache in {requested.cache_dtype} is not priced, only with one in 16 bits.")
    batch, seq, heads, kv_heads, width = requested.sizes("batch_size", "isl", *HEADS)
    window = int(requested.kind.get("window_size", 0))
    sizes = (batch, seq, seq, heads, kv_heads, width)
    return attention_time(requested.laws, *sizes, dtype=requested.dtype, window=window)


def _published_kernel(requested: TableSlice) -> Explained:
    """A point of a chart: attention of a kernel, forward or forward and backward together, or a product."""
    kind = str(requested.kind["kind"])
    numbers = [[int(size) for size in re.findall(r"\d+", str(shape))] for shape in requested.rows["shape"].tolist()]
    if "fwd" not in kind:
        # A cube is written 4096^3.
        m, n, k = np.array([sizes if len(sizes) == 3 else sizes[:1] * 3 for sizes in numbers]).T
        mode = "sustained" if "sustained" in kind else "burst"
        return gemm_time(requested.laws, m, n, k, "fp8" if "fp8" in kind else "bf16", mode=mode)
    batch, seq, heads, width = np.array(numbers).T
    kernel: Kernel = "FlashAttention-2" if kind.startswith("FA2") else "usual"
    parts = [
        attention_time(
            requested.laws, batch, seq, seq, heads, heads, width, kind.endswith("causal"), backward=way, kernel=kernel
        )
        for way in (False, True)[: 1 + ("bwd" in kind)]
    ]
    seconds, low, high = (sum(getattr(each, name) for each in parts) for name in ("seconds", "low", "high"))
    return replace(parts[0], seconds=seconds, low=low, high=high)


def _collective(requested: TableSlice) -> Explained:
    nbytes, ranks = requested.sizes("bytes", "num_gpus")
    kernel, rate = str(requested.kind.get("kernel_source", "")), requested.kind.get("network_gb_per_s")
    if kernel.upper() not in ("", "NCCL"):
        raise UserError(f"A collective by {kernel} is a library's own kernel: only NCCL's are predicted.")
    return collective_time(
        requested.laws,
        requested.kind["op_name"],
        nbytes,
        ranks,
        requested.kind.get("ranks_per_node"),
        None if rate is None else rate * 1e9,
    )


HEADS = ("num_heads", "num_key_value_heads", "head_dim")
OF_COLLECTIVES = ("op_name", "num_gpus", "kernel_source", "ranks_per_node", "network_gb_per_s")
# A table is of the first format whose columns it has.
FORMATS = (
    TableFormat(
        "attention, windowed", ("batch_size", "isl", *HEADS, "window_size"), _attention, ("head_dim", "window_size")
    ),
    TableFormat("attention, prefill", ("batch_size", "isl", *HEADS), _attention, ("head_dim",)),
    TableFormat("collectives", ("op_name", "num_gpus", "bytes"), _collective, OF_COLLECTIVES),
    TableFormat("GEMM", ("m", "n", "k"), _product),
    TableFormat("published kernel", ("kind", "shape", "measured_us"), _published_kernel, ("kind",)),
)


@dataclass(frozen=True)
class Validated:
    """Errors of the laws on the rows of one GPU, dtype and library version of a file.

    Errors are in %: `mape` and `median` of |predicted / measured − 1|, `bias` the mean with its sign. `coverage` is the
    share of rows, in %, whose time lies in the stated 90 % interval, None where no interval was stated. `blank` rows
    have no time, `refused` ones no prediction: `reasons` says how many for which. `extrapolated` rows lie beyond the
    fitted ones. Of training runs `library` is the framework, `pairs` of layouts of one model on equal GPUs differ by
    more than 5 %, of which the law tells `right_pairs`; `called_too_large` ran, and the law says that they do not fit.
    """

    file: str
    law: str
    gpu: str
    dtype: str
    library: str
    rows: int
    mape: float | None
    median: float | None
    bias: float | None
    coverage: float | None
    extrapolated: int
    blank: int
    refused: int
    reasons: Mapping[str, int]
    pairs: int = 0
    right_pairs: int = 0
    called_too_large: int = 0


def validate(
    path: Path, gpu: str | None = None, dtype: str | None = None, calibration: Calibration | None = None
) -> list[Validated]:
    """Hold the laws against a table. `gpu` and `dtype` stand for what neither its columns nor its name say.

    On the GPU of a `calibration` its laws are held instead of those shipped.

    Raises UserError for a file that is no such table, or whose GPU is not named.
    """
    columns = read_table(path)
    if set(NEEDED) <= columns.keys():
        return list(_validated_runs(path, calibration))
    form = next((form for form in FORMATS if set(form.columns) <= columns.keys()), None)
    if form is None:
        known = ((TRAINING, NEEDED), *((form.law, form.columns) for form in FORMATS))
        needed = "; ".join(f"{law}: {', '.join(names)}" for law, names in known)
        raise UserError(f"{path} has none of the known sets of columns. {needed}.")
    return [_judged(path, form, *group) for group in _groups(columns, path, gpu, dtype, calibration)]


def read_table(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a CSV or Parquet file; empty numbers are NaN. Raises UserError where it is neither."""
    try:
        from pyarrow import ArrowInvalid, csv, parquet
    except ImportError:
        raise UserError("Tables are read by pyarrow: install it (pip install pyarrow).") from None
    try:
        read = parquet.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ArrowInvalid as error:
        raise UserError(f"{path} is no table of measured times: {printable(str(error))[:120]}.") from None
    if not read.num_rows:
        raise UserError(f"{path} has no rows.")
    return {name: column.to_numpy() for name, column in zip(read.column_names, read.columns, strict=True)}


# Layouts whose times differ by less are in no order.
MIN_DIFFERENCE = 0.05


@dataclass(frozen=True)
class JudgedRun:
    """A run and what the law says of it.

    `predicted` is its time, None where `refused` says why; `verdict` is one of VERDICTS.
    """

    run: TrainingRun
    predicted: Explained | None
    verdict: str
    refused: str = ""

    @property
    def is_timed(self) -> bool:
        return self.run.ran and bool(self.run.seconds)

    @property
    def is_called_too_large(self) -> bool:
        return self.run.ran and self.verdict == VERDICTS[-1]


def judged(runs: Iterable[TrainingRun], calibration: Calibration | None = None) -> Iterator[JudgedRun]:
    """Each run by the law, with the constants of its framework; on the GPU of a `calibration` with those there."""
    for run in runs:
        laws = calibration if calibration is not None and calibration.gpu == run.gpu.name else run.gpu
        try:
            verdict = run.verdict
            prices = prices_of(laws, run.plan.dtype)
            yield JudgedRun(run, step_time(laws, run.model, run.plan, None, prices, run.network_bytes_per_s), verdict)
        except UserError as reason:
            yield JudgedRun(run, None, "", str(reason))


def right_orders(runs: Sequence[JudgedRun]) -> tuple[int, int]:
    """Count pairs of layouts of a model on equal GPUs beyond MIN_DIFFERENCE: those the law has right, and all.

    Runs of one layout count as one, by the mean of their logarithms.
    """
    groups: dict[tuple[object, ...], dict[str, list[NDArray[np.float64]]]] = defaultdict(lambda: defaultdict(list))
    for each in runs:
        run, plan = each.run, each.run.plan
        if each.predicted is not None and each.is_timed:
            similar = (run.source.split("@")[0], run.name, run.model, run.gpu.name, plan.dtype, plan.ranks, plan.seq)
            times = np.array([float(run.seconds or 0.0), float(each.predicted.seconds)])
            groups[similar][str(plan)].append(np.log(times / run.tokens))
    right = pairs = 0
    for layouts in groups.values():
        means = [np.mean(times, axis=0) for times in layouts.values()]
        for (measured, predicted), (other, other_predicted) in combinations(means, 2):
            if abs(measured - other) > np.log1p(MIN_DIFFERENCE):
                pairs += 1
                right += int((measured - other) * (predicted - other_predicted) > 0)
    return right, pairs


TRAINING = "training step"


def _validated_runs(path: Path, calibration: Calibration | None) -> Iterator[Validated]:
    """Training runs by GPU, framework and dtype, and at the end the rows that state too little."""
    runs, unread = read_runs(path)
    groups = grouped(
        judged(runs, calibration), lambda each: (each.run.gpu.name, str(each.run.plan.framework), each.run.plan.dtype)
    )
    for (gpu, framework, dtype), members in sorted(groups.items()):
        timed = [each for each in members if each.is_timed]
        priced = [(each.predicted, float(each.run.seconds or 0.0)) for each in timed if each.predicted is not None]
        figures = [(seconds, price.seconds, price.low, price.high) for price, seconds in priced]  # None becomes NaN
        reasons = Counter(each.refused for each in timed if each.refused)
        right, pairs = right_orders(members)
        beyond = sum(bool(price.extrapolated) for price, _ in priced)
        blank, too_large = len(members) - len(timed), sum(each.is_called_too_large for each in members)
        names = (path.name, TRAINING, gpu, dtype, framework)
        yield _validated(names, figures, beyond, blank, reasons, pairs, right, too_large)
    if unread:
        reasons = Counter(reason.partition(": ")[2] for reason in unread)
        yield Validated(path.name, TRAINING, "", "", "", 0, None, None, None, None, 0, 0, len(unread), dict(reasons))


def _groups(
    columns: Columns, path: Path, gpu: str | None, dtype: str | None, calibration: Calibration | None
) -> Iterator[tuple[TableSlice, str, NDArray[np.float64]]]:
    """The rows of each GPU, dtype, dtype of the cache, library and version, with the version and their seconds."""
    named_gpu, named_dtype = _named(path)
    count = len(next(iter(columns.values())))

    def column(names: Sequence[str], otherwise: str | None) -> NDArray[Any]:
        written = (columns[name] for name in names if name in columns)
        return next(written, np.full(count, otherwise, dtype=object))

    gpus = column(("gpu",), gpu or named_gpu)
    dtypes = column(("moe_dtype", "attn_dtype", "dtype"), dtype or named_dtype or "bf16")
    caches = column(("kv_cache_dtype",), None)
    keys = list(zip(gpus.tolist(), dtypes.tolist(), caches.tolist(), strict=True))
    for key in dict.fromkeys(keys):
        if not key[0]:
            raise UserError(f"{path} does not say which GPU it was measured on: name it with --gpu.")
        chosen = np.array([each == key for each in keys])
        rows = {name: values[chosen] for name, values in columns.items()}
        spec, (of, cache) = find_gpu(str(key[0])), (DTYPES.get(name, name) for name in key[1:])
        laws = calibration if calibration is not None and calibration.gpu == spec.name else spec
        for library, version, here, seconds in _times(rows, path):
            part = {name: each[here] for name, each in rows.items()}
            yield TableSlice(spec, laws, of, cache, library, part), version, seconds


def _times(rows: Columns, path: Path) -> Iterator[tuple[str | None, str, NDArray[np.bool_], NDArray[np.float64]]]:
    """Library, its version, the rows, and their seconds."""
    everywhere = np.ones(len(next(iter(rows.values()))), dtype=bool)
    wide = [(match, name) for name in rows if (match := TIMES_OF.fullmatch(name))]
    for match, name in wide:
        yield match[1], match[2] or "", everywhere, _seconds(rows[name], path)
    if "latency_us" in rows:
        libraries = next((rows[name] for name in ("backend_lib", "lib") if name in rows), None)
        versions = next((rows[name] for name in ("backend_version", "lib_version") if name in rows), None)
        if libraries is None:
            yield None, "", everywhere, _seconds(rows["latency_us"], path)
            return
        of = libraries if versions is None else np.array([f"{a} {b}" for a, b in zip(libraries, versions, strict=True)])
        for each in dict.fromkeys(of.tolist()):
            library, _, version = str(each).partition(" ")
            yield library, version, of == each, _seconds(rows["latency_us"][of == each], path)
    elif "measured_us" in rows:
        yield None, "", everywhere, _seconds(rows["measured_us"], path)
    elif not wide:
        raise UserError(
            f"{path} has no column of times: name it latency_us, or by the library and its version as in sglang_0.5.14."
        )


def _seconds(microseconds: NDArray[Any], path: Path) -> NDArray[np.float64]:
    return _numbers(microseconds, f"a column of times of {path}") * 1e-6


def _numbers(column: NDArray[Any], name: str) -> NDArray[np.float64]:
    """A column as numbers; empty cells are NaN. Raises UserError for words."""
    try:
        return np.asarray([np.nan if cell == "" else cell for cell in column.tolist()], dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"In {name} stands what is no number: correct the table.") from None


def _named(path: Path) -> tuple[str | None, str | None]:
    """GPU and dtype by a file's name, as in attention_prefill_bf16_h100_sxm."""
    words = path.stem.split("_")
    gpu = None
    for first in range(len(words)):
        try:
            gpu = find_gpu(" ".join(words[first:])).name
            break
        except UserError:
            continue
    return gpu, next((word for word in words if word in DTYPES), None)


def _judged(
    path: Path, form: TableFormat, requested: TableSlice, version: str, seconds: NDArray[np.float64]
) -> Validated:
    timed = np.flatnonzero(np.isfinite(seconds) & (seconds > 0))
    predicted, low, high = (np.full(seconds.size, np.nan) for _ in range(3))
    beyond = np.zeros(seconds.size, dtype=bool)
    reasons: Counter[str] = Counter()
    kinds = [name for name in form.kinds if name in requested.rows]
    of_kind = grouped(timed.tolist(), lambda row: tuple(requested.rows[name][row] for name in kinds))
    for kind, members in of_kind.items():
        similar = replace(requested, kind=dict(zip(kinds, kind, strict=True)))
        for chosen, price in _priced(form, similar, np.array(members)):
            if isinstance(price, str):
                reasons[price] += chosen.size
                continue
            predicted[chosen], beyond[chosen] = price.seconds, price.extrapolated
            if price.low is not None and price.high is not None:
                low[chosen], high[chosen] = price.low, price.high
    there = np.isfinite(predicted)
    is_plain = requested.cache_dtype in (None, requested.dtype)
    dtype = requested.dtype if is_plain else f"{requested.dtype}, {requested.cache_dtype} cache"
    names = (path.name, form.law, requested.gpu.name, dtype, " ".join(filter(None, (requested.library, version))))
    figures = np.stack([seconds, predicted, low, high], axis=1)[there]
    return _validated(names, figures, int(beyond[there].sum()), int(seconds.size - timed.size), reasons)


def _validated(
    names: tuple[str, ...], figures: ArrayLike, beyond: int, blank: int, reasons: Counter[str], *of_runs: int
) -> Validated:
    """Judge rows of measured and predicted seconds and the ends of the interval, NaN where none is stated."""
    seconds, predicted, low, high = np.reshape(np.asarray(figures, dtype=np.float64), (-1, 4)).T
    errors, stated = (predicted / seconds - 1) * 100, np.isfinite(low) & np.isfinite(high)
    inside = 100.0 * ((low <= seconds) & (seconds <= high))[stated]

    def of(reduce: Callable[[Any], Any], values: NDArray[np.float64]) -> float | None:
        return float(reduce(values)) if values.size else None

    return Validated(
        *names, errors.size, of(np.mean, np.abs(errors)), of(np.median, np.abs(errors)), of(np.mean, errors),
        of(np.mean, inside), beyond, blank, sum(reasons.values()), dict(reasons.most_common()), *of_runs,
    )  # fmt: skip


def _priced(
    form: TableFormat, requested: TableSlice, members: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], Explained | str]]:
    """The rows with their price, or with the sentence that refuses them; where some are refused they are halved."""
    try:
        yield members, form.price(_rows(requested, members))
        return
    except UserError as error:
        reason = str(error)
    if members.size > 1 and not _all_refused(form, requested, members):
        for half in np.array_split(members, 2):
            yield from _priced(form, requested, half)
    else:
        yield members, reason


def _all_refused(form: TableFormat, requested: TableSlice, members: NDArray[np.intp]) -> bool:
    """True if the first, the middle and the last of the rows are refused for one reason."""
    reasons = set()
    for row in members[np.linspace(0, members.size - 1, ASKED_APART).astype(np.intp)]:
        try:
            form.price(_rows(requested, np.array([row])))
        except UserError as error:
            reasons.add(str(error))
        else:
            return False
    return len(reasons) == 1


def _rows(requested: TableSlice, members: NDArray[np.intp]) -> TableSlice:
    return replace(requested, rows={name: column[members] for name, column in requested.rows.items()})


def _share(name: str, percent: str) -> Column:
    return Column(name, lambda each: None if getattr(each, percent) is None else getattr(each, percent) / 100, "%")


COLUMNS = (
    *(Column("GPU" if name == "gpu" else name, name) for name in ("law", "gpu", "dtype", "library")),
    Column("rows", unit="count"),
    *map(_share, ("MAPE", "median", "bias", "in interval"), ("mape", "median", "bias", "coverage")),
    Column("beyond fit", "extrapolated", "count"),
    Column("no time", "blank", "count"),
    Column("refused", unit="count"),
)


def findings_of(validated: Sequence[Validated]) -> Findings:
    """Return the reasons why rows were refused, and a table with a row a GPU, dtype and library."""
    title = "Predicted against measured; nine of ten rows should lie in the stated interval"
    reasons: Counter[str] = Counter()
    for each in validated:
        reasons.update(each.reasons)
    refused = [
        remark("{rows} rows were refused: {reason}", kind="caution", rows=rows, reason=reason.rstrip("."))
        for reason, rows in reasons.most_common()
    ]
    return Findings((*_of_runs(validated), *refused), (table(title, COLUMNS, validated),))


def _of_runs(validated: Sequence[Validated]) -> Iterator[Remark]:
    """Return remarks on training runs: which of two layouts is faster, and whether runs are said to fit."""
    of_runs = [each for each in validated if each.law == TRAINING]
    if not of_runs:
        return
    pairs, right = sum(each.pairs for each in of_runs), sum(each.right_pairs for each in of_runs)
    if pairs:
        yield remark(
            "Of {pairs} pairs of layouts of one model on equal GPUs that differ by more than 5 % the law tells {share} "
            "the right way round.",
            kind="law",
            pairs=pairs,
            share=Quantity(right / pairs, "%"),
        )
    yield remark(
        "{count} runs that ran are said not to fit.", kind="law", count=sum(each.called_too_large for each in of_runs)
    )


@click.command(cls=Speaking, context_settings=HELP)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--gpu", metavar="NAME", help="Where it was measured, if neither a column nor the file's name says so.")
@click.option("--dtype", metavar="NAME", help="Of the operands, if nothing says so; bf16 else.")
@path_option("--calibration", help="Laws fitted by `calibrate`, on whose GPU these are held.")
@json_option()
@all_option
def main(
    files: tuple[Path, ...],
    gpu: str | None,
    dtype: str | None,
    calibration: Path | None,
    as_json: bool,
    everything: bool,
) -> None:
    """Hold the laws against measured times in CSV or Parquet FILEs: error, bias, what the stated interval covers.

    Files are known by their columns: m, n, k for products, and so on for attention, mixtures of experts,
    collectives and training runs; times are in latency_us, or in a column of a library and version: docs/laws.md.

    \b
    Examples:
      python tools/validate.py gemm_bf16_h100_sxm.parquet
      python tools/validate.py my_products.csv --gpu H200 --dtype fp8 --json
      python tools/validate.py training.csv
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.planner.laws.calibration import load_calibration
    from pyperf_suite.render.terminal import console_for, print_remarks_and_tables
    from pyperf_suite.render.text import answer

    fitted = None if calibration is None else load_calibration(calibration)
    found = findings_of([each for path in files for each in validate(path, gpu, dtype, fitted)])
    if as_json:
        click.echo(answer({"validate": found}), nl=False)
    else:
        print_remarks_and_tables(console_for(everything), found)


if __name__ == "__main__":
    main()
