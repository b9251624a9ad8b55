"""The peak is what lives at once: results and what passes between them, each storage once, what was there left out."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pyperf_suite.workloads.training.peak_bytes import bytes_of, peak_bytes  # noqa: E402

CPU = torch.device("cpu")
KIB = 1024


def test_what_passes_counts_while_it_lives():
    x = torch.zeros(256)

    def call():
        y = x + 1  # 1 KiB
        y = torch.cat([y, y])  # 2 KiB beside it
        return y[:3].clone()  # 12 bytes beside 2 KiB

    assert peak_bytes(call, CPU) == 3 * KIB


def test_in_place_operations_and_views_take_nothing():
    x = torch.zeros(256)
    assert peak_bytes(lambda: x.add_(1).view(16, 16).t().mul_(2), CPU) == 0


def test_gradients_that_stay_count_and_weights_do_not():
    layer = torch.nn.Linear(16, 16, bias=False)
    x = torch.zeros(1, 16)
    held = peak_bytes(lambda: layer(x).sum().backward(), CPU)
    assert 16 * 16 * 4 < held < 2 * 16 * 16 * 4


def test_each_storage_counts_once_and_whole():
    x = torch.zeros(256)
    assert bytes_of([x, x[:3], {"view": x.view(16, 16)}]) == KIB
    assert bytes_of([]) == 0
