"""A study's grid crossed into configurations: what cannot be is left out of a product, but never a value asked for.

Which configurations there are, and in which order, depends on the grid alone and not on the machine: a number names the
same one wherever the same grid is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.operators import find_operator
from pyperf_suite.operators.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.probes.study.axes import GRID, MODEL, StudyAxes
from pyperf_suite.runner.case import Case

OPERATOR = "parallel_step"
MOST_CONFIGURATIONS = 1000

Combination = Mapping[str, Any]


def cases_of(axes: StudyAxes) -> list[Case]:
    """Every configuration of the grid once, in its order.

    Raises UserError for a value that combines with nothing, an empty list, or a product of more than a study can run.
    """
    blocks = [dict(configuration.axes) for configuration in axes.configuration] or [{}]
    grid = {name: getattr(axes, name) for name in (*MODEL, *GRID)}
    _refuse_too_many(grid, blocks)
    found: dict[str, Case] = {}
    for own in blocks:
        for case in _cross(grid | own, own or grid):
            found.setdefault(case.case_id, case)
    return list(found.values())


def worlds_of(cases: Iterable[Case]) -> list[int]:
    """How many ranks the cases take, ascending."""
    return sorted({case.parameters.ranks for case in cases})


def of_worlds(cases: Sequence[Case], ranks: Sequence[int]) -> list[Case]:
    """Those that take so many ranks. Raises UserError for a number that none of them takes."""
    there = worlds_of(cases)
    for number in ranks:
        if number not in there:
            raise UserError(
                f"No configuration takes {number} ranks (data x tensor x pipeline): those asked for take "
                f"{', '.join(map(str, there))}."
            )
    return [case for case in cases if case.parameters.ranks in ranks]


def _refuse_too_many(grid: Mapping[str, tuple[Any, ...]], blocks: Sequence[Mapping[str, tuple[Any, ...]]]) -> None:
    for name, values in [*grid.items(), *(each for own in blocks for each in own.items())]:
        if not values:
            raise UserError(f"{name} is an empty list: give it a value, or leave it out.")
    count = sum(math.prod(len(values) for values in {**grid, **own}.values()) for own in blocks)
    if count > MOST_CONFIGURATIONS:
        raise UserError(
            f"The grid crosses to {count} configurations, and a study takes {MOST_CONFIGURATIONS} at most: shorten its "
            "lists, or name the ones that matter as configurations."
        )


def _cross(axes: Mapping[str, tuple[Any, ...]], asked: Mapping[str, tuple[Any, ...]]) -> Iterator[Case]:
    """Every combination that can be. Raises UserError for a value of `asked` for which there is none."""
    possible: list[Combination] = []
    refused: list[tuple[Combination, UserError]] = []
    for values in itertools.product(*axes.values()):
        combination = dict(zip(axes, values, strict=True))
        try:
            case = case_of(combination)
        except UserError as reason:
            refused.append((combination, reason))
            continue
        possible.append(combination)
        yield case
    if not possible:
        firsts = {name: values[0] for name, values in axes.items()}
        raise next((reason for combination, reason in refused if combination == firsts), refused[0][1])
    for name, values in asked.items():
        for value in values:
            if not any(combination[name] == value for combination in possible):
                why = _nearest_refusal(refused, axes, name, value)
                raise UserError(f"{name}={value} combines with nothing else asked for: {why}")


def _nearest_refusal(
    refused: Sequence[tuple[Combination, UserError]], axes: Mapping[str, tuple[Any, ...]], name: str, value: Any
) -> UserError:
    """Why that value cannot be, from the combination that has most first values of the other axes."""
    concerned = [each for each in refused if each[0][name] == value]

    def firsts(each: tuple[Combination, UserError]) -> int:
        return sum(each[0][other] == values[0] for other, values in axes.items())

    return max(concerned, key=firsts)[1]


def case_of(combination: Combination) -> Case:
    """One configuration. Raises UserError for one that cannot be, on whatever machine."""
    axes = dict(combination)
    global_batch, implementation = axes.pop("global_batch"), axes.pop("implementation")
    flags = {name: axes.pop(name).value for name in ("gated", "tied")}
    batch, data = axes["batch"], axes["data"]
    for name, value in (("global_batch", global_batch), ("batch", batch), ("data", data)):
        if value < 1:
            raise UserError(f"{name} has to be at least 1, but {value} was asked for.")
    if global_batch % (batch * data):
        raise UserError(
            f"A global batch of {global_batch} cannot be cut into micro-batches of {batch} on {data} data-parallel "
            f"rank{'s' if data > 1 else ''} evenly: choose a divisor."
        )
    parameters = ParallelStepParameters(**axes, **flags, micro_batches=global_batch // (batch * data))
    parameters.validate()
    if parameters.zero_stage and data == 1:
        raise UserError(
            f"ZeRO stage {parameters.zero_stage} is shared by data-parallel ranks, and there is one: ask for data=2."
        )
    find_operator(OPERATOR).implementation(implementation)
    return Case(OPERATOR, parameters, implementation)
