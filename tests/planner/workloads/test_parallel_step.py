"""Training steps cut by data, tensor and pipeline: gradients of a single process in all of them, and bytes counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.laws.training.memory import kept_bytes
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.workers import WorkerPool
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.training_step import TrainingStepParameters

pytestmark = pytest.mark.slow

pytest.importorskip("torch")


SMALL = ParallelStepParameters(hidden=32, heads=4, layers=2, seq=8, batch=2, vocab=48, tied=False)
INTERLEAVED = replace(SMALL, layers=4, pipeline=2, chunks=2)
EVERY, SELECTIVE = Checkpointing("every", 2), Checkpointing("selective")
# Checkpointing, backends of attention, precisions and odd sizes are spread over the ways to cut.
OF_TWO = {
    "ddp": replace(SMALL, data=2),
    "ddp no_sync tied": replace(SMALL, data=2, micro_batches=3, tied=True),
    "zero1": replace(SMALL, data=2, zero_stage=1),
    "zero2": replace(SMALL, data=2, zero_stage=2, micro_batches=2),
    "zero3": replace(SMALL, data=2, zero_stage=3, micro_batches=2),
    "zero2 offload": replace(SMALL, data=2, zero_stage=2, micro_batches=2, offload="cpu"),
    "zero3 offload": replace(SMALL, data=2, zero_stage=3, offload="cpu"),
    "zero3 odd": replace(SMALL, data=2, zero_stage=3, vocab=49),
    "zero1 bfloat16": replace(SMALL, data=2, zero_stage=1, dtype="bfloat16"),
    "zero3 bfloat16": replace(SMALL, data=2, zero_stage=3, dtype="bfloat16"),
    "zero1 math every": replace(SMALL, data=2, zero_stage=1, attention="math", checkpointing=EVERY),
    "zero2 flash selective": replace(SMALL, data=2, zero_stage=2, attention="flash", checkpointing=SELECTIVE),
    "zero3 gated every": replace(SMALL, data=2, zero_stage=3, gated=True, kv_heads=2, checkpointing=EVERY),
    "tp": replace(SMALL, tensor=2),
    "tp grouped tied": replace(SMALL, tensor=2, kv_heads=2, gated=True, tied=True, micro_batches=2),
    "tp math selective": replace(SMALL, tensor=2, attention="math", checkpointing=SELECTIVE),
    "tp explicit every": replace(SMALL, tensor=2, attention="explicit", checkpointing=EVERY),
    "pp": replace(SMALL, pipeline=2, micro_batches=3),
    "pp math every": replace(SMALL, pipeline=2, micro_batches=2, attention="math", checkpointing=EVERY),
    "pp v2 selective": replace(INTERLEAVED, micro_batches=4, checkpointing=SELECTIVE),
}
OF_FOUR = {
    "dp tp zero1": replace(SMALL, data=2, tensor=2, zero_stage=1, micro_batches=2),
    "dp tp zero3 every": replace(SMALL, data=2, tensor=2, zero_stage=3, checkpointing=EVERY),
    "dp pp v2 zero2": replace(INTERLEAVED, data=2, micro_batches=2, zero_stage=2),
    "tp pp v2 zero3": replace(INTERLEAVED, tensor=2, micro_batches=2, zero_stage=3),
    "tp pp": replace(SMALL, tensor=2, pipeline=2, micro_batches=2, checkpointing=SELECTIVE),
}
FAULTS = {
    "exchange_nothing": (OF_TWO["ddp"], "the gradient of"),
    "train_on_anothers_batch": (OF_TWO["zero3"], "the gradient of"),
    "scatter_the_last_alone": (OF_TWO["zero3"], "the gradient of"),
    "turn_an_elements_sign": (OF_TWO["zero1 bfloat16"], "the gradient of"),
    "update_otherwise": (OF_TWO["zero1"], "updated weights differ"),
    "rows_as_they_are": (OF_TWO["tp"], "the gradient of"),
    "forget_a_micro_batch": (OF_TWO["pp"], "the gradient of"),
}
PROGRAM = Path(__file__).parent / "parallel_ranks.py"
EFFORT = Effort(SteadyRule(min_time_s=0.0, time_cap_s=0.01), StopRule(time_cap_s=0.05))


def told_by_ranks(count: int, requested: list[tuple[str, ParallelStepParameters, str]], folder: Path) -> list[Any]:
    """Return each rank's answer to each case, by name."""
    cases = [
        (name, Case("parallel_step", parameters, "gloo").to_json(), fault) for name, parameters, fault in requested
    ]
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-W", "error::FutureWarning", PROGRAM, str(count), folder],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    requested = [(name, parameters, "") for name, parameters in OF_TWO.items()]
    faulty = [(fault, parameters, fault) for fault, (parameters, _) in FAULTS.items()]
    return told_by_ranks(2, requested + faulty, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def by_four(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    requested = [(name, parameters, "") for name, parameters in OF_FOUR.items()]
    return told_by_ranks(4, requested, tmp_path_factory.mktemp("four"))


def assert_right(message: list[Any], name: str, parameters: ParallelStepParameters) -> None:
    for rank in message:
        assert [each["wrong"] for each in rank[name]["checks"]] == [0, 0], rank[name]["checks"]
        assert rank[name]["finite"]
    # A rank of a pipeline compares its own stages; one more is compared, the updated weights.
    ends = [message[0], message[-1]] if parameters.pipeline > 1 else [message[0]]
    elements = sum(rank[name]["checks"][0]["compared"] - 1 for rank in ends)
    assert elements == parameters.dimensions.parameters


@pytest.mark.parametrize("name", OF_TWO)
def test_two_ranks_have_the_gradients_of_a_single_process(by_two, name):
    assert_right(by_two, name, OF_TWO[name])


@pytest.mark.parametrize("name", OF_FOUR)
def test_four_ranks_have_the_gradients_of_a_single_process(by_four, name):
    assert_right(by_four, name, OF_FOUR[name])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_gradient_or_weight_is_named(by_two, fault):
    checks = [rank[fault]["checks"][0] for rank in by_two]
    assert max(each["wrong"] for each in checks) > 0
    assert any(FAULTS[fault][1] in each["first"] for each in checks), checks


def figures(message: list[Any], name: str) -> dict[str, Any]:
    return dict(message[0][name]["kernel"]["details"])


MODEL_BYTES = 4 * SMALL.dimensions.parameters
# Norms and second biases lie whole on each tensor-parallel rank.
TP_WHOLE = 4 * (SMALL.layers * 6 * SMALL.hidden + 2 * SMALL.hidden)
TP_SHARE = (MODEL_BYTES - TP_WHOLE) // 2 + TP_WHOLE


@pytest.mark.parametrize(
    ("name", "parameters", "optimizer"),
    [
        ("ddp", MODEL_BYTES, 2 * MODEL_BYTES),
        ("zero2", MODEL_BYTES // 2, MODEL_BYTES),
        ("zero3", MODEL_BYTES // 2, MODEL_BYTES),
        ("tp", TP_SHARE, 2 * TP_SHARE),
    ],
)
def test_each_rank_allocates_its_share(by_two, name, parameters, optimizer):
    found = figures(by_two, name)["rank_bytes"]
    assert found["parameter_bytes"] == found["gradient_bytes"] == [parameters] * 2
    assert found["optimizer_bytes"] == [optimizer] * 2


@pytest.mark.parametrize("name", ["pp", "pp v2 selective"])
def test_stages_have_their_layers_and_the_ends_what_is_theirs(by_two, name):
    p = OF_TWO[name]
    layers = (p.dimensions.parameters - 2 * p.hidden - (2 * p.vocab + p.seq) * p.hidden) // 2
    ends = [layers + (p.vocab + p.seq) * p.hidden, layers + p.vocab * p.hidden + 2 * p.hidden]
    assert figures(by_two, name)["rank_bytes"]["parameter_bytes"] == [4 * each for each in ends]


@pytest.mark.parametrize("name", ["ddp", "zero1 math every", "zero2 flash selective", "zero3", "zero3 gated every"])
def test_the_peak_has_room_for_states_and_activations_and_little_more(by_two, name):
    p, sizes = OF_TWO[name], figures(by_two, name)
    fields = ("hidden", "heads", "layers", "seq", "batch", "kv_heads", "vocab", "gated", "tied", "attention")
    alone = TrainingStepParameters(
        **{field: getattr(p, field) for field in fields}, checkpointing=p.checkpointing
    ).keeping("cpu")
    least = kept_bytes(p.dimensions, p.batch, p.seq, alone).total
    least += sum(sizes[f"{part}_bytes"] for part in ("parameter", "gradient", "optimizer"))
    assert least <= sizes["peak_bytes"] <= least + 2 * 4 * p.dimensions.parameters


def test_running_out_of_memory_on_ranks_is_an_outcome_and_the_next_case_has_ranks_of_its_own():
    # Allocators refuse it at once, whatever the machine has.
    too_large = replace(SMALL, data=2, vocab=2**40 // SMALL.hidden * 2)
    with WorkerPool(resolve("cpu"), 60.0) as pool:
        answer = pool.measure(0, Case("parallel_step", too_large, "gloo"), EFFORT)
        assert answer["outcome"] == "failed"
        assert answer["reason"].startswith("Out of memory: tried to allocate"), answer["reason"]
        answer = pool.measure(0, Case("parallel_step", replace(SMALL, data=2, zero_stage=1), "gloo"), EFFORT)
        assert answer["outcome"] == "ok", answer
        assert answer["metrics"]["time"]["value"] > 0
        assert answer["kernel"]["details"]["rank_bytes"]["optimizer_bytes"]
        assert not [each for each in psutil.Process().children(recursive=True) if "RANK" in environ_of(each)]


def environ_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}
