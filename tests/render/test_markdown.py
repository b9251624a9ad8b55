"""A run's page of Markdown shows what the terminal shows, and takes no cell for markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyperf_suite.measure.estimates import Ratio
from pyperf_suite.render.markdown import page
from pyperf_suite.render.run_report import write_all
from pyperf_suite.runner.results import RunFolder
from pyperf_suite.spec.findings import Claim, Document, Figure, Findings, Heading, Quantity, Table, remark

CLAIM = Claim("it is twice", "A Guide", 2.0, 2.0)
FINDINGS = Findings(
    (
        remark("A * is no list, <b> no tag, {name} no emphasis.", name="all_reduce"),
        remark("{faster} is noise", effect="faster", faster=Ratio(1.0, 0.9, 1.1, 3)),
        CLAIM.judge("it takes {measured}", 2.0),
        remark("one process", kind="caution"),
        CLAIM.judge("that takes {measured}", 3.0),
    ),
    (
        Table(
            "A table",
            (Heading("name"), Heading("none"), Heading("time", "ms")),
            (("a | b", None, Quantity(1.5e-3, "ms")), ("c", "", None)),
        ),
    ),
    (Figure("drawn", "A picture", "", ()), Figure("absent", "Another", "", ())),
)


def test_a_page_has_the_summary_cautions_remarks_by_claim_pictures_and_tables() -> None:
    text = page("a run", {"a_probe": FINDINGS}, [], [Path("anywhere/drawn.png")], summary=["First of all."])
    assert text.splitlines() == [
        "# a run",
        "",
        "- First of all.",
        "",
        "## a_probe",
        "",
        "- Caution: one process",
        r"- A \* is no list, &lt;b&gt; no tag, all_reduce no emphasis.",
        "- Claim: it is twice: A Guide",
        "  - **holds**: it takes 2.00 ×.",
        "  - **does not hold here**: that takes 3.00 ×.",
        "",
        "![A picture](drawn.png)",
        "",
        "**A table**",
        "",
        "| name | time, ms |",
        "| --- | ---: |",
        r"| a \| b | 1.5 |",
        "| c | - |",
    ]


def test_texts_are_kept_beside_the_records(tmp_path: Path) -> None:
    found = {"topology": Findings((remark("A sentence."),), documents=(Document("known.txt", "as known"),))}
    written = write_all(found, [], RunFolder(tmp_path, {}))
    assert [path.name for path in written] == ["findings.md", "findings.json", "known.txt"]
    assert (tmp_path / "known.txt").read_text() == "as known"
    assert "- A sentence." in (tmp_path / "findings.md").read_text()


def test_a_text_that_cannot_be_written_is_a_warning_and_not_the_end(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"findings\.(md|json) could not be written"):
        assert write_all({}, [], RunFolder(tmp_path / "absent", {})) == []
