"""The pages of docs/: one a probe, whose commands parse, whose links lead somewhere, whose figures were measured.

docs/laws.md states the errors that the shipped calibrations state.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pyperf_suite.cli.main import main
from pyperf_suite.findings.axes import overrides_for
from pyperf_suite.findings.discovery import expanded, find_probe, overrides_of, probe_names
from pyperf_suite.hardware.devices import Device
from pyperf_suite.planner.laws.calibration import all_shipped
from tools.fit.__main__ import stated

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "probes").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *PAGES]
MADE_UP = "row_sum"  # the probe that contributing.md writes
SECTIONS = ("## What it shows", "## How to read", "## The law", "## What can mislead", "## Sources")


def label(path: Path) -> str:
    return path.stem


def code_blocks(text: str) -> list[str]:
    """Those without a language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for language, block in blocks if not language]


def commands(path: Path) -> list[list[str]]:
    """The arguments of each call of the suite in a page's code blocks, and of those quoted in its sentences."""
    text = path.read_text()
    lines = [line for block in code_blocks(text) for line in block.splitlines()]
    lines += re.findall(r"`(pyperf-suite [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    found = []
    for line in lines:
        words = shlex.split(line, comments=True) if re.search(r"^(pyperf-suite|torchrun) ", line) else []
        place = next((n for n, word in enumerate(words) if word in ("pyperf-suite", "pyperf_suite")), None)
        if place is not None:
            found.append(words[place + 1 :])
    return found


def plain(text: str) -> str:
    """Without Markdown's escapes and line breaks."""
    return " ".join(text.replace("\\", "").split())


def test_every_probe_has_a_page_that_the_index_links_and_the_shipped_laws_their_table():
    assert [page.stem for page in PAGES] == sorted(probe_names())
    index = (ROOT / "docs" / "README.md").read_text()
    assert set(re.findall(r"\]\(probes/(\w+)\.md\)", index)) == set(probe_names())
    assert "\n".join(stated()) in (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_a_page_has_the_question_the_command_and_every_section(page):
    text = page.read_text()
    assert text.startswith(f"# {page.stem}: ")
    assert plain(find_probe(page.stem).question).split("?")[0] in plain(text)
    assert [section for section in SECTIONS if section not in text] == []
    assert any(call[:2] == ["run", page.stem] or call[:1] == [page.stem] for call in commands(page))
    assert 40 <= len(text.splitlines()) <= 80


@pytest.fixture
def in_a_users_folder(tmp_path, monkeypatch):
    """A folder with the files that pages name: the examples, and the bench file that `init` writes."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "examples" / "your_kernel", tmp_path, dirs_exist_ok=True)
    (tmp_path / "my_package").mkdir()
    shutil.copy(ROOT / "examples" / "your_kernel" / "bench_softmax.py", tmp_path / "my_package" / "kernels.py")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["init"]).exit_code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_users_folder")
@pytest.mark.parametrize("page", DOCUMENTS, ids=label)
def test_commands_on_a_page_parse_and_their_axes_make_cases(page):
    for call in commands(page):
        if not call:
            continue
        name, command, rest = main.resolve_command(click.Context(main), call)
        parameters = command.make_context(name, list(rest)).params
        probes = parameters.get("probes") or (("collectives",) if name == "collectives" else ())
        overrides = overrides_of(parameters.get("axes") or ())
        for probe in expanded([each for each in probes if each != MADE_UP]):
            assert find_probe(probe).cases(
                parameters.get("profile", "standard"), Device("cpu"), overrides_for(probe, overrides)
            )


@pytest.mark.parametrize("page", DOCUMENTS, ids=label)
def test_links_and_pictures_lead_to_files_of_the_repository(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_sentences_quoted_from_a_run_stand_in_a_run_that_the_page_links(page):
    text = page.read_text()
    folders = {
        (page.parent / target).resolve().parent
        for target in re.findall(r"\]\(([^)]+)\)", text)
        if "bench_results" in target
    }
    message = [plain((folder / "findings.md").read_text()) for folder in folders if (folder / "findings.md").exists()]
    quoted = [plain(part) for block in code_blocks(text) for part in block.split("•")[1:]]
    if not message:
        assert not quoted or page.stem == "baseline"  # its run is older than findings.md
        return
    pieces = itertools.chain.from_iterable(quote.split("[...]") for quote in quoted)
    assert [piece for piece in pieces if not any(plain(piece).strip("();. ") in findings for findings in message)] == []


BLOCKS = [(each.gpu, name, block) for each in all_shipped() for name, block in sorted(each.blocks.items())]


@pytest.mark.parametrize(("gpu", "name", "block"), BLOCKS, ids=lambda each: each if isinstance(each, str) else "")
def test_intervals_cover_nine_of_ten_rows_that_were_left_out(gpu, name, block):
    if block.held_out.get("rows", 0) < 200:
        pytest.skip("fewer than 200 rows: see the block's own figure")
    assert 87 <= block.held_out["coverage"] <= 93
