"""A package that ships a probe by an entry point: installed, it is listed, run and reported as the suite's own are."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyperf_suite.runner.results import read_journal

pytestmark = pytest.mark.slow

MODULE = """
from dataclasses import dataclass

from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.runner.record import Case
from pyperf_suite.spec.probe import Probe, RowTable
from pyperf_suite.spec.rows import Column
from pyperf_suite.workloads.matmul import MatmulParameters


@dataclass(frozen=True)
class Axes:
    size: tuple[int, ...] = (16, 24)


def sweep(axes):
    for size in axes.size:
        yield Case("matmul", MatmulParameters(size, size, size, Schedule("data_parallel", 1)), "native")


PROBE = Probe(
    name="squares",
    question="How fast are small square products?",
    topic="products",
    axes=lambda *_: Axes(),
    sweep=sweep,
    tables=(RowTable("Square products", (Column("m"), Column("time", "reading.time", "us"))),),
)
"""

METADATA = "Metadata-Version: 2.1\nName: shipped-probes\nVersion: 1.0\n"
ENTRY_POINTS = "[pyperf_suite.probes]\nsquares = shipped_probes:PROBE\nbroken = shipped_probes:ABSENT\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that holds the package alone, put there by pip from a wheel."""
    folder = tmp_path_factory.mktemp("packages")
    wheel = folder / "shipped_probes-1.0-py3-none-any.whl"
    info = "shipped_probes-1.0.dist-info"
    contents = {
        "shipped_probes.py": MODULE,
        f"{info}/METADATA": METADATA,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": ENTRY_POINTS,
    }
    contents[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*contents, f"{info}/RECORD"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
    target = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(target), str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=120)
    if "No module named pip" in done.stderr:
        pytest.skip("pip is not installed here")
    assert done.returncode == 0, done.stderr
    return target


def suite(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`pyperf-suite` where the package is installed."""
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from pyperf_suite.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_a_shipped_probe_is_listed_run_and_reported(installed: Path, tmp_path: Path) -> None:
    listed = suite(installed, tmp_path, "run", "--list")
    assert listed.returncode == 0, listed.stderr
    assert "How fast are small square products?" in " ".join(listed.stdout.split())
    run = suite(installed, tmp_path, "run", "squares", "-a", "size=16", "--device", "cpu")
    assert run.returncode == 0, run.stderr
    assert "Square products" in run.stdout
    (journal,) = tmp_path.glob("bench_results/*/*/records.jsonl")
    timed = [record for record in read_journal(journal) if record.kind == "timing"]
    assert [(record.probe, record.outcome) for record in timed] == [("squares", "ok")]
    report = suite(installed, tmp_path, "report", "bench_results", "-o", "page.html")
    assert report.returncode == 0, report.stderr
    assert "Square products" in (tmp_path / "page.html").read_text()


def test_a_shipped_probe_that_cannot_be_imported_costs_only_itself(installed: Path, tmp_path: Path) -> None:
    listed = suite(installed, tmp_path, "run", "--list")
    assert "The probe broken of shipped_probes:ABSENT cannot be imported" in listed.stdout + listed.stderr
    asked = suite(installed, tmp_path, "run", "broken")
    assert asked.returncode == 2
    assert "cannot be imported" in asked.stderr
    assert "Traceback" not in asked.stderr


def test_without_the_package_its_records_are_still_shown(installed: Path, tmp_path: Path) -> None:
    assert suite(installed, tmp_path, "run", "squares", "-a", "size=16", "--device", "cpu").returncode == 0
    report = suite(tmp_path, tmp_path, "report", "bench_results", "-o", "page.html")
    assert report.returncode == 0, report.stderr
    assert "This version has no probe squares" in (tmp_path / "page.html").read_text()
