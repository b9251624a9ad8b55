"""Predictions of a study's steps: calibrated from records that a known machine would leave, and judged."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from pyperf_suite.advise.calibrate.cpu import CpuLaws, calibrated_cpu, laws_of, predicted_step
from pyperf_suite.advise.study.memory import memory_by_rank
from pyperf_suite.advise.study.prediction import (
    find_calibration,
    predict,
    predictor,
)
from pyperf_suite.cli import main
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.calibration import Calibration, load_calibration, shipped_calibration
from pyperf_suite.laws.network.alpha_beta import AlphaBetaOverRanks, PiecewiseAlphaBeta
from pyperf_suite.laws.training.cpu_prices import ATTENTIONS, LAYOUTS, CpuPrices
from pyperf_suite.laws.training.engine_step import EngineConstants
from pyperf_suite.laws.training.micro_batch import StepConstants, work_of_ends, work_of_layer
from pyperf_suite.laws.training.plan import MicroBatch
from pyperf_suite.probes.step_calibration import OPERATIONS, PROBE
from pyperf_suite.probes.study.grid import cases_of, default_axes
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.runner.results import Journal
from pyperf_suite.workloads.training.layers import work
from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters

CPU = Device("cpu")
TRUTH = CpuLaws(
    CpuPrices(
        {f"product_{layout}": (2e-6, 2e-11, 1e-10) for layout in LAYOUTS}
        | {f"attention_{kind}_{way}": (1e-5, 3e-11, 1e-9) for kind in ATTENTIONS for way in ("forward", "backward")}
        | {"pass": (3e-6, 2e-10), "copy": (1e-6, 1e-10), "update": (4e-6, 1e-9)},
        {
            op: AlphaBetaOverRanks(op, {n: PiecewiseAlphaBeta(1e-4 * n, (), (5e-10 * n,)) for n in (2, 4)})
            for op in OPERATIONS
        },
    ),
    EngineConstants(
        slowdown=1.3,
        host_s_per_layer=4e-4,
        host_s_at_ends=5e-4,
        crowd=((1, 1.0), (2, 1.1), (4, 2.3)),
        ddp_s=5e-4,
        broadcast_s=3e-5,
        gather_s=3e-4,
        scatter_s=6e-4,
        dtensor_s_per_layer=5e-3,
        action_s=7e-4,
    ),
)


def true_seconds(case: Case) -> float:
    """What the machine of TRUTH takes."""
    prices, p = TRUTH.prices, case.parameters
    if case.operator == "matmul":
        return prices.gemm(p.layout, p.m, p.n, p.k)
    if case.operator == "attention":
        kind = prices.of_attention(case.implementation.removeprefix("sdpa_"))
        return kind.attention(True, p.backward, p.batch, p.seq_q, p.heads, p.key_heads, p.head_dim)
    if case.operator == "layer_pass":
        return (prices.copy if p.layer == "copy" else prices.memory_bound)(work(p).bytes)
    if case.operator == "optimizer_update":
        return prices.update(p.tensors.tensors, p.tensors.elements)
    if case.operator == "collective":
        return prices.collective(p.op, p.message_bytes, p.ranks, p.ranks, None)
    constants = TRUTH.constants
    if case.operator == "data_parallel":
        piece, alone = MicroBatch(p.batch, p.seq, element_bytes=4), StepConstants(constants.slowdown, 0.0)
        layer = work_of_layer(p.dimensions, piece, prices, alone).seconds + constants.host_s_per_layer
        ends = work_of_ends(p.dimensions, piece, prices, alone).seconds + constants.host_s_at_ends
        return constants.crowded(p.ranks, 2) * (p.layers * layer + ends)
    return predicted_step(TRUTH, p, 2).seconds


def record(case: Case) -> Record:
    seconds = float(true_seconds(case))
    return Record(
        run_id="made-up",
        kind="timing",
        case=case.to_json(),
        case_id=case.case_id,
        probe=PROBE.name,
        process=0,
        position=0,
        started_at="",
        outcome="ok",
        metrics={"time": Metric("s", *[seconds] * 5, [seconds])},
        work={"flop": 0, "bytes": 0},
        kernel={"details": {}},
        quality={"converged": True},
    )


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [record(case) for case in PROBE.cases("quick", CPU)]


@pytest.fixture(scope="module")
def calibration(records) -> Calibration:
    return calibrated_cpu("a known CPU", 2, records, "made up")


def test_the_laws_of_a_machine_are_found_again_in_the_records_that_it_would_leave(calibration, tmp_path):
    found = laws_of(load_calibration(calibration.save(tmp_path / "known.npz")))
    for name in ("slowdown", "host_s_per_layer", "host_s_at_ends", "ddp_s", "broadcast_s", "gather_s", "scatter_s",
                 "dtensor_s_per_layer", "action_s"):  # fmt: skip
        assert getattr(found.constants, name) == pytest.approx(getattr(TRUTH.constants, name), rel=0.03), name
    assert dict(found.constants.crowd) == pytest.approx(dict(TRUTH.constants.crowd))


def test_every_configuration_of_the_default_study_is_predicted_as_that_machine_would_run_it(calibration):
    cases = cases_of(default_axes(CPU))
    parameters = [case.parameters for case in cases]
    predictions = predict(parameters, calibration, 2)
    true = [predicted_step(TRUTH, p, 2).seconds for p in parameters]
    assert [each.seconds for each in predictions] == pytest.approx(true, rel=0.02)
    for prediction in predictions:
        assert sum(prediction.parts.values()) == pytest.approx(prediction.seconds)
        assert len(prediction.memory) == prediction.parameters.ranks
    told = predictor(calibration, "cpu", 2)(cases, [])
    assert {case_id: each.seconds for case_id, each in told.items()} == {
        case.case_id: each.seconds for case, each in zip(cases, predictions, strict=True)
    }


@pytest.mark.parametrize("operator", ["matmul", "attention", "collective", "data_parallel", "parallel_step"])
def test_a_run_that_lacks_something_is_refused_with_how_to_make_another(records, operator):
    left = [each for each in records if each.case["operator"] != operator]
    with pytest.raises(UserError, match="pyperf-suite run step_calibration"):
        calibrated_cpu("a known CPU", 2, left, "made up")


def test_a_run_on_a_cpu_is_calibrated_by_the_command_and_found_by_the_study(records, calibration, tmp_path):
    run = tmp_path / "cpu-known" / "20260101T000000Z-0000"
    run.mkdir(parents=True)
    identity = {"model": "a known CPU", "cores": 2}
    (run / "run.json").write_text(json.dumps({"plan_id": "0", "probes": ["step_calibration"], "identity": identity}))
    with Journal(run / "records.jsonl") as journal:
        for each in records:
            journal.append(each)
    torn = tmp_path / "cpu-known" / "20260102T000000Z-0000"
    torn.mkdir()
    (torn / "run.json").write_text((run / "run.json").read_text())
    by_records = find_calibration(tmp_path, "cpu-known")
    done = CliRunner().invoke(main, ["calibrate", str(run)])
    assert done.exit_code == 0, done.output
    assert "study --calibration" in done.output
    by_file = load_calibration(tmp_path / "cpu-known" / "calibration.npz")
    p = [ParallelStepParameters(vocab=32, tied=False, data=2)]
    expected = predict(p, calibration, 2)[0].seconds
    assert [predict(p, each, 2)[0].seconds for each in (by_records, by_file)] == pytest.approx([expected] * 2)


def test_without_a_calibration_one_sentence_says_how_to_get_one(tmp_path):
    with pytest.raises(UserError, match="pyperf-suite run step_calibration"):
        find_calibration(tmp_path, "cpu-unknown")
    with pytest.raises(UserError, match="says nothing of training steps"):
        laws_of(Calibration("a GPU"))


def test_laws_of_a_gpu_are_not_taken_for_a_cpu_nor_the_other_way_round(calibration, tmp_path):
    with pytest.raises(UserError, match=r"fitted on a GPU \(A100 SXM\), but this study is on a CPU.*step_calibration"):
        predictor(shipped_calibration("A100 SXM"), "cpu")
    with pytest.raises(UserError, match=r"fitted on a CPU \(a known CPU\), but this study is on GPUs"):
        predictor(calibration, "cuda")
    saved = str(calibration.save(tmp_path / "known.npz"))
    model = ["--layers", "4", "--hidden", "1024", "--heads", "8", "--seq", "1024"]
    for asked in (["size", *model], ["layout", *model, "--gpus", "8", "--global-batch", "64"]):
        done = CliRunner().invoke(main, [*asked, "--calibration", saved])
        assert done.exit_code == 2
        assert "known.npz was fitted on a CPU (a known CPU), but the laws asked here are of GPUs" in done.output
        assert len(done.output.splitlines()) == 1


def test_ranks_are_told_in_the_order_of_the_engine_tensor_innermost():
    p = ParallelStepParameters(vocab=32, tied=False, layers=4, heads=4, data=2, tensor=2, pipeline=2, zero_stage=1)
    needs = memory_by_rank(p)
    assert len(needs) == 8
    assert needs[0] == needs[1]
    assert needs[0].weights == needs[2].weights
    assert needs[0].optimizer != needs[2].optimizer
    assert needs[0].weights != needs[4].weights


@pytest.mark.parametrize(
    "spoil", [lambda array: array * np.nan, np.ravel, lambda array: -array], ids=["nan", "form", "sign"]
)
def test_laws_of_a_cpu_that_a_hand_has_altered_are_refused_before_anything_is_predicted(calibration, spoil):
    blocks = {
        name: replace(
            block,
            arrays={each: spoil(array) if array.dtype.kind == "f" else array for each, array in block.arrays.items()},
        )
        for name, block in calibration.blocks.items()
    }
    with pytest.raises(UserError, match="make it anew"):
        predictor(replace(calibration, blocks=blocks), "cpu", 2)
