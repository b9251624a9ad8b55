"""`explain --cpu`, and instruction sets by name: our own CPU kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyperf_suite.cli.main import main
from tests.records import printed_values

pytest.importorskip("pyperf_suite._native", reason="the native extension is not built: run `pip install -e .`")


def test_a_product_has_its_peak_tiles_and_waves() -> None:
    words = ("explain", "96x192x64", "--cpu", "--dtype", "fp32", "--json")
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (time,) = printed_values(json.loads(result.stdout), "time", "rate")
    assert (time["m"], time["n"], time["k"]) == (96, 192, 64)
    assert time["rate"] == pytest.approx(2 * 96 * 192 * 64 / time["time"], rel=1e-4)  # both are rounded
    (peak,) = printed_values(json.loads(result.stdout), "peak", "least")
    assert peak["least"] == pytest.approx(time["share"] * time["time"], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("64 64 64 --cpu --dtype fp8", "choose --dtype fp32, bf16"),
        ("60000 60000 60000 --cpu --dtype fp32", "takes at least"),  # would take minutes
    ],
)
def test_what_cannot_be_is_refused(words: str, sentence: str) -> None:
    result = CliRunner().invoke(main, ["explain", *words.split()])
    assert (result.exit_code, sentence in result.output) == (2, True), result.output


@pytest.mark.slow
def test_a_run_takes_the_instruction_set_asked_for(tmp_path: Path) -> None:
    arguments = "baseline -a shape=64x64x64 -a workers=1 -a implementation=native_portable,native_avx2"
    result = CliRunner().invoke(main, ["run", *arguments.split(), "--results", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for path in tmp_path.rglob("records.jsonl") for line in path.read_text().splitlines()]
    ours = {each["case"]["implementation"] for each in records if each["case"]["implementation"].startswith("native")}
    assert ours == {"native_portable", "native_avx2"}
    message = [each["kernel"]["details"] for each in records if each["case"]["implementation"] == "native_portable"]
    assert {each["isa"] for each in message} == {"portable"}
    assert all(each["peak_flop_per_s"] > 0 for each in message)
