"""`selfcheck --repeat`: how far apart runs of the same benchmarks lie, and how often intervals hold other figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.render import text
from pyperf_suite.runner.record import Case
from pyperf_suite.runner.results import Journal
from pyperf_suite.workloads.matmul import MatmulParameters
from tests.records import a_record, metric
from tools.repeats import ALL, findings_of_repeats, measure_again, records_of, spreads
from tools.selfcheck import selfcheck

CASES = [Case("matmul", MatmulParameters(n, n, n, Schedule("library", 1)), "torch") for n in (16, 32)]


def journal(folder: Path, *times: float, probe: str = "baseline", spread: float = 0.05) -> Path:
    """A run of one benchmark for each time."""
    path = folder / "records.jsonl"
    folder.mkdir()
    with Journal(path) as written:
        for case, seconds in zip(CASES, times, strict=False):
            quality = {"converged": True, "disturbances": {"clean_share": 0.5}}
            bounds = metric(seconds, low=seconds * (1 - spread), high=seconds * (1 + spread))
            written.append(a_record(case, bounds, probe=probe, quality=quality))
    return path


def test_runs_are_compared_by_pairs_within_probes_and_together(tmp_path: Path) -> None:
    runs = [journal(tmp_path / "one", 1.0, 2.0), journal(tmp_path / "two", 1.1, 2.0), journal(tmp_path / "3", 1.0, 2.0)]
    cases = records_of(runs)
    found = spreads(cases)
    assert [each.probe for each in found] == ["baseline", ALL]
    whole = found[-1]
    assert (whole.cases, len(whole.distances), whole.clean) == (2, 6, 0.5)
    assert whole.at(1.0) == pytest.approx(0.1)
    assert whole.at(0.5) == pytest.approx(0.0)
    # The first benchmark's second run is not held by the others, nor holds them: 4 of 12 ordered pairs.
    assert whole.holds == pytest.approx(8 / 12)
    reported = findings_of_repeats(cases)
    assert [table.title for table in reported.tables] == [
        "How well figures come back",
        "Other figures of the same samples",
    ]
    said = [text.sentence(each) for each in reported.remarks]
    assert any("Figures of two of 3 runs differ by" in each for each in said)


def test_only_what_every_run_measured_is_compared(tmp_path: Path) -> None:
    runs = [journal(tmp_path / "one", 1.0, 2.0), journal(tmp_path / "two", 1.0)]
    assert [(each.probe, each.cases) for each in spreads(records_of(runs))] == [("baseline", 1), (ALL, 1)]
    assert records_of([runs[0], journal(tmp_path / "other", 1.0, probe="alignment")]) == []


@pytest.mark.parametrize("option", [["--resume"], ["--markdown", "x.md"]], ids=str)
def test_options_of_comparisons_are_refused(option: list[str]) -> None:
    refused = CliRunner().invoke(selfcheck, ["--repeat", "2", *option])
    assert refused.exit_code == 2
    assert "leave out" in refused.output


@pytest.mark.slow
def test_two_runs_of_a_small_probe_are_made_and_compared(tmp_path: Path) -> None:
    journals = measure_again(2, ["transfer", "--device", "cpu"], tmp_path)
    assert len(journals) == 2
    rows = findings_of_repeats(records_of(journals)).tables[0].rows
    assert [row[0] for row in rows] == ["transfer", ALL]
    apart = [[each.value for each in (worst, most, median)] for _, _, median, most, worst, *_ in rows]
    assert all(values == sorted(values, reverse=True) and values[-1] >= 0 for values in apart)
