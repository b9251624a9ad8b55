"""Every implementation is right on shapes that break things; what nobody wrote, and one wrong element, are seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiled_attention import Blocks
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.record.case import Case
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.matmul import LAYOUTS, GroupedMatmulParameters, MatmulParameters
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.layers import (
    BLOCK_PARTS,
    LAYERS,
    PART_DTYPES,
    BlockPartParameters,
    LayerPassParameters,
    passes_of,
)
from pyperf_suite.workloads.training.optimizer import OptimizerUpdateParameters, TensorSet
from pyperf_suite.workloads.training.training_step import CAST_CACHES, PRECISIONS, TrainingStepParameters
from pyperf_suite.workloads.workload import ExecutionContext

CPU = Device("cpu")
TILE = Tile(32, 64, 48)
# 1, primes, tile - 1, tile, tile + 1, and K that is no multiple of the k-tile.
SHAPES = [(1, 1, 1), (1, 67, 3), (31, 63, 47), (32, 64, 48), (33, 65, 49), (97, 131, 101)]
# A single one of everything; odd sizes and grouped queries; decode with one key head; more keys than queries.
ATTENTIONS = [
    AttentionParameters(1, 1, 1, 1),
    AttentionParameters(2, 4, 40, 33, 65, kv_heads=2, causal=True),
    AttentionParameters(1, 4, 64, 1, 97, kv_heads=1, causal=True),
    AttentionParameters(2, 3, 72, 67, causal=True),
    AttentionParameters(1, 2, 16, 31, 64),
]
NATIVE_ATTENTION = AttentionParameters(2, 4, 40, 67, 91, kv_heads=2, dtype="float32", blocks=Blocks(16, 64))
GROUPED = GroupedMatmulParameters(experts=4, rows=70, n=24, k=16, dtype="float32")
STEP = TrainingStepParameters(hidden=64, heads=4, layers=3, seq=16, batch=2)
PRECISE = TrainingStepParameters(hidden=64, heads=4, layers=2, seq=16, batch=2, vocab=96)
LAYER = LayerPassParameters(batch=2, seq=36, hidden=24, heads=3)
PART = BlockPartParameters(hidden=64, heads=4, seq=16, batch=2)
LEAST_COMPARED = {"training_step": 11, "precision_step": 41, "layer_pass": LAYER.hidden}
ON_CPU = [each for each in PRECISIONS if each != "tfloat32"]
STEPS: list[dict[str, Any]] = [
    {},
    {"vocab": 96},
    {"batch": 6},  # whose reference is computed by parts
    {"batch": 6, "vocab": 96},
    {"vocab": 96, "gated": True, "kv_heads": 2, "tied": False},
    {"attention": "explicit", "kv_heads": 2},
    {"dropout": 0.2},
    {"checkpointing": Checkpointing("selective")},
    {"checkpointing": Checkpointing("every", 2)},
    {"part": "train"},
    {"vocab": 96, "classes": 3},
    {"vocab": 96, "classes": 2, "attention": "explicit", "dropout": 0.1},  # an encoder as BERT was
    *({"precision": precision, "vocab": 96} for precision in ON_CPU),
]


def cases() -> Iterator[Case | Any]:
    """Every implementation that a CPU has, on what may break it."""
    # tests/core/native has every layout under every schedule; here layouts and types alternate over the schedules.
    for (row, shape), (column, dtype) in product(enumerate(SHAPES), enumerate(("float32", "bfloat16"))):
        split = f"split_k({2 if shape[2] > TILE.k else 1})@1"
        for number, schedule in enumerate(("data_parallel@1", "persistent@1", split, "stream_k@1")):
            layout = LAYOUTS[(row + 2 * column + number) % 4]
            parameters = MatmulParameters(*shape, Schedule.parse(schedule), TILE, dtype=dtype, layout=layout)
            yield Case("matmul", parameters, "native")
            yield Case("matmul", replace(parameters, schedule=Schedule("library", 1), tile=None), "torch")
    for number, layout in enumerate(LAYOUTS):
        shape = [(1, 1, 1), (33, 65, 47), (32, 48, 64)][number % 3]
        for dtype, pad_to in product(("float16", "float8_e4m3fn"), (1, 16)):
            parameters = MatmulParameters(*shape, Schedule("library", 1), dtype=dtype, layout=layout, pad_to=pad_to)
            yield Case("matmul", parameters, "torch" if pad_to == 1 else "torch_padded")
    for way, dtype in product(("loop", "padded", "grouped_mm"), ("float32", "bfloat16")):
        yield Case("grouped_matmul", replace(GROUPED, skew=1.0, dtype=dtype), way)
        yield Case("grouped_matmul", replace(GROUPED, experts=8, rows=5, dtype=dtype), way)  # some have no row
    for number, backward in product(range(5), (False, True)):
        dtype = ("bfloat16", "float32", "float16", "bfloat16", "float16")[number]
        parameters = replace(ATTENTIONS[number], dtype=dtype, backward=backward)
        quick = number == 1
        for way in ("sdpa_default", "sdpa_flash", "sdpa_math", "two_gemm", "two_gemm_products"):
            yield pytest.param(Case("attention", parameters, way), marks=[] if quick else [pytest.mark.slow])
    all_blocks = (None, Blocks(16, 64), Blocks(67, 128))
    for seq, blocks, causal, dtype in product((1, 67), all_blocks, (False, True), ("float32", "bfloat16")):
        changed = {"seq_q": seq, "blocks": blocks, "causal": causal, "dtype": dtype}
        yield Case("attention", replace(NATIVE_ATTENTION, **changed), "native")
    for change in STEPS:
        yield Case("training_step", replace(STEP, **change), "torch")
    for precision in ON_CPU:
        yield Case("precision_step", replace(PRECISE, precision=precision, micro_batches=3), "torch")
    for cache in CAST_CACHES:
        changed = {"precision": "autocast_bfloat16", "micro_batches": 2, "cast_cache": cache}
        yield Case("precision_step", replace(PRECISE, **changed), "torch")
    for layer, dtype in product(LAYERS, ("float32", "bfloat16", "float16")):
        for phase in passes_of(layer):
            yield Case("layer_pass", replace(LAYER, layer=layer, phase=phase, dtype=dtype), "torch")
    for part, gated, dtype in product(BLOCK_PARTS, (False, True), ("float32", "bfloat16")):
        yield Case("block_part", replace(PART, part=part, gated=gated, dtype=dtype, kv_heads=2), "torch")
    for way in ("loop", "foreach", "fused"):
        yield Case("optimizer_update", OptimizerUpdateParameters(TensorSet(5, 24, 16), dtype="bfloat16"), way)


def prepared(case: Case) -> Any:
    """Made ready on two operand sets, where a case has any."""
    if case.implementation != "native":
        pytest.importorskip("torch")
    case.validate()
    return find_workload(case.operator).prepare(case.parameters, case.implementation, ExecutionContext(CPU, sets=2))


def verified(case: Case) -> Any:
    """Launches that were found right on each set, and wrong where nobody had written it."""
    launches = prepared(case)
    if case.operator != "optimizer_update":  # whose every step starts from the last
        launches.poison()
        for index in range(launches.sets):
            assert not launches.verify_last(index).passed
            launches.launch(index)
    verdict = launches.check()
    assert verdict.passed, verdict.message
    if case.operator in LEAST_COMPARED:
        assert verdict.compared >= LEAST_COMPARED[case.operator]
    return launches


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.label)
def test_every_implementation_is_right_and_what_nobody_wrote_is_not(case: Case) -> None:
    try:
        verified(case)
    except Unsupported as refusal:
        if "float8" not in getattr(case.parameters, "dtype", ""):
            raise
        # Torch decides which shapes and layouts of 8-bit types a CPU takes, and changes that.
        pytest.skip(str(refusal))


WEIGHTS = ("tokens.weight", "blocks.blocks.1.attention.qkv.weight", "blocks.blocks.0.mlp.up.bias")
BOTH = ("largest", "usual")


def spoilable() -> Iterator[tuple[Case, tuple[str, ...], str]]:
    """Cases, of which results an element is spoilt, and which: the largest, or one as large as half of all are."""
    for precision, pick in product(ON_CPU, BOTH):
        names = tuple(f"the gradient of {name}" for name in WEIGHTS)
        yield Case("training_step", replace(STEP, precision=precision, vocab=96), "torch"), names, pick
    for precision in ("float32", "bfloat16"):
        yield Case("training_step", replace(STEP, precision=precision, part="forward"), "torch"), (), "largest"
    for phase, dtype in product(("forward", "dgrad", "wgrad"), ("float32", "bfloat16", "float16")):
        yield Case("layer_pass", replace(LAYER, layer="linear", phase=phase, dtype=dtype), "torch"), (), "largest"
    for part, dtype, pick in product(BLOCK_PARTS, PART_DTYPES, BOTH):
        yield Case("block_part", replace(PART, part=part, dtype=dtype, seq=64), "torch"), (), pick


@pytest.mark.parametrize(("case", "names", "pick"), list(spoilable()))
def test_a_single_element_with_the_wrong_sign_is_found_on_any_set(
    case: Case, names: tuple[str, ...], pick: str
) -> None:
    launches = prepared(case)
    assert launches.check().passed
    last = launches.sets - 1
    results = launches.results(last)
    for name in names or results:
        result, sizes = results[name].detach(), results[name].detach().abs().reshape(-1)
        place = int(sizes.argmax() if pick == "largest" else sizes.argsort()[3 * len(sizes) // 5])
        at = tuple(int(each) for each in np.unravel_index(place, result.shape))
        result[at] *= -1
        checked = launches.verify_last(last)
        assert (checked.wrong, f"{name} at {at}" in checked.first) == (1, True), checked.first
        result[at] *= -1
