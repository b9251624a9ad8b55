"""Properties of a training case before it is tried: its FLOPs, its memory, its name, and that it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import Failed, UserError
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.transformer import model_flop
from pyperf_suite.probes import find_probe
from pyperf_suite.probes.block import computed_flop, guides_flop
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.workloads import find_workload, training
from pyperf_suite.workloads.training import Checkpointing, TransformerShape, requested_flop
from pyperf_suite.workloads.training.shapes import PUBLISHED, SHAPES, published_step, tensor_sizes
from pyperf_suite.workloads.training.step_memory import TrainingMemory
from pyperf_suite.workloads.training.training_step import TrainingStep, TrainingStepParameters
from pyperf_suite.workloads.workload import ExecutionContext

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from pyperf_suite.workloads.training.gpt import build, inputs  # noqa: E402

SHAPE = TransformerShape(hidden=64, heads=4, layers=3, seq=16, batch=2)
BLOCKS = {
    "gpt-2": SHAPE,
    "a single block": replace(SHAPE, layers=1),
    "with logits": replace(SHAPE, vocab=96),
    "explicit": replace(SHAPE, attention="explicit"),
    "llama": replace(SHAPE, vocab=96, gated=True, kv_heads=2, tied=False),
    "llama, explicit, one key head": replace(SHAPE, gated=True, kv_heads=1, attention="explicit"),
    "a narrow MLP": replace(SHAPE, ffn=40, vocab=33),
    "dropout": replace(SHAPE, dropout=0.2),
    "one head, odd length": replace(SHAPE, heads=1, seq=13, batch=1),
}


def counted(shape):
    model, data = build(shape), inputs(shape)
    # The counter knows torch's own attention by its products, not the CPU's fused kernel.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*data).sum().backward()
    return counter.get_total_flops()


def masked(shape, passes):
    """FLOPs of the pairs that a causal mask hides, which torch's counter counts and we do not."""
    return passes * shape.layers * 4 * shape.batch * shape.hidden * (shape.seq * (shape.seq - 1) // 2)


@pytest.mark.parametrize("shape", BLOCKS.values(), ids=BLOCKS)
def test_what_is_asked_for_is_what_torch_counts(shape):
    assert requested_flop(shape) + masked(shape, 3) == counted(shape)


@pytest.mark.parametrize("kind", ["every:1", "every:2", "selective"])
@pytest.mark.parametrize("vocab", [0, 96])
@pytest.mark.parametrize("gated", [False, True])
def test_what_is_computed_again_is_what_torch_counts(kind, vocab, gated):
    shape = replace(SHAPE, vocab=vocab, gated=gated, attention="explicit", checkpointing=Checkpointing.parse(kind))
    assert computed_flop(shape) + masked(shape, 3 if kind == "selective" else 4) == counted(shape)


def test_the_guides_estimate_counts_a_fourth_pass_with_checkpointing():
    assert guides_flop(SHAPE, 1000) == 3 * 2 * 1000 * 32
    assert guides_flop(replace(SHAPE, checkpointing=Checkpointing("every")), 1000) == 4 * 2 * 1000 * 32


CPU = Device("cpu")


def plan(name, **overrides):
    cases = tuple(PlannedCase(name, case) for case in find_probe(name).cases("quick", CPU, overrides))
    return Plan(cases, PROFILES["quick"], CPU)


@pytest.mark.parametrize(
    ("probe", "overrides"),
    [
        ("memory", {"batch": "100000000"}),
        ("block", {"hidden": "200000", "heads": "100"}),
        ("block", {"batch": "10000000"}),
        ("backward", {"hidden": "99999999999"}),
        ("precision", {"hidden": "200000", "heads": "100"}),
        ("checkpointing", {"hidden": "200000", "heads": "100"}),
        ("optimizer", {"tensors": "1x90000x90000"}),
    ],
)
def test_what_no_memory_holds_is_refused_before_it_is_tried(monkeypatch, probe, overrides):
    monkeypatch.setattr(memory, "available_bytes", lambda: 64_000_000_000)
    with pytest.raises(UserError, match=r"needs .* GB .* ask for smaller dimensions"):
        plan(probe, **overrides).validate()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast_bfloat16"])
def test_a_steps_need_is_what_is_counted_when_it_is_taken(precision):
    p = TrainingStepParameters(hidden=64, heads=4, layers=2, seq=32, batch=2, vocab=128, precision=precision)
    metrics = TrainingMemory().prepare(p, "storages", ExecutionContext(CPU)).exact
    counted = sum(metrics[name]["value"] for name in ("weights", "gradients", "optimizer", "activations"))
    assert replace(p, part="train").step_bytes == pytest.approx(counted, rel=0.02)


def test_without_room_for_the_reference_a_case_is_unsupported(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    case = Case("training_step", TrainingStepParameters(hidden=32, heads=2, layers=1, seq=16), "torch")
    answer = measure_case(case, PROFILES["quick"].effort, CPU)
    assert answer["outcome"] == "unsupported"
    assert "in float64, takes" in answer["reason"]


# Parameters of the models that the guides loaded: 512 positions and token types of BERT's are the difference.
PARAMETERS = {"bert-base": 108.3e6, "bert-large": 335.1e6, "gpt2": 124.4e6}
SMALL = TrainingStepParameters(hidden=32, heads=2, layers=4, seq=8, batch=2, vocab=40)


@pytest.mark.parametrize("name", SHAPES)
def test_a_named_shape_is_as_large_as_the_model_of_that_name(name: str) -> None:
    with torch.device("meta"):
        model = build(SHAPES[name])
    sizes = [tuple(each.shape) if each.ndim > 1 else (1, len(each)) for each in model.parameters()]
    assert sorted(sizes) == sorted(tensor_sizes(SHAPES[name]))
    count = sum(rows * columns for rows, columns in sizes)
    assert count == SHAPES[name].dimensions.parameters
    assert count == pytest.approx(PARAMETERS[name], rel=0.005)


def test_an_encoder_sees_what_comes_later_and_counts_no_logits() -> None:
    for attention in ("sdpa", "explicit"):
        shape = replace(SMALL, classes=3, attention=attention)
        model = build(shape).eval()
        tokens, classes = inputs(shape)
        other = tokens.clone()
        other[:, -1] = (other[:, -1] + 1) % shape.vocab
        assert classes.shape == (2,)
        assert int(classes.max()) < 3
        assert not torch.equal(model(tokens, classes), model(other, classes))
    logits = 6 * shape.tokens * shape.hidden * shape.vocab
    assert requested_flop(shape) == model_flop(shape.dimensions, shape.batch, shape.seq) - logits


@pytest.mark.parametrize(("layer", "is_seen"), [(0, True), (2, False), (3, True)])
def test_of_a_large_model_gradients_of_its_ends_are_compared(
    monkeypatch: pytest.MonkeyPatch, layer: int, is_seen: bool
) -> None:
    monkeypatch.setattr(training, "MOST_COMPARED", 10)
    steps = TrainingStep().implementation("torch").prepare(SMALL, ExecutionContext(CPU))
    assert steps.check().wrong == 0
    weight = dict(steps.model.named_parameters())[f"blocks.blocks.{layer}.mlp.up.weight"]
    weight.grad *= 2
    assert bool(steps.verify_last(0).wrong) is is_seen
    # An error inside a layer that is left out reaches those before it.
    steps.model.blocks.blocks[2].mlp.up.weight.data.mul_(1.1)
    steps.poison()
    steps.launch(0)
    assert steps.verify_last(0).wrong > 0


def test_beside_a_row_stands_what_the_guide_measured_of_the_nearest_batch() -> None:
    large = TrainingStepParameters(**vars(SHAPES["bert-large"]))
    assert published_step(large).samples_per_s == 8.86
    assert published_step(replace(large, batch=1, precision="autocast_bfloat16")).samples_per_s == 18.64
    dropped = replace(large, batch=1, checkpointing=training.Checkpointing("every"))
    assert (published_step(dropped).memory, published_step(dropped).hardware) == (6775e6, "V100 SXM2 16GB")
    assert published_step(TrainingStepParameters()) is None
    assert {each.shape for each in PUBLISHED} == set(SHAPES)


def test_a_process_that_does_not_answer_is_ended_with_a_reason() -> None:
    process = find_workload("training_memory").implementation("process")
    with pytest.raises(Failed, match=r"No answer within .*smaller batch"):
        process.prepare(TrainingStepParameters(vocab=64), ExecutionContext(CPU, deadline_s=0.01))
