from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.record.case import Case, decode_fields, encode_fields
from pyperf_suite.workloads.matmul import LAYOUTS, MatmulParameters
from tests.records import a_product

dimensions = st.integers(1, 1 << 31)
parameters = st.builds(
    MatmulParameters,
    dimensions,
    dimensions,
    dimensions,
    st.builds(Schedule, st.sampled_from(["data_parallel", "stream_k", "library"]), st.integers(1, 64)),
    st.none() | st.builds(Tile, *(st.integers(1, 512) for _ in range(3))),
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from(LAYOUTS),
)


@given(parameters, st.sampled_from(["native", "torch"]), st.integers(0, 9))
def test_a_case_comes_back_from_json_with_the_same_id(p, implementation, seed):
    case = Case("matmul", p, implementation, seed)
    again = Case.from_json(case.to_json())
    assert again == case
    assert again.case_id == case.case_id


def test_the_id_of_a_known_case_never_changes():
    case = a_product(64, schedule="persistent@2", tile="64x64x64")
    assert case.to_json() == {
        "operator": "matmul",
        "parameters": {"m": 64, "n": 64, "k": 64, "schedule": "persistent@2", "tile": "64x64x64"},
        "implementation": "native",
    }
    assert case.case_id == "0380f9ad226d6c96"


def test_a_new_field_with_a_default_keeps_the_encoding_of_old_cases():
    @dataclass(frozen=True)
    class Before:
        m: int

    @dataclass(frozen=True)
    class After:
        m: int
        stride: int = 0

    assert encode_fields(Before(3)) == encode_fields(After(3)) == {"m": 3}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"operator": "divination", "parameters": {}, "implementation": "native"},
        {"operator": "matmul", "parameters": {"m": 1}, "implementation": "native"},
        {"operator": "matmul", "parameters": {"zeal": 1}, "implementation": "native"},
        {"operator": "matmul", "parameters": 7, "implementation": "native"},
        {"operator": ["matmul"], "parameters": {}, "implementation": "native"},
    ],
)
def test_what_is_not_a_case_is_a_user_error(data):
    with pytest.raises(UserError):
        Case.from_json(data)


def test_an_unknown_field_or_implementation_is_named_with_those_there_are():
    with pytest.raises(UserError, match=r"'width'.*m, n, k"):
        decode_fields(MatmulParameters, {"width": 3})
    with pytest.raises(UserError, match=r"'abacus'.*native, native_amx.*torch"):
        a_product(8, implementation="abacus", schedule="library@1").validate()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"m": 0}, "m=0"),
        ({"n": -3}, "n=-3"),
        ({"k": 1 << 40}, "k="),
        ({"dtype": "float7"}, "float7"),
        ({"layout": "XY"}, "XY"),
        ({"schedule": Schedule("data_parallel", 100_000)}, "100000 workers"),
        ({"schedule": Schedule("library", 1)}, "library@1"),
        ({"tile": Tile(7, 7, 7)}, "7"),
        ({"tile": Tile(64, 64, 64, stages=3)}, "stages"),
    ],
)
def test_a_case_that_can_never_run_is_refused_with_the_value_named(changed, named):
    values = {"m": 8, "n": 8, "k": 8, "schedule": Schedule("data_parallel", 1)} | changed
    with pytest.raises(UserError, match=named):
        Case("matmul", MatmulParameters(**values), "native").validate()  # type: ignore[arg-type]


def test_a_sustained_case_is_another_case_and_an_unknown_mode_is_refused():
    parameters = MatmulParameters(8, 8, 8, Schedule("library", 1))
    burst, sustained = Case("matmul", parameters, "torch"), Case("matmul", parameters, "torch", mode="sustained")
    assert "mode" not in burst.to_json()
    assert sustained.case_id != burst.case_id
    assert sustained.label.endswith("mode=sustained]")
    assert Case.from_json(sustained.to_json()) == sustained
    with pytest.raises(UserError, match=r"'sprint': choose from burst, sustained"):
        Case("matmul", parameters, "torch", mode="sprint").validate()


@pytest.mark.parametrize(
    ("name", "value"),
    [("m", "a"), ("m", 1.5), ("m", True), ("m", None), ("dtype", 7), ("schedule", 3), ("tile", 3), ("layout", ["NN"])],
)
def test_a_parameter_that_is_not_of_its_type_is_refused_when_it_is_read(name, value):
    case = a_product(8, schedule="persistent@1", tile="32x32x32").to_json()
    with pytest.raises(UserError, match=name):
        Case.from_json(case | {"parameters": case["parameters"] | {name: value}})
