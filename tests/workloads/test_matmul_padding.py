"""Products padded at each call: right where padding touches any side, and refused where it is not meant."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.workloads.matmul import LAYOUTS, MatmulParameters
from pyperf_suite.workloads.matmul.matmul import Matmul
from pyperf_suite.workloads.operator import Launches
from pyperf_suite.workloads.workload import Place

CPU = resolve("cpu")


def padded(m: int, n: int, k: int, pad_to: int = 8, **changed: str) -> MatmulParameters:
    return MatmulParameters(m, n, k, Schedule("library", 1), pad_to=pad_to, **changed)


def prepared(parameters: MatmulParameters) -> Launches:
    pytest.importorskip("torch")
    operator = Matmul()
    implementation = operator.implementation("torch_padded")
    implementation.validate(parameters)
    return implementation.prepare(parameters, operator.operands(parameters, seed=1), Place(CPU, sets=2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "operands", "slicing"),
    [
        ((33, 40, 48), ["a"], "view"),
        ((32, 41, 48), ["b"], "copy"),
        ((32, 40, 47), ["a", "b"], "none"),
        ((31, 39, 49), ["a", "b"], "copy"),
        ((1, 1, 1), ["a", "b"], "copy"),
        ((32, 40, 48), [], "none"),
    ],
    ids=str,
)
def test_a_padded_product_is_the_product_whatever_is_padded(
    shape: tuple[int, int, int], operands: list[str], slicing: str, layout: str, dtype: str
) -> None:
    parameters = padded(*shape, dtype=dtype, layout=layout)
    launches = prepared(parameters)
    assert launches.kernel.details["padded"] == operands
    assert launches.kernel.details["slice"] == slicing
    inputs = Matmul().operands(parameters, seed=1)
    for index in (0, 1):
        launches.poison()
        launches.launch(index)
        verification = Matmul().verify(parameters, inputs, launches.outputs(index))
        assert verification.passed, verification.message


@pytest.mark.parametrize("shape", [(33, 40, 48), (32, 41, 48), (32, 40, 47)], ids=str)
def test_a_padded_product_nobody_launched_is_all_poison(shape: tuple[int, int, int]) -> None:
    launches = prepared(padded(*shape))
    launches.launch(0)
    launches.poison()
    assert np.isnan(launches.outputs(0)["c"]).all()


def test_operands_padded_before_are_as_they_were() -> None:
    parameters = padded(5, 7, 3)
    operator = Matmul()
    inputs = operator.operands(parameters, seed=1)
    before = {name: inputs[name].copy() for name in "ab"}
    pytest.importorskip("torch")
    launches = operator.implementation("torch_padded").prepare(parameters, inputs, Place(CPU))
    launches.launch(0)
    for name, values in before.items():
        np.testing.assert_array_equal(inputs[name], values)


def test_what_is_multiplied_is_named_by_its_padded_sizes() -> None:
    assert prepared(padded(33, 40, 47)).kernel.details["multiplied"] == "40x40x48"


def test_padding_adds_nothing_to_the_work() -> None:
    as_it_is = dataclasses.replace(padded(33, 41, 47), pad_to=1)
    assert Matmul().work(padded(33, 41, 47, pad_to=64)) == Matmul().work(as_it_is)


@pytest.mark.parametrize("implementation", sorted(set(Matmul.implementations) - {"torch_padded", "cublas_padded"}))
def test_what_does_not_pad_refuses_to_and_names_what_does(implementation: str) -> None:
    with pytest.raises(UserError, match="multiples of 8: torch_padded and cublas_padded"):
        Matmul().implementation(implementation).validate(padded(33, 41, 47))


@pytest.mark.parametrize("implementation", ["torch_padded", "cublas_padded"])
def test_what_pads_wants_to_be_told_to_what(implementation: str) -> None:
    with pytest.raises(UserError, match="pad_to = 1 leaves them as they are"):
        Matmul().implementation(implementation).validate(padded(33, 41, 47, pad_to=1))


@pytest.mark.parametrize("pad_to", [0, -8])
def test_a_multiple_below_one_is_refused(pad_to: int) -> None:
    with pytest.raises(UserError, match=f"pad_to={pad_to} was asked for"):
        Matmul().validate(padded(33, 41, 47, pad_to=pad_to))
