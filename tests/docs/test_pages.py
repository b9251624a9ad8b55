"""The pages of docs/: one a probe, whose commands parse, whose links lead somewhere, whose figures were measured.

docs/laws.md states the errors that the shipped calibrations state. One test lists all faults of all pages.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pyperf_suite.cli.main import main
from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import overrides_for
from pyperf_suite.hardware.devices import Device
from pyperf_suite.planner.laws.calibration import all_shipped
from pyperf_suite.probes import expanded, find_probe, overrides_of, probe_names
from pyperf_suite.user_kernels.declared import ROOT_VARIABLE
from tests.commands import invoke
from tools.fit.__main__ import stated

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "probes").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *PAGES]
MADE_UP = "row_sum"  # the probe that contributing.md writes
SECTIONS = ("## What it shows", "## How to read", "## The law", "## What can mislead", "## Sources")


def code_blocks(text: str) -> list[str]:
    """Return the blocks without a language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for language, block in blocks if not language]


def commands(path: Path) -> list[list[str]]:
    """The arguments of each call of the suite in a page's code blocks, and of those quoted in its sentences."""
    text = path.read_text()
    lines = [line for block in code_blocks(text) for line in block.splitlines()]
    lines += re.findall(r"`(pyperf-suite [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    listed = []
    for line in lines:
        words = shlex.split(line, comments=True) if re.search(r"^(pyperf-suite|torchrun) ", line) else []
        place = next((n for n, word in enumerate(words) if word in ("pyperf-suite", "pyperf_suite")), None)
        if place is not None:
            listed.append(words[place + 1 :])
    return listed


def plain(text: str) -> str:
    """Without Markdown's escapes and line breaks."""
    return " ".join(text.replace("\\", "").split())


def test_no_page_has_a_fault():
    faults = list(itertools.chain(index_faults(), *map(form_faults, PAGES), *map(quote_faults, PAGES)))
    faults += itertools.chain.from_iterable(map(link_faults, DOCUMENTS))
    assert faults == []


def index_faults() -> Iterator[str]:
    """Probes without a page or a link to it, and figures of docs/laws.md that no calibration states."""
    probes, index = set(probe_names()), (ROOT / "docs" / "README.md").read_text()
    for where, names in (
        ("pages", [page.stem for page in PAGES]),
        ("index", re.findall(r"\]\(probes/(\w+)\.md\)", index)),
    ):
        yield from (f"{where}: {name}" for name in probes ^ set(names))
    if "\n".join(stated()) not in (ROOT / "docs" / "laws.md").read_text(encoding="utf-8"):
        yield "docs/laws.md: the table is not what `python -m tools.fit` prints"


def form_faults(page: Path) -> Iterator[str]:
    """A page without the probe's question, its command or a section, or of another length than 40 to 100 lines."""
    text = page.read_text()
    calls = commands(page)
    kept = {
        "title": text.startswith(f"# {page.stem}: "),
        "question": plain(find_probe(page.stem).question).split("?")[0] in plain(text),
        "command": any(call[:2] == ["run", page.stem] or call[:1] == [page.stem] for call in calls),
        "length": 40 <= len(text.splitlines()) <= 100,
    } | {section: section in text for section in SECTIONS}
    yield from (f"{page.name}: {what}" for what, is_kept in kept.items() if not is_kept)


def link_faults(page: Path) -> Iterator[str]:
    """Links and pictures that lead to no file of the repository."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target and not (page.parent / target).exists():
            yield f"{page.name}: {target}"


def quote_faults(page: Path) -> Iterator[str]:
    """Sentences quoted as a run's that stand in no run that the page links."""
    text = page.read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    folders = {(page.parent / target).resolve().parent for target in targets if "bench_results" in target}
    said = [plain((folder / "findings.md").read_text()) for folder in folders if (folder / "findings.md").exists()]
    quotes = [plain(part) for block in code_blocks(text) for part in block.split("•")[1:]]
    if page.stem == "baseline" and not said:
        return  # its run is older than findings.md
    for piece in itertools.chain.from_iterable(quote.split("[...]") for quote in quotes):
        if not any(plain(piece).strip("();. ") in findings for findings in said):
            yield f"{page.name}: {piece}"


def test_each_script_of_a_surprise_has_a_row():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "surprises.md").read_text(), re.M)
    assert rows == sorted(path.stem for path in (ROOT / "findings").glob("*.sh"))


@pytest.fixture
def in_a_users_folder(tmp_path, monkeypatch):
    """A folder with the files that pages name: the examples, and the bench file that `init` writes."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "examples" / "your_kernel", tmp_path, dirs_exist_ok=True)
    (tmp_path / "my_package").mkdir()
    shutil.copy(ROOT / "examples" / "your_kernel" / "bench_softmax.py", tmp_path / "my_package" / "kernels.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ROOT_VARIABLE, "")  # what naming a file elsewhere leaves there ends with the test
    assert invoke("init").exit_code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_users_folder")
def test_every_command_on_a_page_parses_and_its_axes_make_cases():
    assert list(itertools.chain.from_iterable(map(command_faults, DOCUMENTS))) == []


def command_faults(page: Path) -> Iterator[str]:
    for call in filter(None, commands(page)):
        try:
            name, command, rest = main.resolve_command(click.Context(main), list(call))
            parameters = command.make_context(name, list(rest)).params
            probes = parameters.get("probes") or (("collectives",) if name == "collectives" else ())
            overrides = overrides_of(parameters.get("axes") or ())
            for probe in expanded([probe for probe in probes if probe != MADE_UP]):
                axes = overrides_for(probe, overrides)
                if not find_probe(probe).cases(parameters.get("profile", "standard"), Device("cpu"), axes):
                    yield f"{page.name}: {shlex.join(call)}: no case of {probe}"
        except (click.ClickException, UserError) as error:
            yield f"{page.name}: {shlex.join(call)}: {error}"


def test_intervals_cover_nine_of_ten_rows_that_were_left_out():
    """A block of fewer than 200 rows states its own figure."""
    blocks = [(each.gpu, name, block.held_out) for each in all_shipped() for name, block in each.blocks.items()]
    large = [(gpu, name, held_out) for gpu, name, held_out in blocks if held_out.get("rows", 0) >= 200]
    assert large
    assert [(gpu, name) for gpu, name, held_out in large if not 87 <= held_out["coverage"] <= 93] == []


def test_every_option_of_the_planners_commands_stands_on_a_page():
    pages = "\n".join(path.read_text() for path in DOCUMENTS)
    with click.Context(main) as context:
        for name in ("layout", "size", "explain", "study", "calibrate", "accept"):
            command = main.get_command(context, name)
            options = [each for parameter in command.params for each in parameter.opts if each.startswith("--")]
            assert len(options) >= 4
            unknown = [each for each in options if not re.search(rf"{each}\b", pages)]
            assert not unknown, (name, unknown)
