"""Verification where results were computed, with tensors of the host in the place of a GPU's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyperf_suite.measure.checks import SetChecks, WrongLaunch
from pyperf_suite.record.case import Case
from pyperf_suite.workloads import find_workload, operator
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.matmul import matmul
from pyperf_suite.workloads.operator import Launches, OutputVerifier, as_stored
from pyperf_suite.workloads.workload import Kernel
from tests.records import a_product

torch = pytest.importorskip("torch")

PRODUCT = a_product(96, 80, 64, "cublas", "library@1", dtype="bfloat16", layout="TN")
ATTENTION = Case("attention", AttentionParameters(1, 2, 16, 48, kv_heads=1, causal=True, backward=True), "sdpa_math")


class OnDevice(Launches):
    """Operand sets as tensors; a launch writes what `compute` makes of the inputs, changed by `spoil`."""

    kernel = Kernel("double", "host")

    def __init__(self, case: Case, sets: int, spoil: Callable[[int, dict[str, Any]], None]) -> None:
        self.sets, self._spoil, self._case = sets, spoil, case
        self._operands = find_workload(case.operator).operands(case.parameters, case.seed)
        self._outputs: list[dict[str, Any]] = [{} for _ in range(sets)]
        self.downloads = 0
        names = ("a", "b") if case.operator == "matmul" else ("q", "k", "v", "do")
        self._inputs = {
            name: torch.from_numpy(self._operands[name].view(np.int16)).view(torch.bfloat16) for name in names
        }

    def launch(self, index: int) -> None:
        self._outputs[index % self.sets] = self._compute()
        self._spoil(index % self.sets, self._outputs[index % self.sets])

    def _compute(self) -> dict[str, Any]:
        if self._case.operator == "matmul":
            return {"c": (self._inputs["a"].float() @ self._inputs["b"].t().float()).bfloat16()}
        q, k, v = (self._inputs[name].double().requires_grad_() for name in ("q", "k", "v"))
        keys, values = (each.repeat_interleave(2, dim=1) for each in (k, v))
        o = torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=True)
        found = torch.autograd.grad(o, (q, k, v), self._inputs["do"].double())
        return {name: each.bfloat16().contiguous() for name, each in zip(("dq", "dk", "dv"), found, strict=True)}

    def results(self, index: int) -> dict[str, Any]:
        return self._outputs[index % self.sets]

    def outputs(self, index: int) -> dict[str, Any]:
        self.downloads += 1
        return {name: as_stored(each, "bfloat16") for name, each in self.results(index).items()}

    def tensors(self, index: int) -> dict[str, Any]:
        return self._inputs | self.results(index)

    def poison(self, index: int | None = None) -> None:
        for outputs in self._outputs if index is None else [self._outputs[index]]:
            for tensor in outputs.values():
                tensor.fill_(float("nan"))


def nothing(_index: int, _outputs: dict[str, Any]) -> None:
    """Spoils nothing."""


def first_output(outputs: dict[str, Any]) -> Any:
    return next(iter(outputs.values()))


def judged(case: Case, launches: OnDevice) -> tuple[Any, OutputVerifier]:
    """The verdict before timing, and who gave it."""
    workload = find_workload(case.operator)
    operands = workload.operands(case.parameters, case.seed)
    judge = launches.judge = OutputVerifier(workload.launched(case.parameters), operands, launches.kernel.name)
    try:
        return SetChecks(launches).before_timing(), judge
    except WrongLaunch as wrong:
        return wrong.verdict, judge


@pytest.mark.parametrize("case", [PRODUCT, ATTENTION], ids=["product", "gradients"])
def test_what_is_right_passes_on_its_device_without_a_download(case, monkeypatch):
    monkeypatch.setattr(operator, "HOST_FLOP", 0)
    monkeypatch.setattr(operator, "HOST_JUDGES_ONE_OF", 1 << 64)
    launches = OnDevice(case, 3, nothing)
    verification, judge = judged(case, launches)
    assert verification.passed, verification.message
    assert judge.references == ["device"]
    assert launches.downloads == 0


@pytest.mark.parametrize("case", [PRODUCT, ATTENTION], ids=["product", "gradients"])
@pytest.mark.parametrize("wrong_set", [0, 2])
def test_one_wrong_element_on_any_set_fails(case, wrong_set):
    def spoil(index, outputs):
        if index == wrong_set:
            first_output(outputs).view(-1)[7] += 3

    assert not judged(case, OnDevice(case, 3, spoil))[0].passed


def test_references_that_disagree_fail_the_case(monkeypatch):
    # As where the device's own arithmetic, or the inputs that it was given, are not what they should be.
    launches = OnDevice(PRODUCT, 1, nothing)
    launches._inputs = {name: tensor.clone() for name, tensor in launches._inputs.items()}
    launches._inputs["a"][5, 6] += 4
    verification, _ = judged(PRODUCT, launches)
    assert not verification.passed
    assert "disagree" in verification.message


def test_a_device_without_memory_for_a_reference_leaves_it_to_the_host(monkeypatch):
    on_either = matmul.verify_product

    def full(c, *arguments, **keywords):
        if isinstance(c, torch.Tensor):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return on_either(c, *arguments, **keywords)

    monkeypatch.setattr(matmul, "verify_product", full)
    verification, judge = judged(PRODUCT, OnDevice(PRODUCT, 1, nothing))
    assert verification.passed
    assert judge.references == ["host"]
