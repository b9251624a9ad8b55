"""Triton's attention as an implementation: refused or prepared in one sentence, launched, and its costs told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiled_attention import Blocks
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.attention.attention import (
    ATTENTION,
    TritonAttention,
    configuration_of,
    costs_of,
)
from pyperf_suite.workloads.workload import ExecutionContext

SMALL = AttentionParameters(1, 4, 24, 20, 33, kv_heads=2, causal=True, dtype="float16")


@pytest.fixture(scope="module")
def interpreted():
    """Prepares and launches a case in a process where Triton interprets."""
    pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    versions = [tuple(map(int, module.__version__.split(".")[:2])) for module in (triton, np)]
    if versions[0] < (3, 7) and versions[1] >= (2, 4):
        pytest.skip(f"the interpreter of Triton {triton.__version__} cannot loop with numpy {np.__version__}")
    script = Path(__file__).with_name("interpreted_triton_attention.py")

    def run(*questions: dict) -> list[dict]:
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        done = subprocess.run([sys.executable, str(script)], input=lines, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.mark.slow
def test_both_passes_write_what_verifies_and_say_what_ran(interpreted):
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "head_dim": 24, "seq_q": 20, "seq_k": 33, "causal": True}
    sizes |= {"dtype": "float16"}
    forward, backward, too_odd = interpreted(
        {"target": "sm_90", "blocks": "", **sizes},
        {"target": "sm_80", "blocks": "16x32:s2:w4", "backward": True, **sizes},
        {"target": "sm_90", "blocks": "", **sizes, "head_dim": 23},
    )
    for each in (forward, backward, too_odd):
        assert "failed" not in each, each["failed"]
        for passed_when_poisoned, message in each["outcomes"]:
            assert not passed_when_poisoned
            assert message.startswith("correct"), message
    assert (forward["path"], backward["path"], too_odd["path"]) == ("descriptors", "addresses", "addresses")
    assert backward["details"]["blocks"] == "16x32:s2:w4"
    assert forward["details"]["padded_head_dim"] == 32
    assert forward["details"]["padding_waste"] == 0.25
    assert list(forward["details"]["kernels"]) == ["forward"]
    assert list(backward["details"]["kernels"]) == ["dk_dv", "dq"]


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


def test_without_triton_the_case_is_unsupported(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="triton is not installed"):
        TritonAttention().prepare(SMALL, ATTENTION.operands(SMALL, 0), ExecutionContext(Device("cuda")))


def test_slots_are_the_programs_that_all_multiprocessors_hold_at_once():
    compiled = SimpleNamespace(n_regs=204, n_spills=0, metadata=SimpleNamespace(shared=66560, num_warps=4))
    costs = costs_of(compiled, "sm_90", 132)
    assert (costs["registers"], costs["spills"], costs["shared_bytes"]) == (204, 0, 66560)
    assert (costs["resident"], costs["slots"]) == (2, 264)
    # Limits of an unknown device are left open.
    assert costs_of(compiled, "sm_75", 132)["slots"] is None
    assert costs_of(None, "sm_90", 132) == dict.fromkeys(["registers", "spills", "shared_bytes", "resident", "slots"])
