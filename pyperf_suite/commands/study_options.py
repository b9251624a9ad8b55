"""What `study` is asked for: a grid's file, options that override it, and the two put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.advise.study.grid_file import RunSettings, StudyFile
    from pyperf_suite.probes.study.grid import StudyAxes
    from pyperf_suite.runner.case import Case

# Options by the axis that each replaces.
MODEL_OPTIONS = {
    "hidden": "Width of the residual stream.",
    "heads": "Of the queries.",
    "layers": "",
    "seq": "Tokens of a sequence.",
    "vocab": "",
    "kv_heads": "By default as many as heads.",
    "ffn": "Width of the MLP; by default 4 x hidden.",
}
GRID_OPTIONS = {
    "global_batch": "Sequences of an iteration over all ranks.",
    "batch": "Sequences of a micro-batch.",
    "data": "Data-parallel ranks.",
    "tensor": "Tensor-parallel ranks, with sequence parallelism.",
    "pipeline": "Stages of a pipeline.",
    "chunks": "Groups of layers a stage; above 1 is the interleaved schedule.",
    "zero_stage": "0 is DDP, 1 ZeroRedundancyOptimizer, 2 and 3 FSDP2.",
    "attention": "flash, math or explicit.",
    "checkpointing": "none, every:K or selective.",
    "dtype": "float32 or bfloat16.",
    "implementation": "gloo or nccl.",
}
FLAGS = {"zero_stage": ("--zero-stage", "--zero")}
RUN_OPTIONS = {
    "steps": "Timed in each experiment.",
    "warm_up": "Steps before those.",
    "experiments": "Of each configuration, each in fresh processes.",
    "seed": "Of the order in which configurations are visited.",
}


def study_options(command: Any) -> Any:
    """The grid's options, how each configuration is run, and what a SLURM job asks for."""
    number = partial(click.option, type=int, metavar="N")
    of_job = partial(click.option, help="Of the SLURM job.")
    options = [
        *(number(_flag(name), help=text) for name, text in MODEL_OPTIONS.items()),
        click.option("--gated/--not-gated", default=None, help="SwiGLU and RMSNorm, or GELU and LayerNorm."),
        *(
            click.option(*FLAGS.get(name, (_flag(name),)), name, metavar="A,B,...", help=text)
            for name, text in GRID_OPTIONS.items()
        ),
        *(number(_flag(name), help=text) for name, text in RUN_OPTIONS.items()),
        click.option("--ranks", metavar="N,...", help="Only configurations of so many ranks."),
        click.option("--print-slurm", is_flag=True, help="Print an sbatch script that runs the study, and end."),
        of_job("--nodes", type=int, default=1, show_default=True, metavar="N"),
        of_job("--gpus-per-node", type=int, default=8, show_default=True, metavar="N"),
        of_job("--time", default="", metavar="HH:MM:SS"),
        of_job("--partition", default="", metavar="NAME"),
        of_job("--account", default="", metavar="NAME"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """A study as asked for: options that were given, and what the file says beside them."""

    path: Path | None
    file: StudyFile
    axes: Mapping[str, tuple[Any, ...]]
    run: RunSettings
    ranks: tuple[int, ...]
    given: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path | None, named: Mapping[str, Any]) -> Asked:
        """Read options, and the file for how to run. Raises UserError for what a study does not know."""
        from pyperf_suite.advise.study.grid_file import StudyFile, read_study
        from pyperf_suite.probes.study.grid import AXES, StudyAxes
        from pyperf_suite.spec.axes import read_axes

        given = {name: value for name, value in named.items() if value is not None}
        file = StudyFile() if path is None else read_study(path)
        axes = read_axes(StudyAxes, {name: str(value) for name, value in given.items() if name in AXES})
        run = replace(file.run, **{name: value for name, value in given.items() if name in RUN_OPTIONS})
        run.validate()
        return cls(path, file, axes, run, _numbers("ranks", given.get("ranks", "")), given)

    def cases(self, defaults: StudyAxes) -> list[Case]:
        """Every configuration asked for, in the grid's order. Raises UserError for what cannot be."""
        from pyperf_suite.probes.study.grid import cases_of, of_worlds

        cases = cases_of(self.file.over(defaults).given(self.axes))
        return of_worlds(cases, self.ranks) if self.ranks else cases

    @property
    def cuts_itself(self) -> bool:
        """Whether file and options say how steps are cut, so that the grid is the same on every machine."""
        from pyperf_suite.probes.study.grid import CUTS

        return bool(self.file.configurations) or any(name in CUTS for name in (*self.file.axes, *self.axes))

    def arguments(self) -> list[str]:
        """The same study on a command line."""
        words = [str(self.path)] if self.path is not None else []
        for name, value in self.given.items():
            gated = "--gated" if value else "--not-gated"
            words.append(gated if name == "gated" else f"{_flag(name)}={value}")
        return words


def chosen(cases: Sequence[Case], only: str | None) -> list[Case]:
    """Those configurations by their numbers from 1, all where none are named. Raises UserError for one there is not."""
    if only is None:
        return list(cases)
    numbers = _numbers("only", only)
    if not numbers or not all(1 <= number <= len(cases) for number in numbers):
        raise UserError(
            f"--only {only!r:.60} was asked for, but configurations are numbered 1 to {len(cases)} (--list)."
        )
    return [cases[number - 1] for number in dict.fromkeys(numbers)]


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError:
        raise UserError(f"--{name} {text[:60]!r} was asked for, but takes whole numbers, as in 1,2,4.") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
