"""Every pass of every layer is that of float64, counts what torch counts, and finds what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.workloads.training import TransformerShape, layers, requested_flop
from pyperf_suite.workloads.training.layers import (
    ACTIVATIONS,
    BLOCK_PARTS,
    LAYERS,
    BlockPart,
    BlockPartParameters,
    LayerPass,
    LayerPassParameters,
    passes_of,
)
from pyperf_suite.workloads.workload import ExecutionContext

torch = pytest.importorskip("torch")

CPU = Device("cpu")
SMALL = LayerPassParameters(batch=2, seq=36, hidden=24, heads=3)
EVERY = [(layer, phase) for layer in LAYERS for phase in passes_of(layer)]


def prepared(layer, phase="forward", **changed):
    parameters = replace(SMALL, layer=layer, phase=phase, **changed)
    parameters.validate()
    return LayerPass().implementation("torch").prepare(parameters, ExecutionContext(CPU))


@pytest.mark.parametrize(("layer", "phase"), [each for each in EVERY if each[0] != "copy"])
def test_a_formula_that_is_slightly_another_is_found(layer, phase, monkeypatch):
    steps, apply = prepared(layer, phase, dtype="bfloat16"), layers.written_out

    def last_column_larger(*args):
        result = apply(*args)
        return torch.cat([result[..., :-1], 1.5 * result[..., -1:]], dim=-1)

    monkeypatch.setattr(layers, "written_out", last_column_larger)
    assert steps.check().wrong > 0


def test_a_wrong_element_is_found_and_named_and_so_is_what_is_no_number():
    steps = prepared("gelu", "backward", dtype="bfloat16")
    assert steps.check().wrong == 0
    (gradient,) = steps.results(0).values()
    gradient[3, 7] = 0.0 if abs(float(gradient[3, 7])) > 0.5 else 1.0
    checked = steps.verify_last(0)
    assert checked.wrong == 1
    assert checked.first.startswith("the gradient of input 0 at (3, 7)")
    gradient *= float("nan")
    checked = steps.verify_last(0)
    assert checked.wrong == checked.compared


def test_a_pass_that_is_wrong_on_one_operand_set_alone_is_found(monkeypatch):
    run = layers.LayerSteps._run

    def wrong_on_the_third(steps, operands):
        return tuple(each * (2 if operands is steps._operands[2] else 1) for each in run(steps, operands))

    monkeypatch.setattr(layers.LayerSteps, "_run", wrong_on_the_third)
    answer = measure_case(Case("layer_pass", replace(SMALL, layer="gelu"), "torch"), None, CPU)
    assert answer["outcome"] == "failed"


@pytest.mark.parametrize("layer", ["linear", "conv"])
@pytest.mark.parametrize("phase", ["forward", "backward", "dgrad", "wgrad"])
@pytest.mark.parametrize("out", [0, 40])
def test_products_count_the_flops_that_torch_counts(layer, phase, out):
    from torch.utils.flop_counter import FlopCounterMode

    steps = prepared(layer, phase, out=out)
    with FlopCounterMode(display=False) as counter:
        steps.launch(0)
    # torch counts the taps of a convolution that fall on the border of zeros as well.
    assert LayerPass().work(steps._p).flop == counter.get_total_flops()


@pytest.mark.parametrize("layer", ["linear", "conv", *ACTIVATIONS])
def test_forward_keeps_one_tensor_of_the_input_for_backward(layer):
    observed = prepared(layer, dtype="bfloat16").observed()
    assert observed["saved"].unit == "B"
    assert list(observed["saved"].samples) == [SMALL.tokens * SMALL.hidden * 2]
    assert prepared("linear", "backward").observed() == {}
    assert list(prepared("copy").observed()["saved"].samples) == [0]


PART = BlockPartParameters(hidden=64, heads=4, seq=16, batch=2)


@pytest.mark.parametrize("gated", [False, True])
def test_the_parts_of_a_block_are_its_forward_pass(gated):
    whole = TransformerShape(hidden=64, heads=4, layers=1, seq=16, batch=2, gated=gated, kv_heads=2)
    parts = (BlockPartParameters(**vars(whole), part=part) for part in BLOCK_PARTS)
    assert sum(BlockPart().work(part).flop for part in parts) == requested_flop(whole) / 3


def test_a_product_that_leaves_its_bias_out_is_found(monkeypatch):
    steps = BlockPart().implementation("torch").prepare(replace(PART, part="up"), ExecutionContext(CPU))
    right = layers.apply
    monkeypatch.setattr(layers, "apply", lambda torch, layer, inputs, weights: right(torch, layer, inputs, weights[:1]))
    assert steps.check().wrong > 0
