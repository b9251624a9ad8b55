"""The pipe model of attention on Hopper against closed forms, an H200's records and published charts."""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.kernels import attention_sm90
from pyperf_suite.laws.attention_pipes import (
    COMPARISONS,
    MULTIPLICATIONS,
    HopperForward,
    round_cycles,
    softmax_cycles,
    tensor_cycles,
)
from pyperf_suite.laws.tiled_attention import Blocks, TiledAttention
from pyperf_suite.record.journal import read_journal

MULTIPROCESSORS = 132
H100_BYTES_PER_S, H200_BYTES_PER_S = 3.35e12, 4.8e12
H200 = Path(__file__).parents[3] / "bench_results" / "cuda-nvidia-h200-132sm-140gib"
H200_HEADS = H200 / "20261126T060843Z-9b67" / "records.jsonl"
# FlashAttention-3's blocks when its charts were made, by head_dim and mask; its tiles go head by head, first first.
FLASH_3 = {
    **{(64, causal): Blocks(192, 128) for causal in (False, True)},
    **{(256, causal): Blocks(128, 80) for causal in (False, True)},
    (128, False): Blocks(128, 176),
    (128, True): Blocks(128, 128),
}
CUDNN = Blocks(128, 128)
OFF = 0.08


class Point(NamedTuple):
    """A published time, and how many cycles it is predicted to take at a clock."""

    head_dim: int
    attention: HopperForward
    seconds: float

    def error(self, clock_hz: float) -> float:
        return self.attention.cycles(H100_BYTES_PER_S / clock_hz) / clock_hz / self.seconds - 1


def in_turns(batch: int, heads: int, seq: int, head_dim: int, causal: bool, blocks: Blocks) -> HopperForward:
    """A library's kernel on an H100 or H200."""
    tiles = TiledAttention(
        *(batch, heads, seq, seq, head_dim, head_dim, causal, blocks, MULTIPROCESSORS), heaviest_first=False
    )
    return HopperForward.in_turns(tiles, MULTIPROCESSORS)


def charts(path: Path) -> Iterator[Point]:
    """FlashAttention-3's forward passes."""
    with path.open() as file:
        for row in csv.DictReader(file):
            if match := re.fullmatch("fa3 fwd (full|causal)", row["kind"]):
                batch, seq, heads, head_dim = map(int, re.findall(r"\d+", row["shape"]))
                key = (head_dim, match[1] == "causal")
                attention = in_turns(batch, heads, seq, *key, FLASH_3[key])
                yield Point(head_dim, attention, float(row["measured_us"]) * 1e-6)


def clock_of(points: list[Point]) -> float:
    """The clock at which half of the points are predicted to take longer than they did."""
    low, high = 1.0e9, 2.0e9
    while high - low > 1e5:
        clock_hz = (low + high) / 2
        low, high = (clock_hz, high) if statistics.median(p.error(clock_hz) for p in points) > 0 else (low, clock_hz)
    return low


@given(st.integers(1, 6), st.floats(1, 1e4), st.floats(1, 1e4))
def test_a_round_is_that_of_a_closed_network_of_two_queues(parts: int, tensor: float, softmax: float) -> None:
    def ways(count: int) -> float:
        return math.fsum(tensor**served * softmax ** (count - served) for served in range(count + 1))

    # Gordon and Newell 1967: the throughput is a ratio of normalizing constants.
    assert round_cycles(parts, tensor, softmax) == pytest.approx(parts * ways(parts) / ways(parts - 1))


def test_units_take_what_their_throughput_says() -> None:
    # 8,192 scores: exponentials at 16 a cycle, maxima and half as many packings at 64; and the corrections.
    assert softmax_cycles(64, 128, 64) == 8192 / 16 + 1.5 * 8192 / 64 + 128 / 16 * 2 + 64 * 64 / 128
    assert tensor_cycles(64, 128, 64) == 4 * 64 * 128 * 64 / 4096
    # Two comparisons a score more where keys are masked; multiply-adds count where few exponentials are left.
    assert softmax_cycles(64, 128, 64, masked=True) - softmax_cycles(64, 128, 64) == 2 * 8192 / 64
    by_share = {share: softmax_cycles(64, 128, 64, polynomial=share) for share in (0, 0.25, 6 / 13, 0.7, 1)}
    assert min(by_share, key=by_share.__getitem__) == 6 / 13


def test_libraries_that_hand_out_heads_in_order_finish_later_than_the_heaviest_first() -> None:
    tiles = (1, 8, 16384, 16384, 256, 256, True, Blocks(128, 80), MULTIPROCESSORS)
    late, early = (TiledAttention(*tiles, heaviest_first=first).busiest[0] for first in (False, True))
    assert early < late < 1.2 * early
    assert late >= TiledAttention(*tiles).steps.sum() * 8 / MULTIPROCESSORS


def measured_cycles() -> dict[tuple[str, int, bool], tuple[float, float, Any]]:
    """Cycles, clock and the kernel's details of an H200's forward passes, by implementation, head_dim and mask."""
    cycles_of = {}
    for record in read_journal(H200_HEADS):
        if record.case["operator"] == "attention":
            case, clock_hz = record.parsed_case(), record.metrics["sm_clock"].value
            key = (case.implementation, case.parameters.head_dim, case.parameters.causal)
            cycles_of[key] = (record.metrics["time"].value * clock_hz, clock_hz, record.kernel["details"])
    return cycles_of


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tritons_share_of_cudnns_speed_is_predicted(head_dim: int, causal: bool) -> None:
    measured, heads = measured_cycles(), 4096 // head_dim
    triton, clock_hz, details = measured["triton", head_dim, causal]
    shape = (2, heads, 4096, 4096, head_dim, head_dim, causal, Blocks.parse(details["blocks"]), details["slots"])
    ours = HopperForward.by_triton(TiledAttention(*shape, details["heads_together"]), MULTIPROCESSORS)
    cudnn = in_turns(2, heads, 4096, head_dim, causal, CUDNN)
    cycles = ours.cycles(H200_BYTES_PER_S / clock_hz)
    assert cycles == pytest.approx(triton, rel=0.02)
    theirs = cudnn.cycles(H200_BYTES_PER_S / measured["sdpa_cudnn", head_dim, causal][1])
    assert theirs / cycles == pytest.approx(measured["sdpa_cudnn", head_dim, causal][0] / triton, rel=OFF)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_charts_of_flash_attention_3_are_predicted_at_a_clock_of_its_other_head_dims(
    measured_tables: Path, head_dim: int
) -> None:
    path = measured_tables / "kernels_2026.csv"
    if not path.exists():
        pytest.skip("no charts of kernels among the tables")
    points = list(charts(path))
    clock_hz = clock_of([point for point in points if point.head_dim != head_dim])
    errors = [abs(point.error(clock_hz)) for point in points if point.head_dim == head_dim]
    assert len(errors) >= 5
    assert max(errors) < OFF
    assert statistics.mean(errors) < 0.045


def test_cudnns_published_times_on_an_h200_are_predicted_at_the_clocks_of_our_records(measured_tables: Path) -> None:
    clocks = {causal: measured_cycles()["sdpa_cudnn", 128, causal][1] for causal in (False, True)}
    errors = []
    with (measured_tables / "sdpa_h200.csv").open() as file:
        for row in csv.DictReader(file):
            if row["data_type"] == "bfloat16" and row["success"] == "True":
                causal, seq = row["attn_mask"] != "no_mask", int(row["q_seqlen"])
                attention = in_turns(int(row["batch_size"]), int(row["num_q_heads"]), seq, 128, causal, CUDNN)
                seconds = attention.cycles(H200_BYTES_PER_S / clocks[causal]) / clocks[causal]
                errors.append(abs(seconds / (float(row["fwd_time_ms"]) * 1e-3) - 1))
    assert len(errors) == 10
    assert max(errors) < OFF


def predicted_rows() -> Iterator[str]:
    """The table of docs/probes/attention_heads.md: each block is one that our Hopper kernel takes."""
    measured = measured_cycles()
    blocks = [*attention_sm90.BLOCKS.items(), (64, (128, 128)), (128, (192, 64))]
    for head_dim, (rows, keys) in sorted(blocks):
        kernel = attention_sm90.specialise(head_dim, queries=rows, keys=keys)
        share, heads = kernel.polynomial / 8, round(4096 / head_dim)
        work = tensor_cycles(64, keys, head_dim), softmax_cycles(64, keys, head_dim, polynomial=share)
        peaks, ratios = [], []
        for causal in (False, True):
            tiles = TiledAttention(
                2, heads, 4096, 4096, head_dim, head_dim, causal, Blocks(rows, keys), MULTIPROCESSORS
            )
            attention = HopperForward.in_turns(tiles, MULTIPROCESSORS, share)
            theirs, clock_hz, _ = measured.get(("sdpa_cudnn", head_dim, causal), (math.nan, 1.7e9, {}))
            cycles = attention.cycles(H200_BYTES_PER_S / clock_hz)
            peaks.append(f"{8 * heads * head_dim * 4096**2 / (1 + causal) / cycles / MULTIPROCESSORS / 4096:.2f}")
            ratios.append(f"{theirs / cycles:.2f}")
        unit = "softmax" if work[1] > work[0] else "tensor cores"
        times = " | ".join(f"{kernel.consumers} × {cycles:,.0f}" for cycles in work)
        against = "" if "nan" in ratios else f"{' / '.join(ratios)} "
        cells = head_dim, f"{rows} × {keys}", times, unit, f"{attention.step():,.0f}", " / ".join(peaks), f"{against}|"
        yield f"| {' | '.join(map(str, cells))}"


def test_the_page_has_the_predictions_for_blocks_of_our_kernel() -> None:
    page = (H200.parents[1] / "docs" / "probes" / "attention_heads.md").read_text()
    assert [row for row in predicted_rows() if row not in page] == []


@pytest.mark.slow
def test_instructions_a_score_are_those_of_our_triton_kernels_machine_code() -> None:
    pytest.importorskip("triton")
    from pyperf_suite.kernels import attention, attention_defaults
    from pyperf_suite.kernels.disassembly import disassemble

    configuration = attention_defaults.default_configuration("sm_90", 64, "bfloat16")
    binary = attention.compile_for("sm_90", configuration)
    instructions = disassemble(binary.cubin, binary.name).instructions
    # Whole blocks of keys and masked ones have a loop each; a thread has half a score a key.
    scores = 2 * configuration.block_n / 2
    per_score = {name: instructions[name] / scores for name in ("MUFU", "FMNMX", "FFMA", "FADD", "F2FP")}
    assert per_score == pytest.approx({"MUFU": 1, "FMNMX": 1, "FFMA": 1, "FADD": 1, "F2FP": 0.5}, rel=0.27)
    assert sum(per_score[name] for name in ("FMNMX", "F2FP")) >= COMPARISONS
    assert sum(per_score[name] for name in ("FFMA", "FADD")) >= MULTIPLICATIONS
