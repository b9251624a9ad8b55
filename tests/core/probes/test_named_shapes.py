"""`--shape`: three probes train the guides' models, and their tables show the guides' figures as well."""

from __future__ import annotations

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes import find_probe
from pyperf_suite.workloads.training.shapes import SHAPES, shape_name
from tests.commands import invoke
from tests.records import cells, records

CPU, GPU = Device("cpu"), Device("cuda")
SHAPED = ("block", "optimizer", "precision")


def table_of(probe: str, title: str, seconds: float, shape: str, **how) -> list[dict]:
    cases = find_probe(probe).cases("quick", CPU, {"shape": shape} | how.pop("axes", {}))
    found = find_probe(probe).findings(records(cases, seconds, details={"parameters": 1}, **how))
    return next(cells(table) for table in found.tables if title in table.title)


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


def test_a_step_stands_beside_the_guides() -> None:
    row = table_of("block", "guides' models", 2.0, "bert-large")[0]
    assert (row["model"], row["batch"], row["rate"].value) == ("bert-large", "4 x 512", 2.0)
    assert (row["by the guide"].value, row["its batch"]) == (8.86, "4 x 512")
    assert row["its hardware"] == "V100 SXM2 16GB"


def test_a_process_stands_beside_nvidia_smi() -> None:
    kept = {"weights": 1, "gradients": 1, "activations": 1, "weight_copies": 0, "cast": 0, "casts": 0}
    seen = kept | {"shown": 5e9, "context": 4e8, "tensors": 4e9}
    axes = {"process": "float32,autocast_bfloat16", "batch": "64"}
    kind = lambda case: "static" if case.operator == "training_memory" else "timing"  # noqa: E731
    rows = table_of("precision", "the system shows", 1.0, "bert-base", axes=axes, metrics=seen, kind=kind)
    assert [row["by the guide"].value for row in rows] == [10037e6, 8061e6]
    assert [row["shown"].value for row in rows] == [5e9, 5e9]


def test_an_optimizers_state_stands_beside_the_memory_that_it_saved_there() -> None:
    def held(case) -> dict[str, float]:
        return {"state": {"AdamW": 8.0, "Adafactor": 0.1}[case.parameters.optimizer] * 1e6}

    rows = table_of(
        "optimizer",
        "Optimizers' state",
        1.0,
        "bert-large",
        axes={"implementation": "foreach,bitsandbytes_8bit"},
        metrics=held,
    )
    shown = ((row["optimizer"], row["way"], row["by the guide"].value) for row in rows)
    saved = {(optimizer, way): value for optimizer, way, value in shown}
    assert saved == {
        ("AdamW", "foreach"): 14949e6,
        ("8-bit Adam", "bitsandbytes_8bit"): 13085e6,
        ("Adafactor", "foreach"): 12295e6,
    }
