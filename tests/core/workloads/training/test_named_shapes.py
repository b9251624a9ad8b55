"""The guides' models by name: as large as those published, and compared where it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite import workloads
from pyperf_suite.errors import Failed
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.transformer import model_flop
from pyperf_suite.workloads import training
from pyperf_suite.workloads.training import TransformerShape, requested_flop
from pyperf_suite.workloads.training.shapes import PUBLISHED, SHAPES, published_step, shape_name, sized, tensor_sizes
from pyperf_suite.workloads.training.training_step import TrainingStep, TrainingStepParameters
from pyperf_suite.workloads.workload import ExecutionContext

torch = pytest.importorskip("torch")

CPU = Device("cpu")
# Of the models that the guides loaded: 512 positions and token types of BERT's are the difference.
PARAMETERS = {"bert-base": 108.3e6, "bert-large": 335.1e6, "gpt2": 124.4e6}
SMALL = TrainingStepParameters(hidden=32, heads=2, layers=4, seq=8, batch=2, vocab=40)


@pytest.mark.parametrize("name", SHAPES)
def test_a_named_shape_is_as_large_as_the_model_of_that_name(name: str) -> None:
    from pyperf_suite.workloads.training import gpt

    with torch.device("meta"):
        model = gpt.build(SHAPES[name])
    sizes = [tuple(each.shape) if each.ndim > 1 else (1, len(each)) for each in model.parameters()]
    assert sorted(sizes) == sorted(tensor_sizes(SHAPES[name]))
    count = sum(rows * columns for rows, columns in sizes)
    assert count == SHAPES[name].dimensions.parameters
    assert count == pytest.approx(PARAMETERS[name], rel=0.005)


def test_a_shape_keeps_its_name_on_another_batch_and_no_other_has_it() -> None:
    assert shape_name(sized("gpt2", seq=64, batch=1)) == "gpt2"
    assert shape_name(replace(SHAPES["gpt2"], layers=11)) == shape_name(TransformerShape()) == ""


def test_an_encoder_sees_what_comes_later_and_counts_no_logits() -> None:
    from pyperf_suite.workloads.training import gpt

    for attention in ("sdpa", "explicit"):
        shape = replace(SMALL, classes=3, attention=attention)
        model = gpt.build(shape).eval()
        tokens, classes = gpt.inputs(shape)
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
    # What goes wrong inside a layer that is left out reaches those before it.
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
    process = workloads.find_workload("training_memory").implementation("process")
    with pytest.raises(Failed, match=r"No answer within .*smaller batch"):
        process.prepare(TrainingStepParameters(vocab=64), ExecutionContext(CPU, deadline_s=0.01))


@pytest.mark.slow
def test_a_process_shows_more_than_its_tensors_and_its_libraries_are_there_before_the_model() -> None:
    shape = TrainingStepParameters(hidden=256, heads=4, layers=4, seq=64, batch=2, vocab=512)
    found = {}
    for each in (shape, replace(shape, hidden=1024)):
        workload = workloads.find_workload("training_memory")
        metrics = workload.implementation("process").prepare(each, ExecutionContext(CPU)).exact
        found[each.hidden] = {name: metric["value"] for name, metric in metrics.items()}
        assert found[each.hidden]["shown"] > found[each.hidden]["context"] > 50e6
        assert found[each.hidden]["shown"] > found[each.hidden]["tensors"]
    small, large = found[256], found[1024]
    assert large["shown"] - small["shown"] > 0.6 * (large["tensors"] - small["tensors"])
