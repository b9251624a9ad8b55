import itertools
from dataclasses import replace

import pytest

from pyperf_suite.laws.training.memory import ActivationPolicy, activation_bytes, kept_bytes
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.training_step import TrainingStepParameters

BASE = TrainingStepParameters(hidden=32, heads=4, layers=3, seq=12, batch=2, vocab=37)
# Every pair of these, and each of the other sizes with both blocks: more than 40.
CROSSED = [
    replace(BASE, gated=gated, attention=attention, dropout=dropout, checkpointing=Checkpointing.parse(text))
    for gated, attention, dropout, text in itertools.product(
        (False, True), ("sdpa", "math", "explicit"), (0.0, 0.1), ("none", "every:1", "every:2", "selective")
    )
]
CHANGES = [
    {"batch": 1},
    {"batch": 1, "kv_heads": 2, "attention": "explicit"},
    {"batch": 1, "dropout": 0.1},
    {"batch": 1, "dropout": 0.1, "kv_heads": 2},
    {"heads": 1},
    {"seq": 31},
    {"kv_heads": 1},
    {"kv_heads": 2, "attention": "explicit", "dropout": 0.1},
    {"batch": 1, "kv_heads": 2, "attention": "math"},
    {"batch": 1, "attention": "math"},
    {"kv_heads": 2, "attention": "math", "dropout": 0.1},
    {"precision": "bfloat16", "attention": "math"},
    {"precision": "autocast_bfloat16", "attention": "math", "dropout": 0.1},
    {"attention": "flash"},
    {"ffn": 40},
    {"vocab": 0},
    {"vocab": 0, "checkpointing": Checkpointing("every", 2)},
    {"vocab": 0, "checkpointing": Checkpointing("selective")},
    {"tied": False},
    {"precision": "bfloat16"},
    {"precision": "float16"},
    {"precision": "bfloat16", "dropout": 0.1},
    {"precision": "bfloat16", "dropout": 0.1, "checkpointing": Checkpointing("selective")},
    {"precision": "bfloat16", "vocab": 0},
    {"precision": "autocast_bfloat16"},
    {"precision": "autocast_bfloat16", "attention": "explicit", "dropout": 0.1},
    {"precision": "autocast_bfloat16", "checkpointing": Checkpointing("every", 2)},
]
GRID = CROSSED + [replace(BASE, gated=gated, **change) for change in CHANGES for gated in (False, True)]
GPT = ModelDimensions(layers=6, hidden=256, ffn=1024, heads=8, vocab=1, bias=True)


def measured(p):
    torch = pytest.importorskip("torch")
    from pyperf_suite.workloads.training.gpt import build, inputs
    from pyperf_suite.workloads.training.held_bytes import kept

    weights = getattr(torch, p.weights)
    model = build(p).to(weights)
    data = [each.to(weights) if each.is_floating_point() else each for each in inputs(p)]

    def call():
        with torch.autocast("cpu", torch.bfloat16, enabled=p.precision.startswith("autocast")):
            return model(*data)

    return kept(model, call).activations


def law(p):
    return kept_bytes(p.dimensions, p.batch, p.seq, p.keeping("cpu")).total


@pytest.mark.slow
@pytest.mark.parametrize("p", GRID, ids=lambda p: "-".join(str(value) for value in vars(p).values()))
def test_the_law_is_what_torch_keeps(p):
    assert law(p) == pytest.approx(measured(p), rel=0.001)


def test_sixteen_bits_on_a_gpu_are_korthikantis_formula_but_for_statistics():
    keeping = ActivationPolicy(2, 2, dropout=True, attention="explicit", ends=False, device="cuda")
    kept = kept_bytes(GPT, 2, 64, keeping)
    tokens, hidden, heads = 2 * 64, GPT.hidden, GPT.heads
    assert kept.total - kept.statistics == GPT.layers * tokens * hidden * (34 + 5 * heads * 64 / hidden)
    with_ends = activation_bytes(GPT, 2, 64, recompute="nothing")
    outside = tokens * (5 * hidden + 4)
    assert kept.total - kept.statistics == with_ends - outside


def test_full_recomputation_keeps_a_layers_input_as_the_formula_says():
    kept = kept_bytes(GPT, 2, 64, ActivationPolicy(2, 2, checkpointing="every", ends=False, device="cuda"))
    assert kept.total == GPT.layers * 2 * 64 * 2 * GPT.hidden
