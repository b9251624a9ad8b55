"""Each part of a block is right against float64, its work is what it must compute and move, and errors are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.training.block_part import BLOCK_PARTS, PART_DTYPES, BlockPart, BlockPartParameters
from pyperf_suite.workloads.training.shape import TransformerShape, asked_flop
from pyperf_suite.workloads.workload import Place

torch = pytest.importorskip("torch")

CPU = Device("cpu")
SMALL = BlockPartParameters(hidden=64, heads=4, seq=16, batch=2)


@pytest.mark.parametrize("part", BLOCK_PARTS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_part_is_right(part, gated, dtype):
    p = replace(SMALL, part=part, gated=gated, dtype=dtype, kv_heads=2)
    answer = measure_case(Case("block_part", p, "torch"), None, CPU)
    assert answer["outcome"] == "ok", answer
    assert answer["work"]["bytes"] > 0


@pytest.mark.parametrize("gated", [False, True])
def test_the_parts_of_a_block_are_its_forward_pass(gated):
    whole = TransformerShape(hidden=64, heads=4, layers=1, seq=16, batch=2, gated=gated, kv_heads=2)
    parts = (BlockPartParameters(**vars(whole), part=part) for part in BLOCK_PARTS)
    assert sum(BlockPart().work(part).flop for part in parts) == asked_flop(whole) / 3


def test_a_product_that_leaves_its_bias_out_is_found(monkeypatch):
    p = replace(SMALL, part="up")
    steps = BlockPart().implementation("torch").prepare(p, Place(CPU))
    right = steps._forward
    monkeypatch.setattr(
        steps,
        "_forward",
        lambda inputs, weights: right(inputs, weights[: 2 if inputs[0].dtype == torch.float64 else 1]),
    )
    assert steps.check().wrong > 0


@pytest.mark.parametrize("pick", ["largest", "usual"])
@pytest.mark.parametrize("dtype", PART_DTYPES)
@pytest.mark.parametrize("part", BLOCK_PARTS)
def test_a_single_element_with_the_wrong_sign_is_found(part, dtype, pick, monkeypatch):
    steps = BlockPart().implementation("torch").prepare(replace(SMALL, part=part, dtype=dtype, seq=64), Place(CPU))
    right = steps._forward

    def flipped(inputs, weights):
        result = right(inputs, weights)
        if inputs[0].dtype != torch.float64:
            sizes = result.reshape(-1).abs()
            place = int(sizes.argmax() if pick == "largest" else sizes.argsort()[3 * len(sizes) // 5])
            result = result.clone(memory_format=torch.contiguous_format)
            result.view(-1)[place] *= -1
        return result

    monkeypatch.setattr(steps, "_forward", flipped)
    assert steps.check().wrong == 1
