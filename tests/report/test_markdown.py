"""A run's page of Markdown shows what the terminal shows, and takes no cell for markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyperf_suite.report.markdown import page
from pyperf_suite.report.run_report import write_all
from pyperf_suite.runner.results import RunFolder
from pyperf_suite.spec.findings import Document, Figure, Findings, Table

FINDINGS = Findings(
    ("A * is no list, <b> no tag, all_reduce no emphasis.",),
    (Table("A table", ("name", "figure"), (("a | b", "1.5"), ("c", "-2"))),),
    (Figure("drawn", "A picture", "", ()), Figure("absent", "Another", "", ())),
)


def test_a_page_has_sentences_tables_and_the_pictures_that_were_drawn() -> None:
    text = page("a run", {"a_probe": FINDINGS}, ["Beware."], [Path("anywhere/drawn.png")])
    assert text.splitlines() == [
        "# a run",
        "",
        "## a_probe",
        "",
        r"- A \* is no list, \<b\> no tag, all_reduce no emphasis.",
        "",
        "![A picture](drawn.png)",
        "",
        "**A table**",
        "",
        "| name | figure |",
        "| --- | ---: |",
        r"| a \| b | 1.5 |",
        "| c | -2 |",
        "",
        "## To be careful about",
        "",
        "- Beware.",
    ]


def test_texts_are_kept_beside_the_records(tmp_path: Path) -> None:
    found = {"a_probe": Findings(("A sentence.",), documents=(Document("known.txt", "as known"),))}
    written = write_all(found, [], RunFolder(tmp_path, {}))
    assert [path.name for path in written] == ["findings.md", "known.txt"]
    assert (tmp_path / "known.txt").read_text() == "as known"
    assert "- A sentence." in (tmp_path / "findings.md").read_text()


def test_a_text_that_cannot_be_written_is_a_warning_and_not_the_end(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"findings\.md could not be written"):
        assert write_all({}, [], RunFolder(tmp_path / "absent", {})) == []
