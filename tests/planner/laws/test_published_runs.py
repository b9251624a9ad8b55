"""Rows of published training runs: parsing, assumptions, and how near the law comes to runs and memory."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.planner.laws.training.step import step_time
from pyperf_suite.planner.training_runs import ASSUMED_RECOMPUTE, ASSUMED_STATES, read_runs, run_of
from tools.fit.published import SAMPLE
from tools.fit.step import ANOTHER_ENGINE

TABLE = SAMPLE / "training_published.csv"
ROW = {
    "model": "Llama3-8B", "architecture": "gqa", "layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32",
    "kv_heads": "8", "head_dim": "128", "vocab": "128256", "gated": "yes", "seq": "8192", "gpu": "H100", "gpus": "16",
    "global_batch": "256", "engine": "nemo", "dp": "8", "cp": "2", "zero_stage": "1", "seconds_per_step": "13.0",
}  # fmt: skip


def test_a_row_says_its_model_layout_and_time_and_what_it_leaves_open():
    run = run_of(ROW)
    assert (run.model.layers, run.model.kv_heads, run.plan.data, run.plan.context) == (32, 8, 8, 2)
    assert (run.plan.framework, run.plan.dtype, run.seconds, run.ran) == ("megatron", "bf16", 13.0, True)
    assert run.assumed == (ASSUMED_RECOMPUTE, "TP and DP overlapped", "a micro-batch of 1")
    stated = run_of(ROW | {"recompute": "layers", "micro_batch": "2", "overlap": "tp, dp", "recompute_stated": "yes"})
    assert stated.assumed == ()
    assert (stated.plan.recompute, stated.plan.micro_batch) == ("layers", 2)


def test_tokens_a_second_do_where_seconds_are_blank():
    run = run_of(ROW | {"seconds_per_step": "", "tokens_per_s_per_gpu": "10082"})
    assert run.seconds == pytest.approx(256 * 8192 / (10082 * 16))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layers": ""}, "does not state layers"),
        ({"gpu": "H1000"}, "no GPU 'H1000'"),
        ({"gpus": "24"}, "DP 8 x TP 1 x PP 1 x CP 2 are not 24 GPUs"),
        ({"engine": "paxml"}, "Nothing is known of the engine 'paxml'"),
        ({"recompute": "some"}, "cannot recompute 'some'"),
        ({"seq": "many"}, "seq = 'many' is no number"),
        ({"global_batch": "255"}, "cannot be cut into micro-batches"),
    ],
)
def test_a_row_that_cannot_be_predicted_is_refused_in_a_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence):
        run_of(ROW | change)


@pytest.fixture(scope="module")
def runs():
    """A sample of the published table."""
    found, refused = read_runs(TABLE)
    assert len(found) > 120
    assert all("does not state layers" in reason for reason in refused)
    return found


@pytest.mark.slow
def test_dense_runs_of_each_framework_and_generation_are_predicted_within_the_targets(runs):
    errors, covered = defaultdict(list), []
    for run in runs:
        if run.seconds is None or run.model.experts > 1 or any(each in run.note for each in ANOTHER_ENGINE):
            continue
        found = step_time(run.gpu, run.model, run.plan, network=run.network_bytes_per_s)
        errors[run.plan.framework, run.plan.dtype == "bf16" or run.plan.dtype == "fp16"].append(
            float(found.seconds) / run.seconds - 1
        )
        covered.append(float(found.low) <= run.seconds <= float(found.high))
    assert {framework for framework, _ in errors} >= {"megatron", "fsdp1", "torchtitan", "deepspeed"}
    for (framework, wide), own in errors.items():
        assert np.mean(np.abs(own)) < (0.08 if wide else 0.12), (framework, wide)
    assert np.mean(covered) > 0.85


def test_no_run_that_ran_is_said_not_to_fit_and_printed_memory_lies_within_the_bounds(runs):
    runs = runs + read_runs(SAMPLE / "training_2026.csv")[0]
    assert not [run.name for run in runs if run.ran and run.verdict == "does not fit"]
    assert not [run.name for run in runs if not run.ran and run.verdict == "fits"]
    printed = [(run.memory_gib * 2**30, *run.reserved()[1:]) for run in runs if run.memory_gib and run.ran]
    assert np.mean([least <= measured <= most for measured, least, most in printed]) > 0.85


def test_states_whose_dtype_a_row_leaves_open_may_be_of_16_bits():
    row = ROW | {"gpus": "1", "dp": "1", "cp": "1", "engine": "fsdp", "global_batch": "1", "recompute": "layers"}
    assert [run_of(row | more).verdict for more in ({}, {"state_dtype": "fp32"}, {"state_dtype": "bf16"})] == [
        "may not fit", "does not fit", "may not fit",
    ]  # fmt: skip
    assert ASSUMED_STATES in run_of(row).assumed
    assert run_of(row | {"engine_note": "pure bf16 states"}).plan.state_dtype == "bf16"
