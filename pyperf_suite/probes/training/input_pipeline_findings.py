"""What records of loaders say: how long the model waits, what settings give, what binds, what a start costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, mode
from typing import Any

from pyperf_suite.laws.training.input_pipeline import InputPipeline
from pyperf_suite.operators.training.input_pipeline import MOST_LOADERS, InputPipelineParameters
from pyperf_suite.probes.training.claims import TRANSFORMERS, Claim
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Figure, Findings, Panel, Series, Table
from pyperf_suite.spec.rows import WORTH, Reading, observed, readings, speedup, wins

WORKERS_HELP = Claim("workers that pre-load the data relieve the bottleneck of a single process", TRANSFORMERS, WORTH)
# "Does not necessarily lead to better performance" is said of many: then more of them gain nothing.
MORE_DO_NOT = Claim("a very big number of workers does not necessarily perform better", TRANSFORMERS, high=WORTH)
PINNED_HELPS = Claim("pin_memory typically leads to much faster transfers to the GPU", TRANSFORMERS, WORTH)

# A model that waits less than this share of the time is fed well enough; no setting would give much more.
FED = 0.05

FEWEST_OF_A_FIGURE = 3
METRICS = ("wait", "model", "starved", "first_batch", "next_epoch")
COLUMNS = (
    "data",
    "model",
    "loaders",
    "prefetch",
    "settings",
    "iteration ms",
    "from",
    "to",
    "waiting",
    "law ms",
    "binds",
    "first batch ms",
    "next epoch ms",
)


@dataclass(frozen=True)
class Fed:
    """One setting of the loader: its reading, and the medians of what was seen beside time."""

    reading: Reading
    seen: Mapping[str, float]

    @property
    def parameters(self) -> InputPipelineParameters:
        """Of its case."""
        found: InputPipelineParameters = self.reading.case.parameters
        return found

    @property
    def iteration_s(self) -> float:
        """Seconds of one iteration: of as many as were timed at once, the mean."""
        return self.reading.seconds / self.parameters.iterations

    @property
    def starved(self) -> float:
        """The share of the time that the model waits."""
        return self.seen["starved"]

    @property
    def task(self) -> InputPipelineParameters:
        """What is to be done, without the settings of how: equal for settings that compete."""
        usual = InputPipelineParameters()
        settings = ("loaders", "prefetch", "persistent", "pinned", "start")
        return replace(self.parameters, **{name: getattr(usual, name) for name in settings})

    @property
    def what(self) -> str:
        """`8 texts and a step of 5 ms on a device`."""
        p = self.parameters
        files = {"text": "texts", "jpeg": "JPEG pictures"}[p.data]
        where = "a device of its own" if p.model == "device" else "a core of the host"
        return f"{p.batch} {files} and a step of {p.step_us / 1e3:g} ms on {where}"

    @property
    def settings(self) -> str:
        """Those that are not the usual ones, in words."""
        p = self.parameters
        words = ("pinned" if p.pinned else "", "workers end with the epoch" if not p.persistent else "")
        started = p.start if p.loaders and p.start != InputPipelineParameters().start else ""
        return ", ".join(word for word in (*words, started) if word)

    @property
    def how(self) -> str:
        """`2 loaders, prefetch 8, pinned`."""
        p = self.parameters
        if not p.loaders:
            return "no loaders" + (f", {self.settings}" if self.settings else "")
        words = [_loaders(p.loaders), f"prefetch {p.prefetch}", self.settings]
        return ", ".join(word for word in words if word)


def explain(records: Sequence[Record]) -> Findings:
    """Sentences by task, the table of all settings, and a figure over loaders."""
    by_metric = {name: observed(records, name) for name in METRICS}
    found = [
        Fed(reading, {name: values[reading.case.case_id] for name, values in by_metric.items()})
        for reading in readings(records)
        if all(reading.case.case_id in values for values in by_metric.values())
    ]
    tasks: dict[InputPipelineParameters, list[Fed]] = {}
    for fed in sorted(found, key=_order):
        tasks.setdefault(fed.task, []).append(fed)
    sentences = [said for members in tasks.values() for said in _sentences(members)]
    laws = {task: law_of(members) for task, members in tasks.items()}
    rows = tuple(_row(fed, laws[task]) for task, members in tasks.items() for fed in members)
    tables = (Table("Iterations by settings of the loader", COLUMNS, rows),) if rows else ()
    figures = tuple(figure for task, members in tasks.items() for figure in _figure(members, laws[task]))
    return Findings(tuple(sentences), tables, figures)


def law_of(members: Sequence[Fed]) -> InputPipeline | None:
    """The bound of the pipeline, from what loading takes in the training process itself; None where none did."""
    alone = next((fed for fed in members if not fed.parameters.loaders and not fed.parameters.pinned), None)
    if alone is None:
        return None
    cores = int(alone.reading.kernel["details"]["cores"])
    return InputPipeline(alone.seen["wait"], alone.seen["model"], cores, alone.parameters.model == "host")


def _order(fed: Fed) -> tuple[object, ...]:
    p = fed.parameters
    usual = InputPipelineParameters()
    task = (p.data != usual.data, p.data, p.model, p.step_us, p.batch, p.files, p.iterations)
    return (*task, p.loaders, p.pinned, not p.persistent, p.start, p.prefetch)


def _sentences(members: Sequence[Fed]) -> Iterator[str]:
    best = min(members, key=lambda fed: fed.reading.seconds)
    alone = next((fed for fed in members if not fed.parameters.loaders), None)
    helped = min((fed for fed in members if fed.parameters.loaders), key=lambda fed: fed.reading.seconds, default=None)
    if alone is not None and helped is not None:
        yield from _against_none(alone, helped)
    else:
        yield f"{_feeding(best)}: the model waits {best.starved:.0%} of an iteration of {_ms(best.iteration_s)}."
    law = law_of(members)
    yield from _what_binds(best, law)
    yield from _error_of(members, law)
    yield from _more_loaders(members)
    yield from _prefetch(members)
    yield from _starts(members)
    yield from _pinned(members)


def _against_none(alone: Fed, helped: Fed) -> Iterator[str]:
    """What the best setting with loaders gives over loading in the training process."""
    ratio = speedup(alone.reading, helped.reading)
    if ratio is not None:
        subject = (
            f"{_feeding(alone)}, the model waits {alone.starved:.0%} of an iteration of {_ms(alone.iteration_s)}; with "
            f"{helped.how} it waits {helped.starved:.0%} of {_ms(helped.iteration_s)}, {{}} x as fast"
        )
        yield WORKERS_HELP.sentence(subject, ratio)


def _what_binds(best: Fed, law: InputPipeline | None) -> Iterator[str]:
    """What keeps the best setting from being faster: measured where it is the model, else by the law."""
    if best.starved <= FED:
        yield f"So fed ({best.how}), the model is what takes the time: waiting is {best.starved:.1%} of it."
        return
    if law is None:
        return
    binds, predicted = law.binds(best.parameters.loaders), _ms(law.seconds(best.parameters.loaders))
    waits = f"With {best.how} the model still waits {best.starved:.0%} of the time"
    if binds == "the model":
        yield (
            f"{waits}, though loaders and cores would do for iterations of {predicted} (predicted): handing batches "
            "over, or other work on the cores, takes the rest."
        )
        return
    enough = law.enough(MOST_LOADERS)
    wanted = f"{_loaders(enough)} would do" if enough else f"no number of loaders would do on {law.cores} cores"
    yield f"{waits}: what binds is {binds}, at {predicted} an iteration, and {wanted} (predicted)."


def _error_of(members: Sequence[Fed], law: InputPipeline | None) -> Iterator[str]:
    """How far the law's predictions are off, where loaders were measured."""
    if law is None:
        return
    off = [abs(law.seconds(fed.parameters.loaders) / fed.iteration_s - 1) for fed in members if fed.parameters.loaders]
    if off:
        settings = f"{len(off)} setting{'s' if len(off) > 1 else ''} with loaders"
        yield (
            f"The law of the slowest stage, from what loading takes alone, is {median(off):.0%} off in the median of "
            f"{settings} ({members[0].what})."
        )


def _more_loaders(members: Sequence[Fed]) -> Iterator[str]:
    """The most loaders beside the best number of them, all else the same."""
    plain = {fed.parameters.loaders: fed for fed in members if fed.parameters.loaders and _is_plain(fed, members)}
    if len(plain) < 2:
        return
    most = plain[max(plain)]
    others = [fed for fed in plain.values() if fed is not most]
    best = min(others, key=lambda fed: fed.reading.seconds)
    ratio = speedup(best.reading, most.reading)
    if ratio is not None:
        subject = (
            f"{_loaders(most.parameters.loaders)} are {{}} x as fast as {_loaders(best.parameters.loaders)} "
            f"({best.what})"
        )
        yield MORE_DO_NOT.sentence(subject, ratio)


def _prefetch(members: Sequence[Fed]) -> Iterator[str]:
    """Deeper and shallower queues beside the usual one."""
    usual = InputPipelineParameters().prefetch
    for fed, base in _beside(members, "prefetch", usual):
        ratio = speedup(base.reading, fed.reading)
        if ratio is not None:
            depth = fed.parameters.prefetch
            gain = "worth setting" if wins(ratio) else "no gain" if ratio.high < WORTH else "undecided"
            yield f"Prefetching {depth} batches a loader is {ratio} x as fast as {usual} ({fed.what}): {gain}."


def _starts(members: Sequence[Fed]) -> Iterator[str]:
    """What the begin of an epoch costs, with workers kept and ended, and by how they are started."""
    plainest = max((fed for fed in members if fed.parameters.loaders), key=_plainness, default=None)
    ended, kept = next(_beside(members, "persistent", True), (None, plainest))
    if kept is None or not kept.parameters.persistent:
        return
    later = f"later ones after {_ms(kept.seen['next_epoch'])} as workers are kept"
    if ended is not None:
        later += f" ({_ms(ended.seen['next_epoch'])} where they end with the epoch)"
    iterations = kept.seen["first_batch"] / kept.iteration_s
    yield (
        f"Starting {_loaders(kept.parameters.loaders)} takes no part in these times: the first epoch's first batch "
        f"comes after {_ms(kept.seen['first_batch'])}, as long as {iterations:.1f} iterations, {later}."
    )
    for fed, base in _beside(members, "start", InputPipelineParameters().start):
        seen, forked = fed.seen["first_batch"], base.seen["first_batch"]
        yield (
            f"Workers by {fed.parameters.start} give the first batch after {_ms(seen)}, by {base.parameters.start} "
            f"after {_ms(forked)}."
        )


def _pinned(members: Sequence[Fed]) -> Iterator[str]:
    for fed, base in _beside(members, "pinned", False):
        ratio = speedup(base.reading, fed.reading)
        if ratio is not None:
            yield PINNED_HELPS.sentence(
                f"Pinned memory and copies that the host does not wait for are {{}} x as fast ({fed.what}, {fed.how})",
                ratio,
            )


def _beside(members: Sequence[Fed], name: str, usual: Any) -> Iterator[tuple[Fed, Fed]]:
    """Each setting that differs from the usual in that field, and its like that does not."""
    by_parameters = {fed.parameters: fed for fed in members}
    for fed in members:
        base = by_parameters.get(replace(fed.parameters, **{name: usual}))
        if getattr(fed.parameters, name) != usual and base is not None:
            yield fed, base


def _is_plain(fed: Fed, members: Sequence[Fed]) -> bool:
    """Whether it has the settings that most share: what was not varied beside the number of loaders."""
    usual = mode(each.parameters.prefetch for each in members if each.parameters.loaders)
    return not fed.settings and fed.parameters.prefetch == usual


def _plainness(fed: Fed) -> tuple[bool, bool, int]:
    p = fed.parameters
    return (not fed.settings, p.prefetch == InputPipelineParameters().prefetch, p.loaders)


def _row(fed: Fed, law: InputPipeline | None) -> tuple[str, ...]:
    p, count = fed.parameters, fed.parameters.iterations
    return (
        f"{p.batch} {p.data}",
        f"{p.step_us / 1e3:g} ms, {p.model}",
        str(p.loaders),
        str(p.prefetch) if p.loaders else "-",
        fed.settings or "-",
        *(f"{seconds / count * 1e3:.2f}" for seconds in (fed.reading.seconds, fed.reading.low, fed.reading.high)),
        f"{fed.starved:.0%}",
        f"{law.seconds(p.loaders) * 1e3:.2f}" if law else "-",
        law.binds(p.loaders) if law else "-",
        f"{fed.seen['first_batch'] * 1e3:.1f}",
        f"{fed.seen['next_epoch'] * 1e3:.1f}",
    )


def _figure(members: Sequence[Fed], law: InputPipeline | None) -> Iterator[Figure]:
    """Iterations a second over loaders, and the law's bound."""
    plain = {fed.parameters.loaders: fed for fed in members if _is_plain(fed, members) or not fed.parameters.loaders}
    if len(plain) < FEWEST_OF_A_FIGURE:
        return
    taken = [plain[count] for count in sorted(plain)]
    loaders = [fed.parameters.loaders for fed in taken]
    count = taken[0].parameters.iterations
    series = [
        Series(
            "measured",
            loaders,
            [count / fed.reading.seconds for fed in taken],
            "points",
            [count / fed.reading.high for fed in taken],
            [count / fed.reading.low for fed in taken],
        )
    ]
    if law is not None:
        span = list(range(max(loaders) + 1))
        series.append(Series("law: the slowest stage", span, [1 / law.seconds(number) for number in span], "line"))
    p = taken[0].parameters
    panel = Panel(taken[0].what, "loaders", "iterations/s", tuple(series))
    yield Figure(
        f"input_pipeline_{p.data}_{p.model}_{p.step_us}us_b{p.batch}",
        "Iterations a second by number of loaders",
        "Points: measured, bars span the processes; line: no iteration is shorter than its slowest stage.",
        ((panel,),),
    )


def _feeding(fed: Fed) -> str:
    return f"Feeding {fed.what} with {fed.how}"


def _loaders(count: int) -> str:
    return f"{count} loader{'s' if count > 1 else ''}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
