"""Cases that need not be run, since others failed of a cause that does not depend on the case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.record.case import Case
from pyperf_suite.record.record import NOT_RUN, cause_of


class SparedCases:
    """Spares cases after others of the implementation failed of a cause that does not depend on them.

    An answer's `witnesses` is how many cases have to fail of its cause before the others are spared. 1 is for what came
    before any value of the case mattered: an import, a missing driver. 2 is for what may depend on the case: a crash, a
    hang, a compiler's error. All else has 0, as a wrong result or an exception of its own: a kernel may refuse single
    sizes, and to find out costs little; so has what was killed for its memory. Where one case ran, others do too.
    """

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str, str], set[str]] = {}
        self._answers: dict[tuple[str, str], dict[str, Any]] = {}
        self._ran: set[tuple[str, str]] = set()

    def note(self, case: Case, answer: Mapping[str, Any]) -> None:
        """Remember how a case ended."""
        of = case.operator, case.implementation
        if answer["outcome"] == "ok":
            self._ran.add(of)
        if witnesses := answer.get("witnesses"):
            seen = self._failures.setdefault((*of, cause_of(answer["reason"], case.to_json()["parameters"])), set())
            seen.add(case.case_id)
            if len(seen) >= witnesses:
                reason = f"{answer['reason']}{NOT_RUN}{case.label}]"
                self._answers.setdefault(of, {"outcome": answer["outcome"], "reason": reason})

    def answer(self, case: Case) -> dict[str, Any] | None:
        """The answer of a case that need not be run."""
        of = case.operator, case.implementation
        return None if of in self._ran or of not in self._answers else dict(self._answers[of])
