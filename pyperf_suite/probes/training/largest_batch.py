"""The search for the largest batch that fits: what is known from records, and which batch to try next.

Bytes grow with the batch in a straight line but for what the allocator does, so a line through two batches says where
to look, and what is looked at decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyperf_suite.operators.training.checkpointed_step import CheckpointedStepParameters
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.rows import all_observed


@dataclass
class Search:
    """One policy of one transformer: parameters (their batch is 1), batches that fit with their bytes, and others.

    `broken` where a batch neither fits nor is too large: something failed, and a search would not end.
    """

    parameters: CheckpointedStepParameters
    fits: dict[int, dict[str, float]] = field(default_factory=dict)
    too_large: set[int] = field(default_factory=set)
    broken: bool = False

    @property
    def largest(self) -> int:
        """The largest batch known to fit; 0 where none is."""
        return max(self.fits, default=0)

    @property
    def least_too_large(self) -> int | None:
        """The smallest batch known not to fit, above those that do."""
        return min((batch for batch in self.too_large if batch > self.largest), default=None)

    @property
    def is_settled(self) -> bool:
        """Whether the batch after the largest one is known not to fit."""
        return self.least_too_large == self.largest + 1


def searches(records: Sequence[Record]) -> list[Search]:
    """What records say of each policy, those without a budget left out."""
    held = all_observed(records)
    found: dict[CheckpointedStepParameters, Search] = {}
    for record in records:
        case = record.parsed_case()
        if not case.parameters.budget_bytes:
            continue
        search = found.setdefault(replace(case.parameters, batch=1), Search(replace(case.parameters, batch=1)))
        if record.outcome == "ok":
            search.fits[case.parameters.batch] = dict(held[record.case_id])
        elif record.outcome == "unsupported" and "does not fit" in record.reason:
            search.too_large.add(case.parameters.batch)
        else:
            search.broken = True
    return list(found.values())


def next_batch(search: Search) -> int | None:
    """The batch to try next; None where nothing is left to learn."""
    above = search.least_too_large
    if search.broken or search.is_settled or (not search.fits and not search.too_large):
        return None
    if not search.fits:
        return None if above == 1 or above is None else above // 2
    predicted = _predicted(search)
    if above is None or predicted < above:
        return max(predicted, search.largest + 1)
    # The line promised too much: steps down that double, and halves where these would go below what fits.
    step = 2 ** (len([batch for batch in search.too_large if batch > search.largest]) - 1)
    return above - step if above - step > search.largest else (search.largest + above) // 2


def _predicted(search: Search) -> int:
    """Where the line through the bytes of one sequence and of the largest batch meets the budget."""
    seen = search.fits[search.largest]
    if search.largest > 1:
        each, start = (seen["peak"] - seen["peak_of_one"]) / (search.largest - 1), seen["peak_of_one"]
    else:
        each, start = seen["peak"] - seen["fixed"], seen["peak"]
    return 1 + math.floor((search.parameters.budget_bytes - start) / max(each, 1.0))
