"""Kept bytes are those of the storages that autograd keeps, the peak is what lives at once, each storage once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.workloads.training import TransformerShape

torch = pytest.importorskip("torch")


from pyperf_suite.workloads.training.gpt import build, inputs  # noqa: E402
from pyperf_suite.workloads.training.held_bytes import kept, peak_bytes  # noqa: E402

SHAPE = TransformerShape(hidden=64, heads=4, layers=2, seq=32, batch=2)
CPU = torch.device("cpu")


def saved_bytes(model, call):
    return kept(model, call).total


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
