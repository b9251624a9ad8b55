"""`--shape`: three probes train the guides' models, and their tables show the guides' figures as well."""

from __future__ import annotations

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes import find_probe
from pyperf_suite.workloads.training.shapes import SHAPES, shape_name
from tests.commands import invoke

CPU, GPU = Device("cpu"), Device("cuda")
SHAPED = ("block", "optimizer", "precision")


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize("profile", ["quick", "standard"])
@pytest.mark.parametrize("name", SHAPED)
def test_every_shape_makes_cases_of_that_model(name: str, profile: str, device: Device) -> None:
    for shape in SHAPES:
        cases = find_probe(name).cases(profile, device, {"shape": shape})
        models = [case.parameters for case in cases if case.operator not in ("matmul", "optimizer_update")]
        assert set(map(shape_name, models)) <= {shape}
        assert {str(c.parameters.tensors) for c in cases if c.operator == "optimizer_update"} <= {shape}
    together = find_probe(name).cases(profile, device, {"shape": ",".join(SHAPES)})
    assert len(together) > len(cases)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"shape": "bert"}, "choose from bert-base, bert-large, gpt2"),
        ({"shape": "gpt2", "hidden": "8"}, "hidden=8 was requested with shape=gpt2"),
        ({"shape": "gpt2", "batch": "-1"}, "batch is at least 1"),
        ({"shape": ""}, "choose from"),
    ],
)
def test_what_no_shape_can_be_is_refused(overrides: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_probe("precision").cases("quick", CPU, overrides)


def test_a_probe_without_shapes_says_who_has_them() -> None:
    answer = invoke("run", "tile_wave", "--shape", "gpt2")
    assert answer.exit_code == 2
    assert "--shape is for block, optimizer, precision" in answer.output
