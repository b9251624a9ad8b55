"""Triton's attention as an implementation: refused or prepared in one sentence, launched, and its costs told."""

from __future__ import annotations

from types import SimpleNamespace

from pyperf_suite.laws.tiled_attention import Blocks
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.attention.attention import (
    configuration_of,
    costs_of,
)


def test_blocks_that_are_asked_for_are_taken_and_what_they_leave_open_is_the_target_s_own():
    requested = AttentionParameters(1, 8, 64, 512, dtype="bfloat16", blocks=Blocks(64, 32))
    own = configuration_of(AttentionParameters(1, 8, 64, 512, dtype="bfloat16"), "sm_90")
    configuration = configuration_of(requested, "sm_90")
    assert (configuration.block_m, configuration.block_n) == (64, 32)
    assert (configuration.stages, configuration.warps) == (own.stages, own.warps)
    whole = configuration_of(AttentionParameters(1, 8, 64, 512, blocks=Blocks(64, 32, 2, 8)), "sm_90")
    assert (whole.stages, whole.warps) == (2, 8)
    # Larger ones than TMA takes go by addresses.
    large = AttentionParameters(1, 8, 64, 512, dtype="bfloat16", blocks=Blocks(512, 32))
    assert configuration_of(large, "sm_90").operands == "addresses"


def test_slots_are_the_programs_that_all_multiprocessors_hold_at_once():
    compiled = SimpleNamespace(n_regs=204, n_spills=0, metadata=SimpleNamespace(shared=66560, num_warps=4))
    costs = costs_of(compiled, "sm_90", 132)
    assert (costs["registers"], costs["spills"], costs["shared_bytes"]) == (204, 0, 66560)
    assert (costs["resident"], costs["slots"]) == (2, 264)
    # Limits of an unknown device are left open.
    assert costs_of(compiled, "sm_75", 132)["slots"] is None
    assert costs_of(None, "sm_90", 132) == dict.fromkeys(["registers", "spills", "shared_bytes", "resident", "slots"])
