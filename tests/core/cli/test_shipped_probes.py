"""A package that ships a probe by an entry point: installed, it is listed, run and reported as the suite's own are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyperf_suite.record.journal import read_journal

pytestmark = pytest.mark.slow

MODULE = """
from dataclasses import dataclass

from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.record.case import Case
from pyperf_suite.findings.probe import Probe, RowTable
from pyperf_suite.findings.rows import Column
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


COMMANDS = {
    "list": ["run", "--list"],
    "run": ["run", "squares", "-a", "size=16", "--device", "cpu"],
    "report": ["report", "bench_results", "-o", "page.html"],
    "broken": ["run", "broken"],
}
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from click.testing import CliRunner
from pyperf_suite.cli.main import main
ended = {name: CliRunner().invoke(main, command) for name, command in json.loads(sys.argv[2]).items()}
print(json.dumps({name: (result.exit_code, result.output) for name, result in ended.items()}))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, str]]]:
    """Exit code and output of the commands where the package alone is installed, and the folder they ran in."""
    folder = tmp_path_factory.mktemp("packages")
    info = folder / "site" / "shipped_probes-1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "shipped_probes.py").write_text(MODULE)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(info.parent), json.dumps(COMMANDS)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_a_shipped_probe_is_listed_run_and_reported(ended):
    folder, outputs = ended
    assert [outputs[name][0] for name in ("list", "run", "report")] == [0, 0, 0], outputs
    assert "How fast are small square products?" in " ".join(outputs["list"][1].split())
    assert "Square products" in outputs["run"][1]
    assert "Square products" in (folder / "page.html").read_text()
    (journal,) = folder.glob("bench_results/*/*/records.jsonl")
    timed = [record for record in read_journal(journal) if record.kind == "timing"]
    assert [(record.probe, record.outcome) for record in timed] == [("squares", "ok")]


def test_a_shipped_probe_that_cannot_be_imported_costs_only_itself(ended):
    _, outputs = ended
    assert "shipped_probes:ABSENT cannot be imported" in outputs["list"][1]
    code, output = outputs["broken"]
    assert code == 2
    assert "cannot be imported" in output
    assert "Traceback" not in output
