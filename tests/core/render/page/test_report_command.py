"""`pyperf-suite report` makes one page of what a folder holds, and says in a sentence where it cannot."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.machine import identity
from pyperf_suite.record.case import Case
from pyperf_suite.render import page
from pyperf_suite.render.comparisons import COMPARISON, read_comparison
from pyperf_suite.render.results import choose, read_results
from pyperf_suite.workloads.training.optimizer import OptimizerUpdateParameters, TensorSet
from tests.commands import invoke
from tests.core.render.page.conftest import HOSTILE, MACHINE, a_history, a_record, write

RUN = "20260101T000000Z-0001"


class Reader(html.parser.HTMLParser):
    """Every tag with its attributes, and the text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._silent = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._silent = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._silent = False

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)


def one_run(results: Path, *records: dict[str, Any]) -> Path:
    """The journal of one run, of one record if none is given."""
    return write(results, RUN, list(records) or [a_record(RUN, 1e-3)])


def run(*arguments: object) -> Result:
    return invoke("report", *arguments)


def page_of(results: Path, *arguments: object) -> str:
    result = run(results, *arguments)
    assert result.exit_code == 0, result.output
    return (results / "report.html").read_text(encoding="utf-8")


def test_the_page_is_small_the_same_each_time_and_names_no_path_or_address(results) -> None:
    a_history(results)
    before = {path: path.read_bytes() for path in results.rglob("*.jsonl")}
    page = page_of(results)
    for said in ("Made-up processor", "The machine and its state", "Made up", "History and change points"):
        assert said in page
    assert page_of(results) == page
    assert {path: path.read_bytes() for path in results.rglob("*.jsonl")} == before
    assert len(page.encode()) < 4_000_000
    page = re.sub(r'id="plotly">[^<]*<', 'id="plotly"><', page)
    assert str(results.parent) not in page
    assert not re.search(r"https?://|//cdn|@import|url\(", page)
    assert not [tag for tag, said in Reader(page).tags if "src" in said or tag == "link"]


def test_the_change_of_a_series_is_told_with_its_commits(results) -> None:
    a_history(results)
    words = " ".join(Reader(page_of(results)).words)
    assert "Nominated, not confirmed: matmul[native m=64" in words
    assert "(aaaaaaaaa to bbbbbbbbb)" in words
    assert "Nominated, not confirmed: matmul[native m=128" not in words


def test_a_caution_of_several_runs_stands_once_and_names_the_newest_with_its_numbers(results) -> None:
    for number in (1, 2, 3):
        run_id = f"2026010{number}T000000Z-0001"
        quality = {
            "converged": True,
            "cpu_busy_s": number + 1.0,
            "process_cpu_s": 1.0,
            "cpu_steal_s": 0.0,
            "elapsed_s": 1.0,
        }
        write(results, run_id, [a_record(run_id, 1e-3, process=each, quality=quality) for each in range(3)])
    html = page_of(results, "--runs", "all")
    words = re.sub(r"<[^>]*>", "", html[html.index("The machine while it was measured") :])
    assert words.count("cores busy while cases were timed") == 1
    assert "run 20260103T000000Z-0001 and 2 earlier runs: Other processes kept 3 cores busy" in words


def a_comparison(results: Path, verdict: str = "slower", **changed: Any) -> Path:
    folder = results / MACHINE / "ab-20260104T000000Z-0001"
    folder.mkdir(parents=True)
    arms = {"old": {"name": "main (abc)"}, "new": {"name": ". (def)"}}
    (folder / "ab.json").write_text(json.dumps({"started_at": "2026-01-04T00:00:00+00:00", "arms": arms}))
    ratio = {"value": 1.2, "low": 1.1, "high": 1.3, "processes": 0}
    judgement = {
        "benchmark": "b.py:k",
        "probe": "b.py:k",
        "case_id": "1",
        "verdict": verdict,
        "ratio": ratio,
        "margin": 0.01,
        "sentence": "Slower by `20 %`.",
        "details": {},
        **changed,
    }
    (folder / "findings.json").write_text(json.dumps([judgement]))
    return folder


def test_what_ab_compared_is_on_the_page(results) -> None:
    one_run(results)
    a_comparison(results)
    html = page_of(results)
    words = " ".join(Reader(html).words)
    assert ". (def) against main (abc)" in words
    assert "1 slower of 1 benchmark" in words
    assert "b.py:k: Slower by <code>20 %</code>." in html
    assert '<td class="short">slower</td><td class="figure" data-value="0.2">+20 % [+10, +30]</td>' in re.sub(
        r"0\.1999\d*", "0.2", html
    )


@pytest.mark.parametrize(
    "spoil",
    [
        {"verdict": "unheard of"},
        {"ratio": {"value": "much"}},
        {"ratio": [1]},
        {"nonsense": 1},
        {"margin": "wide"},
    ],
)
def test_a_comparison_that_cannot_be_read_is_named_and_costs_nothing_else(results, spoil) -> None:
    one_run(results)
    a_comparison(results, **spoil)
    with pytest.warns(UserWarning, match="the comparison cannot be read"):
        found = read_results(results, readers={COMPARISON: read_comparison})
    assert (len(found.runs), found.others, len(found.notes)) == (1, (), 1)


def test_hostile_names_are_text_and_never_markup(results) -> None:
    slug = '<img src=x onerror=alert(3)>"&'
    said = {"probe": HOSTILE, "implementation": HOSTILE, "profile": HOSTILE}
    message = {"identity": {"kind": "cpu", "slug": slug, "model": HOSTILE, HOSTILE: HOSTILE}}
    a_history(results, slug, reason=HOSTILE, **said, **message)
    page = page_of(results)
    reader = Reader(page)
    scripts = [attributes for tag, attributes in reader.tags if tag == "script"]
    expected = [{}, {"type": "application/octet-stream", "id": "plotly"}]
    assert [each for each in scripts if each.get("type") != "application/json"] in (expected, expected[::-1])
    assert not [tag for tag, _ in reader.tags if tag == "img"]
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    assert "\u202e" not in page
    assert any("alert(1)" in words for words in reader.words)
    for island in re.findall(r'class="data">(.*?)</script>', page):
        json.loads(island)


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        ({}, None),
        ({"profile": "quick"}, {"profile": "standard"}),
        ({"processes": 1}, {"processes": 3}),
        ({"converged": False}, {}),
        ({"cases": 1}, {"cases": 3, "profile": "quick"}),
        ({"seconds": None, "profile": "full"}, {"profile": "quick"}),
    ],
)
def test_the_strongest_evidence_is_shown_and_not_the_newest(results, weaker, stronger) -> None:
    def measured(run_id, profile="standard", processes=2, converged=True, cases=2, seconds=1e-3):
        return [
            a_record(run_id, seconds, 64 << case, process, profile=profile, quality={"converged": converged})
            for process in range(processes)
            for case in range(cases)
        ]

    for run_id, requested in (("20260101T000000Z-0001", stronger or {}), ("20260102T000000Z-0001", weaker)):
        write(results, run_id, measured(run_id, **requested))
    [[choice]] = choose(read_results(results)).values()
    assert choice.run.run_id.startswith("20260102" if stronger is None else "20260101"), "of equals the newest"
    [[choice]] = choose(read_results(results), ["latest"]).values()
    assert choice.run.run_id.startswith("20260101" if "seconds" in weaker else "20260102")


def test_the_page_begins_with_what_matters_then_warnings_and_the_machine_is_folded(results) -> None:
    sentinels = [a_record(RUN, seconds, kind="sentinel", probe="sentinel") for seconds in (1e-3, 2e-3)]
    tensors = OptimizerUpdateParameters(TensorSet(512, 64, 64), "AdamW", "float32", 1)
    cases = {seconds: Case("optimizer_update", tensors, way) for way, seconds in (("loop", 3e-3), ("fused", 1e-3))}
    made = [
        a_record(RUN, seconds, process=n, probe="optimizer", case=case.to_json(), case_id=case.case_id)
        for seconds, case in cases.items()
        for n in range(3)
    ]
    one_run(results, *made, *sentinels)
    page = page_of(results)
    first, *then = ('<ul class="summary">', "fused AdamW is 3.00", "changed by 100 %", "<section", "<summary>Identity")
    order = [page.index(said) for said in (first, *then)]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["RESULTS", "--runs", "20990101T000000Z-0000"], "There is no run 20990101T000000Z-0000"),
        (["RESULTS", "--runs", "20990101T000000Z-0000"], RUN),
        (["RESULTS", "--runs", " , "], "--runs names no run"),
        (["RESULTS", "--runs", "lates"], "did you mean latest?"),
        (["RESULTS", "--runs", "ALL"], "did you mean all?"),
        (["RESULTS", "--machine", "cpu-third"], "it holds cpu-made-up-2c"),
        (["RESULTS", "-o", "RESULTS/absent/page.html"], "cannot be written"),
        (["RESULTS/absent"], "There is no results folder"),
        (["x" * 5000], "There is no results folder"),
        (["RESULTS/empty"], "No measured run was found"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_sentence(results, arguments, sentence) -> None:
    one_run(results)
    (results / "empty").mkdir()
    result = run(*(word.replace("RESULTS", str(results)) for word in arguments))
    assert result.exit_code == 2
    assert sentence in result.output
    assert not (results / "report.html").exists()


def test_the_page_opens_on_this_machine_with_what_failed_and_others_are_folded(results) -> None:
    here = identity(Device("cpu")).slug
    for name in ("aaa-before", here, "zzz-behind"):
        write(results, RUN, [a_record(RUN, 1e-3), a_record(RUN, None, 128, reason="a wrong result")], name)
    page = page_of(results)
    order = [f"<code>{here}</code>", "Also in these results", "a wrong result", "<section", '<details class="machine">']
    assert [page.index(said) for said in order] == sorted(page.index(said) for said in order)
    assert page.count('<details class="machine">') == 2
    assert page.index("<code>aaa-before</code>") > page.index('<details class="machine">')


def test_lines_that_are_no_records_are_passed_over_with_a_warning_and_told(results) -> None:
    path = one_run(results)
    strange = a_record(RUN, 1e-3) | {"case": {"operator": "alchemy"}, "case_id": "unknown"}
    with path.open("a") as file:
        file.write("[1]\n" + "[" * 100_000 + "\n" + json.dumps(strange) + "\n" + '{"torn": ')
    with pytest.warns(UserWarning, match="line 2 is passed over"):
        found = read_results(results)
    assert len(found.runs[0].records()) == 1
    assert "3 more such" in found.notes[0]


def test_a_probe_that_stumbles_over_its_records_does_not_cost_the_page(results) -> None:
    one_run(results, a_record(RUN, 1e-3, probe="collectives"), a_record(RUN, 2e-3, 128, probe="new_one"))
    page = page_of(results)
    assert "collectives could not make sense of these records" in page
    assert "This version has no probe" in page
    assert "Cases as measured" in page


def test_a_run_without_its_manifest_is_told_by_its_records(results) -> None:
    one_run(results).with_name("run.json").write_text("{torn")
    assert "quick, 1 process" in page_of(results)


@pytest.mark.parametrize("absent", ["plotly", "jinja2"])
def test_what_the_page_needs_and_is_absent_is_named(results, monkeypatch, absent) -> None:
    a_history(results)
    page.environment.cache_clear()
    page.packed_plotly.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, absent, None)
    result = run(results)
    assert result.exit_code == 2
    assert f"pip install {absent}" in result.output


def test_contents_tell_runs_of_one_probe_apart(results) -> None:
    a_history(results)
    contents = page_of(results, "--runs", "all").partition("</nav>")[0]
    named = re.findall(r'<li><a href="#[^"]*">([^<]*)</a>', contents)
    assert len(named) == len(set(named)) > 12
