"""What `study` is asked for: a grid's file, options that override it, and the two put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.probes.study.axes import StudyAxes
    from pyperf_suite.probes.study.grid_file import RunSettings
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
RUN_OPTIONS = {
    "steps": "Timed in each experiment.",
    "warm_up": "Steps before those.",
    "experiments": "Of each configuration, each in fresh processes.",
    "seed": "Of the order in which configurations are visited.",
}


def study_options(command: Any) -> Any:
    """The grid's options, and how each configuration is run."""
    options = [
        *(click.option(_flag(name), type=int, metavar="N", help=text) for name, text in MODEL_OPTIONS.items()),
        click.option("--gated/--not-gated", default=None, help="SwiGLU and RMSNorm, or GELU and LayerNorm."),
        *(
            click.option(
                *([_flag(name), "--zero"] if name == "zero_stage" else [_flag(name)]),
                name,
                metavar="A,B,...",
                help=text,
            )
            for name, text in GRID_OPTIONS.items()
        ),
        *(click.option(_flag(name), type=int, metavar="N", help=text) for name, text in RUN_OPTIONS.items()),
        click.option("--ranks", metavar="N,...", help="Only configurations of so many ranks."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def slurm_options(command: Any) -> Any:
    """What a SLURM job asks for."""
    options = (
        click.option("--print-slurm", is_flag=True, help="Print an sbatch script that runs the study, and end."),
        click.option("--nodes", type=int, default=1, show_default=True, metavar="N", help="Of the SLURM job."),
        click.option("--gpus-per-node", type=int, default=8, show_default=True, metavar="N", help="Of the SLURM job."),
        click.option("--time", "time_limit", default="", metavar="HH:MM:SS", help="Of the SLURM job."),
        click.option("--partition", default="", metavar="NAME", help="Of the SLURM job."),
        click.option("--account", default="", metavar="NAME", help="Of the SLURM job."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """A study as asked for: options that were given, and what the file says beside them."""

    path: Path | None
    axes: Mapping[str, tuple[Any, ...]]
    run: RunSettings
    ranks: tuple[int, ...]
    given: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path | None, named: Mapping[str, Any]) -> Asked:
        """Read options, and the file for how to run. Raises UserError for what a study does not know."""
        from pyperf_suite.probes.study.axes import parse_value, read_value

        given = {name: value for name, value in named.items() if value is not None}
        axes: dict[str, tuple[Any, ...]] = {}
        for name, value in given.items():
            if name in GRID_OPTIONS:
                axes[name] = tuple(parse_value(name, each) for each in value.split(","))
            elif name in MODEL_OPTIONS or name == "gated":
                axes[name] = (read_value(name, value),)
        run = replace(_read(path).run, **{name: value for name, value in given.items() if name in RUN_OPTIONS})
        run.validate()
        return cls(path, axes, run, _numbers("ranks", given.get("ranks", "")), given)

    def cases(self, defaults: StudyAxes) -> list[Case]:
        """Every configuration asked for, in the grid's order. Raises UserError for what cannot be."""
        from pyperf_suite.probes.study.grid import cases_of, of_worlds

        cases = cases_of(_read(self.path).over(defaults).given(self.axes))
        return of_worlds(cases, self.ranks) if self.ranks else cases

    @property
    def cuts_itself(self) -> bool:
        """Whether file and options say how steps are cut, so that the grid is the same on every machine."""
        from pyperf_suite.probes.study.axes import CUTS

        read = _read(self.path)
        return bool(read.configurations) or any(name in CUTS for name in (*read.axes, *self.axes))

    def arguments(self) -> list[str]:
        """The same study on a command line."""
        words = [str(self.path)] if self.path is not None else []
        for name, value in self.given.items():
            if name == "gated":
                words.append("--gated" if value else "--not-gated")
            else:
                words.append(f"{_flag(name)}={value}")
        return words


def chosen(cases: Sequence[Case], only: str | None) -> list[Case]:
    """Those configurations by their numbers from 1, all where none are named. Raises UserError for one there is not."""
    if only is None:
        return list(cases)
    numbers = _numbers("only", only)
    if not numbers:
        raise UserError("--only names no configuration: give their numbers, as in 1,2,4 (--list).")
    for number in numbers:
        if not 1 <= number <= len(cases):
            raise UserError(
                f"--only {number} was asked for, but configurations are numbered 1 to {len(cases)} (--list)."
            )
    return [cases[number - 1] for number in dict.fromkeys(numbers)]


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError:
        raise UserError(f"--{name} {text[:60]!r} was asked for, but takes whole numbers, as in 1,2,4.") from None


def _read(path: Path | None) -> Any:
    from pyperf_suite.probes.study.grid_file import StudyFile, read_study

    return StudyFile() if path is None else read_study(path)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
