"""Scaling by analogy: one measured run, the law's ratio to another size, and how far such ratios were off."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pyperf_suite.cli.main import main
from pyperf_suite.errors import UserError
from pyperf_suite.planner.laws.training.published import read_runs
from pyperf_suite.planner.layout.like import SPREAD, SPREAD_OF_EXPERTS, predicted, read_run, scaled
from pyperf_suite.planner.study.grid import OPERATOR
from pyperf_suite.runner.record import Case
from pyperf_suite.runner.results import sealed
from pyperf_suite.workloads.training.parallel_layout import ParallelStepParameters
from tests.records import a_record, printed_lines, printed_values
from tools.fit.published import SAMPLE
from tools.fit.step import ANOTHER_ENGINE

RUN = {
    "model": "Llama3-8B", "source": "ours", "layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8,
    "vocab": 128256, "gated": "yes", "seq": 8192, "gpu": "H100", "gpus": 8, "global_batch": 128, "micro_batch": 1,
    "zero_stage": 1, "recompute": "nothing", "engine": "nemo", "seconds_per_step": 12.6,
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path, RUN)


def written(folder: Path, run: Any) -> Path:
    path = folder / "run.json"
    path.write_text(run if isinstance(run, str) else json.dumps(run))
    return path


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["layout", *arguments])


def test_the_measured_run_itself_takes_what_was_measured(path: Path) -> None:
    found = scaled(read_run(path))
    assert found.seconds == pytest.approx(12.6)
    assert found.ends == (found.seconds, found.seconds)


def test_a_run_is_scaled_by_the_laws_ratio(path: Path) -> None:
    run = read_run(path)
    found = scaled(run, gpus=64, global_batch=512)
    assert (found.requested.plan.data, found.requested.plan.ranks, found.requested.plan.global_batch) == (64, 64, 512)
    assert found.seconds == pytest.approx(
        12.6 * float(predicted(found.requested).seconds) / float(predicted(run).seconds)
    )
    low, high = found.ends
    assert low < found.seconds < high
    # Half the batch of each GPU takes about half the time; twice the layers about twice.
    assert 0.45 < found.seconds / 12.6 < 0.6
    assert 1.9 < scaled(run, of={"model": run.model.resized(layers=64)}).seconds / 12.6 < 2.1
    # An error of the law that both share does not matter.
    slower = read_run(written(path.parent, RUN | {"seconds_per_step": 25.2}))
    assert scaled(slower, gpus=64, global_batch=512).seconds == pytest.approx(2 * found.seconds)
    cut = scaled(run, axes={"tensor": 2, "micro_batch": 2})
    assert (cut.requested.plan.tensor, cut.requested.plan.data, cut.requested.plan.micro_batch) == (2, 4, 2)


def test_a_row_of_a_table_and_its_tokens_a_second_will_do(tmp_path: Path) -> None:
    row = {**RUN, "seconds_per_step": "", "tokens_per_s_per_gpu": 128 * 8192 / 12.6 / 8}
    table = tmp_path / "run.csv"
    with table.open("w", newline="") as file:
        rows = csv.DictWriter(file, list(row))
        rows.writeheader()
        rows.writerow(row)
    assert read_run(table).seconds == pytest.approx(12.6)
    with table.open("a", newline="") as file:
        csv.DictWriter(file, list(row)).writerow(row)
    with pytest.raises(UserError, match="it has 2 runs that can be predicted"):
        read_run(table)


def test_the_fastest_configuration_of_a_study_on_gpus_is_scaled_from(tmp_path: Path) -> None:
    shape = ParallelStepParameters(
        hidden=2048, heads=16, layers=16, seq=2048, vocab=50304, tied=False, data=4, micro_batches=4, dtype="bfloat16"
    )

    def study(kind: str, model: str, **changed: Any) -> Path:
        folder = tmp_path / model
        folder.mkdir(exist_ok=True)
        cases = [Case(OPERATOR, replace(shape, zero_stage=stage, **changed), "nccl") for stage in (0, 3)]
        records = [
            a_record(case, seconds, identity={"kind": kind, "model": model}, work={"flop": 1, "bytes": 1})
            for case, seconds in zip(cases, (0.5, 0.4), strict=True)
        ]
        (folder / "records.jsonl").write_bytes(b"".join(map(sealed, records)))
        return folder

    folder = study("cuda", "NVIDIA H100 80GB HBM3")
    run = read_run(folder)
    assert (run.seconds, run.plan.framework, run.plan.zero_stage, run.gpu.name) == (0.4, "fsdp2", 3, "H100 SXM")
    assert read_run(folder / "records.jsonl") == replace(run, source=str(folder / "records.jsonl"))
    assert scaled(run, 8, global_batch=32).seconds == pytest.approx(0.4, rel=0.1)
    refused(command("--like", str(study("cpu", "Xeon"))), "measured in bfloat16 on Xeon")
    refused(command("--like", str(study("cuda", "H100", dtype="float32"))), "measured in float32 on H100")


def test_the_command_says_what_was_scaled_and_its_parts(path: Path) -> None:
    result = command("--like", str(path), "--gpus", "64", "--tp", "2", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (scaled,) = [each for each in printed_values(found, "time") if "low" in each]
    assert scaled["layout"].startswith("64 ")
    assert float(scaled["low"]) < scaled["time"] < float(scaled["high"])
    parts = printed_lines(found, "Where an iteration goes")
    assert sum(each["requested"] for each in parts) == pytest.approx(scaled["time"])
    assert sum(each["measured run"] for each in parts) == pytest.approx(12.6)
    assert "Scaled from Llama3-8B of ours" in " ".join(command("--like", str(path), "--gpus", "16").output.split())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("not json", "is no run to scale from"),
        ("[1, 2]", "is no run to scale from: it is no JSON object"),
        ("[" * 100_000, "is no run to scale from"),
        ({"model": "x"}, "does not state layers"),
        ({**RUN, "seconds_per_step": ""}, "has no time of an iteration"),
        ({**RUN, "seconds_per_step": "fast"}, "is no run to scale from"),
        ({**RUN, "seconds_per_step": -1}, "has no time of an iteration"),
        ({**RUN, "seconds_per_step": "nan"}, "has no time of an iteration"),
        ({**RUN, "gpu": "H2000"}, "no GPU 'H2000'"),
        ({**RUN, "layers": "many"}, "layers = 'many' is no number"),
        ({**RUN, "hidden": -4}, "is no run to scale from"),
        ({**RUN, "gpus": 7, "dp": 8}, "are not 7 GPUs"),
    ],
)
def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path, content: Any, sentence: str) -> None:
    refused(command("--like", str(written(tmp_path, content))), sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--gpus", "-8"), "--gpus has to lie between"),
        (("--gpus", "12", "--tp", "8"), "12 GPUs are not DP 1 with tensor 8"),
        (("--gpus", "48"), "cannot be cut into micro-batches of 1 on 48"),
        (("--global-batch", "0"), "--global-batch has to lie between"),
        (("--hidden", "-1"), "hidden of at least 1, but -1"),
        (("--tp", "64", "--gpus", "64"), "TP over 64 ranks"),
        (("--exactly", "dp=8"), "takes no --exactly"),
        (("--price", "2"), "takes no --price"),
        (("--layers-first", "2"), "takes no --layers-first"),
        (("--gpu", "H2000"), "no GPU 'H2000'"),
        (("--dtype", "int4"), "Nothing trains in 'int4'"),
        (("--framework", "jax"), "Nothing is known of the framework 'jax'"),
    ],
)
def test_what_cannot_be_scaled_to_is_refused_in_one_sentence(path: Path, arguments: Any, sentence: str) -> None:
    refused(command("--like", str(path), *arguments), sentence)


def test_a_missing_file_and_a_folder_without_records_are_refused(tmp_path: Path) -> None:
    refused(command("--like", str(tmp_path / "none.json")), "cannot be read")
    refused(command("--like", str(tmp_path)), "is no run to scale from")


@pytest.mark.slow
def test_nine_of_ten_pairs_of_published_runs_lie_within_the_interval() -> None:
    errors: dict[bool, list[float]] = {True: [], False: []}
    for run in read_runs(SAMPLE / "training_published.csv")[0]:
        if run.ran and run.seconds and not any(each in run.note for each in ANOTHER_ENGINE):
            errors[run.model.experts > 1].append(math.log(run.seconds / float(predicted(run).seconds)))
    for experts, wide in ((False, SPREAD), (True, SPREAD_OF_EXPERTS)):
        apart = [abs(one - other) for one, other in combinations(errors[experts], 2)]
        assert len(apart) > 300
        assert 0.8 < np.mean(np.array(apart) <= wide) < 0.98


def refused(result: Result, sentence: str) -> None:
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.output.split())
    assert "Traceback" not in result.output
