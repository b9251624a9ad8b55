"""How long a model waits for its batches, and which settings of torch's DataLoader shorten that.

Steady state and the begin of an epoch, where workers start, are told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.data_files import KINDS
from pyperf_suite.operators.training.input_pipeline import MODELS, STARTS, InputPipelineParameters
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.input_pipeline_findings import explain
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings

KEPT = ("kept", "ended")
COPIES = ("pageable", "pinned")

# Iterations timed at once: as many as the loaders hand out in one burst, within these bounds.
FEWEST_ITERATIONS, MOST_ITERATIONS = 4, 16

# The guide's num_workers, with which all else is varied; started anew, each of them takes its own torch's memory.
GUIDE_LOADERS = 4

# More cores than these are not asked to decode for one model.
MOST_CORES = 32


@dataclass(frozen=True)
class InputPipelineAxes:
    """What the probe varies.

    Every `loaders` is measured with every kind of `data`, on the first of all else. The other values of prefetch,
    workers (kept from epoch to epoch, or ended), copy (from pageable or pinned memory), start, model (on a device of
    its own, or on a core of the host), step_us (microseconds of the model) and batch are varied one at a time, with the
    first kind of data and 4 loaders, or the nearest number below; those of model and step_us with no loaders as well.
    """

    data: tuple[str, ...]
    loaders: tuple[int, ...]
    prefetch: tuple[int, ...] = (2,)
    workers: tuple[str, ...] = ("kept",)
    copy: tuple[str, ...] = ("pageable",)
    start: tuple[str, ...] = ("fork",)
    model: tuple[str, ...] = ("device",)
    step_us: tuple[int, ...] = (5000,)
    batch: tuple[int, ...] = (8,)
    files: tuple[int, ...] = (32,)

    def __post_init__(self) -> None:
        """Raise UserError for a word there is not."""
        words = {"data": tuple(KINDS), "workers": KEPT, "copy": COPIES, "start": STARTS, "model": MODELS}
        for name, allowed in words.items():
            for value in getattr(self, name):
                if value not in allowed:
                    raise UserError(f"{name}={value} was asked for: choose from {', '.join(allowed)}.")


class InputPipelineProbe(Probe):
    """Iterations of a training loop over files that are decoded beside it."""

    name = "input_pipeline"
    question = "Does the model wait for its data on this machine, and which settings of the loader shorten that?"

    def axes(self, profile: str, device: Device) -> InputPipelineAxes:
        """Loaders up to the cores, and past them in the full profile; pinned copies on a GPU."""
        axes = _axes(profile)
        return replace(axes, copy=COPIES) if device.kind == "cuda" and profile != "quick" else axes

    def sweep(self, axes: InputPipelineAxes) -> list[Case]:
        """Loaders by data, then one setting at a time (see InputPipelineAxes)."""
        return list({case.case_id: case for case in _cases(axes)}.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """How long the model waits, what the best setting gives and what binds then, and what a start costs."""
        return explain(records)

    def group(self, case: Case) -> str:
        """One table a kind of data."""
        return f"input_pipeline {case.parameters.data}"


def _axes(profile: str) -> InputPipelineAxes:
    cores = cpu.detect().usable_cores
    quick = InputPipelineAxes(data=("text",), loaders=(0, min(2, cores)))
    if profile == "quick":
        return quick
    # One loader for each core up to four, as the guide has it, else by powers of two.
    powers = tuple(2**power for power in range(10) if 2**power <= min(cores, 16))
    standard = replace(
        quick, loaders=tuple(sorted({0, *powers, min(cores, 16)})), prefetch=(2, 8), workers=KEPT, model=MODELS
    )
    if profile == "standard":
        return standard
    return replace(
        standard,
        data=tuple(KINDS),
        loaders=tuple(sorted({0, 1, 2, 3, 4, *powers, min(cores, MOST_CORES), 2 * min(cores, MOST_CORES)})),
        prefetch=(2, 1, 4, 8),
        start=("fork", "spawn"),
        step_us=(5000, 1000, 20000),
        batch=(8, 32),
    )


def _cases(axes: InputPipelineAxes) -> Iterator[Case]:
    base = InputPipelineParameters(
        data=axes.data[0],
        loaders=_loaders_of_variations(axes.loaders),
        prefetch=axes.prefetch[0],
        persistent=axes.workers[0] == "kept",
        pinned=axes.copy[0] == "pinned",
        start=axes.start[0],
        model=axes.model[0],
        step_us=axes.step_us[0],
        batch=axes.batch[0],
        files=axes.files[0],
        # The same in all cases of a sweep, so that their times compare as they are.
        iterations=min(max(FEWEST_ITERATIONS, *axes.loaders), MOST_ITERATIONS),
    )
    for data in axes.data:
        for loaders in axes.loaders:
            yield _case(replace(base, data=data, loaders=loaders))
    for varied in _one_at_a_time(axes, base):
        yield _case(varied)
    for model in axes.model[1:]:
        yield _case(replace(base, model=model, loaders=0))
    for step_us in axes.step_us[1:]:
        yield _case(replace(base, step_us=step_us, loaders=0))


def _loaders_of_variations(asked: Sequence[int]) -> int:
    """The most of those asked for that are within the guide's and the cores, where there are some; else the fewest."""
    within = [count for count in asked if 0 < count <= min(GUIDE_LOADERS, cpu.detect().usable_cores)]
    return max(within) if within else min(filter(None, asked), default=0)


def _one_at_a_time(axes: InputPipelineAxes, base: InputPipelineParameters) -> Iterator[InputPipelineParameters]:
    """Each setting but the first of its axis, all others as in `base`."""
    for name in ("prefetch", "start", "model", "step_us", "batch", "files"):
        for value in getattr(axes, name)[1:]:
            yield replace(base, **{name: value})
    for kept in axes.workers[1:]:
        yield replace(base, persistent=kept == "kept")
    for copy in axes.copy[1:]:
        yield replace(base, pinned=copy == "pinned")


def _case(parameters: InputPipelineParameters) -> Case:
    """Settings of workers say nothing where there are none, and then are the usual ones."""
    usual = InputPipelineParameters()
    if parameters.loaders == 0:
        parameters = replace(parameters, prefetch=usual.prefetch, persistent=usual.persistent, start=usual.start)
    return Case("input_pipeline", parameters, "torch")
