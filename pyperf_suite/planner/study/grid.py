"""The grid of a study: its axes, its file, the ways to cut a step by default, and its configurations as cases.

Which configurations there are, and their order, depends on the grid alone and not on the machine. What cannot be is
left out of a product of axes, but never a value that was requested.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pyperf_suite import files
from pyperf_suite.errors import UserError, Within, offer
from pyperf_suite.findings.axes import NO, Flag, check_axes, read_axes
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.ranks.launch import ranks_here
from pyperf_suite.record.case import Case
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.training import Checkpointing

OPERATOR = "parallel_step"
MOST_CONFIGURATIONS = 1000
# Configurations of a grid that a search runs a few of.
MOST_SEARCHED = 10_000
# A study is a few numbers; a longer file is another one.
LARGEST_BYTES = 1 << 20
LIMITS = {"steps": Within(2, 10_000), "warm_up": Within(1, 10_000), "experiments": Within(1, 100), "seed": Within()}

MODEL = ("hidden", "heads", "layers", "seq", "vocab", "kv_heads", "ffn", "gated", "tied")
# How a step is cut over ranks; whoever replaces one of these asks for a grid of their own.
CUTS = ("data", "tensor", "pipeline", "chunks", "zero_stage")
GRID = ("global_batch", "batch", "attention", "checkpointing", "dtype", "implementation", "offload", "engine", *CUTS)
AXES = (*MODEL, *GRID)


@dataclass(frozen=True)
class Configuration:
    """Axes of the grid that some configurations have values of their own for; they are crossed with the others'."""

    axes: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __str__(self) -> str:
        return ";".join(f"{name}={'|'.join(map(str, values))}" for name, values in self.axes)

    @classmethod
    def parse(cls, text: str) -> Configuration:
        parts = [part.strip().partition("=") for part in text.split(";") if part]
        for name, equals, _ in parts:
            if not equals or name not in GRID:
                raise UserError(f"{name!r} is no part of a configuration: write AXIS=VALUE with {', '.join(GRID)}.")
        return cls(tuple(read_axes(StudyAxes, {name: value.replace("|", ",") for name, _, value in parts}).items()))


@dataclass(frozen=True)
class StudyAxes:
    """A cross product of all axes; with `configuration`, one for each of these, whose own values stand for the grid's.

    `batch` is the sequences of a micro-batch, `global_batch` of an iteration over all ranks. `zero_stage` 0 is DDP. The
    defaults are a tiny GPT on one rank of a CPU.
    """

    hidden: tuple[int, ...] = (128,)
    heads: tuple[int, ...] = (4,)
    layers: tuple[int, ...] = (4,)
    seq: tuple[int, ...] = (128,)
    vocab: tuple[int, ...] = (512,)
    global_batch: Annotated[tuple[int, ...], Within(1)] = (8,)
    batch: Annotated[tuple[int, ...], Within(1)] = (2,)
    implementation: tuple[str, ...] = ("gloo",)
    dtype: tuple[str, ...] = ("float32",)
    kv_heads: tuple[int, ...] = (0,)
    ffn: tuple[int, ...] = (0,)
    gated: tuple[Flag, ...] = (NO,)
    # A pipeline has embedding and logits on different ranks: one model for all configurations is one that ties nothing.
    tied: tuple[Flag, ...] = (NO,)
    attention: tuple[str, ...] = ("flash",)
    checkpointing: tuple[Checkpointing, ...] = (Checkpointing(),)
    data: Annotated[tuple[int, ...], Within(1)] = (1,)
    tensor: tuple[int, ...] = (1,)
    pipeline: tuple[int, ...] = (1,)
    chunks: tuple[int, ...] = (1,)
    zero_stage: tuple[int, ...] = (0,)
    offload: tuple[str, ...] = ("none",)
    engine: tuple[str, ...] = ("torch",)
    configuration: tuple[Configuration, ...] = ()

    def given(self, axes: Mapping[str, tuple[Any, ...]]) -> StudyAxes:
        """Replace some axes everywhere; those that cut a step differently leave no configuration of before."""
        kept = () if any(name in CUTS for name in axes) else self.configuration
        own = tuple(Configuration(tuple(each for each in old.axes if each[0] not in axes)) for old in kept)
        changed: dict[str, Any] = {"configuration": own, **axes}
        return replace(self, **changed)


# Ways to cut a step: on a CPU, on one GPU, and on N together.
ON_CPU = (
    *("data=1|2|4", "attention=math", "checkpointing=every"),
    *("data=2;zero_stage=1|2|3", "tensor=2", "pipeline=2;chunks=1|2"),
)
ALONE = "attention=flash|math", "checkpointing=every"
TOGETHER = "data=N;zero_stage=0|1|2|3", "data=N;zero_stage=1;attention=math", "tensor=N", "pipeline=N;chunks=1|2"
GPT_ON_GPUS = {"hidden": 2048, "heads": 16, "layers": 16, "seq": 2048, "vocab": 50304, "global_batch": 16, "batch": 1}


def default_axes(device: Device, gpus: int = 1) -> StudyAxes:
    """A tiny GPT on 1 to 4 ranks of a CPU; on GPUs a larger one over all of them, cut in each way that they divide."""
    if device.kind == "cpu":
        return StudyAxes(configuration=tuple(map(Configuration.parse, ON_CPU)))
    # Sizes that heads, layers and micro-batches of up to eight ranks divide evenly.
    ranks = max(power for power in (1, 2, 4, 8) if power <= gpus)
    ways = [*ALONE, *(way.replace("N", str(ranks)) for way in TOGETHER)] if ranks > 1 else ALONE
    larger: dict[str, Any] = {name: (value,) for name, value in GPT_ON_GPUS.items()}
    own = tuple(map(Configuration.parse, ways))
    return StudyAxes(**larger, implementation=("nccl",), dtype=("bfloat16",), configuration=own)


def search_axes(device: Device, gpus: int = 1) -> StudyAxes:
    """Every cut over the same ranks, and every micro-batch, for a search, which runs a few of them."""
    usual = default_axes(device, gpus)
    ranks = 4 if device.kind == "cpu" else max(power for power in (1, 2, 4, 8) if power <= gpus)
    counts = tuple(2**power for power in range(ranks.bit_length()))
    batches = tuple(2**power for power in range(usual.global_batch[0].bit_length()))
    kept = tuple(map(Checkpointing.parse, ("none", "every")))
    return replace(
        usual, configuration=(), data=counts, tensor=counts, pipeline=counts, batch=batches, zero_stage=(0, 1, 2, 3),
        checkpointing=kept,
    )  # fmt: skip


def cases_of(axes: StudyAxes, max_cases: int = MOST_CONFIGURATIONS, requested: Collection[str] = AXES) -> list[Case]:
    """Every configuration of the grid once, in its order; values of axes that are not in `requested` may be left out.

    Raises UserError for a value that combines with nothing, an empty list, or a product of more than a study can run.
    """
    owns: list[dict[str, Any]] = [dict(each.axes) for each in axes.configuration] or [{}]
    grids = [replace(axes, **own) for own in owns]
    for grid in grids:
        if empty := [name for name in AXES if not getattr(grid, name)]:
            raise UserError(f"{empty[0]} is an empty list: give it a value, or leave it out.")
        check_axes(grid)
    count = sum(math.prod(len(getattr(grid, name)) for name in AXES) for grid in grids)
    if count > max_cases:
        raise UserError(
            f"The grid crosses to {count} configurations, and a study takes {max_cases} at most: shorten its "
            "lists, or name the ones that matter as configurations."
        )
    crossed = (case for own, grid in zip(owns, grids, strict=True) for case in _cross(grid, own or requested))
    return list({case.case_id: case for case in crossed}.values())


def _cross(grid: StudyAxes, requested: Collection[str]) -> list[Case]:
    """Every combination that can be. Raises UserError for a value of the `requested` axes for which there is none."""
    lists = {name: getattr(grid, name) for name in AXES}
    possible: list[tuple[Mapping[str, Any], Case]] = []
    refused: list[tuple[Mapping[str, Any], UserError]] = []
    for values in itertools.product(*lists.values()):
        combination = dict(zip(AXES, values, strict=True))
        try:
            possible.append((combination, _case(**combination)))
        except UserError as reason:
            refused.append((combination, reason))
    if not possible:
        raise refused[0][1]
    # A refusal names the combination that has most first values of the other axes.
    refused.sort(key=lambda each: -sum(each[0][name] == values[0] for name, values in lists.items()))
    there = {(name, value) for combination, _ in possible for name, value in combination.items()}
    for axis in requested:
        for value in lists[axis]:
            if (axis, value) not in there:
                why = next(why for combination, why in refused if combination[axis] == value)
                raise UserError(f"{axis}={value} combines with nothing else requested: {why}")
    return [case for _, case in possible]


def _case(global_batch: int, batch: int, data: int, implementation: str, gated: Flag, tied: Flag, **axes: Any) -> Case:
    """One configuration. Raises UserError for one that cannot be, on whatever machine."""
    if global_batch % (batch * data):
        raise UserError(
            f"A global batch of {global_batch} cannot be cut into micro-batches of {batch} on {data} data-parallel "
            f"rank{'s' if data > 1 else ''} evenly: choose a divisor."
        )
    axes |= {"batch": batch, "data": data, "gated": gated.value, "tied": tied.value}
    parameters = ParallelStepParameters(**axes, micro_batches=global_batch // (batch * data))
    parameters.validate()
    if parameters.zero_stage and data == 1:
        raise UserError(
            f"ZeRO stage {parameters.zero_stage} is shared by data-parallel ranks, and there is one: ask for data=2."
        )
    find_workload(OPERATOR).implementation(implementation)
    return Case(OPERATOR, parameters, implementation)


def axes(profile: str, device: Device) -> StudyAxes:
    """The same in every profile, for a study is made longer by experiments: over a launcher's ranks, or all GPUs."""
    del profile
    return default_axes(device, ranks_here((max(1, len(gpus())),))[0])


@dataclass(frozen=True)
class RunSettings:
    """Settings of each configuration's run: `steps` timed after `warm_up`, in `experiments` of fresh processes.

    Raises UserError for an impossible number.
    """

    steps: int = 10
    warm_up: int = 2
    experiments: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int:
                raise UserError(f"{name} is {value!r:.60}, but takes a whole number.")
            LIMITS[name].check(name, value)


def read_study(path: Path) -> tuple[dict[str, tuple[Any, ...]], RunSettings]:
    """Axes and settings of a TOML file. Raises UserError if it cannot be read, or says what a study does not know."""
    try:
        content = files.read_bytes(path, LARGEST_BYTES)
    except OSError as error:
        raise UserError(f"The study {path} cannot be read: {error.strerror}.") from None
    try:
        read = files.parse_toml(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"The study {path} is not TOML: {error}.") from None
    try:
        return parse_study(read)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def parse_study(read: Mapping[str, Any]) -> tuple[dict[str, tuple[Any, ...]], RunSettings]:
    """Read the tables [model], [grid], [run] and any number of [[configuration]].

    Raises UserError for an unknown table or key, or a value of another kind.
    """
    keys_of_tables = {"model": MODEL, "grid": GRID, "run": tuple(LIMITS), "configuration": GRID}
    if unknown := [name for name in read if name not in keys_of_tables]:
        raise UserError(f"A study has no table {unknown[0][:60]!r}: {offer(unknown[0], keys_of_tables)}")
    configurations = read.get("configuration", [])
    if not isinstance(configurations, list):
        raise UserError("configuration is a list of tables: write each below a line [[configuration]].")
    tables = [(name, read.get(name, {})) for name in ("model", "grid", "run")]
    for name, table in [*tables, *(("configuration", each) for each in configurations)]:
        if not isinstance(table, dict):
            raise UserError(f"{name} is {table!r:.60}, but is a table: write its keys below a line [{name}].")
        if unknown := [key for key in table if key not in keys_of_tables[name]]:
            raise UserError(f"[{name}] has no key {unknown[0][:60]!r}: {offer(unknown[0], keys_of_tables[name])}")
    model, grid, run = (table for _, table in tables)
    if lists := [name for name, value in model.items() if isinstance(value, list)]:
        raise UserError(f"{lists[0]} of [model] is a list, but a study is of one model: give one value.")
    axes = _axes(model) | _axes(grid)
    if configurations:
        axes["configuration"] = tuple(Configuration(tuple(_axes(each).items())) for each in configurations)
    return axes, RunSettings(**run)


def _axes(table: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The values of a table's axes, one or a list each, read as on a command line."""
    lists = {name: value if isinstance(value, list) else [value] for name, value in table.items()}
    return {
        name: tuple(read_axes(StudyAxes, {name: str(each)})[name][0] for each in values)
        for name, values in lists.items()
    }
