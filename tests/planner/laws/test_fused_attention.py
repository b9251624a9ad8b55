"""The time of attention on named GPUs: causes that add up, shapes that were never measured, what cannot be asked."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner.laws.attention import (
    BACKWARD_HALF_SEQ,
    BACKWARD_RATE,
    PLAIN,
    PUBLISHED,
    attention_time,
    mla_time,
)
from pyperf_suite.planner.laws.calibration import (
    CalibrationBlock,
    correction_name,
    fit_correction,
    shipped_calibration,
)
from pyperf_suite.planner.laws.transfers import OTHER_GENERATION, OTHER_KIND, SAME_KIND, TWIN, is_desktop
from tools.fit.published import SAMPLE

CALIBRATED = ("A100", "B200", "H100", "H200", "L40S")


@pytest.mark.parametrize("gpu", CALIBRATED)
def test_a_head_just_past_a_width_costs_as_much_as_the_next_width_but_its_bytes(gpu):
    past, full = attention_time(gpu, 1, 8192, 8192, 32, 8, [100, 128]).seconds
    assert 0.9 * full < past <= full
    explained = attention_time(gpu, 1, 8192, 8192, 32, 8, [100, 128])
    assert explained.parts["alignment"][0] > 0.1 * past
    assert explained.parts["alignment"][1] == 0


def test_shapes_beyond_what_was_measured_are_marked():
    def marked(gpu="H200", batch=1, seq_q=4096, seq_k=4096, head_dim=128):
        explained = attention_time(gpu, batch, seq_q, seq_k, 32, 8, head_dim)
        return bool(explained.extrapolated)

    assert not marked()
    assert marked(batch=4096)
    assert marked(seq_q=131072, seq_k=131072)
    assert marked(seq_q=1024)
    assert marked(head_dim=96)
    assert marked(head_dim=1)
    assert not marked(head_dim=120)
    assert marked(gpu="GH200")


def test_every_answer_repeats_its_own_error_and_where_it_is_from():
    own, backward, moved, far = (
        attention_time(gpu, 1, 4096, 4096, 32, 8, 128, backward=backward)
        for gpu, backward in (("H200", False), ("H200", True), ("GH200", False), ("RTX 4090", False))
    )
    assert own.error_percent == shipped_calibration("H200 SXM").block(f"{PLAIN}.trtllm").held_out["mape"]
    assert own.error_percent < backward.error_percent < own.error_percent + 100 * PUBLISHED
    assert own.error_percent < moved.error_percent < far.error_percent
    assert "read off H100" in moved.origin  # of its own architecture
    assert "read off L40S" in far.origin
    assert "aiconfigurator" in far.origin


@pytest.mark.parametrize(
    ("gpu", "read_off", "half_width"),
    [
        ("GB200", "B200", TWIN),
        ("GH200", "H100", TWIN),
        ("B300", "B200", SAME_KIND),
        ("H100 PCIe", "H100", SAME_KIND),  # less power for multiprocessors
        ("RTX PRO 6000", "L40S", OTHER_GENERATION),  # of compute capability 12.0, which is not 10.0
        ("RTX 4090", "L40S", SAME_KIND),
        ("A40", "L40S", SAME_KIND),
        ("MI300X", "", OTHER_KIND),
    ],
)
def test_a_gpu_without_tables_is_read_off_one_whose_kernels_it_runs_with_the_interval_of_gpus_left_out(
    gpu, read_off, half_width
):
    explained = attention_time(gpu, 1, 4096, 4096, 32, 8, 128)
    assert f"read off {read_off}" in explained.origin
    # Next to the kernel's own.
    assert np.exp(half_width) < explained.high / explained.seconds < np.exp(half_width + 0.02)
    assert np.exp(half_width) < explained.seconds / explained.low < np.exp(half_width + 0.02)
    assert explained.extrapolated


@pytest.mark.parametrize(
    ("gpu", "shape", "published"),
    [
        ("RTX 5090", (1, 4096, 8192, 8, 8, 128), 190.6e12),  # gau-nernst's learn-cuda, flash-attn at 400 W
        ("RTX A5000", (2, 8192, 8192, 32, 32, 64), 81.9e12),  # gpu-mode/ring-attention issue 10
    ],
)
def test_flash_attention_2_as_published_lies_within_the_interval_of_gpus_of_its_kind(gpu, shape, published):
    batch, queries, keys, heads, _, head_dim = shape
    measured = 4 * batch * heads * queries * keys * head_dim / published
    explained = attention_time(gpu, *shape, causal=False, dtype="fp16", library="vllm")
    assert explained.low < measured < explained.high
    assert is_desktop(find_gpu(gpu))
    assert not is_desktop(find_gpu("B200"))


@pytest.mark.parametrize("gpu", [*CALIBRATED, "B300", "RTX 4090"])
def test_a_window_takes_less_the_shorter_it_is_and_none_from_the_sequence_on(gpu):
    def seconds(window, seq=16384):
        return attention_time(gpu, 1, seq, seq, 40, 8, 128, window=window).seconds

    assert np.all(np.diff(seconds([512, 2048, 16384])) > 0)
    assert seconds(512) < 0.25 * seconds(0)
    # A window that was measured has its own kernel, also in shorter sequences.
    assert seconds(32768) == pytest.approx(seconds(0))
    assert seconds(8192, seq=2048) == pytest.approx(seconds(0, seq=2048), rel=0.1)


def test_what_was_measured_on_a_machine_corrects_the_law_there():
    arrays, limits = fit_correction(np.full(4, np.log(1.25)), {"batch": np.array([1, 2, 4, 8])}, degree=0)
    block = CalibrationBlock(arrays, {"mape": 2.0}, limits)
    here = shipped_calibration("H200 SXM").with_block(correction_name("attention_bf16"), block)
    shape = (2, 4096, 4096, 32, 8, 128)
    explained = attention_time(here, *shape)
    assert explained.seconds == pytest.approx(1.25 * attention_time("H200", *shape).seconds)
    assert explained.parts["this machine"] == pytest.approx(0.2 * explained.seconds)
    backward = attention_time(here, *shape, backward=True)
    assert explained.error_percent == 2.0 < backward.error_percent


def sdpa(dtype, what):
    """Milliseconds of cuDNN on an H200 by mask and length."""
    with (SAMPLE / "sdpa_h200.csv").open() as table:
        rows = [row for row in csv.DictReader(table) if row["data_type"] == dtype]
    return {(row["attn_mask"], int(row["q_seqlen"])): float(row[what]) for row in rows}


def test_the_backward_takes_what_cudnn_took_on_an_h200():
    forward, backward = (sdpa("bfloat16", what) for what in ("fwd_time_ms", "bwd_time_ms"))
    for (_, seq), forward_ms in forward.items():
        rate = BACKWARD_RATE[128] / (1 + BACKWARD_HALF_SEQ / seq)
        assert backward[_, seq] / forward_ms == pytest.approx(2.5 / rate, rel=PUBLISHED)


def test_attention_without_a_mask_is_as_much_slower_as_cudnn_measured():
    forward = sdpa("bfloat16", "fwd_time_ms")
    for seq in (4096, 8192, 16384, 32768):
        full, causal = (
            attention_time("H200", 1, seq, seq, 64, 8, 128, causal=which).seconds for which in (False, True)
        )
        assert full / causal == pytest.approx(forward["no_mask", seq] / forward["top_left", seq], rel=0.06)


def test_a_gpu_without_tables_of_latent_attention_is_read_off_one_with_the_same_kernels_or_stated_wide():
    def width(gpu):
        found = mla_time(gpu, 4, 4096, 4096, 32)
        return float(np.log(found.high / found.low)), found

    own, twin, similar, other = (width(gpu)[0] for gpu in ("B200", "GH200", "B300", "RTX PRO 6000"))
    assert own < twin < similar < other
    assert width("B300")[1].origin.startswith("read off B200 SXM")
    # Those three were found to take 1 / 0.63 to 1 / 0.56 of the time that B200's law says.
    for gpu in ("B300", "GB200", "GB300"):
        assert width(gpu)[1].high / width(gpu)[1].seconds > 1 / 0.56
        assert width(gpu)[1].extrapolated
    # Compute capability 12.0 has not the kernels of 10.0.
    assert width("RTX PRO 6000")[1].origin.startswith("read off L40S")
    assert mla_time("H100", [8, 8, 5000], [4096, 10**6, 4096], [4096, 10**6, 4096], 32).extrapolated.tolist() == [
        False, True, True,
    ]  # fmt: skip
