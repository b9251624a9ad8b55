"""Causes of failures, and the cases that are not run since another one failed of a cause that does not depend on it.

An answer's `witnesses` is how many cases of an implementation have to fail of one cause before its others are not run.
1 is for what failed before any value of the case mattered: an import, a missing driver. 2 is for what depends on the
case now and then: a crash, a hang, a compiler's error. All else, as a wrong result or the kernel's own exception, has
0: a kernel may refuse single sizes, and to find out costs little. What killed a process for its memory has 0 as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyperf_suite.runner.record import Case

# Begins what follows the reason in the record of a case that was not run.
_NOT_RUN = " [not run: the same was found in "


def cause_of(reason: str, parameters: Mapping[str, Any]) -> str:
    """A reason without what may differ from case to case: numbers, but for those of lines, and the case's own words."""
    found = reason.partition(_NOT_RUN)[0]
    for word in parameters.values():
        if isinstance(word, str) and word:
            found = re.sub(rf"\b{re.escape(word)}\b", "#", found)
    return re.sub(r"(?<![\w:.])\d+(?:[.,x]\w+)*", "#", found)


class SparedCases:
    """Which cases need not be run, by the answers so far. Of an implementation that ran in one case, all are run."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], set[str]] = {}
        self._answers: dict[tuple[str, str], dict[str, Any]] = {}
        self._runs: set[tuple[str, str]] = set()

    def note(self, case: Case, answer: Mapping[str, Any]) -> None:
        """Remember how a case ended."""
        of = case.operator, case.implementation
        if answer["outcome"] == "ok":
            self._runs.add(of)
        if not (witnesses := answer.get("witnesses")):
            return
        seen = self._seen.setdefault((*of, cause_of(answer["reason"], case.to_json()["parameters"])), set())
        seen.add(case.case_id)
        if len(seen) >= witnesses:
            reason = f"{answer['reason']}{_NOT_RUN}{case.label}]"
            self._answers.setdefault(of, {"outcome": answer["outcome"], "reason": reason})

    def answer(self, case: Case) -> dict[str, Any] | None:
        """The answer of a case that need not be run."""
        of = case.operator, case.implementation
        return None if of in self._runs or of not in self._answers else dict(self._answers[of])
