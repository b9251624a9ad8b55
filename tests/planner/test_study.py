"""A study before it runs: its grid as a file, what has room, and predictions calibrated on a machine that is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.cli.main import main
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.planner.calibrate import CpuLaws, calibrated_cpu, laws_of, predicted_step
from pyperf_suite.planner.laws.calibration import Calibration, load_calibration, shipped_calibration
from pyperf_suite.planner.laws.traffic import AlphaBetaOverRanks
from pyperf_suite.planner.laws.training.engine_step import ATTENTIONS, LAYOUTS, CpuPrices, EngineConstants
from pyperf_suite.planner.laws.training.framework import StepConstants
from pyperf_suite.planner.laws.training.layer_work import work_of
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.probes.step_calibration import OPERATIONS, PROBE
from pyperf_suite.planner.study.grid import StudyAxes, cases_of, default_axes, worlds_of
from pyperf_suite.planner.study.planning import (
    MemoryBudget,
    described_change,
    find_calibration,
    nearest_that_fits,
    need_bytes,
    parse_study,
    predict,
    predictor,
    read_study,
    room_of,
    why_not,
)
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.layers import work
from tests.records import a_journal
from tests.records import records as made_up_records

CPU = Device("cpu")
EXAMPLE = Path(__file__).parents[2] / "examples" / "study.toml"


def names(axes: StudyAxes) -> list[str]:
    return [case.parameters.name for case in cases_of(axes)]


def test_a_file_says_the_same_as_options() -> None:
    read = parse_study(
        {
            "model": {"hidden": 64, "gated": True},
            "grid": {"data": [1, 2], "attention": ["flash", "math"], "checkpointing": "every:2"},
            "run": {"steps": 7},
        }
    )
    axes = read.over(default_axes(CPU))
    assert names(axes) == [
        *("1 rank flash ckpt every:2", "dp2 flash ckpt every:2"),
        *("1 rank math ckpt every:2", "dp2 math ckpt every:2"),
    ]
    assert {(case.parameters.hidden, case.parameters.gated) for case in cases_of(axes)} == {(64, True)}
    assert (read.run.steps, read.run.experiments) == (7, 3)


def test_configurations_of_a_file_are_each_a_product_with_the_grids_other_axes() -> None:
    read = parse_study(
        {"grid": {"attention": ["flash", "math"]}, "configuration": [{"data": 2}, {"pipeline": 2, "attention": "math"}]}
    )
    assert names(read.over(default_axes(CPU))) == ["dp2 flash", "dp2 math", "pp2 math"]


def test_a_file_of_a_model_alone_keeps_the_default_ways_of_cutting_it() -> None:
    assert names(parse_study({"model": {"layers": 8}}).over(default_axes(CPU))) == names(default_axes(CPU))


def test_the_example_file_is_a_study() -> None:
    cases = cases_of(read_study(EXAMPLE).over(default_axes(CPU)))
    assert len(cases) >= 8
    assert worlds_of(cases)[-1] <= 4


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        ({"grids": {}}, "A study has no table 'grids': did you mean grid?"),
        ({"modle": {}}, "A study has no table 'modle': did you mean model?"),
        ({"xyzzy": 1}, "A study has no table 'xyzzy': choose from model, grid, run, configuration."),
        ({"grid": 3}, "grid is 3, but is a table"),
        ({"model": [1]}, "model is [1], but is a table"),
        ({"model": {"hiden": 1}}, "[model] has no key 'hiden': did you mean hidden"),
        ({"model": {"data": 2}}, "[model] has no key 'data'"),
        ({"grid": {"zero": 2}}, "[grid] has no key 'zero': choose from global_batch, "),
        ({"grid": {"hidden": 2}}, "[grid] has no key 'hidden'"),
        ({"run": {"step": 2}}, "[run] has no key 'step': did you mean steps"),
        ({"configuration": [{"dta": 2}]}, "[configuration] has no key 'dta': did you mean data"),
        ({"configuration": {"data": 2}}, "configuration is a list of tables"),
        ({"configuration": [3]}, "configuration is 3, but is a table"),
        ({"model": {"hidden": "wide"}}, "hidden is 'wide', but takes a whole number."),
        ({"model": {"hidden": [64, 128]}}, "hidden of [model] is a list, but a study is of one model"),
        ({"model": {"hidden": 64.0}}, "hidden is 64.0, but takes a whole number"),
        ({"model": {"gated": 1}}, "gated is 1, but takes true or false"),
        ({"grid": {"data": True}}, "data is True, but takes a whole number"),
        ({"grid": {"data": [1, "2"]}}, "data is '2', but takes a whole number"),
        ({"grid": {"data": [[1]]}}, "data is [1], but takes a whole number"),
        ({"grid": {"attention": 1}}, "attention is 1, but takes a word"),
        ({"grid": {"checkpointing": "some"}}, "There is no checkpointing 'some'"),
        ({"run": {"steps": "ten"}}, "steps is 'ten', but takes a whole number"),
        ({"run": {"steps": 1}}, "steps=1 was requested, but steps lies between 2 and 10000"),
        ({"run": {"steps": 10**9}}, "steps=1000000000 was requested"),
        ({"run": {"warm_up": 0}}, "warm_up=0 was requested, but warm_up lies between 1"),
        ({"run": {"experiments": 0}}, "experiments=0 was requested, but experiments lies between 1"),
        ({"run": {"experiments": True}}, "experiments is True, but takes a whole number"),
    ],
)
def test_a_file_that_says_what_no_study_knows_is_refused_in_a_sentence(read: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_study(read)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cannot be read: No such file"),
        (b"[grid", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"a = " + b"[" * 5000, "is not TOML"),
        (b"#" * (1 << 21), "is larger than 1 MiB"),
        (b"[grid]\ndata = 1\ndata = 2\n", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    if content:
        path.write_bytes(content)
    with pytest.raises(UserError, match=sentence) as refused:
        read_study(path)
    assert str(path) in str(refused.value)


LARGE = ParallelStepParameters(
    hidden=4096, heads=32, layers=32, seq=2048, batch=4, vocab=32000, tied=False, data=8, micro_batches=4
)


def test_weights_gradients_and_moments_of_float32_are_16_bytes_a_parameter_and_activations_come_on_top() -> None:
    states = 16 * LARGE.dimensions.parameters
    assert need_bytes(replace(LARGE, batch=1, checkpointing=Checkpointing("every")), "cuda") > states
    small = ParallelStepParameters(hidden=512, heads=1, layers=1, seq=1, vocab=512, tied=False)
    assert need_bytes(small, "cpu") == pytest.approx(16 * small.dimensions.parameters, rel=0.02)
    for case in cases_of(default_axes(CPU)):
        assert need_bytes(case.parameters, "cpu") < 200e6, "no configuration of the default grid outgrows a laptop"


def test_what_does_not_fit_says_by_how_many_bytes_and_what_does() -> None:
    room = MemoryBudget(0.9 * 80 * 2**30, "the 80 GiB of a GPU")
    reason = why_not(LARGE, "cuda", room)
    lacking = re.search(r"([\d,]+) bytes more than it has of the 80 GiB of a GPU", reason)
    assert lacking is not None
    assert int(lacking[1].replace(",", "")) == pytest.approx(need_bytes(LARGE, "cuda") - room.bytes_a_rank, abs=1)
    near = nearest_that_fits(LARGE, "cuda", room.bytes_a_rank)
    assert near is not None
    assert need_bytes(near, "cuda") <= room.bytes_a_rank
    assert described_change(LARGE, near) in reason
    assert why_not(LARGE, "cuda", MemoryBudget(1e15, "a large memory")) == ""
    assert why_not(LARGE, "cuda", MemoryBudget(1e6, "a small memory")).endswith("; nothing near it fits.")


@pytest.mark.slow
@given(st.floats(1e9, 1e12))
def test_the_nearest_keeps_ranks_and_batch_and_really_fits(room_bytes: float) -> None:
    near = nearest_that_fits(LARGE, "cuda", room_bytes)
    if near is not None:
        near.validate()
        assert need_bytes(near, "cuda") <= room_bytes
        assert (near.ranks, near.global_batch, near.dimensions) == (LARGE.ranks, LARGE.global_batch, LARGE.dimensions)
        assert near.zero_stage >= LARGE.zero_stage


def test_one_change_is_nearer_than_two() -> None:
    one = nearest_that_fits(LARGE, "cuda", need_bytes(LARGE, "cuda") - 1)
    assert one is not None
    assert described_change(LARGE, one).count("->") == 1


def test_ranks_of_one_machine_share_what_it_has_free() -> None:
    alone, shared = room_of(CPU, 1), room_of(CPU, 4)
    assert shared.bytes_a_rank == pytest.approx(alone.bytes_a_rank / 4, rel=0.2)
    assert "shared by 4 ranks" in shared.where


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
        return prices.gemm(p.layout, p.m, p.n, p.k).seconds
    if case.operator == "attention":
        kind = prices.of_attention(case.implementation.removeprefix("sdpa_"))
        return kind.attention(True, p.backward, p.batch, p.seq_q, p.heads, p.key_heads, p.head_dim).seconds
    if case.operator == "layer_pass":
        return (prices.copy if p.layer == "copy" else prices.memory_bound)(work(p).bytes).seconds
    if case.operator == "optimizer_update":
        return prices.update(p.tensors.tensors, p.tensors.elements).seconds
    if case.operator == "collective":
        return prices.collective(p.op, p.message_bytes, p.ranks).seconds
    constants = TRUTH.constants
    if case.operator == "data_parallel":
        piece = ParallelPlan(global_batch=p.batch, micro_batch=p.batch, seq=p.seq, element_bytes=4)
        alone = StepConstants(constants.slowdown, 0.0)
        layer, ends = work_of(p.dimensions, piece, prices, alone)
        host_s = p.layers * constants.host_s_per_layer + constants.host_s_at_ends
        return constants.crowded(p.ranks, 2) * (p.layers * layer.seconds + ends.seconds + host_s)
    return predicted_step(TRUTH, p, 2).seconds


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return made_up_records(
        PROBE.cases("quick", CPU), lambda case: float(true_seconds(case)), processes=1, probe=PROBE.name
    )


@pytest.fixture(scope="module")
def calibration(records) -> Calibration:
    return calibrated_cpu("a known CPU", 2, records, "made up")


@pytest.mark.slow
def test_the_laws_of_a_machine_are_found_again_in_the_records_that_it_would_leave(calibration, tmp_path):
    found = laws_of(load_calibration(calibration.save(tmp_path / "known.npz")))
    for name in ("slowdown", "host_s_per_layer", "host_s_at_ends", "ddp_s", "broadcast_s", "gather_s", "scatter_s",
                 "dtensor_s_per_layer", "action_s"):  # fmt: skip
        assert getattr(found.constants, name) == pytest.approx(getattr(TRUTH.constants, name), rel=0.03), name
    assert dict(found.constants.crowd) == pytest.approx(dict(TRUTH.constants.crowd))


@pytest.mark.slow
def test_every_configuration_of_the_default_study_is_predicted_as_that_machine_would_run_it(calibration):
    cases = cases_of(default_axes(CPU))
    parameters = [case.parameters for case in cases]
    predictions = [predict(p, calibration, 2) for p in parameters]
    true = [predicted_step(TRUTH, p, 2).seconds for p in parameters]
    assert [each.seconds for each in predictions] == pytest.approx(true, rel=0.02)
    for p, prediction in zip(parameters, predictions, strict=True):
        assert len(prediction.rank_memory) == p.ranks
    predicted = predictor(calibration, "cpu", 2)
    assert [predicted(case) for case in cases] == predictions


@pytest.mark.parametrize("operator", ["matmul", "attention", "collective", "data_parallel", "parallel_step"])
def test_a_run_that_lacks_something_is_refused_with_how_to_make_another(records, operator):
    left = [each for each in records if each.case["operator"] != operator]
    with pytest.raises(UserError, match="pyperf-suite run step_calibration"):
        calibrated_cpu("a known CPU", 2, left, "made up")


@pytest.mark.slow
def test_a_run_on_a_cpu_is_calibrated_by_the_command_and_found_by_the_study(records, calibration, tmp_path):
    known = {"probes": ["step_calibration"], "identity": {"model": "a known CPU", "cores": 2}}
    run = a_journal(tmp_path / "cpu-known" / "20260101T000000Z-0000", records, **known)
    torn = a_journal(tmp_path / "cpu-known" / "20260102T000000Z-0000", [], **known)
    (torn / "records.jsonl").unlink()
    by_records = find_calibration(tmp_path, "cpu-known")
    done = CliRunner().invoke(main, ["calibrate", str(run)])
    assert done.exit_code == 0, done.output
    assert "study --calibration" in done.output
    by_file = load_calibration(tmp_path / "cpu-known" / "calibration.npz")
    p = ParallelStepParameters(vocab=32, tied=False, data=2)
    expected = predict(p, calibration, 2).seconds
    assert [predict(p, each, 2).seconds for each in (by_records, by_file)] == pytest.approx([expected] * 2)


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
    for requested in (["size", *model], ["layout", *model, "--gpus", "8", "--global-batch", "64"]):
        done = CliRunner().invoke(main, [*requested, "--calibration", saved])
        assert done.exit_code == 2
        assert "known.npz was fitted on a CPU (a known CPU), but the laws used here are of GPUs" in done.output
        assert len(done.output.splitlines()) == 1


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
