"""Kept bytes are those of the storages that autograd keeps, the peak is what lives at once, each storage once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.workloads.training import Checkpointing, TransformerShape

torch = pytest.importorskip("torch")


from pyperf_suite.workloads.training.gpt import build, inputs  # noqa: E402
from pyperf_suite.workloads.training.held_bytes import kept, peak_bytes  # noqa: E402

SHAPE = TransformerShape(hidden=64, heads=4, layers=2, seq=32, batch=2)
TENSOR = 2 * 32 * 64 * 4  # bytes of one of batch x seq x hidden in float32
CPU = torch.device("cpu")


def saved_bytes(model, call):
    return kept(model, call).total


def saved(shape, **kind):
    model = build(shape).to(**kind)
    placed = [each.to(**kind) if each.is_floating_point() else each for each in inputs(shape)]
    return saved_bytes(model, lambda: model(*placed))


LAYER, ROWS, LEAF = torch.nn.Linear(8, 8), torch.randn(10, 8), torch.randn(5, requires_grad=True)


def with_a_branch_that_is_dropped():
    LAYER(LAYER(ROWS.sin()))
    return LAYER(ROWS)


@pytest.mark.parametrize(
    ("call", "elements"),
    [
        (lambda: LAYER(ROWS), 10 * 8),  # the input of a product, neither its weight nor its result
        (lambda: LAYER(ROWS[:2]) + LAYER(ROWS[5:6]), 10 * 8),  # all of a view's storage, and that once
        (LEAF.exp, 5),  # a result, where backward needs it
        (torch.no_grad()(lambda: LAYER(ROWS)), 0),
        (with_a_branch_that_is_dropped, 10 * 8),
    ],
    ids=["product", "views", "result", "no gradient", "dropped"],
)
def test_what_backward_needs_is_kept_once_and_whole(call, elements):
    assert saved_bytes(LAYER, call) == 4 * elements


@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        replace(SHAPE, vocab=96),
        replace(SHAPE, vocab=96, gated=True, kv_heads=2, tied=False),
        replace(SHAPE, attention="explicit", dropout=0.1),
    ],
)
def test_what_lives_on_is_what_the_hooks_saw(shape):
    model, data, storages = build(shape), inputs(shape), {}

    def pack(tensor):
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(*data)
    for each in (*model.parameters(), *model.buffers()):
        storages.pop(each.untyped_storage()._cdata, None)
    assert sum(storages.values()) == saved(shape)
    del result


def test_selective_checkpointing_hides_what_it_keeps_from_hooks_but_not_from_the_count():
    every, selective, none = (
        saved(replace(SHAPE, checkpointing=Checkpointing.parse(text))) for text in ("every:1", "selective", "none")
    )
    assert every == 2 * TENSOR, "the input of each group alone"
    assert saved(replace(SHAPE, layers=4, checkpointing=Checkpointing("every", 2))) == 2 * TENSOR
    # Kept tensors of each block: qkv, attention's result, what comes after it, and the hidden layer before GELU.
    assert every + 2 * 8 * TENSOR < selective < none
    # Half as wide elements take half of the bytes, but for statistics.
    assert saved(SHAPE, dtype=torch.bfloat16) == pytest.approx(none / 2, rel=0.01)


def test_casts_of_weights_are_told_apart_and_stay_as_many_at_any_batch():
    def of(batch):
        shape = replace(SHAPE, batch=batch)
        model, data = build(shape), inputs(shape)

        def call():
            with torch.autocast("cpu", torch.bfloat16):
                return model(*data)

        return kept(model, call)

    matrices = sum(each.numel() for each in build(SHAPE).parameters() if each.ndim == 2)
    assert of(1).weight_copies == of(4).weight_copies == 2 * matrices
    assert of(4).activations == 4 * of(1).activations


def test_what_passes_counts_while_it_lives():
    x = torch.zeros(256)

    def call():
        y = x + 1  # 1 KiB
        y = torch.cat([y, y])  # 2 KiB beside it
        return y[:3].clone()  # 12 bytes beside 2 KiB

    assert peak_bytes(call, CPU) == 3 * 1024


@pytest.mark.slow
def test_gradients_that_stay_count_and_weights_do_not():
    layer = torch.nn.Linear(16, 16, bias=False)
    x = torch.zeros(1, 16)
    held = peak_bytes(lambda: layer(x).sum().backward(), CPU)
    assert 16 * 16 * 4 < held < 2 * 16 * 16 * 4
