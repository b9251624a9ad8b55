"""The page in a real browser: it renders without an error, answers to mouse and keyboard, and fits phone and paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.findings.data import Figure, Findings, Heading, HeatMap, Table
from pyperf_suite.render import page as page_module
from pyperf_suite.render.charts import page_figure
from pyperf_suite.render.page import Section, draw_page
from pyperf_suite.render.results import choose, read_results
from tests.core.render.page.chromium import Chromium, find_chromium
from tests.core.render.page.conftest import HOSTILE, MACHINE, a_history, a_record, write

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: apt-get install chromium"),
]


def added_section() -> Section:
    """A section with two heat maps."""
    values = ((0.9, 1.0, 1.1), (0.95, 1.05, float("nan")))
    heat_map = HeatMap("", "head_dim", "hidden", "speed", (64, 96, 128), (2048, 2560), values)
    maps = [page_figure(Figure(name, "Hidden and head_dim", "Made up.", ((heat_map,),))) for name in ("one", "two")]
    return Section("added", "Added", "Which sizes are fast?", Findings(), figures=tuple(maps))


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """A report with charts of a history, heat maps, and hostile names wherever a record has one."""
    results = tmp_path_factory.mktemp("hostile") / "bench_results"
    a_history(results, probe=HOSTILE, implementation=HOSTILE, reason=HOSTILE)
    read = read_results(results)
    path = results / "report.html"
    of_machine = page_module._machine

    def with_maps(*maps: Any) -> dict[str, Any]:
        found = of_machine(*maps)
        return {**found, "others": [added_section(), *found["others"]]}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page_module, "_machine", with_maps)
        path.write_text(draw_page(read, choose(read)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def opened(browser, page) -> Any:
    """The browser with the page, light, on a desk."""
    browser.size(1300, 900)
    browser.prefer("light")
    browser.open(page)
    return browser


def show(browser: Any, selector: str) -> None:
    """Scroll there and wait until the picture is alive."""
    browser.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center', behavior: 'instant'}})")
    browser.wait_for(f"!!document.querySelector('{selector} .live[data-ready]')")


def test_every_figure_comes_to_life_without_an_error_and_nothing_is_fetched(opened, page):
    count = opened.run("document.querySelectorAll('.picture').length")
    assert count >= 4
    for number in range(count):
        opened.run(f"document.querySelectorAll('.picture')[{number}].scrollIntoView({{behavior: 'instant'}})")
        opened.wait_for(f"!!document.querySelectorAll('.picture')[{number}].querySelector('.live[data-ready]')")
    assert opened.console == []
    assert {url.split(":")[0] for url in opened.requests} <= {"file", "data", "blob"}
    assert [url for url in opened.requests if url.startswith("file")] == [page.as_uri()[:80]]


def test_hostile_names_run_nothing_and_stand_in_the_page_as_they_are(opened):
    assert opened.run("document.querySelectorAll('main script:not(.data), main img').length") == 0
    assert "<script>alert(1)</script>" in opened.run("document.body.innerText")
    show(opened, "figure .picture")
    assert opened.console == []


def test_pointing_at_a_value_shows_it_with_the_run(opened):
    show(opened, "[id^=history] .picture")
    layer = "document.querySelector('[id^=history] .picture .hoverlayer').textContent"
    point = "[id^=history] .picture .points path"
    opened.wait_for(f"{layer}.includes('202601')", meanwhile=lambda: opened.point_at(point))
    assert "median of a run" in opened.run(layer)


def test_a_series_is_hidden_and_shown_again_by_its_button(opened):
    show(opened, "[id^=history] .picture")
    visible = "document.querySelectorAll('[id^=history] figure:first-of-type .picture .scatterlayer .trace').length"
    before = opened.run(visible)
    for pressed, expected in (("false", before - 1), ("true", before)):
        opened.run("document.querySelector('[id^=history] .series').click()")
        assert opened.run("document.querySelector('[id^=history] .series').getAttribute('aria-pressed')") == pressed
        opened.wait_for(f"{visible} === {expected}")


def test_dark_and_light_follow_the_reader_and_then_the_button(opened, browser):
    def paper() -> str:
        return str(opened.run("getComputedStyle(document.body).backgroundColor"))

    light = paper()
    opened.prefer("dark")
    dark = paper()
    assert dark != light
    opened.run("document.getElementById('theme').click()")
    assert paper() == light
    opened.run("document.getElementById('theme').click()")
    assert paper() == dark
    opened.run("localStorage.clear()")


def test_the_keyboard_reaches_the_skip_link_first_and_then_every_control(opened):
    opened.press("Tab")
    assert opened.run("document.activeElement.className") == "skip"
    opened.press("Enter")
    assert opened.run("document.activeElement.id") == "content"
    opened.run("document.querySelector('.series').focus()")
    opened.press("Enter")
    assert opened.run("document.activeElement.getAttribute('aria-pressed')") == "false"
    unreachable = "[...document.querySelectorAll('button, summary, .table-frame')].filter((each) => each.tabIndex < 0)"
    assert opened.run(f"{unreachable}.length") == 0


def test_a_table_is_sorted_by_number_by_its_heading(opened):
    column = "[...document.querySelector('#t table').tBodies[0].rows].map((row) => row.cells[2].textContent)"
    opened.run("document.querySelector('[id^=history] details.values').id = 't'")
    opened.run("document.querySelectorAll('#t .sort')[2].click()")
    values = [float(value) for value in opened.run(column)]
    assert values == sorted(values)
    opened.run("document.querySelectorAll('#t .sort')[2].click()")
    assert [float(value) for value in opened.run(column)] == values[::-1] != values


@pytest.mark.parametrize("width", [1280, 800])
def test_names_in_the_contents_are_whole_and_a_link_opens_another_machine(browser, results, width):
    run_id = "20260101T000000Z-0001"
    name = "bench_with_a_long_name_of_some_kernels.py:sum_of_squares_of_all_elements"
    write(results, run_id, [a_record(run_id, 1e-3, probe=name)])
    write(results, run_id, [a_record(run_id, 1e-3, probe=name)], "cuda-of-others-132sm")
    read = read_results(results)
    (results / "report.html").write_text(draw_page(read, choose(read), here={MACHINE}), encoding="utf-8")
    browser.size(width, 900)
    browser.open(results / "report.html")
    browser.run("document.querySelector('nav details').open = true")
    cut = "[...document.querySelectorAll('nav a, h3')].filter((each) => each.scrollWidth > each.clientWidth).length"
    assert browser.run("document.querySelectorAll('nav a').length") == 4
    assert browser.run(cut) == 0
    assert not browser.run("document.querySelector('details.machine').open")
    browser.run("[...document.querySelectorAll('nav a')].pop().click()")
    browser.wait_for("document.querySelector('details.machine').open")


def test_on_a_phone_nothing_is_wider_than_the_screen(opened):
    opened.size(390, 844, phone=True)
    opened.open(Path(opened.run("decodeURI(location.pathname)")))
    show(opened, "[id^=history] .picture")
    assert opened.run("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [390, 1280])
def test_no_column_is_a_letter_wide_and_a_verdict_is_in_sight(browser, results, width):
    why = "a figure from its data sheet, which no machine of this kind was seen to reach under load"
    names = ("verdict", "part", "check", "found", "expected", "at least", "unit", "off", "why")
    row = ("ok", "cuda:0", "bfloat16 products, sustained", "600 [590, 610]", "700", "620", "TFLOP/s", "-14 %", why)
    table = Table("Checks", tuple(map(Heading, names)), (row,))
    section = Section("checks", "Acceptance", "Is it fast?", Findings(tables=(table,)), topic="the machine")
    run_id = "20260101T000000Z-0001"
    write(results, run_id, [a_record(run_id, 1e-3)])
    read = read_results(results)
    of_machine = page_module._machine
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page_module, "_machine", lambda *held: {**of_machine(*held), "others": [section]})
        (results / "report.html").write_text(draw_page(read, choose(read)), encoding="utf-8")
    browser.size(width, 900, phone=width < 500)
    browser.open(results / "report.html")
    cells = "[...document.querySelectorAll('#checks tbody td')]"
    assert browser.run(f"{cells}.every((each) => each.clientWidth > 40)")
    assert browser.run(f"{cells}.some((each) => each.textContent.startsWith('a figure') && each.clientWidth >= 280)")
    place = "document.querySelector('#checks tbody td').getBoundingClientRect()"
    assert browser.run(f"{place}.right") < width


def test_on_paper_every_fold_is_open_and_the_page_is_light_until_it_is_printed(opened):
    show(opened, "[id^=history] .picture")
    opened.prefer("dark")
    axis = "getComputedStyle(document.querySelector('[id^=history] .picture .xtick text')).fill"
    dark = "rgb(154, 166, 184)"
    opened.wait_for(f"{axis} === '{dark}'")
    opened.prefer("dark", media="print")
    opened.run("dispatchEvent(new Event('beforeprint'))")
    assert opened.run("[...document.querySelectorAll('main details:not(.values)')].every((each) => each.open)")
    opened.wait_for(f"{axis} !== '{dark}'")
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.prefer("dark")
    opened.run("dispatchEvent(new Event('afterprint'))")
    opened.wait_for(f"{axis} === '{dark}'")


def test_a_figure_that_cannot_be_drawn_shows_its_values(opened, page):
    source = "delete window.DecompressionStream"
    script = opened.ask("Page.addScriptToEvaluateOnNewDocument", source=source)["identifier"]
    try:
        opened.open(page)
        opened.wait_for("[...document.querySelectorAll('figure > .values')].every((each) => each.open)")
        assert opened.run("[...document.querySelectorAll('.picture')].every((each) => !each.checkVisibility())")
    finally:
        opened.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_without_scripts_the_values_of_every_figure_are_there_as_tables(opened, page):
    opened.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened.open(page)
        seen = "[...document.querySelectorAll('figure .values table')].every((each) => each.checkVisibility())"
        assert opened.run(seen)
        assert opened.run(
            "[...document.querySelectorAll('.picture, .series')].every((each) => !each.checkVisibility())"
        )
    finally:
        opened.ask("Emulation.setScriptExecutionDisabled", value=False)
