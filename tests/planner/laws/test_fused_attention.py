"""The time of attention on named GPUs: causes that add up, charts that it is anchored to, what is beyond them."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner.laws.attention import attention_time, share_of_peak
from pyperf_suite.planner.laws.training.framework import ON_HOPPER
from pyperf_suite.planner.laws.transfers import card_of
from tools.fit.published import SAMPLE

GPUS = ("A100", "B200", "H100", "H200", "L40S", "B300", "RTX 4090", "MI300X")


@pytest.mark.parametrize("gpu", GPUS)
def test_a_head_just_past_a_width_costs_as_much_as_the_next_width_but_its_bytes(gpu):
    past, full = attention_time(gpu, 1, 8192, 8192, 32, 8, [100, 128]).seconds
    assert 0.9 * full < past <= 1.05 * full
    explained = attention_time(gpu, 1, 8192, 8192, 32, 8, [100, 128])
    assert explained.parts["alignment"][0] > 0.1 * past
    assert explained.parts["alignment"][1] == 0


def test_shapes_beyond_the_charts_are_marked():
    def marked(gpu="H200", seq_q=4096, seq_k=4096, head_dim=128, window=0):
        explained = attention_time(gpu, 4, seq_q, seq_k, 32, 8, head_dim, window=window)
        return bool(explained.extrapolated)

    assert not marked()
    assert not marked(head_dim=120)
    assert marked(head_dim=80)
    # A window as long as the sequence is none.
    assert not marked(window=4096)
    assert marked(seq_q=131072, seq_k=131072)
    assert marked(seq_q=1024)
    assert marked(head_dim=32)
    assert marked(window=1024)
    assert marked(gpu="B300")


@pytest.mark.parametrize(
    ("gpu", "shape", "published"),
    [
        ("RTX 5090", (1, 4096, 8192, 8, 8, 128), 190.6e12),  # gau-nernst's learn-cuda, flash-attn at 400 W
        ("RTX A5000", (2, 8192, 8192, 32, 32, 64), 81.9e12),  # gpu-mode/ring-attention issue 10
    ],
)
def test_flash_attention_2_as_published_lies_within_the_interval_of_other_gpus(gpu, shape, published):
    batch, queries, keys, heads, _, head_dim = shape
    measured = 4 * batch * heads * queries * keys * head_dim / published
    explained = attention_time(gpu, *shape, causal=False, dtype="fp16")
    assert explained.low < measured < explained.high


@pytest.mark.parametrize("gpu", GPUS)
def test_a_window_takes_less_the_shorter_it_is_and_none_from_the_sequence_on(gpu):
    def seconds(window, seq=16384):
        return attention_time(gpu, 1, seq, seq, 40, 8, 128, window=window).seconds

    assert np.all(np.diff(seconds([512, 2048, 16384])) > 0)
    assert seconds(512) < 0.25 * seconds(0)
    assert seconds(32768) == seconds(0)


def test_a_framework_without_hoppers_kernels_takes_as_much_longer_as_the_charts_say():
    spec = find_gpu("H100")
    ratio = share_of_peak(spec, 128) / share_of_peak(spec, 128, "FlashAttention-2")
    assert pytest.approx(ratio, rel=0.03) == ON_HOPPER


def test_a_card_of_less_power_computes_and_one_of_slower_memory_moves_for_longer():
    shape = (4, 4096, 4096, 32, 8, 128)
    usual, held, slow = (
        attention_time(card_of(find_gpu("H100"), **card), *shape).parts
        for card in ({}, {"power_w": 350.0}, {"memory_gb_s": 1675.0})
    )
    assert held["rate"] + held["ideal"] == pytest.approx(2 ** (1 / 3) * (usual["rate"] + usual["ideal"]))
    assert held["bandwidth"] == usual["bandwidth"] == pytest.approx(slow["bandwidth"] / 2)
    assert slow["rate"] == usual["rate"]


def sdpa(dtype, column):
    """Milliseconds of cuDNN on an H200 by mask and length."""
    with (SAMPLE / "sdpa_h200.csv").open() as table:
        rows = [row for row in csv.DictReader(table) if row["data_type"] == dtype]
    return {(row["attn_mask"], int(row["q_seqlen"])): float(row[column]) for row in rows}


@pytest.mark.parametrize(("column", "backward"), [("fwd_time_ms", False), ("bwd_time_ms", True)])
def test_cudnn_on_an_h200_is_predicted_within_the_interval(column, backward):
    errors, inside = [], []
    for (mask, seq), milliseconds in sdpa("bfloat16", column).items():
        found = attention_time("H200", 1, seq, seq, 64, 8, 128, mask != "no_mask", backward=backward)
        errors.append(float(found.seconds) * 1e3 / milliseconds - 1)
        inside.append(found.low < milliseconds * 1e-3 < found.high)
    assert np.mean(np.abs(errors)) < 0.1
    assert np.mean(inside) > 0.85
