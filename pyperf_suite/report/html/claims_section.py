"""What guides claim, every claim beside what was measured on this machine, from the sentences of all probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pyperf_suite.render.results import Told
from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.names import title_of
from pyperf_suite.report.html.sentence import VERDICTS, Judged, chip, judged
from pyperf_suite.spec.findings import Findings


def claims_of(found: Iterable[tuple[Told, Findings]]) -> list[tuple[str, Judged]]:
    """By probe; those that do not hold first, for they are news."""
    claims = [
        (told.probe, each) for told, findings in found for each in map(judged, findings.sentences) if each is not None
    ]
    news_first = {verdict: place for place, verdict in enumerate((VERDICTS[1], VERDICTS[2], VERDICTS[0]))}
    return sorted(claims, key=lambda item: news_first[item[1].verdict])


def draw_claims(claims: list[tuple[str, Judged]], anchor: str) -> str:
    """How many hold, a bar of them, and a table."""
    counts = Counter(each.verdict for _, each in claims)
    told = ", ".join(
        f"{counts[verdict]} {word}" for verdict, word in zip(VERDICTS, _WORDS, strict=True) if counts[verdict]
    )
    parts = "".join(
        f'<span class="v{place}" style="flex-grow:{counts[verdict]}">{counts[verdict]}</span>'
        for place, verdict in enumerate(VERDICTS)
        if counts[verdict]
    )
    rows = "".join(
        f"<tr><td>{chip(each.verdict)}</td><td>{text(each.measured)}</td><td>{text(each.claim)}</td>"
        f"<td>{text(each.source)}</td><td>{text(title_of(probe))}</td></tr>"
        for probe, each in claims
    )
    heads = "".join(
        f'<th scope="col"><button type="button" class="sort">{name}</button></th>'
        for name in ("verdict", "measured here", "claim", "source", "section")
    )
    return (
        f'<section id="{anchor}"><h3>Claims of the guides, tried here</h3>'
        f'<p class="question">Does what guides say about training hold on this machine? {text(told)}.</p>'
        f'<div class="share" role="img" aria-label="{text(told)}">{parts}</div>'
        '<div class="table-frame tall words" role="region" tabindex="0" aria-label="Claims and verdicts">'
        f"<table><caption>A verdict is given where the whole interval over processes lies on one side</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


_WORDS = ("hold", "do not hold here", "undecided")
