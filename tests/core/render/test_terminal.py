"""The terminal's output fits the terminal, says what it leaves out, and takes no text for an order."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from pyperf_suite.findings.data import Claim, Findings, Heading, Table, remark
from pyperf_suite.findings.summary import summary_of
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record
from pyperf_suite.render.terminal import (
    MOST_LINES,
    PLACES_LINES,
    SCREEN_LINES,
    WIDE,
    console_for,
    print_answer,
    print_cautions,
    print_findings,
    print_first_tables,
    print_places,
    print_remarks_and_tables,
    print_summary,
    said_meanwhile,
)

CLAIM = Claim("it is twice", "A Guide", 2.0, 2.0)
WORDS = "words that go on for longer than any terminal is wide, with numbers such as 1.25 and names_of_things"


def printed(*findings: Findings, width: int = 60, records: tuple[Record, ...] = ()) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_findings(console, {f"probe{n}": each for n, each in enumerate(findings)}, records)
    return console.file.getvalue()


def numbers(*columns: Heading) -> Table:
    return Table(
        "title", (Heading("case"), *columns), (("a", *(Quantity(1e-3 * n, "ms") for n in range(len(columns)))),)
    )


@example(33, ["x" * 90, "x" * 90, "12345.678", "x" * 90])
@given(st.integers(30, 200), st.lists(st.sampled_from([WORDS, "a", "x" * 90, "12345.678"]), min_size=1, max_size=7))
def test_nothing_is_wider_than_the_terminal_or_ends_in_blanks(width: int, cells: list[str]) -> None:
    table = Table(WORDS, tuple(Heading(cell[:50], priority=n % 3) for n, cell in enumerate(cells)), (tuple(cells),))
    text = printed(Findings((remark(WORDS), CLAIM.judge(f"{WORDS} {{measured}}", 2.0)), (table,)), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_a_claim_stands_once_above_its_verdicts_and_many_alike_are_counted() -> None:
    verdicts = [CLAIM.judge(f"case {n} takes {{measured}}", 2.0) for n in range(9)]
    report = Findings((*verdicts, CLAIM.judge("another takes {measured}", 3.0)))
    console = Console(file=io.StringIO(), width=60)
    print_remarks_and_tables(console, report)
    text = console.file.getvalue()
    assert text.count("A Guide") == 1
    assert "holds in 6 more cases" in text
    assert "does not hold here: another takes 3.00 ×" in text
    assert printed(report, width=WIDE).count("holds: case") == 9


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_summary_takes_what_a_screen_leaves_however_narrow_the_terminal_is(width: int) -> None:
    effects = [remark(f"{WORDS} {n}: {{faster}}", effect="faster", faster=Ratio(n, n, n + 1, 3)) for n in range(2, 9)]
    verdicts = [CLAIM.judge(f"{WORDS} {{measured}}", 3.0), CLAIM.judge("it {measured}", Ratio(2, 1, 3, 1))]
    console = Console(file=io.StringIO(), width=width)
    print_summary(console, summary_of({"a": Findings((*effects, *verdicts))}))
    lines = console.file.getvalue().splitlines()
    assert 1 < len(lines) <= SCREEN_LINES - PLACES_LINES - MOST_LINES
    assert max(map(len, lines)) <= width


def test_output_that_goes_to_no_terminal_is_whole_unless_columns_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console_for().width == WIDE
    monkeypatch.setenv("COLUMNS", "70")
    assert console_for().width == 70
    assert console_for(everything=True).width == WIDE


def long_findings() -> Findings:
    """More than any screen holds."""
    rows = tuple((f"case {n}", Quantity(1e-3 * n, "ms")) for n in range(40))
    table = Table("times", (Heading("case"), Heading("time", "ms")), rows)
    cautions = [remark(f"caution {n}", kind="caution") for n in range(3)]
    verdicts = [CLAIM.judge(f"case {n} takes {{measured}}", 2.0) for n in range(9)]
    return Findings(
        (*cautions, remark("the answer"), *(remark(f"{WORDS} {n}") for n in range(30)), *verdicts), (table, table)
    )


@pytest.mark.parametrize(("lines", "shown"), [("24", 24), ("50", 50), ("8", 12)])
def test_an_answer_takes_the_height_that_there_is_its_first_finding_and_table_first(monkeypatch, lines, shown) -> None:
    monkeypatch.setenv("LINES", lines)
    console = Console(file=io.StringIO(), width=200)
    print_answer(console, long_findings(), besides=3)
    text = console.file.getvalue()
    assert shown - 8 <= len(text.splitlines()) + 3 <= max(shown, 18)
    assert text.index("the answer") < text.index("case 1")
    assert WORDS not in text.partition("case 1")[0]
    assert (WORDS in text) is (shown >= 24), "what one came for is shown whole on the lowest terminal"


@pytest.mark.parametrize("width", [80, 120])
def test_an_answer_is_one_screen_with_the_answer_on_it_and_says_how_much_more_there_is(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    print_answer(console, long_findings())
    text = console.file.getvalue()
    assert len(text.splitlines()) <= SCREEN_LINES
    for said in ("caution 0", "2 more cautions", "the answer", "times", "32 rows", "1 more table", "--all"):
        assert said in text


def test_a_run_of_many_probes_ends_with_one_screen_and_with_all_of_it_on_request(tmp_path: Path) -> None:
    found = {f"probe{n}": long_findings() for n in range(20)}
    console = Console(file=io.StringIO(), width=120)
    print_first_tables(console, found)
    print_summary(console, summary_of(found))
    print_cautions(console, [each for held in found.values() for each in held.cautions])
    print_places(console, tmp_path / "records.jsonl", [tmp_path / name for name in ("a.png", "b.png", "findings.md")])
    text = console.file.getvalue()
    assert len(text.splitlines()) <= SCREEN_LINES
    assert "59 more cautions" in text
    assert "findings.md, 2 pictures" in text


def test_what_takes_longer_than_a_second_is_said_meanwhile_and_nothing_of_what_is_over(capsys) -> None:
    with said_meanwhile("Searching"):
        pass
    assert capsys.readouterr().err == ""
    with said_meanwhile("Searching", after_s=0.01, every_s=0.02):
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.strip() == "Searching: 0 s so far" for line in lines)
