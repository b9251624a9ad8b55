"""How long a model waits for its batches, and which settings of torch's DataLoader shorten that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import mode
from typing import Annotated, Any

from pyperf_suite.errors import OneOf
from pyperf_suite.findings.axes import AxisTable, by
from pyperf_suite.findings.data import (
    TRANSFORMERS,
    Claim,
    ClaimVerdict,
    Figure,
    Findings,
    Panel,
    Remark,
    Series,
    findings,
)
from pyperf_suite.findings.probe import Probe, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows, misses, series
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.data_parallel import InputPipelineLaw
from pyperf_suite.record.case import Case
from pyperf_suite.record.reading import WORTH
from pyperf_suite.workloads.training.input_pipeline import MODELS, MOST_LOADERS, InputPipelineParameters

WORKERS_HELP = Claim("workers that pre-load the data relieve the bottleneck of a single process", TRANSFORMERS, WORTH)
# "Does not necessarily lead to better performance" is said of many: then more of them gain nothing.
MORE_DO_NOT = Claim("a very big number of workers does not necessarily perform better", TRANSFORMERS, high=WORTH)

# How batches are loaded; what else a case has is the task, in which settings compete.
SETTINGS = ("loaders", "prefetch", "persistent", "pinned")
USUAL = InputPipelineParameters()
# A model that waits less than this share of the time is fed well enough; no setting would give much more.
FED = 0.05
FEWEST_OF_A_FIGURE = 3

VARIED = ("prefetch", "model", "step_us", "batch")
KEPT = ("kept", "ended")
COPIES = ("pageable", "pinned")
# Iterations timed at once: as many as the loaders hand out in one burst, within these bounds.
FEWEST_ITERATIONS, MOST_ITERATIONS = 4, 16
# The guide's num_workers, with which all else is varied.
GUIDE_LOADERS = 4
MOST_CORES = 32  # more than these do not decode for one model


def up_to_the_cores(_device: Device) -> tuple[int, ...]:
    """None, powers of two, and one for each core up to 16."""
    most = min(cpu.detect().usable_cores, 16)
    return tuple(sorted({0, *(2**power for power in range(5) if 2**power <= most), most}))


def past_the_cores(device: Device) -> tuple[int, ...]:
    """Each number up to four, as the guide has it, one for each core, and twice as many."""
    most = min(cpu.detect().usable_cores, MOST_CORES)
    return tuple(sorted({*up_to_the_cores(device), 1, 2, 3, 4, most, 2 * most}))


@dataclass(frozen=True)
class InputPipelineAxes(AxisTable):
    """Loaders up to the cores, and past them in the full profile; pinned copies on a GPU.

    Every `loaders` is measured on the first of all else. The other values of prefetch, workers (kept from epoch to
    epoch, or ended), copy (from pageable or pinned memory), model (on a device of its own, or on a core of the host),
    step_us (microseconds of the model) and batch are varied one at a time, with 4 loaders, or the nearest number below;
    those of model and step_us with no loaders as well.
    """

    loaders: tuple[int, ...] = by(
        lambda _: (0, min(2, cpu.detect().usable_cores)), standard=up_to_the_cores, full=past_the_cores
    )
    prefetch: tuple[int, ...] = by((2,), standard=(2, 8), full=(2, 1, 4, 8))
    workers: Annotated[tuple[str, ...], OneOf(KEPT)] = by(KEPT[:1], standard=KEPT)
    copy: Annotated[tuple[str, ...], OneOf(COPIES)] = by(COPIES[:1], cuda=by(COPIES[:1], standard=COPIES))
    model: Annotated[tuple[str, ...], OneOf(MODELS)] = by(MODELS[:1], standard=MODELS)
    step_us: tuple[int, ...] = by((5000,), full=(5000, 1000, 20000))
    batch: tuple[int, ...] = by((8,), full=(8, 32))


def sweep(axes: InputPipelineAxes) -> Iterator[Case]:
    """Loaders, then one setting at a time (see InputPipelineAxes)."""
    # The most loaders within the guide's and the cores, if there are any, else the fewest.
    within = [count for count in axes.loaders if 0 < count <= min(GUIDE_LOADERS, cpu.detect().usable_cores)]
    loaders_of_variations = max(within) if within else min(filter(None, axes.loaders), default=0)
    base = InputPipelineParameters(
        loaders=loaders_of_variations,
        persistent=axes.workers[0] == "kept",
        pinned=axes.copy[0] == "pinned",
        # The same in all cases of a sweep, so that their times compare as they are.
        iterations=min(max(FEWEST_ITERATIONS, *axes.loaders), MOST_ITERATIONS),
        **{name: getattr(axes, name)[0] for name in VARIED},
    )
    changes: list[dict[str, Any]] = [{"loaders": loaders} for loaders in axes.loaders]
    changes += [{name: value} for name in VARIED for value in getattr(axes, name)[1:]]
    changes += [{"persistent": kept == "kept"} for kept in axes.workers[1:]]
    changes += [{"pinned": copy == "pinned"} for copy in axes.copy[1:]]
    changes += [{name: value, "loaders": 0} for name in ("model", "step_us") for value in getattr(axes, name)[1:]]
    for p in (replace(base, **changed) for changed in changes):
        # Settings of workers say nothing where there are none, and then are the usual ones.
        plain = {} if p.loaders else {name: getattr(USUAL, name) for name in ("prefetch", "persistent")}
        yield Case("input_pipeline", replace(p, **plain), "torch")


def analyse(rows: Rows[InputPipelineParameters]) -> Findings:
    """By task: what the best setting gives, what binds then, and what more loaders and deeper queues give."""
    return findings(
        (with_loaders(task), what_binds(fastest(task)), rate_by_loaders(task))
        for task in rows.where(is_complete).groups(*SETTINGS)
    )


def with_loaders(task: Rows[InputPipelineParameters]) -> Iterator[Remark | ClaimVerdict]:
    """Yield the gain of loaders over none, of more loaders and of deeper queues, and the law's error."""
    fed, alone = task.where(lambda row: row.p.loaders > 0), task.first(loaders=0)
    if not fed:
        return
    best, plain = fastest(fed), [row for row in fed if is_plain(row)]
    if alone is not None and (faster := best.faster_than(alone)):
        yield best.judge(WORKERS_HELP, "Feeding {task}, {how} is {measured} as fast as none", faster)
    if len(plain) > 1:
        most = max(plain, key=lambda row: row.p.loaders)
        fewer = fastest(row for row in plain if row is not most)
        if ratio := most.faster_than(fewer):
            template = "Feeding {task}, {loaders} loaders are {measured} as fast as {fewer}"
            yield most.judge(MORE_DO_NOT, template, ratio, fewer=fewer.p.loaders)
    for row in fed:
        if faster := row.against(prefetch=USUAL.prefetch):
            template = "Feeding {task}, prefetching {prefetch} batches a loader is {faster} as fast as {usual}"
            yield row.remark(template, effect="faster", faster=faster, usual=USUAL.prefetch)
        # The probe `transfer` judges whether pinned memory is faster to copy from.
        if faster := row.against(pinned=False):
            template = "Feeding {task}, pinned memory and copies that the host does not wait for are {faster} as fast"
            yield row.remark(template, effect="faster", faster=faster)
    if law := law_of(best):
        yield best.remark(
            "The slowest stage, from what loading takes alone, is {median} off in the median ({task}; settings with "
            "loaders: {count})",
            kind="law",
            **misses(abs(law.seconds(row.p.loaders) / iteration(row) - 1) for row in fed),
        )


def what_binds(best: Row[InputPipelineParameters]) -> Iterator[Remark]:
    """How long the model waits with the best setting, and what keeps it from being faster by the law."""
    yield best.remark("Fed by {how}, the model waits {starved:%} of the time ({task})")
    law = law_of(best)
    if best.observed["starved"] <= FED or not law:
        return
    enough = law.enough(MOST_LOADERS)
    if law.binds(best.p.loaders) == "the model":
        template = "With {how}, {binds} should bind: handing batches over or other work takes the rest ({task})"
    elif enough:
        template = "With {how}, what binds is {binds}; loaders needed: {enough} ({task})"
    else:
        template = "With {how}, what binds is {binds}; no number of loaders would do on {cores} cores ({task})"
    yield best.remark(template, kind="predicted", enough=enough, cores=law.cores)


def fastest(rows: Iterable[Row[InputPipelineParameters]]) -> Row[InputPipelineParameters]:
    """The one with the shortest iteration."""
    return min(rows, key=lambda row: row.seconds)


def law_of(row: Row[InputPipelineParameters]) -> InputPipelineLaw | None:
    """The bound of its task, from what loading takes in the training process itself; None if it loaded nothing."""
    for alone in row.rows.same_except(row, *SETTINGS):
        if not alone.p.loaders and not alone.p.pinned and is_complete(alone):
            cores = int(alone.reading.details["cores"])
            return InputPipelineLaw(alone.observed["wait"], alone.observed["model"], cores, alone.p.model == "host")
    return None


def rate_by_loaders(task: Rows[InputPipelineParameters]) -> Figure | None:
    """Iterations a second over loaders, and the law's bound."""
    plain = {row.p.loaders: row for row in task if not row.p.loaders or is_plain(row)}
    if len(plain) < FEWEST_OF_A_FIGURE:
        return None
    taken = [plain[count] for count in sorted(plain)]
    first, law = taken[0], law_of(taken[0])
    drawn = [series("measured", taken, "loaders", lambda row: row.reading.per_second(row.p.iterations, "/s"))]
    if law:
        span = list(range(max(plain) + 1))
        drawn.append(Series("law: the slowest stage", span, [1 / law.seconds(number) for number in span], "line"))
    return Figure(
        f"input_pipeline_text_{first.p.model}_{first.p.step_us}us_b{first.p.batch}",
        "Iterations a second by number of loaders",
        "Points: measured, bars span the processes; line: no iteration is shorter than its slowest stage.",
        ((Panel(in_words(first), "loaders", "iterations/s", tuple(drawn), y_unit="/s"),),),
    )


def iteration(row: Row[InputPipelineParameters]) -> float:
    """Mean seconds of one iteration, as several are timed at once."""
    return row.seconds / row.p.iterations


def is_complete(row: Row[InputPipelineParameters]) -> bool:
    """True if all reported figures besides time were observed."""
    return {"wait", "model", "starved", "first_batch", "next_epoch"} <= row.observed.keys()


def is_plain(row: Row[InputPipelineParameters]) -> bool:
    """True if a row has the settings that most of its task share: those not varied besides the number of loaders."""
    shared = mode(each.p.prefetch for each in row.rows.same_except(row, *SETTINGS) if each.p.loaders)
    return not settings(row) and row.p.prefetch == shared


def in_words(row: Row[InputPipelineParameters]) -> str:
    """`8 texts and a step of 5 ms on a device of its own`."""
    where = "a device of its own" if row.p.model == "device" else "a core of the host"
    return f"{row.p.batch} texts and a step of {row.p.step_us / 1000:g} ms on {where}"


def settings(row: Row[InputPipelineParameters]) -> str:
    """Return the settings that are not the usual ones."""
    ended = "" if row.p.persistent else "workers end with the epoch"
    return ", ".join(filter(None, ("pinned" if row.p.pinned else "", ended)))


def how(row: Row[InputPipelineParameters]) -> str:
    """`2 loaders, prefetch 8, pinned`."""
    loaders = f"{row.p.loaders} loader{'s' if row.p.loaders > 1 else ''}, prefetch {row.p.prefetch}"
    return ", ".join(filter(None, (loaders if row.p.loaders else "no loaders", settings(row))))


PROBE = Probe(
    name="input_pipeline",
    question="Does the model wait for its data on this machine, and which settings of the loader shorten that?",
    topic="training",
    title="Training: input pipeline",
    axes=InputPipelineAxes.of,
    sweep=sweep,
    computed={
        "task": in_words,
        "how": how,
        "bound": lambda row: (law := law_of(row)) and law.seconds(row.p.loaders),
        "binds": lambda row: (law := law_of(row)) and law.binds(row.p.loaders),
        "iteration": iteration,
    },
    order=lambda row: (
        *(row.p.model, row.p.step_us, row.p.batch, row.p.files, row.p.iterations),
        *(row.p.loaders, row.p.pinned, not row.p.persistent, row.p.prefetch),
    ),
    tables=(
        RowTable(
            "Iterations by settings of the loader",
            (
                Column("data", lambda row: f"{row.p.batch} text", priority=0),
                Column("model", lambda row: f"{row.p.step_us / 1000:g} ms, {row.p.model}"),
                Column("loaders", priority=2),
                Column("prefetch", lambda row: row.p.prefetch if row.p.loaders else None, priority=2),
                Column("settings", lambda row: settings(row) or None, priority=2),
                Column("iteration", unit="ms", priority=2),
                Column("from", lambda row: row.reading.low / row.p.iterations, "ms", 0),
                Column("to", lambda row: row.reading.high / row.p.iterations, "ms", 0),
                Column("rate", lambda row: row.p.batch / iteration(row), "samples/s"),
                Column("waiting", "starved", "%", 2),
                Column("law", "bound", "ms", predicted=True),
                Column("binds"),
                Column("first batch", "first_batch", "ms"),
                Column("in iterations", lambda row: row.observed["first_batch"] / iteration(row), priority=0),
                Column("next epoch", "next_epoch", "ms"),
            ),
            where=is_complete,
        ),
    ),
    analyse=analyse,
)
