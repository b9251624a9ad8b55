"""A probe's sentence on the page, with the verdict on a guide's claim set in front as a word in colour."""

from __future__ import annotations

import re
import typing
from dataclasses import dataclass

from pyperf_suite.probes.training.claims import Verdict
from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.predicted import MARK

VERDICTS: tuple[str, ...] = typing.get_args(Verdict)
_CLAIM = re.compile(
    rf"^(?P<measured>.*); (?P<verdict>{'|'.join(VERDICTS)})(?P<aside>[^(]*)\((?P<claim>.+): (?P<source>[^:]+)\)\.?$",
    re.DOTALL,
)
_SHORT = {"claim holds": "holds", "claim does not hold here": "does not hold here", "undecided": "undecided"}


@dataclass(frozen=True)
class Judged:
    """A claim of a guide, where it stands, what was measured, and the verdict."""

    measured: str
    verdict: str
    claim: str
    source: str


def judged(sentence: str) -> Judged | None:
    """The parts of a sentence that `Claim.sentence` made; None for any other."""
    found = _CLAIM.match(sentence)
    if found is None:
        return None
    measured = f"{found['measured']}{found['aside'].rstrip()}." if found["aside"].strip() else f"{found['measured']}."
    return Judged(measured, found["verdict"], found["claim"], found["source"])


def chip(verdict: str) -> str:
    """The verdict as a word in its colour."""
    return f'<span class="chip v{VERDICTS.index(verdict)}">{text(_SHORT.get(verdict, verdict))}</span>'


def draw_sentence(sentence: str) -> str:
    """A list item; what is a prediction says so in its own words, and in a mark where it begins with them."""
    found = judged(sentence)
    front = f"{chip(found.verdict)} " if found else ""
    mark = f"{MARK} " if sentence.startswith("Predicted") else ""
    return f"<li>{front}{mark}{text(sentence)}</li>"
