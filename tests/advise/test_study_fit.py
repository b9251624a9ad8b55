"""What has no room is known before it runs: by how many bytes, and which neighbour would fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.advise.study.fit import (
    Room,
    described_change,
    nearest_that_fits,
    need_bytes,
    room_of,
    why_not,
)
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.study import cases_of, default_axes
from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.workloads.training.shape import Checkpointing

LARGE = ParallelStepParameters(
    hidden=4096, heads=32, layers=32, seq=2048, batch=4, vocab=32000, tied=False, data=8, micro_batches=4
)


def test_weights_gradients_and_moments_of_float32_are_16_bytes_a_parameter_and_activations_come_on_top() -> None:
    states = 16 * LARGE.dimensions.parameters
    assert need_bytes(replace(LARGE, batch=1, checkpointing=Checkpointing("every")), "cuda") > states
    small = ParallelStepParameters(hidden=512, heads=1, layers=1, seq=1, vocab=512, tied=False)
    assert need_bytes(small, "cpu") == pytest.approx(16 * small.dimensions.parameters, rel=0.02)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"zero_stage": 1}, {"zero_stage": 0}),
        ({"zero_stage": 3}, {"zero_stage": 1}),
        ({"zero_stage": 3}, {"zero_stage": 2}),
        ({"batch": 1, "micro_batches": 16}, {"batch": 4}),
        ({"checkpointing": Checkpointing("every")}, {}),
        ({"attention": "sdpa"}, {"attention": "explicit"}),
        ({"tensor": 2}, {"tensor": 1}),
        ({"pipeline": 4}, {"pipeline": 1}),
        ({"dtype": "bfloat16"}, {}),
    ],
)
def test_each_way_to_save_memory_saves_some(less: dict[str, object], more: dict[str, object]) -> None:
    sized = [need_bytes(ParallelStepParameters(**vars(LARGE) | each), "cuda") for each in (less, more)]
    assert sized[0] < sized[1]


def test_what_fits_has_no_reason() -> None:
    assert why_not(LARGE, "cuda", Room(1e15, "a large memory")) == ""


def test_what_does_not_fit_says_by_how_many_bytes_and_what_does() -> None:
    room = Room(0.9 * 80 * 2**30, "the 80 GiB of a GPU")
    reason = why_not(LARGE, "cuda", room)
    lacking = re.search(r"([\d,]+) bytes more than it has of the 80 GiB of a GPU", reason)
    assert lacking is not None
    assert int(lacking[1].replace(",", "")) == pytest.approx(need_bytes(LARGE, "cuda") - room.bytes_a_rank, abs=1)
    near = nearest_that_fits(LARGE, "cuda", room.bytes_a_rank)
    assert near is not None
    assert need_bytes(near, "cuda") <= room.bytes_a_rank
    assert described_change(LARGE, near) in reason


def test_what_nothing_near_it_fits_says_that_too() -> None:
    assert why_not(LARGE, "cuda", Room(1e6, "a small memory")).endswith("; nothing near it fits.")


@pytest.mark.slow
@given(st.floats(1e9, 1e12))
def test_the_nearest_keeps_ranks_and_batch_and_really_fits(room_bytes: float) -> None:
    near = nearest_that_fits(LARGE, "cuda", room_bytes)
    if near is not None:
        near.validate()
        assert need_bytes(near, "cuda") <= room_bytes
        assert (near.ranks, near.global_batch, near.dimensions) == (LARGE.ranks, LARGE.global_batch, LARGE.dimensions)
        assert near.zero_stage >= LARGE.zero_stage


def test_one_change_is_nearer_than_two() -> None:
    one = nearest_that_fits(LARGE, "cuda", need_bytes(LARGE, "cuda") - 1)
    assert one is not None
    changed = [name for name in ("zero_stage", "batch", "checkpointing") if getattr(one, name) != getattr(LARGE, name)]
    assert len(changed) == 1


def test_ranks_of_one_machine_share_what_it_has_free() -> None:
    alone, shared = room_of(Device("cpu"), 1), room_of(Device("cpu"), 4)
    assert shared.bytes_a_rank == pytest.approx(alone.bytes_a_rank / 4, rel=0.2)
    assert "shared by 4 ranks" in shared.where


def test_no_configuration_of_the_default_grid_is_too_large_for_a_laptop() -> None:
    for case in cases_of(default_axes(Device("cpu"))):
        assert need_bytes(case.parameters, "cpu") < 200e6
