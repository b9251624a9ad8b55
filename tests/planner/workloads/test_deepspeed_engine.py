"""DeepSpeed as an engine of a study: what it is asked for, by a double; refused in a sentence where it is not there."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters

torch = pytest.importorskip("torch")

SMALL = ParallelStepParameters(
    hidden=32, heads=4, layers=2, seq=8, batch=2, vocab=48, tied=False, data=2, zero_stage=1, engine="deepspeed",
    micro_batches=2,
)  # fmt: skip


class Engine:
    """Updates behind the last of the accumulated micro-batches, and then has no gradients."""

    def __init__(self, model: Any, optimizer: Any, config: dict[str, Any], dist_init_required: bool) -> None:
        self.model, self.optimizer, self.config, self.micro_batches = model, optimizer, config, 0
        assert not dist_init_required

    def __call__(self, *inputs: Any) -> Any:
        return self.model(*inputs)

    def backward(self, loss: Any) -> None:
        (loss / self.config["gradient_accumulation_steps"]).backward()
        self.micro_batches += 1

    def step(self) -> None:
        if self.micro_batches % self.config["gradient_accumulation_steps"] == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    engines: list[Engine] = []

    def initialize(**how: Any) -> tuple[Engine, None, None, None]:
        engines.append(Engine(**how))
        return engines[-1], None, None, None

    package, utils = ModuleType("deepspeed"), ModuleType("deepspeed.utils")
    package.__version__, package.initialize = "a double", initialize
    package.ops = SimpleNamespace(__compatible_ops__={"deepspeed_shm_comm": True})
    package.zero = SimpleNamespace(GatheredParameters=lambda *_, **__: nullcontext())
    utils.safe_get_full_grad = lambda weight: weight.grad
    utils.safe_set_full_fp32_param = lambda weight, kept: None
    monkeypatch.setitem(sys.modules, "deepspeed", package)
    monkeypatch.setitem(sys.modules, "deepspeed.utils", utils)
    return engines


def cut(parameters: ParallelStepParameters) -> tuple[Any, Any]:
    from pyperf_suite.planner.workloads import cuts
    from pyperf_suite.workloads.training import gpt

    part = cuts.ModelPart(gpt.build(parameters), 0, parameters.layers, parameters.layers)
    mesh = {"dp": SimpleNamespace(get_group=lambda: None)}
    return part, cuts.cut_by_data([part], parameters, mesh)


def iterate(data: Any, batches: list[Any]) -> None:
    data.clear()
    for number, batch in enumerate(batches):
        with data.micro_batch(number == len(batches) - 1):
            data.backward(data.calls[0](*batch).sum(), len(batches))
    data.finish()


def test_gradients_are_kept_of_the_iteration_that_is_watched_and_the_seed_comes_back(double: list[Engine]) -> None:
    from pyperf_suite.workloads.training import gpt

    part, data = cut(SMALL)
    batches = [gpt.inputs(SMALL, seed) for seed in (1, 2)]
    plain, _ = cut(ParallelStepParameters(**{**vars(SMALL), "engine": "torch", "data": 1, "zero_stage": 0}))
    for batch in batches:
        (plain(*batch).sum() / 2).backward()
    seeded = [each.detach().clone() for each in part.parameters()]
    iterate(data, batches)
    assert not any(map(torch.equal, seeded, part.parameters())), "AdamW has updated every weight"
    with torch.no_grad():
        data.restore(data.seeded())
    assert all(map(torch.equal, seeded, part.parameters()))
    data.watch(lambda: iterate(data, batches))
    for mine, due in zip(part.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(data.gradient(mine), due.grad)


def test_stage_micro_batches_and_offload_are_asked_for(double: list[Engine]) -> None:
    _, data = cut(ParallelStepParameters(**{**vars(SMALL), "zero_stage": 3, "offload": "cpu"}))
    zero = double[0].config["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["offload_optimizer"] == zero["offload_param"] == {"device": "cpu"}
    assert double[0].config["train_micro_batch_size_per_gpu"] == SMALL.batch
    assert double[0].config["gradient_accumulation_steps"] == SMALL.micro_batches
    assert data.allocated() == {}, "what it holds is not counted by parts"


def test_where_it_is_not_installed_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyperf_suite.planner.workloads.parallel_step import require_possible

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "deepspeed" else find(name, *more)
    )
    with pytest.raises(Unsupported, match="pip install deepspeed"):
        require_possible(SMALL, "cpu")
