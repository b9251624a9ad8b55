"""Training runs in a table: how far off the law is, what it says of memory and order, and constants of one's own."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyperf_suite.planner.laws.training.framework import found_constants
from pyperf_suite.planner.training_runs import read_runs, refitted
from tests.commands import invoke
from tests.records import printed_lines
from tools.validate import judged, right_orders, validate

LLAMA = {"source": "mine", "engine": "megatron", "model": "8B", "layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32,
         "kv_heads": 8, "vocab": 128256, "gated": "yes", "seq": 8192, "gpu": "H100", "gpus": 64, "gpus_per_node": 8,
         "global_batch": 512, "micro_batch": 1, "dtype": "bf16", "zero_stage": 1, "tp": 2, "pp": 1,
         "recompute": "nothing", "recompute_stated": "yes", "overlap": "tp, dp", "seconds_per_step": 6.5,
         "ran": "yes"}  # fmt: skip


def table(path: Path, *changes: dict[str, Any]) -> Path:
    rows = [LLAMA | each for each in changes]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(LLAMA))
        writer.writeheader()
        writer.writerows(rows)
    return path


def layouts(factor: float, tmp_path: Path) -> list[dict[str, Any]]:
    """Six layouts, each as long as the law says times a factor."""
    cuts: list[dict[str, Any]] = [{"tp": tp, "pp": pp} for tp, pp in ((1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (8, 2))]
    message = judged(read_runs(table(tmp_path / "asked.csv", *cuts))[0])
    return [
        cut | {"seconds_per_step": factor * float(each.predicted.seconds)}
        for cut, each in zip(cuts, message, strict=True)
        if each.predicted is not None
    ]


def test_runs_are_grouped_by_gpu_framework_and_dtype_and_every_row_is_accounted_for(tmp_path: Path) -> None:
    path = table(
        tmp_path / "training.csv",
        *layouts(1.02, tmp_path),
        {"dtype": "fp8", "seconds_per_step": 5.0},
        {"seconds_per_step": "", "ran": "no"},
        {"gpu": ""},
        {"engine": "jax"},
    )
    by_group = {(each.gpu, each.library, each.dtype): each for each in validate(path)}
    bf16 = by_group["H100 SXM", "megatron", "bf16"]
    assert (bf16.law, bf16.rows, bf16.blank, bf16.refused) == ("training step", 6, 1, 0)
    assert (bf16.mape, bf16.bias) == pytest.approx((100 / 51, -100 / 51))
    assert bf16.coverage == 100
    assert bf16.pairs == bf16.right_pairs > 0
    assert by_group["H100 SXM", "megatron", "fp8"].rows == 1
    assert sum(each.rows + each.blank + each.refused for each in by_group.values()) == 10
    assert any("jax" in reason for reason in by_group["", "", ""].reasons)


def test_orders_that_are_wrong_are_counted(tmp_path: Path) -> None:
    def orders(name: str, *rows: dict[str, Any]) -> tuple[int, int]:
        return right_orders([*judged(read_runs(table(tmp_path / name, *rows))[0])])

    rows = layouts(1.0, tmp_path)
    times = sorted(row["seconds_per_step"] for row in rows)
    turned = [row | {"seconds_per_step": times[-1 - times.index(row["seconds_per_step"])]} for row in rows]
    right, pairs = orders("right.csv", *rows)
    assert right == pairs > 0
    assert orders("wrong.csv", *turned) == (0, pairs)
    # Two models of one name have no order.
    assert orders("others.csv", rows[0], rows[-1] | {"heads": 64}) == (0, 0)


@pytest.mark.slow
def test_constants_are_fitted_to_runs_of_ones_own_where_that_helps(tmp_path: Path) -> None:
    # The slowdown may reach 1.3, of which 1.17 is in the constants.
    path = table(tmp_path / "training.csv", *layouts(1.1, tmp_path), {"gpu": "A100", "seconds_per_step": 20})
    result = invoke("calibrate", "--runs", path, "--gpu", "H100")
    assert result.exit_code == 0, result.output
    calibration, (refit,), _ = refitted(path, "H100 SXM")
    assert refit.before == pytest.approx(100 / 11, abs=0.1)
    assert refit.after < refit.before / 2
    constants = found_constants(calibration, "megatron")
    assert float(constants.constants.slowdown) > float(found_constants("H100", "megatron").constants.slowdown)
    model = [f"--{name}={LLAMA[name]}" for name in ("layers", "hidden", "heads", "ffn", "vocab", "seq")]
    requested = ["layout", *model,
             "--kv-heads=8", "--global-batch=512", "--exactly=dp=32,tp=2", "--json"]  # fmt: skip
    times = [
        printed_lines(json.loads(invoke(*requested, *more).stdout), "Layouts")[0]["iteration"]
        for more in (["--gpu=H100"], [f"--calibration={tmp_path / 'training.npz'}"])
    ]
    assert times[1] / times[0] == pytest.approx(1.1, abs=0.03)
    # A calibration is of the GPU's own link.
    both = invoke(*requested, f"--calibration={tmp_path / 'training.npz'}", "--link=PCIe4")
    assert both.exit_code == 2
    as_it_is = table(tmp_path / "same.csv", *layouts(1.0, tmp_path))
    assert refitted(as_it_is)[1][0].block is None
    assert np.isfinite(refit.after)


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ([{}, {"gpu": "A100"}], (), "runs on A100 SXM, H100 SXM: name one with --gpu"),
        ([{"ran": "no"}], (), "no run with a time"),
        ([{}], ("--gpu", "A100"), "no run with a time on A100 SXM"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_a_sentence(
    tmp_path: Path, changes: list[dict[str, Any]], options: tuple[str, ...], sentence: str
) -> None:
    path = table(tmp_path / "training.csv", *changes)
    result = invoke("calibrate", "--runs", path, *options)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())
