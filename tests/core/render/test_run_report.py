"""A run's report: findings.md and findings.json have what the terminal shows, and the command to measure it again."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.cli.main import main
from pyperf_suite.findings.data import (
    Bar,
    Bars,
    Claim,
    Document,
    Figure,
    Findings,
    Heading,
    HeatMap,
    Panel,
    Series,
    Table,
    remark,
)
from pyperf_suite.hardware.machine import identity
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.render.run_report import as_document, command_of
from pyperf_suite.render.text import as_text, markdown_page
from pyperf_suite.run import RunRequest
from pyperf_suite.runner.results import RunFolder, create_run, read_run
from tests.commands import invoke

REPOSITORY = Path(__file__).parents[3]
COMMITTED = REPOSITORY / "bench_results/cpu-intel-xeon-processor-2c/20261121T221320Z-9125"
HOSTILE = "</script>\x1b]0;x\x07\u202e\ud800 {0} \"'"
MADE_UP = Findings(
    (
        remark("{faster} as fast", effect="faster", faster=Ratio(2, 1.5, 2.5, 3)),
        remark("nothing is known of {it}", it=None),
        Claim("twice", "A Guide", 2.0).judge("{measured} as fast, {name}", Ratio(2, 1.5, 2.5, 3), name=HOSTILE),
    ),
    (Table("t", (Heading("case"), Heading("time", "ms")), ((HOSTILE, Quantity(1e-3, "ms", math.nan)), ("b", None))),),
    (
        Figure(
            "f",
            "Title",
            "Caption",
            (
                (
                    Panel("p", "N", "time", (Series("s", [1], [2e-3], "points", [1e-3], [3e-3]),), y_unit="ms"),
                    HeatMap("m", "a", "b", "ratio", (1,), (2,), ((math.nan,),)),
                    Bars("b", "rate", (Bar("one", math.nan, note="failed"),), "measured", unit="GB/s"),
                ),
            ),
        ),
    ),
    (Document("known.txt", ""),),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a committed run, without what is derived from its records."""
    folder = tmp_path_factory.mktemp("results") / COMMITTED.parent.name / COMMITTED.name
    folder.mkdir(parents=True)
    for name in ("records.jsonl", "run.json"):
        shutil.copy(COMMITTED / name, folder)
    return folder


@pytest.fixture(scope="module")
def committed(run: Path) -> dict[str, Any]:
    done = invoke("findings", run.name, "--results", run.parents[1])
    assert done.exit_code == 0, done.output
    assert (run / "findings.json").read_text() == done.stdout
    return json.loads(done.stdout, parse_constant=pytest.fail)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_the_command_makes_the_same_document_again(run: Path, committed: dict[str, Any]) -> None:
    first = (run / "findings.json").read_bytes()
    (run / "findings.json").unlink()
    assert invoke("findings", run).exit_code == 0
    assert (run / "findings.json").read_bytes() == first
    assert (committed["schema"], committed["version"]) == ("pyperf-suite findings", 1)
    assert (committed["run_id"], committed["machine"]) == (run.name, run.parent.name)
    assert (committed["profile"], committed["processes"]) == ("standard", 3)


def test_a_person_gets_the_summary_behind_the_document(run: Path) -> None:
    command = [sys.executable, "-m", "pyperf_suite", "findings", str(run)]
    program = f"import pty; pty.spawn({command!r})"
    screen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    document, _, summary = screen.replace("\r", "").partition("\n}\n")
    assert json.loads(document + "}")["run_id"] == run.name
    assert "Summary" in summary
    assert "Summary" not in invoke("findings", run).output


def test_dashboards_get_each_measure_of_each_case_with_the_ends_of_its_interval() -> None:
    accept = COMMITTED.parents[1] / "cuda-nvidia-h200-132sm-140gib" / "20261126T060929Z-f016"
    metrics = json.loads(invoke("findings", accept, "--bmf").stdout, parse_constant=pytest.fail)
    assert len(metrics) == 7  # 5 cases in two processes, 2 that are read once; no sentinel
    by_two = metrics["accept layer_pass[torch layer=copy seq=8192 hidden=8192 dtype=bfloat16]"]
    assert by_two["latency"] == pytest.approx(
        {"value": 66023.9992, "lower_value": 65893.3322, "upper_value": 66154.6662}
    )
    assert by_two["sm_clock"] == {"value": 1959696675.0, "lower_value": 1959126330.0, "upper_value": 1960267020.0}
    assert metrics["accept topology[system]"]["cores"] == {"value": 16, "lower_value": 16, "upper_value": 16}
    alone = COMMITTED.parents[1] / "cpu-intel-xeon-processor-2c" / "20261121T054856Z-a027"
    metrics = json.loads(invoke("findings", alone, "--bmf").stdout)
    assert len(metrics) == 18
    by_one = metrics["collectives collective[gloo op=all_gather bytes=65536 ranks=2]"]
    assert by_one["latency"] == pytest.approx({"value": 231040.5, "lower_value": 205294.5, "upper_value": 257671.5})


def test_hostile_text_and_numbers_that_are_none_leave_it_strict_json() -> None:
    message = as_text(as_document({"optimizer": MADE_UP}, [], RunFolder(Path("m/r"), {HOSTILE: HOSTILE})))
    assert message.isascii()
    [probe] = json.loads(message, parse_constant=pytest.fail)["probes"]
    assert probe["tables"][0]["rows"][0][1]["low"] is None
    assert "\u202e" not in probe["verdicts"][0]["message"]["values"]["name"]
    assert probe["figures"][0]["rows"][0][2]["bars"][0]["value"] is None


def objects(message: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a document under the heading that the documentation has for its kind."""
    yield "document", message
    yield from (("point", each) for each in message["summary"])
    yield from (("remark", each) for each in message["cautions"])
    for probe in message["probes"]:
        yield "probe", probe
        yield from (("case", each) for each in probe["cases"])
        yield from (("remark", each) for each in (*probe["cautions"], *probe["remarks"]))
        for verdict in probe["verdicts"]:
            yield from (("verdict", verdict), ("claim", verdict["claim"]), ("value", verdict["measured"]))
            yield "remark", verdict["message"]
        for table in probe["tables"]:
            yield "table", table
            yield from (("column", each) for each in table["columns"])
            yield from (("unit", each["unit"]) for each in table["columns"])
            yield from (("value", cell) for row in table["rows"] for cell in row if isinstance(cell, dict))
        for figure in probe["figures"]:
            yield "figure", figure
            for panel in (panel for row in figure["rows"] for panel in row):
                yield panel["kind"], panel
                yield from (("series", each) for each in panel.get("series", ()))
                yield from (("bar", each) for each in panel.get("bars", ()))
                yield from (("unit", panel[name]) for name in ("unit", "x_unit", "y_unit") if name in panel)


def test_the_documentation_lists_exactly_the_fields_that_there_are(committed: dict[str, Any]) -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| (`.*?`) \|", (REPOSITORY / "docs/findings.md").read_text(), re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)`", fields) for name, fields in rows}
    made_up = json.loads(as_text(as_document({"optimizer": MADE_UP}, [], RunFolder(Path("m/r"), {}))))
    seen: dict[str, list[str]] = {}
    for kind, held in (*objects(committed), *objects(made_up)):
        assert seen.setdefault(kind, list(held)) == list(held)
    assert seen == documented


def test_the_five_lines_of_the_documentation_read_it(
    run: Path, committed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/findings.md").read_text(), re.DOTALL)
    (run.parents[2] / "bench_results").symlink_to(run.parents[1])
    monkeypatch.chdir(run.parents[2])
    exec(program, {})
    assert len(capsys.readouterr().out.splitlines()) == sum(len(probe["verdicts"]) for probe in committed["probes"])


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_damaged_records_are_named_and_passed_over(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "machine" / "run"
    shutil.copytree(run, folder)
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"torn": ')
    (folder / "run.json").write_text("{torn")
    done = invoke("findings", folder)
    assert done.exit_code == 0
    assert "is passed over" in done.stderr
    assert json.loads((folder / "findings.json").read_text())["run"] == {}


# findings.md.

TWICE = Claim("it is twice", "A Guide", 2.0, 2.0)
FINDINGS = Findings(
    (
        remark("A * is no list, <b> no tag, {name} no emphasis.", name="all_reduce"),
        remark("{faster} is noise", effect="faster", faster=Ratio(1.0, 0.9, 1.1, 3)),
        TWICE.judge("it takes {measured}", 2.0),
        remark("one process", kind="caution"),
        TWICE.judge("that takes {measured}", 3.0),
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
    text = markdown_page("a run", {"a_probe": FINDINGS}, [], [Path("anywhere/drawn.png")], summary=["First of all."])
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


# The command that measures a probe again.


def planned_by(command: str) -> str:
    """The plan_id of `pyperf-suite run ...`."""
    program, name, *arguments = shlex.split(command)
    assert (program, name) == ("pyperf-suite", "run")
    requested = main.commands["run"].make_context(name, arguments).params
    names = ("probes", "profile", "device", "axes", "seed")
    return RunRequest(**{name: requested[name] for name in names}).plan().plan_id


def test_a_runs_command_asks_for_the_same_plan_with_its_replaced_axes_and_seed(tmp_path: Path) -> None:
    axes = ("tile=64x64x256", "workers=1", "schedule=data_parallel,stream_k")
    plan = RunRequest(("tile_wave",), device="cpu", axes=axes, seed=7).plan()
    run = read_run(create_run(tmp_path, identity(plan.device), plan).path)
    command = command_of("tile_wave", run.manifest)
    assert planned_by(command) == plan.plan_id
    assert planned_by(command.replace("-a workers=1", "")) != plan.plan_id


@pytest.mark.parametrize("requested", [None, "tile=8", 3, [1, None, "no axis"], {"a": 1}])
def test_manifests_of_before_or_of_strangers_name_the_sweep_without_axes(requested) -> None:
    manifest = {"profile": "quick", "device": ["cpu"], "seed": "x", "asked": requested}
    assert command_of("baseline", manifest) == "pyperf-suite run baseline --profile quick"
    assert command_of("baseline", {}, "full") == "pyperf-suite run baseline --profile full"
