"""The record of a watched job as findings, and in the commands that show runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from pyperf_suite.cli.parts import Parts
from pyperf_suite.errors import UserError
from pyperf_suite.node.watch.patterns import judge
from pyperf_suite.node.watch.record import read_watch
from pyperf_suite.render.results import read_results
from pyperf_suite.render.text import as_data, as_text
from tests.commands import invoke
from tests.node.watch import test_patterns as made_up

HUNGRY = {**made_up.HUNGRY, "loader_busy": 0.97}
STARVED = made_up.samples(*made_up.on_ranks(HUNGRY, {}), gpus=(made_up.gpu(utilization=0.25),))


def written(results: Path, number: int = 0, samples=STARVED, ended: bool = True, **more) -> Path:
    """A record as `watch` leaves it, or as it leaves it when it is killed."""
    folder = results / "cpu-some" / f"watch-20260101T00000{number}Z-0000"
    folder.mkdir(parents=True)
    patterns = [
        {**as_data(each.evidence), "name": each.name, "rank": each.rank, "advice": each.advice}
        for each in judge(samples)
    ]
    command = {"command": ["python", "train.py"], "pid": None, "started_at": f"2026-01-01T00:00:0{number}+00:00"}
    end = {"exit_code": 0, "watched_s": 40.0, "own_cpu_share": 0.005, "patterns": patterns} if ended else {}
    (folder / "watch.json").write_text(as_text({**command, **end, **more}))
    (folder / "samples.jsonl").write_text("".join(json.dumps(asdict(each)) + "\n" for each in samples))
    return folder


def test_a_record_that_is_being_written_is_read_up_to_its_last_whole_line(tmp_path):
    folder = written(tmp_path, ended=False)
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"at_s": 4')
    assert len(read_watch(folder).samples) == len(STARVED)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("watch.json", "[]"),
        ("watch.json", "{"),
        ("samples.jsonl", "{}\n"),
        ("samples.jsonl", "7\n"),
        ("watch.json", '{"steps": 7}'),
    ],
)
def test_a_damaged_record_is_named_and_others_are_shown(tmp_path, name, content):
    damaged = written(tmp_path, 1)
    (damaged / name).write_text(content)
    with pytest.raises(UserError, match=damaged.name):
        read_watch(damaged)
    written(tmp_path, 2)
    with pytest.warns(UserWarning, match=damaged.name):
        assert len(read_results(tmp_path, readers=Parts().readers).others) == 1


def test_findings_and_report_show_a_watched_job(tmp_path):
    written(tmp_path)
    folder = written(tmp_path, 1, command=["python", "<b>train.py"])
    done = invoke("findings", "latest", "--results", tmp_path)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["run_id"], document["probes"][0]["name"]) == (folder.name, "watch")
    assert "data" in [each["values"].get("pattern") for each in document["probes"][0]["remarks"]]
    assert (folder / "findings.json").read_text() == done.stdout
    done = invoke("report", tmp_path)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    assert "its 2 loaders are busy in 97 %" in page
    assert "<b>train" not in page
    assert page.count("<section") == 2
