"""Candidates measured beside the present model: what the runner gave stands in place of what was predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pyperf_suite.cli.main import main
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.commands import size as size_command
from pyperf_suite.planner.laws.explained import Explained
from pyperf_suite.planner.sizing import measured as sizing_measured
from pyperf_suite.planner.sizing.measured import (
    PROBE,
    SizingRun,
    chosen,
    measuring_plan,
    name_of,
    require_gpu,
    validate,
    validation_findings,
)
from pyperf_suite.planner.sizing.search import Bounds, Search, judged
from pyperf_suite.planner.sizing.step import Setting
from pyperf_suite.runner import plan
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.workloads import find_workload
from tests.records import a_record, printed_lines, printed_values

GPU = Device("cuda")
FLOP_PER_S, BYTES_PER_S = 100e12, 1e12


class Rates:
    """Made-up prices: FLOP over one rate, bytes over another."""

    def gemm(self, layout: str, m: Any, n: Any, k: Any) -> Explained:
        return explained(2.0 * m * n * k / FLOP_PER_S)

    def attention(
        self, causal: bool, backward: bool, batch: Any, seq: Any, heads: Any, kv: Any, size: Any, window: Any = 0
    ) -> Explained:
        assert not np.any(window)
        return explained((10.0 if backward else 4.0) * batch * heads * size * seq * (seq + 1) / 2 / FLOP_PER_S)

    def latent_attention(self, backward: bool, batch: Any, seq: Any, heads: Any) -> Explained:
        return self.attention(True, backward, batch, seq, heads, heads, 160)

    def grouped_gemm(self, tokens: Any, hidden: Any, width: Any, experts: Any, top_k: Any, *_: Any) -> Explained:
        return explained(6.0 * tokens * top_k * hidden * width / FLOP_PER_S)

    def memory_bound(self, nbytes: Any) -> Explained:
        return explained(nbytes / BYTES_PER_S)

    def collective(self, op: str, nbytes: Any, *_: Any) -> Explained:
        return explained(nbytes / BYTES_PER_S)


def explained(seconds: Any) -> Explained:
    return Explained(np.asarray(seconds, dtype=np.float64), {"ideal": seconds}, False, 5.0, "made up")


def a_setting(**changed: int) -> Setting:
    dimensions = {"layers": 2, "hidden": 256, "ffn": 768, "heads": 4, "vocab": 1000} | changed
    return Setting(ModelDimensions(**dimensions), seq=128)


PRESENT, WIDER, PADDED = a_setting(), a_setting(ffn=832), a_setting(vocab=1024)


def rate_s(case: Case) -> float:
    return find_workload(case.operator).work(case.parameters).flop / FLOP_PER_S


def record(case: Case, seconds: float, process: int, outcome: str = "ok") -> Record:
    return a_record(case, seconds, process=process, outcome=outcome, probe=PROBE, reason="This machine has no abacus.")


def measured_at(settings: list[Setting], factors: Mapping[int, float], odd_vocab: float = 1.0) -> list[Record]:
    """Every case at the made-up rate times the factor of its process, and more for products of the vocabulary 1000."""
    return [
        record(case, rate_s(case) * factor * (odd_vocab if touches(case, 1000) else 1.0), process)
        for process, factor in factors.items()
        for case in (planned.case for planned in measuring_plan(settings, GPU, QUICK).cases)
    ]


def touches(case: Case, size: int) -> bool:
    p = case.parameters
    return case.operator == "matmul" and size in (p.m, p.n, p.k)


@pytest.fixture(autouse=True)
def a_gpu_with_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans for a GPU are made here where there is none: nothing is measured on it."""
    monkeypatch.setattr(plan, "gpus", lambda: [SimpleNamespace(memory_bytes=10**11)])


def test_shapes_that_settings_share_are_planned_once_and_all_phases_are_there() -> None:
    one, both = (measuring_plan(settings, GPU, QUICK).cases for settings in ([PRESENT], [PRESENT, PADDED]))
    new = {planned.case.case_id for planned in both} - {planned.case.case_id for planned in one}
    assert len(both) == len({planned.case.case_id for planned in both})
    assert len(new) == 3, "the logits forward, dgrad and wgrad"
    assert {each.case.parameters.layout for each in one if each.case.operator == "matmul"} == {"TN", "NN", "NT"}
    assert {each.case.parameters.backward for each in one if each.case.operator == "attention"} == {True, False}
    own = [touches(each.case, 1000) for each in both]
    assert own not in (sorted(own), sorted(own, reverse=True)), "settings are mixed"


def test_what_runs_as_predicted_is_told_to_be_predicted_exactly() -> None:
    found = validate([PRESENT, PADDED], Rates(), measured_at([PRESENT, PADDED], {0: 1.0, 1: 1.0, 2: 1.0}), GPU)
    assert found.error_percent == pytest.approx((0, 0), abs=1e-6)
    for each in found.settings:
        assert each.cost_s.value == pytest.approx(each.predicted_s)
        assert each.speedup.value == pytest.approx(each.predicted_speedup)
        assert 0.3 < each.measured_share < 1


def test_a_slow_odd_vocabulary_shows_as_a_gain_that_was_not_predicted() -> None:
    records = measured_at([PRESENT, PADDED], {0: 1.0, 1: 1.0, 2: 1.0}, odd_vocab=3.0)
    found = validate([PRESENT, PADDED], Rates(), records, GPU)
    assert found.settings[1].predicted_speedup < 1
    assert found.settings[1].speedup.low > 1.1
    message = validation_findings(["present", "vocab 1024"], found)
    best = message.remarks[0].values
    assert best["name"] == "vocab 1024"
    assert best["faster"].low > 1.1 > best["predicted"].value
    worst = message.tables[1].rows[0]
    assert "1000" in worst[0]
    assert worst[-1].value == pytest.approx(1 / 3, rel=0.01)


def test_a_machine_that_drifts_between_processes_moves_times_but_not_gains() -> None:
    found = validate([PRESENT, WIDER], Rates(), measured_at([PRESENT, WIDER], {0: 1.0, 1: 1.5, 2: 2.0}), GPU)
    step, gain = found.settings[1].cost_s, found.settings[1].speedup
    assert step.high / step.low > 1.5
    assert gain.high / gain.low < 1.02


def test_a_candidate_within_the_interval_is_not_called_faster() -> None:
    random = np.random.default_rng(0)
    records = [
        record(case, rate_s(case) * float(np.exp(0.1 * random.standard_normal())), process)
        for process in range(3)
        for case in (planned.case for planned in measuring_plan([PRESENT, WIDER], GPU, QUICK).cases)
    ]
    message = validation_findings(["present", "ffn 832"], validate([PRESENT, WIDER], Rates(), records, GPU))
    assert message.remarks[0].template.startswith("None of the {count} candidates is")
    assert message.remarks[0].values["count"] == 1


def test_what_a_process_could_not_measure_keeps_its_predicted_time() -> None:
    records = measured_at([PRESENT], {0: 2.0, 1: 2.0})
    lost = next(r for r in records if r.process == 1 and r.parsed_case().operator == "attention")
    records[records.index(lost)] = record(lost.parsed_case(), 1.0, 1, "failed")
    whole = validate([PRESENT], Rates(), measured_at([PRESENT], {0: 2.0, 1: 2.0}), GPU)
    found = validate([PRESENT], Rates(), records, GPU)
    assert [product.case.case_id for product in found.products if product.reading is None] == [lost.case_id]
    assert found.settings[0].measured_share < whole.settings[0].measured_share
    assert found.settings[0].cost_s.value < whole.settings[0].cost_s.value
    cautions = [each for each in validation_findings(["present"], found).remarks if each.kind == "caution"]
    assert [each.values["count"] for each in cautions] == [1]


def test_where_nothing_could_be_measured_the_first_reason_is_told() -> None:
    records = [record(planned.case, 1.0, 0, "unsupported") for planned in measuring_plan([PRESENT], GPU, QUICK).cases]
    with pytest.raises(UserError, match="no abacus"):
        validate([PRESENT], Rates(), records, GPU)


def test_a_larger_micro_batch_is_compared_by_the_token() -> None:
    model = PRESENT.model
    twice = Setting(model, seq=128, micro_batch=2)
    found = validate([PRESENT, twice], Rates(), measured_at([PRESENT, twice], {0: 1.0}), GPU)
    assert found.settings[1].cost_s.value == pytest.approx(found.settings[0].cost_s.value, rel=0.01)


def test_the_gpu_that_was_asked_for_has_to_be_the_one_in_the_machine() -> None:
    with pytest.raises(UserError, match=r"but here is cpu, .*: leave --measure out, or run it where that GPU is"):
        require_gpu(find_gpu("H200"), resolve("cpu"))


@pytest.mark.slow
def test_settings_are_measured_through_the_runner_into_a_folder_of_their_own(tmp_path: Path) -> None:
    device = resolve("cpu")
    small = Setting(ModelDimensions(layers=1, hidden=32, ffn=64, heads=2, vocab=64), seq=16)
    settings = [small, Setting(ModelDimensions(layers=1, hidden=32, ffn=96, heads=2, vocab=64), seq=16)]
    plan = measuring_plan(settings, device, QUICK)
    records = size_command.run_of(replace(plan, cases=plan.cases[:3]), tmp_path).records()
    found = validate(settings, Rates(), records, device)
    read = {product.case.case_id for product in found.products if product.reading is not None}
    measured = {record.case_id for record in records if record.kind != "sentinel"}
    assert read == measured == {planned.case.case_id for planned in plan.cases[:3]}


def test_the_fastest_candidates_beyond_the_noise_are_measured_once_each_and_padding_is_no_work() -> None:
    present, wider, padded, slower = judged([PRESENT, WIDER, PADDED, a_setting(hidden=512)], Rates())
    fast, faster, slow = (replace(each, speed=speed, low=speed - 0.01) for each, speed in (
        (wider, 1.05), (padded, 1.2), (slower, 0.9)))  # fmt: skip
    found = Search(present, Bounds(), {"vocab": faster, "hidden": slow}, (fast, faster), 4, 4, 2, 1e12)
    assert chosen(found) == [faster, fast]
    assert [name_of(each) for each in (present, faster)] == ["present", "vocab 1000 -> 1024"]
    run = SizingRun((present, padded), measuring_plan([PRESENT, PADDED], GPU, QUICK))
    message = run.judged(Rates(), measured_at([PRESENT, PADDED], {0: 1.0, 1: 1.0})).settings[1]
    assert message.speedup.value == pytest.approx(padded.speed, rel=1e-6)
    assert message.speedup.value == pytest.approx(1 / padded.time_ratio, rel=0.02)


MODEL = ["--layers", "2", "--hidden", "256", "--heads", "4", "--ffn", "768", "--vocab", "1001", "--seq", "512"]


def test_size_measures_and_tells_predicted_beside_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's place is taken by times of half the made-up rate, on a machine whose GPU is the one asked for."""

    def run(plan: Any, results: Path) -> Any:
        records = [record(each.case, 2 * rate_s(each.case), process) for process in range(3) for each in plan.cases]
        return SimpleNamespace(records_path=tmp_path / "records.jsonl", records=lambda: records)

    monkeypatch.setattr(size_command, "run_of", run)
    monkeypatch.setattr(sizing_measured, "require_gpu", lambda *requested: None)
    requested = ["size", *MODEL, "--gpu", "H200", "--vary", "vocab", "--measure", "--device", "cpu", "--json"]
    done = CliRunner().invoke(main, requested, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    present, *others = printed_lines(found, "Candidates")
    assert present["candidate"] == "present"
    assert all(each["candidate"].startswith("vocab 1001 -> ") for each in others)
    (error,) = printed_values(found, "mean", "median")
    assert error["mean"] > 0
    shapes = [line["what"].startswith("attention") for line in printed_lines(found, "Products")]
    assert set(shapes) == {True, False}


def test_size_measures_nothing_where_the_gpu_is_not_there() -> None:
    done = CliRunner().invoke(main, ["size", *MODEL, "--gpu", "H200", "--measure", "--device", "cpu"])
    assert done.exit_code == 2
    assert "leave --measure out" in done.output
