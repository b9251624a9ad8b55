"""What steps in several precisions say: speed and memory beside float32, aligned sizes, autocast's cache of casts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.training.precision_step import CAST_CACHES, PrecisionStepParameters
from pyperf_suite.operators.training.trained_shape import PRECISIONS
from pyperf_suite.probes.training.claims import TRANSFORMERS, Claim
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Figure, Findings, Panel, Series, Table
from pyperf_suite.spec.rows import Reading, observed, readings, speedup

BASE = "float32"
AUTOCAST = "autocast_"

# "Twice as fast" has one digit, and nobody minds more.
TWICE_AS_FAST = Claim(
    "mixed precision trains twice as fast where every dimension is a multiple of 8", TRANSFORMERS, 1.8
)
# "It's not half": what stays in float32 (norms, softmax, the loss) and the masks do not shrink.
NOT_HALF = Claim("activations are kept in half precision, but not half of the memory is saved", TRANSFORMERS, 0.5, 0.99)
# The guide's 84 MB become 1976 as the batch grows by 8, from 64 on more than in proportion.
GROWS = Claim("the bigger the batch, the bigger the saving", TRANSFORMERS, low=1.01)
MULTIPLES_OF_8 = Claim("that takes every dimension to be a multiple of 8", TRANSFORMERS, low=1.01)
CACHE_LASTS = Claim("casts are kept as long as the outermost context lasts", TRANSFORMERS, 1.0, 1.0)
CACHE_IS_FASTER = Claim("keeping casts speeds things up", TRANSFORMERS, low=1.0)

# The guide's own figures: batch, MB without and with mixed precision. BERT-base on MRPC, 2 GPUs, by nvidia-smi.
GUIDES_MEMORY_MB = ((8, 4247, 4163), (16, 4971, 4793), (32, 6827, 6207), (64, 10037, 8061))

# Bytes of AdamW's two moments for each byte of a weight, which they share the type of.
MOMENTS = 2

GUIDES_TITLE = "Memory by the guide (BERT-base, nvidia-smi)"

FEWEST_SIZES = 3
MULTIPLE = 8

COLUMNS = (
    "model",
    "batch",
    "precision",
    "ms",
    "times as fast as float32",
    "activations MB",
    "weight copies MB",
    "model and AdamW MB",
    "saved MB",
    "peak MB",
)
CAST_COLUMNS = ("model", "micro-batches", "casts kept for", "ms", "casts", "MB cast")

# What records tell of a step beside its time (see operators/training/precision_step.py).
METRICS = ("activations", "weight_copies", "weights", "gradients", "casts", "cast", "peak")


@dataclass(frozen=True)
class Step:
    """One case with what was observed beside its time, in bytes and counts; `peak` is of a GPU alone."""

    reading: Reading
    seen: Mapping[str, float]

    @property
    def parameters(self) -> PrecisionStepParameters:
        """Of the case."""
        parameters: PrecisionStepParameters = self.reading.case.parameters
        return parameters

    @property
    def model(self) -> str:
        """`2 x 256 in 4 heads, vocab 512, seq 64`: what stays the same while precision and batch vary."""
        p = self.parameters
        size = f"{p.layers} x {p.hidden} in {p.heads} heads, vocab {p.vocab}, seq {p.seq}"
        return size + (f", {p.workers} workers" if p.workers > 1 else "")

    @property
    def kept(self) -> float:
        """Bytes between forward and backward, casts of weights included."""
        return self.seen["activations"] + self.seen["weight_copies"]

    @property
    def states(self) -> float:
        """Bytes of weights, gradients and AdamW's moments."""
        return (1 + MOMENTS) * self.seen["weights"] + self.seen["gradients"]

    @property
    def total(self) -> float:
        """Bytes that are needed at once between forward and backward."""
        return self.states + self.kept


# Of one model, by batch and precision.
Model = dict[tuple[int, str], Step]


def explain(records: Sequence[Record]) -> Findings:
    """Speed and memory beside float32, what unaligned sizes cost, and what the cache of casts wins."""
    steps = _steps(records)
    plain = [step for step in steps if step.parameters.micro_batches == 1]
    by_model = _grouped(plain)
    # Odd dimensions are there to be set beside aligned ones, where there are such.
    aligned = [found for found in by_model.values() if _is_aligned(next(iter(found.values())))]
    sentences = [said for found in aligned or by_model.values() for said in (*_speed(found), *_memory(found))]
    sentences += [*_alignment(by_model), *_caches(steps)]
    rows = tuple(_row(step, found) for found in by_model.values() for step in found.values())
    tables = [Table("A training step by precision and batch", COLUMNS, rows), _casts_table(steps)]
    if any(len(_batches(found, BASE)) > 1 for found in by_model.values()):
        tables.append(_guides_table())
    return Findings(tuple(sentences), tuple(table for table in tables if table.rows), _figures(by_model))


def _steps(records: Sequence[Record]) -> list[Step]:
    """Every case that was measured, by precision in the order of PRECISIONS and by batch."""
    seen = {name: observed(records, name) for name in METRICS}
    steps = []
    for reading in readings(records):
        case_id = reading.case.case_id
        steps.append(Step(reading, {name: values[case_id] for name, values in seen.items() if case_id in values}))
    return sorted(steps, key=lambda step: (step.parameters.batch, PRECISIONS.index(step.parameters.precision)))


def _grouped(steps: Sequence[Step]) -> dict[PrecisionStepParameters, Model]:
    """Steps of one model by batch and precision."""
    grouped: dict[PrecisionStepParameters, Model] = {}
    for step in steps:
        p = step.parameters
        if p.cast_cache == "iteration":
            grouped.setdefault(replace(p, precision=BASE, batch=1), {})[p.batch, p.precision] = step
    return grouped


def _batches(found: Model, *precisions: str) -> list[int]:
    """Batches at which all of these were measured."""
    return sorted({batch for batch, _ in found if all((batch, each) in found for each in precisions)})


def _others(found: Model) -> list[str]:
    """Precisions beside float32: autocast's first, of which most is to be said."""
    precisions = {precision for _, precision in found if precision != BASE}
    return sorted(precisions, key=lambda each: (not each.startswith(AUTOCAST), PRECISIONS.index(each)))


def _faster(found: Model, batch: int, slow: str, fast: str) -> Ratio | None:
    return speedup(found[batch, slow].reading, found[batch, fast].reading)


def _speed(found: Model) -> Iterator[str]:
    """How many times as fast as float32 each precision is at the largest batch; pure half precision beside autocast."""
    for precision in _others(found):
        batches = _batches(found, BASE, precision)
        if not batches or (ratio := _faster(found, batches[-1], BASE, precision)) is None:
            continue
        step = found[batches[-1], precision]
        said = f"{precision} is {{}} x as fast as {BASE} at batch {batches[-1]} ({step.model})"
        if precision.startswith(AUTOCAST) and _is_aligned(step):
            yield TWICE_AS_FAST.sentence(said, ratio)
            continue
        said = said.format(ratio)
        cast = AUTOCAST + precision
        if (batches[-1], cast) in found and (beside := _faster(found, batches[-1], cast, precision)) is not None:
            less = (found[batches[-1], cast].total - step.total) / 1e6
            said += f", {beside} x as fast as {cast} and needs {less:.3g} MB less"
        yield said + "."


def _memory(found: Model) -> Iterator[str]:
    """What autocast keeps of activations, what its copies of weights take, and from which batch on it saves at all."""
    for precision in _others(found):
        batches = _batches(found, BASE, precision)
        if not precision.startswith(AUTOCAST) or not batches:
            continue
        pairs = [(found[batch, BASE], found[batch, precision]) for batch in batches]
        base, cast = pairs[-1]
        share = cast.seen["activations"] / base.seen["activations"]
        yield NOT_HALF.counted(
            f"{precision} keeps {share:.2f} x the activations of {BASE} at batch {batches[-1]} ({cast.model})",
            share,
        )
        if len(batches) < 2:
            continue
        freed = [full.seen["activations"] - half.seen["activations"] for full, half in pairs]
        copies, of_one = cast.seen["weight_copies"], freed[-1] / batches[-1]
        saved = ", ".join(
            f"{(full.total - half.total) / 1e6:.3g} MB at batch {batch}"
            for batch, (full, half) in zip(batches, pairs, strict=True)
        )
        told = (
            f"{precision} saves {saved}: {of_one / 1e6:.3g} MB for each sequence less {copies / 1e6:.3g} MB for copies "
            f"of weights, so it needs more memory than {BASE} up to batch {math.floor(copies / of_one)}"
            if freed[-1] > 0
            else f"{precision} saves {saved}"
        )
        yield GROWS.counted(told, freed[-1] / freed[0] if freed[0] > 0 else 0.0)


def _alignment(by_model: Mapping[PrecisionStepParameters, Model]) -> Iterator[str]:
    """Rates of autocast, in FLOPs a second, with dimensions that are multiples of 8 beside odd ones."""
    for odd in by_model.values():
        for (batch, precision), step in odd.items():
            if _is_aligned(step) or not precision.startswith(AUTOCAST) or (batch, BASE) not in odd:
                continue
            for even in by_model.values():
                if not {(batch, precision), (batch, BASE)} <= even.keys() or not _is_aligned(even[batch, precision]):
                    continue
                aligned = even[batch, precision]
                ratio = speedup(step.reading, aligned.reading)
                wins = [_faster(each, batch, BASE, precision) for each in (even, odd)]
                if ratio is None or None in wins:
                    continue
                yield MULTIPLES_OF_8.sentence(
                    f"{precision} at batch {batch} is {wins[0]} x as fast as {BASE} with {aligned.model} and {wins[1]} "
                    f"x with {step.model}: multiples of 8 compute {{}} x the FLOPs a second",
                    ratio * (aligned.reading.flop / step.reading.flop),
                )


def _caches(steps: Sequence[Step]) -> Iterator[str]:
    """Casts of weights and time with autocast's cache of casts in each form."""
    for by_cache in _by_cache(steps).values():
        if not {"iteration", "nested"} <= by_cache.keys():
            continue
        iteration, nested, off = by_cache["iteration"], by_cache["nested"], by_cache.get("off")
        p = nested.parameters
        expected = p.micro_batches * nested.seen["casts"]
        without = "" if off is None else f" and {off.seen['casts']:.0f} without cache"
        told = (
            f"{p.precision}, {p.micro_batches} micro-batches of {p.batch} ({nested.model}): {nested.seen['casts']:.0f} "
            f"casts of weights a step in one context around it, {iteration.seen['casts']:.0f} in one around each "
            f"forward{without}"
        )
        yield CACHE_LASTS.counted(told, iteration.seen["casts"] / expected)
        for other, name in ((off, "without cache"), (iteration, "in a context around each forward pass")):
            ratio = None if other is None else speedup(other.reading, nested.reading)
            if ratio is not None:
                yield CACHE_IS_FASTER.sentence(f"There one context around the step is {{}} x as fast as {name}", ratio)


def _by_cache(steps: Sequence[Step]) -> dict[PrecisionStepParameters, dict[str, Step]]:
    grouped: dict[PrecisionStepParameters, dict[str, Step]] = {}
    for step in steps:
        p = step.parameters
        if p.micro_batches > 1:
            grouped.setdefault(replace(p, cast_cache="iteration"), {})[p.cast_cache] = step
    return grouped


def _is_aligned(step: Step) -> bool:
    """Whether every dimension is a multiple of 8; the batch is not one, for products see batch x seq."""
    p = step.parameters
    return all(size % MULTIPLE == 0 for size in (p.hidden, p.hidden // p.heads, p.width, p.vocab, p.seq))


def _row(step: Step, found: Model) -> tuple[str, ...]:
    p = step.parameters
    base = found.get((p.batch, BASE))
    ratio = speedup(base.reading, step.reading) if base is not None and base is not step else None
    megabytes = (step.seen["activations"], step.seen["weight_copies"], step.states)
    return (
        step.model,
        str(p.batch),
        p.precision,
        f"{step.reading.seconds * 1e3:.3g}",
        str(ratio) if ratio is not None else "-",
        *(f"{each / 1e6:.3g}" for each in megabytes),
        f"{(base.total - step.total) / 1e6:.3g}" if base is not None and base is not step else "-",
        f"{step.seen['peak'] / 1e6:.3g}" if "peak" in step.seen else "-",
    )


def _casts_table(steps: Sequence[Step]) -> Table:
    rows = [
        (
            step.model,
            str(step.parameters.micro_batches),
            cache,
            f"{step.reading.seconds * 1e3:.3g}",
            f"{step.seen['casts']:.0f}",
            f"{step.seen['cast'] / 1e6:.3g}",
        )
        for by_cache in _by_cache(steps).values()
        for cache, step in sorted(by_cache.items(), key=lambda item: CAST_CACHES.index(item[0]))
    ]
    return Table("Autocast's casts of weights in a step", CAST_COLUMNS, tuple(rows))


def _guides_table() -> Table:
    rows = tuple((str(batch), str(full), str(half), str(full - half)) for batch, full, half in GUIDES_MEMORY_MB)
    return Table(GUIDES_TITLE, ("batch", "float32 MB", "mixed MB", "saved MB"), rows)


def _figures(by_model: Mapping[PrecisionStepParameters, Model]) -> tuple[Figure, ...]:
    """Memory and speed by batch, where enough batches were measured."""
    figures = []
    for number, found in enumerate(by_model.values()):
        model = next(iter(found.values())).model
        memory = tuple(_needed(found, precision) for precision in (BASE, *_others(found)))
        speed = tuple(_times_as_fast(found, precision) for precision in _others(found))
        for name, title, unit, series, caption in (
            (
                "memory",
                "Memory",
                "MB",
                memory,
                "Weights, gradients and AdamW's moments, and what forward keeps: counted.",
            ),
            ("speed", "Speed", f"times as fast as {BASE}", speed, "Bars are 95 % intervals over processes."),
        ):
            drawn = tuple(each for each in series if len(each.x) >= FEWEST_SIZES)
            if len(drawn) > (name == "memory"):
                panel = Panel(model, "batch", unit, drawn)
                figures.append(
                    Figure(f"precision_{name}_{number}", f"{title} of a step by precision", caption, ((panel,),))
                )
    return tuple(figures)


def _needed(found: Model, precision: str) -> Series:
    """MB by batch."""
    batches = _batches(found, precision)
    megabytes = [found[batch, precision].total / 1e6 for batch in batches]
    return Series(precision, batches, megabytes, "points", megabytes, megabytes)


def _times_as_fast(found: Model, precision: str) -> Series:
    """Speed beside float32 by batch."""
    ratios = {batch: _faster(found, batch, BASE, precision) for batch in _batches(found, BASE, precision)}
    known = {batch: ratio for batch, ratio in ratios.items() if ratio is not None}
    values, lows, highs = ([getattr(each, end) for each in known.values()] for end in ("value", "low", "high"))
    return Series(precision, list(known), values, "points", lows, highs)
